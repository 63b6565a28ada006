"""Exchange: another currency's view of a report. The ledger keeps its own.

A line is converted at one dated rate, which its row names; lines at another rate are another row. A
currency without a rate is not converted. So two currencies, and two rates, are never added.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from itertools import pairwise

from gpuledger_collector.accounting.chargeback import Allocations, Report, ReportRow, report
from gpuledger_collector.accounting.ledger import ChargedLine
from gpuledger_collector.accounting.money import RATE_DIGITS, rate_nano
from gpuledger_collector.accounting.period import UTC_DAYS, Calendar, Period, format_date
from gpuledger_collector.accounting.quantity import round_half_even_div


@dataclass(frozen=True, slots=True)
class ExchangeRate:
    """One unit of `from_currency` is `rate` units of `to_currency`, from a day on until the next
    one.

    `effective_from_ms` names that day as one of UTC.
    """

    from_currency: str
    to_currency: str
    rate: Decimal
    effective_from_ms: int

    @property
    def text(self) -> str:
        """As a row names it: `USD at 0.92 from 2026-10-01`."""
        return (
            f"{self.from_currency} at {format(self.rate.normalize(), 'f')} from"
            f" {format_date(self.effective_from_ms)}"
        )

    def convert(self, micro: int) -> int:
        """Micro-units of the one currency in micro-units of the other, rounded once, half to even."""
        return round_half_even_div(micro * rate_nano(self.rate), 10**RATE_DIGITS)


class Exchange:
    """Dated rates into one currency, each from where its day of the bill begins.

    The inverse of a rate is another rate, and is not guessed.
    """

    def __init__(
        self, rates: Iterable[ExchangeRate], to_currency: str, calendar: Calendar = UTC_DAYS
    ) -> None:
        own_rates = [rate for rate in rates if rate.to_currency == to_currency]
        begins = (
            calendar.days_named(Period(rate.effective_from_ms, rate.effective_from_ms)).start_ms
            for rate in own_rates
        )
        self.to_currency = to_currency
        self._rates = sorted(zip(begins, own_rates, strict=True), key=lambda dated: dated[0])

    def rate_at(self, currency: str, at_ms: int) -> ExchangeRate | None:
        """The rate in force at an instant, None when there is none."""
        dated_rates = (
            dated for dated in reversed(self._rates) if dated[1].from_currency == currency
        )
        return next((rate for begins_ms, rate in dated_rates if begins_ms <= at_ms), None)

    def spans(self, period: Period) -> list[Period]:
        """The period, cut where a rate begins to hold: within each part one rate holds for each
        currency.
        """
        inside = {
            begins_ms for begins_ms, _ in self._rates if period.start_ms < begins_ms < period.end_ms
        }
        edges = sorted({period.start_ms, *inside, period.end_ms})
        return [Period(start, end) for start, end in pairwise(edges)]


@dataclass(frozen=True, slots=True)
class ExchangeByMonth:
    """Rates by months, each with those that hold for it: of a closed month, as they were declared
    at its close.
    """

    months: Sequence[tuple[Period, Exchange]]

    def rate_at(self, currency: str, at_ms: int) -> ExchangeRate | None:
        """The rate in force at an instant, None when there is none."""
        exchanges = (
            exchange for month, exchange in self.months if month.start_ms <= at_ms < month.end_ms
        )
        exchange = next(exchanges, None)
        return None if exchange is None else exchange.rate_at(currency, at_ms)

    def spans(self) -> list[Period]:
        """The months, cut where a rate begins to hold."""
        return [span for month, exchange in self.months for span in exchange.spans(month)]


@dataclass(slots=True)
class _Group:
    """What is converted at one rate (None: not converted), and so may be added."""

    lines: list[ChargedLine] = field(default_factory=list)
    allocations: Allocations = field(default_factory=Allocations)


def view(
    parts: Iterable[tuple[Period, Sequence[ChargedLine], Allocations]],
    by: Sequence[str],
    exchange: Exchange | ExchangeByMonth,
) -> Report:
    """The report in another currency.

    `parts` are those of `exchange.spans`, each with its lines and its allocations.

    Rows of one rate stand together with a total of their own; what has no rate keeps its currency.
    """
    groups: dict[ExchangeRate | None, _Group] = {None: _Group()}
    for span, lines, allocations in parts:
        for line in lines:
            rate = None if line.currency is None else exchange.rate_at(line.currency, span.start_ms)
            groups.setdefault(rate, _Group()).lines.append(
                line if rate is None else _convert_line(line, rate)
            )
        _add_allocations(groups, allocations, exchange, span.start_ms)
    rows: list[ReportRow] = []
    totals: list[ReportRow] = []
    for rate, group in sorted(
        groups.items(), key=lambda item: "" if item[0] is None else item[0].text
    ):
        converted = report(group.lines, by, group.allocations)
        text = "" if rate is None else rate.text
        rows += [replace(row, exchange=text) for row in converted.rows]
        totals += [replace(row, exchange=text) for row in converted.totals]
    return Report(tuple(by), tuple(rows), tuple(totals), exchanged=True)


def _convert_line(line: ChargedLine, rate: ExchangeRate) -> ChargedLine:
    # Each line is rounded on its own: rows of a view add up to its totals, not to the converted
    # total.
    costs = {
        name: micro
        for name, micro in line.amounts.items()
        if name.endswith("_micro") and micro is not None
    }
    converted = line.with_amounts({name: rate.convert(micro) for name, micro in costs.items()})
    compared = None if line.compared_cost_micro is None else rate.convert(line.compared_cost_micro)
    borne = None if line.effective_cost_micro is None else rate.convert(line.effective_cost_micro)
    return replace(
        converted,
        currency=rate.to_currency,
        compared_cost_micro=compared,
        effective_cost_micro=borne,
    )


def _add_allocations(
    groups: dict[ExchangeRate | None, _Group],
    allocations: Allocations,
    exchange: Exchange | ExchangeByMonth,
    at_ms: int,
) -> None:
    for (currency, keys), micro in allocations.shared.items():
        rate = None if currency is None else exchange.rate_at(currency, at_ms)
        shared = groups.setdefault(rate, _Group()).allocations.shared
        key, amount = (currency, keys), micro
        if rate is not None:
            key, amount = (rate.to_currency, keys), rate.convert(micro)
        shared[key] = shared.get(key, 0) + amount
    for (currency, keys), grams in allocations.emitted.items():
        rate = None if currency is None else exchange.rate_at(currency, at_ms)
        emitted = groups.setdefault(rate, _Group()).allocations.emitted
        key = (currency if rate is None else rate.to_currency, keys)
        known = emitted.get(key, 0)
        emitted[key] = None if known is None or grams is None else known + grams
