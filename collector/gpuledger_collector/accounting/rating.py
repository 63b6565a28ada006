"""Rating: usage x price book x attribution gives charges, exactly.

The rating interval is the accelerator-hour, cut where a price changes: its capacity times the rate
is rounded once, and that amount is split downwards over what happened in it (each holder,
unallocated, unavailable, and the remainder that nobody observed) by largest remainder. What a
commitment covers of it costs the commitment's share instead. So the charges of any full hours add
up to capacity x rate to the micro-unit, and rating is additive over adjoining hours. Charge lines
sum the rating intervals of a day.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from itertools import pairwise

from gpuledger_collector.accounting.adjustments import POLICIES, Adjustment, HeldCost, Place, adjust
from gpuledger_collector.accounting.commitments import (
    COMMITMENT_UNUSED,
    Commitment,
    Coverage,
    CoveredShare,
)
from gpuledger_collector.accounting.inference_share import InferenceShare
from gpuledger_collector.accounting.measures import Measures
from gpuledger_collector.accounting.money import cost_micro
from gpuledger_collector.accounting.node_costs import NodeCost
from gpuledger_collector.accounting.owner_tree import OwnerPath
from gpuledger_collector.accounting.period import HOUR_MS, Period
from gpuledger_collector.accounting.pricing import Price, PriceBook
from gpuledger_collector.accounting.quantity import gpu_ns
from gpuledger_collector.accounting.quick_values import made_quickly
from gpuledger_collector.accounting.usage import (
    HELD,
    STRANDED,
    UNOBSERVED,
    HourlyUsage,
    rating_intervals,
)
from gpuledger_common.largest_remainder import split

OwnerOf = Callable[[int, int, int | None], OwnerPath]
"""Who pays for a workload (its id) at an instant (unix ms), by what was reported of it then (the
report's id).
"""


@made_quickly
@dataclass(frozen=True, slots=True)
class RatedAccelerator:
    """The accelerator as rating sees it: its share of a device and where the price book finds it."""

    accelerator_id: int
    gpu_micro: int
    pool: str
    gpu_model: str
    node: str
    stranded: bool = False
    """It stands for the part of a board that lies in no MIG instance; its id is that of the first
    instance.
    """
    uuid: str = ""

    def price_at(self, book: PriceBook, at_ms: int) -> Price | None:
        """Find the rate in force for it at an instant."""
        return book.price_at(self.pool, self.gpu_model, self.node, at_ms)


@dataclass(frozen=True, slots=True)
class ImportedUsage:
    """Usage known as a count of GPUs: no accelerator, so no activity and no capacity.

    `end_ms` None: still running.
    """

    workload_id: int
    start_ms: int
    end_ms: int | None
    gpu_micro: int
    gpu_model: str
    pool: str
    node: str = ""
    attributes_id: int | None = None
    key: str = ""
    """The workload's key, which does not depend on the order of arrival as its id does."""


@made_quickly
@dataclass(frozen=True, slots=True, kw_only=True)
class Charge(Measures):
    """One line of the bill: who, what, when, how much.

    `owner` is None for time that nobody held.
    """

    day_ms: int
    start_ms: int
    end_ms: int
    accelerator_id: int | None
    workload_id: int | None
    owner: OwnerPath | None
    state: str
    pool: str
    gpu_model: str
    node: str
    price: Price | None
    currency: str | None
    commitment: Commitment | None = None
    adjustment: Adjustment | None = None
    node_cost: NodeCost | None = None
    inference: InferenceShare | None = None


@dataclass(frozen=True, slots=True)
class CapacityCost:
    """Capacity x rate of one accelerator over a day, computed independently of the charges that
    must add up to it.

    What nodes cost is one without capacity: a price x time, and no GPU-time.
    """

    capacity_ns: int
    cost: Mapping[str, int] = field(default_factory=dict)


_Key = tuple[Price | None, str, int | None, OwnerPath | None, Commitment | None]
"""Price, state, workload, owner and commitment: what the lines of one accelerator and day differ
in.
"""
_NO_ACTIVITY = (0, 0, 0)


@dataclass(slots=True)
class _LineSums:
    """A charge line while its rating intervals are added up.

    Mutable, since rating spends most of its time here.
    """

    start_ms: int
    end_ms: int
    gpu_ns: int = 0
    busy_ns: int = 0
    idle_ns: int = 0
    unknown_ns: int = 0
    cost_micro: int = 0
    idle_cost_micro: int = 0
    energy_mj: int | None = None


class _Lines:
    """The charge lines of one accelerator, or one imported usage, on one day."""

    def __init__(
        self, day_ms: int, accelerator_id: int | None, place: RatedAccelerator | ImportedUsage
    ) -> None:
        self._day_ms, self._accelerator_id, self._place = day_ms, accelerator_id, place
        self._sums: dict[_Key, _LineSums] = {}

    def add(
        self,
        key: _Key,
        interval: Period,
        quantity_ns: int,
        cost: int,
        activity_ns: Sequence[int] = _NO_ACTIVITY,
        energy_mj: int | None = None,
    ) -> None:
        """Add one part of a rating interval; `activity_ns` is busy, idle and unknown time of what
        was held.
        """
        sums = self._sums.get(key)
        if sums is None:
            sums = self._sums[key] = _LineSums(interval.start_ms, interval.end_ms)
        sums.end_ms = interval.end_ms
        sums.gpu_ns += quantity_ns
        sums.cost_micro += cost
        sums.busy_ns += activity_ns[0]
        sums.idle_ns += activity_ns[1]
        sums.unknown_ns += activity_ns[2]
        # Idle cost is split from this interval's cost and then summed: splitting the day's cost by
        # the day's idle time would be wrong where the rate changes during the day.
        if activity_ns[1]:
            sums.idle_cost_micro += split(cost, activity_ns)[1]
        # A line without any measurement keeps None: unknown is not zero.
        if energy_mj is not None:
            sums.energy_mj = (sums.energy_mj or 0) + energy_mj

    def charges(self) -> list[Charge]:
        """The lines, in the order in which their first part was added."""
        return [self._charge(key, sums) for key, sums in self._sums.items()]

    def _charge(self, key: _Key, sums: _LineSums) -> Charge:
        price, state, workload_id, owner, commitment = key
        # Where no activity was ever measured, idle cost is unknown; showing 0 would claim that the
        # GPU was busy.
        has_activity = state == HELD and sums.unknown_ns < sums.gpu_ns
        currency = (
            commitment.currency
            if commitment is not None
            else None
            if price is None
            else price.currency
        )
        # What the price book would have asked is only comparable with the cost in the same
        # currency.
        comparable = price if price is not None and price.currency == currency else None
        list_rate = None if comparable is None else comparable.list_rate
        # Without a commitment the contracted rate is what was charged. It is not multiplied anew
        # for the day, since the rounding of each interval would be lost. A commitment's charge is
        # the effective cost, so what the contracted rate would have asked has to be computed.
        contracted: int | None = sums.cost_micro
        if commitment is not None:
            contracted = None if comparable is None else cost_micro(sums.gpu_ns, comparable.rate)
        return Charge(
            day_ms=self._day_ms,
            start_ms=sums.start_ms,
            end_ms=sums.end_ms,
            accelerator_id=self._accelerator_id,
            workload_id=workload_id,
            owner=owner,
            state=state,
            pool=self._place.pool,
            gpu_model=self._place.gpu_model,
            node=self._place.node,
            price=price,
            currency=currency,
            commitment=commitment,
            gpu_ns=sums.gpu_ns,
            busy_ns=sums.busy_ns,
            idle_ns=sums.idle_ns,
            unknown_ns=sums.unknown_ns,
            cost_micro=None if currency is None else sums.cost_micro,
            idle_cost_micro=sums.idle_cost_micro if currency is not None and has_activity else None,
            energy_mj=sums.energy_mj,
            list_cost_micro=None if list_rate is None else cost_micro(sums.gpu_ns, list_rate),
            contracted_cost_micro=None if currency is None else contracted,
        )


@lru_cache(maxsize=65536)
def _cost(quantity_ns: int, rate: Decimal) -> int:
    # Most accelerators of a fleet have the same time at the same rate in an hour.
    return cost_micro(quantity_ns, rate)


def present_ms(capacity: Sequence[Period], interval: Period, until_ms: int) -> int:
    """Milliseconds of a rating interval in which the accelerator was there, up to `until_ms`."""
    end_ms = min(interval.end_ms, until_ms)
    return sum(
        max(0, min(period.end_ms, end_ms) - max(period.start_ms, interval.start_ms))
        for period in capacity
    )


def rate_accelerator_day(
    accelerator: RatedAccelerator,
    day: Period,
    capacity: Sequence[Period],
    pieces: Sequence[HourlyUsage],
    book: PriceBook,
    owner_of: OwnerOf,
    until_ms: int,
    covered: Mapping[int, Sequence[CoveredShare]] | None = None,
) -> list[Charge]:
    """Rate one accelerator on one day.

    `capacity` holds disjoint periods; `pieces` came from `fold`.

    `covered` is what commitments cover of it, by the start of the rating interval. What is left of
    an interval's capacity after its pieces is *unobserved*. Evidence beyond the capacity is rated
    as well (it was held); the conservation check of the day then fails.
    """
    # Every piece carries the start of its rating interval, which is enough to find it.
    by_interval: dict[int, list[HourlyUsage]] = {}
    for piece in pieces:
        by_interval.setdefault(piece.start_ms, []).append(piece)
    lines = _Lines(day.start_ms, accelerator.accelerator_id, accelerator)
    gpu_micro = accelerator.gpu_micro
    missing_state = STRANDED if accelerator.stranded else UNOBSERVED
    for interval in rating_intervals(day, book.cuts(day)):
        inside = by_interval.get(interval.start_ms, [])
        seen_ms = sum(piece.held_ms for piece in inside)
        # Evidence beyond the capacity was held all the same; the conservation check of the day
        # reports it.
        total_ms = max(present_ms(capacity, interval, until_ms), seen_ms)
        if total_ms == 0:
            continue
        price = accelerator.price_at(book, interval.start_ms)
        missing_ms = total_ms - seen_ms
        # A covered interval is charged share by share; the split by time below is for intervals
        # that cost the book's rate alone.
        if covered is not None and interval.start_ms in covered:
            parts = [
                _Part.whole(piece, _owner(piece, interval, owner_of), gpu_micro)
                for piece in inside
                if piece.held_ms
            ]
            if missing_ms:
                parts.append(_Part(missing_state, None, None, gpu_ns(gpu_micro, missing_ms)))
            _add_covered(lines, interval, price, parts, covered[interval.start_ms])
            continue
        weights = [piece.held_ms for piece in inside] + ([missing_ms] if missing_ms else [])
        # Unpriced parts still get a line, with their time; `_Lines` turns their cost into None.
        total = 0 if price is None else _cost(gpu_ns(gpu_micro, total_ms), price.rate)
        # One rounding per interval: the parts are split from the rounded total, so they always add
        # up to it.
        costs = [total] if len(weights) == 1 else split(total, weights)
        # Not strict: the cost of the missing time, where there is any, is last in `costs` and has
        # no piece.
        for piece, cost in zip(inside, costs, strict=False):
            key = (price, piece.state, piece.workload_id, _owner(piece, interval, owner_of), None)
            quantity_ns = gpu_ns(gpu_micro, piece.held_ms)
            lines.add(
                key, interval, quantity_ns, cost, _activity_ns(piece, gpu_micro), piece.energy_mj
            )
        if missing_ms:
            key = (price, missing_state, None, None, None)
            lines.add(key, interval, gpu_ns(gpu_micro, missing_ms), costs[-1])
    return lines.charges()


def _activity_ns(piece: HourlyUsage, gpu_micro: int) -> Sequence[int]:
    if piece.state != HELD:
        return _NO_ACTIVITY
    return (
        gpu_ns(gpu_micro, piece.busy_ms),
        gpu_ns(gpu_micro, piece.idle_ms),
        gpu_ns(gpu_micro, piece.unknown_ms),
    )


def _owner(piece: HourlyUsage, interval: Period, owner_of: OwnerOf) -> OwnerPath | None:
    if piece.state != HELD:
        return None
    # Held by somebody unknown: still held time, shown as unattributed, and not unallocated.
    if piece.workload_id is None:
        return OwnerPath()
    # The start of the interval decides for all of it: intervals are cut where rules begin or end to
    # hold.
    return owner_of(piece.workload_id, interval.start_ms, piece.attributes_id)


@dataclass(slots=True)
class _Part:
    """What is left of a piece while the shares of commitments are taken out of it."""

    state: str
    workload_id: int | None
    owner: OwnerPath | None
    gpu_ns: int
    activity_ns: Sequence[int] = _NO_ACTIVITY
    energy_mj: int | None = None

    @classmethod
    def whole(cls, piece: HourlyUsage, owner: OwnerPath | None, gpu_micro: int) -> _Part:
        """All of a piece."""
        quantity_ns = gpu_ns(gpu_micro, piece.held_ms)
        activity_ns = _activity_ns(piece, gpu_micro)
        return cls(
            piece.state,
            piece.workload_id,
            owner,
            quantity_ns,
            activity_ns,
            energy_mj=piece.energy_mj,
        )

    def take(self, part_ns: int) -> tuple[Sequence[int], int | None]:
        """Take activity and energy of a part out, in proportion; the last part gets what is left."""
        activity_ns = (
            split(part_ns, self.activity_ns) if self.state == HELD and part_ns else _NO_ACTIVITY
        )
        energy = None
        if self.energy_mj is not None:
            # Rounded down against what is left, so that the last part takes the remainder.
            energy = self.energy_mj * part_ns // self.gpu_ns
            self.energy_mj -= energy
        self.activity_ns = [
            left - taken for left, taken in zip(self.activity_ns, activity_ns, strict=True)
        ]
        self.gpu_ns -= part_ns
        return activity_ns, energy


def _add_covered(
    lines: _Lines,
    interval: Period,
    price: Price | None,
    parts: Sequence[_Part],
    shares: Sequence[CoveredShare],
) -> None:
    """Add a rating interval that commitments cover in part: each share over all parts, then the
    rest at its rate.
    """
    charged: list[tuple[Commitment | None, int, int]] = [
        (share.commitment, share.gpu_ns, share.cost_micro) for share in shares
    ]
    # The rest is rounded once as a whole, exactly as `capacity_cost` computes it; the conservation
    # check compares the two.
    rest_ns = sum(part.gpu_ns for part in parts) - sum(share.gpu_ns for share in shares)
    if rest_ns:
        charged.append((None, rest_ns, 0 if price is None else _cost(rest_ns, price.rate)))
    for commitment, quantity_ns, cost in charged:
        # In proportion to what the earlier shares have left of each part, so nobody pays more by
        # the luck of which GPU they hold.
        taken = split(quantity_ns, [part.gpu_ns for part in parts])
        for part, part_ns, part_cost in zip(parts, taken, split(cost, taken), strict=True):
            if part_ns:
                activity_ns, energy_mj = part.take(part_ns)
                key = (price, part.state, part.workload_id, part.owner, commitment)
                lines.add(key, interval, part_ns, part_cost, activity_ns, energy_mj)


def unused_charges(coverage: Coverage, day_ms: int) -> list[Charge]:
    """Charge what the commitments of a day paid for and nobody used: one line each, owned by
    nobody, without list.
    """
    # One line per commitment from its first unused interval to its last; the line's time says how
    # much of that span was unused.
    spans: dict[Commitment, Period] = {}
    sums: dict[Commitment, Measures] = {}
    for part, share in coverage.unused:
        span = spans.get(share.commitment, part)
        spans[share.commitment] = Period(span.start_ms, max(span.end_ms, part.end_ms))
        unused = Measures(
            gpu_ns=share.gpu_ns,
            cost_micro=share.cost_micro,
            list_cost_micro=0,
            contracted_cost_micro=0,
        )
        sums[share.commitment] = unused.plus(sums.get(share.commitment, Measures()))
    return [
        Charge(
            day_ms=day_ms,
            start_ms=spans[commitment].start_ms,
            end_ms=spans[commitment].end_ms,
            accelerator_id=None,
            workload_id=None,
            owner=None,
            state=COMMITMENT_UNUSED,
            pool=commitment.pool,
            gpu_model=commitment.gpu_model,
            node=commitment.node,
            price=None,
            currency=commitment.currency,
            commitment=commitment,
            **measures.amounts,
        )
        for commitment, measures in sums.items()
    ]


def capacity_cost(
    accelerator: RatedAccelerator,
    day: Period,
    capacity: Sequence[Period],
    book: PriceBook,
    until_ms: int,
    covered: Mapping[int, Sequence[CoveredShare]] | None = None,
) -> CapacityCost:
    """Compute capacity x rate of one accelerator and day, rating interval by rating interval, from
    no usage at all.

    What commitments cover of it is not in this cost: it is in theirs.
    """
    total_ns = 0
    cost: dict[str, int] = {}
    for interval in rating_intervals(day, book.cuts(day)):
        # Evidence beyond the capacity is left out here on purpose: it makes the check fail, which
        # is how it is noticed.
        quantity = gpu_ns(accelerator.gpu_micro, present_ms(capacity, interval, until_ms))
        if not quantity:
            continue
        total_ns += quantity
        price = accelerator.price_at(book, interval.start_ms)
        if covered is not None:
            quantity -= sum(share.gpu_ns for share in covered.get(interval.start_ms, ()))
        if price is not None and quantity:
            cost[price.currency] = cost.get(price.currency, 0) + cost_micro(quantity, price.rate)
    return CapacityCost(total_ns, cost)


def rate_imported(
    usage: ImportedUsage,
    day: Period,
    book: PriceBook,
    owner_of: OwnerOf,
    until_ms: int,
    covered: Mapping[int, Sequence[CoveredShare]] | None = None,
    tags: Mapping[str, str] | None = None,
    *,
    one_owner: bool = False,
) -> list[Charge]:
    """Rate imported usage within a day: each hour on its own, activity unknown, no capacity.

    `tags` are the workload's: a choice of purchase may go by them. `covered` is as in
    `rate_accelerator_day`. `one_owner` says that `owner_of` gives one answer for the whole day. The
    hours between two changes of the price are then rated together, to the same charges.
    """
    lines = _Lines(day.start_ms, None, usage)
    intervals = (
        _unchanged_parts(usage, day, book, until_ms)
        if one_owner and covered is None
        else imported_rating_intervals(usage, day, book, until_ms)
    )
    for interval in intervals:
        price = book.price_at(usage.pool, usage.gpu_model, usage.node, interval.start_ms, tags=tags)
        # A count has no activity: all of its time is unknown, neither busy nor idle.
        whole_ns = rest_ns = gpu_ns(usage.gpu_micro, interval.ms)
        owner = owner_of(usage.workload_id, interval.start_ms, usage.attributes_id)
        for share in () if covered is None else covered.get(interval.start_ms, ()):
            key = (price, HELD, usage.workload_id, owner, share.commitment)
            lines.add(key, interval, share.gpu_ns, share.cost_micro, (0, 0, share.gpu_ns))
            rest_ns -= share.gpu_ns
        if rest_ns:
            if price is None:
                cost = 0
            elif rest_ns == whole_ns:
                cost = _cost_by_hour(usage.gpu_micro, interval, price.rate)
            else:
                cost = _cost(rest_ns, price.rate)
            lines.add(
                (price, HELD, usage.workload_id, owner, None),
                interval,
                rest_ns,
                cost,
                (0, 0, rest_ns),
            )
    return lines.charges()


def imported_rating_intervals(
    usage: ImportedUsage, day: Period, book: PriceBook, until_ms: int
) -> list[Period]:
    """List the parts of imported usage that are rated one by one: its hours within a day, cut where
    a price changes.
    """
    span = _span(usage, day, until_ms)
    return [] if span is None else rating_intervals(span, book.cuts(span))


def _unchanged_parts(
    usage: ImportedUsage, day: Period, book: PriceBook, until_ms: int
) -> list[Period]:
    """List the parts of imported usage within a day between which the price may change."""
    span = _span(usage, day, until_ms)
    return (
        []
        if span is None
        else [Period(*edges) for edges in pairwise((span.start_ms, *book.cuts(span), span.end_ms))]
    )


def _span(usage: ImportedUsage, day: Period, until_ms: int) -> Period | None:
    """The part of imported usage within a day and up to an instant."""
    end_ms = until_ms if usage.end_ms is None else min(usage.end_ms, until_ms)
    return day.clip(Period(usage.start_ms, end_ms)) if end_ms > usage.start_ms else None


def _cost_by_hour(gpu_micro: int, span: Period, rate: Decimal) -> int:
    """The cost of a span at one rate, rounded for each UTC hour of it: full hours cost the same."""
    first_ms = min(HOUR_MS - span.start_ms % HOUR_MS, span.ms)
    hours, last_ms = divmod(span.ms - first_ms, HOUR_MS)
    cost = _cost(gpu_ns(gpu_micro, first_ms), rate)
    if hours:
        cost += hours * _cost(gpu_ns(gpu_micro, HOUR_MS), rate)
    return cost + _cost(gpu_ns(gpu_micro, last_ms), rate) if last_ms else cost


def total_ns(charges: Iterable[Charge], state: str) -> int:
    """Add up the GPU-nanoseconds of the accelerators' charges in one state."""
    return sum(
        charge.gpu_ns
        for charge in charges
        if charge.state == state and charge.accelerator_id is not None
    )


def held_costs(charges: Iterable[Charge]) -> dict[Place, HeldCost]:
    """Add up what owners held of a day, by what adjustments tell apart; what has no price has no
    cost to adjust.
    """
    held: dict[Place, HeldCost] = {}
    for charge in charges:
        if charge.state == HELD and charge.owner is not None and charge.currency is not None:
            place = Place(charge.owner, charge.pool, charge.gpu_model, charge.currency)
            sums = held.setdefault(place, HeldCost())
            sums.gpu_ns += charge.gpu_ns
            sums.cost_micro += charge.cost_micro or 0
    return held


@dataclass(frozen=True, slots=True)
class DayAdjustments:
    """The adjustments of a day.

    `volumes` is what was held in the month before it, in GPU-nanoseconds, where a tier holds. Each
    entry has the days that it is about.
    """

    policies: Sequence[Adjustment] = ()
    volumes: Mapping[Place, int] = field(default_factory=dict)
    entries: Sequence[tuple[Adjustment, Period]] = ()


def adjustment_charges(
    held: Mapping[Place, HeldCost], day: Period, adjusting: DayAdjustments
) -> list[Charge]:
    """Charge what the adjustments of a day make of what owners held on it.

    A policy's charge is zero at list and contracted prices, which the price book says; an entry is
    the same at any.
    """
    adjusted: list[Charge] = []
    if adjusting.policies:
        for amount in adjust(held, adjusting.policies, adjusting.volumes):
            place = amount.place
            adjusted.append(
                _adjustment_charge(
                    amount.adjustment,
                    day,
                    day,
                    place.owner,
                    place.pool,
                    place.gpu_model,
                    place.currency,
                    amount.micro,
                )
            )
    for entry, about in adjusting.entries:
        adjusted += [
            _adjustment_charge(
                entry,
                day,
                about,
                share.owner,
                share.pool,
                share.gpu_model,
                entry.currency or "",
                share.micro,
            )
            for share in entry.entry_shares()
            if share.micro
        ]
    return adjusted


def _adjustment_charge(
    adjustment: Adjustment,
    day: Period,
    about: Period,
    owner: OwnerPath,
    pool: str,
    gpu_model: str,
    currency: str,
    micro: int,
) -> Charge:
    compared = 0 if adjustment.kind in POLICIES else micro
    return Charge(
        day_ms=day.start_ms,
        start_ms=about.start_ms,
        end_ms=about.end_ms,
        accelerator_id=None,
        workload_id=None,
        owner=owner,
        state=adjustment.kind,
        pool=pool,
        gpu_model=gpu_model,
        node="",
        price=None,
        currency=currency,
        adjustment=adjustment,
        cost_micro=micro,
        list_cost_micro=compared,
        contracted_cost_micro=compared,
    )
