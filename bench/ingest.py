"""Ingest: GPU-samples a second and core with a durable answer, against COPY on the same server and
against peers.

A post is a minute of a node: 8 GPUs x 6 instants = 48 GPU-samples of 28 fast metrics, and its 8
usage_intervals of holding. There are two workloads:

- *fast*: the 28 fast metrics on both sides.
- *same*: the same information. Ours has, once a minute, the 32 slow metrics of each GPU besides, as
  our agent sends them; a Prometheus has to send all 60 series of a GPU with each of its six
  scrapes.

- *floor*: the same rows, ready-made as binary COPY, by one connection into a day partition with
  BRIN like ours, 8,000 rows a commit, synchronous_commit on, on the same Postgres; nothing is
  decoded, checked or numbered.
- *gpuledger*: `gpuledger serve` over HTTP; every answer comes after COMMIT.
- *peers*: the same values as Prometheus remote write (a series a GPU and metric, six samples of
  each in a request), answered when they are in memory (VictoriaMetrics) or in the WAL that nobody
  has flushed yet (Prometheus).

All take turns in each run. CPU is what the kernel counted for the processes of each (for ours:
collector and Postgres); the sender's own is in nobody's figure and takes its part of the machine
from all. A second part measures how many posts a second the collector takes, then posts at half and
at 0.8 of that rate over one connection an agent: the wait for the answer counts from when the post
was due. It ends with 1 when a goal is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import http.client
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import cramjam
import numpy as np
import psycopg

from gpuledger_collector.ingest.batches import columns
from gpuledger_collector.ingest.batches.samples import HOT_KINDS
from gpuledger_collector.ingest.batches.validate import METRIC_KINDS
from gpuledger_collector.ingest.remote_write.messages import ONE
from gpuledger_common.catalog import METRICS
from gpuledger_common.compression import zstd
from gpuledger_common.wire import (
    Batch,
    Column,
    Heartbeat,
    Samples,
    WireAccelerator,
    WireUsageInterval,
    WireWorkload,
    encode,
)

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from bench._posting import Sent, post_in_turn, request, steady
from bench.remote_write import children, cpu_seconds, victoria
from bench.startup import resident_mib
from fakes.ports import free_port
from fakes.postgres import open_folder
from fakes.processes import MSGPACK, CollectorProcess
from fakes.prometheus import WRITE, headers

GPUS, INSTANTS = 8, 6
ROWS = GPUS * INSTANTS
STEP_MS = 10_000
FLOOR_ROWS = 8_000
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
FLOOR_COLUMNS = ", ".join(["accelerator_id", "at_ms", *HOT_KINDS])
SLOW = [metric.name for metric in METRICS if not metric.hot and "GPU" in metric.scopes][:32]
"""With the fast ones the 60 series that an exporter shows of a GPU."""
GOALS = {
    "fast": {"core": 0.2, "victoria-metrics": 1.7, "prometheus": 4.5},
    "same": {"core": 0.2, "victoria-metrics": 3.0, "prometheus": 8.0},
}
"""Ratios per core, by workload."""
NOTHING: Mapping[str, np.ndarray] = {}
TAIL_GOALS_MS = {0.5: 25.0, 0.8: 60.0}
"""p99 at shares of the posts a second that were taken."""
RSS_GOAL_MIB = 250.0


class Node:
    """A node's minutes: values that drift as a busy GPU's do, rounded as drivers tell them."""

    def __init__(self, number: int) -> None:
        self.name = f"node-{number:05}"
        self._chance = np.random.default_rng(number)
        self._epoch = str(uuid.UUID(int=number + 1))
        self._accelerators = [
            WireAccelerator(
                uuid=f"GPU-{number:05}-{gpu}",
                device_uuid=f"GPU-{number:05}-{gpu}",
                index=gpu,
                model="NVIDIA H100 80GB HBM3",
                pool="train",
                memory_bytes=80 << 30,
                health="ok",
            )
            for gpu in range(GPUS)
        ]
        self._at = np.repeat(np.arange(INSTANTS) * STEP_MS, GPUS)
        self._place = np.tile(np.arange(GPUS), INSTANTS)

    def values(self) -> dict[str, np.ndarray]:
        """One minute: 48 values of each metric."""
        found = {}
        for name, kind in HOT_KINDS.items():
            if name.endswith("_ratio"):
                made = np.round(self._chance.uniform(0.3, 1.0, ROWS), 2)
            elif name.endswith("_bytes"):
                made = np.repeat(self._chance.integers(20_000, 80_000, 6), GPUS) * 2.0**20
            elif name == "gpu_energy_joules_total":
                made = 1e9 + np.cumsum(self._chance.integers(3000, 7000, ROWS)) * 1.0
            elif name.endswith("_watts"):
                made = np.round(self._chance.uniform(200, 700, ROWS), 3)
            else:
                made = self._chance.integers(0, 90, ROWS) * 1.0
            found[name] = made.astype(f"<{kind}")
        return found

    def slow(self) -> dict[str, np.ndarray]:
        """Limits, modes and counters of errors of each GPU: they stay as they are."""
        return {
            name: (np.arange(GPUS) + place).astype(f"<{METRIC_KINDS[name]}")
            for place, name in enumerate(SLOW)
        }

    def batch(
        self,
        seq: int,
        start_ms: int,
        values: dict[str, np.ndarray],
        slow: Mapping[str, np.ndarray] = NOTHING,
    ) -> bytes:
        """The body that an agent would send of a minute; it reads slow metrics with the first
        sample.
        """
        end_ms = start_ms + INSTANTS * STEP_MS
        usage_intervals = [
            WireUsageInterval(
                accelerator=gpu,
                state="held",
                start_ms=start_ms,
                end_ms=end_ms,
                workload=0,
                held_ms=60_000,
                busy_ms=50_000,
                idle_ms=10_000,
                energy_mj=30_000_000,
            )
            for gpu in range(GPUS)
        ]
        readings = Samples(
            self._place.tolist(),
            (start_ms + self._at).tolist(),
            {name: Column(HOT_KINDS[name], made.tobytes()) for name, made in values.items()}
            | {
                name: Column(
                    METRIC_KINDS[name],
                    made.tobytes() + columns.blank(ROWS - GPUS, METRIC_KINDS[name]).tobytes(),
                )
                for name, made in slow.items()
            },
        )
        made = Batch(
            version=1,
            node=self.name,
            epoch=self._epoch,
            seq=seq,
            accelerators=self._accelerators,
            workloads=[WireWorkload(id=self.name, kind="slurm", tags={"team": "bench"})],
            usage_intervals=usage_intervals,
            samples=readings,
            heartbeat=Heartbeat(agent_version="0", source="simulated", status="ok", produced=seq),
        )
        return zstd.compress(encode(made))

    def remote_write(
        self, start_ms: int, values: dict[str, np.ndarray], slow: Mapping[str, np.ndarray] = NOTHING
    ) -> bytes:
        """The same minute as a Prometheus would write it: every series with every scrape."""
        values = values | {name: np.tile(made, INSTANTS) for name, made in slow.items()}
        whole = ONE["WriteRequest"]()
        for gpu, one in enumerate(self._accelerators):
            mine = self._place == gpu
            times = (start_ms + self._at[mine]).tolist()
            for name, made in values.items():
                series = whole.timeseries.add()
                for key, value in (
                    ("UUID", one.uuid),
                    ("__name__", name),
                    ("gpu", str(gpu)),
                    ("instance", self.name),
                    ("job", "gpu"),
                    ("modelName", one.model),
                ):
                    series.labels.add(name=key, value=value)
                for at, value in zip(times, made[mine].tolist(), strict=True):
                    series.samples.add(value=value, timestamp=at)
        return bytes(cramjam.snappy.compress_raw(whole.SerializeToString()))

    def rows(self, first_id: int, start_ms: int, values: dict[str, np.ndarray]) -> list[np.ndarray]:
        """The same minute as columns of the table of samples."""
        ids = (first_id + self._place).astype("<i8")
        return [ids, (start_ms + self._at).astype("<i8"), *values.values()]


def tree_seconds(pid: int) -> float:
    """CPU of a process and its children; one that ends meanwhile is counted with its parent the
    next time.
    """
    whole = cpu_seconds(pid)
    for child in children(pid):
        with contextlib.suppress(FileNotFoundError):
            whole += cpu_seconds(child)
    return whole


def minutes(rounds: int) -> list[int]:
    """Starts of the minutes, up to the last whole one."""
    end = int(time.time()) // 60 * 60_000
    return [end - (rounds - number) * 60_000 for number in range(rounds)]


def spread(per_node: Sequence[Sequence[bytes]], links: int) -> list[list[bytes]]:
    """Queues of requests: a node's stay in one, in their order; minute by minute over the nodes."""
    queues: list[list[bytes]] = [[] for _ in range(links)]
    for turn in range(len(per_node[0])):
        for number, mine in enumerate(per_node):
            queues[number % links].append(mine[turn])
    return queues


