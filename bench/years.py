"""Ten years of 200 GPUs: what a bill, a page, a close and the jobs cost, beside the first two months.

Two ledgers on two embedded servers. The young one has the fleet, the last two months that are over
(pages compare a month with the one before) and the present month up to now; the old one has ten
years that end with the same rows, written in their order. Usage hours are written by
generate_series; charges, daily lines, proofs and seals are the product's own: it rates every year
and closes every month but the last, which both ledgers still have open. 6,000 workloads a month,
four accelerators and six hours each. Usage intervals are a row a month, so that their tables are
there and the room that they take is not; samples, minutes and findings expire and are left out.

Each question is asked in both ledgers in turns, and the best of each counts, so that a load that
comes and goes falls on both. Beside the seconds stands how many blocks of tables and indexes Postgres
looked at for one answer, which no load changes. The months of the two ledgers must have the same bill and the same
seal. The second table has every scheduled job when nothing has changed, the third the room that a
GPU takes in a year. A backup is a file of everything, of which the seconds of a gigabyte count, or
what changed in a day of evidence of each minute, since a full backup that is measured, too.

It ends with 1 when a question of the first table, or the backup of a day, takes more than 1.2 times
as long; below 20 ms a difference says nothing.

Writing takes most of the time and is not what is compared: `--write FOLDER` does that alone, and
`--read FOLDER` asks what it wrote, once (it adds hours).
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import gc
import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import psycopg

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from bench.ingest import machine
from bench.rating import BIN, measure_seconds
from bench.rating import run as run_statements
from fakes.collector import Running, running
from fakes.postgres import open_folder
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, Period, month
from gpuledger_collector.cli.common import GARBAGE_THRESHOLD
from gpuledger_collector.scheduled_jobs import scheduled_jobs
from gpuledger_collector.services import rating
from gpuledger_collector.services.close import Closing, close_month
from gpuledger_collector.services.reconciliation import reconcile
from gpuledger_collector.services.refresh import refresh
from gpuledger_collector.services.upkeep import roll_up_pool_hours
from gpuledger_collector.settings import Settings
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.server import backup, base_backup, migrate
from gpuledger_collector.storage.server.embedded import EmbeddedServer
from gpuledger_collector.storage.telemetry import partitions
from gpuledger_common.compression import zstd

GOAL = 1.2
NOISE_S = 0.02
FLUSH_S = 11
"""After which a session that stays open has told the server what it read."""
DAYS = 3
"""That are changed and backed up, one after the other."""
LEVEL = "team"
SPAN = "span.json"
OFF = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}
LATE_JOBS = frozenset({"send_outbox", "meter_scrapes"})
"""Jobs that ask others than the ledger."""
FLEET = """
INSERT INTO node (name, first_seen_at, last_seen_at)
    SELECT 'node-' || n, now(), now() FROM generate_series(1, %(gpus)s / 8) n;
INSERT INTO accelerator (uuid, device_uuid, model) SELECT 'GPU-' || g, 'GPU-' || g, 'NVIDIA H100'
    FROM generate_series(1, %(gpus)s) g;
INSERT INTO capacity (accelerator_id, gpu_model, gpu_micro, node_id, pool, in_ms, source)
    SELECT id, model, gpu_micro, 1 + (id - 1) / 8, 'train', %(start)s, 'agent' FROM accelerator;
"""
MONTH = """
INSERT INTO workload (id, key, kind, external_id, name, account, user_name, tags, first_seen_at)
    OVERRIDING SYSTEM VALUE
    SELECT w, 'slurm::' || w, 'slurm', w::text, 'train-' || w %% 500, 'account-' || w %% 20,
        'user-' || w %% 300, jsonb_build_object('team', 'team-' || w %% 20), to_timestamp(%(start)s / 1000)
    FROM generate_series((%(start)s - %(origin)s) / 21600000 * (%(gpus)s / 4) + 1,
        ((%(end)s - 1 - %(origin)s) / 21600000 + 1) * (%(gpus)s / 4)) w;
