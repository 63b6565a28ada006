"""What a statement is made of, read in one snapshot; the same for the command and for the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import psycopg

from gpuledger_collector.accounting import statement as exact
from gpuledger_collector.accounting.budgets import MONTH, Budget
from gpuledger_collector.accounting.chargeback import UNATTRIBUTED, Report, SharedPart, report
from gpuledger_collector.accounting.owner_tree import LEVELS
from gpuledger_collector.accounting.period import Calendar, Period
from gpuledger_collector.export.statement import Statement
from gpuledger_collector.services.budget_status import status_of
from gpuledger_collector.storage.billing import budgets, statements
from gpuledger_collector.storage.billing.allocation import beside
from gpuledger_collector.storage.billing.budget_status import Ahead, Status
from gpuledger_collector.storage.findings import findings
from gpuledger_collector.storage.ledger import reports, zones

Connection = psycopg.Connection[tuple[Any, ...]]


class NoStatement(ValueError):
    """There is nothing to state; the message says why, in a sentence."""


def level_of(level: str) -> str:
    """The level. Raises ValueError with a sentence."""
    if level not in LEVELS:
        raise ValueError(f"{level!r} is no level of the owner tree; choose from {', '.join(LEVELS)}")
    return level


@dataclass(frozen=True, slots=True)
class Whole:
    """The chargeback of a month by one level, with every share of a common cost."""

    made: Report
    shares: Sequence[SharedPart]


def whole_of(connection: Connection, level: str, month: str, now_ms: int) -> Whole:
    """What the month bills by this level, of everybody: cents and shares of one owner are settled with all others'."""
    period, by = zones.calendar(connection).month(month), (level_of(level),)
    aside = beside(connection, period, by, now_ms)
    return Whole(report(reports.charged_lines(connection, period, by), by, aside), aside.parts)


def statement_of(
    connection: Connection, level: str, owner: str, month: str, now_ms: int, whole: Whole | None = None
) -> Statement:
    """The statement. Raises ValueError (NoStatement: that owner was billed nothing in that month) with a sentence.

    `whole`: that of `whole_of`, where it is known already, or the connection sees one owner's part only.
    """
    level_of(level)
    calendar = zones.calendar(connection)
    period = calendar.month(month)
    if "\0" in owner:
        raise ValueError("an owner's name holds no NUL")
    whole = whole_of(connection, level, month, now_ms) if whole is None else whole
    rows = [row for row in whole.made.rows if row.keys == (owner,) and row.currency is not None]
    below = next(iter(LEVELS[LEVELS.index(level) + 1 :]), None)
    parts = statements.parts(connection, level, owner, below, period)
    if not parts:
        known = statements.owners(connection, level, period)
        listed = ", ".join(known[:20]) or "nobody"
        raise NoStatement(f"{level} {owner!r} was billed nothing in {month}; billed were: {listed}")
    proofs = tuple(reports.conservation_checks(connection, period))
    known_ms = max((proof.until_ms for proof in proofs), default=None)
    jobs = statements.workloads(connection, level, owner, period)
    rated = frozenset(proof.day_ms for proof in proofs)
    sections = tuple(exact.section(row, parts, jobs, period, rated, calendar, whole.shares) for row in rows)
    return Statement(
        level,
        owner,
        month,
        period,
        now_ms,
        known_ms,
        statements.closed(connection, period),
        sections,
        _changes(connection, calendar, level, owner, period, known_ms, jobs, [one.currency for one in sections]),
        exact.unpriced_ns(parts),
        _ahead(connection, level, owner, period, now_ms, sections),
        statements.amended_later(connection, level, owner, period),
        _budgets(connection, level, owner, period, now_ms),
        _findings(connection, level, owner, period),
        proofs,
        below,
        calendar,
        tuple(statements.contested(connection, level, owner, period)),
    )


def _changes(
    connection: Connection,
    calendar: Calendar,
    level: str,
    owner: str,
    period: Period,
    known_ms: int | None,
    jobs: Sequence[exact.OwnerJob],
    currencies: Sequence[str],
) -> Mapping[str, exact.SpendChange]:
    past = reports.conservation_checks(connection, exact.month_before(period, calendar))
    windows = exact.windows(period, known_ms or 0, frozenset(proof.day_ms for proof in past), calendar)
    if windows is None:
        return {}
    before = statements.workloads(connection, level, owner, windows[0])
    after = jobs if windows[1] == period else statements.workloads(connection, level, owner, windows[1])
    return {currency: exact.explain_change(currency, before, after, windows) for currency in currencies}


def _path(level: str, owner: str) -> Mapping[str, str]:
    return {level: "" if owner == UNATTRIBUTED else owner}


def _ahead(
    connection: Connection, level: str, owner: str, period: Period, now_ms: int, sections: Sequence[exact.Section]
) -> Mapping[str, Ahead]:
    """The end of an open month by currency, as a budget's forecast is made; corrections that it bills are added."""
    if now_ms >= period.end_ms:
        return {}
    unit, found = budgets.WatchUnit(connection), {}
    for one in sections:
        whole = Budget(0, "", _path(level, owner), MONTH, None, 1, one.currency)
        ahead = status_of(unit, whole, period, now_ms).ahead
        if ahead is not None:
            more = sum(amount.cost_micro or 0 for amount in one.corrections)
            found[one.currency] = replace(
                ahead,
                low_micro=ahead.low_micro + more,
                middle_micro=ahead.middle_micro + more,
                high_micro=ahead.high_micro + more,
            )
    return found


def _budgets(connection: Connection, level: str, owner: str, period: Period, now_ms: int) -> tuple[Status, ...]:
    """The owner's own budgets and those of its branches, in their period at the end of the month (or now)."""
    at_ms = min(now_ms, period.end_ms)
    unit, found = budgets.WatchUnit(connection), []
    for budget in budgets.current(connection):
        own = budget.period_at(min(at_ms, period.end_ms - 1))
        if budget.owner.get(level) == owner and own.clip(Period(period.start_ms, at_ms)) is not None:
            found.append(status_of(unit, budget, own, at_ms))
    return tuple(found)


def _findings(connection: Connection, level: str, owner: str, period: Period) -> list[dict[str, Any]]:
    """What was found idle or stood out at this owner in the month, what goes on first."""
    rows = [
        row
        for kind in ("idle", "anomaly")
        for row in findings.named(connection, kind, period.start_ms, period.end_ms)
        if belongs(row, level, owner)
    ]
    return sorted(rows, key=lambda row: (row["resolved_ms"] is not None, -(row["cost_micro"] or 0), row["key"]))


def belongs(row: Mapping[str, Any], level: str, owner: str) -> bool:
    """Whether a finding is this owner's."""
    named = (row["owner"] or {}).get(level) or (row["team"] if level == "team" else "")
    return (named or UNATTRIBUTED) == owner
