"""Adjustments and true-ups: sums are preserved, no order matters, and what is zero changes nothing."""

from __future__ import annotations

import datetime as dt
import itertools
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger_collector.accounting.adjustments import (
    DISCOUNT,
    FLEET,
    MARKUP,
    TIERED,
    Adjustment,
    HeldCost,
    Place,
    adjust,
    excessive_discounts,
    volume_cost,
)
from gpuledger_collector.accounting.owner_tree import OwnerPath
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.provider_bill import (
    ATTO_PER_MICRO,
    KINDS,
    Comparison,
    Difference,
    atto,
)
from gpuledger_collector.accounting.quantity import GPU_NS_PER_HOUR, round_half_even_div
from gpuledger_collector.accounting.true_up import KEYS, HeldLine, true_up

TEAMS, POOLS, MODELS, CURRENCIES = (
    ("vision", "nlp", ""),
    ("train", "lab"),
    ("H100", "A100"),
    ("USD", "EUR"),
)
HOUR = GPU_NS_PER_HOUR
places = st.builds(
    Place,
    st.builds(
        lambda team, user: OwnerPath(team=team, user=user),
        st.sampled_from(TEAMS),
        st.sampled_from(("", "kim")),
    ),
    st.sampled_from(POOLS),
    st.sampled_from(MODELS),
    st.sampled_from(CURRENCIES),
)
held_costs = st.dictionaries(
    places, st.builds(HeldCost, st.integers(0, 10**15), st.integers(0, 10**12)), max_size=8
)
scopes = st.sampled_from(({}, {"team": "vision"}, {"team": "nlp"}))
percents = st.decimals(0, 100, places=6)
percentages = st.builds(
    lambda kind, owner, pool, percent: Adjustment(
        None, f"{kind} {owner} {pool} {percent}", kind, owner, pool, "", percent
    ),
    st.sampled_from((MARKUP, DISCOUNT)),
    scopes,
    st.sampled_from(("", *POOLS)),
    percents,
)


def tier(steps, per="team", **scope):
    """A tier in USD."""
    return Adjustment(None, "tier", TIERED, steps=steps, per=per, currency="USD", **scope)


tiers = st.builds(
    lambda edges, rates, per: tier(
        {str(hours): str(rate) for hours, rate in zip([0, *sorted(edges)], rates, strict=False)},
        per,
    ),
    st.sets(st.integers(1, 500), min_size=2, max_size=2),
    st.lists(st.decimals(0, 100, places=9), min_size=3, max_size=3),
    st.sampled_from(("team", "org", FLEET)),
)


def by_policy(amounts):
    """Micro-units by policy and currency."""
    sums = {}
    for amount in amounts:
        key = (amount.adjustment.name, amount.place.currency)
        sums[key] = sums.get(key, 0) + amount.micro
    return sums


@given(
    held_costs,
    st.lists(percentages, max_size=4, unique_by=lambda policy: policy.name),
    st.randoms(),
)
def test_percentages_are_of_the_same_cost_and_add_up(held, policies, random):
    """Each policy takes its percentage of all that it fits, rounded once; no order of anything
    matters.
    """
    amounts = adjust(held, policies, {})
    sums = by_policy(amounts)
    for policy in policies:
        for currency in CURRENCIES:
            cost = sum(
                held[place].cost_micro
                for place in held
                if place.currency == currency and policy.fits(place)
            )
            whole = round_half_even_div(cost * int(policy.percent * 10**6), 10**8)
            assert sums.get((policy.name, currency), 0) == (
                whole if policy.kind == MARKUP else -whole
            )
    shuffled, again = list(held.items()), list(policies)
    random.shuffle(shuffled)
    random.shuffle(again)
    assert set(map(repr, adjust(dict(shuffled), again, {}))) == set(map(repr, amounts))


@given(held_costs, st.lists(held_costs, max_size=3), tiers)
def test_days_of_a_tier_add_up_to_the_price_of_all_hours(first, later, policy):
    """The days of a month cost what the steps ask for all of its hours, to the micro-unit, whatever
    each day is.
    """
    volumes, cost = {}, {}
    for held in [first, *later]:
        amounts = {amount.place: amount.micro for amount in adjust(held, [policy], volumes)}
        for place, one in held.items():
            if place.currency == "USD":
                group = "" if policy.per == FLEET else place.owner.level(policy.per)
                cost[group] = cost.get(group, 0) + one.cost_micro + amounts.get(place, 0)
            else:
                assert place not in amounts
            volumes[place] = volumes.get(place, 0) + one.gpu_ns
    hours = {}
    for place, gpu_ns in volumes.items():
        if place.currency == "USD":
            group = "" if policy.per == FLEET else place.owner.level(policy.per)
            hours[group] = hours.get(group, 0) + gpu_ns
    # A group without any hours keeps what it costs: a tier prices hours.
    assert {
        group: cost[group]
        for group in hours
        if hours[group] and _all_timed(group, policy, [first, *later])
    } == {
        group: volume_cost(policy, gpu_ns)
        for group, gpu_ns in hours.items()
        if gpu_ns and _all_timed(group, policy, [first, *later])
    }


