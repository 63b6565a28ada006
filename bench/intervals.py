"""Bytes of usage intervals: as rows, and packed.

A day of the demo's simulated fleet, and of cards that are held by jobs one after the other, with
the durations of a real trace (`--trace`, the pods of Alibaba's openb) and of one that is worse than
any: jobs of 10 to 30 seconds all day. Each is sampled every 10 s (or some milliseconds more or
less), metered by the agent's meter and cut at each push, as agents do. It ends with 1 when the demo
or the trace takes more than 12 bytes a GPU-minute.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import random
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from gpuledger_agent.sources.fleet import Fleet
from gpuledger_agent.sources.simulated import SimulatedSource
from gpuledger_collector.accounting.period import DAY_MS
from gpuledger_collector.services.upkeep import pack_usage_intervals
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.server import migrate
from gpuledger_collector.storage.server.embedded import EmbeddedServer
from gpuledger_collector.storage.telemetry import partitions, usage_evidence
from gpuledger_common.batches import BatchMaker
from gpuledger_common.meter import Meter
from gpuledger_common.readings import Accelerator, Holder, Sample, Workload
from gpuledger_common.wire import WireUsageInterval

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from fakes.postgres import open_folder

STEP_MS, PUSH_MS, GAP_MS = 10_000, 60_000, 60_000
DAY = int(time.time() * 1000) // DAY_MS * DAY_MS - 60 * DAY_MS
AIM = 12
Row = tuple[object, ...]
Tick = tuple[Sequence[Sample], dict[str, Sequence[Holder]]]


class Cards:
    """Cards of a node that jobs hold one after the other, of the durations that are given."""

    def __init__(self, count: int, seconds: Callable[[], float], seed: int) -> None:
        self.accelerators = [
            Accelerator(f"GPU-{seed}-{n}", f"GPU-{seed}-{n}", n, "NVIDIA H100")
            for n in range(count)
        ]
        self._seconds, self._dice = seconds, random.Random(seed)
        self._until = [0.0] * count
        self._job: list[tuple[Holder | None, float, float]] = [(None, 0.0, 70.0)] * count
        self._jobs = seed * 1_000_000

    def read(self, at_ms: int) -> Tick:
        """Samples and holders at an instant; a job in five is followed by a pause."""
        samples, holders = [], {}
        for place, entry in enumerate(self.accelerators):
            if at_ms >= self._until[place]:
                self._next(place, at_ms)
            holder, busy, watts = self._job[place]
            values = {
                "gpu_utilization_ratio": float(self._dice.random() < busy),
                "gpu_power_watts": max(0.0, self._dice.gauss(watts, 15)),
            }
            samples.append(Sample(entry.uuid, at_ms * 1_000_000, values))
            if holder is not None:
                holders[entry.uuid] = (holder,)
        return samples, holders

    def _next(self, place: int, at_ms: int) -> None:
        self._jobs += 1
        self._until[place] = at_ms + 1000 * self._seconds()
        job: tuple[Holder | None, float, float] = (None, 0.0, 70.0)
        if self._job[place][0] is None or self._dice.random() < 0.8:
            watts = self._dice.choice([120.0, 250.0, 400.0, 680.0])
            workload = Workload(str(self._jobs), "slurm")
            job = (Holder(workload), self._dice.choice([0, 0.5, 0.9, 1, 1]), watts)
        self._job[place] = job


def metered(
    accelerators: Sequence[Accelerator], read: Callable[[int], Tick], jitter_ms: int, seed: int
) -> Iterator[tuple[int, int, BatchMaker, Sequence[WireUsageInterval]]]:
    """The pushes of a node's day: sequence number, and the usage intervals of each."""
    dice, meter = random.Random(seed), Meter(GAP_MS)
    pushed, seq = DAY, dice.randrange(100_000)
    for at_ms in range(DAY, DAY + DAY_MS, STEP_MS):
        instant = at_ms + dice.randint(0, jitter_ms)
        samples, holders = read(instant)
        for sample in samples:
            meter.tick(sample, instant, holders.get(sample.uuid, ()))
        if at_ms >= pushed + PUSH_MS:
            pushed, seq = at_ms, seq + 1
            maker = BatchMaker(accelerators, "", {})
            yield seq, at_ms, maker, maker.usage_intervals(meter.take())


class Rows:
    """Rows of `usage_interval` of nodes; ids of workloads in the order in which they appear."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.accelerators = 0
        self._workloads: dict[str, int] = {}

    def add(
        self, accelerators: Sequence[Accelerator], read: Callable[[int], Tick], jitter_ms: int
    ) -> None:
        """Meter a node's day."""
        first, self.accelerators = self.accelerators, self.accelerators + len(accelerators)
        epoch = uuid.uuid4()
        for seq, _, maker, intervals in metered(accelerators, read, jitter_ms, first):
            for record, each in enumerate(intervals):
                workload_id = None
                if each.workload is not None:
                    name = maker._workloads[each.workload].id
                    # A job of a fleet of 2,000 GPUs: others begin in between.
                    step = random.Random(name).randint(1, 200)
                    workload_id = self._workloads.setdefault(
                        name, max(self._workloads.values(), default=10**6) + step
                    )
                self.rows.append(
                    (
                        *(first + each.accelerator + 1, workload_id, each.state),
                        *(each.start_ms, each.end_ms, each.held_ms, each.busy_ms, each.idle_ms),
                        *(each.unknown_ms, each.energy_mj, first + 1, epoch, seq, record),
                        *(first + 1, None if workload_id is None else workload_id + 777),
                    )
                )


