"""The line of a pool's capacity: the GPUs that the inventory has in it at an instant."""

from fakes.fleet import DAY, HOUR, OCTOBER
from fakes.rich_ledger import rich
from gpuledger_collector.api.pages import pool_facts
from gpuledger_collector.insight.pool_outlook import PoolOutlook
from gpuledger_collector.storage.capacity.demand import capacity_by_pool

__all__ = ["rich"]


def test_a_pool_has_the_boards_of_its_inventory(rich):
    """Three sevenths of a board in a slice are a board; of another day, nothing is there."""
    noon = OCTOBER + 34 * DAY + 12 * HOUR
    assert capacity_by_pool(rich.connection, noon) == {"train": 2, "eu": 1, "slices": 1}
    assert capacity_by_pool(rich.connection, noon + 10 * DAY) == {}


def test_the_plot_of_demand_has_it_as_a_line():
    """Drawn and said; without an inventory neither."""
    ahead = ((1.0, 2.0, 3.0),) * 4
    known = pool_facts(PoolOutlook("train", (1.0, 2.0), ahead, "", 0, capacity=48.0))
    assert "capacity 48<" in known["plot"]
    assert 'class="limit"' in known["plot"]
    assert known["said"].endswith("The pool has 48 GPUs.")
    unknown = pool_facts(PoolOutlook("train", (1.0, 2.0), ahead, "", 0))
    assert "capacity" not in unknown["plot"]
    assert "The pool has" not in unknown["said"]
