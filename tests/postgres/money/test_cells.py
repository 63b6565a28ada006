"""No cell of money is changed unseen: each column of each derived table, changed by its owner past the triggers.

The columns are those of the declared schema, so that a new one is in the walk by itself. Each change is made in a
transaction that is rolled back; `reconcile` has to find it in an open month and `periods --verify` in a closed one.
"""

import contextlib
import datetime as dt

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from fakes.fleet import DAY, HOUR, NOW_MS, Held
from gpuledger_collector.accounting.period import month
from gpuledger_collector.services.close import verify
from gpuledger_collector.services.reconciliation import reconcile
from gpuledger_collector.storage.billing import periods
from gpuledger_collector.storage.schema import metadata

pytestmark = pytest.mark.slow

MONTH = ("--period", "2025-10")
DECLARED = """
[[adjustment]]
name = "volume"
kind = "tiered"
per = "team"
currency = "USD"
steps = { "0" = 2.5, "10" = 2.0 }

[[node_cost]]
name = "cpu"
price_per_node_hour = 0.5
currency = "USD"
"""
IMPORT = (
    "workload_id,start,end,gpus,gpu_model,pool,tag:team\n"
    "77,2025-10-03T00:00:00Z,2025-10-03T08:00:00Z,4,H100,counted,speech\n"
)


@pytest.fixture
def october(fleet, run, written, monkeypatch):
    """Two teams with list and volume prices, energy, node costs and imported counts in October; rated."""
    price = ("prices", "set", "--rate", "2.5", "--currency", "USD", "--from", "2025-01-01", "--list-rate", "3")
    assert run(*price)[0] == 0
    monkeypatch.setattr("gpuledger_collector.wiring.now", lambda: dt.datetime.fromtimestamp(NOW_MS / 1000, dt.UTC))
    assert run("apply", written("declared.toml", DECLARED))[0] == 0
    assert run("import", "usage", written("jobs.csv", IMPORT))[0] == 0
    fleet.workload(1, team="vision")
    fleet.workload(2, team="nlp")
    for accelerator in (1, 2):
        fleet.capacity(accelerator, 0, 2 * DAY)
    fleet.evidence([Held(1, 1, 0, 20 * HOUR, idle=HOUR, energy=7), Held(2, 2, DAY, DAY + 6 * HOUR, energy=9)])
    assert run("reconcile", *MONTH)[0] == 0
    return fleet


def another(column):
    """SQL of another value for a cell; None where the type is not one that an amount, an owner or an hour has."""
    name = f'"{column.name}"'
    if isinstance(column.type, sa.Boolean):
        return f"NOT {name}"
    if isinstance(column.type, sa.Integer | sa.Numeric):
        return f"coalesce({name}, 0) + 1"
    if isinstance(column.type, JSONB):
        return f"{name} || '{{\"USD\": 1}}'"
    if isinstance(column.type, sa.Text | sa.String):
        return f"coalesce({name}, '') || 'x'"
    return None


def walked(table, where):
    """Statements that each change one cell: of the first row in which the column has a value."""
    for column in metadata.tables[table].columns:
        value = another(column)
        if value is not None:
            yield (
                column.name,
                (
                    f'UPDATE {table} SET "{column.name}" = {value} WHERE ctid = (SELECT ctid FROM {table} '
                    f'WHERE {where} ORDER BY "{column.name}" IS NULL, ctid LIMIT 1)'
                ),
            )


def unseen(dsn, table, where, holds):
    """Columns of which a change is not seen, and how many were changed."""
    missed, tried = [], 0
    for name, statement in walked(table, where):
        with psycopg.connect(dsn) as connection, contextlib.suppress(psycopg.IntegrityError):
            connection.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
            assert connection.execute(statement).rowcount == 1, statement
            connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
            tried += 1
            if holds(connection):
                missed.append(name)
            connection.rollback()
    return missed, tried


