"""Read a statement: what one owner was billed in a month and why, in one snapshot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpuledger_collector.accounting.budgets import MONTH, Budget
from gpuledger_collector.accounting.chargeback import UNATTRIBUTED
from gpuledger_collector.accounting.owner_tree import LEVELS
from gpuledger_collector.accounting.period import Calendar, Period
from gpuledger_collector.accounting.statement import (
    OwnerJob,
    SpendChange,
    StatementSection,
    compared_windows,
    explain_change,
    make_section,
    month_before,
    unpriced_ns,
)
from gpuledger_collector.export.statement import Statement
from gpuledger_collector.services.budget_status import status_of
from gpuledger_collector.services.chargeback import Chargeback, read_chargeback
from gpuledger_collector.storage.billing import budgets, statements
from gpuledger_collector.storage.billing.budget_status import Ahead, Status
from gpuledger_collector.storage.findings import findings
from gpuledger_collector.storage.ledger import reports, zones
from gpuledger_collector.storage.locks import Connection


class NoStatement(ValueError):
    """There is nothing to state; the message says why, in a sentence."""


def require_level(level: str) -> None:
    """Raise ValueError with a sentence for what is no level of the owner tree."""
    if level not in LEVELS:
        raise ValueError(f"{level!r} is no level of the owner tree; choose from {', '.join(LEVELS)}")


def monthly_chargeback(connection: Connection, level: str, month: str, now_ms: int) -> Chargeback:
    """The month's bill of every owner by one level: cents and shares of one owner depend on all others."""
    require_level(level)
    period = zones.calendar(connection).month(month)
    return read_chargeback(connection, period, (level,), now_ms, separate_corrections=False)


@dataclass(frozen=True, slots=True)
class _Reader:
    """What a statement reads of one owner and month."""

    connection: Connection
    level: str
    owner: str
    period: Period
    calendar: Calendar
    now_ms: int

    def changes(
        self, known_ms: int | None, jobs: Sequence[OwnerJob], sections: Sequence[StatementSection]
    ) -> Mapping[str, SpendChange]:
        """Why the bill differs from the one before, by currency."""
        past = reports.conservation_checks(self.connection, month_before(self.period, self.calendar))
        rated_before = frozenset(check.day_ms for check in past)
        windows = compared_windows(self.period, known_ms or 0, rated_before, self.calendar)
        if windows is None:
            return {}
        before, after = (
            jobs if window == self.period else statements.workloads(self.connection, self.level, self.owner, window)
            for window in windows
        )
        return {section.currency: explain_change(section.currency, before, after, windows) for section in sections}

    def forecasts(self, sections: Sequence[StatementSection]) -> Mapping[str, Ahead]:
        """The end of an open month by currency, as a budget's forecast is made; corrections that it bills are added."""
        if self.now_ms >= self.period.end_ms:
            return {}
        path = {self.level: "" if self.owner == UNATTRIBUTED else self.owner}
        forecasts = {}
        for section in sections:
            # A budget of any amount has the owner's forecast.
            budget = Budget(id=0, name="", owner=path, kind=MONTH, span=None, amount_micro=1, currency=section.currency)
            ahead = status_of(self.connection, budget, self.period, self.now_ms).ahead
            if ahead is not None:
                corrected = sum(line.cost_micro or 0 for line in section.corrections)
                forecasts[section.currency] = replace(
                    ahead,
                    low_micro=ahead.low_micro + corrected,
                    middle_micro=ahead.middle_micro + corrected,
                    high_micro=ahead.high_micro + corrected,
                )
        return forecasts

    def budget_statuses(self) -> tuple[Status, ...]:
        """The owner's own budgets and those of its branches, in their period at the end of the month (or now)."""
        at_ms = min(self.now_ms, self.period.end_ms)
        statuses = []
        for budget in budgets.current(self.connection):
            period = budget.period_at(min(at_ms, self.period.end_ms - 1))
            overlaps = period.clip(Period(self.period.start_ms, at_ms)) is not None
            if budget.owner.get(self.level) == self.owner and overlaps:
                statuses.append(status_of(self.connection, budget, period, at_ms))
        return tuple(statuses)

    def findings(self) -> list[dict[str, Any]]:
        """Idle GPUs and anomalies of this owner in the month, ongoing ones first."""
        rows = [
            row
            for kind in ("idle", "anomaly")
            for row in findings.named(self.connection, kind, self.period.start_ms, self.period.end_ms)
            if belongs_to(row, self.level, self.owner)
        ]
        return sorted(rows, key=lambda row: (row["resolved_ms"] is not None, -(row["cost_micro"] or 0), row["key"]))


def read_statement(
    connection: Connection, level: str, owner: str, month: str, now_ms: int, chargeback: Chargeback | None = None
) -> Statement:
    """Read the statement of one owner. Raises ValueError (NoStatement: it was billed nothing in that month).

    `chargeback` is that of `monthly_chargeback`, where it is known already, or the connection sees one owner only.
    """
    require_level(level)
    calendar = zones.calendar(connection)
    period = calendar.month(month)
    if "\0" in owner:
        raise ValueError("an owner's name holds no NUL")
    chargeback = chargeback or monthly_chargeback(connection, level, month, now_ms)
    # The rows of the full chargeback: the statement shows the cents of the invoice.
    rows = [row for row in chargeback.report.rows if row.keys == (owner,) and row.currency is not None]
    below = next(iter(LEVELS[LEVELS.index(level) + 1 :]), None)
    owner_days = statements.parts(connection, level, owner, below, period)
    if not owner_days:
        billed = ", ".join(statements.owners(connection, level, period)[:20]) or "nobody"
        raise NoStatement(f"{level} {owner!r} was billed nothing in {month}; billed were: {billed}")
    checks = tuple(reports.conservation_checks(connection, period))
    known_ms = max((check.until_ms for check in checks), default=None)
    jobs = statements.workloads(connection, level, owner, period)
    rated = frozenset(check.day_ms for check in checks)
    sections = tuple(make_section(row, owner_days, jobs, period, rated, calendar, chargeback.shares) for row in rows)
    reader = _Reader(connection=connection, level=level, owner=owner, period=period, calendar=calendar, now_ms=now_ms)
    return Statement(
        level=level,
        owner=owner,
        month=month,
        period=period,
        made_ms=now_ms,
        known_ms=known_ms,
        closed=statements.closed(connection, period),
        sections=sections,
        changes=reader.changes(known_ms, jobs, sections),
        unpriced_ns=unpriced_ns(owner_days),
        ahead=reader.forecasts(sections),
        amended=statements.amended_later(connection, level, owner, period),
        budgets=reader.budget_statuses(),
        findings=reader.findings(),
        checks=checks,
        below=below,
        calendar=calendar,
        contested=tuple(statements.contested(connection, level, owner, period)),
    )


def belongs_to(row: Mapping[str, Any], level: str, owner: str) -> bool:
    """Whether a finding is this owner's."""
    named = (row["owner"] or {}).get(level) or (row["team"] if level == "team" else "")
    return (named or UNATTRIBUTED) == owner
