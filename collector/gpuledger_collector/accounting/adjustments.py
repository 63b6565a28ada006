"""Adjustments: what owners pay or get back beside the rate of their time, as charges of their own
kind.

Two sorts, in one table and one place of the rating. A *policy* holds for days and follows from what
was held on each: `markup` and `discount` are a percentage of the cost, `tiered` replaces the rate
by steps over the GPU-hours of the month. An *entry* is an amount that somebody approved and that is
booked once: `credit`, `debit`, and `true_up`, the difference to a provider's bill
(accounting.true_up).

The lines of a day are added up by owner, pool, model and currency. Tiers come first, since they say
what an hour costs; then every markup and discount that fits takes its percentage of that same cost,
so that no order of policies matters. Each amount is rounded once a day and split by largest
remainder: the parts add up to it.

Which hours fall in which tier: those of earlier days fill the lower steps, and all hours of one day
cost the same mean rate. A day costs C(hours up to its end) - C(hours before it), where C is the
price of the first hours of the month: the days of a month add up to C(all its hours), in whatever
order its evidence came.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal

from gpuledger_collector.accounting.inference_share import INFERENCE
from gpuledger_collector.accounting.money import rate_nano
from gpuledger_collector.accounting.node_costs import NODE_COST
from gpuledger_collector.accounting.owner_tree import OwnerPath
from gpuledger_collector.accounting.pricing import model_match
from gpuledger_collector.accounting.quantity import GPU_NS_PER_HOUR, round_half_even_div
from gpuledger_collector.accounting.usage import HELD
from gpuledger_common.largest_remainder import split

MARKUP, DISCOUNT, TIERED = "markup", "discount", "tiered"
CREDIT, DEBIT, TRUE_UP = "credit", "debit", "true_up"
POLICIES = (TIERED, MARKUP, DISCOUNT)
ENTRIES = (CREDIT, DEBIT, TRUE_UP)
KINDS = (*POLICIES, *ENTRIES)
"""The kinds of adjustments, which are the states of their charges."""
INTERNAL = (*POLICIES, CREDIT, DEBIT, INFERENCE)
"""States of charges between the platform and its owners: no provider is paid by them.

A true-up follows a provider's bill.
"""
BESIDE_CAPACITY = frozenset((*KINDS, INFERENCE))
"""States of charges that are amounts alone: no part of capacity x rate."""
PAID_BY_OWNERS = frozenset((HELD, NODE_COST, *BESIDE_CAPACITY))
"""States of charges that an owner pays; others are time that nobody held."""
FLEET = "fleet"
"""Whose hours a tier counts: everybody's together."""
PERCENT_DIGITS = 6


class EntryRefused(ValueError):
    """An entry cannot be booked or reversed; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class OwnerShare:
    """What one owner pays of an entry, in micro-units; negative: what it gets back."""

    owner: OwnerPath
    pool: str
    gpu_model: str
    micro: int


@dataclass(frozen=True, slots=True)
class Adjustment:
    """A policy or an entry.

    Empty `owner`, `pool` and `gpu_model` fit everything; `to_on` is not included.

    `steps` of a tier: GPU-hours of the month from which on an hour costs a rate, both as text.
    `amount_micro` of a credit is what the owner gets back, of a debit what it pays; `shares` of a
    true-up say who pays what.
    """

    id: int | None
    name: str
    kind: str
    owner: Mapping[str, str] = field(default_factory=dict)
    pool: str = ""
    gpu_model: str = ""
    percent: Decimal | None = None
    steps: Mapping[str, str] = field(default_factory=dict)
    per: str = ""
    amount_micro: int | None = None
    currency: str | None = None
    from_on: dt.date | None = None
    to_on: dt.date | None = None
    reason: str = ""
    approver: str = ""
    shares: Sequence[OwnerShare] = ()
    reverses: int | None = None

    def fits(self, place: Place) -> bool:
        """Whether it is about what was held there; a tier also where its currency is charged."""
        return (
            self.pool in ("", place.pool)
            and model_match(self.gpu_model, place.gpu_model) >= 0
            and all(place.owner.level(level) == name for level, name in self.owner.items())
            and (self.kind != TIERED or self.currency == place.currency)
        )

    @property
    def specificity(self) -> int:
        """How many conditions it has: of several tiers the most specific applies."""
        return len(self.owner) + bool(self.pool) + bool(self.gpu_model)

    def entry_shares(self) -> Sequence[OwnerShare]:
        """Who pays what of an entry."""
        if self.kind == TRUE_UP:
            return self.shares
        micro = (self.amount_micro or 0) * (-1 if self.kind == CREDIT else 1)
        return [OwnerShare(OwnerPath(**self.owner), self.pool, self.gpu_model, micro)]


@dataclass(frozen=True, slots=True)
class ListedAdjustment:
    """An adjustment, and the name of the entry that takes it back; empty: none does."""

    adjustment: Adjustment
    reversed_by: str = ""


@dataclass(frozen=True, slots=True)
class BookedShare:
    """What one owner pays of a booked entry."""

    entry: Adjustment
    share: OwnerShare


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Whose time it was, of what, and in which currency it is charged."""

    owner: OwnerPath
    pool: str
    gpu_model: str
    currency: str


