"""The ledger of a day and its conservation check.

`summarize` adds charges up per owner; `check_conservation` shows that nothing was lost on the way:
the states of the day's capacity add up to the capacity, and the charges to capacity x rate, each
computed independently of the other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpuledger_collector.accounting.commitments import COMMITMENT_UNUSED, CommitmentCost
from gpuledger_collector.accounting.measures import COMPARED, Measures, total
from gpuledger_collector.accounting.owner_tree import LEVELS, OwnerPath
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.rating import CapacityCost, Charge, total_ns
from gpuledger_collector.accounting.usage import (
    HELD,
    STRANDED,
    UNALLOCATED,
    UNAVAILABLE,
    UNOBSERVED,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DayLine(Measures):
    """The charges of one day, owner (None: held by nobody), state, pool, model and currency, added
    up.

    The list cost counts contracted rates where the price book has no list rate.
    """

    day_ms: int
    owner: OwnerPath | None
    state: str
    pool: str
    gpu_model: str
    currency: str | None


@dataclass(frozen=True, slots=True)
class ChargedLine(Measures):
    """Charges added up as a report asked for them: `keys` in the order of its dimensions.

    `correction_of` names the closed month that the line amends, where a report keeps corrections
    apart. `compared_cost_micro` is the part of the cost whose list and contracted cost are known;
    those are of just that part.
    """

    keys: tuple[str, ...]
    state: str
    currency: str | None
    correction_of: str = ""
    compared_cost_micro: int | None = None
    effective_cost_micro: int | None = None
    """In the cash view, where `cost_micro` is what is paid: what is borne; None: the cost is both.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedCharge:
    """One charge with the names that an export writes.

    `booked_day_ms` of a correction is the day of an open period in which it is booked; the charge's
    own day is the one that it amends, in the month `correction_of`. `device_uuid` is the device of
    a MIG instance; of a full device its own UUID.
    """

    charge: Charge
    accelerator_uuid: str | None = None
    workload_key: str | None = None
    workload_name: str | None = None
    user: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    booked_day_ms: int | None = None
    device_uuid: str | None = None
    correction_of: str = ""


CommitmentUse = Mapping[str, int | str]
"""Of a commitment and day: `currency`, and committed, covered, imported and unused `_ns` and
`_micro`.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConservationCheck:
    """Conservation of one day, rated up to `until_ms`.

    Costs are micro-units by currency; imported usage is excluded.

    `commitments` by name: what each paid for equals what covered accelerators, what covered
    imported usage, and what nobody used. Except for the imported part, their cost belongs to the
    capacity's.
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
    commitments: Mapping[str, CommitmentUse] = field(default_factory=dict)
    stranded_ns: int = 0


@dataclass(frozen=True, slots=True)
class RatedDay:
    """What a rated day becomes in the ledger."""

    charges: Sequence[Charge]
    lines: Sequence[DayLine]
    check: ConservationCheck


def summarize(charges: Iterable[Charge]) -> list[DayLine]:
    """Add charges up to the lines of the ledger of days, in a fixed order."""
    groups: dict[tuple[object, ...], list[Charge]] = defaultdict(list)
    for charge in charges:
        key = (
            charge.day_ms,
            charge.owner,
            charge.state,
            charge.pool,
            charge.gpu_model,
            charge.currency,
        )
        groups[key].append(charge)
    return sorted((_day_line(group) for group in groups.values()), key=_order)


def _day_line(charges: Sequence[Charge]) -> DayLine:
    """The line of charges that differ in accelerator, workload and price only."""
    measures = total(charges).amounts
    list_costs = [
        micro for charge in charges if (micro := list_or_contracted_micro(charge)) is not None
    ]
    # With contracted costs as fallback: without them the day's list cost would leave these charges
    # out.
    measures["list_cost_micro"] = sum(list_costs) if list_costs else None
    # A part without a comparable amount makes the sum incomparable: unknown for the line, not
    # smaller than it is.
    if any(
        charge.commitment is not None and charge.contracted_cost_micro is None for charge in charges
    ):
        measures |= dict.fromkeys(COMPARED)
    first = charges[0]
    return DayLine(
        day_ms=first.day_ms,
        owner=first.owner,
        state=first.state,
        pool=first.pool,
        gpu_model=first.gpu_model,
        currency=first.currency,
        **measures,
    )


def list_or_contracted_micro(charge: Charge) -> int | None:
    """What a charge would have cost at list: at the contracted rate where the price book has no
    list rate.
    """
    return (
        charge.contracted_cost_micro if charge.list_cost_micro is None else charge.list_cost_micro
    )


def _order(line: DayLine) -> tuple[object, ...]:
    # None cannot be compared with a path; the flag before it sorts time that nobody held to the
    # end.
    owner = line.owner or OwnerPath()
    levels = [getattr(owner, name) for name in LEVELS]
    return (
        line.day_ms,
        line.owner is None,
        levels,
        line.state,
        line.pool,
        line.gpu_model,
        line.currency or "",
    )


