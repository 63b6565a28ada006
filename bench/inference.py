"""A month of shared model servers: rating and chargeback with and without tenants, and who asked.

2,000 GPUs as in bench/rating.py, of which 50 model servers hold 8 each. Four databases of one
server have the same usage: one without tenants; one whose 1,000 tenants each ask three models in
eight hours of every day, with the counters of the servers, [[inference]] tables and an owner of
each tenant; one with the same tenants, whose servers are declared as charged, so that rating books
what their owners pay; and a dense one, whose tenants each ask ten models in every hour. Tokens are
written straight into the hours that gateways' counters add up to; ids of requests, which records of
single requests leave as well, are not in it.

The sides take turns, another one first each time. Each rates all of its month again, reports it by
team, and those with tenants read who asked, as `gpuledger inference list` does. Goal: rating,
chargeback and who asked take at most 1.3 x the processor time (ours and that of Postgres) of rating
and chargeback without tenants, by medians. The charged case, which books a line for each tenant of
a server and day, and the dense one have no goal. Before the table is printed, all bills are equal,
but for what is charged, and what tenants, `(nobody)` and `(idle)` pay adds up to what the servers
cost. Peak memory is of a process that asks this one question. It ends with 1 when the goal is missed
at the sizes above; of smaller ones most is what every command costs, and they have no goal.

What takes time says so on standard error. `--dense-models=0` leaves out a third of the time,
`--gpus=64 --servers=4 --dense-models=4 --tenants=20 --days=2` takes seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from bench import rating
from bench._rating_owners import BIN, Step, Steps
from bench.ingest import machine
from bench.query import latest_month
from fakes.postgres import open_folder
from gpuledger_collector.accounting.chargeback import Report
from gpuledger_collector.accounting.inference_lines import DEFAULT_KEYS
from gpuledger_collector.accounting.inference_split import CHARGED as CHARGE
from gpuledger_collector.accounting.inference_split import SHOWBACK
from gpuledger_collector.accounting.period import DAY_MS, Period
from gpuledger_collector.cli.common import GARBAGE_THRESHOLD
from gpuledger_collector.services.chargeback import read_chargeback
from gpuledger_collector.services.inference_costs import InferenceAnswer, read_inference
from gpuledger_collector.services.refresh import refresh
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.server import migrate
from gpuledger_collector.storage.server.embedded import EmbeddedServer

GOAL = 1.3
WITHOUT, TENANTS, CHARGED, DENSE = "without tenants", "with tenants", "charged", "dense"
PLATFORM = "platform"
RATING, CHARGEBACK, WHO_ASKED = "rate the month again", "chargeback by team", "who asked"
STEPS = (RATING, CHARGEBACK, WHO_ASKED)
TABLES = ("token_asker", "token_hour", "counter_series", "counter_hour", "inference_share")
PER_SERVER, TEAMS, DENSE_HOURS = 8, 20, 24
SERVERS = """
DELETE FROM usage_hour WHERE accelerator_id <= %(held)s;
INSERT INTO workload (key, kind, external_id, name, tags, first_seen_at)
    SELECT 'kubernetes::model-' || s, 'kubernetes', 'model-' || s, 'model-' || s,
        jsonb_build_object('team', 'platform', 'app', 'model-' || s), now()
    FROM generate_series(0, %(servers)s - 1) s;
INSERT INTO usage_hour
    SELECT a, h, 'held', w.id, 3600000, 2400000, 1200000, 0, 2000000000
    FROM generate_series(1, %(held)s) a JOIN workload w ON w.key = 'kubernetes::model-' || (a - 1) / %(per_server)s,
        generate_series(%(start)s, %(end)s - 1, 3600000) h
"""
ASKED = """
INSERT INTO token_asker (gateway, tenant, model, backend, trust)
    SELECT 'litellm', 'tenant-' || t, 'model-' || (t + k) %% %(servers)s, '', 'authenticated'
    FROM generate_series(0, %(tenants)s - 1) t, generate_series(0, %(models)s - 1) k;
