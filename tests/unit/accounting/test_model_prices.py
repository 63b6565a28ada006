"""Prices of models: those of their servers, and none where none is known."""

from decimal import Decimal

import pytest

from gpuledger_collector.accounting.inference import Tokens
from gpuledger_collector.accounting.inference_lines import InferenceLine, ServerLine
from gpuledger_collector.accounting.inference_split import NOBODYS, Claimant
from gpuledger_collector.accounting.model_prices import HELD, USED, ModelPrice, list_model_prices

DAY_MS = 86_400_000
MICRO = 1_000_000


def line(server, model, day=0, currency="USD", tokens=1000, claimant=None):
    own = Claimant("gw", "vision", model) if claimant is None else claimant
    return InferenceLine(
        server=server,
        day_ms=day * DAY_MS,
        claimant=own,
        tokens=Tokens(tokens),
        weighted=tokens * MICRO,
        currency=currency,
        used_micro=0,
        idle_micro=0,
    )


def day_of(server, day=0, currency="USD", cost=6_000_000, used=3_000_000, weights="1 : 0.1 : 4"):
    return ServerLine(server, day * DAY_MS, currency, cost, used, None, None, False, weights)


def test_prices_are_those_of_the_server_at_held_and_at_used_cost():
    """6 USD for 1,500 weighted tokens, of which nobody asked for a third; half of them idle."""
    lines = [line("a", "qwen"), line("a", "", tokens=500, claimant=NOBODYS)]
    held, used = (list_model_prices(lines, [day_of("a")], cost) for cost in (HELD, USED))
    assert held.prices == [
        ModelPrice("qwen", "a", Decimal(4000), Decimal(400), Decimal(16000), "USD")
    ]
    assert used.prices == [
        ModelPrice("qwen", "a", Decimal(2000), Decimal(200), Decimal(8000), "USD")
    ]
    assert [*held.notes, *used.notes] == []


@pytest.mark.parametrize(
    ("lines", "days", "said"),
    [
        ([line("a", "q"), line("b", "q")], [day_of("a"), day_of("b")], "a and b answered it"),
        ([line("a", "q", currency="")], [day_of("a", currency="", cost=0)], "nothing of a was"),
        (
            [line("a", "q"), line("a", "q", currency="EUR")],
            [day_of("a"), day_of("a", currency="EUR")],
            "a costs in EUR and USD",
        ),
        ([line("a", "q")], [day_of("a", cost=0, used=0)], "its tokens cost nothing on a"),
    ],
)
def test_what_has_no_price_is_said_and_is_not_zero(lines, days, said):
    answer = list_model_prices(lines, days)
    assert answer.prices == []
    (note,) = answer.notes
    assert note.startswith("q: no price, since ")
    assert said in note


def test_one_of_two_servers_can_be_chosen():
    lines = [line("a", "q"), line("b", "q", tokens=2000)]
    (price,) = list_model_prices(lines, [day_of("a"), day_of("b")], server="b").prices
    assert (price.server, price.input) == ("b", Decimal(3000))


def test_a_day_without_a_price_is_none_of_what_the_others_cost():
    lines = [line("a", "q"), line("a", "q", 1, currency="", tokens=9)]
    days = [day_of("a"), day_of("a", 1, currency="", cost=0, weights="1 : 1 : 1")]
    (price,) = list_model_prices(lines, days).prices
    assert price.input == Decimal(6000)


def test_days_of_other_weights_are_averaged_by_tokens():
    """6 USD for 1,000 input tokens on one day and for 3,000 on another, whose output weighs less."""
    lines = [line("a", "q"), line("a", "q", 1, tokens=3000)]
    days = [day_of("a"), day_of("a", 1, weights="1 : 0.1 : 2")]
    held, used = (list_model_prices(lines, days, cost).prices for cost in (HELD, USED))
    # Of output, of which nobody had any, 24,000 for a quarter of the tokens and 4,000 for the rest.
    assert held == [ModelPrice("q", "a", Decimal(3000), Decimal(300), Decimal(9000), "USD")]
    assert used == [ModelPrice("q", "a", Decimal(1500), Decimal(150), Decimal(4500), "USD")]
