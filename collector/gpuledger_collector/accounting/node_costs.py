"""Node costs: what CPU, memory, local disk and network of a GPU node cost, beside the rates of its
accelerators.

A node's hour costs price x time, rounded once: the time for which any of its accelerators was
there. Of several declarations of one name the most specific holds for a node; those of different
names add up. Which node cost how much follows from capacity and declarations alone; who pays it
follows from usage (accounting.node_charges).
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fnmatch import fnmatchcase

from gpuledger_collector.accounting.money import rate_nano
from gpuledger_collector.accounting.period import HOUR_MS, DatedDays, Period
from gpuledger_collector.accounting.quantity import round_half_even_div

NODE_COST = "node_cost"
"""The state of a charge that an owner pays for its share of a node; what nobody held keeps the
state of its time.
"""
ZERO = Decimal(0)


@dataclass(frozen=True, slots=True)
class NodeCost(DatedDays):
    """A price of a node-hour, flat and by core and gigabyte, for days of the bill (`to_on` not
    included).

    An empty pool or node matches any; `node` may have `*` as wildcard.
    """

    id: int | None
    name: str
    currency: str
    pool: str = ""
    node: str = ""
    per_node_hour: Decimal = ZERO
    per_core_hour: Decimal = ZERO
    cores: int | None = None
    per_gb_hour: Decimal = ZERO
    memory_gb: int | None = None
    from_on: dt.date | None = None
    to_on: dt.date | None = None

    @property
    def rate(self) -> Decimal:
        """What an hour of a node costs."""
        return (
            self.per_node_hour
            + self.per_core_hour * (self.cores or 0)
            + self.per_gb_hour * (self.memory_gb or 0)
        )

    @property
    def precedence(self) -> tuple[object, ...]:
        """The most specific first: a node before a pattern before a pool."""
        is_pattern = "*" in self.node
        return (
            not self.node,
            is_pattern,
            -len(self.node) if is_pattern else 0,
            not self.pool,
            self.pool,
            self.node,
        )

    def fits(self, node: str, pools: Collection[str]) -> bool:
        """Whether it is about a node whose accelerators stand in these pools; without one it is not
        there.
        """
        return bool(pools) and self.pool in ("", *pools) and fnmatchcase(node, self.node or "*")

    def cost_micro(self, ms: int) -> int:
        """Micro-units of some milliseconds, rounded once, half to even."""
        return round_half_even_div(ms * rate_nano(self.rate), HOUR_MS * 1000)


@dataclass(frozen=True, slots=True)
class NodeHour:
    """An hour of a node, in a day of the bill, and what a declared cost is in it."""

    node: str
    hour: Period
    cost: NodeCost
    micro: int


NodePlace = tuple[str, str, Sequence[Period]]
"""Node and pool of an accelerator, and when it was there."""


def node_hours(
    places: Iterable[NodePlace], costs: Sequence[NodeCost], day: Period, until_ms: int
) -> Iterator[NodeHour]:
    """What each node cost, hour by hour, in the order of nodes; `costs` are those that hold on the
    day.
    """
    if not costs:
        return
    by_node: dict[str, list[tuple[str, Sequence[Period]]]] = defaultdict(list)
    for node, pool, capacity in places:
        by_node[node].append((pool, capacity))
    for node in sorted(by_node):
        if not node or not costs_of(costs, node, {pool for pool, _ in by_node[node]}):
            continue
        for hour in day.hours():
            past = Period(hour.start_ms, max(hour.start_ms, min(hour.end_ms, until_ms)))
            there = [
                (pool, part)
                for pool, capacity in by_node[node]
                for period in capacity
                if (part := period.clip(past)) is not None
            ]
            present_ms = _union_ms(part for _, part in there)
            for cost in costs_of(costs, node, {pool for pool, _ in there}):
                yield NodeHour(node, past, cost, cost.cost_micro(present_ms))


def costs_of(costs: Iterable[NodeCost], node: str, pools: Collection[str]) -> list[NodeCost]:
    """What holds for a node: of each name the most specific, in the order of names."""
    best: dict[str, NodeCost] = {}
    for cost in sorted(costs, key=lambda cost: cost.precedence):
        if cost.fits(node, pools):
            best.setdefault(cost.name, cost)
    return [best[name] for name in sorted(best)]


def _union_ms(periods: Iterable[Period]) -> int:
    total, end_ms = 0, 0
    for period in sorted(periods, key=lambda period: period.start_ms):
        total += max(0, period.end_ms - max(period.start_ms, end_ms))
        end_ms = max(end_ms, period.end_ms)
    return total
