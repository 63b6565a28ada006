"""Charges of shared model servers: what a server's time cost moves from those who pay for it to the
owners of the tenants who asked.

Of a server that is declared as `charged`, a day's cost C is split (accounting.inference_split), and
the part of every tenant that has an owner is booked twice: to that owner, and off those who pay C,
in proportion to what each of them pays. So the charges of this state add up to zero for each server,
day, currency, pool and model; time stays where it was. What nobody asked for, idle cost that no rule
gives to a tenant, and tenants without an owner move nothing.

C is read from the other charges of the day and from none of this state: nothing feeds back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpuledger_collector.accounting.adjustments import POLICIES, Place
from gpuledger_collector.accounting.inference import Tokens
from gpuledger_collector.accounting.inference_share import INFERENCE, InferenceShare
from gpuledger_collector.accounting.inference_split import (
    NO_GPU_TIME,
    UNCOVERED_MS,
    Claimant,
    GpuTime,
    ServerCost,
    ServerCount,
    SharedServer,
    compare_tokens,
    split_server,
)
from gpuledger_collector.accounting.inference_tenants import TenantOwners
from gpuledger_collector.accounting.owner_tree import OwnerPath
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.rating import Charge
from gpuledger_collector.accounting.usage import HELD
from gpuledger_common.largest_remainder import split, split_signed

UNPRICED = ""
"""The currency of what has no price."""
Payer = OwnerPath | int | None
"""An owner, or the number of one."""
_Taker = tuple[str, str, str]
"""Gateway, tenant and trust of who takes over a part of a server's cost."""


@dataclass(frozen=True, slots=True)
class WorkloadDay:
    """What a workload cost on a day in one currency and at one place.

    `currency`: `UNPRICED` of time without a price. `is_time`: of GPU-time; else its share of what
    nodes cost.
    """

    day_ms: int
    workload_id: int
    payer: Payer
    pool: str
    gpu_model: str
    currency: str
    is_time: bool
    cost_micro: int
    busy_ns: int
    idle_ns: int
    unknown_ns: int


@dataclass(frozen=True, slots=True)
class PlaceCost:
    """What a payer's time in a pool and model cost on a day, and what policies added to it."""

    day_ms: int
    payer: Payer
    pool: str
    gpu_model: str
    currency: str
    held_micro: int
    adjusted_micro: int


@dataclass(frozen=True, slots=True)
class WorkloadCount:
    """What the counters of a workload counted on a day; None: they say nothing. `uncovered_ms`: how
    much of the time that it held they miss. The others are those of `ServerCount`.
    """

    input: int | None
    output: int | None
    uncovered_ms: int
    gpu: GpuTime = NO_GPU_TIME
    held_ms: int = 0
    unmeasured_ms: int = 0


@dataclass(frozen=True, slots=True)
class SharedDay:
    """A server on a day: its workloads with what each counted, and what tenants asked."""

    server: SharedServer
    counts: Mapping[int, WorkloadCount]
    asked: Mapping[Claimant, Tokens]


@dataclass(frozen=True, slots=True)
class SharedServers:
    """All that the charges of shared servers on a day follow from, but for its other charges.

    `keys`: those of the workloads of servers, which do not depend on the order of arrival.
    """

    servers: Sequence[SharedDay]
    tenants: TenantOwners
    keys: Mapping[int, str]


def spread_adjustments(
    places: Iterable[PlaceCost],
    days: Mapping[int, Sequence[WorkloadDay]],
    keys: Mapping[int, str],
) -> dict[WorkloadDay, int]:
    """What policies added to workloads: their part of what was added to their place on that day, in
    proportion to cost, by largest remainder; of equal remainders the first of their keys.
    """
    adjusted: dict[WorkloadDay, int] = {}
    by_place: dict[tuple[object, ...], list[WorkloadDay]] = defaultdict(list)
    for rows in days.values():
        for row in rows:
            if row.is_time:
                by_place[_place_of(row)].append(row)
    for place in places:
        own = sorted(by_place.get(_place_of(place), ()), key=lambda row: keys[row.workload_id])
        weights = [max(row.cost_micro, 0) for row in own]
        rest = max(place.held_micro - sum(weights), 0)
        if any(weights):
            parts = split_signed(place.adjusted_micro, [*weights, rest])
            adjusted |= dict(zip(own, parts, strict=False))
    return adjusted


