"""Group commit: batches that arrive while a writer is busy are committed together when it is free.

There is no delay: a single batch is written at once, and under load groups form by themselves. A
caller gets its answer after COMMIT and not before. The queue is bounded in batches and in bytes;
what does not fit is refused at once, because the agent's spool is the place to wait. A heavy batch
is written alone, by a writer that writes nothing else, so that only its own sender waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import psycopg

from gpuledger_collector.faults import sentence
from gpuledger_collector.ingest.batches.attributes import Connection
from gpuledger_common.instants import to_datetime

log = logging.getLogger(__name__)

UNAVAILABLE = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    psycopg.errors.ReadOnlySqlTransaction,
)
"""Errors that say nothing of a batch: the database does not answer, or takes no writes (a read
replica).
"""
REFUSED = (psycopg.DataError, psycopg.IntegrityError, psycopg.errors.ProgramLimitExceeded)
"""Errors by which the database refuses a batch, now and later. The last is a subclass of
OperationalError: a value that no row or index can hold.
"""
FAULT_SECONDS = 30.0
"""How long a failure is reported as current; afterwards batches may try again."""
MAX_POISON = 3
"""So many different batches that fail in a row by a fault of ours: it is in none of them, so no
batch can be taken.
"""
STUCK_SECONDS = 90.0
"""A longer write is stuck: no statement may take longer than a minute."""
DEFERRED_CHECK_SECONDS = 0.1
"""How often to check whether deferred writes are due."""
BACK_OFF_SECONDS = 2.0
"""Back-off after a failed deferred write."""


class Committable(Protocol):
    """Something to commit: an agent's batch or a request of remote write."""

    @property
    def key(self) -> object:
        """Its name in the log."""

    @property
    def size(self) -> int:
        """Bytes that it occupies in the queue."""

    @property
    def samples(self) -> int:
        """Number of samples in it."""

    @property
    def is_heavy(self) -> bool:
        """Whether writing it would delay others noticeably."""


B = TypeVar("B", bound=Committable)
A = TypeVar("A")
B_contra = TypeVar("B_contra", contravariant=True)
A_co = TypeVar("A_co", covariant=True)


class BatchStore(Protocol[B_contra, A_co]):
    """A store that writers share; each brings its own connection."""

    def flush(
        self,
        connection: Connection,
        batches: Sequence[B_contra],
        now_ms: int,
        is_idle: Callable[[], bool],
        /,
    ) -> Sequence[A_co]:
        """Commit these and answer each, in order.

        `is_idle`: whether no others wait. Raises psycopg.Error.
        """

    def is_flush_due(self, closing: bool, /) -> bool:
        """Whether deferred writes are to be made now, as they are when closing."""

    def flush_deferred(self, connection: Connection, /) -> None:
        """Make the deferred writes. Raises psycopg.Error."""

    def forget(self) -> None:
        """Empty all caches of the database."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why and when batches could not be written most recently."""

    at_ms: int
    reason: str


class Unavailable(Exception):
    """The batch was not committed and may be sent again: the queue is full, or the database is
    unavailable.
    """

    permanent = False


class WriteFailed(Unavailable):
    """The collector failed to write the batch, for a reason that is in its log; it may be sent
    again.
    """


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
    """A queue for the same writers; `changed` shares its lock with the other lane."""

    changed: threading.Condition
    max_batches: int
    """Batches of one transaction."""
    queue: deque[_Waiting[B, A]] = field(default_factory=deque)


