"""The map of a large fleet, and the pages beside it: bytes and seconds of an hour, and of a receipt.

20,000 GPUs on 2,500 nodes in five pools, a tenth of the boards divided into MIG slices, with the
hourly ledger of two days (a holder or two of each accelerator and hour) and their charges, a month
of the ledger of days, and a finding of each GPU that is free or idle, written straight into the
tables. Pages are asked for as readers ask, over HTTP, the map each time for another hour: nothing is
kept between two answers. Goals: one hour at most 1 MB and, of 40 answers, the 95th percentile at most
1 s. It ends with 1 when the size is missed; times are printed beside those of a
page that reads nothing, on the same machine, and with the processor time of the collector and of
Postgres, for a machine that does other work as well.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import http.client
import resource
import shutil
import sys
import time
from pathlib import Path

import psycopg

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from bench.ingest import machine, tree_seconds
from fakes.collector import running
from fakes.postgres import open_folder
from gpuledger_collector.accounting.period import HOUR_MS
from gpuledger_collector.cli.common import GARBAGE_THRESHOLD
from gpuledger_collector.services.upkeep import roll_up_pool_hours
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.server import migrate
from gpuledger_collector.storage.server.embedded import EmbeddedServer

HOURS = 48
MOST_BYTES = 1_000_000
GOAL_S = 1.0
SERVED_S = 900
POOLS = "ARRAY['train', 'serve', 'research', 'batch', 'edge']"
FLEET = f"""
INSERT INTO node (name, first_seen_at, last_seen_at)
    SELECT 'gpu-' || lpad(n::text, 4, '0'), now(), now() - CASE WHEN n %% 400 = 7 THEN interval '2 hours'
        ELSE interval '0' END FROM generate_series(0, %(gpus)s / 8 - 1) n;
INSERT INTO accelerator (uuid, device_uuid, model, gpu_index, gpu_micro, mig_instance, health)
    SELECT 'GPU-' || g || CASE WHEN parts > 1 THEN '-' || part ELSE '' END, 'GPU-' || g, 'NVIDIA H100 80GB HBM3',
        g %% 8, CASE WHEN parts > 1 THEN 285714 ELSE 1000000 END, CASE WHEN parts > 1 THEN '2g.20gb' END,
        CASE WHEN g %% 1999 = 3 THEN 'failed' WHEN g %% 997 = 3 THEN 'degraded' ELSE 'ok' END
    FROM generate_series(0, %(gpus)s - 1) g, LATERAL (SELECT CASE WHEN g %% 10 = 9 THEN 3 ELSE 1 END AS parts) p,
        LATERAL generate_series(1, parts) part;
INSERT INTO capacity (accelerator_id, gpu_model, gpu_micro, node_id, pool, in_ms, source)
    SELECT a.id, a.model, a.gpu_micro, n.id, ({POOLS})[1 + n.id %% 5], 0, 'agent'
    FROM accelerator a JOIN node n ON n.name = 'gpu-' || lpad((split_part(a.uuid, '-', 2)::bigint / 8)::text, 4, '0');
INSERT INTO owner (org, team) SELECT 'acme', 'team-' || t FROM generate_series(0, 19) t;
INSERT INTO workload (key, kind, external_id, name, first_seen_at)
    SELECT 'slurm::' || w, 'slurm', w::text, 'train-' || w, now() FROM generate_series(0, 1999) w;
INSERT INTO gpu_latest (accelerator_id, at_ms, state, workload_id, gpu_utilization_ratio)
    SELECT id, (extract(epoch FROM now()) * 1000)::bigint - 60000,
        CASE WHEN id %% 7 = 0 THEN 'unallocated' ELSE 'held' END,
        CASE WHEN id %% 7 = 0 THEN NULL ELSE 1 + id / 8 %% 2000 END, CASE WHEN id %% 9 = 0 THEN 0 ELSE 0.8 END
    FROM accelerator;
INSERT INTO usage_hour (accelerator_id, hour_ms, state, workload_id, held_ms, busy_ms, idle_ms, unknown_ms)
    SELECT a.id, h, CASE WHEN (a.id + h / 3600000) %% 7 = 0 THEN 'unallocated' ELSE 'held' END,
        CASE WHEN (a.id + h / 3600000) %% 7 = 0 THEN NULL ELSE 1 + (a.id / 8 + h / 3600000) %% 2000 END,
        2400000, CASE WHEN (a.id + h / 3600000) %% 7 = 0 THEN 0 ELSE 600000 + a.id * 7919 %% 1100000 END,
        CASE WHEN (a.id + h / 3600000) %% 7 = 0 THEN 0 ELSE 1800000 - a.id * 7919 %% 1100000 END, 0
    FROM generate_series(%(start)s, %(end)s - 1, 3600000) h, accelerator a;
