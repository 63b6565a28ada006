"""gpuledger scale: what a capacity policy would have brought, and what to hold now."""

from __future__ import annotations

import enum
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

import typer

from gpuledger_collector.cli.common import DONE, FINDINGS, Config, Dsn, refuse
from gpuledger_collector.cli.scale_pools import emit as emit_month
from gpuledger_collector.cli.scale_pools import pools as _pools
from gpuledger_collector.cli.scale_pools import show
from gpuledger_collector.cli.terminal import print_table, say
from gpuledger_common.plurals import plural

if TYPE_CHECKING:
    from gpuledger_collector.insight.backtest import Backtest
    from gpuledger_collector.insight.pool_backtest import PoolBacktest
    from gpuledger_collector.insight.scaling.advice import ScalingAdvice
    from gpuledger_collector.insight.series import Series


class Shape(enum.StrEnum):
    """How it is printed."""

    table = "table"
    csv = "csv"
    json = "json"


COLUMNS = ("policy", "capacity", "demand", "wait", "wait_p95_s", "starts", "cold_starts", "actions", "setting")


def register(root: typer.Typer) -> None:
    """Add `gpuledger scale`."""
    group = typer.Typer(
        help="Capacity in time: what to hold now, and what policies would have brought.", no_args_is_help=True
    )
    example = "Example: gpuledger scale backtest demand.csv --delay 10m --cost-cap 1.1 --format json"
    group.command(epilog=example)(backtest)
    advice = "Example: gpuledger scale advise --pool train --delay 10m --format json"
    group.command(epilog=advice)(advise)
    group.command(epilog="Example: gpuledger scale history --pool train --days 28 --format csv")(history)
    group.callback()(_group)
    root.add_typer(group, name="scale")


def _group() -> None:
    """Capacity in time: what policies would have brought, and what to hold now."""


