"""A node's pool, type and zone reach the bill and the list of nodes without a setting."""

import csv
import io

import psycopg
import pytest
from alembic import command

from fakes.facts import AUGUST_MS, DAY, HOUR
from fakes.kubernetes_node import MINUTE, card
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.insight.findings import WorkloadUsage
from gpuledger_collector.services.anomaly_search import team_spending
from gpuledger_collector.storage.billing.node_purchases import during, record, said_purchase
from gpuledger_collector.storage.server import migrate


def test_the_pool_of_a_node_is_the_pool_of_its_bill(node):
    """And what the cloud's own bill names it by is kept."""
    node.api.node(
        "n1",
        "aws:///us-east-1a/i-0abc",
        **{
            "eks.amazonaws.com/nodegroup": "p5",
            "eks.amazonaws.com/capacityType": "SPOT",
            "node.kubernetes.io/instance-type": "p5.48xlarge",
            "topology.kubernetes.io/region": "us-east-1",
            "topology.kubernetes.io/zone": "us-east-1a",
        },
    )
    node.pod("vision", "a", card(0), team="vision")
    node.hold(AUGUST_MS)
    assert node.hours("2026-08", "pool")["p5"] == "1.000000"
    (row,) = csv.DictReader(io.StringIO(node.world.run("nodes", "list", "--format", "csv")))
    named = ("instance_type", "purchase", "region", "zone", "provider_id")
    assert [row[name] for name in named] == [
        "p5.48xlarge",
        "spot",
        "us-east-1",
        "us-east-1a",
        "aws:///us-east-1a/i-0abc",
    ]


def test_a_node_of_no_cloud_has_no_machine(node):
    """Empty cells: not known."""
    node.pod("vision", "a", card(0))
    node.hold(AUGUST_MS)
    (row,) = csv.DictReader(io.StringIO(node.world.run("nodes", "list", "--format", "csv")))
    assert (row["purchase"], row["provider_id"]) == ("", "")
    assert set(node.hours("2026-08", "pool")) >= {"default"}


def spot(node, purchase="SPOT"):
    """The node as a cloud labels it."""
    node.api.node("n1", **{"eks.amazonaws.com/capacityType": purchase})


def priced(node):
    """On demand at 10 USD, spot at 3."""
    words = ("--rate", "3", "--currency", "USD", "--from", "2026-01-01", "--purchase", "spot")
    node.world.run("prices", "set", *words)


def said(node):
    return node.world.rows("SELECT node, from_ms, purchase FROM node_purchase ORDER BY from_ms")


def test_a_node_that_says_it_is_spot_has_the_spot_rate(node):
    """One card held and three free for an hour of on demand, then two of spot."""
    priced(node)
    node.pod("vision", "a", card(0), team="vision")
    node.hold(AUGUST_MS)
    assert node.world.bill("2026-08")["vision"] == ("1.000000", "10.00")
    spot(node)
    node.restart()
    node.hold(AUGUST_MS + HOUR)
    node.hold(AUGUST_MS + 2 * HOUR)
    assert said(node) == [("n1", AUGUST_MS + HOUR, "spot")]
    bill = node.world.bill("2026-08")
    assert bill["vision"] == ("3.000000", "16.00")
    assert bill["(unallocated)"] == ("9.000000", "48.00")


def test_late_evidence_reprices_the_days_that_were_rated(node):
    """A spool that arrives after the day was billed says that the node was spot from its start on."""
    priced(node)
    node.pod("vision", "a", card(0), team="vision")
    node.hold(AUGUST_MS + DAY)
    assert node.world.bill("2026-08")["vision"] == ("1.000000", "10.00")
    spot(node)
    node.restart()
    node.hold(AUGUST_MS)
    assert node.world.bill("2026-08")["vision"] == ("2.000000", "6.00")


