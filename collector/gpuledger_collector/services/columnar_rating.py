"""Rate accelerators of a large fleet together: the charges that `rate_accelerator_day` makes,
column by column.

Only for accelerators that stayed in one place, on days without commitments, node costs and decided
disputes. All is integers; amounts that could exceed 63 bits are left to `rate_accelerator_day`,
which has no limit. Accounting computes the cost of capacity once for each different quantity and
rate; splits by largest remainder are made for all rating intervals at once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from gpuledger_collector.accounting.money import cost_micro
from gpuledger_collector.accounting.owner_tree import OwnerPath
from gpuledger_collector.accounting.period import HOUR_MS, Period
from gpuledger_collector.accounting.pricing import Price, PriceBook
from gpuledger_collector.accounting.rating import Charge, OwnerOf, RatedAccelerator
from gpuledger_collector.accounting.usage import HELD, STATES, UNOBSERVED, rating_intervals
from gpuledger_collector.storage.ledger.hour_columns import (
    LARGEST,
    NONE,
    Booleans,
    HourColumns,
    Integers,
    sort_keys,
)

_HELD, _UNOBSERVED = STATES.index(HELD), STATES.index(UNOBSERVED)


@dataclass(frozen=True, slots=True)
class Fleet:
    """Accelerators that stayed in one place on a day, in the order of their ids, and when each was
    there.
    """

    accelerators: Sequence[RatedAccelerator]
    capacity: Sequence[Period]

    @property
    def ids(self) -> Integers:
        """Their ids."""
        return np.array(
            [accelerator.accelerator_id for accelerator in self.accelerators], dtype=np.int64
        )

    def holds(self, rows: HourColumns) -> Booleans:
        """Which rows are of these accelerators."""
        return np.isin(rows.accelerator_id, self.ids)


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of all rating intervals, in the order in which they are rated; `cell` is
    accelerator and interval.
    """

    cell: Integers
    state: Integers
    workload_id: Integers
    owner: Integers
    ms: Integers
    cost: Integers
    busy_ms: Integers
    idle_ms: Integers
    unknown_ms: Integers
    energy_mj: Integers


def in_order(
    rows: HourColumns, order_of: Callable[[str, int | None, int | None], tuple[object, ...]]
) -> HourColumns:
    """Rows in the order in which those of an accelerator are rated; `order_of` asks state, workload
    and report.
    """
    first, keys = _groups(rows.state, rows.workload_id, rows.attributes_id)
    orders = [order_of(*rows.holder(row)) for row in first.tolist()]
    ranks = {order: rank for rank, order in enumerate(sorted(set(orders)))}
    rank = np.array([ranks[order] for order in orders], dtype=np.int64)[keys]
    keys = sort_keys(rows.accelerator_id, rows.start_ms, rank)
    return rows.where(np.argsort(keys, kind="stable"))


def alone(rows: HourColumns, intervals: Sequence[Period]) -> Booleans:
    """Which rows are of accelerators that have one row at most for a rating interval, state,
    workload and report.
    """
    starts = np.array([interval.start_ms for interval in intervals], dtype=np.int64)
    interval = np.searchsorted(starts, rows.start_ms, side="right")
    first, _ = _groups(
        rows.accelerator_id, interval, rows.state, rows.workload_id, rows.attributes_id
    )
    doubled = np.delete(rows.accelerator_id, first)
    return np.isin(rows.accelerator_id, doubled, invert=True)


