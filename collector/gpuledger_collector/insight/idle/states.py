"""Exactly one state for every minute of every accelerator, first match wins, from what was known up
to that minute.

The rules come from measurements on a real day of serving: the window matters far more than the
threshold, a window is idle when nearly all of it is (one health probe must not reset it), leaving
takes more than one busy minute, and memory says nothing, since idle workloads still hold gigabytes.
Cases that look idle and are not are guarded: gaps shorter than the window, periodic gaps, traffic
of the holder, warm replicas, members of a job whose other members work.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np

from gpuledger_collector.insight.findings import FREE_MINUTES
from gpuledger_collector.insight.idle.minutes import NOBODY, Counts, Minutes
from gpuledger_collector.insight.series import Flags, Floats

MIB = 2.0**20


class State(enum.IntEnum):
    """What a minute was. The numbers are stored nowhere; the names are."""

    ACTIVE = 0
    NO_DATA = 1
    FAULTY = 2
    UNALLOCATED = 3
    ZOMBIE = 4
    NEVER_USED = 5
    GONE_IDLE = 6
    THROTTLED = 7
    DATA_STARVED = 8
    HOLLOW = 9
    UNDERUSED = 10


FULLY_WASTED = (State.FAULTY, State.UNALLOCATED, State.ZOMBIE, State.NEVER_USED, State.GONE_IDLE)
BRIDGED = 15
"""Minutes without data that do not end the state before them."""
KNOWN_SHARE = 0.75
"""Share of a window that must be known."""


@dataclass(frozen=True, slots=True)
class IdleRules:
    """Thresholds (ratios) and windows (minutes); docs/insight.md has their measurement."""

    idle_at_most: float = 0.01
    busy_above: float = 0.05
    idle_share: float = 0.95
    leave_busy: int = 5
    leave_window: int = 10
    unallocated: int = FREE_MINUTES
    zombie: int = 10
    never_used: int = 60
    gone_idle: int = 90
    interactive_by_day: int = 240
    interactive_by_night: int = 60
    throttled: int = 15
    starved: int = 30
    hollow: int = 30
    underused: int = 240
    memory_above_floor: float = 500 * MIB
    near_idle_watts: float = 1.15
    working_bytes_per_second: float = 50e6


IDLE_RULES = IdleRules()


@dataclass(frozen=True)
class Classification:
    """For every minute its state, the minute (column) since which its condition has held, and the
    wasted share.

    `factor` is the share of the minute's cost that was wasted, 0..1; 0 for active, unknown and
    guarded minutes.
    """

    state: Counts
    since: Counts
    factor: Floats


Condition = tuple[State, Flags, Counts]
"""A state, the minutes that fulfill it, and the minute since which each does."""


def classify(minutes: Minutes) -> Classification:
    """Classify every minute. No minute's state depends on a later one."""
    rules = IDLE_RULES
    holds = _Holds(minutes)
    unheld = ~holds.held & minutes.seen & ~minutes.faulty
    left, free = _left_behind(minutes, unheld)
    faulty = minutes.seen & minutes.faulty
    conditions: list[Condition] = [
        (State.NO_DATA, ~minutes.seen, _run_start(~minutes.seen)),
        (State.FAULTY, faulty, _run_start(faulty)),
        (State.ZOMBIE, left & minutes.seen & (_run_length(left) >= rules.zombie), _run_start(left)),
        (
            State.UNALLOCATED,
            free & minutes.seen & (_run_length(free) >= rules.unallocated),
            _run_start(free),
        ),
        *_idle(minutes, holds),
        *_underperforming(minutes, holds),
    ]
    state = np.full(minutes.shape, State.ACTIVE, dtype=np.int64)
    since = _columns(minutes.seen).copy()
    # From last to first: an earlier condition overwrites a later one, so the first match wins.
    for name, where, begun in reversed(conditions):
        state[where] = name
        since[where] = begun[where]
    return Classification(state, since, _factors(minutes, state))


