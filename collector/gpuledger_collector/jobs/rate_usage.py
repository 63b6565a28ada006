"""Rate: the usage of a day, the price book and the attribution rules become the day's charges, ledger and proof.

A day is one unit of work: it is made again from its evidence as a whole, so a run that stopped anywhere is run again,
and what arrives late re-rates its day. Time is held once: where a pool has observed accelerators, usage imported as
mere counts is left out.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuledger_collector.accounting.attribution import Attribution, Rule, WorkloadFacts
from gpuledger_collector.accounting.commitments import Commitment, CommitmentCost, Key
from gpuledger_collector.accounting.corrections import difference
from gpuledger_collector.accounting.ledger import prove, summarise
from gpuledger_collector.accounting.period import HOUR_MS, Period
from gpuledger_collector.accounting.ports import OwnerOf, RatedDay, Store, Unit
from gpuledger_collector.accounting.pricing import PriceBook
from gpuledger_collector.accounting.rating import (
    CapacityCost,
    Charge,
    ImportedUsage,
    RatedAccelerator,
    capacity_cost,
    rate_accelerator_day,
    rate_imported,
    unused_charges,
)
from gpuledger_collector.accounting.reattribution import Reattribution, Reattributions
from gpuledger_collector.accounting.tags import OwnerPath
from gpuledger_collector.accounting.usage import UsagePiece, atoms
from gpuledger_collector.jobs.cover import book_of, counted, cover_day, placed
from gpuledger_collector.jobs.fold_usage import ALWAYS, fold_marks
from gpuledger_collector.jobs.stays import Stay, cuts_of, stays_of, subtract

FAST_CLOCK_MS = 600_000
"""How far ahead of ours a node's clock may be before its evidence waits."""
OnDay = Callable[[int, int], None]
"""Told after each day: how many are done, of how many."""


def rate_usage(
    store: Store,
    now_ms: int,
    period: Period = ALWAYS,
    on_day: OnDay | None = None,
    stopping: Callable[[], bool] = lambda: False,
    book_at_ms: int | None = None,
) -> int:
    """Rate every day of the period that needs it, up to now, and add up months that are over; how many days were rated.

    `stopping` is asked before each day: True leaves the rest to the next run. Corrections of closed days are booked on
    the day of `book_at_ms` (None: now), or the first open one after it.
    """
    with store.unit() as unit:
        days = unit.days_to_rate(period, now_ms)
        lacking = unit.lacks_month(now_ms)
    for done, day_ms in enumerate(days):
        if stopping():
            return done
        with store.unit() as unit:
            rate_day(unit, day_ms, now_ms, book_at_ms)
        if on_day is not None:
            on_day(done + 1, len(days))
    while (days or lacking) and not stopping():
        with store.unit() as unit:
            if not unit.add_up_month(now_ms):
                break
    return len(days)


@dataclass(frozen=True, slots=True)
class DayUsage:
    """All that the charges of a day follow from, but for the price book."""

    day: Period
    until_ms: int
    stays: Mapping[int, Sequence[Stay]]
    pieces: Mapping[int, Sequence[UsagePiece]]
    imported: Sequence[ImportedUsage]
    owners: Owners
    commitments: Sequence[Commitment] = ()


def rate_day(unit: Unit, day_ms: int, now_ms: int, book_at_ms: int | None = None) -> RatedDay:
    """Fold what is left to fold of a day, rate it and write it."""
    day = unit.calendar().day_of(day_ms)
    fold_marks(unit, unit.marks(day))
    usage = usage_of(unit, day, now_ms)
    charges, capacities, commitments = priced(usage, book_of(unit))
    rated = RatedDay(charges, summarise(charges), prove(day, usage.until_ms, capacities, charges, commitments))
    _write(unit, day, rated, now_ms, now_ms if book_at_ms is None else book_at_ms)
    return rated


