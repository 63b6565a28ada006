"""A month of 2,000 GPUs from usage to a sealed bill: seconds of each step, beside a floor in the same run.

Usage is written straight into the hourly ledger by generate_series (1.7 million rows of 20 teams); what is timed is the
product's own commands and jobs. The floor is what any rating must do: read the month's usage once and add it up by team
in Postgres. One more hour is real evidence: a usage interval a minute of every GPU, folded, and its day rated again.
`--gpus=N` for another size.

`--owners=10000 --rows=200000` measures usage that was imported for many owners instead (bench/_rating_owners.py);
`--keep=DIR` keeps what its commands wrote.
"""

from __future__ import annotations

import datetime as dt
import os
import shutil
import subprocess
import sys
import tempfile
import time
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


def timed(call) -> tuple[float, float]:
    """Seconds on the clock, and of this process's own processor time."""
    wall, own = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - wall, time.process_time() - own


def main(arguments: list[str]) -> int:
    """Seeds, measures, prints the table."""
    options = {name: value for name, _, value in (argument.partition("=") for argument in arguments)}
    if "--owners" in options:
        keep = Path(options["--keep"]) if "--keep" in options else None
        return _rating_owners.run(int(options["--owners"]), int(options.get("--rows", 200_000)), keep)
    gpus = int(options.get("--gpus", 2000))
    folder = Path(tempfile.mkdtemp(prefix="gpuledger-bench-"))
    folder.chmod(0o755)
    server = EmbeddedServer(folder / "data")
    first = dt.datetime.now(dt.UTC).replace(day=1) - dt.timedelta(days=1)
    name = f"{first:%Y-%m}"
    period = month(name)
    now_ms = int(time.time() * 1000)
    values = {"gpus": gpus, "start": period.start_ms, "end": period.end_ms}
    rows: list[tuple[str, float, float | None, str]] = []
    try:
        dsn = server.acquire()
        migrate.upgrade(dsn)
        ledger = Database(dsn)
        (folder / "rule.toml").write_text(RULE)

        def command(*words: str) -> None:
            subprocess.run(
                [BIN / "gpuledger", *words],
                check=True,
                cwd=folder,
                stdout=subprocess.DEVNULL,
                env={**os.environ, "GPULEDGER_DSN": dsn},
            )

        with psycopg.connect(dsn, autocommit=True) as connection:
            took, _ = timed(lambda: run(connection, SEED, values))
            connection.execute("VACUUM ANALYZE")
            used = connection.execute("SELECT count(*) FROM usage_hour").fetchone()[0]
            print(f"{used:,} usage hours of {gpus} GPUs in {name}, written in {took:.0f} s\n")
            floor, _ = timed(lambda: connection.execute(FLOOR, (period.start_ms, period.end_ms)).fetchall())
            wall, own = timed(lambda: refresh(ledger, period, now_ms))
            rows.append(("charge the month from its usage", wall, own, "60 s"))
            wall, _ = timed(lambda: command("apply", "rule.toml"))
            again, own = timed(lambda: refresh(ledger, period, now_ms))
            rows.append(("rate it again after a rule changed", wall + again, own, "60 s"))
            span = (
                "--from",
                f"{name}-01",
                "--to",
                f"{dt.datetime.fromtimestamp(period.end_ms / 1000, dt.UTC):%Y-%m-%d}",
            )
            rows.append(("chargeback by team", timed(lambda: command("chargeback", *span))[0], None, ""))
            page = ("statement", "--owner", "team-7", "--period", name, "-o", "team.html")
            rows.append(("statement of one team", timed(lambda: command(*page))[0], None, "2 s"))
            export = ("chargeback", *span, "--format", "focus", "-o", "focus.csv")
            rows.append(("FOCUS export", timed(lambda: command(*export))[0], None, ""))
            last = period.end_ms - HOUR_MS
            partitions.ensure(connection, "usage_interval", [last - last % DAY_MS])
            run(connection, HOUR_OF_EVIDENCE, {"gpus": gpus, "start": last})
            day = Period(last - last % DAY_MS, period.end_ms)
            wall, own = timed(lambda: refresh(ledger, day, now_ms))
            rows.append(("fold one more hour, rate its day again", wall, own, ""))
            rows.append(
                ("close the month: receipt and seal", timed(lambda: command("close", "--period", name))[0], None, "")
            )
            lines = connection.execute("SELECT count(*) FROM charge").fetchone()[0]
    finally:
        server.release()
        shutil.rmtree(folder, ignore_errors=True)
    print("| step | seconds | of one core here | times the floor | goal |\n|---|---:|---:|---:|---|")
    print(f"| floor: read the usage once, add it up by team | {floor:.2f} | | 1 | |")
    for step, wall, own, goal in rows:
        core = "" if own is None else f"{own:.2f}"
        print(f"| {step} | {wall:.2f} | {core} | {wall / floor:.0f} | {goal} |")
    hourly = rows[5][1]
    print(
        f"\n{lines:,} charges; at 10,000 GPUs one more hour costs {hourly * 10_000 / gpus:.0f} s of each hour, "
        f"{hourly * 10_000 / gpus / 36:.1f} % of a core and its Postgres"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