INSERT INTO usage_hour (accelerator_id, hour_ms, state, workload_id, held_ms, busy_ms, idle_ms, unknown_ms)
    SELECT a.id, h, 'held', 1 + (a.id / 8 + h / 3600000 + 1) %% 2000, 900000, 0, 900000, 0
    FROM generate_series(%(start)s, %(end)s - 1, 3600000) h, accelerator a WHERE (a.id + h / 3600000) %% 3 = 0;
INSERT INTO price (pool, gpu_model, purchase, rate_per_gpu_hour, currency, effective_from_ms, recorded_at)
    VALUES ('', '', 'on_demand', 2.5, 'USD', 0, now());
INSERT INTO charge (day_ms, start_ms, end_ms, accelerator_id, workload_id, owner_id, state, pool, gpu_model, gpu_ns,
        busy_ns, idle_ns, unknown_ns, price_id, currency, cost_micro, idle_cost_micro)
    SELECT u.hour_ms - u.hour_ms %% 86400000, min(u.hour_ms), max(u.hour_ms) + 3600000, u.accelerator_id,
        u.workload_id, 1 + u.workload_id %% 20, u.state, min(c.pool), min(c.gpu_model), sum(u.held_ms) * 1000000,
        sum(u.busy_ms) * 1000000, sum(u.idle_ms) * 1000000, 0, min(p.id), 'USD',
        sum(u.held_ms) * 1000000 / 1440000, sum(u.idle_ms) * 1000000 / 1440000
    FROM usage_hour u JOIN capacity c ON c.accelerator_id = u.accelerator_id CROSS JOIN price p
    WHERE u.hour_ms >= %(end)s - 2 * 86400000 AND u.state = 'held' GROUP BY 1, 4, 5, 6, 7 ORDER BY 1;
INSERT INTO ledger_day (day_ms, owner_id, state, pool, gpu_model, currency, gpu_ns, busy_ns, idle_ns, unknown_ns,
        cost_micro, idle_cost_micro)
    SELECT d, s.owner_id, s.state, s.pool, s.gpu_model, s.currency, s.gpu_ns, s.busy_ns, s.idle_ns, s.unknown_ns,
        s.cost_micro, s.idle_cost_micro
    FROM generate_series(%(start)s - %(start)s %% 86400000 - 28 * 86400000::bigint, %(end)s - 1, 86400000) d, (
        SELECT owner_id, state, pool, gpu_model, currency, sum(gpu_ns) AS gpu_ns, sum(busy_ns) AS busy_ns,
            sum(idle_ns) AS idle_ns, 0 AS unknown_ns, sum(cost_micro)::bigint AS cost_micro,
            sum(idle_cost_micro)::bigint AS idle_cost_micro
        FROM charge WHERE day_ms = (SELECT min(day_ms) FROM charge) GROUP BY 1, 2, 3, 4, 5) s;
INSERT INTO finding (key, kind, state, subject, accelerator_id, workload_id, team, owner, since_ms, opened_ms,
        until_ms, confidence, currency, cost_micro, per_day_micro, evidence)
    SELECT 'idle/' || a.uuid, 'idle', CASE WHEN l.state = 'held' THEN 'gone_idle' ELSE 'unallocated' END, a.uuid, a.id,
        l.workload_id, CASE WHEN l.state = 'held' THEN 'team-' || (1 + l.workload_id %% 20) %% 20 ELSE '' END, '{{}}',
        %(end)s - 7200000, %(end)s - 7200000, %(end)s, 0.9, 'USD', 5000000, 60000000, '{{}}'
    FROM gpu_latest l JOIN accelerator a ON a.id = l.accelerator_id
    WHERE l.state <> 'held' OR l.gpu_utilization_ratio = 0;
INSERT INTO finding_progress (kind, until_ms) VALUES ('idle', %(end)s);
INSERT INTO conservation_check (day_ms, capacity_ns, held_ns, unallocated_ns, unavailable_ns, unobserved_ns,
        capacity_cost, charged_cost, imported_ns, until_ms, holds, proved_at)
    SELECT d, 0, 0, 0, 0, 0, '{{}}', '{{}}', 0, least(d + 86400000, %(end)s), true, now()
    FROM generate_series(%(start)s - %(start)s %% 86400000 - 28 * 86400000::bigint, %(end)s - 1, 86400000) d;
