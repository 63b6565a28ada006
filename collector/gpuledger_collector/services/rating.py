"""Rate: the usage of a day, the price book and the attribution rules become the day's charges,
ledger and proof.

A day is one transaction and always computed from all its evidence, so an interrupted run is simply
run again, and late evidence re-rates its day. Time is held once: accelerators that were seen in a
pool take the place of as many GPUs that were imported for it as mere counts.
"""

from __future__ import annotations

import datetime as dt
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from gpuledger_collector.accounting.adjustments import POLICIES, TIERED, Place
from gpuledger_collector.accounting.attribution import (
    Attribution,
    Rule,
    WorkloadFacts,
    edges_of,
    slurm_job_id,
)
from gpuledger_collector.accounting.commitments import Commitment, CommitmentCost, Key
from gpuledger_collector.accounting.corrections import difference
from gpuledger_collector.accounting.imported_usage import (
    SeenAccelerator,
    SeenPod,
    without_pods,
    without_seen,
)
from gpuledger_collector.accounting.inference_charges import SharedServers, inference_charges
from gpuledger_collector.accounting.inference_share import InferenceShare
from gpuledger_collector.accounting.ledger import RatedDay, check_conservation, summarize
from gpuledger_collector.accounting.node_charges import NodeUsage
from gpuledger_collector.accounting.node_costs import NodeCost, node_hours
from gpuledger_collector.accounting.owner_tree import OwnerPath
from gpuledger_collector.accounting.period import HOUR_MS, Period
from gpuledger_collector.accounting.pricing import PriceBook
from gpuledger_collector.accounting.rating import (
    CapacityCost,
    Charge,
    DayAdjustments,
    ImportedUsage,
    OwnerOf,
    RatedAccelerator,
    adjustment_charges,
    capacity_cost,
    held_costs,
    rate_accelerator_day,
    rate_imported,
    unused_charges,
)
from gpuledger_collector.accounting.reattribution import Reattribution, Reattributions
from gpuledger_collector.accounting.usage import HourlyUsage, merge_pieces, rating_intervals
from gpuledger_collector.services.commitment_coverage import (
    book_of,
    cover_day,
    key_of_count,
    list_places,
    node_places,
)
from gpuledger_collector.services.hourly_usage import (
    ALWAYS,
    fold_requested,
    ledger_day,
    tiered_month,
)
from gpuledger_collector.services.placements import (
    RatedPlacement,
    cuts_of,
    placements_of,
    with_stranded,
    without_stranded,
)
from gpuledger_collector.services.shared_servers import read_shared_servers
from gpuledger_collector.storage import locks
from gpuledger_collector.storage.billing import (
    adjustments,
    commitments,
    inference,
    months,
    node_costs,
    periods,
    rated_days,
    reattributions,
    reports,
)
from gpuledger_collector.storage.database import Database, retry_conflicts
from gpuledger_collector.storage.ledger import inventory, rules, usage, workloads, zones
from gpuledger_collector.storage.locks import Connection, Lock

if TYPE_CHECKING:
    from gpuledger_collector.storage.ledger.hour_columns import HourColumns

FAST_CLOCK_MS = 600_000
"""How far ahead of ours a node's clock may be before its evidence waits."""
TOGETHER_FROM = 256
"""Accelerators from which on rating them together is worth importing numpy."""
OnDay = Callable[[int, int], None]
"""Called after each day with the number of days done and the number of all days."""
WORKERS_FROM_S = 4.0
"""Seconds of rating that are worth starting worker processes, which takes about one."""
MANY_DAYS = 7
"""Days at once after which Postgres is told how many charges there are now."""


def rate_usage(
    database: Database,
    now_ms: int,
    period: Period = ALWAYS,
    on_day: OnDay | None = None,
    stopping: Callable[[], bool] = lambda: False,
    book_at_ms: int | None = None,
    workers: int = 1,
) -> int:
    """Rate every day of the period that needs it, up to now, and add up months that are over; how
    many days were rated.

    Days whose price follows from a day that was just rated are rated as well, so that a second run
    changes nothing. `stopping` is asked before each day: True leaves the rest to the next run.
    Corrections of closed days are booked on the day of `book_at_ms` (None: now), or the first open
    one after it. With `workers`, days that would take long are rated by as many processes.
    """
    with database.sharing_connection() as shared:
        return _rate_requested(shared, now_ms, period, on_day, stopping, book_at_ms, workers)