def _all_timed(group, policy, days):
    """Whether the group has time on every day on which it has a cost."""
    for held in days:
        own = [
            one
            for place, one in held.items()
            if place.currency == "USD"
            and ("" if policy.per == FLEET else place.owner.level(policy.per)) == group
        ]
        if own and not any(one.gpu_ns for one in own):
            return False
    return True


def test_steps_of_a_tier():
    """1,200 hours at 2.50 up to 1,000 and 2.20 from there: 2,940.00."""
    steps = tier({"0": "2.50", "1000": "2.20", "5000": "1.90"})
    assert volume_cost(steps, 1200 * HOUR) == 2_940_000_000
    assert volume_cost(steps, 6000 * HOUR) == 13_200_000_000
    assert volume_cost(steps, 0) == 0


def test_the_most_specific_tier_applies():
    """A tier of a team and a model beats one of everybody, and its hours are its own."""
    vision, nlp = (
        Place(OwnerPath(team=team), "train", "NVIDIA H100", "USD") for team in ("vision", "nlp")
    )
    held = {vision: HeldCost(10 * HOUR, 20_000_000), nlp: HeldCost(10 * HOUR, 20_000_000)}
    own = Adjustment(
        None,
        "own",
        TIERED,
        {"team": "vision"},
        "",
        "H100",
        steps={"0": "1.00"},
        per="team",
        currency="USD",
    )
    amounts = adjust(held, [tier({"0": "1.50"}, FLEET), own], {})
    assert {amount.place: amount.micro for amount in amounts} == {
        vision: -10_000_000,
        nlp: -5_000_000,
    }


def test_percentages_follow_tiers():
    """A markup is of what the tier asks, not of the price book's rate."""
    place = Place(OwnerPath(team="vision"), "train", "H100", "USD")
    markup = Adjustment(None, "fee", MARKUP, percent=Decimal(10))
    amounts = adjust({place: HeldCost(10 * HOUR, 20_000_000)}, [markup, tier({"0": "1.00"})], {})
    assert [(amount.adjustment.name, amount.micro) for amount in amounts] == [
        ("tier", -10_000_000),
        ("fee", 1_000_000),
    ]


@given(held_costs)
def test_nothing_and_zero_change_nothing(held):
    """No policy, zero percent and a policy of somebody else make no charge."""
    other = Adjustment(None, "other", MARKUP, {"team": "speech"}, percent=Decimal(10))
    zero = Adjustment(None, "zero", DISCOUNT, percent=Decimal(0))
    assert adjust(held, [], {}) == adjust(held, [other, zero], {}) == []


# true-ups

DAY = 86_400_000
lines = st.lists(
    st.builds(
        lambda team, day, pool, node, model, currency, gpu_ns, cost: HeldLine(
            owner=OwnerPath(team=team),
            day_ms=day * DAY,
            pool=pool,
            node=node,
            gpu_model=model,
            currency=currency,
            gpu_ns=gpu_ns,
            cost_micro=cost,
        ),
        st.sampled_from(TEAMS),
        st.integers(0, 2),
        st.sampled_from(POOLS),
        st.sampled_from(("n1", "n2")),
        st.sampled_from(MODELS),
        st.sampled_from(CURRENCIES),
        st.integers(0, 10**15),
        st.integers(0, 10**12),
    ),
    max_size=12,
)
differences = st.lists(
    st.builds(
        lambda kind, currency, day, pool, node, atto_: Difference(
            kind, currency, day, pool, node if pool else "", "sku", "", Decimal(atto_).scaleb(-18)
        ),
        st.sampled_from(list(KINDS)),
        st.sampled_from(CURRENCIES),
        st.sampled_from((None, 0, DAY)),
        st.sampled_from(("", *POOLS)),
        st.sampled_from(("", "n1")),
        st.integers(-(10**24), 10**24),
    ),
    max_size=6,
)


