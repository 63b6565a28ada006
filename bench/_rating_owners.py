"""A month of usage that was imported for many owners: CPU of each command and of its Postgres,
beside a floor.

The usage file is drawn with a fixed seed, so two runs of one size bill the same amounts. What is
timed is the product's own commands; the floors are COPY of the same file into a bare table, and
adding its hours up by team in plain SQL.
"""

from __future__ import annotations

import csv
import datetime as dt
import hashlib
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from bench.ingest import tree_seconds
from gpuledger_collector.storage.server import migrate
from gpuledger_collector.storage.server.embedded import EmbeddedServer

BIN = Path(sys.executable).parent
MONTH = "2026-09"
START = dt.datetime(2026, 9, 1, tzinfo=dt.UTC)
MONTH_S = 30 * 86400
LONGEST_S = 4 * 86400
POOLS = ("train", "serve", "research")
MODELS = ("H100", "A100")
PRICES = """pool,gpu_model,purchase,rate_per_gpu_hour,currency,effective_from,list_rate
,H100,on_demand,2.333333333,USD,2026-01-01T00:00:00Z,2.9
,A100,on_demand,1.499999999,USD,2026-01-01T00:00:00Z,
train,H100,on_demand,1.999999999,USD,2026-09-15T09:30:00Z,2.9
"""
COLUMNS = "workload_id,start,end,gpus,gpu_model,pool,user,job_name,tag:team,tag:project"
FLOOR_TABLE = """CREATE UNLOGGED TABLE floor (workload_id text, start bigint, "end" bigint, gpus numeric,
    gpu_model text, pool text, user_name text, job_name text, team text, project text)"""
FLOOR_SUM = 'SELECT team, pool, gpu_model, sum(("end" - start) * gpus) FROM floor GROUP BY 1, 2, 3'
INSTANT_MADE = re.compile(rf"{dt.datetime.now(dt.UTC):%Y-%m}-\d\d[T ]\d\d:\d\d(:\d\d)?Z?".encode())
GOALS = {
    "import": 20.0,
    "first chargeback, with rating": 60.0,
    "close": 30.0,
    "FOCUS": 60.0,
    "statement --all": 600.0,
}


def write_usage(path: Path, owners: int, rows: int) -> None:
    """Jobs of five minutes to four days, most of them short; owner by turns, so that every owner
    has one.
    """
    draw = random.Random(0)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS.split(","))
        for number in range(rows):
            length = round(300 * (LONGEST_S / 300) ** draw.random())
            start = int(START.timestamp()) + draw.randrange(MONTH_S - length)
            team = number % owners
            writer.writerow(
                (
                    f"job-{number}",
                    start,
                    start + length,
                    draw.choice((1, 1, 1, 2, 4, 8)),
                    draw.choice(MODELS),
                    draw.choice(POOLS),
                    f"user-{team}-{draw.randrange(5)}",
                    f"train-{draw.randrange(40)}",
                    f"team-{team}",
                    f"project-{team}-{draw.randrange(3)}",
                )
            )


@dataclass(slots=True)
class Step:
    """What one step took: seconds on the clock, CPU of the command, CPU of Postgres."""

    name: str
    wall_s: float
    client_s: float
    postgres_s: float

    @property
    def cpu_s(self) -> float:
        """Both processes together."""
        return self.client_s + self.postgres_s


@dataclass(slots=True)
class Steps:
    """Runs steps one by one; `postmaster` is the process whose tree is Postgres."""

    postmaster: int
    done: list[Step] = field(default_factory=list)

    def time(self, name: str, call: Callable[[], object]) -> None:
        """Run and record a step."""
        client, postgres, wall = _own_cpu(), tree_seconds(self.postmaster), time.perf_counter()
        call()
        wall = time.perf_counter() - wall
        time.sleep(0.2)  # until the postmaster has taken over what the ended backend used
        step = Step(name, wall, _own_cpu() - client, tree_seconds(self.postmaster) - postgres)
        self.done.append(step)
        print(f"{name}: {step.cpu_s:.1f} s of CPU, {wall:.1f} s", file=sys.stderr, flush=True)


def _own_cpu() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def copy_floor(dsn: str, usage: Path) -> None:
    """COPY of the file as it is."""
    with psycopg.connect(dsn) as connection, usage.open("rb") as file:
        connection.execute(FLOOR_TABLE)
        with connection.cursor().copy("COPY floor FROM STDIN (FORMAT csv, HEADER)") as copy:
            while block := file.read(1 << 16):
                copy.write(block)


