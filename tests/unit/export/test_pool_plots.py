"""The plot of a pool's back-test."""

import pytest

from gpuledger_collector.export.pool_plots import frontier


@pytest.mark.parametrize("cost", [0.0, 1e-9, 12.0])
def test_policies_that_cost_the_same_are_drawn(cost):
    """Also where all cost nothing, as in a pool that nobody has used for weeks."""
    drawn = frontier(
        [("gpuledger", cost, 0.0), ("the peak, always", cost, 0.0)], [], "USD", "a title", "a text"
    )
    assert drawn.count("<circle") == 2
    assert "nan" not in drawn
