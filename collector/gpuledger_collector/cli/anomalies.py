"""gpuledger anomalies: spending that is not as it should be."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from gpuledger_collector.cli.common import DONE, FINDINGS, Config, Dsn, database
from gpuledger_collector.cli.forecast import Shape
from gpuledger_collector.cli.terminal import print_table
from gpuledger_common.plurals import plural

if TYPE_CHECKING:
    from gpuledger_collector.cli.series_files import Read
    from gpuledger_collector.insight.anomalies import Detection

COLUMNS = ("ts", "series", "value", "expected", "lower", "upper", "score", "flag")
EPISODE = (
    "team",
    "from",
    "to",
    "state",
    "driver",
    "more_than_before",
    "by_price",
    "by_volume",
    "by_mix",
    "currency",
    "days_before",
    "moved_most",
    "rates",
    "cause",
    "sentence",
    "workloads",
)
SHOWN = ("team", "from", "to", "state", "driver", "more_than_before", "by_price", "by_volume", "by_mix", "sentence")


def register(root: typer.Typer) -> None:
    """Add `gpuledger anomalies`."""
    root.command(epilog="Example: gpuledger anomalies --series spend.csv --format csv")(anomalies)


def anomalies(
    series: str | None = typer.Option(
        None,
        "--series",
        metavar="FILE",
        help="CSV with ts,series,value, evenly spaced; an empty value is no data; - reads standard input. "
        "Without it: what the ledger says of every team's spending.",
    ),
    days: int = typer.Option(30, "--days", min=1, max=36_500, help="How far back to look in the ledger."),
    shape: Shape = typer.Option(Shape.table, "--format", help="Form of the output."),
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """Find spending that stands out, each instant judged with what was known then.

    From the ledger it ends with 1 when an episode goes on.
    """
    if series is None:
        found = search(dsn, config, days)
        emit(found, shape)
        raise typer.Exit(FINDINGS if any(one["resolved_ms"] is None for one in found) else DONE)
    from gpuledger_collector.cli.series_files import read_series
    from gpuledger_collector.insight.anomalies import detect

    read = read_series(series)
    judged = [detect(one) for one in read.series]
    if shape is Shape.table:
        print_episodes(judged, read)
    elif shape is Shape.csv:
        _csv(judged, read)
    else:
        import json

        print(json.dumps([dict(zip(COLUMNS, row, strict=True)) for one in judged for row in rows(one, read)], indent=1))
    raise typer.Exit(DONE)


def search(dsn: str | None, config: Path | None, days: int) -> list[dict[str, Any]]:
    """Episodes of the last days, after everything that has come in was rated."""
    from gpuledger_collector.jobs.find_anomalies import find_anomalies
    from gpuledger_collector.services.hourly_usage import fold_usage
    from gpuledger_collector.storage.findings.findings import named
    from gpuledger_collector.wiring import now as clock

    now_ms = round(clock().timestamp() * 1000)
    with database(dsn, config) as opened:
        fold_usage(opened)
        find_anomalies(opened, now_ms)
        with opened.transaction() as connection:
            return named(connection, "anomaly", now_ms - days * 86_400_000, now_ms + 1)


def episode_of(one: Mapping[str, Any]) -> dict[str, str]:
    """An episode as people read it, by EPISODE; amounts are the difference to the same hours before."""
    from gpuledger_collector.accounting.money import MICRO, format_minor, minor_digits, to_minor_units
    from gpuledger_collector.accounting.period import format_instant

    digits = minor_digits(one["currency"])
    evidence = one["evidence"]
    parts = to_minor_units([evidence[f"{name}_micro"] for name in ("price", "volume", "mix")], digits)
    first = next(iter(evidence["drivers"]), None)
    rates = [f"{rate['model']} {rate['before']} -> {rate['now']}" for rate in evidence["rates"]]
    return {
        "team": one["subject"],
        "from": format_instant(one["since_ms"]),
        "to": format_instant(one["until_ms"]),
        "state": "ended" if one["resolved_ms"] is not None else "ongoing",
        "driver": one["state"],
        "more_than_before": format_minor(round(one["cost_micro"] / (MICRO // 10**digits)), digits),
        "by_price": format_minor(parts[0], digits),
        "by_volume": format_minor(parts[1], digits),
        "by_mix": format_minor(parts[2], digits),
        "currency": one["currency"],
        "days_before": str(evidence["days_before"]),
        "moved_most": "" if first is None else str(first["workload"]),
        "rates": "; ".join(rates),
        "cause": evidence.get("cause", ""),
        "sentence": evidence.get("sentence", ""),
        "workloads": "; ".join(evidence.get("workloads", [])),
    }


def emit(found: Sequence[Mapping[str, Any]], shape: Shape) -> None:
    """Print the episodes, those that go on first, dearest first."""
    made = [episode_of(one) for one in found]
    if shape is Shape.csv:
        import csv

        from gpuledger_collector.export.cells import neutral

        writer = csv.DictWriter(sys.stdout, EPISODE, lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: neutral(cell) for name, cell in row.items()} for row in made)
        return
    if shape is Shape.json:
        import json

        print(
            json.dumps([{**row, "evidence": one["evidence"]} for row, one in zip(made, found, strict=True)], indent=2)
        )
        return
    from gpuledger_collector.export.tables import Table

    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for name in SHOWN:
        title = "what it is" if name == "sentence" else name.replace("_", " ")
        table.add_column(title, justify="right" if name[:2] in {"mo", "by"} else "left", no_wrap=name != "sentence")
    for row in made:
        table.add_row(*(row[name][:16] + "Z" if name in {"from", "to"} else row[name] for name in SHOWN))
    print_table(table, 190)
    print(
        f"{plural(len(made), 'episode')}; amounts are the difference to the same hours a week (or days) before, exact"
    )


def rows(judged: Detection, read: Read) -> Iterator[tuple[str, str, float | None, *tuple[float | None, ...], int]]:
    """A row per instant of the series, in the order of COLUMNS; None where something is unknown."""
    import numpy as np

    one = judged.series
    instants = read.write_instants(one.start_ms + one.step_ms * np.arange(len(one.values)))
    numbers = [one.values, judged.expected, judged.lower, judged.upper, judged.score]
    columns = [[None if cell != cell else round(cell, 6) + 0.0 for cell in column.tolist()] for column in numbers]
    for at, cells, flag in zip(instants, zip(*columns, strict=True), judged.flag.tolist(), strict=True):
        yield (at, one.name, *cells, int(flag))


def _csv(judged: list[Detection], read: Read) -> None:
    import csv

    from gpuledger_collector.export.cells import harmless

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(COLUMNS)
    for one in judged:
        writer.writerows(map(harmless, rows(one, read)))


def print_episodes(judged: list[Detection], read: Read) -> None:
    """A row per episode: when, how long, how much above what was expected."""
    import numpy as np

    from gpuledger_collector.export.tables import Table
    from gpuledger_collector.insight.anomalies import group_episodes

    table = Table("series", "from", "to", "above expected", "highest score", box=None, header_style="bold")
    count = 0
    for one in judged:
        for found in group_episodes(one):
            at = one.series.start_ms + one.series.step_ms * np.array([found.first, found.last])
            top = np.nanmax(one.score[found.first : found.last + 1])
            table.add_row(one.series.name, *read.write_instants(at), f"{found.excess:,.2f}", f"{top:.1f}")
            count += 1
    print_table(table, 140)
    print(
        f"{plural(count, 'episode')} in {len(judged)} series; 'above expected' is in the series' unit times its steps"
    )
