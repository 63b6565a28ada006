"""Packing a day: how long it takes, and how much of that writers of the day and other jobs are held
off.

A day of samples at 10 s of 28 fast metrics, noise in each and rounded as drivers tell them, is
copied into its partition and packed by slices of accelerators. Other jobs wait for none of it,
writers only for the last transaction, which counts the rows again and drops the partition. Another
thread inserts a row into another day meanwhile, over and over: the longest such insert is told too.
(Bytes are what bench storage measures: noise says nothing of them.)
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import threading
import time
from pathlib import Path

import numpy as np

from gpuledger_collector.accounting.period import DAY_MS
from gpuledger_collector.ingest.batches.samples import HOT_KINDS, SampleRows, copy_samples
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.server import migrate
from gpuledger_collector.storage.server.embedded import EmbeddedServer
from gpuledger_collector.storage.telemetry import archive, partitions

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from bench.ingest import Node, machine
from fakes.postgres import open_folder

STEP_MS = 10_000
DAY = int(time.time() * 1000) // DAY_MS * DAY_MS - 10 * DAY_MS


def fill(dsn: str, gpus: int) -> int:
    """Copy the day of samples, eight GPUs at a time; how many rows."""
    instants = DAY_MS // STEP_MS
    with Database(dsn).transaction() as connection:
        partitions.ensure(connection, "gpu_sample", [DAY, DAY + DAY_MS])
    for number in range(gpus // 8):
        node = Node(number)
        parts = [node.values() for _ in range(instants // 6)]
        columns = {name: np.concatenate([part[name] for part in parts]) for name in HOT_KINDS}
        at = np.repeat(DAY + np.arange(instants) * STEP_MS, 8)
        ids = np.tile(np.arange(8) + 1 + number * 8, instants)
        with Database(dsn).transaction() as connection:
            copy_samples(connection, SampleRows(ids, at, columns))
    return gpus // 8 * 8 * instants


def write_beside(dsn: str, stop: threading.Event, waits: list[float]) -> None:
    """Insert a row of the next day over and over, as ingest does of today; milliseconds of each."""
    with Database(dsn).connect() as connection:
        while not stop.is_set():
            begun = time.perf_counter()
            connection.execute(
                "INSERT INTO gpu_sample (accelerator_id, at_ms) VALUES (1, %s)", (DAY + DAY_MS,)
            )
            waits.append((time.perf_counter() - begun) * 1000)
            time.sleep(0.02)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, default=200)
    given = parser.parse_args()
    folder = open_folder("gpuledger-bench-")
    server = EmbeddedServer(folder)
    try:
        dsn = server.acquire()
        migrate.upgrade(dsn)
        rows = fill(dsn, given.gpus)
        held: list[float] = []
        true = archive._finish

        def finish_timed(*arguments: object) -> object:
            begun = time.perf_counter()
            done = true(*arguments)
            held.append(time.perf_counter() - begun)
            return done

        archive._finish = finish_timed
        stop, waits = threading.Event(), list[float]()
        beside = threading.Thread(target=write_beside, args=(dsn, stop, waits))
        beside.start()
        cpu, begun = time.process_time(), time.perf_counter()
        done = archive.pack_day(Database(dsn), DAY)
        wall, cpu = time.perf_counter() - begun, time.process_time() - cpu
        stop.set()
        beside.join()
        if done is None or done.rows != rows:
            raise SystemExit(f"{rows} samples were written, and packed was {done}")
    finally:
        server.release()
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{machine()}\n")
    each, own = wall / rows * 1e6, cpu / rows * 1e6
    print(f"{rows:,} samples of {given.gpus} GPUs packed in {wall:.1f} s,")
    print(f"{each:.1f} µs a sample ({own:.1f} of them CPU of our process)")
    print(
        f"writers of that day were held off for {held[0]:.2f} s at its end, other jobs not at all"
    )
    print(
        f"inserts into another day: {statistics.median(waits):.1f} ms, the longest of {len(waits)}"
        f" {max(waits):.0f} ms"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
