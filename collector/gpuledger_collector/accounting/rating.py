"""Rating: usage x price book x attribution gives charges, exactly.

The rating interval is the accelerator-hour, cut where a price changes: its capacity times the rate is rounded once, and
that amount is split downwards over what happened in it (each holder, unallocated, unavailable, and the remainder that
nobody observed) by largest remainder. What a commitment covers of it costs the commitment's share instead. So the
charges of any whole hours add up to capacity x rate to the micro-unit, and rating is additive over adjoining hours.
Charge lines sum the rating intervals of a UTC day.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache

from gpuledger_collector.accounting.commitments import COMMITMENT_UNUSED, Commitment, Coverage, Share
from gpuledger_collector.accounting.money import cost_micro
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.pricing import Price, PriceBook
from gpuledger_collector.accounting.quantity import gpu_ns
from gpuledger_collector.accounting.tags import OwnerPath
from gpuledger_collector.accounting.usage import HELD, STRANDED, UNOBSERVED, HourlyUsage, rating_intervals
from gpuledger_common.largest_remainder import split

OwnerOf = Callable[[int, int, int | None], OwnerPath]
"""Who pays for a workload (its id) at an instant (unix ms), by what was reported of it then (the report's id)."""


@dataclass(frozen=True, slots=True)
class RatedAccelerator:
    """The accelerator as rating sees it: its share of a device and where the price book finds it."""

    accelerator_id: int
    gpu_micro: int
    pool: str
    gpu_model: str
    node: str
    region: str = ""
    stranded: bool = False
    """It stands for the part of a board that lies in no MIG instance; its id is that of the first instance."""
    uuid: str = ""


@dataclass(frozen=True, slots=True)
class ImportedUsage:
    """Usage known as a count of GPUs: no accelerator, so no activity and no capacity. `end_ms` None: still running."""

    workload_id: int
    start_ms: int
    end_ms: int | None
    gpu_micro: int
    gpu_model: str
    pool: str
    node: str = ""
    attributes_id: int | None = None
    key: str = ""
    """Of the workload: what it is told apart by."""


@dataclass(frozen=True, slots=True)
class Charge:
    """One line: who, what, when, how much. Amounts are micro-units, None where no rate covers it; never 0 instead.

    `cost_micro` is what is charged, the effective cost: of what a commitment covers its amortised and recurring cost.
    Beside it stand what the price book's rate (contracted) and list rate would have made of the same time, None where
    there is none or it is in another currency. `owner` is None for time that nobody held, `energy_mj` where nothing
    measured it.
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
    gpu_ns: int
    busy_ns: int
    idle_ns: int
    unknown_ns: int
    currency: str | None
    cost_micro: int | None
    idle_cost_micro: int | None
    list_cost_micro: int | None
    energy_mj: int | None
    commitment: Commitment | None = None
    contracted_cost_micro: int | None = None


@dataclass(frozen=True, slots=True)
class CapacityCost:
    """Capacity x rate of one accelerator over a day, summed apart from the charges that must add up to it."""

    capacity_ns: int
    cost: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Sums:
    """A charge in the making."""

    start_ms: int
    end_ms: int
    gpu_ns: int = 0
    busy_ns: int = 0
    idle_ns: int = 0
    unknown_ns: int = 0
    cost_micro: int = 0
    idle_cost_micro: int = 0
    energy_mj: int | None = None


_Key = tuple[Price | None, str, int | None, OwnerPath | None, Commitment | None]


@lru_cache(maxsize=65536)
def _cost(quantity_ns: int, rate: Decimal) -> int:
    return cost_micro(quantity_ns, rate)


def present_ms(capacity: Sequence[Period], rating_interval: Period, until_ms: int) -> int:
    """Milliseconds of an rating interval in which the accelerator was there, up to `until_ms`."""
    if rating_interval.end_ms > until_ms:
        if rating_interval.start_ms >= until_ms:
            return 0
        rating_interval = Period(rating_interval.start_ms, until_ms)
    total = 0
    for period in capacity:
        total += max(0, min(period.end_ms, rating_interval.end_ms) - max(period.start_ms, rating_interval.start_ms))
    return total


def rate_accelerator_day(
    accelerator: RatedAccelerator,
    day: Period,
    capacity: Sequence[Period],
    pieces: Sequence[HourlyUsage],
    book: PriceBook,
    owner_of: OwnerOf,
    until_ms: int,
    covered: Mapping[int, Sequence[Share]] | None = None,
) -> list[Charge]:
    """The charges of one accelerator and day. `capacity` holds disjoint periods; `pieces` came from `fold`.

    `covered` is what commitments cover of it, by rating interval. What is left of an rating interval's capacity after
    its pieces is *unobserved*. Evidence beyond the capacity is rated as well (it was held), and shows as a proof that
    does not hold.
    """
    by_rating_interval: dict[int, list[HourlyUsage]] = {}
    for piece in pieces:
        by_rating_interval.setdefault(piece.start_ms, []).append(piece)
    sums: dict[_Key, _Sums] = {}
    for rating_interval in rating_intervals(day, book.cuts(day)):
        inside = by_rating_interval.get(rating_interval.start_ms, [])
        seen_ms = sum(piece.held_ms for piece in inside)
        there_ms = max(present_ms(capacity, rating_interval, until_ms), seen_ms)
        if there_ms == 0:
            continue
        price = book.price_at(
            accelerator.pool, accelerator.gpu_model, accelerator.node, accelerator.region, rating_interval.start_ms
        )
        missing_ms = there_ms - seen_ms
        if covered is not None and rating_interval.start_ms in covered:
            _add_covered(
                sums,
                accelerator,
                rating_interval,
                price,
                inside,
                missing_ms,
                covered[rating_interval.start_ms],
                owner_of,
            )
            continue
        weights = [piece.held_ms for piece in inside] + ([missing_ms] if missing_ms else [])
        total = 0 if price is None else _cost(gpu_ns(accelerator.gpu_micro, there_ms), price.rate)
        costs = [total] if len(weights) == 1 else split(total, weights)
        for piece, cost in zip(inside, costs, strict=False):
            _add_piece(sums, accelerator.gpu_micro, rating_interval, price, piece, cost, owner_of)
        if missing_ms:
            state = STRANDED if accelerator.stranded else UNOBSERVED
            entry = sums.setdefault(
                (price, state, None, None, None), _Sums(rating_interval.start_ms, rating_interval.end_ms)
            )
            entry.end_ms = rating_interval.end_ms
            entry.gpu_ns += gpu_ns(accelerator.gpu_micro, missing_ms)
            entry.cost_micro += costs[-1]
    place = (accelerator.pool, accelerator.gpu_model, accelerator.node)
    return [_charge(day.start_ms, accelerator.accelerator_id, place, key, entry) for key, entry in sums.items()]


def _add_piece(
    sums: dict[_Key, _Sums],
    gpu_micro: int,
    rating_interval: Period,
    price: Price | None,
    piece: HourlyUsage,
    cost: int,
    owner_of: OwnerOf,
) -> None:
    owner = _owner(piece, rating_interval, owner_of)
    entry = sums.setdefault(
        (price, piece.state, piece.workload_id, owner, None), _Sums(rating_interval.start_ms, rating_interval.end_ms)
    )
    entry.end_ms = rating_interval.end_ms
    entry.gpu_ns += gpu_ns(gpu_micro, piece.held_ms)
    entry.cost_micro += cost
    if piece.state == HELD:
        entry.busy_ns += gpu_ns(gpu_micro, piece.busy_ms)
        entry.idle_ns += gpu_ns(gpu_micro, piece.idle_ms)
        entry.unknown_ns += gpu_ns(gpu_micro, piece.unknown_ms)
        if piece.idle_ms:
            entry.idle_cost_micro += split(cost, (piece.busy_ms, piece.idle_ms, piece.unknown_ms))[1]
    if piece.energy_mj is not None:
        entry.energy_mj = (entry.energy_mj or 0) + piece.energy_mj


def _owner(piece: HourlyUsage, rating_interval: Period, owner_of: OwnerOf) -> OwnerPath | None:
    if piece.state != HELD:
        return None
    if piece.workload_id is None:
        return OwnerPath()
    return owner_of(piece.workload_id, rating_interval.start_ms, piece.attributes_id)


@dataclass(slots=True)
class _Open:
    """What is left of a piece while its parts are taken out of it, in GPU-nanoseconds and millijoules."""

    state: str
    workload_id: int | None
    owner: OwnerPath | None
    gpu_ns: int
    activity_ns: list[int]
    energy_mj: int | None

    def take(self, part_ns: int) -> tuple[list[int], int | None]:
        """Activity and energy of a part, in proportion; the last part gets what is left."""
        activity = split(part_ns, self.activity_ns) if self.state == HELD and part_ns else [0, 0, 0]
        energy = None
        if self.energy_mj is not None:
            energy = self.energy_mj * part_ns // self.gpu_ns
            self.energy_mj -= energy
        self.activity_ns = [left - taken for left, taken in zip(self.activity_ns, activity, strict=True)]
        self.gpu_ns -= part_ns
        return activity, energy


def _add_covered(
    sums: dict[_Key, _Sums],
    accelerator: RatedAccelerator,
    rating_interval: Period,
    price: Price | None,
    pieces: Sequence[HourlyUsage],
    missing_ms: int,
    shares: Sequence[Share],
    owner_of: OwnerOf,
) -> None:
    """Adds an rating interval of which commitments cover a part: each share over all of its pieces, then the rest at
    its rate.
    """
    gpu_micro = accelerator.gpu_micro
    parts = [
        _Open(
            one.state,
            one.workload_id,
            _owner(one, rating_interval, owner_of),
            gpu_ns(gpu_micro, one.held_ms),
            [gpu_ns(gpu_micro, ms) for ms in (one.busy_ms, one.idle_ms, one.unknown_ms)],
            one.energy_mj,
        )
        for one in pieces
        if one.held_ms
    ]
    if missing_ms:
        state = STRANDED if accelerator.stranded else UNOBSERVED
        parts.append(_Open(state, None, None, gpu_ns(gpu_micro, missing_ms), [0, 0, 0], None))
    for share in shares:
        _add_share(sums, rating_interval, price, share.commitment, parts, share.gpu_ns, share.cost_micro)
    rest_ns = sum(part.gpu_ns for part in parts)
    if rest_ns:
        _add_share(
            sums, rating_interval, price, None, parts, rest_ns, 0 if price is None else _cost(rest_ns, price.rate)
        )


def _add_share(
    sums: dict[_Key, _Sums],
    rating_interval: Period,
    price: Price | None,
    commitment: Commitment | None,
    parts: Sequence[_Open],
    quantity_ns: int,
    cost: int,
) -> None:
    """Takes a quantity out of the parts in proportion to what is left of them, and gives each its part of the cost."""
    taken = split(quantity_ns, [part.gpu_ns for part in parts])
    for part, part_ns, part_cost in zip(parts, taken, split(cost, taken), strict=True):
        if not part_ns:
            continue
        activity, energy = part.take(part_ns)
        key = (price, part.state, part.workload_id, part.owner, commitment)
        entry = sums.setdefault(key, _Sums(rating_interval.start_ms, rating_interval.end_ms))
        entry.end_ms = rating_interval.end_ms
        entry.gpu_ns += part_ns
        entry.cost_micro += part_cost
        entry.busy_ns += activity[0]
        entry.idle_ns += activity[1]
        entry.unknown_ns += activity[2]
        if activity[1]:
            entry.idle_cost_micro += split(part_cost, activity)[1]
        if energy is not None:
            entry.energy_mj = (entry.energy_mj or 0) + energy


def _charge(day_ms: int, accelerator_id: int | None, place: tuple[str, str, str], key: _Key, entry: _Sums) -> Charge:
    price, state, workload_id, owner, commitment = key
    pool, gpu_model, node = place
    known = state == HELD and entry.unknown_ns < entry.gpu_ns
    currency = commitment.currency if commitment is not None else None if price is None else price.currency
    beside = price if price is not None and price.currency == currency else None
    listed = None if beside is None else beside.list_rate
    contracted = entry.cost_micro if commitment is None else _at_rate(entry.gpu_ns, beside)
    return Charge(
        day_ms=day_ms,
        start_ms=entry.start_ms,
        end_ms=entry.end_ms,
        accelerator_id=accelerator_id,
        workload_id=workload_id,
        owner=owner,
        state=state,
        pool=pool,
        gpu_model=gpu_model,
        node=node,
        price=price,
        gpu_ns=entry.gpu_ns,
        busy_ns=entry.busy_ns,
        idle_ns=entry.idle_ns,
        unknown_ns=entry.unknown_ns,
        currency=currency,
        cost_micro=None if currency is None else entry.cost_micro,
        idle_cost_micro=entry.idle_cost_micro if currency is not None and known else None,
        list_cost_micro=None if listed is None else cost_micro(entry.gpu_ns, listed),
        energy_mj=entry.energy_mj,
        commitment=commitment,
        contracted_cost_micro=None if currency is None else contracted,
    )


def _at_rate(quantity_ns: int, price: Price | None) -> int | None:
    return None if price is None else cost_micro(quantity_ns, price.rate)


def unused_charges(coverage: Coverage, day_ms: int) -> list[Charge]:
    """What the commitments of a day paid for and nobody used: a line each, nobody's, and in no list."""
    sums: dict[Commitment, _Sums] = {}
    for part, share in coverage.unused:
        entry = sums.setdefault(share.commitment, _Sums(part.start_ms, part.end_ms))
        entry.end_ms = max(entry.end_ms, part.end_ms)
        entry.gpu_ns += share.gpu_ns
        entry.cost_micro += share.cost_micro
    return [
        Charge(
            day_ms,
            entry.start_ms,
            entry.end_ms,
            None,
            None,
            None,
            COMMITMENT_UNUSED,
            one.pool,
            one.gpu_model,
            one.node,
            None,
            entry.gpu_ns,
            0,
            0,
            0,
            one.currency,
            entry.cost_micro,
            None,
            0,
            None,
            one,
            0,
        )
        for one, entry in sums.items()
    ]


def capacity_cost(
    accelerator: RatedAccelerator,
    day: Period,
    capacity: Sequence[Period],
    book: PriceBook,
    until_ms: int,
    covered: Mapping[int, Sequence[Share]] | None = None,
) -> CapacityCost:
    """Capacity x rate of one accelerator and day, rating interval by rating interval, without a look at what happened
    in it.

    What commitments cover of it is not in its cost: it is in theirs.
    """
    total_ns = 0
    cost: dict[str, int] = {}
    for rating_interval in rating_intervals(day, book.cuts(day)):
        quantity = gpu_ns(accelerator.gpu_micro, present_ms(capacity, rating_interval, until_ms))
        if not quantity:
            continue
        total_ns += quantity
        price = book.price_at(
            accelerator.pool, accelerator.gpu_model, accelerator.node, accelerator.region, rating_interval.start_ms
        )
        if covered is not None:
            quantity -= sum(share.gpu_ns for share in covered.get(rating_interval.start_ms, ()))
        if price is not None and quantity:
            cost[price.currency] = cost.get(price.currency, 0) + cost_micro(quantity, price.rate)
    return CapacityCost(total_ns, cost)


def rate_imported(
    usage: ImportedUsage,
    day: Period,
    book: PriceBook,
    owner_of: OwnerOf,
    until_ms: int,
    covered: Mapping[int, Sequence[Share]] | None = None,
    tags: Mapping[str, str] | None = None,
) -> list[Charge]:
    """The charges of imported usage within a day: each hour rated on its own, activity unknown, no capacity.

    `tags` are the workload's: a choice of purchase may go by them. `covered` is as in `rate_accelerator_day`.
    """
    sums: dict[_Key, _Sums] = {}
    for rating_interval in imported_rating_intervals(usage, day, book, until_ms):
        price = book.price_at(usage.pool, usage.gpu_model, usage.node, "", rating_interval.start_ms, tags=tags)
        quantity = gpu_ns(usage.gpu_micro, rating_interval.ms)
        owner = owner_of(usage.workload_id, rating_interval.start_ms, usage.attributes_id)
        for share in () if covered is None else covered.get(rating_interval.start_ms, ()):
            _add_count(
                sums,
                (price, HELD, usage.workload_id, owner, share.commitment),
                rating_interval,
                share.gpu_ns,
                share.cost_micro,
            )
            quantity -= share.gpu_ns
        if quantity:
            cost = 0 if price is None else _cost(quantity, price.rate)
            _add_count(sums, (price, HELD, usage.workload_id, owner, None), rating_interval, quantity, cost)
    place = (usage.pool, usage.gpu_model, usage.node)
    return [_charge(day.start_ms, None, place, key, entry) for key, entry in sums.items()]


def imported_rating_intervals(usage: ImportedUsage, day: Period, book: PriceBook, until_ms: int) -> list[Period]:
    """The parts of imported usage that are rated one by one: its hours within a day, cut where a price changes."""
    end_ms = until_ms if usage.end_ms is None else min(usage.end_ms, until_ms)
    span = day.clip(Period(usage.start_ms, end_ms)) if end_ms > usage.start_ms else None
    return [] if span is None else rating_intervals(span, book.cuts(span))


def _add_count(sums: dict[_Key, _Sums], key: _Key, rating_interval: Period, quantity_ns: int, cost: int) -> None:
    entry = sums.setdefault(key, _Sums(rating_interval.start_ms, rating_interval.end_ms))
    entry.end_ms = rating_interval.end_ms
    entry.gpu_ns += quantity_ns
    entry.unknown_ns += quantity_ns
    entry.cost_micro += cost


def total_ns(charges: Iterable[Charge], state: str) -> int:
    """GPU-nanoseconds of the charges in one state that belong to an accelerator."""
    return sum(charge.gpu_ns for charge in charges if charge.state == state and charge.accelerator_id is not None)
