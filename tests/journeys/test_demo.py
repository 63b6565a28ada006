"""The demo as a newcomer runs it: it ends well, its numbers add up, and they are the simulated fleet's own truth."""

import csv
import datetime as dt
import json
import re
import shutil
import socket
import subprocess
from collections import defaultdict
from decimal import Decimal
from pathlib import Path

import pytest

from fakes.postgres import open_folder
from fakes.processes import BIN, environment
from gpuledger_agent.sources.fleet import BLOCK_MS, Fleet

DAYS = 3
STEP_H = Decimal(5) / 60


@pytest.fixture(scope="module")
def demo():
    folder = open_folder("gpuledger-demo-")
    process = started(folder, DAYS)
    try:
        told, said = process.communicate(timeout=300)
    finally:
        ended(process)
    yield subprocess.CompletedProcess(process.args, process.returncode, told, said), folder / "out"
    shutil.rmtree(folder, ignore_errors=True)


def started(folder, days):
    command = [BIN / "gpuledger", "demo", "--once", "--days", str(days), "--output", str(folder / "out"), "--port", "0"]
    return subprocess.Popen(
        command, env=environment(), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def ended(process):
    """By SIGTERM, so that it ends its collector."""
    process.terminate()
    process.communicate(timeout=60)


def test_it_ends_well_with_a_summary(demo):
    """Exit 0; a line a stage, then at most 25 lines: bill with every special row, proof, waste, and what lies ahead."""
    answer, folder = demo
    assert answer.returncode == 0, answer.stdout[-3000:] + answer.stderr[-3000:]
    stages, _, summary = answer.stdout.partition("\n\n")
    assert all(re.match(r"\[ *\d+\.\d s\] ", line) for line in stages.splitlines()), stages
    assert len(summary.splitlines()) <= 25
    for words in (
        "foundation",
        "(unallocated)",
        "(unattributed)",
        f"Proof:         It holds on each of {DAYS} days",
        " findings, ",
        "GPUs of pool default at ",
        "Capacity:      default: hold ",
        "mails in mails/",
    ):
        assert words in summary, words
    assert "Traceback" not in answer.stdout + answer.stderr
    log = (folder / "logs" / "demo.log").read_text()
    for words in ("gpuledger forecast", "gpuledger scale advise", "gpuledger anomalies", "never_used"):
        assert words in log, words


def test_a_line_of_its_log_or_its_end_can_be_run_as_it_stands(demo):
    """Copied into another terminal, each asks the demo's ledger."""
    answer, folder = demo
    log = (folder / "logs" / "demo.log").read_text().splitlines()
    assert log[0] == f"$ cd {folder}"
    logged = next(line.removeprefix("$ ") for line in log if "gpuledger chargeback" in line and "--by team " in line)
    shown = next(line.removeprefix("Ask it:") for line in answer.stdout.splitlines() if line.startswith("Ask it:"))
    for line in (logged, shown):
        again = subprocess.run(
            ["sh", "-c", line], env=environment(), capture_output=True, text=True, timeout=120, check=False
        )
        assert again.returncode == 0, again.stderr
        assert "foundation" in again.stdout


def test_its_configuration_serves_every_command_next_to_it(demo):
    """`--config` of the folder is all that a command needs to read the demo's ledger."""
    _, folder = demo
    command = [BIN / "gpuledger", "chargeback", "--days", "3", "--config", folder / "collector.toml"]
    answer = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120, check=False)
    assert answer.returncode == 0, answer.stderr
    assert "foundation" in answer.stdout


def test_its_files_add_up(demo):
    """The rows of the CSV add up to the totals of the JSON, in hours and in cents."""
    _, folder = demo
    rows = list(csv.DictReader((folder / "chargeback.csv").open()))
    made = json.loads((folder / "chargeback.json").read_text())
    (total,) = made["totals"]
    assert sum(Decimal(row["gpu_hours"]) for row in rows) == Decimal(total["gpu_hours"])
    assert sum(Decimal(row["cost"]) for row in rows) == Decimal(total["cost"])
    assert {row["currency"] for row in rows} == {"USD"}


def test_the_ledger_says_what_the_fleet_did(demo):
    """Each team's hours are those that the simulation gave it, to one sampling step per hold that began or ended."""
    _, folder = demo
    made = json.loads((folder / "chargeback.json").read_text())
    start = int(dt.datetime.fromisoformat(made["from"]).timestamp() * 1000)
    end = int(dt.datetime.fromisoformat(made["to"]).timestamp() * 1000)
    truth, edges = true_hours(start, end)
    seen = {row["team"]: Decimal(row["gpu_hours"]) for row in made["rows"] if not row["team"].startswith("(")}
    seen[""] = next((Decimal(row["gpu_hours"]) for row in made["rows"] if row["team"] == "(unattributed)"), Decimal(0))
    assert set(seen) - {""} == {team for team in truth if team}
    for team, hours in truth.items():
        assert abs(seen[team] - hours) <= edges[team] * STEP_H + Decimal("0.01"), team


def true_hours(start_ms, end_ms):
    """GPU-hours and edges of holds per team, from the simulation's schedule alone (failed and silent times out)."""
    fleet = Fleet(7)
    hours, edges = defaultdict(Decimal), defaultdict(int)
    for node in fleet.nodes:
        for lane in node.lanes:
            for block in range(start_ms // BLOCK_MS, (end_ms - 1) // BLOCK_MS + 1):
                for hold in fleet.holds(lane, block * BLOCK_MS):
                    first, last = max(hold.start_ms, start_ms), min(hold.end_ms, end_ms)
                    for slot in lane.slots if first < last else ():
                        lost = away(fleet, node.name, slot, first, last)
                        share = Decimal(node.accelerators[slot].gpu_micro) / 1_000_000
                        for team in (hold.workload.tags.get("team", ""), *(["nlp"] if lane.sharers > 1 else [])):
                            hours[team] += share * Decimal(last - first - lost) / 3_600_000 / lane.sharers
                            edges[team] += 2
    return hours, edges


def away(fleet, node, slot, first, last):
    """Milliseconds in which this GPU had failed or its node was silent, minute by minute."""
    return sum(60_000 for at in range(first, last, 60_000) if fleet.failed(node, slot, at) or fleet.silent(node, at))


def test_killed_in_the_middle_it_leaves_no_collector():
    """SIGTERM during the month ends the collector and its Postgres as well. A second demo in its folder is refused."""
    folder = open_folder("gpuledger-demo-")
    process = started(folder, 1)
    try:
        line = next(line for line in process.stdout if "collector at http" in line)
        address = re.search(r"http://127\.0\.0\.1:(\d+)", line)
        with socket.create_connection(("127.0.0.1", int(address[1]))):
            pass
        second = started(folder, 1)
        assert "a demo is running in" in second.communicate(timeout=60)[1]
        assert second.returncode == 2
        postmaster = int(next((folder / "out" / "data").rglob("postmaster.pid")).read_text().split()[0])
    finally:
        ended(process)
    assert process.returncode == 130
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", int(address[1])))
    assert not Path(f"/proc/{postmaster}").exists()
    shutil.rmtree(folder, ignore_errors=True)
