"""Closing a period: what each owner is billed in whole cents, and the receipt that says it all on
one page.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from gpuledger_collector.accounting.adjustments import PAID_BY_OWNERS
from gpuledger_collector.accounting.chargeback import UNATTRIBUTED, SharedPart
from gpuledger_collector.accounting.cost_centers import Codes
from gpuledger_collector.accounting.ledger import ExportedCharge
from gpuledger_collector.accounting.money import Money, minor_digits, round_months, to_minor_units
from gpuledger_collector.accounting.period import Period, format_instant
from gpuledger_collector.accounting.quantity import hours_decimal
from gpuledger_collector.accounting.rating import Charge
from gpuledger_collector.accounting.reconciliation import Reconciliation
from gpuledger_collector.accounting.reserved_names import is_reserved


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedPeriod:
    """A month that was closed: its charges do not change any more.

    `seal` is the hexadecimal root over its lines.
    """

    name: str
    period: Period
    closed_ms: int
    closed_by: str
    lines: int
    seal: str


@dataclass(frozen=True, slots=True)
class BillingMonth:
    """A month that was rated: when its charges changed last, and whether they still may."""

    period: Period
    updated_ms: int
    is_closed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectionSum:
    """Corrections of closed months in one currency: how many lines, what they add up to, and what of
    it owners are billed.
    """

    currency: str
    lines: int
    micro: int
    billed_micro: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LaterCorrections(CorrectionSum):
    """Corrections of a period's closed days that a later month bills."""

    month: str
    """In which they are billed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaterChange:
    """What corrections of a closed month moved at one owner, or of what nobody pays, in one
    currency.

    `currency` None: time without a price.
    """

    owner: str
    state: str
    currency: str | None
    booked_ms: int
    lines: int
    gpu_ns: int
    micro: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Invoice:
    """What one owner is billed for a closed month: the exact amount and the minor units that were
    booked.

    Both hold the direct cost and the shares of common costs; `shared_micro` and `shared_minor` say
    how much of them are shares.
    """

    currency: str
    owner: str
    micro: int
    minor: int
    shared_micro: int = 0
    shared_minor: int = 0


def billed_to(charge: Charge, level: str) -> str:
    """The owner at a level of the tree, as the chargeback names it; what nobody held is billed
    under its state.
    """
    if charge.state not in PAID_BY_OWNERS:
        return f"({charge.state})"
    return (charge.owner.level(level) if charge.owner is not None else "") or UNATTRIBUTED


def is_paid(owner: str) -> bool:
    """Whether an invoice's owner pays it: the cost of what nobody held, or could hold, is booked
    and billed to nobody.

    Usage that no rule attributes has an owner who is not known yet.
    """
    return owner == UNATTRIBUTED or not is_reserved(owner)


def invoices(
    lines: Iterable[ExportedCharge], level: str, shares: Iterable[SharedPart] = ()
) -> list[Invoice]:
    """An invoice per owner and currency, by direct cost, dearest first: direct cost and shares of
    common costs.

    Direct costs are rounded together by largest remainder, those of each corrected month by
    themselves, and so are shares, as in the chargeback: an invoice is the `cost_total` of its rows,
    and the invoices add up to all that was charged and shared.
    """
    sums: dict[str, dict[str, dict[str, int]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(int))
    )
    shares_of: dict[tuple[str, str], int] = defaultdict(int)
    for line in lines:
        # Unpriced usage has no currency and is billed to nobody; a close refuses it unless it is
        # accepted explicitly.
        if line.charge.currency is not None:
            month = sums[line.charge.currency][line.correction_of]
            month[billed_to(line.charge, level)] += line.charge.cost_micro or 0
    for part in shares:
        # An owner with shares and no direct cost still gets an invoice.
        sums[part.currency][""][part.keys[0]] += 0
        shares_of[part.currency, part.keys[0]] += part.micro
    billed: list[Invoice] = []
    for currency, months in sorted(sums.items()):
        names = {owner for month in months.values() for owner in month}
        # Rounded as the chargeback rounds its rows, in the same order, so that an invoice equals
        # its rows.
        own, rounded = months[""], round_months(months, currency)
        ordered = sorted(names, key=lambda owner: (-own.get(owner, 0), owner))
        shared = [shares_of[currency, owner] for owner in ordered]
        for owner, shared_micro, shared_minor in zip(
            ordered, shared, to_minor_units(shared, currency), strict=True
        ):
            micro, minor = (
                sum(month.get(owner, 0) for month in each.values()) for each in (months, rounded)
            )
            invoice = Invoice(
                currency=currency,
                owner=owner,
                micro=micro + shared_micro,
                minor=minor + shared_minor,
                shared_micro=shared_micro,
                shared_minor=shared_minor,
            )
            billed.append(invoice)
    return billed


def receipt(
    done: ClosedPeriod,
    level: str,
    billed: Sequence[Invoice],
    lines: Sequence[ExportedCharge],
    proof: Reconciliation,
    shares: Sequence[SharedPart] = (),
    codes: Mapping[str, Codes] | None = None,
) -> Mapping[str, object]:
    """The receipt of a close as a JSON object: period, invoices, shares, totals, proof, corrections
    and the seal.
    """
    corrections = [line.charge for line in lines if line.booked_day_ms is not None]
    corrected: dict[str, int] = defaultdict(int)
    for charge in corrections:
        if charge.currency is not None:
            corrected[charge.currency] += charge.cost_micro or 0
    # Rounded together over the lines, so that whoever adds up the exported lines gets the same
    # total.
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
            _invoice_row(invoice, (codes or {}).get(invoice.owner, Codes())) for invoice in billed
        ],
        "shares": [_share_row(part) for part in shares],
        "totals": {
            currency: _sum_text((one.minor for one in billed if one.currency == currency), currency)
            for currency in sorted({invoice.currency for invoice in billed})
        },
        "not_billed": {
            currency: _sum_text(
                (
                    one.minor
                    for one in billed
                    if one.currency == currency and not is_paid(one.owner)
                ),
                currency,
            )
            for currency in sorted({invoice.currency for invoice in billed})
        },
        "corrections": {"lines": len(corrections), "micro": dict(sorted(corrected.items()))},
    }


def billed_directly(
    lines: Iterable[ExportedCharge], level: str
) -> dict[tuple[str, str], tuple[int]]:
    """Micro-units of lines by the owner and the currency of their invoices, without shares of
    common costs.
    """
    return {
        (invoice.owner, invoice.currency): (invoice.micro,) for invoice in invoices(lines, level)
    }


def receipt_direct(content: Mapping[str, Any]) -> dict[tuple[str, str], tuple[int]]:
    """The same as a receipt states it."""
    return {
        (row["owner"], row["currency"]): (row["micro"] - row.get("shared_micro", 0),)
        for row in content.get("invoices", ())
    }


def receipt_amounts(content: Mapping[str, Any]) -> dict[tuple[str, str], tuple[int, int]]:
    """Micro-units and minor units of a receipt's invoices, by owner and currency."""
    return {
        (row["owner"], row["currency"]): (
            row["micro"],
            int(Decimal(row["amount"]).scaleb(minor_digits(row["currency"]))),
        )
        for row in content.get("invoices", ())
    }


def _invoice_row(invoice: Invoice, codes: Codes) -> Mapping[str, object]:
    """Both the booked amount and the exact one: the first is what is paid, the second adds up with
    the ledger.
    """
    return {
        "owner": invoice.owner,
        "billed": is_paid(invoice.owner),
        "currency": invoice.currency,
        "amount": Money.from_minor(invoice.minor, invoice.currency).plain(),
        "micro": invoice.micro,
        "shared": Money.from_minor(invoice.shared_minor, invoice.currency).plain(),
        "shared_micro": invoice.shared_micro,
        "cost_center": codes.cost_center,
        "gl_code": codes.gl_code,
    }


def _share_row(part: SharedPart) -> Mapping[str, object]:
    return {
        "name": part.cost.name,
        "source": part.cost.source,
        "key": part.cost.key,
        "from": format_instant(part.period.start_ms),
        "to": format_instant(part.period.end_ms),
        "owner": part.keys[0],
        "currency": part.currency,
        "micro": part.micro,
    }


def _sum_text(minors: Iterable[int], currency: str) -> str:
    return Money.from_minor(sum(minors), currency).plain()
