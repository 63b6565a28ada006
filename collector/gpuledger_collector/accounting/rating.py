"""Rating: usage x price book x attribution gives charges, exactly.

The atom is the accelerator-hour, cut where a price changes: its capacity times the rate is rounded once, and that
amount is split downwards over what happened in it (each holder, unallocated, unavailable, and the remainder that nobody
observed) by largest remainder. So the charges of any whole hours add up to capacity x rate to the micro-unit, and
rating is additive over adjoining hours. Charge lines sum the atoms of a UTC day.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache

from gpuledger_collector.accounting.money import cost_micro
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.pricing import Price, PriceBook
from gpuledger_collector.accounting.quantity import gpu_ns, split
from gpuledger_collector.accounting.tags import OwnerPath
from gpuledger_collector.accounting.usage import HELD, UNOBSERVED, UsagePiece, atoms

OwnerOf = Callable[[int, int], OwnerPath]
"""Who pays for a workload (its id) at an instant (unix ms)."""


@dataclass(frozen=True, slots=True)
class RatedAccelerator:
    """The accelerator as rating sees it: its share of a device and where the price book finds it."""

    accelerator_id: int
    gpu_micro: int
    pool: str
    gpu_model: str
    node: str
    region: str = ""


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


@dataclass(frozen=True, slots=True)
class Charge:
    """One line: who, what, when, how much. Amounts are micro-units, None where no rate covers it; never 0 instead.

    `owner` is None for time that nobody held. `energy_mj` is None where nothing measured it.
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


_Key = tuple[Price | None, str, int | None, OwnerPath | None]


@lru_cache(maxsize=65536)
def _cost(quantity_ns: int, rate: Decimal) -> int:
    return cost_micro(quantity_ns, rate)


def present_ms(capacity: Sequence[Period], atom: Period, until_ms: int) -> int:
    """Milliseconds of an atom in which the accelerator was there, up to `until_ms`."""
    if atom.end_ms > until_ms:
        if atom.start_ms >= until_ms:
            return 0
        atom = Period(atom.start_ms, until_ms)
    total = 0
    for period in capacity:
        total += max(0, min(period.end_ms, atom.end_ms) - max(period.start_ms, atom.start_ms))
    return total


def rate_accelerator_day(
    accelerator: RatedAccelerator,
    day: Period,
    capacity: Sequence[Period],
    pieces: Sequence[UsagePiece],
    book: PriceBook,
    owner_of: OwnerOf,
    until_ms: int,
) -> list[Charge]:
    """The charges of one accelerator and day. `capacity` holds disjoint periods; `pieces` came from `fold`.

    What is left of an atom's capacity after its pieces is *unobserved*. Evidence beyond the capacity is rated as well
    (it was held), and shows as a proof that does not hold.
    """
    by_atom: dict[int, list[UsagePiece]] = {}
    for piece in pieces:
        by_atom.setdefault(piece.start_ms, []).append(piece)
    sums: dict[_Key, _Sums] = {}
    for atom in atoms(day, book.cuts(day)):
        inside = by_atom.get(atom.start_ms, [])
        seen_ms = sum(piece.held_ms for piece in inside)
        there_ms = max(present_ms(capacity, atom, until_ms), seen_ms)
        if there_ms == 0:
            continue
        price = book.price_at(
            accelerator.pool, accelerator.gpu_model, accelerator.node, accelerator.region, atom.start_ms
        )
        missing_ms = there_ms - seen_ms
        weights = [piece.held_ms for piece in inside] + ([missing_ms] if missing_ms else [])
        total = 0 if price is None else _cost(gpu_ns(accelerator.gpu_micro, there_ms), price.rate)
        costs = [total] if len(weights) == 1 else split(total, weights)
        for piece, cost in zip(inside, costs, strict=False):
            _add_piece(sums, accelerator.gpu_micro, atom, price, piece, cost, owner_of)
        if missing_ms:
            entry = sums.setdefault((price, UNOBSERVED, None, None), _Sums(atom.start_ms, atom.end_ms))
            entry.end_ms = atom.end_ms
            entry.gpu_ns += gpu_ns(accelerator.gpu_micro, missing_ms)
            entry.cost_micro += costs[-1]
    place = (accelerator.pool, accelerator.gpu_model, accelerator.node)
    return [_charge(day.start_ms, accelerator.accelerator_id, place, key, entry) for key, entry in sums.items()]


