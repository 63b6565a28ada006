"""gpuledger forecast: how many GPUs will be wanted."""

from __future__ import annotations

import enum
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import typer

from gpuledger_collector.cli.common import DONE, FINDINGS, Config, Dsn, database, owner_levels, refuse
from gpuledger_collector.cli.terminal import print_table, say

if TYPE_CHECKING:
    from gpuledger_collector.cli.series_files import Read
    from gpuledger_collector.insight.forecast import Forecast, Workloads
    from gpuledger_collector.insight.forecast_history import ForecastRecord
    from gpuledger_collector.insight.series import Series
    from gpuledger_collector.storage.billing.spend import Ahead

MAX_STEPS = 5_000
MANY = 200
STEPS_MS = (300_000, 3_600_000)


class Group(enum.StrEnum):
    """What the ledger's demand is summed by."""

    pool = "pool"
    model = "model"
    org = "org"
    team = "team"
    project = "project"
    experiment = "experiment"
    run = "run"
    user = "user"


class Shape(enum.StrEnum):
    """How it is printed."""

    table = "table"
    csv = "csv"
    json = "json"


def register(root: typer.Typer) -> None:
    """Add `gpuledger forecast`, `history` and `spend` below it."""
    example = "Example: gpuledger forecast --series demand.csv --horizon 24h --format csv"
    app = typer.Typer(invoke_without_command=True)
    app.callback(epilog=example)(forecast)
    app.command(epilog="Example: gpuledger forecast history --pool train")(history)
    app.command(epilog="Example: gpuledger forecast spend --by team")(spend)
    root.add_typer(app, name="forecast")


