"""The past of a fleet from a Prometheus that scraped its exporters, as if it had been sent by
remote write.

Raw samples are read range by range, interpreted like those of remote write, and metered by the same
meter into the same slots. Reading a range again replaces its slots by the same usage; slots that
remote write filled get the same usage once more. A scrape that is missing is a gap, and a gap is
unobserved.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np

from gpuledger_collector.accounting.period import DAY_MS, Period
from gpuledger_collector.ingest.remote_write.decode import WriteRequest
from gpuledger_collector.ingest.remote_write.metering import ScrapeMeter
from gpuledger_collector.ingest.remote_write.prometheus_api import (
    NoAnswer,
    PrometheusApi,
    RawSeries,
    TooLarge,
    any_of,
)
from gpuledger_collector.ingest.remote_write.scrapes import (
    ACTIVITY_METRICS,
    Scrape,
    ScrapeRows,
    SeriesIds,
)
from gpuledger_collector.ingest.remote_write.series import (
    ACCEPTED,
    BAD,
    BadSeries,
    GpuSeries,
    SeriesCache,
    SeriesReader,
    packaged_reader,
)
from gpuledger_collector.ingest.remote_write.store import SLOT_MS
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.locks import Connection, Lock
from gpuledger_common.health import page_health

METRICS = ("gpu_utilization_ratio", *ACTIVITY_METRICS.values(), "gpu_memory_used_bytes")
"""What the meter reads, and memory, which every exporter shows of every device and MIG instance."""
FIRST_RANGE_MS = 12 * SLOT_MS
LARGEST_RANGE_MS = DAY_MS
_SMALL_SAMPLES = 100_000
"""An answer with fewer samples lets the next range be twice as long."""


def selector(reader: SeriesReader) -> str:
    """A selector of the series under whose names exporters show these metrics, or describe their
    devices.
    """
    names: set[str] = set()
    for profile in reader.profiles:
        plain = {
            name
            for name, families in profile.families.items()
            if any(f.metric.name in METRICS for f in families)
        }
        plain |= {name for join in profile.joins for name in join.families}
        names |= {prefix + name for prefix in ("", *profile.prefixes) for name in plain}
    return any_of(sorted(names))


@dataclass(frozen=True, slots=True)
class Known:
    """What a Prometheus knows of GPUs: series that are understood, and why others are not."""

    series: Sequence[tuple[Mapping[str, str], GpuSeries]]
    refused: Sequence[str]


def read_known(api: PrometheusApi, period: Period, reader: SeriesReader | None = None) -> Known:
    """The series of GPUs that have samples in a period; of its last part where they are too many
    for one answer.

    Raises BadAddress, NoAnswer.
    """
    reader = reader or packaged_reader()
    while True:
        try:
            found = api.series(selector(reader), period)
            break
        except TooLarge as error:
            if period.ms <= SLOT_MS:
                raise NoAnswer(str(error)) from error
            period = Period(period.end_ms - max(period.ms // 4, SLOT_MS), period.end_ms)
    series: list[tuple[Mapping[str, str], GpuSeries]] = []
    refused: dict[str, None] = {}
    for labels in found:
        try:
            entry = reader.interpret(sorted(labels.items()))
        except BadSeries as bad:
            refused[str(bad)] = None
            continue
        if isinstance(entry, GpuSeries):
            series.append((labels, entry))
    return Known(series, list(refused))


@dataclass(slots=True)
class Past:
    """What was read: samples, GPUs, and the first and the last scrape."""

    samples: int = 0
    accelerators: set[str] = field(default_factory=set)
    first_ms: int | None = None
    last_ms: int | None = None


OnRange = Callable[[int, int], None]
"""Takes how many milliseconds of the period are done, and how many there are."""


@dataclass(slots=True)
class History:
    """Reads a period of a Prometheus into the ledger."""

    api: PrometheusApi
    meter: ScrapeMeter
    cache: SeriesCache = field(default_factory=SeriesCache)

    def read(self, database: Database, period: Period, now_ms: int, on_range: OnRange) -> Past:
        """Write the usage of whole slots of a period, range by range.

        Raises BadAddress, NoAnswer, psycopg.Error.

        Stopped anywhere, it is simply run again.
        """
        past = Past()
        whole = Period(
            period.start_ms - period.start_ms % SLOT_MS, period.end_ms - period.end_ms % SLOT_MS
        )
        tail: dict[int, list[tuple[int, Scrape]]] = {}
        with database.hold(Lock.SCRAPES), closing(database.connect()) as connection:
            # The scrapes before the first slot begin its intervals.
            gap_ms = self.meter.limits.gap_ms
            for asked, series in self._ranges(
                Period(whole.start_ms - gap_ms, whole.start_ms), whole
            ):
                scrapes = self._scrapes(connection, series, asked, now_ms, past) if series else {}
                for accelerator_id, entries in tail.items():
                    scrapes[accelerator_id] = entries + scrapes.get(accelerator_id, [])
                self.meter.write_past(connection, scrapes, max(asked.start_ms, whole.start_ms))
                tail = {
                    number: [entry for entry in entries if entry[0] >= asked.end_ms - gap_ms]
                    for number, entries in scrapes.items()
                    if entries[-1][0] >= asked.end_ms - gap_ms
                }
                on_range(max(asked.end_ms - whole.start_ms, 0), whole.ms)
        return past

    def _ranges(self, lead: Period, whole: Period) -> Iterator[tuple[Period, list[RawSeries]]]:
        """The series of successive ranges that one answer holds each: first `lead`, then slots of
        `whole`.
        """
        yield lead, self._ask(lead)
        start_ms, length_ms = whole.start_ms, FIRST_RANGE_MS
        while start_ms < whole.end_ms:
            asked = Period(start_ms, min(start_ms + length_ms, whole.end_ms))
            try:
                series = self.api.samples(selector(self.cache.reader), asked)
            except TooLarge as error:
                if length_ms <= SLOT_MS:
                    raise NoAnswer(
                        f"{error}; even for five minutes of this fleet: send it by remote write"
                    ) from error
                length_ms = max(length_ms // 2 // SLOT_MS * SLOT_MS, SLOT_MS)
                continue
            yield asked, series
            start_ms = asked.end_ms
            if sum(len(entry.values) for entry in series) < _SMALL_SAMPLES:
                length_ms = min(2 * length_ms, LARGEST_RANGE_MS)

    def _ask(self, period: Period) -> list[RawSeries]:
        try:
            return self.api.samples(selector(self.cache.reader), period)
        except TooLarge as error:
            raise NoAnswer(
                f"{error}; even for {period.ms // 1000} seconds: send it by remote write"
            ) from error

    def _scrapes(
        self,
        connection: Connection,
        series: Sequence[RawSeries],
        asked: Period,
        now_ms: int,
        past: Past,
    ) -> dict[int, list[tuple[int, Scrape]]]:
        """The scrapes of a range by accelerator, in order of time; what they name is registered."""
        request = self._request(series, asked)
        scrapes: dict[int, list[tuple[int, Scrape]]] = defaultdict(list)
        if not request.samples:
            return scrapes
        joined = ScrapeRows.join_requests(self.cache, [request])
        rows = joined.select(np.flatnonzero(~joined.mark_divided()))
        batches = rows.by_node(lambda _: page_health({}))
        store = self.meter.store
        ids = SeriesIds(self.cache)
        ids.add(rows, store.ids.register(connection, batches, now_ms))
        for index, at_ms, scrape in zip(
            rows.accelerator.tolist(), rows.at_ms.tolist(), rows.scrapes(ids), strict=True
        ):
            scrapes[ids.accelerators[index].accelerator].append((at_ms, scrape))
        for entries in scrapes.values():
            entries.sort(key=lambda entry: entry[0])
        past.samples += request.samples
        past.accelerators.update(record.uuid for record in rows.accelerators)
        first_ms, last_ms = int(rows.at_ms.min()), int(rows.at_ms.max())
        past.first_ms = first_ms if past.first_ms is None else min(past.first_ms, first_ms)
        past.last_ms = last_ms if past.last_ms is None else max(past.last_ms, last_ms)
        return scrapes

    def _request(self, series: Sequence[RawSeries], asked: Period) -> WriteRequest:
        """The samples as those of a request of remote write."""
        if self.cache.is_full:
            self.cache = SeriesCache(self.cache.reader)
        indexes, values, instants = [], [], []
        for entry in series:
            labels = sorted(entry.metric.items())
            place = self.cache.indexes.get(tuple(labels))
            if place is None:
                place = self.cache.add(tuple(labels), sum(map(len, entry.metric)), labels)
            indexes.append(np.full(len(entry.values), place, dtype="<i8"))
            values.append(np.array([value for _, value in entry.values], dtype="<f8"))
            instants.append(
                np.rint(np.array([at_s for at_s, _ in entry.values]) * 1000).astype("<i8")
            )
        index, at_ms = np.concatenate(indexes), np.concatenate(instants)
        rows = self.cache.table()[index]
        kinds = rows["kind"]
        accepted = (kinds == ACCEPTED) & (at_ms >= asked.start_ms) & (at_ms < asked.end_ms)
        return WriteRequest(
            self.cache,
            index[accepted],
            self.cache.base_values(rows, np.concatenate(values))[accepted],
            at_ms[accepted],
            foreign=0,
            stale=0,
            refusals=int((kinds == BAD).sum()),
            refused=(),
            size=0,
            checksum=0,
        )