class GroupCommit(Generic[B, A]):
    """Writer threads with their queues. `connect` opens an autocommit connection."""

    def __init__(
        self,
        store: BatchStore[B, A],
        connect: Callable[[], Connection],
        clock: Callable[[], int],
        limits: Limits,
        on_flush: Callable[[int, int, float], None] = lambda _batches, _samples, _seconds: None,
    ) -> None:
        self._store = store
        self._connect = connect
        self._clock = clock
        self._limits = limits
        self._on_flush = on_flush
        self._lock = threading.Lock()
        # Two conditions on one lock: the bounds on what waits apply to both lanes together,
        # wake-ups to one of them.
        self._light: _Lane[B, A] = _Lane(threading.Condition(self._lock), limits.flush_batches)
        self._heavy: _Lane[B, A] = _Lane(threading.Condition(self._lock), 1)
        self._bytes = 0
        self._closing = False
        self._failure: Failure | None = None
        self._failing = False
        self._failed_keys: set[object] = set()
        """Batches that failed by a fault of ours since the last one that was written."""
        self._begun: dict[str, float] = {}
        """When each busy writer started its current write."""
        self._threads = [
            threading.Thread(
                target=self._run_writer, args=(self._light,), name=f"writer-{number}", daemon=True
            )
            for number in range(limits.writers)
        ]
        self._threads.append(
            threading.Thread(
                target=self._run_writer, args=(self._heavy,), name="writer-heavy", daemon=True
            )
        )
        self._writers_ended = threading.Event()
        self._deferred_writer = threading.Thread(
            target=self._run_deferred_writer, name="writer-deferred", daemon=True
        )

    def start(self) -> None:
        """Start the writers; the database need not be available yet."""
        for thread in (*self._threads, self._deferred_writer):
            thread.start()

    def submit(self, batch: B) -> asyncio.Future[A]:
        """Queue a batch; the future gets the answer after COMMIT, or Unavailable, or what the
        database refuses it for.

        Call it in the event loop, always the same one. Raises Unavailable when the queue is full or
        closed.
        """
        waiting: _Waiting[B, A] = _Waiting(batch, asyncio.get_running_loop().create_future())
        lane = self._heavy if batch.is_heavy else self._light
        with self._lock:
            if self._closing:
                raise Unavailable("the collector is stopping")
            # Refused at once rather than blocked: the event loop must not wait, and the agent's
            # spool keeps the batch.
            if (
                self.waiting >= self._limits.queue_batches
                or self._bytes + batch.size > self._max_bytes()
            ):
                raise Unavailable("too many batches are waiting for the database")
            lane.queue.append(waiting)
            self._bytes += batch.size
            lane.changed.notify()
        return waiting.answer

    def _max_bytes(self) -> int:
        # An empty queue takes even a batch that is larger than all of it, or its agent would retry
        # it forever.
        return (
            self._limits.queue_bytes
            if self.waiting
            else max(self._limits.queue_bytes, self._limits.flush_bytes)
        )

    @property
    def waiting(self) -> int:
        """Batches in both queues."""
        return len(self._light.queue) + len(self._heavy.queue)

    @property
    def failure(self) -> Failure | None:
        """The most recent failure to write batches, even if later batches were written."""
        return self._failure

    def fault(self) -> str | None:
        """What prevents writing batches now, in a sentence; None when the last attempt succeeded."""
        if self._closing:
            return None
        if dead := [
            thread.name
            for thread in self._threads
            if thread.ident is not None and not thread.is_alive()
        ]:
            return f"{dead[0]} has ended"
        # A copy, because writers add and remove entries without the lock.
        longest = time.monotonic() - min(self._begun.copy().values(), default=time.monotonic())
        if longest > STUCK_SECONDS:
            return f"a group of batches has been written for {longest:.0f} s"
        failed = self._failure
        if (
            self._failing
            and failed is not None
            and self._clock() - failed.at_ms < FAULT_SECONDS * 1000
        ):
            return f"batches could not be written at {to_datetime(failed.at_ms):%H:%M:%S}: {failed.reason}"
        return None

    def close(self, seconds: float) -> None:
        """Refuse new batches, commit waiting ones for at most `seconds`, then refuse the rest."""
        deadline = time.monotonic() + seconds
        with self._lock:
            self._closing = True
            self._light.changed.notify_all()
            self._heavy.changed.notify_all()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, deadline - time.monotonic()))
        # Only now: the deferred writer flushes a last time what the ended writers have deferred.
        self._writers_ended.set()
        if self._deferred_writer.is_alive():
            self._deferred_writer.join(max(0.0, deadline - time.monotonic()))
        for lane in (self._light, self._heavy):
            # Nobody else answers these after the writers have ended; without an answer their
            # requests would hang.
            rest = self._take(lane, len(lane.queue))
            _deliver([(waiting, Unavailable("the collector is stopping")) for waiting in rest])

    def _take(self, lane: _Lane[B, A], max_batches: int) -> list[_Waiting[B, A]]:
        taken: list[_Waiting[B, A]] = []
        size = 0
        with self._lock:
            # The size is checked before each batch, so that a group takes at least one, however
            # large it is.
            while lane.queue and len(taken) < max_batches and size < self._limits.flush_bytes:
                waiting = lane.queue.popleft()
                size += waiting.batch.size
                # Skip batches whose caller has gone; one that goes from here on is written all the
                # same.
                if not waiting.answer.cancelled():
                    taken.append(waiting)
            self._bytes -= size
        return taken

    def _run_writer(self, lane: _Lane[B, A]) -> None:
        connection: Connection | None = None
        while True:
            with lane.changed:
                # `_take` locks again by itself: another writer may empty the queue in between, then
                # the group is empty.
                lane.changed.wait_for(lambda: lane.queue or self._closing)
            group = self._take(lane, lane.max_batches)
            if group:
                name = threading.current_thread().name
                self._begun[name] = time.monotonic()
                connection = self._write(connection, group)
                del self._begun[name]
            # Waiting batches are written even while closing; only an empty queue ends the writer.
            elif self._closing and not lane.queue:
                break
        if connection is not None:
            connection.close()

    def _is_idle(self) -> bool:
        return not self._light.queue

    def _run_deferred_writer(self) -> None:
        """Make deferred writes on a thread of their own, so that no answer waits for them."""
        connection: Connection | None = None
        wait_s = DEFERRED_CHECK_SECONDS
        while not self._writers_ended.wait(wait_s):
            wait_s = DEFERRED_CHECK_SECONDS
            if self._store.is_flush_due(False):
                connection = self._flush_deferred(connection)
                wait_s = DEFERRED_CHECK_SECONDS if connection else BACK_OFF_SECONDS
        # The writers have ended: nothing can be deferred after this.
        if self._store.is_flush_due(True):
            connection = self._flush_deferred(connection)
        if connection is not None:
            connection.close()

    def _flush_deferred(self, connection: Connection | None) -> Connection | None:
        """Make the deferred writes; returns the usable connection, None when it is lost."""
        try:
            if connection is None or connection.closed:
                connection = self._connect()
            self._store.flush_deferred(connection)
        except Exception as error:  # the thread must survive to write later values
            log.warning(
                "the latest values could not be written: %s", str(error).strip().partition("\n")[0]
            )
            if connection is not None:
                connection.close()
            return None
        return connection

    def _reset_store(self, connection: Connection | None) -> Connection | None:
        """Empty the caches of the store, after an attempt to make the writes that it deferred."""
        connection = self._flush_deferred(connection)
        self._store.forget()
        return connection

    def _write(
        self, connection: Connection | None, group: Sequence[_Waiting[B, A]]
    ) -> Connection | None:
        """Commit a group and answer; returns the usable connection, None when it is lost."""
        begun = time.perf_counter()
        try:
            if connection is None or connection.closed:
                connection = self._connect()
            answers = self._store.flush(
                connection, [waiting.batch for waiting in group], self._clock(), self._is_idle
            )
        except Exception as error:
            # The database is unavailable, not the batches wrong: writing them one by one would fail
            # as well.
            if _is_unavailable(error):
                return self._refuse(connection, group, error)
            # A poison batch must not fail its neighbors: write each alone.
            # Also empty the caches: they may be what the statement failed on, as after a restored
            # database.
            connection = self._reset_store(connection)
            if len(group) > 1:
                log.info(
                    "a group of %d batches failed and is written one by one: %s",
                    len(group),
                    sentence(error),
                )
            for waiting in group:
                connection = self._write_alone(connection, waiting)
            return connection
        self._note_success()
        _deliver(list(zip(group, answers, strict=True)))
        self._on_flush(
            len(group), sum(waiting.batch.samples for waiting in group), time.perf_counter() - begun
        )
        return connection

    def _refuse(
        self, connection: Connection | None, group: Sequence[_Waiting[B, A]], error: Exception
    ) -> Connection | None:
        reason = str(error).strip().partition("\n")[0]
        log.warning("batches could not be written, agents will send them again: %s", reason)
        # A deadlock or a lock timeout is over when it is reported: it is not a fault of the
        # database.
        is_lock_conflict = isinstance(
            error, psycopg.errors.DeadlockDetected | psycopg.errors.LockNotAvailable
        )
        if not is_lock_conflict:
            self._failure, self._failing = Failure(self._clock(), reason), True
        _deliver([(waiting, Unavailable(f"database unavailable: {reason}")) for waiting in group])
        # After a lock conflict the session is sound and is used again; after anything else it is
        # replaced.
        if connection is not None and not connection.broken:
            if is_lock_conflict:
                return connection
            connection.close()
        return None

    def _write_alone(
        self, connection: Connection | None, waiting: _Waiting[B, A]
    ) -> Connection | None:
        try:
            if connection is None or connection.closed:
                connection = self._connect()
            answer = self._store.flush(connection, [waiting.batch], self._clock(), self._is_idle)[0]
        except Exception as error:
            if _is_unavailable(error):
                return self._refuse(connection, [waiting], error)
            connection = self._reset_store(connection)
            log.exception("batch %s cannot be written", waiting.batch.key)
            is_refused = isinstance(error, REFUSED)
            failure = (
                error if is_refused else WriteFailed("internal error; see the collector's log")
            )
            if not is_refused:
                self._failed_alone(waiting.batch.key, error)
            _deliver([(waiting, failure)])
            return connection
        self._note_success()
        _deliver([(waiting, answer)])
        return connection

    def _failed_alone(self, key: object, error: Exception) -> None:
        """Count a batch that failed by a fault of ours; one alone may be poison, and must not make
        the others wait.
        """
        self._failed_keys.add(key)
        if len(self._failed_keys) >= MAX_POISON:
            # Only its kind: whoever reaches the port reads this, and an error may quote a batch.
            reason = f"internal error ({type(error).__name__}); see the collector's log"
            self._failure, self._failing = Failure(self._clock(), reason), True

    def _note_success(self) -> None:
        self._failing = False
        self._failed_keys.clear()


def _is_unavailable(error: Exception) -> bool:
    return isinstance(error, UNAVAILABLE) and not isinstance(error, REFUSED)


def _deliver(outcomes: Sequence[tuple[_Waiting[B, A], A | Exception]]) -> None:
    """Wake the event loop once for a group: each wake-up costs a system call and a switch of the
    GIL.
    """
    if outcomes:
        with contextlib.suppress(RuntimeError):  # the loop has ended, and so have its callers
            outcomes[0][0].answer.get_loop().call_soon_threadsafe(_answer, outcomes)


def _answer(outcomes: Sequence[tuple[_Waiting[B, A], A | Exception]]) -> None:
    for waiting, outcome in outcomes:
        if waiting.answer.done():
            continue  # its caller has gone
        if isinstance(outcome, Exception):
            waiting.answer.set_exception(outcome)
        else:
            waiting.answer.set_result(outcome)
