"""The meter: ticks in, usage intervals of held, busy and idle time out.

Each tick speaks for the interval since the tick before it: who holds the accelerator at its end held it, and the
activity read at its end (the driver averages over the time before) says whether it was busy. Positions are absolute
milliseconds from the monotonic clock, so that nothing drifts; consecutive usage intervals abut. An interval longer than
the longest gap is not filled: the usage interval ends at the last evidence, and the rest is *unobserved*. After the
wall clock was set back, instants come a second time; what was told of them stays, and the time re-lived is unobserved
too.

Laws: the usage intervals of an accelerator never overlap, however the clock is set; over the holders that share it, the
parts add up to the span; busy + idle + unknown = held; cutting at hours, flushing often and ticking faster change no
sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpuledger_common.readings import Holder, Sample
from gpuledger_common.wire import State

HOUR_MS = 3_600_000
MOST_TOLD = 64
"""Ranges of instants that are remembered as told; of more, the two earliest become one."""
ACTIVITY = ("gpu_sm_active_ratio", "gpu_graphics_engine_active_ratio", "gpu_utilization_ratio")
"""What says that an accelerator works, the best witness first."""


@dataclass(frozen=True, slots=True)
class Span:
    """A finished usage interval of one accelerator with all who shared it; times in ms, energy in mJ (None:
    unmeasured).
    """

    uuid: str
    state: State
    holders: tuple[Holder, ...]
    start_ms: int
    end_ms: int
    busy_ms: int
    idle_ms: int
    unknown_ms: int
    energy_mj: int | None


@dataclass(slots=True)
class _Open:
    """A span that still grows."""

    state: State
    holders: tuple[Holder, ...]
    start_ms: int
    end_ms: int
    busy_ms: int = 0
    idle_ms: int = 0
    unknown_ms: int = 0
    energy_mj: int | None = None


@dataclass(slots=True)
class _Energy:
    """Energy of one device from its counter, or from its power where there is no counter."""

    counter_mj: int | None = None
    carry: float = 0.0

    def since(self, values: Mapping[str, float | int], elapsed_ms: int) -> int | None:
        """Millijoules since the last call; a counter that went back (driver reload) is bridged by power."""
        total = values.get("gpu_energy_joules_total")
        previous = self.counter_mj
        self.counter_mj = None if total is None else round(total * 1000)
        if self.counter_mj is not None and previous is not None and self.counter_mj >= previous:
            return self.counter_mj - previous
        watts = values.get("gpu_power_watts")
        if watts is None or watts < 0:  # a broken exporter may print anything; energy is never negative
            return None
        self.carry += watts * elapsed_ms
        whole = int(self.carry)
        self.carry -= whole
        return whole


@dataclass(slots=True)
class Meter:
    """Integrates the accelerators of one node. `gap_ms` is the longest interval between ticks that counts as seen."""

    gap_ms: int
    busy_threshold: float = 0.01
    _open: dict[str, _Open] = field(default_factory=dict)
    _seen_ms: dict[str, int] = field(default_factory=dict)
    _energy: dict[str, _Energy] = field(default_factory=dict)
    _done: list[Span] = field(default_factory=list)
    discarded_after_clock_step_ms: int = 0
    """Accelerator time that was not counted because its instants had been told before the clock was set back."""
    _now: tuple[int, int] | None = None
    """First and last instant since the clock was set."""
    _told: list[tuple[int, int]] = field(default_factory=list)
    """Ranges of instants from before that, in order, apart from each other."""

    def tick(self, sample: Sample, at_ms: int, holders: Sequence[Holder]) -> None:
        """One sample of one accelerator at an instant, with who holds it then."""
        state = state_of(sample, holders)
        if state is None:
            self.lose(sample.uuid)
            return
        before = self._seen_ms.get(sample.uuid)
        first, last = self._now or (at_ms, at_ms)
        self._now = min(first, at_ms), max(last, at_ms)
        energy = self._energy.setdefault(sample.uuid, _Energy())
        elapsed_ms = 0 if before is None else at_ms - before
        energy_mj = energy.since(sample.values, max(elapsed_ms, 0))
        if before is None or elapsed_ms > self.gap_ms or elapsed_ms < 0:
            self._close(sample.uuid)
            self._seen_ms[sample.uuid] = max(at_ms, before or at_ms)
            return
        self._seen_ms[sample.uuid] = at_ms
        if self._told and any(start < at_ms and before < end for start, end in self._told):
            self.discarded_after_clock_step_ms += elapsed_ms
            self._close(sample.uuid)
            return
        shared = tuple(sorted(holders, key=lambda holder: (holder.workload.kind, holder.workload.id)))
        self._extend(
            sample.uuid,
            state,
            shared if state == "held" else (),
            before,
            at_ms,
            energy_mj,
            activity(sample.values, self.busy_threshold),
        )

    def _extend(
        self,
        uuid: str,
        state: State,
        holders: tuple[Holder, ...],
        start_ms: int,
        end_ms: int,
        energy_mj: int | None,
        busy: bool | None,
    ) -> None:
        """Adds an interval, cut at UTC hours, to the open span or to a new one."""
        length = end_ms - start_ms
        at = start_ms
        while at < end_ms:
            stop = min(end_ms, (at // HOUR_MS + 1) * HOUR_MS)
            span = self._open.get(uuid)
            if span is None or span.state != state or span.holders != holders or at % HOUR_MS == 0:
                self._close(uuid)
                span = self._open[uuid] = _Open(state, holders, at, at)
            part = stop - at
            if state == "held":
                _count(span, busy, part)
            if energy_mj is not None:
                until = energy_mj * (stop - start_ms) // length - energy_mj * (at - start_ms) // length
                span.energy_mj = (span.energy_mj or 0) + until
            span.end_ms = at = stop

    def lose(self, uuid: str) -> None:
        """No evidence about this accelerator now: its span ends where it was last seen."""
        self._close(uuid)
        self._seen_ms.pop(uuid, None)
        self._energy.pop(uuid, None)

    def lose_all(self) -> None:
        """The source went away: nothing bridges to the next tick."""
        for uuid in list(self._seen_ms):
            self.lose(uuid)

    def clock_set(self) -> None:
        """The clock was set: nothing bridges to the next tick, and no instant up to here is counted again."""
        self.lose_all()
        if self._now is None:
            return
        self._told = _united([*self._told, self._now])
        if len(self._told) > MOST_TOLD:
            self._told[:2] = [(self._told[0][0], self._told[1][1])]
        self._now = None

    def _close(self, uuid: str) -> None:
        span = self._open.pop(uuid, None)
        if span is not None and span.end_ms > span.start_ms:
            self._done.append(
                Span(
                    uuid,
                    span.state,
                    span.holders,
                    span.start_ms,
                    span.end_ms,
                    span.busy_ms,
                    span.idle_ms,
                    span.unknown_ms,
                    span.energy_mj,
                )
            )

    def take(self) -> list[Span]:
        """Everything measured since the last call; open spans are cut where they were last seen and go on."""
        for uuid in list(self._open):
            self._close(uuid)
        done, self._done = self._done, []
        return done

    def put_back(self, spans: list[Span]) -> None:
        """Spans that could not be stored wait for the next `take`; those that abut become one, hour by hour."""
        self._done = _joined(spans + self._done)


def _joined(spans: list[Span]) -> list[Span]:
    """Spans of one accelerator that differ in nothing and abut as one, within an hour: a long wait stays small."""
    joined: list[Span] = []
    latest: dict[str, int] = {}
    for span in spans:
        at = latest.get(span.uuid)
        before = None if at is None else joined[at]
        if at is not None and before is not None and _continues(before, span):
            joined[at] = replace(
                before,
                end_ms=span.end_ms,
                busy_ms=before.busy_ms + span.busy_ms,
                idle_ms=before.idle_ms + span.idle_ms,
                unknown_ms=before.unknown_ms + span.unknown_ms,
                energy_mj=_added(before.energy_mj, span.energy_mj),
            )
        else:
            latest[span.uuid] = len(joined)
            joined.append(span)
    return joined


def _continues(before: Span, span: Span) -> bool:
    same = (before.state, before.holders, before.end_ms) == (span.state, span.holders, span.start_ms)
    return same and before.start_ms // HOUR_MS == span.start_ms // HOUR_MS


def _added(one: int | None, other: int | None) -> int | None:
    return None if one is None and other is None else (one or 0) + (other or 0)


def _united(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The ranges in order, with those that touch made one."""
    united: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if united and start <= united[-1][1]:
            united[-1] = united[-1][0], max(united[-1][1], end)
        else:
            united.append((start, end))
    return united


def _count(span: _Open, busy: bool | None, ms: int) -> None:
    if busy is None:
        span.unknown_ms += ms
    elif busy:
        span.busy_ms += ms
    else:
        span.idle_ms += ms


def state_of(sample: Sample, holders: Sequence[Holder]) -> State | None:
    """The state that a sample is evidence of; None: a silent accelerator that nobody holds shows nothing."""
    if sample.health.status == "failed":
        return "unavailable"
    if holders:
        return "held"
    return None if sample.health.status == "unknown" and not sample.values else "unallocated"


def activity(values: Mapping[str, float | int], threshold: float) -> bool | None:
    """Whether the accelerator worked; None when the card tells nothing of it."""
    for name in ACTIVITY:
        value = values.get(name)
        if value is not None:
            return value > threshold
    return None
