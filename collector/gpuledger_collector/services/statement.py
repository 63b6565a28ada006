"""Read statements: what an owner was billed in a month and why, in one snapshot."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from gpuledger_collector.accounting.budget_status import Ahead, Status
from gpuledger_collector.accounting.budgets import Budget
from gpuledger_collector.accounting.chargeback import (
    UNATTRIBUTED,
    Report,
    ReportRow,
    SharedPart,
    only_rows,
)
from gpuledger_collector.accounting.closed_verdict import ClosedVerdict, payer_of
from gpuledger_collector.accounting.closing import ClosedPeriod, LaterChange
from gpuledger_collector.accounting.fair_share import ShareUse
from gpuledger_collector.accounting.ledger import ConservationCheck
from gpuledger_collector.accounting.model_use import ModelUse
from gpuledger_collector.accounting.month_proof import PeriodProof
from gpuledger_collector.accounting.owner_tree import LEVELS
from gpuledger_collector.accounting.period import Calendar, Period
from gpuledger_collector.accounting.pricing import Price
from gpuledger_collector.accounting.statement import (
    OwnerJob,
    SpendChange,
    StatementSection,
    compared_windows,
    explain_change,
    explain_rates,
    make_section,
    month_before,
    unpriced_ns,
)
from gpuledger_collector.export.statement import Statement
from gpuledger_collector.insight.findings import NamedFinding
from gpuledger_collector.services.absence import explain_absence
from gpuledger_collector.services.budget_status import standings_of
from gpuledger_collector.services.chargeback import (
    Chargeback,
    read_chargeback,
    read_owner_chargeback,
)
from gpuledger_collector.services.closed_verdict import make_verdict
from gpuledger_collector.services.fair_share import read_share_use
from gpuledger_collector.services.model_use import read_model_use
from gpuledger_collector.services.spend_forecasts import forecast_owners
from gpuledger_collector.storage import overview
from gpuledger_collector.storage.billing import budgets, month_proofs, prices, reports, statements
from gpuledger_collector.storage.findings import findings
from gpuledger_collector.storage.ledger import zones
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.row_level_security import as_viewer

_Item = TypeVar("_Item")
FINDING_KINDS = ("idle", "anomaly")
OWNERS_AT_ONCE = 500
"""Each reading goes over the whole month; more owners at once take more memory."""


class NoStatement(ValueError):
    """There is nothing to state; the message says why, in a sentence."""


def require_level(level: str) -> None:
    """Raise ValueError with a sentence for what is no level of the owner tree."""
    if level not in LEVELS:
        raise ValueError(
            f"{level!r} is no level of the owner tree; choose from {', '.join(LEVELS)}"
        )


def monthly_chargeback(
    connection: Connection, level: str, month: str, now_ms: int, owner: str | None = None
) -> Chargeback:
    """The month's bill by one level, of every owner or of one: cents and shares of one owner depend
    on all others.
    """
    require_level(level)
    if owner is not None and "\0" in owner:
        raise ValueError("an owner's name holds no NUL")
    period = zones.calendar(connection).month(month)
    if owner is None:
        chargeback = read_chargeback(
            connection, period, (level,), now_ms, separate_corrections=False
        )
    else:
        chargeback = read_owner_chargeback(
            connection, period, level, owner, now_ms, separate_corrections=False
        )
    # The statement of a closed month is the same for ever, and shares and their series are not kept
    # that long.
    if level != "team" or statements.closed_record(connection, period) is not None:
        return chargeback
    return replace(chargeback, pool_use=read_share_use(connection, period))


def read_month(
    connection: Connection,
    level: str,
    month: str,
    now_ms: int,
    viewer: Mapping[str, str] | None,
) -> Report:
    """Who pays in a month, by a level; for a viewer its own rows of that, so that their cents are
    those of the invoice.
    """
    require_level(level)
    period = zones.calendar(connection).month(month)
    if viewer is None:
        return read_chargeback(connection, period, (level,), now_ms).report
    if set(viewer) != {level}:
        return Report((level,), (), ())
    return read_owner_chargeback(connection, period, level, viewer[level], now_ms).report


def narrow_bill(report: Report, words: str, state: str) -> Report:
    """The rows of a bill with these words in their name: what owners pay (`billed`), what nobody
    does (`not_billed`), or corrections of earlier months (`corrections`); empty: all.
    """

    def is_wanted(row: ReportRow) -> bool:
        kinds = {
            "": True,
            "billed": row.is_billed is not False,
            "not_billed": row.is_billed is False,
            "corrections": bool(row.correction_of),
        }
        return kinds[state] and words.casefold() in row.keys[0].casefold()

    return only_rows(report, is_wanted)


def read_statement_jobs(
    connection: Connection,
    level: str,
    owner: str,
    month: str,
    now_ms: int,
    viewer: Mapping[str, str] | None,
) -> Report:
    """What an owner pays in a month by job, as a viewer may see it."""
    require_level(level)
    period = zones.calendar(connection).month(month)
    found = read_chargeback(connection, period, (level, "workload"), now_ms, viewer).report
    return replace(found, rows=tuple(row for row in found.rows if row.keys[0] == owner))


@dataclass(frozen=True, slots=True)
class _Month:
    """What the statements of a month have in common, read once for all of them."""

    connection: Connection
    level: str
    name: str
    period: Period
    calendar: Calendar
    now_ms: int
    rows: Mapping[str, Sequence[ReportRow]]
    shares: Mapping[str, Sequence[SharedPart]]
    pool_use: Mapping[str, Sequence[ShareUse]]
    checks: tuple[ConservationCheck, ...]
    proof: PeriodProof
    closed: ClosedPeriod | None
    budgets: Mapping[str, Sequence[Budget]]
    findings: Mapping[str, Sequence[NamedFinding]]
    searched: frozenset[str]
    windows: tuple[Period, Period] | None
    prices: Mapping[int, Price]
    """Those that the days before and this month may have been charged by."""
    model_use: Mapping[str, Sequence[ModelUse]]
    may_be_empty: bool = False
    """Whether there is a statement of an owner that was billed nothing in the month."""

    @property
    def known_ms(self) -> int | None:
        """Up to when the ledger is rated."""
        return max((check.until_ms for check in self.checks), default=None)

    @property
    def below(self) -> str | None:
        """The next level below."""
        return next(iter(LEVELS[LEVELS.index(self.level) + 1 :]), None)

    def statements(self, owners: Sequence[str]) -> Iterator[Statement]:
        """The statements of these owners; `may_be_empty` says of which."""
        where = (self.connection, self.level, owners)
        days = statements.parts(*where, self.below, self.period)
        jobs = statements.workloads(*where, self.period)
        compared = {
            window: statements.workloads(*where, window, as_used=True)
            for window in self.windows or ()
        }
        # By price only where some rate changed: each of these goes over the whole month.
        has_new_rate = any(
            self.period.start_ms < price.effective_from_ms < self.period.end_ms
            for price in self.prices.values()
        )
        by_price = statements.workloads(*where, self.period, as_used=True) if has_new_rate else {}
        has_imports = any(check.imported_ns for check in self.checks)
        imported = statements.imported_ns(*where, self.period) if has_imports else {}
        amended = statements.amended_later(*where, self.period)
        contested = statements.contested_by_owner(*where, self.period)
        changes = (
            {}
            if self.closed is None
            else _group_items(
                overview.changes_since_close(self.connection, self.period, self.level, {}), payer_of
            )
        )
        ahead = self._forecasts([owner for owner in owners if owner in days])
        rated = frozenset(check.day_ms for check in self.checks)
        for owner in owners:
            if owner not in days and not self.may_be_empty:
                continue
            own_days = days.get(owner, ())
            sections = tuple(
                make_section(
                    row,
                    own_days,
                    jobs.get(owner, ()),
                    self.period,
                    rated,
                    self.calendar,
                    self.shares.get(owner, ()),
                )
                for row in self.rows.get(owner, ())
            )
            yield Statement(
                level=self.level,
                owner=owner,
                month=self.name,
                period=self.period,
                made_ms=self.now_ms,
                known_ms=self.known_ms,
                closed=self.closed,
                verdict=self._verdict(changes.get(owner, ())),
                sections=sections,
                changes=self._changes(owner, compared, sections),
                rates={
                    section.currency: explain_rates(
                        section.currency, by_price.get(owner, ()), self.prices
                    )
                    for section in sections
                },
                unpriced_ns=unpriced_ns(own_days),
                imported_ns=imported.get(owner, {}),
                ahead=_with_corrections(ahead.get(owner, {}), sections),
                amended=amended.get(owner, {}),
                budgets=self._budget_statuses(owner),
                findings=self.findings.get(owner, ()),
                searched=self.searched,
                checks=self.checks,
                proof=self.proof,
                below=self.below,
                calendar=self.calendar,
                contested=tuple(contested.get(owner, ())),
                shares=tuple(self.pool_use.get(owner, ())),
                model_use=tuple(self.model_use.get(owner, ())),
                billed_months=()
                if own_days
                else tuple(statements.months_of(self.connection, self.level, owner)),
            )

    def _verdict(self, changes: Sequence[LaterChange]) -> ClosedVerdict | None:
        """What became of a closed month, with the corrections of one owner."""
        if self.closed is None:
            return None
        read = (self.closed, self.checks, self.proof, self.calendar)
        return make_verdict(*read, changes, is_part=True)

    def _changes(
        self,
        owner: str,
        jobs: Mapping[Period, Mapping[str, Sequence[OwnerJob]]],
        sections: Sequence[StatementSection],
    ) -> Mapping[str, SpendChange]:
        """Why the bill differs from the one before, by currency."""
        if self.windows is None:
            return {}
        before, after = (jobs[window].get(owner, ()) for window in self.windows)
        return {
            section.currency: explain_change(
                section.currency, before, after, self.windows, self.prices
            )
            for section in sections
        }

    def _forecasts(self, owners: Sequence[str]) -> Mapping[str, Mapping[str, Ahead]]:
        """The end of an open month by owner and currency, as a budget's forecast is made."""
        if self.now_ms >= self.period.end_ms:
            return {}
        names = {"" if owner == UNATTRIBUTED else owner: owner for owner in owners}
        forecasts = forecast_owners(
            self.connection, self.level, list(names), self.period, self.now_ms
        )
        return {names[name]: ahead for name, ahead in forecasts.items()}

    def _budget_statuses(self, owner: str) -> tuple[Status, ...]:
        """The owner's own budgets and those of its branches, in their period at the end of the
        month (or now).
        """
        at_ms = min(self.now_ms, self.period.end_ms)
        # A month that has not begun has no budget to stand in yet.
        if at_ms <= self.period.start_ms:
            return ()
        wanted = []
        for budget in self.budgets.get(owner, ()):
            period = budget.period_at(min(at_ms, self.period.end_ms - 1))
            if period.clip(Period(self.period.start_ms, at_ms)) is not None:
                wanted.append((budget, period))
        return tuple(standings_of(self.connection, wanted, at_ms))


