"""Idle accelerators become findings: opened once, kept up to date with their money, resolved when they work again.

Minutes are judged an hour-aligned piece at a time, each with the hours before it as context. A piece that is done again
gives the same findings: what it had opened and no longer sees is dropped, what goes on from before keeps its beginning.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gpuledger_collector.accounting.attribution import Rule, WorkloadFacts
from gpuledger_collector.accounting.owner_tree import LEVELS, UNATTRIBUTED
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, Period
from gpuledger_collector.accounting.pricing import Price, PriceBook, PurchaseChoice
from gpuledger_collector.accounting.wasted_time import MINUTE_MS, AcceleratorPlace, price_waste, rating_intervals
from gpuledger_collector.insight.findings import Finding, PlacedAccelerator, StateInterval
from gpuledger_collector.insight.idle.episodes import IdleEpisode, idle_episodes
from gpuledger_collector.insight.idle.kinds import FLOOR_BYTES, is_interactive, is_serving, watts
from gpuledger_collector.insight.idle.minutes import NOBODY, Minutes, carried
from gpuledger_collector.insight.idle.states import IDLE_RULES, classify
from gpuledger_collector.insight.idle.survival import IdleSurvivalCurve, estimate_curve, idle_gaps
from gpuledger_collector.services.rating import Owners

KIND = "idle"
CONTEXT_MS = 8 * HOUR_MS
"""Hours before a piece that are looked at for context: the longest window and then some."""
CARDS_AT_ONCE = 512
CARD_DAYS, MOST_DAYS = 400, 7
"""A piece is as many days as this many accelerator-days fill, within these bounds: its arrays stay in memory."""
SILENT_MS = DAY_MS
"""This long after the last minute of anybody nothing is looked at any more."""


class FindingsUnit(Protocol):
    """One transaction over one snapshot."""

    def prices(self) -> Sequence[Price]:
        """The price book in force."""

    def purchase_choices(self) -> Sequence[PurchaseChoice]:
        """Which way of buying applies where, by position."""

    def rules(self) -> Sequence[Rule]:
        """The attribution rules in force."""

    def workloads(self, ids: Sequence[int]) -> Mapping[int, WorkloadFacts]:
        """Facts of these workloads."""

    def cards(self, start_ms: int, end_ms: int) -> Sequence[PlacedAccelerator]:
        """Accelerators that were there in the period."""

    def minutes(self, start_ms: int, end_ms: int, ids: Sequence[int]) -> npt.NDArray[np.void]:
        """The minute rollup of these accelerators: a structured array, NaN unknown."""

    def spans(self, start_ms: int, end_ms: int, ids: Sequence[int]) -> Iterable[StateInterval]:
        """Who held these accelerators, by begin."""

    def used_before(self, at_ms: int, pairs: Sequence[tuple[int, int]]) -> set[tuple[int, int]]:
        """Those (accelerator, workload) pairs of which the workload was ever busy on the accelerator before."""

    def minute_range(self) -> tuple[int, int] | None:
        """First and last minute of the rollup."""

    def minutes_gone_before(self) -> int:
        """Where retention of the rollup has come to (unix ms); 0: nothing of it was let go."""

    def overlapping(self, kind: str, start_ms: int, end_ms: int) -> Sequence[Finding]:
        """Findings of a kind that were seen in the period or go on."""

    def put(self, findings: Iterable[Finding]) -> int:
        """Write findings, those that are known anew."""

    def drop(self, keys: Sequence[str]) -> None:
        """Remove findings that a new look no longer sees."""

    def mark(self, kind: str) -> int | None:
        """How far the search of this kind has come."""

    def set_mark(self, kind: str, until_ms: int) -> None:
        """The search of this kind has come so far."""

    def late_mark(self, kind: str) -> int | None:
        """Since when evidence came after the search of this kind had passed (unix ms, an hour's begin)."""

    def drop_late_mark(self, kind: str, until_ms: int) -> None:
        """The search has gone back to this instant; does nothing when the mark has moved meanwhile."""


class Findings(Protocol):
    """Where findings are kept."""

    def unit(self) -> AbstractContextManager[FindingsUnit]:
        """A transaction, alone in searching."""


def find_idle(store: Findings, now_ms: int) -> int:
    """Look at every minute since the last look; how many findings were opened or brought up to date.

    What came late (a node was cut off for hours or days) is looked at from its first hour on, with everything after it,
    but no farther back than minutes are kept: a finding whose beginning they no longer show stays as it was.
    """
    with store.unit() as unit:
        known, gone_before = unit.minute_range(), unit.minutes_gone_before()
        done, late = unit.mark(KIND), unit.late_mark(KIND)
    if known is None:
        return 0
    first, last = known
    until = min(now_ms, last + SILENT_MS) // MINUTE_MS * MINUTE_MS
    back = until if late is None else max(first, late, gone_before + CONTEXT_MS)
    start = min(first if done is None else done, back) // HOUR_MS * HOUR_MS
    count = 0
    while start < until:
        with store.unit() as unit:
            cards = len(unit.cards(start, until))
            days = max(1, min(MOST_DAYS, CARD_DAYS // max(1, cards)))
            end = min(until, start // DAY_MS * DAY_MS + days * DAY_MS)
            count += _Piece(unit, start, end).search()
            unit.set_mark(KIND, end)
            if late is not None:
                unit.drop_late_mark(KIND, late)
        start = end
    return count


class _Piece:
    """The minutes from an hour's begin to an end, with their context."""

    def __init__(self, unit: FindingsUnit, start_ms: int, end_ms: int) -> None:
        self._unit = unit
        self._start, self._end = start_ms, end_ms
        self._from = start_ms - CONTEXT_MS
        self._book = PriceBook(unit.prices(), unit.purchase_choices())
        self._cuts = self._book.cuts(Period(self._from - 90 * DAY_MS, end_ms))

    def search(self) -> int:
        """Judge, and write what was found."""
        before = self._unit.overlapping(KIND, self._start, self._end)
        cards = sorted(self._unit.cards(self._from, self._end), key=lambda card: (card.pool, card.node, card.uuid))
        found: list[Finding] = []
        for at in range(0, len(cards), CARDS_AT_ONCE):
            found += self._some(cards[at : at + CARDS_AT_ONCE], before)
        keys = {one.key for one in found}
        self._unit.drop([one.key for one in before if one.opened_ms >= self._start and one.key not in keys])
        ended = [
            replace(one, resolved_ms=one.until_ms)
            for one in before
            if one.resolved_ms is None and one.opened_ms < self._start and one.key not in keys
        ]
        return self._unit.put([*found, *ended])

    def _some(self, cards: Sequence[PlacedAccelerator], before: Sequence[Finding]) -> list[Finding]:
        spans = list(self._unit.spans(self._from, self._end, [card.accelerator_id for card in cards]))
        facts = self._unit.workloads(sorted({span.workload_id for span in spans if span.workload_id is not None}))
        minutes = self._with_past(cards, self._minutes(cards, spans, facts))
        verdict = classify(minutes)
        owners = Owners(self._unit.rules(), facts)
        curve = _curve(minutes)
        opened: dict[tuple[int, str], list[Finding]] = {}
        for one in before:
            if one.accelerator_id is not None:
                opened.setdefault((one.accelerator_id, one.state), []).append(one)
        made = []
        for episode in idle_episodes(minutes, verdict, curve):
            if self._at(episode.end) > self._start:
                card = cards[episode.row]
                known = self._known(episode, opened.get((card.accelerator_id, episode.state.name.lower()), []))
                made.append(self._finding(card, episode, minutes, facts, owners, known))
        return made

    def _at(self, column: int) -> int:
        return self._from + column * MINUTE_MS

    def _known(self, episode: IdleEpisode, candidates: Sequence[Finding]) -> Finding | None:
        """The finding that this episode goes on with: opened before this piece, and still seen when it begins."""
        for one in candidates:
            if one.since_ms < self._start and one.opened_ms < self._start and one.until_ms >= self._at(episode.since):
                return one
        return None

    def _minutes(
        self, cards: Sequence[PlacedAccelerator], spans: Iterable[StateInterval], facts: Mapping[int, WorkloadFacts]
    ) -> Minutes:
        rows, columns = len(cards), (self._end - self._from) // MINUTE_MS
        row_of = {card.accelerator_id: row for row, card in enumerate(cards)}
        table = self._unit.minutes(self._from, self._end, list(row_of))
        row = _rows(table["accelerator_id"], row_of)
        column = (table["minute_ms"].astype(np.int64) - self._from) // MINUTE_MS
        sampled = np.zeros((rows, columns), dtype=bool)
        sampled[row, column] = True
        seen, source = carried(sampled)

        def reading(name: str) -> npt.NDArray[np.float64]:
            grid = np.full((rows, columns), np.nan)
            grid[row, column] = table[name]
            return np.where(seen, np.take_along_axis(grid, source, axis=1), np.nan)

        nothing = np.full((rows, columns), np.nan)
        held = self._held((rows, columns), row_of, spans, facts)
        rest, full = np.array([watts(card.model) for card in cards]).reshape(rows, 2).T
        return Minutes(
            start_ms=self._from,
            seen=seen & held.told | held.faulty,
            faulty=held.faulty,
            holder=held.holder,
            serving=held.serving,
            interactive=held.interactive,
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
            host_busy=nothing,
            bytes_per_second=nothing,
            memory_total=np.array([card.memory_bytes or np.nan for card in cards], dtype=float),
            memory_floor=np.full(rows, FLOOR_BYTES),
            idle_watts=rest,
            limit_watts=full,
        )

    def _with_past(self, cards: Sequence[PlacedAccelerator], minutes: Minutes) -> Minutes:
        """Beside them, whether who holds a card from the first minute on had used it before: it is not never used."""
        still = ~(minutes.activity() > IDLE_RULES.idle_at_most).any(axis=1) & (minutes.holder[:, 0] != NOBODY)
        rows = np.flatnonzero(still).tolist()
        pairs = [(cards[row].accelerator_id, int(minutes.holder[row, 0])) for row in rows]
        used = self._unit.used_before(self._from, pairs)
        before = np.zeros(len(cards), dtype=bool)
        before[[row for row, pair in zip(rows, pairs, strict=True) if pair in used]] = True
        return replace(minutes, used_before=before)

    def _held(
        self,
        shape: tuple[int, int],
        row_of: Mapping[int, int],
        spans: Iterable[StateInterval],
        facts: Mapping[int, WorkloadFacts],
    ) -> _Held:
        made = _Held(np.full(shape, NOBODY, dtype=np.int64), *(np.zeros(shape, dtype=bool) for _ in range(4)))
        for span in spans:
            row = row_of[span.accelerator_id]
            first = max(0, -((self._from - span.start_ms) // MINUTE_MS))
            last = max(first, -((self._from - span.end_ms) // MINUTE_MS))
            part = slice(first, last)
            made.told[row, part] = True
            made.faulty[row, part] = span.state == "unavailable"
            workload = NOBODY if span.workload_id is None else span.workload_id
            made.holder[row, part] = workload
            said = facts.get(workload)
            made.serving[row, part] = said is not None and is_serving(said.kind, said.name or "", said.tags)
            made.interactive[row, part] = said is not None and is_interactive(said.kind, said.name or "", said.tags)
        return made

    def _finding(
        self,
        card: PlacedAccelerator,
        episode: IdleEpisode,
        minutes: Minutes,
        facts: Mapping[int, WorkloadFacts],
        owners: Owners,
        known: Finding | None,
    ) -> Finding:
        state = episode.state.name.lower()
        since = self._at(episode.since) if known is None else known.since_ms
        wasted = self._wasted(card, episode, known)
        place = AcceleratorPlace(card.gpu_micro, card.pool, card.model, card.node)
        until = self._at(episode.end)
        cost = price_waste(place, wasted, self._book, until - 1)
        workload = facts.get(episode.holder)
        owner = UNATTRIBUTED if workload is None else owners.at(card.pool, card.node)(workload.id, since, None)
        return Finding(
            key=known.key if known is not None else f"{KIND}:{card.uuid}:{state}:{since}",
            kind=KIND,
            state=state,
            subject=card.uuid,
            accelerator_id=card.accelerator_id,
            workload_id=None if workload is None else workload.id,
            team=owner.team,
            owner={level: owner.level(level) for level in LEVELS if owner.level(level)},
            since_ms=since,
            opened_ms=self._at(episode.flagged) if known is None else known.opened_ms,
            until_ms=until,
            resolved_ms=None if episode.going_on else until,
            confidence=round(episode.confidence, 3),
            currency=cost.currency,
            cost_micro=cost.cost_micro,
            per_day_micro=cost.per_day_micro,
            evidence={
                "node": card.node,
                "pool": card.pool,
                "wasted_gpu_ns": {str(at): ns for at, ns in wasted.items()},
                **_readings(minutes, episode),
            },
        )

    def _wasted(self, card: PlacedAccelerator, episode: IdleEpisode, known: Finding | None) -> dict[int, int]:
        """Wasted quantities by rating interval: of what went on before this piece as they were, from its begin on
        anew.
        """
        first = episode.since
        old: dict[int, int] = {}
        if known is not None:
            old = {int(at): ns for at, ns in known.evidence["wasted_gpu_ns"].items() if int(at) < self._start}
            first = max(first, (self._start - self._from) // MINUTE_MS)
        pairs = [(self._at(at), episode.permille[at - episode.since]) for at in range(first, episode.end)]
        return old | rating_intervals(pairs, card.gpu_micro, self._cuts)


@dataclass
class _Held:
    holder: npt.NDArray[np.int64]
    faulty: npt.NDArray[np.bool_]
    serving: npt.NDArray[np.bool_]
    interactive: npt.NDArray[np.bool_]
    told: npt.NDArray[np.bool_]
    """Somebody said who holds it, or that nobody does."""


def _rows(ids: npt.NDArray[Any], row_of: Mapping[int, int]) -> npt.NDArray[np.int64]:
    """The row of each accelerator id."""
    known = np.array(sorted(row_of), dtype=np.int64)
    rows = np.array([row_of[int(one)] for one in known], dtype=np.int64)
    return rows[np.searchsorted(known, ids.astype(np.int64))]


def _curve(minutes: Minutes) -> IdleSurvivalCurve:
    """How long idleness of this part of the fleet lasts, from the minutes at hand."""
    activity = minutes.activity()
    known = minutes.seen & np.isfinite(activity) & (minutes.holder != NOBODY)
    return estimate_curve(*idle_gaps(activity <= IDLE_RULES.idle_at_most, known))


def _readings(minutes: Minutes, episode: IdleEpisode) -> dict[str, float]:
    """Means of what was read while it lasted, for people to check; what nobody read is left out."""
    part = (episode.row, slice(episode.since, episode.end))
    named = {
        "utilization_ratio": minutes.utilization,
        "sm_active_ratio": minutes.sm_active,
        "memory_used_bytes": minutes.memory_bytes,
        "power_watts": minutes.power_watts,
    }
    means = {}
    for name, values in named.items():
        known = values[part][np.isfinite(values[part])]
        if len(known):
            means[name] = round(float(known.mean()), 4)
    return means
