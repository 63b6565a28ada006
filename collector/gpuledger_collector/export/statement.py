"""The monthly statement of one owner as one HTML file that needs nothing else, to read, to print
and to keep.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from markupsafe import Markup

from gpuledger_collector.accounting import readable
from gpuledger_collector.accounting.budget_status import Ahead, Status
from gpuledger_collector.accounting.budgets import top
from gpuledger_collector.accounting.chargeback import UNATTRIBUTED, Report, ReportRow
from gpuledger_collector.accounting.closed_verdict import ClosedVerdict
from gpuledger_collector.accounting.closing import ClosedPeriod
from gpuledger_collector.accounting.fair_share import ShareUse, list_lines
from gpuledger_collector.accounting.ledger import ConservationCheck
from gpuledger_collector.accounting.measures import Measures
from gpuledger_collector.accounting.model_use import ModelUse
from gpuledger_collector.accounting.money import MICRO
from gpuledger_collector.accounting.month_proof import PeriodProof, Standing
from gpuledger_collector.accounting.owner_tree import LEVELS
from gpuledger_collector.accounting.period import UTC_DAYS, Calendar, Period, format_instant
from gpuledger_collector.accounting.period_comparison import BillChange
from gpuledger_collector.accounting.quantity import GPU_NS_PER_HOUR
from gpuledger_collector.accounting.rate_changes import RateChange
from gpuledger_collector.accounting.reserved_names import is_reserved, unescape_name
from gpuledger_collector.accounting.state_words import word_of_unpaid
from gpuledger_collector.accounting.statement import (
    CORRECTION_OF,
    Contested,
    SpendChange,
    StatementSection,
    days_left_out,
    weekdays_unlike,
)
from gpuledger_collector.accounting.waste import whole_waste
from gpuledger_collector.export import html, plots
from gpuledger_collector.export.change_causes import say_main_cause
from gpuledger_collector.export.chargeback import say_waste, source_text
from gpuledger_collector.export.disputes import amounts, days_text
from gpuledger_collector.export.fair_share import shares_report
from gpuledger_collector.export.findings import STATES, advice
from gpuledger_collector.export.list_form import ListForm
from gpuledger_collector.export.model_use import use_facts
from gpuledger_collector.export.rate_changes import (
    rate_rows,
    say_dated_rates,
)
from gpuledger_collector.export.shortened import is_rest, shorten_report
from gpuledger_collector.export.site import (
    ANOMALIES,
    IDLE,
    SPEND,
    Site,
    address,
    anchor,
    job_path,
    owner_filter,
    runs_path,
    statement_path,
)
from gpuledger_collector.insight.findings import NO_REMEDY, IdleRemedy, NamedFinding
from gpuledger_common.plurals import plural

SHARES = shares_report(1)
SHOWN_DRIVERS = 8
SHOWN_FINDINGS = 8
SHOWN_UUID = 12
"""Characters of a UUID that tell one GPU from another to people."""
NO_IDLE = (
    "No idle GPU was found in this month. What was held idle in all stands with the bill: pauses"
    " too short for a finding, and replicas of services that wait for requests, which no finding"
    " names since they are idle by design (`gpuledger idle --services` says how many are spare)."
)
NOT_SEARCHED = {
    "idle": "Idle GPUs of this month were not searched for.",
    "anomaly": "Spending of this month was not searched for what is unusual.",
}
NO_ALARM = (
    "an alarm is about hours that stand out from the two weeks before them, and none did. The rise"
    " came slowly, comes back at the same hours of each week, or began before there were enough"
    " days to compare with. What made it stands under Against before."
)
CLOSED_PROOF = "proven before the month was closed; gpuledger periods --verify asks again"
"""What a closed month's statement says of its proof."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """What a statement says.

    `ahead`: by currency, the end of an open month; `amended`: micro-units by currency.

    `known_ms`: the ledger is rated up to here; None: not at all. `findings`: as storage names them.
    """

    level: str
    owner: str
    month: str
    period: Period
    made_ms: int
    known_ms: int | None
    closed: ClosedPeriod | None
    verdict: ClosedVerdict | None
    """Of a closed month: what became of its seal, and what was corrected since."""
    sections: tuple[StatementSection, ...]
    changes: Mapping[str, SpendChange]
    rates: Mapping[str, Sequence[RateChange]]
    """By currency, the rates that changed within the month, and what that did to it."""
    unpriced_ns: int
    imported_ns: Mapping[str, int]
    """By currency, the time that was imported as counts of GPUs."""
    ahead: Mapping[str, Ahead]
    amended: Mapping[str, int]
    budgets: tuple[Status, ...]
    findings: Sequence[NamedFinding]
    checks: tuple[ConservationCheck, ...]
    proof: PeriodProof
    below: str | None
    searched: frozenset[str] = frozenset()
    """Kinds of findings that were searched for in the month."""
    calendar: Calendar = UTC_DAYS
    contested: tuple[Contested, ...] = ()
    shares: tuple[ShareUse, ...] = ()
    model_use: tuple[ModelUse, ...] = ()
    billed_months: tuple[str, ...] = ()
    """Where nothing is billed in this month: the months that have lines of this owner, newest
    first.
    """

    @property
    def zone(self) -> str:
        """The zone of its days."""
        return self.calendar.zone_at(self.period.start_ms).name


def as_html(statement: Statement, site: Site | None = None) -> str:
    """The page; with `site` as the collector serves it, else as a file by itself."""
    return html.render(
        "statement.html",
        site=site,
        statement=statement,
        days=_first_and_last(statement.period, statement.calendar),
        until=statement.calendar.date_of(statement.period.end_ms).isoformat(),
        status=status_of(statement),
        jobs_of=None
        if site is None
        else {"period": statement.month, statement.level: statement.owner},
        sections=[
            _section(statement, section)
            | {"job_paths": {} if site is None else _job_paths(statement, section)}
            for section in statement.sections
        ],
        nothing="" if statement.sections or statement.unpriced_ns else _nothing(statement),
        budgets=[budget_facts(status) for status in statement.budgets],
        findings=[finding_facts(finding) for finding in statement.findings[:SHOWN_FINDINGS]],
        more_findings=max(len(statement.findings) - SHOWN_FINDINGS, 0),
        not_found=_say_not_found(statement),
        amended=any(statement.amended.values()),
        # A file of a closed month stays the same bytes until something is corrected.
        verdict=statement.verdict if site is not None else None,
        shares=list(map(SHARES.texts, list_lines(statement.shares))),
        models=list(map(use_facts, statement.model_use)),
        contested=[_contested_row(contested) for contested in statement.contested],
        marks={
            contested.job: "contested"
            for contested in statement.contested
            if contested.job is not None
        },
        trust=trust(statement.checks, statement.proof, is_closed=statement.closed is not None),
        # The statement of a closed month is the same bytes whenever it is statement.
        made_ms=None if statement.closed else statement.made_ms,
        calendar=statement.calendar,
        # Read and printed later, too: no instant of it says how long ago it was.
        now_ms=None,
    )


def index(
    level: str,
    month: str,
    report: Report,
    site: Site | None = None,
    months: Sequence[str] = (),
    files: Mapping[str, str] | None = None,
    *,
    form: ListForm | None = None,
    row_count: int = 0,
    absence: object = None,
    verdict: ClosedVerdict | None = None,
) -> str:
    """A page of who pays in a month, that leads to the statements; `files`: by owner, where they
    are files.

    `form` narrows it from `row_count` rows; `absence` says why there is none. `verdict`: of a
    closed month.
    """

    def path(owner: str) -> str | None:
        if files is not None:
            return files.get(owner)
        return statement_path(level, owner, month) if is_owner(owner) else None

    listed = (
        shorten_report(report).rows if files is None else report.rows
    )  # an exported site is whole
    ordered = sorted(listed, key=lambda row: bool(row.correction_of))
    return html.render(
        "statements.html",
        site=site,
        level=level,
        month=month,
        months=months,
        levels=LEVELS,
        form=form,
        listed=row_count,
        is_part=form is not None and len(report.rows) < row_count,
        absence=absence,
        verdict=verdict,
        rows=[
            {
                "row": row,
                "owner": row.keys[0] if row.is_billed is not False else word_of_unpaid(row.keys[0]),
                "path": path(row.keys[0]),
                "is_rest": is_rest(row),
            }
            for row in ordered
        ],
        totals=report.totals,
        has_shared=any(row.shared_minor for row in report.rows),
    )


def is_owner(name: str) -> bool:
    """Whether a row of the chargeback is somebody's, and not for time that nobody held."""
    return name == UNATTRIBUTED or not is_reserved(name)


