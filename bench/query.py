"""Questions of a bill and of a dashboard: our ledgers and rollups against the peers' series, over the same fleet.

2,000 GPUs of 250 nodes and 20 teams. Ours: the daily ledger and the five-minute series of a month (and then of a year),
a day of minutes and the newest values, written straight into the tables in the sizes that they have there. Peers:
held GPUs every five minutes of 30 days (17.3 million points) and utilisation every minute of a day (2.9 million), with
the team and the node as labels; the same numbers. VictoriaMetrics gets all of it by its import; Prometheus, whose only
way in is remote write, gets every tenth GPU, and its times are therefore of a tenth of the data.

Each question is what a person asks, in the form in which each side can answer it best: ours read what was added up
when evidence came, which is what they are for. Best of five after one that warms; VictoriaMetrics without its cache of
answers. It ends with 1 when a goal is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import shutil
import sys
import time
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psycopg

from gpuledger_collector.accounting.chargeback import report
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, Period
from gpuledger_collector.ingest.remote.messages import ONE, RAW
from gpuledger_collector.storage import migrate, reports, series
from gpuledger_collector.storage.embedded import EmbeddedServer

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from bench.ingest import machine, prometheus
from bench.remote_write import body_of, victoria
from fakes.postgres import open_folder
from fakes.prometheus import WRITE, headers

TEAMS, PROJECTS, PER_NODE = 20, 2, 8
STEP_MS = 300_000
MONTH = 30
RUNS = 5
EVERY = 10
"""Of how many GPUs Prometheus gets one."""
GOALS = {"month chargeback by team": 100.0}
YEAR_GOAL = 1.2

FLEET = """
INSERT INTO node (name, first_seen_at, last_seen_at) SELECT 'node-' || n, now(), now()
    FROM generate_series(0, %(gpus)s / 8 - 1) n;
INSERT INTO accelerator (uuid, device_uuid, model, gpu_index) SELECT 'GPU-' || g, 'GPU-' || g, 'H100', g %% 8
    FROM generate_series(0, %(gpus)s - 1) g;
INSERT INTO capacity (accelerator_id, node_id, pool, in_ms, source)
    SELECT a.id, n.id, 'train', 0, 'agent' FROM accelerator a JOIN node n
    ON n.name = 'node-' || substr(a.uuid, 5)::bigint / 8;
INSERT INTO owner (org, team, project) SELECT 'acme', 'team-' || t, 'team-' || t || '-' || p
    FROM generate_series(0, 19) t, generate_series(0, 1) p;
INSERT INTO gpu_latest (accelerator_id, at_ms, state, workload_id, gpu_utilization_ratio)
    SELECT id, %(end)s, 'held', NULL, CASE WHEN id %% 10 = 0 THEN 0 ELSE 0.8 END FROM accelerator;
INSERT INTO gpu_minute (accelerator_id, minute_ms, samples, utilization_ratio, power_watts)
    SELECT a.id, m, 6, ((a.id * 7919 + m / 60000 * 104729) %% CASE WHEN a.id %% 10 = 0 THEN 4 ELSE 100 END) / 100.0, 400
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
    FROM generate_series(%(start)s, %(until)s - 1, 300000) at, owner o
