"""Ingest on Citus: GPU-samples a second with a durable answer, against the same tables on one
server.

GPULEDGER_TEST_CITUS_DSN names an empty database on the coordinator of a Citus cluster. Each run
fills it twice: with plain tables (one server: the coordinator), then with tables that `gpuledger db
distribute` has spread over the workers. Posts are those of bench.ingest: a minute of a node, 8
GPUs, 48 GPU-samples of all fast metrics. CPU is what the kernel counted for the processes of this
machine, so a cluster on other machines shows the collector's alone.

Then every statement of the product that names a distributed table runs on both, by the days and the
month of tests/engines/test_citus.py: how long each step takes, and whether both say the same.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
from pathlib import Path

import psycopg

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from bench._posting import post_in_turn
from bench.ingest import GPUS, HOT_KINDS, Data, check, machine, tree_seconds
from bench.remote_write import cpu_seconds
from fakes.citus import ADDRESS, empty
from fakes.citus_month import Played, play_days, play_month, table, versions
from fakes.postgres import open_folder
from fakes.processes import CollectorProcess
from fakes.statements import USED, never_run, own_statements
from gpuledger_collector.storage import distribution
from gpuledger_collector.storage.server import migrate


def postmasters(dsn: str) -> dict[str, int]:
    """Process ids of coordinator and workers by name, where they run on this machine."""
    pids = {}
    with psycopg.connect(dsn) as connection:
        nodes = connection.execute(
            "SELECT groupid, nodename, nodeport FROM pg_dist_node ORDER BY groupid"
        ).fetchall()
    for group, host, port in nodes:
        with psycopg.connect(dsn, host=host, port=str(port)) as connection:
            status = Path(f"/proc/{connection.info.backend_pid}/status")
            if host in {"127.0.0.1", "localhost"} and status.exists():
                parent = next(
                    line for line in status.read_text().splitlines() if line.startswith("PPid:")
                )
                pids[f"worker {group}" if group else "coordinator"] = int(parent.split()[1])
    return pids


def run(dsn: str, data: Data, part: int, shards: int) -> tuple[float, dict[str, float]]:
    """Wall seconds of a part, and CPU seconds by process; `shards` 0: plain tables."""
    empty(dsn)
    migrate.upgrade(dsn)
    if shards:
        with psycopg.connect(dsn, autocommit=True) as connection:
            distribution.distribute(connection, shards)
    folder = open_folder("gpuledger-bench-")
    collector = CollectorProcess(
        folder, GPULEDGER_DSN=dsn, GPULEDGER_JOBS="false", GPULEDGER_NODE_NAMES_PER_SECOND="0"
    )
    try:
        collector.start()
        collector.wait_ready()
        assert collector.process is not None
        post_in_turn(collector.port, data.ours[0])  # names, partitions and connections
        pids = postmasters(dsn)
        before = {name: tree_seconds(pid) for name, pid in pids.items()}
        before["collector"] = cpu_seconds(collector.process.pid)
        sent = post_in_turn(collector.port, data.ours[part])
        cpu = {name: tree_seconds(pid) - before[name] for name, pid in pids.items()}
        cpu["collector"] = cpu_seconds(collector.process.pid) - before["collector"]
    finally:
        if collector.process is not None and collector.process.poll() is None:
            collector.stop()
        shutil.rmtree(folder, ignore_errors=True)
    check(dsn, data.count + sum(map(len, data.ours[0])) * 48)
    return sent.wall_s, cpu


def play(dsn: str) -> int:
    """Play the days and the month with plain and with distributed tables; returns 1 where they
    differ.
    """
    folder = open_folder("gpuledger-bench-")
    both = Played(dsn, False, folder / "one"), Played(dsn, True, folder / "citus")
    try:
        for played in both:
            played.folder.mkdir()
            empty(dsn)
            play_days(played, dsn)
            empty(dsn)
            play_month(played, None)
        one, citus = both
        statements = [statement for statement in own_statements() if USED.search(statement)]
        missed = never_run(statements, citus.trace.read_text().splitlines())
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{versions(dsn)}\n{table(one, citus)}\n")
    print(
        f"{len(statements) - len(missed)} of {len(statements)} statements that name a distributed"
        " table ran"
    )
    print("".join(f"never run: {statement}\n" for statement in missed), end="")
    return int(bool(missed) or any(citus.texts[name] != text for name, text in one.texts.items()))


def main() -> int:
    """Print medians and the ratio, and what both answer; 3 without a cluster."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=100, help="nodes of 8 GPUs (default: 100)")
    parser.add_argument(
        "--rounds", type=int, default=8, help="minutes of each node in a run (default: 8)"
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument(
        "--links", type=int, default=64, help="connections of the sender (default: 64)"
    )
    parser.add_argument("--shards", type=int, default=8, help="shards of each table (default: 8)")
    given = parser.parse_args()
    dsn = os.environ.pop(ADDRESS, "")
    if not dsn:
        print(
            f"{ADDRESS} names no database: give an empty one on the coordinator of a Citus cluster"
        )
        return 3
    data = Data(given.nodes, given.rounds, given.runs, given.links, False)
    print(
        f"{machine()}\n\n{given.nodes * GPUS:,} GPUs, {data.count:,} GPU-samples of"
        f" {len(HOT_KINDS)} metrics a run"
    )
    print(
        f"{given.links} connections, {given.shards} shards; medians of {given.runs} runs in turn\n"
    )
    results: dict[str, list[tuple[float, dict[str, float]]]] = {"one server": [], "Citus": []}
    for part in range(1, given.runs + 1):
        results["one server"].append(run(dsn, data, part, 0))
        results["Citus"].append(run(dsn, data, part, given.shards))
    rates = {
        name: data.count / statistics.median(wall for wall, _ in runs)
        for name, runs in results.items()
    }
    print("| database | GPU-samples/s | CPU seconds of a million GPU-samples |\n|---|---:|---|")
    for name, runs in results.items():
        spent = {
            process: statistics.median(cpu.get(process, 0.0) for _, cpu in runs) * 1e6 / data.count
            for process in sorted({process for _, cpu in runs for process in cpu})
        }
        shown = ", ".join(f"{process} {seconds:.0f}" for process, seconds in spent.items())
        print(f"| {name} | {rates[name]:,.0f} | {shown} |")
    busy = {
        name: statistics.median(sum(cpu.values()) for _, cpu in runs)
        for name, runs in results.items()
    }
    print(f"\nCitus ingests {rates['Citus'] / rates['one server']:.2f} x as fast as one server,")
    print(f"with {busy['Citus'] / busy['one server']:.2f} x its CPU (collector and database)\n")
    code = play(dsn)
    print(machine())
    return code


if __name__ == "__main__":
    sys.exit(main())
