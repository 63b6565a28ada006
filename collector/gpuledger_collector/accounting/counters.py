"""What a counter counted, from readings of it: increases between two readings of one life, and the
time they cover.

A counter begins at zero with its process. An increase is counted only between two neighboring
readings of the same life: a value that fell, or another start of the process, ends a life, and a
longer pause than `max_gap_ms` proves nothing. What happened in such an interval is unknown: it adds
no units and covers no time, and is never zero. A pair that crosses an hour is split over its hours
by time (largest remainder), so that the hours add up to it. Readings may come late, doubled and in
any order: the same set of readings gives the same hours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from gpuledger_collector.accounting.inference import GPU_COUNTERS
from gpuledger_collector.accounting.period import HOUR_MS, Period
from gpuledger_common.largest_remainder import split

SAME_START_MS = 2_000
"""Starts of a process that lie closer together are one start: clocks differ and starts are rounded.
"""
ENDPOINT_GAP_MS = 600_000
"""An endpoint is read once a minute or oftener."""
REPORT_GAP_MS = 86_400_000
"""A training script reports when it has something to report."""
REPORTED = frozenset({"steps", "tokens", "samples", "epochs"})
"""Counters of a run itself; the others are those of endpoints."""
LATEST_DAYS, KEEP_DAYS = 30, 35
"""Days after which a late reading is refused, since its neighbors may have expired, and days for
which readings are kept.
"""
MAX_COUNTED = 2**53
"""Metrics pages and remote write carry counters as doubles, which are not exact above it."""
COUNTERS = (
    "inferences",
    "requests",
    "prompt_tokens",
    "cached_tokens",
    "generated_tokens",
    *GPU_COUNTERS,
    *sorted(REPORTED),
)


@dataclass(frozen=True, slots=True)
class CounterReading:
    """The value of a counter at an instant.

    `started_ms`: begin of its process, None where it does not say.
    """

    at_ms: int
    value: int
    started_ms: int | None = None


@dataclass(frozen=True, slots=True)
class HourCount:
    """Units counted in an hour, the milliseconds of it that they cover, and lives that ended in it."""

    hour_ms: int
    units: int
    covered_ms: int
    restarts: int


def max_gap_ms(counter: str) -> int:
    """The longest pause between two readings over which a counter still counts."""
    return REPORT_GAP_MS if counter in REPORTED else ENDPOINT_GAP_MS


def is_new_life(before: CounterReading, after: CounterReading) -> bool:
    """Whether the process began anew between two readings."""
    if after.value < before.value:
        return True
    if before.started_ms is None or after.started_ms is None:
        return False
    return abs(after.started_ms - before.started_ms) > SAME_START_MS


def hourly(readings: Iterable[CounterReading], gap_ms: int) -> list[HourCount]:
    """What was counted in every hour that has any of it, or a restart, in order."""
    units: dict[int, int] = {}
    covered: dict[int, int] = {}
    restarts: dict[int, int] = {}
    for before, after in pairwise(sorted(readings, key=lambda reading: reading.at_ms)):
        hour = after.at_ms - after.at_ms % HOUR_MS
        if is_new_life(before, after):
            restarts[hour] = restarts.get(hour, 0) + 1
        elif 0 < after.at_ms - before.at_ms <= gap_ms:
            for at_ms, part, ms in _parts(before, after):
                units[at_ms] = units.get(at_ms, 0) + part
                covered[at_ms] = covered.get(at_ms, 0) + ms
    return [
        HourCount(at_ms, units.get(at_ms, 0), covered.get(at_ms, 0), restarts.get(at_ms, 0))
        for at_ms in sorted(units.keys() | restarts.keys())
    ]


def _parts(before: CounterReading, after: CounterReading) -> Iterator[tuple[int, int, int]]:
    """Hour, units and milliseconds of each hour of a pair."""
    pieces = Period(before.at_ms, after.at_ms).hours()
    increases = split(after.value - before.value, [piece.ms for piece in pieces])
    for piece, increase in zip(pieces, increases, strict=True):
        yield piece.start_ms - piece.start_ms % HOUR_MS, increase, piece.ms
