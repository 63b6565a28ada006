"""Rate many days in several processes: what is left of a long rating, since most of it is Python on
one core.

Each process takes the next day, rates it in a transaction under the lock of that day, and commits.
An interrupted run leaves whole days, as with one process.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import active_children, connection, get_context, parent_process

from gpuledger_collector.services.rating import rate_day
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.errors import StorageError

GARBAGE_THRESHOLD = 500_000
TERMINATED = 128 + signal.SIGTERM
"""Exit code of a command that SIGTERM ended, as shells show it."""
_databases: list[Database] = []
"""In a worker: the database, with connections that its days share."""


class WorkerEnded(StorageError):
    """A process that rated days was killed; days that were rated stay."""


def rate_days(
    database: Database,
    days_ms: Sequence[int],
    workers: int,
    now_ms: int,
    book_at_ms: int | None,
) -> Iterator[int]:
    """Rate days that do not depend on each other; yields the number of days done.

    Raises what a worker raised, and WorkerEnded; days that were begun are finished, others are not
    begun.
    """
    # Spawned, not forked: this process may have threads, and its connections are its own.
    executor = ProcessPoolExecutor(
        min(workers, len(days_ms)),
        mp_context=get_context("spawn"),
        initializer=_begin,
        initargs=(replace(database, given_dsn=database.dsn, server=None, idle=None),),
    )
    try:
        with _termination_unwinds():
            with _interrupts_later():
                futures = [executor.submit(_rate, day_ms, now_ms, book_at_ms) for day_ms in days_ms]
            for done, future in enumerate(as_completed(futures), 1):
                future.result()
                yield done
    except BrokenProcessPool as error:
        raise WorkerEnded(
            "a process that rated days was ended from outside, perhaps for lack of memory: run the"
            " command again, which goes on with the days that are left"
        ) from error
    finally:
        executor.shutdown(cancel_futures=True)


@contextmanager
def _interrupts_later() -> Iterator[None]:
    """Workers start with interrupts blocked, as this thread: while they import, each would write a
    traceback.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _termination_unwinds() -> Iterator[None]:
    """End the workers and unwind at SIGTERM: a process ended at once leaves semaphores, of which
    Python warns.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _end_in_order)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _end_in_order(*_: object) -> None:
    for worker in active_children():
        worker.terminate()
    sys.exit(TERMINATED)


def _begin(database: Database) -> None:
    """Prepare a worker."""
    # An interrupt of the terminal reaches every process: this one ends at once, and its day is
    # rolled back. A command that a script runs in the background ignores it, and so do its workers.
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_end_with_parent, daemon=True).start()
    gc.set_threshold(GARBAGE_THRESHOLD, 20, 20)
    _databases.append(replace(database, idle=[]))


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


def _rate(day_ms: int, now_ms: int, book_at_ms: int | None) -> None:
    rate_day(_databases[0], day_ms, now_ms, book_at_ms)
