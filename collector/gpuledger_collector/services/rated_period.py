"""How far the ledger is: the months that it has, and what it knows of a period."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuledger_collector.accounting.period import HOUR_MS, Calendar, Period
from gpuledger_collector.accounting.rated_period import RatedPeriod
from gpuledger_collector.storage import overview
from gpuledger_collector.storage.billing import month_proofs, periods
from gpuledger_collector.storage.ledger import zones
from gpuledger_collector.storage.locks import Connection


@dataclass(frozen=True, slots=True)
class LedgerExtent:
    """The months that have a rated day, newest first, and from when on the past is still to be
    added up (None: all is).
    """

    calendar: Calendar
    months: Sequence[str]
    backlog_ms: int | None


def read_extent(connection: Connection, now_ms: int) -> LedgerExtent:
    """Read how far the ledger is."""
    calendar = zones.calendar(connection)
    months = month_proofs.rated_months(connection, calendar)
    return LedgerExtent(
        calendar,
        [calendar.month_of(month.start_ms) for month in months],
        overview.backlog(connection, now_ms // HOUR_MS * HOUR_MS),
    )


def read_rated_period(
    connection: Connection, period: Period, calendar: Calendar | None = None
) -> RatedPeriod:
    """Read what the ledger knows of a period."""
    calendar = calendar or zones.calendar(connection)
    checks, proof = month_proofs.checks_and_proof(connection, period, calendar)
    return RatedPeriod(period, calendar, checks, proof, periods.list_closed(connection))
