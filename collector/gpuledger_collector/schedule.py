"""When jobs run, and which replica runs them.

Every replica has the schedule, one holds the lock: it runs the jobs until its connection ends, and then any
other may take over. Jobs are idempotent, so the moment of a handover costs work and nothing else. A run is a row in
`job_run` from its start on, so that one that was killed can be told from one that never was.
"""

from __future__ import annotations

import datetime as dt
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler

from gpuledger_collector.api.metrics import Metrics
from gpuledger_collector.storage import locks
from gpuledger_collector.storage.errors import StorageError
from gpuledger_collector.storage.locks import Lock

KEEP_RUNS_DAYS = 14

log = logging.getLogger(__name__)
Connection = psycopg.Connection[tuple[Any, ...]]
Connect = Callable[[], Connection]
"""Opens an autocommit connection. Raises StorageError."""


@dataclass(frozen=True, slots=True)
class Job:
    """A piece of scheduled work; what it returns is kept as the run's detail.

    Jobs run one at a time, but for those `apart`: minutes of work that the others need not wait for.
    """

    name: str
    seconds: int
    work: Callable[[], object]
    apart: bool = False


class Leadership:
    """Whether this replica runs the jobs: a lock on a connection that serves for nothing else."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._connection: Connection | None = None
        self._lock = threading.Lock()

    def holds(self) -> bool:
        """Whether we hold the lock now, taking it if it is free. False too when the database is away."""
        with self._lock:
            try:
                if self._connection is not None and not self._connection.closed:
                    self._connection.execute("SELECT 1")
                    return True
                return self._take()
            except (psycopg.Error, StorageError) as error:
                log.info("this replica cannot hold the jobs now: %s", str(error).partition("\n")[0])
                self._drop()
                return False

    def _take(self) -> bool:
        connection = self._connect()
        if not locks.seize(connection, Lock.JOBS):
            connection.close()
            return False
        self._connection = connection
        log.info("this replica runs the jobs")
        return True

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def close(self) -> None:
        """Let another replica take over."""
        with self._lock:
            self._drop()


class Schedule:
    """Runs jobs on their intervals while this replica leads. `clock` tells the time, aware and in UTC."""

    def __init__(
        self,
        jobs: Sequence[Job],
        connect: Connect,
        clock: Callable[[], dt.datetime],
        metrics: Metrics,
        stopping: threading.Event | None = None,
    ) -> None:
        """`stopping` is set when the schedule stops, for jobs that ask."""
        self._jobs = jobs
        self._connect = connect
        self._clock = clock
        self._metrics = metrics
        self._leadership = Leadership(connect)
        self._running = threading.Lock()
        self._apart = threading.Lock()
        self._stopping = stopping or threading.Event()
        # One thread for each of the two: several would wait for a lock, which lets whomever it likes go first.
        self._scheduler = BackgroundScheduler(
            timezone=dt.UTC, executors={"default": ThreadPoolExecutor(1), "apart": ThreadPoolExecutor(1)}
        )

    def start(self) -> None:
        """Start; every job runs at once and then on its interval, one at a time in their order."""
        begin = self._clock()
        for place, job in enumerate(self._jobs):
            self._scheduler.add_job(
                self.run,
                "interval",
                args=[job],
                seconds=job.seconds,
                id=job.name,
                executor="apart" if job.apart else "default",
                next_run_time=begin + dt.timedelta(milliseconds=100 * place),
                max_instances=1,
                coalesce=True,
                misfire_grace_time=None,
            )
        self._scheduler.start()

    def stop(self, seconds: float) -> None:
        """Start no more runs, wait for the one under way for at most `seconds`, and give the leadership back."""
        # Runs that wait for the one under way would otherwise follow it, and take the leadership back.
        self._stopping.set()
        self._scheduler.shutdown(wait=False)
        deadline = time.monotonic() + seconds
        if self._apart.acquire(timeout=seconds):
            self._apart.release()
        if self._running.acquire(timeout=max(0.0, deadline - time.monotonic())):
            self._leadership.close()
            self._running.release()
        else:
            log.warning("a job is still under way: this replica leads until the process ends")

    def run(self, job: Job) -> None:
        """Run a job if this replica leads; whatever happens to it is recorded, logged, and does not stop the rest."""
        with self._apart if job.apart else self._running:
            if self._stopping.is_set():
                return
            leads = self._leadership.holds()
            self._metrics.leader.set(leads)
            if leads:
                self._run(job)

    def _run(self, job: Job) -> None:
        begun = time.perf_counter()
        run_id = self._record_start(job.name)
        try:
            outcome, detail = "done", str(job.work() or "")
        except (StorageError, psycopg.OperationalError) as error:
            outcome, detail = "unavailable", str(error).partition("\n")[0]
            log.warning("job %s could not run: %s", job.name, detail)
        except Exception as error:  # the next run may succeed, and other jobs must run
            outcome, detail = "failed", f"{type(error).__name__}: {error}"
            log.exception("job %s failed", job.name)
        self._record_end(run_id, outcome, detail)
        self._metrics.job_runs.labels(job=job.name, outcome=outcome).inc()
        self._metrics.job_seconds.labels(job=job.name).inc(time.perf_counter() - begun)

    def _record_start(self, name: str) -> int | None:
        row = self._record("INSERT INTO job_run (job, started_at) VALUES (%s, %s) RETURNING id", (name, self._clock()))
        return None if row is None else int(row[0])

    def _record_end(self, run_id: int | None, outcome: str, detail: str) -> None:
        if run_id is not None:
            self._record(
                "UPDATE job_run SET ended_at = %s, outcome = %s, detail = %s WHERE id = %s RETURNING id",
                (self._clock(), outcome, detail[:2000].replace("\0", ""), run_id),
            )

    def _record(self, statement: str, values: tuple[object, ...]) -> tuple[Any, ...] | None:
        try:
            with self._connect() as connection:
                return connection.execute(statement, values).fetchone()
        except (psycopg.Error, StorageError) as error:
            log.warning("a run could not be recorded: %s", str(error).partition("\n")[0])
            return None


def forget_old_runs(connection: Connection, now: dt.datetime) -> None:
    """Remove the records of runs that nobody looks at any more."""
    connection.execute("DELETE FROM job_run WHERE started_at < %s", (now - dt.timedelta(days=KEEP_RUNS_DAYS),))
