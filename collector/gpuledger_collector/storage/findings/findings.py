"""Findings in Postgres: written by the searches, read by commands, pages and mails."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.rows import dict_row

from gpuledger_collector.accounting.attribution import Rule, WorkloadFacts
from gpuledger_collector.accounting.pricing import Price, PurchaseChoice
from gpuledger_collector.insight.findings import Finding, PlacedAccelerator, RecentHolding, StateInterval, WorkloadUsage
from gpuledger_collector.storage import locks
from gpuledger_collector.storage.billing import commitments, prices
from gpuledger_collector.storage.database import open_connection
from gpuledger_collector.storage.ledger import rules, workloads
from gpuledger_collector.storage.locks import Lock
from gpuledger_collector.storage.telemetry import minutes

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Connection = psycopg.Connection[tuple[Any, ...]]
_COLUMNS = (
    "key",
    "kind",
    "state",
    "subject",
    "accelerator_id",
    "workload_id",
    "team",
    "owner",
    "since_ms",
    "opened_ms",
    "until_ms",
    "resolved_ms",
    "confidence",
    "currency",
    "cost_micro",
    "per_day_micro",
    "evidence",
)


def put(connection: Connection, findings: Iterable[Finding]) -> int:
    """Write findings; one that is known by its key is replaced, but for when it was first told. How many were."""
    columns = ", ".join(_COLUMNS)
    kept = ", ".join(f"{name} = excluded.{name}" for name in _COLUMNS if name not in {"key", "opened_ms"})
    rows = [_cells(one) for one in findings]
    with connection.cursor() as cursor:
        cursor.executemany(
            f"INSERT INTO finding ({columns}) VALUES ({', '.join(['%s'] * len(_COLUMNS))}) "
            f"ON CONFLICT (key) DO UPDATE SET {kept}",
            rows,
        )
    return len(rows)


def _cells(one: Finding) -> tuple[object, ...]:
    cells = [getattr(one, name) for name in _COLUMNS]
    return tuple(json.dumps(cell) if isinstance(cell, Mapping) else cell for cell in cells)


def overlapping(connection: Connection, kind: str, start_ms: int, end_ms: int) -> list[Finding]:
    """Findings of a kind that were seen in the period or go on, by begin."""
    with connection.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(
            f"SELECT {', '.join(_COLUMNS)} FROM finding WHERE kind = %s AND since_ms < %s "
            "AND (resolved_ms IS NULL OR until_ms >= %s) ORDER BY since_ms, key",
            (kind, end_ms, start_ms),
        )
        return [Finding(**row) for row in rows]


def drop(connection: Connection, keys: Sequence[str]) -> None:
    """Remove findings that a new look no longer sees."""
    connection.execute("DELETE FROM finding WHERE key = ANY(%s)", (list(keys),))


def mark(connection: Connection, kind: str) -> int | None:
    """How far the search of this kind has come (unix ms)."""
    row = connection.execute("SELECT until_ms FROM finding_progress WHERE kind = %s", (kind,)).fetchone()
    return None if row is None else int(row[0])


def set_mark(connection: Connection, kind: str, until_ms: int) -> None:
    """The search of this kind has come so far."""
    connection.execute(
        "INSERT INTO finding_progress (kind, until_ms) VALUES (%s, %s) "
        "ON CONFLICT (kind) DO UPDATE SET until_ms = excluded.until_ms",
        (kind, until_ms),
    )


def late(kind: str) -> str:
    """The mark that says since when evidence came after the search of this kind had passed."""
    return f"{kind}_late"


def mark_late(connection: Connection, kind: str, hour_ms: int) -> None:
    """Evidence of an hour changed: when the search of this kind has left that hour behind, it goes back to it."""
    connection.execute(
        "INSERT INTO finding_progress AS old (kind, until_ms) SELECT %s, %s WHERE EXISTS "
        "(SELECT FROM finding_progress WHERE kind = %s AND until_ms >= %s) ON CONFLICT (kind) DO UPDATE "
        "SET until_ms = excluded.until_ms WHERE old.until_ms > excluded.until_ms",
        (late(kind), hour_ms, kind, hour_ms + 3_600_000),
    )


def drop_late(connection: Connection, kind: str, until_ms: int) -> None:
    """The search has gone back to this instant; a mark that has moved meanwhile stays."""
    connection.execute("DELETE FROM finding_progress WHERE kind = %s AND until_ms = %s", (late(kind), until_ms))


_NAMED = """
    SELECT f.*, a.model, a.gpu_index, w.external_id AS workload, w.name AS workload_name, w.user_name
    FROM finding f LEFT JOIN accelerator a ON a.id = f.accelerator_id LEFT JOIN workload w ON w.id = f.workload_id
    WHERE f.kind = %s AND f.since_ms < %s AND (f.resolved_ms IS NULL OR f.until_ms > %s)
    ORDER BY (f.resolved_ms IS NULL) DESC, f.cost_micro DESC NULLS LAST, f.key