class _Holds:
    """Who holds each accelerator since when; `age` counts the minutes of one holder, gaps in the
    data included.
    """

    def __init__(self, minutes: Minutes) -> None:
        at = _columns(minutes.seen)
        # The last seen minute up to each: a gap in the data does not change who holds the
        # accelerator.
        last = np.maximum.accumulate(np.where(minutes.seen, at, 0), axis=1)
        self.held = (minutes.holder != NOBODY) & minutes.seen
        self.holder = np.take_along_axis(
            np.where(minutes.seen, minutes.holder, NOBODY), last, axis=1
        )
        changed = np.ones(minutes.shape, dtype=bool)
        changed[:, 1:] = self.holder[:, 1:] != self.holder[:, :-1]
        self.begin = np.maximum.accumulate(np.where(changed, at, 0), axis=1)
        self.age = at - self.begin + 1


def _left_behind(minutes: Minutes, unheld: Flags) -> tuple[Flags, Flags]:
    """Where something is left behind, and where there is no holder; both continue over short gaps
    in the data.

    Left behind: memory or a process without a holder, or a counter stuck at full while hardly any
    power is drawn.
    """
    resting = minutes.power_watts <= IDLE_RULES.near_idle_watts * minutes.idle_watts[:, None]
    # Three signs at once: a counter at full alone is work, and low power alone is a pause.
    stuck = (
        minutes.seen
        & ~minutes.faulty
        & (minutes.utilization >= 0.99)
        & resting
        & (minutes.processes == 0)
    )
    left = stuck | unheld & (
        ~_memory_empty(minutes) & np.isfinite(minutes.memory_bytes) | (minutes.processes > 0)
    )
    return _bridge_gaps(left, minutes.seen), _bridge_gaps(unheld & ~left, minutes.seen)


def _memory_empty(minutes: Minutes) -> Flags:
    """Whether no more memory is used than by the GPU itself; False where it is not read."""
    return minutes.memory_bytes <= minutes.memory_floor[:, None] + IDLE_RULES.memory_above_floor


def _bridge_gaps(where: Flags, seen: Flags) -> Flags:
    """True also in up to BRIDGED minutes without data that follow a true one."""
    at = _columns(where)
    last = np.maximum.accumulate(np.where(seen, at, -1), axis=1)
    before = np.take_along_axis(where, np.maximum(last, 0), axis=1) & (last >= 0)
    bridged: Flags = np.where(seen, where, before & (at - last <= BRIDGED))
    return bridged


def _idle(minutes: Minutes, holds: _Holds) -> list[Condition]:
    """Held and doing nothing: never used since it was allocated, or gone idle."""
    rules = IDLE_RULES
    activity = minutes.activity()
    working = minutes.bytes_per_second >= rules.working_bytes_per_second
    # Between the two thresholds a minute is neither: it keeps an episode open and does not begin
    # one.
    low = minutes.seen & (activity <= rules.idle_at_most) & ~working
    busy = minutes.seen & ((activity > rules.busy_above) | working)
    known = minutes.seen & np.isfinite(activity)
    # The guards: warm replicas wait for traffic, and a member of a job waits for the members that
    # work.
    eligible = holds.held & ~minutes.serving & ~minutes.faulty & ~_peers_busy(holds, busy)
    empty = ~(minutes.processes > 0) | _memory_empty(minutes)
    # Memory in use counts as a touch: whoever has loaded a model has used the accelerator, and can
    # only have gone idle.
    touched = _count_in_hold((activity > rules.idle_at_most) & minutes.seen | ~empty & known, holds)
    enough = _count_in_hold(known, holds) >= KNOWN_SHARE * holds.age
    unused = eligible & known & (touched == 0) & enough & (holds.age > rules.never_used)
    # A hold that began before the first minute may have worked then.
    if minutes.used_before is not None:
        unused &= ~(minutes.used_before[:, None] & (holds.begin == 0))
    gone, since = _gone_idle(low, busy, known, eligible, holds, _idle_windows(minutes))
    return [(State.NEVER_USED, unused, holds.begin), (State.GONE_IDLE, gone, since)]


