"""The ledger in Postgres: units of work for the jobs, and what reports read.

A unit is one REPEATABLE READ transaction. The right to write the ledger is an advisory lock of the session, taken
before the transaction begins: its snapshot then shows everything that the writer before it committed.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg

from gpuledger_collector.accounting.attribution import Rule, WorkloadFacts
from gpuledger_collector.accounting.chargeback import SharedPart
from gpuledger_collector.accounting.commitments import Commitment
from gpuledger_collector.accounting.ledger import DayLine, Proof
from gpuledger_collector.accounting.period import DAY_MS, Calendar, Period
from gpuledger_collector.accounting.placement import RefusedClaim
from gpuledger_collector.accounting.ports import (
    CapacityRow,
    ChargedState,
    ClosedPeriod,
    ExportedCharge,
    Invoice,
    Mark,
    RatedDay,
)
from gpuledger_collector.accounting.pricing import Price, PurchaseChoice
from gpuledger_collector.accounting.rating import Charge, ImportedUsage
from gpuledger_collector.accounting.reattribution import Reattribution
from gpuledger_collector.accounting.tags import LEVELS, OwnerPath
from gpuledger_collector.accounting.usage import Contradiction, HourlyUsage, UsageInterval
from gpuledger_collector.storage import locks
from gpuledger_collector.storage.billing import allocation as beside
from gpuledger_collector.storage.billing import commitments, periods, prices, reattributions
from gpuledger_collector.storage.database import open_connection
from gpuledger_collector.storage.findings import findings
from gpuledger_collector.storage.ledger import claims, inventory, months, reports, rules, usage, workloads, zones
from gpuledger_collector.storage.locks import Lock
from gpuledger_collector.storage.telemetry import minutes, partitions
from gpuledger_collector.storage.telemetry import node_utilization as node_utilization

Connection = psycopg.Connection[tuple[Any, ...]]
_OWNER_COLUMNS = "org, team, project, experiment, run, user_name"
_CHARGE_COLUMNS = """day_ms, start_ms, end_ms, accelerator_id, workload_id, owner_id, state, pool, gpu_model, node,
    price_id, gpu_ns, busy_ns, idle_ns, unknown_ns, currency, cost_micro, idle_cost_micro, list_cost_micro, energy_mj,
    commitment_id, contracted_cost_micro"""
_LINE_COLUMNS = """day_ms, owner_id, state, pool, gpu_model, currency, gpu_ns, busy_ns, idle_ns, unknown_ns, cost_micro,
    idle_cost_micro, energy_mj, list_cost_micro, contracted_cost_micro"""


@dataclass(frozen=True)
class Ledger:
    """The ledger of one database (accounting.ports.Store). `dsn` is asked for anew each time: a server may move."""

    dsn: str | Callable[[], str]

    def connect(self, *, autocommit: bool = False) -> Connection:
        """A connection of its own. Raises ServerUnavailable."""
        dsn = self.dsn if isinstance(self.dsn, str) else self.dsn()
        return open_connection(dsn, autocommit=autocommit, application="gpuledger-ledger")

    @contextmanager
    def unit(self, *, audited: bool = False) -> Iterator[LedgerUnit]:
        """A transaction over one snapshot, alone in writing the ledger (and the audit log); undone when it raises."""
        needed = (Lock.LEDGER, Lock.AUDIT) if audited else (Lock.LEDGER,)
        with self.connect(autocommit=True) as connection, locks.snapshot(connection, *needed):
            yield LedgerUnit(connection)

    @contextmanager
    def trial(self) -> Iterator[LedgerUnit]:
        """A unit that is undone at its end, whatever was written in it."""
        with self.unit() as unit:
            yield unit
            raise psycopg.Rollback

    @contextmanager
    def snapshot(self) -> Iterator[LedgerUnit]:
        """A transaction over one snapshot that only reads, and waits for no writer."""
        with self.connect() as connection:
            connection.rollback()
            connection.isolation_level, connection.read_only = psycopg.IsolationLevel.REPEATABLE_READ, True
            yield LedgerUnit(connection)

    def ensure_partitions(self, days_ms: Sequence[int]) -> int:
        """Make the partitions of these days that are missing; how many were made."""
        made = 0
        for table in partitions.PARTITIONED:
            with self.connect() as connection:
                connection.execute(f"SET lock_timeout = '{partitions.JOB_WAIT}'")
                made += len(partitions.ensure(connection, table, days_ms))
        return made


@dataclass(frozen=True)
class LedgerUnit:
    """accounting.ports.Unit over one connection inside a transaction."""

    connection: Connection

    def calendar(self) -> Calendar:
        """The days and months of the bill, in the billing zone."""
        return zones.calendar(self.connection)

    def prices(self) -> Sequence[Price]:
        """The price book in force."""
        return prices.current(self.connection)

    def purchase_choices(self) -> Sequence[PurchaseChoice]:
        """Which way of buying applies where, by position."""
        return commitments.choices(self.connection)

    def commitments(self) -> Sequence[Commitment]:
        """The commitments of the book, whatever their terms."""
        return commitments.current(self.connection)

    def rules(self) -> Sequence[Rule]:
        """The attribution rules in force, by position."""
        return rules.current(self.connection)

    def reattributions(self, period: Period) -> Sequence[Reattribution]:
        """What decided disputes say of time in the period, against the rules."""
        return reattributions.of(self.connection, period)

    def marks(self, period: Period, limit: int | None = None) -> Sequence[Mark]:
        """Dirty hours of the period, by hour."""
        return usage.marks(self.connection, period, limit)

    def drop_marks(self, ids: Iterable[int]) -> None:
        """Remove exactly these marks."""
        usage.drop_marks(self.connection, ids)

    def capacity(self, period: Period) -> Sequence[CapacityRow]:
        """Capacity that overlaps the period."""
        return inventory.capacity(self.connection, period)

    def usage_intervals(self, accelerator_ids: Sequence[int], period: Period) -> Iterable[UsageInterval]:
        """Evidence of these accelerators that overlaps the period."""
        return usage.usage_intervals(self.connection, accelerator_ids, period)

    def latest_evidence_ms(self, since_ms: int) -> int | None:
        """Where the newest evidence that begins at or after an instant ends; None when there is none."""
        row = self.connection.execute(
            "SELECT max(end_ms) FROM usage_interval WHERE start_ms >= %s", (since_ms,)
        ).fetchone()
        return None if row is None else row[0]

    def replace_usage(self, hours: Sequence[tuple[int, int]], pieces: Sequence[HourlyUsage]) -> None:
        """The hourly ledger of these (accelerator, hour) pairs becomes these pieces."""
        usage.replace(self.connection, hours, pieces)

    def roll_up_minutes(self, hours: Sequence[tuple[int, int]]) -> None:
        """Minutes of these (accelerator, hour) pairs and their nodes' heat; the idle search returns to late ones.

        Hours whose minutes retention has removed are passed over: made again of one accelerator, they would be the
        whole of its node.
        """
        gone_before_ms = minutes.gone_before(self.connection)
        kept = [pair for pair in hours if pair[1] >= gone_before_ms]
        usage.roll_up_minutes(self.connection, kept)
        node_utilization.roll(self.connection, kept)
        if kept:
            findings.mark_late(self.connection, "idle", min(hour_ms for _, hour_ms in kept))

    def sampled_hours(self, period: Period) -> Sequence[tuple[int, int]]:
        """The (accelerator, hour) pairs of the period that have samples."""
        return usage.sampled_hours(self.connection, period)

    def mark_days(self, days_ms: Iterable[int]) -> None:
        """Add a mark to each of these days."""
        self.connection.execute("INSERT INTO day_recompute (day_ms) SELECT unnest(%s::bigint[])", (sorted(days_ms),))

    def days_to_rate(self, period: Period, now_ms: int) -> Sequence[int]:
        """Days with a mark, or with capacity, a commitment or imported usage and no proof up to their end or now."""
        calendar = self.calendar()
        first = self.connection.execute(
            "SELECT min(at) FROM (SELECT min(in_ms) AS at FROM capacity UNION ALL SELECT min(start_ms) "
            "FROM imported_usage UNION ALL SELECT min(day_ms) FROM day_recompute "
            "UNION ALL SELECT min(starts_ms) FROM commitment WHERE superseded_at IS NULL) AS first_evidence"
        ).fetchone()
        end_ms = min(period.end_ms, now_ms)
        if first is None or first[0] is None or max(period.start_ms, first[0]) >= end_ms:
            return []
        if not calendar.is_utc:
            self._align_marks(calendar)
        start_ms = calendar.day_of(max(period.start_ms, first[0])).start_ms
        starts = [day.start_ms for day in calendar.days(Period(start_ms, end_ms))]
        ends = [*starts[1:], calendar.day_of(starts[-1]).end_ms]
        rows = self.connection.execute(
            """
            SELECT d FROM unnest(%(starts)s::bigint[], %(ends)s::bigint[]) AS days (d, stop)
            WHERE d IN (SELECT day_ms FROM day_recompute) OR ((
                EXISTS (SELECT FROM capacity c WHERE c.in_ms < least(stop, %(now)s)
                    AND (c.out_ms IS NULL OR c.out_ms > d))
                OR EXISTS (SELECT FROM imported_usage u WHERE u.start_ms < least(stop, %(now)s)
                    AND (u.end_ms IS NULL OR u.end_ms > d))
                OR EXISTS (SELECT FROM commitment m WHERE m.superseded_at IS NULL
                    AND m.starts_ms < least(stop, %(now)s) AND m.ends_ms > d)
            ) AND NOT EXISTS (SELECT FROM conservation_check p WHERE p.day_ms = d AND p.until_ms >= least(stop,
            %(now)s)))
            ORDER BY d
            """,
            {"starts": starts, "ends": ends, "now": now_ms},
        )
        return [int(row[0]) for row in rows]

    def _align_marks(self, calendar: Calendar) -> None:
        """What marks UTC days (imports, prices, rules) marks the days of the bill that they touch."""
        marks = [int(row[0]) for row in self.connection.execute("SELECT DISTINCT day_ms FROM day_recompute")]
        known = set(marks)
        missing: set[int] = set()
        foreign: list[int] = []
        for mark in marks:
            first = calendar.day_of(mark)
            if first.start_ms != mark:
                foreign.append(mark)
            missing.add(first.start_ms)
            if first.end_ms < mark + DAY_MS:
                missing.add(first.end_ms)
        if missing - known:
            self.mark_days(missing - known)
        if foreign:
            self.connection.execute("DELETE FROM day_recompute WHERE day_ms = ANY(%s)", (foreign,))

    def pieces(self, day: Period) -> Sequence[HourlyUsage]:
        """The hourly ledger of a day."""
        return usage.pieces(self.connection, day)

    def imported(self, day: Period) -> Sequence[ImportedUsage]:
        """Imported usage that overlaps the day."""
        rows = self.connection.execute(
            "SELECT u.workload_id, u.start_ms, u.end_ms, u.gpu_micro, u.gpu_model, u.pool, u.node, "
            "coalesce(u.workload_attributes_id, (SELECT min(t.id) FROM workload_attributes t "
            "WHERE t.workload_id = u.workload_id)), w.key "
            "FROM imported_usage u JOIN workload w ON w.id = u.workload_id "
            "WHERE u.start_ms < %s AND (u.end_ms IS NULL OR u.end_ms > %s) ORDER BY w.key, u.start_ms",
            (day.end_ms, day.start_ms),
        )
        return [ImportedUsage(*row) for row in rows]

    def workloads(self, ids: Sequence[int]) -> Mapping[int, WorkloadFacts]:
        """Facts of these workloads."""
        return workloads.facts(self.connection, ids)

    def workload_attributes(self, ids: Sequence[int]) -> Mapping[int, WorkloadFacts]:
        """What was reported of workloads, by number of the report."""
        return workloads.attributes(self.connection, ids)

    def keep_contradictions(self, found: Sequence[Contradiction]) -> None:
        """Keep that a node reported held time for other holders as well."""
        claims.keep_contradictions(self.connection, found)

    def undecided_claims(self, period: Period) -> Sequence[RefusedClaim]:
        """Claims of time in the period that were refused, and of which no inventory says who is right."""
        return claims.undecided(self.connection, period)

    def proofs(self, period: Period) -> Sequence[Proof]:
        """The proofs of the period's days, by day."""
        return reports.proofs(self.connection, period)

    def charged_states(self, period: Period) -> Sequence[ChargedState]:
        """The charges of the period's days, added up by day, state and currency."""
        return reports.charged_states(self.connection, period)

    def replace_day(self, day_ms: int, rated: RatedDay, now_ms: int) -> None:
        """The day's charges, ledger lines and proof become these; the marks of the day that were seen are removed."""
        for table in ("charge", "ledger_day", "conservation_check", "day_recompute"):
            self.connection.execute(f"DELETE FROM {table} WHERE day_ms = %s", (day_ms,))
        owners = self._owner_ids({charge.owner for charge in rated.charges if charge.owner is not None})
        with self.connection.cursor().copy(f"COPY charge ({_CHARGE_COLUMNS}) FROM STDIN") as copy:
            for charge in rated.charges:
                copy.write_row(_charge_cells(charge, owners))
        with self.connection.cursor().copy(f"COPY ledger_day ({_LINE_COLUMNS}) FROM STDIN") as copy:
            for line in rated.lines:
                copy.write_row(_line_cells(line, owners))
        _insert_proof(
            self.connection, "conservation_check", rated.proof, dt.datetime.fromtimestamp(now_ms / 1000, dt.UTC)
        )

    def lacks_month(self, now_ms: int) -> bool:
        """Whether a month that is over and has rated days is not added up."""
        return months.missing(self.connection, self.calendar(), now_ms) is not None

    def add_up_month(self, now_ms: int) -> bool:
        """Add up the latest month that is over and is not; whether there was one. The first thing in its unit."""
        return months.add_up(self.connection, self.calendar, now_ms)

    def untrue_months(self, period: Period) -> Sequence[Period]:
        """Months that overlap the period and are not the sum of their days."""
        return months.untrue(self.connection, period)

    def closed_periods(self) -> Sequence[ClosedPeriod]:
        """Every closed period, by time."""
        return periods.closed(self.connection)

    def marked_closed_periods(self) -> Sequence[Period]:
        """Closed periods with a mark on an hour or a day, by time."""
        return periods.marked(self.connection)

    def billed(self, day_ms: int) -> Sequence[Charge]:
        """What a day has been charged so far: its closed lines and every correction of it."""
        return [one.charge for one in reports.billed(self.connection, day_ms)]

    def correct_day(self, rated: RatedDay, lines: Sequence[Charge], booked_day_ms: int, now_ms: int) -> None:
        """Book these corrections of a closed day, keep the new proof beside the sealed one, and drop its marks."""
        day_ms = rated.proof.day_ms
        owners = self._owner_ids({charge.owner for charge in lines if charge.owner is not None})
        columns = f"booked_day_ms, recorded_ms, {_CHARGE_COLUMNS}"
        with self.connection.cursor().copy(f"COPY correction ({columns}) FROM STDIN") as copy:
            for charge in lines:
                copy.write_row((booked_day_ms, now_ms, *_charge_cells(charge, owners)))
        self.connection.execute("DELETE FROM day_recompute WHERE day_ms = %s", (day_ms,))
        if lines:
            self.connection.execute("DELETE FROM corrected_day WHERE day_ms = %s", (day_ms,))
            at = dt.datetime.fromtimestamp(now_ms / 1000, dt.UTC)
            _insert_proof(self.connection, "corrected_day", rated.proof, at)

    def exported(self, period: Period) -> Iterable[ExportedCharge]:
        """The lines that a period bills: its days' charges and the corrections booked in it, in a fixed order."""
        return reports.charges(self.connection, period)

    def shares(self, period: Period, level: str, at_ms: int) -> Sequence[SharedPart]:
        """What each owner of a level bears of shared costs in a period, as they were in force at an instant."""
        return beside.shares(self.connection, period, level, at_ms, at_ms)

    def close(
        self, closed: ClosedPeriod, invoices: Sequence[Invoice], level: str, receipt: Mapping[str, object]
    ) -> None:
        """The period is closed from now on; the names that its lines show are kept as they are."""
        periods.close(self.connection, closed, invoices, level, receipt)

    def _owner_ids(self, owners: set[OwnerPath]) -> dict[OwnerPath, int]:
        columns = [list(column) for column in zip(*(_levels(owner) for owner in owners), strict=True)]
        if not columns:
            return {}
        given = ", ".join(["%s::text[]"] * len(LEVELS))
        self.connection.execute(
            f"INSERT INTO owner ({_OWNER_COLUMNS}) SELECT * FROM unnest({given}) ON CONFLICT DO NOTHING", columns
        )
        rows = self.connection.execute(
            f"SELECT o.id, {', '.join('o.' + name.strip() for name in _OWNER_COLUMNS.split(','))} FROM owner o "
            f"JOIN unnest({given}) AS g ({_OWNER_COLUMNS}) USING ({_OWNER_COLUMNS})",
            columns,
        )
        return {OwnerPath(*row[1:]): row[0] for row in rows}