"""
SETTLED = "VACUUM ANALYZE"
PAGES = (
    *("/", "/idle", "/spend", "/demand", "/queues", "/trust", "/jobs", "/pools/train"),
    *("/statements/team/{month}", "/statements/team/team-7/{month}"),
)
"""Beside the map and the receipt."""
BEING_MADE = b"is being computed"


def furnish(dsn: str, gpus: int, hours: int, end_ms: int) -> None:
    """Write the fleet and its days."""
    bounds = {"gpus": gpus, "end": end_ms, "start": end_ms - hours * HOUR_MS}
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in FLEET.split(";\n"):
            if statement.strip():
                connection.execute(statement.encode(), bounds)
        connection.execute(SETTLED)


def ask(port: int, path: str, postmaster: int) -> tuple[float, float, float, int, bytes]:
    """Seconds, processor seconds of this process, in which the collector is, and of Postgres, bytes
    of an answer, and the answer.
    """
    started, used, used_there = time.perf_counter(), time.process_time(), tree_seconds(postmaster)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    if answer.status != 200:
        raise SystemExit(f"{path}: {answer.status}: {body[:300]!r}")
    seconds, used = time.perf_counter() - started, time.process_time() - used
    return seconds, used, tree_seconds(postmaster) - used_there, len(body), body


def percentile(values: list[float], share: float) -> float:
    """The value that this share of them does not exceed."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, default=20_000)
    parser.add_argument("--hours", type=int, default=HOURS, help="of the ledger (default: 48)")
    parser.add_argument("--runs", type=int, default=40, help="answers of each kind (default: 40)")
    parser.add_argument("--only", default="", help="questions with this in their name")
    parser.add_argument("--serve", action="store_true", help="keep serving, to look at it")
    options = parser.parse_args()
    print(machine())
    # As every command begins, `gpuledger serve` among them.
    gc.set_threshold(GARBAGE_THRESHOLD, 20, 20)
    end_ms = time.time_ns() // 1_000_000 // HOUR_MS * HOUR_MS
    folder = open_folder("gpuledger-bench-")
    server = EmbeddedServer(
        folder, options={"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}
    )
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        dsn = server.acquire()
        stack.callback(server.release)
        migrate.upgrade(dsn)
        furnish(dsn, options.gpus, options.hours, end_ms)
        collector = stack.enter_context(running(dsn))
        roll_up_pool_hours(Database(dsn), end_ms)
        (running_as,) = folder.glob("**/postmaster.pid")
        postmaster = int(running_as.read_text().split()[0])
        too_large = compare(
            *(collector.port, postmaster, options.gpus, options.hours, options.runs, end_ms),
            options.only,
        )
        if options.serve:
            print(f"http://127.0.0.1:{collector.port}/fleet", flush=True)
            time.sleep(SERVED_S)
    return int(too_large)


def compare(
    port: int, postmaster: int, gpus: int, hours: int, runs: int, end_ms: int, only: str = ""
) -> bool:
    """Print a row for each question; return whether an hour is too large."""

    def hour(at: int) -> str:
        return f"at={(end_ms - (1 + at % (hours - 2)) * HOUR_MS) // 1000}"

    month = time.strftime("%Y-%m", time.gmtime(end_ms // 1000))
    questions = {
        "a page that reads nothing (/docs)": lambda _at: "/docs",
        "now": lambda _at: "/fleet",
        **{
            f"an hour by {color}": lambda at, color=color: f"/fleet?{hour(at)}&color={color}"
            for color in ("state", "owner", "use", "health")
        },
        "an hour, pool by pool": lambda at: f"/fleet?{hour(at)}&by=pool",
        "an hour of a node": lambda at: f"/fleet?{hour(at)}&node=gpu-{at % 2000:04d}",
        "now by owner": lambda _at: "/fleet?color=owner",
        "an hour as CSV": lambda at: f"/fleet?{hour(at)}&format=csv",
        "a GPU's receipt of two days": lambda at: f"/fleet/gpu/GPU-{at * 10}",
        **{path: lambda _at, path=path: path.format(month=month) for path in PAGES},
    }
    print(f"{gpus:,} GPUs; the slider exchanges the picture by the same page")
    print(f"{'':34}{'kB':>8}{'p50 s':>8}{'p95 s':>8}{'CPU s':>8}{'PG s':>8}")
    too_large = False
    for name, path in questions.items():
        if only not in name:
            continue
        # A forecast is made once an hour, beside the page that asks for it first.
        while BEING_MADE in ask(port, path(0), postmaster)[4]:
            time.sleep(1)
        answers = [ask(port, path(at), postmaster) for at in range(runs)]
        seconds, used, used_there, sizes, _ = map(list, zip(*answers, strict=True))
        middle, high = percentile(seconds, 0.5), percentile(seconds, 0.95)
        note = "" if high <= GOAL_S else f"  over {GOAL_S:g} s here"
        is_hour = name.startswith(("now", "an hour")) and "CSV" not in name
        if is_hour and max(sizes) > MOST_BYTES:
            note, too_large = f"{note}  over {MOST_BYTES:,} bytes", True
        print(
            f"{name:34}{max(sizes) / 1000:8,.0f}{middle:8.2f}{high:8.2f}{percentile(used, 0.5):8.2f}"
            f"{sum(used_there) / runs:8.2f}{note}",
            flush=True,
        )
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MiB")
    return too_large


if __name__ == "__main__":
    raise SystemExit(main())