def _rate_requested(
    database: Database,
    now_ms: int,
    period: Period,
    on_day: OnDay | None,
    stopping: Callable[[], bool],
    book_at_ms: int | None,
    workers: int,
) -> int:
    rated: set[int] = set()
    while True:
        requested, independent, month_missing = _to_rate(database, period, now_ms)
        # Each day once: rating requests later days only, and evidence that keeps arriving must not
        # delay a report.
        days = [day_ms for day_ms in requested if day_ms not in rated]
        count = 0
        for count in _rate_days(
            database, days, stopping, now_ms, book_at_ms, workers if independent else 1
        ):
            if on_day is not None:
                on_day(len(rated) + count, len(rated) + len(days))
        if count >= MANY_DAYS and not stopping():
            with database.transaction() as connection:
                rated_days.count_charges(connection)
        rated.update(days[:count])
        if count < len(days):
            return len(rated)
        if independent or not days:
            break
    while (rated or month_missing) and not stopping() and _add_up_month(database, now_ms):
        pass
    return len(rated)


def _rate_days(
    database: Database,
    days: Sequence[int],
    stopping: Callable[[], bool],
    now_ms: int,
    book_at_ms: int | None,
    workers: int,
) -> Iterator[int]:
    """Rate days in their order, or by worker processes in any; yields the number of days done until
    asked to stop.
    """
    started = time.monotonic()
    # A transaction for each day: its lock is released between days, and an interrupted run loses
    # one day at most.
    for done, day_ms in enumerate(days):
        if stopping():
            return
        seconds_left = (time.monotonic() - started) / max(done, 1) * (len(days) - done)
        if done and workers > 1 and seconds_left > WORKERS_FROM_S:
            yield from _rate_by_workers(database, days, done, workers, now_ms, book_at_ms)
            return
        rate_day(database, day_ms, now_ms, book_at_ms)
        yield done + 1


def _to_rate(database: Database, period: Period, now_ms: int) -> tuple[Sequence[int], bool, bool]:
    """The days of a period that need rating, whether they can be rated in any order, and whether a
    month is missing.
    """
    with database.transaction(read_only=True) as connection:
        calendar = zones.calendar(connection)
        if not rated_days.has_misaligned_requests(connection, calendar):
            days = rated_days.days_to_rate(
                connection, with_months_before(connection, period), now_ms
            )
            independent = bool(days) and not tiered_month(
                connection, calendar, Period(days[0], days[-1] + 1)
            )
            return days, independent, months.missing(connection, calendar, now_ms) is not None
    with database.transaction(Lock.LEDGER) as connection:
        rated_days.align_requests(connection, zones.calendar(connection))
    return _to_rate(database, period, now_ms)


def _rate_by_workers(
    database: Database,
    days: Sequence[int],
    done: int,
    workers: int,
    now_ms: int,
    book_at_ms: int | None,
) -> Iterator[int]:
    # Imported here: a command that rates a few days starts no process.
    from gpuledger_collector.services import rating_workers

    retry_conflicts(partial(_forget_months, database, days))
    for count in rating_workers.rate_days(database, days[done:], workers, now_ms, book_at_ms):
        yield done + count


def _forget_months(database: Database, days: Sequence[int]) -> None:
    with database.transaction() as connection:
        months.forget(connection, days)


def _add_up_month(database: Database, now_ms: int) -> bool:
    """Add up a month that is over, if one is missing: rating a day removes the sums of its month.

    While another process holds the lock of a day it is left to the next run, which may be that
    one's.
    """
    with database.transaction(read_only=True) as connection:
        if months.missing(connection, zones.calendar(connection), now_ms) is None:
            return False
    with database.transaction(one_snapshot=True) as connection:
        if not locks.try_take(connection, Lock.LEDGER):
            return False
        return months.add_up(connection, lambda: zones.calendar(connection), now_ms)


