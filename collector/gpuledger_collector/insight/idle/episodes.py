"""Usage intervals of minutes in one state: what a person sees of them, once each."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gpuledger_collector.insight.idle.minutes import NOBODY, Minutes
from gpuledger_collector.insight.idle.states import BRIDGED, Classification, State
from gpuledger_collector.insight.idle.survival import OPEN_CURVE, IdleSurvivalCurve

SHOWN = (
    State.UNALLOCATED,
    State.ZOMBIE,
    State.NEVER_USED,
    State.GONE_IDLE,
    State.THROTTLED,
    State.DATA_STARVED,
    State.HOLLOW,
    State.UNDERUSED,
    State.FAULTY,
)
CERTAINTY = {
    State.FAULTY: 1.0,
    State.UNALLOCATED: 0.95,
    State.ZOMBIE: 0.9,
    State.THROTTLED: 0.9,
    State.DATA_STARVED: 0.8,
    State.HOLLOW: 0.8,
    State.UNDERUSED: 0.7,
}
TRAILING = 30
"""Minutes without data at the very end that do not end an episode yet: samples take their time."""


@dataclass(frozen=True, slots=True)
class IdleEpisode:
    """Columns `since` (in) to `end` (out) of one accelerator (row) in one state; flagged at column `flagged`."""

    row: int
    state: State
    since: int
    flagged: int
    end: int
    going_on: bool
    """Nothing has ended it up to the last minute, or to the last that is known, half an hour before at most."""
    holder: int
    confidence: float
    permille: tuple[int, ...]
    """Wasted thousandths of each of its minutes; 0 where nothing is known."""


def idle_episodes(
    minutes: Minutes, verdict: Classification, curve: IdleSurvivalCurve = OPEN_CURVE
) -> list[IdleEpisode]:
    """Every episode of a shown state, by accelerator and time; gaps in the data up to BRIDGED minutes are crossed."""
    found: list[IdleEpisode] = []
    for row, states in enumerate(_bridged(verdict.state)):
        edges = np.flatnonzero(np.diff(states)) + 1
        starts, stops = np.concatenate([[0], edges]), np.concatenate([edges, [len(states)]])
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            if states[start] in SHOWN:
                _join(found, _episode(minutes, verdict, curve, row, start, stop))
    return found


def _join(found: list[IdleEpisode], later: IdleEpisode) -> None:
    """Add an episode; one that has the same beginning as the last, with a gap in the data between, goes on with it."""
    if found and (found[-1].row, found[-1].state, found[-1].since) == (later.row, later.state, later.since):
        later = replace(later, flagged=found.pop().flagged)
    found.append(later)


def _bridged(state: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Short gaps in the data take the state on both sides, where it is the same."""
    rows, columns = state.shape
    at = np.broadcast_to(np.arange(columns), (rows, columns))
    known = state != State.NO_DATA
    before = np.maximum.accumulate(np.where(known, at, -1), axis=1)
    after = np.minimum.accumulate(np.where(known, at, columns)[:, ::-1], axis=1)[:, ::-1]
    inside = ~known & (before >= 0) & (after < columns) & (after - before <= BRIDGED)
    left = np.take_along_axis(state, np.maximum(before, 0), axis=1)
    right = np.take_along_axis(state, np.minimum(after, columns - 1), axis=1)
    return np.where(inside & (left == right), left, state)


def _episode(
    minutes: Minutes, verdict: Classification, curve: IdleSurvivalCurve, row: int, start: int, stop: int
) -> IdleEpisode:
    state = State(int(verdict.state[row, start]))
    since = int(verdict.since[row, start])
    wasted = verdict.factor[row, since:stop].copy()
    # The minutes before the flag are of the same kind: those that were known count like the first flagged one.
    wasted[: start - since] = np.where(minutes.seen[row, since:start], verdict.factor[row, start], 0.0)
    holder = int(minutes.holder[row, start])
    sure = CERTAINTY.get(state)
    return IdleEpisode(
        row,
        state,
        since,
        start,
        stop,
        _goes_on(verdict, row, stop),
        holder if state != State.UNALLOCATED else NOBODY,
        curve.at(stop - since) if sure is None else sure,
        tuple(np.rint(1000 * wasted).astype(int).tolist()),
    )


def _goes_on(verdict: Classification, row: int, stop: int) -> bool:
    rest = verdict.state[row, stop:]
    return len(rest) <= TRAILING and bool((rest == State.NO_DATA).all())
