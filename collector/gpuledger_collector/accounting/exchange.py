"""Exchange: another currency's view of a report. The ledger keeps its own.

A line is converted at one dated rate, which the report then names beside it; what stands under another rate is another
row. A currency without a rate stays as it is. So two currencies, and two rates, are never added.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise

from gpuledger_collector.accounting.money import RATE_DIGITS, rate_nano
from gpuledger_collector.accounting.period import Period, format_date
from gpuledger_collector.accounting.quantity import round_half_even_div


@dataclass(frozen=True, slots=True)
class ExchangeRate:
    """One unit of `from_currency` is `rate` units of `to_currency`, from `effective_from_ms` until the next one."""

    from_currency: str
    to_currency: str
    rate: Decimal
    effective_from_ms: int

    @property
    def text(self) -> str:
        """As a row names it: `USD at 0.92 from 2026-10-01`."""
        return (
            f"{self.from_currency} at {format(self.rate.normalize(), 'f')} from {format_date(self.effective_from_ms)}"
        )

    def convert(self, micro: int) -> int:
        """Micro-units of the one currency in micro-units of the other, rounded once, half to even."""
        return round_half_even_div(micro * rate_nano(self.rate), 10**RATE_DIGITS)


class Exchange:
    """Dated rates into one currency; the inverse of a rate is another rate, and is not guessed."""

    def __init__(self, rates: Iterable[ExchangeRate], to_currency: str) -> None:
        mine = (one for one in rates if one.to_currency == to_currency)
        self.to_currency = to_currency
        self._rates = sorted(mine, key=lambda one: one.effective_from_ms)

    def rate_at(self, currency: str, at_ms: int) -> ExchangeRate | None:
        """The rate in force at an instant, None when there is none."""
        mine = (one for one in reversed(self._rates) if one.from_currency == currency)
        return next((one for one in mine if one.effective_from_ms <= at_ms), None)

    def spans(self, period: Period) -> list[Period]:
        """The period, cut where a rate begins to hold: within each part one rate holds for each currency."""
        inside = {
            one.effective_from_ms for one in self._rates if period.start_ms < one.effective_from_ms < period.end_ms
        }
        edges = sorted({period.start_ms, *inside, period.end_ms})
        return [Period(start, end) for start, end in pairwise(edges)]
