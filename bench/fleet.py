"""A fleet of 100,000 GPUs on one machine: its posts, an hour of its evidence rated, and the
questions about it.

1. *Posts*: 12,500 agents of 8 GPUs post a minute (48 GPU-samples of 28 metrics and 8 usage
   intervals) over a new connection once a minute for ten minutes to `gpuledger serve` with all its
   jobs. Posts are due at a steady rhythm whether or not earlier ones were answered; a wait counts
   from when its post was due. The sender is a process of its own, on the same machine, and its CPU
   is shown.
2. *An hour*: the posts stop, and a usage interval a minute of every GPU is written straight into
   the table for one hour, then folded, and its day rated.
3. *Questions*: the commands and pages that people would ask next, each once, with everything cold
   that a command has cold. Then the commands again once the jobs run again and have rated and
   searched that hour: what people see beside a collector.

With `--month` there are posts alone: of a fleet of this size beside as many GPUs whose last month is
still open, and is rated again, whole, in each minute of the second half. It says how many times the
wait of a quiet minute one of these has.

Nothing is extrapolated, and nothing else is compared: what a step costs here is what this machine needed
for it. It ends with 1 when a post went unanswered for a minute, or an acknowledged one is not
stored exactly once.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime as dt
import gc
import multiprocessing
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import psycopg

from bench._posting import Link, Sent, request
from bench.ingest import GPUS, ROWS, Node, machine, tree_seconds
from bench.rating import SEED, measure_seconds, run
from bench.remote_write import children
from bench.startup import FINE, resident_mib

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from fakes.postgres import open_folder
from fakes.processes import BIN, MSGPACK, CollectorProcess
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, Period, month
from gpuledger_collector.cli.common import GARBAGE_THRESHOLD
from gpuledger_collector.services.refresh import refresh
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.telemetry import partitions

MINUTE_MS, MINUTE_S = 60_000, 60.0
VALUE_SETS = 64
"""Minutes of readings that are drawn once; each post takes one of them."""
QUESTIONS = (
    ("chargeback",),
    ("chargeback", "--by", "team,model"),
    ("idle", "--now"),
    ("reconcile",),
    ("accelerators",),
    ("doctor",),
)
PAGES = ("/", "/metrics", "/readyz")
JOBS = ("rate_usage", "find_idle")
MOST_JOBS_S = 600.0
CHILDREN = resource.RUSAGE_CHILDREN
HOUR_OF_EVIDENCE = """
UPDATE capacity SET in_ms = least(in_ms, %(start)s);
INSERT INTO usage_interval SELECT c.accelerator_id, w.id, 'held', m, m + 60000, 60000, 45000, 15000, 0, 25000000,
    c.node_id, '00000000-0000-4000-8000-000000000001', (m / 60000) %% 100000, 0
    FROM generate_series(%(start)s, %(start)s + 3599999, 60000) m, capacity c
    JOIN workload w ON w.id = 1 + c.accelerator_id %% (SELECT count(*) FROM workload) ORDER BY m, c.node_id;
INSERT INTO hour_recompute (accelerator_id, hour_ms) SELECT accelerator_id, %(start)s FROM capacity;
"""
"""A usage interval a minute of every accelerator, in the order in which agents would have sent
them.
"""


@dataclass(slots=True)
class Minute:
    """What one minute of the run saw."""

    sent: Sent = field(default_factory=Sent)
    lost: int = 0


async def _exchange(port: int, packed: bytes) -> int | None:
    """Status of one post over a connection of its own; None without an answer."""
    try:
        transport, link = await asyncio.get_running_loop().create_connection(
            Link, "127.0.0.1", port
        )
    except OSError:
        return None
    try:
        return await link.post(packed)
    except (OSError, TimeoutError):
        return None
    finally:
        transport.close()


async def _send(
    port: int, nodes: int, minutes: int, progress: Callable[[int, Minute], None]
) -> None:
    fleet = [Node(number) for number in range(nodes)]
    readings = [fleet[number % nodes].values() for number in range(VALUE_SETS)]
    start = time.time() + 1.0
    results = [Minute() for _ in range(minutes)]

    async def post(minute: int, number: int, due: float) -> None:
        body = fleet[number].batch(
            minute + 1, int(due * 1000) - MINUTE_MS, readings[(number + minute) % VALUE_SETS]
        )
        packed = request("/v1/batches", body, MSGPACK)
        result = results[minute]
        # As an agent does: what is refused for now, or unanswered, is sent again until the next
        # batch is due.
        while time.time() < due + MINUTE_S:
            status = await _exchange(port, packed)
            if status in {200, 204}:
                result.sent.waits_ms.append((time.time() - due) * 1000)
                return
            if status not in {None, 429, 503}:
                raise SystemExit(f"a post was answered with {status}")
            result.sent.turned_away += 1
            await asyncio.sleep(1.0)
        result.lost += 1

    pending: set[asyncio.Task[None]] = set()
    for minute in range(minutes):
        for number in range(nodes):
            due = start + minute * MINUTE_S + number / nodes * MINUTE_S
            if (left := due - time.time()) > 0:
                await asyncio.sleep(left)
            task = asyncio.create_task(post(minute, number, due))
            pending.add(task)
            task.add_done_callback(pending.discard)
        if minute:
            progress(minute - 1, results[minute - 1])
    await asyncio.gather(*pending)
    progress(minutes - 1, results[-1])


def _sender(port: int, nodes: int, minutes: int, pipe: Connection) -> None:
    asyncio.run(_send(port, nodes, minutes, lambda minute, result: pipe.send((minute, result))))
    pipe.send(
        resource.getrusage(resource.RUSAGE_SELF).ru_utime
        + resource.getrusage(resource.RUSAGE_SELF).ru_stime
    )


@dataclass(slots=True)
class Cost:
    """CPU seconds up to now, by the kernel's count."""

    collector_s: float
    postgres_s: float

    @classmethod
    def read(cls, collector: CollectorProcess) -> Cost:
        """Collector with its workers; the embedded Postgres is no child of it."""
        assert collector.process is not None
        return cls(tree_seconds(collector.process.pid), tree_seconds(collector.postmaster()))


