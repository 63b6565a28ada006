"""No cell of money is changed unseen: each column of each derived table, changed by its owner past
the triggers.

Tables and columns are those of the declared schema, so that a new one is in the walk by itself, or
in a list of exceptions with a reason. Of each table a row of each kind is changed: of each state,
and of each set of columns that are null. Each change is made in a transaction that is rolled back;
`reconcile --evidence` has to find it in the open month and `periods --verify` in the closed one,
and to name the place. Money, hours and owners of a row of each state always; other cells are drawn
by a seed that the run prints (GPULEDGER_TEST_SEED sets it), and all of them are changed in
`--long`.
"""

from __future__ import annotations

import json
import os
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from fakes import profiles
from fakes.fleet import NOW_MS
from fakes.rich_ledger import CLOSED, OPEN, rich
from gpuledger_collector.accounting.identities import Mismatch
from gpuledger_collector.accounting.period import Calendar, Period
from gpuledger_collector.export import proof
from gpuledger_collector.services import evidence_proof
from gpuledger_collector.services.close import verify
from gpuledger_collector.services.reconciliation import reconcile
from gpuledger_collector.storage.access import audited
from gpuledger_collector.storage.billing import periods
from gpuledger_collector.storage.ledger import zones
from gpuledger_collector.storage.schema import metadata
from gpuledger_collector.storage.schema.columns import target_of

