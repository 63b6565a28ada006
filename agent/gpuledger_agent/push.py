"""Push: sends spooled batches until the collector has committed them.

`reaction` maps every answer to a step, without I/O: success acknowledges; a refusal of records
acknowledges the rest; what may pass later is retried forever with full jitter; what can never pass
becomes a dead letter with its reason. Only a collector's own answer ends a batch: a misconfigured
proxy may answer 404 or 301 to sound batches for hours. Nothing is deleted from the spool before the
collector has committed it. After an outage the newest and the oldest batches are sent in turn, so
that dashboards recover at once while the backlog drains.
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
from functools import partial
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from gpuledger_agent.settings import is_web_address
from gpuledger_agent.spool import BatchContents, Encode, Spool, SpooledBatch
from gpuledger_common import wire
from gpuledger_common.batches import pack, unpack
from gpuledger_common.bounded_file import read_secret_file
from gpuledger_common.escapes import escape_text
from gpuledger_common.http_exchange import BoundedConnection
from gpuledger_common.settings import SettingsError

log = logging.getLogger("gpuledger_agent")

BACKOFF_BASE_S, BACKOFF_CAP_S = 1.0, 60.0
RETRY_AFTER_CAP_S = 900.0
AUTH_PROBE_S = 60.0
UNDECODABLE_TRIES = 3
TIMEOUT_S = 30.0
"""For a whole exchange: connecting, sending a batch and reading the answer."""
MAX_ANSWER_BYTES = 4 * 1024 * 1024
"""A collector's answer lists at most a thousand refusals."""
IDLE_S = 10.0
"""How long to sleep while no batch waits."""
MAX_LOGGED = 20
"""Distinct log messages about one outage."""
PATH = "/v1/batches"

