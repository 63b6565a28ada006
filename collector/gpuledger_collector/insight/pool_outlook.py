"""The demand of pools by the hour: what is known of the last days, and what is forecast."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpuledger_collector.accounting.period import HOUR_MS


@dataclass(frozen=True, slots=True)
class DemandHour:
    """An hour of a pool in GPUs: its demand where it is past and known, else low, likely and high
    of what is forecast.
    """

    pool: str
    at_ms: int
    demand: float | None
    low: float | None = None
    likely: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class PoolOutlook:
    """Demand of a pool in GPUs: past hours (None: unknown), and low, middle and high of the coming
    ones.
    """

    name: str
    past: tuple[float | None, ...]
    ahead: tuple[tuple[float, float, float], ...]
    note: str
    first_ms: int
    """Start of the first past hour."""

    @property
    def hours(self) -> Iterator[DemandHour]:
        """The past hours and the coming ones."""
        bands = [(value,) for value in self.past] + [(None, *band) for band in self.ahead]
        for index, band in enumerate(bands):
            yield DemandHour(self.name, self.first_ms + index * HOUR_MS, *band)


@dataclass(frozen=True, slots=True)
class Outlook:
    """Demand of the largest pools, by name, and how many others there are."""

    pools: tuple[PoolOutlook, ...] = ()
    left_out: int = 0

    @property
    def hours(self) -> Iterator[DemandHour]:
        """Each hour of each pool."""
        for pool in self.pools:
            yield from pool.hours
