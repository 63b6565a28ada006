"""Amounts in mails and their attachments."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

from gpuledger_collector.accounting.money import decimal_text


def exact(micro: int | None) -> str:
    """An amount in major units to the micro-unit, as a CSV cell; empty without one."""
    return "" if micro is None else decimal_text(micro)


def csv_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A CSV file with these rows."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return file.getvalue()
