"""A provider's bill of a month against what the ledger observed in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from gpuledger_collector.accounting.period import Calendar, Period, format_date
from gpuledger_collector.accounting.provider_bill import (
    BillLine,
    BillMatch,
    Comparison,
    NodeCapacity,
    ObservedUsage,
    compare,
)

HALF_DAY_MS = 43_200_000
"""Billing periods are months in the provider's zone: one that begins within half a day of ours is the same month."""


class NoBill(Exception):
    """There is no such bill; the sentence says which there are."""


class Stored(Protocol):
    """A bill that is in force."""

    @property
    def id(self) -> int:
        """Its number."""

    @property
    def provider(self) -> str:
        """Whose it is."""

    @property
    def start_ms(self) -> int:
        """Where its billing period begins."""


class BillSource(Protocol):
    """Where bills and the ledger are kept."""

    def in_force(self) -> Sequence[Stored]:
        """Every bill that no newer file superseded."""

    def lines_of(self, ids: Sequence[int]) -> Sequence[BillLine]:
        """The lines of some bills."""

    def matches(self) -> Sequence[BillMatch]:
        """The matches in force, in their order."""

    def observed(self, period: Period) -> Sequence[ObservedUsage]:
        """What the ledger observed in the period's days."""

    def places(self, days: Sequence[Period]) -> Mapping[tuple[str, int], NodeCapacity]:
        """Where each node stood on each day."""

    def calendar(self) -> Calendar:
        """The days and months of the bill, in the billing zone."""


def reconcile_bill(source: BillSource, provider: str, period: Period, *, effective: bool = False) -> Comparison:
    """Hold the bill of a month against the ledger; call `refresh` before it. Raises NoBill."""
    bills = source.in_force()
    own_bills = [bill for bill in bills if bill.provider.casefold() == provider.casefold()]
    if not own_bills:
        known = ", ".join(sorted({bill.provider for bill in bills})) or "none; gpuledger import bill FILE brings one"
        raise NoBill(f"--bill: there is no bill of {provider!r}; known are {known}")
    asked = [bill for bill in own_bills if abs(bill.start_ms - period.start_ms) <= HALF_DAY_MS]
    if not asked:
        months = ", ".join(sorted({format_date(bill.start_ms)[:7] for bill in own_bills}))
        raise NoBill(f"--bill: of {own_bills[0].provider} there are bills for {months} only")
    calendar = source.calendar()
    days = calendar.days(period)
    lines = source.lines_of([bill.id for bill in asked])
    comparison = compare(
        asked[0].provider,
        lines,
        source.matches(),
        source.observed(period),
        source.places(days),
        days,
        effective=effective,
    )
    return replace(comparison, calendar=calendar)
