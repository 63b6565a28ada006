"""Exactly one state for every minute of every accelerator, first match wins, from what was known up to that minute.

The rules are those that measurement on a real serving day left standing: the window matters far more than the
threshold, a window is idle when nearly all of it is (one health probe must not reset it), leaving takes more than one
busy minute, and memory says nothing, since what is idle still holds gigabytes. What looks idle and is not is guarded:
gaps under the window, gaps that come back with a period, traffic of the holder, warm replicas, members of a job whose
other members work.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np

from gpuledger_collector.insight.idle.minutes import NOBODY, Counts, Flags, Minutes
from gpuledger_collector.insight.series import Floats

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


WHOLLY = (State.FAULTY, State.UNALLOCATED, State.ZOMBIE, State.NEVER_USED, State.GONE_IDLE)
"""States in which all of the money is wasted."""
BRIDGED = 15
"""Minutes without data that do not end what went on before them."""
KNOWN_SHARE = 0.75
"""Part of a window that must be known."""


@dataclass(frozen=True, slots=True)
class IdleRules:
    """Thresholds (ratios) and windows (minutes)."""

    idle_at_most: float = 0.01
    busy_above: float = 0.05
    idle_share: float = 0.95
    leave_busy: int = 5
    leave_window: int = 10
    unallocated: int = 15
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
    """For every minute its state, and the minute since which the condition behind it has held (column number)."""

    state: Counts
    since: Counts
    factor: Floats
    """Part of the minute's money that was wasted, 0..1; 0 for active, unknown and guarded minutes."""


def classify(minutes: Minutes, rules: IdleRules = IDLE_RULES) -> Classification:
    """The state of every minute. No minute's state depends on a later one."""
    hold = _Hold(minutes)
    loose = ~hold.held & minutes.seen & ~minutes.faulty
    left, free = _left_behind(minutes, loose, rules)
    conditions: list[tuple[State, Flags, Counts]] = [
        (State.NO_DATA, ~minutes.seen, _run_start(~minutes.seen)),
        (State.FAULTY, minutes.seen & minutes.faulty, _run_start(minutes.seen & minutes.faulty)),
        (State.ZOMBIE, left & minutes.seen & (_run_length(left) >= rules.zombie), _run_start(left)),
        (State.UNALLOCATED, free & minutes.seen & (_run_length(free) >= rules.unallocated), _run_start(free)),
        *_idle(minutes, hold, rules),
        *_slow(minutes, hold, rules),
    ]
    state = np.full(minutes.shape, State.ACTIVE, dtype=np.int64)
    since = np.broadcast_to(np.arange(minutes.shape[1]), minutes.shape).copy()
    for name, where, begun in reversed(conditions):
        state[where] = name
        since[where] = begun[where]
    return Classification(state, since, _factors(minutes, state, rules))


class _Hold:
    """Who holds since when: `age` counts the minutes of one holder, gaps in the data included."""

    def __init__(self, minutes: Minutes) -> None:
        rows, columns = minutes.shape
        at = np.broadcast_to(np.arange(columns), (rows, columns))
        known = minutes.seen
        last = np.maximum.accumulate(np.where(known, at, 0), axis=1)
        holder = np.take_along_axis(np.where(known, minutes.holder, NOBODY), last, axis=1)
        self.held = (minutes.holder != NOBODY) & known
        changed = np.ones((rows, columns), dtype=bool)
        changed[:, 1:] = holder[:, 1:] != holder[:, :-1]
        self.holder = holder
        self.begin = np.maximum.accumulate(np.where(changed, at, 0), axis=1)
        self.age = at - self.begin + 1


def _left_behind(minutes: Minutes, loose: Flags, rules: IdleRules) -> tuple[Flags, Flags]:
    """Where something is left behind, and where there is just nobody; both hold on over short gaps in the data.

    Left behind: memory or a process without a holder, or a counter stuck at full while the card draws next to nothing.
    """
    above = minutes.memory_bytes > (minutes.memory_floor[:, None] + rules.memory_above_floor)
    resting = minutes.power_watts <= rules.near_idle_watts * minutes.idle_watts[:, None]
    stuck = minutes.seen & ~minutes.faulty & (minutes.utilization >= 0.99) & resting & (minutes.processes == 0)
    left = stuck | loose & (above | (minutes.processes > 0))
    return _held_over(left, minutes.seen), _held_over(loose & ~left, minutes.seen)


