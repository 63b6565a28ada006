"""A runaway is told within minutes of its first sample, straight from the evidence, before its hour is over.

Once an hour each team's past says what its spending must exceed to stand out at once (`next_limit`). Every minute what
the teams hold in the last two windows of three minutes is compared with it; both must exceed it, and workloads that
began lately must make at least half of what is too much. What is opened here goes on under the same key as soon as the
hourly search sees it too, so that an episode is told once; what falls back is resolved half an hour later.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import pairwise
from typing import Protocol

from gpuledger_collector.accounting.money import cost_micro
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS
from gpuledger_collector.accounting.pricing import PriceBook
from gpuledger_collector.accounting.quantity import gpu_ns
from gpuledger_collector.insight.anomalies import AnomalyLimit, next_limit
from gpuledger_collector.insight.anomalies.causes import AnomalyCase, WorkloadRun, explain
from gpuledger_collector.insight.findings import Finding, RecentHolding
from gpuledger_collector.jobs.find_anomalies import (
    BY_MINUTES,
    DAYS,
    FIRST_MINUTE,
    KIND,
    SHOWN_DRIVERS,
    SpendingUnit,
    Team,
    teams_of,
    told_as,
)
from gpuledger_collector.services.rating import Owners

MINUTE_MS = 60_000
WINDOW_MS = 3 * MINUTE_MS
LAG_MS = MINUTE_MS
"""So much of the newest evidence is left for the other nodes to come."""
LATELY_MS = 2 * HOUR_MS
"""Workloads that began no longer ago are what may have run away."""
THEIR_PART = 0.5
OVER_MS = 30 * MINUTE_MS
CONFIDENCE = 0.9
"""None of the alarms that this rule gave on the open traces' clean weeks was false: it gave none there (insight.md)."""


class WatchedUnit(SpendingUnit, Protocol):
    """One transaction over one snapshot."""

    def newest_evidence(self, now_ms: int) -> int | None:
        """End of the newest evidence of the last two hours."""

    def held_now(self, edges_ms: Sequence[int]) -> Sequence[RecentHolding]:
        """Who held what in each window between two edges."""


class Watched(Protocol):
    """Where evidence and findings are kept."""

    def unit(self) -> AbstractContextManager[WatchedUnit]:
        """A transaction, alone in searching."""


@dataclass(frozen=True)
class _Habit:
    """What is known of a team since the last full hour."""

    team: Team
    limit: AnomalyLimit
    old: frozenset[int]
    """Workloads that began longer ago than lately."""


@dataclass
class _Level:
    """What a team spends an hour at its first rates, by window; all of it, and by workloads that began lately."""

    whole: list[float]
    new: list[float]
    culprits: set[int]


