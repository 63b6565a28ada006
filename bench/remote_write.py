"""Remote write: samples per second and core, against VictoriaMetrics' own receiver and the bare
decoding of the bodies.

The same bodies, as Prometheus makes them (1.0, 2,000 samples each, a series a sample, real
dcgm-exporter labels), go over HTTP to each receiver in turn. CPU is what the kernel counted for its
processes. Ours answers after COMMIT with synchronous_commit on; VictoriaMetrics answers when the
samples are in memory.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import cramjam
import psycopg

from gpuledger_collector import wiring
from gpuledger_collector.ingest.remote_write.messages import ONE, RAW
from gpuledger_collector.settings import Settings
from gpuledger_collector.storage.database import Database
from gpuledger_common.exporter_names import EXPORTED

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from bench.startup import resident_mib
from fakes.ports import free_port
from fakes.postgres import open_folder
from fakes.processes import CollectorProcess
from fakes.prometheus import WRITE, headers, labels, pod

SAMPLES = 2000
INTERVAL_MS = 15_000
TICK = os.sysconf("SC_CLK_TCK")


def bodies(nodes: int, metrics: int, rounds: int) -> list[bytes]:
    """Compressed requests: `rounds` scrapes of nodes with 8 GPUs each, every other one held by a
    pod.

    What a GPU changes all the time changes at each scrape; limits, modes and error counters stay as
    they are.
    """
    chosen = EXPORTED[:metrics]
    names = [metric.dcgm_field for metric in chosen]
    series = []
    for node in range(nodes):
        for gpu in range(8):
            own = pod(f"train-{node}-{gpu}") if gpu % 2 else {}
            for number, name in enumerate(names):
                made = RAW["TimeSeries"]()
                for key, value in labels(name, gpu, f"gpu-node-{node:04}", **own):
                    made.labels.append(ONE["Label"](name=key, value=value).SerializeToString())
                series.append((made, number))
    start = int(time.time() * 1000) - rounds * INTERVAL_MS
    parts, made_bodies = [], []
    for scrape in range(rounds):
        for place, (made, number) in enumerate(series):
            del made.samples[:]
            changes = scrape * 13 if chosen[number].hot else 0
            value = float((number * 31 + place * 7 + changes) % 97)
            if chosen[number].name.endswith("_ratio") and chosen[number].dcgm_scale == 1:
                value = round(value / 97, 6)
            made.samples.add(
                value=value, timestamp=start + scrape * INTERVAL_MS + place // (8 * len(names))
            )
            parts.append(made.SerializeToString())
            if len(parts) == SAMPLES:
                made_bodies.append(body_of(parts))
                parts = []
    return [*made_bodies, body_of(parts)] if parts else made_bodies


def body_of(parts: Sequence[bytes]) -> bytes:
    return bytes(
        cramjam.snappy.compress_raw(b"".join(b"\n" + varint(len(part)) + part for part in parts))
    )


def varint(number: int) -> bytes:
    parts = bytearray()
    while number >= 0x80:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def cpu_seconds(pid: int) -> float:
    """CPU of a process and of its children that ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return sum(map(int, fields[11:15])) / TICK


def children(pid: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError):
            if int(path.read_text().rsplit(")", 1)[1].split()[1]) == pid:
                found.append(int(path.parent.name))
    return found


def tree_seconds(pid: int) -> float:
    """CPU of a process and of its children, of which some may end meanwhile: then it is its
    parent's.
    """
    seconds = 0.0
    for child in children(pid):
        with contextlib.suppress(FileNotFoundError):
            seconds += cpu_seconds(child)
    return seconds + cpu_seconds(pid)


def send(port: int, made: Sequence[bytes], senders: int) -> float:
    """Posts all bodies over so many connections; wall seconds. Raises when one is not taken."""
    waiting = list(reversed(made))
    faults: list[str] = []

    def work() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        while not faults:
            try:
                body = waiting.pop()
            except IndexError:
                break
            connection.request("POST", WRITE, body, headers())
            answer = connection.getresponse()
            text = answer.read()
            if answer.status != 204:
                faults.append(f"{answer.status} {text!r}")
        connection.close()

    threads = [threading.Thread(target=work) for _ in range(senders)]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise SystemExit(f"a body was refused: {faults[0]}")
    return time.perf_counter() - begun


def floor(made: Sequence[bytes]) -> float:
    """CPU seconds to inflate and parse every body, and nothing more."""
    begun = time.process_time()
    for body in made:
        RAW["WriteRequest"].FromString(bytes(cramjam.snappy.decompress_raw(body)))
    return time.process_time() - begun


