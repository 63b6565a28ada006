"""The minute rollup of a whole period, for tests that write samples without folding them."""

from __future__ import annotations

from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, Period
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.findings import late_evidence
from gpuledger_collector.storage.locks import Connection, Lock
from gpuledger_collector.storage.telemetry import minute_rollup


def roll_up_minutes(database: Database, period: Period) -> int:
    """Make the minute rollup of a period, a day in a transaction; how many accelerator-hours."""
    rolled = 0
    for day in period.days():
        with database.transaction(Lock.LEDGER) as connection:
            hours = sampled_hours(connection, day)
            late_evidence.note(connection, minute_rollup.roll_up_minutes(connection, hours))
            rolled += len(hours)
    return rolled


def sampled_hours(connection: Connection, period: Period) -> list[tuple[int, int]]:
    """List the (accelerator, hour) pairs of the period that have samples; of packed days every
    hour, as each may.
    """
    bounds = {"hour": HOUR_MS, "day": DAY_MS, "start": period.start_ms, "end": period.end_ms}
    return connection.execute(
        "SELECT accelerator_id, at_ms - at_ms %% %(hour)s FROM gpu_sample WHERE at_ms >= %(start)s"
        " AND at_ms < %(end)s UNION SELECT accelerator_id, hour FROM sample_archive,"
        " generate_series(day_ms, day_ms + %(day)s - 1, %(hour)s) AS hour WHERE day_ms > %(start)s"
        " - %(day)s AND day_ms < %(end)s AND hour > %(start)s - %(hour)s AND hour < %(end)s",
        bounds,
    ).fetchall()
