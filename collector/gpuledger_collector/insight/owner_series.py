"""What owners and pools held over time, in steps of five minutes or of several of those."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

STEP_MS = 300_000
GROUPS = ("org", "team", "project", "pool", "model", "state")
"""What series can be grouped by."""
OWNER_LEVELS = ("org", "team", "project")
"""Levels of the owner tree that series distinguish."""
UNKNOWN = -1
"""Value of a measure that is unknown in a step: energy that nobody measured, cost without a price.
"""


@dataclass(frozen=True, slots=True)
class OwnerSeries:
    """One series: its group, its currency (None: unpriced), and by measure a value a step; 0 where
    it held nothing.
    """

    key: tuple[str, ...]
    currency: str | None
    values: Mapping[str, npt.NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class SeriesOverTime:
    """Series in the order of their groups, and which steps have any: the others were not rated, or
    have expired, and are unknown in every series.
    """

    items: Sequence[OwnerSeries]
    known: Sequence[bool]

    def values(self, item: OwnerSeries, measure: str, per: float) -> list[float | None]:
        """A value a step in units of `per`; None: unknown."""
        return [
            round(value / per, 6) if is_known and value != UNKNOWN else None
            for value, is_known in zip(item.values[measure].tolist(), self.known, strict=True)
        ]
