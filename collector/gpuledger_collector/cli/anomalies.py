"""gpuledger anomalies: spending that stands out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Annotated, Any

import numpy as np
from typer import Option

from gpuledger_collector.cli import options
from gpuledger_collector.cli.common import end_with, new_app, time_range
from gpuledger_collector.cli.output import emit_report
from gpuledger_collector.cli.series_file import SeriesFile
from gpuledger_collector.cli.session import open_session
from gpuledger_collector.export.findings import ANOMALIES
from gpuledger_collector.export.report import Kind, Report, key_column, series_column
from gpuledger_collector.export.table_cells import WIDEST
from gpuledger_collector.insight.anomalies import Detection, detect_spending, group_episodes
from gpuledger_collector.insight.findings import AT_LISTED_RATES
from gpuledger_collector.insight.series import Series
from gpuledger_collector.services.anomaly_search import find_anomalies
from gpuledger_collector.services.findings import WholeFleet, list_findings
from gpuledger_collector.services.hourly_usage import fold_usage
from gpuledger_common.plurals import plural

app = new_app()
NUMBERS = ("value", "expected", "lower", "upper", "score")
SERIES = Report[Mapping[str, Any]](
    "series",
    (
        key_column("ts"),
        key_column("series"),
        *(key_column(name, Kind.ESTIMATE) for name in (*NUMBERS, "flag")),
    ),
)
EPISODES = Report[Mapping[str, Any]](
    "episodes",
    (
        key_column("series"),
        key_column("from"),
        key_column("to"),
        key_column("excess", Kind.SIZE, heading="above expected"),
        key_column("score", Kind.SIZE, heading="highest score"),
        series_column("values", itemgetter("values"), "up to its end"),
    ),
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
                " standard input. With a column usage, of which value is the cost, a dearer rate is"
                " an anomaly of its own. "
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

        print_series(read_series(series, usage="usage"), form)
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
    usages: Sequence[Series | None] = file.usage or [None] * len(file.series)
    detections = [
        detect_spending(series, usage) for series, usage in zip(file.series, usages, strict=True)
    ]
    if form is not options.Format.table:
        instants = (row for detection in detections for row in instant_rows(detection, file))
        emit_report(form, SERIES, instants, is_exact=True)
        return
    rows = [row for detection in detections for row in episode_rows(detection, file)]
    note = (
        f"{plural(len(rows), 'episode')} in {len(detections)} series; 'above expected': the series'"
        " unit times steps"
    )
    emit_report(form, EPISODES, rows, [note])


def instant_rows(detection: Detection, file: SeriesFile) -> Iterator[dict[str, Any]]:
    """A row per instant of the series; None where something is unknown."""
    series = detection.series
    instants = file.write_instants(series.start_ms + series.step_ms * np.arange(len(series.values)))
    numbers = {
        "value": series.values,
        "expected": detection.expected,
        "lower": detection.lower,
        "upper": detection.upper,
        "score": detection.score,
    }
    for index, (at, flag) in enumerate(zip(instants, detection.flag.tolist(), strict=True)):
        yield {
            "ts": at,
            "series": series.name,
            **{name: _round_known(column[index]) for name, column in numbers.items()},
            "flag": int(flag),
        }


def _round_known(value: float) -> float | None:
    return None if np.isnan(value) else round(float(value), 6) + 0.0


def episode_rows(detection: Detection, file: SeriesFile) -> Iterator[dict[str, Any]]:
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
            "excess": f"{episode.excess:.2f}",
            "score": f"{score:.1f}",
            "values": [
                _round_known(value)
                for value in series.values[max(0, episode.last + 1 - WIDEST) : episode.last + 1]
            ],
        }
