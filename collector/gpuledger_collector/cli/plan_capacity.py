"""gpuledger plan capacity: demand to the end of a quarter, capacity against wait by price, and what
to reserve.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from typer import Option

from gpuledger_collector.accounting.currencies import currency_problem
from gpuledger_collector.accounting.period import DAY_MS, Period, format_date
from gpuledger_collector.cli import options
from gpuledger_collector.cli.common import FINDINGS, new_app, refuse, time_range
from gpuledger_collector.cli.output import emit_report
from gpuledger_collector.cli.plan_forms import Page, hourly_rate, print_page
from gpuledger_collector.cli.session import Session, open_session
from gpuledger_collector.export.report import Column, Kind, Report
from gpuledger_collector.insight.plans.capacity import Band, Horizon, TooFewDays
from gpuledger_collector.services.capacity_plan import (
    GivenRates,
    PricedPlan,
    SeveralPools,
    capacity_plan,
    history,
    quarter_ahead,
    store_capacity_plans,
)
from gpuledger_collector.services.refresh import refresh
from gpuledger_collector.services.scaling_advice import UnknownPool
from gpuledger_common.plurals import plural

app = new_app()
MAX_DAYS = 366
MAX_INTERRUPTIONS = 1000
UNKNOWN = "-"


@dataclass(frozen=True, slots=True)
class PlanMeasure:
    """A measure of a plan; of costs and expected waits, only `likely` is known."""

    about: str
    name: str
    measure: str
    unit: str
    low: float | None
    likely: float | None
    high: float | None
    judged: str = ""


def _estimate(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


MEASURES = Report[PlanMeasure](
    "plan",
    (
        Column("about", lambda item: item.about),
        Column("name", lambda item: item.name),
        Column("measure", lambda item: item.measure),
        Column("unit", lambda item: item.unit),
        Column("low", lambda item: _estimate(item.low), Kind.ESTIMATE),
        Column("likely", lambda item: _estimate(item.likely), Kind.ESTIMATE),
        Column("high", lambda item: _estimate(item.high), Kind.ESTIMATE),
        Column("judged", lambda item: item.judged),
    ),
)
WAYS = {"on_demand": "on demand", "reserved": "reserved", "spot": "spot"}


@app.command(
    epilog="Example: gpuledger plan capacity --pool train --reserved-rate 1.40 --spot-rate 0.90"
)
def capacity(
    pool: Annotated[
        str | None, Option("--pool", help="The pool; may be left out where there is one only.")
    ] = None,
    period: Annotated[
        str | None,
        Option(
            "--period", metavar="PERIOD", help="Quarter 2026-Q4, month or year; else this quarter."
        ),
    ] = None,
    end: Annotated[
        str | None, Option("--to", metavar="DATE", help="Or: to this day, not included.")
    ] = None,
    on_demand_rate: Annotated[
        str | None,
        Option("--on-demand-rate", metavar="MONEY", help="Per GPU-hour; else from the price book."),
    ] = None,
    reserved_rate: Annotated[
        str | None,
        Option(
            "--reserved-rate",
            metavar="MONEY",
            help="The same; else from the price book or the commitments.",
        ),
    ] = None,
    spot_rate: Annotated[
        str | None,
        Option("--spot-rate", metavar="MONEY", help="The same; else from the price book."),
    ] = None,
    spot_interruptions: Annotated[
        float,
        Option(
            "--spot-interruptions",
            min=0,
            max=MAX_INTERRUPTIONS,
            help="Interruptions of a spot GPU a day.",
        ),
    ] = 1.0,
    currency: Annotated[
        str | None,
        Option("--currency", help="ISO 4217 code of the rates given; else the price book's."),
    ] = None,
    store: Annotated[
        bool,
        Option("--store", help="Plan all pools now for the board, which gets its plans hourly."),
    ] = False,
    form: options.Form = options.Format.table,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Demand of a pool to the end of a quarter, what capacity costs against wait, and how many GPUs
    to reserve.

    With a band and the growth of each team. Estimates, which never reach a bill. Ends with 1 where
    the ledger has too short a past.
    """
    if problem := currency_problem(currency) if currency is not None else None:
        refuse(f"--currency: {problem}")
    if store and (pool, period, end, on_demand_rate, reserved_rate, spot_rate, currency) != (
        (None,) * 7
    ):
        refuse(
            "--store plans all pools to the end of this quarter, by the price book: give it alone"
        )
    texts = {"on_demand": on_demand_rate, "reserved": reserved_rate, "spot": spot_rate}
    given = {
        name: hourly_rate(text, f"--{name.replace('_', '-')}-rate")
        for name, text in texts.items()
        if text is not None
    }
    rates = GivenRates(given, currency, spot_interruptions)
    with open_session(dsn, config) as session:
        days = _planned_days(session, period, end)
        refresh(session.database, history(session.now_ms), session.now_ms)
        if store:
            planned = store_capacity_plans(session.database, session.now_ms, anew=True)
            print(f"{plural(planned, 'plan')} stored")
            return
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
        emit_report(options.Format.csv, MEASURES, measures(priced))
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
        days = quarter_ahead(session.calendar, session.now_ms)
    else:
        refuse("give one of --period and --to")
    if days.end_ms <= today.end_ms:
        refuse(
            f"the period ends on {format_date(days.end_ms)}: there is nothing left of it to plan"
        )
    if days.end_ms > today.start_ms + MAX_DAYS * DAY_MS:
        refuse(
            f"the period ends on {format_date(days.end_ms)}: a plan reaches at most {MAX_DAYS} days"
            " ahead"
        )
    return days


