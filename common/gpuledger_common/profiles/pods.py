"""Readings that newer exporters give per pod on a shared device."""

from __future__ import annotations

from collections.abc import Collection

POD_SUMS = {"gpu_utilization_ratio": 1.0, "gpu_memory_used_bytes": 1e15}
"""These metrics, with the upper bound of their sum over the pods of a device."""


def device_value(values: Collection[float], upper_bound: float) -> float:
    """A device's value from one line per pod: equal values repeat the device's, different ones are
    the pods' parts.

    dcgm-exporter repeated the device's value for every pod that shares it until 4.5.1, and gives
    each pod's own part since; a part is 0 for a pod without a process.
    """
    return max(values) if len(set(values)) == 1 else min(sum(values), upper_bound)
