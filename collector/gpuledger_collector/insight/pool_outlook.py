"""The demand of pools by the hour: what is known of the last days, and what is forecast."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, format_instant
from gpuledger_collector.insight.free_gpus import FreeModel
from gpuledger_collector.insight.series import Series

ENDED_MS = DAY_MS
"""Demand that is not known for so long has ended, as that of an import has: what follows it is not
what comes next.
"""


def ended_ms(series: Series, now_ms: int) -> int | None:
    """Up to when demand is known that has ended; None of one that goes on."""
    until_ms = series.known_until_ms
    return None if until_ms is None or now_ms - until_ms <= ENDED_MS else until_ms


def ended_note(series: Series, now_ms: int) -> str:
    """The sentence about a forecast of demand that has ended; empty of one that goes on."""
    until_ms = ended_ms(series, now_ms)
    if until_ms is None:
        return ""
    return (
        f"nothing is known since {format_instant(until_ms)}: this follows that instant, and is not"
        " what comes next"
    )


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
    capacity: float | None = None
    """GPUs that the pool has now; None: it has no inventory."""

    @property
    def hours(self) -> Iterator[DemandHour]:
        """The past hours and the coming ones."""
        bands = [(value,) for value in self.past] + [(None, *band) for band in self.ahead]
        for index, band in enumerate(bands):
            yield DemandHour(self.name, self.first_ms + index * HOUR_MS, *band)


@dataclass(frozen=True, slots=True)
class Outlook:
    """Demand of the largest pools, by name, and how many others there are.

    `ended`: pools whose demand is not known any more, and up to when it was; nothing comes next of
    them. `stored_ms`: of a forecast that was stored, up to when it knew the demand; None: it is made
    from all that is known. `free`: which GPUs are free, by model, and how many are likely to be
    tomorrow; empty of a forecast that was stored.
    """

    pools: tuple[PoolOutlook, ...] = ()
    left_out: int = 0
    ended: tuple[tuple[str, int], ...] = ()
    stored_ms: int | None = None
    free: tuple[FreeModel, ...] = ()

    def only(self, condition: Callable[[str], bool]) -> Outlook:
        """The outlook of the pools whose name meets a condition."""
        return replace(
            self,
            pools=tuple(pool for pool in self.pools if condition(pool.name)),
            ended=tuple(pool for pool in self.ended if condition(pool[0])),
        )

    @property
    def hours(self) -> Iterator[DemandHour]:
        """Each hour of each pool."""
        for pool in self.pools:
            yield from pool.hours
