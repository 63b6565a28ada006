"""Lengths of time as people say them."""

from __future__ import annotations

from gpuledger_common.plurals import plural

MINUTE_MS = 60_000


def lasting(length_ms: float) -> str:
    """Write a length, rounded to its unit: minutes below three hours, hours below four days, else
    days.
    """
    minutes = length_ms / MINUTE_MS
    if minutes < 1:
        return "less than a minute"
    unit, size = (
        ("minute", 1) if minutes < 180 else ("hour", 60) if minutes < 5760 else ("day", 1440)
    )
    return plural(round(minutes / size), unit)
