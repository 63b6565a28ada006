"""gpuledger anomalies: spending that is not as it should be."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from gpuledger_collector.cli.common import DONE
from gpuledger_collector.cli.forecast import Shape

if TYPE_CHECKING:
    from gpuledger_collector.cli.series_files import Read
    from gpuledger_collector.insight.anomalies import Judgement

COLUMNS = ("ts", "series", "value", "expected", "lower", "upper", "score", "flag")


def register(root: typer.Typer) -> None:
    """Add `gpuledger anomalies`."""
    root.command(epilog="Example: gpuledger anomalies --series spend.csv --format csv")(anomalies)


def anomalies(
    series: str = typer.Option(
        ...,
        "--series",
        metavar="FILE",
        help="CSV with ts,series,value, evenly spaced; an empty value is no data; - reads standard input.",
    ),
    shape: Shape = typer.Option(Shape.table, "--format", help="Form of the output."),
) -> None:
    """Find spending that stands out, each instant judged with what was known then."""
    from gpuledger_collector.cli.series_files import read_series
    from gpuledger_collector.insight.anomalies import judge

    read = read_series(series)
    judged = [judge(one) for one in read.series]
    if shape is Shape.table:
        print_episodes(judged, read)
    elif shape is Shape.csv:
        _csv(judged, read)
    else:
        import json

        print(json.dumps([dict(zip(COLUMNS, row, strict=True)) for one in judged for row in rows(one, read)], indent=1))
    raise typer.Exit(DONE)


def rows(judged: Judgement, read: Read) -> Iterator[tuple[str, str, float | None, *tuple[float | None, ...], int]]:
    """A row per instant of the series, in the order of COLUMNS; None where something is unknown."""
    import numpy as np

    one = judged.series
    instants = read.write_instants(one.start_ms + one.step_ms * np.arange(len(one.values)))
    numbers = [one.values, judged.expected, judged.lower, judged.upper, judged.score]
    columns = [[None if cell != cell else round(cell, 6) + 0.0 for cell in column.tolist()] for column in numbers]
    for at, cells, flag in zip(instants, zip(*columns, strict=True), judged.flag.tolist(), strict=True):
        yield (at, one.name, *cells, int(flag))


def _csv(judged: list[Judgement], read: Read) -> None:
    import csv

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(COLUMNS)
    for one in judged:
        writer.writerows(rows(one, read))


def print_episodes(judged: list[Judgement], read: Read) -> None:
    """A row per episode: when, how long, how much above what was expected."""
    import numpy as np
    from rich.console import Console
    from rich.table import Table

    from gpuledger_collector.insight.anomalies import episodes

    table = Table("series", "from", "to", "above expected", "highest score", box=None, header_style="bold")
    count = 0
    for one in judged:
        for found in episodes(one):
            at = one.series.start_ms + one.series.step_ms * np.array([found.first, found.last])
            top = np.nanmax(one.score[found.first : found.last + 1])
            table.add_row(one.series.name, *read.write_instants(at), f"{found.excess:,.2f}", f"{top:.1f}")
            count += 1
    Console(width=None if sys.stdout.isatty() else 140).print(table)
    print(f"{count} episodes in {len(judged)} series; 'above expected' is in the series' unit times its steps")
