"""Which GPUs are free, by model: now, and in each hour of the last week; of many GPUs, of the last day.
Counts, and no forecast.

A GPU was free in an hour in which nobody held it from start to end, for only such could have been
had together. What is not observed is not free, and not taken either: an hour in which too much is
not known says neither that there were enough nor that there were not. GPUs count whole: a board
that is divided into slices is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

DAYS, DAYS_OF_MANY = 7, 1
"""How far back is looked, and how far where there are more than MANY GPUs: a page must not wait for
millions of hours.
"""
MANY = 2_000
FREE_MS = 59 * 60_000
"""Of an hour: an agent that starts anew leaves seconds that nobody saw."""


@dataclass(frozen=True, slots=True)
class FreeHour:
    """GPUs of a model in an hour: free for all of it, surely taken for some of it, and those whose
    place was there.
    """

    at_ms: int
    free: int
    taken: int
    present: int

    @property
    def is_known(self) -> bool:
        """Whether anything was observed."""
        return self.free + self.taken > 0

    def had(self, gpus: int) -> bool | None:
        """Whether so many were free at once; None: too many are not known."""
        if self.free >= gpus:
            return True
        return False if self.present - self.taken < gpus else None


@dataclass(frozen=True, slots=True)
class ModelNow:
    """GPUs of a model that are there now: held, free, and all of them."""

    model: str
    gpus: int
    held: int
    free: int


@dataclass(frozen=True, slots=True)
class Availability:
    """In how many hours so many GPUs were free at once, in how many that is not known, and of how
    many hours; and the least and the most that are known to have been free.
    """

    enough: int
    undecided: int
    hours: int
    least: int | None
    most: int | None


@dataclass(frozen=True, slots=True)
class FreeModel:
    """A model: its GPUs now, what was free in the hours looked at, and the same by hour of the
    day.
    """

    now: ModelNow
    wanted: int
    week: Availability
    by_clock: Mapping[str, Availability]

    @property
    def other(self) -> int:
        """GPUs that are neither held nor free now: out of use, or not observed."""
        return self.now.gpus - self.now.held - self.now.free


def summarize(hours: Sequence[FreeHour], wanted: int) -> Availability:
    """Count the hours in which so many were free at once."""
    had = [hour.had(wanted) for hour in hours]
    free = [hour.free for hour in hours if hour.is_known]
    return Availability(
        enough=sum(each is True for each in had),
        undecided=sum(each is None for each in had),
        hours=len(hours),
        least=min(free, default=None),
        most=max(free, default=None),
    )