def rate_fleet(
    fleet: Fleet,
    day: Period,
    until_ms: int,
    rows: HourColumns,
    book: PriceBook,
    owner_at: Callable[[str, str], OwnerOf],
    epoch_of: Callable[[int], int],
    *,
    by_place: bool = True,
) -> dict[int, list[Charge]] | None:
    """Rate a fleet on a day: the charges of each accelerator by its id; None where an amount is too
    large for it.

    `rows` are those of the fleet in the order in which an accelerator's are rated; each rating
    interval has one row for a state, workload and report of it at most. `owner_at` gives the owners
    in a pool and on a node, which do not change within an epoch; they are the same everywhere unless
    `by_place`.
    """
    if not fleet.accelerators:
        return {}
    intervals = rating_intervals(day, book.cuts(day))
    starts = np.array([interval.start_ms for interval in intervals], dtype=np.int64)
    ends = np.array([interval.end_ms for interval in intervals], dtype=np.int64)
    at = np.searchsorted(fleet.ids, rows.accelerator_id)
    first_ms = np.array([period.start_ms for period in fleet.capacity], dtype=np.int64)
    last_ms = np.array([period.end_ms for period in fleet.capacity], dtype=np.int64)
    # As in rating one by one: evidence of an hour in which the accelerator was never there is not
    # rated.
    hour_end = rows.start_ms - rows.start_ms % HOUR_MS + HOUR_MS
    there = (first_ms[at] < hour_end) & (rows.start_ms < last_ms[at])
    rows, at = rows.where(there), at[there]
    cell = at * len(intervals) + np.searchsorted(starts, rows.start_ms, side="right") - 1

    present = np.minimum(np.minimum(last_ms[:, None], ends), until_ms) - np.maximum(
        first_ms[:, None], starts
    )
    seen = _sums(cell, rows.held_ms, len(fleet.accelerators) * len(intervals))
    total = np.maximum(np.maximum(present, 0).reshape(-1), seen)
    prices, price = _prices(fleet, intervals, book)
    micro = np.array([accelerator.gpu_micro for accelerator in fleet.accelerators], dtype=np.int64)
    longest = max(
        1, int(total.max()), int((rows.busy_ms + rows.idle_ms + rows.unknown_ms).max(initial=0))
    )
    energy = int(rows.energy_mj.max(initial=0)) * rows.energy_mj.size
    if max(int(micro.max()) * longest * max(len(prices), rows.held_ms.size), energy) >= LARGEST:
        return None
    costs = _costs(micro.repeat(len(intervals)) * total, price, prices)
    if costs is None or int(costs.max()) * longest >= LARGEST:
        return None
    places = [
        (accelerator.pool, accelerator.node) if by_place else ("", "")
        for accelerator in fleet.accelerators
    ]
    owners, owner = _owners(places, at, cell % len(intervals), intervals, rows, owner_at, epoch_of)
    parts = _parts(rows, cell, owner, total, seen, costs)
    return _charges(fleet, day, intervals, parts, (prices, price), owners, micro)


def _sums(cell: Integers, values: Integers, cells: int) -> Integers:
    """The sum of the values of each cell; cells come in ascending order."""
    sums = np.zeros(cells, dtype=np.int64)
    if cell.size:
        begins = _begins(cell)
        sums[cell[begins]] = np.add.reduceat(values, begins)
    return sums


def _begins(keys: Integers) -> Integers:
    """Where a new key begins in sorted keys."""
    return (
        np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
        if keys.size
        else np.zeros(0, dtype=np.int64)
    )


def _prices(
    fleet: Fleet, intervals: Sequence[Period], book: PriceBook
) -> tuple[list[Price | None], Integers]:
    """The prices that apply, None first, and which of them applies in each cell."""
    prices: dict[Price | None, int] = {None: 0}
    by_place: dict[tuple[str, str, Hashable], list[int]] = {}
    cells: list[int] = []
    for accelerator in fleet.accelerators:
        place = accelerator.pool, accelerator.gpu_model, book.node_key(accelerator.node)
        if place not in by_place:
            found = (accelerator.price_at(book, interval.start_ms) for interval in intervals)
            by_place[place] = [prices.setdefault(price, len(prices)) for price in found]
        cells += by_place[place]
    return list(prices), np.array(cells, dtype=np.int64)


def _costs(
    quantity_ns: Integers, price: Integers, prices: Sequence[Price | None]
) -> Integers | None:
    """Capacity x rate of each cell, computed once for each quantity and price; None beyond 63 bits."""
    keys, of_cell = np.unique(quantity_ns * len(prices) + price, return_inverse=True)
    costs = []
    for key in keys.tolist():
        quantity, number = divmod(key, len(prices))
        found = prices[number]
        costs.append(0 if found is None else cost_micro(quantity, found.rate))
    return None if max(costs) >= LARGEST else np.array(costs, dtype=np.int64)[of_cell]


