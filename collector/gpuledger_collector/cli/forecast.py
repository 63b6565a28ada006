"""gpuledger forecast: how many GPUs will be wanted."""

from __future__ import annotations

import enum
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from operator import itemgetter
from typing import Annotated, Any

import typer
from typer import Option

from gpuledger_collector.accounting.period import HOUR_MS
from gpuledger_collector.cli import options
from gpuledger_collector.cli.common import (
    UNAVAILABLE,
    duration_ms,
    end_with,
    new_app,
    owner_levels,
    refuse,
    require_level,
)
from gpuledger_collector.cli.ledger_demand import read_demand
from gpuledger_collector.cli.output import emit_report, print_json
from gpuledger_collector.cli.series_file import SeriesFile
from gpuledger_collector.cli.session import clock_ms, open_session
from gpuledger_collector.cli.terminal import say
from gpuledger_collector.export.forecasts import spend_report
from gpuledger_collector.export.report import Column, Kind, Report, key_column, series_column
from gpuledger_collector.insight.forecast import Forecast, methods
from gpuledger_collector.insight.forecast import forecast as compute
from gpuledger_collector.insight.forecast_history import ForecastRecord
from gpuledger_collector.insight.pool_outlook import ended_note
from gpuledger_collector.insight.series import Series
from gpuledger_collector.services.forecasts import refresh_forecast_records
from gpuledger_collector.services.spend_forecasts import forecast_month
from gpuledger_collector.services.tenant_forecasts import forecast_tenants

MAX_STEPS = 5_000
MANY = 200
"""From so many series on a progress bar is shown."""
STEPS_MS = (300_000, HOUR_MS)
QUANTILES = ("q0.1", "q0.5", "q0.9", "q0.95")
TABLE = Report[Mapping[str, Any]](
    "forecasts",
    (
        key_column("series"),
        key_column("ts", heading="at"),
        key_column("q0.1", Kind.SIZE, heading="low"),
        key_column("q0.5", Kind.SIZE, heading="likely"),
        key_column("q0.9", Kind.SIZE, heading="high"),
        key_column("q0.95", Kind.SIZE, heading="very high", is_optional=True),
        key_column("mean", Kind.SIZE, is_optional=True),
        key_column("skill", Kind.PERCENT, heading="better than no change"),
        series_column("course", itemgetter("course"), "likely, all the way"),
    ),
)


def _share(value: float | None) -> str | None:
    return None if value is None else f"{value:.3f}"


HISTORY = Report[ForecastRecord](
    "forecast_history",
    (
        Column("series", lambda item: item.series),
        Column("forecasts", lambda item: item.forecasts, Kind.COUNT),
        Column("replayed", lambda item: item.replayed, Kind.COUNT, is_optional=True),
        Column("hours", lambda item: item.hours, Kind.COUNT),
        Column("in band", lambda item: _share(item.inside), Kind.DECIMAL),
        Column(
            "under 0.9", lambda item: _share(item.under.get("0.9")), Kind.DECIMAL, is_optional=True
        ),
        Column(
            "under 0.95",
            lambda item: _share(item.under.get("0.95")),
            Kind.DECIMAL,
            is_optional=True,
        ),
        Column("wql", lambda item: _share(item.wql), Kind.DECIMAL, in_table=False),
        Column("naive", lambda item: _share(item.naive_wql), Kind.DECIMAL, in_table=False),
        Column(
            "skill",
            lambda item: _share(item.skill),
            Kind.DECIMAL,
            heading="better than no change",
        ),
    ),
)


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


app = new_app(name="forecast", invoke_without_command=True)


