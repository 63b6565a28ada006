"""The oracle's money beside the rate of time: node costs, volume prices, percentages and entries.

Computed anew from docs/decisions/0025 and 0028; like `oracle.model` it imports nothing of the
product.
"""

from __future__ import annotations

import datetime as dt
import zoneinfo
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

from oracle.model import (
    HOUR,
    WHOLE,
    Bill,
    Entry,
    Facts,
    JobKey,
    Key,
    NodeCost,
    Place,
    Policy,
    Rating,
    Server,
    Sighting,
    Tenant,
    bill_of_time,
    midnight,
    model_match,
    split,
)

GPU_HOUR = HOUR * WHOLE
"""Millionths of a GPU times milliseconds."""


class Held(NamedTuple):
    """Where time was held: what adjustments tell apart."""

    owner: tuple[str, ...]
    pool: str
    model: str
    currency: str


def rated(facts: Facts, first: dt.date, last: dt.date) -> tuple[Rating, list[tuple[str, Sighting]]]:
    """The rating of some days with all that is charged beside time, and the refused claims."""
    rating, places, refused = bill_of_time(facts, first, last)
    add_node_costs(rating, places)
    add_adjustments(rating)
    return rating, refused


def holds(what: NodeCost | Policy | Server | Tenant, day: dt.date) -> bool:
    """Whether a declaration holds on a day of the bill."""
    return (what.first is None or what.first <= day) and (what.last is None or day < what.last)


def date_of(at_ms: int, zone: str) -> dt.date:
    """The day of the bill that begins at an instant."""
    return dt.datetime.fromtimestamp(at_ms / 1000, zoneinfo.ZoneInfo(zone)).date()


def add_node_costs(rating: Rating, places: Sequence[Place]) -> None:
    """Split each hour of each node, price x time rounded once, by the GPU-time that was held on it."""
    facts = rating.facts
    if not facts.node_costs:
        return
    for (node, day, hour), holders in sorted(rating.on_nodes.items()):
        start, end = max(hour, day), min(hour + HOUR, rating.days[rating.days.index(day) + 1])
        there = [
            (max(start, one.start), min(end, one.end), one.pool)
            for one in places
            if one.node == node and one.start < end and start < one.end
        ]
        present = union(there)
        for cost in costs_of(facts, node, {pool for *_, pool in there}, date_of(day, facts.zone)):
            micro = round(Fraction(present, HOUR) * Fraction(cost.rate) * WHOLE)
            ordered = sorted(holders.items())
            for ((state, owner, job, pool, model), _), part in zip(
                ordered, split(micro, [ns for _, ns in ordered]), strict=True
            ):
                key = Key(
                    day,
                    owner if state == "node_cost" else None,
                    state,
                    pool,
                    model,
                    node,
                    cost.currency,
                )
                rating.bill[key][1] += part
                if job:
                    rating.jobs[JobKey(day, job, owner, pool, model, cost.currency, is_time=False)][
                        0
                    ] += part


def union(spans: Sequence[tuple[int, int, str]]) -> int:
    """Milliseconds in which there is any of these."""
    total, reached = 0, 0
    for start, end, _ in sorted(spans):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total


def costs_of(facts: Facts, node: str, pools: set[str], day: dt.date) -> Iterator[NodeCost]:
    """Of each name the most specific that holds: a node goes before a pool."""
    best: dict[str, NodeCost] = {}
    fitting = [one for one in facts.node_costs if holds(one, day) and one.node in ("", node)]
    for one in sorted(fitting, key=lambda one: (not one.node, not one.pool)):
        if not one.pool or one.pool in pools:
            best.setdefault(one.name, one)
    yield from (best[name] for name in sorted(best))


def add_adjustments(rating: Rating) -> None:
    """What policies and entries make of each day, in the order of days: a tier counts the hours of
    those before it.
    """
    facts = rating.facts
    held: dict[int, dict[Held, list[int]]] = {
        day: defaultdict(lambda: [0, 0]) for day in rating.days
    }
    for key, (ns, micro) in rating.bill.items():
        if key.state == "held" and key.currency and key.owner is not None:
            amounts = held[key.day][Held(key.owner, key.pool, key.model, key.currency)]
            amounts[0] += ns
            amounts[1] += micro
    volumes: dict[Held, int] = defaultdict(int)
    for day in rating.days[:-1]:
        date = date_of(day, facts.zone)
        if date.day == 1:
            volumes.clear()
        for kind, where, micro in adjusted(
            held[day], volumes, [one for one in facts.policies if holds(one, date)]
        ):
            rating.bill[Key(day, where.owner, kind, where.pool, where.model, "", where.currency)][
                1
            ] += micro
            rating.adjusted[day, where] += micro
        for where, (ns, _) in held[day].items():
            volumes[where] += ns
    for entry in facts.entries:
        add_entry(rating, entry)


