"""Which GPUs are free, by model: now, and in each hour of the last week. Counts, and what they make
likely of tomorrow's morning, by earlier mornings of the same kind of day.

A GPU was free in an hour in which nobody held it from start to end, for only such could have been
had together. What is not observed is not free, and not taken either: an hour in which too much is
not known says neither that there were enough nor that there were not. GPUs count whole: a board
that is divided into slices is none.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuledger_collector.accounting.statement import SATURDAY

DAYS = 7
"""How far back is looked."""
COUNTS = (1, 2, 4, 8)
"""How many GPUs at once are counted without being asked for: as people ask for them, up to a node."""
MORNING = (8, 12)
"""From which hour of the day to which people ask whether there will be enough tomorrow."""
WEEKDAY, WEEKEND = "weekday", "weekend"
MORNING_DAYS = {WEEKDAY: 7, WEEKEND: 14}
"""How far back mornings of such days are looked at."""
SURE_SHARE = 0.8
"""Of the mornings' hours: from this share on so many are likely, up to its complement unlikely."""
FEWEST_HOURS = 8
"""Of mornings, two of which must be known: below that nothing is said of tomorrow."""
LIKELY, UNCERTAIN, UNLIKELY = "likely", "uncertain", "unlikely"


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

    @property
    def is_complete(self) -> bool:
        """Whether all of them were observed, so that no more were free."""
        return self.is_known and self.free + self.taken >= self.present

    def had(self, gpus: int) -> bool | None:
        """Whether so many were free at once; None: too many are not known."""
        if self.free >= gpus:
            return True
        return False if self.present - self.taken < gpus else None


@dataclass(frozen=True, slots=True)
class ModelNow:
    """GPUs of a model that are there now: held, free, and all of them; `free_on_node` is the most
    that are free on one node, None where no node is known.

    `listed` are those of which the list of idle GPUs says that nobody holds them, `listed_free` the
    free ones among them.
    """

    model: str
    gpus: int
    held: int
    free: int
    free_on_node: int | None = None
    listed: int = 0
    listed_free: int = 0

    @property
    def scarcity(self) -> float:
        """Free ones as a share of what is there: the least is scarcest; unknown comes last."""
        return self.free / self.gpus if self.held or self.free else math.inf

    @property
    def not_listed(self) -> int:
        """Free ones that are not in the list yet."""
        return self.free - self.listed_free

    @property
    def not_free(self) -> int:
        """Those in the list that are not free any more."""
        return self.listed - self.listed_free


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

    @property
    def outlook(self) -> str | None:
        """Whether the next hours of the same kind are LIKELY to have so many, UNLIKELY or UNCERTAIN;
        None: too few of these are known.
        """
        known = self.hours - self.undecided
        if known < FEWEST_HOURS:
            return None
        if self.enough >= SURE_SHARE * known:
            return LIKELY
        return UNLIKELY if self.enough <= (1 - SURE_SHARE) * known else UNCERTAIN


@dataclass(frozen=True, slots=True)
class FreeAtOnce:
    """So many GPUs at once: in how many of the hours looked at they were free, in how many of earlier
    mornings of the same kind of day as tomorrow, and the same by hour of the day.
    """

    gpus: int
    week: Availability
    mornings: Availability
    by_clock: Mapping[str, Availability]

    @property
    def likeliest(self) -> Availability | None:
        """The hour of the day at which so many were free on most days; None: at none."""
        best = max(self.by_clock.values(), key=lambda hours: hours.enough, default=None)
        return None if best is None or not best.enough else best

    @property
    def likeliest_spans(self) -> Sequence[tuple[str, str]]:
        """From when to when so many were free on most days, the longest span first; one may go past
        midnight. Empty: at no hour, or at each alike.
        """
        return _spans(self._likeliest_clocks)

    @property
    def other_spans(self) -> Sequence[tuple[str, str]]:
        """The spans of the other hours, where they are less than half of a day; else empty."""
        others = set(self.by_clock) - self._likeliest_clocks
        return _spans(others) if 2 * len(others) < len(self.by_clock) else ()

    @property
    def _likeliest_clocks(self) -> set[str]:
        best = self.likeliest
        return {
            clock
            for clock, hours in self.by_clock.items()
            if best is not None and hours.enough == best.enough
        }


def _spans(clocks: set[str]) -> list[tuple[str, str]]:
    """From when to when these hours of the day go on, the longest span first."""
    spans: list[tuple[int, str, str]] = []
    for first in sorted(clocks - {_hour_after(clock) for clock in clocks}):
        length, end = 1, _hour_after(first)
        while end in clocks:
            length, end = length + 1, _hour_after(end)
        spans.append((length, first, end))
    return [(first, end) for _, first, end in sorted(spans, key=lambda span: -span[0])]


