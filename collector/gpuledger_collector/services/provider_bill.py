"""A provider's bill of a month against what the ledger observed in it."""

from __future__ import annotations

from dataclasses import replace

from gpuledger_collector.accounting.period import Period, format_date
from gpuledger_collector.accounting.provider_bill import Comparison, compare
from gpuledger_collector.storage.billing import bills
from gpuledger_collector.storage.ledger import zones
from gpuledger_collector.storage.locks import Connection

HALF_DAY_MS = 43_200_000
"""Billing periods are months in the provider's zone: one that begins within half a day of ours is
the same month.
"""


class NoBill(Exception):
    """There is no such bill; the sentence says which there are."""


def reconcile_bill(
    connection: Connection, provider: str, period: Period, *, effective: bool = False
) -> Comparison:
    """Compare the bill of a month with the ledger; call `refresh` before it. Raises NoBill."""
    asked = bills_of(connection, provider, period)
    calendar = zones.calendar(connection)
    days = calendar.days(period)
    lines = bills.lines_of(connection, [bill.id for bill in asked])
    comparison = compare(
        asked[0].provider,
        lines,
        bills.matches(connection),
        bills.observed_usage(connection, period),
        bills.places(connection, days),
        days,
        effective=effective,
    )
    return replace(comparison, calendar=calendar)


def bills_of(connection: Connection, provider: str, period: Period) -> list[bills.StoredBill]:
    """A provider's bills in force of the month that begins with a period. Raises NoBill."""
    bills_in_force = bills.in_force(connection)
    own_bills = [bill for bill in bills_in_force if bill.provider.casefold() == provider.casefold()]
    if not own_bills:
        known = (
            ", ".join(sorted({bill.provider for bill in bills_in_force}))
            or "none; gpuledger import bill FILE brings one"
        )
        raise NoBill(f"--bill: there is no bill of {provider!r}; known are {known}")
    asked = [bill for bill in own_bills if abs(bill.start_ms - period.start_ms) <= HALF_DAY_MS]
    if not asked:
        months = ", ".join(sorted({format_date(bill.start_ms)[:7] for bill in own_bills}))
        raise NoBill(f"--bill: of {own_bills[0].provider} there are bills for {months} only")
    return asked
