"""gpuledger reconcile: the proof that nothing was lost between capacity and bill."""

from __future__ import annotations

import enum
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from gpuledger_collector.cli.common import FINDINGS, Config, Dsn, FirstDay, LastDay, Month, database, period_of, refuse

if TYPE_CHECKING:
    from pathlib import Path


class Shape(enum.StrEnum):
    """Forms of the output; csv only of differences to a bill."""

    table = "table"
    json = "json"
    csv = "csv"


class Amount(enum.StrEnum):
    """Costs of a bill: as invoiced, or with commitments amortised."""

    billed = "billed"
    effective = "effective"


def register(root: typer.Typer) -> None:
    """Add `gpuledger reconcile`."""
    root.command(epilog="Example: gpuledger reconcile --period 2026-10")(reconcile)


def reconcile(
    period: Month = None,
    start: FirstDay = None,
    end: LastDay = None,
    bill: Annotated[
        str | None, typer.Option("--bill", metavar="PROVIDER", help="Against this provider's bill of the month.")
    ] = None,
    amount: Annotated[
        Amount, typer.Option("--cost", help="For --bill: which cost of the bill counts.")
    ] = Amount.billed,
    shape: Annotated[Shape, typer.Option("--format", help="Form of the output.")] = Shape.table,
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """Prove that owners + unallocated + unavailable + unobserved + stranded = capacity x rate, to the micro-unit.

    Ends with 1 when it does not hold, when some of it has no price, or when a claim was refused that somebody is to
    decide. With --bill: hold the bill against what was
    observed, every difference with its kind; ends with 1 when one of them is a question to somebody.
    """
    if bill is not None:
        _against_bill(period, bill, amount, shape, dsn, config)
        return
    if shape is Shape.csv:
        refuse("--format csv is for --bill")
    asked = period_of(period, start, end)
    with database(dsn, config) as opened:
        from gpuledger_collector.cli.progress import bar
        from gpuledger_collector.export import proof
        from gpuledger_collector.services.reconciliation import reconcile as check
        from gpuledger_collector.services.refresh import refresh
        from gpuledger_collector.storage.ledger import zones
        from gpuledger_collector.wiring import now

        with opened.transaction() as connection:
            asked = zones.in_zone(connection, asked)
        with bar("rating") as on_day:
            refresh(opened, asked, int(now().timestamp() * 1000), on_day)
        from gpuledger_collector.storage.locks import Lock

        with opened.transaction(Lock.LEDGER) as connection:
            found = check(connection, asked)
    sys.stdout.write(proof.as_json(found) if shape is Shape.json else proof.as_text(found))
    if not found.holds or found.unpriced_ns or found.claims:
        raise typer.Exit(FINDINGS)


def _against_bill(
    period: str | None, provider: str, amount: Amount, shape: Shape, dsn: str | None, config: Path | None
) -> None:
    if period is None:
        refuse("--bill: say which month, by --period 2026-10")
    asked = period_of(period, None, None)
    with database(dsn, config) as opened:
        from gpuledger_collector.cli.progress import bar
        from gpuledger_collector.export import provider_bill as forms
        from gpuledger_collector.services.provider_bill import NoBill, reconcile_bill
        from gpuledger_collector.services.refresh import refresh
        from gpuledger_collector.storage.ledger import zones
        from gpuledger_collector.wiring import now

        with opened.transaction() as connection:
            asked = zones.in_zone(connection, asked)
        with bar("rating") as on_day:
            refresh(opened, asked, int(now().timestamp() * 1000), on_day)
        with opened.transaction() as connection:
            try:
                found = reconcile_bill(connection, provider, asked, effective=amount is Amount.effective)
            except NoBill as error:
                refuse(str(error))
    form = {Shape.table: forms.as_text, Shape.json: forms.as_json, Shape.csv: forms.as_csv}[shape]
    sys.stdout.write(form(found))
    if found.questions:
        raise typer.Exit(FINDINGS)
