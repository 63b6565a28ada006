"""Reports: what the columns of a list are, declared once for commands, addresses, pages, files and
assistants.

A surface loops over the columns. It sums, names, rounds and orders nothing: items come with their
totals and in their order from the service that answers the question, and the kind of a column
decides its form on each surface: exact in files and for programs, and with as many digits as decide
something in a table (accounting.readable).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import cached_property, lru_cache
from typing import Any, Generic, TypeVar

from gpuledger_collector.accounting.money import Money
from gpuledger_collector.accounting.period import format_instant
from gpuledger_common.escapes import neutral

Item = TypeVar("Item")


class Kind(Enum):
    """What a column holds; None is unknown, or nothing, in each of them."""

    TEXT = auto()
    COUNT = auto()
    """An integer."""
    NUMBER = auto()
    """An integer that names something and counts nothing: an id, an index."""
    DECIMAL = auto()
    """A number that is shown as its column writes it: a rate."""
    HOURS = auto()
    """Hours, or a mean of GPUs; a table has them to the tenth."""
    GPUS = auto()
    """A count of GPUs, of which a slice is a part; a table has tenths only where there are parts."""
    PERCENT = auto()
    """A share in percent, with its sign or without; a table has whole ones."""
    SIZE = auto()
    """An energy, an emission, a factor; a table has three digits."""
    ESTIMATE = auto()
    """A float, as it is; a table has three digits."""
    MONEY = auto()
    """An amount of its own currency, in minor units; micro-units where programs read it, and whole
    units in a table without small ones.
    """
    SERIES = auto()
    """Numbers in their order in time, None where one is not known; a line of blocks in a table, and
    nowhere else.
    """
    INSTANT = auto()
    """Unix ms, shown in RFC 3339 to the second."""
    LIST = auto()
    """Texts."""
    OWNER = auto()
    """The path of an owner, level -> value."""
    JSON = auto()
    """A JSON text."""
    FACTS = auto()
    """What has no form of its own; as it is, and in JSON alone."""


DECIMALS = frozenset((Kind.DECIMAL, Kind.HOURS, Kind.GPUS, Kind.PERCENT, Kind.SIZE))
"""Decimals, or texts of some."""
NUMBERS = DECIMALS | {Kind.COUNT, Kind.NUMBER, Kind.ESTIMATE, Kind.MONEY}


@lru_cache(maxsize=1024)
def _instant_text(at_ms: int) -> str:
    # Rows of a list often share an instant: that of an hour, of a day, of a search.
    return format_instant(at_ms - at_ms % 1000)


TEXTS: Mapping[Kind, Callable[[Any], str]] = {
    Kind.TEXT: str,
    Kind.COUNT: str,
    Kind.NUMBER: str,
    **dict.fromkeys(DECIMALS, str),
    Kind.ESTIMATE: str,
    Kind.MONEY: Money.plain,
    Kind.INSTANT: _instant_text,
    Kind.LIST: lambda texts: "; ".join(map(str, texts)),
    Kind.OWNER: lambda levels: " ".join(f"{level}={value}" for level, value in levels.items()),
    Kind.JSON: str,
    Kind.FACTS: str,
    Kind.SERIES: lambda _: "",
}
"""The form for people and spreadsheets; a file has a million cells, so each is one look-up and one
call.
"""


def heading_of(name: str) -> str:
    """The words of a column's name: `rate_per_gpu_hour` is `rate per GPU-hour`."""
    return _UNITS.sub(lambda unit: _SPELLED[unit[0]], name).replace("_", " ")


_SPELLED = {"gpu_hour": "GPU-hour", "gpu": "GPU", "mig": "MIG", "kwh": "kWh", "co2e": "CO2e"}
_UNITS = re.compile(rf"(?<![a-z])({'|'.join(_SPELLED)})(?=s?(?![a-z]))")


