"""What a period bills, for other programs: FOCUS, its billing periods, and a journal."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpuledger_collector.accounting.closing import BillingMonth
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.export import focus, focus_split
from gpuledger_collector.export.beancount import Journal
from gpuledger_collector.services.chargeback import notices_by_month
from gpuledger_collector.storage.billing import cash, locations, periods, providers, reports
from gpuledger_collector.storage.billing.allocation import shares
from gpuledger_collector.storage.billing.cost_centers import BilledCodes
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.ledger import zones
from gpuledger_collector.storage.locks import Connection


class FocusVersion(enum.StrEnum):
    """Versions of FOCUS that are written and checked."""

    v1_2 = "1.2"
    v1_4 = "1.4"


@dataclass(frozen=True, slots=True)
class FocusExport:
    """The rows of a version, read as they are taken, and its columns."""

    columns: Sequence[str]
    rows: Iterator[focus.Row]


def export_focus(
    connection: Connection, period: Period, level: str, now_ms: int, version: FocusVersion
) -> FocusExport:
    """Export a period by a level of the owner tree, while the caller's snapshot lasts; call
    `refresh` before it.
    """
    book = focus.Book(
        level,
        {month.name for month in periods.list_closed(connection)},
        zones.calendar(connection),
        providers.by_month(connection, period),
        notices_by_month(connection, period, now_ms),
        locations.by_month(connection, period),
    )
    made_of = (
        book,
        BilledCodes(connection).tag_charges(reports.charges(connection, period)),
        cash.payments(connection, period, now_ms),
        shares(connection, period, level, now_ms),
    )
    if version is FocusVersion.v1_2:
        return FocusExport(focus.COLUMNS, focus.lines(*made_of))
    return FocusExport(focus_split.COLUMNS, focus_split.lines(*made_of))


def read_journal(connection: Connection, period: Period, level: str, now_ms: int) -> Journal:
    """Read what a journal of a period is made of; call `refresh` before it."""
    calendar = zones.calendar(connection)
    return Journal(
        level,
        calendar,
        [(day, reports.charged_lines(connection, day, (level,))) for day in calendar.days(period)],
        shares(connection, period, level, now_ms),
        BilledCodes(connection).of_owners(period, level),
    )


def list_billing_months(database: Database) -> list[BillingMonth]:
    """List every month that was rated or closed, by time."""
    with database.transaction() as connection:
        calendar = zones.calendar(connection)
        closed = {month.name: month.closed_ms for month in periods.list_closed(connection)}
        updated: dict[str, int] = {}
        for day_ms, at_ms in reports.rated_at(connection).items():
            name = calendar.month_of(day_ms)
            updated[name] = max(at_ms, updated.get(name, at_ms))
        updated |= closed
    return [
        BillingMonth(calendar.month(name), updated[name], name in closed)
        for name in sorted(updated)
    ]