def ours(
    made: Sequence[bytes], warm: int, senders: int
) -> tuple[float, float, float, float, int, float]:
    """Wall, CPU of the collector, of Postgres and of the meter, rows of samples, peak MiB.

    The first `warm` bodies are not timed.
    """
    folder = open_folder("gpuledger-bench-")
    collector = CollectorProcess(folder, GPULEDGER_JOBS="false")
    try:
        collector.start()
        collector.wait_ready()
        send(collector.port, made[:warm], senders)
        # With the first scrapes every GPU enters the inventory; from then on the meter only
        # confirms it.
        metering, database = wiring.metering(Settings()), Database(collector.dsn())
        metering.run(database)
        assert collector.process is not None
        pid, postmaster = collector.process.pid, collector.postmaster()
        before = cpu_seconds(pid), tree_seconds(postmaster)
        wall = send(collector.port, made[warm:], senders)
        cpu, postgres = cpu_seconds(pid) - before[0], tree_seconds(postmaster) - before[1]
        peak = resident_mib(pid, "VmHWM")
        begun = time.process_time()
        metering.run(database)
        meter = time.process_time() - begun
        with psycopg.connect(collector.dsn()) as connection:
            row = connection.execute(
                "SELECT count(DISTINCT (accelerator_id, at_ms)) FROM gpu_sample"
            ).fetchone()
            assert row is not None
        return wall, cpu, postgres, meter, row[0], peak
    finally:
        if collector.process is not None:
            collector.process.send_signal(signal.SIGTERM)
            collector.process.wait(60)
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def victoria() -> Iterator[tuple[int, int]]:
    """Port and process id of a VictoriaMetrics of this run's own."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [
                "victoria-metrics",
                f"-storageDataPath={folder}",
                f"-httpListenAddr=127.0.0.1:{port}",
                "-retentionPeriod=12",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline:
                with contextlib.suppress(OSError):
                    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
                    connection.request("GET", "/health")
                    if connection.getresponse().status == 200:
                        break
                time.sleep(0.05)
            yield port, process.pid
        finally:
            process.terminate()
            process.wait(60)


def theirs(made: Sequence[bytes], warm: int, senders: int) -> tuple[float, float]:
    """Wall and CPU of VictoriaMetrics, and of a second more, in which it works on."""
    with victoria() as (port, pid):
        send(port, made[:warm], senders)
        before = cpu_seconds(pid)
        wall = send(port, made[warm:], senders)
        time.sleep(1)
        return wall, cpu_seconds(pid) - before


def median_of(runs: int, measure: Callable[[], tuple[float, ...]]) -> list[float]:
    return [
        statistics.median(column) for column in zip(*(measure() for _ in range(runs)), strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--metrics", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument(
        "--senders", type=int, default=2, help="connections, like the shards of Prometheus' queue"
    )
    given = parser.parse_args()
    made = bodies(given.nodes, given.metrics, given.rounds)
    scrape = given.nodes * 8 * given.metrics
    warm = -(-scrape * 2 // SAMPLES)
    count = scrape * given.rounds - warm * SAMPLES
    print(
        f"{given.nodes * 8} GPUs x {given.metrics} metrics x {given.rounds} scrapes; {count:,}"
        f" samples timed in {len(made) - warm} requests of {sum(map(len, made)) // len(made):,}"
        f" bytes over {given.senders} connections; median of {given.runs} runs\n"
    )
    lines: list[tuple[str, float, float]] = []
    [bare] = median_of(given.runs, lambda: (floor(made[warm:]),))
    wall, cpu, database, meter, rows, peak = median_of(
        given.runs, lambda: ours(made, warm, given.senders)
    )
    expected = given.nodes * 8 * given.rounds
    if rows != expected:
        raise SystemExit(f"{rows} rows of samples are stored, {expected} were sent")
    lines += [
        ("floor: snappy and protobuf", bare, bare),
        ("gpuledger: receiver", wall, cpu),
        ("gpuledger: with Postgres", wall, cpu + database),
        ("gpuledger: with Postgres and meter", wall, cpu + database + meter),
    ]
    if shutil.which("victoria-metrics"):
        peer_wall, peer_cpu = median_of(given.runs, lambda: theirs(made, warm, given.senders))
        lines.append(("victoria-metrics", peer_wall, peer_cpu))
    print("| receiver | samples/s | samples/s per core | of the last line |\n|---|---|---|---|")
    for name, seconds, busy in lines:
        print(
            f"| {name} | {count / seconds:,.0f} | {count / busy:,.0f} | {lines[-1][2] / busy:.2f} |"
        )
    print(f"\npeak memory of the collector: {peak:.0f} MiB with {scrape:,} series")


if __name__ == "__main__":
    main()
