"""Usage in Postgres: usage intervals and marks in, the hourly ledger and the minute rollup out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import psycopg

from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, Period
from gpuledger_collector.accounting.ports import Mark
from gpuledger_collector.accounting.usage import HourlyUsage, UsageInterval

Connection = psycopg.Connection[tuple[Any, ...]]
_LONGEST_USAGE_INTERVAL_MS = DAY_MS
"""Agents cut at the hour; a day is allowed, so that only two partitions are looked at for one."""
_USAGE_INTERVAL = """accelerator_id, workload_id, state, start_ms, end_ms, held_ms, busy_ms, idle_ms,
    unknown_ms, energy_mj,
    node_id, epoch::text, seq, record, coalesce(n.name, ''), coalesce(s.workload_attributes_id,
        (SELECT min(t.id) FROM workload_attributes t WHERE t.workload_id = s.workload_id))"""


def marks(connection: Connection, period: Period, limit: int | None) -> list[Mark]:
    """Dirty hours of the period, by hour and accelerator, but for those whose evidence retention has removed."""
    rows = connection.execute(
        "SELECT id, accelerator_id, hour_ms FROM hour_recompute WHERE hour_ms >= %s AND hour_ms < %s "
        "AND NOT EXISTS (SELECT FROM expired_day WHERE hour_ms >= day_ms AND hour_ms < day_ms + 172800000) "
        "ORDER BY hour_ms, accelerator_id, id LIMIT %s",
        (period.start_ms - HOUR_MS + 1, period.end_ms, limit),
    )
    return [Mark(*row) for row in rows]


def drop_marks(connection: Connection, ids: Iterable[int]) -> None:
    """Remove exactly these marks."""
    connection.execute("DELETE FROM hour_recompute WHERE id = ANY(%s)", (list(ids),))


def usage_intervals(connection: Connection, accelerator_ids: Sequence[int], period: Period) -> Iterator[UsageInterval]:
    """Evidence of use that overlaps the period. The bounds stand in the text, so that the plan names the partitions."""
    rows = connection.execute(
        f"SELECT {_USAGE_INTERVAL} FROM usage_interval s LEFT JOIN node n ON n.id = s.node_id WHERE accelerator_id "
        f"= ANY(%s) "
        f"AND start_ms < {int(period.end_ms)} AND end_ms > {int(period.start_ms)} "
        f"AND start_ms >= {int(period.start_ms) - _LONGEST_USAGE_INTERVAL_MS} AND state <> 'present'",
        (list(accelerator_ids),),
        prepare=False,
    )
    for row in rows:
        yield UsageInterval(*row)


def replace(connection: Connection, hours: Sequence[tuple[int, int]], pieces: Sequence[HourlyUsage]) -> None:
    """The hourly ledger of these (accelerator, hour) pairs becomes these pieces.

    A piece stands under the start of its rating interval in `hour_ms`: the hour itself, or the instant inside it at
    which a price changed or the accelerator moved.
    """
    connection.execute(
        "DELETE FROM usage_hour u USING unnest(%s::bigint[], %s::bigint[]) AS h (accelerator_id, hour_ms) "
        "WHERE u.accelerator_id = h.accelerator_id AND u.hour_ms >= h.hour_ms AND u.hour_ms < h.hour_ms + %s",
        ([pair[0] for pair in hours], [pair[1] for pair in hours], HOUR_MS),
    )
    with connection.cursor().copy(
        "COPY usage_hour (accelerator_id, hour_ms, state, workload_id, held_ms, busy_ms, idle_ms, unknown_ms, "
        "energy_mj, workload_attributes_id) FROM STDIN"
    ) as copy:
        for piece in pieces:
            copy.write_row(
                (
                    piece.accelerator_id,
                    piece.start_ms,
                    piece.state,
                    piece.workload_id,
                    piece.held_ms,
                    piece.busy_ms,
                    piece.idle_ms,
                    piece.unknown_ms,
                    piece.energy_mj,
                    piece.attributes_id,
                )
            )


def pieces(connection: Connection, day: Period) -> list[HourlyUsage]:
    """The hourly ledger of a day by accelerator and rating interval; what is stored is an rating interval's start, so
    each ends its hour.
    """
    rows = connection.execute(
        "SELECT accelerator_id, hour_ms, hour_ms - hour_ms %% %s + %s, state, workload_id, held_ms, busy_ms, idle_ms, "
        "unknown_ms, energy_mj, coalesce(u.workload_attributes_id, (SELECT min(t.id) FROM workload_attributes t "
        "WHERE t.workload_id = u.workload_id)) FROM usage_hour u WHERE hour_ms >= %s AND hour_ms < %s "
        "ORDER BY accelerator_id, hour_ms, state, workload_id NULLS FIRST",
        (HOUR_MS, HOUR_MS, day.start_ms, day.end_ms),
    )
    return [HourlyUsage(*row) for row in rows]


def roll_up_minutes(connection: Connection, hours: Sequence[tuple[int, int]]) -> None:
    """The minute rollup of these (accelerator, hour) pairs is made again from the samples."""
    if not hours:
        return
    from gpuledger_collector.storage.telemetry import archive

    bounds = (min(pair[1] for pair in hours), max(pair[1] for pair in hours) + HOUR_MS)
    # A row that came again after its day was packed is one row: UNION, not UNION ALL.
    packed = "(SELECT * FROM gpu_sample WHERE at_ms >= {0} AND at_ms < {1} UNION SELECT * FROM packed_sample)"
    source = packed.format(*bounds) if archive.unpack_hours(connection, hours) else "gpu_sample"
    connection.execute(
        f"""
        INSERT INTO gpu_minute AS old (accelerator_id, minute_ms, samples, utilization_ratio, sm_active_ratio,
            tensor_active_ratio, dram_active_ratio, memory_used_bytes, power_watts, temperature_celsius, zero_ratio,
            memory_copy_ratio, sm_clock_hertz, slowed_ratio, processes)
        SELECT s.accelerator_id, s.at_ms - s.at_ms %% 60000 AS minute_ms, count(*),
            avg(s.gpu_utilization_ratio), avg(s.gpu_sm_active_ratio), avg(s.gpu_tensor_active_ratio),
            avg(s.gpu_dram_active_ratio), avg(s.gpu_memory_used_bytes), avg(s.gpu_power_watts),
            avg(s.gpu_temperature_celsius), avg((s.gpu_utilization_ratio <= 0)::int),
            avg(s.gpu_memory_copy_utilization_ratio), avg(s.gpu_sm_clock_hertz),
            avg((s.gpu_clocks_event_reasons_bitmask & 236 <> 0)::int), avg(s.gpu_processes)
        FROM {source} s JOIN unnest(%s::bigint[], %s::bigint[]) AS h (accelerator_id, hour_ms)
            ON s.accelerator_id = h.accelerator_id AND s.at_ms >= h.hour_ms AND s.at_ms < h.hour_ms + %s
        WHERE s.at_ms >= %s AND s.at_ms < %s
        GROUP BY 1, 2
        ON CONFLICT (accelerator_id, minute_ms) DO UPDATE SET
            samples = excluded.samples, utilization_ratio = excluded.utilization_ratio,
            sm_active_ratio = excluded.sm_active_ratio, tensor_active_ratio = excluded.tensor_active_ratio,
            dram_active_ratio = excluded.dram_active_ratio, memory_used_bytes = excluded.memory_used_bytes,
            power_watts = excluded.power_watts, temperature_celsius = excluded.temperature_celsius,
            zero_ratio = excluded.zero_ratio, memory_copy_ratio = excluded.memory_copy_ratio,
            sm_clock_hertz = excluded.sm_clock_hertz, slowed_ratio = excluded.slowed_ratio,
            processes = excluded.processes
        """,
        ([pair[0] for pair in hours], [pair[1] for pair in hours], HOUR_MS, *bounds),
    )


def sampled_hours(connection: Connection, period: Period) -> list[tuple[int, int]]:
    """The (accelerator, hour) pairs of the period that have samples; of packed days every hour, as it may have."""
    return connection.execute(
        "SELECT accelerator_id, at_ms - at_ms %% %s FROM gpu_sample WHERE at_ms >= %s AND at_ms < %s UNION "
        "SELECT accelerator_id, hour FROM sample_archive, generate_series(day_ms, day_ms + %s - 1, %s) AS hour "
        "WHERE day_ms > %s - %s AND day_ms < %s AND hour > %s - %s AND hour < %s",
        (
            HOUR_MS,
            period.start_ms,
            period.end_ms,
            DAY_MS,
            HOUR_MS,
            period.start_ms,
            DAY_MS,
            period.end_ms,
            period.start_ms,
            HOUR_MS,
            period.end_ms,
        ),
    ).fetchall()


def mark_evidence(connection: Connection, accelerator_ids: Sequence[int], start_ms: int, end_ms: int) -> None:
    """Mark every hour in which these accelerators have usage intervals between two instants, to be folded again."""
    connection.execute(
        "INSERT INTO hour_recompute (accelerator_id, hour_ms) "
        "SELECT DISTINCT accelerator_id, h FROM usage_interval, "
        "generate_series(start_ms - start_ms %% %s, greatest(end_ms - 1, start_ms), %s) AS h "
        "WHERE accelerator_id = ANY(%s) AND start_ms < %s AND end_ms > %s AND start_ms >= %s",
        (HOUR_MS, HOUR_MS, list(accelerator_ids), end_ms, start_ms, start_ms - _LONGEST_USAGE_INTERVAL_MS),
    )


def mark_cuts(connection: Connection, instants: Iterable[int]) -> None:
    """Mark the hours inside which one of these instants lies: a price, a rule or a choice begins or ends there."""
    hours_ms = sorted({at - at % HOUR_MS for at in instants if at % HOUR_MS})
    if hours_ms:
        mark_cut_hours(connection, hours_ms)


def mark_cut_hours(connection: Connection, hours_ms: Sequence[int]) -> None:
    """Mark these hours for every accelerator that has usage in them: they are cut in another way."""
    connection.execute(
        "INSERT INTO hour_recompute (accelerator_id, hour_ms) SELECT DISTINCT u.accelerator_id, h "
        "FROM unnest(%s::bigint[]) AS h JOIN usage_hour u ON u.hour_ms >= h AND u.hour_ms < h + %s",
        (list(hours_ms), HOUR_MS),
    )
