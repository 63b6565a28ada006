"""Questions of a bill and of a dashboard: our ledgers and rollups against the peers' series, over
the same fleet.

2,000 GPUs of 250 nodes and 20 teams, up to the end of the latest month of 30 days that is over.
Ours, in two databases of one server: a month and a year of the daily ledger, the five-minute series
and the heat of nodes, a day of minutes and the newest values, written straight into the tables in
the sizes that they have there; the heat of the day is made from its minutes, and the ledger of
months from that of days, by the jobs that do so. Peers: held GPUs every five minutes of those 30
days (17.3 million points) and utilization every minute of the last day (2.9 million), with the team
and the node as labels; the same numbers. VictoriaMetrics gets all of it by its import; Prometheus,
whose only way in is remote write, gets every tenth GPU, and its times are therefore of a tenth of
the data.

Each question is what a person asks, in the form in which each side can answer it best: ours read
what was added up when evidence came, which is what they are for; the heat map is the query of its
panel. All sides are up at once and are asked in turn, question by question, so that a load that
comes and goes falls on all of them; each is asked twice at its turn, the second counts, and of
those the best of nine to a hundred. Answers are read whole; VictoriaMetrics works without its cache
of them. Before the clock runs, the heat map's 24,000 cells are held against VictoriaMetrics'. It
ends with 1 when a goal is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import http.client
import json
import shutil
import sys
import time
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from gpuledger_collector.accounting.chargeback import Report, report
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, UTC_DAYS, Period
from gpuledger_collector.ingest.remote_write.messages import ONE, RAW
from gpuledger_collector.storage.billing import months, reports
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.ledger import zones
from gpuledger_collector.storage.locks import Lock
from gpuledger_collector.storage.server import migrate
from gpuledger_collector.storage.server.embedded import EmbeddedServer
from gpuledger_collector.storage.telemetry import node_utilization, series
from gpuledger_collector.storage.telemetry.node_utilization import QUARTER_MS

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from bench.ingest import machine, prometheus
from bench.remote_write import body_of, victoria
from fakes.boards import BOARDS, asked, chosen
from fakes.grafana import Range
from fakes.postgres import open_folder
from fakes.prometheus import WRITE, headers

TEAMS, PROJECTS, PER_NODE = 20, 2, 8
STEP_MS = 300_000
MONTH = 30
RUNS, MOST_RUNS, ENOUGH_S = 9, 100, 20
"""Every question is asked RUNS times at least, and up to MOST_RUNS times while that takes less than
ENOUGH_S.
"""
EVERY = 10
"""Of how many GPUs Prometheus gets one."""
GOALS = {"month chargeback by team": 100.0}
NO_GOAL = ("idle over 30 minutes, from minutes",)
"""A job asks it; no page."""
YEAR_GOAL = 1.2
YEAR, VICTORIA, PROMETHEUS = "after a year", "VictoriaMetrics", "Prometheus, a tenth of the data"
PANEL = "Utilization of nodes"
Ask = Callable[[], object]

FLEET = """
INSERT INTO node (name, first_seen_at, last_seen_at) SELECT 'node-' || n, now(), now()
    FROM generate_series(0, %(gpus)s / 8 - 1) n;
INSERT INTO accelerator (uuid, device_uuid, model, gpu_index) SELECT 'GPU-' || g, 'GPU-' || g, 'H100', g %% 8
    FROM generate_series(0, %(gpus)s - 1) g;
INSERT INTO capacity (accelerator_id, gpu_model, gpu_micro, node_id, pool, in_ms, source)
    SELECT a.id, a.model, a.gpu_micro, n.id, 'train', 0, 'agent' FROM accelerator a JOIN node n
    ON n.name = 'node-' || substr(a.uuid, 5)::bigint / 8;
INSERT INTO owner (org, team, project) SELECT 'acme', 'team-' || t, 'team-' || t || '-' || p
    FROM generate_series(0, 19) t, generate_series(0, 1) p;
INSERT INTO gpu_latest (accelerator_id, at_ms, state, workload_id, gpu_utilization_ratio)
    SELECT id, %(end)s, 'held', NULL, CASE WHEN id %% 10 = 0 THEN 0 ELSE 0.8 END FROM accelerator;
INSERT INTO gpu_minute (accelerator_id, minute_ms, samples, utilization_ratio, power_watts)
    SELECT a.id, m, 6, (((a.id %% 97) * (m / 60000 %% 1009) * 31 + a.id * 17)
        %% CASE WHEN a.id %% 10 = 0 THEN 4 ELSE 100 END) / 100.0, 400
    FROM generate_series(%(end)s - 86400000, %(end)s - 1, 60000) m, accelerator a
