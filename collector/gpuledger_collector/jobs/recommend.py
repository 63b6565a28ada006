"""Recommend: the evidence of the last weeks becomes advice, priced as the difference of two ledgers, kept once.

Run again it writes the same: advice is known by its kind and subject. What people decided stays; open advice whose
evidence is gone expires; what was accepted is measured by the ledger, before against after, at the rates since.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Protocol

from gpuledger_collector.accounting.counterfactual import (
    RENTED,
    Change,
    Saving,
    amount,
    compare,
    merged,
    reserved_saving,
)
from gpuledger_collector.accounting.owner_tree import LEVELS
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, Period
from gpuledger_collector.accounting.rating import present_ms
from gpuledger_collector.accounting.realized_savings import ChargedPlace, SavingComparison, measure_saving
from gpuledger_collector.accounting.usage import HELD, UNALLOCATED, HourlyUsage
from gpuledger_collector.insight.findings import Finding
from gpuledger_collector.insight.recommendations import (
    Estimate,
    Holding,
    IntervalUsage,
    ObservedAccelerator,
    Proposal,
    ReadingStats,
    Window,
    propose,
)
from gpuledger_collector.insight.recommendations.energy import Tariff, energy_micro
from gpuledger_collector.insight.recommendations.record import (
    AcceptedRecommendation,
    RealizedSaving,
    Recommendation,
    RecommendationRun,
    SavingRange,
)
from gpuledger_collector.services.commitment_coverage import book_of
from gpuledger_collector.services.rating import DayUsage, places, usage_of
from gpuledger_collector.storage.ledger import inventory, workloads, zones
from gpuledger_collector.storage.locks import Connection

WINDOW_DAYS, DEMAND_DAYS = 28, 90
VALID_MS = 30 * DAY_MS
"""So long advice stands, and a rejection keeps it away; and so long a rate that is missing is waited for."""
BUYING = frozenset({"spot", "reserve"})
"""Advice to buy in another way: the way in which time was bought before is what it is held against."""


class RecommendationUnit(Protocol):
    """One transaction over one snapshot, alone in recommending."""

    @property
    def connection(self) -> Connection:
        """The connection of the transaction."""

    def findings(self, start_ms: int, end_ms: int) -> Sequence[Finding]:
        """Idle findings that were seen in the period."""

    def readings(self, start_ms: int, end_ms: int) -> Mapping[tuple[int, str], Mapping[str, ReadingStats]]:
        """Readings by workload and model, over minutes in which it alone held the accelerator."""

    def named(self, ids: Sequence[int]) -> Mapping[int, tuple[str, str]]:
        """Key and name of workloads."""

    def demand(self, start_ms: int, end_ms: int) -> Mapping[tuple[str, str], Mapping[int, int]]:
        """GPU-nanoseconds held by pool, model and hour."""

    def settled(self, now_ms: int) -> frozenset[str]:
        """Keys of advice that people have decided on, and that is not to be made again yet."""

    def put(self, made: Sequence[Recommendation], run: RecommendationRun) -> None:
        """Write advice; what is open and not among it expires."""

    def accepted(self) -> Sequence[AcceptedRecommendation]:
        """Recommendations whose saving is to be measured."""

    def spent(self, scope: Mapping[str, object], period: Period) -> Sequence[ChargedPlace]:
        """The charges of a scope by day and place."""

    def put_realised(self, found: Iterable[RealizedSaving]) -> None:
        """Write what accepted recommendations brought."""


class Recommendations(Protocol):
    """Where recommendations are kept."""

    def unit(self) -> AbstractContextManager[RecommendationUnit]:
        """A transaction, alone in recommending."""


def recommend(store: Recommendations, now_ms: int, tariff: Tariff | None = None) -> int:
    """Make advice of the weeks up to now, and measure what was accepted; how much advice there is."""
    with store.unit() as unit:
        unit.put_realised(measured(unit, now_ms))
        look = _Look(unit, now_ms)
        if look.window is None:
            return 0
        advice, gaps = propose(look.window)
        settled = unit.settled(now_ms)
        priced = _Priced(look, [one for one in advice if one.key not in settled], tariff)
        made = priced.made()
        run = RecommendationRun(
            now_ms,
            look.period.start_ms,
            look.period.end_ms,
            priced.joint(),
            [{"kind": gap.kind, "subject": gap.subject, "reason": gap.reason} for gap in gaps],
        )
        unit.put(made, run)
        return len(made)


class _Look:
    """Everything that was seen in the window."""

    def __init__(self, unit: RecommendationUnit, now_ms: int) -> None:
        end_ms = now_ms - now_ms % HOUR_MS
        period = Period((end_ms - WINDOW_DAYS * DAY_MS) // DAY_MS * DAY_MS, end_ms)
        capacity = inventory.capacity(unit.connection, period)
        self.book = book_of(unit.connection)
        self.window: Window | None = None
        self.days: list[DayUsage] = []
        begin = min((row.in_ms for row in capacity), default=end_ms)
        self.period = Period(max(period.start_ms, -(-begin // HOUR_MS) * HOUR_MS), end_ms)
        if not self.period.ms:
            return
        whole = Period(self.period.start_ms // DAY_MS * DAY_MS, -(-end_ms // DAY_MS) * DAY_MS)
        self.days = [usage_of(unit.connection, day, end_ms) for day in whole.days()]
        self.window = self._window(unit)

    def _window(self, unit: RecommendationUnit) -> Window:
        held: dict[tuple[int | None, str, str], list[IntervalUsage]] = defaultdict(list)
        owners: dict[tuple[int | None, str, str], dict[str, str]] = {}
        seen: dict[int, int] = defaultdict(int)
        there: dict[int, int] = defaultdict(int)
        stood: dict[int, ObservedAccelerator] = {}
        for usage in self.days:
            inside = usage.day.clip(self.period)
            if inside is None:
                continue
            for placement, capacity, pieces in places(usage, self.book):
                card = placement.accelerator
                stood[card.accelerator_id] = ObservedAccelerator(
                    card.pool, card.gpu_model, card.node, card.gpu_micro, 0.0
                )
                there[card.accelerator_id] += present_ms(capacity, inside, self.period.end_ms)
                for piece in pieces:
                    if not self.period.start_ms <= piece.start_ms < self.period.end_ms:
                        continue
                    seen[card.accelerator_id] += piece.held_ms
                    if piece.state == UNALLOCATED or (piece.state == HELD and piece.workload_id is not None):
                        key = (piece.workload_id, card.pool, card.gpu_model)
                        held[key].append(_rating_interval(piece))
                        if piece.workload_id is not None and key not in owners:
                            owner_of = usage.owners.at(card.pool, card.node)
                            path = owner_of(piece.workload_id, piece.start_ms, piece.attributes_id)
                            owners[key] = {level: path.level(level) for level in LEVELS if path.level(level)}
        ids = sorted({key[0] for key in held if key[0] is not None})
        facts, names = workloads.facts(unit.connection, ids), unit.named(ids)
        readings = unit.readings(self.period.start_ms, self.period.end_ms)
        holdings = []
        for (workload_id, pool, model), rating_intervals in held.items():
            if workload_id is not None:
                label, name = names[workload_id]
                holdings.append(
                    Holding(
                        workload_id,
                        label,
                        name,
                        facts[workload_id].kind,
                        pool,
                        model,
                        facts[workload_id].tags,
                        owners[workload_id, pool, model],
                        rating_intervals,
                        readings.get((workload_id, model), {}),
                    )
                )
        free = {
            (pool, model): Holding(None, f"free/{pool}/{model}", "", "", pool, model, usage=rating_intervals)
            for (workload_id, pool, model), rating_intervals in held.items()
            if workload_id is None
        }
        share = {
            card: replace(place, seen=min(1.0, seen[card] / there[card]) if there[card] else 0.0)
            for card, place in stood.items()
        }
        return Window(
            start_ms=self.period.start_ms,
            end_ms=self.period.end_ms,
            holdings=sorted(holdings, key=lambda one: (one.key, one.pool, one.model)),
            free=free,
            accelerators=share,
            findings=[
                one
                for one in unit.findings(self.period.start_ms, self.period.end_ms)
                if one.opened_ms < self.period.end_ms
            ],
            book=self.book,
            demand_ns=unit.demand(self.period.end_ms - DEMAND_DAYS * DAY_MS, self.period.end_ms),
            imported=len({one.workload_id for usage in self.days for one in usage.imported}),
        )


def _rating_interval(piece: HourlyUsage) -> IntervalUsage:
    return IntervalUsage(
        piece.accelerator_id,
        piece.start_ms,
        piece.held_ms,
        piece.busy_ms,
        piece.idle_ms,
        piece.unknown_ms,
        piece.energy_mj,
    )


Changes = Mapping[tuple[int, int | None, int], Change]


@dataclass
class _Column:
    """Low, expected or high of one advice (or of all at once): its changes and the difference that they make."""

    changes: Changes
    reserved: Sequence[Estimate] = ()
    sums: dict[str, Saving] = field(default_factory=dict)
    touched: set[tuple[int, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.touched = {(card, at_ms // DAY_MS) for card, _, at_ms in self.changes}
        self.kinds = {(one.reservation.pool, one.reservation.gpu_model) for one in self.reserved if one.reservation}


class _Priced:
    """Advice and what it is worth, each alone and all together, through one pass over the window's days."""

    def __init__(self, look: _Look, advice: Sequence[Proposal], tariff: Tariff | None) -> None:
        self._look, self._advice, self._tariff = look, advice, tariff
        self._alone = [[self._column([estimate]) for estimate in estimates(one)] for one in advice]
        self._all = [self._column([estimates(one)[at] for one in advice]) for at in range(3)]
        columns = [*self._all, *(column for three in self._alone for column in three)]
        for usage in look.days:
            number = usage.day.start_ms // DAY_MS
            for placement, capacity, pieces in places(usage, look.book):
                card = placement.accelerator
                for column in columns:
                    kind = (card.pool, card.gpu_model)
                    if (card.accelerator_id, number) in column.touched or kind in column.kinds:
                        compare(
                            column.sums,
                            card,
                            usage.day,
                            capacity,
                            pieces,
                            column.changes,
                            look.book,
                            usage.owners.at(card.pool, card.node),
                            usage.until_ms,
                        )

    def _column(self, of: Sequence[Estimate]) -> _Column:
        return _Column(
            merged(change for one in of for change in one.changes), [one for one in of if one.reservation is not None]
        )

    def _worth(self, column: _Column) -> tuple[str | None, Saving | None]:
        """Currency and saving of a column, its reservations counted on what would still be rented on demand."""
        start_ms, end_ms = self._look.period.start_ms, self._look.period.end_ms
        for one in column.reserved:
            made = one.reservation
            if made is None:
                continue
            saving = column.sums.setdefault(made.currency, Saving())
            paid = {key: ns for key, ns in saving.paid_ns.items() if start_ms <= key[3] < end_ms}
            saving.cash_micro += reserved_saving(paid, made, (end_ms - start_ms) // HOUR_MS)
            saving.price_ids |= set() if made.price_id is None else {made.price_id}
        return amount(column.sums) if column.changes or column.reserved else (None, Saving())

    def made(self) -> list[Recommendation]:
        """The advice that is worth something, or whose worth no rate tells."""
        found = []
        for one, columns in zip(self._advice, self._alone, strict=True):
            worth = [self._worth(column) for column in columns]
            currency = next((known for known, _ in (worth[1], worth[2]) if known is not None), None)
            cash = _three([None if saving is None else saving.cash_micro for _, saving in worth])
            capacity = _three([None if saving is None else saving.capacity_micro for _, saving in worth])
            energy = self._energy(one)
            if currency is None and energy[1] is not None and self._tariff is not None:
                currency = self._tariff.currency
            expected = worth[1][1]
            known = [value for three in (cash, capacity, energy) for value in three if value is not None]
            if any(known) or (None in cash and columns[2].changes) or one.kind == "power_cap":
                prices = {price for column in columns for saving in column.sums.values() for price in saving.price_ids}
                found.append(
                    Recommendation(
                        key=one.key,
                        kind=one.kind,
                        subject=one.subject,
                        team=one.owner.get("team", ""),
                        owner=one.owner,
                        advice=one.text,
                        evidence={**one.evidence, "kwh": [estimate.kwh for estimate in estimates(one)]},
                        scope=one.scope,
                        start_ms=self._look.period.start_ms,
                        end_ms=self._look.period.end_ms,
                        price_ids=sorted(prices),
                        currency=currency,
                        cash=cash,
                        capacity=capacity,
                        energy=energy,
                        freed_gpu_ns=0 if expected is None else expected.freed_gpu_ns,
                        made_ms=self._look.period.end_ms,
                        expires_ms=self._look.period.end_ms + VALID_MS,
                    )
                )
        return found

    def joint(self) -> dict[str, dict[str, SavingRange]]:
        """All advice followed at once, by currency: cash and freed capacity through one ledger, never added up."""
        found: dict[str, dict[str, list[int]]] = {}
        for at, column in enumerate(self._all):
            self._worth(column)
            for currency, saving in column.sums.items():
                if currency:
                    entry = found.setdefault(currency, {"cash": [0, 0, 0], "capacity": [0, 0, 0]})
                    entry["cash"][at] = saving.cash_micro
                    entry["capacity"][at] = saving.capacity_micro
        told = {currency: {name: _three(values) for name, values in entry.items()} for currency, entry in found.items()}
        if self._tariff is not None:
            told.setdefault(self._tariff.currency, {})["energy"] = self._joint_energy()
        return told

    def _energy(self, one: Proposal) -> SavingRange:
        """Energy is the holder's own bill only where the accelerators are not rented."""
        if not self._owned(one):
            return (None, None, None)
        return _three([energy_micro(estimate.kwh, self._tariff) for estimate in estimates(one)])

    def _owned(self, one: Proposal) -> bool:
        window = self._look.window
        if window is None:
            return False
        kinds = {
            (holding.pool, holding.model) for holding in window.holdings if holding.workload_id in workloads_of(one)
        }
        prices = [self._look.book.price_at(*kind, "", "", self._look.period.end_ms - 1) for kind in kinds]
        return bool(prices) and not any(price is None or price.purchase in RENTED for price in prices)

    def _joint_energy(self) -> SavingRange:
        """Of several advices to one workload only the largest: its watts are saved once."""
        best: dict[object, list[int]] = defaultdict(lambda: [0, 0, 0])
        for one in self._advice:
            for at, value in enumerate(self._energy(one)):
                entry = best[workloads_of(one)]
                entry[at] = max(entry[at], value or 0)
        sums = [sum(entry[at] for entry in best.values()) for at in range(3)]
        return sums[0], sums[1], sums[2]


def estimates(one: Proposal) -> tuple[Estimate, Estimate, Estimate]:
    """Low, expected, high."""
    return one.low, one.expected, one.high


def workloads_of(one: Proposal) -> tuple[int, ...]:
    """The workloads that an advice is about; none where it is about a pool."""
    alone = one.scope.get("workload_id")
    return tuple(one.scope.get("workload_ids", ())) if alone is None else (alone,)


def _three(values: Sequence[int | None]) -> SavingRange:
    """In rising order; with one unknown all are."""
    known = sorted(value for value in values if value is not None)
    return (known[0], known[1], known[2]) if len(known) == len(values) else (None, None, None)


def measured(unit: RecommendationUnit, now_ms: int) -> list[RealizedSaving]:
    """What accepted advice brought by the ledger: whole days since, as long as the window was, against those before."""
    accepted = unit.accepted()
    if not accepted:
        return []
    calendar, book = zones.calendar(unit.connection), book_of(unit.connection)
    today_ms = calendar.day_of(now_ms).start_ms
    found = []
    for one in accepted:
        wanted = max(1, (one.end_ms - one.start_ms) // DAY_MS)
        decided = calendar.day_of(one.decided_ms)
        opened_ms, first_ms = (_begun(calendar.day_of(at_ms), at_ms) for at_ms in (one.start_ms, one.decided_ms))
        if decided.start_ms <= opened_ms or today_ms <= first_ms:
            continue
        days = calendar.days(Period(first_ms, today_ms))[:wanted]
        before, after = Period(opened_ms, decided.start_ms), Period(first_ms, days[-1].end_ms)
        was, now = unit.spent(one.scope, before), unit.spent(one.scope, after)
        came = SavingComparison("nothing: the advice has no currency", unknown="no rate priced the advice")
        if one.currency is not None:
            came = measure_saving(
                was,
                before.ms,
                now,
                days,
                one.currency,
                book,
                idle=one.scope.get("measure") == "idle",
                same_purchase=one.kind in BUYING,
            )
        told = {
            "compared": came.compared,
            "before": _said(before, was, one),
            "after": _said(after, now, one),
            "before_at_rates_since_micro": came.before_micro,
            "unknown": came.unknown,
        }
        over = len(days) >= wanted and (came.micro is not None or now_ms >= after.end_ms + VALID_MS)
        found.append(RealizedSaving(one.id, came.micro, after.end_ms, told, done=over))
    return found


def _begun(day: Period, at_ms: int) -> int:
    """Where the first whole day from an instant on begins, which lies in this day."""
    return day.start_ms if day.start_ms == at_ms else day.end_ms


def _said(period: Period, spent: Sequence[ChargedPlace], one: AcceptedRecommendation) -> dict[str, int]:
    """What was charged, at the rates of its own days, and for how much time (GPU-nanoseconds)."""
    priced = [line for line in spent if line.currency == one.currency is not None]
    return {
        "start_ms": period.start_ms,
        "end_ms": period.end_ms,
        "cost_micro": sum(line.cost_micro or 0 for line in priced),
        "idle_cost_micro": sum(line.idle_cost_micro or 0 for line in priced),
        "gpu_ns": sum(line.gpu_ns for line in spent),
        "busy_ns": sum(line.busy_ns for line in spent),
        "idle_ns": sum(line.idle_ns for line in spent),
    }
