"""Read the tokens that gateways counted by tenant: their /metrics, by their profiles.

Imported only where it is configured. A thread of its own asks each gateway once per slow interval,
within a deadline and a size limit. The agent keeps a counter of its own for each tenant, model and
backend: it begins at zero with the agent, and grows by what each series of the page grew since the
page was read before. So labels of persons and keys never leave the node, and a tenant is one
counter however many keys it has.

A series counts from zero where it is new, or fell, on a page that was read before in the same
process of the gateway; where the process began since the address was read, or since the agent
began; and nowhere else. Several processes that answer at one address are each followed by
themselves: by their starts, and without these by the values that they showed.
"""

from __future__ import annotations

import http.client
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gpuledger_agent.page_addresses import named_addresses, without_query
from gpuledger_common.escapes import escape_text
from gpuledger_common.gateways.library import all_gateways, matching, named_gateway
from gpuledger_common.gateways.model import OVERFLOW_TENANT, GatewayProfile
from gpuledger_common.gateways.page import GatewayPage, GatewaySeries, read_gateway_page
from gpuledger_common.http_exchange import get_page
from gpuledger_common.profiles.lines import Lines, read_lines
from gpuledger_common.profiles.read import ProfileError
from gpuledger_common.wire import TokenCount

log = logging.getLogger("gpuledger_agent")

TIMEOUT_S = 3.0
MAX_PAGE_BYTES = 16 * 1024 * 1024
MAX_COUNTERS = 500
"""Counters that are kept of a page, by tenant, model, backend and kind; the tokens of all others
add up under the tenant (other).
"""
MAX_READINGS = 20_000
"""Readings kept in memory while the spool cannot be written; beyond that the oldest are dropped."""
MAX_GATEWAYS = 16
MAX_PROCESSES = 8
"""Processes at one address that are followed at once; of more, the one that was read longest ago is
forgotten.
"""
SAME_START_MS = 1
"""Starts that lie closer together are those of one process: a page shows its own always alike, and
replicas of a gateway may begin in one second.
"""
CLOCK_MS = 2_000
"""By how much the clocks of a gateway and of the agent may differ."""
START_GAP_MS = 600_000
"""A process that began longer before its page is first read has counted for others already."""
MAX_LEVELS = 8
"""Values of a series without the start of its process that are kept, one of each process."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """A page, and its profile: an id, a file, or empty for the one that fits."""

    url: str
    profile: str = ""

    @property
    def source(self) -> str:
        """The address without user, password and query."""
        return without_query(self.url)


def gateways(text: str) -> list[Gateway]:
    """The gateways of the setting `gateway_endpoints`. Raises ValueError with a message."""
    result = []
    for profile, url in named_addresses(text, "PROFILE", "gateways", MAX_GATEWAYS):
        if profile:
            try:
                named_gateway(profile)
            except ProfileError as error:
                raise ValueError(str(error)) from error
        result.append(Gateway(url, profile))
    return result


@dataclass(slots=True)
class _Process:
    """What a process of a gateway showed when its page was last read."""

    started_ms: int | None
    values: dict[GatewaySeries, int] = field(default_factory=dict)
    levels: dict[GatewaySeries, tuple[int, ...]] = field(default_factory=dict)
    """Without a start: values of the processes that may have answered, the last one read last."""


@dataclass(frozen=True, slots=True, order=True)
class _Key:
    """A counter of the agent's own."""

    counter: str
    tenant: str
    trust: str
    model: str
    backend: str


@dataclass(slots=True)
class PageCounters:
    """The agent's own counters of a page; they begin at zero at `began_ms`."""

    began_ms: int
    totals: dict[_Key, int] = field(default_factory=dict)
    processes: list[_Process] = field(default_factory=list)
    """The one that was read last is the last."""
    last_read_ms: int | None = None

    def add(self, page: GatewayPage, at_ms: int) -> list[tuple[_Key, int]]:
        """Add what the series of a page grew; return the counters that changed."""
        process = self._process(page.started_ms)
        changed: dict[_Key, None] = {}
        for series, value in page.counts.items():
            increase = self._increase(process, page.started_ms, series, value, at_ms)
            if increase:
                key = self._key(series)
                self.totals[key] = self.totals.get(key, 0) + increase
                changed[key] = None
        if process is not None:
            self.processes.remove(process)
        levels = {} if page.started_ms is not None else self._levels(process, page.counts)
        self.processes.append(_Process(page.started_ms, dict(page.counts), levels))
        del self.processes[:-MAX_PROCESSES]
        self.last_read_ms = at_ms
        return [(key, self.totals[key]) for key in changed]

    def _process(self, started_ms: int | None) -> _Process | None:
        """What is known of the process of a page; None where it was not read before."""
        for process in self.processes:
            if process.started_ms is None or started_ms is None:
                if process.started_ms is started_ms:
                    return process
            elif abs(process.started_ms - started_ms) <= SAME_START_MS:
                return process
        return None

    def _increase(
        self,
        process: _Process | None,
        started_ms: int | None,
        series: GatewaySeries,
        value: int,
        at_ms: int,
    ) -> int:
        """What a series counted since its page was read before; 0 where that is not known."""
        if process is None:
            return value if started_ms is not None and self._began_since(started_ms, at_ms) else 0
        if started_ms is None:
            # A new or smaller value may be that of another process, and so may a greater one.
            lower = _lower_level(process.levels.get(series, ()), value)
            return 0 if lower is None else value - lower
        before = process.values.get(series)
        return value - before if before is not None and value >= before else value

    def _levels(
        self, process: _Process | None, counts: Mapping[GatewaySeries, int]
    ) -> dict[GatewaySeries, tuple[int, ...]]:
        """The values of the processes that may have answered at an address, after these."""
        levels = {}
        for series, value in counts.items():
            known = process.levels.get(series, ()) if process is not None else ()
            lower = _lower_level(known, value)
            others = tuple(level for level in known if level != lower)
            levels[series] = (*others, value)[-MAX_LEVELS:]
        return levels

    def _began_since(self, started_ms: int, at_ms: int) -> bool:
        """Whether a process began since the address was read last, or since the agent began: what
        it counted before, an agent before this one may have reported.
        """
        known_ms = self.began_ms if self.last_read_ms is None else self.last_read_ms
        return at_ms - started_ms <= START_GAP_MS and started_ms >= known_ms - CLOCK_MS

    def _key(self, series: GatewaySeries) -> _Key:
        key = _Key(series.kind, series.tenant, series.trust, series.model, series.backend)
        if key in self.totals or len(self.totals) < MAX_COUNTERS:
            return key
        other = _Key(series.kind, OVERFLOW_TENANT, series.trust, series.model, series.backend)
        if other in self.totals or len(self.totals) < 2 * MAX_COUNTERS:
            return other
        return _Key(series.kind, OVERFLOW_TENANT, series.trust, "", "")


