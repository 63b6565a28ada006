"""Prices of a million tokens over days, of the same weights and of different ones."""

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger_collector.accounting.inference_split import parse_weights
from gpuledger_collector.accounting.token_prices import (
    UNKNOWN,
    PricedDay,
    TokenKinds,
    price_tokens,
)

MILLION = 1_000_000


def day(weights, cost, computed=0, cached=0, output=0):
    """A day that cost so many major units."""
    kinds = TokenKinds(Fraction(computed), Fraction(cached), Fraction(output))
    own = parse_weights(weights)
    weighted = computed * own.input + cached * own.cached + output * own.output
    return PricedDay(cost * MILLION, weights, int(weighted), kinds)


def test_three_days_are_their_mean_by_tokens():
    """By hand. Monday, 90 USD: 4 M computed, 10 M cached at 0.1, 1 M of output at 4 weigh 9 M, so
    10, 1 and 40 USD a million. Tuesday, 66 USD: 1 M, 10 M, 2 M at 10 weigh 22 M: 3, 0.3, 30. Sunday,
    20 USD: 1 M computed and 1 M of output at 9 weigh 10 M: 2, 0.2, 18. Input: 40 + 3 + 2 of 6 M;
    cached: 10 + 3 of 20 M; output: 40 + 60 + 18 of 4 M.
    """
    days = [
        day("1 : 0.1 : 4", 90, 4 * MILLION, 10 * MILLION, MILLION),
        day("1 : 0.1 : 10", 66, MILLION, 10 * MILLION, 2 * MILLION),
        day("1 : 0.1 : 9", 20, MILLION, 0, MILLION),
    ]
    assert price_tokens(days) == (Decimal("7.5"), Decimal("0.65"), Decimal("29.5"))
    assert price_tokens(days[::-1]) == price_tokens(days)


def test_days_of_the_same_weights_are_priced_together():
    """30 USD for 15 M weighted tokens, whichever day they were dear."""
    days = [
        day("1 : 0.1 : 4", 20, MILLION, 0, MILLION),
        day("1 : 0.1 : 4", 10, 2 * MILLION, 0, 2 * MILLION),
    ]
    assert price_tokens(days) == (Decimal(2), Decimal("0.2"), Decimal(8))


def test_the_cost_of_a_day_without_tokens_is_laid_over_the_others():
    """A quiet day of 11 USD makes each token of the other 110 USD dearer by a tenth."""
    days = [
        day("1 : 0.1 : 4", 50, MILLION, 0, MILLION),
        day("1 : 0.1 : 5", 60, MILLION, 0, MILLION),
    ]
    assert price_tokens(days) == (Decimal(10), Decimal(1), Decimal(45))
    quiet = day("1 : 0.1 : 7", 11)
    assert price_tokens([*days, quiet]) == (Decimal(11), Decimal("1.1"), Decimal("49.5"))


def test_a_kind_that_nobody_asked_for_is_priced_by_all_tokens():
    """Cached input at 0.1 and at 0.3 of days that had a third and two thirds of the tokens."""
    days = [day("1 : 0.1 : 4", 10, MILLION), day("1 : 0.3 : 4", 20, 2 * MILLION)]
    assert price_tokens(days)[1] == Decimal("2.333333")


@pytest.mark.parametrize(
    "days",
    [
        [],
        [day("1 : 1 : 1", 5)],
        [day("1 : 1 : 1", 5), day("1 : 1 : 2", 5)],
        [day("1 : 1 : 1", 5), day("1 : 1 : 2", 0, 7)],
    ],
    ids=("no day", "one without tokens", "two without", "all cost on a day without"),
)
def test_what_is_not_known_is_no_price(days):
    assert price_tokens(days) == UNKNOWN


def test_tokens_that_weigh_nothing_cost_nothing():
    """A cached token on a day on which output alone weighs makes cached input no dearer."""
    days = [day("1 : 0.1 : 4", 1, output=1), day("0 : 0 : 1", 0, cached=1)]
    assert price_tokens(days)[1:] == (0, MILLION)


def test_tokens_that_cost_nothing_have_a_price_of_nothing():
    assert price_tokens([day("1 : 1 : 1", 0, 5), day("1 : 1 : 2", 0, 5)]) == (0, 0, 0)


WEIGHTS = st.sampled_from(("1 : 0.1 : 4", "1 : 1 : 1", "0 : 0 : 1", "0.5 : 0.05 : 9.125"))
COUNTS = st.integers(0, 9_000_000)


@given(st.lists(st.builds(day, WEIGHTS, st.integers(0, 900), COUNTS, COUNTS, COUNTS), min_size=1))
def test_prices_times_tokens_are_the_cost_of_all_days(days):
    """To the rounding of a price, and with the cost of days without tokens."""
    prices = price_tokens(days)
    if None in prices:
        return
    counts = [sum(getattr(each.tokens, kind) for each in days) for kind in KINDS]
    paid = sum(Fraction(price) * count for price, count in zip(prices, counts, strict=True))
    cost = sum(each.cost_micro for each in days)
    assert abs(paid - cost) <= sum(counts) / (2 * MILLION)


KINDS = ("computed", "cached", "output")
