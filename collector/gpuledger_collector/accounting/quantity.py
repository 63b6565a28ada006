"""Quantities: GPU-nanoseconds, and how they are rounded without losing any.

A share of a device is counted in millionths (*micro-GPU*), time in milliseconds; their product is
an integer number of GPU-nanoseconds, so that a tenth of a GPU for one millisecond is exact. Rounded
rows add up to the rounded total: what rounding leaves over goes to the largest remainders, as in
`gpuledger_common.largest_remainder`.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

GPU_MICRO = 1_000_000
"""Micro-GPUs of a whole device."""
GPU_NS_PER_HOUR = 3_600_000_000_000
"""GPU-nanoseconds of one whole device held for one hour."""


def gpu_ns(gpu_micro: int, ms: int) -> int:
    """GPU-nanoseconds of a share held for some milliseconds: millionths x thousandths of a second."""
    return gpu_micro * ms


def round_half_even_div(numerator: int, denominator: int) -> int:
    """The quotient rounded to the nearest integer, halves to the even one (IEEE 754 §4.3.1).

    Exact for any size.
    """
    # Not round(numerator / denominator): a month of GPU-nanoseconds times a rate has more digits
    # than a float holds.
    quotient, remainder = divmod(numerator, denominator)
    twice = 2 * remainder
    return quotient + (twice > denominator or (twice == denominator and quotient % 2 == 1))


def round_together(values: Sequence[int], unit: int) -> list[int]:
    """Signed values in multiples of `unit`: they add up to the rounded sum (half to even), each
    within one of its own.

    The difference between the rounded sum and the floors goes to the largest remainders, ties to
    the earlier value.
    """
    return round_to_sum(values, unit, round_half_even_div(sum(values), unit))


def round_to_sum(values: Sequence[int], unit: int, total: int) -> list[int]:
    """The same for a sum that is rounded already, in units: parts of a row that was rounded with
    others. It lies within one unit of the exact sum.
    """
    # `//` and `%` round toward minus infinity, so a negative amount (a correction) has a remainder
    # from 0 to unit - 1 too, and what is left over is never negative.
    floors = [value // unit for value in values]
    left = total - sum(floors)
    if left:
        more, left = divmod(left, len(values))
        floors = [floor + more for floor in floors]
        remainders = [value % unit for value in values]
        by_remainder = sorted(range(len(values)), key=remainders.__getitem__, reverse=True)
        for at in by_remainder[:left]:
            floors[at] += 1
    return floors


def round_in_lists(values: Sequence[int], lists: Sequence[object], unit: int) -> list[int]:
    """As `round_together`, each list by itself: `lists` says of each value to which it belongs."""
    members: dict[object, list[int]] = {}
    for at, name in enumerate(lists):
        members.setdefault(name, []).append(at)
    rounded = [0] * len(values)
    for places in members.values():
        for at, units in zip(
            places, round_together([values[at] for at in places], unit), strict=True
        ):
            rounded[at] = units
    return rounded


def hours_decimal(values_ns: Sequence[int], digits: int = 6) -> list[Decimal]:
    """GPU-hours to `digits` places; the rows add up to the rounded total exactly."""
    unit = GPU_NS_PER_HOUR // 10**digits
    return [Decimal(count).scaleb(-digits) for count in round_together(values_ns, unit)]


def percent_text(part: int, whole: int) -> str:
    """Percent with two places, cut off."""
    hundredths = part * 10_000 // whole
    return f"{hundredths // 100}.{hundredths % 100:02d}"
