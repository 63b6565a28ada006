"""Changes of rates as statements and pages say them: rows that add up to what the price did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from gpuledger_collector.accounting.money import Money, minor_unit
from gpuledger_collector.accounting.pricing import Price
from gpuledger_collector.accounting.quantity import round_together
from gpuledger_collector.accounting.rate_changes import DatedRate, RateChange
from gpuledger_collector.export.html import unit_price
from gpuledger_common.plurals import plural

SHOWN_RATES = 5
"""Changes with a row of their own: a series of spot rates changes every hour."""
OTHER_PRICES = "other prices: of pools, ways of buying and commitments"


@dataclass(frozen=True, slots=True)
class RateRow:
    """A change of a rate, or what several did together; `at_ms` and `gpu_ns` None: of those."""

    name: str
    rates: str
    at_ms: int | None
    gpu_ns: int | None
    effect: Money


def name_rate(change: RateChange | Price) -> str:
    """What a rate is for: `H100, on demand, pool train`."""
    return ", ".join(
        part
        for part in (
            change.gpu_model or "any model",
            change.purchase.replace("_", " "),
            change.pool and f"pool {change.pool}",
            change.node and f"node {change.node}",
            change.region and f"region {change.region}",
        )
        if part
    )


def say_rates(old: Decimal, new: Decimal, currency: str) -> str:
    """`6.88 to 5.95 USD an hour`."""
    return f"{unit_price(old)} to {unit_price(new)} {currency} an hour"


@dataclass(frozen=True, slots=True)
class SaidRate:
    """A rate that changed, in words."""

    name: str
    rates: str
    at_ms: int


def say_dated_rates(rates: Sequence[DatedRate], currency: str) -> tuple[list[SaidRate], int]:
    """The last changes of rates in a currency, newest last, and how many came before them."""
    own = [rate for rate in rates if rate.new.currency == currency]
    shown = [
        SaidRate(name_rate(rate.new), say_rates(rate.old.rate, rate.new.rate, currency), rate.at_ms)
        for rate in own[-SHOWN_RATES:]
    ]
    return shown, len(own) - len(shown)


def rate_rows(changes: Sequence[RateChange], price_micro: int, currency: str) -> list[RateRow]:
    """The largest changes, the others together, and what other prices did; the rows add up to what
    the price did. None where no rate changed.
    """
    if not changes:
        return []
    shown, others = changes[:SHOWN_RATES], changes[SHOWN_RATES:]
    micros = [change.micro for change in shown]
    micros.append(sum(change.micro for change in others))
    micros.append(price_micro - sum(micros))
    minors = round_together(micros, minor_unit(currency))
    *effects, of_others, of_prices = (Money.from_minor(units, currency) for units in minors)
    rows = [
        RateRow(
            name_rate(change),
            say_rates(change.before, change.after, currency),
            change.at_ms,
            change.gpu_ns,
            effect,
        )
        for change, effect in zip(shown, effects, strict=True)
    ]
    if others:
        rows.append(RateRow(plural(len(others), "other change"), "", None, None, of_others))
    if of_prices.minor:
        rows.append(RateRow(OTHER_PRICES, "", None, None, of_prices))
    return rows