def _hour_after(clock: str) -> str:
    return f"{(int(clock[:2]) + 1) % 24:02}{clock[2:]}"


@dataclass(frozen=True, slots=True)
class FullestHour:
    """The hour in which most GPU-time was held: its begin in unix ms, and GPU-nanoseconds held and
    observed in it.
    """

    at_ms: int
    held_ns: int
    seen_ns: int


@dataclass(frozen=True, slots=True)
class FreeModel:
    """A model: its GPUs now, the hours looked at, and in how many of them so many were free at
    once: for each of COUNTS that it has, and for as many as were asked for.
    """

    now: ModelNow
    hours: Sequence[FreeHour]
    at_once: Mapping[int, FreeAtOnce]
    wanted: int | None = None
    likely_tomorrow: int | None = None
    """As many as are likely to be free at once tomorrow morning; None: too few mornings are known."""
    tomorrow: str = WEEKDAY
    """WEEKDAY or WEEKEND: by the mornings of which days that is."""

    @property
    def other(self) -> int:
        """GPUs that are neither held nor free now: degraded, failed or not observed."""
        return self.now.gpus - self.now.held - self.now.free

    @property
    def asked(self) -> FreeAtOnce | None:
        """As many as were asked for; None: no number was."""
        return None if self.wanted is None else self.at_once[self.wanted]

    @property
    def usual(self) -> Sequence[FreeAtOnce]:
        """Those of COUNTS that the model has."""
        return [self.at_once[gpus] for gpus in COUNTS if gpus <= self.now.gpus]

    def week_of(self, gpus: int) -> Availability | None:
        """The hours in which so many were free at once; None: not counted, or the model has fewer."""
        at_once = self.at_once.get(gpus)
        return None if at_once is None or gpus > self.now.gpus else at_once.week

    @property
    def least(self) -> int | None:
        """The least that was free in an hour; None: of no hour is it known."""
        return least_free(self.hours)

    @property
    def most(self) -> int | None:
        """The most that is known to have been free in an hour; None: no hour is known."""
        return most_free(self.hours)


def day_kind(day: dt.date) -> str:
    """WEEKDAY or WEEKEND."""
    return WEEKEND if day.weekday() >= SATURDAY else WEEKDAY


def is_morning(at: dt.datetime) -> bool:
    """Whether the hour that begins then is one of a morning."""
    return MORNING[0] <= at.hour < MORNING[1]


def count_free(
    now: ModelNow,
    by_clock: Mapping[str, Sequence[FreeHour]],
    mornings: Sequence[FreeHour],
    tomorrow: str,
    wanted: int | None = None,
) -> FreeModel:
    """Count in how many hours so many GPUs of a model were free at once.

    `mornings`: hours of earlier mornings of days of the kind of `tomorrow`.
    """
    hours = sorted((hour for own in by_clock.values() for hour in own), key=lambda hour: hour.at_ms)
    counts = {gpus for gpus in COUNTS if gpus <= now.gpus} | ({wanted} if wanted else set())
    at_once = {
        gpus: FreeAtOnce(
            gpus,
            summarize(hours, gpus),
            summarize(mornings, gpus),
            {clock: summarize(own, gpus) for clock, own in sorted(by_clock.items())},
        )
        for gpus in sorted(counts)
    }
    likely = count_likely(mornings, now.gpus)
    return FreeModel(now, hours, at_once, wanted, likely, tomorrow)


def count_likely(hours: Sequence[FreeHour], gpus: int) -> int | None:
    """Count how many of so many GPUs are likely to be free at once in the next hours of the same
    kind; None: too few of these are known.
    """
    most = min(gpus, max((hour.free for hour in hours), default=0))
    for likely in range(most, 0, -1):
        if summarize(hours, likely).outlook == LIKELY:
            return likely
    return None if summarize(hours, 1).outlook is None else 0


def least_free(hours: Sequence[FreeHour]) -> int | None:
    """The least that was free in one of these hours; of one that was observed in part more may have
    been. None: of none is it known.
    """
    return min((hour.free for hour in hours if hour.is_complete), default=None)


def most_free(hours: Sequence[FreeHour]) -> int | None:
    """The most that is known to have been free in one of these hours; None: no hour is known."""
    return max((hour.free for hour in hours if hour.is_known), default=None)


def summarize(hours: Sequence[FreeHour], wanted: int) -> Availability:
    """Count the hours in which so many were free at once."""
    had = [hour.had(wanted) for hour in hours]
    return Availability(
        enough=sum(each is True for each in had),
        undecided=sum(each is None for each in had),
        hours=len(hours),
        least=least_free(hours),
        most=most_free(hours),
    )
