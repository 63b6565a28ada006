"""How fast a command answers and how little an agent weighs, against a bare interpreter in the same run.

Each command is run in turn (A B C A B C ...), so that a machine that slows down slows all of them; medians are printed.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BIN = Path(sys.executable).parent
ROUNDS = 9
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "gpuledger --help": [str(BIN / "gpuledger"), "--help"],
    "gpuledger chargeback --help": [str(BIN / "gpuledger"), "chargeback", "--help"],
    "gpuledger-agent --help": [str(BIN / "gpuledger-agent"), "--help"],
}


def seconds(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def resident_mib(pid: int, key: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) / 1024
    raise LookupError(key)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def agent_weight(run_s: float = 30.0) -> tuple[float, float, float]:
    """RSS and peak RSS in MiB and share of a core of a running agent: 8 simulated GPUs, sampled every second."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "GPULEDGER_AGENT_SPOOL_DIR": folder,
            "GPULEDGER_AGENT_SAMPLE_INTERVAL_S": "1",
            "GPULEDGER_AGENT_METRICS_LISTEN": "127.0.0.1:0",
            "GPULEDGER_AGENT_COLLECTOR_URL": "http://127.0.0.1:9",
        }
        agent = subprocess.Popen(
            [str(BIN / "gpuledger-agent"), "run", "--source", "simulated"], env=environment, stderr=subprocess.DEVNULL
        )
        try:
            time.sleep(5)
            before, started = cpu_seconds(agent.pid), time.monotonic()
            time.sleep(run_s)
            share = (cpu_seconds(agent.pid) - before) / (time.monotonic() - started)
            return resident_mib(agent.pid, "VmRSS"), resident_mib(agent.pid, "VmHWM"), share
        finally:
            agent.terminate()
            agent.wait(timeout=30)


def main() -> int:
    timings: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(ROUNDS):
        for name, command in COMMANDS.items():
            timings[name].append(seconds(command))
    floor = statistics.median(timings["python -c pass"])
    print(f"{'command':32} {'median s':>9} {'x bare':>7}   ({ROUNDS} rounds, in turn)")
    for name, values in timings.items():
        middle = statistics.median(values)
        print(f"{name:32} {middle:9.3f} {middle / floor:7.1f}")
    rss, peak, share = agent_weight()
    weight = f"RSS {rss:.1f} MiB, peak {peak:.1f} MiB, {share:.2%} of a core"
    print(f"\nagent, 8 simulated GPUs at 1 s, collector away: {weight}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
