"""Push: sends what is spooled until the collector says that it has committed it.

The reaction to every answer is a table (`reaction`), free of I/O: success acknowledges; a refusal of records
acknowledges the rest; what can pass is retried for ever with full jitter; what can never pass is buried with its
reason. Only a collector's own answer ends a batch, in whichever way: a proxy that is set up wrongly for an hour says
404 or 301 to batches that are sound. Nothing is deleted from the spool before a collector says COMMIT. After an outage
the newest and the oldest batches are sent in turn, so that dashboards recover at once while the backlog drains.
"""

from __future__ import annotations

import contextlib
import email.utils
import http.client
import logging
import random
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from gpuledger_agent.spool import Holds, Spool, Spooled
from gpuledger_common import wire
from gpuledger_common.batches import pack, unpack
from gpuledger_common.escapes import escape_text

log = logging.getLogger("gpuledger_agent")

BACKOFF_BASE_S, BACKOFF_CAP_S = 1.0, 60.0
RETRY_AFTER_CAP_S = 900.0
AUTH_PROBE_S = 60.0
UNDECODABLE_TRIES = 3
TIMEOUT_S = 30.0
MOST_SAID = 20
"""Sentences about one outage in the log."""
PATH = "/v1/batches"

Step = Literal["ack", "retry", "probe", "split", "dead_letter", "undecodable"]


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back: a status with headers and body, or `error` when nothing did."""

    status: int | None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Reaction:
    """What to do with the batch, and how long to wait before the next request (None: the usual backoff)."""

    step: Step
    reason: str = ""
    wait_s: float | None = 0.0
    rejected: tuple[tuple[str, str], ...] = ()
    final: bool = False
    """Whether a collector itself says it, so that what can be done no other way is buried."""


def reaction(reply: Reply, now_s: float) -> Reaction:
    """The table of reactions; `now_s` is wall time, for Retry-After as a date."""
    status = reply.status
    if status is None:
        return Reaction("retry", reply.error, None)
    if status == 200 or status == 422:
        return _answered(status, reply.body)
    if status in {401, 403}:
        return Reaction("probe", f"the collector refuses this node's token ({status})", AUTH_PROBE_S)
    if status == 429 or status >= 500 or status in {408, 425}:
        return Reaction("retry", f"status {status}", retry_after(reply.headers.get("retry-after"), now_s))
    return _refused(status, reply.body)


def _refused(status: int, body: bytes) -> Reaction:
    """What no retry mends where a collector says it; said by anybody else it may pass. Halves help with a proxy too."""
    answer = _collectors(body)
    if answer is not None and answer.status != "refused":
        answer = None
    if status == 413:
        return Reaction("split", "batch too large", None, final=answer is not None)
    if answer is None:
        return _not_a_collectors(status)
    if status == 409:
        return Reaction("dead_letter", "the collector knows other bytes under this number")
    return Reaction("undecodable", f"status {status}: {answer.detail[:200]}", None)


def _collectors(body: bytes) -> wire.Answer | None:
    """A collector's own answer, whole; None for a page of a portal or a proxy, an empty or a torn body."""
    try:
        return msgspec.json.decode(body, type=wire.Answer)
    except (ValueError, RecursionError):  # msgspec's errors are ValueErrors; brackets beyond its depth are not
        return None


def _not_a_collectors(status: int) -> Reaction:
    return Reaction("retry", f"status {status}, with an answer that is not a collector's", None)


def _answered(status: int, body: bytes) -> Reaction:
    """Only a collector's own answer, whole, ends a batch: a portal or a proxy that says 200 has committed nothing."""
    answer = _collectors(body)
    if answer is None:
        return _not_a_collectors(status)
    if status == 200 and answer.status in {"committed", "duplicate"}:
        return Reaction("ack")
    if status == 422 and answer.status == "partial":
        refused = tuple((entry.record, entry.reason) for entry in answer.rejected)
        return Reaction("ack", f"{len(refused)} records refused", 0.0, refused)
    return Reaction("retry", f"status {status} with the answer {answer.status}", None)


