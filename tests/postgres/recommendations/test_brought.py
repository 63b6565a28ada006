"""What accepted advice brought: idle time that went, or the same work in less; neither work that
ended nor a rate.
"""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger_collector.accounting.commitments import COMMITMENT_UNUSED, Commitment
from gpuledger_collector.accounting.money import MICRO
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, Period
from gpuledger_collector.accounting.pricing import Price, PriceBook
from gpuledger_collector.accounting.realized_savings import (
    IDLE_TIME,
    SAME_WORK,
    TIME,
    ChargedPlace,
    PricedPlace,
    measure_saving,
)

pytestmark = pytest.mark.slow

GPU_HOUR = 3_600_000_000_000
TRAIN = PricedPlace("train", "H100", "n1", "on_demand")
BEFORE = 10 * DAY_MS


def rate(
    of: str,
    start_ms: int = 0,
    end_ms: int | None = None,
    purchase: str = "on_demand",
    model: str = "H100",
):
    return Price(None, "", model, purchase, Decimal(of), "USD", start_ms, end_ms)


def days(count: int) -> list[Period]:
    return Period(BEFORE, BEFORE + count * DAY_MS).days()


def spent(
    hours: int,
    *,
    busy: int = 0,
    idle: int = 0,
    at: str = "1",
    day: int = 0,
    place: PricedPlace = TRAIN,
) -> ChargedPlace:
    """GPU-hours, what of them was busy and idle, and their cost at a rate."""
    micro = int(Decimal(at) * MICRO)
    return ChargedPlace(
        BEFORE + day * DAY_MS,
        place,
        "USD",
        cost_micro=hours * micro,
        idle_cost_micro=idle * micro,
        gpu_ns=hours * GPU_HOUR,
        busy_ns=busy * GPU_HOUR,
        idle_ns=idle * GPU_HOUR,
    )


def told(before, before_days, after, after_days, *prices: Price, **how):
    book = PriceBook(prices or [rate("1")])
    how.setdefault("idle", False)
    return measure_saving(before, before_days * DAY_MS, after, days(after_days), "USD", book, **how)


def test_idle_time_that_went():
    """Four days of 10 idle hours against two days of 1 hour: 20 - 1, whatever the work cost."""
    found = told([spent(100, busy=60, idle=40)], 4, [spent(500, busy=499, idle=1)], 2, idle=True)
    assert (found.micro, found.before_micro, found.compared) == (19 * MICRO, 20 * MICRO, IDLE_TIME)


def test_the_same_work_for_less():
    """Twice the work in the old way would have been 200; it was 150.

    Work that ended saves nothing.
    """
    was = [spent(100, busy=60)]
    assert told(was, 1, [spent(150, busy=120)], 1).micro == 50 * MICRO
    assert told(was, 1, [spent(10, busy=6)], 1).micro == 0
    assert told(was, 1, [spent(150, busy=60)], 1).micro == -50 * MICRO
    assert told(was, 1, [spent(150, busy=60)], 1).compared == SAME_WORK


def test_without_work_days_are_compared():
    """Free capacity that was given up; a half day counts half."""
    found = told([spent(100, busy=10)], 2, [spent(20)], 1)
    assert (found.micro, found.compared) == (30 * MICRO, TIME)


@pytest.mark.parametrize("idle", [True, False])
@pytest.mark.parametrize("now", ["0.5", "1", "3"])
def test_a_rate_that_changed_is_no_saving(idle, now):
    """The same time at half the rate, or three times: nothing was followed, nothing saved."""
    was, since = spent(240, busy=200, idle=40), spent(240, busy=200, idle=40, at=now)
    prices = [rate("1", 0, BEFORE), rate(now, BEFORE)]
    assert told([was], 10, [since], 10, *prices, idle=idle).micro == 0


