"""Moves: what a decision of a dispute takes from whom and charges to whom, day by day.

Both sides come from rating itself, once without the decision and once with it. A decision has one destination, so what
the others lose is what the destination gains; nothing else differs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpuledger_collector.accounting.corrections import difference
from gpuledger_collector.accounting.ledger import add_known
from gpuledger_collector.accounting.rating import Charge
from gpuledger_collector.accounting.tags import OwnerPath


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


def moves(before: Iterable[Charge], after: Iterable[Charge], to: OwnerPath | None, *, closed: bool) -> list[Move]:
    """What moves to `to` between the charges of a day without a decision and with it."""
    found: dict[tuple[int, OwnerPath, str | None], tuple[int, int | None]] = {}
    for line in difference(before, after):
        if line.owner is None or line.owner == to:
            continue
        key = (line.day_ms, line.owner, line.currency)
        gpu_ns, cost_micro = found.get(key, (0, None))
        less = None if line.cost_micro is None else -line.cost_micro
        found[key] = (gpu_ns - line.gpu_ns, add_known(cost_micro, less))
    ordered = sorted(found.items(), key=lambda item: (item[0][0], item[0][1], item[0][2] or ""))
    return [
        Move(day_ms, owner, to, currency, gpu_ns, cost_micro, closed)
        for (day_ms, owner, currency), (gpu_ns, cost_micro) in ordered
    ]
