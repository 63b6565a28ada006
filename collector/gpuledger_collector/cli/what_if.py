"""gpuledger what-if: a period under another price book, without touching the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from typer import Option

from gpuledger_collector.accounting.chargeback import Report, report
from gpuledger_collector.accounting.money import Money
from gpuledger_collector.accounting.pricing import PriceBook
from gpuledger_collector.cli import options
from gpuledger_collector.cli.common import column_names, new_app, refuse, time_range
from gpuledger_collector.cli.output import Column, Row, emit, number
from gpuledger_collector.cli.session import open_session
from gpuledger_collector.config.prices import read_prices
from gpuledger_collector.services.what_if import DIMENSIONS
from gpuledger_collector.services.what_if import what_if as rate_with
from gpuledger_collector.storage.billing import commitments, locations, reports
from gpuledger_collector.storage.locks import Lock

app = new_app()


@app.command("what-if", epilog="Example: gpuledger what-if --prices new.csv --period 2026-10")
def what_if(
    prices: Annotated[
        Path, Option("--prices", metavar="FILE", help="The other price book, as CSV.")
    ],
    period: options.PeriodName = None,
    start: options.FirstDay = None,
    end: options.LastDay = None,
    days: options.LastDays = None,
    by: Annotated[
        str, Option("--by", help="Columns: levels of the owner tree, pool, model, node.")
    ] = "team",
    form: options.Form = options.Format.table,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Price a period with another price book, next to what was charged. The ledger is not changed.

    The file replaces the price book: usage that none of its rates covers is unpriced.
    """
    names = column_names(by, DIMENSIONS)
    asked = time_range(period, start, end, days)
    parsed = read_prices(prices)
    if parsed.problems:
        refuse("; ".join(f"{problem.source}: {problem.message}" for problem in parsed.problems[:3]))
    with open_session(dsn, config) as session:
        span = session.rated(asked)
        with session.database.transaction(Lock.LEDGER) as connection:
            charged = report(reports.charged_lines(connection, span, names), names)
            book = PriceBook(
                parsed.rows,
                commitments.CHOICES.in_force(connection),
                locations=locations.current(connection),
            )
            other = report(rate_with(connection, span, book, session.now_ms, names), names)
    amounts = ("gpu_hours", "cost_now", "cost_then", "difference")
    columns = [*map(Column, names), Column("currency"), *map(number, amounts)]
    emit(form, columns, to_rows(names, charged, other), ["nothing was changed in the ledger"])


def to_rows(names: Sequence[str], charged: Report, other: Report) -> list[Row]:
    """A row for each owner and currency, the total last; empty where one side has no amount:
    unpriced is not zero.
    """
    sides: dict[tuple[str, tuple[str, ...]], list[tuple[str, int | None]]] = {}
    for index, side in enumerate((charged, other)):
        for line in [*side.rows, *side.totals]:
            keys = ("total", *[""] * (len(names) - 1)) if line in side.totals else line.keys
            cells = sides.setdefault((line.currency or "", keys), [("", None), ("", None)])
            # Keyed by both: an owner may have no row on one side, where the other book prices none
            # of its time.
            cells[index] = (f"{line.gpu_hours:.6f}", line.cost_minor)
    rows = []
    for (currency, keys), ((hours, cost), (other_hours, other_cost)) in sides.items():
        difference = None if cost is None or other_cost is None else other_cost - cost
        rows.append(
            {
                **dict(zip(names, keys, strict=True)),
                "currency": currency,
                "gpu_hours": hours or other_hours,
                "cost_now": _minor_text(cost, currency),
                "cost_then": _minor_text(other_cost, currency),
                "difference": _minor_text(difference, currency),
            }
        )
    return sorted(rows, key=lambda row: (row["currency"], row[names[0]] == "total"))


def _minor_text(units: int | None, currency: str) -> str:
    return "" if units is None or not currency else Money.from_minor(units, currency).plain()