"""
HISTORY = """
INSERT INTO ledger_day (day_ms, owner_id, state, pool, gpu_model, currency, gpu_ns, busy_ns, idle_ns, unknown_ns,
    cost_micro, idle_cost_micro)
    SELECT d, o.id, 'held', 'train', 'H100', 'USD', 50 * 86400000000000::numeric, 1e15, 1e14, 0, 2e9, 1e8
    FROM generate_series(%(start)s, %(until)s - 1, 86400000) d, owner o;
INSERT INTO owner_5min (at_ms, owner_id, state, pool, gpu_model, currency, gpu_ns, busy_ns, idle_ns, unknown_ns,
    energy_mj, cost_micro)
    SELECT at, o.id, 'held', 'train', 'H100', 'USD', (30 + (o.id * 31 + at / 300000) %% 20) * 300000000000,
        4e12, 1e12, 0, 1e9, 1e6
    FROM generate_series(%(start)s, %(until)s - 1, 300000) at, owner o;
INSERT INTO node_utilization SELECT hour_ms - (%(end)s - 86400000 - d), node_id, accelerator_ids, utilization,
        utilization_minutes, sm_active, sm_active_minutes
    FROM node_utilization, generate_series(%(start)s, least(%(until)s, %(end)s - 86400000) - 1, 86400000) d
    WHERE hour_ms >= %(end)s - 86400000
"""


@dataclass(frozen=True)
class Fleet:
    """What is held and how busy it is, by formula: the same for all sides."""

    gpus: int
    end_ms: int

    def is_held(self, gpu: int, at_ms: np.ndarray) -> np.ndarray:
        """0 or 1 every five minutes."""
        return ((gpu * 31 + at_ms // STEP_MS * 17 // 36) % 10 < 8).astype(np.int64)

    def busy(self, gpu: int, at_ms: np.ndarray) -> np.ndarray:
        """Whole percent every minute, one in ten idle; the database counts accelerators from 1."""
        number = gpu + 1
        return (number % 97 * (at_ms // 60_000 % 1009) * 31 + number * 17) % (
            4 if number % 10 == 0 else 100
        )

    def labels(self, name: str, gpu: int) -> dict[str, str]:
        """Name and labels of a series."""
        return {
            "__name__": name,
            "gpu": str(gpu),
            "node": f"node-{gpu // PER_NODE}",
            "team": f"team-{gpu % TEAMS}",
        }

    @property
    def month(self) -> np.ndarray:
        """Instants of the month."""
        return np.arange(self.end_ms - MONTH * DAY_MS, self.end_ms, STEP_MS)

    @property
    def day(self) -> np.ndarray:
        """Minutes of the last day."""
        return np.arange(self.end_ms - DAY_MS, self.end_ms, 60_000)


def execute(dsn: str, script: str, values: dict[str, int]) -> float:
    """Seconds that a script of statements took."""
    begun = time.perf_counter()
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in script.split(";\n"):
            connection.execute(psycopg.ClientCursor(connection).mogrify(statement, values).encode())
        connection.execute("VACUUM ANALYZE")
    return time.perf_counter() - begun


IDLE_NOW = (
    "SELECT count(*) FROM gpu_latest WHERE state = 'held' AND gpu_utilization_ratio < 0.05 AND"
    " at_ms >= %s"
)
IDLE_MINUTES = """SELECT count(*) FROM (SELECT a.id, (SELECT avg(m.utilization_ratio) FROM gpu_minute m
    WHERE m.accelerator_id = a.id AND m.minute_ms >= %s) AS mean FROM accelerator a) found WHERE mean < 0.05"""


def heat_map(end_ms: int) -> str:
    """The query of the board's panel for the day before an instant, every node chosen."""
    until = dt.datetime.fromtimestamp(end_ms / 1000, dt.UTC)
    span = Range(until - dt.timedelta(days=1), until)
    (found,) = (
        one.sql
        for one in asked("fleet", chosen(BOARDS["fleet"], {}, "all"), span)
        if one.title == PANEL
    )
    return found


def chargeback(connection: psycopg.Connection, period: Period) -> Report:
    """The report by team, as `gpuledger chargeback` and the page of the month make it."""
    return report(reports.charged_lines(connection, period, ("team",)), ("team",))


