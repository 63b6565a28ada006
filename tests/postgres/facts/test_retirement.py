"""A node that leaves the fleet on purpose: its capacity ends, nothing calls it silent, and it may
come back.
"""

import json
import re

from fakes.batches import accelerator, workload
from fakes.collector import running
from fakes.facts import AUGUST_MS, DAY, HOUR

LEFT = "2026-08-02T00:00:00Z"


def nodes(world):
    return {row["node"]: row for row in json.loads(world.run("nodes", "list", "--format", "json"))}


def days(world):
    """GPU-hours of each row of August by day of the proof: what was owned, and what nobody saw."""
    proof = world.rows(
        "SELECT (day_ms - 1785542400000) / 86400000, (capacity_ns / 3.6e12)::int, (unobserved_ns /"
        " 3.6e12)::int FROM conservation_check ORDER BY 1 LIMIT 4"
    )
    return {int(day): (capacity, unobserved) for day, capacity, unobserved in proof}


def furnish(world):
    world.price()
    world.hold(AUGUST_MS, 24)
    world.hold(AUGUST_MS, 24, node="n2", job="2")


def test_its_capacity_ends_and_nothing_is_unobserved_from_then_on(world):
    """Two nodes held a day; one stays, unobserved, and one is retired: the bill has no hour of it
    any more.
    """
    furnish(world)
    world.bill("2026-08")
    assert days(world)[1] == (48, 48)
    assert "n1 is retired from 2026-08-02T00:00:00Z on" in world.run(
        "nodes", "retire", "n1", "--at", LEFT
    )
    world.bill("2026-08")
    assert days(world)[0] == (48, 0)
    assert days(world)[1] == (24, 24)
    world.run("reconcile", "--period", "2026-08", "--evidence")
    assert (nodes(world)["n1"]["state"], nodes(world)["n1"]["accelerators"]) == ("retired", 0)
    log = json.loads(world.run("audit", "list", "--format", "json"))
    assert [entry["after"] for entry in log if entry["what"] == "node_retirement"] == [
        {"node": "n1", "at_ms": AUGUST_MS + DAY}
    ]


def test_without_an_instant_it_left_with_its_last_sign_of_life(world):
    """And the retirement can be taken back."""
    furnish(world)
    seen = nodes(world)["n1"]["last_seen"]
    world.run("nodes", "retire", "n1")
    assert nodes(world)["n1"]["retired_at"] == seen
    world.run("nodes", "retire", "n1", "--keep")
    assert nodes(world)["n1"]["retired_at"] is None
    assert nodes(world)["n1"]["accelerators"] == 1


def test_one_that_reports_again_is_there_again(world, dsn):
    """From its next report on, which doctor says; what was between stays out of the bill.

    To a collector that was started since: one that goes on forgets within the hour where
    accelerators were.
    """
    furnish(world)
    world.run("nodes", "retire", "n1", "--at", LEFT)
    again = AUGUST_MS + DAY + 12 * HOUR
    with running(dsn) as collector:
        world.collector = collector
        world.send(
            "n1",
            [accelerator(0, "n1")],
            again,
            workload("3", kind="slurm", user=None, tags={"team": "alpha"}),
        )
    assert nodes(world)["n1"]["accelerators"] == 1
    assert nodes(world)["n1"]["state"] != "retired"
    world.bill("2026-08")
    assert days(world)[1] == (24 + 12, 24 + 11)
    assert "retired, and back again: n1" in world.run("doctor")


def test_nothing_calls_it_silent(world):
    """Neither doctor nor the overview; the node that is merely lost stays named until somebody
    decides.
    """
    furnish(world)
    world.change("UPDATE node SET last_seen_at = now() - interval '11 minutes'")
    assert "silent for over ten minutes: n1, n2" in world.run("doctor", code=1)
    world.run("nodes", "retire", "n1")
    assert "silent for over ten minutes: n2\n" in world.run("doctor", code=1)
    assert nodes(world)["n2"]["state"] == "silent"
    status, _, page = world.collector.request("GET", "/")
    assert status == 200
    assert re.search(r"n2.{0,400}silent", page, re.DOTALL)
    assert "n1" not in page.partition("<h2>Nodes")[2]


def test_what_cannot_be_is_one_sentence(world, tmp_path):
    """An unknown node, an instant ahead or before its last report, and one that the inventory
    places.
    """
    furnish(world)
    for arguments, sentence in (
        (("n3",), "no node is called 'n3'"),
        (("n1", "--at", "2199-01-01T00:00:00Z"), "lies ahead"),
        (("n1", "--at", "2026-08-01T01:00:00Z"), "n1 has readings until"),
        (("n1", "--at", "soon"), "'soon' is not an instant"),
        (("n1", "--keep"), "n1 is not retired"),
    ):
        ended, out, err = world._run("nodes", "retire", *arguments)
        assert (ended, out) == (2, ""), arguments
        assert sentence in err, err
    inventory = tmp_path / "inventory.csv"
    inventory.write_text(
        "node,uuid,gpu_model,pool,in_at,out_at\nn1,GPU-n1-0,,train,2026-08-01T00:00Z,\n"
    )
    world.run("import", "inventory", inventory)
    _, _, err = world._run("nodes", "retire", "n1")
    assert "the inventory places 1 accelerator of n1: give them an out_at" in err
