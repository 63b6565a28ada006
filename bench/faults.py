"""Faults: a real collector on a real Postgres behind a faulty network; counts what is lost, doubled
or unaccounted for.

A *fault* is one injected failure: a request or an answer that the proxy cuts off, loses, repeats,
delays or replaces (a request may suffer one on its way there and one on its way back), a killed
process, a poisoned body, a clock step, a write that a full disk refuses, a batch that a full spool
drops. A stampede of 2,000 agents is one fault; consequences of a fault are not counted. All retries
are those of the agent's own spool and push; only their waits are reduced to 50 ms, and their
timeout for an answer to 1.5 s.

The same proxy with the same seed then runs between Prometheus' agent mode and VictoriaMetrics, if
both are installed. Exits with 1 when something acknowledged was lost, something was billed twice,
or a loss is not accounted for.
"""

from __future__ import annotations

import argparse
import contextlib
import platform
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import guardian
from bench import _faults_peer
from bench.startup import resident_mib
from fakes.disasters import FaultyFleet
from fakes.truth import Verdict

SCHEDULE = (
    "kill_in_transaction",
    "kill_at_point",
    "end_postgres",
    "kill_at_random",
    "roll_over",
    "trouble_nodes",
    "poison",
    "trouble_nodes",
    "kill_in_transaction",
    "kill_at_point",
)
"""Disasters in turn, with random pauses between them."""


def ours(given: argparse.Namespace) -> tuple[Verdict, Counter, dict[str, str]]:
    """Run until `--faults` are injected or `--seconds` are over; returns verdict, faults by kind,
    and figures.
    """
    rng = random.Random(given.seed)
    spools = tempfile.mkdtemp(prefix="gpuledger-spools-", dir=guardian.memory_folder())
    begun = time.monotonic()
    schedule = SCHEDULE if given.workers == 1 else (*SCHEDULE, "renew_workers")
    with FaultyFleet(given.seed, given.nodes, given.rate, Path(spools), given.workers) as fleet:
        turn, peak = 0, 0.0
        while time.monotonic() - begun < given.seconds and fleet.injected().total() < given.faults:
            time.sleep(rng.uniform(0.5, 1.5) * given.pause)
            assert fleet.collector.process is not None
            for pid in (fleet.collector.process.pid, *fleet.collector.processes().values()):
                with contextlib.suppress(FileNotFoundError, LookupError):
                    peak = max(peak, resident_mib(pid, "VmHWM"))
            getattr(fleet, schedule[turn % len(schedule)])()
            turn += 1
            if turn % 10 == 4 and given.herd:
                fleet.stampede(given.herd)
            if given.progress:
                print(
                    f"{time.monotonic() - begun:6.0f} s {fleet.injected().total():8,} faults",
                    file=sys.stderr,
                    flush=True,
                )
        injected = time.monotonic() - begun
        faults = fleet.injected()
        requests, _ = fleet.proxy.counts()
        verdict = fleet.settle()
        figures = {
            "seconds of faults": f"{injected:.0f}",
            "seconds until all was delivered, folded, rated and compared": (
                f"{time.monotonic() - begun - injected:.0f}"
            ),
            "requests through the proxy": f"{requests:,}",
            "peak memory of a process of the collector": f"{peak:.0f} MiB",
            "the last stampede": fleet.stampede_said,
        }
        return verdict, faults, figures


def table(faults: Counter, verdict: Verdict, figures: dict[str, str]) -> None:
    print("| fault | count |\n|---|---|")
    for kind, count in sorted(faults.items(), key=lambda item: (-item[1], item[0])):
        print(f"| {kind} | {count:,} |")
    print(f"| **all** | **{faults.total():,}** |\n")
    for name, value in figures.items():
        print(f"{name}: {value}")
    print(
        "batches of the nodes behind the proxy:",
        ", ".join(f"{n:,} {name}" for name, n in verdict.batches.items()),
    )
    print(
        f"samples in the ledger: {verdict.samples:,}; GPU-seconds held and billed:"
        f" {verdict.gpu_ms / 1000:,.0f}\n"
    )
    for name, entries in (
        ("acknowledged samples lost", verdict.lost),
        ("GPU-seconds billed twice", verdict.twice),
        ("losses unaccounted", verdict.unaccounted),
    ):
        print(f"**{name}: {len(entries)}**" + "".join(f"\n  {entry}" for entry in entries[:20]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--faults", type=int, default=2_000, help="how many to inject (default: 2,000)"
    )
    parser.add_argument("--seconds", type=float, default=1e9, help="inject no longer than this")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--nodes", type=int, default=12)
    parser.add_argument(
        "--rate", type=float, default=0.8, help="share of requests, and of answers, that are broken"
    )
    parser.add_argument(
        "--pause", type=float, default=8.0, help="mean seconds between two disasters"
    )
    parser.add_argument("--herd", type=int, default=2000)
    parser.add_argument(
        "--workers", type=int, default=1, help="workers of the collector (default: 1)"
    )
    parser.add_argument("--progress", action="store_true", help="show progress on standard error")
    parser.add_argument(
        "--peer-seconds", type=float, default=45, help="faults of each scenario of the comparison"
    )
    parser.add_argument("--only", choices=("ours", "peer"))
    given = parser.parse_args()
    print(f"seed {given.seed}; {platform.processor() or platform.machine()}, {platform.system()}\n")
    bad = 0
    if given.only != "peer":
        verdict, faults, figures = ours(given)
        table(faults, verdict, figures)
        bad = int(not verdict.clean)
    if given.only != "ours":
        missing = [name for name in ("prometheus", "victoria-metrics") if not shutil.which(name)]
        if missing:
            print(
                f"\nnot compared: {' and '.join(missing)} is missing (on Debian: apt-get install"
                f" {' '.join(missing)})"
            )
        else:
            _faults_peer.compare(given.seed, given.rate, given.peer_seconds)
    return bad


if __name__ == "__main__":
    sys.exit(main())
