"""How plans read what people type (70e9, 70B, 2MB, 1.5TiB) and how they print what came of it."""

from __future__ import annotations

import enum
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuledger_collector.cli.common import refuse

COUNT = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
SIZE = {
    "": 1.0,
    "b": 1.0,
    "kb": 1e3,
    "mb": 1e6,
    "gb": 1e9,
    "tb": 1e12,
    "pb": 1e15,
    "kib": 2.0**10,
    "mib": 2.0**20,
    "gib": 2.0**30,
    "tib": 2.0**40,
    "pib": 2.0**50,
}
MOST = 1e18
"""Above this a number is a slip of the hand."""
_NUMBER = re.compile(r"([0-9]+(?:\.[0-9]*)?(?:e[+-]?[0-9]+)?|\.[0-9]+(?:e[+-]?[0-9]+)?)\s*([a-z]*)", re.IGNORECASE)


class Shape(enum.StrEnum):
    """Forms of a plan."""

    table = "table"
    json = "json"


@dataclass(frozen=True)
class Page:
    """A plan as people read it: lines of (label, text), a table, perhaps another, and what was assumed.

    `record` is its JSON.
    """

    title: str
    lines: Sequence[tuple[str, str]]
    record: Mapping[str, object]
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    notes: Sequence[str] = ()
    also: Sequence[Sequence[str]] = ()
    """Another table: its header, then its rows."""


def count(text: str, option: str) -> float:
    """A number such as 70e9, 70B or 1.4T; refuses what is none or not above 0, naming the option."""
    return _scaled(text, option, COUNT, "a number above 0 and to 1e18; write for example 70e9, 70B or 1.4T")


def size_bytes(text: str, option: str) -> float:
    """Bytes of 2MB, 1.5TiB or 4096; refuses what is none or not above 0, naming the option."""
    return _scaled(text, option, SIZE, "a size above 0 and to 1e18 bytes; write for example 500MB, 2GiB or 1.5TB")


def _scaled(text: str, option: str, units: Mapping[str, float], wanted: str) -> float:
    match = _NUMBER.fullmatch(text.strip())
    scale = None if match is None else units.get(match[2].lower())
    value = float(match[1]) * scale if match is not None and scale is not None else 0.0
    if not 0 < value <= MOST:
        refuse(f"{option}: {text!r} is not {wanted}")
    return value


def gib(value: float) -> str:
    """Bytes as GiB, or TiB from 10 of them on."""
    return f"{value / 2**40:,.1f} TiB" if abs(value) >= 10 * 2**40 else f"{value / 2**30:,.1f} GiB"


def decimal_bytes(value: float) -> str:
    """Bytes in powers of a thousand, three digits."""
    for unit in ("B", "kB", "MB", "GB", "TB", "PB"):
        if abs(value) < 999.5 or unit == "PB":
            return f"{value:.3g} {unit}"
        value /= 1000
    return ""


def big(value: float) -> str:
    """A count in powers of a thousand, three digits: 70 B, 1.4 T."""
    for unit in ("", " k", " M", " B", " T"):
        if abs(value) < 999.5 or unit == " T":
            return f"{value:.4g}{unit}"
        value /= 1000
    return ""


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


def emit(page: Page, shape: Shape) -> None:
    """Print the plan."""
    if shape is Shape.json:
        import json

        print(json.dumps({**page.record, "notes": list(page.notes)}, indent=2))
        return
    print(_wrapped(page.title, ""))
    width = max((len(label) for label, _ in page.lines), default=0)
    for label, text in page.lines:
        print(f"  {label:<{width}}  {text}")
    if page.rows:
        print()
        _print_rows([page.header, *page.rows])
    if page.also:
        print()
        _print_rows(page.also)
    if page.notes:
        print()
        for note in page.notes:
            print(_wrapped(f"- {note}", "  "))


def _wrapped(text: str, indent: str) -> str:
    """The text in lines of the terminal; as it is where something else reads it."""
    if not sys.stdout.isatty():
        return text
    import shutil
    import textwrap

    return textwrap.fill(text, shutil.get_terminal_size().columns, subsequent_indent=indent, break_long_words=False)


def _print_rows(every: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[column]) for row in every) for column in range(len(every[0]))]
    for row in every:
        first, *rest = (
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join(("  " + first, *rest)).rstrip())