def check_conservation(
    day: Period,
    until_ms: int,
    capacities: Iterable[CapacityCost],
    charges: Sequence[Charge],
    commitments: Iterable[CommitmentCost] = (),
) -> ConservationCheck:
    """Check a day from its capacity, what its commitments paid for, and its charges."""
    capacity_ns = 0
    capacity_cost: dict[str, int] = defaultdict(int)
    for capacity in capacities:
        capacity_ns += capacity.capacity_ns
        for currency, micro in capacity.cost.items():
            capacity_cost[currency] += micro
    uses = commitment_uses(commitments, charges)
    for use in uses.values():
        # What a commitment pays for imported counts has no accelerator, so it is on neither side of
        # this equation.
        capacity_cost[str(use["currency"])] += int(use["cost_micro"]) - int(use["imported_micro"])
    charged_cost: dict[str, int] = defaultdict(int)
    for charge in charges:
        # Imported usage is charged, but has no capacity to compare it with.
        is_capacity = (
            charge.accelerator_id is not None
            or charge.state == COMMITMENT_UNUSED
            or charge.node_cost is not None
        )
        if is_capacity and charge.currency is not None:
            charged_cost[charge.currency] += charge.cost_micro or 0
    held, unallocated, unavailable, unobserved, stranded = (
        total_ns(charges, state) for state in (HELD, UNALLOCATED, UNAVAILABLE, UNOBSERVED, STRANDED)
    )
    imported = (
        charge
        for charge in charges
        if charge.accelerator_id is None and charge.state != COMMITMENT_UNUSED
    )
    time_holds = held + unallocated + unavailable + unobserved + stranded == capacity_ns
    cost_holds = without_zeros(charged_cost) == without_zeros(capacity_cost)
    return ConservationCheck(
        day_ms=day.start_ms,
        capacity_ns=capacity_ns,
        held_ns=held,
        unallocated_ns=unallocated,
        unavailable_ns=unavailable,
        unobserved_ns=unobserved,
        imported_ns=sum(charge.gpu_ns for charge in imported),
        capacity_cost=without_zeros(capacity_cost) if uses else dict(capacity_cost),
        charged_cost=without_zeros(charged_cost) if uses else dict(charged_cost),
        until_ms=min(until_ms, day.end_ms),
        holds=time_holds
        and cost_holds
        and all(_adds_up(use) for use in uses.values())
        and not any(moved_costs(charges).values()),
        commitments=uses,
        stranded_ns=stranded,
    )


def moved_costs(charges: Iterable[Charge]) -> dict[tuple[str, str, str, str], int]:
    """What charges of shared servers add up to by server, pool, model and currency: zero, since
    tenants' owners are charged what the payers get back.
    """
    sums: dict[tuple[str, str, str, str], int] = defaultdict(int)
    for charge in charges:
        if charge.inference is not None:
            place = charge.pool, charge.gpu_model, charge.currency or ""
            sums[charge.inference.server, *place] += charge.cost_micro or 0
    return sums


_USE_PARTS = ("covered", "imported", "unused")
_USE_AMOUNTS = (
    "committed_ns",
    "cost_micro",
    *(f"{part}_{unit}" for part in _USE_PARTS for unit in ("ns", "micro")),
)


def commitment_uses(
    commitments: Iterable[CommitmentCost], charges: Iterable[Charge]
) -> dict[str, CommitmentUse]:
    """What the commitments of a day paid for, and what its charges say of them."""
    uses: dict[str, dict[str, int | str]] = {}
    for paid in commitments:
        committed = {"committed_ns": paid.committed_ns, "cost_micro": paid.cost_micro}
        uses[paid.commitment.name] = {
            "currency": paid.commitment.currency,
            **dict.fromkeys(_USE_AMOUNTS, 0),
            **committed,
        }
    for charge in charges:
        if charge.commitment is None:
            continue
        part = (
            "covered"
            if charge.accelerator_id is not None
            else "imported"
            if charge.state == HELD
            else "unused"
        )
        name = charge.commitment.name
        use = uses.setdefault(
            name, dict.fromkeys(_USE_AMOUNTS, 0) | {"currency": charge.currency or ""}
        )
        use[f"{part}_ns"] = int(use[f"{part}_ns"]) + charge.gpu_ns
        use[f"{part}_micro"] = int(use[f"{part}_micro"]) + (charge.cost_micro or 0)
    return dict(uses)


def _adds_up(use: CommitmentUse) -> bool:
    """Whether covered + imported + unused = committed, in time and in money."""
    time, cost = (
        sum(int(use[f"{part}_{unit}"]) for part in _USE_PARTS) for unit in ("ns", "micro")
    )
    return time == use["committed_ns"] and cost == use["cost_micro"]


def without_zeros(costs: Mapping[str, int]) -> dict[str, int]:
    """Costs by currency, without currencies in which nothing was charged."""
    return {currency: micro for currency, micro in costs.items() if micro}
