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
    """Mean and percentiles of READINGS by workload and model, over hours in which a single workload
    held the GPU.

    Minutes are sent packed, one value an accelerator, and joined and sorted here: the server takes
    ten times as long.
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
        [
            "int8send(m.minute_ms)",
            *(f"float4send(coalesce(m.{name}::real, 'NaN'))" for name in READINGS),
        ]
    )
    parts: dict[tuple[int, str], list[npt.NDArray[np.void]]] = {}
    with connection.cursor(binary=True) as cursor:
        for accelerator_id, model, value in cursor.execute(
            f"SELECT a.id, a.model, string_agg({packed}, ''::bytea) FROM gpu_minute m JOIN"
            " accelerator a ON a.id = m.accelerator_id WHERE m.accelerator_id = ANY(%s) AND"
            " m.minute_ms >= %s AND m.minute_ms < %s GROUP BY 1, 2",
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
        distributions[key] = _stats(np.concatenate(tables))
    return distributions


def _stats(minutes_held: npt.NDArray[np.void]) -> dict[str, ReadingStats]:
    """Mean and percentiles of each reading, over the minutes that have it."""
    values = {name: minutes_held[name].astype(np.float64) for name in READINGS}
    known = {name: column[np.isfinite(column)] for name, column in values.items()}
    # Most readings are there in every minute: their percentiles are found together, the call costs
    # more than the rest.
    together = [name for name, column in known.items() if len(column) == len(minutes_held)]
    percentiles = dict(
        zip(together, _percentiles(np.array([known[name] for name in together])), strict=True)
    )
    for name, column in known.items():
        if 0 < len(column) < len(minutes_held):
            percentiles[name] = _percentiles(column[None, :])[0]
    return {
        name: ReadingStats(
            len(known[name]) / len(minutes_held), float(known[name].mean()), *percentiles[name]
        )
        for name in READINGS
        if name in percentiles
    }


def _percentiles(rows: npt.NDArray[np.float64]) -> list[list[float]]:
    """The 50th, 90th, 95th and 99th percentile of each row."""
    found: list[list[float]] = (
        np.quantile(rows, (0.5, 0.9, 0.95, 0.99), axis=1).T.tolist() if len(rows) else []
    )
    return found