INSERT INTO usage_hour
    SELECT a, h, 'held', 1 + (h - %(origin)s) / 21600000 * (%(gpus)s / 4) + (a - 1) / 4,
        3000000, busy, 3000000 - busy, 0, 300000000 + busy * 397
    FROM generate_series(%(start)s, %(end)s - 1, 3600000) h, generate_series(1, %(gpus)s) a,
        LATERAL (SELECT (a * 7919 + h / 3600000 * 104729 * a) %% 3000001 AS busy) u
        WHERE (a + h / 3600000) %% 10 < 8
    UNION ALL SELECT a, h, 'unallocated', NULL, 600000, 0, 0, 0, 200000000
    FROM generate_series(%(start)s, %(end)s - 1, 3600000) h, generate_series(1, %(gpus)s) a
        WHERE (a + h / 3600000) %% 10 < 2;
INSERT INTO usage_interval SELECT 1, 1 + (%(start)s - %(origin)s) / 21600000 * (%(gpus)s / 4), 'held',
    %(start)s, %(start)s + 3000000, 3000000, 2200000, 800000, 0, 1500000000, 1,
    '00000000-0000-4000-8000-000000000001', %(start)s / 60000 %% 1000000, 0;
"""
HOUR_OF_EVIDENCE = """
INSERT INTO usage_interval
    SELECT a, 1 + (%(start)s - %(origin)s) / 21600000 * (%(gpus)s / 4) + (a - 1) / 4, 'held', m, m + 60000,
        60000, 45000, 15000, 0, 25000000, 1 + (a - 1) / 8, '00000000-0000-4000-8000-000000000001',
        (m / 60000) %% 1000000, 0
    FROM generate_series(1, %(gpus)s) a, generate_series(%(start)s, %(start)s + 3599999, 60000) m;
