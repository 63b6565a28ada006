"""The schedule: one replica runs the jobs, every run leaves a row, no failure stops the rest."""

import datetime as dt
import threading
import time

import psycopg
import pytest

from fakes.replicas import until
from gpuledger_collector import wiring
from gpuledger_collector.api.metrics import Metrics
from gpuledger_collector.cli import demo_stage
from gpuledger_collector.schedule import KEEP_RUNS_DAYS, Job, Leadership, Schedule, delete_old_runs
from gpuledger_collector.scheduled_jobs import scheduled_jobs
from gpuledger_collector.settings import Settings, load
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.errors import ServerUnavailable
from gpuledger_common.instants import to_ms

NOON = dt.datetime(2026, 10, 1, 12, tzinfo=dt.UTC)
NOON_MS = to_ms(NOON)


def runs(database) -> list[tuple]:
    with database.connect() as connection:
        return connection.execute(
            "SELECT job, outcome, detail, started_at FROM job_run ORDER BY id"
        ).fetchall()


def test_one_replica_leads_until_its_connection_ends(database, dsn):
    """The second replica waits; when the first one's connection is lost it takes over."""
    first, second = Leadership(database), Leadership(database)
    assert first.holds()
    assert first.holds()
    assert not second.holds()
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE relation = 'lock_jobs'::regclass"
        )
    until(second.holds)
    assert not first.holds()
    second.close()
    until(first.holds)  # the server lets go of the lock when it sees that the connection is over
    first.close()


def test_every_run_leaves_a_row_and_no_failure_stops_the_rest(database):
    """What a job says, that it failed, that the database was away: all in job_run, and the next job
    runs.
    """

    def fail() -> None:
        raise ValueError("wrong sums\0")

    def away() -> None:
        raise ServerUnavailable("the database is away")

    metrics = Metrics()
    made = [
        Job("good", 60, lambda: 3, "days rated"),
        Job("bad", 60, fail),
        Job("away", 60, away),
        Job("quiet", 60, int),
    ]
    schedule = Schedule(made, database, lambda: NOON_MS, metrics)
    for job in made:
        schedule.run(job)
    schedule._leadership.close()
    assert runs(database) == [
        ("good", "done", "3 days rated", NOON),
        ("bad", "failed", "ValueError: wrong sums", NOON),
        ("away", "unavailable", "the database is away", NOON),
        ("quiet", "done", "", NOON),
    ]
    assert (
        metrics.registry.get_sample_value(
            "gpuledger_job_runs_total", {"job": "bad", "outcome": "failed"}
        )
        == 1
    )


def test_a_replica_that_does_not_lead_runs_nothing(database):
    """While another one holds the lock, a job is left to it."""
    other = Leadership(database)
    assert other.holds()
    schedule = Schedule([], database, lambda: NOON_MS, Metrics())
    schedule.run(Job("job", 60, lambda: pytest.fail("must not run")))
    assert runs(database) == []
    other.close()


def test_jobs_run_at_once_and_again_until_stopped(database):
    """Started, each job runs in their order without waiting for its first interval; stopped, none
    runs any more.
    """
    order: list[str] = []
    made = [Job(name, 1, lambda name=name: order.append(name)) for name in ("a", "b", "c")]
    schedule = Schedule(made, database, wiring.read_clock, Metrics())
    schedule.start()
    until(lambda: len(order) >= 6)
    schedule.stop(60)
    assert order[:3] == ["a", "b", "c"]
    count = len(order)
    time.sleep(1.2)
    assert len(order) == count


def test_a_database_that_is_away_stops_no_schedule():
    """Without a database nobody leads, and nothing is raised."""
    schedule = Schedule(
        [], Database("postgresql://nobody@127.0.0.1:1/none"), lambda: NOON_MS, Metrics()
    )
    schedule.run(Job("job", 60, lambda: pytest.fail("must not run")))


def test_old_runs_are_forgotten(database):
    """Records of runs are kept for two weeks."""
    with database.connect() as connection:
        for days in (KEEP_RUNS_DAYS + 1, KEEP_RUNS_DAYS - 1):
            at = NOON - dt.timedelta(days=days)
            connection.execute("INSERT INTO job_run (job, started_at) VALUES ('x', %s)", (at,))
        delete_old_runs(connection, NOON_MS)
    assert len(runs(database)) == 1


def test_a_job_apart_holds_no_other_up(database):
    """While it runs the others run; only it waits for itself; stopping tells it to give way."""
    metrics, begun, release, stopping = (
        Metrics(),
        threading.Event(),
        threading.Event(),
        threading.Event(),
    )

    def long() -> str:
        begun.set()
        assert release.wait(60)
        return "packed"

    schedule = Schedule([], database, lambda: NOON_MS, metrics, stopping)
    thread = threading.Thread(target=schedule.run, args=[Job("long", 60, long, apart=True)])
    thread.start()
    try:
        assert begun.wait(60)
        ran = threading.Event()
        schedule.run(Job("short", 60, ran.set))
        assert ran.is_set()
    finally:
        release.set()
        thread.join(60)
    assert not thread.is_alive()
    assert not stopping.is_set()
    schedule.start()
    schedule.stop(5)
    assert stopping.is_set()


def test_a_remote_job_waits_for_no_other(database):
    """Neither for one that takes minutes nor for the others, which do not wait for it."""
    running, release = threading.Semaphore(0), threading.Event()

    def wait() -> None:
        running.release()
        assert release.wait(60)

    schedule = Schedule([], database, lambda: NOON_MS, Metrics())
    busy = [Job("long", 60, wait, apart=True), Job("rating", 60, wait)]
    threads = [threading.Thread(target=schedule.run, args=[job]) for job in busy]
    for thread in threads:
        thread.start()
    try:
        assert all(running.acquire(timeout=60) for _ in threads)
        asked = threading.Event()
        reading = threading.Thread(
            target=schedule.run, args=[Job("reading", 60, asked.set, remote=True)]
        )
        reading.start()
        assert asked.wait(60)
        reading.join(60)
    finally:
        release.set()
        for thread in threads:
            thread.join(60)
    (job,) = [
        job
        for job in scheduled_jobs(Settings(kubernetes_queues="kueue"), database)
        if job.name == "read_queues"
    ]
    assert job.executor == "remote"
    schedule._leadership.close()


def test_a_job_of_0_seconds_is_left_to_its_command(database, tmp_path):
    """So the collector of the demo, which advises on a past month at that month's instants, never
    advises as of now.
    """
    stage = demo_stage.set_up(tmp_path / "out", port=9)
    of_the_demo = load(stage.folder / demo_stage.CONFIG, {}, tmp_path)
    every = {job.name for job in scheduled_jobs(Settings(), database)}
    assert {job.name for job in scheduled_jobs(of_the_demo, database)} == every - {"recommend"}
    rare = Settings(idle_seconds=0, anomaly_seconds=0)
    assert {job.name for job in scheduled_jobs(rare, database)} == every - {
        "find_idle",
        "find_anomalies",
    }
