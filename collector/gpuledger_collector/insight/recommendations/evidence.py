"""What signatures look at: who held what for how long, what was read meanwhile, and how much of it is known."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpuledger_collector.accounting.period import HOUR_MS
from gpuledger_collector.accounting.pricing import PriceBook
from gpuledger_collector.insight.findings import Finding
from gpuledger_collector.insight.idle.kinds import FALSE

MIN_KNOWN = 0.95
"""Part of the time that must have been seen, and of the minutes that must carry a reading: less gives no advice."""
PROTECTED = ("warm_standby", "warm-standby", "standby", "debug", "reservation", "reserved_for", "keep")
"""Tags that say that idleness is wanted."""


@dataclass(frozen=True, slots=True)
class IntervalUsage:
    """What a holder (or nobody) had of an accelerator from an rating interval's begin on, in milliseconds."""

    accelerator_id: int
    at_ms: int
    held_ms: int
    busy_ms: int
    idle_ms: int
    unknown_ms: int
    energy_mj: int | None = None


@dataclass(frozen=True, slots=True)
class ReadingStats:
    """A reading over the minutes of a holding: `known` is the part of them that carry it, 0..1."""

    known: float
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float


@dataclass(frozen=True)
class Holding:
    """What one workload (None: nobody) had of one kind of accelerator in one pool over the window."""

    workload_id: int | None
    key: str
    name: str
    kind: str
    pool: str
    model: str
    tags: Mapping[str, str] = field(default_factory=dict)
    owner: Mapping[str, str] = field(default_factory=dict)
    rating_intervals: Sequence[IntervalUsage] = ()
    readings: Mapping[str, ReadingStats] = field(default_factory=dict)

    @property
    def held_ms(self) -> int:
        """Milliseconds of accelerators."""
        return sum(rating_interval.held_ms for rating_interval in self.rating_intervals)

    @property
    def busy_ms(self) -> int:
        """Milliseconds in which they worked."""
        return sum(rating_interval.busy_ms for rating_interval in self.rating_intervals)

    @property
    def known_share(self) -> float:
        """Part of the held time whose activity somebody measured."""
        held = self.held_ms
        return (
            0.0 if not held else 1 - sum(rating_interval.unknown_ms for rating_interval in self.rating_intervals) / held
        )

    @property
    def most_at_once(self) -> int:
        """The most accelerators that it had in one hour."""
        hours: dict[int, set[int]] = defaultdict(set)
        for rating_interval in self.rating_intervals:
            hours[rating_interval.at_ms // HOUR_MS].add(rating_interval.accelerator_id)
        return max((len(cards) for cards in hours.values()), default=0)

    @property
    def protected_by(self) -> str | None:
        """The tag that keeps it as it is, None when there is none."""
        return next((tag for tag in PROTECTED if self.tags.get(tag, "").lower() not in FALSE), None)


@dataclass(frozen=True, slots=True)
class ObservedAccelerator:
    """An accelerator, and how much of its time in the window anybody saw (0..1)."""

    pool: str
    model: str
    node: str
    gpu_micro: int
    seen: float


@dataclass(frozen=True)
class Window:
    """All evidence of a window."""

    start_ms: int
    end_ms: int
    holdings: Sequence[Holding]
    free: Mapping[tuple[str, str], Holding]
    """Time that nobody held, by pool and model."""
    places: Mapping[int, ObservedAccelerator]
    findings: Sequence[Finding]
    book: PriceBook
    demand_ns: Mapping[tuple[str, str], Mapping[int, int]]
    """GPU-nanoseconds held, by pool and model and hour, over a longer past than the window."""
    imported: int = 0
    """Workloads known only as counts of GPUs."""

    @property
    def days(self) -> float:
        """Its length."""
        return (self.end_ms - self.start_ms) / 86_400_000

    def full_hours(self, pool: str, model: str) -> set[int]:
        """Hours of the window in which nobody could have had a further accelerator of this kind."""
        hours = set(range(self.start_ms // HOUR_MS, self.end_ms // HOUR_MS))
        free = self.free.get((pool, model))
        return hours - {
            rating_interval.at_ms // HOUR_MS
            for rating_interval in (() if free is None else free.rating_intervals)
            if rating_interval.held_ms
        }
