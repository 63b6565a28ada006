"""Two periods compared: what each group cost in both, and how the change divides into price, volume
and mix, exact to the micro-unit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpuledger_collector.accounting.budgets import Driver, HolderSpend, drivers
from gpuledger_collector.accounting.change_causes import ChangeCause, find_main_cause
from gpuledger_collector.accounting.chargeback import UNPRICED, shown_keys
from gpuledger_collector.accounting.ledger import ChargedLine
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.pricing import Price
from gpuledger_collector.accounting.rate_changes import (
    PRICE,
    DatedRate,
    RateChange,
    RatedHours,
    find_rate_changes,
    other_price_micro,
)

Condition = Callable[[Sequence[str], Sequence[str]], bool]
"""Whether cells under dimensions are wanted."""


@dataclass(frozen=True, slots=True)
class GroupChange:
    """The cost of a group in both periods, in micro-units."""

    currency: str
    keys: tuple[str, ...]
    before: int = 0
    after: int = 0
    by_price: int = 0
    by_volume: int = 0
    by_mix: int = 0

    @property
    def change(self) -> int:
        """After less before."""
        return self.after - self.before

    def plus(self, other: GroupChange) -> GroupChange:
        """Both together."""
        return replace(
            self,
            before=self.before + other.before,
            after=self.after + other.after,
            by_price=self.by_price + other.by_price,
            by_volume=self.by_volume + other.by_volume,
            by_mix=self.by_mix + other.by_mix,
        )


@dataclass(frozen=True, slots=True)
class PeriodComparison:
    """Two periods compared by dimensions, the largest change first; `hours` in GPU-nanoseconds by
    currency (before, after).

    `rate_changes` by currency are part of what the price did, over all groups.
    """

    by: tuple[str, ...]
    before: Period
    after: Period
    groups: Sequence[GroupChange]
    hours: Mapping[str, tuple[int, int]]
    rate_changes: Mapping[str, Sequence[RateChange]] = field(default_factory=dict)

    def other_price_micro(self, currency: str) -> int:
        """What of the price's part no change of a rate explains."""
        changes = self.rate_changes.get(currency, ())
        return other_price_micro(self.total(currency).by_price, changes)

    def main_cause(self, currency: str) -> ChangeCause | None:
        """The largest cause that goes the way of the change, of groups that are jobs by model; None:
        nothing changed.
        """
        rows = [
            Driver(
                group.keys,
                group.keys[self.by.index("model")],
                group.before,
                group.after,
                group.by_price,
                group.by_volume,
                group.by_mix,
            )
            for group in self.groups
            if group.currency == currency
        ]
        return find_main_cause(rows, self.rate_changes.get(currency, ()))

    def total(self, currency: str) -> GroupChange:
        """All groups in one currency."""
        total = GroupChange(currency, ())
        for group in self.groups:
            if group.currency == currency:
                total = total.plus(group)
        return total


@dataclass(frozen=True, slots=True)
class BillChange:
    """By how much what owners pay differs from the period before, and which rates changed
    meanwhile; those are told to readers of the entire fleet alone.
    """

    compared: PeriodComparison
    rates: Sequence[DatedRate]


@dataclass(frozen=True, slots=True)
class BilledCorrection:
    """Corrections of a closed month that a period bills, in one currency."""

    month: str
    currency: str
    micro: int


def compare_lines(
    spans: tuple[Period, Period],
    lines: tuple[Iterable[ChargedLine], Iterable[ChargedLine]],
    by: tuple[str, ...],
    condition: Condition,
    prices: Mapping[int, Price] | None = None,
) -> PeriodComparison:
    """Compare two periods from their lines, which have the dimensions of `by` and then the model,
    unless that is one of them, and last the price where `prices` by id are given.
    """
    read = [_spend(own, with_model(by), condition, prices) for own in lines]
    before, after = ({currency: own.spends for currency, own in side.items()} for side in read)
    rated = [{currency: own.rated for currency, own in side.items()} for side in read]
    currencies = sorted({*before, *after})
    groups: dict[tuple[str, tuple[str, ...]], GroupChange] = {}
    for currency in currencies:
        for driver in drivers(before.get(currency, ()), after.get(currency, ())):
            keys = driver.label[: len(by)]
            known = groups.get((currency, keys), GroupChange(currency, keys))
            groups[currency, keys] = known.plus(
                GroupChange(
                    currency,
                    keys,
                    driver.before_micro,
                    driver.after_micro,
                    driver.price_micro,
                    driver.volume_micro,
                    driver.mix_micro,
                )
            )
    hours = {
        currency: (_hours(before.get(currency, ())), _hours(after.get(currency, ())))
        for currency in currencies
    }
    ordered = sorted(
        groups.values(), key=lambda group: (-abs(group.change), group.currency, group.keys)
    )
    rate_changes = {
        currency: find_rate_changes(*(side.get(currency, ()) for side in rated))
        for currency in currencies
    }
    return PeriodComparison(by, *spans, ordered, hours, rate_changes)


def with_model(by: tuple[str, ...]) -> tuple[str, ...]:
    """The dimensions by which lines are read: prices hang on the model, also where it is not shown."""
    return by if "model" in by else (*by, "model")


def sum_corrections(
    lines: Iterable[ChargedLine], by: tuple[str, ...], condition: Condition
) -> list[BilledCorrection]:
    """Sum the corrections among lines by the month that they amend and currency."""
    sums: dict[tuple[str, str], int] = defaultdict(int)
    for line in lines:
        if line.correction_of and line.currency and condition(shown_keys(line, by), by):
            sums[line.correction_of, line.currency] += line.cost_micro or 0
    return [BilledCorrection(*key, micro) for key, micro in sorted(sums.items())]


def _hours(spends: Iterable[HolderSpend]) -> int:
    return sum(spend.gpu_ns for spend in spends)


@dataclass(slots=True)
class _Spending:
    """What every group had in one currency, and at which prices where those are read."""

    spends: list[HolderSpend] = field(default_factory=list)
    rated: list[RatedHours] = field(default_factory=list)


def _spend(
    lines: Iterable[ChargedLine],
    by: tuple[str, ...],
    condition: Condition,
    prices: Mapping[int, Price] | None,
) -> Mapping[str, _Spending]:
    """What every group had in a period, by currency; usage without a price has no cost to compare."""
    read_by = by if prices is None else (*by, PRICE)
    spending: dict[str, _Spending] = defaultdict(_Spending)
    for line in lines:
        keys = shown_keys(line, read_by)[: len(by)]
        is_unpriced = keys[:1] == (UNPRICED,) and line.currency is None
        if not is_unpriced and condition(keys, by):
            model = line.keys[by.index("model")]
            own = spending[line.currency or ""]
            own.spends.append(HolderSpend(keys, model, line.gpu_ns, line.cost_micro or 0))
            if prices is not None:
                number = line.keys[-1]
                price = prices.get(int(number)) if number else None
                own.rated.append(RatedHours(keys, model, price, line.gpu_ns))
    return spending