def _place_of(row: WorkloadDay | PlaceCost) -> tuple[object, ...]:
    return row.day_ms, row.payer, row.pool, row.gpu_model, row.currency


def sum_costs(
    rows: Iterable[WorkloadDay], adjusted: Mapping[WorkloadDay, int]
) -> dict[str, ServerCost]:
    """What the workloads of a server cost on a day, by currency.

    A currency in which nodes alone cost is divided by all that the accelerators did.
    """
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for row in rows:
        entry = sums[row.currency]
        entry[0] += row.cost_micro + adjusted.get(row, 0)
        entry[1] += row.busy_ns
        entry[2] += row.idle_ns
        entry[3] += row.unknown_ns
    activity = [sum(entry[at] for entry in sums.values()) for at in (1, 2, 3)]
    sums.pop(UNPRICED, None)
    return {
        currency: ServerCost(micro, *(own if any(own) else activity))
        for currency, (micro, *own) in sums.items()
    }


def sum_counts(counts: Iterable[WorkloadCount]) -> ServerCount | None:
    """What a server counted on a day, by its workloads; None: their counters say nothing."""
    counts = list(counts)
    known = [count for count in counts if count.input is not None]
    if not known:
        return None
    return ServerCount(
        sum(count.input or 0 for count in known),
        sum(count.output or 0 for count in known),
        sum(count.uncovered_ms for count in counts) <= UNCOVERED_MS,
        sum((count.gpu for count in counts), NO_GPU_TIME),
        sum(count.held_ms for count in counts),
        sum(count.unmeasured_ms for count in counts),
    )


def inference_charges(
    charges: Sequence[Charge], day: Period, shared: SharedServers
) -> list[Charge]:
    """Charge tenants' owners for the servers of a day that are declared as charged, and take the
    same off those who pay for these servers; `charges` are all others of the day.
    """
    charged = {
        charge.workload_id
        for charge in charges
        if charge.state == HELD and charge.workload_id in shared.keys
    }
    return move_costs(
        day, shared, charged, _workload_days(charges, charged), _adjusted_places(charges)
    )


def move_costs(
    day: Period,
    shared: SharedServers,
    charged: Collection[int | None],
    rows: Sequence[WorkloadDay],
    places: Iterable[PlaceCost],
) -> list[Charge]:
    """Move what servers cost: `charged` are the workloads that were charged for time on the day,
    `rows` what they cost, by owners, and `places` where policies changed that.
    """
    adjusted = spread_adjustments(places, {day.start_ms: rows}, shared.keys)
    moved: list[Charge] = []
    for on_day in shared.servers:
        if not on_day.server.is_charged:
            continue
        own = [row for row in rows if row.workload_id in on_day.counts]
        counted = sum_counts(
            count for workload_id, count in on_day.counts.items() if workload_id in charged
        )
        tokens = compare_tokens(on_day.asked, counted)
        weights = on_day.server.weights_of(counted)
        for currency, cost in sorted(sum_costs(own, adjusted).items()):
            taken: dict[_Taker, int] = defaultdict(int)
            takers: dict[_Taker, OwnerPath] = {}
            for part in split_server(on_day.server, cost, tokens, weights):
                payer = shared.tenants.payer_of(
                    part.claimant, day.start_ms, on_day.server.charges_claims
                )
                if payer is not None:
                    gateway, tenant, _, trust = part.claimant
                    taken[gateway, tenant, trust] += part.micro
                    takers[gateway, tenant, trust] = payer
            paid: dict[Place, int] = defaultdict(int)
            for row in own:
                if row.currency == currency:
                    assert isinstance(row.payer, OwnerPath)
                    place = Place(row.payer, row.pool, row.gpu_model, currency)
                    paid[place] += row.cost_micro + adjusted.get(row, 0)
            moved += _move(day, on_day.server.name, weights, taken, takers, paid)
    return moved