INSERT INTO hour_recompute (accelerator_id, hour_ms) SELECT a, %(start)s FROM generate_series(1, %(gpus)s) a;
"""
ROOM = """
SELECT CASE WHEN p.inhrelid IS NULL THEN c.relname ELSE parent.relname END, sum(pg_total_relation_size(c.oid))
FROM pg_class c LEFT JOIN pg_inherits p ON p.inhrelid = c.oid LEFT JOIN pg_class parent ON parent.oid = p.inhparent
WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace GROUP BY 1
HAVING sum(pg_total_relation_size(c.oid)) > 1000000 ORDER BY 2 DESC
"""


def months_before(now: dt.datetime, years: int) -> list[str]:
    """Names of the months of these years, the last of which is the one that ended last."""
    count = now.year * 12 + now.month - 1
    return [f"{number // 12}-{number % 12 + 1:02}" for number in range(count - years * 12, count)]


@dataclass
class Ledger:
    """A ledger on a server of its own."""

    name: str
    server: EmbeddedServer
    gpus: int
    origin_ms: int
    now_ms: int

    @property
    def dsn(self) -> str:
        return self.server.dsn

    @property
    def database(self) -> Database:
        return Database(self.dsn)

    def write(self, connection: psycopg.Connection, text: str, period: Period) -> None:
        """Run statements about a period."""
        bounds = {"start": period.start_ms, "end": period.end_ms}
        values = {"gpus": self.gpus, "origin": self.origin_ms, **bounds}
        run_statements(connection, text, values)

    def seed(self, months: Sequence[str]) -> None:
        """Write months in their order, rate them, and close all but the last of them."""
        whole = Period(self.origin_ms, self.now_ms)
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            self.write(connection, FLEET, whole)
            self._set_price()
            for first in range(0, len(months), 12):
                part = months[first : first + 12]
                wrote, rated, closed = (
                    measure_seconds(lambda part=part: self._write_months(connection, part)),
                    measure_seconds(lambda part=part: self._rate(part)),
                    measure_seconds(
                        lambda part=part: [self.close(name) for name in part if name != months[-1]]
                    ),
                )
                print(
                    f"{self.name} {part[0]} to {part[-1]}: written in {wrote[0]:.0f} s, rated in"
                    f" {rated[0]:.0f} s, closed in {closed[0]:.0f} s ({closed[1]:.0f} of ours)",
                    flush=True,
                )
            present = Period(month(months[-1]).end_ms, self.now_ms)
            if present.start_ms < present.end_ms:
                partitions.ensure(connection, "usage_interval", [present.start_ms])
                self.write(connection, MONTH, present)
                refresh(self.database, present, self.now_ms)
            # As its job does within a minute of each fold.
            roll_up_pool_hours(self.database, self.now_ms)
            connection.execute("VACUUM ANALYZE")

    def _set_price(self) -> None:
        """By the command, which notes it in the audit log: a month closes on no other price."""
        first = dt.datetime.fromtimestamp(self.origin_ms / 1000, dt.UTC)
        subprocess.run(
            [
                *(BIN / "gpuledger", "prices", "set", "--rate", "2.333333333"),
                *("--currency", "USD", "--from", f"{first:%Y-%m-%d}"),
            ],
            check=True,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "GPULEDGER_DSN": self.dsn},
        )

    def _write_months(self, connection: psycopg.Connection, names: Sequence[str]) -> None:
        for name in names:
            period = month(name)
            with self.database.transaction() as ours:
                partitions.ensure(ours, "usage_interval", [period.start_ms])
            self.write(connection, MONTH, period)
        connection.execute("VACUUM ANALYZE")

    def _rate(self, names: Sequence[str]) -> None:
        refresh(
            self.database, Period(month(names[0]).start_ms, month(names[-1]).end_ms), self.now_ms
        )

    def close(self, name: str, *, dry: bool = False) -> Closing:
        """Close a month, as the command does after it has rated it."""
        return close_month(self.database, name, month(name), LEVEL, "bench", self.now_ms, dry=dry)

    def add_hour(self, hour_ms: int) -> None:
        """Write an hour of evidence of every accelerator, unrated."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            partitions.ensure(connection, "usage_interval", [hour_ms - hour_ms % DAY_MS])
            self.write(connection, HOUR_OF_EVIDENCE, Period(hour_ms, hour_ms + HOUR_MS))

    def change_day(self, day_ms: int) -> None:
        """Write a day of evidence of every accelerator, and fold and rate it."""
        for hour_ms in range(day_ms, day_ms + DAY_MS, HOUR_MS):
            self.add_hour(hour_ms)
        refresh(self.database, Period(day_ms, day_ms + DAY_MS), self.now_ms)

    def blocks(self) -> int:
        """Blocks that sessions have looked at."""
        with psycopg.connect(self.dsn) as connection:
            (blocks,) = connection.execute(
                "SELECT blks_hit + blks_read FROM pg_stat_database WHERE datname = current_database()"
            ).fetchone()
        return blocks

    def gigabytes(self) -> float:
        """Room of the database."""
        with psycopg.connect(self.dsn) as connection:
            (size,) = connection.execute("SELECT pg_database_size(current_database())").fetchone()
        return size / 1e9


@dataclass(frozen=True)
class Side:
    """A ledger and the collector that answers from it."""

    ledger: Ledger
    collector: Running

    def get(self, path: str) -> object:
        """What is answered. Ends the bench where it is no answer."""
        status, _, text = self.collector.request("GET", path)
        if status != 200:
            raise SystemExit(f"{self.ledger.name} {path}: {status} {str(text)[:300]}")
        return text


Ask = Callable[[Side], object]


