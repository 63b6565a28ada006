"""What accepted advice saved: the time of the days before at the rates since, less what the days
since cost.

Time is priced where it was, day by day, by the rates that the price book has for the days since. A
rate that fell or rose meanwhile is therefore no saving; only less time is, and time in another
place. Time that a commitment covered costs what the commitment costs while its term lasts. Where a
rate is unknown, so is the saving; it is never zero for want of a price.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from gpuledger_collector.accounting.commitments import Commitment
from gpuledger_collector.accounting.measures import Measures
from gpuledger_collector.accounting.money import MICRO, RATE_DIGITS, rate_nano
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.pricing import PriceBook
from gpuledger_collector.accounting.quantity import GPU_NS_PER_HOUR, round_half_even_div
from gpuledger_collector.accounting.usage import rating_intervals

IDLE_TIME, SAME_WORK, TIME = (
    f"cost of {what}, at the rates since"
    for what in ("idle time, a day", "the same busy time", "the time, a day")
)
"""What is compared."""


@dataclass(frozen=True, slots=True)
class PricedPlace:
    """Where time was charged, as far as its rate depends on it; `tags` are those of usage imported
    as counts.

    `unused`: it is what a commitment paid for and nobody had, which costs nothing once its term has
    ended.
    """

    pool: str
    gpu_model: str
    node: str = ""
    purchase: str | None = None
    commitment: Commitment | None = None
    tags: tuple[tuple[str, str], ...] = ()
    unused: bool = False


@dataclass(frozen=True, slots=True)
class ChargedPlace(Measures):
    """Charges of one day and place in one currency, added up.

    `currency` None: unpriced, so the amounts say nothing.
    """

    day_ms: int
    place: PricedPlace
    currency: str | None


@dataclass(frozen=True, slots=True)
class SavingComparison:
    """Micro-units saved (negative: it cost more); `unknown` says why there is no amount.

    `before_micro` is what the time before would have cost since.
    """

    compared: str
    micro: int | None = None
    before_micro: int | None = None
    unknown: str = ""


def measure_saving(
    before: Sequence[ChargedPlace],
    before_ms: int,
    after: Sequence[ChargedPlace],
    days: Sequence[Period],
    currency: str,
    book: PriceBook,
    *,
    idle: bool,
    same_purchase: bool = False,
) -> SavingComparison:
    """Compare what the time of `before` (days of `before_ms` altogether) would have cost on `days`
    with `after`.

    `idle`: compare idle time that was to go, scaled by days. Otherwise the time of the same work
    (busy time), so that work which simply ended is no saving; where nothing was busy on one side,
    the time scaled by days. `same_purchase`: the advice is to buy in another way, so the time
    before is priced in the way in which it was bought.
    """
    busy_before, busy_after = (sum(charged.busy_ns for charged in side) for side in (before, after))
    shares: Mapping[Period, Fraction] = {day: Fraction(day.ms, before_ms) for day in days}
    compared = IDLE_TIME if idle else TIME
    if not idle and busy_before and busy_after:
        compared = SAME_WORK
        busy: dict[int, int] = defaultdict(int)
        for charged in after:
            busy[charged.day_ms] += charged.busy_ns
        shares = {day: Fraction(busy[day.start_ms], busy_before) for day in days}
    cost_after = _cost(after, currency, idle=idle)
    if cost_after is None:
        return SavingComparison(
            compared, unknown=f"some of the time since has no price in {currency}"
        )
    quantities: dict[PricedPlace, int] = defaultdict(int)
    for charged in before:
        place = _without_irrelevant(charged.place, book, same_purchase=same_purchase)
        quantities[place] += charged.idle_ns if idle else charged.gpu_ns
    exact_before = Fraction(0)
    for place, quantity in quantities.items():
        for day, share in shares.items():
            if not (quantity and share):
                continue
            rate = _rate(place, day, currency, book)
            if rate is None:
                where = f"{place.gpu_model} in pool {place.pool}"
                return SavingComparison(
                    compared, unknown=f"no rate in {currency} covers {where} on every day since"
                )
            exact_before += quantity * share * rate
    cost_before = round_half_even_div(exact_before.numerator, exact_before.denominator)
    return SavingComparison(compared, cost_before - cost_after, cost_before)


def _cost(charged_places: Sequence[ChargedPlace], currency: str, *, idle: bool) -> int | None:
    """What was charged; None where some of the time has no price in the currency."""
    others = (charged for charged in charged_places if charged.currency != currency)
    if sum(charged.idle_ns if idle else charged.gpu_ns for charged in others):
        return None
    own = (charged for charged in charged_places if charged.currency == currency)
    return sum((charged.idle_cost_micro if idle else charged.cost_micro) or 0 for charged in own)


def _without_irrelevant(place: PricedPlace, book: PriceBook, *, same_purchase: bool) -> PricedPlace:
    """The place without what no rate depends on, so that a pool of many nodes is priced once."""
    nodes = {price.node for price in book.prices} | {choice.node for choice in book.choices}
    nodes |= book.said.keys()
    return replace(
        place,
        node=place.node if place.node in nodes else "",
        purchase=place.purchase if same_purchase else None,
        tags=place.tags if book.choices else (),
    )


def _rate(place: PricedPlace, day: Period, currency: str, book: PriceBook) -> Fraction | None:
    """Micro-units for a GPU-nanosecond of time spread evenly over a day; None where a part of it
    has no rate.
    """
    commitment, tags = place.commitment, dict(place.tags)
    total = Fraction(0)
    nano_ms = 0
    for part in rating_intervals(day, book.cuts(day)):
        if commitment is not None and part.clip(commitment.term) is not None:
            if commitment.currency != currency:
                return None
            total += Fraction(commitment.cost(part), commitment.committed_ns(part)) * part.ms
            continue
        if place.unused:
            continue
        price = book.price_at(
            place.pool, place.gpu_model, place.node, part.start_ms, place.purchase, tags
        )
        if price is None or price.currency != currency:
            return None
        nano_ms += rate_nano(price.rate) * part.ms
    return (total + Fraction(nano_ms, GPU_NS_PER_HOUR * (10**RATE_DIGITS // MICRO))) * Fraction(
        1, day.ms
    )
