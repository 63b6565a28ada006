"""What workloads' GPUs read while they held them alone: the evidence of recommendations."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gpuledger_collector.accounting.period import HOUR_MS
from gpuledger_collector.insight.recommendations import ReadingStats
from gpuledger_collector.storage.locks import Connection

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


def workload_readings(
    connection: Connection, start_ms: int, end_ms: int
) -> dict[tuple[int, str], dict[str, ReadingStats]]:
    """Mean and percentiles of READINGS by workload and model, over hours in which a single workload held the GPU.

    Minutes are sent packed, one value an accelerator, and joined and sorted here: the server takes ten times as long.
    """
    sole_holders: dict[int, list[tuple[int, int]]] = {}
    for accelerator_id, hour_ms, workload_id in connection.execute(
        f"""
        SELECT accelerator_id, hour_ms - hour_ms %% {HOUR_MS} AS hour, min(workload_id)
        FROM usage_hour WHERE hour_ms >= %s AND hour_ms < %s
        GROUP BY 1, 2 HAVING count(DISTINCT workload_id) = 1 AND bool_and(state = 'held') ORDER BY 1, 2
        """,
        (start_ms, end_ms),
    ):
        sole_holders.setdefault(accelerator_id, []).append((hour_ms, workload_id))
    packed = " || ".join(
        ["int8send(m.minute_ms)", *(f"float4send(coalesce(m.{name}::real, 'NaN'))" for name in READINGS)]
    )
    parts: dict[tuple[int, str], list[npt.NDArray[np.void]]] = {}
    with connection.cursor(binary=True) as cursor:
        for accelerator_id, model, value in cursor.execute(
            f"SELECT a.id, a.model, string_agg({packed}, ''::bytea) FROM gpu_minute m JOIN accelerator a "
            "ON a.id = m.accelerator_id WHERE m.accelerator_id = ANY(%s) AND m.minute_ms >= %s AND m.minute_ms < %s "
            "GROUP BY 1, 2",
            (list(sole_holders), start_ms, end_ms),
        ):
            table = np.frombuffer(value, dtype=_MINUTE)
            hours, holders = np.array(sole_holders[accelerator_id], dtype=np.int64).T
            hour = table["minute_ms"].astype(np.int64) // HOUR_MS * HOUR_MS
            index = np.minimum(np.searchsorted(hours, hour), len(hours) - 1)
            holder = np.where(hours[index] == hour, holders[index], -1)
            for workload_id in np.unique(holder[holder >= 0]):
                parts.setdefault((int(workload_id), model), []).append(table[holder == workload_id])
    distributions = {}
    for key, tables in parts.items():
        minutes_held = np.concatenate(tables)
        stats = {name: _stats(minutes_held[name].astype(np.float64)) for name in READINGS}
        distributions[key] = {name: value for name, value in stats.items() if value is not None}
    return distributions


def _stats(values: npt.NDArray[np.float64]) -> ReadingStats | None:
    known = values[np.isfinite(values)]
    if not len(known):
        return None
    p50, p90, p95, p99 = map(float, np.quantile(known, (0.5, 0.9, 0.95, 0.99)))
    return ReadingStats(len(known) / len(values), float(known.mean()), p50, p90, p95, p99)