def questions(name: str) -> dict[str, Ask]:
    """What people ask of a month that is over and still open, and of the present one."""
    period = month(name)
    first, last = (
        f"{dt.datetime.fromtimestamp(at / 1000, dt.UTC):%Y-%m-%d}"
        for at in (period.start_ms, period.end_ms)
    )
    whole = f"from={first}&to={last}"

    def reconciled(side: Side) -> object:
        with side.ledger.database.transaction() as connection:
            return reconcile(connection, period)

    pages = {
        "overview": "/",
        "overview of the month": f"/?month={name}",
        "statements of the month": f"/statements/team/{name}",
        "statement of a team": f"/statements/team/team-7/{name}",
        "is it right?": "/trust",
        "spend": "/spend",
        "jobs": "/jobs",
        "map": "/fleet",
        "demand": "/demand",
        "metrics": "/metrics",
        "bill by team": f"/v1/chargeback?{whole}&by=team",
        "bill by user and node": f"/v1/chargeback?{whole}&by=user,node",
        "runs of the month": f"/v1/runs?{whole}",
        "accelerators of the month": f"/v1/accelerators?{whole}",
    }
    return {
        **{
            f"{what}, `{path.partition('?')[0]}`": lambda side, path=path: side.get(path)
            for what, path in pages.items()
        },
        "reconcile the month": reconciled,
        "close the month": lambda side: side.ledger.close(name, dry=True),
    }


def compare(sides: Sequence[Side], asked: dict[str, Ask], runs: int) -> list[str]:
    """Ask in turns and print the first table; return what takes more than GOAL times as long."""
    print(
        "\n| question | first months, ms | ten years, ms | times | blocks | blocks of ten years | times |"
        "\n|---|---:|---:|---:|---:|---:|---:|"
    )
    missed = []
    for question, ask in asked.items():
        best = in_turns([partial(ask, side) for side in sides], runs)
        blocks = blocks_of([side.ledger for side in sides], [partial(ask, side) for side in sides])
        print(
            f"| {question} | {best[0] * 1000:,.0f} | {best[1] * 1000:,.0f} |"
            f" {best[1] / best[0]:.2f} | {blocks[0]:,} | {blocks[1]:,} |"
            f" {blocks[1] / max(1, blocks[0]):.2f} |",
            flush=True,
        )
        if best[1] > max(GOAL * best[0], best[0] + NOISE_S):
            missed.append(question)
    return missed


def blocks_of(ledgers: Sequence[Ledger], calls: Sequence[Callable[[], object]]) -> list[int]:
    """Blocks that each of these calls looks at, one in each ledger."""
    time.sleep(FLUSH_S)
    before = [ledger.blocks() for ledger in ledgers]
    for call in calls:
        call()
    time.sleep(FLUSH_S)
    return [ledger.blocks() - old for ledger, old in zip(ledgers, before, strict=True)]


def in_turns(calls: Sequence[Callable[[], object]], runs: int) -> list[float]:
    """The best seconds of each."""
    for call in calls:
        call()
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(runs):
        for call, own in zip(calls, times, strict=True):
            own.append(measure_seconds(call)[0])
    return [min(own) for own in times]


def an_hour(sides: Sequence[Side], runs: int) -> bool:
    """Print what an hour of evidence costs to fold and rate; return whether it misses the goal."""
    times: list[list[float]] = [[] for _ in sides]
    ledger = sides[0].ledger
    day_ms = (ledger.now_ms - 1) // DAY_MS * DAY_MS - DAY_MS
    for number in range(runs + 1):
        for side, own in zip(sides, times, strict=True):
            side.ledger.add_hour(day_ms + number * HOUR_MS)
            period = Period(day_ms, day_ms + DAY_MS)
            own.append(
                measure_seconds(
                    lambda side=side, period=period: refresh(
                        side.ledger.database, period, side.ledger.now_ms
                    )
                )[0]
            )
    young, old = (min(own[1:]) for own in times)
    print(
        f"| fold an hour and rate its day | {young * 1000:,.0f} | {old * 1000:,.0f} |"
        f" {old / young:.2f} |"
    )
    return old > max(GOAL * young, young + NOISE_S)


