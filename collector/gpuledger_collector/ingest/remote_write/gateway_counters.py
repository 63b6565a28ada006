"""Counters of gateways that come by remote write: by which tenant they count, and their readings.

A scrape may come in several requests: parts of one page and instant are put together when they are
stored. Replicas of one Prometheus read the same page, so their own labels do not distinguish
series, and their readings are those of one counter. Of names that repeat each other (deprecated
twins) those of the lowest rank count, while they come.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpuledger_collector.accounting.inference import Asker
from gpuledger_collector.accounting.period import DAY_MS
from gpuledger_collector.accounting.token_counters import TokenSeries
from gpuledger_collector.ingest.batches.attributes import Connection
from gpuledger_collector.ingest.remote_write.inference_counters import (
    SCRAPE_LABELS,
    InferenceSeries,
)
from gpuledger_collector.storage.ledger.token_counters import ReadPage, newest_parts, store_pages
from gpuledger_common.gateways.model import GatewayProfile
from gpuledger_common.gateways.page import GatewaySeries, read_series
from gpuledger_common.profiles.model import EXPORTED
from gpuledger_common.serving_counters import STARTED, exact_count

MAX_SOURCE = 500
MAX_KNOWN = 10_000
"""Pages that are remembered; beyond that they are learned anew."""
TWIN_MS = DAY_MS
"""How long after the last reading of a name its deprecated twins are left out."""


@dataclass(frozen=True, slots=True)
class GatewayCounter:
    """A counter of a gateway's page; `server`: the same series as a server's own counter."""

    page: str
    source: str
    series: GatewaySeries
    has_start: bool
    """Whether its counters begin with the process that the page tells the start of."""
    server: InferenceSeries | None = None


@dataclass(frozen=True, slots=True)
class ProcessStart:
    """The start of the process behind a page."""

    source: str


@dataclass(frozen=True, slots=True)
class GatewaySample:
    """A reading of a counter, or of a process's start."""

    series: GatewayCounter | ProcessStart
    value: float
    at_ms: int

    @property
    def is_count(self) -> bool:
        """Whether it is one of a counter."""
        return isinstance(self.series, GatewayCounter)


def source_of(labels: Mapping[str, str]) -> str:
    """The address of the page that a series was scraped from; empty where no label says it."""
    return (labels.get("instance") or labels.get("pod", ""))[:MAX_SOURCE]


def gateway_counters(
    profiles: Iterable[GatewayProfile],
    name: str,
    labels: Mapping[str, str],
    server: InferenceSeries | None,
) -> list[GatewayCounter]:
    """The counters of gateways that a series is, by each profile that understands it."""
    source = source_of(labels)
    if not source:
        return []
    own = own_labels(labels)
    return [
        GatewayCounter(
            profile.page_name(source), source, series, profile.starts_with_process, server
        )
        for profile in profiles
        if name in profile.families
        and (series := read_series(profile, name, own, SCRAPE_LABELS, source)) is not None
    ]


def own_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """The labels as the page has them: where a target's label clashes with the page's,
    Prometheus puts `exported_` before the page's.
    """
    own = dict(labels)
    for name, value in labels.items():
        if name.startswith(EXPORTED):
            own[name.removeprefix(EXPORTED)] = value
            del own[name]
    return own


def process_start(name: str, labels: Mapping[str, str]) -> ProcessStart | None:
    """The start of a page's process; None for any other series."""
    # With labels of its own it would be the start of another process than the one that answers.
    if name != STARTED or not set(labels) <= SCRAPE_LABELS | {"__name__"}:
        return None
    source = source_of(labels)
    return ProcessStart(source) if source else None


@dataclass(slots=True)
class GatewayCounterStore:
    """Writes readings of gateways' counters; remembers whose pages have a start."""

    _pages: dict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    """Gateways by source and page, of pages whose counters begin with their process."""
    _ranks: dict[tuple[str, str], dict[str, dict[int, int]]] = field(default_factory=dict)
    """The newest reading of each rank, by gateway and page, and counter."""

    def store(self, connection: Connection, samples: Sequence[GatewaySample], now_ms: int) -> None:
        """Commit these samples. Raises psycopg.Error; then none was committed."""
        if not samples:
            return
        if len(self._ranks) > MAX_KNOWN or len(self._pages) > MAX_KNOWN:
            self._ranks.clear()
            self._pages.clear()
        counts = [
            (sample.series, count, sample.at_ms)
            for sample in samples
            if isinstance(sample.series, GatewayCounter)
            and (count := exact_count(sample.value)) is not None
        ]
        for counter, _, at_ms in counts:
            self._learn(connection, counter, at_ms, now_ms)
        values: dict[tuple[str, str, int], dict[TokenSeries, int]] = defaultdict(dict)
        for counter, count, at_ms in counts:
            if self._is_twin(counter, at_ms):
                continue
            key = counter.series.profile, counter.page, at_ms
            series = token_series(counter.series)
            values[key][series] = max(count, values[key].get(series, 0))
        starts = self._starts(samples)
        for key in starts:
            values.setdefault(key, {})
        store_pages(
            connection,
            [
                ReadPage(gateway, page, at_ms, starts.get((gateway, page, at_ms)), read)
                for (gateway, page, at_ms), read in values.items()
            ],
        )

    def _starts(self, samples: Sequence[GatewaySample]) -> dict[tuple[str, str, int], int]:
        """Starts of processes by gateway, page and instant, of pages that are known."""
        return {
            (gateway, page, sample.at_ms): round(sample.value * 1000)
            for sample in samples
            if isinstance(sample.series, ProcessStart) and 0 < sample.value < 1e11
            for page, gateway in self._pages.get(sample.series.source, {}).items()
        }

    def _learn(
        self, connection: Connection, counter: GatewayCounter, at_ms: int, now_ms: int
    ) -> None:
        series, key = counter.series, (counter.series.profile, counter.page)
        if counter.has_start:
            self._pages[counter.source][counter.page] = series.profile
        if key not in self._ranks:
            ranks = self._ranks[key] = {}
            # What another collector, or this one before a restart, has read.
            for name, part, newest_ms in newest_parts(connection, *key, now_ms - TWIN_MS):
                rank = int(part.partition(".")[0])
                of_counter = ranks.setdefault(name, {})
                of_counter[rank] = max(newest_ms, of_counter.get(rank, 0))
        of_counter = self._ranks[key].setdefault(series.kind, {})
        of_counter[series.rank] = max(at_ms, of_counter.get(series.rank, 0))

    def _is_twin(self, counter: GatewayCounter, at_ms: int) -> bool:
        """Whether a better name of the same count came within a day before this reading, or since."""
        ranks = self._ranks[counter.series.profile, counter.page][counter.series.kind]
        return any(
            rank < counter.series.rank and newest_ms >= at_ms - TWIN_MS
            for rank, newest_ms in ranks.items()
        )


def token_series(series: GatewaySeries) -> TokenSeries:
    """A series of a page in the words of the ledger."""
    asker = Asker(series.profile, series.tenant, series.model, series.backend, series.trust)
    return TokenSeries(asker, series.kind, series.part)