def status_of(statement: Statement) -> tuple[str, str]:
    """Open or closed, and the sentence that says what follows from it."""
    if statement.closed is not None:
        at = format_instant(statement.closed.closed_ms - statement.closed.closed_ms % 1000)
        return (
            "closed",
            f"Closed {at} by {statement.closed.closed_by}: these charges do not change any more.",
        )
    if statement.known_ms is None or statement.known_ms <= statement.period.start_ms:
        return "open", "Open, and nothing of it is rated yet."
    if statement.known_ms < statement.period.end_ms:
        at = format_instant(statement.known_ms - statement.known_ms % 1000)
        return (
            "open",
            f"Open: rated up to {at}. Charges may still change until the month is closed.",
        )
    return "open", "Open: the month is over and rated, and may still change until it is closed."


def _nothing(statement: Statement) -> str:
    """Say that the owner is billed nothing in this month."""
    if statement.made_ms >= statement.period.end_ms:
        return f"Nothing was charged to {statement.owner} in {statement.month}."
    if statement.made_ms < statement.period.start_ms:
        return f"{statement.month} has not begun."
    return f"Nothing is charged to {statement.owner} in {statement.month} so far."


def _say_not_found(statement: Statement) -> list[str]:
    """Say of each kind of findings of which there is none why that is so."""
    found = {finding.kind for finding in statement.findings}
    sentences = []
    if "idle" not in found:
        sentences.append(NO_IDLE if "idle" in statement.searched else NOT_SEARCHED["idle"])
    if "anomaly" not in found:
        sentences.append(_say_no_alarm(statement))
    return sentences


