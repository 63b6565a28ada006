"""Laws of unit costs: hours add up to the charges, buckets to the whole; what is not covered is in
no unit's cost.
"""

from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from gpuledger_collector.accounting.inference import GPU_COUNTERS
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS
from gpuledger_collector.accounting.rating import Charge
from gpuledger_collector.accounting.unit_cost import (
    WAYS,
    CountedHour,
    HeldHour,
    cost_per,
    count_by_hour,
    hour_costs,
    unit_costs,
)


def charge(cost, card=1, start=0, end=DAY_MS, currency="USD"):
    return Charge(
        day_ms=0,
        start_ms=start,
        end_ms=end,
        accelerator_id=card,
        workload_id=1,
        owner=None,
        state="held",
        pool="p",
        gpu_model="m",
        node="n",
        price=None,
        currency=currency,
        gpu_ns=1,
        busy_ns=1,
        cost_micro=cost,
    )


def held(hour, ms=HOUR_MS, busy=None, card=1, shared=False):
    worked = ms if busy is None else busy
    return HeldHour(card, hour * HOUR_MS, ms, worked, ms - worked, 0, shared)


def counted(hour, units=60, covered=HOUR_MS, source="a", via="agent", counter="inferences"):
    return CountedHour(via, source, counter, hour * HOUR_MS, units, covered)


@given(
    st.lists(st.tuples(st.integers(1, HOUR_MS), st.integers(0, 100)), min_size=1, max_size=24),
    st.lists(st.integers(-(10**12), 10**12), min_size=1, max_size=4),
)
def test_hours_add_up_to_the_charges(shape, costs):
    """Whatever was held in which hour, corrections included; and the used part is never more than
    the whole.
    """
    rating_intervals = [
        held(hour, ms, ms * percent // 100) for hour, (ms, percent) in enumerate(shape)
    ]
    hours = hour_costs([charge(cost) for cost in costs], rating_intervals)
    assert sum(hour.cost["USD"] for hour in hours.values()) == sum(costs)
    if all(cost >= 0 for cost in costs):
        assert all(0 <= hour.used["USD"] <= hour.cost["USD"] for hour in hours.values())


@given(st.lists(st.tuples(st.integers(0, HOUR_MS), st.integers(0, 1_000)), min_size=1, max_size=24))
def test_buckets_add_up_to_the_whole(shape):
    """Units, costs and times of the hours are those of the run."""
    hours = hour_costs([charge(3_600_000 * len(shape))], [held(hour) for hour in range(len(shape))])
    counts = [counted(hour, units, ms) for hour, (ms, units) in enumerate(shape)]
    (whole,) = unit_costs(hours, counts)
    parts = unit_costs(hours, counts, lambda at_ms: at_ms)
    for name in ("units", "cost_micro", "charged_micro", "held_ms", "covered_ms"):
        assert sum(getattr(part, name) for part in parts) == getattr(whole, name)
    assert whole.cost_micro <= whole.charged_micro
    assert whole.coverage <= 1


def test_time_without_counters_is_in_no_units_cost():
    """Two hours at 3.60, one of them counted: 60 inferences cost 3.60, and half is covered."""
    hours = hour_costs([charge(7_200_000)], [held(0), held(1)])
    (one,) = unit_costs(hours, [counted(0)])
    assert (one.cost, one.coverage, one.charged_micro) == (
        Decimal("60.000000"),
        Decimal("0.500000"),
        7_200_000,
    )


def test_a_share_of_a_gpu_is_covered_by_time_not_by_share():
    """Half of a shared GPU held all hour: half an hour of counters covers half, not all."""
    hours = hour_costs([charge(1_800_000)], [held(0, HOUR_MS // 2, shared=True)])
    (one,) = unit_costs(hours, [counted(0, covered=HOUR_MS // 2)])
    assert one.coverage == Decimal("0.500000")
    assert one.cost_micro == 900_000


def test_amounts_of_two_currencies_are_never_added():
    """A unit cost for each."""
    hours = hour_costs([charge(3_600_000), charge(1_000_000, currency="EUR")], [held(0)])
    assert {one.currency: one.cost_micro for one in unit_costs(hours, [counted(0)])} == {
        "USD": 3_600_000,
        "EUR": 1_000_000,
    }


def test_usage_that_nobody_saw_is_laid_evenly():
    """Imported usage has a begin and an end and no accelerator: its cost is even, none of it known
    to be used.
    """
    hours = hour_costs([charge(3_000_000, card=None, end=3 * HOUR_MS)], [])
    assert [hour.cost["USD"] for _, hour in sorted(hours.items())] == [1_000_000] * 3
    assert all(hour.used["USD"] == 0 for hour in hours.values())


def test_unpriced_time_is_in_no_cost():
    """Unpriced is never zero: there is no unit cost of it."""
    hours = hour_costs([charge(None, currency=None)], [held(0)])
    assert unit_costs(hours, [counted(0)]) == []


def test_both_kinds_of_tokens_together_only_over_the_same_time():
    """An hour in which one of them covers less is not known for both together, rather than a little
    wrong.
    """
    hours = hour_costs([charge(7_200_000)], [held(0), held(1)])
    counts = [
        counted(0, 600, counter="prompt_tokens"),
        counted(0, 400, counter="generated_tokens"),
        counted(1, 600, counter="prompt_tokens"),
        counted(1, 9, HOUR_MS // 2, counter="generated_tokens"),
    ]
    total = next(one for one in unit_costs(hours, counts) if one.counter == "total_tokens")
    assert (total.units, total.covered_ms, total.cost) == (1_000, HOUR_MS, Decimal("3600.000000"))


def test_a_unit_cost_is_rounded_once_half_to_even():
    """To six places; nothing produced has none."""
    assert cost_per(1, 2, 1) == Decimal("0.000000")
    assert cost_per(3, 2, 1) == Decimal("0.000002")
    assert cost_per(-3, 2, 1) == Decimal("-0.000002")
    assert cost_per(10**15, 3, 1_000_000) == Decimal("333333333333333.333333")
    assert cost_per(5, 0, 1) is None


def test_counters_that_are_no_product_have_no_price():
    """GPU seconds and cached tokens say how a server worked."""
    hours = hour_costs([charge(3_600_000)], [held(0)])
    counts = [counted(0, counter=name) for name in (*GPU_COUNTERS, "cached_tokens", "inferences")]
    assert [cost.counter for cost in unit_costs(hours, counts)] == ["inferences"]


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 99), st.integers(1, HOUR_MS)),
        min_size=1,
        max_size=6,
    )
)
def test_one_endpoint_counts_as_it_does_beside_one_that_covers_nothing(hours):
    """Also where an hour has several rows."""
    counted = [
        CountedHour(WAYS[0], "s", "requests", at * HOUR_MS, units, covered)
        for at, units, covered in hours
    ]
    other = CountedHour(WAYS[1], "t", "requests", 9 * HOUR_MS, 0, 0)
    both = count_by_hour([*counted, other])
    del both[9 * HOUR_MS]
    assert count_by_hour(counted) == both
