"""A month of 2,000 GPUs from usage to a sealed bill: seconds of each step, beside a floor in the
same run.

Usage is written straight into the hourly ledger by generate_series (1.7 million rows of 20 teams);
what is timed is the product's own commands and jobs. The floor is what any rating must do: read the
month's usage once and add it up by team in Postgres. One more hour is real evidence: a usage
interval a minute of every GPU, folded, and its day rated again. `--gpus=N` for another size.

`--owners=10000 --rows=200000` measures usage that was imported for many owners instead
(bench/_rating_owners.py); `--keep=DIR` keeps what its commands wrote.
"""

from __future__ import annotations

import datetime as dt
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psycopg

from bench import _rating_owners
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, Period, month
from gpuledger_collector.services.refresh import refresh
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.server import migrate
from gpuledger_collector.storage.server.embedded import EmbeddedServer
from gpuledger_collector.storage.telemetry import partitions

BIN = Path(sys.executable).parent
SEED = """
INSERT INTO node (name, first_seen_at, last_seen_at)
    SELECT 'node-' || n, now(), now() FROM generate_series(1, %(gpus)s / 8) n;
INSERT INTO accelerator (uuid, device_uuid, model) SELECT 'GPU-' || g, 'GPU-' || g, 'NVIDIA H100'
    FROM generate_series(1, %(gpus)s) g;
INSERT INTO capacity (accelerator_id, gpu_model, gpu_micro, node_id, pool, in_ms, source)
    SELECT id, model, gpu_micro, 1 + (id - 1) / 8, 'train', %(start)s, 'agent' FROM accelerator;
INSERT INTO price (gpu_model, purchase, rate_per_gpu_hour, currency, effective_from_ms, recorded_at) VALUES
    ('H100', 'on_demand', 2.333333333, 'USD', 0, now()),
    ('H100', 'on_demand', 1.999999999, 'USD', %(start)s + 15 * 86400000 + 9 * 3600000, now());
INSERT INTO workload (key, kind, external_id, account, user_name, tags, first_seen_at)
    SELECT 'slurm::' || w, 'slurm', w::text, 'account-' || w %% 20, 'user-' || w %% 300,
        jsonb_build_object('team', 'team-' || w %% 20), now() FROM generate_series(1, 60000) w;
INSERT INTO usage_hour
    SELECT a, h, 'held', 1 + ((a / 4) * 31 + (h / 21600000) * 17) %% 59000, 3000000, 2200000, 800000, 0, 1500000000
    FROM generate_series(1, %(gpus)s) a, generate_series(%(start)s, %(end)s - 1, 3600000) h
        WHERE (a + h / 3600000) %% 10 < 8
    UNION ALL SELECT a, h, 'unallocated', NULL, 600000, 0, 0, 0, 200000000
    FROM generate_series(1, %(gpus)s) a, generate_series(%(start)s, %(end)s - 1, 3600000) h
        WHERE (a + h / 3600000) %% 10 < 2;
"""
HOUR_OF_EVIDENCE = """
INSERT INTO usage_interval SELECT a, 1 + a %% 59000, 'held', m, m + 60000, 60000, 45000, 15000, 0, 25000000, 1
    + (a - 1) / 8,
    '00000000-0000-4000-8000-000000000001', (m / 60000) %% 100000, 0
    FROM generate_series(1, %(gpus)s) a, generate_series(%(start)s, %(start)s + 3599999, 60000) m;
INSERT INTO hour_recompute (accelerator_id, hour_ms) SELECT a, %(start)s FROM generate_series(1, %(gpus)s) a;
"""
FLOOR = """
SELECT w.tags->>'team', sum(u.held_ms) FROM usage_hour u LEFT JOIN workload w ON w.id = u.workload_id
WHERE u.hour_ms >= %s AND u.hour_ms < %s GROUP BY 1
"""
RULE = """
[[rule]]
match = { account = "account-3" }
assign = { team = "moved" }
"""


def run(connection: psycopg.Connection, text: str, values: dict[str, int]) -> None:
    for statement in text.split(";\n"):
        if statement.strip():
            connection.execute(psycopg.ClientCursor(connection).mogrify(statement, values))