@dataclass(slots=True)
class HeldCost:
    """Held time and its cost in one place."""

    gpu_ns: int = 0
    cost_micro: int = 0


@dataclass(frozen=True, slots=True)
class AdjustedAmount:
    """What a policy adds to the cost of a place; negative: takes from it."""

    adjustment: Adjustment
    place: Place
    micro: int


def adjust(
    held: Mapping[Place, HeldCost], policies: Iterable[Adjustment], volumes: Mapping[Place, int]
) -> list[AdjustedAmount]:
    """Apply policies to what was held on a day; `volumes` is what was held in the month before it,
    in GPU-ns.

    The result does not depend on the order of either argument.
    """
    policies = sorted(policies, key=lambda policy: (policy.kind, policy.name))
    cost = {place: held[place].cost_micro for place in sorted(held)}
    amounts: list[AdjustedAmount] = []
    tiers = [policy for policy in policies if policy.kind == TIERED]
    groups: dict[tuple[int, str], list[Place]] = defaultdict(list)
    for place in cost:
        if (group := _tier_group(tiers, place)) is not None:
            groups[group].append(place)
    before: dict[tuple[int, str], int] = defaultdict(int)
    for place, gpu_ns in volumes.items():
        if (group := _tier_group(tiers, place)) is not None:
            before[group] += gpu_ns
    for group, places in sorted(groups.items()):
        tier, weights = tiers[group[0]], [held[place].gpu_ns for place in places]
        # A difference of two prices of the month so far: days that adjoin add up to the price of
        # all their hours.
        total = volume_cost(tier, before[group] + sum(weights)) - volume_cost(tier, before[group])
        if any(weights):
            for place, part in zip(places, split(total, weights), strict=True):
                amounts.append(AdjustedAmount(tier, place, part - cost[place]))
                cost[place] = part
    for policy in policies:
        if policy.kind != TIERED:
            amounts += _percentage(policy, cost)
    return [amount for amount in amounts if amount.micro]


def _tier_group(tiers: Sequence[Adjustment], place: Place) -> tuple[int, str] | None:
    """The tier that holds for a place (the most specific, then by name), and whose hours it counts
    there.
    """
    fitting = [at for at, tier in enumerate(tiers) if tier.fits(place)]
    if not fitting:
        return None
    at = min(fitting, key=lambda at: -tiers[at].specificity)
    return at, "" if tiers[at].per == FLEET else place.owner.level(tiers[at].per)


