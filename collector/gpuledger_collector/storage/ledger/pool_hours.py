"""The hours of pools: what their GPUs were used for, added up from the hourly ledger and stored, so
that weeks of a large fleet are a few thousand rows.

A row has a whole hour. It follows from `usage_hour` and from what GPUs were then, so it is deleted
where either changes: by the fold that replaces usage of the hour (which follows every change of a
placement), and by ingest when a GPU reports another model. A job adds up what is missing. Readers
add up missing hours themselves, so that what they see never depends on the job.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from gpuledger_collector.accounting.period import HOUR_MS, Period
from gpuledger_collector.accounting.quantity import GPU_MICRO
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import select, select_as, select_values

DAYS = 400
"""How far back hours are stored: as far as a plan of the quarter reads."""
FREE_MS = 59 * 60_000
"""Of an hour, for a GPU to count as free in it: an agent that starts anew leaves seconds that nobody
saw.
"""
MODEL = "coalesce(nullif(a.model, ''), c.gpu_model)"
"""SQL: the model of an accelerator `a` in a row `c` of `capacity`."""
_PLACEMENT = f"""SELECT c.accelerator_id, c.pool, {MODEL} COLLATE "C" AS model, c.gpu_micro, c.in_ms,
        coalesce(c.out_ms, %(end)s) AS out_ms, a.mig_instance
    FROM capacity c JOIN accelerator a ON a.id = c.accelerator_id
    WHERE c.in_ms < %(end)s AND (c.out_ms IS NULL OR c.out_ms > %(start)s)"""
# A piece that begins in the hour in which its accelerator moves counts for both placements.
_TIMES = f"""WITH placement AS ({_PLACEMENT})
    SELECT u.hour_ms / %(hour)s * %(hour)s AS hour_ms, p.pool, p.model,
        coalesce(sum(u.held_ms * p.gpu_micro) FILTER (WHERE u.state = 'held'), 0)::bigint AS held_ns,
        sum(u.held_ms * p.gpu_micro)::bigint AS seen_ns
    FROM usage_hour u JOIN placement p ON p.accelerator_id = u.accelerator_id
        AND u.hour_ms + %(hour)s - 1 >= p.in_ms AND u.hour_ms < p.out_ms
    WHERE u.hour_ms >= %(start)s AND u.hour_ms < %(end)s GROUP BY 1, 2, 3"""
_COUNTS = f"""WITH placement AS ({_PLACEMENT} AND c.gpu_micro = {GPU_MICRO} AND a.mig_instance IS NULL), used AS (
        SELECT accelerator_id, hour_ms / %(hour)s * %(hour)s AS hour_ms,
            coalesce(sum(held_ms) FILTER (WHERE state = 'unallocated'), 0) AS free_ms,
            coalesce(sum(held_ms) FILTER (WHERE state <> 'unallocated'), 0) AS taken_ms
        FROM usage_hour WHERE hour_ms >= %(start)s AND hour_ms < %(end)s GROUP BY 1, 2
    )
    SELECT u.hour_ms, p.pool, p.model, count(*) FILTER (WHERE u.free_ms >= {FREE_MS})::int AS free,
        count(*) FILTER (WHERE u.taken_ms > %(hour)s - {FREE_MS})::int AS taken
    FROM used u JOIN placement p ON p.accelerator_id = u.accelerator_id
        AND u.hour_ms >= p.in_ms / %(hour)s * %(hour)s AND u.hour_ms + %(hour)s <= p.out_ms
    GROUP BY 1, 2, 3"""
_COLUMNS = ("pool", "model", "held_ns", "seen_ns", "free", "taken")
_STORED = """SELECT hour_ms, u.*
    FROM pool_hour, unnest(pools, models, held_ns, seen_ns, free, taken)
        AS u (pool, model, held_ns, seen_ns, free, taken)
    WHERE hour_ms >= %s AND hour_ms < %s"""


@dataclass(frozen=True, slots=True)
class PoolHour:
    """An hour of the GPUs of a model in a pool: GPU-nanoseconds held, and observed in any state; of
    whole GPUs those that were free for all of it, and those that were surely taken for some of it.
    """

    hour_ms: int
    pool: str
    model: str
    held_ns: int
    seen_ns: int
    free: int
    taken: int


def read(connection: Connection, period: Period) -> list[PoolHour]:
    """Read every pool and model of whole hours, in any order; none of an hour without usage."""
    hours = select_as(connection, PoolHour, _STORED, (period.start_ms, period.end_ms))
    for part in join_hours(missing_hours(connection, period)):
        hours += _add_up(connection, part)
    return hours


def missing_hours(connection: Connection, period: Period) -> list[int]:
    """List the hours of a period of whole hours that are not stored, in their order, from the first
    one with a GPU on.
    """
    return select_values(
        connection,
        "SELECT h FROM (SELECT greatest(%(start)s, min(in_ms) / %(hour)s * %(hour)s) AS at FROM"
        " capacity) AS first, generate_series(at, %(end)s - 1, %(hour)s) AS h WHERE NOT EXISTS"
        " (SELECT FROM pool_hour WHERE hour_ms = h) ORDER BY h",
        {"start": period.start_ms, "end": period.end_ms, "hour": HOUR_MS},
    )


def join_hours(hours: Sequence[int]) -> list[Period]:
    """Join hours that follow each other to periods, in their order."""
    periods: list[Period] = []
    for at_ms in hours:
        if periods and periods[-1].end_ms == at_ms:
            periods[-1] = Period(periods[-1].start_ms, at_ms + HOUR_MS)
        else:
            periods.append(Period(at_ms, at_ms + HOUR_MS))
    return periods


def store(connection: Connection, period: Period) -> int:
    """Add up and store the missing hours of a period; return how many. The caller's transaction
    holds the ledger's lock of the days that they lie in, so that nobody folds them meanwhile.
    """
    count = 0
    for part in join_hours(missing_hours(connection, period)):
        by_hour: dict[int, list[PoolHour]] = defaultdict(list)
        for hour in _add_up(connection, part):
            by_hour[hour.hour_ms].append(hour)
        hours_ms = range(part.start_ms, part.end_ms, HOUR_MS)
        connection.cursor().executemany(
            "INSERT INTO pool_hour (hour_ms, pools, models, held_ns, seen_ns, free, taken) VALUES"
            " (%s, %s, %s, %s, %s, %s, %s)",
            [
                (at_ms, *([getattr(each, name) for each in by_hour[at_ms]] for name in _COLUMNS))
                for at_ms in hours_ms
            ],
        )
        count += len(hours_ms)
    return count


def delete(connection: Connection, hours_ms: Collection[int] | None = None) -> None:
    """Delete these hours, or all of them, whose sums are no longer those of the ledger."""
    connection.execute(
        "DELETE FROM pool_hour WHERE %(hours)s::bigint[] IS NULL OR hour_ms = ANY(%(hours)s)",
        {"hours": None if hours_ms is None else list(hours_ms)},
    )


def _add_up(connection: Connection, period: Period) -> list[PoolHour]:
    bounds = {"start": period.start_ms, "end": period.end_ms, "hour": HOUR_MS}
    counts = {
        (row.hour_ms, row.pool, row.model): (row.free, row.taken)
        for row in select(connection, _COUNTS, bounds)
    }
    return [
        PoolHour(
            *(row.hour_ms, row.pool, row.model, row.held_ns, row.seen_ns),
            *counts.get((row.hour_ms, row.pool, row.model), (0, 0)),
        )
        for row in select(connection, _TIMES, bounds)
    ]