def ours(connection: psycopg.Connection, end_ms: int) -> dict[str, Ask]:
    """Each question as it is asked of one of our databases."""
    month = Period(end_ms - MONTH * DAY_MS, end_ms)
    days = Period(month.start_ms - 1, month.end_ms)
    panel = heat_map(end_ms).encode()

    def node_utilization() -> None:
        """Read, and like the peers' answers not parsed."""
        if connection.execute(panel).rowcount == 0:
            raise SystemExit("the heat map is empty")

    return {
        "month chargeback by team": partial(chargeback, connection, month),
        "the same from days, as of a period that is no month": partial(
            chargeback, connection, days
        ),
        "idle now": lambda: connection.execute(IDLE_NOW, (end_ms - 600_000,)).fetchall(),
        "heat map 24 h, node x 15 min, means": node_utilization,
        "heat map 24 h, node x 15 min; peers at instants": node_utilization,
        "team series 30 d at 5 min": lambda: series.read(
            connection, month, STEP_MS, ("team",), measures=("gpu_ns",)
        ),
        "the same with all six measures": lambda: series.read(
            connection, month, STEP_MS, ("team",)
        ),
        "idle over 30 minutes, from minutes": (
            lambda: connection.execute(IDLE_MINUTES, (end_ms - 1_800_000,)).fetchall()
        ),
    }


def questions(end_ms: int) -> dict[str, tuple[str, dict[str, object]]]:
    """PromQL of the same questions: path and parameters.

    The window of a quarter ends at its last minute, included.
    """
    end = end_ms / 1000 - 60
    at = {"time": end}
    day = {"start": (end_ms - DAY_MS + QUARTER_MS) / 1000 - 60, "end": end, "step": "15m"}
    month = {"start": end_ms / 1000 - MONTH * 86_400, "end": end, "step": "5m"}
    return {
        "month chargeback by team": (
            "query",
            {"query": "sum by (team) (sum_over_time(gpu_held[30d]))", **at},
        ),
        "idle now": ("query", {"query": "count(gpu_busy < 5)", **at}),
        "heat map 24 h, node x 15 min, means": (
            "query_range",
            {"query": "avg by (node) (avg_over_time(gpu_busy[15m]))", **day},
        ),
        "heat map 24 h, node x 15 min; peers at instants": (
            "query_range",
            {"query": "avg by (node) (gpu_busy)", **day},
        ),
        "team series 30 d at 5 min": (
            "query_range",
            {"query": "sum by (team) (gpu_held)", **month},
        ),
        "idle over 30 minutes, from minutes": (
            "query",
            {"query": "count(avg_over_time(gpu_busy[30m]) < 5)", **at},
        ),
    }


