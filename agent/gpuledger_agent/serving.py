"""Read counters of what workloads produce: inference servers' /metrics, and files that training
runs write.

Imported only where it is configured. A thread of its own asks each endpoint once per slow interval,
within a deadline and a size limit, so that a hanging server delays nothing else. A counter belongs
to the workload that the setting names, or to the only one that holds an accelerator of this node;
otherwise it is not read, and the log says so.

A file of `progress_dir` is named after its workload, as `4711.prom`, and has lines such as
`gpuledger_run_steps_total 1200`; a run that cannot reach the collector writes it (to a temporary
name, then renames).
"""

from __future__ import annotations

import http.client
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from gpuledger_agent.page_addresses import named_addresses, without_query
from gpuledger_common.bounded_file import read_regular
from gpuledger_common.escapes import escape_text
from gpuledger_common.http_exchange import get_page
from gpuledger_common.readings import Holder, Holders, Workload
from gpuledger_common.serving_counters import CounterReading, parse

log = logging.getLogger("gpuledger_agent")

TIMEOUT_S = 3.0
MAX_PAGE_BYTES = 4 * 1024 * 1024
MAX_SERIES = 500
"""Counters read from one page: an endpoint has several for each of its models."""
MAX_PART_CHARACTERS = 500
"""Labels of a series; longer ones are left out.

With MAX_READINGS this keeps a batch within the collector's limits.
"""
MAX_READINGS = 20_000
"""Readings kept in memory while the spool cannot be written; beyond that the oldest are dropped."""
MAX_ENDPOINTS, MAX_FILES = 64, 256
MAX_FILE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A page, and the id or name of its workload; empty: the only workload of this node."""

    url: str
    workload: str = ""

    @property
    def source(self) -> str:
        """The address without user, password and query."""
        return without_query(self.url)


def endpoints(text: str) -> list[Endpoint]:
    """The endpoints of the setting `serving_endpoints`. Raises ValueError with a message."""
    return [
        Endpoint(url, workload)
        for workload, url in named_addresses(text, "WORKLOAD", "endpoints", MAX_ENDPOINTS)
    ]


def find_workload(name: str, holders: Iterable[Holder]) -> Workload | str:
    """The workload of an endpoint, or a message that says why there is none."""
    workloads = {(holder.workload.kind, holder.workload.id): holder.workload for holder in holders}
    matching = [
        workload
        for workload in workloads.values()
        if not name or name in {workload.id, workload.name}
    ]
    if len(matching) == 1:
        return matching[0]
    named = f"named {name!r} " if name else ""
    if not matching:
        return f"no workload {named}holds an accelerator of this node now"
    return (
        f"{len(matching)} workloads {named}hold accelerators of this node: name one, as"
        " WORKLOAD=URL"
    )


def fetch_page(url: str, clock: Callable[[], float] = time.monotonic) -> str:
    """The text of an endpoint. Raises OSError, HTTPException or ValueError."""
    return get_page(url, timeout_s=TIMEOUT_S, max_bytes=MAX_PAGE_BYTES, clock=clock)


@dataclass
class CounterReader:
    """Reads every endpoint and file in turn; `take` returns the readings since."""

    endpoints: Sequence[Endpoint]
    progress_dir: Path | None
    holders: Callable[[], Holders]
    at_ms: Callable[[], int]
    _read: list[CounterReading] = field(default_factory=list)
    _logged: dict[str, str] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self, interval_s: Callable[[], float]) -> None:
        """Read until the process ends, in a thread of its own."""
        threading.Thread(
            target=self._forever, args=(interval_s,), name="counters", daemon=True
        ).start()

    def _forever(self, interval_s: Callable[[], float]) -> None:
        while True:
            begun = time.monotonic()
            try:
                self.read()
            except Exception as error:  # whatever failed may work in the next round
                self._log("all counters", f"{type(error).__name__}: {error}")
            time.sleep(max(1.0, interval_s() - (time.monotonic() - begun)))

    def read(self) -> None:
        """Read every endpoint and file once."""
        holders = [holder for entries in self.holders().values() for holder in entries]
        for endpoint in self.endpoints:
            self._read_source(
                endpoint.source, endpoint.workload, holders, partial(fetch_page, endpoint.url)
            )
        files = {f"file:{path.name}": path for path in self._files()}
        # Forget problems of files that are gone, so that this map cannot grow with every run.
        self._logged = {
            source: text
            for source, text in self._logged.items()
            if source in files or not source.startswith("file:")
        }
        for source, path in files.items():
            self._read_source(source, path.stem, holders, partial(_file_text, path))

    def _files(self) -> list[Path]:
        if self.progress_dir is None:
            return []
        try:
            return sorted(self.progress_dir.glob("*.prom"))[:MAX_FILES]
        except OSError as error:
            self._log(str(self.progress_dir), f"cannot be read ({error.strerror})")
            return []

    def _read_source(
        self, source: str, name: str, holders: Sequence[Holder], read_text: Callable[[], str]
    ) -> None:
        workload = find_workload(name, holders)
        if isinstance(workload, str):
            self._log(source, workload)
            return
        try:
            counters, started_ms = parse(read_text())
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._log(
                source,
                f"no counters: {getattr(error, 'strerror', None) or error or type(error).__name__}",
            )
            return
        at_ms = self.at_ms()
        rows = [
            CounterReading(
                workload,
                source,
                counter.counter,
                at_ms,
                counter.value,
                counter.part,
                counter.engine,
                started_ms,
            )
            for counter in counters[:MAX_SERIES]
            if len(counter.part) <= MAX_PART_CHARACTERS
        ]
        self._log(source, "" if rows else "no known counter on the page")
        with self._lock:
            # The newest readings are kept: counters are cumulative, so the earlier ones matter
            # least.
            self._read = [*self._read, *rows][-MAX_READINGS:]

    def _log(self, source: str, problem: str) -> None:
        """Log a problem of a source, or (empty) that it is read, when that changes."""
        if self._logged.get(source, "") != problem:
            self._logged[source] = problem
            name = escape_text(source)  # users choose the names of their files
            if problem:
                log.warning("counters of %s: %s", name, problem)
            else:
                log.info("counters of %s are read", name)

    def take(self) -> list[CounterReading]:
        """The readings since the last call."""
        with self._lock:
            taken, self._read = self._read, []
        return taken

    def put_back(self, rows: Sequence[CounterReading]) -> None:
        """Keep readings that could not be spooled for the next batch."""
        with self._lock:
            self._read = [*rows, *self._read][-MAX_READINGS:]


def _file_text(path: Path) -> str:
    """The file's text. Raises OSError, also for a pipe, a device or a file beyond the bound."""
    return read_regular(path, MAX_FILE_BYTES).decode("utf-8", errors="replace")
