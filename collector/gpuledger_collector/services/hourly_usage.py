"""Fold: hours with new evidence become lines of the hourly usage ledger.

An accelerator-hour is always computed from all its evidence, so order and repetition of batches do
not matter, and an interrupted run is simply run again. Only the recompute requests that the
snapshot showed are removed: evidence that arrives meanwhile is folded by the next run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

from gpuledger_collector.accounting.ledger_rows import CapacityRow, EvidenceSum, RecomputeRequest
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, Calendar, Period, day_of
from gpuledger_collector.accounting.pricing import PriceBook
from gpuledger_collector.accounting.usage import (
    HELD,
    HourlyUsage,
    UsageInterval,
    contradictions,
    fold,
    rating_intervals,
)
from gpuledger_collector.services.commitment_coverage import book_of
from gpuledger_collector.services.placements import RatedPlacement, cuts_of, placements_of
from gpuledger_collector.storage import locks
from gpuledger_collector.storage.billing import adjustments, rated_days
from gpuledger_collector.storage.database import Database, give_sort_memory, retry_conflicts
from gpuledger_collector.storage.findings import late_evidence
from gpuledger_collector.storage.ledger import claims, inventory, usage, zones
from gpuledger_collector.storage.locks import Connection, Lock
from gpuledger_collector.storage.telemetry import minute_rollup

BATCH = 50_000
"""Accelerator-hours of one transaction: about a day of 2,000 accelerators.

Each transaction reads the samples of its hours for all accelerators, so requests that repeat, as
they do behind a fold that is late, count once.
"""
MAX_REQUESTS = 4 * BATCH
"""Recompute requests of one transaction: all are in memory."""
TWO_READERS_FROM = 8_000
"""Accelerators from which on their evidence is added up by two sessions at once."""
SORTED_AT_ONCE = 5_000
"""Accelerator-hours whose evidence one statement adds up: 300,000 usage intervals are sorted in the
memory of a sort (`database.SORT_MEMORY`), where those of a large fleet would go through files.
"""
EVIDENCE_AT_ONCE = 2_000
"""Accelerator-hours whose evidence is in memory at once: about 60 usage intervals each, 70 KB."""
ALWAYS = Period(0, 7_258_118_400_000)


def fold_usage(
    database: Database, period: Period = ALWAYS, stopping: Callable[[], bool] = lambda: False
) -> int:
    """Fold every hour of the period with a recompute request; return how many accelerator-hours
    were folded.

    `stopping` is called before each batch of requests: True leaves the rest to the next run. A read
    replica leaves all of it to the primary.
    """
    if database.standby:
        return 0
    with database.sharing_connection() as shared:
        with shared.transaction(read_only=True) as connection:
            days = days_of_hours(
                usage.requested_hours(connection, period), zones.calendar(connection)
            )
        folded = 0
        for day_ms in sorted(days):
            is_full = True
            # Fewer than asked for: none was left. Those that came meanwhile wait for the next run,
            # so this loop ends.
            while is_full and not stopping():
                # A claim that lasts for days is kept by the fold of each of them.
                is_full, hours = retry_conflicts(partial(_fold_batch, shared, day_ms))
                folded += hours
    return folded


def _fold_batch(database: Database, day_ms: int) -> tuple[bool, int]:
    """Fold a batch of a day's requests; whether it was a full one, and its accelerator-hours."""
    with (
        ledger_day(database, day_ms) as (_, day),
        database.transaction(one_snapshot=True) as connection,
    ):
        # Requests are read and removed in the transaction that folds them: one that is interrupted
        # leaves them all.
        requests = usage.recompute_requests(connection, day, BATCH, MAX_REQUESTS)
        hours = fold_requested(connection, requests, database)
        return hours >= BATCH or len(requests) == MAX_REQUESTS, hours


@contextmanager
def ledger_day(
    database: Database, day_ms: int, *, in_order: bool = False
) -> Iterator[tuple[Connection, Period]]:
    """A transaction that holds the lock of a day of the bill, and the day: nobody else folds, rates
    or closes it.

    Each of its statements sees what was committed before it. It holds the whole ledger's lock where
    that of the day is not enough: an hour belongs to another day too, or days depend on each other
    (`in_order`) by a price of their month. No other lock: the session may read in a second one,
    which the server would let wait for somebody who waits for it.
    """
    with database.transaction(locks.of_day(day_ms), one_snapshot=False) as connection:
        locks.outlast_idleness(connection)
        # Rolled back to here, so that no table that was read stays locked.
        with connection.transaction(force_rollback=True):
            calendar = zones.calendar(connection)
            day = calendar.day_of(day_ms)
            whole_hours = day.start_ms % HOUR_MS == day.end_ms % HOUR_MS == 0
            dependent = in_order and tiered_month(connection, calendar, day)
            alone = day.start_ms == day_ms and whole_hours and not dependent
        if alone:
            yield connection, day
            return
    with database.transaction(Lock.LEDGER, one_snapshot=False) as connection:
        locks.outlast_idleness(connection)
        with connection.transaction(force_rollback=True):
            day = zones.calendar(connection).day_of(day_ms)
        yield connection, day


