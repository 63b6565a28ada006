"""Cells and amounts as people and spreadsheets read them."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal

from gpuledger_collector.accounting.chargeback import ReportRow
from gpuledger_collector.accounting.money import Money
from gpuledger_collector.accounting.period import HOUR_MS, format_instant
from gpuledger_common.escapes import escape_lines, escape_text
from gpuledger_common.escapes import neutral as neutral


def names(text: str, separator: str | None = None) -> tuple[str, ...]:
    """The names in a text: columns by white space, names of several words by a separator."""
    return tuple(name.strip() for name in text.split(separator))


MEASURE_COLUMNS = ("gpu_hours", "gpu_hours_held_idle", "cost", "cost_held_idle", "currency")
ALLOCATION_COLUMNS = names(
    """
    cost_shared cost_total energy_kwh co2e_grams cost_list cost_contracted cost_compared cost_effective cost_waste
    billed correction_of cost_adjustments cost_center gl_code
    """
)
"""What stands after the measures: shares of common costs, direct cost and shares, energy and carbon; then the direct
cost at list rates, at the price book's, the part of `cost` for which those two are known, and the cost as it is: with
commitments amortized, the same as `cost`; the part of it that is waste (accounting.waste); whether an owner pays the
row (yes, no); the closed month that a row corrects, empty for the period's own time; how much of the direct cost is
adjustments; and the cost center and GL code of the owner."""
NOTICE = "notice"
"""What changes how the numbers are read, in sentences; empty where there is nothing to say."""
EXCHANGE = "exchange"
"""A column of another currency's view only."""
PART_COLUMNS = ("cost_nodes", "cost_cash")
"""The last columns: how much of the direct cost is node costs; and, in the cash view, what is paid."""


def minor_amount(micro: int | None, currency: str | None) -> str:
    """Micro-units in the currency's minor unit: `1234.50`; empty where it is unknown or unpriced."""
    return "" if micro is None or not currency else Money(micro, currency).plain()


def hours_text(milliseconds: int, digits: int) -> str:
    """Milliseconds as hours."""
    return f"{Decimal(milliseconds) / HOUR_MS:.{digits}f}"


def instant_text(at_ms: int | None) -> str:
    """An instant in RFC 3339, to the second; empty where there is none."""
    return "" if at_ms is None else format_instant(at_ms - at_ms % 1000)


def harmless(row: Iterable[object]) -> list[object]:
    """The cells of a CSV row, neutralized for spreadsheets; use it for every row that holds a name."""
    return [neutral(cell) if isinstance(cell, str) else cell for cell in row]


def json_text(content: object) -> str:
    """Indented JSON, not limited to ASCII; invisible characters are written as escapes, which read back the same."""
    return escape_lines(json.dumps(content, indent=2, ensure_ascii=False))


def lines_text(lines: Iterable[str]) -> str:
    """Lines as a page of text; control characters in names are escaped, so that no name adds a line."""
    return "".join(f"{escape_text(line)}\n" for line in lines)


def rows_as(shape: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Plain rows as `csv` (texts made harmless) or `json` (a list of objects); None is an empty cell, or null."""
    if shape == "json":
        return json.dumps([dict(zip(columns, row, strict=True)) for row in rows], indent=2) + "\n"
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(harmless(row) for row in rows)
    return text.getvalue()


def csv_of(
    columns: Sequence[str], rows: Iterable[Mapping[str, object]], numbers: Collection[str] = ()
) -> Iterator[Iterable[object]]:
    """Rows of CSV by these columns; texts are made harmless, `numbers` may be negative."""
    yield columns
    for row in rows:
        yield [row[name] if name in numbers else neutral(str(row[name])) for name in columns]


def measure_cells(row: ReportRow) -> list[str]:
    """The amounts of a row as text, in the order of MEASURE_COLUMNS; what is not known is empty."""
    return [
        f"{row.gpu_hours:.6f}",
        "" if row.gpu_hours_held_idle is None else f"{row.gpu_hours_held_idle:.6f}",
        _money(row, row.cost_minor),
        _money(row, row.cost_held_idle_minor),
        row.currency or "",
    ]


def allocation_cells(row: ReportRow) -> list[str]:
    """A row's shares, carbon and comparisons as text, in the order of ALLOCATION_COLUMNS; unknown is empty."""
    return [
        _money(row, row.shared_minor),
        _money(row, row.total_minor),
        "" if row.energy_kwh is None else f"{row.energy_kwh:.6f}",
        "" if row.co2e_grams is None else f"{row.co2e_grams:.3f}",
        _money(row, row.list_minor),
        _money(row, row.contracted_minor),
        _money(row, row.compared_minor),
        _money(row, row.effective_minor),
        _money(row, row.waste_minor),
        {True: "yes", False: "no", None: ""}[row.is_billed],
        row.correction_of,
        _money(row, row.adjusted_minor),
        neutral(row.cost_center),
        neutral(row.gl_code),
    ]


def part_cells(row: ReportRow, *, is_cash: bool) -> list[str]:
    """Parts of a row's cost as text, in the order of PART_COLUMNS; unknown is empty."""
    return [_money(row, row.node_minor), _money(row, row.cost_minor) if is_cash else ""]


def _money(row: ReportRow, units: int | None) -> str:
    return "" if units is None or row.currency is None else Money.from_minor(units, row.currency).plain()


def header(by: Sequence[str]) -> list[str]:
    """The columns of a chargeback."""
    return [*by, *MEASURE_COLUMNS]
