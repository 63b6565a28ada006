"""gpuledger close, periods and corrections: when a month is final, and what was sealed."""

from __future__ import annotations

import contextlib
import getpass
import sys
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from gpuledger_collector.accounting.closing import ClosedPeriod
from gpuledger_collector.accounting.period import Period, month, parse_period
from gpuledger_collector.cli import options
from gpuledger_collector.cli.chargeback import list_pieces
from gpuledger_collector.cli.common import FINDINGS, new_app, refuse, require_folder, require_level
from gpuledger_collector.cli.output import emit_report, terminal_width, write_text
from gpuledger_collector.cli.progress import bar
from gpuledger_collector.cli.session import open_session
from gpuledger_collector.cli.terminal import say
from gpuledger_collector.export.cells import instant_text, json_text, lines_text
from gpuledger_collector.export.report import Column, Kind, Report
from gpuledger_collector.services.close import (
    CannotClose,
    StillOpen,
    Verification,
    bill_corrections,
    close_month,
    list_closed,
)
from gpuledger_collector.services.month_proof import verify_and_keep
from gpuledger_collector.services.refresh import refresh
from gpuledger_common.plurals import plural

app = new_app()
VerifiedMonth = tuple[ClosedPeriod, Verification | None]
"""A closed month, and what became of it where it was verified."""
CLOSED = Report[VerifiedMonth](
    "periods",
    (
        Column("period", lambda item: item[0].name),
        Column("status", lambda _: "closed"),
        Column("closed_at", lambda item: instant_text(item[0].closed_ms)),
        Column("closed_by", lambda item: item[0].closed_by),
        Column("lines", lambda item: item[0].lines, Kind.COUNT),
        Column("seal", lambda item: item[0].seal),
    ),
)
VERIFIED = Report[VerifiedMonth](
    "verified_periods",
    (
        *CLOSED.columns,
        Column("intact", lambda item: item[1] and item[1].holds),
        Column("wrong", lambda item: item[1] and _failures(item[1])),
        Column("not_covered", lambda item: item[1] and ", ".join(item[1].uncovered)),
    ),
)


@app.command(epilog="Example: gpuledger close --period 2026-10 --dry-run")
def close(
    period: Annotated[str, Option("--period", metavar="YYYY-MM", help="The month.")],
    level: Annotated[
        str, Option("--level", help="Level of the owner tree that gets an invoice.")
    ] = "team",
    by: Annotated[
        str, Option("--by", help="Who closes, for the record; empty: the unix user.")
    ] = "",
    unpriced: Annotated[
        bool, Option("--allow-unpriced", help="Close though some usage has no price.")
    ] = False,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Show the receipt and close nothing.")
    ] = False,
    output: Annotated[
        Path | None, Option("-o", "--output", metavar="FILE", help="Write the receipt.")
    ] = None,
    form: options.PageForm = options.PageFormat.table,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Close a month: its charges are final, its invoices are booked in cents, and a receipt seals
    it.

    Ends with 1, and closes nothing, when the month is not over, its proof does not hold or usage
    has no price. What is found later is booked as a correction in an open month; what was found of
    months closed before is in this one.
    """
    require_level(level)
    nominal = _month(period)
    require_folder(output)
    with open_session(dsn, config) as session:
        span = session.calendar.days_named(nominal)
        # A month that is not over cannot be closed; rating it first would only delay the refusal.
        if session.now_ms >= span.end_ms:
            with bar("rating") as on_day:
                # Corrections of closed months that wait are booked in this month as long as it is
                # open.
                refresh(session.database, span, session.now_ms, on_day, span.end_ms - 1)
        try:
            closing = close_month(
                session.database,
                period,
                span,
                level,
                by or _user(),
                session.now_ms,
                unpriced=unpriced,
                dry=dry_run,
            )
        except CannotClose as error:
            refuse(str(error), FINDINGS)
    is_json = form is options.PageFormat.json
    write_text(
        json_text(closing.receipt) + "\n" if is_json else _page(closing.receipt, dry_run), output
    )


@app.command(epilog="Example: gpuledger periods --verify 2026-10")
def periods(
    check: Annotated[
        str | None,
        Option(
            "--verify",
            metavar="YYYY-MM",
            help="Check that month's lines against its seal, and its reports.",
        ),
    ] = None,
    form: options.Form = options.Format.table,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """List the closed months, or check one: its lines against its seal, and all that its reports
    read against them.

    Ends with 1 when the lines no longer match a seal, or when the ledger of days or of months, a
    recorded sum, the receipt or an invoice no longer matches the lines.
    """
    if check is not None:
        _month(check)
    with open_session(dsn, config) as session:
        months: list[VerifiedMonth]
        if check is None:
            months = [(closed, None) for closed in list_closed(session.database)]
        else:
            try:
                months = [verify_and_keep(session.database, check, session.now_ms)]
            except StillOpen:
                refuse(f"{check} is open: there is no seal yet", FINDINGS)
    if form is options.Format.table:
        for closed, result in months:
            say(
                f"{closed.name}  closed {instant_text(closed.closed_ms)} by {closed.closed_by},"
                f" {plural(str(closed.lines), 'line')}"
            )
            say(f"         seal {closed.seal}{_verdict(result)}")
            for sentence in (*(result.failures if result else ()), *_uncovered_sentences(result)):
                say(f"         {sentence}")
        if not months:
            print("no month is closed")
    else:
        is_short = check is None and form is options.Format.json
        emit_report(form, CLOSED if is_short else VERIFIED, months, is_exact=True)
    if any(result and not result.holds for _, result in months):
        raise typer.Exit(FINDINGS)


@app.command(epilog="Example: gpuledger corrections --period 2026-10 --by team")
def corrections(
    period: Annotated[
        str, Option("--period", metavar="YYYY-MM", help="The closed month that was amended.")
    ],
    level: Annotated[str, Option("--by", help="Level of the owner tree.")] = "team",
    form: options.Form = options.Format.table,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Show what was found about a closed month after its close, by owner; it is billed where it is
    booked.
    """
    require_level(level, "--by")
    nominal = _month(period)
    with open_session(dsn, config) as session:
        span = session.calendar.days_named(nominal)
        try:
            bill = bill_corrections(session.database, period, span, level, session.now_ms)
        except StillOpen:
            refuse(f"{period} is open: what changes it is in its own chargeback", FINDINGS)
    if not bill.rows and form is options.Format.table:
        print(f"{period} has no correction")
    else:
        sys.stdout.writelines(list_pieces(bill, span, form, terminal_width()))