def with_months_before(connection: Connection, period: Period) -> Period:
    """The period from the start of its first month where a tier counts the hours since then."""
    if period == ALWAYS:
        return period
    calendar = zones.calendar(connection)
    month = calendar.month(calendar.month_of(period.start_ms))
    bounds = (
        calendar.date_of(period.start_ms),
        calendar.date_of(period.end_ms - 1) + dt.timedelta(days=1),
    )
    if month.start_ms == period.start_ms or not adjustments.tiered_between(connection, *bounds):
        return period
    return Period(month.start_ms, period.end_ms)


@dataclass(frozen=True, slots=True)
class DayUsage:
    """All that the charges of a day follow from, but for the price book."""

    day: Period
    until_ms: int
    placements: Mapping[int, Sequence[RatedPlacement]]
    pieces: Mapping[int, Sequence[HourlyUsage]]
    imported: Sequence[ImportedUsage]
    owners: Owners
    commitments: Sequence[Commitment] = ()
    node_costs: Sequence[NodeCost] = ()
    adjusting: DayAdjustments = field(default_factory=DayAdjustments)
    shared: SharedServers | None = None
    """Shared model servers that charge their tenants; None: none does."""
    rated: Mapping[int, Sequence[Charge]] = field(default_factory=dict)
    """Charges of accelerators that were rated together, by the book that `usage_of` was given; they
    have no pieces.
    """


def rate_day(database: Database, day_ms: int, now_ms: int, book_at_ms: int | None = None) -> None:
    """Fold what is left to fold of a day, rate it and write it, unless another process just did."""
    retry_conflicts(partial(_rate_day, database, day_ms, now_ms, book_at_ms))


def _rate_day(database: Database, day_ms: int, now_ms: int, book_at_ms: int | None) -> None:
    with ledger_day(database, day_ms, in_order=True) as (ledger, day):
        # In a transaction of its own, which ends before the first row is written: it reads one
        # snapshot, whereas the other one sees owners and months that raters of other days change
        # meanwhile.
        with database.transaction(one_snapshot=True) as evidence:
            if not rated_days.due(evidence, day, now_ms):
                return
            # Under the same lock: a day is never rated from hours that wait to be folded.
            fold_requested(evidence, usage.recompute_requests(evidence, day), database)
            # Requests that arrive after this snapshot stay.
            requests = rated_days.requests(evidence, day.start_ms)
            rated = _price_day(evidence, day, now_ms)
        # Committed at once: a rater of another day that adds the same owners does not wait for the
        # end of this one.
        with database.transaction() as connection:
            owners = rated_days.owner_ids(connection, rated.charges)
            shares = inference.share_ids(connection, rated.charges)
        _request_later_days(ledger, day, rated.charges, now_ms)
        book_at_ms = now_ms if book_at_ms is None else book_at_ms
        _write(ledger, day, rated, owners, shares, now_ms, book_at_ms)
        rated_days.remove_requests(ledger, requests)


def _price_day(connection: Connection, day: Period, now_ms: int) -> RatedDay:
    """The charges of a day with their sums and their conservation check."""
    book = book_of(connection, day)
    day_usage = usage_of(connection, day, now_ms, book=book)
    charges, capacities, commitment_costs = price_usage(day_usage, book)
    check = check_conservation(day, day_usage.until_ms, capacities, charges, commitment_costs)
    return RatedDay(charges, summarize(charges), check)


def rated_again(connection: Connection, day: Period) -> RatedDay:
    """What rating makes of a day that has ended, as far as it is folded; nothing is written."""
    return _price_day(connection, day, day.end_ms)


def _volumes(connection: Connection, period: Period) -> dict[Place, int]:
    return {
        place: held.gpu_ns
        for place, held in reports.held_costs(connection, period).items()
        if held.gpu_ns
    }


def _request_later_days(
    connection: Connection, day: Period, charges: Sequence[Charge], now_ms: int
) -> None:
    """Have later days of the month rated again where a tier counts hours that change on this one."""
    calendar = zones.calendar(connection)
    month = calendar.month(calendar.month_of(day.start_ms))
    bounds = calendar.date_of(day.end_ms), calendar.date_of(month.end_ms)
    # After a day that has not ended nothing is rated yet.
    if day.end_ms >= min(month.end_ms, now_ms) or not adjustments.tiered_between(
        connection, *bounds
    ):
        return
    volumes = {place: held.gpu_ns for place, held in held_costs(charges).items() if held.gpu_ns}
    if volumes != _volumes(connection, day):
        rated_days.request_recompute_of_rated(
            connection, Period(day.end_ms, min(month.end_ms, now_ms))
        )