@contextlib.contextmanager
def prometheus() -> Iterator[tuple[int, int]]:
    """Port and process id of a Prometheus that takes remote write and scrapes nothing."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "empty.yml").write_text("global: {}\n")
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={folder}/empty.yml",
                f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address=127.0.0.1:{port}",
                "--web.enable-remote-write-receiver",
                "--storage.tsdb.retention.time=400d",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                with contextlib.suppress(OSError):
                    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
                    connection.request("GET", "/-/ready")
                    if connection.getresponse().status == 200:
                        break
                time.sleep(0.1)
            yield port, process.pid
        finally:
            process.terminate()
            process.wait(60)


def floor(dsn: str, postmaster: int, blocks: Sequence[bytes]) -> tuple[float, float]:
    """Wall and Postgres' CPU seconds of COPY into a partition like ours, a commit a block."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS floor")
        connection.execute("CREATE TABLE floor (LIKE gpu_sample) PARTITION BY RANGE (at_ms)")
        connection.execute("CREATE INDEX ON floor USING brin (at_ms)")
        connection.execute("CREATE TABLE floor_day PARTITION OF floor DEFAULT")
        connection.execute("SET synchronous_commit = on")
        connection.execute("CHECKPOINT")
        before, begun = tree_seconds(postmaster), time.perf_counter()
        for block in blocks:
            with connection.cursor().copy(
                f"COPY floor ({FLOOR_COLUMNS}) FROM STDIN (FORMAT binary)"
            ) as copy:
                copy.write(block)
        wall = time.perf_counter() - begun
        busy = tree_seconds(postmaster) - before
        connection.execute("DROP TABLE floor")
        backend = connection.info.backend_pid
    deadline = time.monotonic() + 10
    while Path(f"/proc/{backend}").exists() and time.monotonic() < deadline:
        # Until its parent has taken over what it used, or whoever is measured next is charged with
        # it.
        time.sleep(0.01)
    return wall, busy


