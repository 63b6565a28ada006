"""A node whose agent was uninstalled: no alarm, said everywhere, and its capacity goes on until
somebody decides.
"""

import json
import re

import msgspec
import psycopg
from dashboards.alerts.grafana import RULES

from fakes.batches import HEARTBEAT, batch
from fakes.facts import AUGUST_MS

NODE_SILENT = next(rule for rule in RULES if rule.title == "GpuLedgerNodeSilent")
GOODBYE = msgspec.structs.replace(HEARTBEAT, uninstalled=True)


def send(world, seq, heartbeat):
    status, answer = world.collector.send(
        batch(seq, "n1", 1, AUGUST_MS + seq * 60_000, heartbeat=heartbeat)
    )
    assert status == 200, answer


def state(world):
    (node,) = json.loads(world.run("nodes", "list", "--format", "json"))
    return node["state"], node["accelerators"]


def fired(world):
    """Nodes for which Grafana's rule fires."""
    with psycopg.connect(world.collector.dsn) as connection:
        return [
            name for _, name, value in connection.execute(NODE_SILENT.query).fetchall() if value > 0
        ]


def later(world, interval="11 minutes"):
    world.change(f"UPDATE node SET last_seen_at = now() - interval '{interval}'")


def test_it_ends_the_alarm_and_is_shown_and_leaves_capacity_alone(world):
    """Doctor, the alert and the overview; the node that says nothing is an alarm."""
    world.price()
    send(world, 1, HEARTBEAT)
    later(world)
    assert fired(world) == ["n1"]
    assert state(world) == ("silent", 1)
    later(world, "3 days")
    assert fired(world) == ["n1"], "a lost node stays an alarm until somebody decides"
    send(world, 2, GOODBYE)
    later(world)
    assert fired(world) == []
    assert state(world) == ("uninstalled", 1)
    told = world.run("doctor")
    assert "uninstalled: n1: its GPUs stay capacity" in told
    assert "silent" not in told
    status, _, page = world.collector.request("GET", "/")
    assert status == 200
    assert re.search(
        r"n1.{0,400}uninstalled", page.partition("Nodes, those with problems first")[2], re.DOTALL
    )
    assert world.rows("SELECT count(*) FROM capacity WHERE out_ms IS NULL") == [(1,)]
    world.run("nodes", "retire", "n1")
    assert state(world) == ("retired", 0)
    assert "uninstalled: n1" not in world.run("doctor")


def test_one_that_reports_again_is_watched_again(world):
    """Also by an agent that was installed anew, which counts its batches from 1."""
    send(world, 1, HEARTBEAT)
    send(world, 2, GOODBYE)
    send(world, 3, HEARTBEAT)
    assert state(world) == ("ok", 1)
    later(world)
    assert fired(world) == ["n1"]


def test_an_older_batch_that_comes_later_does_not_take_it_back(world):
    """The last send begins with the newest batch."""
    send(world, 1, HEARTBEAT)
    send(world, 3, GOODBYE)
    send(world, 2, HEARTBEAT)
    later(world)
    assert fired(world) == []
    assert state(world) == ("uninstalled", 1)