def _move(
    day: Period,
    server: str,
    weights: str,
    taken: Mapping[_Taker, int],
    takers: Mapping[_Taker, OwnerPath],
    paid: Mapping[Place, int],
) -> list[Charge]:
    """Book what tenants' owners take of a server's cost, and the same off its payers: in each pool
    and model the two add up to zero.
    """
    total = sum(taken.values())
    places = sorted(paid)
    # Discounts that are rounded each can leave a cost below zero: tenants take that over as well.
    sign = 1 if total > 0 else -1
    costs = [max(sign * paid[place], 0) for place in places]
    if not total or not any(costs):
        return []
    given = split(abs(total), costs)
    of_payers = InferenceShare(server, "", "", "", weights)
    left: dict[tuple[str, str, str], int] = defaultdict(int)
    charges = []
    for place, micro in zip(places, given, strict=True):
        left[place.pool, place.gpu_model, place.currency] += micro
        if micro:
            charges.append(_charge(day, of_payers, place, -sign * micro))
    for taker, micro in sorted(taken.items()):
        share = InferenceShare(server, *taker, weights)
        # Each takes of what is left of the places, in proportion, so that the last takes the rest.
        # Nearly all servers have one place, and thousands of tenants.
        parts = [abs(micro)] if len(left) == 1 else split(abs(micro), list(left.values()))
        for (pool, gpu_model, currency), part in zip(list(left), parts, strict=True):
            left[pool, gpu_model, currency] -= part
            if part:
                place = Place(takers[taker], pool, gpu_model, currency)
                charges.append(_charge(day, share, place, sign * part))
    return charges


def _charge(day: Period, share: InferenceShare, place: Place, micro: int) -> Charge:
    return Charge(
        day_ms=day.start_ms,
        start_ms=day.start_ms,
        end_ms=day.end_ms,
        accelerator_id=None,
        workload_id=None,
        owner=place.owner,
        state=INFERENCE,
        pool=place.pool,
        gpu_model=place.gpu_model,
        node="",
        price=None,
        currency=place.currency,
        inference=share,
        cost_micro=micro,
        # What was paid at other prices stays with the payers, and so do its savings.
        list_cost_micro=micro,
        contracted_cost_micro=micro,
    )


def _workload_days(charges: Iterable[Charge], ids: Iterable[int | None]) -> list[WorkloadDay]:
    """What workloads were charged for a day, by place and currency."""
    wanted = set(ids)
    sums: dict[tuple[object, ...], WorkloadDay] = {}
    for charge in charges:
        workload_id, cost = charge.workload_id, charge.cost_micro or 0
        if workload_id not in wanted or workload_id is None:
            continue
        currency = UNPRICED if charge.currency is None else charge.currency
        is_time = charge.node_cost is None
        key = workload_id, charge.owner, charge.pool, charge.gpu_model, currency, is_time
        known = sums.get(key)
        sums[key] = WorkloadDay(
            charge.day_ms,
            workload_id,
            charge.owner,
            charge.pool,
            charge.gpu_model,
            currency,
            is_time,
            cost + (known.cost_micro if known else 0),
            charge.busy_ns + (known.busy_ns if known else 0),
            charge.idle_ns + (known.idle_ns if known else 0),
            charge.unknown_ns + (known.unknown_ns if known else 0),
        )
    return list(sums.values())


def _adjusted_places(charges: Iterable[Charge]) -> list[PlaceCost]:
    """The places of which policies changed the cost of a day."""
    charges = list(charges)
    if all(charge.adjustment is None for charge in charges):
        return []
    held: dict[tuple[Payer, str, str, str], int] = defaultdict(int)
    adjusted: dict[tuple[Payer, str, str, str], int] = defaultdict(int)
    day_ms = 0
    for charge in charges:
        if charge.currency is None:
            continue
        day_ms = charge.day_ms
        place = charge.owner, charge.pool, charge.gpu_model, charge.currency
        if charge.state == HELD and charge.node_cost is None:
            held[place] += charge.cost_micro or 0
        elif charge.adjustment is not None and charge.state in POLICIES:
            adjusted[place] += charge.cost_micro or 0
    return [PlaceCost(day_ms, *place, held[place], micro) for place, micro in adjusted.items()]