def usage_of(
    connection: Connection,
    day: Period,
    now_ms: int,
    proposed: Sequence[Reattribution] = (),
    book: PriceBook | None = None,
    *,
    with_tokens: bool = True,
) -> DayUsage:
    """Read what a day's charges follow from, as far as it is folded; `proposed` reattributions
    count as if decided. Without tokens no cost of shared servers is moved.

    With a price book most accelerators of a large fleet are rated by it on the way, which is
    several times as fast.
    """
    until_ms = _rated_until(connection, day, now_ms)
    decisions = [*reattributions.read_decisions(connection, day), *proposed]
    rows = inventory.capacity(connection, day)
    placements = placements_of(rows)
    imported = imported_without_seen(connection, day, placements, until_ms)
    all_commitments = commitments.COMMITMENTS.in_force(connection)
    costs = node_costs.list_holding(connection, zones.calendar(connection).date_of(day.start_ms))
    pieces: Mapping[int, list[HourlyUsage]] = {}
    columns: HourColumns | None = None
    # Whose time is covered, who pays for a node and what a dispute moved is decided piece by piece.
    by_piece = bool(decisions or costs) or any(
        one.term.clip(day) is not None for one in all_commitments
    )
    if book is None or by_piece or len(placements) < TOGETHER_FROM:
        pieces = _pieces(connection, day, until_ms)
    else:
        # Imported here: a command that rates a day of a few accelerators does not wait for numpy.
        from gpuledger_collector.storage.ledger import hour_columns

        columns = hour_columns.read(connection, day, until_ms)
    holders: list[tuple[int | None, int | None]] = [
        (usage.workload_id, usage.attributes_id) for usage in imported
    ]
    holders += [
        (piece.workload_id, piece.attributes_id)
        for own_pieces in pieces.values()
        for piece in own_pieces
    ]
    holders += [] if columns is None else columns.holders()
    owners = _owners(connection, holders, Reattributions(decisions))
    # After the imports: the stranded part of a board is nobody's sighting, and replaces no imported
    # GPU.
    placements = with_stranded(placements, rows, day)
    rated: Mapping[int, Sequence[Charge]] = {}
    if columns is not None and book is not None:
        rated, pieces = _rated_together(day, until_ms, placements, columns, owners, book)
    return DayUsage(
        day=day,
        until_ms=until_ms,
        placements=placements,
        pieces=pieces,
        imported=imported,
        owners=owners,
        commitments=all_commitments,
        node_costs=costs,
        adjusting=adjusting_on(connection, day),
        shared=read_shared_servers(connection, day, owners.reported()) if with_tokens else None,
        rated=rated,
    )


def _owners(
    connection: Connection,
    holders: Iterable[tuple[int | None, int | None]],
    decided: Reattributions,
) -> Owners:
    """Owners of the workloads of a day, each with what was reported of it."""
    # Facts are read once for the day, for exactly the workloads that occur in it: by what was
    # reported of them, and where nothing was, by what is known now.
    held = {
        (workload_id, report_id) for workload_id, report_id in holders if workload_id is not None
    }
    reported = workloads.attributes(
        connection, sorted({report for _, report in held if report is not None})
    )
    known = workloads.facts(
        connection, sorted({workload for workload, report in held if report not in reported})
    )
    return Owners(rules.current(connection), known, decided, reported)


def _rated_together(
    day: Period,
    until_ms: int,
    placements: Mapping[int, Sequence[RatedPlacement]],
    columns: HourColumns,
    owners: Owners,
    book: PriceBook,
) -> tuple[Mapping[int, Sequence[Charge]], dict[int, list[HourlyUsage]]]:
    """Charges of the accelerators that can be rated together, and the pieces of all others."""
    from gpuledger_collector.services import columnar_rating

    rows = columnar_rating.in_order(columns, owners.holder_order)
    alone = columnar_rating.alone(rows, rating_intervals(day, book.cuts(day)))
    doubled = set(rows.where(~alone).accelerator_id.tolist())
    stayed = {
        number: (on_day[0].accelerator, part)
        for number, on_day in sorted(placements.items())
        if number not in doubled
        and len(on_day) == 1
        and (part := on_day[0].period.clip(day)) is not None
    }
    fleet = columnar_rating.Fleet(
        [place for place, _ in stayed.values()], [part for _, part in stayed.values()]
    )
    together = fleet.holds(rows)
    rated = columnar_rating.rate_fleet(
        fleet,
        day,
        until_ms,
        rows.where(together),
        book,
        owners.owners_at,
        owners.epoch,
        by_place=owners.depend_on_place,
    )
    others: dict[int, list[HourlyUsage]] = defaultdict(list)
    for piece in (rows if rated is None else rows.where(~together)).pieces():
        others[piece.accelerator_id].append(piece)
    return rated or {}, others