def volume_cost(tier: Adjustment, gpu_ns: int) -> int:
    """Micro-units that the first hours of a month cost by the steps of a tier, rounded once."""
    steps = tier.steps.items()
    edges = sorted(
        (int(Decimal(hours) * GPU_NS_PER_HOUR), rate_nano(Decimal(rate))) for hours, rate in steps
    )
    ends = [*(start_ns for start_ns, _ in edges[1:]), gpu_ns]
    total = sum(
        max(0, min(end_ns, gpu_ns) - start_ns) * rate
        for (start_ns, rate), end_ns in zip(edges, ends, strict=True)
    )
    return round_half_even_div(total, GPU_NS_PER_HOUR * 1000)


def _percentage(policy: Adjustment, cost: Mapping[Place, int]) -> list[AdjustedAmount]:
    """A markup or discount: its percentage of all that it fits, by currency, rounded once and split
    by cost.
    """
    assert policy.percent is not None
    sign = -1 if policy.kind == DISCOUNT else 1
    percent = int(policy.percent.scaleb(PERCENT_DIGITS))
    by_currency: dict[str, list[Place]] = defaultdict(list)
    for place in cost:
        if policy.fits(place) and cost[place]:
            by_currency[place.currency].append(place)
    amounts = []
    for places in by_currency.values():
        weights = [cost[place] for place in places]
        total = round_half_even_div(sum(weights) * percent, 100 * 10**PERCENT_DIGITS)
        for place, part in zip(places, split(total, weights), strict=True):
            amounts.append(AdjustedAmount(policy, place, sign * part))
    return amounts


def excessive_discounts(discounts: Sequence[Adjustment]) -> Sequence[Adjustment]:
    """Find discounts that can all fit one place on one day, and together take more than all of its
    cost.

    Two models can be those of one place where one of them is in the other's words.
    """
    return _excessive([], Decimal(0), discounts)


def _excessive(
    together: list[Adjustment], percent: Decimal, others: Sequence[Adjustment]
) -> Sequence[Adjustment]:
    if percent > 100:
        return together
    for at, discount in enumerate(others):
        # Restrictions and days that fit in pairs fit all together, so only pairs are compared.
        rest = [other for other in others[at + 1 :] if _can_meet(discount, other)]
        if percent + sum(_percent(each) for each in (discount, *rest)) > 100:
            excess = _excessive([*together, discount], percent + _percent(discount), rest)
            if excess:
                return excess
    return []


def _percent(discount: Adjustment) -> Decimal:
    return discount.percent or Decimal(0)


def _can_meet(left: Adjustment, right: Adjustment) -> bool:
    """Whether two adjustments may hold for one place on one day."""
    return (
        all(right.owner.get(level, name) == name for level, name in left.owner.items())
        and (not left.pool or right.pool in ("", left.pool))
        and max(
            model_match(left.gpu_model, right.gpu_model),
            model_match(right.gpu_model, left.gpu_model),
        )
        >= 0
        and not (
            left.to_on is not None and right.from_on is not None and left.to_on <= right.from_on
        )
        and not (
            right.to_on is not None and left.from_on is not None and right.to_on <= left.from_on
        )
    )


def opposite_of(known: Sequence[Adjustment], name: str, reason: str, approver: str) -> Adjustment:
    """The entry that takes a booked one back, not booked yet. Raises EntryRefused."""
    entry = next((adjustment for adjustment in known if adjustment.name == name), None)
    if entry is None or entry.kind in POLICIES:
        names = (
            ", ".join(repr(adjustment.name) for adjustment in known if adjustment.kind in ENTRIES)
            or "none"
        )
        raise EntryRefused(f"no entry is called {name!r}; booked are {names}")
    if entry.reverses is not None:
        raise EntryRefused(f"{name!r} is a reversal itself: book the entry anew instead")
    if any(adjustment.reverses == entry.id for adjustment in known):
        raise EntryRefused(f"{name!r} is reversed already")
    return replace(
        entry,
        id=None,
        name=f"reversal of {name}",
        amount_micro=None if entry.amount_micro is None else -entry.amount_micro,
        shares=[replace(share, micro=-share.micro) for share in entry.shares],
        reason=reason,
        approver=approver,
        reverses=entry.id,
    )
