"""gpuledger close and gpuledger periods: when a month is done, and what was sealed."""

from __future__ import annotations

import enum
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuledger_collector.cli.common import FINDINGS, Config, Dsn, database, refuse
from gpuledger_collector.cli.terminal import say
from gpuledger_common.plurals import plural

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuledger_collector.accounting.period import Period


class Shape(enum.StrEnum):
    """Forms of the output."""

    table = "table"
    json = "json"


class ReportShape(enum.StrEnum):
    """Forms of a report."""

    table = "table"
    csv = "csv"
    json = "json"


def register(root: typer.Typer) -> None:
    """Add `gpuledger close` and `gpuledger periods`."""
    root.command(epilog="Example: gpuledger close --period 2026-10 --dry-run")(close)
    root.command(epilog="Example: gpuledger periods --verify 2026-10")(periods)
    root.command(epilog="Example: gpuledger corrections --period 2026-10 --by team")(corrections)


def close(
    period: Annotated[str, typer.Option("--period", metavar="YYYY-MM", help="The month.")],
    level: Annotated[str, typer.Option("--level", help="Level of the owner tree that gets an invoice.")] = "team",
    by: Annotated[str, typer.Option("--by", help="Who closes, for the record; empty: the unix user.")] = "",
    unpriced: Annotated[bool, typer.Option("--allow-unpriced", help="Close though some usage has no price.")] = False,
    dry: Annotated[bool, typer.Option("--dry-run", help="Show the receipt and close nothing.")] = False,
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write the receipt.")] = None,
    shape: Annotated[Shape, typer.Option("--format", help="Form of the receipt.")] = Shape.table,
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """Close a month: its charges do not change any more, its invoices are booked in cents, and a receipt seals it.

    Ends with 1, and closes nothing, when the month is not over, its proof does not hold or usage has no price. What is
    found later is booked as a correction in an open month; what was found of months closed before is in this one.
    """
    from gpuledger_collector.accounting.owner_tree import LEVELS

    if level not in LEVELS:
        refuse(f"--level: {level!r} is none of {', '.join(LEVELS)}")
    asked = _month(period)
    if output is not None and not output.parent.is_dir():
        refuse(f"{output.parent} is no folder to write to")
    with database(dsn, config) as opened:
        from gpuledger_collector.cli.progress import bar
        from gpuledger_collector.services.close import CannotClose, close_period
        from gpuledger_collector.services.refresh import refresh
        from gpuledger_collector.storage.ledger import zones
        from gpuledger_collector.storage.locks import Lock
        from gpuledger_collector.wiring import now

        now_ms = int(now().timestamp() * 1000)
        with opened.transaction() as connection:
            asked = zones.in_zone(connection, asked)
        if now_ms >= asked.end_ms:
            with bar("rating") as on_day:
                # What waits of closed months is booked in this one as long as it is open.
                refresh(opened, asked, now_ms, on_day, asked.end_ms - 1)
        try:
            with opened.transaction(Lock.LEDGER, Lock.AUDIT) as connection:
                made = close_period(connection, period, asked, level, by or _user(), now_ms, unpriced=unpriced, dry=dry)
        except CannotClose as error:
            refuse(str(error), FINDINGS)
    text = _text(made.receipt, shape, dry=dry)
    if output is None:
        sys.stdout.write(text)
    else:
        output.write_text(text, encoding="utf-8")


def periods(
    check: Annotated[
        str | None, typer.Option("--verify", metavar="YYYY-MM", help="Check that month's lines against its seal.")
    ] = None,
    shape: Annotated[Shape, typer.Option("--format", help="Form of the output.")] = Shape.table,
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """List the closed months, or check the seal of one.

    Ends with 1 when a seal does not fit the lines any more.
    """
    if check is not None:
        _month(check)
    with database(dsn, config) as opened:
        from gpuledger_collector.accounting.period import format_instant
        from gpuledger_collector.services.close import verify
        from gpuledger_collector.storage.billing import periods as records
        from gpuledger_collector.storage.locks import Lock

        with opened.transaction(Lock.LEDGER) as connection:
            closed = [one for one in records.closed(connection) if check in (None, one.name)]
            if check is not None and not closed:
                refuse(f"{check} is open: there is no seal yet", FINDINGS)
            intact = {one.name: verify(connection, one) for one in closed if check is not None}
    rows = [
        {
            "period": one.name,
            "status": "closed",
            "closed_at": format_instant(one.closed_ms - one.closed_ms % 1000),
            "closed_by": one.closed_by,
            "lines": one.lines,
            "seal": one.seal,
            **({"intact": intact[one.name]} if one.name in intact else {}),
        }
        for one in closed
    ]
    if shape is Shape.json:
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
    elif not rows:
        print("no month is closed")
    for row in rows if shape is Shape.table else ():
        say(f"{row['period']}  closed {row['closed_at']} by {row['closed_by']}, {plural(str(row['lines']), 'line')}")
        say(f"         seal {row['seal']}{_said(row)}")
    if not all(intact.values()):
        raise typer.Exit(FINDINGS)


def corrections(
    period: Annotated[str, typer.Option("--period", metavar="YYYY-MM", help="The closed month that was amended.")],
    level: Annotated[str, typer.Option("--by", help="Level of the owner tree.")] = "team",
    shape: Annotated[ReportShape, typer.Option("--format", help="Form of the output.")] = ReportShape.table,
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """Show what was found about a closed month after its close, by owner; it is billed where it is booked."""
    from gpuledger_collector.accounting.owner_tree import LEVELS

    if level not in LEVELS:
        refuse(f"--by: {level!r} is none of {', '.join(LEVELS)}")
    asked = _month(period)
    with database(dsn, config) as opened:
        from gpuledger_collector.accounting.chargeback import report
        from gpuledger_collector.export import chargeback as forms
        from gpuledger_collector.services.refresh import refresh
        from gpuledger_collector.storage.billing import periods as records
        from gpuledger_collector.storage.ledger import reports, zones
        from gpuledger_collector.wiring import now

        with opened.transaction() as connection:
            asked = zones.in_zone(connection, asked)
            if period not in {one.name for one in records.closed(connection)}:
                refuse(f"{period} is open: what changes it is in its own chargeback", FINDINGS)
        refresh(opened, asked, int(now().timestamp() * 1000))
        with opened.transaction() as connection:
            made = report(reports.corrections_of(connection, asked, level), (level,))
    if not made.rows and shape is ReportShape.table:
        print(f"{period} has no correction")
    elif shape is ReportShape.csv:
        sys.stdout.write(forms.as_csv(made))
    elif shape is ReportShape.json:
        sys.stdout.write(forms.as_json(made, asked, []))
    else:
        sys.stdout.write(forms.as_table(made, None))


def _said(row: Mapping[str, object]) -> str:
    if "intact" not in row:
        return ""
    return ": every line is as it was sealed" if row["intact"] else ": the lines are NOT those that were sealed"


def _shared(invoice: Mapping[str, Any]) -> str:
    """How much of an invoice are shares of common costs, where it has any."""
    return f"  of it shared {invoice['shared']}" if invoice["shared_micro"] else ""


def _month(name: str) -> Period:
    from gpuledger_collector.accounting.period import month

    try:
        return month(name)
    except ValueError as error:
        refuse(str(error))


def _user() -> str:
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def _text(receipt: Mapping[str, Any], shape: Shape, *, dry: bool) -> str:
    if shape is Shape.json:
        return json.dumps(receipt, indent=2) + "\n"
    from gpuledger_collector.export.cells import lines_text

    invoices = receipt["invoices"]
    width = max([len(one["owner"]) for one in invoices] + [5])
    money = max(
        (len(amount) for amount in [*(one["amount"] for one in invoices), *receipt["totals"].values()]), default=0
    )
    lines = [
        f"{receipt['period']} {'would be' if dry else 'is'} closed: {receipt['from']} to {receipt['to']}",
        f"{receipt['gpu_hours']} GPU-hours in {plural(receipt['lines'], 'line')}; "
        + (f"{receipt['coverage_percent']} % observed" if receipt["coverage_percent"] else "no inventory"),
        "",
        *(f"{one['owner']:{width}}  {one['amount']:>{money}} {one['currency']}{_shared(one)}" for one in invoices),
        *(f"{'total':{width}}  {total:>{money}} {currency}" for currency, total in receipt["totals"].items()),
        "",
    ]
    if receipt["corrections"]["lines"]:
        lines.append(f"{receipt['corrections']['lines']} of the lines are corrections of months closed before")
    lines.append(f"seal {receipt['seal']}")
    return lines_text(lines)
