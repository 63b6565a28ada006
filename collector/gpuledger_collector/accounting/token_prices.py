"""What a million tokens of each kind cost over days.

Where all days have the same weights, it is their cost over their weighted tokens. Else it is the
mean of the days by tokens: what the tokens of a kind cost on each day, by its own weights, over the
tokens of that kind. Days on which nothing was counted have a cost and no tokens: it is laid over
the others in proportion to theirs. So prices times tokens are the cost of all days, either way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from decimal import Decimal
from fractions import Fraction

from gpuledger_collector.accounting.inference_split import parse_weights, price_per_million
from gpuledger_collector.accounting.money import MICRO
from gpuledger_collector.accounting.quantity import round_half_even_div

Prices = tuple[Decimal | None, ...]
"""Of a million input, cached and output tokens, in major units; None: not known."""
UNKNOWN: Prices = (None,) * 3


@dataclass(frozen=True, slots=True)
class TokenKinds:
    """Tokens by what they weigh: input that was computed, input that was cached, and output."""

    computed: Fraction = Fraction(0)
    cached: Fraction = Fraction(0)
    output: Fraction = Fraction(0)


NO_TOKENS = TokenKinds()


@dataclass(frozen=True, slots=True)
class PricedDay:
    """What a day's tokens cost, and by which weights; `weighted`: all of them by these weights, in
    millionths.
    """

    cost_micro: int
    weights: str
    weighted: int
    tokens: TokenKinds


def price_tokens(days: Sequence[PricedDay]) -> Prices:
    """Prices of a million tokens by kind; unknown where nothing was counted."""
    texts = {day.weights for day in days}
    if not texts:
        return UNKNOWN
    if len(texts) > 1:
        return _mean_prices(days)
    cost = sum(day.cost_micro for day in days)
    weighted = sum(day.weighted for day in days)
    return tuple(
        price_per_million(cost, weight, weighted) for weight in astuple(parse_weights(texts.pop()))
    )


def _mean_prices(days: Sequence[PricedDay]) -> Prices:
    """The mean of days of different weights, by tokens."""
    kinds: list[tuple[Fraction, ...]] = []
    unit_costs: list[tuple[Fraction, ...]] = []
    cost = cost_with_tokens = 0
    has_tokens = False
    for day in days:
        cost += day.cost_micro
        weights, tokens = astuple(parse_weights(day.weights)), astuple(day.tokens)
        weighted = sum(weight * count for weight, count in zip(weights, tokens, strict=True))
        kinds.append(tokens)
        if weighted:
            has_tokens = True
            cost_with_tokens += day.cost_micro
            unit_costs.append(
                tuple(Fraction(day.cost_micro * weight, weighted) for weight in weights)
            )
        else:
            # Tokens that weigh nothing cost nothing.
            unit_costs.append((Fraction(0),) * 3)
    if not has_tokens or (cost and not cost_with_tokens):
        return UNKNOWN
    factor = Fraction(cost, cost_with_tokens) if cost_with_tokens else Fraction(1)
    return tuple(
        _round_price(factor * _mean(own, counts, kinds))
        for own, counts in zip(zip(*unit_costs, strict=True), zip(*kinds, strict=True), strict=True)
    )


def _mean(
    values: Sequence[Fraction], counts: Sequence[Fraction], kinds: Sequence[Sequence[Fraction]]
) -> Fraction:
    """The mean of a kind's unit costs by its tokens; of a kind that nobody asked for by all tokens."""
    weights = counts if any(counts) else [sum(of_day, Fraction(0)) for of_day in kinds]
    spent = (value * weight for value, weight in zip(values, weights, strict=True))
    return Fraction(sum(spent, Fraction(0)), sum(weights, Fraction(0)))


def _round_price(micro: Fraction) -> Decimal:
    """Micro-units of a token, which are major units of a million, to six places."""
    return Decimal(round_half_even_div(micro.numerator * MICRO, micro.denominator)).scaleb(-6)