def adjusting_on(connection: Connection, day: Period) -> DayAdjustments:
    """Read the adjustments of a day."""
    calendar = zones.calendar(connection)
    holding = adjustments.list_holding(connection, calendar.date_of(day.start_ms))
    if not holding:
        return DayAdjustments()
    volumes: Mapping[Place, int] = {}
    if any(adjustment.kind == TIERED for adjustment in holding):
        month = calendar.month(calendar.month_of(day.start_ms))
        volumes = _volumes(connection, Period(month.start_ms, day.start_ms))
    return DayAdjustments(
        policies=[adjustment for adjustment in holding if adjustment.kind in POLICIES],
        volumes=volumes,
        entries=[
            (adjustment, adjustments.span_of(adjustment, calendar))
            for adjustment in holding
            if adjustment.kind not in POLICIES
        ],
    )


def price_usage(
    usage: DayUsage, book: PriceBook
) -> tuple[list[Charge], list[CapacityCost], list[CommitmentCost]]:
    """The charges of a day under a price book, and what they must add up to: capacity x rate, and
    the commitments.
    """
    # First for the day as a whole: a commitment is shared in proportion to everything that is
    # there.
    coverage = cover_day(
        usage.commitments, usage.day, usage.until_ms, usage.placements, usage.imported, book
    )
    charges: list[Charge] = []
    capacities: list[CapacityCost] = []
    nodes = NodeUsage(usage.day, usage.until_ms)
    capacity_costs: dict[object, CapacityCost] = {}
    for key, placement, capacity, inside in _usage_by_key(usage, book):
        place = placement.accelerator
        owner_of = usage.owners.owners_at(place.pool, place.node, place.accelerator_id)
        where = (place, usage.day, capacity)
        covered = coverage.shares_of(key)
        rated = usage.rated.get(place.accelerator_id)
        if rated is None:
            rated = rate_accelerator_day(*where, inside, book, owner_of, usage.until_ms, covered)
        charges += rated
        # Not derived from the charges: the conservation check compares two computations.
        # Accelerators that cost the same, as most of a fleet do, are computed once.
        node_key = book.node_key(place.node)
        alike = (place.gpu_micro, place.pool, place.gpu_model, node_key, *capacity)
        if covered is not None or alike not in capacity_costs:
            capacity_costs[alike] = capacity_cost(*where, book, usage.until_ms, covered)
        capacities.append(capacity_costs[alike])
        if usage.node_costs:
            nodes.add(placement.accelerator, capacity, inside, owner_of, usage.owners.key)
    for imported in usage.imported:
        owner_of = usage.owners.owners_at(imported.pool, imported.node)
        tags = usage.owners.tags(imported.workload_id, imported.attributes_id)
        covered = coverage.shares_of(key_of_count(imported))
        one_owner = usage.owners.has_one_owner(imported.workload_id, usage.day)
        charges += rate_imported(
            imported, usage.day, book, owner_of, usage.until_ms, covered, tags, one_owner=one_owner
        )
    charges += unused_charges(coverage, usage.day.start_ms)
    if usage.node_costs:
        hours = list(
            node_hours(
                node_places(usage.placements, usage.day),
                usage.node_costs,
                usage.day,
                usage.until_ms,
            )
        )
        charges += nodes.charges(hours)
        capacities += [CapacityCost(0, {hour.cost.currency: hour.micro}) for hour in hours]
    # Last, since they follow from what the time of the day costs.
    held = held_costs(charges) if usage.adjusting.policies else {}
    charges += adjustment_charges(held, usage.day, usage.adjusting)
    if usage.shared is not None:
        charges += inference_charges(charges, usage.day, usage.shared)
    return charges, capacities, coverage.costs


