"""The demo as a newcomer with a slow machine runs it: it ends well, its numbers add up, and they
are the truth.

The truth is the simulated fleet's own schedule.
"""

import csv
import datetime as dt
import json
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from decimal import Decimal

import pytest

from fakes.ports import free_port
from fakes.postgres import open_folder
from fakes.processes import BIN, environment
from gpuledger_agent.sources.fleet import BLOCK_MS, KEPT, Fleet

DAYS = 3
SLOW_MINUTES = 40
"""So long the month of this demo seems to take: evidence is older than what may be judged as now.
"""
SLOWLY = f"""
from gpuledger_collector.__main__ import main
from gpuledger_collector.cli import demo
clock, earlier = demo.read_clock, [{SLOW_MINUTES} * 60_000]
demo.read_clock = lambda: clock() - (earlier.pop() if earlier else 0)
main()
"""
STEP_H = Decimal(5) / 60


@pytest.fixture(scope="module")
def demo():
    folder = open_folder("gpuledger-demo-")
    process = started(folder, DAYS, program=[sys.executable, "-c", SLOWLY])
    try:
        output, errors = process.communicate(timeout=300)
    finally:
        ended(process)
    yield (
        subprocess.CompletedProcess(process.args, process.returncode, output, errors),
        folder / "out",
    )
    shutil.rmtree(folder, ignore_errors=True)


def started(folder, days, program=(BIN / "gpuledger",)):
    command = [
        *program,
        "demo",
        "--once",
        "--days",
        str(days),
        "--output",
        str(folder / "out"),
        "--port",
        str(free_port()),
    ]
    return subprocess.Popen(
        command,
        env=environment(),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process):
    """By SIGTERM, so that it ends its collector."""
    process.terminate()
    process.communicate(timeout=60)


def test_it_ends_well_with_a_summary(demo):
    """Exit 0; a line a stage, then at most 25 lines: bill with every special row, proof, waste, and
    what lies ahead.
    """
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
        "GPUs of pool default on ",
        "Capacity:      default: hold ",
        "mails in mails/",
    ):
        assert words in summary, words
    findings = re.search(r"Idle now: +(\d+) findings, (\d+) ongoing", summary)
    assert findings, summary
    assert int(findings[1]) == int(findings[2]) > 0
    caught_up = re.search(r"simulating the (\d+) minutes that this took", stages)
    assert caught_up, stages
    assert int(caught_up[1]) >= SLOW_MINUTES
    assert "Traceback" not in answer.stdout + answer.stderr
    log = (folder / "logs" / "demo.log").read_text()
    for words in (
        "gpuledger forecast",
        "gpuledger scale advise",
        "gpuledger plan capacity --store",
        "gpuledger anomalies",
        "never_used",
    ):
        assert words in log, words


def test_the_month_is_proven_after_all_that_was_done_to_it(demo):
    """So that its pages need not say for a quarter of an hour that nobody has asked."""
    _, folder = demo
    log = (folder / "logs" / "demo.log").read_text()
    *_, last = (line for line in log.splitlines() if line.startswith("$ "))
    assert "gpuledger reconcile --period " in last, last


def test_a_line_of_its_log_or_its_end_can_be_run_as_it_stands(demo):
    """Copied into another terminal, each asks the demo's ledger."""
    answer, folder = demo
    log = (folder / "logs" / "demo.log").read_text().splitlines()
    assert log[0] == f"$ cd {folder}"
    logged = next(
        line.removeprefix("$ ")
        for line in log
        if "gpuledger chargeback" in line and "--by team " in line
    )
    shown = next(
        line.removeprefix("Ask it:")
        for line in answer.stdout.splitlines()
        if line.startswith("Ask it:")
    )
    for line in (logged, shown):
        again = subprocess.run(
            ["sh", "-c", line],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert again.returncode == 0, again.stderr
        assert "foundation" in again.stdout


def test_its_configuration_serves_every_command_next_to_it(demo):
    """`--config` of the folder is all that a command needs to read the demo's ledger."""
    _, folder = demo
    command = [
        BIN / "gpuledger",
        "chargeback",
        "--days",
        "3",
        "--config",
        folder / "collector.toml",
    ]
    answer = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=120, check=False
    )
    assert answer.returncode == 0, answer.stderr
    assert "foundation" in answer.stdout


def test_a_card_is_held_idle_and_can_be_given_back(demo):
    """Step 3 of the walk: the list has one that somebody holds, by a job that a command of its
    scheduler ends.
    """
    _, folder = demo
    command = [
        BIN / "gpuledger",
        "idle",
        "--now",
        "--format",
        "json",
        "--config",
        folder / "collector.toml",
    ]
    answer = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=120, check=False
    )
    assert answer.returncode == 0, answer.stderr
    held = [row for row in json.loads(answer.stdout) if row["workload"] == "interactive-shell"]
    assert [(row["node"], row["team"], row["state"]) for row in held] == [
        ("l4-01", "robotics", "never_used")
    ]
    assert KEPT.kind == "slurm"


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
    """Each team's hours are those that the simulation gave it, to one sampling step per hold that
    began or ended.
    """
    _, folder = demo
    made = json.loads((folder / "chargeback.json").read_text())
    start = int(dt.datetime.fromisoformat(made["from"]).timestamp() * 1000)
    end = int(dt.datetime.fromisoformat(made["to"]).timestamp() * 1000)
    truth, edges = true_hours(start, end)
    seen = {
        row["team"]: Decimal(row["gpu_hours"])
        for row in made["rows"]
        if not row["team"].startswith("(")
    }
    seen[""] = next(
        (Decimal(row["gpu_hours"]) for row in made["rows"] if row["team"] == "(unattributed)"),
        Decimal(0),
    )
    assert set(seen) - {""} == {team for team in truth if team}
    for team, hours in truth.items():
        assert abs(seen[team] - hours) <= edges[team] * STEP_H + Decimal("0.01"), team


def true_hours(start_ms, end_ms):
    """GPU-hours and edges of holds per team, from the simulation's schedule alone (failed and
    silent times out).
    """
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
                        for team in (
                            hold.workload.tags.get("team", ""),
                            *(["nlp"] if lane.sharers > 1 else []),
                        ):
                            hours[team] += (
                                share * Decimal(last - first - lost) / 3_600_000 / lane.sharers
                            )
                            edges[team] += 2
    return hours, edges


def away(fleet, node, slot, first, last):
    """Milliseconds in which this GPU had failed or its node was silent, minute by minute."""
    return sum(
        60_000
        for at in range(first, last, 60_000)
        if fleet.is_failed(node, slot, at) or fleet.silent(node, at)
    )
