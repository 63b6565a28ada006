"""What a period would have cost under another price book: rated anew from its usage, in memory; the
ledger is not changed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from gpuledger_collector.accounting.chargeback import report
from gpuledger_collector.accounting.ledger import ChargedLine
from gpuledger_collector.accounting.measures import SUMMED
from gpuledger_collector.accounting.owner_tree import LEVELS, UNATTRIBUTED
from gpuledger_collector.accounting.period import HOUR_MS, Period
from gpuledger_collector.accounting.pricing import Price, PriceBook
from gpuledger_collector.accounting.rating import Charge
from gpuledger_collector.accounting.usage import HourlyUsage, UsageInterval
from gpuledger_collector.accounting.what_if import PriceDifference, compare_reports
from gpuledger_collector.services.hourly_usage import fold_hours
from gpuledger_collector.services.placements import without_stranded
from gpuledger_collector.services.rating import DayUsage, price_usage, usage_of
from gpuledger_collector.storage.billing import (
    commitments,
    locations,
    node_purchases,
    prices,
    reports,
)
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.ledger import usage, zones
from gpuledger_collector.storage.locks import Connection, Lock

DIMENSIONS = (*LEVELS, "pool", "model", "node")
"""What the answer can be grouped by."""


def compare_prices(
    database: Database, period: Period, other: Sequence[Price], now_ms: int, by: Sequence[str]
) -> list[PriceDifference]:
    """Compare what a period is charged with what it would be with these prices in place of the
    book's.
    """
    with database.transaction(Lock.LEDGER) as connection:
        charged = report(reports.charged_lines(connection, period, by), by)
        book = PriceBook(
            other,
            commitments.CHOICES.in_force(connection),
            locations=locations.current(connection),
            said=node_purchases.during(connection, period),
        )
        return compare_reports(
            charged, report(rate_again(connection, period, book, now_ms, by), by)
        )


def rate_again(
    connection: Connection, period: Period, book: PriceBook, now_ms: int, by: Sequence[str]
) -> list[ChargedLine]:
    """The period's days under `book`, added up by these dimensions, state and currency."""
    if period.start_ms >= now_ms:
        return []
    sums: dict[tuple[tuple[str, ...], str, str | None], ChargedLine] = {}
    calendar = zones.calendar(connection)
    for day in calendar.days(Period(period.start_ms, min(period.end_ms, now_ms))):
        whole = Period(day.start_ms, min(calendar.day_of(day.start_ms).end_ms, period.end_ms))
        charges, *_ = price_usage(
            recut(connection, usage_of(connection, whole, now_ms), book), book
        )
        for charge in charges:
            line = _line(charge, by)
            key = (line.keys, line.state, line.currency)
            known = sums.get(key)
            sums[key] = line if known is None else known.plus(line)
    return list(sums.values())


def recut(connection: Connection, day_usage: DayUsage, book: PriceBook) -> DayUsage:
    """The usage with every hour in which a rate of either book begins or ends folded again, cut as
    `book` cuts it.
    """
    edges = {*book.cuts(day_usage.day), *PriceBook(prices.current(connection)).cuts(day_usage.day)}
    hours = sorted({edge - edge % HOUR_MS for edge in edges if edge % HOUR_MS})
    if not hours:
        return day_usage
    evidence: dict[int, list[UsageInterval]] = defaultdict(list)
    for hour_ms in hours:
        hour = Period(hour_ms, hour_ms + HOUR_MS)
        for usage_interval in usage.usage_intervals(connection, list(day_usage.placements), hour):
            evidence[usage_interval.accelerator_id].append(usage_interval)
    pieces: dict[int, list[HourlyUsage]] = {}
    again = set(hours)
    for accelerator_id, placements in day_usage.placements.items():
        kept = [
            entry
            for entry in day_usage.pieces.get(accelerator_id, ())
            if entry.start_ms - entry.start_ms % HOUR_MS not in again
        ]
        # Where the day begins or ends inside one of these hours, the rest of that hour is another
        # day's.
        folded = fold_hours(
            evidence.get(accelerator_id, ()),
            hours,
            without_stranded(placements),
            book,
            (day_usage.day.start_ms, day_usage.day.end_ms),
        )
        ended = (
            replace(piece, end_ms=piece.start_ms - piece.start_ms % HOUR_MS + HOUR_MS)
            for piece in folded
            if day_usage.day.start_ms <= piece.start_ms < day_usage.day.end_ms
        )
        pieces[accelerator_id] = [*kept, *ended]
    return replace(day_usage, pieces=pieces)


def _line(charge: Charge, by: Iterable[str]) -> ChargedLine:
    """A charge under some of DIMENSIONS, as the ledger's own lines stand under them."""
    places = {"pool": charge.pool, "model": charge.gpu_model, "node": charge.node}
    owner = charge.owner or UNATTRIBUTED
    keys = tuple(places[name] if name in places else owner.level(name) for name in by)
    known = {name: getattr(charge, name) for name in SUMMED}
    return ChargedLine(keys, charge.state, charge.currency, **known)