def places(
    usage: DayUsage, book: PriceBook
) -> Iterator[tuple[RatedPlacement, list[Period], list[HourlyUsage]]]:
    """Each accelerator in each of its places: when it was there, and its pieces under the rating
    intervals of the price book.
    """
    return (
        (placement, capacity, inside)
        for _, placement, capacity, inside in _usage_by_key(usage, book)
    )


def _usage_by_key(
    usage: DayUsage, book: PriceBook
) -> Iterator[tuple[Key, RatedPlacement, list[Period], list[HourlyUsage]]]:
    starts = [
        rating_interval.start_ms
        for rating_interval in rating_intervals(usage.day, book.cuts(usage.day))
    ]
    for key, placement, capacity in list_places(usage.placements, usage.day):
        accelerator_id = placement.accelerator.accelerator_id
        # What is stranded shares the id of an instance, but none of its usage.
        if placement.accelerator.stranded or accelerator_id in usage.rated:
            yield key, placement, capacity, []
            continue
        own_placements = without_stranded(usage.placements[accelerator_id])
        inside = _inside(usage.pieces.get(accelerator_id, ()), own_placements, capacity, starts)
        # By content: ties of a split go to the earlier piece, and neither an id, which depends on
        # the order of arrival, nor who came first within the rating interval decides them.
        inside.sort(key=usage.owners.order)
        yield key, placement, capacity, usage.owners.apply_disputes(placement.accelerator, inside)


def booking_day(connection: Connection, at_ms: int) -> int:
    """Start of the day on which a correction is booked: that of `at_ms`, or the first after the
    last closed period.
    """
    return max(
        [
            zones.calendar(connection).day_of(at_ms).start_ms,
            *(closed_period.period.end_ms for closed_period in periods.list_closed(connection)),
        ]
    )


def _write(
    connection: Connection,
    day: Period,
    rated: RatedDay,
    owners: Mapping[OwnerPath, int],
    shares: Mapping[InferenceShare, int],
    now_ms: int,
    book_at_ms: int,
) -> None:
    """The day as rated; of a day that is closed the difference to what was billed, booked in an
    open day.
    """
    closed = periods.list_closed(connection)
    # An open day is replaced; of a closed one only the difference is written.
    if not any(closed_period.period.clip(day) for closed_period in closed):
        rated_days.replace_day(connection, day.start_ms, rated, owners, shares, now_ms)
        return
    # What was billed includes earlier corrections: a second late batch books only what it changes
    # itself.
    lines = difference(
        [line.charge for line in reports.billed_so_far(connection, day.start_ms)], rated.charges
    )
    owners = rated_days.owner_ids(connection, lines)
    shares = inference.share_ids(connection, lines)
    rated_days.correct_day(
        connection, rated, lines, owners, shares, booking_day(connection, book_at_ms), now_ms
    )


def _rated_until(connection: Connection, day: Period, now_ms: int) -> int:
    """Now, or the end of evidence that a node's fast clock put a little after it; at most the end
    of the day.

    Evidence from further ahead waits until its time has come: nobody is charged for the time in
    between.
    """
    if now_ms >= day.end_ms:
        return day.end_ms
    latest = usage.latest_evidence_ms(connection, max(day.start_ms, now_ms - HOUR_MS), now_ms)
    return min(day.end_ms, max(now_ms, min(latest or 0, now_ms + FAST_CLOCK_MS)))


def _pieces(connection: Connection, day: Period, until_ms: int) -> dict[int, list[HourlyUsage]]:
    by_accelerator: dict[int, list[HourlyUsage]] = defaultdict(list)
    for piece in usage.hourly_usage(connection, day):
        if piece.start_ms < until_ms:
            by_accelerator[piece.accelerator_id].append(piece)
    return by_accelerator