def _owners(
    place_of: Sequence[tuple[str, str]],
    at: Integers,
    interval: Integers,
    intervals: Sequence[Period],
    rows: HourColumns,
    owner_at: Callable[[str, str], OwnerOf],
    epoch_of: Callable[[int], int],
) -> tuple[list[OwnerPath | None], Integers]:
    """The owners that occur, None first, and which of them each row has; asked once where the
    answer is the same. `place_of` is pool and node of each accelerator.
    """
    places: dict[tuple[str, str], int] = {}
    place = [places.setdefault(where, len(places)) for where in place_of]
    owners: dict[OwnerPath | None, int] = {None: 0}
    epoch = np.array([epoch_of(period.start_ms) for period in intervals], dtype=np.int64)[interval]
    of_place = np.array(place, dtype=np.int64)[at]
    first, of_row = _groups(of_place, epoch, rows.workload_id, rows.attributes_id, rows.state)
    asked = [owner_at(*where) for where in places]
    numbers = []
    for row in first.tolist():
        workload_id, attributes_id = int(rows.workload_id[row]), int(rows.attributes_id[row])
        owner: OwnerPath | None = None
        if rows.state[row] == _HELD and workload_id == NONE:
            owner = OwnerPath()
        elif rows.state[row] == _HELD:
            start_ms = intervals[int(interval[row])].start_ms
            owner = asked[place[int(at[row])]](
                workload_id, start_ms, None if attributes_id == NONE else attributes_id
            )
        numbers.append(owners.setdefault(owner, len(owners)))
    return list(owners), np.array(numbers, dtype=np.int64)[of_row]


def _groups(*columns: Integers) -> tuple[Integers, Integers]:
    """The first row of each different combination of values, and which combination each row has."""
    _, first, group = np.unique(sort_keys(*columns), return_index=True, return_inverse=True)
    return first, group


def _parts(
    rows: HourColumns,
    cell: Integers,
    owner: Integers,
    total: Integers,
    seen: Integers,
    costs: Integers,
) -> _Parts:
    """The rows of each rating interval and what nobody observed of it, last, with their parts of
    its cost.
    """
    rated = total[cell] > 0
    rows, cell, owner = rows.where(rated), cell[rated], owner[rated]
    missing = np.flatnonzero(total > seen)
    order = np.argsort(np.concatenate((cell, missing)), kind="stable")

    def column(of_rows: Integers, of_missing: Integers | int) -> Integers:
        rest = np.broadcast_to(np.asarray(of_missing, dtype=np.int64), missing.shape)
        joined: Integers = np.concatenate((of_rows, rest))[order]
        return joined

    cells, ms, held = (
        column(cell, missing),
        column(rows.held_ms, (total - seen)[missing]),
        rows.state == _HELD,
    )
    return _Parts(
        cell=cells,
        state=column(rows.state, _UNOBSERVED),
        workload_id=column(rows.workload_id, NONE),
        owner=column(owner, 0),
        ms=ms,
        cost=_split(costs, total, cells, ms),
        busy_ms=column(np.where(held, rows.busy_ms, 0), 0),
        idle_ms=column(np.where(held, rows.idle_ms, 0), 0),
        unknown_ms=column(np.where(held, rows.unknown_ms, 0), 0),
        energy_mj=column(rows.energy_mj, NONE),
    )


def _split(costs: Integers, total: Integers, cell: Integers, ms: Integers) -> Integers:
    """The cost of each cell in proportion to the time of its parts, by largest remainder, ties to
    the earlier part.
    """
    products = costs[cell] * ms
    parts = products // total[cell]
    left = costs - _sums(cell, parts, costs.size)
    order = np.lexsort((np.arange(cell.size), -(products % total[cell]), cell))
    begins = _begins(cell)
    rank = np.empty(cell.size, dtype=np.int64)
    rank[order] = np.arange(cell.size) - begins.repeat(np.diff(np.append(begins, cell.size)))
    result: Integers = parts + (rank < left[cell])
    return result