def _with_corrections(
    ahead: Mapping[str, Ahead], sections: Sequence[StatementSection]
) -> Mapping[str, Ahead]:
    """Forecasts of the sections' currencies, with the corrections that the month bills."""
    corrected = {}
    for section in sections:
        if section.currency in ahead:
            forecast, micro = (
                ahead[section.currency],
                sum(line.cost_micro or 0 for line in section.corrections),
            )
            corrected[section.currency] = replace(
                forecast,
                low_micro=forecast.low_micro + micro,
                middle_micro=forecast.middle_micro + micro,
                high_micro=forecast.high_micro + micro,
            )
    return corrected


def _month_of(
    connection: Connection,
    level: str,
    name: str,
    now_ms: int,
    chargeback: Chargeback,
    model_use: Mapping[str, Sequence[ModelUse]],
    book: Mapping[int, Price],
) -> _Month:
    require_level(level)
    calendar = zones.calendar(connection)
    period = calendar.month(name)
    checks, proof = month_proofs.checks_and_proof(connection, period, calendar)
    past = reports.conservation_checks(connection, month_before(period, calendar))
    known_ms = max((check.until_ms for check in checks), default=0)
    # The rows of the full chargeback: a statement shows the cents of the invoice.
    priced = [row for row in chargeback.report.rows if row.currency is not None]
    return _Month(
        connection=connection,
        level=level,
        name=name,
        period=period,
        calendar=calendar,
        now_ms=now_ms,
        rows=_group_items(priced, lambda row: row.keys[0]),
        shares=_group_items(chargeback.shares, lambda part: part.keys[0]),
        pool_use=_group_items(chargeback.pool_use, lambda use: use.team),
        checks=tuple(checks),
        proof=proof,
        closed=statements.closed_record(connection, period),
        budgets=_group_items(budgets.current(connection), lambda budget: budget.owner.get(level)),
        findings=_group_items(
            _findings(connection, period),
            lambda row: None if row.is_free else _owner_of(row, level),
        ),
        searched=frozenset(
            kind
            for kind in FINDING_KINDS
            if (findings.progress(connection, kind) or 0) > period.start_ms
        ),
        windows=compared_windows(
            period, known_ms, frozenset(check.day_ms for check in past), calendar
        ),
        prices=book,
        model_use=model_use,
    )