Step = Literal["ack", "retry", "probe", "split", "dead_letter", "undecodable"]


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a request: a status with headers and body, or `error` without an answer."""

    status: int | None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Reaction:
    """What to do with the batch, and how long to wait before the next request (None: exponential
    backoff).
    """

    step: Step
    reason: str = ""
    wait_s: float | None = 0.0
    rejected: tuple[tuple[str, str], ...] = ()
    final: bool = False
    """Whether a collector itself refused, so that a batch that cannot be split becomes a dead
    letter.
    """


def reaction(reply: Reply, now_s: float) -> Reaction:
    """The reaction to an answer; `now_s` is wall time, for a Retry-After that is a date."""
    status = reply.status
    if status is None:
        return Reaction("retry", reply.error, None)
    # 422: some records were refused, the others are committed.
    if status in {200, 422}:
        return _react_to_success(status, reply.body)
    # A token may be replaced on the disk at any time, so the same batch is tried again at a steady
    # pace.
    if status in {401, 403}:
        return Reaction(
            "probe", f"the collector refuses this node's token ({status})", AUTH_PROBE_S
        )
    if status == 429 or status >= 500 or status in {408, 425}:
        return Reaction(
            "retry", f"status {status}", retry_after(reply.headers.get("retry-after"), now_s)
        )
    return _react_to_refusal(status, reply.body)


def _react_to_refusal(status: int, body: bytes) -> Reaction:
    """A refusal is final only from a collector; from a proxy it may pass, and halves may be small
    enough for it.
    """
    answer = _collector_answer(body)
    refused = answer is not None and answer.status == "refused"
    if status == 413:
        # Also from a proxy with a smaller limit: halves may pass, and if a single record does not,
        # it is retried.
        return Reaction("split", "batch too large", None, final=refused)
    if answer is None or not refused:
        return _foreign_answer(status)
    if status == 409:
        return Reaction("dead_letter", "the collector has other bytes under this number")
    # Not final at once: bytes may be damaged on the way, so it takes UNDECODABLE_TRIES refusals.
    return Reaction("undecodable", f"status {status}: {answer.detail[:200]}", None)


def _collector_answer(body: bytes) -> wire.Answer | None:
    """A collector's complete answer; None for the page of a portal or a proxy, an empty or a
    truncated body.
    """
    try:
        return msgspec.json.decode(body, type=wire.Answer)
    except (
        ValueError,
        RecursionError,
    ):
        # msgspec's errors are ValueErrors, except for too deeply nested brackets.
        return None


def _foreign_answer(status: int) -> Reaction:
    return Reaction("retry", f"status {status}, with an answer that is not a collector's", None)


def _react_to_success(status: int, body: bytes) -> Reaction:
    """Only a collector's complete answer ends a batch: a portal or proxy that answers 200 has
    committed nothing.
    """
    answer = _collector_answer(body)
    if answer is None:
        return _foreign_answer(status)
    if status == 200 and answer.status in {"committed", "duplicate"}:
        return Reaction("ack")
    if status == 422 and answer.status == "partial":
        refused = tuple((entry.record, entry.reason) for entry in answer.rejected)
        return Reaction("ack", f"{len(refused)} records refused", 0.0, refused)
    return Reaction("retry", f"status {status} with the answer {answer.status}", None)


def retry_after(text: str | None, now_s: float) -> float | None:
    """Seconds to wait by a Retry-After header (seconds or HTTP date), capped; None without a usable
    one.
    """
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


def backoff(attempt: int, jitter: float) -> float:
    """Full jitter: a random part (`jitter`, 0..1) of an exponentially growing ceiling."""
    return jitter * min(BACKOFF_CAP_S, BACKOFF_BASE_S * 2.0 ** min(attempt, 10))


class Http:
    """A kept-alive connection to the collector. Raises SettingsError for a bad address."""

    def __init__(
        self,
        url: str,
        token_file: Path | None = None,
        ca_file: Path | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        if not is_web_address(url):
            raise SettingsError(
                f"collector_url: {url!r} is not http://HOST[:PORT] or https://HOST[:PORT]"
            )
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._path = parts.path.rstrip("/") + PATH
        self._token_file, self._ca_file = token_file, ca_file
        self._connection = BoundedConnection(
            url,
            timeout_s=timeout_s,
            max_bytes=MAX_ANSWER_BYTES,
            tls=partial(ssl.create_default_context, cafile=ca_file and str(ca_file)),
        )

    def post(self, body: bytes, sent_ms: int) -> Reply:
        """Send one body; every network error is a Reply without status."""
        headers = {
            "Content-Type": "application/msgpack",
            "Content-Encoding": "zstd",
            "X-GPULedger-Sent-At": str(sent_ms),
        }
        try:
            if self._token_file is not None:
                # Read for each request: a rotated token takes effect without a reload.
                token = read_secret_file(self._token_file, log.warning)
                if not token:
                    return Reply(
                        None,
                        error=(
                            f"token_file: {self._token_file} is empty; write this node's token"
                            " into it"
                        ),
                    )
                # http.client would quote it in its error.
                if not (token.isascii() and token.isprintable()):
                    return Reply(None, error=f"{self._token_file} holds more than a token")
                headers["Authorization"] = f"Bearer {token}"
            answer = self._connection.exchange("POST", self._path, body, headers)
        except ssl.SSLCertVerificationError as error:
            self.close()
            return Reply(None, error=self._distrust(error))
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            return Reply(None, error=f"{type(error).__name__}: {error}")
        return Reply(answer.status, dict(answer.headers), answer.body)

    def _distrust(self, error: ssl.SSLCertVerificationError) -> str:
        """Why the collector's certificate is not trusted, and the setting that helps."""
        reason = f"the certificate of {self._host} is not trusted ({error.verify_message})"
        if self._ca_file is not None:
            return f"{reason}: ca_file {self._ca_file} is not of the authority that signed it"
        return f"{reason}: set ca_file to the PEM certificate of your private authority"

    def close(self) -> None:
        """Close the connection; the next post opens a new one."""
        with contextlib.suppress(OSError):
            self._connection.close()