def demo(nodes: int, jitter_ms: int) -> Rows:
    """A day of nodes of the demo's fleet."""
    fleet, rows = Fleet(), Rows()
    for node in fleet.nodes[:: max(1, len(fleet.nodes) // nodes)][:nodes]:
        clock = [DAY]
        source = SimulatedSource(fleet, node.name, lambda clock=clock: clock[0])

        def read(at_ms: int, source: SimulatedSource = source, clock: list[int] = clock) -> Tick:
            clock[0] = at_ms
            return source.read(["fast"]), dict(source.holders((), ()))

        rows.add(node.accelerators, read, jitter_ms)
    return rows


def jobs(nodes: int, seconds: Callable[[], float], jitter_ms: int) -> Rows:
    """A day of nodes whose cards are held by jobs of these durations."""
    rows = Rows()
    for number in range(nodes):
        cards = Cards(8, seconds, number)
        rows.add(cards.accelerators, cards.read, jitter_ms)
    return rows


def durations(trace: Path) -> list[float]:
    """Seconds that the pods of a trace ran, those of which both ends are known."""
    with gzip.open(trace, "rt", encoding="utf-8") as lines:
        return [
            float(row["deletion_time"]) - float(row["scheduled_time"])
            for row in csv.DictReader(lines)
            if row["deletion_time"] and row["scheduled_time"]
        ]


def measure(dsn: str, rows: Rows) -> dict[str, float]:
    """Write, pack and read back; every row must be the same."""
    database, minutes = Database(dsn), rows.accelerators * 1_440
    columns = ", ".join(usage_evidence.COLUMNS)
    source = usage_evidence.intervals(DAY, DAY + DAY_MS)
    with database.connect() as connection:
        connection.execute("TRUNCATE usage_interval, usage_interval_day")
        partitions.ensure(connection, "usage_interval", [DAY])
        with connection.cursor().copy(f"COPY usage_interval ({columns}) FROM STDIN") as copy:
            for row in rows.rows:
                copy.write_row(row)
        name = partitions.partition_name("usage_interval", DAY)
        connection.execute("VACUUM ANALYZE usage_interval")
        hot = connection.execute("SELECT pg_total_relation_size(%s::regclass)", (name,)).fetchone()

        def look() -> tuple[object, float]:
            begun = time.perf_counter()
            sums = connection.execute(
                f"SELECT count(*), sum(hashtextextended(s::text, 0)) FROM {source} AS s".encode()
            ).fetchone()
            return sums, time.perf_counter() - begun

        before, hot_s = look()
        begun = time.perf_counter()
        packed = pack_usage_intervals(database, 37, DAY + 50 * DAY_MS)
        pack_s = time.perf_counter() - begun
        after, packed_s = look()
        if after != before or packed.intervals != len(rows.rows):
            raise SystemExit(f"{before} were written, {after} came back, {packed} packed")
        connection.execute("VACUUM ANALYZE usage_interval_day")
        size = connection.execute("SELECT pg_total_relation_size('usage_interval_day')").fetchone()
    if hot is None or size is None:
        raise SystemExit("no size")
    return {
        "intervals": len(rows.rows) / minutes,
        "hot": hot[0] / minutes,
        "packed": size[0] / minutes,
        "pack": pack_s / len(rows.rows) * 1e6,
        "hot read": hot_s / len(rows.rows) * 1e6,
        "packed read": packed_s / len(rows.rows) * 1e6,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=16, help="nodes of each load (default: 16)")
    parser.add_argument("--trace", type=Path, help="durations of jobs: pods of openb (CSV, gzip)")
    given = parser.parse_args()
    dice, aims = random.Random(7), []
    loads: list[tuple[str, Callable[[], Rows]]] = [
        ("the demo's fleet", lambda: demo(given.nodes, 0)),
        ("the demo's fleet, 3 ms of jitter", lambda: demo(given.nodes, 3)),
    ]
    if given.trace:
        known = durations(given.trace)
        loads.append(
            ("jobs of the trace", lambda: jobs(given.nodes, lambda: dice.choice(known), 3))
        )
        short = sorted(known)[: len(known) // 2]
        loads.append(
            ("the shorter half of them", lambda: jobs(given.nodes, lambda: dice.choice(short), 3))
        )
    aims = [name for name, _ in loads]
    loads += [
        (
            "jobs of 2 minutes in the mean",
            lambda: jobs(given.nodes, lambda: 20 + dice.expovariate(1 / 100), 3),
        ),
        ("jobs of 10 to 30 s", lambda: jobs(given.nodes, lambda: dice.choice([10, 20, 30]), 3)),
    ]
    folder = open_folder("gpuledger-bench-")
    server, missed = EmbeddedServer(folder), []
    print("| load | intervals a minute | row B | packed B | pack µs | read µs | packed read µs |")
    print("|---|---|---|---|---|---|---|")
    try:
        dsn = server.acquire()
        migrate.upgrade(dsn)
        for name, load in loads:
            got = measure(dsn, load())
            if name in aims and got["packed"] > AIM:
                missed.append(name)
            print(
                f"| {name} | {got['intervals']:.2f} | {got['hot']:.0f} | {got['packed']:.1f} |"
                f" {got['pack']:.1f} | {got['hot read']:.1f} | {got['packed read']:.1f} |",
                flush=True,
            )
    finally:
        server.release()
        shutil.rmtree(folder, ignore_errors=True)
    print(f"\nmore than {AIM} bytes a GPU-minute: {', '.join(missed) or 'none'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
