"""Group commit: batches that arrive while a writer is busy are committed together when it is free.

There is no linger: a lone batch is written at once, and under load the groups form by themselves. The caller learns
what became of its batch after COMMIT and not before. The queue is bounded in batches and in bytes; what does not fit
is turned away at once, because the agent's spool is the place to wait. A heavy batch is written alone, by a writer that
writes nothing else: nobody's answer waits for it but its sender's.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import psycopg

from gpuledger_collector.ingest.batches.attributes import Connection

log = logging.getLogger(__name__)


FAULT_SECONDS = 30.0
"""How long a failure counts as one of now: then it is time to be tried again."""
STUCK_SECONDS = 90.0
"""A group that is written for longer than this is stuck: no statement may take longer than a minute."""
SETTLE_SECONDS = 0.1
"""How often it is looked whether something that was left for later is due."""
AWAY_SECONDS = 2.0
"""How long the database is left alone after that could not be written."""


class Committable(Protocol):
    """What is committed: an agent's batch, a request of remote write."""

    @property
    def key(self) -> object:
        """What the log calls it."""

    @property
    def size(self) -> int:
        """Bytes that it takes while it waits."""

    @property
    def samples(self) -> int:
        """Readings in it."""

    @property
    def is_heavy(self) -> bool:
        """Whether writing it takes long enough for others to notice."""


B = TypeVar("B", bound=Committable)
A = TypeVar("A")
B_contra = TypeVar("B_contra", contravariant=True)
A_co = TypeVar("A_co", covariant=True)


class Flushes(Protocol[B_contra, A_co]):
    """A store that writers share; each brings its own connection."""

    def flush(
        self, connection: Connection, batches: Sequence[B_contra], now: dt.datetime, idle: Callable[[], bool], /
    ) -> Sequence[A_co]:
        """Commit these and answer each, in order. `idle`: whether nothing waits behind them. Raises psycopg.Error."""

    def is_due(self, ending: bool, /) -> bool:
        """Whether something that was left for later is to be written now, as it is at the end."""

    def settle(self, connection: Connection, /) -> None:
        """Write what was left for later. Raises psycopg.Error."""

    def forget(self) -> None:
        """Believe nothing that was remembered of the database."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why batches could last not be written, and when."""

    at: dt.datetime
    reason: str


