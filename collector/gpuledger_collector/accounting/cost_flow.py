"""Where each dollar of capacity went: from what capacity costs, by what its time was, to who pays.

Three numbers have three names, as on the overview: what *capacity costs* is the whole chargeback,
what is *billed to owners* their part of it, and the rest *nobody pays*. What flows is the cost of
the time and of the nodes; adjustments, shares of common costs and corrections are steps beside it,
for they may be negative. Law: what flows into a use flows out of it again, to the minor unit, and
with the steps it is what the chargeback prints.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpuledger_collector.accounting.chargeback import Report, ReportRow, sum_known
from gpuledger_collector.accounting.commitments import COMMITMENT_UNUSED
from gpuledger_collector.accounting.money import Money, minor_unit
from gpuledger_collector.accounting.node_costs import NODE_COST
from gpuledger_collector.accounting.quantity import round_to_sum
from gpuledger_collector.accounting.spend_series import IDLE, add_moneys
from gpuledger_collector.accounting.usage import (
    HELD,
    STRANDED,
    UNALLOCATED,
    UNAVAILABLE,
    UNOBSERVED,
)

CAPACITY, BILLED, UNPAID = "capacity costs", "billed to owners", "nobody pays"
TIME = "time and nodes"
PAID_USES = (HELD, IDLE, NODE_COST)
UNPAID_USES = (UNALLOCATED, STRANDED, UNAVAILABLE, UNOBSERVED, COMMITMENT_UNUSED)
MOST_TEAMS = 8


@dataclass(frozen=True, slots=True)
class FlowPart:
    """What flows from one use to one team (None: to all teams that are not named, so many)."""

    team: str | None
    count: int
    cost: Money


@dataclass(frozen=True, slots=True)
class Use:
    """What time of capacity was: its cost, and which teams pay it; nobody does where there are none."""

    name: str
    cost: Money
    parts: tuple[FlowPart, ...] = ()


@dataclass(frozen=True, slots=True)
class FlowStep:
    """One step from the part of capacity that teams held to what they are billed."""

    name: str
    cost: Money


@dataclass(frozen=True, slots=True)
class CostFlow:
    """The flow of one currency: `flowing` is what the uses cost together, and each number of the
    three is the sum of its steps.

    `unknown_ns` of the held time is time whose activity nobody could read: its cost stands under
    held.
    """

    currency: str
    flowing: Money
    capacity_steps: tuple[FlowStep, ...]
    capacity: Money
    uses: tuple[Use, ...]
    teams: tuple[FlowPart, ...]
    billed_steps: tuple[FlowStep, ...]
    billed: Money
    unpaid_steps: tuple[FlowStep, ...]
    unpaid: Money
    unknown_ns: int


def make_flow(report: Report, currency: str) -> CostFlow | None:
    """Make the flow of a currency from the chargeback by team; None where capacity costs nothing."""
    rows = [row for row in report.rows if row.currency == currency]
    own = [row for row in rows if not row.correction_of]
    paid = [row for row in own if row.is_billed]
    unpaid = [row for row in own if row.is_billed is False]
    uses = _paid_uses(paid, currency) + _unpaid_uses(unpaid, currency)
    flowing = add_moneys([use.cost for use in uses], currency)
    if flowing.micro <= 0:
        return None
    corrections = [row for row in rows if row.correction_of]
    held = add_moneys([use.cost for use in uses if use.parts], currency)
    billed_steps = (
        FlowStep(TIME, held),
        *_adjustments(paid, held),
        *_steps(paid, currency),
        *_correction_steps([row for row in corrections if row.is_billed], currency),
    )
    unpaid_steps = (
        FlowStep(TIME, add_moneys([use.cost for use in uses if not use.parts], currency)),
        *_steps(unpaid, currency),
        *_correction_steps([row for row in corrections if row.is_billed is False], currency),
    )
    capacity_steps = _join_steps((*billed_steps, *unpaid_steps), currency)
    billed, unbilled, capacity = (
        add_moneys([step.cost for step in steps], currency)
        for steps in (billed_steps, unpaid_steps, capacity_steps)
    )
    return CostFlow(
        currency=currency,
        flowing=flowing,
        capacity_steps=capacity_steps,
        capacity=capacity,
        uses=uses,
        teams=_teams(uses, currency),
        billed_steps=billed_steps,
        billed=billed,
        unpaid_steps=unpaid_steps,
        unpaid=unbilled,
        unknown_ns=sum(row.unknown_ns for row in paid),
    )


def _join_steps(steps: Sequence[FlowStep], currency: str) -> tuple[FlowStep, ...]:
    """Steps of the same name as one; those that cancel out are none."""
    names = dict.fromkeys(step.name for step in steps)
    sums = [
        FlowStep(name, add_moneys([step.cost for step in steps if step.name == name], currency))
        for name in names
    ]
    return tuple(step for step in sums if step.name == TIME or step.cost.minor)


def _paid_uses(rows: Sequence[ReportRow], currency: str) -> tuple[Use, ...]:
    """What owners held, by use and team, rounded so that each team's row of the bill is its sum."""
    named = sorted(rows, key=lambda row: (-sum(_split(row)[0]), row.keys))
    shown = named if len(named) <= MOST_TEAMS + 1 else named[:MOST_TEAMS]
    groups: list[tuple[str | None, Sequence[ReportRow]]] = [(row.keys[0], [row]) for row in shown]
    if rest := named[len(shown) :]:
        groups.append((None, rest))
    parts: dict[str, list[FlowPart]] = {name: [] for name in PAID_USES}
    for team, members in groups:
        cells = [_split(row) for row in members]
        micros = [sum(cell) for cell in zip(*(exact for exact, _ in cells), strict=True)]
        minors = [sum(cell) for cell in zip(*(printed for _, printed in cells), strict=True)]
        for name, micro, minor in zip(PAID_USES, micros, minors, strict=True):
            if minor > 0:
                money = Money(micro, currency, minor)
                parts[name].append(FlowPart(team, len(members), money))
    return tuple(
        Use(name, add_moneys([part.cost for part in own], currency), tuple(own))
        for name, own in parts.items()
        if own
    )


