"""gpuledger accelerators: what each accelerator did."""

from __future__ import annotations

import enum
from typing import Annotated

from typer import Option

from gpuledger_collector.cli import options
from gpuledger_collector.cli.common import new_app, time_range
from gpuledger_collector.cli.output import emit_report
from gpuledger_collector.cli.session import open_session
from gpuledger_collector.export.fleet import ACCELERATORS
from gpuledger_collector.services import accelerators as activity
from gpuledger_collector.services.accelerators import list_activity

app = new_app()


class Order(enum.StrEnum):
    """Sort orders of the accelerators."""

    node = activity.NODE
    busiest = activity.BUSIEST
    idlest = activity.IDLEST


@app.command(epilog="Example: gpuledger accelerators --period 2026-10 --sort idlest --top 10")
def accelerators(
    period: options.PeriodName = None,
    start: options.FirstDay = None,
    end: options.LastDay = None,
    days: options.LastDays = None,
    sort: Annotated[Order, Option("--sort", help="Order of the rows.")] = Order.node,
    top: options.Top = 0,
    form: options.Form = options.Format.table,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """List accelerators with their held, busy, idle and unallocated hours (held and known activity
    only).
    """
    asked = time_range(period, start, end, days)
    with open_session(dsn, config) as session:
        span = asked.resolve(session.calendar, session.now_ms)
        with session.database.connect() as connection:
            activities = list_activity(connection, span, sort.value)
    emit_report(form, ACCELERATORS, activities[: top or None])