INSERT INTO token_hour (asker_id, hour_ms, input, cached, output, requests)
    SELECT a.id, d + (a.id + h) %% 24 * 3600000, 9000 + n, 3000 + n %% 1000, 1000 + n / 3, 10
    FROM token_asker a, generate_series(%(start)s, %(end)s - 1, 86400000) d,
        generate_series(0, %(hours)s - 1) h, LATERAL (SELECT (a.id * 31 + d / 86400000 * 17 + h * 7) %% 5000 AS n) m;
INSERT INTO counter_series (workload_id, via, source, part, counter, engine)
    SELECT id, 'agent', 'http://' || name || ':8000/metrics', 'engine=0,model_name=' || name, counter, 'vllm'
    FROM workload, unnest(ARRAY['prompt_tokens', 'generated_tokens']) counter WHERE kind = 'kubernetes';
INSERT INTO counter_hour (series_id, hour_ms, units, covered_ms, restarts)
    SELECT s.id, at, coalesce(CASE s.counter WHEN 'prompt_tokens' THEN asked.input ELSE asked.output END, 0) * 21 / 20,
        3600000, 0
    FROM counter_series s JOIN workload w ON w.id = s.workload_id
    CROSS JOIN generate_series(%(start)s, %(end)s - 1, 3600000) at
    LEFT JOIN (SELECT model, hour_ms, sum(input)::bigint AS input, sum(output)::bigint AS output
        FROM token_hour JOIN token_asker ON id = asker_id GROUP BY 1, 2) asked
    ON asked.model = w.name AND asked.hour_ms = at
"""
"""Servers count a twentieth more than gateways: requests that were aborted, calls past them."""
REQUEST_DAYS = """
INSERT INTO day_recompute (day_ms) SELECT generate_series(%(start)s, %(end)s - 1, 86400000)
"""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large the fleet is, and how much is asked."""

    gpus: int
    servers: int
    tenants: int
    models: int
    hours: int
    dense_models: int
    period: Period

    def values(self, models: int, hours: int) -> dict[str, int]:
        """Values of the statements."""
        return {
            "gpus": self.gpus,
            "servers": self.servers,
            "held": self.servers * PER_SERVER,
            "per_server": PER_SERVER,
            "tenants": self.tenants,
            "models": models,
            "hours": hours,
            "start": self.period.start_ms,
            "end": self.period.end_ms,
        }


WHOLE_MONTH = (2000, 50, 1000, 3, 8, 30)
"""GPUs, servers, tenants, models, hours and days that the goal is for."""


