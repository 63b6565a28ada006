"""Reads what workloads produced: counters of inference servers' /metrics, and files that training runs write.

Loaded only where it is configured. A thread of its own asks each endpoint once per slow interval, within a deadline
and a size, so that a server that hangs delays nobody. A counter belongs to a workload: the one that the setting names,
or the only one that holds an accelerator of this node; where neither is clear, nothing is read and the log says so.

A file of `progress_dir` is named after its workload, as `4711.prom`, and has lines such as
`gpuledger_run_steps_total 1200`; a run that cannot reach the collector writes it (to a temporary name, then renames).
"""

from __future__ import annotations

import http.client
import logging
import os
import ssl
import stat
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from gpuledger_agent.owners.http_bounded import read_body
from gpuledger_common.escapes import escape_text
from gpuledger_common.readings import Holder, Workload
from gpuledger_common.serving_counters import Counted, parse

log = logging.getLogger("gpuledger_agent")

TIMEOUT_S = 3.0
MOST_PAGE_BYTES = 4 * 1024 * 1024
MOST_SERIES = 500
"""Counters taken of one page: an endpoint has some for each of its models."""
MOST_PART_LETTERS = 500
"""Of the labels of a series; one with more is left out. With MOST_KEPT, a batch stays within what a collector takes."""
MOST_KEPT = 20_000
"""Readings kept in memory while the spool cannot be written; of more, the oldest go."""
MOST_ENDPOINTS, MOST_FILES = 64, 256
MOST_FILE_BYTES = 64 * 1024