def advise(
    pool: str | None = typer.Option(None, "--pool", help="Only this pool of the ledger, with its back-test."),
    delay: str | None = typer.Option(
        None, "--delay", metavar="SPAN", help="From an order to the GPU that serves [the pool's own, else 10m]."
    ),
    floor: float | None = typer.Option(None, "--floor", min=0.0, help="GPUs to hold at least [the pool's own]."),
    ceiling: float | None = typer.Option(None, "--ceiling", min=0.0, help="GPUs to hold at most [the pool's own]."),
    node_gpus: float | None = typer.Option(
        None, "--node-gpus", min=0.01, help="GPUs of a node [the pool's own, or 1]."
    ),
    shape: Shape = typer.Option(Shape.table, "--format", help="Form of the output."),
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """Say how many GPUs each pool should hold now, and why, within the limits of its [[pool]] table.

    It covers the demand of now; a pool whose demand is not known of late gets no number, and the command ends with 1.
    Advice by the pool's own limits is recorded; with other ones given here it is only shown.
    """
    from gpuledger_collector.cli.series_files import duration_ms
    from gpuledger_collector.insight.scaling.pools import explain_no_decision

    given = {"floor_gpus": floor, "ceiling_gpus": ceiling, "node_gpus": node_gpus}
    changes = {name: value for name, value in given.items() if value is not None}
    lead_ms = None if delay is None else duration_ms(delay, "--delay")
    with _pools(dsn, config, pool) as pools:
        made = pools.recorded(pool) if not changes and lead_ms is None else pools.tried(pool, lead_ms, changes)
        found = {
            name: explain_no_decision(pools.demand[name]) if one is None else one.advice for name, one in made.items()
        }
        past = None if pool is None or made[pool] is None else pools.month(pool, lead_ms, changes)
    emit_advice(found, shape, past)
    raise typer.Exit(FINDINGS if None in made.values() else DONE)


ADVICE = ("pool", "demand_now", "desired_gpus", "mode", "reason")


def emit_advice(given: Mapping[str, ScalingAdvice | str], shape: Shape, past: PoolBacktest | None = None) -> None:
    """Print the advice; a pool without one has its reason and no number. `past` is the back-test of the one pool."""
    rows = [
        (name, None, None, "stale", one)
        if isinstance(one, str)
        else (name, round(one.demand_now, 3), one.desired_gpus, one.mode, one.reason)
        for name, one in given.items()
    ]
    if shape is Shape.json:
        import json

        more: dict[str, object] = {} if past is None else {"backtest": past.facts()}
        print(json.dumps([{**dict(zip(ADVICE, row, strict=True)), **more} for row in rows], indent=2))
        return
    if shape is Shape.csv:
        import csv

        from gpuledger_collector.export.cells import harmless

        csv.writer(sys.stdout, lineterminator="\n").writerows([ADVICE, *map(harmless, rows)])
        return
    for name, demand, desired, mode, reason in rows:
        say(
            f"{name}: hold {plural(f'{desired:g}', 'GPU')} (demand now {demand:g}, {mode}). {reason}"
            if desired is not None
            else f"{name}: {reason}"
        )
    if past is not None:
        print()
        show(past)


def history(
    pool: str | None = typer.Option(None, "--pool", help="Only this pool."),
    days: int = typer.Option(28, "--days", min=1, max=400, help="How far back."),
    most: int = typer.Option(1000, "--most", min=1, max=100_000, help="Most decisions, the newest ones."),
    shape: Shape = typer.Option(Shape.table, "--format", help="Form of the output."),
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """Show what was decided for pools, and what came of it: demand, wait and waste had it been followed.

    Wait is demand above what was desired, waste what was desired above demand: GPU-seconds while the decision served.
    """
    from gpuledger_collector.cli.common import database
    from gpuledger_collector.export.scaling import emit_history
    from gpuledger_collector.storage.capacity import scaling
    from gpuledger_collector.wiring import now

    since_ms = round(now().timestamp() * 1000) - days * 86_400_000
    with database(dsn, config) as opened, opened.engine.connect() as connection:
        found = scaling.history(connection, pool, since_ms, most)
    sys.stdout.write(emit_history([one.facts for one in found], shape.value))


def backtest(
    file: str | None = typer.Argument(
        None, metavar="[FILE]", help="CSV with ts,demand, evenly spaced; - reads standard input."
    ),
    pool: str | None = typer.Option(None, "--pool", help="A pool of the ledger instead of a file: its last 28 days."),
    delay: str | None = typer.Option(
        None, "--delay", metavar="SPAN", help="From an order to the GPU that serves [10m, or the pool's own]."
    ),
    step: str | None = typer.Option(None, "--step", metavar="SPAN", help="Step of the decisions [the file's own]."),
    node_gpus: float | None = typer.Option(
        None, "--node-gpus", min=0.0, help="GPUs of a node; 0: GPUs may be fractional [0, or the pool's own]."
    ),
    cost_cap: float | None = typer.Option(
        None,
        "--cost-cap",
        min=1.0,
        help="Most capacity, as a multiple of demand, over the judged part [1.25, or the pool's own].",
    ),
    shape: Shape = typer.Option(Shape.table, "--format", help="Form of the output."),
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """Compare capacity policies on one demand series: capacity, demand and wait in GPU-hours.

    The first ten days are history, on which settings are chosen, and are not judged. With --pool: the pool's last 28
    days, in money by the price book, beside the setting that turns prediction on.
    """
    from gpuledger_collector.cli.progress import busy
    from gpuledger_collector.cli.series_files import duration_ms, read_series
    from gpuledger_collector.insight.backtest import DEFAULT_COST_CAP, ScalingScenario, backtest_scaling

    if (file is None) == (pool is None):
        refuse("name a FILE, or a pool with --pool" if pool is None else "--pool: name a FILE or a pool, not both")
    delay_ms = None if delay is None else duration_ms(delay, "--delay")
    step_ms = duration_ms(step, "--step") if step else None
    if pool is not None:
        if step is not None:
            refuse("--step: demand of the ledger has its own step")
        changes = {"node_gpus": node_gpus, "cost_cap": cost_cap}
        with _pools(dsn, config, pool) as pools:
            past = pools.month(pool, delay_ms, {name: one for name, one in changes.items() if one is not None})
        emit_month(past, shape.value)
        return
    assert file is not None
    series = on_step(read_series(file, "demand", named=False).series[0], step_ms)
    try:
        question = ScalingScenario(delay_ms or 600_000, cost_cap or DEFAULT_COST_CAP, node_gpus or 0.0)
        with busy("replaying each policy"):
            done = backtest_scaling(series, question)
    except ValueError as error:
        refuse(f"{file}: {error}")
    emit(done, shape)


def on_step(series: Series, step_ms: int | None) -> Series:
    """The series on another step: the mean of finer instants, a coarser one held; refuses what does not divide."""
    import numpy as np

    from gpuledger_collector.insight.series import Series as Made

    if step_ms is None or step_ms == series.step_ms:
        return series
    if series.step_ms % step_ms == 0:
        return Made(series.name, series.start_ms, step_ms, np.repeat(series.values, series.step_ms // step_ms))
    if step_ms % series.step_ms:
        refuse(
            f"--step: {step_ms / 1000:g} s is no multiple or part of the file's own step of {series.step_ms / 1000:g} s"
        )
    width = step_ms // series.step_ms
    whole = series.values[: len(series.values) // width * width].reshape(-1, width)
    known = np.isfinite(whole)
    total = np.where(known, whole, 0.0).sum(axis=1)
    count = known.sum(axis=1)
    return Made(series.name, series.start_ms, step_ms, np.where(count > 0, total / np.maximum(count, 1), np.nan))


def emit(done: Backtest, shape: Shape) -> None:
    """Print the verdicts."""
    rows = [verdict.row() for verdict in done.results]
    if shape is Shape.json:
        import json

        print(
            json.dumps(
                {"policies": rows, "predictive_days": done.predictive_days, "judged_days": done.judged_days}, indent=2
            )
        )
    elif shape is Shape.csv:
        import csv

        from gpuledger_collector.export.cells import harmless

        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(harmless(row[column] for column in COLUMNS) for row in rows)
    else:
        _table(done)


def _table(done: Backtest) -> None:
    from gpuledger_collector.export.tables import Table

    table = Table(
        "policy",
        "capacity",
        "x demand",
        "wait",
        "wait p95",
        "cold starts",
        "actions",
        "setting",
        box=None,
        header_style="bold",
        padding=(0, 2, 0, 0),
    )
    for verdict in done.results:
        outcome = verdict.outcome
        ratio = f"{outcome.capacity / outcome.demand:.3f}" if outcome.demand else ""
        cold = f"{outcome.cold_starts / outcome.starts:.0%}" if outcome.starts else ""
        table.add_row(
            verdict.policy,
            f"{outcome.capacity:.1f}",
            ratio,
            f"{outcome.wait:.2f}",
            f"{outcome.wait_p95_s:.0f} s",
            cold,
            str(outcome.actions),
            verdict.setting,
        )
    print_table(table, 160)
    print("capacity and wait in GPU-hours over the judged part; wait is demand that found no GPU")
    print(
        f"gpuledger looked ahead on {done.predictive_days} of {plural(done.judged_days, 'day')}, "
        "else ran plain headroom"
    )