def jobs(sides: Sequence[Side], folder: Path) -> None:
    """Print each job's seconds when nothing has changed since its last run."""
    print(
        "\n| job, nothing new | first months, ms | ten years, ms | times | blocks | blocks of ten years |"
        "\n|---|---:|---:|---:|---:|---:|"
    )
    both = [
        {
            job.name: job
            for job in scheduled_jobs(
                Settings(data_dir=folder, keep_series_days=31), side.ledger.database
            )
            if job.name not in LATE_JOBS
        }
        for side in sides
    ]
    for name in both[0]:
        young, old = in_turns([own[name].work for own in both], 2)
        if max(young, old) > NOISE_S:
            blocks = blocks_of([side.ledger for side in sides], [own[name].work for own in both])
            print(
                f"| {name} | {young * 1000:,.0f} | {old * 1000:,.0f} | {old / young:.1f} |"
                f" {blocks[0]:,} | {blocks[1]:,} |",
                flush=True,
            )


def backups(sides: Sequence[Side], folder: Path) -> bool:
    """Print what backups take, whole and of a day; return whether that of a day misses the goal."""
    print(
        "\n| backup | ledger, GB | file, GB | seconds | seconds a GB |\n|---|---:|---:|---:|---:|"
    )
    for side in sides:
        target = folder / f"{side.ledger.name}.dump"
        seconds, _ = measure_seconds(
            lambda target=target, side=side: backup.backup(side.ledger.dsn, target)
        )
        size, whole = target.stat().st_size / 1e9, side.ledger.gigabytes()
        target.unlink()
        print(
            f"| {side.ledger.name}, file | {whole:.2f} | {size:.3f} | {seconds:.1f} |"
            f" {seconds / whole:.1f} |",
            flush=True,
        )
        size, seconds = add_member(side.ledger, folder)
        print(
            f"| {side.ledger.name}, full | {whole:.2f} | {size:.3f} | {seconds:.1f} |"
            f" {seconds / whole:.1f} |",
            flush=True,
        )
    days: list[list[tuple[float, float]]] = [[] for _ in sides]
    for number in range(DAYS):
        day_ms = (sides[0].ledger.now_ms - 1) // DAY_MS * DAY_MS - (number + 2) * DAY_MS
        for side, own in zip(sides, days, strict=True):
            side.ledger.change_day(day_ms)
            own.append(add_member(side.ledger, folder))
    (_, young), (_, old) = best = [min(own, key=lambda day: day[1]) for own in days]
    for side, (size, seconds) in zip(sides, best, strict=True):
        print(f"| {side.ledger.name}, a day | | {size:.3f} | {seconds:.1f} | |")
    print(f"\na day of the old ledger: {old / young:.2f} times")
    return old > max(GOAL * young, young + NOISE_S)