Holders = Callable[[], Mapping[str, Sequence[Holder]]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A page, and the workload that it belongs to: its id or its name; empty: the only one of this node."""

    url: str
    workload: str = ""

    @property
    def source(self) -> str:
        """The address as it may be told: without user, password and query."""
        parts = urlsplit(self.url)
        port = "" if parts.port is None else f":{parts.port}"
        return f"{parts.scheme}://{parts.hostname}{port}{parts.path}"


def endpoints(text: str) -> list[Endpoint]:
    """The endpoints of the setting `serving_endpoints`. Raises ValueError with a sentence."""
    found = []
    for entry in (part.strip() for part in text.split(",")):
        if not entry:
            continue
        before, mark, after = entry.partition("=")
        workload, url = (before.strip(), after.strip()) if mark and "://" not in before else ("", entry)
        try:
            parts = urlsplit(url)
            good = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
        except ValueError:
            good = False
        if not good:
            raise ValueError(f"{entry.rpartition('@')[2]!r} is not [WORKLOAD=]http://HOST[:PORT][/PATH]")
        if parts.username or parts.password:
            raise ValueError(f"{entry.rpartition('@')[2]!r} must not hold a user name or a password")
        found.append(Endpoint(url if parts.path not in {"", "/"} else f"{url.rstrip('/')}/metrics", workload))
    if len(found) > MOST_ENDPOINTS:
        raise ValueError(f"has {len(found)} endpoints, {MOST_ENDPOINTS} are allowed")
    return found


def whose(named: str, holders: Iterable[Holder]) -> Workload | str:
    """The workload of an endpoint, or a sentence that says why there is none."""
    there = {(one.workload.kind, one.workload.id): one.workload for one in holders}
    if named:
        there = {key: one for key, one in there.items() if named in {one.id, one.name}}
    if len(there) == 1:
        return next(iter(there.values()))
    which = f"of the name {named!r} " if named else ""
    if not there:
        return f"no workload {which}holds an accelerator of this node now"
    return f"{len(there)} workloads {which}hold accelerators of this node: name one, as WORKLOAD=URL"


def page(url: str, clock: Callable[[], float] = time.monotonic) -> str:
    """The text of an endpoint. Raises OSError, HTTPException or ValueError; never follows to another address."""
    parts = urlsplit(url)
    host, until = parts.hostname or "", clock() + TIMEOUT_S
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        connection = http.client.HTTPSConnection(
            host, parts.port, timeout=TIMEOUT_S, context=ssl.create_default_context()
        )
    else:
        connection = http.client.HTTPConnection(host, parts.port, timeout=TIMEOUT_S)
    try:
        path = f"{parts.path}?{parts.query}" if parts.query else parts.path
        connection.request("GET", path or "/metrics", headers={"Accept": "text/plain;version=0.0.4"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise ValueError(f"it answers {answer.status}")
        body = read_body(answer, MOST_PAGE_BYTES, until, clock)
    finally:
        connection.close()
    if len(body) > MOST_PAGE_BYTES:
        raise ValueError(f"its page is over {MOST_PAGE_BYTES} bytes")
    return body.decode("utf-8", errors="replace")


@dataclass
class CounterReader:
    """Reads every endpoint and file in turn; `take` gives what was read since."""

    endpoints: Sequence[Endpoint]
    progress_dir: Path | None
    holders: Holders
    at_ms: Callable[[], int]
    _read: list[Counted] = field(default_factory=list)
    _said: dict[str, str] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self, interval_s: Callable[[], float]) -> None:
        """Read for as long as the process lives, in a thread of its own."""
        threading.Thread(target=self._forever, args=(interval_s,), name="counters", daemon=True).start()

    def _forever(self, interval_s: Callable[[], float]) -> None:
        while True:
            begun = time.monotonic()
            try:
                self.read()
            except Exception as error:  # whatever it is, the next round is another chance
                self._say("all counters", f"{type(error).__name__}: {error}")
            time.sleep(max(1.0, interval_s() - (time.monotonic() - begun)))

    def read(self) -> None:
        """One round over everything."""
        holders = [one for of in self.holders().values() for one in of]
        for endpoint in self.endpoints:
            self._one(endpoint.source, endpoint.workload, holders, lambda url=endpoint.url: page(url))  # type: ignore[misc]
        files = self._files()
        here = {f"file:{path.name}" for path in files}
        self._said = {name: text for name, text in self._said.items() if name in here or not name.startswith("file:")}
        for path in files:
            self._one(f"file:{path.name}", path.stem, holders, lambda path=path: _text(path))  # type: ignore[misc]

    def _files(self) -> list[Path]:
        if self.progress_dir is None:
            return []
        try:
            return sorted(self.progress_dir.glob("*.prom"))[:MOST_FILES]
        except OSError as error:
            self._say(str(self.progress_dir), f"cannot be read ({error.strerror})")
            return []

    def _one(self, source: str, named: str, holders: Sequence[Holder], text: Callable[[], str]) -> None:
        workload = whose(named, holders)
        if isinstance(workload, str):
            self._say(source, workload)
            return
        try:
            counters, started_ms = parse(text())
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._say(source, f"gives no counters: {getattr(error, 'strerror', None) or error or type(error).__name__}")
            return
        at_ms = self.at_ms()
        rows = [
            Counted(workload, source, one.counter, at_ms, one.value, one.part, one.engine, started_ms)
            for one in counters[:MOST_SERIES]
            if len(one.part) <= MOST_PART_LETTERS
        ]
        self._say(source, "" if rows else "has no counter that we know")
        with self._lock:
            self._read = [*self._read, *rows][-MOST_KEPT:]

    def _say(self, source: str, sentence: str) -> None:
        if self._said.get(source, "") != sentence:
            self._said[source] = sentence
            name = escape_text(source)  # a file's is its user's
            if sentence:
                log.warning("counters of %s: %s", name, sentence)
            else:
                log.info("counters of %s are read", name)

    def take(self) -> list[Counted]:
        """What was read since the last time."""
        with self._lock:
            taken, self._read = self._read, []
        return taken

    def put_back(self, rows: Sequence[Counted]) -> None:
        """Keep readings that could not be spooled for the next batch, before those that were made meanwhile."""
        with self._lock:
            self._read = [*rows, *self._read][-MOST_KEPT:]


def _at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def _text(path: Path) -> str:
    """The file's text. Raises OSError, and ValueError for a pipe or a device, which would hold up all that is read."""
    with open(path, encoding="utf-8", errors="replace", opener=_at_once) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("is no file")
        return file.read(MOST_FILE_BYTES)
