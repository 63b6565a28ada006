"""The agent's footprint: memory, CPU and time of a tick with 8 GPUs sampled every 10 s.

    ./dev bench agent [--seconds=60] [--program=PATH]

A real agent process reads the C stand-in for NVML (tests/fakes/nvml_stub.c) through the real
binding, spools, and pushes to a collector on this machine; Prometheus' node_exporter (Debian's
prometheus-node-exporter) runs at the same time for comparison, and both are scraped every 10 s. The
stand-in answers at once, where a driver takes 1 µs to some milliseconds, so only the agent's own
cost is measured. The last rows are ratios.

Then one of the GPUs stops answering: the time of a tick and of a scrape beside it.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

GPUS, INTERVAL_S, WARM_UP_S, SECONDS = 8, 10.0, 25.0, 60.0
MAX_MIB, MAX_SHARE = 35.0, 0.005
UNIT = {"MALLOC_ARENA_MAX": "1"}
"""The environment that our units and our image set for the agent."""
HANGING = 3
"""The GPU that stops answering."""
SCRAPES = 500
INSIDE = """
import json, os, statistics, sys, time
import pynvml
from gpuledger_agent.sources.nvml import NvmlSource

def milliseconds(tiers, rounds):
    taken = []
    for _ in range(rounds):
        started = time.perf_counter()
        source.read(tiers)
        taken.append((time.perf_counter() - started) * 1000)
    return statistics.median(taken), sorted(taken)[int(len(taken) * 0.99)]

source = NvmlSource()
source.open()
source.read({"fast", "gpm", "slow", "static"})
fast, slow = milliseconds({"fast", "gpm"}, 200), milliseconds({"fast", "gpm", "slow"}, 50)
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
started = time.perf_counter()
for _ in range(5000):
    pynvml.nvmlDeviceGetPowerUsage(handle)
call = (time.perf_counter() - started) / 5000 * 1e6
readings = sum(len(sample.values) for sample in source.read({"fast", "gpm", "slow"}))
with open(os.environ["NVML_STUB_SCENARIO"], "a") as scenario:
    scenario.write(f"hang {sys.argv[1]} 600\\n")
