"""Counters of gateways that come by remote write: by which tenant they count, and their readings.

A scrape may come in several requests: parts of one page and instant are put together when they are
stored. Replicas of one Prometheus read the same page, so their own labels do not distinguish
series, and their readings are those of one counter. Of names that repeat each other (deprecated
twins) the best counts, while it comes. On a page that has better names for others, another one waits
for its second reading, since the better one may come in the next request.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from gpuledger_collector.accounting.inference import Asker
from gpuledger_collector.accounting.period import DAY_MS
from gpuledger_collector.accounting.token_counters import TokenSeries
from gpuledger_collector.ingest.batches.attributes import Connection
from gpuledger_collector.ingest.remote_write.inference_counters import (
    SCRAPE_LABELS,
    InferenceSeries,
)
from gpuledger_collector.storage.ledger.token_counters import (
    ReadPage,
    known_pages,
    newest_parts,
    store_pages,
)
from gpuledger_common.escapes import escape_text
from gpuledger_common.gateways.model import GatewayProfile, Kind
from gpuledger_common.gateways.page import GatewaySeries, read_series
from gpuledger_common.gateways.twins import NamedCount, TwinIndex
from gpuledger_common.profiles.model import EXPORTED
from gpuledger_common.serving_counters import STARTED, exact_count

log = logging.getLogger(__name__)

MAX_SOURCE = 500
MAX_KNOWN = 10_000
"""Pages that are remembered; beyond that they are learned anew."""
MAX_TWIN_KEYS = 400_000
"""Keys by which twins of all pages are found, some 150 MiB; beyond that they are learned anew."""
TWIN_MS = DAY_MS
"""How long after the last reading of a name its deprecated twins are left out."""
LOOK_UP_MS = 60_000
"""How long after a source was looked up, whose page was not known, it is looked up again."""


@dataclass(frozen=True, slots=True)
class GatewayCounter:
    """A counter of a gateway's page; `server`: the same series as a server's own counter."""

    page: str
    source: str
    series: GatewaySeries
    has_start: bool
    """Whether its counters begin with the process that the page tells the start of."""
    has_twins: bool = False
    """Whether the profile knows several names of its kind."""
    tenant_label: str = ""
    """The label that named the tenant, where a target's label may have that name."""
    server: InferenceSeries | None = None


@dataclass(frozen=True, slots=True)
class ProcessStart:
    """The start of the process behind a page.

    With further labels it may be that of another process; `labels`: their names. They may be labels
    of the target, which Prometheus puts on every series of it.
    """

    source: str
    labels: frozenset[str] = frozenset()
    profiles: tuple[GatewayProfile, ...] = field(default=(), compare=False, repr=False)
    """Those by which the page may be read."""

    @property
    def pages(self) -> list[tuple[str, str]]:
        """Gateways and names of the pages whose counters may begin with the process."""
        return [
            (profile.id, profile.page_name(self.source))
            for profile in self.profiles
            if profile.starts_with_process
        ]


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
            profile.page_name(source),
            source,
            series,
            profile.starts_with_process,
            profile.has_twins(series.kind),
            _target_label(profile, labels, own),
            server,
        )
        for profile in profiles
        if name in profile.families
        and (series := read_series(profile, name, own, SCRAPE_LABELS, source)) is not None
    ]


def _target_label(
    profile: GatewayProfile, labels: Mapping[str, str], own: Mapping[str, str]
) -> str:
    """The label that names the tenant of a series, where it may be the target's own: Prometheus
    renames the page's label only where the page has one.
    """
    label = next((tenant.label for tenant in profile.tenants if own.get(tenant.label)), "")
    return "" if EXPORTED + label in labels else label


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


def process_start(
    profiles: tuple[GatewayProfile, ...], name: str, labels: Mapping[str, str]
) -> ProcessStart | None:
    """The start of a page's process; None for any other series."""
    source = source_of(labels) if name == STARTED else ""
    return ProcessStart(source, frozenset(labels) - SCRAPE_LABELS, profiles) if source else None


_Count = tuple[GatewayCounter, int, int]
"""Series, value, instant."""
_PageKey = tuple[str, str]
"""Gateway and page."""