def _say_no_alarm(statement: Statement) -> str:
    """Say why no spending of the month is called unusual, also where it is much more than before."""
    if statement.level != "team":
        return f"Unusual spending is searched for by team; of a {statement.level} nothing is said."
    if "anomaly" not in statement.searched:
        return NOT_SEARCHED["anomaly"]
    rises = [change for change in statement.changes.values() if change.change_micro > 0]
    if not rises:
        return "No alarm was raised on spending."
    largest = max(rises, key=lambda change: change.change_micro)
    percent = change_percent(largest.before_micro, largest.after_micro)
    rise = f"it is {percent} above" if percent else "there was none in"
    return f"No alarm was raised on spending, although {rise} the time before: {NO_ALARM}"


def trust(
    checks: Sequence[ConservationCheck], proof: PeriodProof, *, is_closed: bool = False
) -> dict[str, Any]:
    """What part of the fleet's time was observed, and what the proof said when it was asked.

    A closed month was proven before it was closed; its statement is the same bytes unless that does
    not hold any more.
    """
    capacity = sum(check.capacity_ns for check in checks)
    unobserved = sum(check.unobserved_ns for check in checks)
    return {
        # A day without capacity has nothing that could be lost: imported counts have hours, and no
        # GPU that was seen.
        "days": sum(check.capacity_ns > 0 for check in checks),
        "is_rated": bool(checks),
        "is_broken": proof.standing is Standing.broken,
        "standing": CLOSED_PROOF if is_closed and not proof.broken else proof.sentence,
        "short": CLOSED_PROOF if is_closed and not proof.broken else _short_proof(checks, proof),
        "is_imported": any(check.imported_ns for check in checks),
        "coverage": (
            None
            if not capacity
            else f"{int(10_000 * (capacity - unobserved) / capacity) / 100:.2f}"
        ),
        "unobserved_ns": unobserved,
    }


