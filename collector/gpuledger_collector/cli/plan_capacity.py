"""gpuledger plan capacity: demand to the end of a quarter, capacity against wait by price, and what to reserve."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any

from typer import Option

from gpuledger_collector.accounting.currencies import currency_problem
from gpuledger_collector.accounting.period import DAY_MS, Period, format_date
from gpuledger_collector.cli import options
from gpuledger_collector.cli.common import FINDINGS, new_app, refuse, time_range
from gpuledger_collector.cli.output import Column, Row, emit, number
from gpuledger_collector.cli.plan_forms import Page, hourly_rate, print_page
from gpuledger_collector.cli.session import Session, open_session
from gpuledger_collector.insight.plans.capacity import (
    GROWTH_DAYS,
    HIGH,
    LIKELY,
    LOW,
    Outlook,
    TooFewDays,
)
from gpuledger_collector.services.capacity_plan import (
    GivenRates,
    PricedPlan,
    SeveralPools,
    capacity_plan,
    history,
    this_quarter,
)
from gpuledger_collector.services.refresh import refresh
from gpuledger_collector.services.scaling_advice import UnknownPool
from gpuledger_common.plurals import plural

app = new_app()
MAX_DAYS = 366
MAX_INTERRUPTIONS = 1000
UNKNOWN = "-"
COLUMNS = (
    Column("about"),
    Column("name"),
    Column("measure"),
    Column("unit"),
    number("low"),
    number("likely"),
    number("high"),
    Column("judged"),
)
"""A measure a line. Costs and waits that are expected values are `likely`."""
WAYS = {"on_demand": "on demand", "reserved": "reserved", "spot": "spot"}


@app.command(epilog="Example: gpuledger plan capacity --pool train --reserved-rate 1.40 --spot-rate 0.90")
def capacity(
    pool: Annotated[str | None, Option("--pool", help="The pool; may be left out where there is one only.")] = None,
    period: Annotated[
        str | None, Option("--period", metavar="PERIOD", help="Quarter 2026-Q4, month or year; else this quarter.")
    ] = None,
    end: Annotated[str | None, Option("--to", metavar="DATE", help="Or: to this day, not included.")] = None,
    on_demand_rate: Annotated[
        str | None, Option("--on-demand-rate", metavar="MONEY", help="Per GPU-hour; else from the price book.")
    ] = None,
    reserved_rate: Annotated[
        str | None,
        Option("--reserved-rate", metavar="MONEY", help="The same; else from the price book or the commitments."),
    ] = None,
    spot_rate: Annotated[
        str | None, Option("--spot-rate", metavar="MONEY", help="The same; else from the price book.")
    ] = None,
    spot_interruptions: Annotated[
        float,
        Option("--spot-interruptions", min=0, max=MAX_INTERRUPTIONS, help="Interruptions of a spot GPU a day."),
    ] = 1.0,
    currency: Annotated[
        str | None, Option("--currency", help="ISO 4217 code of the rates given; else the price book's.")
    ] = None,
    form: options.Form = options.Format.table,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Demand of a pool to the end of a quarter, what capacity costs against wait, and how many GPUs to reserve.

    With a band and the growth of each team. Estimates, which never reach a bill. Ends with 1 where the ledger has too
    short a past.
    """
    if problem := currency_problem(currency) if currency is not None else None:
        refuse(f"--currency: {problem}")
    texts = {"on_demand": on_demand_rate, "reserved": reserved_rate, "spot": spot_rate}
    given = {
        name: hourly_rate(text, f"--{name.replace('_', '-')}-rate") for name, text in texts.items() if text is not None
    }
    rates = GivenRates(given, currency, spot_interruptions)
    with open_session(dsn, config) as session:
        days = _planned_days(session, period, end)
        refresh(session.database, history(session.now_ms), session.now_ms)
        try:
            with session.database.connect() as connection:
                priced = capacity_plan(connection, session.now_ms, pool, days, rates)
        except SeveralPools as error:
            refuse(f"{error}; name one with --pool")
        except UnknownPool as error:
            if pool is None:
                refuse("the ledger has no demand yet: nothing to plan from", FINDINGS)
            refuse(f"--pool: {error}")
        except TooFewDays as error:
            refuse(str(error), FINDINGS)
    if form is options.Format.csv:
        emit(form, COLUMNS, list(measures(priced)))
    else:
        print_page(_page(priced), options.PageFormat(form.value))