@dataclass(frozen=True)
class Column(Generic[Item]):
    """A column of a report: its name everywhere, its value of an item, and where it is shown."""

    name: str
    value: Callable[[Item], Any]
    kind: Kind = Kind.TEXT
    heading: str = ""
    """In a table; else its name."""
    about: str = ""
    """What it is, where its name does not say all; assistants and their reference have it."""
    is_optional: bool = False
    """Left out of a table that is wider than the terminal; the last one first."""
    in_table: bool = True
    in_csv: bool = True
    in_answers: bool = True
    """Whether assistants are told, for whom every word costs."""

    @cached_property
    def is_number(self) -> bool:
        """Numbers align right; a spreadsheet may take them as they are."""
        return self.kind in NUMBERS

    @cached_property
    def title(self) -> str:
        """Its heading where people read it."""
        return self.heading or heading_of(self.name)

    @cached_property
    def keeps_width(self) -> bool:
        """Whether it is shown in one piece or not at all."""
        return self.is_number or self.kind in {Kind.SERIES, Kind.INSTANT}

    def text(self, item: Item) -> str:
        """The value for people and spreadsheets; empty where it is unknown."""
        value = self.value(item)
        return "" if value is None else self.form(value)

    @cached_property
    def form(self) -> Callable[[Any], str]:
        """How a known value is written for people and spreadsheets."""
        return TEXTS[self.kind]

    def exact(self, item: Item) -> Any:
        """The value for programs: micro-units, integers, lists and instants; null where it is
        unknown.
        """
        value = self.value(item)
        if value is None:
            return None
        if self.kind is Kind.MONEY:
            amount: Money = value
            return amount.micro
        if self.kind is Kind.INSTANT:
            return format_instant(value)
        if self.kind is Kind.JSON:
            return json.loads(value)
        return str(value) if self.kind in DECIMALS else value

    @property
    def exact_name(self) -> str:
        """Its name where amounts are exact."""
        return f"{self.name}_micro" if self.kind is Kind.MONEY else self.name


def series_column(
    name: str, value: Callable[[Item], Sequence[float | None] | None], heading: str = ""
) -> Column[Item]:
    """A line of blocks in a table, which gives way first in a narrow one; files and programs have
    the numbers elsewhere.
    """
    return Column(
        name,
        value,
        Kind.SERIES,
        heading,
        is_optional=True,
        in_csv=False,
        in_answers=False,
    )


def key_column(name: str, kind: Kind = Kind.TEXT, **shown: Any) -> Column[Mapping[str, Any]]:
    """A column of items that are mappings: the value of that key, unknown where there is none."""
    return Column(name, lambda item: item.get(name), kind, **shown)


def cells_of(columns: Sequence[Column[Item]]) -> Callable[[Item], list[str]]:
    """What writes an item's cells of a file; texts are made harmless for spreadsheets, unknown ones
    are empty.

    A number may be negative; an apostrophe before its sign would make it a text.
    """
    forms = [(column.value, column.form, column.is_number) for column in columns]

    def cells(item: Item) -> list[str]:
        row = []
        for value_of, form, is_number in forms:
            value = value_of(item)
            text = "" if value is None else form(value)
            row.append(text if is_number or not text else neutral(text))
        return row

    return cells


@dataclass(frozen=True)
class Report(Generic[Item]):
    """A list that people and programs read: its name and its columns, in their order."""

    name: str
    columns: tuple[Column[Item], ...]

    def select(self, *names: str) -> Report[Item]:
        """The same list with these columns, in this order."""
        columns = {column.name: column for column in self.columns}
        return replace(self, columns=tuple(columns[name] for name in names))

    @cached_property
    def csv_columns(self) -> tuple[Column[Item], ...]:
        """Those of a file."""
        return tuple(column for column in self.columns if column.in_csv)

    def csv_rows(self, items: Iterable[Item]) -> Iterator[list[str]]:
        """The heading and a row for each item; texts are made harmless for spreadsheets."""
        yield [column.name for column in self.csv_columns]
        yield from map(cells_of(self.csv_columns), items)

    def texts(self, item: Item) -> dict[str, Any]:
        """An item as it is printed, by column."""
        return {
            column.name: column.exact(item) if column.kind is Kind.FACTS else column.text(item)
            for column in self.columns
            if column.kind is not Kind.SERIES
        }

    def exact(self, item: Item) -> dict[str, Any]:
        """An item as programs read it, by column."""
        return {
            column.exact_name: column.exact(item)
            for column in self.columns
            if column.kind is not Kind.SERIES
        }

    def others(self, names: Iterable[str], item: Item) -> list[tuple[str, str]]:
        """The heading and the text of every column that a page has no place of its own for, where
        it has a value.
        """
        placed = set(names)
        cells = (
            (column.title, column.text(item))
            for column in self.csv_columns
            if column.name not in placed
        )
        return [(heading, text) for heading, text in cells if text]