def _levels(owner: OwnerPath) -> tuple[str, ...]:
    return (owner.org, owner.team, owner.project, owner.experiment, owner.run, owner.user)


def _charge_cells(charge: Charge, owners: Mapping[OwnerPath, int]) -> tuple[object, ...]:
    return (
        charge.day_ms,
        charge.start_ms,
        charge.end_ms,
        charge.accelerator_id,
        charge.workload_id,
        None if charge.owner is None else owners[charge.owner],
        charge.state,
        charge.pool,
        charge.gpu_model,
        charge.node,
        None if charge.price is None else charge.price.id,
        charge.gpu_ns,
        charge.busy_ns,
        charge.idle_ns,
        charge.unknown_ns,
        charge.currency,
        charge.cost_micro,
        charge.idle_cost_micro,
        charge.list_cost_micro,
        charge.energy_mj,
        None if charge.commitment is None else charge.commitment.id,
        charge.contracted_cost_micro,
    )


def _line_cells(line: DayLine, owners: Mapping[OwnerPath, int]) -> tuple[object, ...]:
    return (
        line.day_ms,
        None if line.owner is None else owners[line.owner],
        line.state,
        line.pool,
        line.gpu_model,
        line.currency,
        line.gpu_ns,
        line.busy_ns,
        line.idle_ns,
        line.unknown_ns,
        line.cost_micro,
        line.idle_cost_micro,
        line.energy_mj,
        line.list_cost_micro,
        line.contracted_cost_micro,
    )


def _insert_proof(connection: Connection, table: str, proof: Proof, now: dt.datetime) -> None:
    connection.execute(
        f"INSERT INTO {table} (day_ms, capacity_ns, held_ns, unallocated_ns, unavailable_ns, unobserved_ns, "
        "capacity_cost, charged_cost, imported_ns, until_ms, holds, commitments, proved_at, stranded_ns) "
        "VALUES (%s, %s, %s, %s, %s, %s, %s::jsonb, %s::jsonb, %s, %s, %s, %s::jsonb, %s, %s)",
        (
            proof.day_ms,
            proof.capacity_ns,
            proof.held_ns,
            proof.unallocated_ns,
            proof.unavailable_ns,
            proof.unobserved_ns,
            json.dumps(dict(proof.capacity_cost)),
            json.dumps(dict(proof.charged_cost)),
            proof.imported_ns,
            proof.until_ms,
            proof.holds,
            json.dumps(dict(proof.commitments)),
            now,
            proof.stranded_ns,
        ),
    )
