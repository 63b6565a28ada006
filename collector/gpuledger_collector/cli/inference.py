"""gpuledger inference: what shared model servers cost those who asked."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from gpuledger_collector.accounting.inference_lines import DEFAULT_KEYS, KEYS
from gpuledger_collector.cli import options
from gpuledger_collector.cli.common import column_names, new_app, refuse, time_range
from gpuledger_collector.cli.output import emit_report
from gpuledger_collector.cli.session import open_session
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
    """List what tenants pay for shared model servers, beside an unchanged bill.

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
