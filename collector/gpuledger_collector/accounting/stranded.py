"""Stranded slices: the part of a MIG board that lies in none of its instances, and so can be held by nobody.

A board is billed by its instances, each for its dominant share. Where these do not fill it, the rest is no capacity of
the ledger: it is told beside the bill, at the rate of the place, so that a layout that wastes a board is seen. Law: at
every instant the shares of the instances and the stranded part are one board, while there is an instance at all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from gpuledger_collector.accounting.period import Calendar, Period
from gpuledger_collector.accounting.pricing import PriceBook
from gpuledger_collector.accounting.quantity import GPU_MICRO
from gpuledger_collector.accounting.rating import RatedAccelerator, capacity_cost

ROUNDING_MICRO = 7
"""Shares are rounded down to millionths: seven sevenths leave one, which is no slice."""


@dataclass(frozen=True, slots=True)
class Instance:
    """A MIG instance in one place for a period; `gpu_micro` is its share of the board `device`."""

    device: str
    pool: str
    gpu_model: str
    node: str
    gpu_micro: int
    period: Period


@dataclass
class Stranded:
    """What a pool's boards of a model strand: GPU-nanoseconds, and micro-units by currency where a rate covers it."""

    pool: str
    gpu_model: str
    gpu_ns: int = 0
    cost: dict[str, int] = field(default_factory=dict)


def remainders(instances: Iterable[Instance]) -> list[tuple[RatedAccelerator, Period]]:
    """What is left of each board, as an accelerator of that share, for each stretch in which its layout stays."""
    boards: dict[str, list[Instance]] = defaultdict(list)
    for one in instances:
        boards[one.device].append(one)
    found = []
    for mine in boards.values():
        edges = sorted({edge for one in mine for edge in (one.period.start_ms, one.period.end_ms)})
        for start_ms, end_ms in pairwise(edges):
            there = [one for one in mine if one.period.start_ms <= start_ms and end_ms <= one.period.end_ms]
            left = GPU_MICRO - sum(one.gpu_micro for one in there)
            if there and left > ROUNDING_MICRO:
                first = there[0]
                rated = RatedAccelerator(0, left, first.pool, first.gpu_model, first.node)
                found.append((rated, Period(start_ms, end_ms)))
    return found


def stranded(instances: Sequence[Instance], book: PriceBook, calendar: Calendar) -> list[Stranded]:
    """What boards strand, by pool and model, at the rates of the price book."""
    sums: dict[tuple[str, str], Stranded] = {}
    for rated, period in remainders(instances):
        entry = sums.setdefault((rated.pool, rated.gpu_model), Stranded(rated.pool, rated.gpu_model))
        for part in calendar.days(period):
            cost = capacity_cost(rated, part, [part], book, part.end_ms)
            entry.gpu_ns += cost.capacity_ns
            for currency, micro in cost.cost.items():
                entry.cost[currency] = entry.cost.get(currency, 0) + micro
    return [sums[key] for key in sorted(sums)]
