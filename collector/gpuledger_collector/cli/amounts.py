"""Amounts, hours and instants as commands print them; empty where something is unknown or unpriced."""

from __future__ import annotations

from gpuledger_collector.export.cells import hours_text as hours_text
from gpuledger_collector.export.cells import instant_text as instant_text
from gpuledger_collector.export.cells import minor_amount as minor_amount


def to_minute(instant: str) -> str:
    """An RFC 3339 instant to the minute: `2026-10-31T12:00Z`."""
    return f"{instant[:16]}Z" if instant else ""
