"""Changes of slow metrics: packed by the hour, and expired.

A change is a row of `gpu_state` until its hour is over; then the changes of an accelerator, metric
and hour become one row of `gpu_state_hour`, an array of instants and one of values. The last change
of each metric stays a row however old it is, so whoever needs only the latest value reads
`gpu_state` alone. A change that is in both places, because it was written again, counts as it
stands in `gpu_state`.

Rows are packed in batches of accelerators and days, each a transaction: a run that stopped anywhere
is continued by the next one, and late changes are merged into their hours. Only a row whose packed
value reads back equal is deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.locks import Lock
from gpuledger_collector.storage.rows import select_values

SLICE = 256
"""Accelerators packed in one transaction."""
# A row with a later one after it: the last change of a metric is not packed.
_HAS_LATER = """EXISTS (SELECT FROM gpu_state later WHERE later.accelerator_id = s.accelerator_id
        AND later.metric = s.metric AND later.at_ms > s.at_ms)"""
_DAYS = f"""
SELECT DISTINCT at_ms / {DAY_MS} * {DAY_MS} FROM gpu_state s
WHERE accelerator_id = ANY(%(ids)s) AND at_ms < %(before)s AND {_HAS_LATER} ORDER BY 1
"""
_PACK = f"""
INSERT INTO gpu_state_hour (accelerator_id, metric, hour_ms, offset_ms, value)
SELECT accelerator_id, metric, hour_ms, array_agg(offset_ms ORDER BY offset_ms),
    array_agg(value ORDER BY offset_ms)
FROM (
    SELECT accelerator_id, metric, at_ms - at_ms % {HOUR_MS} AS hour_ms,
        (at_ms % {HOUR_MS})::integer AS offset_ms, value
    FROM gpu_state s WHERE accelerator_id = ANY(%(ids)s) AND at_ms >= %(start)s
        AND at_ms < %(end)s AND EXISTS (SELECT FROM gpu_state later
            WHERE later.accelerator_id = s.accelerator_id AND later.metric = s.metric
                AND later.at_ms > s.at_ms)
    UNION ALL
    SELECT p.accelerator_id, p.metric, p.hour_ms, c.offset_ms, c.value
    FROM gpu_state_hour p, unnest(p.offset_ms, p.value) AS c (offset_ms, value)
    WHERE p.accelerator_id = ANY(%(ids)s) AND p.hour_ms >= %(start)s AND p.hour_ms < %(end)s
        AND EXISTS (SELECT FROM gpu_state s WHERE s.accelerator_id = p.accelerator_id
            AND s.metric = p.metric AND s.at_ms >= p.hour_ms AND s.at_ms < p.hour_ms + {HOUR_MS}
            AND {_HAS_LATER})
        AND NOT EXISTS (SELECT FROM gpu_state s WHERE s.accelerator_id = p.accelerator_id
            AND s.metric = p.metric AND s.at_ms = p.hour_ms + c.offset_ms)
) change GROUP BY accelerator_id, metric, hour_ms
ON CONFLICT (accelerator_id, metric, hour_ms)
    DO UPDATE SET offset_ms = excluded.offset_ms, value = excluded.value
""".replace(" % ", " %% ")
_DELETE_PACKED = f"""
DELETE FROM gpu_state s USING gpu_state_hour p
WHERE s.accelerator_id = ANY(%(ids)s) AND s.at_ms >= %(start)s AND s.at_ms < %(end)s
    AND p.accelerator_id = s.accelerator_id AND p.metric = s.metric
    AND p.hour_ms = s.at_ms - s.at_ms % {HOUR_MS}
    AND (s.at_ms - p.hour_ms)::integer = ANY(p.offset_ms)
    AND p.value[array_position(p.offset_ms, (s.at_ms - p.hour_ms)::integer)]
        IS NOT DISTINCT FROM s.value
