"""What tokens would have cost at the declared price of an API: bought beside our own.

A price names the models that it stands for, as their gateway calls them. Tokens are those that
gateways counted, since only they are known by model and kind. No bill changes by it.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_HALF_EVEN, Decimal

from gpuledger_collector.accounting.inference import Tokens
from gpuledger_collector.accounting.inference_lines import InferenceLine, ServerSummary
from gpuledger_collector.accounting.inference_split import matches_any, split_patterns
from gpuledger_collector.accounting.money import Money
from gpuledger_collector.accounting.period import Calendar, DatedDays


@dataclass(frozen=True, slots=True)
class ApiPrice(DatedDays):
    """What a million input, cached and output tokens of an API cost that could answer `models`,
    patterns with commas between.
    """

    name: str
    models: str
    input: Decimal
    cached: Decimal
    output: Decimal
    currency: str
    from_on: dt.date | None = None
    to_on: dt.date | None = None

    def stands_for(self, model: str) -> bool:
        """Whether it is the price of a model."""
        return matches_any(model, split_patterns(self.models))

    def micro(self, tokens: Tokens) -> Decimal:
        """Micro-units for tokens, exact: a price of a million in major units is one of a token in
        micro-units.
        """
        own = tokens.bounded()
        return (
            (own.input - own.cached) * self.input
            + own.cached * self.cached
            + own.output * self.output
        )


def compare_with_apis(
    summaries: Iterable[ServerSummary],
    lines: Iterable[InferenceLine],
    prices: Sequence[ApiPrice],
    calendar: Calendar,
) -> tuple[list[ServerSummary], list[str]]:
    """Sums of servers with what their tokens would have cost, and in sentences which have none.

    A server is compared where each of its models has one price on each day, all of them in one
    currency; its other currencies are not.
    """
    if not prices:
        return list(summaries), []
    bought: dict[str, dict[str, Decimal]] = defaultdict(lambda: defaultdict(Decimal))
    unknown: dict[str, set[str]] = defaultdict(set)
    for line in lines:
        if line.claimant.is_tenant and line.tokens:
            date = calendar.date_of(line.day_ms)
            model = line.claimant.model
            found = [each for each in prices if each.holds_on(date) and each.stands_for(model)]
            if len(found) != 1:
                which = " and ".join(sorted(each.name for each in found)) or "no [[api_price]]"
                unknown[line.server].add(f"{which} for {model}")
                continue
            (price,) = found
            bought[line.server][price.currency] += price.micro(line.tokens)
    for server, amounts in bought.items():
        if len(amounts) > 1:
            unknown[server].add(f"API prices in {' and '.join(sorted(amounts))}")
    compared = [
        replace(summary, bought=_amount(summary, bought[summary.server]))
        if summary.server in bought and summary.server not in unknown
        else summary
        for summary in summaries
    ]
    notes = [
        f"{server}: not compared with an API, since there is {', '.join(sorted(reasons))}"
        for server, reasons in sorted(unknown.items())
    ]
    return compared, notes


def _amount(summary: ServerSummary, amounts: dict[str, Decimal]) -> Money | None:
    """What was bought, in the currency of the server; None: it is in another one."""
    if summary.cost is None or summary.cost.currency not in amounts:
        return None
    micro = amounts[summary.cost.currency].to_integral_value(ROUND_HALF_EVEN)
    return Money(int(micro), summary.cost.currency)
