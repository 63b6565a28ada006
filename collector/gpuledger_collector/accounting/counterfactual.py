"""The other ledger: the same usage with some of its time given back, set free, or held at another
rate.

A saving is the difference of two ledgers over the same usage. Every advice says what it would have
done to the time of single accelerators in their rating intervals (a `UsageChange`); the changes of
several advices are merged before they are priced, so time that two of them give back is given back
once. Both ledgers are priced by the same rating.

Law: what several advices save together never exceeds the sum of what each saves alone, but for the
rounding of an rating interval's parts (a micro-unit each).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal

from gpuledger_collector.accounting.money import RATE_DIGITS, cost_micro
from gpuledger_collector.accounting.owner_tree import OwnerPath
from gpuledger_collector.accounting.period import HOUR_MS, Period
from gpuledger_collector.accounting.pricing import Price, PriceBook
from gpuledger_collector.accounting.quantity import GPU_MICRO, gpu_ns
from gpuledger_collector.accounting.rating import Charge, RatedAccelerator, rate_accelerator_day
from gpuledger_collector.accounting.usage import HELD, UNALLOCATED, HourlyUsage
from gpuledger_common.largest_remainder import split

GIVEN_BACK, SPARE, MOVED = "given_back", "spare", "moved"
"""States of the other ledger: returned to whom it was rented from, free for others, held at another
rate.
"""
RENTED = frozenset({"on_demand", "spot"})
"""Ways of buying that stop costing when the accelerator goes back."""
PERMILLE = 1000


@dataclass(frozen=True, slots=True)
class UsageChange:
    """What an advice does to the time that one holder (None: nobody) has of an accelerator from a
    rating interval's begin on.

    `back_permille` and `spare_permille` are thousandths of that time; what remains may be
    `moved_to` another rate.
    """

    accelerator_id: int
    workload_id: int | None
    at_ms: int
    back_permille: int = 0
    spare_permille: int = 0
    moved_to: Price | None = None


@dataclass(frozen=True, slots=True)
class GpuReservation:
    """So many GPUs of one kind reserved for the whole period, at a rate per GPU-hour that is paid
    in any case.
    """

    pool: str
    gpu_model: str
    gpus: int
    rate: Decimal
    currency: str
    price_id: int | None = None


@dataclass(slots=True)
class Saving:
    """The difference of two ledgers in one currency, in micro-units; cash and freed capacity are
    never added.
    """

    cash_micro: int = 0
    capacity_micro: int = 0
    freed_gpu_ns: int = 0
    unpriced_gpu_ns: int = 0
    price_ids: set[int] = field(default_factory=set)
    paid_ns: dict[tuple[str, str, str, int], int] = field(default_factory=dict)
    """GPU-nanoseconds that are still rented on demand: by pool, model, rate as text and hour (for
    reservations).
    """


OwnerOf = Callable[[int, int, int | None], OwnerPath]
_Place = tuple[int, int | None, int]


def merge_changes(changes: Iterable[UsageChange]) -> dict[_Place, UsageChange]:
    """One change for each accelerator, holder and rating interval: of several the largest part, and
    the lowest rate.
    """
    changed: dict[_Place, UsageChange] = {}
    for change in changes:
        key = (change.accelerator_id, change.workload_id, change.at_ms)
        known = changed.get(key)
        changed[key] = change if known is None else _both(known, change)
    return changed


def _both(known: UsageChange, change: UsageChange) -> UsageChange:
    # The maximum and not the sum: two advices about one minute may both mean the same GPU, and
    # giving it back once is all there is.
    back = max(known.back_permille, change.back_permille)
    # What is given back counts as freed too, so the larger freed share less the returned one is
    # what stays spare.
    freed = max(
        known.back_permille + known.spare_permille, change.back_permille + change.spare_permille
    )
    rates = [price for price in (known.moved_to, change.moved_to) if price is not None]
    lowest = min(rates, key=lambda price: (price.rate, price.id or 0)) if rates else None
    return replace(
        known, back_permille=back, spare_permille=min(PERMILLE, freed) - back, moved_to=lowest
    )


def apply_changes(
    pieces: Iterable[HourlyUsage], changes: Mapping[_Place, UsageChange]
) -> tuple[list[HourlyUsage], dict[Price, list[HourlyUsage]]]:
    """The pieces after the changes; what moves stays among them as MOVED, and is given again under
    its new rate.
    """
    kept: list[HourlyUsage] = []
    moved: dict[Price, list[HourlyUsage]] = {}
    for piece in pieces:
        change = None
        if piece.state in {HELD, UNALLOCATED}:
            change = changes.get((piece.accelerator_id, piece.workload_id, piece.start_ms))
        if change is None:
            kept.append(piece)
            continue
        back, spare = change.back_permille, change.spare_permille
        # By largest remainder, so the parts of a piece add up to it and both ledgers hold the same
        # time.
        parts = split(piece.held_ms, (PERMILLE - back - spare, back, spare))
        whole = [_part(piece, piece.state, parts[0]), _part(piece, SPARE, parts[2])]
        if change.moved_to is not None:
            # The other rate has no changes of its own, so what moves is rated by the hour.
            hour_ms = piece.start_ms - piece.start_ms % HOUR_MS
            group = moved.setdefault(change.moved_to, [])
            group += [replace(part, start_ms=hour_ms) for part in whole if part.held_ms]
            whole = [_part(piece, MOVED, parts[0] + parts[2])]
        kept += [entry for entry in [*whole, _part(piece, GIVEN_BACK, parts[1])] if entry.held_ms]
    return kept, moved


def _part(piece: HourlyUsage, state: str, held_ms: int) -> HourlyUsage:
    """A part of a piece; its activity is not asked for here, and not claimed."""
    holder = piece.workload_id if state == piece.state else None
    return replace(
        piece,
        state=state,
        workload_id=holder,
        held_ms=held_ms,
        busy_ms=0,
        idle_ms=0,
        unknown_ms=held_ms if state == HELD else 0,
        energy_mj=None,
    )


def compare(
    sums: dict[str, Saving],
    accelerator: RatedAccelerator,
    day: Period,
    capacity: Sequence[Period],
    pieces: Sequence[HourlyUsage],
    changes: Mapping[_Place, UsageChange],
    book: PriceBook,
    owner_of: OwnerOf,
    until_ms: int,
) -> None:
    """Rate one accelerator and day in both ledgers and add the difference to the sums, by currency
    ('': unpriced).
    """
    after, moved = apply_changes(pieces, changes)
    # Both ledgers by the same function as the bill: a saving is in the bill's own micro-units.
    before = rate_accelerator_day(accelerator, day, capacity, pieces, book, owner_of, until_ms)
    other = rate_accelerator_day(accelerator, day, capacity, after, book, owner_of, until_ms)
    for charge in before:
        if charge.cost_micro is not None and charge.currency is not None:
            sums.setdefault(charge.currency, Saving()).cash_micro += charge.cost_micro
    for charge in other:
        _count(sums.setdefault(charge.currency or "", Saving()), charge)
    for price, group in moved.items():
        # The rate as if it applied everywhere and always: the advice has chosen it, so the book
        # must not choose again.
        forever = replace(
            price,
            effective_from_ms=0,
            effective_to_ms=None,
            pool="",
            gpu_model="",
            node="",
            region="",
        )
        for charge in rate_accelerator_day(
            accelerator, day, (), group, PriceBook([forever]), owner_of, until_ms
        ):
            saving = sums.setdefault(price.currency, Saving())
            saving.cash_micro -= charge.cost_micro or 0
            if charge.state == SPARE:
                saving.capacity_micro += charge.cost_micro or 0
                saving.freed_gpu_ns += charge.gpu_ns
            if price.id is not None:
                saving.price_ids.add(price.id)
    for piece in after:
        if piece.state in {HELD, UNALLOCATED}:
            _still_paid(sums, accelerator, piece, book)


def _count(saving: Saving, charge: Charge) -> None:
    """What a charge of the other ledger leaves of the saving."""
    rented = charge.price is not None and charge.price.purchase in RENTED
    freed = charge.state in {GIVEN_BACK, SPARE}
    if charge.price is None:
        saving.unpriced_gpu_ns += charge.gpu_ns if freed or charge.state == MOVED else 0
        return
    if freed or charge.state == MOVED:
        saving.price_ids |= set() if charge.price.id is None else {charge.price.id}
    if freed:
        saving.freed_gpu_ns += charge.gpu_ns
    # MOVED costs nothing here, since it is charged at its new rate; what was rented stops costing.
    # Owned or reserved time goes on being paid, so it frees capacity and saves no cash.
    if charge.state == MOVED or (charge.state == GIVEN_BACK and rented):
        return
    saving.cash_micro -= charge.cost_micro or 0
    if freed:
        saving.capacity_micro += charge.cost_micro or 0


def _still_paid(
    sums: dict[str, Saving], accelerator: RatedAccelerator, piece: HourlyUsage, book: PriceBook
) -> None:
    price = accelerator.price_at(book, piece.start_ms)
    if price is None or price.purchase != "on_demand":
        return
    key = (
        accelerator.pool,
        accelerator.gpu_model,
        str(price.rate),
        piece.start_ms - piece.start_ms % HOUR_MS,
    )
    paid = sums.setdefault(price.currency, Saving()).paid_ns
    paid[key] = paid.get(key, 0) + gpu_ns(accelerator.gpu_micro, piece.held_ms)


def reserved_saving(
    paid_ns: Mapping[tuple[str, str, str, int], int], reservation: GpuReservation, hours: int
) -> int:
    """What a reservation saves over `hours` hours in which so much would be rented on demand;
    negative: it costs more.

    The reservation replaces on-demand time hour by hour, the dearest first, and is paid in every
    hour.
    """
    by_hour: dict[int, list[tuple[Decimal, int]]] = {}
    for (pool, model, rate, hour_ms), quantity in paid_ns.items():
        if (pool, model) == (reservation.pool, reservation.gpu_model):
            by_hour.setdefault(hour_ms, []).append((Decimal(rate), quantity))
    saved = 0
    for rates in by_hour.values():
        left = gpu_ns(reservation.gpus * GPU_MICRO, HOUR_MS)
        # The dearest first: a reservation replaces the hours that would have cost most.
        for dearest, quantity in sorted(rates, reverse=True):
            taken = min(left, quantity)
            saved += cost_micro(taken, dearest)
            left -= taken
    return saved - hours * cost_micro(
        gpu_ns(reservation.gpus * GPU_MICRO, HOUR_MS), reservation.rate
    )


def dearer(price: Price, permille: int) -> Price:
    """Return the price with its rate raised by `permille` thousandths, rounded to the decimal
    places of a rate.
    """
    factor = Decimal(PERMILLE + permille).scaleb(-3)
    return replace(price, rate=(price.rate * factor).quantize(Decimal(1).scaleb(-RATE_DIGITS)))


def amount(sums: Mapping[str, Saving]) -> tuple[str | None, Saving | None]:
    """Return the single currency and its saving; (None, None) where changed time is unpriced or
    currencies mix.
    """
    if any(saving.unpriced_gpu_ns for saving in sums.values()):
        return None, None
    priced = {currency: saving for currency, saving in sums.items() if currency}
    changed_in = [
        currency for currency, saving in priced.items() if saving.freed_gpu_ns or saving.cash_micro
    ]
    # Savings in two currencies are no single amount, and are not converted.
    if len(changed_in) > 1:
        return None, None
    currency = changed_in[0] if changed_in else next(iter(sorted(priced)), None)
    return currency, None if currency is None else priced[currency]