def _split(row: ReportRow) -> tuple[list[int], list[int]]:
    """A row's cost without adjustments as held, idle and node costs: exact, and as printed."""
    idle, node = row.idle_cost_micro or 0, row.node_micro or 0
    micro = (row.cost_micro or 0) - (row.adjusted_micro or 0)
    minor = (row.cost_minor or 0) - (row.adjusted_minor or 0)
    exact = [micro - idle - node, idle, node]
    unit = minor_unit(row.currency or "")
    # Adjustments are rounded apart from the cost: their difference may be off by one unit more.
    floors, ceilings = (
        sum(part // unit for part in exact),
        sum(-(-part // unit) for part in exact),
    )
    return exact, round_to_sum(exact, unit, min(max(minor, floors), ceilings))


def _unpaid_uses(rows: Sequence[ReportRow], currency: str) -> tuple[Use, ...]:
    costs = {
        name: _amount([row for row in rows if row.state == name], "cost", currency)
        for name in UNPAID_USES
    }
    return tuple(Use(name, cost) for name, cost in costs.items() if cost and cost.minor > 0)


def _teams(uses: Iterable[Use], currency: str) -> tuple[FlowPart, ...]:
    """What flows into each team, dearest first; those without a name last."""
    found: dict[str | None, list[FlowPart]] = {}
    for use in uses:
        for part in use.parts:
            found.setdefault(part.team, []).append(part)
    teams = [
        FlowPart(team, parts[0].count, add_moneys([part.cost for part in parts], currency))
        for team, parts in found.items()
    ]
    return tuple(
        sorted(teams, key=lambda part: (part.team is None, -part.cost.micro, part.team or ""))
    )


def _adjustments(rows: Sequence[ReportRow], held: Money) -> tuple[FlowStep, ...]:
    """What lies between the capacity that owners held and their direct cost."""
    micro = sum(row.cost_micro or 0 for row in rows) - held.micro
    minor = sum(row.cost_minor or 0 for row in rows) - held.minor
    return (FlowStep("adjustments", Money(micro, held.currency, minor)),) if minor else ()


def _steps(rows: Sequence[ReportRow], currency: str) -> tuple[FlowStep, ...]:
    cost = _amount(rows, "shared", currency)
    if cost is None or not cost.minor:
        return ()
    return (FlowStep("shares of common costs", cost),)


def _correction_steps(rows: Sequence[ReportRow], currency: str) -> tuple[FlowStep, ...]:
    costs = [_amount(rows, amount, currency) for amount in ("cost", "shared")]
    known = [cost for cost in costs if cost is not None]
    whole = add_moneys(known, currency)
    return (FlowStep("corrections of closed months", whole),) if whole.minor else ()


def _amount(rows: Sequence[ReportRow], name: str, currency: str) -> Money | None:
    micro = sum_known(getattr(row, f"{name}_micro") for row in rows)
    minor = sum_known(getattr(row, f"{name}_minor") for row in rows)
    return None if micro is None else Money(micro, currency, minor)
