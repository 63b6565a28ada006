"""A closed month, and then a month of every message that an agent, a Prometheus, an import and an
admin can send.
"""

import hashlib
import json
import time

import msgspec
import pytest

from fakes.batches import accelerator, batch, samples, workload
from fakes.facts import AUGUST_MS, DAY, HOUR, SEPTEMBER_MS, mig
from fakes.prometheus import Point, headers, labels, one, pod, snappy
from gpuledger_collector import wiring
from gpuledger_collector.settings import Settings
from gpuledger_collector.storage.database import Database

pytestmark = pytest.mark.slow

RULES = """
[[rule]]
name = "grab"
match = {team = "alpha"}
assign = {team = "mallory"}
effective_from = "2026-09-10T06:30:00Z"
"""


def sealed(world, folder) -> dict[str, str]:
    """SHA-256 of everything that leaves the house of a closed August."""
    folder.mkdir(exist_ok=True)
    month = ("--period", "2026-08")
    files = {
        "csv": (
            "chargeback",
            *month,
            "--by",
            "team,pool,model",
            "--format",
            "csv",
            "-o",
            folder / "c.csv",
        ),
        "json": (
            "chargeback",
            *month,
            "--by",
            "workload",
            "--format",
            "json",
            "-o",
            folder / "c.json",
        ),
        "focus": ("chargeback", *month, "--format", "focus", "-o", folder / "f.csv"),
        "alpha": ("statement", *month, "--owner", "alpha", "-o", folder / "a.html"),
        "bravo": ("statement", *month, "--owner", "bravo", "-o", folder / "b.html"),
    }
    for arguments in files.values():
        world.run(*arguments)
    found = {
        name: hashlib.sha256(arguments[-1].read_bytes()).hexdigest()
        for name, arguments in files.items()
    }
    return found | {"seal": world.run("periods", "--verify", "2026-08")}


def august(world, tmp_path) -> None:
    """Two nodes, two teams, a divided board, an imported pool; closed."""
    world.price()
    for day in range(0, 31, 10):
        world.hold(AUGUST_MS + day * DAY, 6, job="1", team="alpha", pool="train")
        world.hold(AUGUST_MS + day * DAY, 6, job="2", team="bravo", node="n2")
        job = workload("3", user=None, tags={"team": "bravo"})
        for hour in range(6):
            world.send(
                "n3",
                [mig(1, 500_000, "n3"), mig(2, 250_000, "n3")],
                AUGUST_MS + day * DAY + hour * HOUR,
                job,
            )
    usage = tmp_path / "usage.csv"
    usage.write_text(
        "workload_id,start,end,gpus,pool,tag:team\nbig,2026-08-01T00:00Z,2026-08-11T00:00Z,10,cloud,bravo\n"
    )
    world.run("import", "usage", usage)
    world.run("close", "--period", "2026-08")


def by_agents(world) -> None:
    """What an agent may say: other facts, other people's devices and jobs, impossible boards,
    reserved names.
    """
    at = SEPTEMBER_MS + DAY
    for number, changes in enumerate(
        (
            {"gpu_micro": 1},
            {"model": "Tesla T4"},
            {"pool": "cloud"},
            {"pool": "train"},
            {"pool": "(unallocated)"},
            {"mig_instance": "7g.80gb"},
            {"memory_bytes": 1},
            {"health": "failed"},
        )
    ):
        world.hold(at + number * HOUR, 1, **changes)
    for hour, tags in enumerate(
        ({"team": "(unallocated)"}, {"team": "mallory"}, {}, {"team": "alpha", "user": "x"})
    ):
        world.hold(at + (10 + hour) * HOUR, 1, job="1", node="n2", tags=tags)
        world.hold(at + (10 + hour) * HOUR, 1, job="2", node="n9", owner_node="n1", tags=tags)
    job = workload("3", user=None, tags={"team": "mallory"})
    world.send(
        "n3", [accelerator(0, "n3"), mig(1, 1_000_000, "n3"), mig(2, 1_000_000, "n3")], at, job
    )
    world.send("n9", [mig(9, 1_000_000, "n3")], at, job)
    watched = batch(10_000, "n1", 1, at + 20 * HOUR, usage_intervals=[])
    assert (
        world.collector.send(
            msgspec.structs.replace(watched, samples=samples(1, [at + 20 * HOUR]))
        )[0]
        == 200
    )


def by_prometheus(world) -> None:
    """What a scrape may say of the same device: another host, another model, another pod's team."""
    name = "DCGM_FI_PROF_GR_ENGINE_ACTIVE"
    now_ms = int(time.time() * 1000)
    points = [
        Point(
            labels(name, node=node, UUID="GPU-n1-0", modelName=model, **pod("p", namespace=team)),
            0.5,
            now_ms + at,
        )
        for at in (0, 15_000)
        for node, model, team in (("n1", "Tesla T4", "mallory"), ("n2", "H100", "alpha"))
    ]
    world.collector.request("POST", "/api/v1/write", snappy(one(points)), headers())
    wiring.metering(Settings()).run(Database(world.collector.dsn))


def by_people(world, tmp_path) -> None:
    """What imports and an admin may declare of later than August; each is in the audit log."""
    usage, inventory, rules = (tmp_path / name for name in ("u.csv", "i.csv", "r.toml"))
    usage.write_text(
        "workload_id,start,end,gpus,pool,tag:team\nother,2026-09-02T00:00Z,2026-09-03T00:00Z,5,train,mallory\n"
        "more,2026-09-02T00:00Z,,1,cloud,mallory\n"
    )
    inventory.write_text(
        "node,uuid,gpu_model,pool,in_at,out_at\nn8,GPU-n8-0,H100,cloud,2026-09-01T00:00Z,\n"
    )
    rules.write_text(RULES)
    world.run("import", "usage", usage)
    world.run("import", "inventory", inventory)
    world.run("apply", rules)
    world.run(
        "prices",
        "set",
        "--rate",
        "99",
        "--currency",
        "USD",
        "--from",
        "2026-09-15",
        "--pool",
        "train",
    )


def test_a_hostile_month_leaves_a_closed_one_as_it_is(world, tmp_path):
    """CSV, JSON, FOCUS, statements and seal of August are the same bytes, and nothing of August is
    corrected.
    """
    august(world, tmp_path)
    before = sealed(world, tmp_path / "before")
    assert sealed(world, tmp_path / "again") == before
    by_agents(world)
    by_prometheus(world)
    by_people(world, tmp_path)
    world.bill("2026-09")
    world.bill("2026-11")
    assert sealed(world, tmp_path / "after") == before
    assert world.rows("SELECT * FROM correction") == []
    kinds = {kind for (kind,) in world.rows("SELECT DISTINCT kind FROM refused_claim")}
    assert kinds == {"node", "pool", "board"}
    refused = json.loads(world.run("reconcile", "--period", "2026-09", "--format", "json", code=1))[
        "refused_claims"
    ]
    assert {one["kind"] for one in refused} == kinds
    audited = {what for (what,) in world.rows("SELECT DISTINCT what FROM audit")}
    assert {"rule", "price", "close", "inventory"} <= audited
