"""gpuledger scale: what a capacity policy would have brought, and what to hold now."""

from __future__ import annotations

import enum
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

import typer

from gpuledger_collector.cli.common import DONE, FINDINGS, Config, Dsn, refuse

if TYPE_CHECKING:
    from gpuledger_collector.insight.backtest import Backtest
    from gpuledger_collector.insight.scaling.advice import Advice
    from gpuledger_collector.insight.series import Series


class Shape(enum.StrEnum):
    """How it is printed."""

    table = "table"
    csv = "csv"
    json = "json"


COLUMNS = ("policy", "capacity", "demand", "wait", "wait_p95_s", "starts", "cold_starts", "actions", "setting")


def register(root: typer.Typer) -> None:
    """Add `gpuledger scale backtest`."""
    group = typer.Typer(help="Capacity in time: back-test policies on a demand series.", no_args_is_help=True)
    example = "Example: gpuledger scale backtest demand.csv --delay 10m --cost-cap 1.1 --format json"
    group.command(epilog=example)(backtest)
    advice = "Example: gpuledger scale advise --delay 10m --format json"
    group.command(epilog=advice)(advise)
    group.callback()(_group)
    root.add_typer(group, name="scale")


def _group() -> None:
    """Capacity in time: what policies would have brought, and what to hold now."""


def advise(
    pool: str | None = typer.Option(None, "--pool", help="Only this pool of the ledger."),
    delay: str = typer.Option("10m", "--delay", metavar="SPAN", help="From an order to the GPU that serves."),
    floor: float = typer.Option(0.0, "--floor", min=0.0, help="GPUs to hold at least."),
    ceiling: float | None = typer.Option(None, "--ceiling", min=0.0, help="GPUs to hold at most."),
    node_gpus: float = typer.Option(1.0, "--node-gpus", min=0.01, help="GPUs of a node."),
    shape: Shape = typer.Option(Shape.table, "--format", help="Form of the output."),
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """Say how many GPUs each pool should hold now, and why. Advice only: nothing is started or stopped.

    Never below the demand of now; a pool whose demand is not known of late gets no number, and the command ends with 1.
    """
    from gpuledger_collector.cli.ledger_demand import from_ledger
    from gpuledger_collector.cli.series_files import duration_ms
    from gpuledger_collector.insight.scaling.advice import Limits
    from gpuledger_collector.insight.scaling.advice import advise as compute
    from gpuledger_collector.wiring import now

    lead_ms = duration_ms(delay, "--delay")
    limits = Limits(floor_gpus=floor, ceiling_gpus=ceiling, node_gpus=node_gpus)
    read = from_ledger(dsn, config, "pool", pool)
    now_ms = round(now().timestamp() * 1000)
    given = {one.name: compute(one, lead_ms, now_ms, limits) for one in read.series}
    emit_advice(given, shape)
    raise typer.Exit(FINDINGS if None in given.values() else DONE)


STALE = "demand is not known of late: no number, react to what you see"
ADVICE = ("pool", "demand_now", "desired_gpus", "mode", "reason")


def emit_advice(given: Mapping[str, Advice | None], shape: Shape) -> None:
    """Print the advice; a pool without one has its reason and no number."""
    rows = [
        (name, None, None, "stale", STALE)
        if one is None
        else (name, round(one.demand_now, 3), one.desired_gpus, one.mode, one.reason)
        for name, one in given.items()
    ]
    if shape is Shape.json:
        import json

        print(json.dumps([dict(zip(ADVICE, row, strict=True)) for row in rows], indent=2))
        return
    if shape is Shape.csv:
        import csv

        csv.writer(sys.stdout, lineterminator="\n").writerows([ADVICE, *rows])
        return
    for name, demand, desired, mode, reason in rows:
        print(f"{name}: hold {desired:g} GPUs (demand now {demand:g}, {mode}). {reason}" if desired is not None
              else f"{name}: {reason}")  # fmt: skip


def backtest(
    file: str = typer.Argument(..., metavar="FILE", help="CSV with ts,demand, evenly spaced; - reads standard input."),
    delay: str = typer.Option("10m", "--delay", metavar="SPAN", help="From an order to the GPU that serves."),
    step: str | None = typer.Option(None, "--step", metavar="SPAN", help="Step of the decisions [the file's own]."),
    node_gpus: float = typer.Option(0.0, "--node-gpus", min=0.0, help="GPUs of a node; 0: GPUs may be fractional."),
    cost_cap: float = typer.Option(
        1.25, "--cost-cap", min=1.0, help="Most capacity, as a multiple of demand, over the judged part."
    ),
    shape: Shape = typer.Option(Shape.table, "--format", help="Form of the output."),
) -> None:
    """Compare capacity policies on one demand series: capacity, demand and wait in GPU-hours.

    The first ten days are history, on which settings are chosen, and are not judged.
    """
    from gpuledger_collector.cli.series_files import duration_ms, read_series
    from gpuledger_collector.insight.backtest import Question, backtest_scaling

    delay_ms = duration_ms(delay, "--delay")
    step_ms = duration_ms(step, "--step") if step else None
    series = on_step(read_series(file, "demand", named=False).series[0], step_ms)
    try:
        done = backtest_scaling(series, Question(delay_ms, cost_cap, node_gpus))
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
    rows = [verdict.row() for verdict in done.verdicts]
    if shape is Shape.json:
        import json

        print(json.dumps({"policies": rows, "predictive_days": done.predictive_days, "judged_days": done.judged_days},
                         indent=2))  # fmt: skip
    elif shape is Shape.csv:
        import csv

        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows([row[column] for column in COLUMNS] for row in rows)
    else:
        _table(done)


def _table(done: Backtest) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("policy", "capacity", "x demand", "wait", "wait p95", "cold starts", "actions", "setting",
                  box=None, header_style="bold", padding=(0, 2, 0, 0))  # fmt: skip
    for verdict in done.verdicts:
        outcome = verdict.outcome
        ratio = f"{outcome.capacity / outcome.demand:.3f}" if outcome.demand else ""
        cold = f"{outcome.cold_starts / outcome.starts:.0%}" if outcome.starts else ""
        table.add_row(verdict.policy, f"{outcome.capacity:.1f}", ratio, f"{outcome.wait:.2f}",
                      f"{outcome.wait_p95_s:.0f} s", cold, str(outcome.actions), verdict.setting)  # fmt: skip
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    print("capacity and wait in GPU-hours over the judged part; wait is demand that found no GPU")
    print(f"gpuledger looked ahead on {done.predictive_days} of {done.judged_days} days, else ran plain headroom")