started = time.perf_counter()
answered = sum(sample.health.status == "ok" for sample in source.read({"fast", "gpm"}))
first = time.perf_counter() - started
beside = milliseconds({"fast", "gpm"}, 200)
figures = {"fast": fast, "slow": slow, "call_us": call, "readings": readings}
json.dump(figures | {"hang_s": first, "answered": answered, "beside": beside}, sys.stdout)
sys.stdout.flush()
os._exit(0)  # the driver's call never returns
"""


@dataclass(frozen=True, slots=True)
class Footprint:
    """The footprint of a process: MiB, share of a core, seconds of a scrape, bytes of its page."""

    rss: float
    pss: float
    peak: float
    share: float
    scrape_s: float
    page: int


def option(name: str, default: str) -> str:
    """`--NAME=VALUE` of the command line."""
    return next(
        (text.partition("=")[2] for text in sys.argv[1:] if text.startswith(f"--{name}=")), default
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def scenario() -> str:
    """Eight busy H100, each with a process and performance monitoring."""
    words = [f"gpus {GPUS}"]
    for gpu in range(GPUS):
        words += [
            f"busy {gpu} 80",
            f"power {gpu} 650000",
            f"process {gpu} {os.getpid()}",
            f"gpm {gpu} 75",
            f"clock {gpu} 1980",
        ]
    return "\n".join(words) + "\n"


def memory(pid: int) -> tuple[float, float, float]:
    """Resident, proportional and peak resident memory in MiB (proc(5))."""
    mebibytes = {}
    for name in ("status", "smaps_rollup"):
        for line in Path(f"/proc/{pid}/{name}").read_text().splitlines():
            key, _, rest = line.partition(":")
            if key in {"VmRSS", "Pss", "VmHWM"}:
                mebibytes[key] = int(rest.split()[0]) / 1024
    return mebibytes["VmRSS"], mebibytes["Pss"], mebibytes["VmHWM"]


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def scrape(port: int) -> tuple[float, int]:
    """Duration of a scrape in seconds, and the size of the page."""
    started = time.perf_counter()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        size = len(answer.read())
    return time.perf_counter() - started, size


@contextlib.contextmanager
def running(command: list[str], environment: dict[str, str], port: int) -> Iterator[int]:
    """Start a process, wait until it answers on its port, yield its id, and terminate it at the
    end.
    """
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 20
        while True:
            try:
                scrape(port)
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{command[0]} does not answer") from None
                time.sleep(0.2)
        yield process.pid
    finally:
        process.terminate()
        process.wait(timeout=30)


def measure_process(pid: int, port: int, seconds: float) -> Footprint:
    """Measure one process over `seconds`, scraping it at the agent's interval."""
    time.sleep(WARM_UP_S)
    before, started, scrapes = cpu_seconds(pid), time.monotonic(), []
    while (left := started + seconds - time.monotonic()) > 0:
        scrapes.append(scrape(port))
        time.sleep(min(INTERVAL_S, max(left, 0)))
    share = (cpu_seconds(pid) - before) / (time.monotonic() - started)
    taken = sorted(second for second, _ in scrapes)[len(scrapes) // 2]
    return Footprint(*memory(pid), share, taken, scrapes[-1][1])


def measure_all(
    commands: dict[str, tuple[list[str], dict[str, str], int]], seconds: float
) -> dict[str, Footprint]:
    """Measure all processes at the same time, so that load on the machine affects all of them."""
    footprints: dict[str, Footprint] = {}
    with contextlib.ExitStack() as stack:
        threads = []
        for name, (command, environment, port) in commands.items():
            pid = stack.enter_context(running(command, environment, port))

            def measure(name: str = name, pid: int = pid, port: int = port) -> None:
                footprints[name] = measure_process(pid, port, seconds)

            threads.append(threading.Thread(target=measure))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return footprints


def scrapes_beside_hang(folder: Path, url: str) -> dict[str, tuple[float, float]]:
    """Median and 99th percentile of a scrape in milliseconds, of an agent with a GPU that hangs and
    of one without.

    Both run at the same time and are scraped in turn, so that load on the machine affects both.
    """
    ports, taken = {}, {"hanging": list[float](), "healthy": list[float]()}
    with contextlib.ExitStack() as stack:
        for name in taken:
            place = folder / name
            place.mkdir()
            command, environment, ports[name] = agent_command(
                place, url, install_stand_in(place), 1.0
            )
            stack.enter_context(running(command, environment, ports[name]))
        time.sleep(5.0)
        with (folder / "hanging" / "scenario").open("a") as words:
            words.write(f"hang {HANGING} 600\n")
        for _ in range(SCRAPES):
            for name, milliseconds in taken.items():
                milliseconds.append(scrape(ports[name])[0] * 1000)
            time.sleep(0.1)
    return {
        name: (statistics.median(part), sorted(part)[int(len(part) * 0.99)])
        for name, part in taken.items()
    }


def install_stand_in(folder: Path) -> dict[str, str]:
    """The environment of an installed agent that reads the stand-in, or SystemExit without a
    compiler.
    """
    from fakes.nvml import stand_in

    environment = stand_in(folder, scenario())
    if environment is None:
        print("bench: no C compiler; on Debian: apt-get install gcc libc6-dev", file=sys.stderr)
        raise SystemExit(3)
    # As installed: modules are compiled once, not by every process.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    # The stand-in looks for events; a driver is woken by them.
    return {**environment, **UNIT, "NVML_STUB_EVENT_POLL_MS": "1000"}


def bare_mib() -> float:
    """RSS of an idle interpreter, the lower bound for any Python program."""
    code = "print([l for l in open('/proc/self/status') if l.startswith('VmRSS')][0].split()[1])"
    answer = subprocess.run(
        [sys.executable, "-IS", "-c", code], capture_output=True, text=True, check=True
    )
    return int(answer.stdout) / 1024


def agent_command(
    folder: Path, url: str, environment: dict[str, str], interval_s: float = INTERVAL_S
) -> tuple[list[str], dict[str, str], int]:
    port = free_port()
    settings = {
        "SPOOL_DIR": str(folder / "spool"),
        "SAMPLE_INTERVAL_S": str(interval_s),
        "COLLECTOR_URL": url,
        "METRICS_LISTEN": f"127.0.0.1:{port}",
        "NODE": "bench",
        "SOURCE": "nvml",
    }
    program = option("program", str(Path(sys.executable).parent / "gpuledger-agent"))
    ours = {f"GPULEDGER_AGENT_{name}": value for name, value in settings.items()}
    return [program, "run"], {**environment, **ours}, port


def compile_modules(command: list[str], environment: dict[str, str]) -> None:
    """Let the program look once, so that no measured process compiles a module and keeps the
    compiler's memory: packages and images contain bytecode.
    """
    look = [command[0], "once", "--json"]
    subprocess.run(look, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def machine() -> str:
    model = next(
        (
            line.partition(": ")[2]
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return (
        f"{os.cpu_count()} cores of {model}, Linux {platform.release()}, Python"
        f" {platform.python_version()}"
    )


def report(
    footprints: dict[str, Footprint],
    inside: dict,
    scrapes: dict[str, tuple[float, float]],
    seconds: float,
) -> int:
    """Print the tables; returns 1 when a goal is missed."""
    ours, bare = footprints["gpuledger-agent"], bare_mib()
    other = footprints.get("node_exporter")
    print(
        f"{time.strftime('%Y-%m-%d')}, {machine()}; {GPUS} GPUs every {INTERVAL_S:g} s, over"
        f" {seconds:g} s\n"
    )
    head = (
        "| | RSS MiB | PSS MiB | peak MiB | share of a core | scrape ms | page KiB |",
        "|---|---|---|---|---|---|---|",
    )
    print("\n".join(head))
    for name, entry in footprints.items():
        print(
            f"| {name} | {entry.rss:.1f} | {entry.pss:.1f} | {entry.peak:.1f} | {entry.share:.2%} "
            f"| {entry.scrape_s * 1000:.1f} | {entry.page / 1024:.0f} |"
        )
    print(f"| bare Python | {bare:.1f} | | | | | |")
    if other:
        print(
            f"| agent : node_exporter | {ours.rss / other.rss:.2f} | {ours.pss / other.pss:.2f} "
            f"| {ours.peak / other.peak:.2f} | {ours.share / max(other.share, 1e-9):.2f} "
            f"| {ours.scrape_s / other.scrape_s:.2f} | {ours.page / other.page:.2f} |"
        )
    else:
        print("(no node_exporter here: apt-get install prometheus-node-exporter)")
    print(f"| agent : bare Python | {ours.rss / bare:.2f} | | | | | |\n")
    for name, tier in (("fast and GPM tiers", "fast"), ("with the slow tier", "slow")):
        middle, worst = inside[tier]
        print(
            f"- one tick of {GPUS} GPUs, {name}: {middle:.1f} ms (99th percentile {worst:.1f} ms)"
        )
    print(
        f"- {inside['readings']} readings in a full tick; one call through the binding:"
        f" {inside['call_us']:.1f} µs"
    )
    (hanging, worst_hanging), (healthy, worst_healthy) = scrapes["hanging"], scrapes["healthy"]
    print(
        f"- GPU {HANGING} stops answering: the round that notices it takes {inside['hang_s']:.1f}"
        f" s, {inside['answered']} of {GPUS} GPUs answer in it; the next 200 rounds"
        f" {inside['beside'][0]:.1f} ms (99th percentile {inside['beside'][1]:.1f} ms)"
    )
    print(
        f"- {SCRAPES} scrapes from then on: {hanging:.1f} ms (99th percentile {worst_hanging:.1f}"
        f" ms); in turn, of an agent whose GPUs all answer: {healthy:.1f} ms"
        f" ({worst_healthy:.1f} ms)"
    )
    met = ours.rss <= MAX_MIB and ours.share <= MAX_SHARE
    print(
        f"- goals: RSS at most {MAX_MIB:g} MiB, at most {MAX_SHARE:.1%} of a core:"
        f" {'met' if met else 'MISSED'}"
    )
    return 0 if met else 1


def main() -> int:
    from fakes.sink import sink

    seconds = float(option("seconds", str(SECONDS)))
    with tempfile.TemporaryDirectory() as name, sink() as collector:
        folder = Path(name)
        environment = install_stand_in(folder)
        commands = {"gpuledger-agent": agent_command(folder, collector.url, environment)}
        compile_modules(*commands["gpuledger-agent"][:2])
        exporter = shutil.which("prometheus-node-exporter")
        if exporter:
            port = free_port()
            commands["node_exporter"] = (
                [exporter, f"--web.listen-address=127.0.0.1:{port}"],
                dict(os.environ),
                port,
            )
        footprints = measure_all(commands, seconds)
        inside = subprocess.run(
            [sys.executable, "-c", INSIDE, str(HANGING)],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        scrapes = scrapes_beside_hang(folder, collector.url)
        return report(footprints, json.loads(inside.stdout), scrapes, seconds)


if __name__ == "__main__":
    sys.exit(main())