def _failures(result: Verification) -> str:
    """What does not agree with the seal, in sentences."""
    seal = () if result.sealed else ("the lines are NOT those that were sealed.",)
    return " ".join((*seal, *result.failures))


def _uncovered_sentences(result: Verification | None) -> list[str]:
    """A sentence where the close of a month, by an earlier version, recorded less than closes do
    now.
    """
    if result is None or not result.uncovered:
        return []
    return [
        f"closed by an earlier version, whose record does not cover: {', '.join(result.uncovered)}"
    ]


def _verdict(result: Verification | None) -> str:
    if result is None:
        return ""
    if not result.sealed:
        return ": the lines are NOT those that were sealed"
    return (
        ": reports of it are NOT of the sealed lines"
        if result.failures
        else ": every line is as it was sealed"
    )


def _month(name: str) -> Period:
    try:
        return month(name)
    except ValueError as error:
        with contextlib.suppress(ValueError):
            parse_period(name, 1)
            refuse(
                f"a close is of one month, and {name} has several: close each of them, such as"
                " --period 2026-10"
            )
        refuse(str(error))


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def _page(receipt: Mapping[str, Any], dry_run: bool) -> str:
    """The receipt as a page of text."""
    invoices = receipt["invoices"]
    width = max([len(invoice["owner"]) for invoice in invoices] + [5])
    texts = [*(invoice["amount"] for invoice in invoices), *receipt["totals"].values()]
    money = max(map(len, texts), default=0)
    lines = [
        (
            f"{receipt['period']} {'would be' if dry_run else 'is'} closed: {receipt['from']} to"
            f" {receipt['to']}"
        ),
        f"{receipt['gpu_hours']} GPU-hours in {plural(receipt['lines'], 'line')}; "
        + (
            f"{receipt['coverage_percent']} % observed"
            if receipt["coverage_percent"]
            else "no inventory"
        ),
        "",
        *(
            f"{invoice['owner']:{width}}  {invoice['amount']:>{money}}"
            f" {invoice['currency']}{_shared_text(invoice)}"
            for invoice in invoices
        ),
        *(
            f"{'total':{width}}  {total:>{money}} {currency}{_unbilled_text(receipt, currency)}"
            for currency, total in receipt["totals"].items()
        ),
        "",
    ]
    if receipt["corrections"]["lines"]:
        lines.append(
            f"{receipt['corrections']['lines']} of the lines are corrections of months closed"
            " before"
        )
    lines.append(f"seal {receipt['seal']}")
    return lines_text(lines)


def _unbilled_text(receipt: Mapping[str, Any], currency: str) -> str:
    """How much of a total no owner pays, if any."""
    amount = receipt.get("not_billed", {}).get(currency, "0")
    return f"  of it {amount} not billed to any owner" if Decimal(amount) else ""


def _shared_text(invoice: Mapping[str, Any]) -> str:
    """How much of an invoice is shared cost, if any, and whether an owner pays it; old receipts do
    not say that.
    """
    shared = f"  including {invoice['shared']} of shared costs" if invoice["shared_micro"] else ""
    return shared + ("" if invoice.get("billed", True) else "  not billed to any owner")
