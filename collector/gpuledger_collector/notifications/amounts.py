"""Amounts in mails and their attachments."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from gpuledger_collector.accounting.money import decimal_text

Item = TypeVar("Item")


def exact(micro: int | None) -> str:
    """An amount in major units to the micro-unit, as a CSV cell; empty without one."""
    return "" if micro is None else decimal_text(micro)


def csv_text(columns: Mapping[str, Callable[[Item], object]], items: Iterable[Item]) -> str:
    """A CSV file of these columns; each says what its cell is."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([cell(item) for cell in columns.values()] for item in items)
    return file.getvalue()
