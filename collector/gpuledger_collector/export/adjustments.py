"""Adjustments as lists: what is in force and booked, and who pays what of a true-up."""

from __future__ import annotations

from decimal import Decimal

from gpuledger_collector.accounting.adjustments import (
    POLICIES,
    Adjustment,
    BookedShare,
    ListedAdjustment,
)
from gpuledger_collector.accounting.money import MICRO_DIGITS, Money
from gpuledger_collector.export.disputes import owner_text
from gpuledger_collector.export.report import Column, Kind, Report


def entry_text(micro: int, currency: str) -> str:
    """The amount of an entry: in full where it has parts of a cent, for what is booked is exact."""
    amount = Money(micro, currency)
    return (
        amount.plain()
        if Money.from_minor(amount.minor, currency) == amount
        else amount.exact(MICRO_DIGITS)
    )


def _owner(adjustment: Adjustment) -> str:
    if adjustment.shares:
        return f"{len({share.owner for share in adjustment.shares})} owners"
    return owner_text(adjustment.owner) if adjustment.owner else "everybody"


def _terms(adjustment: Adjustment) -> str:
    steps = sorted(adjustment.steps.items(), key=lambda step: Decimal(step[0]))
    terms = f"{adjustment.percent:f} %" if adjustment.percent is not None else ""
    terms += "; ".join(f"from hour {hours}: {rate}" for hours, rate in steps)
    return " ".join(filter(None, (adjustment.pool, adjustment.gpu_model, terms)))


def _amount(adjustment: Adjustment) -> str | None:
    if adjustment.kind in POLICIES:
        return None
    micro = sum(share.micro for share in adjustment.entry_shares())
    return entry_text(micro, adjustment.currency or "")


def _share_owner(item: BookedShare) -> str:
    owner = item.share.owner
    return owner_text(owner.levels())


ADJUSTMENTS = Report[ListedAdjustment](
    "adjustments",
    (
        Column("name", lambda item: item.adjustment.name),
        Column("kind", lambda item: item.adjustment.kind),
        Column("owner", lambda item: _owner(item.adjustment)),
        Column("what", lambda item: _terms(item.adjustment)),
        Column("amount", lambda item: _amount(item.adjustment), Kind.DECIMAL),
        Column("currency", lambda item: item.adjustment.currency),
        Column("from", lambda item: item.adjustment.from_on),
        Column("to", lambda item: item.adjustment.to_on),
        Column("reason", lambda item: item.adjustment.reason, is_optional=True),
        Column("approver", lambda item: item.adjustment.approver, is_optional=True),
        Column("reversed", lambda item: item.reversed_by, is_optional=True),
    ),
)
TRUE_UP_SHARES = Report[BookedShare](
    "shares of a true-up",
    (
        Column("owner", _share_owner),
        Column("pool", lambda item: item.share.pool),
        Column("model", lambda item: item.share.gpu_model),
        Column(
            "amount",
            lambda item: Money(item.share.micro, item.entry.currency or "").exact(MICRO_DIGITS),
            Kind.DECIMAL,
        ),
        Column("currency", lambda item: item.entry.currency),
    ),
)
