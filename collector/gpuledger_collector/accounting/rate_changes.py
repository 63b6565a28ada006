"""Which changes of rates moved spending between two periods, and by how much.

The price part of a change of spending is the later hours at the change of their average price. A
rate that changes within a period moves that average only by the hours after the change. So the
effect of one change is the difference of its rates, times the later hours after it, less what would
lie after it if the later hours were divided as the earlier ones.

Law: the effects, and the rest that other prices, pools and commitments caused, add up to the price
part. Only rates that both were charged by are compared: what nobody paid says nothing of a bill.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise

from gpuledger_collector.accounting.money import MICRO
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.pricing import Price
from gpuledger_collector.accounting.quantity import GPU_NS_PER_HOUR, round_half_even_div

PRICE = "price"
"""The dimension of lines that are asked for by price: its id, empty where no rate was paid."""


@dataclass(frozen=True, slots=True)
class RatedHours:
    """GPU-time that a holder was charged at one price of the book; None: at none of it, as time that
    a commitment covers.
    """

    label: tuple[str, ...]
    model: str
    price: Price | None
    gpu_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RateChange:
    """A rate that changed, and what that did to a change of spending, in micro-units of its
    currency.

    Empty fields of its place mean any. `gpu_ns`: the later period's time at the new rate or one
    after it.
    """

    gpu_model: str
    pool: str
    node: str
    region: str
    purchase: str
    currency: str
    at_ms: int
    before: Decimal
    after: Decimal
    gpu_ns: int
    micro: int


_Place = tuple[str, str, str, str, str, str]
_Key = tuple[tuple[str, ...], str]
_Change = tuple[_Place, int]


@dataclass(slots=True)
class _Hours:
    """The time of one holder, or of one model: all of it, and what lies after each change."""

    gpu_ns: int = 0
    after: dict[_Change, int] = field(default_factory=lambda: defaultdict(int))

    def add(self, gpu_ns: int, passed: Iterable[_Change]) -> None:
        self.gpu_ns += gpu_ns
        for change in passed:
            self.after[change] += gpu_ns


def find_rate_changes(
    before: Sequence[RatedHours], after: Sequence[RatedHours]
) -> list[RateChange]:
    """Find the changes of rates that two periods were charged by, the largest effect first.

    A holder that is new is compared with the earlier hours of its model, as its price is; one whose
    model is new has no effect of price.
    """
    rates = _used_rates([*before, *after])
    holders_before, models_before = _sum_hours(before, rates)
    holders_after, _ = _sum_hours(after, rates)
    later: dict[_Change, int] = defaultdict(int)
    shifted: dict[_Change, int] = defaultdict(int)
    for key, hours in holders_after.items():
        own = holders_before.get(key)
        earlier = own if own is not None and own.gpu_ns else models_before.get(key[1], hours)
        for change in hours.after.keys() | earlier.after.keys():
            ns, earlier_ns = hours.after.get(change, 0), earlier.after.get(change, 0)
            later[change] += ns
            shifted[change] += ns
            if earlier.gpu_ns:
                shifted[change] -= round_half_even_div(hours.gpu_ns * earlier_ns, earlier.gpu_ns)
    changes = [
        _rate_change(place, at_ms, rates[place], later[place, at_ms], shifted[place, at_ms])
        for place, at_ms in later
    ]
    return sorted(
        changes,
        key=lambda change: (-abs(change.micro), change.at_ms, change.gpu_model, change.pool),
    )


def find_rates_within(lines: Sequence[RatedHours]) -> list[RateChange]:
    """Find the changes of rates that one period was charged by, and what they did to it: against the
    same hours at the rates that it began with.
    """
    first: dict[_Place, Price] = {}
    for line in lines:
        if line.price is not None:
            known = first.setdefault(_place_of(line.price), line.price)
            if line.price.effective_from_ms < known.effective_from_ms:
                first[_place_of(line.price)] = line.price
    unchanged = [
        line if line.price is None else replace(line, price=first[_place_of(line.price)])
        for line in lines
    ]
    return find_rate_changes(unchanged, lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class DatedRate:
    """A rate of the price book that takes the place of another one at an instant."""

    new: Price
    old: Price

    @property
    def at_ms(self) -> int:
        """From when on it holds."""
        return self.new.effective_from_ms


def list_dated_rates(book: Iterable[Price], period: Period) -> list[DatedRate]:
    """List the rates of a price book that change within a period, oldest first."""
    places: dict[_Place, list[Price]] = defaultdict(list)
    for price in sorted(book, key=lambda price: price.effective_from_ms):
        places[_place_of(price)].append(price)
    dated = [
        DatedRate(new=new, old=old)
        for own in places.values()
        for old, new in pairwise(own)
        if old.rate != new.rate and period.start_ms < new.effective_from_ms < period.end_ms
    ]
    return sorted(dated, key=lambda rate: (rate.at_ms, _place_of(rate.new)))


def other_price_micro(price_micro: int, changes: Iterable[RateChange]) -> int:
    """What of the price part of a change no change of a rate explains: other pools, ways of buying
    and commitments, and what rounds.
    """
    return price_micro - sum(change.micro for change in changes)


def _place_of(price: Price) -> _Place:
    return (
        price.gpu_model,
        price.pool,
        price.node,
        price.region,
        price.purchase,
        price.currency,
    )


def _used_rates(lines: Iterable[RatedHours]) -> Mapping[_Place, Mapping[int, Decimal]]:
    """The rates that were charged, by place and the instant from which they held."""
    rates: dict[_Place, dict[int, Decimal]] = defaultdict(dict)
    for line in lines:
        if line.price is not None:
            rates[_place_of(line.price)][line.price.effective_from_ms] = line.price.rate
    return {place: dict(sorted(own.items())) for place, own in rates.items()}


def _sum_hours(
    lines: Iterable[RatedHours], rates: Mapping[_Place, Mapping[int, Decimal]]
) -> tuple[dict[_Key, _Hours], dict[str, _Hours]]:
    """The time of each holder and of each model, and what of it lies after which change."""
    holders: dict[_Key, _Hours] = defaultdict(_Hours)
    models: dict[str, _Hours] = defaultdict(_Hours)
    for line in lines:
        passed: list[_Change] = []
        if line.price is not None:
            place = _place_of(line.price)
            passed = [
                (place, at_ms)
                for (_, old), (at_ms, new) in pairwise(rates[place].items())
                if at_ms <= line.price.effective_from_ms and old != new
            ]
        holders[line.label, line.model].add(line.gpu_ns, passed)
        models[line.model].add(line.gpu_ns, passed)
    return holders, models


def _rate_change(
    place: _Place, at_ms: int, rates: Mapping[int, Decimal], later_ns: int, shifted_ns: int
) -> RateChange:
    gpu_model, pool, node, region, purchase, currency = place
    old = max(start_ms for start_ms in rates if start_ms < at_ms)
    difference = Fraction(rates[at_ms]) - Fraction(rates[old])
    effect = difference * Fraction(shifted_ns * MICRO, GPU_NS_PER_HOUR)
    return RateChange(
        gpu_model=gpu_model,
        pool=pool,
        node=node,
        region=region,
        purchase=purchase,
        currency=currency,
        at_ms=at_ms,
        before=rates[old],
        after=rates[at_ms],
        gpu_ns=later_ns,
        micro=round(effect),
    )