def peer(port: int, end_ms: int, **more: object) -> dict[str, Ask]:
    """Each question as it is asked over HTTP, the answer read whole but not parsed; one connection
    for all.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)

    def ask(path: str, text: str) -> bytes:
        connection.request("GET", f"/api/v1/{path}?{text}")
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 200 or b'"success"' not in body[:200] or b'"result":[]' in body:
            raise SystemExit(f"{path} {text}: {answer.status} {body[:300]!r}")
        return body

    return {
        name: partial(ask, path, urllib.parse.urlencode({**given, **more}))
        for name, (path, given) in questions(end_ms).items()
    }


def in_turn(sides: dict[str, dict[str, Ask]]) -> dict[str, dict[str, float]]:
    """Best milliseconds of each question by side; the sides take turns, another one first each
    time.

    Each is asked twice at its turn and the second counts: the first finds the processor's caches as
    another side has left them, which is most of what an answer of less than a millisecond takes.
    """
    found: dict[str, dict[str, float]] = {name: {} for name in sides}
    for question in next(iter(sides.values())):
        asked_of = [name for name in sides if question in sides[name]]
        start = time.perf_counter()
        for turn in range(MOST_RUNS + 1):
            if turn > RUNS and time.perf_counter() - start > ENOUGH_S:
                break
            for name in asked_of[turn % len(asked_of) :] + asked_of[: turn % len(asked_of)]:
                sides[name][question]()
                begun = time.perf_counter()
                sides[name][question]()
                took = (time.perf_counter() - begun) * 1000
                if turn:
                    found[name][question] = min(took, found[name].get(question, took))
    return found


def same_node_utilization(connection: psycopg.Connection, asks: dict[str, Ask], end_ms: int) -> int:
    """How many cells of the heat map are the same on both sides.

    Raises SystemExit when one is not.
    """
    mine = {
        (int(at) * 1000, node): ratio
        for at, node, ratio in connection.execute(heat_map(end_ms).encode())
    }
    body = asks["heat map 24 h, node x 15 min, means"]()
    theirs = {
        (int(at) * 1000 - QUARTER_MS + 60_000, one["metric"]["node"]): float(value) / 100
        for one in json.loads(body)["data"]["result"]  # type: ignore[arg-type]
        for at, value in one["values"]
    }
    odd = [
        key
        for key in mine.keys() | theirs.keys()
        if abs(mine.get(key, -1) - theirs.get(key, -1)) > 1e-6
    ]
    if odd:
        raise SystemExit(
            f"{len(odd)} of {len(mine)} cells differ, such as {odd[0]}: {mine.get(odd[0])} and"
            f" {theirs.get(odd[0])}"
        )
    return len(mine)


def fill_victoria(port: int, fleet: Fleet) -> float:
    """Seconds to import every series of the fleet."""
    begun = time.perf_counter()
    month, day = (",".join(map(str, at.tolist())) for at in (fleet.month, fleet.day))
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    for gpu in range(fleet.gpus):
        lines = [
            f'{{"metric":{json.dumps(fleet.labels(name, gpu))},"values":[{",".join(map(str, values.tolist()))}],'
            f'"timestamps":[{times}]}}'
            for name, values, times in (
                ("gpu_held", fleet.is_held(gpu, fleet.month), month),
                ("gpu_busy", fleet.busy(gpu, fleet.day), day),
            )
        ]
        connection.request("POST", "/api/v1/import", "\n".join(lines).encode())
        answer = connection.getresponse()
        text = answer.read()
        if answer.status >= 300:
            raise SystemExit(f"VictoriaMetrics answered {answer.status}: {text[:200]!r}")
    for path in ("/internal/force_flush", "/internal/force_merge"):
        connection.request("GET", path)
        connection.getresponse().read()
    time.sleep(5)
    return time.perf_counter() - begun


def fill_prometheus(port: int, fleet: Fleet) -> float:
    """Seconds to write every tenth GPU, an hour of all series a request: its head takes nothing
    older than that.
    """
    begun = time.perf_counter()
    gpus = [gpu for gpu in range(fleet.gpus) if (gpu + gpu // EVERY) % EVERY == 0]
    parts = []
    for name, at, values in (
        ("gpu_held", fleet.month, fleet.is_held),
        ("gpu_busy", fleet.day, fleet.busy),
    ):
        for gpu in gpus:
            made = RAW["TimeSeries"]()
            for key, value in sorted(fleet.labels(name, gpu).items()):
                made.labels.append(ONE["Label"](name=key, value=value).SerializeToString())
            parts.append((made, at, values(gpu, at).tolist()))
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    for hour in range(fleet.end_ms - MONTH * DAY_MS, fleet.end_ms, HOUR_MS):
        written = []
        for made, at, values in parts:
            first, last = np.searchsorted(at, [hour, hour + HOUR_MS])
            if first == last:
                continue
            del made.samples[:]
            for place in range(first, last):
                made.samples.add(value=float(values[place]), timestamp=int(at[place]))
            written.append(made.SerializeToString())
        connection.request("POST", WRITE, body_of(written), headers())
        answer = connection.getresponse()
        text = answer.read()
        if answer.status >= 300:
            raise SystemExit(f"Prometheus answered {answer.status}: {text[:200]!r}")
    return time.perf_counter() - begun


def table(found: dict[str, dict[str, float]]) -> list[str]:
    """Prints every question with the ratio of each peer to ours; what misses its goal."""
    names = list(found)
    peers = [name for name in names[1:] if name != YEAR]
    print(
        "| question | "
        + " | ".join(f"{name} ms" for name in names)
        + " | a year : a month | "
        + " | ".join(f"{name} : ours" for name in peers)
        + " |"
    )
    print("|---|" + "---:|" * (len(names) + 1 + len(peers)))
    missed = []
    for question, mine in found[names[0]].items():
        times = {name: found[name].get(question) for name in names}
        ratios = {name: took / mine for name, took in times.items() if took}
        shown = ["-" if took is None else f"{took:.1f}" for took in times.values()]
        told = [f"{ratios[name]:.2f}" if name in ratios else "-" for name in (YEAR, *peers)]
        print(f"| {question} | {' | '.join(shown + told)} |")
        if question in NO_GOAL:
            continue
        if ratios[YEAR] > YEAR_GOAL and mine > 1:
            missed.append(f"{question}, a year: {ratios[YEAR]:.2f} x (goal {YEAR_GOAL})")
        for name in peers:
            goal = GOALS.get(question, 1.0) if name == VICTORIA else 1.0
            if ratios.get(name, goal) < goal:
                missed.append(
                    f"{question}: {name} takes {ratios[name]:.2f} x our time (goal {goal:.0f})"
                )
    return missed


def add_up(dsn: str, end_ms: int) -> tuple[int, float]:
    """How many months the job added up, and the seconds it took."""
    begun, made = time.perf_counter(), 0
    while True:
        with Database(dsn).transaction(Lock.LEDGER) as connection:
            if not months.add_up(connection, lambda: zones.calendar(connection), end_ms):
                break
        made += 1
    took = time.perf_counter() - begun
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE ledger_month")
    return made, took


def latest_month(now_ms: int) -> Period:
    """The latest month of 30 days that is over."""
    month = UTC_DAYS.month(UTC_DAYS.month_of(now_ms))
    while month.ms != MONTH * DAY_MS or month.end_ms > now_ms:
        month = UTC_DAYS.month(UTC_DAYS.month_of(month.start_ms - 1))
    return month


def fill_databases(dsn: str, admin: str, gpus: int, days: int, end_ms: int) -> dict[str, str]:
    """DSNs of our two databases: a month of history, and `days`."""
    migrate.upgrade(dsn)
    values = {"gpus": gpus, "end": end_ms, "start": end_ms - MONTH * DAY_MS, "until": end_ms}
    took = execute(dsn, FLEET, values)
    begun = time.perf_counter()
    with Database(dsn).connect() as connection:
        node_utilization.recompute_day(connection, end_ms - DAY_MS, end_ms)
    print(
        f"ours: {gpus} GPUs, written in {took:.0f} s; the day's heat made in"
        f" {time.perf_counter() - begun:.1f} s"
    )
    took = execute(dsn, HISTORY, values)
    names = conninfo_to_dict(dsn)
    with psycopg.connect(make_conninfo(admin, dbname="postgres"), autocommit=True) as connection:
        connection.execute(
            f'CREATE DATABASE year TEMPLATE "{names["dbname"]}" STRATEGY FILE_COPY OWNER'
            f' "{names["user"]}"'
        )
    year = make_conninfo(dsn, dbname="year")
    more = execute(
        year, HISTORY, {**values, "start": end_ms - days * DAY_MS, "until": end_ms - MONTH * DAY_MS}
    )
    for one in (dsn, year):
        added = add_up(one, end_ms)
        print(f"ours: months added up: {added[0]} in {added[1]:.2f} s", flush=True)
    print(f"ours: {MONTH} days in {took:.0f} s, {days} days in {more:.0f} s more", flush=True)
    return {"gpuledger": dsn, YEAR: year}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, default=2000)
    parser.add_argument(
        "--days", type=int, default=365, help="days of history in the second database"
    )
    given = parser.parse_args()
    end = latest_month(int(time.time() * 1000)).end_ms
    fleet = Fleet(given.gpus, end)
    print(f"{machine()}\n", flush=True)
    folder = open_folder("gpuledger-bench-")
    server = EmbeddedServer(
        folder, options={"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}
    )
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        dsn = server.acquire()
        stack.callback(server.release)
        sides: dict[str, dict[str, Ask]] = {}
        for name, one in fill_databases(dsn, server.admin_dsn, given.gpus, given.days, end).items():
            connection = stack.enter_context(psycopg.connect(one, autocommit=True))
            sides[name] = ours(connection, end)
        if shutil.which("victoria-metrics"):
            port, _ = stack.enter_context(victoria())
            print(
                f"VictoriaMetrics: all of it, imported in {fill_victoria(port, fleet):.0f} s",
                flush=True,
            )
            sides[VICTORIA] = peer(port, end, nocache=1)
            print(
                "cells of the heat map that are the same:"
                f" {same_node_utilization(connection, sides[VICTORIA], end)}",
                flush=True,
            )
        else:
            print("VictoriaMetrics is missing (on Debian: apt-get install victoria-metrics)")
        if shutil.which("prometheus"):
            port, _ = stack.enter_context(prometheus())
            print(
                f"Prometheus: every tenth GPU, written in {fill_prometheus(port, fleet):.0f} s",
                flush=True,
            )
            sides[PROMETHEUS] = peer(port, end)
        else:
            print("Prometheus is missing (on Debian: apt-get install prometheus)")
        found = in_turn(sides)
    print()
    missed = table(found)
    print(f"\n{machine()}\nmissed: {'; '.join(missed) or 'none'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
