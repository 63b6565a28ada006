"""Tools about a month's bill: the statement of an owner, and the proof of a month."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Literal

from pydantic import Field

from gpuledger_collector.accounting.closing import ClosedPeriod
from gpuledger_collector.accounting.identities import CAPACITY, MONTHS
from gpuledger_collector.accounting.statement import StatementSection
from gpuledger_collector.export.site import TRUST, statement_path
from gpuledger_collector.export.statement import Statement, say_changes
from gpuledger_collector.mcp.answers import (
    Answer,
    Model,
    Money,
    Quantity,
    cut,
    gpu_hours,
    micro_money,
    money,
    name,
    quantity,
)
from gpuledger_collector.mcp.ledger import Ledger, Page, Refused, Snapshot
from gpuledger_collector.mcp.tools.parameters import LIMIT, TEXT_LENGTH, Cursor, Limit
from gpuledger_collector.services.close import verify
from gpuledger_collector.services.reconciliation import reconcile
from gpuledger_collector.services.statement import NoStatement, read_statement
from gpuledger_common.plurals import plural

Month = Annotated[str, Field(max_length=7, description="Calendar month of the bill, as 2026-10.")]
Section = Literal["jobs", "models", "below", "days", "corrections", "shared"]


class StatementTotal(Model):
    """What an owner is billed in a currency: the invoice."""

    currency: str
    cost: Money | None
    cost_exact: Annotated[Money | None, Field(description="Direct cost to the micro-unit.")]
    cost_shared: Money | None
    cost_total: Annotated[Money | None, Field(description="The amount of the invoice.")]
    cost_held_idle: Money | None
    held: Quantity | None
    held_idle: Quantity | None
    amended_later: Annotated[
        Money | None, Field(description="Corrections of this month, billed in later ones.")
    ]
    status: Annotated[
        Literal["open", "closed"], Field(description="A closed month does not change any more.")
    ]
    change: Annotated[
        str,
        Field(
            description=(
                "By how much what was held cost more or less than before, and the largest cause:"
                " the sentence at the statement's head; empty: nothing to compare. May quote names."
            )
        ),
    ] = ""


class StatementLine(Model):
    """A line of a section; the lines of a section add up to the direct cost (`shared`: to the
    shares).
    """

    label: Annotated[
        Sequence[str], Field(description="Names as users chose them; for days the date.")
    ]
    currency: str
    cost: Money | None
    cost_held_idle: Money | None = None
    held: Quantity | None = None
    runs: Annotated[
        int | None, Field(description="Of jobs: how many runs of one name and user it is.")
    ] = None


class Check(Model):
    """One check of a month."""

    check: Literal[
        "seal",
        "conservation",
        "months",
        "declared",
        "checked",
        "imported",
        "adjustments",
        "moved",
        "inference",
        "days",
        "booked",
        "times",
        "reports",
    ]
    holds: bool
    text: str


class ProofTotal(Model):
    """What was checked."""

    month: str
    holds: Annotated[bool, Field(description="Whether every check holds.")]
    repeat: Annotated[
        Sequence[str], Field(description="Commands that repeat the checks where the ledger is.")
    ]


def get_statement(
    ledger: Ledger,
    owner: Annotated[
        str, Field(min_length=1, max_length=1000, description="Name of the owner, such as vision.")
    ],
    month: Month,
    level: Annotated[
        Literal["org", "team", "project", "experiment", "run", "user"],
        Field(description="Level of the owner tree."),
    ] = "team",
    section: Annotated[
        Section,
        Field(
            description=(
                "Which lines: by job, model, next level below, day, corrected month, shared cost."
            )
        ),
    ] = "jobs",
    limit: Limit = LIMIT,
    cursor: Cursor = "",
) -> Answer[StatementLine, StatementTotal]:
    """The bill of one owner for a month: its totals as on the statement's page, and the lines of
    one section.
    """
    page = Page(limit, cursor)
    if not ledger.reader.sees({level: owner}):
        raise Refused(
            "this is another owner's statement, and this token sees one owner's part only"
        )
    with ledger.snapshot() as snapshot:
        period = snapshot.calendar.month(month)
        asked = (snapshot.connection, level, owner, month, ledger.now_ms, ledger.reader.owner)
        statement: Statement | None = None
        with suppress(NoStatement):
            statement = read_statement(*asked)
        lines = [] if statement is None else _lines(statement, section)
        return page.answer(
            lines,
            lambda line: line,
            link=ledger.link(statement_path(level, owner, month)),
            evidence=snapshot.evidence(period),
            totals=(
                ()
                if statement is None
                else [_total(statement, each) for each in statement.sections]
            ),
            notices=() if statement is None else _contested_sentences(statement),
            empty=(
                "this owner was billed nothing in this month"
                if statement is None
                else "this section has no lines"
            ),
            next_step=(
                ""
                if statement is not None
                else f"list_values(dimension={level}) says which names there are"
            ),
        )


def _total(statement: Statement, section: StatementSection) -> StatementTotal:
    row, currency = section.row, section.currency
    return StatementTotal(
        currency=currency,
        cost=money(row.cost_minor, currency),
        cost_exact=micro_money(row.cost_micro, currency),
        cost_shared=money(row.shared_minor, currency),
        cost_total=money(row.total_minor, currency),
        cost_held_idle=money(row.cost_held_idle_minor, currency),
        held=quantity(row.gpu_hours, "GPU-hour"),
        held_idle=quantity(row.gpu_hours_held_idle, "GPU-hour"),
        amended_later=micro_money(statement.amended.get(currency), currency),
        status="open" if statement.closed is None else "closed",
        change=cut(say_changes(statement).get(currency, ""), TEXT_LENGTH),
    )


def _lines(statement: Statement, section: str) -> list[StatementLine]:
    lines: list[StatementLine] = []
    for each in statement.sections:
        currency = each.currency
        if section == "shared":
            lines += [
                StatementLine(
                    label=[name(share.cost.name)],
                    currency=currency,
                    cost=money(share.minor, currency),
                )
                for share in each.shared
            ]
        elif section == "days":
            lines += [
                StatementLine(
                    label=[str(statement.calendar.date_of(day.day_ms))],
                    currency=currency,
                    cost=(
                        None
                        if day.measures is None
                        else micro_money(day.measures.cost_micro, currency)
                    ),
                    held=None if day.measures is None else gpu_hours(day.measures.gpu_ns),
                )
                for day in each.days
            ]
        else:
            lines += [
                StatementLine(
                    label=[name(text) for text in line.label],
                    currency=currency,
                    cost=money(line.cost_minor, currency),
                    cost_held_idle=money(line.idle_cost_minor, currency),
                    held=gpu_hours(line.gpu_ns),
                    runs=line.runs or None,
                )
                for line in getattr(each, section)
            ]
    return lines


def _contested_sentences(statement: Statement) -> Sequence[str]:
    count = len(statement.contested)
    return [f"{plural(count, 'dispute')} about this statement wait for a decision"] if count else ()


def verify_statement(
    ledger: Ledger,
    month: Month,
    recompute: Annotated[
        bool,
        Field(
            description=(
                "Also compute capacity x rate again from inventory and price book, which takes"
                " longer."
            )
        ),
    ] = False,
) -> Answer[Check, ProofTotal]:
    """Whether a month's lines are those that were sealed, and charges agree with capacity x rate on
    every day.
    """
    with ledger.snapshot() as snapshot:
        period = snapshot.calendar.month(month)
        evidence = snapshot.evidence(period)
        known = next(iter(evidence.closed), None)
        checks = (
            _checks(snapshot, month, known, recompute=recompute)
            if evidence.proof.days_checked
            else []
        )
        holds = bool(checks) and all(check.holds for check in checks)
        broken = {
            "state": "broken",
            "standing": "broken",
            "text": "asked anew: the proof does NOT hold",
        }
        proof = evidence.proof if holds or not checks else evidence.proof.model_copy(update=broken)
        repeat = [f"gpuledger reconcile --period {month}"]
        repeat += [] if known is None else [f"gpuledger periods --verify {month}"]
        path = TRUST if ledger.reader.owner is None else "/"
        return Page(LIMIT).answer(
            checks,
            lambda check: check,
            link=ledger.link(path, {"period": month}),
            evidence=evidence,
            proof=proof,
            totals=[ProofTotal(month=month, holds=holds, repeat=repeat)] if checks else (),
            empty="nothing of this month is rated, so there is nothing to check",
        )


def _checks(
    snapshot: Snapshot, month: str, closed: ClosedPeriod | None, *, recompute: bool
) -> list[Check]:
    result = reconcile(snapshot.connection, snapshot.calendar.month(month), anew=recompute)
    broken = [str(snapshot.calendar.date_of(day.day_ms)) for day in result.days if not day.holds]
    compared = (
        "capacity x rate computed again"
        if recompute
        else "capacity x rate as recorded when it was rated"
    )
    days = plural(len(result.days), "day")
    checks = [
        Check(
            check="conservation",
            holds=not broken,
            text=cut(
                (
                    f"charges equal {compared} on {days}"
                    if not broken
                    else f"it fails on {', '.join(broken)}"
                ),
                300,
            ),
        ),
        Check(
            check="months",
            holds=not result.untrue_months,
            text=(
                "every month that was added up is the sum of its days"
                if not result.untrue_months
                else "a month that was added up is not the sum of its days"
            ),
        ),
    ]
    for identity in result.compared:
        if identity not in (CAPACITY, MONTHS):
            holds = bool(result.identity_holds(identity))
            # No place of a mismatch: it may name an owner that this token may not see.
            text = (
                f"{identity.stored} {'agree' if holds else 'do NOT agree'} with {identity.expected}"
            )
            checks.append(
                Check.model_validate({"check": identity.name, "holds": holds, "text": text})
            )
    if closed is not None:
        verification = verify(snapshot.connection, closed)
        text = (
            f"the root over {plural(closed.lines, 'line')} is"
            f" {'' if verification.sealed else 'NOT '}{closed.seal}"
        )
        checks.insert(0, Check(check="seal", holds=verification.sealed, text=text))
        agree = "state" if not verification.failures else "do NOT state"
        text = f"reports, receipt and invoices {agree} what was sealed"
        checks.append(Check(check="reports", holds=not verification.failures, text=text))
    return checks
