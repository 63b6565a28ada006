"""The cash view: what is paid, on the day on which it is paid, beside what is borne hour by hour.

Amortized, an hour costs its part of every payment that covers it; in cash, a payment is one amount
on its date and the time that it covers costs nothing more. A commitment is paid for by its upfront
payment when its term begins, and by its recurring fee for every hour of the term, used or not.
Owned hardware is paid for on the day on which it goes into service, if its declaration says how
many were bought; its depreciation is then no cash, its running costs are. Markups, discounts,
volume prices, credits and debits move money between the platform and its owners: none of it leaves
the bank. A true-up does, since it follows a provider's bill.

Law: over the whole term of a commitment, both views have the same sum (hypothesis). Payments of a
closed month are those that were declared when it was closed; what is declared later is a correction
on the day of the declaration.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from gpuledger_collector.accounting.adjustments import INTERNAL
from gpuledger_collector.accounting.commitments import Commitment
from gpuledger_collector.accounting.money import MICRO, rate_nano
from gpuledger_collector.accounting.period import HOUR_MS, Calendar, Period
from gpuledger_collector.accounting.pricing import Price
from gpuledger_collector.accounting.quantity import GPU_NS_PER_HOUR
from gpuledger_collector.accounting.rating import Charge

PURCHASE = "purchase"
"""The state of what was paid for a term or for hardware: nobody's time, and billed to no owner."""
AMORTIZED, CASH = "amortized", "cash"
NANO_MICRO_HOUR = GPU_NS_PER_HOUR * 1000
"""A GPU-nanosecond at a rate in billionths, in parts of a micro-unit."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """Owned hardware as it was bought: `count` units (GPUs or nodes) at `unit_price` each, on one
    instant.
    """

    name: str
    count: int
    per: str
    unit_price: Decimal
    currency: str
    bought_ms: int
    pool: str = ""
    gpu_model: str = ""
    node: str = ""
    region: str = ""

    @property
    def cost_micro(self) -> int:
        """What was paid for all of it."""
        return int(self.unit_price * self.count * MICRO)


@dataclass(frozen=True, slots=True)
class Version:
    """A declaration, the instant at which it was made, and the one at which another took its place
    (None: in force).
    """

    value: Commitment | Hardware
    recorded_ms: int
    superseded_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Purchase:
    """One payment. `span` is the time that it is for, `booked_ms` the instant at which it counts.

    `correction_of` names the closed month that it amends; `micro` is then negative where a payment
    is taken back.
    """

    source: Commitment | Hardware
    span: Period
    booked_ms: int
    micro: int
    is_recurring: bool
    correction_of: str = ""


def paid_micro(charge: Charge) -> int | None:
    """What a charge costs in cash; None: no price.

    Nothing more where its time was paid for, and nothing where only the platform and its owners
    settle it.
    """
    if charge.cost_micro is None:
        return None
    if charge.commitment is not None or charge.state in INTERNAL:
        return 0
    depreciation = depreciation_nano(charge.price)
    # Towards zero, so that a correction takes back just what the charge said, and as SQL's div
    # does.
    whole = abs(charge.gpu_ns) * depreciation // NANO_MICRO_HOUR
    return charge.cost_micro - (whole if charge.gpu_ns >= 0 else -whole)


def depreciation_nano(price: Price | None) -> int:
    """The part of a rate that pays hardware off whose purchase is declared, in billionths; 0 for
    any other rate.
    """
    basis: Mapping[str, Any] = {} if price is None or price.basis is None else price.basis
    is_declared = "count" in basis.get("from", ())
    return rate_nano(Decimal(basis["parts"]["depreciation"])) if is_declared else 0


def purchases(
    versions: Iterable[Version],
    asked: Period,
    calendar: Calendar,
    closed: Mapping[str, int],
    until_ms: int,
) -> list[Purchase]:
    """The payments that count in a range up to `until_ms`, by instant and name.

    `closed` has the instant at which each closed month was closed, by its name.
    """
    found = [
        payment
        for version in versions
        for payment in _of_version(version, asked, calendar, closed, until_ms)
    ]
    return sorted(
        found, key=lambda payment: (payment.booked_ms, payment.source.name, payment.is_recurring)
    )


def _of_version(
    version: Version, asked: Period, calendar: Calendar, closed: Mapping[str, int], until_ms: int
) -> Iterator[Purchase]:
    for name, month in _months(version.value, calendar, until_ms):
        closed_ms = closed.get(name)
        superseded_ms = version.superseded_ms
        if closed_ms is None:
            if superseded_ms is None:
                yield from _payments_within(version.value, month.clip(asked), until_ms)
            continue
        if version.recorded_ms <= closed_ms and (
            superseded_ms is None or superseded_ms > closed_ms
        ):
            yield from _payments_within(version.value, month.clip(asked), until_ms)
        # What changes after the close is a correction on the day on which it changes, as charges
        # are.
        if version.recorded_ms > closed_ms and asked.start_ms <= version.recorded_ms < asked.end_ms:
            yield from _correct_payment(version.value, month, name, version.recorded_ms, 1)
        if (
            superseded_ms is not None
            and superseded_ms > closed_ms
            and asked.start_ms <= superseded_ms < asked.end_ms
        ):
            yield from _correct_payment(version.value, month, name, superseded_ms, -1)


def _months(
    value: Commitment | Hardware, calendar: Calendar, until_ms: int
) -> Iterator[tuple[str, Period]]:
    """The months in which something is paid, with their names."""
    whole = (
        value.term
        if isinstance(value, Commitment)
        else Period(value.bought_ms, value.bought_ms + 1)
    )
    start_ms, end_ms = whole.start_ms, min(whole.end_ms, until_ms)
    while start_ms < end_ms:
        name = calendar.month_of(start_ms)
        month = calendar.month(name)
        yield name, month
        start_ms = month.end_ms


def _correct_payment(
    value: Commitment | Hardware, month: Period, name: str, booked_ms: int, sign: int
) -> Iterator[Purchase]:
    for payment in _payments_within(value, month, month.end_ms):
        yield replace(payment, micro=sign * payment.micro, booked_ms=booked_ms, correction_of=name)


def _payments_within(
    value: Commitment | Hardware, span: Period | None, until_ms: int
) -> Iterator[Purchase]:
    """The payments of one declaration within a span: the one-time one first, then the recurring
    one.
    """
    span = None if span is None else span.clip(Period(0, until_ms))
    if span is None:
        return
    at_ms = value.starts_ms if isinstance(value, Commitment) else value.bought_ms
    micro = value.upfront_micro if isinstance(value, Commitment) else value.cost_micro
    if micro and span.start_ms <= at_ms < span.end_ms:
        yield Purchase(value, Period(at_ms, at_ms + HOUR_MS), at_ms, micro, is_recurring=False)
    inside = span.clip(value.term) if isinstance(value, Commitment) else None
    if (
        isinstance(value, Commitment)
        and inside is not None
        and (fee := value.recurring_micro(inside))
    ):
        yield Purchase(value, inside, inside.start_ms, fee, is_recurring=True)