def _group_items(
    items: Iterable[_Item], key: Callable[[_Item], str | None]
) -> dict[str, list[_Item]]:
    groups: dict[str, list[_Item]] = defaultdict(list)
    for item in items:
        name = key(item)
        if name is not None:
            groups[name].append(item)
    return groups


def _findings(connection: Connection, period: Period) -> list[NamedFinding]:
    """Idle GPUs and anomalies in the month, ongoing ones first."""
    rows = [
        row
        for kind in FINDING_KINDS
        for row in findings.list_named(connection, kind, period.start_ms, period.end_ms)
    ]
    return sorted(rows, key=lambda row: (not row.is_ongoing, -(row.cost_micro or 0), row.key))


def read_statement(
    connection: Connection,
    level: str,
    owner: str,
    month: str,
    now_ms: int,
    viewer: Mapping[str, str] | None = None,
    *,
    may_be_empty: bool = False,
) -> Statement:
    """Read the statement of one owner, with the rights of a viewer.

    Raises ValueError (NoStatement: it was billed nothing in that month; a viewer is told of no
    other owner).

    `may_be_empty`: a name that is known has a statement of every month, which says that nothing was
    billed.
    """
    # Cents and shares of one owner depend on all others, so they are read before the restriction.
    chargeback = monthly_chargeback(connection, level, month, now_ms, owner)
    # A viewer of a branch or of another owner is shown no sums of tokens that are not its own.
    is_own = viewer is None or viewer == {level: owner}
    model_use = _model_use(connection, level, month) if is_own else {}
    # A viewer reads no price book; of its prices a statement names those that its owner paid.
    book = _read_prices(connection, month)
    with as_viewer(connection, viewer):
        of_month = _month_of(connection, level, month, now_ms, chargeback, model_use, book)
        may_be_empty = may_be_empty and (
            bool(of_month.budgets.get(owner)) or _is_known(connection, level, owner)
        )
        statement = next(replace(of_month, may_be_empty=may_be_empty).statements([owner]), None)
        if statement is not None:
            return statement
        sentence = f"{level} {owner!r} was billed nothing in {month}"
        calendar = zones.calendar(connection)
        absence = explain_absence(
            connection, of_month.period, calendar, now_ms, {level: owner}, viewer
        )
        if absence is not None and owner != UNATTRIBUTED:
            sentence += f". {absence.sentence}"
            if absence.names:
                sentence += f" The nearest: {', '.join(absence.names)}."
            sentence = sentence.removesuffix(".")
        if viewer is not None:
            raise NoStatement(sentence)
        billed = ", ".join(statements.owners(connection, level, of_month.period)[:20]) or "nobody"
        raise NoStatement(f"{sentence}; billed were: {billed}")


