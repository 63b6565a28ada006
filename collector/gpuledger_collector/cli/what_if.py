"""gpuledger what-if: a period under another price book, without touching the ledger."""

from __future__ import annotations

import enum
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuledger_collector.cli.common import Config, Dsn, database, refuse
from gpuledger_collector.cli.terminal import print_table

if TYPE_CHECKING:
    from gpuledger_collector.accounting.chargeback import Report
    from gpuledger_collector.accounting.ledger import ChargedLine
    from gpuledger_collector.accounting.period import Period


class Shape(enum.StrEnum):
    """Forms of the answer."""

    table = "table"
    csv = "csv"
    json = "json"


def register(root: typer.Typer) -> None:
    """Add `gpuledger what-if`."""
    root.command("what-if", epilog="Example: gpuledger what-if --prices new.csv --from 2026-10-01 --to 2026-11-01")(
        what_if
    )


def what_if(
    prices: Annotated[Path, typer.Option("--prices", metavar="FILE", help="The other price book, as CSV.")],
    start: Annotated[str, typer.Option("--from", metavar="DATE", help="First day (UTC), included.")],
    end: Annotated[str, typer.Option("--to", metavar="DATE", help="Last day (UTC), not included.")],
    by: Annotated[str, typer.Option("--by", help="Columns: levels of the owner tree, pool, model, node.")] = "team",
    shape: Annotated[Shape, typer.Option("--format", help="Form of the output.")] = Shape.table,
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """Price a period anew with a whole other price book, beside what it was charged. The ledger is not changed.

    The file replaces the price book: what none of its rates covers is unpriced.
    """
    from gpuledger_collector.accounting.period import date_range
    from gpuledger_collector.config.prices import read_prices
    from gpuledger_collector.services.what_if import DIMENSIONS

    names = tuple(dict.fromkeys(name.strip() for name in by.split(",") if name.strip()))
    unknown = [name for name in names if name not in DIMENSIONS]
    if unknown or not names:
        refuse(f"--by: {unknown[0] if unknown else by!r} is none of {', '.join(DIMENSIONS)}")
    try:
        period = date_range(start, end)
    except ValueError as error:
        refuse(str(error))
    parsed = read_prices(prices)
    if parsed.problems:
        refuse("; ".join(f"{one.source}: {one.message}" for one in parsed.problems[:3]))
    now, then = both(dsn, config, prices, period, names)
    emit(names, now, then, shape)


def both(
    dsn: str | None, config: Path | None, prices: Path, period: Period, names: Sequence[str]
) -> tuple[Report, Report]:
    """The period as charged, and under the other price book."""
    from gpuledger_collector.accounting.chargeback import report
    from gpuledger_collector.accounting.pricing import PriceBook
    from gpuledger_collector.config.prices import read_prices
    from gpuledger_collector.services.refresh import refresh
    from gpuledger_collector.services.what_if import what_if as priced_anew
    from gpuledger_collector.storage.ledger import reports, zones
    from gpuledger_collector.wiring import now as clock

    now_ms = int(clock().timestamp() * 1000)
    with database(dsn, config) as opened:
        with opened.transaction() as connection:
            period = zones.in_zone(connection, period)
        refresh(opened, period, now_ms)
        from gpuledger_collector.storage.billing import commitments
        from gpuledger_collector.storage.locks import Lock

        with opened.transaction(Lock.LEDGER) as connection:
            lines: Sequence[ChargedLine] = reports.charged_lines(connection, period, names)
            book = PriceBook(read_prices(prices).rows, commitments.choices(connection))
            other = priced_anew(connection, period, book, now_ms, names)
    return report(lines, names), report(other, names)


def emit(names: Sequence[str], now: Report, then: Report, shape: Shape) -> None:
    """Print both sides and their difference, a row an owner and currency, the total last."""
    header = [*names, "currency", "gpu_hours", "cost_now", "cost_then", "difference"]
    rows = rows_of(names, now, then)
    if shape is Shape.json:
        import json

        print(json.dumps([dict(zip(header, row, strict=True)) for row in rows], indent=2))
    elif shape is Shape.csv:
        import csv

        from gpuledger_collector.export.cells import neutral

        writer = csv.writer(sys.stdout, lineterminator="\n")
        texts = [[neutral(cell) for cell in row[: len(names)]] + row[len(names) :] for row in rows]
        writer.writerows([header, *texts])
    else:
        from gpuledger_collector.export.tables import Table

        table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
        for name in header:
            table.add_column(name, justify="left" if name in {*names, "currency"} else "right", no_wrap=True)
        for row in rows:
            table.add_row(*row)
        print_table(table, 170)
        print("nothing was changed: the ledger is as it was")


def rows_of(names: Sequence[str], now: Report, then: Report) -> list[list[str]]:
    """Cells of each owner on both sides; empty where one side has no amount: unpriced is never zero."""
    from gpuledger_collector.accounting.money import format_minor, minor_digits

    found: dict[tuple[str, tuple[str, ...]], list[tuple[str, int | None]]] = {}
    for at, side in enumerate((now, then)):
        for row in [*side.rows, *side.totals]:
            keys = ("total", *[""] * (len(names) - 1)) if row in side.totals else row.keys
            cells = found.setdefault((row.currency or "", keys), [("", None), ("", None)])
            cells[at] = (f"{row.gpu_hours:.6f}", row.cost_minor)
    rows = []
    for (currency, keys), ((hours, cost), (other_hours, other)) in found.items():

        def money(units: int | None, currency: str = currency) -> str:
            return "" if units is None or not currency else format_minor(units, minor_digits(currency))

        less = None if cost is None or other is None else other - cost
        rows.append([*keys, currency, hours or other_hours, money(cost), money(other), money(less)])
    return sorted(rows, key=lambda row: (row[len(names)], row[0] == "total"))
