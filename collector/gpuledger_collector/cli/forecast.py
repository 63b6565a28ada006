"""gpuledger forecast: how many GPUs will be wanted."""

from __future__ import annotations

import enum
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import typer

from gpuledger_collector.cli.common import DONE, FINDINGS, Config, Dsn, refuse

if TYPE_CHECKING:
    from gpuledger_collector.cli.series_files import Read
    from gpuledger_collector.insight.forecast import Forecast
    from gpuledger_collector.insight.series import Series

MAX_STEPS = 5_000
MANY = 200


class Group(enum.StrEnum):
    """What the ledger's demand is summed by."""

    pool = "pool"
    model = "model"


class Shape(enum.StrEnum):
    """How it is printed."""

    table = "table"
    csv = "csv"
    json = "json"


def register(root: typer.Typer) -> None:
    """Add `gpuledger forecast`."""
    example = "Example: gpuledger forecast --series demand.csv --horizon 24h --format csv"
    root.command(epilog=example)(forecast)


def forecast(
    series: str | None = typer.Option(
        None,
        "--series",
        metavar="FILE",
        help="CSV with ts,series,value, evenly spaced; an empty value is a gap; - reads standard input. "
        "Without it: the ledger's own demand, by pool and hour.",
    ),
    pool: str | None = typer.Option(None, "--pool", help="Only this pool of the ledger."),
    by: Group = typer.Option(Group.pool, "--by", help="Series of the ledger: by pool or by GPU model."),
    horizon: str = typer.Option("24h", "--horizon", metavar="SPAN", help="How far ahead: 6h, 24h, 7d."),
    shape: Shape = typer.Option(Shape.table, "--format", help="Form of the output."),
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """Forecast demand as quantiles, for the horizon after each series' last instant."""
    from gpuledger_collector.cli.ledger_demand import from_ledger
    from gpuledger_collector.cli.series_files import duration_ms, read_series

    span = duration_ms(horizon, "--horizon")
    if series is not None and pool is not None:
        refuse("--series and --pool: give one of them, a file or a pool of the ledger")
    read = (
        read_series(series)
        if series is not None
        else from_ledger(dsn, config, "model" if by is Group.model else "pool", pool)
    )
    usable = [one for one in read.series if one.known]
    for one in read.series:
        if not one.known:
            print(f"gpuledger: series {one.name!r} has no known value: no forecast of it", file=sys.stderr)
    made = forecasts(usable, span)
    for entry in made:
        if entry.note:
            print(f"gpuledger: {entry.note}", file=sys.stderr)
    emit(made, read, shape)
    raise typer.Exit(DONE if len(usable) == len(read.series) else FINDINGS)


def forecasts(series: Sequence[Series], span_ms: int) -> list[Forecast]:
    """Forecasts over `span_ms`, in the order of `series`; series of one step are forecast together."""
    from gpuledger_collector.insight.forecast import forecast as compute

    made: dict[str, Forecast] = {}
    for step in sorted({one.step_ms for one in series}):
        steps = span_ms // step
        if not 1 <= steps <= MAX_STEPS:
            name = next(one.name for one in series if one.step_ms == step)
            refuse(f"--horizon: {steps} steps of {step / 1000:g} s for series {name!r}; 1 to {MAX_STEPS} can be done")
        group = [one for one in series if one.step_ms == step]
        made |= {entry.series: entry for entry in compute(group, steps, track=progress)}
    return [made[one.name] for one in series]


def progress(series: Sequence[Series]) -> Iterable[Series]:
    """A progress bar on a terminal when there is much to do, nothing in a pipe."""
    if len(series) < MANY or not sys.stderr.isatty():
        return series
    from rich.console import Console
    from rich.progress import track

    return track(series, "forecasting", console=Console(stderr=True), transient=True)


def emit(made: Sequence[Forecast], read: Read, shape: Shape) -> None:
    """Print the forecasts."""
    if shape is Shape.table:
        _table(made, read)
    elif shape is Shape.csv:
        _csv(made, read)
    else:
        import json

        print(json.dumps([_entry(entry, read) for entry in made], indent=2))


def _csv(made: Sequence[Forecast], read: Read) -> None:
    import csv

    writer = csv.writer(sys.stdout, lineterminator="\n")
    names = [f"q{q:g}" for q in made[0].quantiles] if made else ["q0.1", "q0.5", "q0.9", "q0.95"]
    writer.writerow(["ts", "series", "mean", *names])
    for entry in made:
        means, rows = (entry.mean.round(6) + 0.0).tolist(), (entry.values.round(6) + 0.0).tolist()
        instants = read.write_instants(entry.at_ms)
        writer.writerows([at, entry.series, mean, *row] for at, mean, row in zip(instants, means, rows, strict=True))


def _entry(entry: Forecast, read: Read) -> dict[str, object]:
    names = [f"q{q:g}" for q in entry.quantiles]
    points = [
        {"ts": at, "mean": mean, **dict(zip(names, row, strict=True)), "naive": dict(zip(names, naive, strict=True))}
        for at, mean, row, naive in zip(
            read.write_instants(entry.at_ms), entry.mean.round(6).tolist(), entry.values.round(6).tolist(),
            entry.naive.round(6).tolist(), strict=True,
        )
    ]  # fmt: skip
    skill = None if entry.skill is None else round(entry.skill, 4)
    weights = {name: round(weight, 4) for name, weight in entry.weights.items()}
    return {"series": entry.series, "skill": skill, "models": weights, "note": entry.note, "points": points}


def _table(made: Sequence[Forecast], read: Read) -> None:
    """A row for a few instants of each series: the first, a quarter, half, and the last."""
    from rich.console import Console
    from rich.table import Table

    quantiles = [f"q{q:g}" for q in made[0].quantiles] if made else []
    table = Table("series", "ts", "mean", *quantiles, "skill", box=None, header_style="bold", padding=(0, 2, 0, 0))
    for entry in made:
        last = len(entry.at_ms) - 1
        instants = read.write_instants(entry.at_ms)
        skill = "" if entry.skill is None else f"{entry.skill:+.0%}"
        for number, row in enumerate(sorted({0, last // 4, last // 2, last})):
            cells = [f"{value:.2f}" for value in (entry.mean[row], *entry.values[row])]
            table.add_row(entry.series if number == 0 else "", instants[row], *cells, skill if number == 0 else "")
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    print("skill: how much smaller our quantile loss was than that of 'it stays as it is', over each series' own past")
