"""Shared costs: what no owner caused alone is split over owners by a declared key, in addition to
their direct cost.

A shared cost is an amount of every month (support, network, licenses), or the cost of a state
(unallocated, unavailable, unobserved, stranded, commitment_unused) that is moved to those who held
something. It is split in a fixed order: over the owners of a level by the key, then over each
owner's lines by what they cost; both times by largest remainder. Law: direct + shared is, to the
micro-unit, the direct total + the amounts; a moved cost leaves its row as it comes to the others.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpuledger_collector.accounting.commitments import COMMITMENT_UNUSED
from gpuledger_collector.accounting.ledger import ChargedLine
from gpuledger_collector.accounting.owner_tree import LEVELS
from gpuledger_collector.accounting.period import DatedDays
from gpuledger_collector.accounting.usage import HELD, STATES
from gpuledger_common.largest_remainder import split

AMOUNT = "amount"
SOURCES = (AMOUNT, *(state for state in STATES if state != HELD), COMMITMENT_UNUSED)
"""Where a shared cost comes from: an amount a month, or the cost of time that nobody held, or of
unused commitments.
"""
COST = "cost"
KEYS = (COST, "gpu_hours", "even", "weights")
"""What it is split by."""
UNSHARED = "(unshared)"
"""The row that pays a shared amount where nobody of its scope held anything."""


@dataclass(frozen=True, slots=True)
class SharedCost(DatedDays):
    """A dated cost and its key.

    `weights` and `scope` name owners of the tree; `level` is the one that shares.
    """

    name: str
    source: str
    amount_micro: int | None
    currency: str | None
    pool: str
    key: str
    level: str
    weights: Mapping[str, int] = field(default_factory=dict)
    scope: Mapping[str, str] = field(default_factory=dict)
    from_on: dt.date | None = None
    to_on: dt.date | None = None


DIMENSIONS = (*LEVELS, "pool")
"""The first keys of the lines that are shared over; the report's own follow."""


@dataclass(frozen=True, slots=True)
class LineShare:
    """What a shared cost adds to a line; negative: takes from it.

    `line` None: nobody of its scope held any time.
    """

    name: str
    currency: str
    line: ChargedLine | None
    micro: int


def month_part(amount_micro: int, month_ms: int, start_ms: int, end_ms: int) -> int:
    """An amount of a month for a part of it, given in milliseconds since the month began: parts
    that adjoin add up.
    """
    # A difference of two floors, not a floor of the difference: the parts of a month then add up to
    # its amount.
    return amount_micro * end_ms // month_ms - amount_micro * start_ms // month_ms


def share(cost: SharedCost, lines: Sequence[ChargedLine], amount_micro: int = 0) -> list[LineShare]:
    """Split one cost over the lines of one period; `amount_micro` is the amount for it, of source
    amount.

    The cost of a state is shared within its currency, and is not moved when nobody of the scope
    held anything.
    """
    if cost.source == AMOUNT:
        assert cost.currency is not None
        bearers = _bearers(cost, lines, cost.currency)
        # Nobody to share it with: the amount stays visible in a row of its own, so the total still
        # holds.
        split_shares = _split(cost, bearers, cost.currency, amount_micro)
        return split_shares or (
            [LineShare(cost.name, cost.currency, None, amount_micro)] if amount_micro else []
        )
    shares: list[LineShare] = []
    for currency in sorted({line.currency for line in lines if line.currency is not None}):
        # Currency by currency: a cost is never moved to a line in another one.
        moved = [line for line in lines if _is_moved(cost, line, currency)]
        total = sum(line.cost_micro or 0 for line in moved)
        bearers = _bearers(cost, lines, currency)
        split_shares = _split(cost, bearers, currency, total)
        # Taken away only when somebody gets it: the sum over all lines is zero.
        if split_shares:
            shares += [
                LineShare(cost.name, currency, line, -(line.cost_micro or 0))
                for line in moved
                if line.cost_micro
            ]
            shares += split_shares
    return shares


def _is_moved(cost: SharedCost, line: ChargedLine, currency: str) -> bool:
    return (
        line.state == cost.source
        and line.currency == currency
        and cost.pool in ("", line.keys[len(LEVELS)])
    )


def _bearers(
    cost: SharedCost, lines: Iterable[ChargedLine], currency: str
) -> dict[str, list[ChargedLine]]:
    """The held lines of each owner of the level that is in the scope, in the order of names."""
    bearers: dict[str, list[ChargedLine]] = defaultdict(list)
    for line in lines:
        # Corrections may make the time of a line negative; a negative weight has no share.
        if line.state != HELD or line.currency != currency or line.gpu_ns <= 0:
            continue
        if all(line.keys[LEVELS.index(level)] == owner for level, owner in cost.scope.items()):
            bearers[line.keys[LEVELS.index(cost.level)]].append(line)
    return dict(sorted(bearers.items()))


def _split(
    cost: SharedCost, bearers: Mapping[str, Sequence[ChargedLine]], currency: str, total: int
) -> list[LineShare]:
    weigh: Callable[[str], int] = {
        COST: lambda owner: _cost(bearers[owner]),
        "gpu_hours": lambda owner: sum(line.gpu_ns for line in bearers[owner]),
        "even": lambda _: 1,
        "weights": lambda owner: cost.weights.get(owner, 0),
    }[cost.key]
    weights = [weigh(owner) for owner in bearers]
    if total <= 0 or not any(weights):
        return []
    shares = []
    for owner, part in zip(bearers, split(total, weights), strict=True):
        lines = bearers[owner]
        # Within an owner by cost; where nothing cost anything (a rate of zero), by time.
        by_cost = [max(line.cost_micro or 0, 0) for line in lines]
        inner = by_cost if any(by_cost) else [line.gpu_ns for line in lines]
        shares += [
            LineShare(cost.name, currency, line, micro)
            for line, micro in zip(lines, split(part, inner), strict=True)
            if micro
        ]
    return shares


def _cost(lines: Iterable[ChargedLine]) -> int:
    return max(sum(line.cost_micro or 0 for line in lines), 0)