def _held_over(where: Flags, seen: Flags) -> Flags:
    """True also in the minutes without data that follow a true one, up to BRIDGED of them."""
    at = np.broadcast_to(np.arange(where.shape[1]), where.shape)
    last = np.maximum.accumulate(np.where(seen, at, -1), axis=1)
    before = np.take_along_axis(where, np.maximum(last, 0), axis=1) & (last >= 0)
    over: Flags = np.where(seen, where, before & (at - last <= BRIDGED))
    return over


def _idle(minutes: Minutes, hold: _Hold, rules: IdleRules) -> list[tuple[State, Flags, Counts]]:
    """Held and doing nothing: never used since it was given, or gone idle."""
    activity = minutes.activity()
    working = minutes.bytes_per_second >= rules.working_bytes_per_second
    low = minutes.seen & (activity <= rules.idle_at_most) & ~working
    busy = minutes.seen & ((activity > rules.busy_above) | working)
    known = minutes.seen & np.isfinite(activity)
    may = hold.held & ~minutes.serving & ~minutes.faulty & ~_peers_busy(hold, busy, rules)
    empty = ~(minutes.processes > 0) | (
        minutes.memory_bytes <= minutes.memory_floor[:, None] + rules.memory_above_floor
    )
    touched = _since_begin((activity > rules.idle_at_most) & minutes.seen | ~empty & known, hold)
    enough = _since_begin(known, hold) >= KNOWN_SHARE * hold.age
    unused = may & known & (touched == 0) & enough & (hold.age > rules.never_used)
    if minutes.used_before is not None:
        unused &= ~(minutes.used_before[:, None] & (hold.begin == 0))
    window = _windows(minutes, rules)
    gone, since = _hysteresis(low, busy, known, may, hold, window, rules)
    return [(State.NEVER_USED, unused, hold.begin), (State.GONE_IDLE, gone, since)]