def floor_blocks(parts: Sequence[list[np.ndarray]]) -> list[bytes]:
    """Binary COPY of all rows, FLOOR_ROWS to a block."""
    whole = [np.concatenate(column) for column in zip(*parts, strict=True)]
    return [
        b"".join(columns.pack([column[begin : begin + FLOOR_ROWS] for column in whole]))
        for begin in range(0, len(whole[0]), FLOOR_ROWS)
    ]


class Data:
    """Everything that is sent, made ahead: `runs` parts of `rounds` minutes of each node."""

    def __init__(
        self, nodes: int, rounds: int, runs: int, links: int, peers: bool, has_slow: bool = False
    ) -> None:
        fleet = [Node(number) for number in range(nodes)]
        starts = minutes(rounds * (runs + 1))
        self.ours: list[list[list[bytes]]] = []
        self.theirs: list[list[list[bytes]]] = []
        self.blocks: list[list[bytes]] = []
        for run in range(runs + 1):
            mine, remote, rows = [], [], []
            part = range(run * rounds, (run + 1) * rounds) if run else range(2)
            for number, node in enumerate(fleet):
                slow = node.slow() if has_slow else {}
                made = [(turn, starts[turn], node.values()) for turn in part]
                mine.append(
                    [
                        request("/v1/batches", node.batch(turn + 1, at, values, slow), MSGPACK)
                        for turn, at, values in made
                    ]
                )
                if peers:
                    remote.append(
                        [
                            request(WRITE, node.remote_write(at, values, slow), headers())
                            for _, at, values in made
                        ]
                    )
                rows += [node.rows(1 + number * GPUS, at, values) for _, at, values in made]
            self.ours.append(spread(mine, links))
            self.theirs.append(spread(remote, links) if peers else [])
            self.blocks.append(floor_blocks(rows))
        self.count = nodes * rounds * ROWS
        self.bytes = statistics.fmean(len(one) for queue in self.ours[1] for one in queue)