def add_member(ledger: Ledger, folder: Path) -> tuple[float, float]:
    """Gigabytes and seconds of the next incremental backup, the first of which is full."""
    chain = folder / f"{ledger.name} by the day"
    began = time.perf_counter()
    member = base_backup.back_up(ledger.server, chain, time.time_ns() // 1_000_000)
    return member.bytes / 1e9, time.perf_counter() - began


def room(ledger: Ledger, years: int) -> None:
    """Print the bytes that a GPU takes in a year, by table."""
    print("\n| table | GB | rows | bytes a row | MB a GPU-year |\n|---|---:|---:|---:|---:|")
    with psycopg.connect(ledger.dsn) as connection:
        for table, size in connection.execute(ROOM).fetchall():
            (rows,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
            print(
                f"| {table} | {int(size) / 1e9:.2f} | {rows:,} |"
                f" {int(size) / max(1, rows):.0f} | {int(size) / 1e6 / ledger.gpus / years:.2f} |"
            )


def packed_hours(ledger: Ledger, name: str) -> None:
    """Print what a usage hour would take, packed by column for each accelerator and month."""
    period = month(name)
    columns = (
        *("hour_ms", "workload_id", "CASE state WHEN 'held' THEN 1 ELSE 2 END"),
        *("held_ms", "busy_ms", "unknown_ms", "energy_mj"),
    )
    packed = rows = 0
    with psycopg.connect(ledger.dsn) as connection:
        for (accelerator,) in connection.execute("SELECT id FROM accelerator").fetchall():
            table = np.array(
                connection.execute(
                    f"SELECT {', '.join(f'coalesce({column}, 0)' for column in columns)} FROM usage_hour"
                    " WHERE accelerator_id = %s AND hour_ms >= %s AND hour_ms < %s ORDER BY hour_ms",
                    (accelerator, period.start_ms, period.end_ms),
                ).fetchall(),
                dtype=np.int64,
            )
            table[1:, :2] = np.diff(table[:, :2], axis=0)
            by_byte = np.ascontiguousarray(table.T).view(np.uint8).reshape(len(columns), -1, 8)
            packed += len(zstd.compress(by_byte.transpose(0, 2, 1).tobytes(), 9))
            rows += len(table)
    print(f"\nusage hours packed by accelerator and month: {packed / rows:.1f} bytes each")


def same_months(sides: Sequence[Side], name: str) -> bool:
    """Whether both ledgers have the same bill of a month, and the same seal."""
    closings = [side.ledger.close(name, dry=True) for side in sides]
    seals = {closing.period.seal for closing in closings}
    print(f"\n{closings[0].period.lines:,} lines in {name}, seal {' != '.join(sorted(seals))}")
    return len(seals) == 1


@dataclass(frozen=True)
class Span:
    """Of how many GPUs, which months, up to when: what a ledger that is kept does not say of itself."""

    gpus: int
    years: int
    now_ms: int

    @property
    def months(self) -> list[str]:
        """Names of the months that are over."""
        return months_before(dt.datetime.fromtimestamp(self.now_ms / 1000, dt.UTC), self.years)


def open_ledgers(
    stack: contextlib.ExitStack, folder: Path, span: Span, *, write: bool
) -> list[Ledger]:
    """Both ledgers on servers of their own, which run as long as the stack."""
    names, ledgers = span.months, []
    for name, months in (("first months", names[-2:]), ("ten years", names)):
        server = EmbeddedServer(folder / name.replace(" ", "-"), options=OFF)
        dsn = server.acquire()
        stack.callback(server.release)
        migrate.upgrade(dsn)
        ledgers.append(Ledger(name, server, span.gpus, month(names[0]).start_ms, span.now_ms))
        if write:
            ledgers[-1].seed(months)
    return ledgers


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, default=200)
    parser.add_argument("--years", type=int, default=10)
    parser.add_argument("--runs", type=int, default=7, help="turns of each question (default: 7)")
    apart = parser.add_mutually_exclusive_group()
    apart.add_argument("--write", type=Path, help="write the ledgers into this folder, and end")
    apart.add_argument(
        "--read", type=Path, help="ask the ledgers of this folder, of its GPUs and years, once"
    )
    options = parser.parse_args()
    print(machine())
    gc.set_threshold(GARBAGE_THRESHOLD, 20, 20)
    # In this process, which has imported numpy: the same charges in less time.
    rating.WORKERS_FROM_S, rating.TOGETHER_FROM = math.inf, 1
    span = Span(options.gpus, options.years, time.time_ns() // 1_000_000 // HOUR_MS * HOUR_MS)
    if options.read:
        span = Span(**json.loads((options.read / SPAN).read_text()))
    with contextlib.ExitStack() as stack:
        folder = options.read or options.write
        if folder is None:
            folder = open_folder("gpuledger-bench-")
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
        ledgers = open_ledgers(stack, folder, span, write=options.read is None)
        if options.write:
            (folder / SPAN).write_text(json.dumps(asdict(span)))
            return 0
        names = span.months
        sides = [Side(ledger, stack.enter_context(running(ledger.dsn))) for ledger in ledgers]
        missed = compare(sides, questions(names[-1]), options.runs)
        missed += ["an hour"] if an_hour(sides, options.runs) else []
        jobs(sides, folder)
        missed += ["a backup of a day"] if backups(sides, folder) else []
        room(sides[-1].ledger, span.years)
        packed_hours(sides[-1].ledger, names[-1])
        is_same = same_months(sides, names[-1])
    print(f"\nmissed: {'; '.join(missed) or 'none'}")
    return int(bool(missed) or not is_same)


if __name__ == "__main__":
    raise SystemExit(main())