"""


@dataclass(frozen=True)
class Fleet:
    """What is held and how busy it is, by formula: the same for all sides."""

    gpus: int
    end_ms: int

    def held(self, gpu: int, at_ms: np.ndarray) -> np.ndarray:
        """0 or 1 every five minutes."""
        return ((gpu * 31 + at_ms // STEP_MS * 17 // 36) % 10 < 8).astype(np.int64)

    def busy(self, gpu: int, at_ms: np.ndarray) -> np.ndarray:
        """Whole percent every minute, one in ten idle; the database counts accelerators from 1."""
        return ((gpu + 1) * 7919 + at_ms // 60_000 * 104_729) % (4 if (gpu + 1) % 10 == 0 else 100)

    def labels(self, name: str, gpu: int) -> dict[str, str]:
        """Name and labels of a series."""
        return {"__name__": name, "gpu": str(gpu), "node": f"node-{gpu // PER_NODE}", "team": f"team-{gpu % TEAMS}"}

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


def best(ask: Callable[[], object]) -> float:
    """Milliseconds: the best of RUNS after one that warms."""
    found = float("inf")
    for turn in range(RUNS + 1):
        begun = time.perf_counter()
        ask()
        if turn:
            found = min(found, (time.perf_counter() - begun) * 1000)
    return found


IDLE_NOW = "SELECT count(*) FROM gpu_latest WHERE state = 'held' AND gpu_utilization_ratio < 0.05 AND at_ms >= %s"
IDLE_MINUTES = """SELECT count(*) FROM (SELECT a.id, (SELECT avg(m.utilization_ratio) FROM gpu_minute m
    WHERE m.accelerator_id = a.id AND m.minute_ms >= %s) AS mean FROM accelerator a) found WHERE mean < 0.05"""
HEAT = """SELECT c.node_id, m.minute_ms / 900000 AS slot, avg(m.utilization_ratio) FROM gpu_minute m
    JOIN capacity c ON c.accelerator_id = m.accelerator_id WHERE m.minute_ms >= %s AND m.minute_ms < %s GROUP BY 1, 2"""
HEAT_AT = """SELECT c.node_id, m.minute_ms, avg(m.utilization_ratio) FROM capacity c JOIN gpu_minute m
    ON m.accelerator_id = c.accelerator_id AND m.minute_ms = ANY(%s) GROUP BY 1, 2"""


def ours(dsn: str, end_ms: int) -> dict[str, float]:
    """Best milliseconds of each question."""
    month = Period(end_ms - MONTH * DAY_MS, end_ms)
    quarters = list(range(end_ms - DAY_MS, end_ms, 900_000))
    with psycopg.connect(dsn, autocommit=True) as connection:

        def rows(statement: str, *values: object) -> Callable[[], object]:
            return lambda: connection.execute(statement, values).fetchall()

        return {
            "month chargeback by team": best(
                lambda: report(reports.charged_lines(connection, month, ("team",)), ("team",))
            ),
            "idle now": best(rows(IDLE_NOW, end_ms - 600_000)),
            "idle over 30 minutes": best(rows(IDLE_MINUTES, end_ms - 1_800_000)),
            "heat map 24 h, node x 15 min, at instants": best(rows(HEAT_AT, quarters)),
            "heat map 24 h, node x 15 min, means": best(rows(HEAT, end_ms - DAY_MS, end_ms)),
            "team series 30 d at 5 min": best(
                lambda: series.read(connection, month, STEP_MS, ("team",), measures=("gpu_ns",))
            ),
            "the same with all six measures": best(lambda: series.read(connection, month, STEP_MS, ("team",))),
        }


def questions(end_ms: int) -> dict[str, tuple[str, dict[str, object]]]:
    """PromQL of the same questions: path and parameters."""
    end = end_ms / 1000 - 60
    at = {"time": end}
    day = {"start": end_ms / 1000 - 86_400, "end": end, "step": "15m"}
    month = {"start": end_ms / 1000 - MONTH * 86_400, "end": end, "step": "5m"}
    idle = "count(gpu_busy < 5)"
    return {
        "month chargeback by team": ("query", {"query": "sum by (team) (sum_over_time(gpu_held[30d]))", **at}),
        "idle now": ("query", {"query": idle, **at}),
        "idle over 30 minutes": ("query", {"query": "count(avg_over_time(gpu_busy[30m]) < 5)", **at}),
        "heat map 24 h, node x 15 min, at instants": ("query_range", {"query": "avg by (node) (gpu_busy)", **day}),
        "heat map 24 h, node x 15 min, means": (
            "query_range", {"query": "avg by (node) (avg_over_time(gpu_busy[15m]))", **day}
        ),
        "team series 30 d at 5 min": ("query_range", {"query": "sum by (team) (gpu_held)", **month}),
    }  # fmt: skip


def peer(port: int, end_ms: int, **more: object) -> dict[str, float]:
    """Best milliseconds of each question over HTTP, the answer read whole but not parsed."""
    found = {}
    for name, (path, given) in questions(end_ms).items():
        text = urllib.parse.urlencode({**given, **more})
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)

        def ask(connection: http.client.HTTPConnection = connection, path: str = path, text: str = text) -> None:
            connection.request("GET", f"/api/v1/{path}?{text}")
            answer = connection.getresponse()
            body = answer.read()
            if answer.status != 200 or b'"success"' not in body[:200] or b'"result":[]' in body:
                raise SystemExit(f"{path} {text}: {answer.status} {body[:300]!r}")

        found[name] = best(ask)
        connection.close()
    return found


def fill_victoria(port: int, fleet: Fleet) -> float:
    """Seconds to import every series of the fleet."""
    begun = time.perf_counter()
    month, day = (",".join(map(str, at.tolist())) for at in (fleet.month, fleet.day))
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    for gpu in range(fleet.gpus):
        lines = [
            f'{{"metric":{json.dumps(fleet.labels(name, gpu))},"values":[{",".join(map(str, values.tolist()))}],'
            f'"timestamps":[{times}]}}'
            for name, values, times in (("gpu_held", fleet.held(gpu, fleet.month), month),
                                        ("gpu_busy", fleet.busy(gpu, fleet.day), day))
        ]  # fmt: skip
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
    """Seconds to write every tenth GPU, an hour of all series a request: its head takes nothing older than that."""
    begun = time.perf_counter()
    gpus = [gpu for gpu in range(fleet.gpus) if (gpu + gpu // EVERY) % EVERY == 0]
    parts = []
    for name, at, values in (("gpu_held", fleet.month, fleet.held), ("gpu_busy", fleet.day, fleet.busy)):
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
    print("| question | " + " | ".join(f"{name} ms" for name in names) + " | "
          + " | ".join(f"{name} : ours" for name in names[1:] if "year" not in name) + " |")  # fmt: skip
    print("|---|" + "---|" * (len(names) + sum("year" not in name for name in names[1:])))
    missed = []
    for question, mine in found[names[0]].items():
        times = [found[name].get(question) for name in names]
        ratios = {name: times[place] / mine for place, name in enumerate(names) if place and times[place]}  # type: ignore[operator]
        shown = " | ".join("-" if one is None else f"{one:.1f}" for one in times)
        told = " | ".join(f"{ratio:.1f} x" for name, ratio in ratios.items() if "year" not in name)
        print(f"| {question} | {shown} | {told} |")
        for name, ratio in ratios.items():
            if "year" in name:
                missed += [f"{question}, a year: {ratio:.2f} x (goal {YEAR_GOAL})"] * (ratio > YEAR_GOAL and mine > 1)
            elif ratio < (goal := GOALS.get(question, 1.0) if name.startswith("Victoria") else 1.0):
                missed.append(f"{question}: {name} takes {ratio:.2f} x our time (goal {goal:.0f})")
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, default=2000)
    parser.add_argument("--days", type=int, default=365, help="days of history in the second measurement")
    given = parser.parse_args()
    end = int(time.time() * 1000) // DAY_MS * DAY_MS
    fleet = Fleet(given.gpus, end)
    found: dict[str, dict[str, float]] = {}
    print(f"{machine()}\n")
    folder = open_folder("gpuledger-bench-")
    server = EmbeddedServer(folder, options={"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"})
    try:
        dsn = server.acquire()
        migrate.upgrade(dsn)
        values = {"gpus": given.gpus, "end": end, "start": end - MONTH * DAY_MS, "until": end}
        took = execute(dsn, FLEET, values) + execute(dsn, HISTORY, values)
        print(f"ours: {given.gpus} GPUs and a month, written in {took:.0f} s", flush=True)
        found["gpuledger"] = ours(dsn, end)
        took = execute(dsn, HISTORY, {**values, "start": end - given.days * DAY_MS, "until": end - MONTH * DAY_MS})
        print(f"ours: {given.days} days, written in {took:.0f} s more", flush=True)
        found["after a year"] = ours(dsn, end)
    finally:
        server.release()
        shutil.rmtree(folder, ignore_errors=True)
    with contextlib.ExitStack() as stack:
        if shutil.which("victoria-metrics"):
            port, _ = stack.enter_context(victoria())
            print(f"VictoriaMetrics: all of it, imported in {fill_victoria(port, fleet):.0f} s", flush=True)
            found["VictoriaMetrics"] = peer(port, end, nocache=1)
        else:
            print("VictoriaMetrics is missing (on Debian: apt-get install victoria-metrics)")
    with contextlib.ExitStack() as stack:
        if shutil.which("prometheus"):
            port, _ = stack.enter_context(prometheus())
            print(f"Prometheus: every tenth GPU, written in {fill_prometheus(port, fleet):.0f} s", flush=True)
            found["Prometheus, a tenth of the data"] = peer(port, end)
        else:
            print("Prometheus is missing (on Debian: apt-get install prometheus)")
    print()
    missed = table(found)
    print(f"\n{machine()}\nmissed: {'; '.join(missed) or 'none'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