def own_seconds() -> float:
    """Processor time of this process and of those that it started and that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


def measure_seconds(call) -> tuple[float, float]:
    """Seconds on the clock, and of our own processor time."""
    wall, own = time.perf_counter(), own_seconds()
    call()
    return time.perf_counter() - wall, own_seconds() - own


@dataclass
class Bench:
    """A month in a database of its own, and the steps that were measured: name, seconds, own core,
    goal.
    """

    dsn: str
    folder: Path
    gpus: int
    month_name: str
    floor: float = 0.0
    rows: list[tuple[str, float, float | None, str]] = field(default_factory=list)

    @property
    def period(self) -> Period:
        """The month."""
        return month(self.month_name)

    def command(self, *words: str) -> None:
        """Run a command of the product."""
        subprocess.run(
            [BIN / "gpuledger", *words],
            check=True,
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "GPULEDGER_DSN": self.dsn},
        )

    def measure(self, step: str, goal: str, *words: str) -> None:
        """Measure a command."""
        self.rows.append((step, measure_seconds(lambda: self.command(*words))[0], None, goal))

    def refresh(
        self, step: str, goal: str, period: Period, before: Callable[[], None] = lambda: None
    ) -> None:
        """Measure what a report does first, after something else; with our own processor time."""
        earlier, _ = measure_seconds(before)
        wall, own = measure_seconds(
            lambda: refresh(Database(self.dsn), period, int(time.time() * 1000))
        )
        self.rows.append((step, earlier + wall, own, goal))

    def seed(self, connection: psycopg.Connection) -> None:
        """Write the usage, and measure the floor."""
        values = {"gpus": self.gpus, "start": self.period.start_ms, "end": self.period.end_ms}
        took, _ = measure_seconds(lambda: run(connection, SEED, values))
        connection.execute("VACUUM ANALYZE")
        used = connection.execute("SELECT count(*) FROM usage_hour").fetchone()[0]
        print(
            f"{used:,} usage hours of {self.gpus} GPUs in {self.month_name}, written in"
            f" {took:.0f} s\n"
        )
        bounds = self.period.start_ms, self.period.end_ms
        self.floor, _ = measure_seconds(lambda: connection.execute(FLOOR, bounds).fetchall())

    def steps(self, connection: psycopg.Connection) -> None:
        """Measure every step."""
        name, period = self.month_name, self.period
        (self.folder / "rule.toml").write_text(RULE)
        self.refresh("charge the month from its usage", "60 s", period)
        rule = partial(self.command, "apply", "rule.toml")
        self.refresh("rate it again after a rule changed", "60 s", period, before=rule)
        self.measure("chargeback by team", "", "chargeback", "--period", name)
        page = ("statement", "--owner", "team-7", "--period", name, "-o", "team.html")
        self.measure("statement of one team", "2 s", *page)
        self.measure(
            "FOCUS export",
            "",
            "chargeback",
            "--period",
            name,
            "--format",
            "focus",
            "-o",
            "focus.csv",
        )
        last = period.end_ms - HOUR_MS
        partitions.ensure(connection, "usage_interval", [last - last % DAY_MS])
        run(connection, HOUR_OF_EVIDENCE, {"gpus": self.gpus, "start": last})
        self.refresh(
            "fold one more hour, rate its day again",
            "",
            Period(last - last % DAY_MS, period.end_ms),
        )
        self.measure("close the month: receipt and seal", "", "close", "--period", name)

    def table(self, lines: int) -> None:
        """Print what was measured."""
        print(
            "| step | seconds | of our processes | times the floor | goal"
            " |\n|---|---:|---:|---:|---|"
        )
        print(f"| floor: read the usage once, add it up by team | {self.floor:.2f} | | 1 | |")
        for step, wall, own, goal in self.rows:
            core = "" if own is None else f"{own:.2f}"
            print(f"| {step} | {wall:.2f} | {core} | {wall / self.floor:.0f} | {goal} |")
        hourly = next(
            wall for step, wall, _, _ in self.rows if step.startswith("fold one more hour")
        )
        print(
            f"\n{lines:,} charges; at 10,000 GPUs one more hour costs"
            f" {hourly * 10_000 / self.gpus:.0f} s of each hour,"
            f" {hourly * 10_000 / self.gpus / 36:.1f} % of a core and its Postgres"
        )


def main(arguments: list[str]) -> int:
    """Seeds, measures, prints the table."""
    options = {
        name: value for name, _, value in (argument.partition("=") for argument in arguments)
    }
    if "--owners" in options:
        keep = Path(options["--keep"]) if "--keep" in options else None
        return _rating_owners.run(
            int(options["--owners"]), int(options.get("--rows", 200_000)), keep
        )
    folder = Path(tempfile.mkdtemp(prefix="gpuledger-bench-"))
    folder.chmod(0o755)
    server = EmbeddedServer(folder / "data")
    last_month = dt.datetime.now(dt.UTC).replace(day=1) - dt.timedelta(days=1)
    try:
        dsn = server.acquire()
        migrate.upgrade(dsn)
        bench = Bench(dsn, folder, int(options.get("--gpus", 2000)), f"{last_month:%Y-%m}")
        with psycopg.connect(dsn, autocommit=True) as connection:
            bench.seed(connection)
            bench.steps(connection)
            lines = connection.execute("SELECT count(*) FROM charge").fetchone()[0]
    finally:
        server.release()
        shutil.rmtree(folder, ignore_errors=True)
    bench.table(lines)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
