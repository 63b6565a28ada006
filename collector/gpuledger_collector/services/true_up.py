"""True-up: book the difference to a provider's bill of a month to the owners who held its pools."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from gpuledger_collector.accounting.adjustments import TRUE_UP, Adjustment
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.provider_bill import Comparison, Difference
from gpuledger_collector.accounting.true_up import TrueUp, true_up
from gpuledger_collector.services.provider_bill import bills_of, reconcile_bill
from gpuledger_collector.storage.billing import adjustments, bills
from gpuledger_collector.storage.billing.dispute_evidence import excerpt
from gpuledger_collector.storage.ledger import zones
from gpuledger_collector.storage.locks import Connection


@dataclass(frozen=True, slots=True)
class ProposedTrueUp:
    """What a bill would book to whom; `booked` are the true-ups of it that are booked already."""

    comparison: Comparison
    split: TrueUp
    booked: Sequence[Adjustment]
    key: str
    kinds: Collection[str]

    def due(self) -> dict[str, int]:
        """Micro-units by currency that the bill asks beyond what is booked."""
        due = self.split.totals()
        for entry in self.booked:
            currency = entry.currency or ""
            due[currency] = due.get(currency, 0) - sum(share.micro for share in entry.shares)
        return {currency: micro for currency, micro in sorted(due.items()) if micro}


def propose_true_up(
    connection: Connection,
    provider: str,
    period: Period,
    key: str,
    kinds: Collection[str],
    *,
    effective: bool,
) -> ProposedTrueUp:
    """Split the difference to the bill of a month by a key; call `refresh` before it.

    Raises NoBill, ValueError.
    """
    comparison = reconcile_bill(connection, provider, period, effective=effective)
    split = true_up(comparison, bills.held_lines(connection, period), key, kinds)
    booked = [
        entry
        for entry in adjustments.true_ups(
            connection, comparison.provider, _month(connection, period)
        )
        if not adjustments.is_reversed(connection, entry)
    ]
    return ProposedTrueUp(comparison, split, booked, key, kinds)


def book_true_up(
    connection: Connection, proposed: ProposedTrueUp, reason: str, approver: str, now_ms: int
) -> list[Adjustment]:
    """Book what is proposed, an entry for each currency; nothing where the bill is trued up
    already.
    """
    if proposed.booked:
        return []
    comparison = proposed.comparison
    period, month = comparison.period, _month(connection, comparison.period)
    calendar = zones.calendar(connection)
    # An entry keeps its name when it is reversed: what is booked anew gets a number.
    taken = {entry.name for entry in adjustments.true_ups(connection, comparison.provider, month)}
    entries = []
    for currency, shares in proposed.split.shares.items():
        several = f" in {currency}" if len(proposed.split.shares) > 1 else ""
        name = f"true-up of {comparison.provider} {month}{several}"
        numbered = (name if number == 1 else f"{name} ({number})" for number in itertools.count(1))
        entry = Adjustment(
            id=None,
            name=next(each for each in numbered if each not in taken),
            kind=TRUE_UP,
            currency=currency,
            from_on=calendar.date_of(period.start_ms),
            to_on=calendar.date_of(period.end_ms - 1) + dt.timedelta(days=1),
            reason=reason,
            approver=approver,
            shares=tuple(shares),
        )
        evidence = _evidence(connection, proposed, currency, month)
        entries.append(adjustments.book(connection, entry, now_ms, evidence))
    return entries


def _evidence(
    connection: Connection, proposed: ProposedTrueUp, currency: str, month: str
) -> Mapping[str, object]:
    """The bill, the differences and the lines that they follow from."""
    comparison = proposed.comparison
    own_bills = bills_of(connection, comparison.provider, comparison.period)
    lines = [
        {
            "line": line.line,
            "category": line.category,
            "sku": line.sku,
            "resource": line.resource,
            "quantity": None if line.quantity is None else str(line.quantity),
            "unit": line.unit,
            "currency": line.currency,
            "billed": str(line.billed),
        }
        for line in bills.lines_of(connection, [bill.id for bill in own_bills])
    ]
    left = {id(difference) for difference in proposed.split.left}
    return {
        "provider": comparison.provider,
        "period": month,
        "key": proposed.key,
        "kinds": sorted(proposed.kinds),
        "bills": [
            {"file": bill.file_name, "sha256": bill.sha256, "lines": bill.lines}
            for bill in own_bills
        ],
        "differences": excerpt(
            _difference(difference)
            for difference in comparison.differences
            if difference.currency == currency and id(difference) not in left
        ),
        "bill_lines": excerpt(lines),
    }


def _difference(difference: Difference) -> dict[str, object]:
    return {
        "kind": difference.kind,
        "day_ms": difference.day_ms,
        "pool": difference.pool,
        "node": difference.node,
        "sku": difference.sku,
        "amount": str(difference.amount),
    }


def _month(connection: Connection, period: Period) -> str:
    return zones.calendar(connection).month_of(period.start_ms)