def measures(priced: PricedPlan, about: str = "pool") -> Iterator[PlanMeasure]:
    """The plan, a measure a line; those of its models after it."""
    plan, currency = priced.plan, priced.currency
    place = "" if about == "pool" else f" of {plan.pool.name}"
    present = (("GPUs", priced.gpus), ("headroom", priced.headroom), ("enough", plan.enough_gpus))
    for measure, count in present:
        yield PlanMeasure(about, plan.pool.name, measure, "GPU", None, count, None)
    for kind, entry in [(about, plan.pool), *(("team", team) for team in plan.teams)]:
        for ahead in (entry.plan, *entry.next):
            days, judged = f"{ahead.days} days", _is_judged(ahead)
            for measure, unit, values in (
                (f"demand of {days}", "GPU-hours", _values(ahead.gpu_hours)),
                (f"growth in {days}", "ratio", _values(ahead.growth)),
            ):
                yield PlanMeasure(kind, entry.name, measure, unit, *values, judged)
            grown = (None, ahead.grown, None)
            yield PlanMeasure(kind, entry.name, f"growth over {days}", "ratio", *grown)
    for point in plan.curve:
        gpus, waits = f"{point.gpus}{place}", (point.wait_low, point.wait, point.wait_high)
        yield PlanMeasure("capacity", gpus, "wait", "GPU-hours", *waits)
        spot = (None, point.wait_spot, None)
        yield PlanMeasure("capacity", gpus, "wait on spot", "GPU-hours", *spot)
        for way, label in WAYS.items():
            cost = (None, getattr(point, way), None)
            yield PlanMeasure("capacity", gpus, f"cost {label}", currency, *cost)
    if (advice := plan.reservation) is not None:
        for measure, unit, values in (
            ("GPUs", "GPU", (advice.low, advice.gpus, advice.high)),
            ("cost", currency, (None, advice.cost, None)),
            ("cost all on demand", currency, (None, advice.on_demand_cost, None)),
            ("regret", currency, (advice.regret_low, None, advice.regret_high)),
        ):
            yield PlanMeasure("reservation", plan.pool.name, measure, unit, *values)
    for model in priced.models:
        yield from measures(model, "model")


def _is_judged(ahead: Horizon) -> str:
    if ahead.backtest is None:
        return ""
    return "no" if ahead.backtest.covered is None else "yes"


def _values(band: Band | None) -> tuple[float | None, float | None, float | None]:
    return (None, None, None) if band is None else (band.low, band.likely, band.high)


def _page(priced: PricedPlan) -> Page:
    plan, days = priced.plan, len(priced.plan.days)
    first, last = (format_date(plan.start_ms + offset * DAY_MS) for offset in (0, days - 1))
    ahead = plan.pool.plan
    # A pool has a plan only where its past is long enough for a band.
    assert ahead.gpu_hours is not None
    assert ahead.backtest is not None
    demand = ahead.gpu_hours
    low, likely, high = (value / days / 24 for value in (demand.low, demand.likely, demand.high))
    lines = [
        ("demand", f"{demand.likely:,.0f} GPU-hours, {demand.low:,.0f} to {demand.high:,.0f}"),
        ("mean GPUs", f"{likely:,.1f}, {low:,.1f} to {high:,.1f}"),
        ("band", ahead.backtest.sentence()),
    ]
    if priced.models or priced.unplanned:
        lines += [(name, f"no plan: {reason}") for name, reason in priced.unplanned.items()]
    else:
        lines += [
            ("headroom", _headroom_text(priced)),
            (f"{priced.currency} per GPU-hour", _rates_text(priced)),
            *_reservation_lines(priced),
        ]
    header = (
        "",
        "GPUs",
        "days",
        "grown",
        "grows",
        "low",
        "high",
        "GPU-hours",
        "low",
        "high",
        "in band",
    )
    rows = [
        (name, gpus, *_horizon_cells(ahead))
        for entry in (plan.pool, *plan.teams)
        for place, ahead in enumerate((*entry.next, entry.plan))
        for name, gpus in [("", "") if place else (entry.name, _number(entry.gpus, ",.1f"))]
    ]
    title = (
        f"capacity of pool {plan.pool.name!r} from {first} to {last}, {days} days; an estimate,"
        " never a bill"
    )
    tables = (_model_table(priced), _curve_table(priced))
    return Page(title, lines, priced.record(), header, rows, _notes(priced), tables)