class Month:
    """The last month of other GPUs, which is open: written and rated once, and rated again whenever
    it is asked for.
    """

    def __init__(self, dsn: str, gpus: int) -> None:
        self._period = month(
            f"{dt.datetime.now(dt.UTC).replace(day=1) - dt.timedelta(days=1):%Y-%m}"
        )
        values = {"gpus": gpus, "start": self._period.start_ms, "end": self._period.end_ms}
        with psycopg.connect(dsn, autocommit=True) as connection:
            run(connection, SEED, values)
            connection.execute("VACUUM ANALYZE")
        wall, _ = measure_seconds(
            lambda: refresh(Database(dsn), self._period, int(time.time() * 1000))
        )
        print(f"a month of {gpus:,} other GPUs, rated alone in {wall:.1f} s\n", flush=True)

    def rate_again(self, connection: psycopg.Connection) -> None:
        """Have every day of it rated, as a changed price does."""
        connection.execute(
            "INSERT INTO day_recompute (day_ms) SELECT generate_series(%s::bigint, %s::bigint, %s)",
            (self._period.start_ms, self._period.end_ms - 1, DAY_MS),
        )

    def rated_days(self, connection: psycopg.Connection) -> int:
        """How many of its days were rated in the last minute."""
        (days,) = connection.execute(
            "SELECT count(*) FROM conservation_check WHERE day_ms >= %s AND day_ms < %s AND"
            " proved_at > now() - interval '1 minute'",
            (self._period.start_ms, self._period.end_ms),
        ).fetchone() or (0,)
        return int(days)


