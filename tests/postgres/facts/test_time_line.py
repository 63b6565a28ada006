"""The inventory time line in Postgres: what it keeps, what it does not forget, and what it does not
depend on.
"""

import pytest

from fakes.batches import workload
from fakes.facts import AUGUST_MS, DAY, HOUR, SEPTEMBER_MS, mig
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.telemetry import archive

pytestmark = pytest.mark.slow

USAGE = "workload_id,start,end,gpus,pool,tag:team\n"
INVENTORY = "node,uuid,gpu_model,pool,in_at,out_at\n"


def capacity(world):
    return world.rows(
        "SELECT a.uuid, c.pool, c.gpu_model, c.in_ms, c.out_ms FROM capacity c JOIN accelerator a "
        "ON a.id = c.accelerator_id ORDER BY a.uuid, c.in_ms"
    )


def test_a_claim_of_a_pool_whose_import_has_no_end_has_no_end(world, tmp_path):
    """Imported usage that goes on refuses a claim for good: one open row, and a claim that people
    can read.
    """
    world.price()
    usage = tmp_path / "usage.csv"
    usage.write_text(f"{USAGE}big,2026-09-01T00:00Z,,2,cloud,bravo\n")
    world.run("import", "usage", usage)
    world.hold(SEPTEMBER_MS + DAY, 1, pool="cloud")
    assert capacity(world) == [
        ("GPU-n1-0", "default", "NVIDIA H100 80GB HBM3", SEPTEMBER_MS + DAY, None)
    ]
    assert "n1 puts GPU-n1-0 into pool cloud" in world.run(
        "reconcile", "--period", "2026-09", code=1
    )


def test_a_window_that_begins_after_an_import_ended_keeps_its_day(world, tmp_path):
    """The whole UTC day of an import refuses a claim, also when later evidence is placed from the
    middle of it.
    """
    usage = tmp_path / "usage.csv"
    usage.write_text(f"{USAGE}big,2026-09-02T00:00Z,2026-09-02T03:00Z,2,cloud,bravo\n")
    world.run("import", "usage", usage)
    world.hold(SEPTEMBER_MS + DAY + 2 * HOUR, 2, pool="cloud")
    before = capacity(world)
    assert [row[1] for row in before] == ["default", "cloud"]
    world.hold(SEPTEMBER_MS + 3 * DAY + 10 * HOUR, 1, pool="cloud", model="H200")
    assert [(row[1], row[3]) for row in capacity(world)][:2] == [(row[1], row[3]) for row in before]


def test_the_inventory_states_another_model_from_an_instant_on(world, tmp_path):
    """A row that follows another one with only another model counts from its own instant, and later
    evidence too.
    """
    inventory = tmp_path / "inventory.csv"
    rows = [
        "n1,GPU-n1-0,A,p,2026-09-01T00:00Z,2026-09-02T00:00Z",
        "n1,GPU-n1-0,B,p,2026-09-02T00:00Z,2026-09-03T00:00Z",
        "n1,GPU-n1-0,,p,2026-09-03T00:00Z,",
    ]
    inventory.write_text(INVENTORY + "\n".join(rows) + "\n")
    world.hold(SEPTEMBER_MS + HOUR, 1)
    world.run("import", "inventory", inventory)
    expected = [
        ("A", SEPTEMBER_MS),
        ("B", SEPTEMBER_MS + DAY),
        ("NVIDIA H100 80GB HBM3", SEPTEMBER_MS + 2 * DAY),
    ]

    def models():
        found = []
        for _, _, model, in_ms, _ in capacity(world):
            if not found or found[-1][0] != model:
                found.append((model, in_ms))
        return found

    assert models() == expected
    world.hold(SEPTEMBER_MS + 3 * DAY + HOUR, 1)
    world.hold(SEPTEMBER_MS + 3 * DAY + 3 * HOUR, 1, pool="elsewhere")
    assert models() == expected


def test_a_stated_device_decides_claims_of_its_instances(world, tmp_path):
    """Once the inventory names the board, another node's claim of a MIG instance is decided:
    reconcile ends with 0.
    """
    world.price()
    half = mig(1, 500_000)
    world.send("n1", [half], SEPTEMBER_MS, workload("1", user=None, tags={"team": "alpha"}))
    world.send(
        "n2", [half], SEPTEMBER_MS + HOUR // 2, workload("2", user=None, tags={"team": "mallory"})
    )
    world.run("reconcile", "--period", "2026-09", code=1)
    inventory = tmp_path / "inventory.csv"
    inventory.write_text(f"{INVENTORY}n1,{half.device_uuid},,p,2026-09-01T00:00Z,\n")
    world.run("import", "inventory", inventory)
    world.run("reconcile", "--period", "2026-09")


def test_time_whose_evidence_is_removed_keeps_its_place(world, tmp_path):
    """An inventory changes nothing of a closed month whose intervals retention has removed, and all
    that follows.
    """
    world.price()
    halves = [mig(1, 500_000, "n2"), mig(2, 500_000, "n2")]
    team = workload("1", user=None, tags={"team": "alpha"})
    world.send("n2", halves, AUGUST_MS + DAY, team)
    world.send("n2", halves, SEPTEMBER_MS + 6 * DAY, team)
    world.bill("2026-09")
    before = world.bill("2026-08")
    world.run("close", "--period", "2026-08")
    database = Database(world.collector.dsn)
    days = archive.expirable_usage_intervals(database, SEPTEMBER_MS)
    assert all(archive.expire_usage_intervals(database, day, SEPTEMBER_MS) for day in days)
    assert world.rows("SELECT day_ms FROM expired_day") == [(AUGUST_MS + DAY,)]
    inventory = tmp_path / "inventory.csv"
    inventory.write_text(f"{INVENTORY}n2,GPU-n2-0,,bought,2026-08-01T00:00Z,\n")
    world.run("import", "inventory", inventory)
    assert world.bill("2026-08")["alpha"] == before["alpha"]
    world.bill("2026-09")
    assert world.rows("SELECT sum(cost_micro) FROM correction WHERE day_ms < 1785888000000") == [
        (None,)
    ]
    assert world.rows("SELECT DISTINCT pool FROM charge WHERE day_ms >= 1788220800000") == [
        ("bought",)
    ]
