"""Store readings of counters and recount the hours that they touch, in one transaction.

A reading is identified by its series and instant. Where two disagree the greater value is stored,
so neither order nor repetition matters. A writer locks the rows of its series, so an hour is never
counted by two at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

from gpuledger_collector.accounting.counters import KEEP_DAYS, CounterReading, hourly, max_gap_ms
from gpuledger_collector.accounting.inference import SPLIT_COUNTERS
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS
from gpuledger_collector.storage import locks
from gpuledger_collector.storage.ledger.token_usage import (
    request_charged_days,
    request_charged_days_of,
)
from gpuledger_collector.storage.locks import Connection, Lock
from gpuledger_collector.storage.rows import select, select_as


@dataclass(frozen=True, slots=True, order=True)
class Series:
    """A counter of a workload; a row of the table `counter_series`."""

    workload_id: int
    via: str
    source: str
    part: str
    counter: str
    engine: str = ""


Row = tuple[Series, CounterReading]


def store_readings(connection: Connection, rows: Sequence[Row]) -> int:
    """Write readings and recount their hours; return how many distinct readings there were.

    Runs in a transaction, which stores pages of gateways before.
    """
    if not rows:
        return 0
    # An apply that charges a shared server either is seen by the marks below, or sees these tokens.
    if any(series.counter in SPLIT_COUNTERS for series, _ in rows):
        locks.share(connection, Lock.TOKENS)
    # Lock first: what is read below for recounting then includes every reading that another writer
    # has committed.
    series_ids = _lock_series(connection, sorted({series for series, _ in rows}))
    readings: dict[tuple[int, int], CounterReading] = {}
    for series, reading in rows:
        key = series_ids[series], reading.at_ms
        # Postgres refuses an ON CONFLICT statement that would update the same row twice, so
        # repetitions are merged here.
        readings[key] = max(
            reading, readings.get(key, reading), key=lambda each: (each.value, each.started_ms or 0)
        )
    ordered = sorted(readings.items())
    connection.execute(
        "INSERT INTO counter_reading AS old (series_id, at_ms, value, started_ms) "
        "SELECT * FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[]) "
        "ON CONFLICT (series_id, at_ms) DO UPDATE SET value = greatest(old.value, excluded.value), "
        "started_ms = greatest(old.started_ms, excluded.started_ms)",
        (
            [series_id for (series_id, _), _ in ordered],
            [at_ms for (_, at_ms), _ in ordered],
            [reading.value for _, reading in ordered],
            [reading.started_ms for _, reading in ordered],
        ),
    )
    touched: dict[int, list[int]] = defaultdict(list)
    for series_id, at_ms in readings:
        touched[series_id].append(at_ms)
    counters = {series_id: series.counter for series, series_id in series_ids.items()}
    # Recount the range of all new readings at once: hours between them are recounted too, which
    # changes nothing.
    token_hours: set[int] = set()
    for series_id, instants in sorted(touched.items()):
        gap_ms = max_gap_ms(counters[series_id])
        start, end = _reach(gap_ms, min(instants), max(instants))
        _recount(connection, series_id, gap_ms, start, end)
        if counters[series_id] in SPLIT_COUNTERS:
            token_hours.update(range(start, end, HOUR_MS))
    if token_hours:
        request_charged_days(connection, token_hours)
    return len(readings)


def _lock_series(connection: Connection, series: Sequence[Series]) -> dict[Series, int]:
    """Ids of series, whose rows are locked until the transaction ends; in order, so that writers
    never deadlock.
    """
    columns = [list(column) for column in zip(*map(astuple, series), strict=True)]
    added = connection.execute(
        "INSERT INTO counter_series (workload_id, via, source, part, counter, engine) SELECT * FROM"
        " unnest(%s::bigint[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[]) "
        # The id of an existing series is read below: DO NOTHING returns no row for it.
        "ON CONFLICT DO NOTHING",
        columns,
    ).rowcount
    if added:
        request_charged_days_of(connection, (each.workload_id for each in series))
    rows = select(
        connection,
        "SELECT s.id, s.workload_id, s.via, s.source, s.part, s.counter FROM counter_series s JOIN"
        " unnest(%s::bigint[], %s::text[], %s::text[], %s::text[], %s::text[]) AS a (workload_id,"
        " via, source, part, counter) USING (workload_id, via, source, part, counter) ORDER BY s.id"
        " FOR UPDATE OF s",
        columns[:-1],
    )
    ids = {_series_key(row): row.id for row in rows}
    return {key: ids[_series_key(key)] for key in series}


def _series_key(series: Any) -> tuple[object, ...]:
    """What tells a series, or its row, from others."""
    return series.workload_id, series.via, series.source, series.part, series.counter


def _reach(gap_ms: int, first_ms: int, last_ms: int) -> tuple[int, int]:
    """From the first to after the last hour that a pair of readings with one between these instants
    can reach into.
    """
    # A reading counts units between itself and a neighbor at most `gap_ms` away, so it changes
    # hours within that reach.
    start, end = first_ms - gap_ms, last_ms + gap_ms
    return start - start % HOUR_MS, end - end % HOUR_MS + HOUR_MS


def _recount(connection: Connection, series_id: int, gap_ms: int, start: int, end: int) -> None:
    """Recount the hours between two full ones."""
    readings = select_as(
        connection,
        CounterReading,
        "SELECT at_ms, value, started_ms FROM counter_reading WHERE series_id = %s AND at_ms >= %s"
        " AND at_ms <= %s",
        # Once more by the gap: the first and last of these hours depend on readings just outside of
        # them.
        (series_id, start - gap_ms, end + gap_ms),
    )
    hours = [hour for hour in hourly(readings, gap_ms) if start <= hour.hour_ms < end]
    connection.execute(
        "DELETE FROM counter_hour WHERE series_id = %s AND hour_ms >= %s AND hour_ms < %s",
        (series_id, start, end),
    )
    with connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO counter_hour (series_id, hour_ms, units, covered_ms, restarts) VALUES (%s,"
            " %s, %s, %s, %s)",
            [
                (series_id, hour.hour_ms, hour.units, hour.covered_ms, hour.restarts)
                for hour in hours
            ],
        )


def delete_old(connection: Connection, now_ms: int) -> None:
    """Delete readings so old that no late reading can pair with them; the hours that they counted
    stay.
    """
    connection.execute(
        "DELETE FROM counter_reading WHERE at_ms < %s", (now_ms - KEEP_DAYS * DAY_MS,)
    )