def usage_of(unit: Unit, day: Period, now_ms: int, proposed: Sequence[Reattribution] = ()) -> DayUsage:
    """What happened on a day, as far as it has been folded; `proposed` are decisions that are not made yet."""
    until_ms = _rated_until(unit, day, now_ms)
    decided = Reattributions([*unit.reattributions(day), *proposed])
    pieces = _pieces(unit, day, until_ms)
    imported = list(not_observed(unit.imported(day), unit.pools_observed(day), until_ms))
    holders = {piece.workload_id for mine in pieces.values() for piece in mine if piece.workload_id is not None}
    known = unit.workloads(sorted(holders | {usage.workload_id for usage in imported}))
    owners = Owners(unit.rules(), known, decided)
    stays = stays_of(unit.capacity(day))
    return DayUsage(day, until_ms, stays, pieces, imported, owners, unit.commitments())


def priced(usage: DayUsage, book: PriceBook) -> tuple[list[Charge], list[CapacityCost], list[CommitmentCost]]:
    """The charges of a day under a price book, and what they must add up to: capacity x rate, and the commitments."""
    coverage = cover_day(usage.commitments, usage.day, usage.until_ms, usage.stays, usage.imported, book)
    charges: list[Charge] = []
    capacities: list[CapacityCost] = []
    for key, stay, capacity, inside in _keyed(usage, book):
        owner_of = usage.owners.at(stay.accelerator.pool, stay.accelerator.node, stay.accelerator.accelerator_id)
        where = (stay.accelerator, usage.day, capacity)
        covered = coverage.of(key)
        charges += rate_accelerator_day(*where, inside, book, owner_of, usage.until_ms, covered)
        capacities.append(capacity_cost(*where, book, usage.until_ms, covered))
    for one in usage.imported:
        owner_of = usage.owners.at(one.pool, one.node)
        tags = usage.owners.tags(one.workload_id)
        charges += rate_imported(one, usage.day, book, owner_of, usage.until_ms, coverage.of(counted(one)), tags)
    return charges + unused_charges(coverage, usage.day.start_ms), capacities, coverage.costs


def places(usage: DayUsage, book: PriceBook) -> Iterator[tuple[Stay, list[Period], list[UsagePiece]]]:
    """Each accelerator in each of its places: when it was there, and its pieces under the atoms of the price book."""
    return ((stay, capacity, inside) for _, stay, capacity, inside in _keyed(usage, book))


def _keyed(usage: DayUsage, book: PriceBook) -> Iterator[tuple[Key, Stay, list[Period], list[UsagePiece]]]:
    starts = [atom.start_ms for atom in atoms(usage.day, book.cuts(usage.day))]
    for key, stay, capacity in placed(usage.stays, usage.day):
        accelerator_id = stay.accelerator.accelerator_id
        mine = usage.stays[accelerator_id]
        inside = _inside(usage.pieces.get(accelerator_id, ()), mine, capacity, starts)
        yield key, stay, capacity, usage.owners.applied(stay.accelerator, inside)


def booking_day(unit: Unit, at_ms: int) -> int:
    """The day on which a correction is booked: that of an instant, or the first day after all closed ones."""
    return max([unit.calendar().day_of(at_ms).start_ms, *(one.period.end_ms for one in unit.closed_periods())])


def _write(unit: Unit, day: Period, rated: RatedDay, now_ms: int, book_at_ms: int) -> None:
    """The day as rated; of a day that is closed the difference to what was billed, booked in an open day."""
    closed = unit.closed_periods()
    if not any(one.period.clip(day) for one in closed):
        unit.replace_day(day.start_ms, rated, now_ms)
        return
    lines = difference(unit.billed(day.start_ms), rated.charges)
    unit.correct_day(rated, lines, booking_day(unit, book_at_ms), now_ms)


def _rated_until(unit: Unit, day: Period, now_ms: int) -> int:
    """Now, or the end of evidence that a node's fast clock put a little after it; at most the end of the day.

    Evidence from further ahead waits until its time has come: nobody is charged for the time in between.
    """
    if now_ms >= day.end_ms:
        return day.end_ms
    latest = unit.latest_evidence_ms(max(day.start_ms, now_ms - HOUR_MS))
    return min(day.end_ms, max(now_ms, min(latest or 0, now_ms + FAST_CLOCK_MS)))


