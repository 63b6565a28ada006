"""The daily ledger and its proof.

`summarise` adds charges up per owner; `prove` shows that nothing was lost on the way: the states of the day's capacity
add up to the capacity, and the charges to capacity x rate, each summed apart from the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.rating import CapacityCost, Charge, total_ns
from gpuledger_collector.accounting.tags import OwnerPath
from gpuledger_collector.accounting.usage import HELD, UNALLOCATED, UNAVAILABLE, UNOBSERVED


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


@dataclass(frozen=True, slots=True)
class Proof:
    """Conservation of one day, rated up to `until_ms`. Costs are micro-units by currency; imported usage is outside."""

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


def add_known(total: int | None, value: int | None) -> int | None:
    """The sum of what is known; None only when nothing is."""
    if value is None:
        return total
    return value if total is None else total + value


def summarise(charges: Iterable[Charge]) -> list[DayLine]:
    """The daily ledger lines of some charges, in a fixed order."""
    sums: dict[tuple[int, OwnerPath | None, str, str, str, str | None], list[int | None]] = {}
    for charge in charges:
        key = (charge.day_ms, charge.owner, charge.state, charge.pool, charge.gpu_model, charge.currency)
        amounts = sums.setdefault(key, [0, 0, 0, 0, None, None, None])
        values = (
            charge.gpu_ns, charge.busy_ns, charge.idle_ns, charge.unknown_ns,
            charge.cost_micro, charge.idle_cost_micro, charge.energy_mj,
        )  # fmt: skip
        for at, value in enumerate(values):
            amounts[at] = add_known(amounts[at], value)
    ordered = sorted(sums.items(), key=lambda item: _order(item[0]))
    return [_line(key, amounts) for key, amounts in ordered]


def _line(key: tuple[int, OwnerPath | None, str, str, str, str | None], amounts: Sequence[int | None]) -> DayLine:
    gpu_ns, busy_ns, idle_ns, unknown_ns = (amount or 0 for amount in amounts[:4])
    return DayLine(*key, gpu_ns, busy_ns, idle_ns, unknown_ns, amounts[4], amounts[5], amounts[6])


def _order(key: tuple[int, OwnerPath | None, str, str, str, str | None]) -> tuple[object, ...]:
    day_ms, owner, state, pool, gpu_model, currency = key
    return day_ms, owner is None, owner or OwnerPath(), state, pool, gpu_model, currency or ""


def prove(day: Period, until_ms: int, capacities: Iterable[CapacityCost], charges: Sequence[Charge]) -> Proof:
    """The proof of a day from its capacity and its charges."""
    capacity_ns = 0
    capacity_cost: dict[str, int] = {}
    for capacity in capacities:
        capacity_ns += capacity.capacity_ns
        for currency, micro in capacity.cost.items():
            capacity_cost[currency] = capacity_cost.get(currency, 0) + micro
    charged_cost: dict[str, int] = {}
    for charge in charges:
        if charge.accelerator_id is not None and charge.currency is not None:
            charged_cost[charge.currency] = charged_cost.get(charge.currency, 0) + (charge.cost_micro or 0)
    held, unallocated, unavailable, unobserved = (
        total_ns(charges, state) for state in (HELD, UNALLOCATED, UNAVAILABLE, UNOBSERVED)
    )
    return Proof(
        day_ms=day.start_ms,
        capacity_ns=capacity_ns,
        held_ns=held,
        unallocated_ns=unallocated,
        unavailable_ns=unavailable,
        unobserved_ns=unobserved,
        imported_ns=sum(charge.gpu_ns for charge in charges if charge.accelerator_id is None),
        capacity_cost=capacity_cost,
        charged_cost=charged_cost,
        until_ms=min(until_ms, day.end_ms),
        holds=held + unallocated + unavailable + unobserved == capacity_ns and charged_cost == capacity_cost,
    )