@dataclass(slots=True)
class GatewayCounterStore:
    """Writes readings of gateways' counters; remembers whose pages have a start."""

    _pages: dict[str, dict[str, str]] = field(default_factory=dict)
    """Gateways by source and page, of pages whose counters begin with their process."""
    _looked_up: dict[str, int] = field(default_factory=dict)
    """When a source of which no page is known was looked up."""
    _twins: dict[_PageKey, TwinIndex] = field(default_factory=dict)
    _waiting: dict[_PageKey, dict[TokenSeries, tuple[int, int]]] = field(default_factory=dict)
    """Instant and value of the first reading of series whose names may be twins."""
    _target_labels: dict[str, frozenset[str]] = field(default_factory=dict)
    """Labels that Prometheus puts on every series of a source."""
    _warned: set[tuple[str, str]] = field(default_factory=set)

    def store(self, connection: Connection, samples: Sequence[GatewaySample], now_ms: int) -> None:
        """Commit these samples. Raises psycopg.Error; then none was committed."""
        if not samples:
            return
        self._bound_memory()
        self._note_target_labels(
            sample.series for sample in samples if isinstance(sample.series, ProcessStart)
        )
        counts = [
            (sample.series, count, sample.at_ms)
            for sample in samples
            if isinstance(sample.series, GatewayCounter)
            and (count := exact_count(sample.value)) is not None
            and not self._names_target(sample.series)
        ]
        values = self._values(connection, counts, now_ms)
        starts = self._starts(connection, samples, now_ms)
        for key in starts:
            values.setdefault(key, {})
        store_pages(
            connection,
            [
                ReadPage(gateway, page, at_ms, starts.get((gateway, page, at_ms)), read)
                for (gateway, page, at_ms), read in values.items()
            ],
        )

    def _values(
        self, connection: Connection, counts: Sequence[_Count], now_ms: int
    ) -> dict[tuple[str, str, int], dict[TokenSeries, int]]:
        """Values by gateway, page and instant, without those of twins."""
        for counter, _, _ in counts:
            if counter.has_start:
                pages = self._pages.setdefault(counter.source, {})
                pages[counter.page] = counter.series.profile
        chosen = [
            *(count for count in counts if not count[0].has_twins),
            *self._without_twins(connection, counts, now_ms),
        ]
        values: dict[tuple[str, str, int], dict[TokenSeries, int]] = defaultdict(dict)
        for counter, _, at_ms in counts:
            values[counter.series.profile, counter.page, at_ms] = {}
        for counter, count, at_ms in chosen:
            of_page = values[counter.series.profile, counter.page, at_ms]
            series = token_series(counter.series)
            of_page[series] = max(count, of_page.get(series, 0))
        return values

    def _bound_memory(self) -> None:
        # A copy, because other writers add pages meanwhile.
        indexes = list(self._twins.values())
        if len(indexes) > MAX_KNOWN or sum(map(len, indexes)) > MAX_TWIN_KEYS:
            self._twins.clear()
            self._waiting.clear()
        for known in (self._pages, self._looked_up, self._target_labels):
            if len(known) > MAX_KNOWN:
                known.clear()

    def _note_target_labels(self, starts: Iterable[ProcessStart]) -> None:
        """Note which labels the newest starts of processes have, beside those of every scrape.

        A start without any is that of the page itself: labels of others beside it are the page's.
        """
        for start in sorted(starts, key=lambda start: not start.labels):
            if start.labels:
                self._target_labels[start.source] = start.labels
            else:
                self._target_labels.pop(start.source, None)

    def _names_target(self, counter: GatewayCounter) -> bool:
        """Whether the tenant of a series is the label of its scrape target: nobody's word."""
        label = counter.tenant_label
        if not label or label not in self._target_labels.get(counter.source, ()):
            return False
        self._warn_once(
            counter.source,
            label,
            "tokens without a tenant are refused: the scrape configuration puts the label"
            f" {label} on every series; give that label another name",
        )
        return True

    def _warn_of_labelled_start(self, source: str) -> None:
        """Say that the start of a gateway's process is not known for its labels."""
        labels = self._target_labels.get(source)
        if labels and source in self._pages:
            names = ", ".join(sorted(labels))
            self._warn_once(
                source,
                STARTED,
                f"the start of its process is not read, because {STARTED} has the labels"
                f" {escape_text(names)}: what tenants count first, and after a restart, is missing;"
                " drop labels of the scrape configuration and external labels by a labeldrop in"
                " write_relabel_configs",
            )

    def _warn_once(self, source: str, matter: str, message: str) -> None:
        key = source, matter
        if key not in self._warned and len(self._warned) < MAX_KNOWN:
            self._warned.add(key)
            log.warning("gateway page %s: %s", escape_text(source), message)

    def _starts(
        self, connection: Connection, samples: Sequence[GatewaySample], now_ms: int
    ) -> dict[tuple[str, str, int], int]:
        """Starts of processes by gateway, page and instant, of pages that are known."""
        starts = [
            (sample.series, round(sample.value * 1000), sample.at_ms)
            for sample in samples
            if isinstance(sample.series, ProcessStart)
            and not sample.series.labels
            and 0 < sample.value < 1e11
        ]
        for sample in samples:
            if isinstance(sample.series, ProcessStart):
                self._warn_of_labelled_start(sample.series.source)
        self._look_up(connection, [start for start, _, _ in starts], now_ms)
        return {
            (gateway, page, at_ms): started_ms
            for start, started_ms, at_ms in starts
            for page, gateway in self._pages.get(start.source, {}).items()
        }

    def _look_up(self, connection: Connection, starts: Iterable[ProcessStart], now_ms: int) -> None:
        """Learn the pages of sources whose counters another collector receives."""
        due = {
            start.source: start
            for start in starts
            if start.source not in self._pages
            and now_ms - self._looked_up.get(start.source, 0) >= LOOK_UP_MS
        }
        self._looked_up.update(dict.fromkeys(due, now_ms))
        sources = {page: start.source for start in due.values() for page in start.pages}
        for gateway, page in known_pages(connection, sources) if sources else ():
            self._pages.setdefault(sources[gateway, page], {})[page] = gateway

    def _without_twins(
        self, connection: Connection, counts: Sequence[_Count], now_ms: int
    ) -> Iterator[_Count]:
        """Counts of pages with several names of a kind, without those that repeat, or may repeat,
        what a better name counts.
        """
        by_page: dict[_PageKey, list[_Count]] = defaultdict(list)
        for count in counts:
            if count[0].has_twins:
                by_page[count[0].series.profile, count[0].page].append(count)
        for key, of_page in by_page.items():
            index = self._twins.setdefault(key, TwinIndex())
            for counter, _, at_ms in of_page:
                index.add(counter.series.count, at_ms)
            lesser = []
            for count in of_page:
                if count[0].series.rank == 0:
                    yield count
                elif self._is_twin(index, count):
                    # Had it waited on, it would count later what the better name counts.
                    self._forget_waiting(key, count)
                else:
                    lesser.append(count)
            if lesser:
                yield from self._proven(connection, key, index, lesser, now_ms)

    def _proven(
        self,
        connection: Connection,
        key: _PageKey,
        index: TwinIndex,
        lesser: Sequence[_Count],
        now_ms: int,
    ) -> Iterator[_Count]:
        """Counts of lesser names, with what waited for them: without those that repeat what another
        collector received, and those that may do so.
        """
        waiting = self._waiting.setdefault(key, {})
        stored = newest_parts(connection, *key, now_ms - TWIN_MS)
        for known, newest_ms in stored:
            index.add(_count_of(known), newest_ms)
        is_known = {known for known, _ in stored}
        for count in lesser:
            counter, value, at_ms = count
            series = token_series(counter.series)
            if self._is_twin(index, count):
                waiting.pop(series, None)
                continue
            if series in is_known:
                waiting.pop(series, None)
            elif index.has_better(counter.series.count):
                first_ms, first = waiting.setdefault(series, (at_ms, value))
                if at_ms <= first_ms:
                    continue
                yield counter, first, first_ms
            yield count

    def _forget_waiting(self, key: _PageKey, count: _Count) -> None:
        if waiting := self._waiting.get(key):
            waiting.pop(token_series(count[0].series), None)

    @staticmethod
    def _is_twin(index: TwinIndex, count: _Count) -> bool:
        """Whether a better name of the same count came within a day before this reading, or since."""
        counter, _, at_ms = count
        return index.is_twin(counter.series.count, at_ms - TWIN_MS)


def token_series(series: GatewaySeries) -> TokenSeries:
    """A series of a page in the words of the ledger."""
    asker = Asker(series.profile, series.tenant, series.model, series.backend, series.trust)
    return TokenSeries(asker, series.kind, series.part)


def _count_of(series: TokenSeries) -> NamedCount:
    """What a stored series counts; an agent has chosen among names itself."""
    rank, asker = series.part.partition(".")[0], series.asker
    kind = cast(Kind, series.counter)
    return NamedCount(kind, int(rank or 0), asker.tenant, asker.model, asker.backend)
