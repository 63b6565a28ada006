"""gpuledger inference: what shared model servers cost those who asked."""

from __future__ import annotations

import datetime as dt
from typing import Annotated

from typer import Option

from gpuledger_collector.accounting.inference_lines import DEFAULT_KEYS, KEYS
from gpuledger_collector.cli import options
from gpuledger_collector.cli.common import (
    FINDINGS,
    column_names,
    new_app,
    refuse,
    require_folder,
    time_range,
)
from gpuledger_collector.cli.output import emit_report, write_text
from gpuledger_collector.cli.session import Session, ledger_command, open_session
from gpuledger_collector.cli.terminal import say
from gpuledger_collector.export.inference import INFERENCE_SERVERS, inference_report
from gpuledger_collector.services.inference_costs import NoHours, read_inference

app = new_app(
    name="inference",
    help="What shared model servers cost those who asked.",
    no_args_is_help=True,
)


@app.command("list", epilog="Example: gpuledger inference list --period 2026-10 --by tenant")
def list_tenants(
    by: Annotated[
        str,
        Option("--by", metavar="KEYS", help=f"A row for each of: {', '.join(KEYS)}."),
    ] = ",".join(DEFAULT_KEYS),
    period: options.PeriodName = None,
    start: options.FirstDay = None,
    end: options.LastDay = None,
    days: options.LastDays = None,
    form: options.Form = options.Format.table,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """List what tenants pay for shared model servers, and how much of it is charged.

    The rows of a server add up to what it was charged: (nobody) is what it generated for nobody
    that a gateway knows, (idle) is idle time that stays with the platform.
    """
    keys = column_names(by, KEYS)
    asked = time_range(period, start, end, days)
    with open_session(dsn, config) as session:
        span = session.rate_range(asked)
        with session.database.transaction(read_only=True) as connection:
            try:
                answer = read_inference(connection, span, keys)
            except NoHours as error:
                refuse(str(error))
    emit_report(form, inference_report(keys), answer.lines, answer.notes)


@app.command(epilog="Example: gpuledger inference servers --period 2026-10 --format json")
def servers(
    period: options.PeriodName = None,
    start: options.FirstDay = None,
    end: options.LastDay = None,
    days: options.LastDays = None,
    form: options.Form = options.Format.table,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """List what shared model servers cost, what a million tokens cost, and how many of their tokens
    gateways know.
    """
    asked = time_range(period, start, end, days)
    with open_session(dsn, config) as session:
        span = session.rate_range(asked)
        with session.database.transaction(read_only=True) as connection:
            answer = read_inference(connection, span, DEFAULT_KEYS)
    emit_report(form, INFERENCE_SERVERS, answer.servers, answer.notes)


@app.command(epilog="Example: gpuledger inference weights --days 28 --suggest -o inference.toml")
@ledger_command
def weights(
    session: Session,
    server: Annotated[str, Option("--server", metavar="NAME", help="Only this server.")] = "",
    suggest: Annotated[
        bool,
        Option(
            "--suggest",
            help="Write [[inference]] tables with these weights from tomorrow, for gpuledger apply.",
        ),
    ] = False,
    period: options.PeriodName = None,
    start: options.FirstDay = None,
    end: options.LastDay = None,
    days: options.LastDays = None,
    form: options.Form = options.Format.table,
    output: options.Output = None,
) -> None:
    """Estimate what tokens weigh on each server, from its busy time and its counters by hour.

    An estimate moves no money: it is in force once somebody declares it. What explains too little
    is refused, with the reason.
    """
    from gpuledger_collector.export.token_weights import TOKEN_WEIGHTS, declaration_text
    from gpuledger_collector.services.token_weights import (
        UnknownServer,
        propose,
        read_token_weights,
    )

    if output is not None and not suggest:
        refuse("-o goes with --suggest")
    require_folder(output)
    span = session.rate_range(time_range(period, start, end, days))
    tomorrow = session.calendar.date_of(session.now_ms) + dt.timedelta(days=1)
    with session.database.transaction(read_only=True) as connection:
        try:
            estimates = read_token_weights(connection, span, server)
        except UnknownServer as error:
            refuse(f"--server: {error}")
        proposal = propose(connection, estimates, tomorrow)
    if not suggest:
        emit_report(form, TOKEN_WEIGHTS, estimates)
        return
    reasons = [
        f"{each.server}: {each.estimate.reason}" for each in estimates if each.estimate.reason
    ]
    if not proposal.measured:
        refuse("; ".join(["no weights to suggest", *reasons]), FINDINGS)
    for reason in reasons:
        say(f"not suggested: {reason}", error=True)
    first, last = (session.calendar.date_of(at) for at in (span.start_ms, span.end_ms - 1))
    write_text(declaration_text(proposal.servers, proposal.measured, f"{first} to {last}"), output)
