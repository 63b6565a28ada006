"""Find idle accelerators: a finding is opened once, kept up to date with its cost, and resolved
when work resumes.

Minutes are classified in windows that begin at a full hour, each with the hours before it as
context. A window that is repeated gives the same findings: it drops those it had opened and no
longer sees, and older ones keep their start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuledger_collector.accounting.attribution import WorkloadFacts
from gpuledger_collector.accounting.owner_tree import LEVELS, UNATTRIBUTED
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, Period
from gpuledger_collector.accounting.wasted_time import (
    MINUTE_MS,
    AcceleratorPlace,
    price_waste,
    rating_intervals,
)
from gpuledger_collector.insight.findings import Finding, PlacedAccelerator
from gpuledger_collector.insight.idle.episodes import IdleEpisode, idle_episodes
from gpuledger_collector.insight.idle.kinds import FLOOR_BYTES, is_interactive, is_serving, watts
from gpuledger_collector.insight.idle.minutes import NOBODY, Minutes, carried, unknown
from gpuledger_collector.insight.idle.states import IDLE_RULES, classify
from gpuledger_collector.insight.idle.survival import IdleSurvivalCurve, estimate_curve, idle_gaps
from gpuledger_collector.services.rating import Owners
from gpuledger_collector.storage.billing import price_book
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.findings import findings
from gpuledger_collector.storage.ledger import rules, workloads
from gpuledger_collector.storage.locks import Connection, Lock
from gpuledger_collector.storage.telemetry import minutes as minute_rollup

KIND = "idle"
CONTEXT_MS = 8 * HOUR_MS
"""Hours read before a window: more than the longest rule looks back."""
ACCELERATORS_AT_ONCE = 512
WINDOW_ACCELERATOR_DAYS, MAX_WINDOW_DAYS = 400, 7
"""A window has as many days as fill this many accelerator-days, within these bounds: its arrays
stay in memory.
"""
SILENT_MS = DAY_MS
"""Nothing is classified later than this after the last minute of the whole fleet."""


def find_idle(database: Database, now_ms: int) -> int:
    """Classify every minute since the last run; return how many findings were opened or updated.

    Late evidence (a node was cut off for hours or days) makes the detector go back to its first
    hour, but no further than minutes are kept: a finding whose start is older than them stays as it
    was. A read replica leaves it to the primary.
    """
    if database.standby:
        return 0
    count, is_first = 0, True
    while True:
        # Where to go on is read with each window: another run may have come further meanwhile, and
        # what it saw of the end must not be written over by an earlier window of this one.
        with database.transaction(Lock.FINDINGS) as connection:
            minute_range = minute_rollup.minute_range(connection)
            if minute_range is None:
                return count
            first_ms, last_ms = minute_range
            until_ms = min(now_ms, last_ms + SILENT_MS) // MINUTE_MS * MINUTE_MS
            done_ms = findings.progress(connection, KIND)
            late_ms = findings.late_evidence(connection, KIND) if is_first else None
            if not is_first and done_ms is not None and done_ms >= until_ms:
                return count
            # The context must still have its minutes: without them the first hours would look like
            # a new hold.
            kept_ms = minute_rollup.expired_before(connection) + CONTEXT_MS
            back_to_ms = until_ms if late_ms is None else max(first_ms, late_ms, kept_ms)
            start_ms = (
                min(first_ms if done_ms is None else done_ms, back_to_ms) // HOUR_MS * HOUR_MS
            )
            if start_ms >= until_ms:
                return count
            end_ms = _window_end(connection, start_ms, until_ms)
            # Findings and progress in one transaction: an interrupted window is searched again from
            # its start.
            count += _Window(connection, start_ms, end_ms, first_ms).search()
            findings.set_progress(connection, KIND, end_ms)
            if late_ms is not None:
                findings.clear_late_evidence(connection, KIND, late_ms)
        is_first = False


def _window_end(connection: Connection, start_ms: int, until_ms: int) -> int:
    """The end of a window: at midnight where it can be, so that a repeated run cuts windows in the
    same places.
    """
    size = len(minute_rollup.accelerators(connection, start_ms, until_ms))
    days = max(1, min(MAX_WINDOW_DAYS, WINDOW_ACCELERATOR_DAYS // max(1, size)))
    return min(until_ms, start_ms // DAY_MS * DAY_MS + days * DAY_MS)


class _Window:
    """The minutes from a full hour to an end, with their context before it."""

    def __init__(self, connection: Connection, start_ms: int, end_ms: int, first_ms: int) -> None:
        self._connection = connection
        self._start_ms, self._end_ms = start_ms, end_ms
        self._from_ms = start_ms - CONTEXT_MS
        # A fleet that is younger than the context has none of it to look at before its first
        # evidence.
        self._is_whole = first_ms <= self._from_ms
        if not self._is_whole:
            first_ms = min(
                start_ms,
                first_ms,
                minute_rollup.first_interval(connection, self._from_ms) or first_ms,
            )
            self._from_ms = max(self._from_ms, first_ms // HOUR_MS * HOUR_MS)
        self._book = price_book.current(connection)
        # A finding may have begun long before the window; its cost is cut at every change of a rate
        # since.
        self._cuts = self._book.cuts(Period(self._from_ms - 90 * DAY_MS, end_ms))

    def search(self) -> int:
        """Classify the window and write its findings; return how many."""
        known = findings.overlapping(self._connection, KIND, self._start_ms, self._end_ms)
        present = minute_rollup.accelerators(self._connection, self._from_ms, self._end_ms)
        accelerators = sorted(
            present, key=lambda accelerator: (accelerator.pool, accelerator.node, accelerator.uuid)
        )
        current: list[Finding] = []
        for begin in range(0, len(accelerators), ACCELERATORS_AT_ONCE):
            current += self._search_some(accelerators[begin : begin + ACCELERATORS_AT_ONCE], known)
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
        return findings.put(self._connection, [*current, *resolved])

    def _search_some(
        self, accelerators: Sequence[PlacedAccelerator], known: Sequence[Finding]
    ) -> list[Finding]:
        ids = [accelerator.accelerator_id for accelerator in accelerators]
        intervals = minute_rollup.state_intervals(
            self._connection, self._from_ms, self._end_ms, ids
        )
        holders = np.unique(intervals["workload_id"]).tolist()
        facts = workloads.facts(self._connection, holders)
        minutes = self._with_past_use(accelerators, self._minutes(accelerators, intervals, facts))
        owners = Owners(rules.current(self._connection), facts)
        by_place: dict[tuple[int, str], list[Finding]] = {}
        for finding in known:
            if finding.accelerator_id is not None:
                by_place.setdefault((finding.accelerator_id, finding.state), []).append(finding)
        current = []
        for episode in idle_episodes(minutes, classify(minutes), _survival_curve(minutes)):
            # Episodes that ended within the context were written by an earlier window.
            if self._at_ms(episode.end) > self._start_ms:
                accelerator = accelerators[episode.row]
                candidates = by_place.get(
                    (accelerator.accelerator_id, episode.state.name.lower()), []
                )
                continued = self._continued(episode, candidates)
                current.append(
                    self._finding(accelerator, episode, minutes, facts, owners, continued)
                )
        return current

    def _at_ms(self, column: int) -> int:
        return self._from_ms + column * MINUTE_MS

    def _continued(self, episode: IdleEpisode, candidates: Sequence[Finding]) -> Finding | None:
        """The finding that this episode continues: opened before the window, and still seen when it
        begins.
        """
        for finding in candidates:
            before = max(finding.since_ms, finding.opened_ms) < self._start_ms
            if before and finding.until_ms >= self._at_ms(episode.since):
                return finding
        return None

    def _minutes(
        self,
        accelerators: Sequence[PlacedAccelerator],
        intervals: npt.NDArray[np.void],
        facts: Mapping[int, WorkloadFacts],
    ) -> Minutes:
        shape = len(accelerators), (self._end_ms - self._from_ms) // MINUTE_MS
        row_of = {accelerator.accelerator_id: row for row, accelerator in enumerate(accelerators)}
        table = minute_rollup.read(self._connection, self._from_ms, self._end_ms, list(row_of))
        row = _rows(table["accelerator_id"], row_of)
        column = (table["minute_ms"].astype(np.int64) - self._from_ms) // MINUTE_MS
        sampled = np.zeros(shape, dtype=bool)
        sampled[row, column] = True
        seen, source = carried(sampled)

        def reading(name: str) -> npt.NDArray[np.float64]:
            grid = unknown(shape)
            grid[row, column] = table[name]
            return np.where(seen, np.take_along_axis(grid, source, axis=1), np.nan)

        holding = self._holding(shape, row_of, intervals, facts)
        idle_watts, limit_watts = (
            np.array([watts(each.model) for each in accelerators]).reshape(shape[0], 2).T
        )
        return Minutes(
            start_ms=self._from_ms,
            # A reading without knowledge of the holder is no evidence of idleness; a fault is known
            # without any reading.
            seen=seen & holding.reported | holding.faulty,
            faulty=holding.faulty,
            holder=holding.holder,
            serving=holding.serving,
            interactive=holding.interactive,
            utilization=reading("utilization_ratio"),
            sm_active=reading("sm_active_ratio"),
            zero_ratio=reading("zero_ratio"),
            dram_active=reading("dram_active_ratio"),
            memory_copy=reading("memory_copy_ratio"),
            memory_bytes=reading("memory_used_bytes"),
            power_watts=reading("power_watts"),
            clock_hertz=reading("sm_clock_hertz"),
            slowed_ratio=reading("slowed_ratio"),
            processes=reading("processes"),
            # No agent reads these two (docs/insight.md).
            host_busy=unknown(shape),
            bytes_per_second=unknown(shape),
            memory_total=np.array(
                [each.memory_bytes or np.nan for each in accelerators], dtype=float
            ),
            memory_floor=np.full(shape[0], FLOOR_BYTES),
            idle_watts=idle_watts,
            limit_watts=limit_watts,
        )

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

    def _holding(
        self,
        shape: tuple[int, int],
        row_of: Mapping[int, int],
        intervals: npt.NDArray[np.void],
        facts: Mapping[int, WorkloadFacts],
    ) -> _Holding:
        holding = _Holding(
            np.full(shape, NOBODY, dtype=np.int64), *(np.zeros(shape, dtype=bool) for _ in range(4))
        )
        # Rounded up: a minute belongs to the interval that covers its start.
        first, last = (
            np.clip(-((self._from_ms - intervals[end]) // MINUTE_MS), 0, shape[1])
            for end in ("start_ms", "end_ms")
        )
        counts = np.maximum(last - first, 0)
        # An entry for each minute of each interval. Where intervals overlap, the last one to begin
        # holds the minute.
        row = np.repeat(_rows(intervals["accelerator_id"], row_of), counts)
        column = np.repeat(first - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
        names, name_of = np.unique(intervals["workload_id"], return_inverse=True)
        kinds = np.zeros((len(names), 2), dtype=bool)
        for place, workload_id in enumerate(names.tolist()):
            if (fact := facts.get(workload_id)) is not None:
                kinds[place] = [
                    judge(fact.kind, fact.name or "", fact.tags)
                    for judge in (is_serving, is_interactive)
                ]
        holding.reported[row, column] = True
        holding.faulty[row, column] = np.repeat(intervals["unavailable"] == 1, counts)
        workload = np.where(intervals["workload_id"] == 0, NOBODY, intervals["workload_id"])
        holding.holder[row, column] = np.repeat(workload, counts)
        holding.serving[row, column], holding.interactive[row, column] = np.repeat(
            kinds[name_of], counts, axis=0
        ).T
        return holding

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
        wasted = self._wasted(accelerator, episode, continued)
        place = AcceleratorPlace(
            accelerator.gpu_micro, accelerator.pool, accelerator.model, accelerator.node
        )
        cost = price_waste(place, wasted, self._book, until_ms - 1)
        workload = facts.get(episode.holder)
        owner = UNATTRIBUTED
        if workload is not None:
            owner = owners.at(accelerator.pool, accelerator.node)(workload.id, since_ms, None)
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
            owner={level: owner.level(level) for level in LEVELS if owner.level(level)},
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
                **_mean_readings(minutes, episode),
            },
        )

    def _wasted(
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


@dataclass
class _Holding:
    """Who holds each accelerator in each minute, and what kind of work that is."""

    holder: npt.NDArray[np.int64]
    faulty: npt.NDArray[np.bool_]
    serving: npt.NDArray[np.bool_]
    interactive: npt.NDArray[np.bool_]
    reported: npt.NDArray[np.bool_]
    """An agent reported who holds it, or that nobody does."""


def _rows(ids: npt.NDArray[Any], row_of: Mapping[int, int]) -> npt.NDArray[np.int64]:
    """The row of each accelerator id."""
    known = np.array(sorted(row_of), dtype=np.int64)
    rows = np.array([row_of[int(accelerator_id)] for accelerator_id in known], dtype=np.int64)
    return rows[np.searchsorted(known, ids.astype(np.int64))]


def _survival_curve(minutes: Minutes) -> IdleSurvivalCurve:
    """How long idleness of this part of the fleet lasts, from the minutes at hand."""
    activity = minutes.activity()
    known = minutes.seen & np.isfinite(activity) & (minutes.holder != NOBODY)
    return estimate_curve(*idle_gaps(activity <= IDLE_RULES.idle_at_most, known))


def _mean_readings(minutes: Minutes, episode: IdleEpisode) -> dict[str, float]:
    """Means of the readings during an episode, for people to check; a metric without readings is
    left out.
    """
    part = (episode.row, slice(episode.since, episode.end))
    metrics = {
        "utilization_ratio": minutes.utilization,
        "sm_active_ratio": minutes.sm_active,
        "memory_used_bytes": minutes.memory_bytes,
        "power_watts": minutes.power_watts,
    }
    means = {}
    for name, values in metrics.items():
        known = values[part][np.isfinite(values[part])]
        if len(known):
            means[name] = round(float(known.mean()), 4)
    return means