def test_late_evidence_about_a_closed_month_is_a_correction(node):
    """Four cards in two hours of August are closed at 10 USD; a spool says spot from the second on.

    Each of its other 743 hours is 7 USD less for each card, silent ones too, and booked later.
    """
    priced(node)
    node.pod("vision", "a", *map(card, range(4)), team="vision")
    node.hold(AUGUST_MS)
    node.hold(AUGUST_MS + 2 * HOUR)
    node.world.run("close", "--period", "2026-08")
    before = node.world.bill("2026-08")
    assert before["vision"] == ("8.000000", "80.00")
    spot(node)
    node.restart()
    node.hold(AUGUST_MS + HOUR)
    node.world.run("reconcile")
    assert node.world.bill("2026-08") == before
    booked = "SELECT sum(cost_micro), bool_and(booked_day_ms > day_ms) FROM correction"
    assert node.world.rows(booked) == [(-4 * 743 * 7_000_000, True)]
    node.world.run("periods", "--verify", "2026-08")


def test_where_no_rate_is_spot_nothing_changes(node):
    spot(node)
    node.pod("vision", "a", card(0), team="vision")
    node.hold(AUGUST_MS)
    assert node.world.bill("2026-08")["vision"] == ("1.000000", "10.00")


def test_a_label_that_changes_and_back_within_an_hour_changes_no_later_one(node, world):
    """Neither in what is kept nor in what the collector remembers of it."""
    priced(node)
    node.pod("vision", "a", card(0), team="vision")
    for at, way in enumerate(("SPOT", "ON_DEMAND", "SPOT")):
        spot(node, way)
        node.restart()
        node.hold(AUGUST_MS + at * 20 * MINUTE, minutes=20)
    for hour in (1, 2):
        node.hold(AUGUST_MS + hour * HOUR)
    # The hour is over already when its batches come here, so the next one is on demand.
    assert said(node)[-1] == ("n1", AUGUST_MS + 2 * HOUR, "spot")
    assert node.world.bill("2026-08")["vision"] == ("3.000000", "16.00")


EVER = Period(0, 100 * HOUR)
PURCHASES = ("on_demand", "spot", "reserved")


def place(connection, name, start_ms, end_ms=None):
    """A card on a node from an instant on."""
    connection.execute(
        "INSERT INTO node (name, first_seen_at, last_seen_at) VALUES (%s, now(), now()) ON CONFLICT"
        " DO NOTHING",
        (name,),
    )
    connection.execute(
        "WITH card AS (INSERT INTO accelerator (uuid, device_uuid) VALUES (%(card)s, %(card)s)"
        " RETURNING id) INSERT INTO capacity (accelerator_id, node_id, pool, in_ms, out_ms, source)"
        " SELECT card.id, n.id, 'train', %(start)s, %(end)s, 'agent' FROM card, node n WHERE n.name"
        " = %(name)s",
        {"card": f"GPU-{name}-{start_ms}", "start": start_ms, "end": end_ms, "name": name},
    )


def test_what_was_to_hold_from_the_next_hour_on_is_taken_back_in_this_one(dsn, world):
    now_ms = 5 * HOUR + 30 * MINUTE
    with psycopg.connect(dsn) as connection:
        place(connection, "n1", 0)
        for purchase in ("spot", "on_demand", "spot"):
            record(connection, [said_purchase("n1", now_ms, purchase)], now_ms)
        assert during(connection, EVER) == {"n1": [(5 * HOUR, "spot")]}
        # A later hour that has begun said it itself, whatever arrives after it.
        record(connection, [said_purchase("n1", 6 * HOUR, "reserved")], 7 * HOUR)
        record(connection, [said_purchase("n1", now_ms, "spot")], 7 * HOUR)
        assert during(connection, EVER) == {"n1": [(5 * HOUR, "spot"), (6 * HOUR, "reserved")]}