class SpendingWatch:
    """Remembers between looks what it has learnt of the past; a new one learns it again and finds the same."""

    def __init__(self, store: Watched) -> None:
        self._store = store
        self._hour = -1
        self._habits: dict[tuple[str, str], _Habit] = {}

    def look(self, now_ms: int) -> int:
        """One look at the last minutes; how many episodes were opened, kept up to date or resolved."""
        with self._store.unit() as unit:
            if self._hour != now_ms // HOUR_MS:
                self._habits = dict(_learn(unit, now_ms // HOUR_MS * HOUR_MS))
                self._hour = now_ms // HOUR_MS
            newest = unit.newest_evidence(now_ms)
            if newest is None or not self._habits:
                return 0
            at = (newest - LAG_MS) // MINUTE_MS * MINUTE_MS
            return unit.put(self._changed(unit, at))

    def _changed(self, unit: WatchedUnit, at_ms: int) -> list[Finding]:
        known = [one for one in unit.overlapping(KIND, at_ms - DAY_MS, at_ms + 1) if one.resolved_ms is None]
        made = []
        above = set()
        for key, level in self._levels(unit, at_ms).items():
            habit = self._habits[key]
            extra = min(level.whole) - habit.limit.expected
            if min(level.whole) <= habit.limit.stands_out or min(level.new) < THEIR_PART * extra:
                continue
            above.add(key)
            same = [one for one in known if (one.subject, one.currency) == (habit.team.said, key[1]) and _is_usage(one)]
            if all(BY_MINUTES in one.evidence for one in same):
                made.append(_episode(unit, habit, level, at_ms, same[0] if same else None))
        for one in known:
            mine = BY_MINUTES in one.evidence and (one.team, one.currency) not in above
            if mine and at_ms - one.until_ms > OVER_MS:
                made.append(replace(one, resolved_ms=one.until_ms))
        return made

    def _levels(self, unit: WatchedUnit, at_ms: int) -> dict[tuple[str, str], _Level]:
        edges = [at_ms - 2 * WINDOW_MS, at_ms - WINDOW_MS, at_ms]
        rows = _shared(unit.held_now(edges), edges)
        facts = unit.workloads(sorted({row.workload_id for row in rows}))
        owners = Owners(unit.rules(), facts)
        book = PriceBook(unit.prices(), unit.purchase_choices())
        levels: dict[tuple[str, str], _Level] = {}
        for row in rows:
            price = book.price_at(row.pool, row.gpu_model, row.node, "", at_ms)
            if price is None:
                continue
            key = (owners.at(row.pool, row.node)(row.workload_id, at_ms, None).team, price.currency)
            habit = self._habits.get(key)
            if habit is None:
                continue
            rate = habit.team.first_rates.get((row.pool, row.gpu_model, row.node), float(price.rate))
            level = levels.setdefault(key, _Level([0.0, 0.0], [0.0, 0.0], set()))
            for window, held in enumerate(row.held_ms):
                spent = held / WINDOW_MS * row.gpu_micro / 1e6 * rate
                level.whole[window] += spent
                if row.workload_id not in habit.old:
                    level.new[window] += spent
                    level.culprits.add(row.workload_id)
        return levels


def _is_usage(one: Finding) -> bool:
    return one.state in {"usage", "both"}


def _learn(unit: WatchedUnit, hour_ms: int) -> Iterable[tuple[tuple[str, str], _Habit]]:
    """What each team is used to, from the full hours before."""
    start = hour_ms - DAYS * DAY_MS
    uses = unit.hourly_use(start, hour_ms)
    if not uses:
        return
    coverage = unit.coverage(start, hour_ms)
    old = frozenset(use.workload_id for use in uses if use.rating_interval_ms < hour_ms - LATELY_MS)
    for team in teams_of(unit, uses):
        limit = next_limit(team.series(hour_ms, coverage)[0])
        if limit is not None:
            yield (team.name, team.currency), _Habit(team, limit, old)


def _shared(rows: Sequence[RecentHolding], edges: Sequence[int]) -> list[RecentHolding]:
    """Holders of one accelerator share it: together they never held it for longer than a window."""
    sums: dict[int, list[int]] = defaultdict(lambda: [0] * (len(edges) - 1))
    for row in rows:
        sums[row.accelerator_id] = [a + b for a, b in zip(sums[row.accelerator_id], row.held_ms, strict=True)]
    lengths = [after - before for before, after in pairwise(edges)]
    return [
        replace(
            row,
            held_ms=tuple(
                held if whole <= length else held * length // whole
                for held, whole, length in zip(row.held_ms, sums[row.accelerator_id], lengths, strict=True)
            ),
        )
        for row in rows
    ]


def _episode(unit: WatchedUnit, habit: _Habit, level: _Level, at_ms: int, known: Finding | None) -> Finding:
    """What the new workloads cost so far, to the micro-unit; none of them was there a week before."""
    edges = [at_ms - LATELY_MS - HOUR_MS if known is None else known.since_ms, at_ms]
    rows = [row for row in _shared(unit.held_now(edges), edges) if row.workload_id in level.culprits]
    facts = unit.workloads(sorted(level.culprits))
    names = {number: fact.name or str(number) for number, fact in facts.items()}
    book = PriceBook(unit.prices(), unit.purchase_choices())
    held: dict[tuple[str, str, Decimal], int] = defaultdict(int)
    for row in rows:
        price = book.price_at(row.pool, row.gpu_model, row.node, "", at_ms)
        if price is not None:
            held[names[row.workload_id], row.gpu_model, price.rate] += gpu_ns(row.gpu_micro, row.held_ms[0])
    costs: dict[tuple[str, str], int] = defaultdict(int)
    for (name, model, rate), quantity in held.items():
        costs[name, model] += cost_micro(quantity, rate)
    since = min([row.since_ms for row in rows] if known is None else [known.since_ms])
    cost = sum(costs.values())
    moved: dict[str, int] = defaultdict(int)
    for (name, _), spent in costs.items():
        moved[name] += spent
    began = [*habit.team.runs, *_runs(rows, names, at_ms)]
    cause = explain(AnomalyCase(habit.team.said, since, at_ms, began, moved))
    team, currency = habit.team, habit.team.currency
    dearest = sorted(costs.items(), key=lambda entry: (-entry[1], entry[0]))[:SHOWN_DRIVERS]
    return Finding(
        key=f"{KIND}:{team.said}:{currency}:{since}" if known is None else known.key,
        kind=KIND,
        state="usage",
        subject=team.said,
        accelerator_id=None,
        workload_id=None,
        team=team.name,
        owner={"team": team.name} if team.name else {},
        since_ms=since,
        opened_ms=at_ms if known is None else known.opened_ms,
        until_ms=at_ms,
        resolved_ms=None,
        confidence=CONFIDENCE,
        currency=currency,
        cost_micro=cost,
        per_day_micro=round(24e6 * (min(level.whole) - habit.limit.expected)),
        evidence={
            BY_MINUTES: True,
            FIRST_MINUTE: since,
            "days_before": 7,
            "price_micro": 0,
            "volume_micro": cost,
            "mix_micro": 0,
            "drivers": [_driver(name, model, spent) for (name, model), spent in dearest],
            "rates": [],
            **told_as(cause),
        },
    )


def _driver(name: str, model: str, spent: int) -> Mapping[str, object]:
    return {
        "workload": name,
        "model": model,
        "change_micro": spent,
        "price_micro": 0,
        "volume_micro": spent,
        "mix_micro": 0,
    }


def _runs(rows: Sequence[RecentHolding], names: Mapping[int, str], at_ms: int) -> list[WorkloadRun]:
    """The new workloads as runs that go on."""
    of: dict[int, list[RecentHolding]] = defaultdict(list)
    for row in rows:
        of[row.workload_id].append(row)
    return [
        WorkloadRun(
            names[number],
            min(row.since_ms for row in ones),
            at_ms,
            sum(row.gpu_micro for row in ones),
            sum(gpu_ns(row.gpu_micro, row.held_ms[0]) for row in ones),
            0,
            0,
            0,
            going_on=True,
        )
        for number, ones in of.items()
    ]
