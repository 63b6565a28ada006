"""Find idle accelerators: a finding is opened once, kept up to date with its cost, and resolved
when work resumes.

Minutes are classified in windows that begin at a full hour, each with the hours before it as
context. A window that is repeated gives the same findings: it drops those it had opened and no
longer sees, and older ones keep their start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from gpuledger_collector.accounting.attribution import WorkloadFacts
from gpuledger_collector.accounting.owner_tree import UNATTRIBUTED
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, MINUTE_MS, Period
from gpuledger_collector.accounting.wasted_time import (
    AcceleratorPlace,
    price_waste,
    rating_intervals,
)
from gpuledger_collector.insight.findings import Finding, PlacedAccelerator
from gpuledger_collector.insight.idle.episodes import IdleEpisode, idle_episodes
from gpuledger_collector.insight.idle.minute_grid import (
    lay_out_minutes,
    mean_readings,
)
from gpuledger_collector.insight.idle.minutes import NOBODY, Minutes
from gpuledger_collector.insight.idle.states import IDLE_RULES, classify
from gpuledger_collector.services.idle_context import (
    Evidence,
    IdleContext,
    kept_until,
    read_evidence,
)
from gpuledger_collector.services.rating import Owners
from gpuledger_collector.storage import health
from gpuledger_collector.storage.billing import prices
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.findings import findings, late_evidence
from gpuledger_collector.storage.findings.late_evidence import EXPECTED_WITHIN_MS
from gpuledger_collector.storage.ledger import rules, workloads
from gpuledger_collector.storage.locks import Connection, Lock
from gpuledger_collector.storage.telemetry import minutes as minute_rollup

KIND = "idle"
JOB = "find_idle"
"""The scheduled search, by its name among the jobs."""
CONTEXT_MS = 8 * HOUR_MS
"""Hours read before a window: more than the longest rule looks back."""
ACCELERATORS_AT_ONCE = 512
WINDOW_ACCELERATOR_DAYS, MAX_WINDOW_DAYS = 400, 7
"""A window has as many days as fill this many accelerator-days, within these bounds: its arrays
stay in memory.
"""
SILENT_MS = DAY_MS
"""Nothing is classified later than this after the last minute of the whole fleet."""


def find_idle(database: Database, now_ms: int, context: IdleContext | None = None) -> int:
    """Classify every minute since the last run; return how many findings were opened or updated.

    `context` keeps what was read of past hours from one run to the next of the same process.

    Late evidence (a node was cut off for hours or days) makes the detector go back to its first
    hour, for the accelerators that it is of, but no further than minutes are kept: a finding whose
    start is older than them stays as it was. A read replica leaves it to the primary.
    """
    if database.standby:
        return 0
    count = _search_again(database)
    further = _search_further(database, now_ms, context, is_first=True)
    while further is not None:
        count += further
        further = _search_further(database, now_ms, context, is_first=False)
    return count


def searched_until(database: Database, now_ms: int, within_ms: int) -> int | None:
    """Up to when a collector's job has searched (unix ms): what a search up to then finds is stored.

    None where that is too old to stand for now: the job did not run to its end within this time, or
    evidence of before the last two hours has arrived since.
    """
    with database.transaction(read_only=True) as connection:
        ran_ms = health.last_done_ms(connection, JOB)
        done_ms = findings.progress(connection, KIND)
        late_ms = late_evidence.first_hour(connection)
    since_ms = now_ms - within_ms
    if ran_ms is None or done_ms is None or not since_ms <= min(ran_ms, done_ms) <= now_ms:
        return None
    return done_ms if late_ms is None or late_ms >= kept_until(_hour(done_ms)) else None


def _hour(at_ms: int) -> int:
    return at_ms - at_ms % HOUR_MS


def _search_again(database: Database) -> int:
    """Search what was searched again: accelerators with late evidence, each from its first hour on.

    A group of accelerators is searched from there to the end in one transaction: readers see it as
    it was found before, or as it is found now, and never as of a day in between. Between two groups
    other searches have their turn.
    """
    # Without a snapshot: it waits for evidence that is being noted, and takes it along.
    with database.transaction(Lock.FINDINGS, one_snapshot=False) as connection:
        late_ms = late_evidence.take(connection)
        minute_range = minute_rollup.minute_range(connection)
        done_ms = findings.progress(connection, KIND)
        if not late_ms or minute_range is None or done_ms is None:
            return 0
        # The context must still have its minutes: without them the first hours would look like a
        # new hold.
        kept_ms = minute_rollup.expired_before(connection) + CONTEXT_MS
        starts_ms = {
            number: _hour(max(minute_range[0], hour_ms, kept_ms))
            for number, hour_ms in late_ms.items()
        }
        first_ms = min(starts_ms.values())
        # Windows are cut in the places in which those of the whole fleet are.
        size = len(minute_rollup.accelerators(connection, first_ms, max(first_ms, done_ms)))
    # Those that begin together, so that one that is days late takes no others along.
    ids = sorted(starts_ms, key=lambda number: (starts_ms[number], number))
    count = 0
    for begin in range(0, len(ids), ACCELERATORS_AT_ONCE):
        group = ids[begin : begin + ACCELERATORS_AT_ONCE]
        with database.transaction(Lock.FINDINGS) as connection:
            at_ms = starts_ms[group[0]]
            # Another run may have come further meanwhile: what it saw of the end must not be
            # written over.
            done_ms = findings.progress(connection, KIND) or at_ms
            while at_ms < done_ms:
                end_ms = _window_end(size, at_ms, done_ms)
                count += _Window(connection, at_ms, end_ms, minute_range[0], group).search()
                at_ms = end_ms
    # Without a snapshot, too: a fold may be noting one of them again.
    with database.transaction(Lock.FINDINGS, one_snapshot=False) as connection:
        late_evidence.clear(connection, late_ms)
    return count


def _search_further(
    database: Database, now_ms: int, context: IdleContext | None, *, is_first: bool
) -> int | None:
    """Search the next window; return how many findings were opened or updated, None at the end.

    The first one of a run begins before the end of the last run, whose last hours may have grown.
    """
    with database.transaction(Lock.FINDINGS) as connection:
        minute_range = minute_rollup.minute_range(connection)
        if minute_range is None:
            return None
        first_ms, last_ms = minute_range
        until_ms = min(now_ms, last_ms + SILENT_MS) // MINUTE_MS * MINUTE_MS
        # Where to go on is read with each window: another run may have come further meanwhile, and
        # what it saw of the end must not be written over by an earlier window of this one.
        done_ms = findings.progress(connection, KIND)
        if not is_first and done_ms is not None and done_ms >= until_ms:
            return None
        # Evidence of an hour that has just ended arrives in time, and is noted by nobody as late.
        since_ms = first_ms if done_ms is None else done_ms
        if is_first:
            since_ms = max(first_ms, since_ms - EXPECTED_WITHIN_MS)
        start_ms = _hour(min(since_ms, until_ms))
        if start_ms >= until_ms:
            return None
        size = len(minute_rollup.accelerators(connection, start_ms, until_ms))
        end_ms = _window_end(size, start_ms, until_ms)
        # Findings and progress in one transaction: an interrupted window is searched again from
        # its start.
        # Windows of a search that catches up are read once.
        own_context = context if end_ms == until_ms else None
        count = _Window(connection, start_ms, end_ms, first_ms, context=own_context).search()
        findings.set_progress(connection, KIND, end_ms)
        return count


def _place(accelerator: PlacedAccelerator) -> tuple[str, str, str]:
    return accelerator.pool, accelerator.node, accelerator.uuid


def _ids(accelerators: Sequence[PlacedAccelerator]) -> tuple[int, ...]:
    return tuple(accelerator.accelerator_id for accelerator in accelerators)


def _window_end(size: int, start_ms: int, until_ms: int) -> int:
    """The end of a window over so many accelerators: at midnight where it can be, so that a repeated
    run cuts windows in the same places.
    """
    days = max(1, min(MAX_WINDOW_DAYS, WINDOW_ACCELERATOR_DAYS // max(1, size)))
    return min(until_ms, start_ms // DAY_MS * DAY_MS + days * DAY_MS)


class _Window:
    """The minutes from a full hour to an end, with their context before it, of some accelerators
    (None: of all).
    """

    def __init__(
        self,
        connection: Connection,
        start_ms: int,
        end_ms: int,
        first_ms: int,
        only: list[int] | None = None,
        context: IdleContext | None = None,
    ) -> None:
        self._connection, self._only, self._context = connection, only, context
        self._start_ms, self._end_ms = start_ms, end_ms
        self._from_ms = start_ms - CONTEXT_MS
        # A fleet that is younger than the context has none of it to look at before its first
        # evidence.
        self._is_whole = first_ms <= self._from_ms
        if not self._is_whole:
            first_hour_ms = minute_rollup.first_hour(connection, self._from_ms)
            first_ms = min(start_ms, _hour(first_ms), first_hour_ms or first_ms)
            self._from_ms = max(self._from_ms, first_ms)
        # A finding may have begun long before the window; its cost is cut at every change of a rate
        # since.
        priced = Period(self._from_ms - 90 * DAY_MS, end_ms)
        self._book = prices.price_book(connection, priced)
        self._cuts = self._book.cuts(priced)

    def search(self) -> int:
        """Classify the window and write its findings; return how many."""
        known = findings.overlapping(
            self._connection, KIND, self._start_ms, self._end_ms, self._only
        )
        present = minute_rollup.accelerators(
            self._connection, self._from_ms, self._end_ms, self._only
        )
        accelerators = sorted(present, key=_place)
        groups = [
            accelerators[begin : begin + ACCELERATORS_AT_ONCE]
            for begin in range(0, len(accelerators), ACCELERATORS_AT_ONCE)
        ]
        if self._context is not None:
            self._context.begin_window(self._connection, [_ids(group) for group in groups])
        current: list[Finding] = []
        for group in groups:
            current += self._search_some(group, known)
        keys = {finding.key for finding in current}
        # Findings that this window opened in an earlier run and no longer sees never were; older
        # ones have ended.
        gone = [finding for finding in known if finding.key not in keys]
        findings.drop(
            self._connection,
            [finding.key for finding in gone if finding.opened_ms >= self._start_ms],
        )
        resolved = [
            replace(finding, resolved_ms=finding.until_ms)
            for finding in gone
            if finding.resolved_ms is None and finding.opened_ms < self._start_ms
        ]
        return findings.upsert(self._connection, [*current, *resolved])

    def _search_some(
        self, accelerators: Sequence[PlacedAccelerator], known: Sequence[Finding]
    ) -> list[Finding]:
        evidence = self._read_evidence(_ids(accelerators))
        holders = np.unique(evidence.intervals["workload_id"]).tolist()
        facts = workloads.facts(self._connection, holders)
        period = Period(self._from_ms, self._end_ms)
        minutes = self._with_past_use(
            accelerators,
            lay_out_minutes(accelerators, period, evidence.minutes, evidence.intervals, facts),
        )
        owners = Owners(rules.current(self._connection), facts)
        by_place: dict[tuple[int, str], list[Finding]] = {}
        for finding in known:
            if finding.accelerator_id is not None:
                by_place.setdefault((finding.accelerator_id, finding.state), []).append(finding)
        current = []
        for episode in idle_episodes(minutes, classify(minutes)):
            # Episodes that ended within the context were written by an earlier window. One that may
            # go on, where evidence of the window's first minutes is still to come, has not ended.
            if episode.ongoing or self._at_ms(episode.end) > self._start_ms:
                accelerator = accelerators[episode.row]
                candidates = by_place.get(
                    (accelerator.accelerator_id, episode.state.name.lower()), []
                )
                continued = self._continued_finding(episode, candidates)
                current.append(
                    self._finding(accelerator, episode, minutes, facts, owners, continued)
                )
        return current

    def _read_evidence(self, ids: tuple[int, ...]) -> Evidence:
        if self._context is None:
            return read_evidence(self._connection, self._from_ms, self._end_ms, ids)
        return self._context.read(
            self._connection, self._from_ms, self._end_ms, ids, kept_until(self._start_ms)
        )

    def _at_ms(self, column: int) -> int:
        return self._from_ms + column * MINUTE_MS

    def _continued_finding(
        self, episode: IdleEpisode, candidates: Sequence[Finding]
    ) -> Finding | None:
        """The finding that this episode continues: opened before the window, and still seen when it
        begins.
        """
        for finding in candidates:
            before = max(finding.since_ms, finding.opened_ms) < self._start_ms
            if before and finding.until_ms >= self._at_ms(episode.since):
                return finding
        return None

    def _with_past_use(
        self, accelerators: Sequence[PlacedAccelerator], minutes: Minutes
    ) -> Minutes:
        """Add whether the holder used the accelerator before the first minute: then it is not
        `never used`.
        """
        # Asked only for accelerators that never worked within the window: for the others the answer
        # does not matter.
        still = ~(minutes.activity() > IDLE_RULES.idle_at_most).any(axis=1) & (
            minutes.holder[:, 0] != NOBODY
        )
        # Before a context that was cut there is no evidence.
        rows = np.flatnonzero(still).tolist() if self._is_whole else []
        pairs = [(accelerators[row].accelerator_id, int(minutes.holder[row, 0])) for row in rows]
        used = minute_rollup.used_before(self._connection, self._from_ms, pairs)
        used_before = np.zeros(len(accelerators), dtype=bool)
        used_before[[row for row, pair in zip(rows, pairs, strict=True) if pair in used]] = True
        return replace(minutes, used_before=used_before)

    def _finding(
        self,
        accelerator: PlacedAccelerator,
        episode: IdleEpisode,
        minutes: Minutes,
        facts: Mapping[int, WorkloadFacts],
        owners: Owners,
        continued: Finding | None,
    ) -> Finding:
        state = episode.state.name.lower()
        since_ms = self._at_ms(episode.since) if continued is None else continued.since_ms
        until_ms = self._at_ms(episode.end)
        wasted = self._wasted_by_interval(accelerator, episode, continued)
        place = AcceleratorPlace(
            accelerator.gpu_micro, accelerator.pool, accelerator.model, accelerator.node
        )
        cost = price_waste(place, wasted, self._book, until_ms - 1)
        workload = facts.get(episode.holder)
        owner = UNATTRIBUTED
        if workload is not None:
            owner = owners.owners_at(accelerator.pool, accelerator.node)(
                workload.id, since_ms, None
            )
        return Finding(
            key=f"{KIND}:{accelerator.uuid}:{state}:{since_ms}"
            if continued is None
            else continued.key,
            kind=KIND,
            state=state,
            subject=accelerator.uuid,
            accelerator_id=accelerator.accelerator_id,
            workload_id=None if workload is None else workload.id,
            team=owner.team,
            owner=owner.levels(),
            since_ms=since_ms,
            opened_ms=self._at_ms(episode.flagged) if continued is None else continued.opened_ms,
            until_ms=until_ms,
            resolved_ms=None if episode.ongoing else until_ms,
            confidence=round(episode.confidence, 3),
            currency=cost.currency,
            cost_micro=cost.cost_micro,
            per_day_micro=cost.per_day_micro,
            evidence={
                "node": accelerator.node,
                "pool": accelerator.pool,
                "wasted_gpu_ns": {str(at_ms): gpu_ns for at_ms, gpu_ns in wasted.items()},
                **mean_readings(minutes, episode),
            },
        )

    def _wasted_by_interval(
        self, accelerator: PlacedAccelerator, episode: IdleEpisode, continued: Finding | None
    ) -> dict[int, int]:
        """Wasted GPU-nanoseconds by rating interval; those before the window are taken from the
        continued finding.
        """
        first = episode.since
        before: dict[int, int] = {}
        if continued is not None:
            stored = {
                int(at_ms): gpu_ns for at_ms, gpu_ns in continued.evidence["wasted_gpu_ns"].items()
            }
            # The window begins at a full hour, so no rating interval is counted in part by both.
            before = {at_ms: gpu_ns for at_ms, gpu_ns in stored.items() if at_ms < self._start_ms}
            first = max(first, (self._start_ms - self._from_ms) // MINUTE_MS)
        pairs = zip(
            range(self._at_ms(first), self._at_ms(episode.end), MINUTE_MS),
            episode.permille[first - episode.since : episode.end - episode.since],
            strict=True,
        )
        return before | rating_intervals(pairs, accelerator.gpu_micro, self._cuts)
