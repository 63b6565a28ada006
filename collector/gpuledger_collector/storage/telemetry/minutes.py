"""Bulk reads of the minute rollup and of who held what: columns of numbers, a hundred thousand rows
at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gpuledger_collector.insight.findings import PlacedAccelerator, RecentHolding, WorkloadUsage
from gpuledger_collector.storage.distribution import has_citus
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import (
    select,
    select_as,
    select_number,
    select_value,
    select_values,
)
from gpuledger_collector.storage.telemetry import usage_evidence

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

READINGS = (
    "utilization_ratio",
    "sm_active_ratio",
    "dram_active_ratio",
    "memory_used_bytes",
    "power_watts",
    "zero_ratio",
    "memory_copy_ratio",
    "sm_clock_hertz",
    "slowed_ratio",
    "processes",
)
LONGEST_MS = 86_400_000
"""No usage interval is longer, so none that began earlier is looked for."""
_MINUTE = [("minute_ms", ">i8"), *((name, ">f4") for name in READINGS)]
"""A minute as the server sends it: one value for all minutes of an accelerator is far cheaper than
a row each.
"""
_INTERVAL = [(name, ">i8") for name in ("start_ms", "end_ms", "workload_id", "unavailable")]
"""A usage interval, packed likewise."""


def read(
    connection: Connection, start_ms: int, end_ms: int, ids: Sequence[int]
) -> npt.NDArray[np.void]:
    """Minutes of these accelerators: `accelerator_id`, `minute_ms` and READINGS by name, NaN
    unknown.
    """
    packed = " || ".join(
        [
            "int8send(minute_ms)",
            *(f"float4send(coalesce({name}::real, 'NaN'))" for name in READINGS),
        ]
    )
    with connection.cursor(binary=True) as cursor:
        rows = cursor.execute(
            f"SELECT accelerator_id, string_agg({packed}, ''::bytea) FROM gpu_minute "
            "WHERE accelerator_id = ANY(%s) AND minute_ms >= %s AND minute_ms < %s GROUP BY 1",
            (list(ids), start_ms, end_ms),
        ).fetchall()
    return _by_accelerator(rows, _MINUTE)


def _by_accelerator(
    rows: Sequence[tuple[int, bytes]], packed: list[tuple[str, str]]
) -> npt.NDArray[np.void]:
    """Records that were packed into one value for each accelerator, in this machine's byte order."""
    import numpy as np  # imported here because reports use this module without it

    records = np.frombuffer(b"".join(row[1] for row in rows), dtype=packed)
    columns = [
        ("accelerator_id", "<i8"),
        *((name, kind.replace(">", "<")) for name, kind in packed),
    ]
    table = np.empty(len(records), dtype=columns)
    ids, lengths = (
        np.array([(row[0], len(row[1]) // records.itemsize) for row in rows], dtype=np.int64)
        .reshape(-1, 2)
        .T
    )
    table["accelerator_id"] = np.repeat(ids, lengths)
    for name, _ in packed:
        table[name] = records[name]
    return table


def accelerators(
    connection: Connection, start_ms: int, end_ms: int, ids: Sequence[int] | None = None
) -> list[PlacedAccelerator]:
    """Accelerators present in the period, by id, each at its last place; of these, or all of them."""
    return select_as(
        connection,
        PlacedAccelerator,
        """
        SELECT DISTINCT ON (a.id) a.id AS accelerator_id, a.uuid, a.model, a.gpu_micro, a.memory_bytes,
            coalesce(n.name, '') AS node, c.pool, a.gpu_index
        FROM capacity c JOIN accelerator a ON a.id = c.accelerator_id LEFT JOIN node n ON n.id = c.node_id
        WHERE c.in_ms < %(end)s AND (c.out_ms IS NULL OR c.out_ms > %(start)s)
            AND (%(ids)s::bigint[] IS NULL OR c.accelerator_id = ANY(%(ids)s))
        ORDER BY a.id, c.in_ms DESC
        """,
        {"start": start_ms, "end": end_ms, "ids": ids},
    )


def state_intervals(
    connection: Connection,
    start_ms: int,
    end_ms: int,
    ids: Sequence[int],
    *,
    begun_before: bool = True,
) -> npt.NDArray[np.void]:
    """Who held these accelerators, and when they could not be held: `accelerator_id` and _INTERVAL
    by name.

    By accelerator and begin. `workload_id` is 0 where nobody held it, `unavailable` is 0 or 1.
    Without those that began before the start, no evidence of the day before is looked through.
    """
    first_ms = start_ms - LONGEST_MS if begun_before else start_ms
    packed = " || ".join(
        f"int8send({part})"
        for part in (
            "start_ms",
            "end_ms",
            "coalesce(workload_id, 0)",
            "(state = 'unavailable')::int",
        )
    )
    with connection.cursor(binary=True) as cursor:
        rows = cursor.execute(
            f"SELECT accelerator_id, string_agg({packed}, ''::bytea ORDER BY start_ms, workload_id"
            f" DESC NULLS LAST) FROM {usage_evidence.intervals(int(first_ms), int(end_ms))} AS s"
            " WHERE accelerator_id = ANY(%s) AND end_ms > %s AND state <> 'present' GROUP BY 1",
            (list(ids), start_ms),
        ).fetchall()
    return _by_accelerator(rows, _INTERVAL)


def reaches_into(intervals: npt.NDArray[np.void], start_ms: int) -> npt.NDArray[np.bool_]:
    """Mark the intervals that `state_intervals` reads from an instant on."""
    mark: npt.NDArray[np.bool_] = (intervals["end_ms"] > start_ms) & (
        intervals["start_ms"] >= start_ms - LONGEST_MS
    )
    return mark


def used_before(
    connection: Connection, at_ms: int, pairs: Sequence[tuple[int, int]]
) -> set[tuple[int, int]]:
    """Those (accelerator, workload) pairs whose workload was ever busy on the accelerator before an
    instant.
    """
    if not pairs:
        return set()
    return {
        (row.accelerator_id, row.workload_id)
        for row in select(
            connection,
            "SELECT DISTINCT u.accelerator_id, u.workload_id FROM usage_hour u "
            "JOIN unnest(%s::bigint[], %s::bigint[]) AS p (accelerator_id, workload_id) "
            "ON u.accelerator_id = p.accelerator_id AND u.workload_id = p.workload_id "
            "WHERE u.state = 'held' AND u.hour_ms < %s AND u.busy_ms > 0",
            ([pair[0] for pair in pairs], [pair[1] for pair in pairs], at_ms),
        )
    }


_END = "SELECT {end}(minute_ms) FROM gpu_minute"
_END_BY_KEY = (
    "SELECT {end}((SELECT {end}(minute_ms) FROM gpu_minute m WHERE m.accelerator_id = a.id)) FROM"
    " accelerator a"
)
"""The same by one index look-up an accelerator, however many minutes there are; Citus takes no such
subquery.
"""


def minute_range(connection: Connection) -> tuple[int, int] | None:
    """First and last minute of the rollup (unix ms); None when there is none."""
    query = _END if has_citus(connection) else _END_BY_KEY
    first, last = (select_value(connection, query.format(end=end)) for end in ("min", "max"))
    return None if first is None else (first, last)


def first_hour(connection: Connection, since_ms: int) -> int | None:
    """First hour from a full hour on (both unix ms) with usage, or with evidence that is still to be
    folded; None when there is none.
    """
    return select_number(
        connection,
        "SELECT least((SELECT min(hour_ms) FROM usage_hour WHERE hour_ms >= %s AND state <>"
        " 'present'), (SELECT min(hour_ms) FROM hour_recompute WHERE hour_ms >= %s))",
        (since_ms, since_ms),
    )


def expired_before(connection: Connection) -> int:
    """The bound of retention (unix ms, start of a UTC day): no minutes exist before it, nor will
    any; 0: no bound.
    """
    query = "SELECT before_ms FROM retention_boundary WHERE name = 'gpu_minute'"
    return select_value(connection, query) or 0


def hourly_use(connection: Connection, start_ms: int, end_ms: int) -> list[WorkloadUsage]:
    """Hourly usage of workloads, by rating interval, workload and kind of accelerator."""
    return select_as(
        connection,
        WorkloadUsage,
        """
        WITH placement AS (
            SELECT DISTINCT ON (c.accelerator_id) c.accelerator_id, c.pool, a.model, coalesce(n.name, '') AS node,
                a.gpu_micro
            FROM capacity c JOIN accelerator a ON a.id = c.accelerator_id LEFT JOIN node n ON n.id = c.node_id
            WHERE c.in_ms < %(end)s AND (c.out_ms IS NULL OR c.out_ms > %(start)s)
            ORDER BY c.accelerator_id, c.in_ms DESC
        )
        SELECT u.hour_ms AS rating_interval_ms, u.workload_id, s.pool, s.model AS gpu_model, s.node,
            sum(u.held_ms * s.gpu_micro)::bigint AS gpu_ns, max(u.held_ms) AS longest_ms,
            sum(s.gpu_micro)::bigint AS gpu_micro, sum(u.busy_ms)::bigint AS busy_ms,
            sum(u.idle_ms)::bigint AS idle_ms
        FROM usage_hour u JOIN placement s USING (accelerator_id)
        WHERE u.state = 'held' AND u.workload_id IS NOT NULL AND u.hour_ms >= %(start)s AND u.hour_ms < %(end)s
        GROUP BY 1, 2, 3, 4, 5 ORDER BY 1
        """,
        {"start": start_ms, "end": end_ms},
    )


def newest_evidence(connection: Connection, now_ms: int) -> int | None:
    """End of the newest evidence of the last two hours (unix ms)."""
    return select_number(
        connection,
        f"SELECT max(end_ms) FROM {usage_evidence.intervals(int(now_ms) - LONGEST_MS)} AS s"
        " WHERE end_ms > %s AND end_ms <= %s",
        (now_ms - 7_200_000, now_ms),
    )


def held_now(connection: Connection, edges_ms: Sequence[int]) -> list[RecentHolding]:
    """Who held what in each window between two edges, read from usage intervals so that no hour
    must have ended.
    """
    # One sum per window: the overlap of each interval with it, never negative.
    sums = ", ".join(
        ["coalesce(sum(greatest(0, least(s.end_ms, %s) - greatest(s.start_ms, %s))), 0)"]
        * len(edges_ms[1:])
    )
    bounds = [edge for window in zip(edges_ms[1:], edges_ms, strict=False) for edge in window]
    rows = select(
        connection,
        f"""
        SELECT s.accelerator_id, s.workload_id, c.pool, a.model, coalesce(n.name, '') AS node, a.gpu_micro,
            min(s.start_ms) AS since_ms, ARRAY[{sums}]::bigint[] AS held_ms
        FROM {usage_evidence.RECENT} s JOIN accelerator a ON a.id = s.accelerator_id
        JOIN LATERAL (
            SELECT pool, node_id FROM capacity WHERE accelerator_id = s.accelerator_id AND in_ms < %s
                AND (out_ms IS NULL OR out_ms > %s) ORDER BY in_ms DESC LIMIT 1
        ) c ON true LEFT JOIN node n ON n.id = c.node_id
        WHERE s.state = 'held' AND s.workload_id IS NOT NULL AND s.end_ms > %s AND s.start_ms < %s AND s.start_ms >= %s
        GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY 1, 2
        """,
        (*bounds, edges_ms[-1], edges_ms[0], edges_ms[0], edges_ms[-1], edges_ms[0] - 86_400_000),
    )
    return [
        RecentHolding(
            accelerator_id=row.accelerator_id,
            workload_id=row.workload_id,
            pool=row.pool,
            gpu_model=row.model,
            node=row.node,
            gpu_micro=row.gpu_micro,
            since_ms=row.since_ms,
            held_ms=tuple(row.held_ms),
        )
        for row in rows
    ]


def coverage(connection: Connection, start_ms: int, end_ms: int) -> dict[tuple[str, int], float]:
    """Observed part of the capacity (0 to 1) by pool and clock hour."""
    rows = select(
        connection,
        """
        WITH placement AS (
            SELECT c.accelerator_id, c.pool, c.in_ms, coalesce(c.out_ms, %(end)s) AS out_ms FROM capacity c
            WHERE c.in_ms < %(end)s AND (c.out_ms IS NULL OR c.out_ms > %(start)s)
        ), present AS (
            SELECT pool, h, sum(least(out_ms, h + 3600000) - greatest(in_ms, h)) AS ms
            FROM placement, generate_series(%(start)s::bigint, %(end)s::bigint - 1, 3600000) AS h
            WHERE in_ms < h + 3600000 AND out_ms > h GROUP BY 1, 2
        ), seen AS (
            SELECT s.pool, u.hour_ms / 3600000 * 3600000 AS h, sum(u.held_ms) AS ms
            FROM usage_hour u JOIN (SELECT DISTINCT accelerator_id, pool FROM placement) s USING (accelerator_id)
            WHERE u.hour_ms >= %(start)s AND u.hour_ms < %(end)s GROUP BY 1, 2
        )
        SELECT present.pool, present.h AS hour_ms, coalesce(seen.ms, 0) / greatest(present.ms, 1)::float AS part
        FROM present
        LEFT JOIN seen USING (pool, h)
        """,
        {"start": start_ms, "end": end_ms},
    )
    return {(row.pool, row.hour_ms): float(row.part) for row in rows}


def holders(connection: Connection, start_ms: int, end_ms: int) -> list[int]:
    """Workloads that held anything in the period."""
    return select_values(
        connection,
        "SELECT DISTINCT workload_id FROM usage_hour WHERE state = 'held' AND workload_id IS NOT"
        " NULL AND hour_ms >= %s AND hour_ms < %s ORDER BY 1",
        (start_ms, end_ms),
    )


def replicas(
    connection: Connection,
    start_ms: int,
    end_ms: int,
    service_of: Mapping[int, int],
    busy_above: float,
) -> dict[tuple[int, str, str], tuple[float, list[tuple[int, int, int]]]]:
    """By service (a number for each workload), pool and model: mean replicas held, and rows of
    (minute, seen, busy).

    A replica is an accelerator that the service holds; the mean goes over the hours from its first
    to its last.
    """
    ids, numbers = list(service_of), list(service_of.values())
    placement = """
        WITH replica AS MATERIALIZED (
            SELECT w.service, c.pool, a.model, u.accelerator_id, u.hour_ms, u.held_ms
            FROM usage_hour u JOIN unnest(%(ids)s::bigint[], %(numbers)s::bigint[]) AS w (id, service)
                ON w.id = u.workload_id JOIN accelerator a ON a.id = u.accelerator_id
            JOIN LATERAL (
                SELECT pool FROM capacity WHERE accelerator_id = u.accelerator_id AND in_ms <= u.hour_ms + 3599999
                ORDER BY in_ms DESC LIMIT 1
            ) c ON true
            WHERE u.state = 'held' AND u.hour_ms >= %(start)s AND u.hour_ms < %(end)s
        )
    """
    values = {"ids": ids, "numbers": numbers, "start": start_ms, "end": end_ms, "busy": busy_above}
    services: dict[tuple[int, str, str], tuple[float, list[tuple[int, int, int]]]] = {}
    for row in select(
        connection,
        placement + "SELECT service, pool, model, sum(held_ms) / (3600000.0 * ((max(hour_ms) -"
        " min(hour_ms)) / 3600000 + 1)) AS mean FROM replica GROUP BY 1, 2, 3",
        values,
    ):
        services[row.service, row.pool, row.model] = (float(row.mean), [])
    for row in select(
        connection,
        placement
        + "SELECT r.service, r.pool, r.model, m.minute_ms, count(DISTINCT m.accelerator_id) AS"
        " seen, count(DISTINCT m.accelerator_id) FILTER (WHERE coalesce(m.sm_active_ratio,"
        " m.utilization_ratio) > %(busy)s) AS busy FROM replica r JOIN gpu_minute m ON m.accelerator_id ="
        " r.accelerator_id AND m.minute_ms >= r.hour_ms AND m.minute_ms < r.hour_ms - r.hour_ms"
        " %% 3600000 + 3600000 GROUP BY 1, 2, 3, 4 ORDER BY 4",
        values,
    ):
        minutes = services[row.service, row.pool, row.model][1]
        minutes.append((row.minute_ms, row.seen, row.busy))
    return services