def _lower_level(levels: Sequence[int], value: int) -> int | None:
    """The greatest of the levels that a counter may have risen from; None: there is none."""
    return max((level for level in levels if level <= value), default=None)


@dataclass
class GatewayReader:
    """Reads every gateway in turn; `take` returns the readings since."""

    gateways: Sequence[Gateway]
    at_ms: Callable[[], int]
    _began_ms: int = field(init=False)
    """The start of the agent's own counters."""
    _pages: dict[str, PageCounters] = field(default_factory=dict)
    _profiles: dict[str, GatewayProfile] = field(default_factory=dict)
    _read: list[TokenCount] = field(default_factory=list)
    _logged: dict[str, str] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._began_ms = self.at_ms()

    def start(self, interval_s: Callable[[], float]) -> None:
        """Read until the process ends, in a thread of its own."""
        threading.Thread(
            target=self._forever, args=(interval_s,), name="gateways", daemon=True
        ).start()

    def _forever(self, interval_s: Callable[[], float]) -> None:
        while True:
            begun = time.monotonic()
            try:
                self.read()
            except Exception as error:  # whatever failed may work in the next round
                self._log("all gateways", f"{type(error).__name__}: {error}")
            time.sleep(max(1.0, interval_s() - (time.monotonic() - begun)))

    def read(self) -> None:
        """Read every gateway once."""
        for gateway in self.gateways:
            self._read_gateway(gateway)

    def _read_gateway(self, gateway: Gateway) -> None:
        try:
            text = get_page(gateway.url, timeout_s=TIMEOUT_S, max_bytes=MAX_PAGE_BYTES)
            lines = read_lines(text)
            profile = self._profile(gateway, lines)
        except (OSError, http.client.HTTPException, ValueError, ProfileError) as error:
            reason = getattr(error, "strerror", None) or error or type(error).__name__
            self._log(gateway.source, f"no tokens: {reason}")
            return
        at_ms = self.at_ms()
        name = profile.page_name(gateway.source)
        counters = self._pages.setdefault(name, PageCounters(self._began_ms))
        changed = counters.add(read_gateway_page(profile, lines, gateway.source), at_ms)
        full = len(counters.totals) >= MAX_COUNTERS
        self._log(
            gateway.source,
            f"over {MAX_COUNTERS} counters: further tenants add up as {OVERFLOW_TENANT}"
            if full
            else "",
        )
        rows = [
            # That the page was read counts too: tenants that are not on it have asked nothing.
            TokenCount(profile.id, name, at_ms, started_ms=self._began_ms),
            *(
                TokenCount(
                    profile.id,
                    name,
                    at_ms,
                    key.counter,
                    value,
                    key.tenant,
                    key.model,
                    key.backend,
                    key.trust == "claim",
                    self._began_ms,
                )
                for key, value in changed
            ),
        ]
        with self._lock:
            self._read = [*self._read, *rows][-MAX_READINGS:]

    def _profile(self, gateway: Gateway, lines: Lines) -> GatewayProfile:
        """The profile of a page. Raises ValueError where none fits, or several do."""
        known = self._profiles.get(gateway.url)
        if known is None:
            if gateway.profile:
                known = named_gateway(gateway.profile)
            else:
                fitting = matching(all_gateways(), lines)
                if len(fitting) != 1:
                    names = " and ".join(profile.id for profile in fitting)
                    raise ValueError(
                        f"the profiles {names} all match this page: name one, as PROFILE=URL"
                        if fitting
                        else "no gateway profile knows a family of this page"
                    )
                known = fitting[0]
            self._profiles[gateway.url] = known
        return known

    def _log(self, source: str, problem: str) -> None:
        """Log a problem of a gateway, or (empty) that it is read, when that changes."""
        if self._logged.get(source) != problem:
            self._logged[source] = problem
            name = escape_text(source)
            if problem:
                log.warning("gateway %s: %s", name, escape_text(str(problem)))
            else:
                log.info("gateway %s is read", name)

    def take(self) -> list[TokenCount]:
        """The readings since the last call."""
        with self._lock:
            taken, self._read = self._read, []
        return taken

    def put_back(self, rows: Sequence[TokenCount]) -> None:
        """Keep readings that could not be spooled for the next batch."""
        with self._lock:
            self._read = [*rows, *self._read][-MAX_READINGS:]
