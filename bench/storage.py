"""Bytes of samples: hot rows, packed archive and VictoriaMetrics, for the same day of the simulated
fleet.

A GPU-sample is one accelerator at one instant with all of its readings. Two runs over the same
workloads: values as the simulation makes them, with a full mantissa each, and rounded as the driver
and dcgm-exporter tell them (utilization and temperature whole, power in milliwatts, memory in MiB,
profiling ratios with six decimals). The peer gets each value as the shortest text that is the same
float. It ends with 1 when an aim is missed.
"""

from __future__ import annotations

import argparse
import http.client
import json
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from gpuledger_agent.sources.fleet import Fleet
from gpuledger_agent.sources.simulated import SimulatedSource
from gpuledger_collector.accounting.period import DAY_MS, Period
from gpuledger_collector.ingest.batches.samples import HOT_KINDS, SampleRows, copy_samples
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.server import migrate
from gpuledger_collector.storage.server.embedded import EmbeddedServer
from gpuledger_collector.storage.telemetry import archive, partitions
from gpuledger_common.catalog import HOT

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from bench.remote_write import victoria
from fakes.postgres import open_folder

STEP_MS = 10_000
DAY = int(time.time() * 1000) // DAY_MS * DAY_MS - 10 * DAY_MS
HOT_AIM, PEER_AIM = 150, 0.7
DECIMALS = {
    "gpu_utilization_ratio": 2,
    "gpu_memory_copy_utilization_ratio": 2,
    "gpu_temperature_celsius": 0,
    "gpu_power_watts": 3,
    "gpu_graphics_engine_active_ratio": 6,
    "gpu_sm_active_ratio": 6,
    "gpu_sm_occupancy_ratio": 6,
    "gpu_tensor_active_ratio": 6,
    "gpu_dram_active_ratio": 6,
}


