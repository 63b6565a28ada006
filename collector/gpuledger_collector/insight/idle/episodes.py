"""Episodes: runs of minutes in one state, each shown to a person once."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gpuledger_collector.insight.idle.minutes import NOBODY, Counts, Minutes
from gpuledger_collector.insight.idle.states import BRIDGED, Classification, State
from gpuledger_collector.insight.idle.survival import estimate_survival

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
"""Confidence by judgment; that of the other states is measured (survival.py)."""
TRAILING = 30
"""Minutes without data at the very end that do not end an episode yet: samples arrive late."""


@dataclass(frozen=True, slots=True)
class IdleEpisode:
    """Columns `since` (in) to `end` (out) of one accelerator (row) in one state; flagged at column
    `flagged`.

    `ongoing`: nothing has ended it up to the last known minute, at most half an hour before the
    last. `permille` is the wasted part of each of its minutes, 0 where nothing is known.
    """

    row: int
    state: State
    since: int
    flagged: int
    end: int
    ongoing: bool
    holder: int
    confidence: float
    permille: tuple[int, ...]


def idle_episodes(minutes: Minutes, classified: Classification) -> list[IdleEpisode]:
    """Return every episode of a shown state, by accelerator and time; gaps up to BRIDGED minutes
    are crossed. The confidence of the measured states comes from these episodes themselves.
    """
    episodes: list[IdleEpisode] = []
    bridged = _bridge_gaps(classified.state)
    # Most accelerators of a fleet work: only rows in which a shown state occurs are cut into runs.
    for row in np.flatnonzero(np.isin(bridged, SHOWN).any(axis=1)).tolist():
        states = bridged[row]
        edges = np.flatnonzero(np.diff(states)) + 1
        for start, stop in zip([0, *edges.tolist()], [*edges.tolist(), len(states)], strict=True):
            if int(states[start]) not in SHOWN:
                continue
            episode = _episode(minutes, classified, row, start, stop)
            last = episodes[-1] if episodes else None
            if last and (last.row, last.state, last.since) == (
                episode.row,
                episode.state,
                episode.since,
            ):
                # The same beginning after a gap in the data: the episode continues.
                episode = replace(episode, flagged=episodes.pop().flagged)
            episodes.append(episode)
    return _with_measured_confidence(episodes, bridged)


def _with_measured_confidence(episodes: list[IdleEpisode], states: Counts) -> list[IdleEpisode]:
    measured = [episode for episode in episodes if episode.state not in CERTAINTY]
    columns = states.shape[1]
    # Where the data ends, and where it is lost, nobody saw an episode end.
    ended = [
        episode.end < columns and int(states[episode.row, episode.end]) != State.NO_DATA
        for episode in measured
    ]
    survival = estimate_survival(
        np.array([episode.flagged - episode.since for episode in measured], dtype=float),
        np.array([episode.end - episode.since for episode in measured], dtype=float),
        np.array(ended, dtype=bool),
    )
    return [
        episode
        if episode.state in CERTAINTY
        else replace(episode, confidence=survival.probability_at(episode.end - episode.since))
        for episode in episodes
    ]


def _bridge_gaps(state: Counts) -> Counts:
    """Short gaps in the data take the state of both sides, where it is the same."""
    columns = state.shape[1]
    at = np.broadcast_to(np.arange(columns), state.shape)
    known = state != State.NO_DATA
    before = np.maximum.accumulate(np.where(known, at, -1), axis=1)
    after = np.minimum.accumulate(np.where(known, at, columns)[:, ::-1], axis=1)[:, ::-1]
    # Only where both sides agree: a gap between two states says nothing about when it changed.
    inside = ~known & (before >= 0) & (after < columns) & (after - before <= BRIDGED)
    left = np.take_along_axis(state, np.maximum(before, 0), axis=1)
    right = np.take_along_axis(state, np.minimum(after, columns - 1), axis=1)
    return np.where(inside & (left == right), left, state)


def _episode(
    minutes: Minutes,
    classified: Classification,
    row: int,
    start: int,
    stop: int,
) -> IdleEpisode:
    state = State(int(classified.state[row, start]))
    since = int(classified.since[row, start])
    wasted = classified.factor[row, since:stop].copy()
    # The minutes before the flag are of the same kind: those that were known count like the first
    # flagged one.
    wasted[: start - since] = np.where(
        minutes.seen[row, since:start], classified.factor[row, start], 0.0
    )
    rest = classified.state[row, stop:]
    return IdleEpisode(
        row=row,
        state=state,
        since=since,
        flagged=start,
        end=stop,
        # Missing minutes at the very end may only be late; a known minute in another state ends the
        # episode.
        ongoing=len(rest) <= TRAILING and bool((rest == State.NO_DATA).all()),
        holder=NOBODY if state == State.UNALLOCATED else int(minutes.holder[row, start]),
        # That of measured states is known when all episodes are.
        confidence=CERTAINTY.get(state, np.nan),
        permille=tuple(np.rint(1000 * wasted).astype(int).tolist()),
    )