def _planned_days(session: Session, period: str | None, end: str | None) -> Period:
    """The days to plan, which end in the future and not too far away."""
    today = session.calendar.day_of(session.now_ms)
    if end is not None and period is None:
        first = session.calendar.date_of(session.now_ms).isoformat()
        days = time_range(None, first, end).resolve(session.calendar, session.now_ms)
    elif period is not None and end is None:
        days = time_range(period, None, None).resolve(session.calendar, session.now_ms)
    elif period is None:
        days = this_quarter(session.calendar, session.now_ms)
    else:
        refuse("give one of --period and --to")
    if days.end_ms <= today.end_ms:
        refuse(f"the period ends on {format_date(days.end_ms)}: there is nothing left of it to plan")
    if days.end_ms > today.start_ms + MAX_DAYS * DAY_MS:
        refuse(f"the period ends on {format_date(days.end_ms)}: a plan reaches at most {MAX_DAYS} days ahead")
    return days


def measures(priced: PricedPlan) -> Iterator[Row]:
    """The plan as lines of COLUMNS."""

    def line(about: str, name: str, measure: str, unit: str, *values: float | None, judged: str = "") -> Row:
        low, likely, high = values if len(values) == 3 else (None, values[0], None)
        cells = {"low": low, "likely": likely, "high": high}
        rounded = {key: None if value is None else round(value, 4) for key, value in cells.items()}
        return {"about": about, "name": name, "measure": measure, "unit": unit, **rounded, "judged": judged}

    plan, currency = priced.plan, priced.currency
    pool = [("pool", priced.pool, plan.growth, plan.outlook)]
    teams = [("team", row.team, row.growth, row.outlook) for row in plan.teams]
    for about, name, growths, ahead in [*pool, *teams]:
        if ahead is not None:
            judged = "no" if ahead.judgment.covered is None else "yes"
            yield line(about, name, "demand", "GPU-hours", *_band(ahead), judged=judged)
        for span, growth in zip(GROWTH_DAYS, growths, strict=True):
            yield line(about, name, f"growth over {span} days", "ratio", growth)
    for point in plan.curve:
        gpus = str(point.gpus)
        yield line("capacity", gpus, "wait", "GPU-hours", point.wait_low, point.wait, point.wait_high)
        yield line("capacity", gpus, "wait on spot", "GPU-hours", point.wait_spot)
        for way, label in WAYS.items():
            yield line("capacity", gpus, f"cost {label}", currency, getattr(point, way))
    if (advice := plan.reservation) is not None:
        yield line("reservation", priced.pool, "GPUs", "GPU", advice.low, advice.gpus, advice.high)
        yield line("reservation", priced.pool, "cost", currency, advice.cost)
        yield line("reservation", priced.pool, "cost all on demand", currency, advice.on_demand_cost)
        yield line("reservation", priced.pool, "regret", currency, advice.regret_low, None, advice.regret_high)


def _band(ahead: Outlook) -> tuple[float, float, float]:
    return ahead.gpu_hours(LOW), ahead.gpu_hours(LIKELY), ahead.gpu_hours(HIGH)


def _page(priced: PricedPlan) -> Page:
    plan, currency = priced.plan, priced.currency
    days = len(plan.outlook.levels)
    first, last = (format_date(plan.outlook.start_ms + offset * DAY_MS) for offset in (0, days - 1))
    low, likely, high = _band(plan.outlook)
    rates = [
        f"{label} {UNKNOWN if rate is None else f'{rate:g} ({priced.sources[way]})'}"
        for way, label in WAYS.items()
        for rate in [getattr(plan.rates, way)]
    ]
    growth = [f"{_percent(value)} over {span} days" for span, value in zip(GROWTH_DAYS, plan.growth, strict=True)]
    hours = 24 * days
    lines = [
        ("demand", f"{likely:,.0f} GPU-hours, {low:,.0f} to {high:,.0f}"),
        ("mean GPUs", f"{likely / hours:,.1f}, {low / hours:,.1f} to {high / hours:,.1f}"),
        ("band", plan.outlook.judgment.sentence()),
        ("growth", ", ".join(growth)),
        (f"{currency} per GPU-hour", ", ".join(rates)),
        *_reservation_lines(priced),
    ]
    teams = [
        (
            row.team,
            UNKNOWN if row.gpus is None else f"{row.gpus:,.1f}",
            *map(_percent, row.growth),
            *((f"{value:,.0f}" for value in _band(row.outlook)) if row.outlook else (UNKNOWN,) * 3),
            UNKNOWN if row.outlook is None else "no" if row.outlook.judgment.covered is None else "yes",
        )
        for row in plan.teams
    ]
    spans = [f"{span} days" for span in GROWTH_DAYS]
    return Page(
        f"capacity of pool {priced.pool!r} from {first} to {last}, {days} days; an estimate, never a bill",
        lines,
        _record(priced),
        ("team", "GPUs", *spans, "GPU-hours low", "likely", "high", "judged"),
        teams,
        _notes(priced),
        _curve_table(priced),
    )