def sum_floor(dsn: str) -> None:
    """GPU-hours by team, pool and model."""
    with psycopg.connect(dsn) as connection:
        connection.execute(FLOOR_SUM).fetchall()
        connection.execute("DROP TABLE floor")


def digest(path: Path) -> str:
    """SHA-256 of a file, or of a folder's files by name; without the instants at which it was made."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    whole = hashlib.sha256()
    for file in files:
        whole.update(file.name.encode() + INSTANT_MADE.sub(b"", file.read_bytes()))
    return whole.hexdigest()[:16]


def run(owners: int, rows: int, keep: Path | None) -> int:
    """Measure, print the table and what was written; `keep` keeps the outputs there, to be
    compared.
    """
    folder = Path(tempfile.mkdtemp(prefix="gpuledger-bench-"))
    folder.chmod(0o755)
    results = folder / "results"
    results.mkdir()
    server = EmbeddedServer(folder / "data")
    write_usage(folder / "usage.csv", owners, rows)
    (folder / "prices.csv").write_text(PRICES)
    try:
        dsn = server.acquire()
        migrate.upgrade(dsn)

        def command(*words: str, output: Path = folder / "output.txt") -> None:
            environment = {**os.environ, "GPULEDGER_DSN": dsn}
            with output.open("w") as file:
                subprocess.run(
                    [BIN / "gpuledger", *words],
                    check=True,
                    cwd=folder,
                    stdout=file,
                    env=environment,
                )

        steps = Steps(server.pid or 0)
        steps.time("floor: COPY of the same rows", lambda: copy_floor(dsn, folder / "usage.csv"))
        steps.time("floor: GPU-hours by team in SQL", lambda: sum_floor(dsn))
        floor = sum(step.cpu_s for step in steps.done)
        command("import", "prices", "prices.csv")
        steps.time("import", lambda: command("import", "usage", "usage.csv"))
        csv_words = (
            "chargeback",
            "--period",
            MONTH,
            "--format",
            "csv",
            "-o",
            "results/chargeback.csv",
        )
        steps.time("first chargeback, with rating", lambda: command(*csv_words))
        steps.time("chargeback again", lambda: command(*csv_words))
        close_words = (
            "close",
            "--period",
            MONTH,
            "--by",
            "bench",
            "--format",
            "json",
            "-o",
            "results/receipt.json",
        )
        steps.time("close", lambda: command(*close_words))
        focus_words = (
            "chargeback",
            "--period",
            MONTH,
            "--format",
            "focus",
            "-o",
            "results/focus.csv",
        )
        steps.time("FOCUS", lambda: command(*focus_words))
        proof = ("reconcile", "--period", MONTH, "--format", "json")
        steps.time("reconcile", lambda: command(*proof, output=results / "proof.json"))
        pages = ("statement", "--all", "--period", MONTH, "--dir", "results/statements")
        steps.time("statement --all", lambda: command(*pages))
        with psycopg.connect(dsn) as connection:
            ((charges,),) = connection.execute("SELECT count(*) FROM charge").fetchall()
        digests = {path.name: digest(path) for path in sorted(results.iterdir())}
        if keep is not None:
            shutil.copytree(results, keep, dirs_exist_ok=True)
    finally:
        server.release()
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{rows:,} rows of {owners:,} owners, {charges:,} charges\n")
    print(
        "| step | CPU s | of the command | of Postgres | wall s | times the floors | goal CPU s |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|")
    whole = owners == 10_000 and rows == 200_000
    for step in steps.done:
        goal = f"{GOALS[step.name]:.0f}" if whole and step.name in GOALS else ""
        cells = (
            f"{step.cpu_s:.1f}",
            f"{step.client_s:.1f}",
            f"{step.postgres_s:.1f}",
            f"{step.wall_s:.1f}",
        )
        print(f"| {step.name} | {' | '.join(cells)} | {step.cpu_s / floor:.0f} | {goal} |")
    print(
        "\nwritten (SHA-256 without instants): "
        + ", ".join(f"{name} {value}" for name, value in digests.items())
    )
    missed = [
        step.name
        for step in steps.done
        if whole and step.cpu_s > GOALS.get(step.name, float("inf"))
    ]
    for name in missed:
        print(f"goal missed: {name}")
    return 1 if missed else 0