"""


def named(connection: Connection, kind: str, start_ms: int, end_ms: int) -> list[dict[str, Any]]:
    """Findings of a kind in a period with the names that people know, those that go on first, dearest first."""
    with connection.cursor(row_factory=dict_row) as cursor:
        return list(cursor.execute(_NAMED, (kind, end_ms, start_ms)))


@dataclass(frozen=True)
class FindingStore:
    """Where findings are kept (jobs.find_idle.Findings). `dsn` is asked for anew each time: a server may move."""

    dsn: str | Callable[[], str]

    @contextmanager
    def unit(self) -> Iterator[FindingUnit]:
        """A transaction over one snapshot, alone in searching; undone when the block raises."""
        dsn = self.dsn if isinstance(self.dsn, str) else self.dsn()
        opened = open_connection(dsn, autocommit=True, application="gpuledger-findings")
        with opened as connection, locks.snapshot(connection, Lock.FINDINGS):
            yield FindingUnit(connection)


@dataclass(frozen=True)
class FindingUnit:
    """What the searches read and write, over one connection inside a transaction."""

    connection: Connection

    def prices(self) -> Sequence[Price]:
        """The price book in force."""
        return prices.current(self.connection)

    def purchase_choices(self) -> Sequence[PurchaseChoice]:
        """Which way of buying applies where, by position."""
        return commitments.choices(self.connection)

    def rules(self) -> Sequence[Rule]:
        """The attribution rules in force."""
        return rules.current(self.connection)

    def workloads(self, ids: Sequence[int]) -> Mapping[int, WorkloadFacts]:
        """Facts of these workloads."""
        return workloads.facts(self.connection, ids)

    def cards(self, start_ms: int, end_ms: int) -> Sequence[PlacedAccelerator]:
        """Accelerators that were there in the period."""
        return minutes.cards(self.connection, start_ms, end_ms)

    def minutes(self, start_ms: int, end_ms: int, ids: Sequence[int]) -> npt.NDArray[np.void]:
        """The minute rollup of these accelerators."""
        return minutes.read(self.connection, start_ms, end_ms, ids)

    def spans(self, start_ms: int, end_ms: int, ids: Sequence[int]) -> Iterable[StateInterval]:
        """Who held these accelerators, by begin."""
        return minutes.spans(self.connection, start_ms, end_ms, ids)

    def used_before(self, at_ms: int, pairs: Sequence[tuple[int, int]]) -> set[tuple[int, int]]:
        """Those (accelerator, workload) pairs of which the workload was ever busy on the accelerator before."""
        return minutes.used_before(self.connection, at_ms, pairs) if pairs else set()

    def minute_range(self) -> tuple[int, int] | None:
        """First and last minute of the rollup."""
        return minutes.newest(self.connection)

    def minutes_gone_before(self) -> int:
        """Where retention of the rollup has come to."""
        return minutes.expired_before(self.connection)

    def hourly_use(self, start_ms: int, end_ms: int) -> Sequence[WorkloadUsage]:
        """What workloads held, by rating interval."""
        return minutes.hourly_use(self.connection, start_ms, end_ms)

    def newest_evidence(self, now_ms: int) -> int | None:
        """End of the newest evidence of the last two hours."""
        return minutes.newest_evidence(self.connection, now_ms)

    def held_now(self, edges_ms: Sequence[int]) -> Sequence[RecentHolding]:
        """Who held what in each window between two edges."""
        return minutes.held_now(self.connection, edges_ms)

    def holders(self, start_ms: int, end_ms: int) -> Sequence[int]:
        """Workloads that held anything in the period."""
        return minutes.holders(self.connection, start_ms, end_ms)

    def replicas(
        self, start_ms: int, end_ms: int, service_of: Mapping[int, int], busy_above: float
    ) -> Mapping[tuple[int, str, str], tuple[float, list[tuple[int, int, int]]]]:
        """By service, pool and model: mean replicas held, and (minute, seen, busy)."""
        return minutes.replicas(self.connection, start_ms, end_ms, service_of, busy_above)

    def coverage(self, start_ms: int, end_ms: int) -> Mapping[tuple[str, int], float]:
        """By pool and hour, what part of the capacity's time anybody saw."""
        return minutes.coverage(self.connection, start_ms, end_ms)

    def overlapping(self, kind: str, start_ms: int, end_ms: int) -> Sequence[Finding]:
        """Findings of a kind that were seen in the period or go on."""
        return overlapping(self.connection, kind, start_ms, end_ms)

    def put(self, findings: Iterable[Finding]) -> int:
        """Write findings, those that are known anew."""
        return put(self.connection, findings)

    def drop(self, keys: Sequence[str]) -> None:
        """Remove findings that a new look no longer sees."""
        drop(self.connection, keys)

    def mark(self, kind: str) -> int | None:
        """How far the search of this kind has come."""
        return mark(self.connection, kind)

    def set_mark(self, kind: str, until_ms: int) -> None:
        """The search of this kind has come so far."""
        set_mark(self.connection, kind, until_ms)

    def late_mark(self, kind: str) -> int | None:
        """Since when evidence came after the search of this kind had passed."""
        return mark(self.connection, late(kind))

    def drop_late_mark(self, kind: str, until_ms: int) -> None:
        """The search has gone back to this instant."""
        drop_late(self.connection, kind, until_ms)
