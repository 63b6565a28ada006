"""The end of the demo, of at most 22 lines, each of them what a command has printed or a file
holds.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from gpuledger_collector.accounting.period import parse_instant
from gpuledger_common.escapes import escape_text
from gpuledger_common.instants import to_datetime
from gpuledger_common.plurals import plural

MAX_OWNERS = 11
"""Rows of the bill that are shown one by one."""


@dataclass(frozen=True)
class Highlights:
    """What the commands of the demo printed, line by line, and the month that was closed."""

    proof: Sequence[str]
    idle: Sequence[str]
    anomalies: Sequence[str]
    recommended: Sequence[str]
    forecast: Sequence[str]
    advice: Sequence[str]
    closed: str | None


def summary(folder: Path, highlights: Highlights) -> list[str]:
    """Bill, proof, waste, what lies ahead, and where everything is."""
    closed = (
        [f"Closed month:  {highlights.closed}, sealed; late evidence became corrections"]
        if highlights.closed
        else []
    )
    mails = plural(len(list((folder / "mails").glob("*.eml"))), "mail")
    return [
        *_bill(folder),
        f"Proof:         {_line(highlights.proof, 'It holds')}",
        *closed,
        f"Idle now:      {_line(highlights.idle, ' findings, ')}",
        f"Unusual:       {_line(highlights.anomalies, ' episodes')}",
        f"To save:       {_line(highlights.recommended, 'all open advice').partition('; ')[0]}",
        f"Tomorrow:      {_tomorrow(highlights.forecast)}",
        f"Capacity:      {_line(highlights.advice, ': hold ')}",
        (
            f"Files:         chargeback.csv, focus.csv, statements/*/index.html, {mails} in mails/;"
            " logs/demo.log has each command with its output"
        ),
    ]


def _bill(folder: Path) -> list[str]:
    bill = json.loads((folder / "chargeback.json").read_text())
    rows = [row for row in bill["rows"] if not row.get("correction_of")]
    # A line that says "1 more owner" could show that owner.
    most = MAX_OWNERS + 1 if len(rows) == MAX_OWNERS + 1 else MAX_OWNERS
    shown = [
        f"  {escape_text(row['team'] or '(unattributed)'):15}{float(row['gpu_hours']):>12,.1f}"
        f" GPU-hours{_money(row):>18}"
        for row in rows[:most]
    ]
    more = [f"  and {plural(len(rows) - most, 'more owner')}"] if len(rows) > most else []
    totals = [
        f"  {'total':15}{float(row['gpu_hours']):>12,.1f} GPU-hours{_money(row):>18}"
        for row in bill["totals"]
    ]
    return [f"The bill of {bill['from'][:10]} to {bill['to'][:10]}", *shown, *more, *totals]


def _money(row: Mapping[str, str]) -> str:
    return f"{row['currency']} {Decimal(row['cost']):,}"


def _line(lines: Sequence[str], words: str) -> str:
    """The last line with these words; a dash where a fleet of a few days has none."""
    return next((escape_text(line.strip()) for line in reversed(lines) if words in line), "-")


def _tomorrow(lines: Sequence[str]) -> str:
    """The demand that is forecast for the end of the horizon."""
    rows = list(csv.DictReader(line for line in lines if "," in line))
    if not rows:
        return "-"
    last = rows[-1]
    low, likely, high = (f"{float(last[name]):.0f}" for name in ("q0.1", "q0.5", "q0.9"))
    at = to_datetime(parse_instant(last["ts"]))
    return (
        f"about {likely} GPUs of pool {escape_text(last['series'])} on {at.day} {at:%b}, {at:%H:%M}"
        f" UTC ({low} to {high} in 8 of 10)"
    )
