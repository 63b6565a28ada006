"""Where pools stand: region and availability zone, dated by days of the bill."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from gpuledger_collector.accounting.period import UTC_DAYS, Calendar, Period


@dataclass(frozen=True, slots=True)
class PoolLocation:
    """The region of a pool; an empty pool is every pool that no other declaration names on a day.

    Dates are days of the bill; `to_on` is not included.
    """

    pool: str
    region: str
    region_name: str = ""
    availability_zone: str = ""
    from_on: dt.date | None = None
    to_on: dt.date | None = None


REGION = "region"
"""The dimension of reports that follows from pool and day."""


class Locations:
    """The location of each pool at every instant."""

    def __init__(
        self, declared: Iterable[PoolLocation] = (), calendar: Calendar = UTC_DAYS
    ) -> None:
        self._of_pool: dict[str, list[tuple[int | None, int | None, PoolLocation]]] = defaultdict(
            list
        )
        for location in declared:
            start_ms, end_ms = (
                None if day is None else calendar.start_of(day)
                for day in (location.from_on, location.to_on)
            )
            self._of_pool[location.pool].append((start_ms, end_ms, location))

    def constant(self, period: Period) -> list[Period]:
        """The parts of a period in which no pool moves."""
        moves = {
            at_ms
            for places in self._of_pool.values()
            for start_ms, end_ms, _ in places
            for at_ms in (start_ms, end_ms)
            if at_ms is not None and period.start_ms < at_ms < period.end_ms
        }
        bounds = [period.start_ms, *sorted(moves), period.end_ms]
        return [Period(start_ms, end_ms) for start_ms, end_ms in pairwise(bounds)]

    def location_at(self, pool: str, at_ms: int) -> PoolLocation | None:
        """Where a pool stands at an instant; None: not declared."""
        for name in (pool, ""):
            for start_ms, end_ms, location in self._of_pool.get(name, ()):
                if (start_ms is None or start_ms <= at_ms) and (end_ms is None or at_ms < end_ms):
                    return location
        return None

    def of_purchase(self, pool: str, region: str, at_ms: int) -> PoolLocation | None:
        """Where something stands that was bought for a pool and a region, both may be empty; None:
        not declared.
        """
        location = self.location_at(pool, at_ms) if pool else None
        if not region or (location is not None and location.region == region):
            return location
        every = [location for places in self._of_pool.values() for _, _, location in places]
        names = (location.region_name for location in every if location.region == region)
        return PoolLocation(pool, region, next(filter(None, names), ""))

    def region(self, pool: str, at_ms: int) -> str:
        """The region of a pool at an instant; empty: not declared."""
        # Rating asks this for every interval of every accelerator, and most ledgers have no
        # locations.
        location = self.location_at(pool, at_ms) if self._of_pool else None
        return "" if location is None else location.region


NOWHERE = Locations()
