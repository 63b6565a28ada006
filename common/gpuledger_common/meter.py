"""The meter: integrates samples into usage intervals of held, busy, idle and unknown time.

Each sample speaks for the time since the sample before it: whoever holds the accelerator now held
it, and the activity read now (the driver averages over the time before) says whether it was busy.
Positions are absolute milliseconds from the monotonic clock, so nothing drifts, and consecutive
intervals abut. A pause longer than `gap_ms` is not filled: the interval ends at the last sample and
the rest is *unobserved*. After the wall clock was set back, instants occur a second time; what was
metered for them stays, and the repeated time is unobserved too.

Laws: the intervals of an accelerator never overlap, however the clock is set; the parts of the
holders that share an interval add up to it; busy + idle + unknown = held; cutting at hours,
flushing often and sampling faster change no sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpuledger_common.readings import HOUR_MS, Holder, Sample
from gpuledger_common.wire import State

MAX_METERED_RANGES = 64
"""Ranges of instants remembered across clock steps; beyond that the two earliest are merged."""
ACTIVITY = ("gpu_sm_active_ratio", "gpu_graphics_engine_active_ratio", "gpu_utilization_ratio")
"""Metrics that show whether an accelerator works, the most reliable first."""


@dataclass(slots=True)
class MeteredInterval:
    """Time of one accelerator in one state with all who shared it; ms and mJ (None: energy is not
    measured).
    """

    uuid: str
    state: State
    holders: tuple[Holder, ...]
    start_ms: int
    end_ms: int
    busy_ms: int = 0
    idle_ms: int = 0
    unknown_ms: int = 0
    energy_mj: int | None = None

    def add_time(self, busy: bool | None, ms: int) -> None:
        """Count held time as busy, idle, or unknown (None)."""
        if busy is None:
            self.unknown_ms += ms
        elif busy:
            self.busy_ms += ms
        else:
            self.idle_ms += ms

    def add_energy(self, energy_mj: int | None) -> None:
        """Add energy; a part that was not measured adds nothing."""
        if energy_mj is not None:
            self.energy_mj = (self.energy_mj or 0) + energy_mj

    def continues(self, before: MeteredInterval) -> bool:
        """Whether it follows `before` at once, within the same hour and with the same state and
        holders.
        """
        same = (self.state, self.holders, self.start_ms) == (
            before.state,
            before.holders,
            before.end_ms,
        )
        return same and self.start_ms // HOUR_MS == before.start_ms // HOUR_MS


@dataclass(slots=True)
class _Energy:
    """Energy of one device from its counter, or from its power where there is no counter."""

    counter_mj: int | None = None
    carry_mj: float = 0.0

    def since_last(self, values: Mapping[str, float | int], elapsed_ms: int) -> int | None:
        """Millijoules since the last call; a counter that fell (driver reload) is bridged by power."""
        # Updated before any return: the next difference begins here, also after the counter was
        # absent or reset.
        total = values.get("gpu_energy_joules_total")
        previous = self.counter_mj
        self.counter_mj = None if total is None else round(total * 1000)
        if self.counter_mj is not None and previous is not None and self.counter_mj >= previous:
            return self.counter_mj - previous
        watts = values.get("gpu_power_watts")
        # A broken exporter may print anything; energy is never negative.
        if watts is None or watts < 0:
            return None
        self.carry_mj += watts * elapsed_ms  # watts x milliseconds = millijoules
        energy_mj = int(self.carry_mj)
        # The fraction of a millijoule is carried over: rounding at every sample would lose up to 1
        # mJ each time.
        self.carry_mj -= energy_mj
        return energy_mj


@dataclass(slots=True)
class Meter:
    """Meters the accelerators of one node.

    `gap_ms` is the longest pause between samples that counts as observed.
    """

    gap_ms: int
    busy_threshold: float = 0.01
    _open: dict[str, MeteredInterval] = field(default_factory=dict)
    _last_sample_ms: dict[str, int] = field(default_factory=dict)
    _energy: dict[str, _Energy] = field(default_factory=dict)
    _closed: list[MeteredInterval] = field(default_factory=list)
    discarded_after_clock_step_ms: int = 0
    """Accelerator time not counted because its instants had been metered before the clock was set
    back.
    """
    _current_range: tuple[int, int] | None = None
    """First and last instant since the clock was last set."""
    _metered_ranges: list[tuple[int, int]] = field(default_factory=list)
    """Ranges of instants metered before that, ascending and disjoint."""

    def tick(self, sample: Sample, at_ms: int, holders: Sequence[Holder]) -> None:
        """Meter one sample of one accelerator, taken at an instant, with its holders at that time."""
        uuid, state = sample.uuid, state_of(sample, holders)
        if state is None:
            self.lose(uuid)
            return
        before_ms = self._last_sample_ms.get(uuid)
        # The range of instants since the clock was last set: after the next step none of them may
        # be metered again.
        first_ms, last_ms = self._current_range or (at_ms, at_ms)
        self._current_range = min(first_ms, at_ms), max(last_ms, at_ms)
        elapsed_ms = 0 if before_ms is None else at_ms - before_ms
        # Also when a gap follows: the counter moves on, so that energy used in the gap is not added
        # to what comes after.
        energy_mj = self._energy.setdefault(uuid, _Energy()).since_last(
            sample.values, max(elapsed_ms, 0)
        )
        # The first sample, a pause that is too long, or a step back: there is no time to account
        # for.
        if before_ms is None or not 0 <= elapsed_ms <= self.gap_ms:
            self._close(uuid)
            # After a step back, wait until the instants pass the last sample again.
            self._last_sample_ms[uuid] = max(at_ms, before_ms or at_ms)
            return
        self._last_sample_ms[uuid] = at_ms
        # These instants were metered before a step back of the clock; counting them again would
        # bill time twice.
        ranges = self._metered_ranges
        if ranges and any(start_ms < at_ms and before_ms < end_ms for start_ms, end_ms in ranges):
            self.discarded_after_clock_step_ms += elapsed_ms
            self._close(uuid)
            return
        latest = MeteredInterval(
            uuid,
            state,
            in_order(holders) if state == "held" else (),
            before_ms,
            at_ms,
            energy_mj=energy_mj,
        )
        self._extend(latest, activity(sample.values, self.busy_threshold))

    def _extend(self, latest: MeteredInterval, busy: bool | None) -> None:
        """Add the time since the last sample, cut at UTC hours, to the open interval or to a new
        one.
        """
        length_ms, at_ms = latest.end_ms - latest.start_ms, latest.start_ms
        while at_ms < latest.end_ms:
            # An interval never crosses a UTC hour, because hours are the unit in which the
            # collector recomputes usage.
            stop_ms = min(latest.end_ms, (at_ms // HOUR_MS + 1) * HOUR_MS)
            interval = self._open.get(latest.uuid)
            same = interval is not None and (interval.state, interval.holders) == (
                latest.state,
                latest.holders,
            )
            if interval is None or not same or at_ms % HOUR_MS == 0:
                self._close(latest.uuid)
                interval = MeteredInterval(latest.uuid, latest.state, latest.holders, at_ms, at_ms)
                self._open[latest.uuid] = interval
            if latest.state == "held":
                interval.add_time(busy, stop_ms - at_ms)
            if latest.energy_mj is not None:
                # Differences of running floors: the parts of all hours add up to the energy
                # exactly.
                until_stop = latest.energy_mj * (stop_ms - latest.start_ms) // length_ms
                interval.add_energy(
                    until_stop - latest.energy_mj * (at_ms - latest.start_ms) // length_ms
                )
            interval.end_ms = at_ms = stop_ms

    def lose(self, uuid: str) -> None:
        """End the accelerator's interval at its last sample: there is no evidence about it now."""
        self._close(uuid)
        self._last_sample_ms.pop(uuid, None)
        self._energy.pop(uuid, None)

    def lose_all(self) -> None:
        """End all intervals: the source went away, and nothing bridges to its next sample."""
        for uuid in list(self._last_sample_ms):
            self.lose(uuid)

    def clock_set(self) -> None:
        """End all intervals after the clock was set; no instant up to here is counted again."""
        self.lose_all()
        if self._current_range is None:
            return
        self._metered_ranges = _unite_ranges([*self._metered_ranges, self._current_range])
        if len(self._metered_ranges) > MAX_METERED_RANGES:
            # Merging the earliest two also covers the gap between them: time there is unobserved
            # rather than billed twice.
            self._metered_ranges[:2] = [(self._metered_ranges[0][0], self._metered_ranges[1][1])]
        self._current_range = None

    def _close(self, uuid: str) -> None:
        interval = self._open.pop(uuid, None)
        # An interval without any length is no evidence.
        if interval is not None and interval.end_ms > interval.start_ms:
            self._closed.append(interval)

    def take(self) -> list[MeteredInterval]:
        """Everything metered since the last call; open intervals are cut at their last sample and
        continue.
        """
        for uuid in list(self._open):
            self._close(uuid)
        closed, self._closed = self._closed, []
        return closed

    def put_back(self, intervals: list[MeteredInterval]) -> None:
        """Keep intervals that could not be stored for the next `take`; those that abut within an
        hour are merged.

        Merging bounds the memory that a long wait for the disk takes.
        """
        merged: list[MeteredInterval] = []
        latest: dict[str, MeteredInterval] = {}
        # Those put back are older than what was closed meanwhile, so this order is by time for each
        # accelerator.
        for interval in intervals + self._closed:
            before = latest.get(interval.uuid)
            if before is None or not interval.continues(before):
                latest[interval.uuid] = interval
                merged.append(interval)
                continue
            before.end_ms = interval.end_ms
            before.busy_ms += interval.busy_ms
            before.idle_ms += interval.idle_ms
            before.unknown_ms += interval.unknown_ms
            before.add_energy(interval.energy_mj)
        self._closed = merged


