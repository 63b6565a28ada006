"""Money: integers of millionths of a currency's major unit; cents only where people read them.

A cost is one multiplication of an integer quantity with a decimal rate, rounded once, half to even. What is shown in
minor units is split by largest remainder, so that the rows of a list add up to its total. A list is what is billed of
one month: a period's own time, or the corrections of one closed month (docs/guides/what-a-gpu-hour-costs.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import lru_cache

from gpuledger_collector.accounting.currencies import MINOR_DIGITS
from gpuledger_collector.accounting.quantity import GPU_NS_PER_HOUR, round_half_even_div, round_together

MICRO = 1_000_000
"""Micro-units in one major unit of any currency."""
RATE_DIGITS = 9
"""Decimal places of a rate."""


def minor_digits(currency: str) -> int:
    """Decimal places of the currency's minor unit (ISO 4217, list one); two for a code that the list has not (yet)."""
    # Most currencies have two; a code that is newer than the table must not keep a month from being billed.
    return MINOR_DIGITS.get(currency, 2)


@lru_cache(maxsize=4096)
def rate_nano(rate: Decimal) -> int:
    """The rate in billionths of the major unit. Raises ValueError when it has more places or is no number."""
    if not rate.is_finite():
        raise ValueError(f"{rate} is not a rate")
    # Refuse more digits instead of rounding them: a rate rounded here would differ from the one that the price book
    # shows.
    scaled = rate.scaleb(RATE_DIGITS)
    whole = int(scaled)
    if whole != scaled:
        raise ValueError(f"{rate} has more than {RATE_DIGITS} decimal places")
    return whole


def cost_micro(gpu_ns: int, rate: Decimal) -> int:
    """Micro-units for a quantity in GPU-nanoseconds at a rate per GPU-hour, rounded once, half to even."""
    # GPU-ns x nano-units / (GPU-ns per hour) is nano-units; the same division takes them to micro-units, so there is no
    # second rounding.
    nano_per_micro = 10**RATE_DIGITS // MICRO
    return round_half_even_div(gpu_ns * rate_nano(rate), GPU_NS_PER_HOUR * nano_per_micro)


def to_minor_units(micros: Sequence[int], digits: int) -> list[int]:
    """Amounts in minor units: they add up to the rounded total, each within one minor unit of its own amount."""
    return round_together(micros, MICRO // 10**digits)


def round_months(micros: Mapping[str, Mapping[str, int]], digits: int) -> dict[str, dict[str, int]]:
    """Amounts of owners in minor units, by the month that they correct (empty: the period's own time).

    Each month is a list by itself, dearest first: what a correction shows does not depend on the open month beside it.
    """
    rounded = {}
    for month, owners in micros.items():
        ordered = sorted(owners, key=lambda owner: (-owners[owner], owner))
        units = to_minor_units([owners[owner] for owner in ordered], digits)
        rounded[month] = dict(zip(ordered, units, strict=True))
    return rounded


def format_exact(micro: int, digits: int) -> str:
    """Micro-units to their last digit, with the decimals of the minor unit at least: -127875000 is `-127.875`."""
    whole, _, decimals = format_minor(micro, 6).partition(".")
    decimals = decimals.rstrip("0").ljust(digits, "0")
    return f"{whole}.{decimals}" if decimals else whole


def format_minor(units: int, digits: int) -> str:
    """Minor units as people write them: 1234 with two digits is `12.34`."""
    if digits == 0:
        return str(units)
    sign, magnitude = ("-", -units) if units < 0 else ("", units)
    return f"{sign}{magnitude // 10**digits}.{magnitude % 10**digits:0{digits}d}"
