"""Money: integers of millionths of a currency's major unit; cents only where people read them.

A cost is one multiplication of an integer quantity with a decimal rate, rounded once, half to even.
What is shown in minor units is split by largest remainder, so that the rows of a list add up to its
total. A list is what is billed of one month: a period's own time, or the corrections of one closed
month (docs/guides/what-a-gpu-hour-costs.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Self

from gpuledger_collector.accounting.currencies import MINOR_DIGITS
from gpuledger_collector.accounting.quantity import (
    GPU_NS_PER_HOUR,
    round_half_even_div,
    round_together,
)

MICRO = 1_000_000
"""Micro-units in one major unit of any currency."""
MICRO_DIGITS = 6
RATE_DIGITS = 9
"""Decimal places of a rate."""


def minor_digits(currency: str) -> int:
    """Decimal places of the currency's minor unit (ISO 4217, list one); two for a code that the
    list has not (yet).
    """
    # Most currencies have two; a code that is newer than the table must not keep a month from being
    # billed.
    return MINOR_DIGITS.get(currency, 2)


def minor_unit(currency: str) -> int:
    """Micro-units in the currency's minor unit: 10,000 in a cent."""
    return int(MICRO // 10 ** minor_digits(currency))


@dataclass(frozen=True, slots=True)
class Money:
    """An amount of one currency in micro-units, and the forms in which people and programs read it."""

    micro: int
    currency: str
    shown_minor: int | None = field(default=None, compare=False)
    """Minor units of one that was rounded together with others, so that they add up as shown."""

    @classmethod
    def from_minor(cls, units: int, currency: str) -> Self:
        """An amount in whole minor units: 1234 of USD is 12.34."""
        return cls(units * minor_unit(currency), currency, units)

    @property
    def minor(self) -> int:
        """Minor units as they are shown: rounded half to even, or together with others."""
        if self.shown_minor is not None:
            return self.shown_minor
        return round_half_even_div(self.micro, minor_unit(self.currency))

    def plain(self) -> str:
        """For files and programs: `-1234.50`."""
        return decimal_text(self.minor, minor_digits(self.currency))

    def grouped(self) -> str:
        """For people: `-1,234.50`."""
        return group_digits(self.plain())

    def signed(self) -> str:
        """A change: `+1,234.50`, `-1,234.50`; nothing has no sign."""
        return f"+{self.grouped()}" if self.minor > 0 else self.grouped()

    def exact(self, places: int | None = None) -> str:
        """To the last micro-unit, with at least that many decimals (the minor unit's): -127875000
        is `-127.875`.
        """
        whole, _, decimals = decimal_text(self.micro).partition(".")
        decimals = decimals.rstrip("0").ljust(
            minor_digits(self.currency) if places is None else places, "0"
        )
        return f"{whole}.{decimals}" if decimals else whole

    def estimate(self) -> str:
        """Without minor units, so that nobody takes it for a charge: `1,235`."""
        return group_digits(str(round_half_even_div(self.micro, MICRO)))

    def __str__(self) -> str:
        """In a sentence: `USD 1,234.50`."""
        return f"{self.currency} {self.grouped()}"


def total_by_currency(amounts: Iterable[Money | None]) -> list[Money]:
    """The sums of amounts, by currency; None, what has no price, is in none."""
    sums: Counter[str] = Counter()
    for amount in amounts:
        if amount is not None:
            sums[amount.currency] += amount.micro
    return [Money(sums[currency], currency) for currency in sorted(sums)]


def round_amounts(micros: Sequence[int], currency: str) -> list[Money]:
    """Amounts in whole minor units that add up to the rounded total, each within one minor unit of
    its own.
    """
    units = to_minor_units(micros, currency)
    return [Money(micro, currency, unit) for micro, unit in zip(micros, units, strict=True)]


def parse_amount(text: str) -> int:
    """An amount above 0 in major units as written, in micro-units; `_` may group its digits.

    Raises ValueError with a sentence, also for more than six decimals.
    """
    try:
        value = Decimal(text.replace("_", ""))
    except InvalidOperation:
        raise ValueError(f"{text!r} is not an amount; write it as 40000 or 40000.50") from None
    micro = value * MICRO if value.is_finite() else value
    if not value.is_finite() or value <= 0 or micro != int(micro) or micro >= 2**62:
        raise ValueError(
            f"{text!r} is not an amount of money: it must be more than 0, with at most 6 decimal"
            " places"
        )
    return int(micro)


def group_digits(text: str) -> str:
    """A plain decimal with its thousands apart: `-40,000.00`."""
    whole, point, decimals = text.removeprefix("-").partition(".")
    return f"{'-' if text.startswith('-') else ''}{int(whole):,}{point}{decimals}"


@lru_cache(maxsize=4096)
def rate_nano(rate: Decimal) -> int:
    """The rate in billionths of the major unit.

    Raises ValueError when it has more places or is no number.
    """
    if not rate.is_finite():
        raise ValueError(f"{rate} is not a rate")
    # Refuse more digits instead of rounding them: a rate rounded here would differ from the one
    # that the price book shows.
    scaled = rate.scaleb(RATE_DIGITS)
    whole = int(scaled)
    if whole != scaled:
        raise ValueError(f"{rate} has more than {RATE_DIGITS} decimal places")
    return whole


def cost_micro(gpu_ns: int, rate: Decimal) -> int:
    """Micro-units for a quantity in GPU-nanoseconds at a rate per GPU-hour, rounded once, half to
    even.
    """
    # GPU-ns x nano-units / (GPU-ns per hour) is nano-units; the same division takes them to
    # micro-units, so there is no second rounding.
    nano_per_micro = 10**RATE_DIGITS // MICRO
    return round_half_even_div(gpu_ns * rate_nano(rate), GPU_NS_PER_HOUR * nano_per_micro)


def to_minor_units(micros: Sequence[int], currency: str) -> list[int]:
    """Amounts in minor units: they add up to the rounded total, each within one minor unit of its
    own amount.
    """
    return round_together(micros, minor_unit(currency))


def round_months(
    micros: Mapping[str, Mapping[str, int]], currency: str
) -> dict[str, dict[str, int]]:
    """Amounts of owners in minor units, by the month that they correct (empty: the period's own
    time).

    Each month is a list by itself, dearest first: what a correction shows does not depend on the
    open month beside it.
    """
    rounded = {}
    for month, owners in micros.items():
        ordered = sorted(owners, key=lambda owner: (-owners[owner], owner))
        units = to_minor_units([owners[owner] for owner in ordered], currency)
        rounded[month] = dict(zip(ordered, units, strict=True))
    return rounded


def decimal_text(units: int, digits: int = MICRO_DIGITS) -> str:
    """A decimal from its digits: 1234 with two places is `12.34`; without a number of them, from
    millionths.
    """
    if digits == 0:
        return str(units)
    whole, part = divmod(abs(units), 10**digits)
    return f"{'-' if units < 0 else ''}{whole}.{part:0{digits}d}"
