"""The daily ledger and its proof.

`summarise` adds charges up per owner; `prove` shows that nothing was lost on the way: the states of the day's capacity
add up to the capacity, and the charges to capacity x rate, each summed apart from the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpuledger_collector.accounting.commitments import COMMITMENT_UNUSED, CommitmentCost
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.rating import CapacityCost, Charge, total_ns
from gpuledger_collector.accounting.tags import OwnerPath
from gpuledger_collector.accounting.usage import HELD, STRANDED, UNALLOCATED, UNAVAILABLE, UNOBSERVED


@dataclass(frozen=True, slots=True)
class DayLine:
    """The charges of one day, owner (None: held by nobody), state, pool, model and currency, added up."""

    day_ms: int
    owner: OwnerPath | None
    state: str
    pool: str
    gpu_model: str
    currency: str | None
    gpu_ns: int
    busy_ns: int
    idle_ns: int
    unknown_ns: int
    cost_micro: int | None
    idle_cost_micro: int | None
    energy_mj: int | None
    list_cost_micro: int | None = None
    """At list rates, at contracted ones where the price book has no list rate; None where any part is unknown."""
    contracted_cost_micro: int | None = None


Paid = Mapping[str, int | str]
"""Of a commitment and day: `currency`, and committed, covered, imported and unused `_ns` and `_micro`."""


@dataclass(frozen=True, slots=True)
class Proof:
    """Conservation of one day, rated up to `until_ms`. Costs are micro-units by currency; imported usage is outside.

    `commitments` by name: what each paid for is what covered accelerators, what covered imported usage, and what
    nobody used. Their cost belongs to the capacity's, but for the imported part.
    """

    day_ms: int
    capacity_ns: int
    held_ns: int
    unallocated_ns: int
    unavailable_ns: int
    unobserved_ns: int
    imported_ns: int
    capacity_cost: Mapping[str, int]
    charged_cost: Mapping[str, int]
    until_ms: int
    holds: bool
    commitments: Mapping[str, Paid] = field(default_factory=dict)
    stranded_ns: int = 0


def add_known(total: int | None, value: int | None) -> int | None:
    """The sum of what is known; None only when nothing is."""
    if value is None:
        return total
    return value if total is None else total + value


def summarise(charges: Iterable[Charge]) -> list[DayLine]:
    """The daily ledger lines of some charges, in a fixed order."""
    sums: dict[tuple[int, OwnerPath | None, str, str, str, str | None], list[int | None]] = {}
    unknown = set()
    for charge in charges:
        key = (charge.day_ms, charge.owner, charge.state, charge.pool, charge.gpu_model, charge.currency)
        amounts = sums.setdefault(key, [0, 0, 0, 0, None, None, None, None, None])
        values = (
            charge.gpu_ns,
            charge.busy_ns,
            charge.idle_ns,
            charge.unknown_ns,
            charge.cost_micro,
            charge.idle_cost_micro,
            charge.energy_mj,
            listed_micro(charge),
            charge.contracted_cost_micro,
        )
        for at, value in enumerate(values):
            amounts[at] = add_known(amounts[at], value)
        if charge.commitment is not None and charge.contracted_cost_micro is None:
            unknown.add(key)
    for key in unknown:
        sums[key][7:] = [None, None]
    ordered = sorted(sums.items(), key=lambda item: _order(item[0]))
    return [_line(key, amounts) for key, amounts in ordered]


def listed_micro(charge: Charge) -> int | None:
    """What a charge would have cost at list: at the contracted rate where the price book has no list rate."""
    return charge.contracted_cost_micro if charge.list_cost_micro is None else charge.list_cost_micro


def _line(key: tuple[int, OwnerPath | None, str, str, str, str | None], amounts: Sequence[int | None]) -> DayLine:
    gpu_ns, busy_ns, idle_ns, unknown_ns = (amount or 0 for amount in amounts[:4])
    return DayLine(*key, gpu_ns, busy_ns, idle_ns, unknown_ns, *amounts[4:])


def _order(key: tuple[int, OwnerPath | None, str, str, str, str | None]) -> tuple[object, ...]:
    day_ms, owner, state, pool, gpu_model, currency = key
    return day_ms, owner is None, owner or OwnerPath(), state, pool, gpu_model, currency or ""


def prove(
    day: Period,
    until_ms: int,
    capacities: Iterable[CapacityCost],
    charges: Sequence[Charge],
    commitments: Iterable[CommitmentCost] = (),
) -> Proof:
    """The proof of a day from its capacity, what its commitments paid for, and its charges."""
    capacity_ns = 0
    capacity_cost: dict[str, int] = {}
    for capacity in capacities:
        capacity_ns += capacity.capacity_ns
        for currency, micro in capacity.cost.items():
            capacity_cost[currency] = capacity_cost.get(currency, 0) + micro
    paid = paid_for(commitments, charges)
    for one in paid.values():
        currency = str(one["currency"])
        bears = int(one["cost_micro"]) - int(one["imported_micro"])
        capacity_cost[currency] = capacity_cost.get(currency, 0) + bears
    charged_cost: dict[str, int] = {}
    for charge in charges:
        inside = charge.accelerator_id is not None or charge.state == COMMITMENT_UNUSED
        if inside and charge.currency is not None:
            charged_cost[charge.currency] = charged_cost.get(charge.currency, 0) + (charge.cost_micro or 0)
    held, unallocated, unavailable, unobserved, stranded = (
        total_ns(charges, state) for state in (HELD, UNALLOCATED, UNAVAILABLE, UNOBSERVED, STRANDED)
    )
    whole = held + unallocated + unavailable + unobserved + stranded == capacity_ns
    return Proof(
        day_ms=day.start_ms,
        capacity_ns=capacity_ns,
        held_ns=held,
        unallocated_ns=unallocated,
        unavailable_ns=unavailable,
        unobserved_ns=unobserved,
        imported_ns=sum(
            charge.gpu_ns for charge in charges if charge.accelerator_id is None and charge.state != COMMITMENT_UNUSED
        ),
        capacity_cost=_not_zero(capacity_cost) if paid else capacity_cost,
        charged_cost=_not_zero(charged_cost) if paid else charged_cost,
        until_ms=min(until_ms, day.end_ms),
        holds=whole and _same(charged_cost, capacity_cost) and all(_adds_up(one) for one in paid.values()),
        commitments=paid,
        stranded_ns=stranded,
    )


def paid_for(commitments: Iterable[CommitmentCost], charges: Iterable[Charge]) -> dict[str, Paid]:
    """What the commitments of a day paid for, beside what its charges say of them."""
    found: dict[str, dict[str, int | str]] = {}
    for one in commitments:
        committed = {"committed_ns": one.committed_ns, "cost_micro": one.cost_micro}
        found[one.commitment.name] = {"currency": one.commitment.currency, **dict.fromkeys(_PAID, 0), **committed}
    for charge in charges:
        if charge.commitment is None:
            continue
        part = "covered" if charge.accelerator_id is not None else "imported" if charge.state == HELD else "unused"
        mine = found.setdefault(charge.commitment.name, dict.fromkeys(_PAID, 0) | {"currency": charge.currency or ""})
        mine[f"{part}_ns"] = int(mine[f"{part}_ns"]) + charge.gpu_ns
        mine[f"{part}_micro"] = int(mine[f"{part}_micro"]) + (charge.cost_micro or 0)
    return dict(found)


_PAID = (
    "committed_ns",
    "cost_micro",
    "covered_ns",
    "covered_micro",
    "imported_ns",
    "imported_micro",
    "unused_ns",
    "unused_micro",
)


def _adds_up(paid: Paid) -> bool:
    """Covered + imported + unused = committed, in time and in money."""
    parts = ("covered", "imported", "unused")
    return (
        sum(int(paid[f"{part}_ns"]) for part in parts) == paid["committed_ns"]
        and sum(int(paid[f"{part}_micro"]) for part in parts) == paid["cost_micro"]
    )


def _not_zero(costs: Mapping[str, int]) -> dict[str, int]:
    return {currency: micro for currency, micro in costs.items() if micro}


def _same(one: Mapping[str, int], other: Mapping[str, int]) -> bool:
    return _not_zero(one) == _not_zero(other)