def _short_proof(checks: Sequence[ConservationCheck], proof: PeriodProof) -> str:
    """What the proof said, in few words; where it was never asked, also what each day's check said
    when it was rated.
    """
    if proof.asked_ms is not None or proof.broken or not checks:
        return proof.short
    failed = sum(not check.holds for check in checks)
    if failed:
        return f"{proof.short}; {plural(failed, 'day')} did NOT add up when rated"
    return (
        f"{proof.short} as a whole, which is asked every 15 minutes;"
        f" {plural(len(checks), 'day')} added up when rated"
    )


def budget_facts(status: Status) -> dict[str, Any]:
    """A budget as a page shows it: amounts as texts, and its bar."""
    budget, ahead, spent, share = (
        status.budget,
        status.ahead,
        status.spend.micro,
        status.spent_percent,
    )
    whole = f"{budget.text(budget.amount_micro)} is {budget.spent_word}"
    description = (
        f"{html.UNKNOWN}, how much of {whole}, " if share is None else f"{share} % of {whole}, "
    )
    elapsed = status.elapsed_percent
    description += (
        "nothing of it is rated yet" if elapsed is None else f"{elapsed} % of the time has passed"
    )
    forecast = out = None
    if ahead is not None:
        middle, low, high = (
            budget.number(end, 0) for end in (ahead.middle_micro, ahead.low_micro, ahead.high_micro)
        )
        forecast = f"{middle} ({low} to {high})"
        gone_ms = None if status.is_spent else ahead.run_out_ms
        out = None if gone_ms is None else budget.calendar.date_of(gone_ms).isoformat()
        description += f", forecast {forecast} {budget.unit}"
    over = ahead is not None and ahead.middle_micro >= budget.amount_micro
    over_now = None if spent is None else spent - budget.amount_micro
    over_end = None if ahead is None else ahead.middle_micro - budget.amount_micro
    return {
        "name": budget.name,
        "owner": budget.owner_label,
        "measure": budget.measure_text,
        "unit": budget.unit,
        "spent": html.UNKNOWN if spent is None else budget.number(spent),
        "amount": budget.number(budget.amount_micro),
        "share": share,
        "elapsed": elapsed,
        "days": _first_and_last(status.period, budget.calendar),
        "forecast": forecast,
        "out": out,
        "over_now": budget.number(over_now) if over_now and over_now > 0 else None,
        "over_end": budget.number(over_end, 0) if over_end and over_end > 0 else None,
        "path": address(SPEND, {**budget.owner, **_range_of(status.period, budget.calendar)}),
        "state": (
            html.UNKNOWN
            if share is None
            else budget.spent_word
            if status.is_spent
            else "at risk"
            if over
            else "on course"
        ),
        "bar": plots.budget_bar(
            (spent or 0) / MICRO,
            budget.amount_micro / MICRO,
            (elapsed or 0) / 100,
            (
                None
                if ahead is None
                else (ahead.low_micro / MICRO, ahead.middle_micro / MICRO, ahead.high_micro / MICRO)
            ),
            f"Budget {budget.name}",
            description,
        ),
    }


def _range_of(period: Period, calendar: Calendar) -> dict[str, str]:
    """The days of a period as an address names them: the first one, and the one after the last."""
    return {
        "from": calendar.date_of(period.start_ms).isoformat(),
        "to": calendar.date_of(period.end_ms).isoformat(),
    }