def _inside(
    pieces: Sequence[HourlyUsage],
    placements: Sequence[RatedPlacement],
    capacity: Sequence[Period],
    starts: Sequence[int],
) -> list[HourlyUsage]:
    """The pieces that fall into these capacity periods, each under the start of the rating interval
    that holds it.

    Where an accelerator moved, its pieces were cut at the move, so each lies in one place.
    """
    inside = []
    for piece in pieces:
        hour_ms = piece.start_ms - piece.start_ms % HOUR_MS
        cuts = cuts_of(placements, Period(hour_ms, hour_ms + HOUR_MS))
        # The end of a piece is that of its interval; where the accelerator moved, the piece ends at
        # the move.
        end_ms = min([piece.end_ms, *(cut for cut in cuts if cut > piece.start_ms)])
        if any(period.start_ms < end_ms and piece.start_ms < period.end_ms for period in capacity):
            # A piece that was cut at a move still belongs to the interval that began before it:
            # there the cost is rounded once.
            rating_interval_ms = starts[bisect_right(starts, piece.start_ms) - 1]
            inside.append(
                piece
                if piece.start_ms == rating_interval_ms
                else replace(piece, start_ms=rating_interval_ms)
            )
    return merge_pieces(inside)


def imported_without_seen(
    connection: Connection,
    day: Period,
    placements: Mapping[int, Sequence[RatedPlacement]],
    until_ms: int,
) -> list[ImportedUsage]:
    """Imported usage of a day, less the time of accelerators that were seen in its pools, and of
    pods that stand for its jobs.
    """
    imported, spent = _imported_without_pods(connection, day, placements, until_ms)
    pools = {usage.pool for usage in imported}
    there = {
        number: inside
        for number, own_placements in placements.items()
        if (
            inside := [
                placement for placement in own_placements if placement.accelerator.pool in pools
            ]
        )
    }
    if not there:
        return list(imported)
    seen = [
        SeenAccelerator(
            pool=placement.accelerator.pool,
            node=placement.accelerator.node,
            gpu_micro=placement.accelerator.gpu_micro,
            accelerator_id=number,
            period=part,
        )
        for fact in usage.usage_intervals(connection, sorted(there), day)
        for number in (fact.accelerator_id,)
        for placement in there[number]
        # Only evidence of the node on which the accelerator is placed counts, as in the fold.
        if placement.accelerator.node in ("", fact.node)
        and (part := placement.period.clip(Period(fact.start_ms, fact.end_ms))) is not None
    ]
    return without_seen(imported, seen, day, until_ms, spent)


def _imported_without_pods(
    connection: Connection,
    day: Period,
    placements: Mapping[int, Sequence[RatedPlacement]],
    until_ms: int,
) -> tuple[list[ImportedUsage], list[SeenAccelerator]]:
    """Imported usage of a day without what the pods of its jobs held (slurm-bridge), and what of
    their accelerators that took.
    """
    imported = usage.imported_usage(connection, day)
    if not any(slurm_job_id(own.key) for own in imported):
        return imported, []
    pods = usage.slurm_pods(connection, day)
    if not pods:
        return imported, []
    jobs = {report: job_id for _, report, job_id in pods}
    accelerators = sorted({number for number, _, _ in pods})
    seen = [
        SeenPod(
            job_id=jobs[fact.attributes_id],
            node=fact.node,
            pool=placement.accelerator.pool,
            placed_on=placement.accelerator.node,
            gpu_micro=placement.accelerator.gpu_micro
            * fact.held_ms
            // (fact.end_ms - fact.start_ms),
            holding=(fact.accelerator_id, fact.workload_id or 0),
            period=part,
        )
        for fact in usage.usage_intervals(connection, accelerators, day)
        if fact.attributes_id in jobs
        for placement in placements.get(fact.accelerator_id, ())
        if placement.accelerator.node in ("", fact.node)
        and (part := placement.period.clip(Period(fact.start_ms, fact.end_ms))) is not None
    ]
    return without_pods(imported, seen, day, until_ms)