def simulate_day(nodes: int) -> list[tuple[int, int, Mapping[str, float | int]]]:
    """A day of samples by time: accelerator, instant, readings; nodes are spread over the fleet's
    kinds.
    """
    fleet = Fleet()
    chosen = fleet.nodes[:: max(1, len(fleet.nodes) // nodes)][:nodes]
    clock = [DAY]
    sources = [SimulatedSource(fleet, node.name, lambda: clock[0]) for node in chosen]
    ids: dict[str, int] = {}
    rows = []
    for at_ms in range(DAY, DAY + DAY_MS, STEP_MS):
        clock[0] = at_ms
        for source in sources:
            for sample in source.read(["fast"]):
                rows.append((ids.setdefault(sample.uuid, len(ids) + 1), at_ms, sample.values))
    return rows


def as_arrays(
    rows: list[tuple[int, int, Mapping[str, float | int]]], *, rounded: bool
) -> SampleRows:
    """Columns of the sample table; NaN and the smallest integer are absent."""
    columns = {}
    for metric in HOT:
        given = np.array([row[2].get(metric.name, np.nan) for row in rows], dtype="<f8")
        if rounded and metric.name in DECIMALS:
            given = np.round(given, DECIMALS[metric.name])
        if rounded and metric.name.startswith("gpu_memory_") and metric.name.endswith("_bytes"):
            given = np.round(given / 2**20) * 2**20
        if metric.column_kind == "i8":
            values = np.where(
                np.isnan(given), np.iinfo("<i8").min, np.nan_to_num(given).astype("<i8")
            )
        else:
            values = given.astype(f"<{metric.column_kind}")
        columns[metric.name] = values
    return SampleRows(
        np.array([row[0] for row in rows]), np.array([row[1] for row in rows]), columns
    )


def ours(dsn: str, samples: SampleRows) -> tuple[float, float, float, float]:
    """Hot and archive bytes a sample, microseconds a sample to pack, and to read all back."""
    count = len(samples.at_ms)
    with Database(dsn).transaction() as connection:
        partitions.ensure(connection, "gpu_sample", [DAY])
        for begin in range(0, count, 5000):
            part = slice(begin, begin + 5000)
            columns = {name: values[part] for name, values in samples.columns.items()}
            copy_samples(
                connection, SampleRows(samples.accelerator[part], samples.at_ms[part], columns)
            )
    begun = time.perf_counter()
    done = archive.pack_day(Database(dsn), DAY)
    pack = time.perf_counter() - begun
    if done is None or done.rows != count:
        raise SystemExit(f"{count} samples were written, and packed was {done}")
    with Database(dsn).transaction() as connection:
        row = connection.execute("SELECT pg_total_relation_size('sample_archive')").fetchone()
        begun = time.perf_counter()
        back = archive.samples(
            connection, np.unique(samples.accelerator).tolist(), Period(DAY, DAY + DAY_MS)
        )
        read = time.perf_counter() - begun
        connection.execute("TRUNCATE sample_archive")
    if len(back.at_ms) != count or row is None:
        raise SystemExit(f"{count} samples were packed, {len(back.at_ms)} came back")
    return done.hot_bytes / count, row[0] / count, pack / count * 1e6, read / count * 1e6


def theirs(samples: SampleRows) -> tuple[float, float]:
    """VictoriaMetrics: data bytes a sample after a forced merge, and with its index."""
    with victoria() as (port, _):
        for accelerator in np.unique(samples.accelerator):
            mine = samples.accelerator == accelerator
            lines = []
            for name, kind in HOT_KINDS.items():
                values = samples.columns[name][mine]
                known = values != np.iinfo("<i8").min if kind == "i8" else ~np.isnan(values)
                if known.any():
                    labels = {
                        "__name__": name,
                        "uuid": f"GPU-{accelerator:036}",
                        "instance": f"node-{accelerator // 8}",
                    }
                    times = ",".join(map(str, samples.at_ms[mine][known].tolist()))
                    texts = ",".join(values[known].astype(str).tolist())
                    lines.append(
                        f'{{"metric":{json.dumps(labels)},"values":[{texts}],"timestamps":[{times}]}}'
                    )
            ask(port, "POST", "/api/v1/import", "\n".join(lines).encode())
        ask(port, "GET", "/internal/force_flush")
        ask(port, "GET", "/internal/force_merge")
        time.sleep(5)
        data = index = 0.0
        for line in ask(port, "GET", "/metrics").decode().splitlines():
            if line.startswith("vm_data_size_bytes"):
                size = float(line.rsplit(" ", 1)[1])
                data, index = (data, index + size) if "indexdb" in line else (data + size, index)
    return data / len(samples.at_ms), (data + index) / len(samples.at_ms)


def ask(port: int, method: str, path: str, body: bytes | None = None) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request(method, path, body)
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    if answer.status >= 300:
        raise SystemExit(f"VictoriaMetrics answered {answer.status} to {path}: {text[:200]!r}")
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--nodes", type=int, default=4, help="nodes of the simulated fleet (default: 4)"
    )
    given = parser.parse_args()
    rows = simulate_day(given.nodes)
    count = len(rows)
    readings = sum(len(row[2]) for row in rows) / count
    print(
        f"{count:,} GPU-samples of {len({row[0] for row in rows})} accelerators, {readings:.1f}"
        " readings each\n"
    )
    folder = open_folder("gpuledger-bench-")
    server = EmbeddedServer(folder)
    missed = []
    print(
        "| values | hot B | archive B | VictoriaMetrics B | with index | ratio | pack µs | read"
        " µs |"
    )
    print("|---|---|---|---|---|---|---|---|")
    try:
        dsn = server.acquire()
        migrate.upgrade(dsn)
        for name in ("as simulated", "as drivers tell them"):
            samples = as_arrays(rows, rounded=name != "as simulated")
            hot, packed, pack, read = ours(dsn, samples)
            peer, ratio = "- | -", "-"
            if shutil.which("victoria-metrics"):
                data, whole = theirs(samples)
                peer, ratio = f"{data:.1f} | {whole:.1f}", f"{packed / data:.2f}"
                missed += (
                    [f"{name}: {ratio} of VictoriaMetrics"] if packed / data > PEER_AIM else []
                )
            missed += [f"{name}: {hot:.0f} hot bytes"] if hot > HOT_AIM else []
            print(
                f"| {name} | {hot:.0f} | {packed:.1f} | {peer} | {ratio} | {pack:.1f} |"
                f" {read:.1f} |",
                flush=True,
            )
    finally:
        server.release()
        shutil.rmtree(folder, ignore_errors=True)
    print(f"\nmissed: {'; '.join(missed) or 'none'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
