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
- The page does not say when its process began: only the difference of two readings counts.
- Nothing was read for `GAP_MS` before: what happened is unknown, and nothing counts.

A series that was away from the page and comes back with a greater value counts by the difference:
less than the truth where it began anew, never more. Readings may come late, doubled and in any
order: the same set of readings gives the same increases.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from gpuledger_collector.accounting.counters import SAME_START_MS
from gpuledger_collector.accounting.inference import Asker

GAP_MS = 600_000
"""A page is read once a minute or oftener; a longer pause proves nothing."""
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
    for number, reading in enumerate(readings):
        at = bisect_left(instants, reading.at_ms)
        before = readings[number - 1] if number else None
        increase = _increase(pages[at - 1] if at else None, before, reading)
        if increase is not None and increase.units:
            increases.append(increase)
    return increases


def _increase(
    page: PageReading | None, before: SeriesReading | None, reading: SeriesReading
) -> Increase | None:
    """What was counted since the page was read before this reading; None: not known."""
    started_ms = reading.started_ms
    if page is None or reading.at_ms - page.at_ms > GAP_MS:
        # Only the begin of the process can say since when the value counts.
        is_new = started_ms is not None and (page is None or started_ms > page.at_ms)
        if is_new and started_ms is not None and 0 <= reading.at_ms - started_ms <= GAP_MS:
            return Increase(started_ms, reading.at_ms, reading.value)
        return None
    if started_ms is not None and _is_other_life(page.started_ms, started_ms):
        if started_ms < page.at_ms - SAME_START_MS:
            return None
        begin_ms = max(page.at_ms, min(started_ms, reading.at_ms))
        return Increase(begin_ms, reading.at_ms, reading.value)
    if (
        before is None
        or reading.value < before.value
        or _is_other_life(before.started_ms, started_ms)
    ):
        is_same_process = started_ms is not None and page.started_ms is not None
        return Increase(page.at_ms, reading.at_ms, reading.value) if is_same_process else None
    return Increase(page.at_ms, reading.at_ms, reading.value - before.value)


def _is_other_life(before_ms: int | None, after_ms: int | None) -> bool:
    """Whether the gateway's process began anew between two readings of its page."""
    if before_ms is None or after_ms is None:
        return False
    return abs(after_ms - before_ms) > SAME_START_MS
