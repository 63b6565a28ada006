"""gpuledger reconcile: the proof that nothing was lost between capacity and bill."""

from __future__ import annotations

import enum
import sys
from typing import Annotated

import typer
from typer import Option

from gpuledger_collector.cli import options
from gpuledger_collector.cli.common import FINDINGS, TimeRange, new_app, refuse, time_range
from gpuledger_collector.cli.session import Session, open_session
from gpuledger_collector.export import proof, provider_bill
from gpuledger_collector.services.month_proof import prove_period
from gpuledger_collector.services.provider_bill import NoBill, reconcile_bill

app = new_app()


class Amount(enum.StrEnum):
    """Costs of a bill: as invoiced, or with commitments amortized."""

    billed = "billed"
    effective = "effective"


@app.command(epilog="Example: gpuledger reconcile --period 2026-10")
def reconcile(
    period: options.PeriodName = None,
    start: options.FirstDay = None,
    end: options.LastDay = None,
    days: options.LastDays = None,
    provider: Annotated[
        str | None,
        Option("--bill", metavar="PROVIDER", help="Against this provider's bill of the period."),
    ] = None,
    amount: Annotated[
        Amount, Option("--cost", help="For --bill: which cost of the bill counts.")
    ] = Amount.billed,
    evidence: Annotated[
        bool,
        Option(
            "--evidence", help="Also fold and rate every day again; takes as long as rating them."
        ),
    ] = False,
    form: options.Form = options.Format.table,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Prove that owners + unallocated + unavailable + unobserved + stranded = capacity x rate, to
    the micro-unit.

    Ends with 1 when it does not hold, when some of it has no price, or when a refused claim waits
    for a decision. --evidence also folds the evidence of each day again and rates it again, and
    compares line by line; nothing is changed. From 10,000 GPUs on, the present day is proved as the
    collector rated it in the last minutes, but for --evidence. --bill: compare the bill with what was observed,
    every difference with its kind; ends with 1 when a difference has to be asked about.
    """
    if provider is None and form is options.Format.csv:
        refuse("--format csv is for --bill")
    if evidence and provider is not None:
        refuse("--evidence and --bill are two questions: ask one of them")
    asked = time_range(period, start, end, days)
    with open_session(dsn, config) as session:
        if provider is None:
            is_proved = prove(session, asked, form, evidence=evidence)
        else:
            is_proved = compare_bill(session, asked, provider, amount, form)
    if not is_proved:
        raise typer.Exit(FINDINGS)


def prove(
    session: Session, asked: TimeRange, form: options.Format, *, evidence: bool = False
) -> bool:
    """Print the proof; whether it holds, with all usage priced and no claim refused."""
    if evidence and session.database.standby:
        refuse(
            "--evidence folds hours again in a transaction that is rolled back: run it on the"
            " primary"
        )
    span = session.rate_range(asked) if evidence else session.rate_report(asked)
    sheet = prove_period(session.database, span, session.now_ms, evidence=evidence)
    if not sheet.holds and not evidence:
        # A GPU that was seen for the first time while the day was rated: rate it anew before
        # anything is said to be wrong.
        session.rate(span)
        sheet = prove_period(session.database, span, session.now_ms)
    sys.stdout.write(proof.as_json(sheet) if form is options.Format.json else proof.as_text(sheet))
    return sheet.holds and not sheet.unpriced_ns and not sheet.claims


def compare_bill(
    session: Session, asked: TimeRange, provider: str, amount: Amount, form: options.Format
) -> bool:
    """Print the differences to a provider's bill; whether none has to be asked about."""
    span = session.rate_range(asked)
    with session.database.transaction() as connection:
        try:
            comparison = reconcile_bill(
                connection, provider, span, effective=amount is Amount.effective
            )
        except NoBill as error:
            refuse(str(error))
    as_text = {
        options.Format.table: provider_bill.as_text,
        options.Format.json: provider_bill.as_json,
        options.Format.csv: provider_bill.as_csv,
    }[form]
    sys.stdout.write(as_text(comparison))
    return not comparison.questions
