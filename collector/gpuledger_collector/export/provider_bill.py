"""A bill held against the ledger, as text, CSV and JSON; amounts with the digits that they have."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from decimal import Decimal, localcontext

from gpuledger_collector.accounting.period import Calendar, format_instant
from gpuledger_collector.accounting.provider_bill import EXPLAINED, KINDS, Comparison, Difference
from gpuledger_collector.export.cells import json_text, lines_text, neutral

COLUMNS = ("kind", "day", "pool", "node", "sku", "region", "gpu_hours", "amount", "currency")
SHOWN = 15


def _cells(one: Difference, calendar: Calendar) -> list[str]:
    return [
        one.kind,
        _day(one, calendar),
        neutral(one.pool),
        neutral(one.node),
        neutral(one.sku),
        neutral(one.region),
        "" if one.hours is None else f"{one.hours:f}",
        f"{one.amount:f}",
        one.currency,
    ]


def _day(one: Difference, calendar: Calendar) -> str:
    return "" if one.day_ms is None else calendar.date_of(one.day_ms).isoformat()


def as_csv(found: Comparison) -> str:
    """Every difference, one a row: bill less ledger."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(_cells(one, found.calendar) for one in found.differences)
    return out.getvalue()


def as_json(found: Comparison) -> str:
    """Totals, kinds and every difference; amounts as text, for they are exact."""
    content = {
        "provider": found.provider,
        "from": format_instant(found.period.start_ms),
        "to": format_instant(found.period.end_ms),
        "pools": list(found.pools),
        "bill": {currency: f"{amount:f}" for currency, amount in found.bill.items()},
        "ledger": {currency: f"{amount:f}" for currency, amount in found.ledger.items()},
        "kinds": [
            {"currency": currency, "kind": kind, "amount": f"{amount:f}", "says": KINDS[kind]}
            for (currency, kind), amount in found.by_kind().items()
        ],
        "holds": found.holds,
        "differences": [dict(zip(COLUMNS, _cells(one, found.calendar), strict=True)) for one in found.differences],
    }
    return json_text(content) + "\n"


def as_text(found: Comparison) -> str:
    """The page that an analyst reads: the totals, the kinds, and the largest differences that are questions."""
    return lines_text(_sentences(found))


def _sentences(found: Comparison) -> Iterator[str]:
    pools = ", ".join(found.pools) or "no pool: nothing in the bill names one"
    yield f"bill of {found.provider} for {found.calendar.month_of(found.period.start_ms)} against the ledger of {pools}"
    kinds = found.by_kind()
    with localcontext(prec=60):
        for currency in sorted({*found.bill, *found.ledger}):
            bill, ledger = (side.get(currency, Decimal(0)) for side in (found.bill, found.ledger))
            yield ""
            yield f"{'bill':<12} {bill:>24f} {currency}"
            yield f"{'ledger':<12} {ledger:>24f} {currency}  observed in these pools"
            yield f"{'difference':<12} {bill - ledger:>24f} {currency}"
            for (mine, kind), amount in kinds.items():
                if mine == currency:
                    yield f"  {kind:<12} {amount:>22f} {currency}  {KINDS[kind]}"
            told = "add up to the difference" if found.holds else "do NOT add up to it"
            yield f"  the kinds {told}"
    yield from _questions(found)


def _questions(found: Comparison) -> Iterator[str]:
    asked = sorted(found.questions, key=lambda one: (-abs(one.amount), one.day_ms or 0))
    if not asked:
        yield ""
        yield f"no question is left: all of it is {', '.join(sorted(EXPLAINED))} or the same"
        return
    yield ""
    yield f"the largest of {len(asked)} differences to be asked about (--format csv shows all):"
    for one in asked[:SHOWN]:
        where = " ".join(part for part in (_day(one, found.calendar), one.pool, one.node, one.sku, one.region) if part)
        hours = "" if one.hours is None else f", {one.hours:f} GPU-hours"
        yield f"  {one.kind:<12} {one.amount:f} {one.currency}{hours}  {where}"
