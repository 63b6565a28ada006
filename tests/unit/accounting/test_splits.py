"""Splits, rounding and money: nothing is lost on the way from the whole to the parts."""

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger_collector.accounting.money import cost_micro, minor_digits, rate_nano, to_minor_units
from gpuledger_collector.accounting.quantity import (
    GPU_NS_PER_HOUR,
    gpu_ns,
    hours_decimal,
    round_half_even_div,
    round_together,
)
from gpuledger_common.largest_remainder import split, split_signed
from gpuledger_common.plurals import plural

weights = st.lists(st.integers(0, 10**15), min_size=1, max_size=20).filter(any)
rates = st.decimals(0, 1000, places=9, allow_nan=False, allow_infinity=False)


@given(st.integers(0, 10**18), weights)
def test_a_split_adds_up_and_is_fair(total, parts):
    """The parts add up to the whole, and each lies within one of its exact share."""
    made = split(total, parts)
    assert sum(made) == total
    for part, weight in zip(made, parts, strict=True):
        assert abs(Fraction(total * weight, sum(parts)) - part) < 1


@given(st.integers(-(10**18), 10**18), weights)
def test_a_split_of_a_negative_total_is_that_of_its_opposite(total, parts):
    assert split_signed(total, parts) == [-part for part in split_signed(-total, parts)]
    assert sum(split_signed(total, parts)) == total
    assert split_signed(abs(total), parts) == split(abs(total), parts)


def test_a_split_gives_the_rest_to_the_largest_remainders():
    """100 over 1:1:1 is 34, 33, 33; over 5:3:1 it is 56, 33, 11."""
    assert split(100, [1, 1, 1]) == [34, 33, 33]
    assert split(100, [5, 3, 1]) == [56, 33, 11]
    assert split(0, [0, 0]) == [0, 0]


@pytest.mark.parametrize(("total", "parts"), [(5, [0, 0]), (-1, [1]), (1, [2, -1])])
def test_a_split_over_nothing_is_refused(total, parts):
    """Something cannot be split over nothing, and nothing is negative."""
    with pytest.raises(ValueError):
        split(total, parts)


@given(
    st.lists(st.integers(-(10**15), 10**15), min_size=1, max_size=30),
    st.sampled_from([1, 10, 1000, 10_000, 10**6]),
)
def test_values_rounded_together_add_up_to_the_rounded_sum(values, unit):
    """Rows rounded together add up to the rounded total, each within one unit of itself."""
    made = round_together(values, unit)
    assert sum(made) == round_half_even_div(sum(values), unit)
    for count, value in zip(made, values, strict=True):
        assert abs(count * unit - value) < unit


def test_halves_go_to_the_even_neighbor():
    """0.5, 1.5 and 2.5 become 0, 2 and 2."""
    assert [round_half_even_div(n, 2) for n in (1, 3, 5, -1, -3)] == [0, 2, 2, 0, -2]


@given(st.integers(0, 10**19), rates)
def test_a_cost_is_the_exact_product_rounded_once(quantity, rate):
    """Integer arithmetic gives what exact fractions give, rounded half to even."""
    exact = Fraction(quantity, GPU_NS_PER_HOUR) * Fraction(rate) * 1_000_000
    assert cost_micro(quantity, rate) == round(exact)


@pytest.mark.parametrize(
    ("gpus", "seconds", "rate", "cost"),
    [
        ("1", 3600, "2.49", "2.490000"),
        ("0.25", 3600, "2.49", "0.622500"),
        ("8", 11_700, "6.88", "178.880000"),
        ("0.000001", 3600, "0.01", "0.000000"),
        ("1", 1, "3600", "1.000000"),
    ],
)
def test_costs_that_a_person_can_check(gpus, seconds, rate, cost):
    """GPUs x time x rate, by hand."""
    quantity = gpu_ns(int(Decimal(gpus) * 1_000_000), seconds * 1000)
    assert cost_micro(quantity, Decimal(rate)) == int(Decimal(cost) * 1_000_000)


@given(
    st.lists(st.integers(0, 10**13), min_size=1, max_size=30),
    st.sampled_from(["USD", "JPY", "BHD"]),
)
def test_cents_add_up_to_the_rounded_total(micros, currency):
    """Amounts in minor units add up to the rounded total, each within one minor unit of its own."""
    unit = 1_000_000 // 10 ** minor_digits(currency)
    made = to_minor_units(micros, currency)
    assert sum(made) == round_half_even_div(sum(micros), unit)
    assert all(abs(count * unit - value) < unit for count, value in zip(made, micros, strict=True))


@given(st.lists(st.integers(0, 10**16), min_size=1, max_size=30))
def test_printed_hours_add_up(values):
    """GPU-hours to six places add up to the printed total, each within a millionth of an hour."""
    shown = hours_decimal(values)
    assert sum(shown) == Decimal(round_half_even_div(sum(values), GPU_NS_PER_HOUR // 10**6)).scaleb(
        -6
    )
    for hours, value in zip(shown, values, strict=True):
        assert abs(Fraction(hours) - Fraction(value, GPU_NS_PER_HOUR)) < Fraction(1, 10**6)


def test_a_rate_with_too_many_places_is_refused():
    """Nine places are kept; a tenth would be lost, so it is an error."""
    assert rate_nano(Decimal("0.000000001")) == 1
    for bad in ("0.0000000001", "NaN", "Infinity"):
        with pytest.raises(ValueError):
            rate_nano(Decimal(bad))


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (0, "0 GPUs"),
        (1, "1 GPU"),
        (2, "2 GPUs"),
        (-1, "-1 GPUs"),
        (1000, "1,000 GPUs"),
        ("1", "1 GPU"),
        ("1.5", "1.5 GPUs"),
    ],
)
def test_one_of_a_thing_is_said_in_the_singular(count, said):
    """Counts with their word, as pages, mails and commands say them."""
    assert plural(count, "GPU") == said