def _windows(minutes: Minutes, rules: IdleRules) -> Counts:
    """Minutes of idleness before a flag: longer for notebooks while people work, shorter for them at night."""
    at = minutes.start_ms // 60_000 + np.arange(minutes.shape[1])
    weekday, hour = (at // 1440 + 3) % 7, at // 60 % 24
    by_day = (weekday < 5) & (hour >= 8) & (hour < 20)
    notebook = np.where(by_day, rules.interactive_by_day, rules.interactive_by_night)
    return np.where(minutes.interactive, notebook[None, :], rules.gone_idle)


def _hysteresis(
    low: Flags, busy: Flags, known: Flags, may: Flags, hold: _Hold, window: Counts, rules: IdleRules
) -> tuple[Flags, Counts]:
    """Enter when the window was idle, leave when enough of the last minutes were busy, hold back what recurs."""
    rows, columns = low.shape
    entering = np.zeros((rows, columns), dtype=bool)
    for length in np.unique(window):
        idle, seen = _last(low, int(length)), _last(known, int(length))
        full = (seen >= KNOWN_SHARE * length) & (hold.age > length)
        entering |= (window == length) & full & (idle >= rules.idle_share * seen)
    leaving = _last(busy, rules.leave_window) >= rules.leave_busy
    gone, since = np.zeros((rows, columns), dtype=bool), np.zeros((rows, columns), dtype=np.int64)
    state, begun = np.zeros(rows, dtype=bool), np.zeros(rows, dtype=np.int64)
    rhythm = _Rhythm(rows)
    for minute in range(columns):
        rhythm.step(minute, busy[:, minute], leaving[:, minute], hold.begin[:, minute])
        enter = entering[:, minute] & may[:, minute] & ~state
        if enter.any():
            enter &= ~rhythm.expects_more(minute)
        begun = np.where(enter, np.maximum(rhythm.idle_since, hold.begin[:, minute]), begun)
        fresh = hold.begin[:, minute] == minute
        # A minute without data neither opens nor closes what was found before it.
        keep = state & ~fresh & (~known[:, minute] | may[:, minute] & ~leaving[:, minute])
        state = keep | enter
        gone[:, minute], since[:, minute] = state & known[:, minute], begun
    return gone, since


class _Rhythm:
    """When each accelerator was last busy, and whether its pauses come back with a period (checkpoints, evaluation)."""

    def __init__(self, rows: int) -> None:
        self.idle_since = np.zeros(rows, dtype=np.int64)
        """After the last minute of real work; a lone probe is none."""
        self._quiet_since = np.zeros(rows, dtype=np.int64)
        self._onsets = np.full((rows, 3), -1, dtype=np.int64)

    def step(self, minute: int, busy: Flags, working: Flags, begin: Counts) -> None:
        """Take in one minute; `working`: enough of the last minutes were busy."""
        fresh = begin == minute
        if fresh.any():
            self._onsets[fresh] = -1
        onset = busy & ((minute - self._quiet_since >= 2) | (self._onsets[:, -1] < 0))
        if onset.any():
            self._onsets[onset] = np.c_[self._onsets[onset][:, 1:], np.full(onset.sum(), minute)]
        self._quiet_since = np.where(busy, minute + 1, np.where(fresh, minute, self._quiet_since))
        self.idle_since = np.where(busy & working, minute + 1, np.where(fresh, minute, self.idle_since))

    def expects_more(self, minute: int) -> Flags:
        """Three starts of work at regular distances, and less than two of those distances since the last one."""
        distance = np.diff(self._onsets, axis=1)
        known = (self._onsets >= 0).all(axis=1)
        longest, shortest = distance.max(axis=1), distance.min(axis=1)
        regular = known & (longest <= 1.5 * shortest)
        expected: Flags = regular & (minute - self._onsets[:, -1] < 2 * longest)
        return expected


def _peers_busy(hold: _Hold, busy: Flags, rules: IdleRules) -> Flags:
    """Whether another accelerator of the same holder worked within the last minutes: a straggler, not idle."""
    numbers, code = np.unique(hold.holder, return_inverse=True)
    rows, columns = busy.shape
    code = code.reshape(rows, columns)
    flat = (code * columns + np.arange(columns)).ravel()
    recent = (_last(busy, rules.leave_window) > 0) & (hold.holder != NOBODY)
    total = np.bincount(flat, weights=recent.ravel(), minlength=len(numbers) * columns)
    others: Flags = (total[flat].reshape(rows, columns) - recent) > 0
    return others


def _slow(minutes: Minutes, hold: _Hold, rules: IdleRules) -> list[tuple[State, Flags, Counts]]:
    """Held and working, but less than it could: slowed by heat or power, starved, hollow, or simply too large."""
    at = np.broadcast_to(np.arange(minutes.shape[1]), minutes.shape)
    here = hold.held & ~minutes.faulty
    activity = minutes.activity()
    top = np.maximum.accumulate(np.nan_to_num(minutes.clock_hertz), axis=1)
    slowed = (minutes.slowed_ratio >= 0.5) & (minutes.clock_hertz < 0.9 * top) & (activity > rules.busy_above)
    throttled = _mostly(slowed & here, here, rules.throttled, 0.5, hold.age)

    util = _mean(minutes.utilization, rules.starved)
    zero = _mean(minutes.zero_ratio, rules.starved)
    evidence = (_mean(minutes.host_busy, rules.starved) >= 0.9) | (_mean(minutes.dram_active, rules.starved) < 0.1)
    # Within its minutes: a pause of whole minutes (a checkpoint, a request gap) is no hunger for data.
    mixed = _mean(((minutes.zero_ratio > 0) & (minutes.zero_ratio < 1)).astype(float), rules.starved) >= 0.5
    saw_tooth = (util >= 0.05) & (util <= 0.7) & (zero >= 0.2) & mixed & evidence
    saw_tooth &= ~minutes.serving & ~minutes.interactive
    starved = here & saw_tooth & (hold.age > rules.starved)

    full = _mean(minutes.utilization, rules.hollow) >= 0.9
    sm = _mean(minutes.sm_active, rules.hollow)
    watts = _mean(minutes.power_watts, rules.hollow)
    by_power = (watts < 0.4 * minutes.limit_watts[:, None]) & (_mean(minutes.memory_copy, rules.hollow) < 0.05)
    hollow = here & full & np.where(np.isfinite(sm), sm < 0.15, by_power) & (hold.age > rules.hollow)

    small = _mean(activity, rules.underused) <= 0.25
    memory = _mean(minutes.memory_bytes, rules.underused) <= 0.5 * minutes.memory_total[:, None]
    # What answers requests or waits for a person is not too large because it is often quiet.
    underused = here & small & memory & ~minutes.serving & ~minutes.interactive & (hold.age > rules.underused)
    spans = (
        (State.THROTTLED, throttled, rules.throttled),
        (State.DATA_STARVED, starved, rules.starved),
        (State.HOLLOW, hollow, rules.hollow),
        (State.UNDERUSED, underused, rules.underused),
    )
    return [(name, where, np.maximum(_first(where, at) - length + 1, hold.begin)) for name, where, length in spans]


def _first(where: Flags, at: Counts) -> Counts:
    """The first minute of the run that a minute belongs to."""
    started = where.copy()
    started[:, 1:] &= ~where[:, :-1]
    return np.maximum.accumulate(np.where(started, at, 0), axis=1)


def _factors(minutes: Minutes, state: Counts, rules: IdleRules) -> Floats:
    """How much of each minute's money bought nothing, by state."""
    activity = np.nan_to_num(minutes.activity())
    top = np.maximum.accumulate(np.nan_to_num(minutes.clock_hertz), axis=1)
    clock = np.divide(np.nan_to_num(minutes.clock_hertz), top, out=np.ones_like(top), where=top > 0)
    share = np.nan_to_num(minutes.memory_bytes) / minutes.memory_total[:, None]
    parts: dict[State, Floats] = {
        **{name: np.ones(state.shape) for name in WHOLLY},
        State.THROTTLED: 1 - clock,
        State.DATA_STARVED: 1 - np.nan_to_num(_mean(minutes.utilization, rules.starved)),
        State.HOLLOW: 1 - np.nan_to_num(minutes.sm_active),
        State.UNDERUSED: 1 - np.maximum(activity, np.nan_to_num(share)),
    }
    factor = np.zeros(state.shape)
    for name, part in parts.items():
        where = state == name
        factor[where] = part[where]
    clipped: Floats = np.clip(factor, 0.0, 1.0)
    return clipped


def _run_start(where: Flags) -> Counts:
    """The column at which the run of a true minute began."""
    return _first(where, np.broadcast_to(np.arange(where.shape[1]), where.shape))


def _run_length(where: Flags) -> Counts:
    """How many minutes in a row, up to each, were true."""
    at = np.broadcast_to(np.arange(where.shape[1]), where.shape)
    return np.where(where, at - _run_start(where) + 1, 0)


def _last(where: Flags, length: int) -> Counts:
    """How many of the last `length` minutes were true."""
    total = np.cumsum(where, axis=1, dtype=np.int64)
    out: Counts = total.copy()
    out[:, length:] -= total[:, :-length]
    return out


def _since_begin(where: Flags, hold: _Hold) -> Counts:
    """How many minutes of this hold, up to each, were true."""
    total = np.cumsum(where, axis=1, dtype=np.int64)
    before = np.concatenate([np.zeros((len(where), 1), dtype=np.int64), total], axis=1)
    counted: Counts = total - np.take_along_axis(before, hold.begin, axis=1)
    return counted


def _mean(values: Floats, length: int) -> Floats:
    """Mean of what is known of the last `length` minutes; NaN where under three quarters of them are known."""
    known = np.isfinite(values)
    count = _last(known, length)
    total = np.cumsum(np.where(known, values, 0.0), axis=1)
    window = total.copy()
    window[:, length:] -= total[:, :-length]
    enough = count >= max(1, KNOWN_SHARE * length)
    mean: Floats = np.divide(window, count, out=np.full(values.shape, np.nan), where=enough)
    return mean


def _mostly(where: Flags, known: Flags, length: int, share: float, age: Counts) -> Flags:
    """At least `share` of the last `length` minutes, all of one hold and known enough."""
    found, seen = _last(where, length), _last(known, length)
    return known & (age > length) & (seen >= KNOWN_SHARE * length) & (found >= share * seen)
