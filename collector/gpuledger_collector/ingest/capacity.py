"""When an accelerator was there to be held, as far as agents show it.

First evidence opens a row of the inventory; earlier evidence moves its start back; evidence from another node, or with
another pool, closes the row and opens the next. Rows that come from an inventory file are the last word: where there
is one, agents change nothing. The decision is a pure function of the rows and the evidence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CapacityRow:
    """A row of `capacity`: half-open in time, `out_ms` None while the accelerator is still there."""

    id: int
    node_id: int | None
    pool: str
    in_ms: int
    out_ms: int | None
    imported: bool = False

    @property
    def place(self) -> tuple[int | None, str]:
        """Where it stood and what it counted as."""
        return self.node_id, self.pool


@dataclass(frozen=True, slots=True)
class Evidence:
    """A batch shows the accelerator on a node, in a pool, from `first_ms` on."""

    accelerator_id: int
    node_id: int
    pool: str
    first_ms: int


@dataclass(frozen=True, slots=True)
class Insert:
    """Open a row."""

    in_ms: int
    out_ms: int | None


@dataclass(frozen=True, slots=True)
class Change:
    """Give a row another start, end or place."""

    id: int
    in_ms: int
    out_ms: int | None
    moved: bool = False


Step = Insert | Change


def plan(rows: Sequence[CapacityRow], seen: Evidence) -> list[Step]:
    """What to do to the rows of one accelerator, given in order of time, so that they hold the evidence."""
    place = (seen.node_id, seen.pool)
    if any(row.imported for row in rows):
        return []
    if not rows:
        return [Insert(seen.first_ms, None)]
    first, last = rows[0], rows[-1]
    if seen.first_ms < first.in_ms:
        if first.place == place:
            return [Change(first.id, seen.first_ms, first.out_ms)]
        return [Insert(seen.first_ms, first.in_ms)]
    if last.out_ms is not None and seen.first_ms >= last.out_ms:
        return [Insert(seen.first_ms, None)]
    if seen.first_ms < last.in_ms or last.place == place:
        return []
    if seen.first_ms == last.in_ms:
        return [Change(last.id, last.in_ms, last.out_ms, moved=True)]
    return [Change(last.id, last.in_ms, seen.first_ms), Insert(seen.first_ms, last.out_ms)]


def covered_since(row: CapacityRow | None, node_id: int, pool: str) -> int | None:
    """The instant since which evidence from this place changes nothing, as the newest row of an accelerator alone
    shows; None when it does not show it.
    """
    if row is None or (row.place != (node_id, pool) and not row.imported):
        return None
    return 0 if row.imported else row.in_ms if row.out_ms is None else None


def covers(row: CapacityRow | None, seen: Evidence) -> bool:
    """Whether the newest row of an accelerator alone shows that the evidence changes nothing."""
    return row is not None and plan([row], seen) == []