def turns(
    given: argparse.Namespace, data: Data, found: dict[str, list[tuple[float, float]]]
) -> None:
    """Every receiver in turn, run after run; wall and CPU seconds by name.

    Run 0 warms and is not kept.
    """
    with contextlib.ExitStack() as stack:
        peers = {}
        if shutil.which("victoria-metrics"):
            peers["victoria-metrics"] = stack.enter_context(victoria())
        if shutil.which("prometheus"):
            peers["prometheus"] = stack.enter_context(prometheus())
        collector = stack.enter_context(collecting())
        assert collector.process is not None
        postmaster = collector.postmaster()
        for run in range(given.runs + 1):
            found.setdefault("floor", []).append(
                floor(collector.admin_dsn(), postmaster, data.blocks[run])
            )
            before = cpu_seconds(collector.process.pid), tree_seconds(postmaster)
            sent = post_in_turn(collector.port, data.ours[run])
            found.setdefault("collector alone", []).append(
                (sent.wall_s, cpu_seconds(collector.process.pid) - before[0])
            )
            whole = (
                cpu_seconds(collector.process.pid)
                - before[0]
                + tree_seconds(postmaster)
                - before[1]
            )
            found.setdefault("gpuledger", []).append((sent.wall_s, whole))
            for name, (port, pid) in peers.items():
                begun = cpu_seconds(pid)
                sent = post_in_turn(port, data.theirs[run])
                time.sleep(1)
                found.setdefault(name, []).append((sent.wall_s, cpu_seconds(pid) - begun))
        rows = sum(sum(map(len, queues)) for queues in data.ours) * ROWS
        check(collector.dsn(), rows)
    for kept in found.values():
        del kept[0]


@contextlib.contextmanager
def collecting(workers: int = 1) -> Iterator[CollectorProcess]:
    """A collector of this run's own, without its jobs."""
    folder = open_folder("gpuledger-bench-")
    made = CollectorProcess(
        folder,
        GPULEDGER_JOBS="false",
        GPULEDGER_NODE_NAMES_PER_SECOND="0",
        GPULEDGER_WORKERS=str(workers),
    )
    try:
        made.start()
        made.wait_serving(workers)
        yield made
    finally:
        if made.process is not None and made.process.poll() is None:
            made.stop()
        shutil.rmtree(folder, ignore_errors=True)


def check(dsn: str, rows: int) -> None:
    """What was acknowledged is there, once."""
    with psycopg.connect(dsn) as connection:
        found = connection.execute(
            "SELECT count(*), count(DISTINCT (accelerator_id, at_ms)) FROM gpu_sample"
        ).fetchone()
    if found != (rows, rows):
        raise SystemExit(f"{rows} samples were acknowledged, and stored are {found}")


def own_pids(collector: CollectorProcess) -> list[int]:
    """Processes that take posts: the collector itself, or its workers."""
    assert collector.process is not None
    return list(collector.workers().values()) or [collector.process.pid]


def at_a_rate(agents: int, seconds: int, workers: int = 1) -> tuple[Sent, float, float]:
    """A post a second from each agent over a connection of its own: waits, RSS and peak in MiB of
    the largest process that takes them.
    """
    starts = minutes(seconds + 2)
    made = []
    for number in range(agents):
        node = Node(100_000 + number)
        values = [node.values() for _ in range(2)]
        made.append(
            [
                request("/v1/batches", node.batch(turn + 1, at, values[turn % 2]), MSGPACK)
                for turn, at in enumerate(starts)
            ]
        )
    with collecting(workers) as collector:
        steady(collector.port, [queue[:2] for queue in made], 2.0)
        sent = steady(collector.port, [queue[2:] for queue in made], 1.0)
        rss, peak = (
            max(resident_mib(pid, key) for pid in own_pids(collector)) for key in ("VmRSS", "VmHWM")
        )
        check(collector.dsn(), agents * len(starts) * ROWS)
    return sent, rss, peak


