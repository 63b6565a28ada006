"""A ledger of before dated facts, upgraded: what it billed it goes on billing, whatever is told later."""

import pytest

from fakes.batches import workload
from fakes.collector import running
from fakes.facts import AUGUST_MS, DAY, HOUR, SEPTEMBER_MS, World, mig
from gpuledger_collector.storage.database import open_connection
from gpuledger_collector.storage.server import migrate

EVERYTHING = """INSERT INTO hour_recompute (accelerator_id, hour_ms) SELECT DISTINCT accelerator_id,
    start_ms - start_ms % 3600000 FROM usage_interval; INSERT INTO day_recompute (day_ms) SELECT day_ms FROM
    conservation_check"""


@pytest.fixture
def before(dsn, run):
    """August on a ledger of revision 0022: a GPU, one in a pool of its own, and a board in halves; what it bills."""
    from alembic import command

    with running(dsn) as collector:
        world = World(collector, run)
        world.price()
        world.run("prices", "set", "--rate", "3", "--currency", "USD", "--from", "2026-01-01", "--pool", "lab")
        world.hold(AUGUST_MS + 4 * DAY, 6)
        world.hold(AUGUST_MS + 5 * DAY, 6, number=1, job="2", team="bravo", pool="lab")
        halves = [mig(1, 500_000, "n2"), mig(2, 500_000, "n2")]
        for hour in range(4):
            at_ms = AUGUST_MS + 6 * DAY + hour * HOUR
            world.send("n2", halves, at_ms, workload("3", user=None, tags={"team": "zulu"}))
        bill = world.bill("2026-08")
    config = migrate.configuration()
    with migrate.connected(dsn) as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, "0022")
    migrate.upgrade(dsn)
    return bill


@pytest.fixture
def world(before, dsn, run):
    with running(dsn) as collector:
        world = World(collector, run)
        world._seq = 1000
        yield world


def again(world):
    """August's bill with everything folded and rated anew."""
    with open_connection(world.collector.dsn) as connection:
        for statement in EVERYTHING.split(";"):
            connection.execute(statement)
    bill = world.bill("2026-08")
    world.run("reconcile", "--period", "2026-08")
    return bill


def test_everything_rated_again_after_the_upgrade_is_the_same(world, before):
    """Intervals without attributes rate as they did."""
    assert before["alpha"] == ("6.000000", "60.00")
    assert before["bravo"] == ("6.000000", "18.00")
    assert before["zulu"] == ("4.000000", "40.00")
    assert again(world) == before


def test_what_is_told_later_leaves_intervals_of_before_alone(world, before):
    """Other shares, models, pools and tags in September change nothing of August, whatever is placed again."""
    world.hold(SEPTEMBER_MS + DAY, 2, gpu_micro=1, model="H900", team="mallory")
    world.hold(SEPTEMBER_MS + DAY, 2, number=1, job="2", pool="elsewhere", team="mallory")
    mallory = workload("3", user=None, tags={"team": "mallory"})
    world.send("n2", [mig(1, 1, "n2"), mig(2, 1, "n2")], SEPTEMBER_MS + DAY, mallory)
    assert again(world) == before


def test_late_evidence_places_intervals_of_before_as_they_were(world, before, tmp_path):
    """August placed again as a whole, for an import into one of its pools and late evidence, bills August as before."""
    world.hold(SEPTEMBER_MS + DAY, 1, number=1, job="2", pool="lab", gpu_micro=1, team="mallory")
    usage = tmp_path / "usage.csv"
    usage.write_text("workload_id,start,end,gpus,pool,tag:team\nx,2026-08-01T00:00Z,2026-08-01T01:00Z,1,lab,yankee\n")
    world.run("import", "usage", usage)
    for number, hours in ((0, 4), (1, 5)):
        at_ms = AUGUST_MS + hours * DAY + 8 * HOUR
        world.hold(at_ms, 1, number=number, team="late", pool="lab" if number else "")
    bill = again(world)
    assert (bill.pop("late"), bill.pop("yankee")) == (("2.000000", "13.00"), ("1.000000", "3.00"))
    unobserved = bill.pop("(unobserved)")
    old = float(before.pop("(unobserved)")[0])
    assert float(unobserved[0]) == old - 2
    assert bill == before


def test_an_inventory_keeps_the_share_of_intervals_of_before(world, before, tmp_path):
    """An inventory that names the board of two halves places them as halves, whatever they are in September."""
    mallory = workload("3", user=None, tags={"team": "mallory"})
    world.send("n2", [mig(1, 1, "n2"), mig(2, 1, "n2")], SEPTEMBER_MS + DAY, mallory)
    inventory = tmp_path / "inventory.csv"
    inventory.write_text("node,uuid,gpu_model,pool,in_at,out_at\nn2,GPU-n2-0,,default,2026-08-01T00:00Z,\n")
    world.run("import", "inventory", inventory)
    assert again(world)["zulu"] == before["zulu"]


def test_a_board_of_before_is_settled_once(world):
    """After the upgrade the first batch finds its place; the next one is known to change nothing."""
    store = world.collector.parts.commit._store
    settled = []
    settle = store.settle_placements
    store.settle_placements = lambda *given: settled.append(given) or settle(*given)
    world.hold(SEPTEMBER_MS, 3)
    assert len(settled) == 1
