"""Cost centers and GL codes: under which accounts of the general ledger finance books what an owner
pays.

Both are declared for an owner of the tree and hold for it and below it, from day to day. Each is
found by itself: the most specific declaration that says it wins (most levels, then the lowest of
them). So a team can have a cost center of its own and the GL code of its organization.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpuledger_collector.accounting.owner_tree import LEVELS, OwnerPath
from gpuledger_collector.accounting.period import DatedDays


@dataclass(frozen=True, slots=True)
class CostCenter(DatedDays):
    """What is declared for an owner; an empty code says nothing. `to_on` is not included."""

    owner: Mapping[str, str]
    cost_center: str = ""
    gl_code: str = ""
    from_on: dt.date | None = None
    to_on: dt.date | None = None


@dataclass(frozen=True, slots=True, order=True)
class Codes:
    """A cost center and a GL code; empty: none is declared."""

    cost_center: str = ""
    gl_code: str = ""


class CostCenters:
    """Declarations, by the owners that they name: an owner asks only those about itself and what is
    above it.
    """

    def __init__(self, known: Iterable[CostCenter]) -> None:
        self._known: dict[tuple[str, ...], dict[tuple[str, ...], list[CostCenter]]] = {}
        self._codes: dict[tuple[OwnerPath, dt.date], Codes] = {}
        for center in known:
            levels = tuple(sorted(center.owner))
            names = tuple(center.owner[level] for level in levels)
            self._known.setdefault(levels, {}).setdefault(names, []).append(center)

    def __bool__(self) -> bool:
        """Whether there is any declaration."""
        return bool(self._known)

    def codes(self, owner: OwnerPath, day: dt.date) -> Codes:
        """The codes of an owner on a day of the bill."""
        found = self._codes.get((owner, day))
        if found is None:
            found = self._codes[owner, day] = self._find(owner, day)
        return found

    def _find(self, owner: OwnerPath, day: dt.date) -> Codes:
        fitting = [
            center
            for levels, centers in self._known.items()
            for center in centers.get(tuple(owner.level(level) for level in levels), ())
            if center.holds_on(day)
        ]
        # Ties of two level sets of one size go to the one that names the lower level.
        fitting.sort(key=lambda center: (len(center.owner), _depth(center)), reverse=True)
        return Codes(
            next((center.cost_center for center in fitting if center.cost_center), ""),
            next((center.gl_code for center in fitting if center.gl_code), ""),
        )


def _depth(center: CostCenter) -> int:
    return max(LEVELS.index(level) for level in center.owner)


def join_codes(codes: Sequence[Codes]) -> Codes:
    """Several codes in one cell each, in the order of their names; what has none is left out."""
    return Codes(
        "; ".join(sorted({code.cost_center for code in codes if code.cost_center})),
        "; ".join(sorted({code.gl_code for code in codes if code.gl_code})),
    )
