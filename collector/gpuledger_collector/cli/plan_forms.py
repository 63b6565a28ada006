"""How plans read what people type (70e9, 70B, 2MB, 1.5TiB) and how they print their results."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from gpuledger_collector.cli import options
from gpuledger_collector.cli.common import refuse
from gpuledger_collector.cli.output import print_json

COUNT = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
SIZE = {
    "": 1.0,
    "b": 1.0,
    **{f"{letter}b": 1000.0**power for power, letter in enumerate("kmgtp", 1)},
    **{f"{letter}ib": 1024.0**power for power, letter in enumerate("kmgtp", 1)},
}
MAX_RATE = 10**6
MAX_VALUE = 1e18
"""A larger number is a typing error."""
_NUMBER = re.compile(
    r"([0-9]+(?:\.[0-9]*)?(?:e[+-]?[0-9]+)?|\.[0-9]+(?:e[+-]?[0-9]+)?)\s*([a-z]*)", re.IGNORECASE
)


@dataclass(frozen=True)
class Page:
    """A plan as people read it: lines of (label, text), a table, perhaps more of them, and the
    assumptions.

    `record` is its JSON.
    """

    title: str
    lines: Sequence[tuple[str, str]]
    record: Mapping[str, object]
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    notes: Sequence[str] = ()
    more_tables: Sequence[Sequence[Sequence[str]]] = ()
    """Of each its header, then its rows."""


def count(text: str, option: str) -> float:
    """A number such as 70e9, 70B or 1.4T; refuses other texts, naming the option."""
    return _read_scaled(
        text, option, COUNT, "a number above 0 and to 1e18; write for example 70e9, 70B or 1.4T"
    )


def size_bytes(text: str, option: str) -> float:
    """Bytes of 2MB, 1.5TiB or 4096; refuses other texts, naming the option."""
    return _read_scaled(
        text,
        option,
        SIZE,
        "a size above 0 and to 1e18 bytes; write for example 500MB, 2GiB or 1.5TB",
    )


def _read_scaled(text: str, option: str, units: Mapping[str, float], expected: str) -> float:
    match = _NUMBER.fullmatch(text.strip())
    scale = None if match is None else units.get(match[2].lower())
    value = float(match[1]) * scale if match is not None and scale is not None else 0.0
    if not 0 < value <= MAX_VALUE:
        refuse(f"{option}: {text!r} is not {expected}")
    return value


def hourly_rate(text: str, option: str) -> Decimal:
    """Money per GPU-hour such as 2.49; refuses other texts, naming the option."""
    try:
        per_hour = Decimal(text)
    except InvalidOperation:
        per_hour = Decimal("NaN")
    if not per_hour.is_finite() or not 0 <= per_hour <= MAX_RATE:
        refuse(f"{option}: {text!r} is not money per GPU-hour, such as 2.49")
    return per_hour


def gib(value: float) -> str:
    """Bytes as GiB, or TiB from 10 of them on."""
    return f"{value / 2**40:,.1f} TiB" if abs(value) >= 10 * 2**40 else f"{value / 2**30:,.1f} GiB"


def decimal_bytes(value: float) -> str:
    """Bytes in powers of a thousand, three digits."""
    return _in_thousands(value, (" B", " kB", " MB", " GB", " TB", " PB"), ".3g")


def big(value: float) -> str:
    """A count in powers of a thousand: 70 B, 1.4 T."""
    return _in_thousands(value, ("", " k", " M", " B", " T"), ".4g")


def _in_thousands(value: float, units: Sequence[str], digits: str) -> str:
    power = 0
    while abs(value) >= 999.5 and power < len(units) - 1:
        value /= 1000
        power += 1
    return f"{value:{digits}}{units[power]}"


def span(seconds: float) -> str:
    """A length of time in the unit that suits it."""
    for limit, divisor, unit in (
        (1e-3, 1e-6, "µs"),
        (1.0, 1e-3, "ms"),
        (180.0, 1.0, "s"),
        (7200.0, 60.0, "min"),
        (172800.0, 3600.0, "h"),
    ):
        if seconds < limit:
            return f"{seconds / divisor:.3g} {unit}"
    return f"{seconds / 86400:,.1f} days"


def percent(share: float) -> str:
    """A share as percent, one decimal."""
    return f"{100 * share:.1f} %"


def print_page(page: Page, form: options.PageFormat) -> None:
    """Print the plan."""
    if form is options.PageFormat.json:
        print_json({**page.record, "notes": list(page.notes)})
        return
    print(_wrap_text(page.title, ""))
    width = max((len(label) for label, _ in page.lines), default=0)
    for label, text in page.lines:
        print(f"  {label:<{width}}  {text}")
    for table in ([page.header, *page.rows] if page.rows else [], *page.more_tables):
        if table:
            print()
            _print_rows(table)
    if page.notes:
        print()
    for note in page.notes:
        print(_wrap_text(f"- {note}", "  "))


def _wrap_text(text: str, indent: str) -> str:
    """The text in lines of the terminal; unchanged where something else reads it."""
    if not sys.stdout.isatty():
        return text
    return textwrap.fill(
        text, shutil.get_terminal_size().columns, subsequent_indent=indent, break_long_words=False
    )


def _print_rows(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        first, *rest = row
        cells = [
            first.ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True)),
        ]
        print(("  " + "  ".join(cells)).rstrip())
