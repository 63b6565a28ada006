"""The waste receipt of a workload: what it was charged, which part of it was wasted, itemised with the evidence."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuledger_collector.accounting.ledger import add_known
from gpuledger_collector.accounting.rating import Charge
from gpuledger_collector.insight.findings import Finding

READINGS = ("utilization_ratio", "sm_active_ratio", "memory_used_bytes", "power_watts")


@dataclass(slots=True)
class Held:
    """Charges of one kind of accelerator at one rate; amounts in micro-units, None: unpriced."""

    pool: str
    gpu_model: str
    price_id: int | None
    rate: str
    currency: str | None
    gpu_ns: int = 0
    busy_ns: int = 0
    idle_ns: int = 0
    unknown_ns: int = 0
    cost_micro: int | None = None
    idle_cost_micro: int | None = None
    commitment: str = ""
    """The commitment that covers it, whose cost it then has; `rate` is what it would have cost without it."""


@dataclass(frozen=True, slots=True)
class Item:
    """One finding of waste."""

    state: str
    accelerator: str
    node: str
    since_ms: int
    until_ms: int
    currency: str | None
    cost_micro: int | None
    confidence: float
    readings: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a workload had, and what of it came to nothing. Items are part of what was charged, never more."""

    held: Sequence[Held]
    items: Sequence[Item]
    advice: Sequence[Mapping[str, Any]] = field(default_factory=list)

    def totals(self) -> dict[str, tuple[int, int, int]]:
        """By currency: charged, idle by the ledger, and found as waste (micro-units)."""
        sums: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
        for one in self.held:
            if one.currency is not None:
                sums[one.currency][0] += one.cost_micro or 0
                sums[one.currency][1] += one.idle_cost_micro or 0
        for item in self.items:
            if item.currency is not None:
                sums[item.currency][2] += item.cost_micro or 0
        return {currency: (entry[0], entry[1], entry[2]) for currency, entry in sorted(sums.items())}


def receipt(
    charges: Iterable[Charge], findings: Iterable[Finding], advice: Sequence[Mapping[str, Any]] = ()
) -> Receipt:
    """The receipt over all charges and findings of one workload."""
    held: dict[object, Held] = {}
    for charge in charges:
        price = charge.price
        covering = "" if charge.commitment is None else charge.commitment.name
        key = (charge.pool, charge.gpu_model, None if price is None else price.id, covering)
        entry = held.setdefault(
            key,
            Held(
                charge.pool,
                charge.gpu_model,
                None if price is None else price.id,
                "" if price is None else f"{price.rate.normalize():f}",
                charge.currency,
                commitment=covering,
            ),
        )
        entry.gpu_ns += charge.gpu_ns
        entry.busy_ns += charge.busy_ns
        entry.idle_ns += charge.idle_ns
        entry.unknown_ns += charge.unknown_ns
        entry.cost_micro = add_known(entry.cost_micro, charge.cost_micro)
        entry.idle_cost_micro = add_known(entry.idle_cost_micro, charge.idle_cost_micro)
    items = [
        Item(
            one.state,
            one.subject,
            str(one.evidence.get("node", "")),
            one.since_ms,
            one.until_ms,
            one.currency,
            one.cost_micro,
            one.confidence,
            {name: one.evidence[name] for name in READINGS if name in one.evidence},
        )
        for one in findings
    ]
    return Receipt(list(held.values()), sorted(items, key=lambda one: (-(one.cost_micro or 0), one.since_ms)), advice)
