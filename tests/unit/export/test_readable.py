"""Numbers as people read them: rounded once, half to even, and never to nothing or to all."""

import re
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger_collector.accounting.quantity import GPU_NS_PER_HOUR
from gpuledger_collector.accounting.readable import (
    count_text,
    hours_text,
    percent,
    round_text,
    share_text,
    size_text,
)
from gpuledger_collector.export import html
from gpuledger_collector.insight.durations import lasting

HOUR = 3_600_000
UNITS = {"minute": 60_000, "hour": HOUR, "day": 24 * HOUR}
LENGTHS = st.integers(0, 4_000 * 24 * HOUR)


def number(text: str) -> Decimal:
    return Decimal(re.sub("[,<> %]", "", text))


def length_ms(text: str) -> int:
    """What a length of time says, in ms."""
    if text == "less than a minute":
        return 0
    count, unit = text.split()
    return int(count.replace(",", "")) * UNITS[unit.removesuffix("s")]


@pytest.mark.parametrize(
    ("value", "places", "text"),
    [
        ("1234.55", 1, "1,234.6"),
        ("1234.45", 1, "1,234.4"),
        ("0.5", 0, "<1"),
        ("1.5", 0, "2"),
        ("2.5", 0, "2"),
        ("-0.04", 1, ">-0.1"),
        ("-0.0", 1, "0.0"),
        ("-1234567", 0, "-1,234,567"),
    ],
)
def test_halves_go_to_the_even(value, places, text) -> None:
    """Half to even, as charges are; what is not nothing is never shown as nothing."""
    assert round_text(Decimal(value), places) == text


@given(st.integers(-(10**9) * GPU_NS_PER_HOUR, 10**9 * GPU_NS_PER_HOUR))
def test_hours_are_the_same_on_pages_and_in_mails(gpu_ns) -> None:
    """Within half a tenth of what they are, on every surface the same text."""
    text = hours_text(gpu_ns)
    assert text == html.hours(gpu_ns)
    assert abs(abs(number(text)) - abs(Decimal(gpu_ns)) / GPU_NS_PER_HOUR) <= (
        Decimal("0.1") if text[0] in "<>" else Decimal("0.05")
    )
    assert (number(text) == 0) == (gpu_ns == 0)


@given(st.integers(0, 100_000))
def test_whole_gpus_have_no_decimals(count) -> None:
    """48 GPUs are `48`, as a count of anything else is written."""
    assert count_text(Decimal(count)) == html.gpus(float(count)) == f"{count:,}"


@pytest.mark.parametrize(
    ("count", "text"),
    [("12.04", "12"), ("11.96", "12"), ("999.96", "1,000"), ("10.5", "10.5"), ("0.04", "<0.1")],
)
def test_gpus_have_no_needless_decimals(count, text) -> None:
    """A part that rounds to nothing is not written."""
    assert count_text(Decimal(count)) == html.gpus(float(count)) == text


@given(st.integers(1, 100_000), st.integers(1, 1000))
def test_parts_of_gpus_do_not_read_as_others(whole, part) -> None:
    """A number of GPUs is at most half a tenth from what is shown; from 1,000 on, half of one."""
    value = Decimal(whole) + Decimal(part) / 1001
    assert abs(number(count_text(value)) - value) <= (
        Decimal("0.05") if value <= 1000 else Decimal("0.5")
    )


@given(st.integers(0, 10**6), st.integers(1, 10**6))
def test_only_all_is_a_hundred_percent(part, more) -> None:
    """And only nothing is 0 %."""
    share = Decimal(part) / Decimal(part + more)
    assert percent(share) != "100 %"
    assert (percent(share) == "0 %") == (part == 0)
    assert percent(Decimal(1)) == "100 %"
    assert html.percent(0.83) == "83 %"


@given(st.decimals(Decimal("0.001"), Decimal("1e9"), places=6))
def test_three_digits_say_a_size(value) -> None:
    """Within half a percent, from a thousandth on half of that."""
    error = abs(number(size_text(value)) - value)
    assert error <= max(value / 200, Decimal("0.0005"))


@given(LENGTHS)
def test_a_length_of_time_is_rounded_to_its_unit(ms) -> None:
    """At most half of its unit away: 47 hours are never `1 day`, nor 2."""
    text = lasting(ms)
    unit = next((size for name, size in UNITS.items() if name in text), 60_000)
    assert abs(length_ms(text) - ms) <= (unit if text == "less than a minute" else unit / 2)
    assert unit < UNITS["day"] or ms >= 4 * UNITS["day"]


@given(LENGTHS, LENGTHS)
def test_a_longer_time_never_reads_as_a_shorter_one(first, second) -> None:
    """Also where its unit changes."""
    shorter, longer = sorted((first, second))
    assert length_ms(lasting(shorter)) <= length_ms(lasting(longer))


def test_the_units_of_time() -> None:
    """Minutes below three hours, hours below four days."""
    assert [lasting(hours * HOUR) for hours in (0, 1, 3, 47, 95, 96, 400 * 24)] == [
        "less than a minute",
        "60 minutes",
        "3 hours",
        "47 hours",
        "95 hours",
        "4 days",
        "400 days",
    ]


def test_a_change_is_not_all_of_it_before_it_is():
    """Both ways: what lost 99.5 % is not gone."""
    shares = ("0.83", "0.995", "1", "-0.995", "-1", "-0.13", "0.001")
    assert [share_text(Decimal(share)) for share in shares] == [
        "83",
        ">99",
        "100",
        "<-99",
        "-100",
        "-13",
        "<1",
    ]