class Owners:
    """Who pays for a workload in a place; the answer is kept until a rule begins or ends to hold."""

    def __init__(
        self,
        rules: Sequence[Rule],
        workloads: Mapping[int, WorkloadFacts],
        decided: Reattributions | None = None,
        reported: Mapping[int, WorkloadFacts] | None = None,
    ) -> None:
        """`workloads` by id as they were reported last, `reported` by the id of each report."""
        self._attribution = Attribution(rules)
        self._decided = decided or Reattributions()
        self._workloads = workloads
        self._said = reported or {}
        self._edges = edges_of(rules)
        self._depends_on_place = self._attribution.depends_on_place
        self._known: dict[tuple[int, int | None, str, str, int], OwnerPath] = {}

    def reported(self) -> dict[int, list[WorkloadFacts]]:
        """What was reported of workloads for the day, by their numbers."""
        reported: dict[int, list[WorkloadFacts]] = defaultdict(list)
        for facts in [*self._said.values(), *self._workloads.values()]:
            reported[facts.id].append(facts)
        return reported

    def tags(self, workload_id: int, attributes_id: int | None = None) -> Mapping[str, str]:
        """What was written on a workload."""
        return self._facts(workload_id, attributes_id).tags

    def key(self, workload_id: int, attributes_id: int | None = None) -> str:
        """The key of a workload, which does not depend on the order of arrival."""
        return self._facts(workload_id, attributes_id).key

    def order(self, piece: HourlyUsage) -> tuple[object, ...]:
        """The order in which pieces are rated: free of the numbers that arrival gave."""
        return piece.start_ms, *self.holder_order(
            piece.state, piece.workload_id, piece.attributes_id
        )

    def holder_order(
        self, state: str, workload_id: int | None, attributes_id: int | None
    ) -> tuple[str, str, str]:
        """The order of pieces that begin together."""
        if workload_id is None:
            return state, "", ""
        facts = self._facts(workload_id, attributes_id)
        facts_text = (
            facts.user or "",
            facts.account or "",
            facts.name or "",
            sorted(facts.tags.items()),
        )
        return state, facts.key, repr(facts_text)

    def _facts(self, workload_id: int, attributes_id: int | None) -> WorkloadFacts:
        reported = None if attributes_id is None else self._said.get(attributes_id)
        return self._workloads[workload_id] if reported is None else reported

    def apply_disputes(
        self, place: RatedAccelerator, pieces: Sequence[HourlyUsage]
    ) -> list[HourlyUsage]:
        """Pieces of an accelerator in its place, those that a dispute found to be unavailable as
        such.
        """
        return self._decided.apply_to_pieces(
            pieces,
            lambda number, at_ms, attributes_id: self._owner_by_rules(
                number, place.pool, place.node, at_ms, attributes_id
            ),
        )

    def owners_at(self, pool: str, node: str, accelerator_id: int | None = None) -> OwnerOf:
        """The owners of workloads that hold an accelerator in this pool and on this node (None:
        mere counts).
        """

        def owner_of(workload_id: int, at_ms: int, attributes_id: int | None = None) -> OwnerPath:
            owner = self._owner_by_rules(workload_id, pool, node, at_ms, attributes_id)
            payer = self._decided.payer(workload_id, accelerator_id, at_ms, owner)
            return owner if payer is None else payer

        return owner_of

    def has_one_owner(self, workload_id: int, period: Period) -> bool:
        """Whether whoever pays for a workload that was imported as counts does so through all of a
        period.
        """
        begin, end = (
            bisect_right(self._edges, at_ms) for at_ms in (period.start_ms, period.end_ms - 1)
        )
        return begin == end and not self._decided.names(workload_id, None)

    @property
    def depend_on_place(self) -> bool:
        """Whether a workload may have one owner in one pool or on one node, and another elsewhere.

        Where no dispute has decided anything; a decision may name an accelerator.
        """
        return self._depends_on_place

    def epoch(self, at_ms: int) -> int:
        """How many rules began or ended to hold before an instant: while it stays the same, so do
        the owners.
        """
        return bisect_right(self._edges, at_ms)

    def _owner_by_rules(
        self, workload_id: int, pool: str, node: str, at_ms: int, attributes_id: int | None
    ) -> OwnerPath:
        """Whom tags and rules charge, whatever disputes decided."""
        if not self._depends_on_place:
            pool = node = ""
        key = (workload_id, attributes_id, pool, node, self.epoch(at_ms))
        owner = self._known.get(key)
        if owner is None:
            facts = self._facts(workload_id, attributes_id)
            if self._depends_on_place:
                # Rules see where the workload ran in this piece, not where it was reported last.
                facts = replace(facts, pool=pool, node=node)
            owner = self._known[key] = self._attribution.owner_of(facts, at_ms)
        return owner