def test_what_went_is_worth_what_it_would_cost_since():
    """Ten idle hours a day at 8, since at 8 and, from the middle of the first of two days on, at 4."""
    prices = [
        rate("8", 0, BEFORE + DAY_MS // 2 + HOUR_MS // 2),
        rate("4", BEFORE + DAY_MS // 2 + HOUR_MS // 2),
    ]
    found = told(
        [spent(100, busy=60, idle=40, at="8")], 4, [spent(2, idle=2, at="4")], 2, *prices, idle=True
    )
    first_day = Decimal(10) * (Decimal("12.5") * 8 + Decimal("11.5") * 4) / 24
    assert found.micro == round((first_day + 40 - 8) * MICRO)


def test_work_is_priced_on_the_days_on_which_it_was_done():
    """All of it on the second day, when the rate had halved."""
    prices = [rate("2", 0, BEFORE + DAY_MS), rate("1", BEFORE + DAY_MS)]
    found = told([spent(100, busy=50, at="2")], 2, [spent(60, busy=50, day=1)], 2, *prices)
    assert (found.micro, found.before_micro) == (40 * MICRO, 100 * MICRO)


def test_an_unknown_rate_makes_the_saving_unknown():
    """Of the time before on some day since, or of the time since; never zero instead.

    What is not asked for is not.
    """
    was, now = [spent(100, busy=60, idle=40)], [spent(10, busy=6, idle=4)]
    gone = told(was, 4, now, 2, rate("1", 0, BEFORE + DAY_MS), idle=True)
    assert (gone.micro, gone.before_micro) == (None, None)
    assert gone.unknown == "no rate in USD covers H100 in pool train on every day since"
    euros = told(was, 4, now, 2, replace(rate("1"), currency="EUR"), idle=True)
    assert euros.micro is None
    unpriced = [replace(now[0], currency=None, cost_micro=0, idle_cost_micro=0)]
    assert (
        told(was, 4, [*now, *unpriced], 2, idle=True).unknown
        == "some of the time since has no price in USD"
    )
    assert told(was, 4, [*now, replace(unpriced[0], idle_ns=0)], 2, idle=True).micro == 16 * MICRO
    elsewhere = [
        spent(7, idle=7, place=PricedPlace("old", "V100")),
        spent(-7, idle=-7, place=PricedPlace("old", "V100")),
    ]
    assert told([*was, *elsewhere], 4, now, 2, idle=True).micro == 16 * MICRO


def test_time_that_had_no_price_is_worth_what_it_would_cost_since():
    """The rate was entered late."""
    was = replace(spent(100, idle=40), currency=None, cost_micro=0, idle_cost_micro=0)
    assert told([was], 4, [], 2, rate("1", BEFORE), idle=True).micro == 20 * MICRO


def test_buying_in_another_way_is_held_against_the_way_before():
    """The pool is bought on spot since: what the same time would cost on demand now, less what it
    costs on spot.
    """
    since = spent(100, busy=50, at="0.4", place=replace(TRAIN, purchase="spot"))
    prices = [
        rate("2", 0, BEFORE),
        rate("1.5", BEFORE),
        replace(rate("0.4", BEFORE, purchase="spot"), pool="train"),
    ]
    was = [spent(100, busy=50, at="2")]
    assert told(was, 1, [since], 1, *prices, same_purchase=True).micro == 110 * MICRO
    assert told(was, 1, [since], 1, *prices).micro == 0
    assert told(was, 1, [since], 1, prices[0], prices[2], same_purchase=True).micro is None


def commitment(until: int) -> Commitment:
    return Commitment(1, "c", 2, 0, Decimal("0.25"), "USD", 0, until, "train", "H100")


def test_covered_time_costs_what_the_commitment_costs_while_it_lasts():
    """At a quarter for the first of two days, then at the book's rate; its unused part is over with
    its term.
    """
    covering = commitment(BEFORE + DAY_MS)
    was = [replace(spent(48, idle=48, at="0.25"), place=replace(TRAIN, commitment=covering))]
    assert told(was, 2, [], 2, idle=True).micro == 24 * MICRO // 4 + 24 * MICRO
    unused = PricedPlace("train", "H100", "", None, covering, (), unused=True)
    assert told([replace(was[0], place=unused)], 2, [], 2).micro == 24 * MICRO // 4
    assert COMMITMENT_UNUSED == "commitment_unused"


@given(
    st.lists(st.integers(1, 10**15), min_size=1, max_size=4),
    st.integers(1, 10**9),
    st.integers(1, 5),
)
def test_a_rate_scales_what_went_and_nothing_else(idle, nano, after):
    """Whatever the quantities: at k times the rate since, what went is worth k times as much (to
    the micro-unit).
    """
    was = [
        replace(spent(0, place=replace(TRAIN, node=f"n{at}")), idle_ns=ns)
        for at, ns in enumerate(idle)
    ]
    of = Decimal(nano).scaleb(-9)
    found = told(was, 3, [], after, rate(str(of)), idle=True).micro
    assert abs(found - sum(idle) * nano * after / (3 * 1000 * GPU_HOUR)) <= max(1, found // 10**12)
    assert abs(3 * found - told(was, 1, [], after, rate(str(of)), idle=True).micro) <= 2