def retry_after(text: str | None, now_s: float) -> float | None:
    """Seconds to wait by a Retry-After header (seconds or HTTP date), capped; None when it says nothing usable."""
    if text is None:
        return None
    if text.strip().isdecimal():
        return min(float(text), RETRY_AFTER_CAP_S)
    try:
        at = email.utils.parsedate_to_datetime(text)
    except (TypeError, ValueError, OverflowError):
        return None
    if at.tzinfo is None:  # a zone of "-0000": UTC, RFC 5322 §3.3
        at = at.replace(tzinfo=UTC)
    return min(max(at.timestamp() - now_s, 0.0), RETRY_AFTER_CAP_S)


def backoff(attempt: int, chance: float) -> float:
    """Full jitter: a `chance` in 0..1 of the exponentially growing ceiling."""
    return chance * min(BACKOFF_CAP_S, BACKOFF_BASE_S * 2.0 ** min(attempt, 10))


class Http:
    """One kept-alive connection to the collector."""

    def __init__(
        self, url: str, token_file: Path | None = None, ca_file: Path | None = None, timeout_s: float = TIMEOUT_S
    ) -> None:
        try:
            parts = urlsplit(url)
            self._port = parts.port
        except ValueError:
            raise ValueError(f"collector_url: {url!r} is not http://HOST[:PORT] or https://HOST[:PORT]") from None
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError(f"collector_url: {url!r} is not http://HOST[:PORT] or https://HOST[:PORT]")
        self._host, self._tls = parts.hostname, parts.scheme == "https"
        self._path = parts.path.rstrip("/") + PATH
        self._token_file, self._ca_file, self._timeout_s = token_file, ca_file, timeout_s
        self._connection: http.client.HTTPConnection | None = None

    def post(self, body: bytes, sent_ms: int) -> Reply:
        """Sends one body; every fault of the network is a Reply without status."""
        headers = {
            "Content-Type": "application/msgpack",
            "Content-Encoding": "zstd",
            "X-GPULedger-Sent-At": str(sent_ms),
        }
        try:
            if self._token_file is not None:
                token = self._token_file.read_text().strip()
                if not (token.isascii() and token.isprintable()):  # http.client would quote it in its sentence
                    return Reply(None, error=f"{self._token_file} holds more than a token")
                headers["Authorization"] = f"Bearer {token}"
            connection = self._connect()
            connection.request("POST", self._path, body, headers)
            response = connection.getresponse()
            answer = response.read(4 * 1024 * 1024)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            return Reply(None, error=f"{type(error).__name__}: {error}")
        if response.will_close:
            self.close()
        return Reply(response.status, {name.lower(): value for name, value in response.getheaders()}, answer)

    def _connect(self) -> http.client.HTTPConnection:
        if self._connection is None:
            if self._tls:
                context = ssl.create_default_context(cafile=self._ca_file and str(self._ca_file))
                self._connection = http.client.HTTPSConnection(
                    self._host, self._port, timeout=self._timeout_s, context=context
                )
            else:
                self._connection = http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        return self._connection

    def close(self) -> None:
        """Drops the connection; the next post makes a new one."""
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.close()
            self._connection = None


