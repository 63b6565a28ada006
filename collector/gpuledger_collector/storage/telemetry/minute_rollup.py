"""The minute rollup of samples: recomputed for the hours in which evidence arrived."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import bigints, select_values
from gpuledger_collector.storage.telemetry import minutes, node_utilization
from gpuledger_collector.storage.telemetry.node_utilization import AT_ONCE, consecutive_hours

_COLUMNS = (
    *(
        "samples",
        "utilization_ratio",
        "sm_active_ratio",
        "tensor_active_ratio",
        "dram_active_ratio",
    ),
    *("memory_used_bytes", "power_watts", "temperature_celsius", "zero_ratio", "memory_copy_ratio"),
    *("sm_clock_hertz", "slowed_ratio", "processes"),
)


def _columns_of(row: str) -> str:
    return ", ".join(f"{row}.{name}" for name in _COLUMNS)


def roll_up_minutes(
    connection: Connection, hours: Sequence[tuple[int, int]]
) -> Sequence[tuple[int, int]]:
    """Recompute the minutes of these (accelerator, hour) pairs and the utilization of their nodes
    from the samples; return those that were.

    Hours whose minutes retention has removed are left out: recomputed from one accelerator alone,
    they would stand for all of its node.
    """
    expired_before_ms = minutes.expired_before(connection)
    hours = [pair for pair in hours if pair[1] >= expired_before_ms]
    if not hours:
        return ()
    for part, is_packed in _parts(connection, hours):
        _roll_up_minutes(connection, part, is_packed)
    node_utilization.recompute(connection, hours)
    return hours


def _parts(
    connection: Connection, hours: Sequence[tuple[int, int]]
) -> Iterator[tuple[list[tuple[int, int]], bool]]:
    """Pairs that are rolled up by one statement, and whether their days are packed.

    Samples are found by time, not by accelerator: hours of them are read once, for all of their
    accelerators. Hours that follow each other are read together, since their samples lie in the
    same blocks; others between are not read.
    """
    days_ms = {hour_ms - hour_ms % DAY_MS for _, hour_ms in hours}
    query = "SELECT DISTINCT day_ms FROM sample_archive WHERE day_ms = ANY(%s)"
    packed_days = set(select_values(connection, query, (list(days_ms),)))
    packed = [pair for pair in hours if pair[1] - pair[1] % DAY_MS in packed_days]
    for part in consecutive_hours(
        [pair for pair in hours if pair[1] - pair[1] % DAY_MS not in packed_days]
    ):
        yield part, False
    for begin in range(0, len(packed), AT_ONCE):
        yield packed[begin : begin + AT_ONCE], True


def _roll_up_minutes(
    connection: Connection, hours: Sequence[tuple[int, int]], is_packed: bool
) -> None:
    bounds = (min(pair[1] for pair in hours), max(pair[1] for pair in hours) + HOUR_MS)
    source = "gpu_sample"
    if is_packed:
        # Needs numpy, which most folds do without.
        from gpuledger_collector.storage.telemetry import (
            archive,
        )

        if archive.unpack_hours(connection, hours):
            # A sample that was delivered again after its day was packed is in both tables: UNION
            # keeps it once.
            packed = (
                "(SELECT * FROM gpu_sample WHERE at_ms >= {0} AND at_ms < {1} UNION SELECT * FROM"
                " packed_sample)"
            )
            source = packed.format(*bounds)
    # Means per minute. 236 are the reasons that slow clocks down: power cap, slowdowns by hardware
    # and heat, power brake. Minutes of the hour that have not changed are not written again.
    connection.execute(
        f"""
        INSERT INTO gpu_minute AS old (accelerator_id, minute_ms, {", ".join(_COLUMNS)})
        SELECT s.accelerator_id, s.at_ms - s.at_ms %% 60000 AS minute_ms, count(*),
            avg(s.gpu_utilization_ratio), avg(s.gpu_sm_active_ratio), avg(s.gpu_tensor_active_ratio),
            avg(s.gpu_dram_active_ratio), avg(s.gpu_memory_used_bytes), avg(s.gpu_power_watts),
            avg(s.gpu_temperature_celsius), avg((s.gpu_utilization_ratio <= 0)::int),
            avg(s.gpu_memory_copy_utilization_ratio), avg(s.gpu_sm_clock_hertz),
            avg((s.gpu_clocks_event_reasons_bitmask & 236 <> 0)::int), avg(s.gpu_processes)
        FROM {source} s JOIN unnest(%s::bigint[], %s::bigint[]) AS h (accelerator_id, hour_ms)
            ON s.accelerator_id = h.accelerator_id AND s.at_ms - s.at_ms %% %s = h.hour_ms
        WHERE s.at_ms >= %s AND s.at_ms < %s
        GROUP BY 1, 2
        ON CONFLICT (accelerator_id, minute_ms) DO UPDATE SET
            {", ".join(f"{name} = excluded.{name}" for name in _COLUMNS)}
            WHERE ({_columns_of("old")}) IS DISTINCT FROM ({_columns_of("excluded")})
        """.encode(),
        (
            bigints(pair[0] for pair in hours),
            bigints(pair[1] for pair in hours),
            HOUR_MS,
            *bounds,
        ),
    )
