"""Amounts in mails and their attachments."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

from gpuledger_collector.accounting.money import MICRO


def exact(micro: int | None) -> str:
    """An amount in major units to the micro-unit, as a CSV cell; empty without one."""
    return "" if micro is None else f"{'-' if micro < 0 else ''}{abs(micro) // MICRO}.{abs(micro) % MICRO:06d}"


def csv_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A CSV file with these rows."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return file.getvalue()