class Pusher:
    """Drains a spool through a `post(body, sent_ms)`; the clock, the waiting and the chance are handed in."""

    def __init__(
        self,
        spool: Spool,
        post: Callable[[bytes, int], Reply],
        wall_ms: Callable[[], int],
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._spool, self._post, self._wall_ms, self._chance = spool, post, wall_ms, chance
        self._newest_next = False
        self._attempt = 0
        self.problem = ""
        self.last_ack_ms: int | None = None
        self._said: set[str] = set()

    def step(self) -> float | None:
        """Sends one batch, lane by lane, and reacts. Seconds to wait before the next one; None when nothing waits."""
        self._newest_next = not self._newest_next
        return self._send("oldest" if self._newest_next else "newest")

    def _send(self, lane: Literal["oldest", "newest"]) -> float | None:
        batch = self._spool.next(lane)
        if batch is None:
            return None
        reply = self._post(batch.body, self._wall_ms())
        found = reaction(reply, self._wall_ms() / 1000)
        return self._act(batch, found)

    def _act(self, batch: Spooled, found: Reaction) -> float:
        if found.step == "ack":
            self._spool.acknowledge(batch.seq, found.rejected)
            self._attempt, self.problem, self.last_ack_ms = 0, found.reason, self._wall_ms()
            return 0.0
        self.problem = found.reason
        if found.step == "split" and self._split(batch):
            return 0.0
        if found.step == "dead_letter" or (found.step == "split" and found.final):
            self._spool.dead_notification(batch.seq, found.reason)
            return 0.0
        if found.step == "undecodable" and self._spool.undecodable(batch.seq) >= UNDECODABLE_TRIES:
            self._spool.dead_notification(batch.seq, found.reason)
            return 0.0
        self._attempt += 1
        return backoff(self._attempt, self._chance()) if found.wait_s is None else found.wait_s

    def _split(self, batch: Spooled) -> bool:
        """Two batches of half the records each; False for one record, which cannot be split."""
        halves = split_batch(unpack(batch.body))
        if halves is None:
            return False
        self._spool.replace(batch.seq, [_numbered(half) for half in halves], self._wall_ms())
        return True

    def last(self, deadline: float) -> None:
        """Before the agent ends: the newest first, until nothing waits, one is not taken, or the time is over."""
        while time.monotonic() < deadline and self._send("newest") == 0.0:
            pass

    def _say(self) -> None:
        """Into the log what keeps batches from the collector, each sentence once until a batch is taken again."""
        if not self.problem:
            if self._said:
                self._said.clear()
                log.info("the collector takes batches again")
        elif self.problem not in self._said and len(self._said) < MOST_SAID:
            self._said.add(self.problem)
            words, waiting = escape_text(self.problem), self._spool.counts().pending
            log.warning("delivery: %s; %d batches wait in the spool", words, waiting)

    def drain(self, stop: threading.Event, wake: threading.Event, moved: Callable[[], None]) -> None:
        """The push loop: until `stop`, sends whenever something waits; `moved` is called each round (watchdog)."""
        while not stop.is_set():
            moved()
            try:
                wait_s = self.step()
            except Exception as error:  # a full disk or a locked file must not end delivery for ever
                self.problem, wait_s = f"{type(error).__name__}: {error}", 5.0
            if wait_s is not None:
                self._say()
            if wait_s is None:
                wake.wait(1.0)
                wake.clear()
            elif wait_s > 0:
                deadline = time.monotonic() + wait_s
                while not stop.is_set() and (left := deadline - time.monotonic()) > 0:
                    moved()
                    stop.wait(min(left, 5.0))


def _numbered(batch: wire.Batch) -> tuple[Callable[[str, int], bytes], Holds]:
    holds = Holds(len(batch.usage_intervals), len(batch.samples.at_ms))
    return lambda epoch, seq: pack(msgspec.structs.replace(batch, epoch=epoch, seq=seq)), holds


def split_batch(batch: wire.Batch) -> list[wire.Batch] | None:
    """The batch as two: the first half of its usage intervals and samples, and the rest. None when it has one
    record.
    """
    rows = len(batch.samples.at_ms)
    if len(batch.usage_intervals) + rows < 2:
        return None
    half_usage_intervals, half_rows = _span_cut(batch.usage_intervals), rows // 2
    if (half_usage_intervals, half_rows) in {(0, 0), (len(batch.usage_intervals), rows)}:
        half_usage_intervals, half_rows = len(batch.usage_intervals), 0
        if rows == 0:
            return None
    first = msgspec.structs.replace(
        batch, usage_intervals=batch.usage_intervals[:half_usage_intervals], samples=_rows(batch.samples, 0, half_rows)
    )
    second = msgspec.structs.replace(
        batch,
        usage_intervals=batch.usage_intervals[half_usage_intervals:],
        samples=_rows(batch.samples, half_rows, rows),
        counts=[],
    )
    return [first, second]


def _span_cut(usage_intervals: list[wire.WireUsageInterval]) -> int:
    """A place near the middle that does not part the holders of one span: the collector reads them together."""
    cut = len(usage_intervals) // 2
    while 0 < cut < len(usage_intervals) and _span(usage_intervals[cut]) == _span(usage_intervals[cut - 1]):
        cut += 1
    return cut


def _span(usage_interval: wire.WireUsageInterval) -> tuple[int, int, int]:
    return usage_interval.accelerator, usage_interval.start_ms, usage_interval.end_ms


def _rows(samples: wire.Samples, start: int, stop: int) -> wire.Samples:
    columns = {}
    for name, column in samples.columns.items():
        width = 4 if column.kind == "f4" else 8
        values = column.values
        cut = values[start * width : stop * width] if isinstance(values, bytes) else values[start:stop]
        columns[name] = wire.Column(column.kind, cut)
    return wire.Samples(samples.accelerator[start:stop], samples.at_ms[start:stop], columns)
