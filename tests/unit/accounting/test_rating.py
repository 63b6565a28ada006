"""Rating: the charges of any whole hours add up to capacity x rate, to the micro-unit."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.evidence import DAY, WHOLE, evidence, usage_interval
from gpuledger_collector.accounting.ledger import check_conservation, summarize
from gpuledger_collector.accounting.locations import Locations, PoolLocation
from gpuledger_collector.accounting.money import cost_micro
from gpuledger_collector.accounting.owner_tree import OwnerPath
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, Period, date_range
from gpuledger_collector.accounting.pricing import Price, PriceBook
from gpuledger_collector.accounting.rating import (
    ImportedUsage,
    RatedAccelerator,
    capacity_cost,
    imported_rating_intervals,
    rate_accelerator_day,
    rate_imported,
)
from gpuledger_collector.accounting.usage import fold, rating_intervals

LATE = 2**60
TEAMS = {1: OwnerPath(team="vision"), 2: OwnerPath(team="speech"), 3: OwnerPath()}


def owner_of(workload, _at_ms, _attributes_id=None):
    return TEAMS[workload]


def price(rate, *, start=0, end=None, number=1, currency="USD", **place):
    return Price(
        number,
        place.get("pool", ""),
        place.get("model", ""),
        place.get("purchase", "on_demand"),
        Decimal(rate),
        currency,
        start,
        end,
        None,
        place.get("region", ""),
        place.get("node", ""),
    )


GPU = RatedAccelerator(7, 1_000_000, "default", "NVIDIA H100 80GB HBM3", "n1")
rates = st.decimals("0.000000001", 100, places=9).map(
    lambda rate: rate if rate else Decimal("0.01")
)


def rate_day(facts, book, gpu=GPU, capacity=WHOLE, until=LATE, day=DAY):
    pieces = fold(facts, rating_intervals(day, book.cuts(day)), capacity)
    charges = rate_accelerator_day(gpu, day, capacity, pieces, book, owner_of, until)
    return charges, check_conservation(
        day, until, [capacity_cost(gpu, day, capacity, book, until)], charges
    )


@given(evidence(), rates, st.integers(1, 1_000_000), st.integers(1, DAY_MS - 1), rates)
def test_everything_adds_up_to_capacity_times_rate(facts, rate, share, change, second):
    """Owners + unallocated + unavailable + unobserved = capacity x rate, also with a price change
    in mid-hour.
    """
    book = PriceBook([price(rate), price(second, start=DAY.start_ms + change, number=2)])
    gpu = RatedAccelerator(7, share, "default", "NVIDIA H100 80GB HBM3", "n1")
    charges, proof = rate_day(facts, book, gpu)
    assert proof.holds
    assert proof.capacity_ns == share * DAY_MS
    assert sum(charge.gpu_ns for charge in charges) == share * DAY_MS
    assert sum(charge.cost_micro for charge in charges) == proof.capacity_cost["USD"]
    for charge in charges:
        assert charge.busy_ns + charge.idle_ns + charge.unknown_ns == (
            charge.gpu_ns if charge.state == "held" else 0
        )
    lines = summarize(charges)
    assert sum(line.cost_micro for line in lines) == proof.capacity_cost["USD"]


@given(evidence(), rates, st.integers(1, 23))
def test_rating_is_additive_over_adjoining_hours(facts, rate, hour):
    """A day rated in two parts costs each owner what it costs at once."""
    book = PriceBook([price(rate)])
    cut = DAY.start_ms + hour * HOUR_MS
    totals = []
    for days in ([DAY], [Period(DAY.start_ms, cut), Period(cut, DAY.end_ms)]):
        total = {}
        for day in days:
            for charge in rate_day(facts, book, day=day)[0]:
                key = (charge.owner, charge.state, charge.workload_id)
                before = total.get(key, (0, 0))
                total[key] = (before[0] + charge.gpu_ns, before[1] + charge.cost_micro)
        totals.append(total)
    assert totals[0] == totals[1]


@given(evidence())
def test_what_no_rate_covers_has_hours_and_no_cost(facts):
    """Unpriced is unpriced, never zero."""
    charges, _ = rate_day(facts, PriceBook([price("2", model="L4")]))
    assert sum(charge.gpu_ns for charge in charges) == 1_000_000 * DAY_MS
    assert all(charge.cost_micro is None and charge.currency is None for charge in charges)


def test_an_hour_of_three_states_by_hand():
    """40 minutes held (30 busy), 15 unallocated, 5 unobserved at 6.00: 4.00, 1.50 and 0.50; idle is
    1.00.
    """
    minute = 60_000
    facts = [
        usage_interval(0, 40 * minute, busy=30 * minute),
        usage_interval(40 * minute, 55 * minute, state="unallocated", seq=2),
    ]
    book = PriceBook([price("6.00")])
    charges, proof = rate_day(facts, book, capacity=[Period(DAY.start_ms, DAY.start_ms + HOUR_MS)])
    assert {charge.state: charge.cost_micro for charge in charges} == {
        "held": 4_000_000,
        "unallocated": 1_500_000,
        "unobserved": 500_000,
    }
    held = next(charge for charge in charges if charge.state == "held")
    assert held.idle_cost_micro == 1_000_000
    assert held.owner == OwnerPath(team="vision")
    assert proof.holds


def test_a_price_change_in_mid_hour_is_two_lines():
    """From 00:30 on the hour costs 5 instead of 7: 3.50 and 2.50, each with its own rate."""
    book = PriceBook([price("7"), price("5", start=DAY.start_ms + HOUR_MS // 2, number=2)])
    charges, _ = rate_day(
        [usage_interval(0, HOUR_MS)], book, capacity=[Period(DAY.start_ms, DAY.start_ms + HOUR_MS)]
    )
    assert [(charge.price.rate, charge.cost_micro) for charge in charges] == [
        (7, 3_500_000),
        (5, 2_500_000),
    ]


def test_a_day_that_is_not_over_is_rated_up_to_now():
    """At 06:00 a GPU has six hours of capacity; what comes later is not unobserved yet."""
    book = PriceBook([price("2")])
    until = DAY.start_ms + 6 * HOUR_MS
    charges, proof = rate_day([usage_interval(0, 5 * HOUR_MS)], book, until=until)
    assert {charge.state: charge.cost_micro for charge in charges} == {
        "held": 10_000_000,
        "unobserved": 2_000_000,
    }
    assert proof.until_ms == until
    assert proof.holds


def test_the_golden_example():
    """64 A100 for three days at 3.00 per GPU-hour are 13,824.00."""
    book = PriceBook([price("3.00", model="A100")])
    usage = [
        ImportedUsage(1, start, start + 3 * DAY_MS, 1_000_000, "NVIDIA A100-SXM4-80GB", "imported")
        for start in [date_range("2026-10-01", "2026-10-04").start_ms] * 64
    ]
    total = sum(
        charge.cost_micro
        for entry in usage
        for day in date_range("2026-10-01", "2026-10-04").days()
        for charge in rate_imported(entry, day, book, owner_of, LATE)
    )
    assert total == 13_824_000_000


@given(
    st.integers(0, 2 * DAY_MS),
    st.integers(1, 5 * DAY_MS),
    st.lists(st.integers(1, 1_000_000), min_size=1, max_size=6),
)
def test_imported_usage_is_exact_and_fractions_add_up(start, length, shares):
    """Imported usage costs its hours one by one, and has all its milliseconds, whatever its days."""
    begin = DAY.start_ms + start
    book = PriceBook([price("2.49")])
    days = Period(DAY.start_ms, DAY.start_ms + 8 * DAY_MS).days()
    for share in shares:
        usage = ImportedUsage(1, begin, begin + length, share, "", "imported")
        charges = [
            charge for day in days for charge in rate_imported(usage, day, book, owner_of, LATE)
        ]
        assert sum(charge.gpu_ns for charge in charges) == share * length
        exact = cost_micro(share * length, Decimal("2.49"))
        assert abs(sum(charge.cost_micro for charge in charges) - exact) <= length // HOUR_MS + 2
        assert all(
            charge.unknown_ns == charge.gpu_ns and charge.idle_cost_micro is None
            for charge in charges
        )


@given(
    st.integers(-DAY_MS, DAY_MS),
    st.none() | st.integers(1, 3 * DAY_MS),
    st.integers(0, 3_000_000),
    st.lists(st.tuples(st.integers(0, DAY_MS), rates | st.none()), max_size=4),
    st.integers(0, 2 * DAY_MS),
    st.sampled_from((0, HOUR_MS // 2, 7 * HOUR_MS)),
)
def test_hours_rated_together_are_hours_rated_one_by_one(
    start, length, gpu_micro, changes, until, offset
):
    """To the same charges, whatever changes the price, whenever the day begins and however much of
    it is known.
    """
    day = Period(DAY.start_ms + offset, DAY.end_ms + offset)
    prices = [
        price(
            rate or "1",
            start=day.start_ms + at,
            end=None if rate else day.start_ms + at + HOUR_MS,
            number=number,
        )
        for number, (at, rate) in enumerate(changes)
    ]
    book = PriceBook(prices, also_cut=[day.start_ms + 11 * HOUR_MS + 1])
    begin, until_ms = day.start_ms + start, day.start_ms + until
    usage = ImportedUsage(
        1, begin, None if length is None else begin + length, gpu_micro, "", "imported"
    )
    together = rate_imported(usage, day, book, owner_of, until_ms, one_owner=True)
    assert together == rate_imported(usage, day, book, owner_of, until_ms)
    hours = imported_rating_intervals(usage, day, book, until_ms) if gpu_micro else []
    assert sum(charge.gpu_ns for charge in together) == sum(gpu_micro * hour.ms for hour in hours)
    priced = [
        (hour, rate) for hour in hours if (rate := book.price_at("imported", "", "", hour.start_ms))
    ]
    assert sum(charge.cost_micro or 0 for charge in together) == sum(
        cost_micro(gpu_micro * hour.ms, rate.rate) for hour, rate in priced
    )


def test_four_quarters_are_one_gpu():
    """Four pods of 25 % for an hour cost one GPU-hour."""
    book = PriceBook([price("2.49")])
    pods = [ImportedUsage(1, DAY.start_ms, DAY.start_ms + HOUR_MS, 250_000, "", "imported")] * 4
    charges = [charge for pod in pods for charge in rate_imported(pod, DAY, book, owner_of, LATE)]
    assert sum(charge.gpu_ns for charge in charges) == 3_600_000_000_000
    assert sum(charge.cost_micro for charge in charges) == 2_490_000


def test_an_open_end_is_billed_up_to_now():
    """A job that still runs is billed to now, and not at all before it has begun."""
    book = PriceBook([price("1")])
    running = ImportedUsage(1, DAY.start_ms + HOUR_MS, None, 1_000_000, "", "imported")
    (charge,) = rate_imported(running, DAY, book, owner_of, DAY.start_ms + 3 * HOUR_MS)
    assert charge.cost_micro == 2_000_000
    assert rate_imported(running, DAY, book, owner_of, DAY.start_ms + HOUR_MS) == []


@pytest.mark.parametrize(
    ("prices", "rate"),
    [
        ([price("1"), price("2", model="H100")], "2"),
        ([price("2", model="H100"), price("3", pool="default")], "3"),
        ([price("3", pool="default", model="H100"), price("4", node="n1")], "4"),
        ([price("1", model="H100"), price("2", model="NVIDIA H100 80GB HBM3")], "2"),
        ([price("1", start=0), price("2", start=DAY.start_ms - 5)], "2"),
        ([price("1", start=0), price("2", start=DAY.end_ms + 5)], "1"),
        ([price("1", purchase="spot"), price("2", purchase="on_demand")], "2"),
        ([price("1"), price("2", model="A100"), price("3", model="H10")], "1"),
        ([price("1"), price("2", region="eu"), price("3", region="us")], "2"),
        ([price("1", region="eu"), price("2", model="H100")], "2"),
        (
            [
                price("1", model="H100"),
                price("2", model="H100", region="eu"),
                price("3", pool="other"),
            ],
            "2",
        ),
        (
            [price("1", region="eu", start=DAY.start_ms - 5), price("2", pool="default", start=0)],
            "2",
        ),
    ],
)
def test_the_most_specific_latest_price_wins(prices, rate):
    """Node before pool before model before region; an exact name before a word of it; later before
    earlier; models by whole words.
    """
    places = Locations([PoolLocation("default", "eu"), PoolLocation("other", "us")])
    found = PriceBook(prices, locations=places).price_at(
        "default", GPU.gpu_model, "n1", DAY.start_ms
    )
    assert found.rate == Decimal(rate)
    again = PriceBook(reversed(prices), locations=places)
    assert again.price_at("default", GPU.gpu_model, "n1", DAY.start_ms) == found
