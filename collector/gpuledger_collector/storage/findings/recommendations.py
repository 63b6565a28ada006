"""Recommendations in Postgres: written by the job, decided on by people, read by commands and pages."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import psycopg
from psycopg.rows import dict_row

from gpuledger_collector.accounting.commitments import COMMITMENT_UNUSED
from gpuledger_collector.accounting.period import HOUR_MS, Period
from gpuledger_collector.accounting.rating import Charge
from gpuledger_collector.accounting.realized_savings import ChargedPlace, PricedPlace
from gpuledger_collector.insight.findings import Finding
from gpuledger_collector.insight.recommendations import ReadingStats
from gpuledger_collector.insight.recommendations.record import (
    AcceptedRecommendation,
    RealizedSaving,
    Recommendation,
    RecommendationRun,
)
from gpuledger_collector.storage import locks
from gpuledger_collector.storage.access import audit
from gpuledger_collector.storage.billing import commitments, prices
from gpuledger_collector.storage.database import open_connection
from gpuledger_collector.storage.findings import findings
from gpuledger_collector.storage.locks import Lock
from gpuledger_collector.storage.telemetry import minutes

Connection = psycopg.Connection[tuple[Any, ...]]
READINGS = (
    "utilization_ratio",
    "sm_active_ratio",
    "tensor_active_ratio",
    "dram_active_ratio",
    "memory_used_bytes",
    "power_watts",
    "slowed_ratio",
)
_MINUTE = np.dtype([("minute_ms", ">i8"), *((name, ">f4") for name in READINGS)])
_KEPT = (
    "key",
    "kind",
    "subject",
    "team",
    "owner",
    "advice",
    "evidence",
    "scope",
    "start_ms",
    "end_ms",
    "price_ids",
    "currency",
    "freed_gpu_ns",
    "made_ms",
    "expires_ms",
)
_AMOUNTS = tuple(
    f"{what}_{which}_micro" for what in ("cash", "capacity", "energy") for which in ("low", "expected", "high")
)


@dataclass(frozen=True)
class RecommendationStore:
    """Where recommendations are kept (jobs.recommend.Recommendations)."""

    dsn: str | Callable[[], str]

    @contextmanager
    def unit(self) -> Iterator[RecommendationUnit]:
        """A transaction over one snapshot, alone in recommending; undone when the block raises."""
        dsn = self.dsn if isinstance(self.dsn, str) else self.dsn()
        opened = open_connection(dsn, autocommit=True, application="gpuledger-recommend")
        with opened as connection, locks.snapshot(connection, Lock.RECOMMENDATIONS):
            yield RecommendationUnit(connection)


@dataclass(frozen=True)
class RecommendationUnit:
    """What the job reads and writes, over one connection inside a transaction."""

    connection: Connection

    def findings(self, start_ms: int, end_ms: int) -> Sequence[Finding]:
        """Idle findings that were seen in the period."""
        return findings.overlapping(self.connection, "idle", start_ms, end_ms)

    def readings(self, start_ms: int, end_ms: int) -> Mapping[tuple[int, str], Mapping[str, ReadingStats]]:
        """Readings by workload and model, over minutes in which it alone held the accelerator."""
        return readings(self.connection, start_ms, end_ms)

    def named(self, ids: Sequence[int]) -> Mapping[int, tuple[str, str]]:
        """Key and name of workloads."""
        rows = self.connection.execute(
            "SELECT id, key, coalesce(nullif(name, ''), external_id) FROM workload WHERE id = ANY(%s)", (list(ids),)
        )
        return {row[0]: (row[1], row[2]) for row in rows}

    def demand(self, start_ms: int, end_ms: int) -> Mapping[tuple[str, str], Mapping[int, int]]:
        """GPU-nanoseconds held by pool, model and hour."""
        found: dict[tuple[str, str], dict[int, int]] = {}
        for use in minutes.hourly_use(self.connection, start_ms, end_ms):
            hours = found.setdefault((use.pool, use.gpu_model), {})
            hour_ms = use.rating_interval_ms - use.rating_interval_ms % HOUR_MS
            hours[hour_ms] = hours.get(hour_ms, 0) + use.gpu_ns
        return found

    def settled(self, now_ms: int) -> frozenset[str]:
        """Keys of advice that people have decided on, and that is not to be made again yet."""
        rows = self.connection.execute(
            "SELECT key FROM recommendation WHERE state = 'accepted' OR (state IN ('rejected', 'done') "
            "AND expires_ms > %s)",
            (now_ms,),
        )
        return frozenset(row[0] for row in rows)

    def put(self, made: Sequence[Recommendation], run: RecommendationRun) -> None:
        """Write advice; what is open and not among it expires."""
        names = (*_KEPT, *_AMOUNTS)
        fresh = ", ".join(f"{name} = excluded.{name}" for name in names if name not in {"key", "made_ms"})
        with self.connection.cursor() as cursor:
            cursor.executemany(
                f"INSERT INTO recommendation AS old ({', '.join(names)}, state) "
                f"VALUES ({', '.join(['%s'] * len(names))}, 'open') ON CONFLICT (key) DO UPDATE SET {fresh}, "
                "made_ms = CASE WHEN old.state = 'open' THEN old.made_ms ELSE excluded.made_ms END, state = 'open', "
                "decided_ms = NULL, decided_by = '', reason = '', realised_micro = NULL, realised_until_ms = NULL, "
                "realised = NULL",
                [_cells(one) for one in made],
            )
        self.connection.execute(
            "UPDATE recommendation SET state = 'expired', reason = 'its evidence is gone' "
            "WHERE state = 'open' AND key <> ALL(%s)",
            ([one.key for one in made],),
        )
        self.connection.execute("DELETE FROM recommendation_run")
        self.connection.execute(
            "INSERT INTO recommendation_run (made_ms, start_ms, end_ms, joint, not_evaluated) "
            "VALUES (%s, %s, %s, %s, %s)",
            (run.made_ms, run.start_ms, run.end_ms, json.dumps(run.joint), json.dumps(list(run.not_evaluated))),
        )

    def accepted(self) -> Sequence[AcceptedRecommendation]:
        """Recommendations whose saving is to be measured."""
        rows = self.connection.execute(
            "SELECT id, kind, scope, start_ms, end_ms, decided_ms, currency FROM recommendation "
            "WHERE state = 'accepted' ORDER BY id"
        )
        return [AcceptedRecommendation(*row) for row in rows]

    def spent(self, scope: Mapping[str, object], period: Period) -> Sequence[ChargedPlace]:
        """The charges of a scope by day and place, corrections included; of a named series all its runs."""
        ids = scope.get("workload_ids") or ([scope["workload_id"]] if scope.get("workload_id") is not None else None)
        columns = (
            "day_ms, accelerator_id, workload_id, owner_id, pool, gpu_model, node, state, price_id, "
            "commitment_id, currency, cost_micro, idle_cost_micro, gpu_ns, busy_ns, idle_ns"
        )
        rows = self.connection.execute(
            f"""
            SELECT c.day_ms, c.pool, c.gpu_model, c.node, p.purchase, c.commitment_id,
                CASE WHEN c.accelerator_id IS NULL THEN w.tags END AS tags, c.state = %(unused)s, c.currency,
                coalesce(sum(c.cost_micro), 0), coalesce(sum(c.idle_cost_micro), 0), sum(c.gpu_ns), sum(c.busy_ns),
                sum(c.idle_ns)
            FROM (SELECT {columns} FROM charge UNION ALL SELECT {columns} FROM correction) AS c
            LEFT JOIN owner o ON o.id = c.owner_id LEFT JOIN workload w ON w.id = c.workload_id
            LEFT JOIN price p ON p.id = c.price_id
            WHERE c.day_ms >= %(start)s AND c.day_ms < %(end)s
                AND (%(ids)s::bigint[] IS NULL OR c.workload_id = ANY(%(ids)s))
                AND (%(name)s::text IS NULL OR (w.name = %(name)s AND coalesce(o.team, '') = %(team)s))
                AND (%(pool)s::text IS NULL OR c.pool = %(pool)s)
                AND (%(model)s::text IS NULL OR c.gpu_model = %(model)s)
                AND (%(state)s::text IS NULL OR c.state = %(state)s)
            GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9
            """,
            {
                "start": period.start_ms,
                "end": period.end_ms,
                "ids": None if "name" in scope else ids,
                "name": scope.get("name"),
                "team": scope.get("team"),
                "pool": scope.get("pool"),
                "model": scope.get("model"),
                "state": scope.get("state"),
                "unused": COMMITMENT_UNUSED,
            },
        ).fetchall()
        covering = commitments.by_id(self.connection, {row[5] for row in rows if row[5] is not None})
        found = []
        for day_ms, pool, model, node, purchase, commitment_id, tags, unused, currency, *amounts in rows:
            place = PricedPlace(
                pool, model, node, purchase, covering.get(commitment_id), tuple(sorted((tags or {}).items())), unused
            )
            measures = dict(zip(_SPENT, map(int, amounts), strict=True))
            found.append(ChargedPlace(day_ms, place, currency, **measures))
        return found

    def put_realised(self, found: Iterable[RealizedSaving]) -> None:
        """Write what accepted recommendations brought."""
        for one in found:
            self.connection.execute(
                "UPDATE recommendation SET realised_micro = %s, realised_until_ms = %s, realised = %s, "
                "state = CASE WHEN %s THEN 'done' ELSE state END WHERE id = %s",
                (one.micro, one.until_ms, json.dumps(one.details), one.done, one.id),
            )


def _cells(one: Recommendation) -> tuple[object, ...]:
    cells = [getattr(one, name) for name in _KEPT]
    plain = [json.dumps(cell) if isinstance(cell, Mapping) else cell for cell in cells]
    plain[_KEPT.index("price_ids")] = list(one.price_ids)
    return (*plain, *one.cash, *one.capacity, *one.energy)


def readings(connection: Connection, start_ms: int, end_ms: int) -> dict[tuple[int, str], dict[str, ReadingStats]]:
    """Mean and percentiles of READINGS by workload and model, over hours in which one workload alone had the GPU.

    Minutes come packed, one value an accelerator, and are joined and sorted here: the server takes ten times as long.
    """
    alone: dict[int, list[tuple[int, int]]] = {}
    for accelerator_id, hour_ms, workload_id in connection.execute(
        f"""
        SELECT accelerator_id, hour_ms - hour_ms %% {HOUR_MS} AS hour, min(workload_id)
        FROM usage_hour WHERE hour_ms >= %s AND hour_ms < %s
        GROUP BY 1, 2 HAVING count(DISTINCT workload_id) = 1 AND bool_and(state = 'held') ORDER BY 1, 2
        """,
        (start_ms, end_ms),
    ):
        alone.setdefault(accelerator_id, []).append((hour_ms, workload_id))
    packed = " || ".join(
        ["int8send(m.minute_ms)", *(f"float4send(coalesce(m.{name}::real, 'NaN'))" for name in READINGS)]
    )
    parts: dict[tuple[int, str], list[npt.NDArray[np.void]]] = {}
    with connection.cursor(binary=True) as cursor:
        for accelerator_id, model, value in cursor.execute(
            f"SELECT a.id, a.model, string_agg({packed}, ''::bytea) FROM gpu_minute m JOIN accelerator a "
            "ON a.id = m.accelerator_id WHERE m.accelerator_id = ANY(%s) AND m.minute_ms >= %s AND m.minute_ms < %s "
            "GROUP BY 1, 2",
            (list(alone), start_ms, end_ms),
        ):
            table = np.frombuffer(value, dtype=_MINUTE)
            hours, holders = np.array(alone[accelerator_id], dtype=np.int64).T
            of = table["minute_ms"].astype(np.int64) // HOUR_MS * HOUR_MS
            at = np.minimum(np.searchsorted(hours, of), len(hours) - 1)
            holder = np.where(hours[at] == of, holders[at], -1)
            for workload_id in np.unique(holder[holder >= 0]):
                parts.setdefault((int(workload_id), model), []).append(table[holder == workload_id])
    found: dict[tuple[int, str], dict[str, ReadingStats]] = {}
    for key, tables in parts.items():
        whole = np.concatenate(tables)
        found[key] = {name: made for name in READINGS if (made := _reading(whole[name].astype(np.float64)))}
    return found


def _reading(values: npt.NDArray[np.float64]) -> ReadingStats | None:
    known = values[np.isfinite(values)]
    if not len(known):
        return None
    p50, p90, p95, p99 = map(float, np.quantile(known, (0.5, 0.9, 0.95, 0.99)))
    return ReadingStats(len(known) / len(values), float(known.mean()), p50, p90, p95, p99)


def listed(connection: Connection, states: Sequence[str]) -> list[dict[str, Any]]:
    """Recommendations in these states, those with most expected cash and then capacity first."""
    with connection.cursor(row_factory=dict_row) as cursor:
        return list(
            cursor.execute(
                "SELECT * FROM recommendation WHERE state = ANY(%s) ORDER BY cash_expected_micro DESC NULLS LAST, "
                "capacity_expected_micro DESC NULLS LAST, cash_high_micro DESC NULLS LAST, key",
                (list(states),),
            )
        )


def last_run(connection: Connection) -> dict[str, Any] | None:
    """The last look, None when there was none."""
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute("SELECT * FROM recommendation_run").fetchone()


def decide(connection: Connection, number: int, state: str, who: str, reason: str, now_ms: int) -> str | None:
    """An open recommendation becomes accepted or rejected; the state that it had before, None: there is no such one."""
    row = connection.execute("SELECT state, key FROM recommendation WHERE id = %s FOR UPDATE", (number,)).fetchone()
    if row is None:
        return None
    if row[0] == "open":
        connection.execute(
            "UPDATE recommendation SET state = %s, decided_ms = %s, decided_by = %s, reason = %s WHERE id = %s",
            (state, now_ms, who, reason, number),
        )
        said = {"key": row[1], "state": state, "reason": reason}
        audit.record(connection, [audit.Change("recommendation", str(number), {"state": "open"}, said)], now_ms, who)
    return str(row[0])


_HOLDS_ON = """AND id IN (
    SELECT l.workload_id FROM gpu_latest l JOIN capacity c ON c.accelerator_id = l.accelerator_id AND c.out_ms IS NULL
    JOIN node n ON n.id = c.node_id WHERE n.name = %(node)s)"""


def workloads_called(
    connection: Connection, name: str, node: str | None = None
) -> list[tuple[int, str, str | None, str | None]]:
    """Id, key, name and user of workloads whose key is this, or else whose external id, or else whose name.

    `node`: only of those that held an accelerator of this node when they were last seen.
    """
    held = "" if node is None else _HOLDS_ON
    for column in ("key", "external_id", "name"):
        rows = connection.execute(
            f"SELECT id, key, name, user_name FROM workload WHERE {column} = %(name)s {held} ORDER BY id LIMIT 20",
            {"name": name, "node": node},
        ).fetchall()
        if rows:
            return [(row[0], row[1], row[2], row[3]) for row in rows]
    return []


_SPENT = ("cost_micro", "idle_cost_micro", "gpu_ns", "busy_ns", "idle_ns")
_CHARGED = """day_ms, start_ms, end_ms, accelerator_id, workload_id, state, pool, gpu_model, node, price_id, gpu_ns,
    busy_ns, idle_ns, unknown_ns, currency, cost_micro, idle_cost_micro, list_cost_micro, energy_mj,
    commitment_id, contracted_cost_micro"""


def charged_to(connection: Connection, workload_id: int) -> list[Charge]:
    """Every charge of a workload and every correction of one; owners left out."""
    with connection.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(
            f"SELECT {_CHARGED} FROM charge WHERE workload_id = %s UNION ALL "
            f"SELECT {_CHARGED} FROM correction WHERE workload_id = %s ORDER BY day_ms, start_ms, accelerator_id",
            (workload_id, workload_id),
        ).fetchall()
    book = prices.by_id(connection, {row["price_id"] for row in rows if row["price_id"] is not None})
    ids = {row["commitment_id"] for row in rows if row["commitment_id"] is not None}
    covering = commitments.by_id(connection, ids)
    return [
        Charge(
            owner=None,
            price=book.get(row.pop("price_id")),
            commitment=covering.get(row.pop("commitment_id")),
            **row,
        )
        for row in rows
    ]


def findings_of(connection: Connection, workload_id: int) -> list[Finding]:
    """Idle findings of a workload, by begin."""
    with connection.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(
            "SELECT key, kind, state, subject, accelerator_id, workload_id, team, owner, since_ms, opened_ms, "
            "until_ms, resolved_ms, confidence, currency, cost_micro, per_day_micro, evidence FROM finding "
            "WHERE kind = 'idle' AND workload_id = %s ORDER BY since_ms, key",
            (workload_id,),
        )
        return [Finding(**row) for row in rows]


def advice_for(connection: Connection, workload_id: int) -> list[dict[str, Any]]:
    """Recommendations about a workload, whatever their state."""
    with connection.cursor(row_factory=dict_row) as cursor:
        return list(
            cursor.execute(
                "SELECT * FROM recommendation WHERE scope->>'workload_id' = %s OR scope->'workload_ids' @> %s::jsonb "
                "ORDER BY id",
                (str(workload_id), str(workload_id)),
            )
        )