def workers_in_turn(given: argparse.Namespace, counts: Sequence[int]) -> None:
    """Prints throughput, CPU a post, p99 and memory with these numbers of workers, as ratios to the
    first.
    """
    data = Data(given.nodes, given.rounds, given.runs, given.links, False)
    found: dict[int, list[tuple[float, float]]] = {count: [] for count in counts}
    supervisors: dict[int, float] = {}
    with contextlib.ExitStack() as stack:
        collectors = {count: stack.enter_context(collecting(count)) for count in counts}
        for run in range(given.runs + 1):
            for count, collector in collectors.items():
                assert collector.process is not None
                pids = {*own_pids(collector), collector.process.pid}

                def busy(pids: set[int] = pids, collector: CollectorProcess = collector) -> float:
                    return sum(map(cpu_seconds, pids)) + tree_seconds(collector.postmaster())

                before = busy()
                sent = post_in_turn(collector.port, data.ours[run])
                found[count].append((sent.wall_s, busy() - before))
                supervisors[count] = resident_mib(collector.process.pid, "VmRSS")
        for collector in collectors.values():
            check(collector.dsn(), sum(sum(map(len, queues)) for queues in data.ours) * ROWS)
    posts = given.nodes * given.rounds
    print(
        f"{posts:,} posts of {ROWS} GPU-samples a run over {given.links} connections, medians of"
        f" {given.runs} runs in"
    )
    print(
        f"turn; p99 of {given.agents:,} posts a second for {given.seconds} s, each agent on its own"
        " connection\n"
    )
    print(
        "| workers | posts/s | | CPU ms a post | | p99 ms | | RSS of a worker, MiB | of the"
        " supervisor |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    first: tuple[float, float, float] | None = None
    for count in counts:
        sent, rss, _ = at_a_rate(given.agents, given.seconds, count)
        values = (
            posts / statistics.median(wall for wall, _ in found[count][1:]),
            statistics.median(cpu for _, cpu in found[count][1:]) / posts * 1000,
            sent.quantile(0.99),
        )
        first = first or values
        rate, cpu, p99 = (
            f"{value:,.{digits}f}" for value, digits in zip(values, (0, 2, 1), strict=True)
        )
        ratios = [f"{value / base:.2f}" for value, base in zip(values, first, strict=True)]
        own = f"{supervisors[count]:.0f}" if count > 1 else "none"
        print(
            f"| {count} | {rate} | {ratios[0]} | {cpu} | {ratios[1]} | {p99} | {ratios[2]} |"
            f" {rss:.0f} | {own} |"
        )


def tail(agents: int, seconds: int) -> tuple[float, dict[float, Sent], float]:
    """Posts a second that are taken, the waits at shares of that rate, and the collector's peak of
    memory in MiB.
    """
    nodes = [Node(100_000 + number) for number in range(agents)]
    values = [node.values() for node in nodes]
    starts = minutes(100 + seconds * len(TAIL_GOALS_MS))
    turn = 0

    def posts(rounds: int) -> list[list[bytes]]:
        nonlocal turn
        turn += rounds
        part = range(turn - rounds, turn)
        return [
            [
                request("/v1/batches", node.batch(number + 1, starts[number], made), MSGPACK)
                for number in part
            ]
            for node, made in zip(nodes, values, strict=True)
        ]

    with collecting() as collector:
        assert collector.process is not None
        steady(collector.port, posts(2), 4.0)
        taken = post_in_turn(collector.port, spread(posts(3), 64))
        rate = len(taken.waits_ms) / taken.wall_s
        found = {}
        for share in TAIL_GOALS_MS:
            every_s = agents / (rate * share)
            found[share] = steady(collector.port, posts(max(2, round(seconds / every_s))), every_s)
        peak = resident_mib(collector.process.pid, "VmHWM")
        check(collector.dsn(), agents * turn * ROWS)
    return rate, found, peak


def table(
    found: dict[str, list[tuple[float, float]]], count: int
) -> dict[str, tuple[float, float]]:
    """Prints medians; GPU-samples a second, and a second and core, by name."""
    rates = {
        name: (
            count / statistics.median(wall for wall, _ in kept),
            count / max(TICK_S, statistics.median(cpu for _, cpu in kept)),
        )
        for name, kept in found.items()
    }
    print(
        "| receiver | GPU-samples/s | per core | of the floor: wall | per core | per core:"
        " gpuledger is |"
    )
    print("|---|---|---|---|---|---|")
    for name, (wall, core) in rates.items():
        print(
            f"| {name} | {wall:,.0f} | {core:,.0f} | {wall / rates['floor'][0]:.2f} | "
            f"{core / rates['floor'][1]:.2f} | {rates['gpuledger'][1] / core:.2f} x |"
        )
    return rates


def machine() -> str:
    """Date, processors and load, for the record."""
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    return (
        f"{dt.datetime.now(dt.UTC):%Y-%m-%d %H:%M} UTC, {os.cpu_count()} cores,"
        f" {platform.release()}, load {load}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--nodes", type=int, default=250, help="nodes of 8 GPUs (default: 250, that is 2,000 GPUs)"
    )
    parser.add_argument(
        "--rounds", type=int, default=8, help="minutes of each node in a run (default: 8)"
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument(
        "--links", type=int, default=64, help="connections of the sender (default: 64)"
    )
    parser.add_argument(
        "--agents", type=int, default=1000, help="agents with a connection each (default: 1,000)"
    )
    parser.add_argument(
        "--seconds", type=int, default=15, help="how long they post at each rate (default: 15)"
    )
    parser.add_argument("--only", choices=("fast", "same", "tail"))
    parser.add_argument(
        "--workers", metavar="N,N,...", help="only compare these numbers of workers, as 1,2,4"
    )
    given = parser.parse_args()
    if given.workers:
        print(f"{machine()}\n")
        workers_in_turn(given, [int(count) for count in given.workers.split(",")])
        print(f"\n{machine()}")
        return 0
    missing = [name for name in ("prometheus", "victoria-metrics") if not shutil.which(name)]
    if missing:
        print(
            f"not compared: {' and '.join(missing)} is missing (on Debian: apt-get install"
            f" {' '.join(missing)})\n"
        )
    missed: list[str] = []
    print(f"{machine()}\n")
    for workload in GOALS:
        if given.only in (None, workload):
            missed += compare(given, workload, len(missing) < 2)
    if given.only in (None, "tail"):
        rate, waits, peak = tail(given.agents, given.seconds)
        print(
            f"\n{given.agents:,} agents; {rate:,.0f} posts/s of {ROWS} GPU-samples are taken."
            " Answered after ms,"
        )
        print(f"over {given.seconds} s at shares of that rate:\n")
        print("| share | posts/s | median | p99 | goal |\n|---|---|---|---|---|")
        for share, sent in waits.items():
            p99, goal = sent.quantile(0.99), TAIL_GOALS_MS[share]
            reached = len(sent.waits_ms) / sent.wall_s
            print(
                f"| {share} | {reached:,.0f} | {sent.quantile(0.5):.1f} | {p99:.1f} | {goal:.0f} |"
            )
            missed += [f"p99 at {share}: {p99:.0f} ms (goal {goal:.0f})"] * (p99 > goal)
        print(f"\ncollector at most {peak:.0f} MiB")
        missed += [f"memory {peak:.0f} MiB (goal {RSS_GOAL_MIB:.0f})"] * (peak > RSS_GOAL_MIB)
    print(f"\n{machine()}\nmissed: {'; '.join(missed) or 'none'}")
    return 1 if missed else 0


def compare(given: argparse.Namespace, workload: str, peers: bool) -> list[str]:
    """Run a workload on all receivers in turn and print the table; returns the goals that were
    missed.
    """
    data = Data(
        given.nodes, given.rounds, given.runs, given.links, peers, has_slow=workload == "same"
    )
    slow = f" and, once a minute, {len(SLOW)} slow ones" if workload == "same" else ""
    print(
        f"*{workload}*: {given.nodes * GPUS:,} GPUs, {data.count:,} GPU-samples a run,"
        f" {len(HOT_KINDS)} metrics{slow};"
    )
    print(
        f"posts of {ROWS} ({data.bytes:,.0f} bytes), {given.links} connections; medians of"
        f" {given.runs} runs in turn\n"
    )
    found: dict[str, list[tuple[float, float]]] = {}
    turns(given, data, found)
    rates = table(found, data.count)
    print()
    own = rates["gpuledger"][1]
    results = {"core": own / rates["floor"][1]}
    results |= {
        name: own / rates[name][1] for name in ("victoria-metrics", "prometheus") if name in rates
    }
    goals = GOALS[workload]
    return [
        f"{workload}: {name} {value:.2f} (goal {goals[name]})"
        for name, value in results.items()
        if value < goals[name]
    ]


if __name__ == "__main__":
    sys.exit(main())
