"""What the decision of a dispute takes from whom and charges to whom, day by day.

Both sides come from rating itself, once without the decision and once with it. A decision has one
destination. Time that the others lose is what it gains; money is not, where prices depend on who
holds: each side has its own discounts and volume prices, and hours that move change the volume
price of later days of the month.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpuledger_collector.accounting.measures import Measures
from gpuledger_collector.accounting.owner_tree import OwnerPath
from gpuledger_collector.accounting.rating import Charge
from gpuledger_collector.accounting.usage import UNAVAILABLE

Costs = Mapping[tuple[OwnerPath | None, str], int]
"""Micro-units by owner (None: unavailable time) and currency."""


@dataclass(frozen=True, slots=True)
class Move:
    """Time and money that leave an owner on a day, in one currency (None, and no cost: without a
    price).

    `to` None: the time becomes unavailable. `closed`: the day is closed, so the move becomes a
    correction. Without time it is a day whose price changes, because earlier hours of its month
    moved.
    """

    day_ms: int
    owner: OwnerPath
    to: OwnerPath | None
    currency: str | None
    gpu_ns: int
    cost_micro: int | None
    closed: bool = False


@dataclass(frozen=True, slots=True)
class ReversedShare:
    """What an owner pays more on a day (negative: less) because a contested adjustment is taken
    back.
    """

    day_ms: int
    owner: OwnerPath
    adjustment: str
    currency: str
    cost_micro: int
    closed: bool = False


@dataclass(frozen=True, slots=True)
class Decided:
    """What a decision changes: the moves, and by currency what its destination pays more, at its
    own price.
    """

    moves: list[Move]
    to: OwnerPath | None
    gain: Mapping[str, int]

    @property
    def loss(self) -> dict[str, int]:
        """What the others pay less, by currency."""
        loss: dict[str, int] = {}
        for move in self.moves:
            if move.currency is not None:
                loss[move.currency] = loss.get(move.currency, 0) + (move.cost_micro or 0)
        return dict(sorted(loss.items()))


def find_moves(changes: Iterable[Charge], to: OwnerPath | None, *, closed: bool) -> list[Move]:
    """Find what the others lose on a day by the change of its charges that a decision in favor of
    `to` makes.
    """
    gains: dict[tuple[int, OwnerPath, str | None], Measures] = {}
    for line in changes:
        if line.owner is not None and line.owner != to:
            key = (line.day_ms, line.owner, line.currency)
            gains[key] = gains.get(key, Measures()).plus(line)
    return [
        Move(
            day_ms=day_ms,
            owner=owner,
            to=to,
            currency=currency,
            gpu_ns=-gain.gpu_ns,
            cost_micro=None if gain.cost_micro is None else -gain.cost_micro,
            closed=closed,
        )
        for (day_ms, owner, currency), gain in sorted(
            gains.items(), key=lambda item: (*item[0][:2], item[0][2] or "")
        )
        if gain.gpu_ns or gain.cost_micro
    ]


def destination_cost(changes: Iterable[Charge], to: OwnerPath | None) -> dict[str, int]:
    """Add up what the destination pays more, by currency; None is time that becomes unavailable."""
    cost: dict[str, int] = {}
    for line in changes:
        is_destination = line.state == UNAVAILABLE if to is None else line.owner == to
        if is_destination and line.currency is not None:
            cost[line.currency] = cost.get(line.currency, 0) + (line.cost_micro or 0)
    return dict(sorted(cost.items()))


def compare_costs(
    before: Costs, after: Costs, to: OwnerPath | None
) -> tuple[dict[str, int], dict[str, int]]:
    """Compare two readings: by currency, what the others pay less, and what `to` pays more."""
    loss: dict[str, int] = {}
    gain: dict[str, int] = {}
    for owner, currency in sorted({**before, **after}, key=lambda key: key[1]):
        micro = after.get((owner, currency), 0) - before.get((owner, currency), 0)
        side, sign = (gain, 1) if owner == to else (loss, -1)
        side[currency] = side.get(currency, 0) + sign * micro
    return loss, gain