def finding_facts(finding: NamedFinding, remedy: IdleRemedy = NO_REMEDY) -> dict[str, Any]:
    """A finding as a page shows it, with what gives an idle accelerator back."""
    currency, odd = finding.currency, finding.kind == "anomaly"
    per_day = None if odd or currency is None else finding.per_day_micro
    evidence = finding.evidence
    state = STATES.get(finding.state, finding.state.replace("_", " "))
    return {
        "key": anchor(finding.key),
        "state": evidence.get("cause") or finding.state if odd else state,
        "what": (
            finding.subject if odd else f"{finding.model or 'GPU'}, {finding.subject[:SHOWN_UUID]}"
        ),
        "sentence": evidence.get("sentence", "") if odd else "",
        "command": remedy.command,
        "advice": "" if odd or remedy.command else advice(finding, remedy),
        "who": (
            " · ".join(part for part in (finding.team, "" if odd else finding.job) if part)
            or "nobody"
        ),
        "team": finding.team,
        "job": "" if odd else finding.job,
        "job_key": finding.workload_key,
        "jobs": evidence.get("workloads", []) if odd else [],
        "narrowed": owner_filter(finding.team),
        "user": finding.user_name or "",
        "since_ms": finding.since_ms,
        "open": finding.is_ongoing,
        "path": _finding_path(finding, odd),
        "cost": (
            None if currency is None else f"{html.micro(finding.cost_micro, currency)} {currency}"
        ),
        "per_day": None if per_day is None else f"{html.micro(per_day, currency or '')} {currency}",
    }


def _finding_path(finding: NamedFinding, odd: bool) -> str:
    """Where the collector says more about a finding."""
    if odd:
        return f"{address(ANOMALIES, owner_filter(finding.team))}#{anchor(finding.key)}"
    if finding.workload_key is not None:
        return job_path(finding.workload_key)
    # One that nobody holds is not the usage of an owner whom nobody knows: it stands in the whole
    # list.
    return address(IDLE, {} if finding.is_free else owner_filter(finding.team))


def _job_paths(statement: Statement, section: StatementSection) -> dict[tuple[str, ...], str]:
    """By its label, where the collector lists the runs of a line of the dearest jobs."""
    paths = {}
    for line in section.jobs:
        if not line.runs or is_reserved(line.label[0]):
            continue
        name, user, project, model, *corrected = line.label
        # No address asks for jobs of nobody: it would list those of everybody.
        if not user or not model:
            continue
        # A correction is listed with the days that it corrects.
        month = corrected[0].removeprefix(CORRECTION_OF) if corrected else statement.month
        narrowed = {"period": month, statement.level: statement.owner}
        # Of a job without a project the label has the team.
        if statement.level == "team" and project != statement.owner:
            narrowed["project"] = project
        paths[line.label] = runs_path(unescape_name(name), user, model, narrowed)
    return paths


def _section(statement: Statement, section: StatementSection) -> dict[str, Any]:
    change = statement.changes.get(section.currency)
    rates = statement.rates.get(section.currency, ())
    corrections = section.corrections
    return {
        "section": section,
        "currency": section.currency,
        "row": section.row,
        "waste": [
            say_waste(waste)
            for waste in whole_waste(
                [section.row], has_inventory=True, imported_ns=statement.imported_ns
            )
        ],
        "allocations": _allocations(section.row),
        "shared": [
            {
                "name": part.cost.name,
                "source": source_text(part.cost),
                "key": part.cost.key,
                "level": part.cost.level,
                "minor": part.minor,
            }
            for part in section.shared
        ],
        "used_percent": _percent(section.held.busy_ns, section.held.gpu_ns),
        "idle_percent": (
            None if section.idle_ns is None else _percent(section.idle_ns, section.held.gpu_ns)
        ),
        "unknown_percent": _percent(section.held.unknown_ns, section.held.gpu_ns),
        "share": _share(section),
        "bars": _bars(section, statement.calendar),
        "days": [day for day in section.days if day.measures is not None],
        "corrected_idle_minor": sum(line.idle_cost_minor or 0 for line in corrections),
        "corrected_minor": sum(line.cost_minor for line in corrections),
        "change": None if change is None else _change(change, section.currency, statement),
        "rates": rate_rows(rates, sum(rate.micro for rate in rates), section.currency),
        "ahead": statement.ahead.get(section.currency),
        "most": max((amount.cost_minor for amount in section.jobs), default=0),
    }


