"""What the token counters of a gateway's page counted between readings of it.

A page has a series for each tenant and model, and series come and go: a tenant that asks for the
first time has a new one, which began at zero, and one that is idle for long is dropped and comes
back from zero, both without a restart of the gateway. So a reading is judged by the reading of the
page before it:

- The page was read before, in the same process of the gateway, and the series was not on it, or its
  value fell: the series began at zero since then, and all of its value counts.
- The process began after the page was read: all of the value counts since then. What was counted
  between the last reading and the end of the process before is not known, and is left out.
- The process began before the page was read, and is another than the one that answered then: several
  processes answer at one address, and nothing of them is compared.
- The page does not say when its process began: only a rise counts, above the greatest lower value
  that was read shortly before: processes that answer in turn at one address are each compared with
  themselves, once each of them was read.
- A value fell by a reading that came within seconds of the greater one: two readers of one page
  have clocks and delays of their own. Nothing began anew, and the greater value holds.
- Nothing was read for `GAP_MS` before: what happened is unknown, and nothing counts.

A series that was away from the page and comes back with a greater value counts by the difference:
less than the truth where it began anew, never more. Readings may come late, doubled and in any
order: the same set of readings gives the same increases.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from gpuledger_collector.accounting.inference import Asker

GAP_MS = 600_000
"""A page is read once a minute or oftener; a longer pause proves nothing."""
SAME_START_MS = 1
"""Starts that lie closer together are those of one process: a page shows its own always alike, and
replicas of a gateway may begin in one second.
"""
CLOCK_MS = 2_000
"""By how much the clocks of a gateway and of its reader may differ."""
INVERTED_MS = 5_000
"""Readings of a series that lie closer together may be in the wrong order."""
LOOK_BACK_MS = GAP_MS
"""How long before the reading before it a series without a process's start is looked at."""
LATEST_DAYS, KEEP_DAYS = 7, 9
"""Days after which a late page is refused, since the readings around it may have expired, and days
for which readings are kept.
"""


@dataclass(frozen=True, slots=True, order=True)
class TokenSeries:
    """A series of a page; `part`: labels that tell it from others of the same asker.

    `counter` is one of accounting/inference.py's COUNTERS.
    """

    asker: Asker
    counter: str
    part: str = ""


@dataclass(frozen=True, slots=True)
class PageReading:
    """That a page was read at an instant; `started_ms`: begin of its process, None where the page
    does not say.
    """

    at_ms: int
    started_ms: int | None = None


@dataclass(frozen=True, slots=True, order=True)
class SeriesReading:
    """The value of a series at an instant; `started_ms` as its page says."""

    at_ms: int
    value: int
    started_ms: int | None = None


@dataclass(frozen=True, slots=True, order=True)
class Increase:
    """Units counted from one instant to another."""

    start_ms: int
    end_ms: int
    units: int


def list_increases(
    pages: Sequence[PageReading], readings: Sequence[SeriesReading]
) -> list[Increase]:
    """What a series counted up to each of its readings; both are in the order of time."""
    instants = [page.at_ms for page in pages]
    increases = []
    first = 0
    for number, reading in enumerate(readings):
        at = bisect_left(instants, reading.at_ms)
        if number:
            from_ms = readings[number - 1].at_ms - LOOK_BACK_MS
            while readings[first].at_ms < from_ms:
                first += 1
        increase = _increase(pages[at - 1] if at else None, readings[first:number], reading)
        if increase is not None and increase.units:
            increases.append(increase)
    return increases


def _increase(
    page: PageReading | None, before: Sequence[SeriesReading], reading: SeriesReading
) -> Increase | None:
    """What was counted since the page was read before this reading; None: not known.

    `before`: readings of the series up to this one, for `LOOK_BACK_MS` before the last of them.
    """
    started_ms = reading.started_ms
    if page is None or reading.at_ms - page.at_ms > GAP_MS:
        # Only the begin of the process can say since when the value counts.
        is_new = started_ms is not None and (page is None or started_ms > page.at_ms)
        if is_new and started_ms is not None and 0 <= reading.at_ms - started_ms <= GAP_MS:
            return Increase(started_ms, reading.at_ms, reading.value)
        return None
    near = _read_shortly_before(before, started_ms)
    if started_ms is not None and _is_other_life(page.started_ms, started_ms):
        if near or started_ms < page.at_ms - CLOCK_MS:
            return None
        begin_ms = max(page.at_ms, min(started_ms, reading.at_ms))
        return Increase(begin_ms, reading.at_ms, reading.value)
    is_same_process = started_ms is not None and page.started_ms is not None
    if not before or _is_other_life(before[-1].started_ms, started_ms):
        return Increase(page.at_ms, reading.at_ms, reading.value) if is_same_process else None
    if started_ms is None and page.started_ms is None:
        units = _rise(before, reading)
    else:
        greatest = max(each.value for each in near)
        if reading.value >= greatest:
            units = reading.value - greatest
        else:
            is_inverted = any(
                each.value > reading.value and reading.at_ms - each.at_ms <= INVERTED_MS
                for each in near
            )
            units = reading.value if is_same_process and not is_inverted else 0
    return Increase(page.at_ms, reading.at_ms, units)


def _read_shortly_before(
    before: Sequence[SeriesReading], started_ms: int | None
) -> list[SeriesReading]:
    """Readings of one process: the last one, and those seconds before it."""
    return [
        reading
        for reading in before
        if reading.at_ms >= before[-1].at_ms - INVERTED_MS
        and not _is_other_life(reading.started_ms, started_ms)
    ]


def _rise(before: Sequence[SeriesReading], reading: SeriesReading) -> int:
    """How far a value without a process's start rose above the greatest lower one; 0 if it fell."""
    if reading.value < before[-1].value:
        return 0
    return reading.value - max(each.value for each in before if each.value <= reading.value)


def _is_other_life(before_ms: int | None, after_ms: int | None) -> bool:
    """Whether the gateway's process began anew between two readings of its page."""
    if before_ms is None or after_ms is None:
        return False
    return abs(after_ms - before_ms) > SAME_START_MS