def _idle_cost(parts: _Parts, micro: Integers) -> Integers:
    """What is idle of the cost of each part: split over busy, idle and unknown time by largest
    remainder.
    """
    weights = (parts.busy_ms, parts.idle_ms, parts.unknown_ms)
    sum_ms = np.maximum(sum(weights, np.zeros_like(parts.ms)), 1)
    floors = [parts.cost * weight // sum_ms for weight in weights]
    busy, idle, unknown = (parts.cost * weight % sum_ms for weight in weights)
    # Ties go to busy before idle, and to idle before unknown.
    rank = (busy >= idle).astype(np.int64) + (unknown > idle)
    cost = floors[1] + (rank < parts.cost - sum(floors, np.zeros_like(parts.ms)))
    return np.where((parts.idle_ms > 0) & (micro > 0), cost, 0)


def _charges(
    fleet: Fleet,
    day: Period,
    intervals: Sequence[Period],
    parts: _Parts,
    priced: tuple[Sequence[Price | None], Integers],
    owners: Sequence[OwnerPath | None],
    gpu_micro: Integers,
) -> dict[int, list[Charge]]:
    """The parts added up by accelerator, price, state, workload and owner, in the order of their
    first parts.
    """
    charges: dict[int, list[Charge]] = {
        accelerator.accelerator_id: [] for accelerator in fleet.accelerators
    }
    if not parts.cell.size:
        return charges
    prices, price_of_cell = priced
    at, interval = np.divmod(parts.cell, len(intervals))
    price, micro = price_of_cell[parts.cell], gpu_micro[at]
    first, keys = _groups(at, price, parts.state, parts.workload_id, parts.owner)
    order = np.argsort(keys, kind="stable")
    begins = _begins(keys[order])
    last = order[np.append(begins[1:], order.size) - 1]

    def sums(values: Integers) -> list[int]:
        # By the first part of each line, as everything below.
        added: list[int] = np.add.reduceat(values[order], begins)[by_first].tolist()
        return added

    by_first = np.argsort(first)
    first, last = first[by_first], last[by_first]
    known_energy: Booleans = parts.energy_mj != NONE
    lines = zip(
        *(
            values[first].tolist()
            for values in (at, interval, price, parts.state, parts.workload_id, parts.owner)
        ),
        interval[last].tolist(),
        *(sums(micro * ms) for ms in (parts.ms, parts.busy_ms, parts.idle_ms, parts.unknown_ms)),
        sums(parts.cost),
        sums(_idle_cost(parts, micro)),
        sums(np.where(known_energy, parts.energy_mj, 0)),
        sums(known_energy.astype(np.int64)),
        strict=True,
    )
    spans: dict[tuple[int, int], Period] = {}
    for number, begin, price_number, state, workload_id, owner, end, *amounts in lines:
        accelerator = fleet.accelerators[number]
        span = spans.get((begin, end))
        if span is None:
            span = spans[begin, end] = Period(intervals[begin].start_ms, intervals[end].end_ms)
        holder = None if workload_id == NONE else workload_id, owners[owner]
        charge = _charge(
            accelerator, day, span, STATES[state], holder, prices[price_number], amounts
        )
        charges[accelerator.accelerator_id].append(charge)
    return charges


def _charge(
    accelerator: RatedAccelerator,
    day: Period,
    span: Period,
    state: str,
    holder: tuple[int | None, OwnerPath | None],
    price: Price | None,
    amounts: Sequence[int],
) -> Charge:
    """One line; `amounts` are its sums in the order in which `_charges` adds them up."""
    gpu_ns, busy_ns, idle_ns, unknown_ns, cost, idle_cost, energy_mj, energy_parts = amounts
    has_activity = state == HELD and unknown_ns < gpu_ns
    list_rate = None if price is None else price.list_rate
    return Charge(
        day_ms=day.start_ms,
        start_ms=span.start_ms,
        end_ms=span.end_ms,
        accelerator_id=accelerator.accelerator_id,
        workload_id=holder[0],
        owner=holder[1],
        state=state,
        pool=accelerator.pool,
        gpu_model=accelerator.gpu_model,
        node=accelerator.node,
        price=price,
        currency=None if price is None else price.currency,
        gpu_ns=gpu_ns,
        busy_ns=busy_ns,
        idle_ns=idle_ns,
        unknown_ns=unknown_ns,
        cost_micro=None if price is None else cost,
        idle_cost_micro=idle_cost if price is not None and has_activity else None,
        energy_mj=energy_mj if energy_parts else None,
        list_cost_micro=None if list_rate is None else cost_micro(gpu_ns, list_rate),
        contracted_cost_micro=None if price is None else cost,
    )
