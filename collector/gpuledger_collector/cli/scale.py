"""gpuledger scale: what a capacity policy would have cost, and what to hold now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated

import numpy as np
from typer import Argument, Option

from gpuledger_collector.cli import options
from gpuledger_collector.cli.common import duration_ms, end_with, new_app, refuse, time_range
from gpuledger_collector.cli.output import emit_report, print_json
from gpuledger_collector.cli.progress import busy
from gpuledger_collector.cli.scale_pools import open_pools, print_backtest
from gpuledger_collector.cli.session import open_session
from gpuledger_collector.cli.terminal import say
from gpuledger_collector.export.report import Column, Kind
from gpuledger_collector.export.scaling import (
    ADVICE,
    DECISIONS,
    OUTCOMES,
    POLICIES,
    PoolAdvice,
    model_facts,
    say_headroom,
)
from gpuledger_collector.insight.backtest import (
    DEFAULT_COST_CAP,
    Backtest,
    ScalingScenario,
    backtest_scaling,
)
from gpuledger_collector.insight.pool_backtest import PoolBacktest
from gpuledger_collector.insight.scaling.advice import ScalingAdvice
from gpuledger_collector.insight.scaling.pools import ModelHeadroom, explain_no_decision
from gpuledger_collector.insight.series import Series
from gpuledger_collector.services.scaling_advice import advise_scaling, list_decisions
from gpuledger_common.plurals import plural

DEFAULT_LEAD_MS = 600_000
app = new_app(
    name="scale",
    help="Capacity in time: what to hold now, and what policies would have cost.",
    no_args_is_help=True,
)


@app.command(epilog="Example: gpuledger scale advise --pool train --delay 10m --format json")
def advise(
    pool: Annotated[
        str | None, Option("--pool", help="Only this pool of the ledger, with its back-test.")
    ] = None,
    delay: Annotated[
        str | None,
        Option(
            "--delay",
            metavar="SPAN",
            help="From an order to the GPU that serves; else the pool's, or 10m.",
        ),
    ] = None,
    floor: Annotated[
        float | None, Option("--floor", min=0.0, help="GPUs to hold at least; else the pool's own.")
    ] = None,
    ceiling: Annotated[
        float | None,
        Option("--ceiling", min=0.0, help="GPUs to hold at most; else the pool's own."),
    ] = None,
    node_gpus: Annotated[
        float | None,
        Option("--node-gpus", min=0.01, help="GPUs of a node; else the pool's own, or 1."),
    ] = None,
    form: options.Form = options.Format.table,
    exit_code: options.ExitCode = False,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Say how many GPUs each pool should hold now, and why, within the limits of its [[pool]]
    table.

    It covers current demand; a pool whose recent demand is not known gets no number, and with
    --exit-code the command ends with 1. Advice by the pool's own limits is recorded; with other
    ones given here it is only shown.
    """
    given = {"floor_gpus": floor, "ceiling_gpus": ceiling, "node_gpus": node_gpus}
    limits = {name: value for name, value in given.items() if value is not None}
    lead_ms = None if delay is None else duration_ms(delay, "--delay")
    with open_pools(dsn, config, pool) as pools:
        own_terms = not limits and lead_ms is None
        decisions = (
            advise_scaling(pools.database, pools.now_ms, pool)
            if own_terms
            else pools.try_decisions(pool, lead_ms, limits)
        )
        advice = {
            name: explain_no_decision(pools.demand[name]) if decision is None else decision.advice
            for name, decision in decisions.items()
        }
        backtest = (
            None
            if pool is None or decisions[pool] is None
            else pools.backtest(pool, lead_ms, limits)
        )
        models = {name: pools.models(name, lead_ms) for name in advice}
    print_advice(advice, models, form, backtest)
    end_with(None in decisions.values(), exit_code)


def print_advice(
    advice: Mapping[str, ScalingAdvice | str],
    models: Mapping[str, Sequence[ModelHeadroom]],
    form: options.Format,
    backtest: PoolBacktest | None,
) -> None:
    """Print the advice; a pool without one has its reason and no number, one of several models has
    the headroom of each, the scarcest first.

    `backtest` is that of the one pool.
    """
    if form is not options.Format.table:
        by_model = Column[PoolAdvice](
            "models",
            lambda item: [model_facts(model) for model in models[item[0]]],
            Kind.FACTS,
            in_csv=False,
        )
        report = replace(ADVICE, columns=(*ADVICE.columns, by_model))
        if backtest is not None:
            facts = Column[PoolAdvice](
                "backtest", lambda _: backtest.facts(), Kind.FACTS, in_csv=False
            )
            report = replace(report, columns=(*report.columns, facts))
        emit_report(form, report, advice.items(), is_exact=True)
        return
    for pool, entry in advice.items():
        if isinstance(entry, str):
            say(f"{pool}: {entry}")
        else:
            say(
                f"{pool}: hold {plural(f'{entry.desired_gpus:g}', 'GPU')} (demand now"
                f" {round(entry.demand_now, 3):g}, {entry.mode}). {entry.reason}"
            )
        for model in models[pool]:
            say(f"  {model.model}: {say_headroom(model)}")
    if backtest is not None:
        print()
        print_backtest(backtest, form)