def posts(
    collector: CollectorProcess, nodes: int, minutes: int, beside: Month | None = None
) -> int:
    """Print a row a minute; return how many posts were acknowledged. `beside`: a month that is rated
    in the second half of them.
    """
    receiving, sending = multiprocessing.Pipe(duplex=False)
    sender = multiprocessing.get_context("spawn").Process(
        target=_sender, args=(collector.port, nodes, minutes, sending), daemon=True
    )
    sender.start()
    sending.close()
    print(
        "| minute | answered | lost | turned away | median ms | p99 ms | longest ms | collector,"
        " cores |",
        end="",
    )
    print(" Postgres, cores | hours to fold | days rated |\n" + "|---:" * 11 + "|")
    acknowledged, before, at = 0, Cost.read(collector), time.perf_counter()
    p99_ms: list[float] = []
    rated_days: list[int] = []
    with psycopg.connect(collector.dsn(), autocommit=True) as connection:
        for _ in range(minutes):
            minute, result = receiving.recv()
            now, cost = time.perf_counter(), Cost.read(collector)
            (waiting,) = connection.execute("SELECT count(*) FROM hour_recompute").fetchone() or (
                0,
            )
            rated_days.append(0 if beside is None else beside.rated_days(connection))
            if beside is not None and minute + 1 >= minutes // 2:
                beside.rate_again(connection)
            sent = result.sent
            acknowledged += len(sent.waits_ms)
            waits = (
                [sent.quantile(share) for share in (0.5, 0.99, 1.0)]
                if sent.waits_ms
                else [float("nan")] * 3
            )
            p99_ms.append(waits[1])
            print(
                f"| {minute + 1} | {len(sent.waits_ms):,} | {result.lost:,} |"
                f" {sent.turned_away:,} | "
                + " | ".join(f"{wait:,.0f}" for wait in waits)
                + f" | {(cost.collector_s - before.collector_s) / (now - at):.2f}"
                f" | {(cost.postgres_s - before.postgres_s) / (now - at):.2f} | {waiting:,} | {rated_days[-1]} |",
                flush=True,
            )
            before, at = cost, now
        sender_s = receiving.recv()
        sender.join(60)
        (stored,) = connection.execute(
            "SELECT pg_database_size(current_database())"
        ).fetchone() or (0,)
    if beside is not None:
        # The first minute has every node new.
        quiet, rating = p99_ms[1 : minutes // 2], p99_ms[minutes // 2 :]
        print(
            f"\np99, the median of minutes: {statistics.median(quiet):.1f} ms quiet,"
            f" {statistics.median(rating):.1f} ms beside the month:"
            f" {statistics.median(rating) / statistics.median(quiet):.2f} times (goal 2);"
            f" {sum(rated_days[minutes // 2 :])} days of it were rated meanwhile"
        )
    peaks = ", ".join(f"{name} {mib:.0f} MiB" for name, mib in memory(collector))
    print(
        f"\nsender {sender_s:.0f} s of CPU; database {stored / 2**30:.1f} GiB; peak memory: {peaks}"
    )
    return acknowledged


def memory(collector: CollectorProcess) -> Iterator[tuple[str, float]]:
    """Peak resident memory of the collector and of each of its workers."""
    assert collector.process is not None
    yield "collector", resident_mib(collector.process.pid, "VmHWM")
    for number, pid in enumerate(children(collector.process.pid), 1):
        with contextlib.suppress(FileNotFoundError):
            yield f"process {number} of it", resident_mib(pid, "VmHWM")


def stored_once(dsn: str, acknowledged: int) -> bool:
    """Whether the samples of every acknowledged post are in the table, and none is there twice."""
    with psycopg.connect(dsn) as connection:
        batches, rows, distinct = connection.execute(
            "SELECT (SELECT count(*) FROM ingest_batch), count(*), count(DISTINCT (accelerator_id,"
            " at_ms)) FROM gpu_sample"
        ).fetchone() or (0, 0, 0)
    print(
        f"{acknowledged:,} posts acknowledged, {batches:,} committed; {rows:,} samples stored,"
        f" {distinct:,} distinct"
    )
    # A post whose answer came too late for the sender is committed, too, and would be a duplicate
    # when it comes again.
    return batches >= acknowledged and rows == distinct == batches * ROWS


def an_hour(collector: CollectorProcess) -> None:
    """Print what folding and rating one more whole hour costs: first what the posts left, then the
    hour.
    """
    now_ms = int(time.time() * 1000)
    hour_ms = now_ms - now_ms % HOUR_MS - 3 * HOUR_MS
    day = Period(hour_ms - hour_ms % DAY_MS, hour_ms - hour_ms % DAY_MS + DAY_MS)
    database = Database(collector.dsn())
    print(
        "\n| step | seconds | of one core here | Postgres, CPU s | this process, peak MiB"
        " |\n|---|---:|---:|---:|---:|"
    )

    def step(name: str, call: Callable[[], object]) -> None:
        before = tree_seconds(collector.postmaster())
        wall, own = measure_seconds(call)
        time.sleep(1.0)  # until the CPU of a session that has ended counts with its parent
        used = tree_seconds(collector.postmaster()) - before
        peak = resident_mib(os.getpid(), "VmHWM")
        print(f"| {name} | {wall:.1f} | {own:.1f} | {used:.1f} | {peak:.0f} |", flush=True)

    step("fold and rate what the posts left", lambda: refresh(database, day, now_ms))
    with psycopg.connect(collector.dsn(), autocommit=True) as connection:
        partitions.ensure(connection, "usage_interval", [hour_ms - hour_ms % DAY_MS])
        step(
            "write an hour of evidence",
            lambda: run(connection, HOUR_OF_EVIDENCE, {"start": hour_ms}),
        )
    step("fold and rate that hour", lambda: refresh(database, day, now_ms))


def questions(collector: CollectorProcess, heading: str, pages: Sequence[str]) -> None:
    """Print how long commands and pages take, and the CPU seconds of each command."""
    print(f"\n| {heading} | seconds | of one core | Postgres, CPU s |\n|---|---:|---:|---:|")
    environment = {**os.environ, "GPULEDGER_DSN": collector.dsn()}
    for words in QUESTIONS:
        begun = time.perf_counter()
        before, used = tree_seconds(collector.postmaster()), resource.getrusage(CHILDREN)
        done = subprocess.run(
            [BIN / "gpuledger", *words],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        ended = (
            ""
            if done.returncode in FINE
            else f" (exit {done.returncode}: {done.stderr.strip()[-200:]})"
        )
        seconds, after = time.perf_counter() - begun, resource.getrusage(CHILDREN)
        own = after.ru_utime - used.ru_utime + after.ru_stime - used.ru_stime
        time.sleep(1.0)  # until the CPU of a session that has ended counts with its parent
        print(
            f"| `gpuledger {' '.join(words)}` | {seconds:.2f}{ended} | {own:.1f}"
            f" | {tree_seconds(collector.postmaster()) - before:.1f} |",
            flush=True,
        )
    for path in pages:
        begun = time.perf_counter()
        status, _ = collector.get(path)
        print(f"| {path} (HTTP {status}) | {time.perf_counter() - begun:.2f} | | |", flush=True)


def wait_for_jobs(collector: CollectorProcess) -> None:
    """Wait until each of the jobs that the questions are about has run to its end."""
    since = time.time()
    with psycopg.connect(collector.dsn(), autocommit=True) as connection:
        while time.time() < since + MOST_JOBS_S:
            (done,) = connection.execute(
                "SELECT count(DISTINCT job) FROM job_run WHERE job = ANY(%s) AND outcome = 'done'"
                " AND started_at > to_timestamp(%s)",
                (list(JOBS), since),
            ).fetchone() or (0,)
            if done == len(JOBS):
                return
            time.sleep(1.0)
    print(f"the jobs did not end within {MOST_JOBS_S:.0f} s")


def month_beside(collector: CollectorProcess, gpus: int) -> Month:
    """Write a month while no job runs, which would see half of it."""
    collector.environment["GPULEDGER_JOBS"] = "false"
    collector.start()
    collector.wait_ready()
    written = Month(collector.dsn(), gpus)
    collector.stop(300)
    del collector.environment["GPULEDGER_JOBS"]
    return written


def hour_and_questions(collector: CollectorProcess) -> None:
    """The second and the third part, of a collector that has stopped."""
    collector.environment["GPULEDGER_JOBS"] = "false"
    collector.start()
    collector.wait_ready()
    an_hour(collector)
    questions(collector, "question", PAGES)
    collector.stop(300)
    del collector.environment["GPULEDGER_JOBS"]
    collector.start()
    collector.wait_ready()
    wait_for_jobs(collector)
    questions(collector, "question beside the jobs", ())


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--nodes", type=int, default=12_500, help="nodes of 8 GPUs (default: 12,500)"
    )
    parser.add_argument("--minutes", type=int, default=10, help="minutes of posts (default: 10)")
    parser.add_argument(
        "--workers", help="processes that answer (default: as the collector decides)"
    )
    parser.add_argument(
        "--month", action="store_true", help="posts alone, beside a month that is rated"
    )
    given = parser.parse_args()
    if given.month and given.minutes < 4:
        parser.error("--month: --minutes must be 4 or more")
    # As in every process of the product; the hour is folded and rated in this one.
    gc.set_threshold(GARBAGE_THRESHOLD, 20, 20)
    print(f"{machine()}\n{given.nodes * GPUS:,} GPUs, {given.nodes / MINUTE_S:.0f} posts/s\n")
    folder = open_folder("gpuledger-bench-")
    settings = {"GPULEDGER_WORKERS": given.workers} if given.workers else {}
    collector = CollectorProcess(folder, **settings)
    try:
        beside = month_beside(collector, given.nodes * GPUS) if given.month else None
        collector.start()
        collector.wait_ready()
        if beside is not None:
            # At its start the jobs have much else to do.
            wait_for_jobs(collector)
        acknowledged = posts(collector, given.nodes, given.minutes, beside)
        complete = (
            stored_once(collector.dsn(), acknowledged)
            and acknowledged == given.nodes * given.minutes
        )
        if not given.month:
            collector.stop(300)
            hour_and_questions(collector)
    finally:
        if collector.process is not None and collector.process.poll() is None:
            collector.stop(300)
        shutil.rmtree(folder, ignore_errors=True)
    verdict = (
        "every post was answered and is stored once"
        if complete
        else "missed: see the table of minutes"
    )
    print(f"\n{machine()}\n{verdict}")
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