def has_goal(sizes: Sizes) -> bool:
    """Whether the goal is for these sizes."""
    asked = sizes.gpus, sizes.servers, sizes.tenants, sizes.models, sizes.hours
    return (*asked, sizes.period.ms // DAY_MS) == WHOLE_MONTH


def now_ms() -> int:
    """The present."""
    return time.time_ns() // 1_000_000


def connect(dsn: str, admin: str = "") -> psycopg.Connection:
    """A connection that writes rows which fit by construction: as the administrator of the server
    it has no foreign keys checked.
    """
    if not admin:
        return psycopg.connect(dsn, autocommit=True)
    name = conninfo_to_dict(dsn)["dbname"]
    connection = psycopg.connect(make_conninfo(admin, dbname=name), autocommit=True)
    connection.execute("SET session_replication_role = replica")
    return connection


@contextlib.contextmanager
def progress(what: str) -> Iterator[None]:
    """Say on standard error how long something took that is not measured."""
    began = time.perf_counter()
    yield
    print(f"{what}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)


def furnish(dsn: str, sizes: Sizes, admin: str = "") -> None:
    """Write the usage of the fleet, and rate it once."""
    with connect(dsn, admin) as connection:
        rating.run(connection, rating.SEED, sizes.values(0, 0))
        rating.run(connection, SERVERS, sizes.values(0, 0))
        connection.execute("VACUUM ANALYZE")
    rate(dsn, sizes.period)


def ask(dsn: str, sizes: Sizes, models: int, hours: int, admin: str = "") -> None:
    """Write what tenants asked for and what servers counted."""
    with connect(dsn, admin) as connection:
        rating.run(connection, ASKED, sizes.values(models, hours))


def declarations(sizes: Sizes, mode: str) -> str:
    """The file that declares servers and tenants, who are shown what they cost or charged it."""
    servers = [
        f'[[inference]]\nname = "model-{number}"\ngateway = "litellm"\nmodels = ["model-{number}"]\n'
        f'served_by = {{ app = "model-{number}" }}\nweights = "1 : 0.1 : 4"\n'
        f'mode = "{mode}"\n'
        for number in range(sizes.servers)
    ]
    tenants = [
        f'[[tenant]]\ngateway = "litellm"\ntenant = "tenant-{number}"\n'
        f'owner = {{ team = "team-{number % TEAMS}" }}\n'
        for number in range(sizes.tenants)
    ]
    return "\n".join([*servers, *tenants])


def declare(dsn: str, folder: Path, sizes: Sizes, mode: str = SHOWBACK) -> None:
    """Apply the declarations, as people do."""
    path = folder / "inference.toml"
    path.write_text(declarations(sizes, mode), encoding="utf-8")
    subprocess.run(
        [BIN / "gpuledger", "apply", path],
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "GPULEDGER_DSN": dsn},
    )


def rate(dsn: str, period: Period) -> None:
    """Rate every day of the month again."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        rating.run(connection, REQUEST_DAYS, {"start": period.start_ms, "end": period.end_ms})
    refresh(Database(dsn), period, now_ms())


def charge(dsn: str, period: Period) -> Report:
    """The bill by team, as `gpuledger chargeback` reads it."""
    with Database(dsn).transaction(read_only=True) as connection:
        return read_chargeback(connection, period, ("team",), now_ms()).report


def who_asked(dsn: str, period: Period, keys: Sequence[str] = DEFAULT_KEYS) -> InferenceAnswer:
    """What tenants pay, as `gpuledger inference list` reads it."""
    with Database(dsn).transaction(read_only=True) as connection:
        return read_inference(connection, period, keys)


def ask_nothing(_dsn: str, _period: Period) -> None:
    """What a process has before it asks."""


def peak_after(question: Callable[[str, Period], object], dsn: str, period: Period) -> float:
    """MiB of this process at most (proc(5)), after a question."""
    question(dsn, period)
    status = Path("/proc/self/status").read_text(encoding="ascii")
    (peak,) = (line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(peak) / 1024


def peak_memory(question: Callable[[str, Period], object], dsn: str, period: Period) -> float:
    """MiB at most of a process of its own that asks a question."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as executor:
        return executor.submit(peak_after, question, dsn, period).result()


def copy_database(dsn: str, admin: str, name: str) -> str:
    """A copy of a database that nobody is connected to; its address."""
    names = conninfo_to_dict(dsn)
    with psycopg.connect(make_conninfo(admin, dbname="postgres"), autocommit=True) as connection:
        connection.execute(
            f'CREATE DATABASE "{name}" TEMPLATE "{names["dbname"]}" STRATEGY FILE_COPY OWNER'
            f' "{names["user"]}"'
        )
    return make_conninfo(dsn, dbname=name)


def fill_databases(dsn: str, admin: str, folder: Path, sizes: Sizes) -> dict[str, str]:
    """The addresses of the databases by side."""
    with progress("usage of the fleet, rated once"):
        furnish(dsn, sizes, admin)
    asked = {TENANTS: (sizes.models, sizes.hours), CHARGED: (sizes.models, sizes.hours)}
    if sizes.dense_models:
        asked[DENSE] = sizes.dense_models, DENSE_HOURS
    sides = {WITHOUT: dsn} | dict.fromkeys(asked, "")
    for side, (models, hours) in asked.items():
        with progress(f"{side}: tokens and declarations"):
            sides[side] = copy_database(dsn, admin, side.replace(" ", "_"))
            ask(sides[side], sizes, models, hours, admin)
            declare(sides[side], folder, sizes, CHARGE if side == CHARGED else SHOWBACK)
    for address in sides.values():
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")
    return sides


def questions(side: str) -> dict[str, Callable[[str, Period], object]]:
    """What is measured of a side, in order."""
    asked: dict[str, Callable[[str, Period], object]] = {RATING: rate, CHARGEBACK: charge}
    return asked if side == WITHOUT else {**asked, WHO_ASKED: who_asked}


def in_turns(
    sides: Mapping[str, str], period: Period, turns: int, postmaster: int
) -> dict[tuple[str, str], list[Step]]:
    """What each step of each side took at its turns; another side is first each time.

    A turn before the first is not counted, and is about the first day alone: it adds what a first
    rating adds, and starts programs that nobody has started yet.
    """
    taken: dict[tuple[str, str], list[Step]] = defaultdict(list)
    names = list(sides)
    first_day = Period(period.start_ms, period.start_ms + DAY_MS)
    for turn in range(turns + 1):
        first = turn % len(names)
        for side in names[first:] + names[:first]:
            for step, question in questions(side).items():
                steps = Steps(postmaster)
                span = period if turn else first_day
                steps.time(f"{side}: {step}", partial(question, sides[side], span))
                if turn:
                    taken[side, step] += steps.done
    return taken


def costs_by_team(report: Report) -> dict[tuple[str, str | None], int]:
    """Micro-units of a bill by team and currency."""
    return {(row.keys[0], row.currency): row.cost_micro for row in report.rows if row.cost_micro}


def move_charged(bill: Report, owners: InferenceAnswer) -> dict[tuple[str, str | None], int]:
    """What a bill by team is when what owners are charged moves to them from the platform."""
    costs = defaultdict(int, costs_by_team(bill))
    for line in owners.lines:
        if line.charged is not None and line.charged.micro:
            team = line.keys["owner"].removeprefix("team=")
            costs[team, line.charged.currency] += line.charged.micro
            costs[PLATFORM, line.charged.currency] -= line.charged.micro
    return {key: micro for key, micro in costs.items() if micro}


def check_amounts(sides: Mapping[str, str], period: Period) -> dict[str, int]:
    """Lines of each side with tenants. Raises SystemExit unless bills are equal, but for what moves
    where it is charged, and parts add up.
    """
    bill = charge(sides[WITHOUT], period)
    lines = {}
    for side, dsn in sides.items():
        own_bill = charge(dsn, period)
        if side == CHARGED:
            expected = move_charged(bill, who_asked(dsn, period, ("owner",)))
            if costs_by_team(own_bill) != expected or expected == costs_by_team(bill):
                raise SystemExit(f"{side}: the bill is not what tenants are charged")
        elif own_bill != bill:
            raise SystemExit(f"{side}: the bill differs from the one without tenants")
        if side == WITHOUT:
            continue
        answer = who_asked(dsn, period)
        paid = sum(line.cost.micro for line in answer.lines if line.cost is not None)
        cost = sum(server.cost.micro for server in answer.servers if server.cost is not None)
        if paid != cost or not cost:
            raise SystemExit(f"{side}: lines add up to {paid} of {cost} micro-units")
        lines[side] = len(answer.lines)
    return lines


def median_cpu(steps: Sequence[Step]) -> float:
    """Seconds of processor time."""
    return statistics.median(step.cpu_s for step in steps)


def print_times(
    sides: Sequence[str], taken: Mapping[tuple[str, str], Sequence[Step]], goal: float | None
) -> dict[str, float]:
    """Print what was taken; return the ratio of all steps to those without tenants, by side."""
    others = [side for side in sides if side != WITHOUT]
    print(
        f"| step | {WITHOUT}, CPU s | wall s | "
        + " | ".join(f"{side}, CPU s | wall s | ratio" for side in others)
        + f" | goal {TENANTS} |"
    )
    print("|---|---:|---:|" + "---:|---:|---:|" * len(others) + "---:|")
    cpu = {key: median_cpu(steps) for key, steps in taken.items()}
    wall = {key: statistics.median(step.wall_s for step in steps) for key, steps in taken.items()}
    rows = {step: (step,) for step in STEPS}
    rows["rating and chargeback"] = (RATING, CHARGEBACK)
    rows["rating, chargeback and who asked"] = STEPS
    ratios: dict[str, float] = {}
    for name, steps in rows.items():
        base = sum(cpu.get((WITHOUT, step), 0) for step in steps)
        cells = []
        for side in (WITHOUT, *others):
            own = [(side, step) for step in steps if (side, step) in cpu]
            used = sum(cpu[key] for key in own)
            cells += [f"{used:.2f}", f"{sum(wall[key] for key in own):.2f}"] if own else ["", ""]
            if side != WITHOUT:
                ratios[side] = used / base if base else 0.0
                cells.append(f"{ratios[side]:.2f}" if base else "")
        print(f"| {name} | {' | '.join(cells)} | {goal if goal and len(steps) > 1 else ''} |")
    return ratios


def print_stored(sides: Mapping[str, str]) -> None:
    """Print rows and bytes of what tenants leave, with their indexes, and of all charges."""
    print("\n| stored | rows | MiB | bytes of a row |\n|---|---:|---:|---:|")
    for side, dsn in sides.items():
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("VACUUM FULL charge")
            for table in ("charge",) if side == WITHOUT else ("charge", *TABLES):
                ((rows, size),) = connection.execute(
                    f"SELECT count(*), pg_total_relation_size('{table}') FROM {table}"
                ).fetchall()
                print(
                    f"| {side}: {table} | {rows:,} | {size / 2**20:,.1f} | {size / max(rows, 1):.0f} |"
                )


def print_memory(sides: Mapping[str, str], period: Period) -> None:
    """Print the peak memory of each question but rating, which takes several processes."""
    print("\n| peak memory of | " + " | ".join(f"{side}, MiB" for side in sides) + " |")
    print("|---|" + "---:|" * len(sides))
    for step in ("nothing", CHARGEBACK, WHO_ASKED):
        cells = []
        for side, dsn in sides.items():
            question = {"nothing": ask_nothing, **questions(side)}.get(step)
            cells.append(f"{peak_memory(question, dsn, period):,.0f}" if question else "")
        print(f"| {step} | {' | '.join(cells)} |")


def read_sizes(options: argparse.Namespace) -> Sizes:
    """The sizes of the options. Raises SystemExit for a fleet that has no room for its servers."""
    if options.servers * PER_SERVER > options.gpus:
        raise SystemExit(f"{options.servers} servers need {options.servers * PER_SERVER} GPUs")
    if max(options.models, options.dense_models) > options.servers:
        raise SystemExit("a tenant cannot ask more models than there are servers")
    start_ms = latest_month(now_ms()).start_ms
    return Sizes(
        options.gpus,
        options.servers,
        options.tenants,
        options.models,
        options.hours,
        options.dense_models,
        Period(start_ms, start_ms + options.days * DAY_MS),
    )


def read_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--gpus", type=int, default=2000)
    add("--servers", type=int, default=50, help="model servers of 8 GPUs each (default: 50)")
    add("--tenants", type=int, default=1000)
    add("--models", type=int, default=3, help="that each tenant asks (default: 3)")
    add("--hours", type=int, default=8, choices=range(1, 25), metavar="1..24", help="of a day")
    add("--dense-models", type=int, default=10, help="of the dense case; 0: without it")
    add("--days", type=int, default=30, choices=range(1, 31), metavar="1..30")
    add("--turns", type=int, default=1, help="of each side (default: 1)")
    return parser.parse_args(arguments)


def main() -> int:
    """Furnish, measure in turns, print the tables."""
    options = read_options()
    # As the commands do.
    gc.set_threshold(GARBAGE_THRESHOLD, 20, 20)
    sizes = read_sizes(options)
    print(f"{machine()}\n", flush=True)
    folder = open_folder("gpuledger-bench-")
    server = EmbeddedServer(folder / "data")
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        dsn = server.acquire()
        stack.callback(server.release)
        migrate.upgrade(dsn)
        sides = fill_databases(dsn, server.admin_dsn, folder, sizes)
        taken = in_turns(sides, sizes.period, options.turns, server.pid or 0)
        with progress("comparison of bills"):
            lines = check_amounts(sides, sizes.period)
        goal = GOAL if has_goal(sizes) else None
        ratios = print_times(list(sides), taken, goal)
        with progress("rows, bytes and memory"):
            print_stored(sides)
            print_memory(sides, sizes.period)
    counts = ", ".join(f"{count:,} {side}" for side, count in lines.items())
    print(
        f"\nall bills are equal but for what is charged; lines by server, tenant and model: {counts}\n{machine()}"
    )
    if goal is None:
        print("no goal at this size")
        return 0
    is_missed = ratios[TENANTS] > goal
    print(f"missed: {f'{ratios[TENANTS]:.2f} x (goal {goal})' if is_missed else 'none'}")
    return int(is_missed)


if __name__ == "__main__":
    sys.exit(main())
