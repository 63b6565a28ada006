"""Minute rollup: made again from the samples of whole hours.

Folding rolls the hours that new evidence marked; this job makes a whole period again, after an
import or a repair.
"""

from __future__ import annotations

from gpuledger_collector.accounting.period import Period
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.findings import findings
from gpuledger_collector.storage.locks import Lock
from gpuledger_collector.storage.telemetry import minute_rollup


def roll_up_minutes(database: Database, period: Period) -> int:
    """Make the minute rollup of a period again, a day in a transaction; how many accelerator-hours
    were rolled.
    """
    rolled = 0
    for day in period.days():
        with database.transaction(Lock.LEDGER) as connection:
            hours = minute_rollup.sampled_hours(connection, day)
            first_hour_ms = minute_rollup.roll_up_minutes(connection, hours)
            if first_hour_ms is not None:
                findings.note_late_evidence(connection, "idle", first_hour_ms)
            rolled += len(hours)
    return rolled
