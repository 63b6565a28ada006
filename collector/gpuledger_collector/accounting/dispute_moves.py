"""What the decision of a dispute takes from whom and charges to whom, day by day.

Both sides come from rating itself, once without the decision and once with it. A decision has one destination, so what
the others lose is what the destination gains; nothing else differs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpuledger_collector.accounting.corrections import difference
from gpuledger_collector.accounting.measures import Measures
from gpuledger_collector.accounting.owner_tree import OwnerPath
from gpuledger_collector.accounting.rating import Charge


@dataclass(frozen=True, slots=True)
class Move:
    """Time and money that leave an owner on a day, in one currency (None, and no cost: without a price).

    `to` None: the time becomes unavailable. `closed`: the day is closed, so the move becomes a correction.
    """

    day_ms: int
    owner: OwnerPath
    to: OwnerPath | None
    currency: str | None
    gpu_ns: int
    cost_micro: int | None
    closed: bool = False


def find_moves(before: Iterable[Charge], after: Iterable[Charge], to: OwnerPath | None, *, closed: bool) -> list[Move]:
    """Find what moves to `to` between the charges of a day without a decision and with it."""
    gains: dict[tuple[int, OwnerPath, str | None], Measures] = {}
    for line in difference(before, after):
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
        for (day_ms, owner, currency), gain in sorted(gains.items(), key=lambda item: (*item[0][:2], item[0][2] or ""))
    ]