def _add_piece(
    sums: dict[_Key, _Sums],
    gpu_micro: int,
    atom: Period,
    price: Price | None,
    piece: UsagePiece,
    cost: int,
    owner_of: OwnerOf,
) -> None:
    owner = None
    if piece.state == HELD:
        owner = OwnerPath() if piece.workload_id is None else owner_of(piece.workload_id, atom.start_ms)
    entry = sums.setdefault((price, piece.state, piece.workload_id, owner), _Sums(atom.start_ms, atom.end_ms))
    entry.end_ms = atom.end_ms
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


def _charge(day_ms: int, accelerator_id: int | None, place: tuple[str, str, str], key: _Key, entry: _Sums) -> Charge:
    price, state, workload_id, owner = key
    pool, gpu_model, node = place
    known = state == HELD and entry.unknown_ns < entry.gpu_ns
    listed = price.list_rate if price is not None else None
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
        currency=None if price is None else price.currency,
        cost_micro=None if price is None else entry.cost_micro,
        idle_cost_micro=entry.idle_cost_micro if price is not None and known else None,
        list_cost_micro=None if listed is None else cost_micro(entry.gpu_ns, listed),
        energy_mj=entry.energy_mj,
    )


def capacity_cost(
    accelerator: RatedAccelerator, day: Period, capacity: Sequence[Period], book: PriceBook, until_ms: int
) -> CapacityCost:
    """Capacity x rate of one accelerator and day, atom by atom, without a look at what happened in it."""
    total_ns = 0
    cost: dict[str, int] = {}
    for atom in atoms(day, book.cuts(day)):
        quantity = gpu_ns(accelerator.gpu_micro, present_ms(capacity, atom, until_ms))
        if not quantity:
            continue
        total_ns += quantity
        price = book.price_at(
            accelerator.pool, accelerator.gpu_model, accelerator.node, accelerator.region, atom.start_ms
        )
        if price is not None:
            cost[price.currency] = cost.get(price.currency, 0) + cost_micro(quantity, price.rate)
    return CapacityCost(total_ns, cost)


def rate_imported(usage: ImportedUsage, day: Period, book: PriceBook, owner_of: OwnerOf, until_ms: int) -> list[Charge]:
    """The charges of imported usage within a day: each hour rated on its own, activity unknown, no capacity."""
    end_ms = until_ms if usage.end_ms is None else min(usage.end_ms, until_ms)
    if end_ms <= usage.start_ms:
        return []
    span = day.clip(Period(usage.start_ms, end_ms))
    if span is None:
        return []
    sums: dict[_Key, _Sums] = {}
    for atom in atoms(span, book.cuts(span)):
        price = book.price_at(usage.pool, usage.gpu_model, usage.node, "", atom.start_ms)
        quantity = gpu_ns(usage.gpu_micro, atom.ms)
        owner = owner_of(usage.workload_id, atom.start_ms)
        entry = sums.setdefault((price, HELD, usage.workload_id, owner), _Sums(atom.start_ms, atom.end_ms))
        entry.end_ms = atom.end_ms
        entry.gpu_ns += quantity
        entry.unknown_ns += quantity
        if price is not None:
            entry.cost_micro += _cost(quantity, price.rate)
    place = (usage.pool, usage.gpu_model, usage.node)
    return [_charge(day.start_ms, None, place, key, entry) for key, entry in sums.items()]


def total_ns(charges: Iterable[Charge], state: str) -> int:
    """GPU-nanoseconds of the charges in one state that belong to an accelerator."""
    return sum(charge.gpu_ns for charge in charges if charge.state == state and charge.accelerator_id is not None)
