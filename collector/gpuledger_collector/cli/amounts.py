"""Amounts, hours and instants as commands print them; empty where something is unknown or unpriced."""

from __future__ import annotations

from decimal import Decimal

from gpuledger_collector.accounting.money import format_minor, minor_digits, to_minor_units
from gpuledger_collector.accounting.period import HOUR_MS, format_instant

MWS_PER_KWH = 3_600_000_000
"""Milliwatt-seconds, that is millijoules, in a kilowatt-hour."""


def minor_amount(micro: int | None, currency: str | None) -> str:
    """Micro-units in the currency's minor unit: `1234.50`."""
    if micro is None or not currency:
        return ""
    digits = minor_digits(currency)
    return format_minor(to_minor_units([micro], digits)[0], digits)


def hours_text(milliseconds: int, digits: int) -> str:
    """Milliseconds as hours."""
    return f"{Decimal(milliseconds) / HOUR_MS:.{digits}f}"


def instant_text(at_ms: int | None) -> str:
    """An instant in RFC 3339, to the second."""
    return "" if at_ms is None else format_instant(at_ms - at_ms % 1000)


def to_minute(instant: str) -> str:
    """An RFC 3339 instant to the minute: `2026-10-31T12:00Z`."""
    return f"{instant[:16]}Z" if instant else ""