def compared(found, pools=()):
    """A comparison that has these differences."""
    return Comparison("Big Cloud", Period(0, 3 * DAY), pools, {}, {}, found)


@given(lines, differences, st.sampled_from(KEYS), st.randoms())
def test_a_true_up_books_the_whole_difference(held, found, key, random):
    """What is booked is the difference of its kinds, rounded once a currency; the rest is named; no
    order matters.
    """
    split = true_up(compared(found), held, key)
    left = {id(difference) for difference in split.left}
    for currency in CURRENCIES:
        whole = sum(
            atto(one.amount) for one in found if one.currency == currency and id(one) not in left
        )
        assert split.totals().get(currency, 0) == round(Fraction(whole, ATTO_PER_MICRO))
    for one in split.left:
        paying = any(line.currency == one.currency and line.gpu_ns for line in held)
        assert one.kind not in {"price", "tax", "rounding"} or not paying
    shuffled, again = list(held), list(found)
    random.shuffle(shuffled)
    random.shuffle(again)
    assert true_up(compared(again), shuffled, key).shares == split.shares


def test_keys_of_a_true_up():
    """The tax goes by cost; a price by who held that pool on that day, or by cost or hours of all
    of it.
    """

    def line(team, day, cost, hours):
        return HeldLine(
            owner=OwnerPath(team=team),
            day_ms=day,
            pool="train",
            node="n1",
            gpu_model="H100",
            currency="USD",
            gpu_ns=hours * HOUR,
            cost_micro=cost,
        )

    held = [line("vision", 0, 30, 10), line("nlp", DAY, 10, 30)]
    found = [Difference("price", "USD", 0, "train", "", "sku", "", Decimal("0.000008"))]
    tax = [Difference("tax", "USD", None, "", "", "VAT", "", Decimal("0.000004"))]

    def shares(key, found):
        split = true_up(compared(found, ["train"]), held, key)
        return {share.owner.team: share.micro for share in split.shares["USD"]}

    assert shares("sku", found) == {"vision": 8}
    assert shares("cost", found) == {"vision": 6, "nlp": 2}
    assert shares("gpu_hours", found) == {"vision": 2, "nlp": 6}
    assert shares("sku", tax) == {"vision": 3, "nlp": 1}


def test_unknown_keys_and_kinds_are_refused():
    """With the known ones in the sentence."""
    with pytest.raises(ValueError, match="'weight' is none of sku, cost, gpu_hours"):
        true_up(compared([]), [], "weight")
    with pytest.raises(ValueError, match="'luck' is none of price, "):
        true_up(compared([]), [], "sku", ["luck"])


days = st.none() | st.integers(1, 4).map(lambda day: dt.date(2026, 10, day))
discounts = st.builds(
    Adjustment,
    id=st.none(),
    name=st.sampled_from("abc"),
    kind=st.just("discount"),
    owner=st.sampled_from(
        [{}, {"team": "x"}, {"team": "y"}, {"team": "x", "project": "p"}, {"project": "q"}]
    ),
    pool=st.sampled_from(["", "train", "serve"]),
    gpu_model=st.sampled_from(["", "H100", "A100", "NVIDIA H100"]),
    percent=st.sampled_from([0, 20, 40, 60, 100]).map(Decimal),
    from_on=days,
    to_on=days,
)


def taken(found, team, project, pool, model, day):
    """Percent of the cost of a place on a day."""
    place = Place(OwnerPath(team=team, project=project), pool, model, "USD")
    holding = [
        each
        for each in found
        if each.fits(place)
        and (each.from_on is None or each.from_on <= day)
        and (each.to_on is None or day < each.to_on)
    ]
    return sum(each.percent for each in holding)


@given(
    st.lists(
        discounts.filter(
            lambda each: not each.from_on or not each.to_on or each.from_on < each.to_on
        )
    )
)
def test_discounts_are_excessive_where_they_take_more_than_a_place_costs(found):
    """As counted over every place and day; those that are named take more than all together."""
    days = [dt.date(2026, 9, 30), *(dt.date(2026, 10, day) for day in range(1, 6))]
    models, pools = ["NVIDIA H100", "NVIDIA A100", "L4"], ["train", "serve", "other"]
    places = itertools.product("xyz", "pqr", pools, models, days)
    most = max(taken(found, *place) for place in places)
    excess = excessive_discounts(found)
    assert bool(excess) == (most > 100)
    assert not excess or sum(each.percent for each in excess) > 100