def _pieces(unit: Unit, day: Period, until_ms: int) -> dict[int, list[UsagePiece]]:
    found: dict[int, list[UsagePiece]] = defaultdict(list)
    for piece in unit.pieces(day):
        if piece.start_ms < until_ms:
            found[piece.accelerator_id].append(piece)
    return found


def _inside(
    pieces: Sequence[UsagePiece], stays: Sequence[Stay], capacity: Sequence[Period], starts: Sequence[int]
) -> list[UsagePiece]:
    """The pieces that fall into these capacity periods, each under the start of the rating atom that holds it.

    Where an accelerator moved, its pieces were cut at the move, so each lies in one place.
    """
    found = []
    for piece in pieces:
        hour_ms = piece.start_ms - piece.start_ms % HOUR_MS
        cuts = cuts_of(stays, Period(hour_ms, hour_ms + HOUR_MS))
        end_ms = min([piece.end_ms, *(cut for cut in cuts if cut > piece.start_ms)])
        if any(period.start_ms < end_ms and piece.start_ms < period.end_ms for period in capacity):
            atom_ms = starts[bisect_right(starts, piece.start_ms) - 1]
            found.append(piece if piece.start_ms == atom_ms else replace(piece, start_ms=atom_ms))
    return found


def not_observed(
    imported: Iterable[ImportedUsage], observed: Mapping[str, Sequence[Period]], until_ms: int
) -> Iterable[ImportedUsage]:
    """Imported usage without the time in which its pool had observed accelerators."""
    for usage in imported:
        others = observed.get(usage.pool, ())
        if not others:
            yield usage
            continue
        end_ms = until_ms if usage.end_ms is None else min(usage.end_ms, until_ms)
        if end_ms > usage.start_ms:
            for part in subtract(Period(usage.start_ms, end_ms), others):
                yield replace(usage, start_ms=part.start_ms, end_ms=part.end_ms)


class Owners:
    """Who pays for a workload in a place; the answer is kept until a rule begins or ends to hold."""

    def __init__(
        self, rules: Sequence[Rule], workloads: Mapping[int, WorkloadFacts], decided: Reattributions | None = None
    ) -> None:
        self._attribution = Attribution(rules)
        self._decided = decided or Reattributions()
        self._workloads = workloads
        edges = {rule.effective_from_ms for rule in rules} | {rule.effective_to_ms for rule in rules}
        self._edges = sorted(edge for edge in edges if edge is not None)
        self._known: dict[tuple[int, str, str, int], OwnerPath] = {}

    def tags(self, workload_id: int) -> Mapping[str, str]:
        """What was written on a workload."""
        return self._workloads[workload_id].tags

    def applied(self, place: RatedAccelerator, pieces: Sequence[UsagePiece]) -> list[UsagePiece]:
        """Pieces of an accelerator in its place, those that a dispute found to be unavailable as such."""
        return self._decided.applied(pieces, lambda number, at_ms: self._ruled(number, place.pool, place.node, at_ms))

    def at(self, pool: str, node: str, accelerator_id: int | None = None) -> OwnerOf:
        """The owners of workloads that hold an accelerator in this pool and on this node (None: mere counts)."""

        def owner_of(workload_id: int, at_ms: int) -> OwnerPath:
            owner = self._ruled(workload_id, pool, node, at_ms)
            payer = self._decided.payer(workload_id, accelerator_id, at_ms, owner)
            return owner if payer is None else payer

        return owner_of

    def _ruled(self, workload_id: int, pool: str, node: str, at_ms: int) -> OwnerPath:
        """Whom tags and rules charge, whatever disputes decided."""
        key = (workload_id, pool, node, bisect_right(self._edges, at_ms) if self._edges else 0)
        found = self._known.get(key)
        if found is None:
            facts = replace(self._workloads[workload_id], pool=pool, node=node)
            found = self._known[key] = self._attribution.owner_of(facts, at_ms)
        return found
