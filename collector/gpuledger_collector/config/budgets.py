"""Budgets as a TOML file declares them ([[budget]] tables of `declared`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gpuledger_collector.accounting.budgets import PERIODS, RANGE, Budget, Terms, parse_amount
from gpuledger_collector.accounting.period import DAY_MS, Period
from gpuledger_collector.accounting.tags import LEVELS
from gpuledger_collector.config.notification_rules import quiet_hours, whole
from gpuledger_collector.config.table import RowReader
from gpuledger_collector.storage.notifications.messages import is_recipient

KEYS = (
    "name",
    *LEVELS,
    "period",
    "from",
    "to",
    "amount",
    "currency",
    "actual",
    "forecast",
    "pace",
    "recipients",
    "escalate_to",
    "escalate_after_hours",
    "quiet",
)
MOST_PERCENT = 1000
MOST_RECIPIENTS = 50


def read_budgets(rows: Iterable[tuple[RowReader, Mapping[str, Any]]]) -> list[Budget]:
    """The budgets of the rows that are good; problems are noted at the others. Names are given once."""
    found: dict[str, Budget] = {}
    for row, given in rows:
        budget = _budget(row, given)
        if budget is None:
            continue
        if budget.name in found:
            row.refuse("name", "double_name", f"{budget.name!r} is the name of another budget of this file")
        found[budget.name] = budget
    return list(found.values())


def _budget(row: RowReader, given: Mapping[str, Any]) -> Budget | None:
    name = row.text("name", required=True)
    if any(ord(notification) < 32 or ord(notification) == 127 for notification in name):
        row.refuse("name", "bad_character", "must be one line")
    owner = {level: row.name(level, required=True) for level in LEVELS if level in given}
    amount = _amount(row)
    currency = row.currency("currency")
    kind, span = _period(row)
    terms = Terms(
        _percents(row, given, "actual", Terms().actual),
        _percents(row, given, "forecast", Terms().forecast),
        next(iter(_percents(row, {"pace": [given["pace"]]}, "pace", ())), None) if "pace" in given else None,
        _recipients(row, given, "recipients"),
        _recipients(row, given, "escalate_to"),
        quiet_hours(row),
        whole(row, "escalate_after_hours", 1, 1000) or Terms().escalate_hours,
    )
    return None if row.bad else Budget(0, name, owner, kind, span, amount, currency, terms)


def _amount(row: RowReader) -> int:
    text = row.text("amount", required=True)
    try:
        return parse_amount(text) if text else 0
    except ValueError as error:
        row.refuse("amount", "bad_amount", str(error))
        return 0


def _period(row: RowReader) -> tuple[str, Period | None]:
    kind = row.text("period", required=True)
    if kind and kind not in PERIODS:
        row.refuse("period", "bad_period", f"{kind!r} is not one of {', '.join(PERIODS)}")
    if kind != RANGE:
        for column in ("from", "to"):
            if row.text(column):
                row.refuse(column, "not_a_range", 'belongs to period = "range"')
        return kind, None
    start, end = (row.instant(column, required=True, dates=True) for column in ("from", "to"))
    if start is None or end is None:
        return kind, None
    if end <= start:
        row.refuse("to", "order", "does not lie after from")
    elif start % DAY_MS or end % DAY_MS:
        row.refuse("from", "not_a_day", "from and to must be whole days (UTC), such as 2026-11-01")
    else:
        return kind, Period(start, end)
    return kind, None


def _percents(row: RowReader, given: Mapping[str, Any], column: str, otherwise: tuple[int, ...]) -> tuple[int, ...]:
    found = given.get(column, list(otherwise))
    good = isinstance(found, list) and all(
        isinstance(one, int) and not isinstance(one, bool) and 1 <= one <= MOST_PERCENT for one in found
    )
    if not good:
        row.refuse(column, "bad_percent", f"must be whole percents from 1 to {MOST_PERCENT}, such as [80, 100]")
        return ()
    return tuple(sorted(set(found)))


def _recipients(row: RowReader, given: Mapping[str, Any], column: str) -> tuple[str, ...]:
    found = given.get(column, [])
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        row.refuse(column, "bad_list", 'must be a list of texts, such as ["lead@example.com"]')
        return ()
    for one in found:
        if not is_recipient(one):
            row.refuse(column, "bad_recipient", f"{one!r} is no mail address, slack:NAME or webhook:NAME")
    if len(found) > MOST_RECIPIENTS:
        row.refuse(column, "too_many", f"has {len(found)} recipients; at most {MOST_RECIPIENTS} are told")
    return tuple(dict.fromkeys(found))
