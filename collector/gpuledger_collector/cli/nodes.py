"""gpuledger nodes: the nodes of the fleet, and those that leave it on purpose."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

from gpuledger_collector.accounting.period import format_instant, parse_instant
from gpuledger_collector.cli import options
from gpuledger_collector.cli.common import dry_run_note, new_app, refuse
from gpuledger_collector.cli.output import emit_report
from gpuledger_collector.cli.session import open_session
from gpuledger_collector.cli.terminal import say
from gpuledger_collector.export.fleet import NODES
from gpuledger_collector.services import nodes
from gpuledger_collector.services.nodes import NodeRefused

app = new_app(
    name="nodes", help="The nodes of the fleet, and those that leave it.", no_args_is_help=True
)
NodeName = Annotated[str, Argument(metavar="NODE", help="Its name.")]


@app.command("list", epilog="Example: gpuledger nodes list --format json")
def list_nodes(
    form: options.Form = options.Format.table,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """List every node: ok, silent, retired, back again after it was retired, or what its agent says
    is wrong.
    """
    with open_session(dsn, config) as session, session.database.transaction() as connection:
        known = nodes.list_nodes(connection, session.now_ms)
    emit_report(form, NODES, known, is_exact=True)


@app.command(epilog="Example: gpuledger nodes retire gpu-07 --at 2026-10-31T12:00:00Z")
def retire(
    node: NodeName,
    at: Annotated[
        str | None,
        Option("--at", metavar="INSTANT", help="When it left; default: its last sign of life."),
    ] = None,
    keep: Annotated[bool, Option("--keep", help="Take the retirement back.")] = False,
    dry_run: options.DryRun = False,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Take a node out of the fleet that is gone on purpose: its capacity ends, and it is no longer
    silent.

    When it reports again its accelerators are there again, from then on.
    """
    if keep and at is not None:
        refuse("--keep and --at: one or the other")
    try:
        at_ms = None if at is None else parse_instant(at)
    except ValueError as error:
        refuse(f"--at: {error}")
    try:
        with (
            open_session(dsn, config) as session,
            session.database.transaction(dry_run=dry_run) as connection,
        ):
            if keep:
                nodes.keep(connection, node, session.now_ms)
            else:
                row = nodes.retire(connection, node, at_ms, session.now_ms)
    except NodeRefused as error:
        refuse(str(error))
    if keep:
        say(f"{node} is part of the fleet again{dry_run_note(dry_run)}")
    else:
        say(
            f"{node} is retired from {format_instant(row.retired_ms or 0)}"
            f" on{dry_run_note(dry_run)}"
        )
