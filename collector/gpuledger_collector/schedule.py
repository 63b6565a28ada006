"""When jobs run, and which replica runs them.

Every replica has the schedule; the one that holds the lock runs the jobs until its connection ends,
and then another takes over. Jobs are idempotent, so a handover costs some work and nothing else. A
run is a row of `job_run` from its start, so that a killed run differs from one that never started.
"""

from __future__ import annotations

import datetime as dt
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psycopg
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler

from gpuledger_collector.accounting.period import DAY_MS
from gpuledger_collector.api.metrics import Metrics
from gpuledger_collector.faults import sentence
from gpuledger_collector.storage import locks
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.errors import StorageError
from gpuledger_collector.storage.locks import Connection, Lock
from gpuledger_collector.storage.rows import select_value
from gpuledger_common.instants import to_datetime

KEEP_RUNS_DAYS = 14

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Job:
    """A piece of scheduled work; what it returns is recorded as the detail of the run.

    `counts` says what a returned number counts. Jobs run one at a time, except those `apart`: they
    take minutes, and the others need not wait for them; and those `remote`, which ask another server
    at their minute and wait for neither.
    """

    name: str
    seconds: int
    work: Callable[[], object]
    counts: str = ""
    apart: bool = False
    remote: bool = False

    @property
    def executor(self) -> str:
        """The thread that runs it, one job at a time."""
        return "remote" if self.remote else "apart" if self.apart else "default"


EXECUTORS = ("remote", "apart", "default")
"""In the order in which a schedule that stops waits for them."""


class Leadership:
    """Whether this replica runs the jobs: a lock on a connection of its own."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection: Connection | None = None
        self._lock = threading.Lock()

    def holds(self) -> bool:
        """Whether this replica holds the lock, taking it if it is free; False also when the
        database is unavailable.
        """
        with self._lock:
            try:
                if self._connection is not None and not self._connection.closed:
                    self._connection.execute("SELECT 1")
                    return True
                return self._take()
            except (psycopg.Error, StorageError) as error:
                log.info("this replica cannot lead now: %s", str(error).partition("\n")[0])
                self._drop()
                return False

    def _take(self) -> bool:
        connection = self._database.connect()
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
    """Runs jobs on their intervals while this replica leads.

    `clock` tells the time.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        database: Database,
        clock: Callable[[], int],
        metrics: Metrics,
        stopping: threading.Event | None = None,
    ) -> None:
        """`stopping` is set when the schedule stops, for jobs that ask."""
        self._jobs = jobs
        self._database = database
        self._clock = clock
        self._metrics = metrics
        self._leadership = Leadership(database)
        self._running = {name: threading.Lock() for name in EXECUTORS}
        self._stopping = stopping or threading.Event()
        # One thread for each executor: several would wait for the lock, which keeps no order.
        self._scheduler = BackgroundScheduler(
            timezone=dt.UTC,
            executors={name: ThreadPoolExecutor(1) for name in EXECUTORS},
        )

    def start(self) -> None:
        """Start; every job runs at once and then on its interval, one at a time in their order."""
        # By the machine's clock, which the scheduler waits by, and not by the ledger's.
        begin = dt.datetime.now(dt.UTC)
        for place, job in enumerate(self._jobs):
            self._scheduler.add_job(
                self.run,
                "interval",
                args=[job],
                seconds=job.seconds,
                id=job.name,
                executor=job.executor,
                next_run_time=begin + dt.timedelta(milliseconds=100 * place),
                max_instances=1,
                coalesce=True,
                misfire_grace_time=None,
            )
        self._scheduler.start()

    def stop(self, seconds: float) -> None:
        """Start no more runs, wait at most `seconds` for the current one, and release the
        leadership.
        """
        # Otherwise runs that wait for the current one would follow it and take the leadership
        # again.
        self._stopping.set()
        self._scheduler.shutdown(wait=False)
        deadline = time.monotonic() + seconds
        is_idle = False
        for name in EXECUTORS:
            is_idle = self._running[name].acquire(timeout=max(0.0, deadline - time.monotonic()))
            if is_idle:
                self._running[name].release()
        if is_idle:
            self._leadership.close()
        else:
            log.warning("a job is still running: this replica leads until the process ends")

    def run(self, job: Job) -> None:
        """Run a job if this replica leads; a failure is recorded and logged, and does not stop the
        others.
        """
        with self._running[job.executor]:
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
            result = job.work()
            outcome, detail = "done", f"{result} {job.counts}" if job.counts else str(result or "")
        except (StorageError, psycopg.OperationalError) as error:
            outcome, detail = "unavailable", str(error).partition("\n")[0]
            log.warning("job %s could not run: %s", job.name, detail)
        except Exception as error:  # the next run may succeed, and other jobs must run
            outcome, detail = "failed", sentence(error)
            log.exception("job %s failed", job.name)
        self._record_end(run_id, outcome, detail)
        self._metrics.job_runs.labels(job=job.name, outcome=outcome).inc()
        self._metrics.job_seconds.labels(job=job.name).inc(time.perf_counter() - begun)

    def _record_start(self, name: str) -> int | None:
        return self._record(
            "INSERT INTO job_run (job, started_at) VALUES (%s, %s) RETURNING id",
            (name, to_datetime(self._clock())),
        )

    def _record_end(self, run_id: int | None, outcome: str, detail: str) -> None:
        if run_id is not None:
            self._record(
                "UPDATE job_run SET ended_at = %s, outcome = %s, detail = %s WHERE id = %s"
                " RETURNING id",
                (to_datetime(self._clock()), outcome, detail[:2000].replace("\0", ""), run_id),
            )

    def _record(self, statement: str, values: tuple[object, ...]) -> int | None:
        """Run a statement that returns the id of a run; None where it could not."""
        try:
            with self._database.connect() as connection:
                run_id: int | None = select_value(connection, statement, values)
                return run_id
        except (psycopg.Error, StorageError) as error:
            log.warning("a run could not be recorded: %s", str(error).partition("\n")[0])
            return None


def delete_old_runs(connection: Connection, now_ms: int) -> None:
    """Delete the records of runs older than KEEP_RUNS_DAYS."""
    connection.execute(
        "DELETE FROM job_run WHERE started_at < %s",
        (to_datetime(now_ms - KEEP_RUNS_DAYS * DAY_MS),),
    )