def _contested_row(contested: Contested) -> dict[str, Any]:
    """A dispute that waits, as a row of a table."""
    dispute = contested.dispute
    name, user = contested.job or ("", "")
    gpu = "" if dispute.accelerator is None else dispute.accelerator[:SHOWN_UUID]
    return {
        "id": dispute.id,
        "state": dispute.state,
        "job": name,
        "user": user,
        "gpu": gpu or ("" if name else "everything"),
        "days": days_text(dispute),
        "cost": amounts(dispute.cost),
        "reason": dispute.reason,
    }


def _allocations(row: ReportRow) -> dict[str, Any]:
    """Shares, savings and carbon of a row as texts; None where there are none, or they are not
    known.
    """
    currency = row.currency or ""
    saved = (
        None
        if row.list_minor is None or row.compared_minor is None
        else row.list_minor - row.compared_minor
    )
    plain = saved == 0 and row.contracted_minor == row.compared_minor
    is_part = row.compared_minor != row.cost_minor
    return {
        "direct": html.minor(row.cost_minor, currency),
        "shared": None if row.shared_minor is None else html.minor(row.shared_minor, currency),
        "listed": None if plain or row.list_minor is None else html.minor(row.list_minor, currency),
        "contracted": html.minor(row.contracted_minor, currency),
        "compared": html.minor(row.compared_minor, currency) if is_part else None,
        "saved": (
            None
            if saved is None or not row.list_minor
            else _saved_text(saved, row.list_minor, currency)
        ),
        "kwh": None if row.energy_kwh is None else readable.size_text(row.energy_kwh),
        "co2e_kg": None if row.co2e_grams is None else readable.size_text(row.co2e_grams / 1000),
    }


def _saved_text(saved: int, at_list: int, currency: str) -> str:
    """How much less than at list prices is paid, or more where there are markups, in words."""
    part = f"{html.minor(abs(saved), currency)} ({readable.percent(abs(Decimal(saved) / at_list))})"
    return f"you save {part}" if saved >= 0 else f"you pay {part} more"


def _percent(part: int, whole: int) -> str:
    return readable.share_text(Decimal(part) / whole) if whole else "0"


def _share(section: StatementSection) -> Markup:
    held = section.held
    activity = (
        ("busy", held.known_busy_ns),
        ("idle", section.idle_ns),
        ("unknown", held.unknown_ns),
    )
    parts = tuple((name, float(ns)) for name, ns in activity if ns is not None)
    description = ", ".join(f"{name} {html.hours(round(value))} GPU-hours" for name, value in parts)
    return plots.share_bar(parts, "How the GPU-hours that you held were used", description)


def _bars(section: StatementSection, calendar: Calendar) -> Markup:
    stacks = [
        plots.Stack(
            f"{calendar.date_of(day.day_ms):%d}",
            None if day.measures is None else _hours(day.measures),
        )
        for day in section.days
    ]
    rated = [
        (day.measures.cost_micro or 0, day.day_ms)
        for day in section.days
        if day.measures is not None
    ]
    micro, day_ms = max(
        rated, key=lambda day: (day[0], -day[1]), default=(None, section.days[0].day_ms)
    )
    description = (
        f"{plural(len(rated), 'day')}; the dearest was {calendar.date_of(day_ms)} with"
        f" {html.micro(micro, section.currency)} {section.currency}. Each day is in the table"
        " below."
    )
    return plots.stacked_bars(
        stacks, ("busy", "idle", "unknown"), "GPU-hours held, by day", description, "GPU-hours"
    )


def _hours(measures: Measures) -> tuple[float, ...]:
    return tuple(
        ns / GPU_NS_PER_HOUR for ns in (measures.busy_ns, measures.idle_ns, measures.unknown_ns)
    )