@app.command(epilog="Example: gpuledger scale history --pool train --days 28 --format csv")
def history(
    pool: Annotated[str | None, Option("--pool", help="Only this pool.")] = None,
    period: options.PeriodName = None,
    start: options.FirstDay = None,
    end: options.LastDay = None,
    days: options.LastDays = None,
    limit: Annotated[
        int,
        Option("--limit", min=1, max=100_000, help="At most so many decisions, the newest ones."),
    ] = 1000,
    form: options.Form = options.Format.table,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Show the decisions on pools and their outcome: demand, wait and waste had they been followed.

    Wait is demand above what was desired, waste what was desired above demand: GPU-seconds while
    the decision served.
    """
    asked = time_range(period, start, end, days)
    with open_session(dsn, config) as session:
        span = asked.resolve(session.calendar, session.now_ms)
        with session.database.connect() as connection:
            decisions = list_decisions(connection, pool, span, limit)
    note = (
        f"{plural(len(decisions), 'decision')}; wait and waste while a decision served, had it been"
        " followed"
    )
    report = OUTCOMES if form is options.Format.table else DECISIONS
    emit_report(form, report, decisions, [note], is_exact=True)


@app.command(
    epilog="Example: gpuledger scale backtest demand.csv --delay 10m --cost-cap 1.1 --format json"
)
def backtest(
    file: Annotated[
        str | None,
        Argument(
            metavar="[FILE]", help="CSV with ts,demand, evenly spaced; - reads standard input."
        ),
    ] = None,
    pool: Annotated[
        str | None,
        Option("--pool", help="A pool of the ledger instead of a file: its last 28 days."),
    ] = None,
    delay: Annotated[
        str | None,
        Option(
            "--delay",
            metavar="SPAN",
            help="From an order to the GPU that serves; else the pool's, or 10m.",
        ),
    ] = None,
    step: Annotated[
        str | None,
        Option("--step", metavar="SPAN", help="Step of the decisions; else the file's own."),
    ] = None,
    node_gpus: Annotated[
        float | None,
        Option(
            "--node-gpus",
            min=0.0,
            help="GPUs of a node; 0: may be fractional; else the pool's own, or 0.",
        ),
    ] = None,
    cost_cap: Annotated[
        float | None,
        Option(
            "--cost-cap",
            min=1.0,
            help="Most capacity, in multiples of demand; else the pool's, or 1.25.",
        ),
    ] = None,
    form: options.Form = options.Format.table,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Compare capacity policies on one demand series: capacity, demand and wait in GPU-hours.

    The first ten days are history, on which settings are chosen, and are not judged. With --pool:
    the pool's last 28 days, in money by the price book, next to the setting that turns prediction
    on.
    """
    lead_ms = None if delay is None else duration_ms(delay, "--delay")
    step_ms = None if step is None else duration_ms(step, "--step")
    if pool is not None and file is None:
        if step is not None:
            refuse("--step: demand of the ledger has its own step")
        given = {"node_gpus": node_gpus, "cost_cap": cost_cap}
        with open_pools(dsn, config, pool) as pools:
            limits = {name: value for name, value in given.items() if value is not None}
            print_backtest(pools.backtest(pool, lead_ms, limits), form)
        return
    if file is None or pool is not None:
        refuse(
            "name a FILE, or a pool with --pool"
            if pool is None
            else "--pool: name a FILE or a pool, not both"
        )
    from gpuledger_collector.cli.read_series import read_series  # pandas takes a third of a second

    series = resample(read_series(file, "demand", named=False).series[0], step_ms)
    try:
        scenario = ScalingScenario(
            lead_ms or DEFAULT_LEAD_MS, cost_cap or DEFAULT_COST_CAP, node_gpus or 0.0
        )
        with busy("replaying each policy"):
            result = backtest_scaling(series, scenario)
    except ValueError as error:
        refuse(f"{file}: {error}")
    print_policies(result, form)


def resample(series: Series, step_ms: int | None) -> Series:
    """The series on another step: the mean of finer instants, a coarser one held; refuses what does
    not divide.
    """
    if step_ms is None or step_ms == series.step_ms:
        return series
    if series.step_ms % step_ms == 0:
        return Series(
            series.name,
            series.start_ms,
            step_ms,
            np.repeat(series.values, series.step_ms // step_ms),
        )
    if step_ms % series.step_ms:
        own = f"the file's own step of {series.step_ms / 1000:g} s"
        refuse(f"--step: {step_ms / 1000:g} s is neither a multiple nor a part of {own}")
    width = step_ms // series.step_ms
    groups = series.values[: len(series.values) // width * width].reshape(-1, width)
    known = np.isfinite(groups)
    total, count = np.where(known, groups, 0.0).sum(axis=1), known.sum(axis=1)
    return Series(
        series.name,
        series.start_ms,
        step_ms,
        np.where(count > 0, total / np.maximum(count, 1), np.nan),
    )


def print_policies(result: Backtest, form: options.Format) -> None:
    """Print how each policy did."""
    if form is options.Format.json:
        days = {"predictive_days": result.predictive_days, "judged_days": result.judged_days}
        print_json({"policies": list(map(POLICIES.exact, result.results)), **days})
        return
    footer = [
        "capacity and wait in GPU-hours over the judged part; wait is demand that found no GPU",
        (
            f"gpuledger looked ahead on {result.predictive_days} of"
            f" {plural(result.judged_days, 'day')}, else it ran the tuned reactive setting"
        ),
    ]
    emit_report(form, POLICIES, result.results, footer)
