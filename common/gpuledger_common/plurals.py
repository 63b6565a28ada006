"""How counts are said to people."""

from __future__ import annotations


def plural(count: int | str, word: str) -> str:
    """`1 node`, `2 nodes`; a count that is written already stays as it is written: `2.5 GPUs`."""
    said = str(count)
    return f"{said} {word}{'' if said == '1' else 's'}"
