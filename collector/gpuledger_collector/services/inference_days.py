"""Days of shared model servers as they were last split, stored for dashboards."""

from __future__ import annotations

from gpuledger_collector.accounting.inference_lines import sum_days
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.services.inference_costs import read_days
from gpuledger_collector.storage.billing import inference
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.ledger import zones


def store_inference_days(database: Database, now_ms: int) -> int:
    """Split the days of this month and of the last one, and store what their servers cost and
    counted; return the number of days of servers.

    The first time, all months since the first token; the first time after an upgrade, all since
    the first day that was stored without its tokens by kind. Late evidence of an earlier month is
    seen by commands and pages, which split anew.
    """
    with database.transaction(read_only=True) as connection:
        calendar = zones.calendar(connection)
        this = calendar.month(calendar.month_of(now_ms))
        last = calendar.month(calendar.month_of(this.start_ms - 1))
        first_ms = inference.first_incomplete_ms(connection)
        start_ms = last.start_ms
        if first_ms is not None:
            start_ms = min(start_ms, calendar.month(calendar.month_of(first_ms)).start_ms)
        period = Period(start_ms, this.end_ms)
        days = read_days(connection, period)
    stored = sum_days(days.servers, days.lines)
    with database.transaction() as connection:
        inference.replace_days(connection, period, stored, now_ms)
    return len(stored)
