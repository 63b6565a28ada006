"""Cells of a table for people: as many digits as decide something, thousands apart, and a line of
blocks where there is a series.

The places of a column are those of its smallest amount, its totals included, so that its cells stand
under each other, and nothing is shown as zero that is more. What is no number (`-`, `not yet`) is shown as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from itertools import pairwise
from typing import Any

from gpuledger_collector.accounting import readable
from gpuledger_collector.accounting.money import MICRO, Money, group_digits
from gpuledger_collector.export.cells import to_minute
from gpuledger_collector.export.report import TEXTS, Column, Item, Kind
from gpuledger_common.escapes import escape_text

BLOCKS = "▁▂▃▄▅▆▇█"
WIDEST = 31
"""Blocks of a series in a cell, at most."""
ROUNDED = "rows are rounded one by one; --format csv has every digit"
"""What stands below a table whose rows need not add up to its totals as they are shown."""


def table_cells(column: Column[Item], items: Sequence[Item]) -> list[str]:
    """The cells of a column, for all rows and totals of a table; empty where something is unknown.

    Escaped, and so as wide as they will be: an escape is longer than the invisible character that it
    stands for.
    """
    values = [column.value(item) for item in items]
    forms = FORMS.get(column.kind)
    form = column.form if forms is None else forms([value for value in values if value is not None])
    return ["" if value is None else escape_text(form(value)) for value in values]


def are_rounded(
    columns: Sequence[Column[Item]], cells: Mapping[str, Sequence[str]], items: Sequence[Item]
) -> bool:
    """Whether a table shows less of some number than its file has."""
    return any(
        _decimal(cell.replace(",", "")) != exact
        for column in columns
        if column.kind in ADDED
        for cell, item in zip(cells[column.name], items, strict=True)
        if (exact := _decimal(column.text(item))) is not None
    )


def sparkline(values: Sequence[float | None]) -> str:
    """A line of blocks, the highest value as the highest block; a space where nothing is known.

    Zero is the lowest block, and so is all that is small beside the highest.
    """
    shown = _fewer(values, WIDEST)
    highest = max((value for value in shown if value is not None), default=0)
    last = len(BLOCKS) - 1
    return "".join(
        " "
        if value is None
        else BLOCKS[0 if highest <= 0 else max(0, min(last, round(last * value / highest)))]
        for value in shown
    )


def _fewer(values: Sequence[float | None], most: int) -> list[float | None]:
    """At most so many values: the mean of what is known of each part."""
    if len(values) <= most:
        return list(values)
    edges = [len(values) * at // most for at in range(most + 1)]
    parts = [values[start:end] for start, end in pairwise(edges)]
    known = [[value for value in part if value is not None] for part in parts]
    return [sum(part) / len(part) if part else None for part in known]


def _decimal(value: Any) -> Decimal | None:
    """A number, or the text of one with its percent sign; None: it is none."""
    try:
        number = Decimal(str(value).removesuffix("%").strip())
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def _decimals(values: Sequence[Any]) -> list[Decimal]:
    return [number for value in values if (number := _decimal(value)) is not None]


def _by_places(places: int) -> Callable[[Any], str]:
    """The form of numbers with so many places, which keeps a percent sign."""

    def form(value: Any) -> str:
        number = _decimal(value)
        if number is None:
            return str(value)
        return readable.round_text(number, places) + (" %" if str(value).endswith("%") else "")

    return form


def _money(values: Sequence[Money]) -> Callable[[Money], str]:
    smallest = min((abs(value.micro) for value in values if value.micro), default=0)
    return Money.estimate if smallest > readable.LARGE * MICRO else Money.grouped


def _hours(_: Sequence[Any]) -> Callable[[Any], str]:
    return _by_places(1)


def _gpus(values: Sequence[Any]) -> Callable[[Any], str]:
    is_whole = all(number == number.to_integral_value() for number in _decimals(values))
    return _by_places(0 if is_whole else 1)


def _percent(_: Sequence[Any]) -> Callable[[Any], str]:
    def form(value: Any) -> str:
        number = _decimal(value)
        if number is None:
            return str(value)
        return readable.share_text(number / 100) + (" %" if str(value).endswith("%") else "")

    return form


def _size(values: Sequence[Any]) -> Callable[[Any], str]:
    known = [number for number in _decimals(values) if number]
    if all(number == number.to_integral_value() for number in known):
        return _by_places(0)
    return _by_places(readable.places_of_size(min(map(abs, known))))


def _count(_: Sequence[int]) -> Callable[[int], str]:
    return lambda value: group_digits(str(value))


def _instant(_: Sequence[int]) -> Callable[[int], str]:
    return lambda at_ms: to_minute(TEXTS[Kind.INSTANT](at_ms))


def _series(_: Sequence[Sequence[float | None]]) -> Callable[[Sequence[float | None]], str]:
    return sparkline


FORMS: Mapping[Kind, Callable[[Sequence[Any]], Callable[[Any], str]]] = {
    Kind.COUNT: _count,
    Kind.HOURS: _hours,
    Kind.GPUS: _gpus,
    Kind.PERCENT: _percent,
    Kind.SIZE: _size,
    Kind.ESTIMATE: _size,
    Kind.MONEY: _money,
    Kind.INSTANT: _instant,
    Kind.SERIES: _series,
}
"""How the known values of a column are written, by its kind; the others are written as in a file."""
ADDED = frozenset((Kind.HOURS, Kind.GPUS, Kind.SIZE, Kind.MONEY))
"""Kinds whose rows add up to a total."""
