"""Tokens at the price of an API: exact, dated, and only where every model has one price."""

import datetime as dt
from decimal import Decimal

import pytest

from gpuledger_collector.accounting.api_prices import ApiPrice, compare_with_apis
from gpuledger_collector.accounting.inference import Tokens
from gpuledger_collector.accounting.inference_lines import (
    InferenceLine,
    ServerLine,
    summarize_servers,
)
from gpuledger_collector.accounting.inference_split import NOBODYS, Claimant
from gpuledger_collector.accounting.money import Money
from gpuledger_collector.accounting.period import Calendar

DAY_MS = 86_400_000
FIRST = dt.date(1970, 1, 1)


def price(name="api", models="qwen*", currency="USD", rates=("0.15", "0.003", "0.60"), **dated):
    return ApiPrice(name, models, *map(Decimal, rates), currency, **dated)


def line(model="qwen-32b", day=0, tokens=(3_000_000, 1_000_000, 500_000), claimant=None):
    return InferenceLine(
        server="a",
        day_ms=day * DAY_MS,
        claimant=claimant or Claimant("gw", "vision", model),
        tokens=Tokens(*tokens),
        weighted=1,
        currency="USD",
        used_micro=0,
        idle_micro=0,
    )


def compare(lines, prices):
    days = sorted({each.day_ms for each in lines})
    servers = [ServerLine("a", day, "USD", 9, 4, None, None, False, "1 : 1 : 1") for day in days]
    (summary,), notes = compare_with_apis(
        summarize_servers(servers, lines), lines, prices, Calendar()
    )
    return summary.bought, notes


def test_cached_tokens_have_a_price_of_their_own():
    """2 M computed at 0.15, 1 M cached at 0.003, half a million of output at 0.60: 0.603 USD."""
    assert compare([line()], [price()]) == (Money(603_000, "USD"), [])


def test_tokens_that_nobody_asked_for_would_not_be_bought():
    lines = [line(), line("", tokens=(9_000_000, 0, 0), claimant=NOBODYS)]
    assert compare(lines, [price()]) == (Money(603_000, "USD"), [])


def test_a_price_holds_on_its_days():
    """The second day costs twice as much."""
    second = FIRST + dt.timedelta(days=1)
    prices = [
        price(to_on=second),
        price(from_on=second, rates=("0.30", "0.006", "1.20")),
    ]
    assert compare([line(), line(day=1)], prices) == (Money(3 * 603_000, "USD"), [])


def test_rounding_happens_once():
    """Three thirds of a micro-unit are one."""
    third = price(rates=("0.333333333", "0", "0"))
    lines = [line(day=day, tokens=(1, 0, 0)) for day in range(3)]
    assert compare(lines, [third])[0] == Money(1, "USD")


@pytest.mark.parametrize(
    ("lines", "prices", "said"),
    [
        ([line(), line("llama")], [price()], "there is no [[api_price]] for llama"),
        ([line()], [price("x"), price("y")], "there is x and y for qwen-32b"),
        (
            [line(), line("llama")],
            [price(), price("e", "llama", "EUR")],
            "there is API prices in EUR and USD",
        ),
    ],
)
def test_what_is_not_known_is_said_and_not_added_up(lines, prices, said):
    bought, (note,) = compare(lines, prices)
    assert bought is None
    assert said in note


def test_another_currency_is_not_compared():
    assert compare([line()], [price(currency="EUR")])[0] is None


def test_without_a_declared_price_nothing_is_said():
    assert compare([line()], []) == (None, [])
