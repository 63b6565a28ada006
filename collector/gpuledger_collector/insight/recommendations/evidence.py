"""Evidence of a window: who held what for how long, the readings meanwhile, and how much of the
time was observed.

The `require_` functions are the guards: they raise InsufficientEvidence with the reason that is
shown to people.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS
from gpuledger_collector.accounting.pricing import PriceBook
from gpuledger_collector.insight.findings import Finding
from gpuledger_collector.insight.idle.kinds import FALSE, is_serving

MIN_KNOWN = 0.95
"""Share of the time that must be observed, and of the minutes that must carry a reading, before a
proposal.
"""
PROTECTED = (
    "warm_standby",
    "warm-standby",
    "standby",
    "debug",
    "reservation",
    "reserved_for",
    "keep",
)
"""Tags that declare a holding as intentionally idle."""


class InsufficientEvidence(Exception):
    """A subject cannot be judged; the message is the reason, for people."""


@dataclass(frozen=True, slots=True)
class IntervalUsage:
    """Accelerator time of a holder (or of nobody) in the rating interval that begins at `at_ms`."""

    accelerator_id: int
    at_ms: int
    held_ms: int
    busy_ms: int
    idle_ms: int
    unknown_ms: int
    energy_mj: int | None = None


@dataclass(frozen=True, slots=True)
class ReadingStats:
    """Distribution of a reading over the minutes of a holding; `known` is the share of minutes that
    carry it, 0..1.
    """

    known: float
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float


@dataclass(frozen=True)
class Holding:
    """Usage of one kind of accelerator in one pool by a workload over the window; `workload_id`
    None: unallocated.
    """

    workload_id: int | None
    key: str
    name: str
    kind: str
    pool: str
    model: str
    tags: Mapping[str, str] = field(default_factory=dict)
    owner: Mapping[str, str] = field(default_factory=dict)
    usage: Sequence[IntervalUsage] = ()
    readings: Mapping[str, ReadingStats] = field(default_factory=dict)

    @property
    def held_ms(self) -> int:
        """Held time over all accelerators."""
        return sum(interval.held_ms for interval in self.usage)

    @property
    def known_share(self) -> float:
        """Share of the held time whose activity was measured."""
        held = self.held_ms
        return 1 - sum(interval.unknown_ms for interval in self.usage) / held if held else 0.0

    @property
    def max_accelerators(self) -> int:
        """Largest number of accelerators held in one hour."""
        hours: dict[int, set[int]] = defaultdict(set)
        for interval in self.usage:
            hours[interval.at_ms // HOUR_MS].add(interval.accelerator_id)
        return max((len(accelerators) for accelerators in hours.values()), default=0)

    @property
    def serving(self) -> bool:
        """Whether it answers requests and is idle by design."""
        return is_serving(self.kind, self.name, self.tags)

    @property
    def protected_by(self) -> str | None:
        """Name of the tag that declares it intentionally idle."""
        return next((tag for tag in PROTECTED if self.tags.get(tag, "").lower() not in FALSE), None)

    def reading(self, name: str) -> ReadingStats | None:
        """Return a reading that nearly every minute carries, else None."""
        stats = self.readings.get(name)
        return None if stats is None or stats.known < MIN_KNOWN else stats

    def activity(self) -> ReadingStats | None:
        """SM activity, else utilization, which is never below it and so errs on the safe side."""
        return self.reading("sm_active_ratio") or self.reading("utilization_ratio")


@dataclass(frozen=True, slots=True)
class ObservedAccelerator:
    """An accelerator, and the share of its time in the window that was observed (0..1)."""

    pool: str
    model: str
    node: str
    gpu_micro: int
    seen: float


@dataclass(frozen=True)
class Window:
    """All evidence of a window; `free` is the unallocated time by pool and model.

    `demand_ns` are GPU-nanoseconds held by pool and model and hour, over a longer past than the
    window. `imported` counts the workloads that are known only as counts of GPUs.
    """

    start_ms: int
    end_ms: int
    holdings: Sequence[Holding]
    free: Mapping[tuple[str, str], Holding]
    accelerators: Mapping[int, ObservedAccelerator]
    findings: Sequence[Finding]
    book: PriceBook
    demand_ns: Mapping[tuple[str, str], Mapping[int, int]]
    imported: int = 0

    @property
    def days(self) -> float:
        """Length of the window."""
        return (self.end_ms - self.start_ms) / DAY_MS

    def full_hours(self, pool: str, model: str) -> set[int]:
        """Hours (since 1970) of the window in which no accelerator of this kind was free."""
        free = self.free.get((pool, model))
        intervals = () if free is None else free.usage
        hours = set(range(self.start_ms // HOUR_MS, self.end_ms // HOUR_MS))
        return hours - {interval.at_ms // HOUR_MS for interval in intervals if interval.held_ms}

    def observed_share(self, pool: str, model: str) -> float:
        """Observed share of the accelerator of this kind that was observed least; 0 where there is
        none.
        """
        kind = (pool, model)
        return min(
            (card.seen for card in self.accelerators.values() if (card.pool, card.model) == kind),
            default=0.0,
        )

    @cached_property
    def _findings(self) -> Mapping[tuple[int | None, str, str], Sequence[Finding]]:
        """Findings of held accelerators by workload, pool and model."""
        index: dict[tuple[int | None, str, str], list[Finding]] = defaultdict(list)
        for finding in self.findings:
            accelerator = self.accelerators.get(finding.accelerator_id or 0)
            if accelerator is not None and finding.workload_id is not None:
                index[finding.workload_id, accelerator.pool, accelerator.model].append(finding)
        return index

    def findings_of(self, holding: Holding, states: Collection[str]) -> list[Finding]:
        """Findings in one of these states about the holding."""
        findings = self._findings.get((holding.workload_id, holding.pool, holding.model), ())
        return [finding for finding in findings if finding.state in states]


def require_unprotected(holding: Holding) -> None:
    """Guard: no tag declares the holding intentionally idle."""
    if holding.protected_by is not None:
        raise InsufficientEvidence(
            f"{holding.key} is intentionally kept (tag {holding.protected_by})"
        )


def require_observed(share: float, what: str = "the accelerator observed least") -> None:
    """Guard: enough of the time was observed."""
    if share < MIN_KNOWN:
        raise InsufficientEvidence(
            f"{what} was observed {share:.1%} of the time, {MIN_KNOWN:.0%} is needed"
        )


def require_days(known: float, needed: int, what: str = "") -> None:
    """Guard: a history of enough days."""
    if known < needed:
        raise InsufficientEvidence(f"{known:.0f} days {what}are known, {needed} are needed")
