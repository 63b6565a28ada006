"""Cells and amounts as people and spreadsheets read them."""

from __future__ import annotations

from collections.abc import Sequence
from unicodedata import normalize

from gpuledger_collector.accounting.chargeback import Row
from gpuledger_collector.accounting.money import format_minor, minor_digits

MEASURES = ("gpu_hours", "gpu_hours_idle", "cost", "cost_idle", "currency")
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def neutral(text: str) -> str:
    """The text, made harmless for spreadsheets: a cell that would begin a formula gets an apostrophe before it."""
    # Some spreadsheets take wide and small forms of these signs for them, hence NFKC.
    return f"'{text}" if normalize("NFKC", text[:1]).startswith(_FORMULA) else text


def measures(row: Row) -> list[str]:
    """The amounts of a row as text, in the order of MEASURES; what is not known is empty."""
    digits = 0 if row.currency is None else minor_digits(row.currency)

    def money(units: int | None) -> str:
        return "" if units is None else format_minor(units, digits)

    return [
        f"{row.gpu_hours:.6f}",
        "" if row.gpu_hours_idle is None else f"{row.gpu_hours_idle:.6f}",
        money(row.cost_minor),
        money(row.cost_idle_minor),
        row.currency or "",
    ]


def header(by: Sequence[str]) -> list[str]:
    """The columns of a chargeback."""
    return [*by, *MEASURES]
