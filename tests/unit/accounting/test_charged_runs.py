"""Amounts of runs and jobs: none of them is made up, and a correction says what it knows."""

import pytest

from gpuledger_collector.accounting.charged_runs import ChargedAmounts

AMOUNTS = {
    "gpu_ns": 0,
    "busy_ns": 0,
    "idle_ns": 0,
    "unknown_ns": 0,
    "currency": "USD",
    "cost_micro": 10,
    "idle_cost_micro": None,
    "energy_mj": None,
}


def test_the_idle_cost_of_a_corrected_price_is_known():
    """It has no time of its own; its idle cost says that the time was known."""
    assert not ChargedAmounts(**AMOUNTS).has_known_activity
    assert ChargedAmounts(**AMOUNTS | {"idle_cost_micro": 4}).has_known_activity


@pytest.mark.parametrize("name", AMOUNTS)
def test_what_a_query_forgets_is_no_zero(name):
    """Each amount must be given."""
    with pytest.raises(TypeError, match=name):
        ChargedAmounts(**{key: value for key, value in AMOUNTS.items() if key != name})