class Pusher:
    """Delivers the batches of a spool through `post(body, sent_ms)`, at a pace that the answers
    set.
    """

    def __init__(
        self,
        spool: Spool,
        post: Callable[[bytes, int], Reply],
        wall_ms: Callable[[], int],
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._spool, self._post, self._wall_ms, self._jitter = spool, post, wall_ms, jitter
        self._newest_next = False
        self._attempt = 0
        self.problem = ""
        self._logged: set[str] = set()
        self.retired = False
        """Set when another pusher has taken its place: `drain` returns soon after."""

    def step(self) -> float | None:
        """Send one batch, the oldest and the newest in turn; seconds to wait for the next, None if
        none waits.
        """
        # In turn, so that dashboards are current while a backlog drains.
        self._newest_next = not self._newest_next
        return self._send("oldest" if self._newest_next else "newest")

    def _send(self, lane: Literal["oldest", "newest"]) -> float | None:
        batch = self._spool.next(lane)
        if batch is None:
            return None
        reply = self._post(batch.body, self._wall_ms())
        return self._act(batch, reaction(reply, self._wall_ms() / 1000))

    def _act(self, batch: SpooledBatch, answer: Reaction) -> float:
        """React to an answer; seconds to wait before the next request."""
        self.problem = answer.reason
        if answer.step == "ack":
            self._spool.acknowledge(batch.seq, answer.rejected)
            self._attempt = 0
            return 0.0
        if answer.step == "split" and self._split(batch):
            return 0.0
        if (
            answer.step == "dead_letter"
            or (answer.step == "split" and answer.final)
            or (
                answer.step == "undecodable"
                and self._spool.undecodable(batch.seq) >= UNDECODABLE_TRIES
            )
        ):
            self._spool.dead_letter(batch.seq, answer.reason)
            return 0.0
        # Everything else is retried forever: the batch stays in the spool.
        self._attempt += 1
        return backoff(self._attempt, self._jitter()) if answer.wait_s is None else answer.wait_s

    def _split(self, batch: SpooledBatch) -> bool:
        """Replace the batch by two halves; False for one record, which cannot be split."""
        halves = split_batch(unpack(batch.body))
        if halves is None:
            return False
        self._spool.replace(batch.seq, [_spoolable(half) for half in halves], self._wall_ms())
        return True

    def last(self, deadline: float) -> None:
        """Before the agent ends, send the newest first until none waits, one is not accepted, or
        the time is over.
        """
        while time.monotonic() < deadline and self._send("newest") == 0.0:
            pass

    def _log_problem(self) -> None:
        """Log what prevents delivery, each message once until a batch is accepted again."""
        if not self.problem:
            if self._logged:
                self._logged.clear()
                log.info("the collector accepts batches again")
        elif self.problem not in self._logged and len(self._logged) < MAX_LOGGED:
            self._logged.add(self.problem)
            waiting = self._spool.counts().pending
            log.warning(
                "delivery: %s; %d batches wait in the spool", escape_text(self.problem), waiting
            )

    def drain(
        self, stop: threading.Event, wake: threading.Event, moved: Callable[[], None]
    ) -> None:
        """The push loop: send whenever a batch waits, until `stop`; `moved` is called in each round
        (watchdog).
        """
        while not stop.is_set() and not self.retired:
            moved()
            try:
                wait_s = self.step()
            except Exception as error:  # a full disk or a locked file must not end delivery forever
                self.problem, wait_s = f"{type(error).__name__}: {error}", 5.0
            if wait_s is None:
                # Woken by each flush, reload and stop; the watchdog sees progress in between.
                wake.wait(IDLE_S)
                wake.clear()
                continue
            self._log_problem()
            # Wait in short pieces, so that the watchdog sees progress and a stop or a reload takes
            # effect soon.
            deadline = time.monotonic() + wait_s
            while (
                not (stop.is_set() or self.retired)
                and (remaining_s := deadline - time.monotonic()) > 0
            ):
                moved()
                stop.wait(min(remaining_s, 5.0))


def _spoolable(batch: wire.Batch) -> tuple[Encode, BatchContents]:
    contents = BatchContents(len(batch.usage_intervals), len(batch.samples.at_ms))
    return lambda epoch, seq: pack(msgspec.structs.replace(batch, epoch=epoch, seq=seq)), contents


def split_batch(batch: wire.Batch) -> list[wire.Batch] | None:
    """The batch as two halves of its usage intervals and samples; None when it cannot be split."""
    intervals, rows = batch.usage_intervals, len(batch.samples.at_ms)
    cut, row_cut = _cut_between_holders(intervals), rows // 2
    # One half would be empty: send intervals and readings separately instead.
    if (cut, row_cut) in {(0, 0), (len(intervals), rows)}:
        cut, row_cut = len(intervals), 0
    # A single record, or holders that must stay together and nothing else: no smaller batch exists.
    if len(intervals) + rows < 2 or (cut == len(intervals) and rows == 0):
        return None
    first = msgspec.structs.replace(
        batch, usage_intervals=intervals[:cut], samples=_rows(batch.samples, 0, row_cut)
    )
    rest = _rows(batch.samples, row_cut, rows)
    # Counters are cumulative, so they are sent once, with the first half.
    return [
        first,
        msgspec.structs.replace(
            batch, usage_intervals=intervals[cut:], samples=rest, counts=[], token_counts=[]
        ),
    ]


def _cut_between_holders(intervals: list[wire.WireUsageInterval]) -> int:
    """A position near the middle where the holders of one time stay together: the collector reads
    them together.
    """
    cut = len(intervals) // 2
    while 0 < cut < len(intervals) and _time_range(intervals[cut]) == _time_range(
        intervals[cut - 1]
    ):
        cut += 1
    return cut


def _time_range(interval: wire.WireUsageInterval) -> tuple[int, int, int]:
    return interval.accelerator, interval.start_ms, interval.end_ms


def _rows(samples: wire.Samples, start: int, stop: int) -> wire.Samples:
    columns = {}
    for name, column in samples.columns.items():
        # Bytes are cut at a multiple of the width of a value, lists by element.
        width = 4 if column.kind == "f4" else 8
        values = column.values
        cut = (
            values[start * width : stop * width]
            if isinstance(values, bytes)
            else values[start:stop]
        )
        columns[name] = wire.Column(column.kind, cut)
    return wire.Samples(samples.accelerator[start:stop], samples.at_ms[start:stop], columns)