def add_entry(rating: Rating, entry: Entry) -> None:
    """Charge an entry on its day."""
    day = midnight(entry.day, rating.facts.zone)
    if day in rating.days[:-1]:
        for owner, pool, model, micro in entry.shares:
            rating.bill[Key(day, owner, entry.kind, pool, model, "", entry.currency)][1] += micro


def fits(policy: Policy, where: Held) -> bool:
    """Whether a policy is about what was held there; a tier also only in its currency."""
    return (
        policy.team in ("", where.owner[1])
        and policy.pool in ("", where.pool)
        and model_match(policy.model, where.model) >= 0
        and policy.currency in ("", where.currency)
    )


def adjusted(
    held: Mapping[Held, Sequence[int]], volumes: Mapping[Held, int], policies: Sequence[Policy]
) -> Iterator[tuple[str, Held, int]]:
    """What policies add to the cost of a day: first the tiers, then each percentage of what those
    leave.
    """
    cost = {where: held[where][1] for where in sorted(held)}
    groups: dict[tuple[Policy, str], list[Held]] = defaultdict(list)
    for where in cost:
        if (tier := tier_of(policies, where)) is not None:
            groups[tier, counted_of(tier, where)].append(where)
    for (tier, counted), places in groups.items():
        same = [
            where
            for where in volumes
            if tier_of(policies, where) == tier and counted_of(tier, where) == counted
        ]
        before = sum(volumes[where] for where in same)
        hours = [held[where][0] for where in places]
        if any(hours):
            total = price_of(tier, before + sum(hours)) - price_of(tier, before)
            for where, part in zip(places, split(total, hours), strict=True):
                yield "tiered", where, part - cost[where]
                cost[where] = part
    for policy in policies:
        for currency in (
            sorted({where.currency for where in cost}) if policy.kind != "tiered" else ()
        ):
            places = [
                where
                for where in cost
                if where.currency == currency and fits(policy, where) and cost[where]
            ]
            total = round(Fraction(policy.percent) / 100 * sum(cost[where] for where in places))
            parts = split(total, [cost[where] for where in places])
            for where, part in zip(places, parts, strict=True):
                yield policy.kind, where, -part if policy.kind == "discount" else part


def tier_of(policies: Sequence[Policy], where: Held) -> Policy | None:
    """The tier with most conditions that fits, then the first by name."""
    tiers = [one for one in policies if one.kind == "tiered" and fits(one, where)]
    return min(
        tiers,
        key=lambda one: (-sum(map(bool, (one.team, one.pool, one.model))), one.name),
        default=None,
    )


def counted_of(tier: Policy, where: Held) -> str:
    """Whose hours a tier counts together: those of a team, or everybody's."""
    return "" if tier.per == "fleet" else where.owner[1]


def price_of(tier: Policy, ns: int) -> int:
    """Micro-units of the first hours of a month, rounded once, half to even."""
    steps = sorted((Fraction(hours) * GPU_HOUR, Fraction(rate)) for hours, rate in tier.steps)
    ends = [*(start for start, _ in steps[1:]), Fraction(ns)]
    total = sum(
        max(Fraction(0), min(end, ns) - start) * rate
        for (start, rate), end in zip(steps, ends, strict=True)
    )
    return round(total / GPU_HOUR * WHOLE)


Cells = tuple[object, ...]


def exchanged(
    bill: Bill, zone: str, rates: Sequence[tuple[int, Fraction]], cells_of: Callable[[Key], Cells]
) -> dict[tuple[Cells, str, str], int]:
    """A bill's dollars in euros: the days of a month for which one rate holds are added up, and
    rounded once.
    """
    lines: dict[tuple[Cells, str, str, str, Fraction | None], int] = defaultdict(int)
    for key, (ns, micro) in bill.items():
        dated = [rate for since, rate in rates if since <= key.day]
        rate = dated[-1] if key.currency == "USD" and dated else None
        if ns or micro:
            month = f"{date_of(key.day, zone):%Y-%m}"
            lines[cells_of(key), key.state, month, key.currency, rate] += micro
    found: dict[tuple[Cells, str, str], int] = defaultdict(int)
    for (cells, _, _, currency, rate), micro in lines.items():
        text = "" if rate is None else f"USD at {float(rate)!r}"
        found[cells[:-1], "EUR" if rate else currency, text] += (
            micro if rate is None else round(micro * rate)
        )
    return dict(found)