""".replace(" % ", " %% ")
_LAST_BEFORE = """(
    SELECT accelerator_id, metric, max(at_ms) AS at_ms FROM (
        SELECT accelerator_id, metric, at_ms FROM gpu_state
        WHERE accelerator_id = ANY(%(ids)s) AND at_ms < %(before)s
        UNION ALL
        SELECT accelerator_id, metric, hour_ms + offset_ms[cardinality(offset_ms)]
        FROM gpu_state_hour WHERE accelerator_id = ANY(%(ids)s) AND hour_ms < %(before)s
    ) change GROUP BY accelerator_id, metric
)"""
"""The last change of each metric before a bound, which is the start of an hour: it still holds."""
_EXPIRE_ROWS = f"""
DELETE FROM gpu_state s USING {_LAST_BEFORE} k
WHERE s.accelerator_id = ANY(%(ids)s) AND s.accelerator_id = k.accelerator_id
    AND s.metric = k.metric AND s.at_ms < k.at_ms
"""
_EXPIRE_HOURS = f"""
DELETE FROM gpu_state_hour p USING {_LAST_BEFORE} k
WHERE p.accelerator_id = ANY(%(ids)s) AND p.accelerator_id = k.accelerator_id
    AND p.metric = k.metric AND p.hour_ms + p.offset_ms[cardinality(p.offset_ms)] < k.at_ms
RETURNING cardinality(p.offset_ms)
"""
# Of the hour with the last change before the bound only that one stays. No slice of an array: its
# missing bound crashes Citus 13.2.
_CUT_HOURS = f"""
UPDATE gpu_state_hour p SET offset_ms = ARRAY[p.offset_ms[h.changes]],
    value = ARRAY[p.value[h.changes]]
FROM (
    SELECT g.accelerator_id, g.metric, g.hour_ms, cardinality(g.offset_ms) AS changes
    FROM gpu_state_hour g JOIN {_LAST_BEFORE} k
        ON g.accelerator_id = k.accelerator_id AND g.metric = k.metric
    WHERE g.accelerator_id = ANY(%(ids)s) AND cardinality(g.offset_ms) > 1
        AND g.hour_ms + g.offset_ms[cardinality(g.offset_ms)] = k.at_ms
) h WHERE p.accelerator_id = ANY(%(ids)s) AND p.accelerator_id = h.accelerator_id
    AND p.metric = h.metric AND p.hour_ms = h.hour_ms RETURNING h.changes - 1
"""


def pack(database: Database, before_ms: int, stopping: Callable[[], bool]) -> int:
    """Pack changes before an instant, the start of an hour, except the last of each metric; return
    how many.

    Nothing while another process packs. `stopping` is asked before each transaction: True leaves
    the rest to the next run.
    """
    packed = 0
    with database.try_hold(Lock.STATES) as holder:
        if holder is None:
            return 0
        for ids in _slices(database, SLICE):
            if stopping():
                return packed
            with database.connect() as connection:
                days = select_values(connection, _DAYS, {"ids": ids, "before": before_ms})
            for day_ms in days:
                if stopping():
                    return packed
                bounds = {"start": day_ms, "end": min(day_ms + DAY_MS, before_ms), "ids": ids}
                with database.transaction() as connection:
                    connection.execute(_PACK.encode(), bounds)
                    packed += connection.execute(_DELETE_PACKED.encode(), bounds).rowcount
    return packed


def expire(database: Database, before_ms: int, stopping: Callable[[], bool]) -> int:
    """Delete changes before an instant, the start of an hour, except the last of each metric, which
    still holds; return how many.
    """
    deleted = 0
    for ids in _slices(database, 1):
        if stopping():
            break
        values = {"ids": ids, "before": before_ms}
        with database.transaction() as connection:
            deleted += connection.execute(_EXPIRE_ROWS.encode(), values).rowcount
            for statement in (_EXPIRE_HOURS, _CUT_HOURS):
                deleted += sum(select_values(connection, statement, values))
    return deleted


def _slices(database: Database, size: int) -> Iterator[list[int]]:
    with database.connect() as connection:
        ids = select_values(connection, "SELECT id FROM accelerator ORDER BY id")
    return (ids[begin : begin + size] for begin in range(0, len(ids), size))