def _model_use(connection: Connection, level: str, month: str) -> Mapping[str, Sequence[ModelUse]]:
    return read_model_use(connection, zones.calendar(connection).month(month), level)


def _read_prices(connection: Connection, month: str) -> Mapping[int, Price]:
    """The prices of a month and of the one before, with which it is compared."""
    calendar = zones.calendar(connection)
    period = calendar.month(month)
    compared = Period(month_before(period, calendar).start_ms, period.end_ms)
    return prices.in_force_during(connection, compared)


def _is_known(connection: Connection, level: str, owner: str) -> bool:
    """Whether the ledger has ever heard of an owner; whoever is not known is always somebody."""
    return owner == UNATTRIBUTED or overview.is_owner(connection, {level: owner})


def read_statements(
    connection: Connection,
    level: str,
    owners: Sequence[str],
    month: str,
    now_ms: int,
    chargeback: Chargeback,
) -> Iterator[Statement]:
    """Read the statements of many owners, in their order; those that were billed nothing are left
    out.
    """
    model_use = _model_use(connection, level, month)
    book = _read_prices(connection, month)
    of_month = _month_of(connection, level, month, now_ms, chargeback, model_use, book)
    for first in range(0, len(owners), OWNERS_AT_ONCE):
        yield from of_month.statements(owners[first : first + OWNERS_AT_ONCE])


@dataclass(frozen=True, slots=True)
class MonthStatements:
    """The month's bill by a level, whoever was billed for something held, and the statements of
    all of them, read as they are taken.
    """

    bill: Report
    owners: Sequence[str]
    statements: Iterator[Statement]


def read_every_statement(
    connection: Connection, level: str, month: str, now_ms: int
) -> MonthStatements:
    """Read the statements of a month, while the caller's snapshot lasts."""
    chargeback = monthly_chargeback(connection, level, month, now_ms)
    owners = statements.owners(connection, level, zones.calendar(connection).month(month))
    pages = read_statements(connection, level, owners, month, now_ms, chargeback)
    return MonthStatements(chargeback.report, owners, pages)


def _owner_of(finding: NamedFinding, level: str) -> str:
    """Whose a finding is at a level of the owner tree."""
    return finding.owner.get(level) or (finding.team if level == "team" else "") or UNATTRIBUTED
