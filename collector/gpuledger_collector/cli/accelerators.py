"""gpuledger accelerators: what each accelerator did."""

from __future__ import annotations

import enum
from typing import Annotated

from typer import Option

from gpuledger_collector.cli import options
from gpuledger_collector.cli.amounts import MWS_PER_KWH, hours_text
from gpuledger_collector.cli.common import new_app, time_range
from gpuledger_collector.cli.output import Column, Row, emit, hidden, number
from gpuledger_collector.cli.session import open_session
from gpuledger_collector.storage.telemetry.activity import Activity, activity

app = new_app()
COLUMNS = (
    Column("node"),
    number("index"),
    hidden("uuid"),
    Column("model"),
    Column("mig_instance", is_optional=True),
    Column("pool", is_optional=True),
    number("held_h"),
    number("busy_h"),
    number("idle_h"),
    hidden("unknown_h", is_number=True),
    number("unallocated_h"),
    number("unavailable_h", is_optional=True),
    number("busy_percent", "busy %"),
    number("energy_kwh", is_optional=True),
)


class Order(enum.StrEnum):
    """Sort orders of the accelerators."""

    node = "node"
    busiest = "busiest"
    idlest = "idlest"


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
            activities = sort_activities(activity(connection, span.start_ms, span.end_ms), sort)
    emit(form, COLUMNS, [to_row(entry) for entry in activities[: top or None]])


def sort_activities(activities: list[Activity], order: Order) -> list[Activity]:
    """Sort by the order; accelerators without known activity are neither among the busiest nor the
    idlest.
    """
    if order is Order.node:
        return activities
    known = [entry for entry in activities if entry.busy_permille is not None]
    if order is Order.busiest:
        return sorted(
            known, key=lambda entry: (-(entry.busy_permille or 0), -entry.busy_ms, entry.uuid)
        )
    return sorted(known, key=lambda entry: (-entry.idle_ms, entry.uuid))


def to_row(entry: Activity) -> Row:
    """An accelerator as text, by COLUMNS."""
    states = ("held", "busy", "idle", "unknown", "unallocated", "unavailable")
    return {
        "node": entry.node,
        "index": "" if entry.gpu_index is None else str(entry.gpu_index),
        "uuid": entry.uuid,
        "model": entry.model,
        "mig_instance": entry.mig_instance or "",
        "pool": entry.pool,
        **{f"{state}_h": hours_text(getattr(entry, f"{state}_ms"), 3) for state in states},
        "busy_percent": "" if entry.busy_permille is None else f"{entry.busy_permille / 10:.1f}",
        "energy_kwh": "" if entry.energy_mj is None else f"{entry.energy_mj / MWS_PER_KWH:.1f}",
    }