def _unite_ranges(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The ranges in ascending order, with those that touch merged."""
    united: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if united and start <= united[-1][1]:
            united[-1] = united[-1][0], max(united[-1][1], end)
        else:
            united.append((start, end))
    return united


def in_order(holders: Sequence[Holder]) -> tuple[Holder, ...]:
    """Holders in a fixed order, so that an interval continues however the owner source orders them."""
    if len(holders) < 2:
        return tuple(holders)
    return tuple(sorted(holders, key=lambda holder: (holder.workload.kind, holder.workload.id)))


def state_of(sample: Sample, holders: Sequence[Holder]) -> State | None:
    """The state that a sample is evidence of; None for a silent accelerator without a holder, which
    shows nothing.
    """
    # Before holders: a failed GPU is unavailable even while somebody has it allocated, and is not
    # billed as held.
    if sample.health.status == "failed":
        return "unavailable"
    if holders:
        return "held"
    return None if sample.health.status == "unknown" and not sample.values else "unallocated"


def activity(values: Mapping[str, float | int], threshold: float) -> bool | None:
    """Whether the accelerator worked; None when the card gives none of the metrics that show it."""
    # The first metric that the card gives decides alone; a mean of different metrics would not be
    # comparable.
    for name in ACTIVITY:
        if name in values:
            return values[name] > threshold
    return None
