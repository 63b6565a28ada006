"""How fast a command answers, what it costs on the demo's ledger, and how little an agent weighs.

Each command is run in turn (A B C A B C ...), so that a machine that slows down slows all of them;
medians are printed, and a bare interpreter takes its turn among them. CPU is that of the client
(user and system, by the kernel): Postgres runs all the while and is not counted. The ledger is the
one that `./dev demo --once` leaves in demo-output; without it that table is left out. It ends with
1 when a goal is missed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpuledger_collector import wiring
from gpuledger_collector.settings import load

BIN = Path(sys.executable).parent
ROUNDS = 9
BARE = "python -c pass"
COMMANDS = {
    BARE: [sys.executable, "-c", "pass"],
    "gpuledger --help": [str(BIN / "gpuledger"), "--help"],
    "gpuledger chargeback --help": [str(BIN / "gpuledger"), "chargeback", "--help"],
    "gpuledger-agent --help": [str(BIN / "gpuledger-agent"), "--help"],
}
CPU_GOALS = {
    "recommend": 1.0,
    "recommend --fresh": None,
    "runs": 0.6,
    "anomalies": 0.7,
    "forecast": 1.0,
    "idle --now": 0.5,
    "doctor": 0.6,
    "statement --owner vision": 0.7,
    "budgets": 0.5,
    "accelerators": 0.5,
    "chargeback": 0.5,
    "reconcile": 0.4,
    "--help": 0.15,
}
"""CPU seconds that a command may take on the demo's ledger; None: shown without a goal."""
FINE = frozenset({0, 1})
"""Exit codes of a command that did its work; `doctor` ends with 1 when it found something."""


def seconds(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def child_cpu_seconds(
    command: Sequence[str], environment: Mapping[str, str] | None = None
) -> float:
    """User and system time of a command and of what it waited for."""
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in FINE:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}: {errors}")
    return usage.ru_utime + usage.ru_stime


def cpu_table(folder: Path, rounds: int) -> bool:
    """Print the CPU of common commands on the demo's ledger; whether every goal is met."""
    config = folder / "collector.toml"
    if not config.is_file():
        print(
            f"\nno demo in {folder} (`./dev demo --once` makes one): CPU of common commands is"
            " left out"
        )
        return True
    environment = {**os.environ, "GPULEDGER_CONFIG": str(config)}
    # As installed: modules are compiled once, not by every command.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    commands = {BARE: COMMANDS[BARE]} | {
        name: [str(BIN / "gpuledger"), *name.split()] for name in CPU_GOALS
    }
    taken: dict[str, list[float]] = {name: [] for name in commands}
    # Held open, so that no command starts the server: each finds it running, as beside a collector.
    with wiring.database(load(config, {}, Path.home())):
        for _ in range(rounds):
            for name, command in commands.items():
                taken[name].append(child_cpu_seconds(command, environment))
    medians = {name: statistics.median(values) for name, values in taken.items()}
    print(
        f"\n{'command on the demo':32} {'CPU s':>9} {'goal':>7} {'x bare':>7}   ({rounds} rounds,"
        " in turn)"
    )
    for name, cpu in medians.items():
        goal = CPU_GOALS.get(name)
        verdict = "" if goal is None or cpu <= goal else "   missed"
        print(
            f"{name:32} {cpu:9.2f} {'' if goal is None else format(goal, '.2f'):>7}"
            f" {cpu / medians[BARE]:7.1f}{verdict}"
        )
    return all(goal is None or medians[name] <= goal for name, goal in CPU_GOALS.items())


def resident_mib(pid: int, key: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) / 1024
    raise LookupError(key)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def agent_weight(run_s: float = 30.0) -> tuple[float, float, float]:
    """RSS and peak RSS in MiB and share of a core of a running agent: 8 simulated GPUs, sampled
    every second.
    """
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "GPULEDGER_AGENT_SPOOL_DIR": folder,
            "GPULEDGER_AGENT_SAMPLE_INTERVAL_S": "1",
            "GPULEDGER_AGENT_METRICS_LISTEN": "127.0.0.1:0",
            "GPULEDGER_AGENT_COLLECTOR_URL": "http://127.0.0.1:9",
        }
        agent = subprocess.Popen(
            [str(BIN / "gpuledger-agent"), "run", "--source", "simulated"],
            env=environment,
            stderr=subprocess.DEVNULL,
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


def wall_table(rounds: int) -> None:
    """Print how long commands take that need no database."""
    timings: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(rounds):
        for name, command in COMMANDS.items():
            timings[name].append(seconds(command))
    floor = statistics.median(timings[BARE])
    print(f"{'command':32} {'median s':>9} {'x bare':>7}   ({rounds} rounds, in turn)")
    for name, values in timings.items():
        middle = statistics.median(values)
        print(f"{name:32} {middle:9.3f} {middle / floor:7.1f}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="how often each command is run")
    parser.add_argument(
        "--demo", type=Path, default=Path("demo-output"), help="the folder of the demo"
    )
    parser.add_argument(
        "--no-agent", action="store_true", help="leave out the agent, which takes 35 s"
    )
    arguments = parser.parse_args()
    wall_table(arguments.rounds)
    met = cpu_table(arguments.demo, arguments.rounds)
    if not arguments.no_agent:
        rss, peak, share = agent_weight()
        weight = f"RSS {rss:.1f} MiB, peak {peak:.1f} MiB, {share:.2%} of a core"
        print(f"\nagent, 8 simulated GPUs at 1 s, collector away: {weight}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
