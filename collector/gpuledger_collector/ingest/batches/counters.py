"""Readings of counters become rows, and the hours that they touch are counted again, in one transaction.

A reading is known by its series and instant; where two disagree the greater value stands, so that neither order nor
repetition matters. Whoever writes readings of a series holds its row, so that no two count one hour at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from gpuledger_collector.accounting.counters import KEEP_DAYS, CounterReading, hourly, most_gap_ms
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS
from gpuledger_collector.ingest.batches.attributes import Connection


@dataclass(frozen=True, slots=True, order=True)
class Series:
    """A counter of a workload; see the table `counter_series`."""

    workload_id: int
    via: str
    source: str
    part: str
    counter: str
    engine: str = ""


Row = tuple[Series, CounterReading]


def keep(connection: Connection, rows: Sequence[Row]) -> int:
    """Write readings and count their hours again; how many readings there were. Call it in a transaction."""
    if not rows:
        return 0
    numbers = _lock(connection, sorted({series for series, _ in rows}))
    best: dict[tuple[int, int], CounterReading] = {}
    for series, reading in rows:
        key = numbers[series], reading.at_ms
        best[key] = max(reading, best.get(key, reading), key=lambda one: (one.value, one.started_ms or 0))
    ordered = sorted(best.items())
    connection.execute(
        "INSERT INTO counter_reading AS old (series_id, at_ms, value, started_ms) "
        "SELECT * FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[]) "
        "ON CONFLICT (series_id, at_ms) DO UPDATE SET value = greatest(old.value, excluded.value), "
        "started_ms = greatest(old.started_ms, excluded.started_ms)",
        (
            [key[0] for key, _ in ordered],
            [key[1] for key, _ in ordered],
            [one.value for _, one in ordered],
            [one.started_ms for _, one in ordered],
        ),
    )
    touched: dict[int, list[int]] = defaultdict(list)
    for number, at_ms in best:
        touched[number].append(at_ms)
    counters = {number: series.counter for series, number in numbers.items()}
    for number, instants in sorted(touched.items()):
        _count(connection, number, most_gap_ms(counters[number]), min(instants), max(instants))
    return len(best)


def _lock(connection: Connection, series: Sequence[Series]) -> dict[Series, int]:
    """The number of each series, whose row is ours until the transaction ends; in order, so that nobody circles."""
    columns = (
        [one.workload_id for one in series],
        [one.via for one in series],
        [one.source for one in series],
        [one.part for one in series],
        [one.counter for one in series],
    )
    asked = "unnest(%s::bigint[], %s::text[], %s::text[], %s::text[], %s::text[])"
    connection.execute(
        "INSERT INTO counter_series (workload_id, via, source, part, counter, engine) "
        "SELECT * FROM unnest(%s::bigint[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[]) "
        "ON CONFLICT DO NOTHING",
        (*columns, [one.engine for one in series]),
    )
    rows = connection.execute(
        "SELECT s.id, s.workload_id, s.via, s.source, s.part, s.counter FROM counter_series s "
        f"JOIN {asked} AS a (workload_id, via, source, part, counter) USING (workload_id, via, source, part, counter) "
        "ORDER BY s.id FOR UPDATE OF s",
        columns,
    )
    found = {tuple(row[1:]): int(row[0]) for row in rows}
    return {one: found[one.workload_id, one.via, one.source, one.part, one.counter] for one in series}


def _count(connection: Connection, number: int, gap_ms: int, first_ms: int, last_ms: int) -> None:
    """Make again every hour that a pair with a reading of this usage interval of time can reach into."""
    start, end = first_ms - gap_ms, last_ms + gap_ms
    start, end = start - start % HOUR_MS, end - end % HOUR_MS + HOUR_MS
    rows = connection.execute(
        "SELECT at_ms, value, started_ms FROM counter_reading WHERE series_id = %s AND at_ms >= %s AND at_ms <= %s",
        (number, start - gap_ms, end + gap_ms),
    )
    counted = [one for one in hourly([CounterReading(*row) for row in rows], gap_ms) if start <= one.hour_ms < end]
    connection.execute(
        "DELETE FROM counter_hour WHERE series_id = %s AND hour_ms >= %s AND hour_ms < %s", (number, start, end)
    )
    with connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO counter_hour (series_id, hour_ms, units, covered_ms, restarts) VALUES (%s, %s, %s, %s, %s)",
            [(number, one.hour_ms, one.units, one.covered_ms, one.restarts) for one in counted],
        )


def forget_old(connection: Connection, now_ms: int) -> None:
    """Let readings go that no late reading can need any more; what they counted stays."""
    connection.execute("DELETE FROM counter_reading WHERE at_ms < %s", (now_ms - KEEP_DAYS * DAY_MS,))