def tiered_month(connection: Connection, calendar: Calendar, days: Period) -> bool:
    """Whether a tier counts the hours of earlier days in the months of a period."""
    first = calendar.month(calendar.month_of(days.start_ms))
    last = calendar.month(calendar.month_of(days.end_ms - 1))
    return adjustments.tiered_between(
        connection, calendar.date_of(first.start_ms), calendar.date_of(last.end_ms)
    )


def fold_requested(
    connection: Connection,
    requests: Sequence[RecomputeRequest],
    database: Database | None = None,
) -> int:
    """Fold the hours of these requests, request rating of their days, and remove the requests;
    return the hours.

    With `database`, whose transaction `connection` is, a large fleet is read by a second session as
    well; all is written by the first.
    """
    if not requests:
        return 0
    give_sort_memory(connection)
    book = book_of(connection, None)
    calendar = zones.calendar(connection)
    hours = sorted(
        {
            (request.accelerator_id, request.hour_ms - request.hour_ms % HOUR_MS)
            for request in requests
        }
    )
    # Day by day: evidence and inventory are read once for each day rather than once for each hour.
    by_day: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for accelerator_id, hour_ms in hours:
        by_day[hour_ms - hour_ms % DAY_MS][accelerator_id].append(hour_ms)
    for of_accelerators in by_day.values():
        _fold_day(connection, of_accelerators, book, calendar, database)
    rated_days.request_recompute(
        connection, days_of_hours({hour_ms for _, hour_ms in hours}, calendar), by_fold=True
    )
    usage.remove_recompute_requests(connection, [request.id for request in requests])
    return len(hours)


def days_of_hours(hours_ms: Iterable[int], calendar: Calendar) -> set[int]:
    """The days of the bill that these hours touch."""
    if calendar.is_utc:
        return {day_of(hour_ms).start_ms for hour_ms in hours_ms}
    days = (
        day for hour_ms in hours_ms for day in calendar.days(Period(hour_ms, hour_ms + HOUR_MS))
    )
    return {calendar.day_of(day.start_ms).start_ms for day in days}


def _fold_day(
    connection: Connection,
    hours: Mapping[int, Sequence[int]],
    book: PriceBook,
    calendar: Calendar,
    database: Database | None,
) -> None:
    span = Period(min(map(min, hours.values())), max(map(max, hours.values())) + HOUR_MS)
    capacity: dict[int, list[CapacityRow]] = defaultdict(list)
    for row in inventory.capacity(connection, span):
        if row.accelerator_id in hours:
            capacity[row.accelerator_id].append(row)
    # Where the billing zone is offset by half an hour, its midnight falls inside a UTC hour, and
    # the piece must be cut there.
    midnights = () if calendar.is_utc else calendar.cuts(span)
    cut_hours_ms = {cut - cut % HOUR_MS for cut in (*book.cuts(span), *midnights) if cut % HOUR_MS}
    by_bounds: dict[tuple[int, int], dict[int, Sequence[int]]] = defaultdict(dict)
    # Late evidence of one accelerator makes others read no more than their own hours.
    for accelerator_id, hours_ms in hours.items():
        by_bounds[min(hours_ms), max(hours_ms)][accelerator_id] = hours_ms
    for (first_ms, last_ms), own_hours in by_bounds.items():
        own_span = Period(first_ms, last_ms + HOUR_MS)
        sums = _evidence_sums(connection, list(own_hours), own_span, database)
        pieces, added_up = _added_up(sums, own_hours, capacity, cut_hours_ms)
        usage.replace_hourly_usage(connection, _pairs(own_hours, added_up), pieces)
        others = {
            number: hours_ms for number, hours_ms in own_hours.items() if number not in added_up
        }
        placements = placements_of(row for number in others for row in capacity.get(number, ()))
        for accelerator_ids in _parts(others):
            pieces = _fold_pieces(
                connection, accelerator_ids, own_hours, own_span, placements, book, midnights
            )
            usage.replace_hourly_usage(connection, _pairs(own_hours, accelerator_ids), pieces)
    # The search for idle GPUs returns to hours that it has already searched.
    late_evidence.note(connection, minute_rollup.roll_up_minutes(connection, _pairs(hours, hours)))


def _pairs(
    hours: Mapping[int, Sequence[int]], accelerator_ids: Iterable[int]
) -> list[tuple[int, int]]:
    return [
        (accelerator_id, hour_ms)
        for accelerator_id in accelerator_ids
        for hour_ms in hours[accelerator_id]
    ]


