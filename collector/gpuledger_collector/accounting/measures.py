"""Measures: what everything that is charged, added up, reported or corrected says in the same nine
numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any, Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """Time in GPU-nanoseconds, amounts in micro-units of one currency, energy in millijoules.

    `busy_ns`, `idle_ns` and `unknown_ns` are the activity of held time, and add up to its `gpu_ns`.
    `cost_micro` is what is charged, the effective cost: time that a commitment covers costs the
    commitment's share. The price book's rate (contracted) and its list rate say what the same time
    would have cost without the commitment or the discount. None means unknown (no rate, nothing
    measured), never zero.
    """

    gpu_ns: int = 0
    busy_ns: int = 0
    idle_ns: int = 0
    unknown_ns: int = 0
    cost_micro: int | None = None
    idle_cost_micro: int | None = None
    energy_mj: int | None = None
    list_cost_micro: int | None = None
    contracted_cost_micro: int | None = None

    @property
    def amounts(self) -> dict[str, Any]:
        """The measures by name, without what a subclass adds."""
        return dict(zip(MEASURES, amounts_of(self), strict=True))

    @property
    def has_known_activity(self) -> bool:
        """Whether some of the time is known to be busy or idle; only then do idle time and its cost
        mean something.

        A correction of a price has no time of its own: its idle cost says that the time was known.
        """
        return self.unknown_ns != self.gpu_ns or bool(self.idle_ns) or bool(self.idle_cost_micro)

    @property
    def known_busy_ns(self) -> int | None:
        """Busy time; None where time was held and nothing is known of its activity."""
        return None if self.gpu_ns and not self.has_known_activity else self.busy_ns

    @property
    def known_idle_ns(self) -> int | None:
        """Idle time; None where time was held and nothing is known of its activity."""
        return None if self.gpu_ns and not self.has_known_activity else self.idle_ns

    def plus(self, other: Measures) -> Self:
        """Add another's measures to this one's; a sum is unknown only when both parts are."""
        return self.with_amounts(
            {name: add_known(getattr(self, name), getattr(other, name)) for name in MEASURES}
        )

    def with_amounts(self, amounts: Mapping[str, int | None]) -> Self:
        """The same with other measures, by name."""
        keywords: dict[str, Any] = dict(amounts)
        return replace(self, **keywords)


MEASURES = tuple(field.name for field in fields(Measures))
"""The names of the measures; tables of charges have columns of these names."""
amounts_of: Callable[[Measures], tuple[Any, ...]] = attrgetter(*MEASURES)
"""The measures in the order of their names."""
COMPARED = ("list_cost_micro", "contracted_cost_micro")
"""Measures that are compared with the cost, so that their sum is only known when every part of it
is.
"""
SUMMED = tuple(name for name in MEASURES if name not in COMPARED)
"""Measures whose sum leaves out what is unknown."""


def total(parts: Iterable[Measures]) -> Measures:
    """Add measures up, as `plus` does, in one pass over each measure."""
    parts = list(parts)
    if len(parts) == 1:
        return parts[0]
    sums: dict[str, Any] = {}
    for name in MEASURES:
        known = [value for part in parts if (value := getattr(part, name)) is not None]
        sums[name] = sum(known) if known or name.endswith("_ns") else None
    return Measures(**sums)


def add_known(total: int | None, value: int | None) -> int | None:
    """The sum of what is known; None only when nothing is."""
    if value is None:
        return total
    return value if total is None else total + value
