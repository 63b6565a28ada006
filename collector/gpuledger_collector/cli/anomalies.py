"""gpuledger anomalies: spending that stands out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import numpy as np
from typer import Option

from gpuledger_collector.cli import options
from gpuledger_collector.cli.common import end_with, new_app, time_range
from gpuledger_collector.cli.output import Column, Row, emit, emit_report, number
from gpuledger_collector.cli.series_file import SeriesFile
from gpuledger_collector.cli.session import open_session
from gpuledger_collector.export.findings import ANOMALIES
from gpuledger_collector.insight.anomalies import Detection, detect, group_episodes
from gpuledger_collector.insight.findings import AT_LISTED_RATES
from gpuledger_collector.services.anomaly_search import find_anomalies
from gpuledger_collector.services.findings import WholeFleet, list_findings
from gpuledger_collector.services.hourly_usage import fold_usage
from gpuledger_common.plurals import plural

app = new_app()
SERIES_COLUMNS = (
    Column("ts"),
    Column("series"),
    *(number(name) for name in ("value", "expected", "lower", "upper", "score", "flag")),
)
SERIES_EPISODES = (
    Column("series"),
    Column("from"),
    Column("to"),
    number("excess", "above expected"),
    number("score", "highest score"),
)


@app.command(epilog="Example: gpuledger anomalies --series spend.csv --format csv")
def anomalies(
    series: Annotated[
        str | None,
        Option(
            "--series",
            metavar="FILE",
            help=(
                "CSV with ts,series,value, evenly spaced; an empty value is no data; - reads"
                " standard input. "
                "Without it: every team's spending in the ledger."
            ),
        ),
    ] = None,
    period: options.PeriodName = None,
    start: options.FirstDay = None,
    end: options.LastDay = None,
    days: options.LastDays = None,
    form: options.Form = options.Format.table,
    exit_code: options.ExitCode = False,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Find spending that stands out, each instant judged with what was known then.

    With --exit-code it ends with 1 when an anomaly of the ledger is ongoing.
    """
    asked = time_range(period, start, end, days)
    if series is not None:
        # pandas takes a third of a second.
        from gpuledger_collector.cli.read_series import (
            read_series,
        )

        print_series(read_series(series), form)
        return
    with open_session(dsn, config) as session:
        fold_usage(session.database)
        find_anomalies(session.database, session.now_ms)
        span = asked.resolve(session.calendar, session.now_ms)
        with session.database.transaction() as connection:
            found = list_findings(connection, "anomaly", span, WholeFleet())
    count = plural(len(found.items), "episode")
    note = (
        f"{count}; amounts are the exact difference to the same hours a week (or days) ago,"
        f" {AT_LISTED_RATES}"
    )
    emit_report(form, ANOMALIES, found.items, [note])
    end_with(bool(found.ongoing.items), exit_code)


def print_series(file: SeriesFile, form: options.Format) -> None:
    """Print the series of a file: the episodes as a table, every instant as CSV or JSON."""
    detections = [detect(series) for series in file.series]
    if form is not options.Format.table:
        emit(
            form,
            SERIES_COLUMNS,
            [row for detection in detections for row in instant_rows(detection, file)],
        )
        return
    rows = [row for detection in detections for row in episode_rows(detection, file)]
    note = (
        f"{plural(len(rows), 'episode')} in {len(detections)} series; 'above expected': the series'"
        " unit times steps"
    )
    emit(form, SERIES_EPISODES, rows, [note])


def instant_rows(detection: Detection, file: SeriesFile) -> Iterator[Row]:
    """A row per instant of the series, by SERIES_COLUMNS; None where something is unknown."""
    series = detection.series
    instants = file.write_instants(series.start_ms + series.step_ms * np.arange(len(series.values)))
    numbers = (series.values, detection.expected, detection.lower, detection.upper, detection.score)
    columns = [
        [None if np.isnan(cell) else round(cell, 6) + 0.0 for cell in column.tolist()]
        for column in numbers
    ]
    names = [column.name for column in SERIES_COLUMNS]
    for at, cells, flag in zip(
        instants, zip(*columns, strict=True), detection.flag.tolist(), strict=True
    ):
        yield dict(zip(names, (at, series.name, *cells, int(flag)), strict=True))


def episode_rows(detection: Detection, file: SeriesFile) -> Iterator[Row]:
    """A row per episode: when, how much above what was expected, and the highest score."""
    series = detection.series
    for episode in group_episodes(detection):
        first, last = file.write_instants(
            series.start_ms + series.step_ms * np.array([episode.first, episode.last])
        )
        score = np.nanmax(detection.score[episode.first : episode.last + 1])
        yield {
            "series": series.name,
            "from": first,
            "to": last,
            "excess": f"{episode.excess:,.2f}",
            "score": f"{score:.1f}",
        }
