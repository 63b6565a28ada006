"""What wasted time cost: GPU-nanoseconds x the rate that was in force, exactly.

An estimate decides *which* minutes were wasted; what they cost is accounting. Quantities are kept
under the instant at which their rating interval begins (a clock hour, cut where a rate begins or
ends), so that each is priced by one rate, once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from gpuledger_collector.accounting.money import cost_micro
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, MINUTE_MS, Period
from gpuledger_collector.accounting.pricing import PriceBook
from gpuledger_collector.accounting.quantity import gpu_ns

PERMILLE = 1000


@dataclass(frozen=True, slots=True)
class AcceleratorPlace:
    """Where an accelerator stands, as far as its price depends on it."""

    gpu_micro: int
    pool: str
    gpu_model: str
    node: str


@dataclass(frozen=True, slots=True)
class Waste:
    """What wasted time cost; `cost_micro` and `per_day_micro` None where no rate covers some of it."""

    currency: str | None
    cost_micro: int | None
    per_day_micro: int | None
    gpu_ns: int


def rating_intervals(
    minutes: Iterable[tuple[int, int]], gpu_micro: int, cuts: Iterable[int] = ()
) -> dict[int, int]:
    """Wasted GPU-nanoseconds by rating interval, from minutes (unix ms of their start, wasted
    thousandths).

    A minute is cut where a rate begins or ends inside it.
    """
    known = [minute for minute in minutes if minute[1]]
    if not known:
        return {}
    first, last = min(known)[0], max(known)[0] + MINUTE_MS
    edges = sorted(edge for edge in cuts if first - HOUR_MS < edge < last)
    wasted: dict[int, int] = defaultdict(int)
    whole = gpu_ns(gpu_micro, MINUTE_MS)
    for at_ms, permille in known:
        # Most minutes have no edge inside.
        if bisect_right(edges, at_ms) == bisect_right(edges, at_ms + MINUTE_MS - 1):
            wasted[_rating_interval(at_ms, edges)] += whole * permille // PERMILLE
            continue
        for piece in _pieces(Period(at_ms, at_ms + MINUTE_MS), edges):
            wasted[_rating_interval(piece.start_ms, edges)] += (
                gpu_ns(gpu_micro, piece.ms) * permille // PERMILLE
            )
    return dict(wasted)


def _pieces(minute: Period, edges: list[int]) -> list[Period]:
    inside = edges[bisect_right(edges, minute.start_ms) : bisect_right(edges, minute.end_ms - 1)]
    borders = [minute.start_ms, *inside, minute.end_ms]
    return [Period(start, end) for start, end in pairwise(borders)]


def _rating_interval(at_ms: int, edges: list[int]) -> int:
    """Start of the rating interval of an instant: its clock hour, or the last edge within that
    hour.
    """
    hour = at_ms - at_ms % HOUR_MS
    before = bisect_right(edges, at_ms)
    return max(hour, edges[before - 1]) if before else hour


def price_waste(
    place: AcceleratorPlace, wasted: Mapping[int, int], book: PriceBook, now_ms: int
) -> Waste:
    """What the wasted quantities cost, and what a whole day more of it would, at the rate in force
    at `now_ms`.

    Each rating interval is rounded once, as a charge is. Without a rate for any part of it the
    whole has no cost: unpriced is never zero. Rating intervals of several currencies have none
    either, since amounts of two currencies are never added.
    """
    total = sum(wasted.values())
    amount, currencies = 0, set[str]()
    priced = True
    for at_ms, quantity in sorted(wasted.items()):
        price = book.price_at(place.pool, place.gpu_model, place.node, at_ms)
        if price is None:
            priced = False
            continue
        currencies.add(price.currency)
        amount += cost_micro(quantity, price.rate)
    current = book.price_at(place.pool, place.gpu_model, place.node, now_ms)
    day = None if current is None else cost_micro(gpu_ns(place.gpu_micro, DAY_MS), current.rate)
    if (
        not priced
        or len(currencies) > 1
        or (current is not None and currencies - {current.currency})
    ):
        return Waste(None, None, None, total)
    currency = next(iter(currencies), None if current is None else current.currency)
    return Waste(currency, amount, day, total)