def _idle_windows(minutes: Minutes) -> Counts:
    """Minutes of idleness before a flag: longer for notebooks during working hours, shorter for
    them at night.
    """
    at = minutes.start_ms // 60_000 + np.arange(minutes.shape[1])
    # 1970-01-01 was a Thursday, hence + 3 for Monday = 0. Hours are UTC.
    weekday, hour = (at // 1440 + 3) % 7, at // 60 % 24
    by_day = (weekday < 5) & (hour >= 8) & (hour < 20)
    notebook = np.where(by_day, IDLE_RULES.interactive_by_day, IDLE_RULES.interactive_by_night)
    return np.where(minutes.interactive, notebook[None, :], IDLE_RULES.gone_idle)


def _gone_idle(
    low: Flags, busy: Flags, known: Flags, eligible: Flags, holds: _Holds, window: Counts
) -> tuple[Flags, Counts]:
    """Enter when the window was idle, leave when enough of the last minutes were busy, except where
    work recurs.
    """
    rules = IDLE_RULES
    rows, columns = low.shape
    # Several busy minutes of the last ones: a single health probe must not end an episode.
    leaving = _count_last(busy, rules.leave_window) >= rules.leave_busy
    entering = np.zeros((rows, columns), dtype=bool)
    # Only a few different windows exist, so each is counted once for all rows.
    for length in np.unique(window):
        idle, seen = _count_last(low, int(length)), _count_last(known, int(length))
        full = (seen >= KNOWN_SHARE * length) & (holds.age > length)
        entering |= (window == length) & full & (idle >= rules.idle_share * seen)
    # A window of hours may still be idle enough while its last minutes are busy: that is work, not
    # a new pause.
    entering &= eligible & ~leaving
    gone, since = np.zeros((rows, columns), dtype=bool), np.zeros((rows, columns), dtype=np.int64)
    state, begun = np.zeros(rows, dtype=bool), np.zeros(rows, dtype=np.int64)
    rhythm = _Rhythm(rows)
    # A loop over minutes, not arrays: whether a minute is in an episode depends on the state of the
    # minute before it.
    for minute in range(columns):
        begin = holds.begin[:, minute]
        rhythm.step(minute, busy[:, minute], leaving[:, minute], begin)
        enter = entering[:, minute] & ~state
        # Asked only where an episode would begin; most minutes begin none.
        if enter.any():
            enter &= ~rhythm.expects_work(minute)
        begun = np.where(enter, np.maximum(rhythm.idle_since, begin), begun)
        # A minute without data neither opens nor closes an episode.
        unknown = ~known[:, minute]
        state = (
            state & (begin != minute) & (unknown | eligible[:, minute] & ~leaving[:, minute])
            | enter
        )
        gone[:, minute], since[:, minute] = state & ~unknown, begun
    return gone, since


class _Rhythm:
    """When each accelerator was last busy, and whether its pauses are periodic (checkpoints,
    evaluation).

    `idle_since` is the minute after the last real work; a single probe is none.
    """

    def __init__(self, rows: int) -> None:
        self.idle_since = np.zeros(rows, dtype=np.int64)
        self._quiet_since = np.zeros(rows, dtype=np.int64)
        self._onsets = np.full((rows, 3), -1, dtype=np.int64)

    def step(self, minute: int, busy: Flags, working: Flags, begin: Counts) -> None:
        """Take in one minute; `working`: enough of the last minutes were busy."""
        fresh = begin == minute
        self._onsets[fresh] = -1
        # Work begins after at least two quiet minutes; a shorter pause belongs to the work before
        # it.
        onset = busy & ((minute - self._quiet_since >= 2) | (self._onsets[:, -1] < 0))
        if onset.any():
            self._onsets[onset] = np.c_[self._onsets[onset][:, 1:], np.full(onset.sum(), minute)]
        self._quiet_since = np.where(busy, minute + 1, np.where(fresh, minute, self._quiet_since))
        self.idle_since = np.where(
            busy & working, minute + 1, np.where(fresh, minute, self.idle_since)
        )

    def expects_work(self, minute: int) -> Flags:
        """Whether work began three times at regular distances, the last time less than two of them
        ago.
        """
        distance = np.diff(self._onsets, axis=1)
        known = (self._onsets >= 0).all(axis=1)
        longest, shortest = distance.max(axis=1), distance.min(axis=1)
        # Three onsets have two distances; they count as regular while the longer is at most half
        # longer than the shorter.
        regular = known & (longest <= 1.5 * shortest)
        expected: Flags = regular & (minute - self._onsets[:, -1] < 2 * longest)
        return expected


def _peers_busy(holds: _Holds, busy: Flags) -> Flags:
    """Whether another accelerator of the same holder worked within the last minutes: a straggler,
    not idle.
    """
    # One counter for each holder and minute: what the others of a holder do is the sum less one's
    # own.
    numbers, code = np.unique(holds.holder, return_inverse=True)
    flat = (code.reshape(busy.shape) * busy.shape[1] + _columns(busy)).ravel()
    recent = (_count_last(busy, IDLE_RULES.leave_window) > 0) & (holds.holder != NOBODY)
    total = np.bincount(flat, weights=recent.ravel(), minlength=len(numbers) * busy.shape[1])
    others: Flags = (total[flat].reshape(busy.shape) - recent) > 0
    return others


def _underperforming(minutes: Minutes, holds: _Holds) -> list[Condition]:
    """Held and working, but less than possible: throttled, data-starved, hollow, or underused."""
    rules = IDLE_RULES
    here = holds.held & ~minutes.faulty
    batch = ~minutes.serving & ~minutes.interactive
    activity = minutes.activity()
    # Compared with its own highest clock: the limits of models differ, and a board may be capped on
    # purpose.
    slowed = (minutes.slowed_ratio >= 0.5) & (minutes.clock_hertz < 0.9 * _top_clock(minutes))
    slowed &= (activity > rules.busy_above) & here
    seen = _count_last(here, rules.throttled)
    throttled = (seen >= KNOWN_SHARE * rules.throttled) & (
        _count_last(slowed, rules.throttled) >= 0.5 * seen
    )

    utilization = _mean(minutes.utilization, rules.starved)
    evidence = (_mean(minutes.host_busy, rules.starved) >= 0.9) | (
        _mean(minutes.dram_active, rules.starved) < 0.1
    )
    # Within its minutes: a pause of entire minutes (a checkpoint, a request gap) is no lack of
    # data.
    mixed = (
        _mean(((minutes.zero_ratio > 0) & (minutes.zero_ratio < 1)).astype(float), rules.starved)
        >= 0.5
    )
    starved = (
        (utilization >= 0.05)
        & (utilization <= 0.7)
        & (_mean(minutes.zero_ratio, rules.starved) >= 0.2)
    )
    starved &= mixed & evidence & batch

    sm_active = _mean(minutes.sm_active, rules.hollow)
    low_power = _mean(minutes.power_watts, rules.hollow) < 0.4 * minutes.limit_watts[:, None]
    by_power = low_power & (_mean(minutes.memory_copy, rules.hollow) < 0.05)
    hollow = _mean(minutes.utilization, rules.hollow) >= 0.9
    # SM activity decides where it is measured; power and memory traffic stand in for it elsewhere.
    hollow &= np.where(np.isfinite(sm_active), sm_active < 0.15, by_power)

    # Services and notebooks are often quiet; that does not make their GPU too large.
    underused = (_mean(activity, rules.underused) <= 0.25) & batch
    underused &= _mean(minutes.memory_bytes, rules.underused) <= 0.5 * minutes.memory_total[:, None]
    conditions = []
    for name, where, length in (
        (State.THROTTLED, throttled, rules.throttled),
        (State.DATA_STARVED, starved, rules.starved),
        (State.HOLLOW, hollow, rules.hollow),
        (State.UNDERUSED, underused, rules.underused),
    ):
        where = where & here & (holds.age > length)
        # The condition looks at a full window, so what it found began a window earlier, but not
        # before the hold.
        conditions.append((name, where, np.maximum(_run_start(where) - length + 1, holds.begin)))
    return conditions


def _top_clock(minutes: Minutes) -> Floats:
    """Highest clock seen so far."""
    top: Floats = np.maximum.accumulate(np.nan_to_num(minutes.clock_hertz), axis=1)
    return top


def _factors(minutes: Minutes, state: Counts) -> Floats:
    """Wasted share of each minute's cost, by state."""
    activity, top = np.nan_to_num(minutes.activity()), _top_clock(minutes)
    clock = np.divide(np.nan_to_num(minutes.clock_hertz), top, out=np.ones_like(top), where=top > 0)
    memory = np.nan_to_num(np.nan_to_num(minutes.memory_bytes) / minutes.memory_total[:, None])
    factor = np.zeros(state.shape)
    factor[np.isin(state, FULLY_WASTED)] = 1.0
    for name, used in (
        (State.THROTTLED, clock),
        (State.DATA_STARVED, np.nan_to_num(_mean(minutes.utilization, IDLE_RULES.starved))),
        (State.HOLLOW, np.nan_to_num(minutes.sm_active)),
        # Used is the larger of activity and memory: a smaller GPU would have to hold both.
        (State.UNDERUSED, np.maximum(activity, memory)),
    ):
        factor[state == name] = 1 - used[state == name]
    clipped: Floats = np.clip(factor, 0.0, 1.0)
    return clipped


def _columns(like: Flags) -> Counts:
    """The column number of every cell."""
    return np.broadcast_to(np.arange(like.shape[1]), like.shape)


def _run_start(where: Flags) -> Counts:
    """The column at which the run of a true minute began."""
    started = where.copy()
    started[:, 1:] &= ~where[:, :-1]
    return np.maximum.accumulate(np.where(started, _columns(where), 0), axis=1)


def _run_length(where: Flags) -> Counts:
    """How many minutes in a row, up to each, were true."""
    return np.where(where, _columns(where) - _run_start(where) + 1, 0)


def _count_last(where: Flags, length: int) -> Counts:
    """How many of the last `length` minutes were true."""
    total = np.cumsum(where, axis=1, dtype=np.int64)
    count: Counts = total.copy()
    count[:, length:] -= total[:, :-length]
    return count


def _count_in_hold(where: Flags, holds: _Holds) -> Counts:
    """How many minutes of this hold, up to each, were true."""
    total = np.cumsum(where, axis=1, dtype=np.int64)
    before = np.concatenate([np.zeros((len(where), 1), dtype=np.int64), total], axis=1)
    counted: Counts = total - np.take_along_axis(before, holds.begin, axis=1)
    return counted


def _mean(values: Floats, length: int) -> Floats:
    """Mean of the known of the last `length` minutes; NaN where under three quarters of them are
    known.
    """
    known = np.isfinite(values)
    count = _count_last(known, length)
    # Differences of a cumulative sum: the cost does not depend on the length of the window.
    total = np.cumsum(np.where(known, values, 0.0), axis=1)
    window = total.copy()
    window[:, length:] -= total[:, :-length]
    enough = count >= max(1, KNOWN_SHARE * length)
    mean: Floats = np.divide(window, count, out=np.full(values.shape, np.nan), where=enough)
    return mean
