"""Closing a period: what each owner is billed in whole cents, and the receipt that says it all on one page."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from gpuledger_collector.accounting.chargeback import UNATTRIBUTED
from gpuledger_collector.accounting.money import format_minor, minor_digits, to_minor_units
from gpuledger_collector.accounting.period import format_instant
from gpuledger_collector.accounting.ports import ClosedPeriod, ExportedCharge, Invoice
from gpuledger_collector.accounting.quantity import hours_decimal
from gpuledger_collector.accounting.rating import Charge
from gpuledger_collector.accounting.reconciliation import Reconciliation
from gpuledger_collector.accounting.usage import HELD


def billed_to(charge: Charge, level: str) -> str:
    """The owner at a level of the tree, as the chargeback names it; what nobody held is billed under its state."""
    if charge.state != HELD or charge.owner is None:
        return f"({charge.state})"
    return charge.owner.level(level) or UNATTRIBUTED


def invoices(lines: Iterable[ExportedCharge], level: str) -> list[Invoice]:
    """An invoice per owner and currency, dearest first; minor units by largest remainder, so that they add up."""
    sums: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for line in lines:
        if line.charge.currency is not None:
            sums[line.charge.currency][billed_to(line.charge, level)] += line.charge.cost_micro or 0
    made: list[Invoice] = []
    for currency, owners in sorted(sums.items()):
        ordered = sorted(owners.items(), key=lambda item: (-item[1], item[0]))
        booked = to_minor_units([micro for _, micro in ordered], minor_digits(currency))
        made += [Invoice(currency, owner, micro, minor) for (owner, micro), minor in zip(ordered, booked, strict=True)]
    return made


def receipt(
    done: ClosedPeriod, level: str, billed: Sequence[Invoice], lines: Sequence[ExportedCharge], proof: Reconciliation
) -> Mapping[str, object]:
    """What a close leaves behind for people: who is billed what, the proof, and the seal over every line."""
    corrections = [line.charge for line in lines if line.booked_day_ms is not None]
    corrected: dict[str, int] = defaultdict(int)
    for charge in corrections:
        if charge.currency is not None:
            corrected[charge.currency] += charge.cost_micro or 0
    hours = hours_decimal([line.charge.gpu_ns for line in lines])
    return {
        "period": done.name,
        "from": format_instant(done.period.start_ms),
        "to": format_instant(done.period.end_ms),
        "closed_at": format_instant(done.closed_ms - done.closed_ms % 1000),
        "closed_by": done.closed_by,
        "lines": done.lines,
        "seal": done.seal,
        "level": level,
        "gpu_hours": f"{sum(hours):.6f}",
        "coverage_percent": None if proof.coverage is None else str(proof.coverage),
        "holds": proof.holds,
        "unpriced_gpu_ns": proof.unpriced_ns,
        "invoices": [
            {"owner": one.owner, "currency": one.currency, "amount": _amount(one.minor, one.currency),
             "micro": one.micro}
            for one in billed
        ],
        "totals": {
            currency: _amount(sum(one.minor for one in billed if one.currency == currency), currency)
            for currency in sorted({one.currency for one in billed})
        },
        "corrections": {"lines": len(corrections), "micro": dict(sorted(corrected.items()))},
    }  # fmt: skip


def _amount(minor: int, currency: str) -> str:
    return format_minor(minor, minor_digits(currency))
