"""The waste receipt of a workload: what it was charged, and which part was wasted, with the
evidence.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpuledger_collector.accounting.measures import Measures
from gpuledger_collector.accounting.rating import Charge
from gpuledger_collector.insight.findings import Finding
from gpuledger_collector.insight.recommendation_record import StoredRecommendation

READINGS = ("utilization_ratio", "sm_active_ratio", "memory_used_bytes", "power_watts")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptLine(Measures):
    """Charges of one kind of accelerator at one rate, or the share of what nodes cost.

    `commitment` names the commitment that covers it, whose cost it then has; `rate` is what it
    would have cost without. `node_cost` names what nodes cost: such a line has no GPU-time.
    """

    pool: str
    gpu_model: str
    price_id: int | None
    rate: str
    currency: str | None
    commitment: str = ""
    node_cost: str = ""

    @property
    def is_correction(self) -> bool:
        """Whether it is an amount without time: the hours of a price that was corrected stand on
        the line of the price that they were charged at.
        """
        return not self.gpu_ns and not self.node_cost


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptItem:
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
class WasteReceipt:
    """What a workload had, and what of it was wasted.

    Items are part of what was charged, never more.
    """

    held: Sequence[ReceiptLine]
    items: Sequence[ReceiptItem]
    advice: Sequence[StoredRecommendation] = ()

    @property
    def unknown_ns(self) -> int:
        """Charged time in GPU-nanoseconds of which nobody knows what was done in it."""
        return sum(line.unknown_ns for line in self.held)

    @property
    def has_known_activity(self) -> bool:
        """Whether some of the charged time is known to be busy or idle."""
        return any(line.has_known_activity for line in self.held)

    def totals(self) -> dict[str, tuple[int, int | None, int | None]]:
        """By currency: charged, idle by the ledger, and found as waste (micro-units; None: no
        activity is known).
        """
        sums: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
        known: set[str] = set()
        found: set[str] = set()
        for line in self.held:
            if line.currency is not None:
                sums[line.currency][0] += line.cost_micro or 0
                if line.has_known_activity:
                    known.add(line.currency)
                    sums[line.currency][1] += line.idle_cost_micro or 0
        for item in self.items:
            if item.currency is not None:
                found.add(item.currency)
                sums[item.currency][2] += item.cost_micro or 0
        return {
            currency: (
                cost,
                idle if currency in known else None,
                wasted if currency in known | found else None,
            )
            for currency, (cost, idle, wasted) in sorted(sums.items())
        }


def make_receipt(
    charges: Iterable[Charge],
    findings: Iterable[Finding],
    advice: Sequence[StoredRecommendation] = (),
) -> WasteReceipt:
    """Make the receipt over all charges and findings of one workload."""
    held: dict[object, ReceiptLine] = {}
    for charge in charges:
        price = charge.price
        line = ReceiptLine(
            pool=charge.pool,
            gpu_model=charge.gpu_model,
            price_id=None if price is None else price.id,
            rate="" if price is None else f"{price.rate.normalize():f}",
            currency=charge.currency,
            commitment="" if charge.commitment is None else charge.commitment.name,
            node_cost="" if charge.node_cost is None else charge.node_cost.name,
            **charge.amounts,
        )
        key = (line.pool, line.gpu_model, line.price_id, line.commitment, line.node_cost)
        held[key] = held[key].plus(line) if key in held else line
    items = [
        ReceiptItem(
            state=finding.state,
            accelerator=finding.subject,
            node=str(finding.evidence.get("node", "")),
            since_ms=finding.since_ms,
            until_ms=finding.until_ms,
            currency=finding.currency,
            cost_micro=finding.cost_micro,
            confidence=finding.confidence,
            readings={
                name: finding.evidence[name] for name in READINGS if name in finding.evidence
            },
        )
        for finding in findings
    ]
    # A correction may take back all that was charged at one rate: nothing is left to say of it.
    left = [line for line in held.values() if line.gpu_ns or line.cost_micro]
    return WasteReceipt(
        left or list(held.values()),
        sorted(items, key=lambda item: (-(item.cost_micro or 0), item.since_ms)),
        advice,
    )
