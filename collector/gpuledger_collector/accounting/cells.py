"""Cells of tables that people open in spreadsheets."""

from __future__ import annotations

from unicodedata import normalize

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def neutral(text: str) -> str:
    """The text, made harmless for spreadsheets: a cell that would begin a formula gets an apostrophe before it."""
    # Some spreadsheets take wide and small forms of these signs for them, hence NFKC.
    return f"'{text}" if normalize("NFKC", text[:1]).startswith(_FORMULA) else text