class Unavailable(Exception):
    """The batch was not committed and may be sent again: the queue is full, or the database is away."""

    permanent = False


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may wait, and how much goes into one transaction."""

    writers: int = 1
    flush_batches: int = 256
    flush_bytes: int = 64 * 1024 * 1024
    queue_batches: int = 4096
    queue_bytes: int = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Waiting(Generic[B, A]):
    batch: B
    answer: asyncio.Future[A]


@dataclass(frozen=True, slots=True)
class _Lane(Generic[B, A]):
    """Batches that wait for the same writers; `changed` shares its lock with the other lane."""

    changed: threading.Condition
    most: int
    """Batches of one transaction."""
    queue: deque[_Waiting[B, A]] = field(default_factory=deque)


class GroupCommit(Generic[B, A]):
    """Writer threads over one queue. `connect` opens an autocommit connection, `clock` tells the time."""

    def __init__(
        self,
        store: Flushes[B, A],
        connect: Callable[[], Connection],
        clock: Callable[[], dt.datetime],
        limits: Limits,
        on_flush: Callable[[int, int, float], None] = lambda _batches, _samples, _seconds: None,
    ) -> None:
        self._store = store
        self._connect = connect
        self._clock = clock
        self._limits = limits
        self._on_flush = on_flush
        self._lock = threading.Lock()
        self._light: _Lane[B, A] = _Lane(threading.Condition(self._lock), limits.flush_batches)
        self._heavy: _Lane[B, A] = _Lane(threading.Condition(self._lock), 1)
        self._bytes = 0
        self._closing = False
        self._failure: Failure | None = None
        self._failing = False
        self._begun: dict[str, float] = {}
        """Since when each writer has been writing what it writes now."""
        self._threads = [
            threading.Thread(target=self._write_for_ever, args=(self._light,), name=f"writer-{number}", daemon=True)
            for number in range(limits.writers)
        ]
        self._threads.append(
            threading.Thread(target=self._write_for_ever, args=(self._heavy,), name="writer-heavy", daemon=True)
        )
        self._settled = threading.Event()
        self._settler = threading.Thread(target=self._settle_for_ever, name="settler", daemon=True)

    def start(self) -> None:
        """Start the writers; the database need not be there yet."""
        for thread in (*self._threads, self._settler):
            thread.start()

    def submit(self, batch: B) -> asyncio.Future[A]:
        """Queue a batch; the future holds the answer after COMMIT, or Unavailable, or psycopg.Error for poison.

        To be called in the event loop, the same one each time. Raises Unavailable when the queue is full or closed.
        """
        waiting: _Waiting[B, A] = _Waiting(batch, asyncio.get_running_loop().create_future())
        lane = self._heavy if batch.is_heavy else self._light
        with self._lock:
            if self._closing:
                raise Unavailable("the collector is stopping")
            if self.waiting >= self._limits.queue_batches or self._bytes + batch.size > self._room():
                raise Unavailable("too many batches are waiting for the database")
            lane.queue.append(waiting)
            self._bytes += batch.size
            lane.changed.notify()
        return waiting.answer

    def _room(self) -> int:
        return self._limits.queue_bytes if self.waiting else max(self._limits.queue_bytes, self._limits.flush_bytes)

    @property
    def waiting(self) -> int:
        """Batches in both queues."""
        return len(self._light.queue) + len(self._heavy.queue)

    @property
    def failure(self) -> Failure | None:
        """Why batches could last not be written; it stays when others were written since."""
        return self._failure

    def fault(self) -> str | None:
        """What keeps batches from being written now, in a sentence; None when nothing does, as far as was tried."""
        if self._closing:
            return None
        if dead := [thread.name for thread in self._threads if thread.ident is not None and not thread.is_alive()]:
            return f"{dead[0]} has ended"
        longest = time.monotonic() - min(self._begun.copy().values(), default=time.monotonic())
        if longest > STUCK_SECONDS:
            return f"a group of batches has been written for {longest:.0f} s"
        failed = self._failure
        if self._failing and failed is not None and (self._clock() - failed.at).total_seconds() < FAULT_SECONDS:
            return f"batches could not be written at {failed.at:%H:%M:%S}: {failed.reason}"
        return None

    def close(self, seconds: float) -> None:
        """Take no more batches, commit those that wait for at most `seconds`, then turn the rest away."""
        deadline = time.monotonic() + seconds
        with self._lock:
            self._closing = True
            self._light.changed.notify_all()
            self._heavy.changed.notify_all()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, deadline - time.monotonic()))
        self._settled.set()
        if self._settler.is_alive():
            self._settler.join(max(0.0, deadline - time.monotonic()))
        for lane in (self._light, self._heavy):
            rest = self._take(lane, len(lane.queue))
            _tell([(waiting, Unavailable("the collector is stopping")) for waiting in rest])

    def _take(self, lane: _Lane[B, A], most: int) -> list[_Waiting[B, A]]:
        taken: list[_Waiting[B, A]] = []
        size = 0
        with self._lock:
            while lane.queue and len(taken) < most and size < self._limits.flush_bytes:
                waiting = lane.queue.popleft()
                size += waiting.batch.size
                # A caller that has gone away no longer waits; one that goes from here on is written all the same.
                if not waiting.answer.cancelled():
                    taken.append(waiting)
            self._bytes -= size
        return taken

    def _write_for_ever(self, lane: _Lane[B, A]) -> None:
        connection: Connection | None = None
        while True:
            with lane.changed:
                lane.changed.wait_for(lambda: lane.queue or self._closing)
            group = self._take(lane, lane.most)
            if group:
                name = threading.current_thread().name
                self._begun[name] = time.monotonic()
                connection = self._write(connection, group)
                del self._begun[name]
            elif self._closing and not lane.queue:
                break
        if connection is not None:
            connection.close()

    def _is_idle(self) -> bool:
        return not self._light.queue

    def _settle_for_ever(self) -> None:
        """Write what was left for later beside the writers, so that no answer waits for it."""
        connection: Connection | None = None
        wait_s = SETTLE_SECONDS
        while not self._settled.wait(wait_s):
            wait_s = SETTLE_SECONDS
            if self._store.is_due(False):
                connection = self._settle(connection)
                wait_s = SETTLE_SECONDS if connection else AWAY_SECONDS
        if self._store.is_due(True):
            connection = self._settle(connection)
        if connection is not None:
            connection.close()

    def _settle(self, connection: Connection | None) -> Connection | None:
        """Write what was left for later; the connection to go on with, None when it is lost."""
        try:
            if connection is None or connection.closed:
                connection = self._connect()
            self._store.settle(connection)
        except Exception as error:  # whatever it is, the next newest values must find somebody who writes them
            log.warning("newest values are not written now: %s", str(error).strip().partition("\n")[0])
            if connection is not None:
                connection.close()
            return None
        return connection

    def _start_anew(self, connection: Connection | None) -> Connection | None:
        """Believe nothing that was remembered; what was committed before is written as far as it can be."""
        connection = self._settle(connection)
        self._store.forget()
        return connection

    def _write(self, connection: Connection | None, group: Sequence[_Waiting[B, A]]) -> Connection | None:
        """Commit a group and answer; the connection to go on with, None when it is lost."""
        begun = time.perf_counter()
        try:
            if connection is None or connection.closed:
                connection = self._connect()
            answers = self._store.flush(connection, [waiting.batch for waiting in group], self._clock(), self._is_idle)
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            return self._turn_away(connection, group, error)
        except Exception as error:  # one batch that cannot be written must not take its neighbours along
            connection = self._start_anew(connection)
            log.info("a group of %d batches failed (%s) and is written one by one", len(group), error)
            for waiting in group:
                connection = self._write_alone(connection, waiting)
            return connection
        self._failing = False
        _tell(list(zip(group, answers, strict=True)))
        self._on_flush(len(group), sum(waiting.batch.samples for waiting in group), time.perf_counter() - begun)
        return connection

    def _turn_away(
        self, connection: Connection | None, group: Sequence[_Waiting[B, A]], error: Exception
    ) -> Connection | None:
        reason = str(error).strip().partition("\n")[0]
        log.warning("batches could not be written, their agents will send them again: %s", reason)
        if not isinstance(error, psycopg.errors.DeadlockDetected | psycopg.errors.LockNotAvailable):
            self._failure, self._failing = Failure(self._clock(), reason), True
        _tell([(waiting, Unavailable(f"the database is away: {reason}")) for waiting in group])
        if connection is not None and not connection.broken:
            if isinstance(error, psycopg.errors.DeadlockDetected | psycopg.errors.LockNotAvailable):
                return connection
            connection.close()
        return None

    def _write_alone(self, connection: Connection | None, waiting: _Waiting[B, A]) -> Connection | None:
        try:
            if connection is None or connection.closed:
                connection = self._connect()
            answer = self._store.flush(connection, [waiting.batch], self._clock(), self._is_idle)[0]
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            return self._turn_away(connection, [waiting], error)
        except Exception as error:
            connection = self._start_anew(connection)
            log.exception("batch %s cannot be written", waiting.batch.key)
            _tell([(waiting, error)])
            return connection
        self._failing = False
        _tell([(waiting, answer)])
        return connection


def _tell(outcomes: Sequence[tuple[_Waiting[B, A], A | Exception]]) -> None:
    """Wake the event loop once for a whole group: each time is a system call, and a turn of the one lock of Python."""
    if outcomes:
        with contextlib.suppress(RuntimeError):  # the loop has ended, and nobody waits there any more
            outcomes[0][0].answer.get_loop().call_soon_threadsafe(_answer, outcomes)


def _answer(outcomes: Sequence[tuple[_Waiting[B, A], A | Exception]]) -> None:
    for waiting, outcome in outcomes:
        if waiting.answer.done():
            continue  # its caller has gone
        if isinstance(outcome, Exception):
            waiting.answer.set_exception(outcome)
        else:
            waiting.answer.set_result(outcome)
