"""A bill held against the ledger, as text, CSV and JSON; amounts with the digits that they have."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal, localcontext

from gpuledger_collector.accounting.period import Calendar, format_instant
from gpuledger_collector.accounting.provider_bill import EXPLAINED, KINDS, Comparison, Difference
from gpuledger_collector.export.cells import json_text, lines_text
from gpuledger_collector.export.pieces import csv_pieces
from gpuledger_collector.export.report import Column, Kind, Report

SHOWN = 15


def differences_report(calendar: Calendar) -> Report[Difference]:
    """Every difference: bill less ledger, by days of this calendar."""
    return Report(
        "differences",
        (
            Column("kind", lambda item: item.kind),
            Column("day", lambda item: _day(item, calendar)),
            Column("pool", lambda item: item.pool),
            Column("node", lambda item: item.node),
            Column("sku", lambda item: item.sku),
            Column("region", lambda item: item.region),
            Column(
                "gpu_hours",
                lambda item: None if item.hours is None else f"{item.hours:f}",
                Kind.DECIMAL,
            ),
            Column("amount", lambda item: f"{item.amount:f}", Kind.DECIMAL),
            Column("currency", lambda item: item.currency),
        ),
    )


def _day(difference: Difference, calendar: Calendar) -> str:
    return "" if difference.day_ms is None else calendar.date_of(difference.day_ms).isoformat()


def as_csv(comparison: Comparison) -> str:
    """Every difference, one a row: bill less ledger."""
    report = differences_report(comparison.calendar)
    return "".join(csv_pieces(report.csv_rows(comparison.differences)))


def as_json(comparison: Comparison) -> str:
    """Totals, kinds and every difference; amounts as text, for they are exact."""
    content = {
        "provider": comparison.provider,
        "from": format_instant(comparison.period.start_ms),
        "to": format_instant(comparison.period.end_ms),
        "pools": list(comparison.pools),
        "bill": {currency: f"{amount:f}" for currency, amount in comparison.bill.items()},
        "ledger": {currency: f"{amount:f}" for currency, amount in comparison.ledger.items()},
        "kinds": [
            {"currency": currency, "kind": kind, "amount": f"{amount:f}", "says": KINDS[kind]}
            for (currency, kind), amount in comparison.by_kind().items()
        ],
        "holds": comparison.holds,
        "differences": list(
            map(differences_report(comparison.calendar).texts, comparison.differences)
        ),
    }
    return json_text(content) + "\n"


def as_text(comparison: Comparison) -> str:
    """The page that an analyst reads: the totals, the kinds, and the largest differences that are
    questions.
    """
    return lines_text(_sentences(comparison))


def _sentences(comparison: Comparison) -> Iterator[str]:
    pools = ", ".join(comparison.pools) or "no pool: nothing in the bill names one"
    month = comparison.calendar.month_of(comparison.period.start_ms)
    yield f"bill of {comparison.provider} for {month} against the ledger of {pools}"
    kinds = comparison.by_kind()
    with localcontext(prec=60):
        for currency in sorted({*comparison.bill, *comparison.ledger}):
            bill, ledger = (
                side.get(currency, Decimal(0)) for side in (comparison.bill, comparison.ledger)
            )
            yield ""
            yield f"{'bill':<12} {bill:>24f} {currency}"
            yield f"{'ledger':<12} {ledger:>24f} {currency}  observed in these pools"
            yield f"{'difference':<12} {bill - ledger:>24f} {currency}"
            for (of_currency, kind), amount in kinds.items():
                if of_currency == currency:
                    yield f"  {kind:<12} {amount:>22f} {currency}  {KINDS[kind]}"
            verdict = "add up to the difference" if comparison.holds else "do NOT add up to it"
            yield f"  the kinds {verdict}"
    yield from _questions(comparison)


def _questions(comparison: Comparison) -> Iterator[str]:
    asked = sorted(
        comparison.questions,
        key=lambda difference: (-abs(difference.amount), difference.day_ms or 0),
    )
    if not asked:
        yield ""
        yield f"no question is left: all of it is {', '.join(sorted(EXPLAINED))} or the same"
        return
    yield ""
    yield f"the largest of {len(asked)} differences to be asked about (--format csv shows all):"
    for difference in asked[:SHOWN]:
        where = " ".join(
            part
            for part in (
                _day(difference, comparison.calendar),
                difference.pool,
                difference.node,
                difference.sku,
                difference.region,
            )
            if part
        )
        hours = "" if difference.hours is None else f", {difference.hours:f} GPU-hours"
        yield f"  {difference.kind:<12} {difference.amount:f} {difference.currency}{hours}  {where}"