def forecast(
    context: typer.Context,
    series: str | None = typer.Option(
        None,
        "--series",
        metavar="FILE",
        help="CSV with ts,series,value, evenly spaced; an empty value is a gap; - reads standard input. "
        "Without it: the ledger's own demand, by pool and hour.",
    ),
    pool: str | None = typer.Option(None, "--pool", help="Only this pool of the ledger."),
    owner: str | None = typer.Option(None, "--owner", metavar="LEVEL=VALUE", help="Only this owner, as team=vision."),
    model: str | None = typer.Option(None, "--model", help="Only this GPU model."),
    by: Group = typer.Option(Group.pool, "--by", help="Series of the ledger: by pool, GPU model or level of owners."),
    step: str = typer.Option("1h", "--step", metavar="5m|1h", help="Step of the ledger's series."),
    method: str = typer.Option(
        "auto", "--method", help="One model instead of the mix: analog, workloads, boosted... (docs/forecasting.md)."
    ),
    horizon: str = typer.Option("24h", "--horizon", metavar="SPAN", help="How far ahead: 6h, 24h, 7d."),
    shape: Shape = typer.Option(Shape.table, "--format", help="Form of the output."),
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """Forecast demand as quantiles, for the horizon after each series' last instant."""
    if context.invoked_subcommand is not None:
        return
    from gpuledger_collector.cli.ledger_demand import with_lives
    from gpuledger_collector.cli.series_files import duration_ms, read_series

    span = duration_ms(horizon, "--horizon")
    group, only = _asked(pool, owner, model, by)
    if series is not None and only is not None:
        refuse(f"--series and --{group}: give one of them, a file or a {group} of the ledger")
    step_ms = duration_ms(step, "--step")
    if step_ms not in STEPS_MS:
        refuse(f"--step: {step!r} is neither 5m nor 1h")
    lives: Mapping[str, Workloads] = {}
    if series is not None:
        read = read_series(series)
    else:
        read, lives = with_lives(dsn, config, group, only, step_ms)
    usable = [one for one in read.series if one.known]
    for one in read.series:
        if not one.known:
            say(f"gpuledger: series {one.name!r} has no known value: no forecast of it", error=True)
    made = forecasts(usable, span, method, lives)
    for entry in made:
        if entry.note:
            say(f"gpuledger: {entry.note}", error=True)
    emit(made, read, shape)
    raise typer.Exit(DONE if len(usable) == len(read.series) else FINDINGS)


def history(
    pool: str | None = typer.Option(None, "--pool", help="Only this pool."),
    team: str | None = typer.Option(None, "--team", help="Only this team; its forecasts instead of the pools'."),
    shape: Shape = typer.Option(Shape.table, "--format", help="Form of the output."),
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """Say how good past forecasts were: how often demand lay in their band, and their loss beside the naive twin's.

    A forecast of the next day is kept every day. Days before the first run are replayed from what was known then, and
    counted apart. Ends with 1 while nothing is known yet.
    """
    from gpuledger_collector.accounting.period import DAY_MS, Period
    from gpuledger_collector.jobs.store_forecasts import DAYS, store_forecasts
    from gpuledger_collector.services.refresh import refresh
    from gpuledger_collector.storage.capacity.backtests import ForecastStore, records
    from gpuledger_collector.wiring import now

    if pool is not None and team is not None:
        refuse("--pool and --team: give one of them")
    group, only = ("team", team) if team is not None else ("pool", pool)
    now_ms = round(now().timestamp() * 1000)
    with database(dsn, config) as opened:
        refresh(opened, Period(now_ms - DAYS * DAY_MS, now_ms), now_ms)
        store_forecasts(ForecastStore(lambda: opened.engine), now_ms)
        with opened.engine.connect() as connection:
            found = records(connection, group, only)
    if only is not None and not found:
        refuse(f"--{group}: there is no forecast of {group} {only!r} yet")
    emit_history(found, shape)
    raise typer.Exit(DONE if any(one.hours for one in found) else FINDINGS)


def emit_history(found: Sequence[ForecastRecord], shape: Shape) -> None:
    """Print the records."""
    if shape is Shape.json:
        import json
        from dataclasses import asdict

        print(json.dumps([asdict(one) for one in found], indent=2))
        return
    header = ("series", "forecasts", "replayed", "hours", "in band", "under 0.9", "under 0.95", "wql", "naive", "skill")
    rows = [
        (
            one.series,
            one.forecasts,
            one.replayed,
            one.hours,
            *(
                _share(value)
                for value in (
                    one.inside,
                    one.under.get("0.9"),
                    one.under.get("0.95"),
                    one.wql,
                    one.naive_wql,
                    one.skill,
                )
            ),
        )
        for one in found
    ]
    if shape is Shape.csv:
        import csv

        from gpuledger_collector.export.cells import harmless

        csv.writer(sys.stdout, lineterminator="\n").writerows([header, *map(harmless, rows)])
        return
    from gpuledger_collector.export.tables import Table

    table = Table(*header, box=None, header_style="bold", padding=(0, 2, 0, 0))
    for row in rows:
        table.add_row(*map(str, row))
    print_table(table, 160)
    print(
        "in band: part of the hours between the 0.1 and 0.9 quantiles (0.8 is right); skill: 1 - wql / that of the "
        "naive twin, 'it stays as it is'"
    )


def spend(
    by: Group = typer.Option(Group.team, "--by", help="Level of owners."),
    shape: Shape = typer.Option(Shape.table, "--format", help="Form of the output."),
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """Say what each owner will have spent at the end of this month, with a band that holds eight times in ten.

    From the rated days of the last eight weeks; an owner with fewer than five whole days gets what is spent and no
    estimate. Estimates never reach a bill.
    """
    from gpuledger_collector.accounting.owner_tree import LEVELS
    from gpuledger_collector.services.refresh import refresh
    from gpuledger_collector.storage.billing.spend import ahead, rated_period
    from gpuledger_collector.wiring import now

    if by.value not in LEVELS:
        refuse(f"--by: {by.value!r} is no level of owners; there are {', '.join(LEVELS)}")
    now_ms = round(now().timestamp() * 1000)
    with database(dsn, config) as opened:
        with opened.transaction() as connection:
            period = rated_period(connection, now_ms)
        refresh(opened, period, now_ms)
        with opened.transaction() as connection:
            found = ahead(connection, by.value, now_ms)
    emit_spend(by.value, found, shape)
    raise typer.Exit(DONE if found and all(one.forecast is not None for one in found) else FINDINGS)


def emit_spend(level: str, found: Sequence[Ahead], shape: Shape) -> None:
    """Print what will have been spent; without an estimate the cells of the forecast are empty."""
    from gpuledger_collector.accounting.money import format_minor, minor_digits, to_minor_units

    def text(micro: int, currency: str) -> str:
        digits = minor_digits(currency)
        return format_minor(to_minor_units([micro], digits)[0], digits)

    header = (level, "currency", "spent", "forecast", "low", "high", "days of history")
    rows = []
    for one in found:
        ends = (
            ("", "", "")
            if one.forecast is None
            else tuple(
                text(path[-1], one.currency) for path in (one.forecast.middle, one.forecast.low, one.forecast.high)
            )
        )
        rows.append((one.owner or "(unattributed)", one.currency, text(one.spent, one.currency), *ends, one.days))
    if shape is Shape.json:
        import json

        print(json.dumps([dict(zip(header, row, strict=True)) for row in rows], indent=2))
    elif shape is Shape.csv:
        import csv

        from gpuledger_collector.export.cells import harmless

        csv.writer(sys.stdout, lineterminator="\n").writerows([header, *map(harmless, rows)])
    else:
        from gpuledger_collector.export.tables import Table

        table = Table(*header, box=None, header_style="bold", padding=(0, 2, 0, 0))
        for row in rows:
            table.add_row(*map(str, row))
        print_table(table, 160)
        if any(one.forecast is None for one in found):
            print("without a forecast: fewer than five whole days are rated")


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _asked(pool: str | None, owner: str | None, model: str | None, by: Group) -> tuple[str, str | None]:
    """What the ledger's demand is summed by, and the one name that is wanted of it."""
    given = {"--pool": pool, "--owner": owner, "--model": model}
    named = [name for name, value in given.items() if value is not None]
    if len(named) > 1:
        refuse(f"{' and '.join(named)}: give one of them")
    if owner is not None:
        levels = owner_levels([owner])
        return next(iter(levels.items()))
    if model is not None:
        return "model", model
    return ("pool", pool) if pool is not None else (by.value, None)


def forecasts(
    series: Sequence[Series], span_ms: int, method: str = "auto", lives: Mapping[str, Workloads] | None = None
) -> list[Forecast]:
    """Forecasts over `span_ms`, in the order of `series`; series of one step are forecast together."""
    from gpuledger_collector.insight.forecast import MODELS, settings_for
    from gpuledger_collector.insight.forecast import forecast as compute

    try:
        settings = settings_for(method)
    except KeyError:
        refuse(f"--method: {method!r} is not one of auto, {', '.join(MODELS)}")
    made: dict[str, Forecast] = {}
    for step in sorted({one.step_ms for one in series}):
        steps = span_ms // step
        if not 1 <= steps <= MAX_STEPS:
            name = next(one.name for one in series if one.step_ms == step)
            refuse(f"--horizon: {steps} steps of {step / 1000:g} s for series {name!r}; 1 to {MAX_STEPS} can be done")
        group = [one for one in series if one.step_ms == step]
        made |= {
            entry.series: entry for entry in compute(group, steps, settings=settings, track=progress, workloads=lives)
        }
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

    from gpuledger_collector.export.cells import neutral

    writer = csv.writer(sys.stdout, lineterminator="\n")
    names = [f"q{q:g}" for q in made[0].quantiles] if made else ["q0.1", "q0.5", "q0.9", "q0.95"]
    writer.writerow(["ts", "series", "mean", *names])
    for entry in made:
        means, rows = (entry.mean.round(6) + 0.0).tolist(), (entry.values.round(6) + 0.0).tolist()
        instants = read.write_instants(entry.at_ms)
        writer.writerows(
            [at, neutral(entry.series), mean, *row] for at, mean, row in zip(instants, means, rows, strict=True)
        )


def _entry(entry: Forecast, read: Read) -> dict[str, object]:
    names = [f"q{q:g}" for q in entry.quantiles]
    points = [
        {"ts": at, "mean": mean, **dict(zip(names, row, strict=True)), "naive": dict(zip(names, naive, strict=True))}
        for at, mean, row, naive in zip(
            read.write_instants(entry.at_ms),
            entry.mean.round(6).tolist(),
            entry.values.round(6).tolist(),
            entry.naive.round(6).tolist(),
            strict=True,
        )
    ]
    skill = None if entry.skill is None else round(entry.skill, 4)
    weights = {name: round(weight, 4) for name, weight in entry.weights.items()}
    return {"series": entry.series, "skill": skill, "models": weights, "note": entry.note, "points": points}


def _table(made: Sequence[Forecast], read: Read) -> None:
    """A row for a few instants of each series: the first, a quarter, half, and the last."""
    from gpuledger_collector.export.tables import Table

    quantiles = [f"q{q:g}" for q in made[0].quantiles] if made else []
    table = Table("series", "ts", "mean", *quantiles, "skill", box=None, header_style="bold", padding=(0, 2, 0, 0))
    for entry in made:
        last = len(entry.at_ms) - 1
        instants = read.write_instants(entry.at_ms)
        skill = "" if entry.skill is None else f"{entry.skill:+.0%}"
        for number, row in enumerate(sorted({0, last // 4, last // 2, last})):
            cells = [f"{value:.2f}" for value in (entry.mean[row], *entry.values[row])]
            table.add_row(entry.series if number == 0 else "", instants[row], *cells, skill if number == 0 else "")
    print_table(table, 160)
    print("skill: how much smaller our quantile loss was than that of 'it stays as it is', over each series' own past")