@app.callback(epilog="Example: gpuledger forecast --series demand.csv --horizon 24h --format csv")
def forecast(
    context: typer.Context,
    series: Annotated[
        str | None,
        Option(
            "--series",
            metavar="FILE",
            help=(
                "CSV with ts,series,value, evenly spaced; an empty value is a gap; - reads standard"
                " input. "
                "Without it: the ledger's own demand, by pool and hour."
            ),
        ),
    ] = None,
    pool: Annotated[str | None, Option("--pool", help="Only this pool of the ledger.")] = None,
    owner: Annotated[
        str | None,
        Option("--owner", metavar="LEVEL=VALUE", help="Only this owner, as team=vision."),
    ] = None,
    model: Annotated[str | None, Option("--model", help="Only this GPU model.")] = None,
    by: Annotated[
        Group, Option("--by", help="Series of the ledger: by pool, GPU model or level of owners.")
    ] = Group.pool,
    step: Annotated[
        str, Option("--step", metavar="5m|1h", help="Step of the ledger's series.")
    ] = "1h",
    method: Annotated[
        str,
        Option(
            "--method",
            help="analog, persistence, or an added one; several, as a,b (docs/forecasting.md).",
        ),
    ] = "analog",
    horizon: Annotated[
        str, Option("--horizon", metavar="SPAN", help="How far ahead: 6h, 24h, 7d.")
    ] = "24h",
    form: options.Form = options.Format.table,
    exit_code: options.ExitCode = False,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Forecast demand as quantiles, for the horizon after each series' last instant.

    With --exit-code it ends with 1 when a series has no known value, and so no forecast.
    """
    if context.invoked_subcommand is not None:
        return
    span_ms = duration_ms(horizon, "--horizon")
    group, only = _group_and_name(pool, owner, model, by)
    if series is not None and only is not None:
        refuse(f"--series and --{group}: give one of them, a file or a {group} of the ledger")
    step_ms = duration_ms(step, "--step")
    if step_ms not in STEPS_MS:
        refuse(f"--step: {step!r} is neither 5m nor 1h")
    if series is not None:
        # pandas takes a third of a second.
        from gpuledger_collector.cli.read_series import (
            read_series,
        )

        file = read_series(series)
    else:
        file = read_demand(dsn, config, group, only, step_ms)
        _name_ended(file.series, clock_ms())
    usable = [entry for entry in file.series if entry.known_count]
    for entry in file.series:
        if not entry.known_count:
            say(
                f"gpuledger: series {entry.name!r} has no known value: no forecast of it",
                error=True,
            )
    forecasts = compute_forecasts(usable, span_ms, method)
    for result in forecasts:
        if result.note:
            say(f"gpuledger: {result.note}", error=True)
    print_forecasts(forecasts, file, form)
    end_with(len(usable) < len(file.series), exit_code)


def _name_ended(series: Sequence[Series], now_ms: int) -> None:
    """Say of which series of the ledger the demand has ended."""
    for entry in series:
        if note := ended_note(entry, now_ms):
            say(f"gpuledger: series {entry.name!r}: {note}", error=True)


def _group_and_name(
    pool: str | None, owner: str | None, model: str | None, by: Group
) -> tuple[str, str | None]:
    """What the ledger's demand is summed by, and the one name that is wanted of it."""
    given = {"--pool": pool, "--owner": owner, "--model": model}
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        refuse(f"{' and '.join(names)}: give one of them")
    if owner is not None:
        return next(iter(owner_levels([owner]).items()))
    if model is not None:
        return "model", model
    return ("pool", pool) if pool is not None else (by.value, None)


def compute_forecasts(
    series: Sequence[Series], span_ms: int, method: str = "analog"
) -> list[Forecast]:
    """Forecasts over `span_ms`, in the order of `series`; series of one step are forecast together."""
    if unknown := [name for name in method.split(",") if name not in methods.names()]:
        refuse(f"--method: {unknown[0]!r} is not one of {', '.join(methods.names())}")
    forecasts: dict[str, Forecast] = {}
    for step_ms in sorted({entry.step_ms for entry in series}):
        steps = span_ms // step_ms
        group = [entry for entry in series if entry.step_ms == step_ms]
        if not 1 <= steps <= MAX_STEPS:
            name = group[0].name
            refuse(
                f"--horizon: {steps} steps of {step_ms / 1000:g} s for series {name!r}; 1 to"
                f" {MAX_STEPS} are allowed"
            )
        try:
            for result in compute(group, steps, method=method, track=_progress):
                forecasts[result.series] = result
        except methods.ForecasterFailed as error:
            refuse(str(error), UNAVAILABLE)
    return [forecasts[entry.name] for entry in series]


def _progress(series: Sequence[Series]) -> Iterable[Series]:
    """A progress bar on a terminal when there is much to do, nothing in a pipe."""
    if len(series) < MANY or not sys.stderr.isatty():
        return series
    from rich.console import Console  # in a pipe nothing is drawn
    from rich.progress import track

    return track(series, "forecasting", console=Console(stderr=True), transient=True)


def print_forecasts(forecasts: Sequence[Forecast], file: SeriesFile, form: options.Format) -> None:
    """Print the forecasts: every instant as CSV or JSON, a few of each series as a table."""
    if form is options.Format.json:
        print_json([to_object(result, file) for result in forecasts])
    elif form is options.Format.csv:
        names = (
            [f"q{quantile:g}" for quantile in forecasts[0].quantiles] if forecasts else QUANTILES
        )
        numbers = (key_column(name, Kind.ESTIMATE) for name in ("mean", *names))
        report = Report("forecasts", (key_column("ts"), key_column("series"), *numbers))
        emit_report(form, report, (row for each in forecasts for row in instant_rows(each, file)))
    else:
        rows = [row for result in forecasts for row in table_rows(result, file)]
        note = (
            "better than no change: how much smaller our error was than that of 'it stays as it"
            " is', over its own past"
        )
        emit_report(form, TABLE, rows, [note])


def instant_rows(result: Forecast, file: SeriesFile) -> Iterator[dict[str, Any]]:
    """A row for each instant, with its mean and quantiles."""
    names = [f"q{quantile:g}" for quantile in result.quantiles]
    means, values = (result.mean.round(6) + 0.0).tolist(), (result.values.round(6) + 0.0).tolist()
    for at, mean, row in zip(file.write_instants(result.at_ms), means, values, strict=True):
        yield {
            "ts": at,
            "series": result.series,
            "mean": mean,
            **dict(zip(names, row, strict=True)),
        }


def to_object(result: Forecast, file: SeriesFile) -> dict[str, object]:
    """A forecast with its points, each next to that of the naive model."""
    names = [f"q{quantile:g}" for quantile in result.quantiles]
    points = [
        {
            **{name: value for name, value in row.items() if name != "series"},
            "naive": dict(zip(names, naive, strict=True)),
        }
        for row, naive in zip(
            instant_rows(result, file), result.naive.round(6).tolist(), strict=True
        )
    ]
    skill = None if result.skill is None else round(result.skill, 4)
    weights = {name: round(weight, 4) for name, weight in result.weights.items()}
    return {
        "series": result.series,
        "skill": skill,
        "models": weights,
        "note": result.note,
        "points": points,
    }


def table_rows(result: Forecast, file: SeriesFile) -> Iterator[dict[str, Any]]:
    """A row for a few instants: the first, a quarter, half, and the last."""
    rows = list(instant_rows(result, file))
    last = len(rows) - 1
    for place, index in enumerate(sorted({0, last // 4, last // 2, last})):
        texts = {
            name: f"{value:.2f}" for name, value in rows[index].items() if isinstance(value, float)
        }
        is_first = place == 0
        yield {
            **texts,
            "series": result.series if is_first else "",
            "ts": rows[index]["ts"],
            "skill": f"{result.skill:.0%}" if is_first and result.skill is not None else "",
            "course": [row.get("q0.5", row["mean"]) for row in rows] if is_first else None,
        }


@app.command(epilog="Example: gpuledger forecast history --pool train")
def history(
    pool: Annotated[str | None, Option("--pool", help="Only this pool.")] = None,
    team: Annotated[
        str | None, Option("--team", help="Only this team; its forecasts instead of the pools'.")
    ] = None,
    form: options.Form = options.Format.table,
    exit_code: options.ExitCode = False,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Say how good past forecasts were: how often demand lay in their band, and their error next to
    the naive model's.

    A forecast of the next day is kept every day. Days before the first run are replayed from what
    was known then, and counted apart. With --exit-code it ends with 1 while nothing is known yet.
    """
    if pool is not None and team is not None:
        refuse("--pool and --team: give one of them")
    group, only = ("team", team) if team is not None else ("pool", pool)
    with open_session(dsn, config) as session:
        history_records = refresh_forecast_records(session.database, session.now_ms, group, only)
    if only is not None and not history_records:
        refuse(f"--{group}: there is no forecast of {group} {only!r} yet")
    if form is options.Format.json:
        print_json([asdict(record) for record in history_records])
    else:
        note = "in band: part of the hours between low and high (0.8 is right)"
        emit_report(form, HISTORY, history_records, [note])
    end_with(not any(record.hours for record in history_records), exit_code)


@app.command(epilog="Example: gpuledger forecast spend --by team")
def spend(
    by: Annotated[Group, Option("--by", help="Level of owners.")] = Group.team,
    tenants: Annotated[
        bool, Option("--tenants", help="Tenants of shared model servers instead of owners.")
    ] = False,
    form: options.Form = options.Format.table,
    exit_code: options.ExitCode = False,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Say what each owner will have spent at the end of this month, with a band that holds eight
    times in ten.

    From the rated days of the last eight weeks; an owner with fewer than five full days gets what
    is spent and no estimate. --tenants says it of who asked shared model servers, charged or shown.
    Estimates never reach a bill. With --exit-code it ends with 1 when an
    estimate is missing.
    """
    level = "tenant" if tenants else by.value
    if not tenants:
        require_level(level, "--by")
    with open_session(dsn, config) as session:
        owners = (
            forecast_tenants(session.database, session.now_ms)
            if tenants
            else forecast_month(session.database, level, session.now_ms)
        )
    is_partial = any(owner.forecast is None for owner in owners)
    report = spend_report(level)
    if form is options.Format.json:
        # Days are a number there, and amounts are texts.
        print_json([report.texts(owner) | {"days of history": owner.days} for owner in owners])
    else:
        note = (
            ["without a forecast: fewer than five full days, or nothing of the month, is rated"]
            if is_partial
            else []
        )
        emit_report(form, report, owners, note)
    end_with(is_partial or not owners, exit_code)