def _evidence_sums(
    connection: Connection, accelerator_ids: Sequence[int], span: Period, database: Database | None
) -> Iterable[EvidenceSum]:
    """What the database adds up of these accelerators, a large fleet in two halves at once.

    That is most of the time of a fold, and one session has one core.
    """

    def sums_of(session: Connection, asked: Sequence[int]) -> Iterator[EvidenceSum]:
        size = max(1, SORTED_AT_ONCE * HOUR_MS // span.ms)
        for begin in range(0, len(asked), size):
            yield from usage.evidence_sums(session, asked[begin : begin + size], span)

    if database is None or len(accelerator_ids) < TWO_READERS_FROM:
        return sums_of(connection, accelerator_ids)
    half = len(accelerator_ids) // 2
    with database.beside(connection) as reader, ThreadPoolExecutor(1) as threads:
        others = threads.submit(lambda: list(sums_of(reader, accelerator_ids[half:])))
        sums = list(sums_of(connection, accelerator_ids[:half]))
        return [*sums, *others.result()]


def _added_up(
    evidence_sums: Iterable[EvidenceSum],
    hours: Mapping[int, Sequence[int]],
    capacity: Mapping[int, Sequence[CapacityRow]],
    cut_hours_ms: Set[int],
) -> tuple[list[HourlyUsage], set[int]]:
    """Pieces of the accelerators whose evidence the database can add up, as most can, and these
    accelerators.

    They stayed in place, nothing cuts their hours, and each usage interval lies in one hour and
    overlaps no other: what `fold_hours` would give, at a small part of its cost.
    """
    sums: dict[int, list[EvidenceSum]] = defaultdict(list)
    for evidence_sum in evidence_sums:
        sums[evidence_sum.accelerator_id].append(evidence_sum)
    pieces: list[HourlyUsage] = []
    added_up: set[int] = set()
    for accelerator_id, hours_ms in hours.items():
        own, own_capacity = sums.get(accelerator_id, ()), capacity.get(accelerator_id, ())
        # Evidence without capacity has no pieces, as in `fold_hours`.
        inside = [
            evidence_sum
            for evidence_sum in own
            if own_capacity and evidence_sum.hour_ms in hours_ms
        ]
        if (
            all(evidence_sum.is_additive for evidence_sum in own)
            and cut_hours_ms.isdisjoint(hours_ms)
            and _is_of_one_place(inside, own_capacity)
        ):
            added_up.add(accelerator_id)
            pieces += map(_piece, inside)
    return pieces, added_up


def _is_of_one_place(sums: Sequence[EvidenceSum], capacity: Sequence[CapacityRow]) -> bool:
    """Whether all this evidence is of the one place in which its accelerator was."""
    if not sums:
        return True
    # Of a large fleet nearly all have one row, and nothing else of a placement is needed here.
    if len(capacity) == 1:
        node, start_ms, end_ms = capacity[0].node, capacity[0].in_ms, capacity[0].out_ms
    else:
        (placements,) = placements_of(capacity).values()
        if len(placements) != 1:
            return False
        node, period = placements[0].accelerator.node, placements[0].period
        start_ms, end_ms = period.start_ms, period.end_ms
    return all(
        node in ("", each.node)
        and start_ms <= each.first_ms
        and (end_ms is None or each.last_ms <= end_ms)
        for each in sums
    )


def _piece(total: EvidenceSum) -> HourlyUsage:
    is_held = total.state == HELD
    return HourlyUsage(
        accelerator_id=total.accelerator_id,
        start_ms=total.hour_ms,
        end_ms=total.hour_ms + HOUR_MS,
        state=total.state,
        workload_id=total.workload_id,
        held_ms=total.held_ms,
        busy_ms=total.busy_ms if is_held else 0,
        idle_ms=total.idle_ms if is_held else 0,
        unknown_ms=total.unknown_ms if is_held else 0,
        energy_mj=total.energy_mj,
        attributes_id=total.attributes_id,
    )


def _fold_pieces(
    connection: Connection,
    accelerator_ids: Sequence[int],
    hours: Mapping[int, Sequence[int]],
    span: Period,
    placements: Mapping[int, Sequence[RatedPlacement]],
    book: PriceBook,
    midnights: Sequence[int],
) -> list[HourlyUsage]:
    """Pieces of accelerators that are folded interval by interval; contradictions in their evidence
    are kept.
    """
    evidence: dict[int, list[UsageInterval]] = defaultdict(list)
    for usage_interval in usage.usage_intervals(connection, accelerator_ids, span):
        evidence[usage_interval.accelerator_id].append(usage_interval)
    # Kept as evidence for people; the fold below gives the time to the first report in any case.
    claims.upsert_contradictions(
        connection,
        [
            contradiction
            for intervals in evidence.values()
            for contradiction in contradictions(intervals)
        ],
    )
    pieces: list[HourlyUsage] = []
    for number in accelerator_ids:
        pieces += fold_hours(
            evidence.get(number, ()), hours[number], placements.get(number, ()), book, midnights
        )
    return pieces


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


def fold_hours(
    evidence: Sequence[UsageInterval],
    hours_ms: Sequence[int],
    placements: Sequence[RatedPlacement],
    book: PriceBook,
    midnights: Sequence[int] = (),
) -> list[HourlyUsage]:
    """The pieces of some hours of one accelerator, cut where a price changes, where it moved and
    where a day begins.
    """
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