OPEN = (
    ("charge", "accelerator_id IS NOT NULL AND state = 'held'"),
    ("charge", "pool = 'counted'"),
    ("charge", "state = 'node_cost'"),
    ("charge", "state = 'tiered'"),
    ("charge", "state = 'unobserved'"),
    ("ledger_day", "state = 'held'"),
    ("ledger_month", "state = 'held'"),
    ("conservation_check", "true"),
    ("usage_hour", "state = 'held'"),
    ("capacity", "true"),
)
CLOSED = (*OPEN[:8], ("invoice", "true"), ("billing_period", "true"), ("closed_workload", "true"))
CORRECTED = (("correction", "state = 'held'"), ("correction", "state = 'tiered'"), ("corrected_day", "true"))
UNSEEN = {
    "capacity.source": "who said where an accelerator was: no amount follows from it",
    "capacity.accelerator_attributes_id": "which report said so: model and share stand in columns of their own",
    "conservation_check.until_ms of a closed month": "--evidence finds it; a closed day is rated to its end",
    "conservation_check.commitments of a closed month": "--evidence finds it; the sealed lines name their commitment",
    "billing_period.end_ms of a closed month": "a millisecond more holds no line; a day more breaks the seal",
    "billing_period.name of a closed month": "a name: --verify of the month then finds none",
    "billing_period.closed_ms of a closed month": "the audit log has it",
    "billing_period.closed_by of a closed month": "the audit log has it",
    "billing_period.level of a closed month": "the receipt has it, whose invoices are compared",
    "billing_period.receipt of a closed month": "the walk adds a key that nobody reads; invoices in it are compared",
    "closed_workload.name of a closed month": "a name",
    "closed_workload.user_name of a closed month": "a name",
    "closed_workload.tags of a closed month": "names",
    "correction.id": "the order of lines",
    "correction.booked_day_ms": "when it was found: no declaration or evidence says so; sealed with that month",
    "correction.recorded_ms": "when it was found",
    "correction.start_ms": "a correction states what changed on its day, not from when to when",
    "correction.end_ms": "the same",
}
"""Cells of which a change is not found, and why."""


def open_holds(connection):
    """Whether the open month is proven, evidence included."""
    return reconcile(connection, month("2025-10"), evidence=True).holds


def closed_holds(connection):
    """Whether the closed month is verified."""
    (closed,) = periods.closed(connection)
    return verify(connection, closed).holds


def walk(dsn, tables, holds, suffix=""):
    """The cells of which a change is not seen; prints how many were changed and how many of these were seen."""
    unfound = set()
    for table, where in tables:
        missed, tried = unseen(dsn, table, where, holds)
        print(f"{table} where {where}: {tried} cells, {tried - len(missed)} found, not {missed}")
        assert tried, table
        unfound |= {f"{table}.{name}{suffix}" for name in missed}
    return unfound


def test_no_cell_of_an_open_month_is_changed_unseen(october, dsn):
    """`reconcile --evidence` finds each of them."""
    assert walk(dsn, OPEN, open_holds) == {cell for cell in UNSEEN if cell.startswith("capacity.")}


def test_no_cell_of_a_closed_month_is_changed_unseen(october, dsn, run):
    """`periods --verify` finds each of them."""
    assert run("close", *MONTH)[0] == 0
    suffix = " of a closed month"
    assert walk(dsn, CLOSED, closed_holds, suffix) == {cell for cell in UNSEEN if cell.endswith(suffix)}


def test_no_cell_of_a_correction_is_changed_unseen(october, dsn, run):
    """Lines of a closed day and its corrections are what evidence makes of the day."""
    assert run("close", *MONTH)[0] == 0
    october.evidence([Held(2, 1, 8 * HOUR, 12 * HOUR, energy=3)])
    assert run("chargeback", "--period", "2025-11")[0] == 0
    assert walk(dsn, CORRECTED, open_holds) == {cell for cell in UNSEEN if cell.startswith("correction.")}