def _reservation_lines(priced: PricedPlan) -> list[tuple[str, str]]:
    advice, currency = priced.plan.reservation, priced.currency
    if advice is None:
        return [("to reserve", "unknown without both an on-demand and a reserved rate")]
    lines = [
        (
            "to reserve",
            f"{advice.gpus:,} GPUs with the rest on demand: {advice.cost:,.0f} {currency}, all on demand "
            f"{advice.on_demand_cost:,.0f}",
        ),
        ("if demand is low", f"{advice.low:,} would be best: {advice.regret_low:,.0f} {currency} lost"),
        ("if it is high", f"{advice.high:,} would be best: {advice.regret_high:,.0f} {currency} lost"),
    ]
    if priced.committed:
        lines.append(("committed now", f"{priced.committed:,} GPUs, which the number to reserve includes"))
    return lines


def _curve_table(priced: PricedPlan) -> list[tuple[str, ...]]:
    def money(value: float | None) -> str:
        return UNKNOWN if value is None else f"{value:,.0f}"

    waits = ("wait", "wait low", "wait high")
    header = ("GPUs at most", *waits, *(f"{label} {priced.currency}" for label in WAYS.values()), "wait on spot")
    rows = [
        (
            f"{point.gpus:,}",
            *(f"{value:,.1f}" for value in (point.wait, point.wait_low, point.wait_high)),
            *(money(getattr(point, way)) for way in WAYS),
            f"{point.wait_spot:,.1f}",
        )
        for point in priced.plan.curve
    ]
    return [header, *rows] if rows else []


def _notes(priced: PricedPlan) -> list[str]:
    rates = priced.plan.rates
    return [
        "low and high: every day at its 0.1 and its 0.9 quantile, so that totals are rarely outside",
        "growth: mean of the last 7 days over that of the 7 days so many days earlier; - is unknown",
        "teams by the GPUs that they hold; what waits in queues is in the demand of the pool alone",
        "wait: GPU-hours of demand above the capacity; reserved GPUs are paid in every hour, the others follow demand",
        f"spot: {plural(f'{rates.interruptions:g}', 'interruption')} a GPU and day, so that an hour of work takes "
        f"{rates.spot_effort:.3f} GPU-hours",
    ]


def _record(priced: PricedPlan) -> dict[str, Any]:
    plan = priced.plan

    def ahead(entry: Outlook | None) -> dict[str, Any] | None:
        if entry is None:
            return None
        band = dict(zip(("low", "likely", "high"), _band(entry), strict=True))
        return {"gpu_hours": band, "backtest": asdict(entry.judgment), "verdict": entry.judgment.sentence()}

    def growths(values: tuple[float | None, ...]) -> dict[str, float | None]:
        return {f"{span}d": value for span, value in zip(GROWTH_DAYS, values, strict=True)}

    end_ms = plan.outlook.start_ms + len(plan.outlook.levels) * DAY_MS
    return {
        "pool": priced.pool,
        "from": format_date(plan.outlook.start_ms),
        "to": format_date(end_ms),
        "currency": priced.currency,
        "demand": ahead(plan.outlook),
        "growth": growths(plan.growth),
        "teams": [
            {"team": row.team, "gpus": row.gpus, "growth": growths(row.growth), "demand": ahead(row.outlook)}
            for row in plan.teams
        ],
        "rates": {**asdict(plan.rates), "sources": dict(priced.sources)},
        "curve": [asdict(point) for point in plan.curve],
        "reservation": None if plan.reservation is None else asdict(plan.reservation),
        "committed_gpus": priced.committed,
    }


def _percent(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:+.0%}"