def test_what_a_node_says_is_kept_where_it_changes(dsn, world):
    """In whichever order it comes; what changes inside of an hour holds from the next one."""
    rows = [
        ("n1", 5, "spot"),
        ("n1", 9, "spot"),
        ("n1", 2, "on_demand"),
        ("n1", 3, "spot"),
        ("n1", 9, "spot"),
        ("n2", 4, "reserved"),
        ("n2", 4, "spot"),
        ("n2", 4, "spot"),
    ]
    with psycopg.connect(dsn) as connection:
        place(connection, "n1", 0)
        place(connection, "n2", 0)
        for name, hour, purchase in rows:
            record(connection, [said_purchase(name, hour * HOUR + 7, purchase)], 0)
        assert during(connection, EVER) == {
            "n1": [(2 * HOUR, "on_demand"), (3 * HOUR, "spot")],
            "n2": [(4 * HOUR, "reserved"), (5 * HOUR, "spot")],
        }
    assert said_purchase("n1", HOUR, "gift") is None
    assert said_purchase("n1", 0, "spot") is None


def test_of_a_period_only_its_own_nodes_and_changes_are_read(dsn, world):
    """What held when it began, and what changed in it; nodes that were gone by then are not read,
    and those that imported usage names are.
    """
    with psycopg.connect(dsn) as connection:
        for number in range(1, 4):
            place(connection, f"n{number}", 0, 5 * HOUR if number == 2 else None)
            for hour in range(1, 40):
                purchase = PURCHASES[hour % 3]
                record(connection, [said_purchase(f"n{number}", hour * HOUR, purchase)], 0)
        record(connection, [said_purchase("counted", HOUR, "spot")], 0)
        period = Period(10 * HOUR + 1, 12 * HOUR + 1)
        expected = [(hour * HOUR, PURCHASES[hour % 3]) for hour in (10, 11, 12)]
        assert during(connection, period) == {"n1": expected, "n3": expected}
        connection.execute(
            "WITH job AS (INSERT INTO workload (key, kind, external_id, first_seen_at) VALUES ('a',"
            " 'slurm', 'a', now()) RETURNING id) INSERT INTO imported_usage (workload_id, start_ms,"
            " end_ms, gpu_micro, node) SELECT id, %s, NULL, 1000000, 'counted' FROM job",
            (9 * HOUR,),
        )
        assert during(connection, period)["counted"] == [(HOUR, "spot")]
        before = Period(0, HOUR)
        assert during(connection, before) == {}


def test_a_rate_is_compared_with_what_a_node_said_three_days_before(node, dsn):
    """Which may have held no longer when the usage began: it was spot at 3, and is on demand at 10."""
    priced(node)
    with psycopg.connect(dsn) as connection:
        place(connection, "m1", AUGUST_MS)
        for hour, purchase in ((1, "spot"), (100, "on_demand")):
            at_ms = AUGUST_MS + hour * HOUR
            record(connection, [said_purchase("m1", at_ms, purchase)], at_ms)
        (number,) = connection.execute(
            "INSERT INTO workload (key, kind, external_id, first_seen_at) VALUES ('a', 'slurm', 'a',"
            " now()) RETURNING id"
        ).fetchone()
        use = WorkloadUsage(AUGUST_MS + 120 * HOUR, number, "train", "", "m1", 3_600 * 10**9)
        (team,) = team_spending(connection, [use])
        (priced_usage,) = team.usage
        assert (priced_usage.rate, priced_usage.before_micro) == ("10", 3_000_000)


def test_what_nodes_said_is_not_dropped(dsn, world):
    """A downgrade is refused in a sentence while there is something to lose."""
    config = migrate.configuration()

    def downgrade():
        with migrate.connected(dsn) as connection:
            config.attributes["connection"] = connection
            command.downgrade(config, "0029")

    with psycopg.connect(dsn) as connection:
        record(connection, [said_purchase("n1", HOUR, "spot")], 0)
    with pytest.raises(NotImplementedError, match="what nodes said of how they are bought cannot"):
        downgrade()
    with psycopg.connect(dsn) as connection:
        connection.execute("DELETE FROM node_purchase")
    downgrade()
