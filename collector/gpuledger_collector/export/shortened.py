"""A chargeback for people: its dearest rows, and the others as one, so that the rows still add up.

Whoever may choose tags may invent owners by the thousand; a page and a terminal stay readable, CSV
and JSON whole.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from gpuledger_collector.accounting.chargeback import Report, ReportRow, sum_known

MOST_ROWS = 100
"""Owners that a page lists in a currency."""
MOST_TERMINAL_ROWS = 1000
"""Rows of owners that a terminal lists in a currency."""
_NAMES = ("keys", "currency", "correction_of", "exchange", "state", "cost_center", "gl_code")
_AMOUNTS = tuple(field.name for field in fields(ReportRow) if field.name not in _NAMES)
_Group = tuple[str | None, str, str]


def shorten_report(report: Report, most: int = MOST_ROWS) -> Report:
    """The report with the dearest rows of owners; the others of a currency are one row with their
    number and sums.
    """
    groups: defaultdict[_Group, list[ReportRow]] = defaultdict(list)
    for row in report.rows:
        # What nobody pays are a few rows, each with a meaning of its own.
        if row.is_billed is not False:
            groups[_group_of(row)].append(row)
    rest = {group: rows[most:] for group, rows in groups.items() if len(rows) > most + 1}
    if not rest:
        return report
    hidden = {id(row) for rows in rest.values() for row in rows}
    shown: list[ReportRow] = []
    for row in report.rows:
        if id(row) not in hidden:
            shown.append(row)
        elif row is rest[_group_of(row)][0]:
            shown.append(_sum_rows(rest[_group_of(row)], len(report.by)))
    return replace(report, rows=tuple(shown))


def is_rest(row: ReportRow) -> bool:
    """Whether this is the row of those that are not listed."""
    return bool(row.keys) and row.keys[0].endswith(" more)")


def _group_of(row: ReportRow) -> _Group:
    return row.currency, row.exchange, row.correction_of


def _sum_rows(rows: Sequence[ReportRow], key_count: int) -> ReportRow:
    states = {row.state for row in rows}
    sums: dict[str, Any] = {
        name: sum_known(getattr(row, name) for row in rows) for name in _AMOUNTS
    }
    keys = (f"({len(rows):,} more)", *[""] * (key_count - 1))
    state = states.pop() if len(states) == 1 else ""
    return replace(rows[0], keys=keys, state=state, cost_center="", gl_code="", **sums)