__all__ = ["rich"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SEED = int(os.environ.get("GPULEDGER_TEST_SEED") or random.SystemRandom().randrange(10**6))
DRAWN = 1.0 if profiles.PROFILE == "long" else 0.15
"""The part of the cells besides money, hours, owners and hashes that is changed."""
ALWAYS = re.compile(
    r"sha256|micro|minor|_cost$|_ns$|_mj$|(start|end|hour|held|busy|idle|unknown|day|in|out)_ms$|owner|state|currency|holds"
    r"|^(org|team|project|experiment|run|user_name)$"
)
DERIVED = {
    "usage_hour": "hour_ms",
    "capacity": "in_ms",
    "charge": "day_ms",
    "ledger_day": "day_ms",
    "ledger_month": "start_ms",
    "conservation_check": "day_ms",
    "correction": "booked_day_ms",
    "corrected_day": "day_ms",
    "billing_period": "start_ms",
    "invoice": "period_start_ms",
    "closed_workload": "period_start_ms",
    "owner": None,
}
"""Tables from which an amount, an owner or an hour of a report follows, and their column that says
of which month.
"""
OF_MONTHS = {"billing_period", "invoice", "closed_workload", "ledger_month", "capacity"}
"""Tables of which a row is about a month, or about several days of one."""
NOT_DERIVED = {
    "declared, and compared with the audit log (test_declared_rows)": {
        *(
            "price",
            "commitment",
            "purchase_choice",
            "exchange_rate",
            "shared_cost",
            "pool_share",
            "adjustment",
        ),
        *(
            "node_cost",
            "cost_center",
            "carbon_intensity",
            "pool_provider",
            "pool_location",
            "attribution_rule",
        ),
        *("inventory", "fiscal_year", "billing_zone", "node_retirement"),
        *("inference_server", "inference_tenant", "api_price"),
    },
    "evidence, as agents, schedulers and providers reported it": {
        *(
            "node",
            "node_purchase",
            "accelerator",
            "accelerator_attributes",
            "workload",
            "workload_attributes",
            "usage_interval",
            "usage_interval_day",
        ),
        *(
            "imported_usage",
            "bill",
            "bill_line",
            "gpu_sample",
            "gpu_state",
            "gpu_state_hour",
            "gpu_latest",
            "sample_archive",
            "scrape",
        ),
        *(
            "scrape_head",
            "counter_series",
            "counter_reading",
            "queue_reading",
            "ingest_batch",
            "ingest_conflict",
        ),
        *("token_asker", "token_request", "token_page", "token_page_reading"),
        *("token_series", "token_reading", "token_hour"),
    },
    "how days of closed months were split, sealed with them (tests/postgres/inference/test_split.py)": {
        *("closed_inference", "closed_inference_server"),
    },
    "parts of shared servers, which charges name (tests/postgres/inference/test_charged.py)": {
        "inference_share"
    },
    "decided by people, sealed or only added to": {
        *("dispute", "dispute_entry", "reattribution", "audit", "refused_claim", "bill_match"),
    },
    "what the proof said last, for pages: close, verify and reconcile ask anew, and replace it (test_month_proof)": {
        "month_proof"
    },
    "requests and progress of jobs: what they leave is compared": {
        *(
            "day_recompute",
            "hour_recompute",
            "scrape_recompute",
            "expired_day",
            "retention_boundary",
            "series_day",
        ),
        *(
            "node_utilization_day",
            "job_run",
            "replica",
            "quota_use",
            "applied_migration",
            "recommendation_run",
            "finding_progress",
            "late_evidence",
        ),
    },
    "drawn in charts, and computed again from what is compared": {
        *("gpu_minute", "owner_5min", "node_utilization", "pool_hour", "counter_hour"),
        "inference_day",
    },
    "estimates and advice, which reach no bill": {
        *(
            "finding",
            "recommendation",
            "backtest",
            "capacity_plan",
            "scaling_pool",
            "scaling_decision",
        ),
        *("scaling_outcome", "budget", "budget_share", "budget_alert"),
        *("budget_forecast", "owner_forecast"),
    },
    "what schedulers have as quotas, which reach no bill": {
        *("scheduler_cluster", "queue_quota", "tenant_queue", "queue_hour", "queue_wait_hour"),
        *("scheduler_workload", "queue_eviction"),
    },
    "tokens, messages and locks": {
        *(
            "token",
            "database_reader",
            "notification_rule",
            "notification",
            "reclaim_action",
            "outbox",
        ),
        *("acknowledged_link", *(name for name in metadata.tables if name.startswith("lock_"))),
    },
}
"""All other tables, by the reason why they are not walked."""
UNSEEN = {
    "capacity.source": "who said where an accelerator was: no amount follows from it",
    "capacity.accelerator_attributes_id": (
        "which report said so: model and share stand in columns of their own"
    ),
}
"""Cells of which a change is not found, and why."""
CONTINUED = """EXISTS (
    SELECT FROM capacity c
    WHERE c.accelerator_id = capacity.accelerator_id AND c.in_ms = capacity.out_ms
        AND (c.node_id, c.pool, c.gpu_model, c.gpu_micro) IS NOT DISTINCT FROM
            (capacity.node_id, capacity.pool, capacity.gpu_model, capacity.gpu_micro))"""
"""Whether the next row goes on in the place of a row of `capacity`: no amount follows from where the
two meet, so that the end of such a row is not changed (decision 0020, 4).
"""


@dataclass(frozen=True)
class Cell:
    """A change of one row: of a column, or `removed` and `doubled`."""

    table: str
    column: str
    kind: str
    at: str
    day_ms: int | None
    statement: str


def changes(column: sa.Column) -> Iterator[str]:
    """SQL of what a cell is changed to; one that is null already is not emptied."""
    value = another(column)
    if value is not None:
        yield value
    if column.nullable:
        yield "NULL"


def another(column: sa.Column) -> str | None:
    """SQL of another value for a cell; None where no value of the type is known."""
    name = f'"{column.name}"'
    if (target := target_of(column)) is not None:
        other = f'FROM {target.table.name} t WHERE t."{target.name}" IS DISTINCT FROM w.{name}'
        return f'(SELECT "{target.name}" {other} ORDER BY 1 LIMIT 1)'
    if isinstance(column.type, sa.Boolean):
        return f"NOT {name}"
    if isinstance(column.type, sa.Integer | sa.Numeric):
        return f"coalesce({name}, 0) + 1"
    if isinstance(column.type, JSONB):
        return f"coalesce({name}, '{{}}') || '{{\"USD\": 1}}'"
    if isinstance(column.type, sa.DateTime):
        return f"coalesce({name}, now()) + interval '1 day'"
    if isinstance(column.type, sa.Date):
        return f"coalesce({name}, DATE '2025-10-01') + 1"
    if isinstance(column.type, sa.Text | sa.String):
        return f"coalesce({name}, '') || 'x'"
    return None


def kinds(
    connection: psycopg.Connection, table: str, month: Period
) -> list[tuple[str, str, int | None]]:
    """A row of each kind, of a month: what kind, where it is, and its instant."""
    columns, instant = metadata.tables[table].columns, DERIVED[table]
    parts = ["state"] if "state" in columns else [CONTINUED] if table == "capacity" else []
    parts += [f'"{column.name}" IS NULL' for column in columns if column.nullable]
    kind = f"ARRAY[{', '.join(f'({part})::text' for part in parts)}]::text[]"
    within = (
        f'"{instant}" >= {month.start_ms} AND "{instant}" < {month.end_ms}'
        if instant
        else (
            f"id IN (SELECT owner_id FROM charge WHERE day_ms >= {month.start_ms} AND day_ms <"
            f" {month.end_ms})"
        )
    )
    # Of a correction the day that it amends, on which evidence shows what it must be.
    day = "day_ms" if "day_ms" in columns else instant or "NULL"
    rows = connection.execute(
        f"SELECT DISTINCT ON (kind) kind, at, day FROM (SELECT {kind} AS kind, ctid AS at, {day} AS"
        f" day FROM {table} WHERE {within}) row ORDER BY kind, at"
    ).fetchall()
    return [(" ".join(names), at, day_ms) for names, at, day_ms in rows]


def cells(
    connection: psycopg.Connection, table: str, month: Period, draw: random.Random
) -> Iterator[Cell]:
    """The changes of a table that this run makes."""
    columns = {column.name: tuple(changes(column)) for column in metadata.tables[table].columns}
    nullable = [column.name for column in metadata.tables[table].columns if column.nullable]
    states = set()
    for kind, at, day_ms in kinds(connection, table, month):
        where, state = f"w.ctid = '{at}'", kind.partition(" ")[0]
        # The last words of a kind say which of these columns are null.
        empty = {
            name
            for name, word in zip(reversed(nullable), reversed(kind.split()), strict=False)
            if word == "true"
        }
        for name, value in ((name, value) for name, values in columns.items() for value in values):
            if (table, name, state) == ("capacity", "out_ms", "true"):
                continue
            is_required = ALWAYS.search(name) and state not in states
            if (value != "NULL" or name not in empty) and (is_required or draw.random() < DRAWN):
                statement = (
                    f'UPDATE {table} w SET "{name}" = {value}'
                    f' WHERE {where} AND ({value}) IS DISTINCT FROM w."{name}"'
                )
                yield Cell(table, name, kind, at, day_ms, statement)
        if state not in states or draw.random() < DRAWN:
            yield Cell(table, "removed", kind, at, day_ms, f"DELETE FROM {table} w WHERE {where}")
            if not metadata.tables[table].primary_key:
                doubled = f"INSERT INTO {table} SELECT * FROM {table} w WHERE {where}"
                yield Cell(table, "doubled", kind, at, day_ms, doubled)
        states.add(state)


RATED = {"charge", "ledger_day", "conservation_check", "correction"}
"""Tables of what a day was rated to, which folding and rating it again does not read."""


def recompute_once(
    connection: psycopg.Connection,
    calendar: Calendar,
    table: str,
    days_ms: set[int],
    patch: pytest.MonkeyPatch,
) -> None:
    """Fold and rate the days of changed rows of a table once and not for each of them: what comes of
    it is the same without any of the table's rows of that day, so no change of one is missed.
    """
    expected = {}
    for day in (calendar.day_of(day_ms) for day_ms in sorted(days_ms)):
        with connection.transaction(force_rollback=True):
            assert evidence_proof._unlike_hours(connection, day, calendar) == []
            expected[day] = evidence_proof.rated_again(connection, day)
        with connection.transaction(force_rollback=True):
            removed = connection.execute(
                f"DELETE FROM {table} WHERE day_ms >= %s AND day_ms < %s",
                (day.start_ms, day.end_ms),
            )
            assert removed.rowcount
            assert evidence_proof._unlike_hours(connection, day, calendar) == []
            assert evidence_proof.rated_again(connection, day) == expected[day]
    assert all(rated.charges for rated in expected.values())

    def find_no_unlike_hours(_: psycopg.Connection, day: Period, __: Calendar) -> list[Mismatch]:
        assert day in expected
        return []

    patch.setattr(evidence_proof, "_unlike_hours", find_no_unlike_hours)
    patch.setattr(evidence_proof, "rated_again", lambda _, day: expected[day])


Faults = Callable[[psycopg.Connection, Cell], list[str]]


def walk(dsn: str, month: str, tables: Sequence[str], faults: Faults) -> set[str]:
    """The cells of which a change is not seen; prints of each table how many were changed and how
    many found.
    """
    draw, unseen = random.Random(SEED), set()
    print(
        f"\nGPULEDGER_TEST_SEED={SEED}, {month}: table, cells changed, found, refused by the"
        " database, not found"
    )
    with psycopg.connect(dsn) as connection, pytest.MonkeyPatch.context() as patch:
        # It reads declared tables and the log alone, of which the walk changes nothing.
        declared = audited.compare(connection)
        assert not set(audited.TABLES) & set(DERIVED)
        patch.setattr(audited, "compare", lambda _: declared)
        calendar = zones.calendar(connection)
        for table in tables:
            connection.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
            results, changed = (
                Counter(),
                list(cells(connection, table, calendar.month(month), draw)),
            )
            with pytest.MonkeyPatch.context() as rating:
                if table in RATED and faults is open_faults:
                    days_ms = {cell.day_ms for cell in changed if cell.day_ms is not None}
                    recompute_once(connection, calendar, table, days_ms, rating)
                for cell in changed:
                    result = change(connection, cell, calendar, faults)
                    results[result] += 1
                    if result == "not found":
                        unseen.add(f"{table}.{cell.column} of {month}")
                        print(f"  not found: {cell}")
            print(
                f"{table}: {results.total()}",
                *(results[name] for name in ("found", "refused", "not found")),
            )
            assert results["found"], table
        connection.rollback()
    return unseen


def change(connection: psycopg.Connection, cell: Cell, calendar: Calendar, faults: Faults) -> str:
    """Change a cell, and say what became of it; nothing stays changed."""
    with connection.transaction(force_rollback=True):
        try:
            with connection.transaction():
                changed = connection.execute(cell.statement)
                if not changed.rowcount:
                    # The parts of shared servers are named by no charge of a ledger without any.
                    assert cell.column == "inference_id", cell
                    return "no other value"
                connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        except psycopg.IntegrityError:
            return "refused"
        texts = faults(connection, cell)
        if not texts:
            return "not found"
        places = (
            [cell.table]
            if cell.day_ms is None
            else [cell.table, str(calendar.date_of(cell.day_ms))]
        )
        if cell.table in OF_MONTHS:
            places.append(calendar.month_of(cell.day_ms or 0))
        assert any(place in text for place in places for text in texts) or cell.table == "owner", (
            cell,
            texts,
        )
        return "found"


def open_faults(connection: psycopg.Connection, cell: Cell) -> list[str]:
    """What `reconcile --evidence` says of the day, for a month would take as long as rating it; of
    capacity and owners the first day of the month from there on of which it says something.
    """
    calendar = zones.calendar(connection)
    if cell.day_ms is not None and cell.table != "capacity":
        return day_faults(connection, calendar.day_of(cell.day_ms))
    month = calendar.month(calendar.month_of(cell.day_ms or NOW_MS))
    day = calendar.day_of(month.start_ms if cell.day_ms is None else cell.day_ms)
    while day.start_ms < month.end_ms:
        if faults := day_faults(connection, day):
            return faults
        day = calendar.day_of(day.end_ms)
    return []


def day_faults(connection: psycopg.Connection, day: Period) -> list[str]:
    """What `reconcile --evidence` says of a day."""
    return proof.failures(reconcile(connection, day, evidence=True))


def closed_faults(connection: psycopg.Connection, cell: Cell) -> list[str]:
    """What `periods --verify` says of the closed month; `reconcile --evidence` of what its reports
    do not read.
    """
    if cell.table in {"usage_hour", "capacity", "corrected_day"}:
        return open_faults(connection, cell)
    (closed,) = periods.list_closed(connection)
    result = verify(connection, closed)
    return list(result.failures) + ([] if result.sealed else [f"the sealed lines of {cell.table}"])


def excepted(month: str) -> set[str]:
    """The cells of UNSEEN that a walk of a month meets."""
    return {
        cell if " of " in cell else f"{cell} of {month}"
        for cell in UNSEEN
        if month in cell or " of " not in cell
    }


def require(unseen: set[str], month: str) -> None:
    """Nothing but the exceptions; each of them, where every cell was changed."""
    assert unseen <= excepted(month), unseen - excepted(month)
    assert DRAWN < 1 or unseen == excepted(month), excepted(month) - unseen


def test_every_table_is_walked_or_an_exception():
    """A new table must be put in one of the two lists."""
    names = [*DERIVED, *(name for group in NOT_DERIVED.values() for name in group)]
    assert len(names) == len(set(names))
    assert set(names) == set(metadata.tables), set(names) ^ set(metadata.tables)


def test_no_cell_of_the_open_month_is_changed_unseen(rich, dsn):
    """`reconcile --evidence` finds each of them."""
    tables = (
        "charge",
        "ledger_day",
        "conservation_check",
        "usage_hour",
        "capacity",
        "correction",
        "owner",
    )
    require(walk(dsn, OPEN, tables, open_faults), OPEN)


def test_no_cell_of_the_closed_month_is_changed_unseen(rich, dsn):
    """`periods --verify` finds each of them."""
    tables = [table for table in DERIVED if table != "correction"]
    require(walk(dsn, CLOSED, tables, closed_faults), CLOSED)


def test_a_month_that_an_earlier_version_closed_is_verified_as_before(rich, run):
    """Its close recorded its lines only: `--verify` says which tables it does not cover, and
    changes no seal.
    """
    rich.connection.execute("ALTER TABLE audit DISABLE TRIGGER USER")
    rich.connection.execute(
        "UPDATE audit SET after = (after::jsonb - 'tables')::json WHERE what = 'close'"
    )
    sealed = rich.rows("SELECT * FROM billing_period")
    code, text, _ = run("periods", "--verify", CLOSED)
    assert code == 0
    tables = "billing_period, invoice, closed_workload, conservation_check"
    assert f"closed by an earlier version, whose record does not cover: {tables}\n" in text
    (row,) = json.loads(run("periods", "--verify", CLOSED, "--format", "json")[1])
    assert (row["intact"], row["wrong"], row["not_covered"]) == (True, "", tables)
    assert rich.rows("SELECT * FROM billing_period") == sealed
    rich.connection.execute("ALTER TABLE billing_period DISABLE TRIGGER USER")
    rich.connection.execute("UPDATE billing_period SET level = 'user'")
    code, text, _ = run("periods", "--verify", CLOSED)
    assert code == 1
    assert (
        f"The rows of {CLOSED} in billing_period are NOT those that its close recorded in the audit"
        " log." in text
    )


def test_a_month_closed_now_is_covered_whole(rich, run):
    """Nothing is said of what is not covered."""
    code, text, _ = run("periods", "--verify", CLOSED)
    assert code == 0
    assert "does not cover" not in text
