"""Counts as people read them."""

from __future__ import annotations


def plural(count: int | str, word: str) -> str:
    """`1 GPU`, `2,000 GPUs`; a count given as text is not formatted: `2.5 GPUs`."""
    written = count if isinstance(count, str) else f"{count:,}"
    return f"{written} {word}{'' if written == '1' else 's'}"
