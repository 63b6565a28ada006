"""The minutes of accelerators as the rules see them, from readings and from who held what; and what
they say together: how long idleness lasts, and what was read during an episode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuledger_collector.accounting.attribution import WorkloadFacts
from gpuledger_collector.accounting.period import MINUTE_MS, Period
from gpuledger_collector.insight.findings import PlacedAccelerator
from gpuledger_collector.insight.idle.episodes import IdleEpisode
from gpuledger_collector.insight.idle.kinds import FLOOR_BYTES, is_interactive, is_serving, watts
from gpuledger_collector.insight.idle.minutes import NOBODY, Minutes, carry_samples, unknown


def lay_out_minutes(
    accelerators: Sequence[PlacedAccelerator],
    period: Period,
    table: npt.NDArray[np.void],
    intervals: npt.NDArray[np.void],
    facts: Mapping[int, WorkloadFacts],
) -> Minutes:
    """Lay out a row for each accelerator and a column for each minute of a period.

    `table` has the readings of each accelerator and sampled minute, `intervals` who held which
    accelerator when.
    """
    shape = len(accelerators), period.ms // MINUTE_MS
    row_of = {accelerator.accelerator_id: row for row, accelerator in enumerate(accelerators)}
    row = _rows(table["accelerator_id"], row_of)
    column = (table["minute_ms"].astype(np.int64) - period.start_ms) // MINUTE_MS
    sampled = np.zeros(shape, dtype=bool)
    sampled[row, column] = True
    seen, source = carry_samples(sampled)

    def reading(name: str) -> npt.NDArray[np.float64]:
        grid = unknown(shape)
        grid[row, column] = table[name]
        return np.where(seen, np.take_along_axis(grid, source, axis=1), np.nan)

    holding = _lay_out_holding(shape, period.start_ms, row_of, intervals, facts)
    idle_watts, limit_watts = (
        np.array([watts(each.model) for each in accelerators]).reshape(shape[0], 2).T
    )
    return Minutes(
        start_ms=period.start_ms,
        # A reading without knowledge of the holder is no evidence of idleness; a fault is known
        # without any reading.
        seen=seen & holding.reported | holding.faulty,
        faulty=holding.faulty,
        holder=holding.holder,
        serving=holding.serving,
        interactive=holding.interactive,
        utilization=reading("utilization_ratio"),
        sm_active=reading("sm_active_ratio"),
        zero_ratio=reading("zero_ratio"),
        dram_active=reading("dram_active_ratio"),
        memory_copy=reading("memory_copy_ratio"),
        memory_bytes=reading("memory_used_bytes"),
        power_watts=reading("power_watts"),
        clock_hertz=reading("sm_clock_hertz"),
        slowed_ratio=reading("slowed_ratio"),
        processes=reading("processes"),
        # No agent reads these two (docs/insight.md).
        host_busy=unknown(shape),
        bytes_per_second=unknown(shape),
        memory_total=np.array([each.memory_bytes or np.nan for each in accelerators], dtype=float),
        memory_floor=np.full(shape[0], FLOOR_BYTES),
        idle_watts=idle_watts,
        limit_watts=limit_watts,
    )


@dataclass
class _Holding:
    """Who holds each accelerator in each minute, and what kind of work that is."""

    holder: npt.NDArray[np.int64]
    faulty: npt.NDArray[np.bool_]
    serving: npt.NDArray[np.bool_]
    interactive: npt.NDArray[np.bool_]
    reported: npt.NDArray[np.bool_]
    """An agent reported who holds it, or that nobody does."""


def _lay_out_holding(
    shape: tuple[int, int],
    start_ms: int,
    row_of: Mapping[int, int],
    intervals: npt.NDArray[np.void],
    facts: Mapping[int, WorkloadFacts],
) -> _Holding:
    holding = _Holding(
        np.full(shape, NOBODY, dtype=np.int64), *(np.zeros(shape, dtype=bool) for _ in range(4))
    )
    # Rounded up: a minute belongs to the interval that covers its start.
    first, last = (
        np.clip(-((start_ms - intervals[end]) // MINUTE_MS), 0, shape[1])
        for end in ("start_ms", "end_ms")
    )
    counts = np.maximum(last - first, 0)
    # An entry for each minute of each interval. Where intervals overlap, the last one to begin
    # holds the minute.
    row = np.repeat(_rows(intervals["accelerator_id"], row_of), counts)
    column = np.repeat(first - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
    names, name_of = np.unique(intervals["workload_id"], return_inverse=True)
    kinds = np.zeros((len(names), 2), dtype=bool)
    for place, workload_id in enumerate(names.tolist()):
        if (fact := facts.get(workload_id)) is not None:
            kinds[place] = [
                judge(fact.kind, fact.name or "", fact.tags)
                for judge in (is_serving, is_interactive)
            ]
    holding.reported[row, column] = True
    holding.faulty[row, column] = np.repeat(intervals["unavailable"] == 1, counts)
    workload = np.where(intervals["workload_id"] == 0, NOBODY, intervals["workload_id"])
    holding.holder[row, column] = np.repeat(workload, counts)
    holding.serving[row, column], holding.interactive[row, column] = np.repeat(
        kinds[name_of], counts, axis=0
    ).T
    return holding


def _rows(ids: npt.NDArray[Any], row_of: Mapping[int, int]) -> npt.NDArray[np.int64]:
    """The row of each accelerator id."""
    known = np.array(sorted(row_of), dtype=np.int64)
    rows = np.array([row_of[int(accelerator_id)] for accelerator_id in known], dtype=np.int64)
    return rows[np.searchsorted(known, ids.astype(np.int64))]


def mean_readings(minutes: Minutes, episode: IdleEpisode) -> dict[str, float]:
    """Means of the readings during an episode, for people to check; a metric without readings is
    left out.
    """
    part = (episode.row, slice(episode.since, episode.end))
    metrics = {
        "utilization_ratio": minutes.utilization,
        "sm_active_ratio": minutes.sm_active,
        "memory_used_bytes": minutes.memory_bytes,
        "power_watts": minutes.power_watts,
    }
    means = {}
    for name, values in metrics.items():
        known = values[part][np.isfinite(values[part])]
        if len(known):
            means[name] = round(float(known.mean()), 4)
    return means
