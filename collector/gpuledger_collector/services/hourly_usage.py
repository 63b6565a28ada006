"""Fold: hours with new evidence become lines of the hourly usage ledger.

An accelerator-hour is always computed from all its evidence, so order and repetition of batches do not matter, and an
interrupted run is simply run again. Only the recompute requests that the snapshot showed are removed: evidence that
arrives meanwhile is folded by the next run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from gpuledger_collector.accounting.period import HOUR_MS, Calendar, Period, day_of
from gpuledger_collector.accounting.pricing import PriceBook
from gpuledger_collector.accounting.usage import HourlyUsage, UsageInterval, contradictions, fold, rating_intervals
from gpuledger_collector.services.commitment_coverage import book_of
from gpuledger_collector.services.placements import RatedPlacement, cuts_of, placements_of
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.ledger import claims, inventory, rated_days, usage, zones
from gpuledger_collector.storage.ledger.rows import CapacityRow, RecomputeRequest
from gpuledger_collector.storage.locks import Connection, Lock
from gpuledger_collector.storage.telemetry import minute_rollup

BATCH = 50_000
"""Recompute requests of one transaction: about a day of 2,000 accelerators."""
EVIDENCE_AT_ONCE = 2_000
"""Accelerator-hours whose evidence is in memory at once: about 60 usage intervals each, 70 KB."""
ALWAYS = Period(0, 7_258_118_400_000)


def fold_usage(database: Database, period: Period = ALWAYS, stopping: Callable[[], bool] = lambda: False) -> int:
    """Fold every hour of the period with a recompute request; return how many accelerator-hours were folded.

    `stopping` is called before each batch of requests: True leaves the rest to the next run. A read replica leaves all
    of it to the primary.
    """
    folded = 0
    while not (database.standby or stopping()):
        with database.transaction(Lock.LEDGER) as connection:
            # Requests are read and removed in the transaction that folds them: one that is interrupted leaves them all.
            requests = usage.recompute_requests(connection, period, BATCH)
            folded += fold_requested(connection, requests)
        # Fewer than asked for: none was left. Those that came meanwhile wait for the next run, so this loop ends.
        if len(requests) < BATCH:
            break
    return folded


def fold_requested(connection: Connection, requests: Sequence[RecomputeRequest]) -> int:
    """Fold the hours of these requests, request rating of their days, and remove the requests; return the hours."""
    if not requests:
        return 0
    book = book_of(connection)
    calendar = zones.calendar(connection)
    hours = sorted({(request.accelerator_id, request.hour_ms - request.hour_ms % HOUR_MS) for request in requests})
    # Day by day: evidence and inventory are read once for each day rather than once for each hour.
    by_day: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for accelerator_id, hour_ms in hours:
        by_day[day_of(hour_ms).start_ms][accelerator_id].append(hour_ms)
    for of_accelerators in by_day.values():
        _fold_day(connection, of_accelerators, book, calendar)
    rated_days.request_recompute(connection, _days_of({hour_ms for _, hour_ms in hours}, calendar))
    usage.remove_recompute_requests(connection, [request.id for request in requests])
    return len(hours)


def _days_of(hours_ms: Iterable[int], calendar: Calendar) -> set[int]:
    """The days of the bill that these hours touch."""
    if calendar.is_utc:
        return {day_of(hour_ms).start_ms for hour_ms in hours_ms}
    days = (day for hour_ms in hours_ms for day in calendar.days(Period(hour_ms, hour_ms + HOUR_MS)))
    return {calendar.day_of(day.start_ms).start_ms for day in days}


def _fold_day(connection: Connection, hours: Mapping[int, Sequence[int]], book: PriceBook, calendar: Calendar) -> None:
    span = Period(min(map(min, hours.values())), max(map(max, hours.values())) + HOUR_MS)
    placements = placements_of(_of(inventory.capacity(connection, span), hours))
    # Where the billing zone is offset by half an hour, its midnight falls inside a UTC hour, and the piece must be cut
    # there.
    midnights = () if calendar.is_utc else calendar.cuts(span)
    for accelerator_ids in _parts(hours):
        evidence: dict[int, list[UsageInterval]] = defaultdict(list)
        for usage_interval in usage.usage_intervals(connection, accelerator_ids, span):
            evidence[usage_interval.accelerator_id].append(usage_interval)
        # Kept as evidence for people; the fold below gives the time to the first report in any case.
        claims.keep_contradictions(
            connection,
            [contradiction for intervals in evidence.values() for contradiction in contradictions(intervals)],
        )
        pieces: list[HourlyUsage] = []
        for accelerator_id in accelerator_ids:
            own_placements = placements.get(accelerator_id, ())
            own_evidence = evidence.get(accelerator_id, ())
            pieces += fold_hours(own_evidence, hours[accelerator_id], own_placements, book, midnights)
        pairs = [(accelerator_id, hour_ms) for accelerator_id in accelerator_ids for hour_ms in hours[accelerator_id]]
        usage.replace_hourly_usage(connection, pairs, pieces)
        minute_rollup.roll_up_minutes(connection, pairs)


def _parts(hours: Mapping[int, Sequence[int]]) -> Iterator[list[int]]:
    """Accelerators in their order, as many at a time as have EVIDENCE_AT_ONCE hours."""
    part: list[int] = []
    size = 0
    for accelerator_id, hours_ms in hours.items():
        part.append(accelerator_id)
        size += len(hours_ms)
        if size >= EVIDENCE_AT_ONCE:
            yield part
            part, size = [], 0
    if part:
        yield part


def _of(rows: Sequence[CapacityRow], accelerators: Mapping[int, object]) -> list[CapacityRow]:
    return [row for row in rows if row.accelerator_id in accelerators]


def fold_hours(
    evidence: Sequence[UsageInterval],
    hours_ms: Sequence[int],
    placements: Sequence[RatedPlacement],
    book: PriceBook,
    midnights: Sequence[int] = (),
) -> list[HourlyUsage]:
    """The pieces of some hours of one accelerator, cut where a price changes, where it moved and where a day begins."""
    # No pieces is an answer too: the caller replaces what it had for these hours.
    if not evidence or not placements:
        return []
    parts: list[Period] = []
    for hour_ms in sorted(hours_ms):
        hour = Period(hour_ms, hour_ms + HOUR_MS)
        parts += rating_intervals(hour, [*book.cuts(hour), *cuts_of(placements, hour), *midnights])
    by_node: dict[str, list[Period]] = defaultdict(list)
    for placement in placements:
        by_node[placement.accelerator.node].append(placement.period)
    pieces: list[HourlyUsage] = []
    for node, periods in by_node.items():
        # While an accelerator is on a node, nobody else's evidence of it counts.
        pieces += fold([fact for fact in evidence if node in ("", fact.node)], parts, periods)
    return sorted(pieces, key=lambda piece: piece.start_ms)