def _rates_text(priced: PricedPlan) -> str:
    return ", ".join(
        f"{label} {UNKNOWN if rate is None else f'{rate:g} ({priced.sources[way]})'}"
        for way, label in WAYS.items()
        for rate in [getattr(priced.plan.rates, way)]
    )


def _headroom_text(priced: PricedPlan) -> str:
    enough = f"{priced.plan.enough_gpus:,.1f} suffice in nine tenths of the hours"
    if priced.gpus is None or priced.headroom is None:
        return f"unknown without an inventory; {enough}"
    short = "missing" if priced.headroom < 0 else "to spare"
    return f"{abs(priced.headroom):,.1f} of {priced.gpus:,.1f} GPUs {short}; {enough}"


def _model_table(priced: PricedPlan) -> list[tuple[str, ...]]:
    """A line for each model of a pool of several, the scarcest first."""
    header = ("model", "GPUs", "enough", "headroom", "GPU-hours", "low", "high", "reserve")
    rows = []
    for model in priced.models:
        low, likely, high = _values(model.plan.pool.plan.gpu_hours)
        reserve = None if model.plan.reservation is None else model.plan.reservation.gpus
        gpus = (model.gpus, model.plan.enough_gpus, model.headroom)
        cells = (*(_number(value, ",.1f") for value in gpus), *map(_number, (likely, low, high)))
        rates = (getattr(model.plan.rates, way) for way in WAYS)
        cells = (*cells, _number(reserve), *(_number(rate, "g") for rate in rates))
        rows.append((model.plan.pool.name, *cells))
    return [(*header, *_way_labels(priced)), *rows] if rows else []


def _way_labels(priced: PricedPlan) -> Iterator[str]:
    currencies = {model.currency for model in priced.models} or {priced.currency}
    return (f"{label} {'/'.join(sorted(currencies))}" for label in WAYS.values())


def _horizon_cells(ahead: Horizon) -> Iterator[str]:
    low, likely, high = _values(ahead.growth)
    yield f"{ahead.days}"
    yield from (_number(value, "+.0%") for value in (ahead.grown, likely, low, high))
    low, likely, high = _values(ahead.gpu_hours)
    yield from (_number(value) for value in (likely, low, high))
    covered = None if ahead.backtest is None else ahead.backtest.covered
    yield "unjudged" if covered is None else f"{covered:.0%}"


def _reservation_lines(priced: PricedPlan) -> Iterator[tuple[str, str]]:
    advice, currency = priced.plan.reservation, priced.currency
    if advice is None:
        yield "to reserve", "unknown without both an on-demand and a reserved rate"
        return
    cost, on_demand = _number(advice.cost), _number(advice.on_demand_cost)
    yield (
        "to reserve",
        (
            f"{advice.gpus:,} GPUs with the rest on demand: {cost} {currency}, all on demand"
            f" {on_demand}"
        ),
    )
    yield (
        "if demand is low",
        f"{advice.low:,} would be best: {_number(advice.regret_low)} {currency} lost",
    )
    yield (
        "if it is high",
        f"{advice.high:,} would be best: {_number(advice.regret_high)} {currency} lost",
    )
    if priced.committed_gpus:
        yield (
            "committed now",
            f"{priced.committed_gpus:,} GPUs, which the number to reserve includes",
        )


def _curve_table(priced: PricedPlan) -> list[tuple[str, ...]]:
    header = ("GPUs at most", "wait", "wait low", "wait high", *_way_labels(priced), "wait on spot")
    rows = [
        (
            f"{point.gpus:,}" + (f" {part.plan.pool.name}" if priced.models else ""),
            *(_number(value, ",.1f") for value in (point.wait, point.wait_low, point.wait_high)),
            *(_number(getattr(point, way)) for way in WAYS),
            _number(point.wait_spot, ",.1f"),
        )
        for part in (priced, *priced.models)
        for point in part.plan.curve
    ]
    return [header, *rows] if rows else []


def _notes(priced: PricedPlan) -> list[str]:
    rates = priced.plan.rates
    by_model = [
        "planned by model, the scarcest first: headroom is what is there beyond what suffices in"
        " nine tenths of the hours (enough)"
    ]
    return [
        *(by_model if priced.models else ()),
        (
            "low and high: a band that is to hold eight times in ten, as wide as past periods of"
            " this length needed"
        ),
        (
            "grown: mean of the last 7 days over that of the 7 days so many days earlier; grows:"
            " the last 7 of the days ahead over the last 7 days; - is unknown"
        ),
        (
            "in band: days of past periods of this length whose demand was between low and high (80"
            " % is right)"
        ),
        "teams by the GPUs that they hold; what waits in queues is in the demand of the pool alone",
        (
            "wait: GPU-hours of demand above the capacity; reserved GPUs are paid in every hour,"
            " the others follow demand"
        ),
        (
            f"spot: {plural(f'{rates.interruptions:g}', 'interruption')} a GPU and day, so that an"
            f" hour of work takes {rates.spot_effort:.3f} GPU-hours"
        ),
    ]


def _number(value: float | None, form: str = ",.0f") -> str:
    return UNKNOWN if value is None else format(value, form)
