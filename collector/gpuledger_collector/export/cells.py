"""Cells and amounts as people and spreadsheets read them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal

from gpuledger_collector.accounting.money import Money
from gpuledger_collector.accounting.period import HOUR_MS, format_instant
from gpuledger_common.escapes import escape_lines, escape_text
from gpuledger_common.escapes import neutral as neutral


def names(text: str, separator: str | None = None) -> tuple[str, ...]:
    """The names in a text: columns by white space, names of several words by a separator."""
    return tuple(name.strip() for name in text.split(separator))


NOTICE = "notice"
"""What changes how the numbers are read, in sentences; empty where there is nothing to say."""
EXCHANGE = "exchange"
"""A column of another currency's view only."""


def minor_amount(micro: int | None, currency: str | None) -> str:
    """Micro-units as people read them: `1,234.50`; empty where it is unknown or unpriced."""
    return "" if micro is None or not currency else Money(micro, currency).grouped()


def hours_text(milliseconds: int, digits: int) -> str:
    """Milliseconds as hours."""
    return f"{Decimal(milliseconds) / HOUR_MS:.{digits}f}"


def to_minute(instant: str) -> str:
    """An RFC 3339 instant to the minute: `2026-10-31T12:00Z`."""
    return f"{instant[:16]}Z" if instant else ""


def instant_text(at_ms: int | None) -> str:
    """An instant in RFC 3339, to the second; empty where there is none."""
    return "" if at_ms is None else format_instant(at_ms - at_ms % 1000)


def harmless(row: Iterable[object]) -> list[object]:
    """The cells of a CSV row, neutralized for spreadsheets; use it for every row that holds a name."""
    return [neutral(cell) if isinstance(cell, str) else cell for cell in row]


def json_text(content: object) -> str:
    """Indented JSON, not limited to ASCII; invisible characters are written as escapes, which read
    back the same.
    """
    return escape_lines(json.dumps(content, indent=2, ensure_ascii=False))


def lines_text(lines: Iterable[str]) -> str:
    """Lines as a page of text; control characters in names are escaped, so that no name adds a
    line.
    """
    return "".join(f"{escape_text(line)}\n" for line in lines)


def csv_of(
    columns: Sequence[str], rows: Iterable[Mapping[str, object]], numbers: Collection[str] = ()
) -> Iterator[Iterable[object]]:
    """Rows of CSV by these columns; texts are made harmless, `numbers` may be negative."""
    yield columns
    for row in rows:
        yield [row[name] if name in numbers else neutral(str(row[name])) for name in columns]