def _change(change: SpendChange, currency: str, statement: Statement) -> dict[str, Any]:
    calendar, known_ms = (
        statement.calendar,
        max((check.until_ms for check in statement.checks), default=0),
    )
    more = change.change_micro
    price, volume, mix = change.parts
    rates = rate_rows(change.rate_changes, price, currency)
    days = (len(calendar.days(change.before)), len(calendar.days(change.after)))
    return {
        "before": html.micro(change.before_micro, currency),
        "after": html.micro(change.after_micro, currency),
        "change": html.signed_amount(more, currency),
        "size": html.micro(abs(more), currency),
        "way": "more" if more > 0 else "less" if more else "",
        "cause": say_main_cause(change.main_cause, more, price, change.rate_changes, currency),
        "percent": change_percent(change.before_micro, change.after_micro),
        "price": html.signed_amount(price, currency),
        "volume": html.signed_amount(volume, currency),
        "mix": html.signed_amount(mix, currency),
        "rates": rates,
        "drivers": top(change.drivers, SHOWN_DRIVERS),
        "before_days": _first_and_last(change.before, calendar),
        "after_days": _first_and_last(change.after, calendar),
        "days": days,
        "weekdays": weekdays_unlike(change.before, change.after, calendar),
        "corrected": [
            f"{html.signed_amount(micro, currency)} {currency} {where}"
            for micro, where in zip(change.corrected_micro, ("before", "after"), strict=True)
            if micro
        ],
        "left_out": days_left_out(
            change.before, change.after, statement.period, known_ms, calendar
        ),
        "per_day": tuple(
            html.micro(cost // count, currency)
            for cost, count in zip((change.before_micro, change.after_micro), days, strict=True)
        ),
    }


def say_changes(statement: Statement) -> Mapping[str, str]:
    """By currency, the sentence at the head of a statement: by how much what was held cost more or
    less than before, and the largest cause of that; nothing where there is nothing to compare.
    """
    return {
        currency: _say_change(_change(change, currency, statement), currency)
        for currency, change in statement.changes.items()
    }


def _say_change(facts: Mapping[str, Any], currency: str) -> str:
    way, (first, last) = facts["way"], facts["after_days"]
    cost = f"{facts['size']} {currency} {way} than" if way else "as much as"
    before = " to ".join(facts["before_days"])
    percent = f" ({facts['percent']})" if way and facts["percent"] else ""
    cause = f", {facts['cause'].text}" if facts["cause"] else ""
    return f"What you held from {first} to {last} cost {cost} from {before}{percent}{cause}."


def change_percent(before_micro: int, after_micro: int) -> str | None:
    """A change in percent, with its sign; None: there was nothing before."""
    more = after_micro - before_micro
    if not before_micro:
        return None
    return f"{'+' * (more > 0)}{readable.percent(Decimal(more) / before_micro)}"


def bill_change_facts(change: BillChange, calendar: Calendar) -> Mapping[str, dict[str, Any]]:
    """By how much what owners pay differs from the period before, by currency; nothing of those in
    which it does not.
    """
    facts: dict[str, dict[str, Any]] = {}
    for currency in change.compared.hours:
        total = change.compared.total(currency)
        if not (total.by_price or total.by_volume or total.by_mix):
            continue
        rates, more_rates = say_dated_rates(change.rates, currency)
        facts[currency] = {
            "change": html.signed_amount(total.change, currency),
            "percent": change_percent(total.before, total.after),
            "price": html.signed_amount(total.by_price, currency),
            "volume": html.signed_amount(total.by_volume, currency),
            "mix": html.signed_amount(total.by_mix, currency),
            "before_days": _first_and_last(change.compared.before, calendar),
            "after_days": _first_and_last(change.compared.after, calendar),
            "rates": rates,
            "more_rates": more_rates,
        }
    return facts


def _first_and_last(period: Period, calendar: Calendar) -> tuple[str, str]:
    """The dates of the first and the last day of a period."""
    return (
        calendar.date_of(period.start_ms).isoformat(),
        calendar.date_of(period.end_ms - 1).isoformat(),
    )
