"""The order of sealed lines follows from what they say, and not from where the database keeps them."""

from dataclasses import replace

import psycopg
import pytest

from fakes.fleet import DAY, HOUR, NOW_MS, Held
from gpuledger_collector.accounting.period import month
from gpuledger_collector.services.close import seal_of, verify
from gpuledger_collector.storage.billing import periods, reports

DECLARED = """
[[price]]
purchase = "on_demand"
rate_per_gpu_hour = 2
currency = "USD"
effective_from = 2025-01-01

[[price]]
node = "n2"
purchase = "on_demand"
rate_per_gpu_hour = 3
currency = "EUR"
effective_from = 2025-01-01

[[adjustment]]
name = "platform"
kind = "markup"
percent = 10
"""
TEAMS = 12
PLANS = ("enable_hashjoin", "enable_mergejoin", "enable_nestloop", "enable_sort", "enable_seqscan")
MOVED = "UPDATE charge SET start_ms = start_ms WHERE state = 'markup' AND currency = 'EUR'"
"""Postgres writes the rows anew, behind all others."""


@pytest.fixture
def october(fleet, run, written, monkeypatch):
    """Teams hold GPUs of one pool and model on two nodes, of which one costs euros: a markup in two
    currencies.
    """
    monkeypatch.setattr("gpuledger_collector.wiring.read_clock", lambda: NOW_MS)
    assert run("apply", written("declared.toml", DECLARED))[0] == 0
    for job in range(TEAMS):
        fleet.workload(job + 1, team=f"team-{job}")
    for number, node in ((1, "n1"), (2, "n2")):
        fleet.capacity(number, 0, DAY, node=node)
        fleet.evidence(
            [Held(number, job + 1, job * HOUR, (job + 1) * HOUR) for job in range(TEAMS)], node=node
        )
    assert run("chargeback", "--period", "2025-10")[0] == 0
    return fleet


def seals(dsn, *, ties):
    """The seals of October by several plans, before and after a row has moved; nothing stays
    changed.
    """
    found = []
    with psycopg.connect(dsn) as connection:
        connection.execute("ALTER TABLE charge DISABLE TRIGGER USER")
        for _ in range(2):
            for plan in PLANS:
                connection.execute(f"SET LOCAL {plan} = off")
                found.append(seal_of(reports.charges(connection, month("2025-10"), ties=ties)))
                connection.execute(f"SET LOCAL {plan} = on")
            connection.execute(MOVED)
        connection.rollback()
    return found


def test_a_seal_does_not_depend_on_plans_and_places(october, run, dsn):
    """Lines that differ in currency and amount alone: without these the database gives them in any
    order.
    """
    assert len(set(seals(dsn, ties=False))) > 1
    assert run("close", "--period", "2025-10")[0] == 0
    with psycopg.connect(dsn) as connection:
        (closed,) = periods.list_closed(connection)
    assert set(seals(dsn, ties=True)) == {closed.seal}


def test_a_seal_in_the_order_of_an_earlier_version_verifies(october, run, dsn):
    """It was computed in the order in which the database gave such lines, and still gives them."""
    assert run("close", "--period", "2025-10")[0] == 0
    with psycopg.connect(dsn) as connection:
        (closed,) = periods.list_closed(connection)
        connection.execute("ALTER TABLE charge DISABLE TRIGGER USER")
        for _ in range(2):
            untied = seal_of(reports.charges(connection, closed.period, ties=False))
            if untied != closed.seal:
                break
            connection.execute("SET LOCAL enable_hashjoin = off")
            connection.execute(MOVED)
        assert untied != closed.seal
        assert verify(connection, replace(closed, seal=untied)).sealed
        wrong = untied[::-1]
        assert not verify(connection, replace(closed, seal=wrong)).sealed
