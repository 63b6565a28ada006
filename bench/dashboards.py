"""Every panel on 2,000 GPUs and 30 days: milliseconds of its query, as the role that dashboards
use.

The fleet is written straight into rollups and ledgers by generate_series, in the sizes that a month
leaves there: two million usage hours, 170,000 charges, a day of minutes of every GPU, three days of
batches. Each board is asked for its default range with everything chosen (the node board: one node;
the workload board: the one of the last day with the most charges): the first time, with nothing of
the panel prepared, and the best of six, which counts. `--gpus=N` and `--days=N` for other sizes;
`--slow` prints the plans of what took longer than 200 ms.
"""

from __future__ import annotations

import datetime as dt
import shutil
import sys
import tempfile
import time
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from fakes.boards import BOARDS, Asked, asked, chosen, options, reads_postgres
from fakes.grafana import Range, instant
from gpuledger_collector.storage.access import readers
from gpuledger_collector.storage.server import migrate
from gpuledger_collector.storage.server.embedded import EmbeddedServer
from gpuledger_collector.storage.telemetry import node_utilization

GOAL_MS = 200
RUNS = 5
DAY = 86_400_000
HOUR = 3_600_000

SEED = """
INSERT INTO node (name, first_seen_at, last_seen_at, agent_version, driver, heartbeat)
    SELECT 'node-' || lpad(n::text, 4, '0'), now() - interval '60 days', now(), '0.1.0', '570.86',
        '{"produced": 43200, "acked": 43199, "pending": 1, "dropped": 0, "dead": 0}' FROM generate_series(1,
        %(gpus)s / 8) n;
INSERT INTO accelerator (uuid, device_uuid, model, gpu_index, memory_bytes, health)
    SELECT 'GPU-' || g, 'GPU-' || g, (ARRAY['H100', 'A100', 'L40S'])[1 + g / 8 %% 3], g %% 8, 80000000000, 'ok'
    FROM generate_series(1, %(gpus)s) g;
INSERT INTO capacity (accelerator_id, gpu_model, gpu_micro, node_id, pool, in_ms, source)
    SELECT id, model, gpu_micro, 1 + (id - 1) / 8, (ARRAY['train', 'serve'])[1 + id / 8 %% 2],
        %(start)s - 86400000, 'agent'
    FROM accelerator;
INSERT INTO owner (org, team, project) SELECT 'acme', 'team-' || t, 'project-' || p
    FROM generate_series(1, 20) t, generate_series(1, 10) p;
INSERT INTO price (gpu_model, purchase, rate_per_gpu_hour, currency, effective_from_ms, recorded_at)
    SELECT model, 'on_demand', 3, 'USD', 0, now() FROM (VALUES ('H100'), ('A100'), ('L40S')) m (model);
INSERT INTO workload (key, kind, external_id, user_name, tags, first_seen_at)
    SELECT 'slurm::' || w, 'slurm', w::text, 'user-' || w %% 300, '{"team": "x"}', now() FROM generate_series(1,
        60000) w;
INSERT INTO usage_hour
    SELECT a, h, 'held', 1 + ((a / 4) * 31 + (h / 21600000) * 17) %% 59000, 3000000, 2200000, 800000, 0, 1500000000
    FROM generate_series(1, %(gpus)s) a, generate_series(%(start)s, %(end)s - 1, 3600000) h WHERE (a + h / 3600000)
        %% 10 < 8
    UNION ALL SELECT a, h, 'unallocated', NULL, CASE WHEN (a + h / 3600000) %% 10 < 8 THEN 600000 ELSE 3600000 END,
        0, 0, 0,
        200000000
    FROM generate_series(1, %(gpus)s) a, generate_series(%(start)s, %(end)s - 1, 3600000) h WHERE (a + h / 3600000)
        %% 10 < 2
        OR (a + h / 3600000) %% 10 >= 8;
INSERT INTO charge (day_ms, start_ms, end_ms, accelerator_id, workload_id, owner_id, state, pool, gpu_model, node,
        price_id,
        gpu_ns, busy_ns, idle_ns, unknown_ns, currency, cost_micro, idle_cost_micro, list_cost_micro, energy_mj)
    SELECT day_ms, min(hour_ms), max(hour_ms) + 3600000, accelerator_id, workload_id,
        CASE WHEN state = 'held' THEN 1 + workload_id %% 200 END, state, (ARRAY['train', 'serve'])[1 +
        accelerator_id / 8 %% 2],
        (ARRAY['H100', 'A100', 'L40S'])[1 + accelerator_id / 8 %% 3],
        'node-' || lpad((1 + (accelerator_id - 1) / 8)::text, 4, '0'), 1, sum(held_ms) * 1000000, sum(busy_ms) *
        1000000,
        sum(idle_ms) * 1000000, 0, 'USD', sum(held_ms) * 3000000 / 3600000,
        CASE WHEN state = 'held' THEN sum(idle_ms) * 3000000 / 3600000 END, sum(held_ms), sum(energy_mj)
    FROM (SELECT *, hour_ms - hour_ms %% 86400000 AS day_ms FROM usage_hour) u GROUP BY day_ms, accelerator_id,
        workload_id, state;
INSERT INTO ledger_day
    SELECT day_ms, owner_id, state, pool, gpu_model, currency, sum(gpu_ns), sum(busy_ns), sum(idle_ns), 0,
        sum(cost_micro),
        sum(idle_cost_micro), sum(energy_mj) FROM charge GROUP BY 1, 2, 3, 4, 5, 6;
INSERT INTO conservation_check
    SELECT day_ms, sum(gpu_ns), sum(gpu_ns) FILTER (WHERE state = 'held'), sum(gpu_ns) FILTER (WHERE state =
        'unallocated'),
        0, 0, jsonb_build_object('USD', sum(cost_micro)), jsonb_build_object('USD', sum(cost_micro)), 0,
        day_ms + 86400000, true, now() FROM ledger_day GROUP BY 1;
INSERT INTO gpu_minute
    SELECT a, m, 6, 0.7, 0.6, 0.4, 0.3, 4e10, 300 + a %% 300, 50 + (a + m / 60000) %% 40
    FROM generate_series(%(end)s - 86400000, %(end)s - 1, 60000) m, generate_series(1, %(gpus)s) a;
INSERT INTO gpu_latest (accelerator_id, at_ms, state, workload_id, gpu_utilization_ratio, gpu_memory_used_bytes,
        gpu_temperature_celsius, gpu_power_watts, gpu_clocks_event_reasons_bitmask)
    SELECT a, %(end)s, 'held', 1 + a %% 59000, a %% 100 / 100.0, 4e10, 60, 400, 4 FROM generate_series(1, %(gpus)s) a;
INSERT INTO gpu_state
    SELECT a, m, %(end)s - k * 3600000, k %% 2 FROM generate_series(1, %(gpus)s) a, generate_series(1, 3) k,
        unnest(ARRAY['gpu_xid_errors_total', 'gpu_ecc_uncorrected_volatile_total', 'gpu_remapped_rows_pending',
            'gpu_pcie_replays_total', 'gpu_throttle_power_seconds_total', 'gpu_power_limit_watts', 'gpu_ecc_mode',
            'gpu_memory_reserved_bytes', 'gpu_bar1_total_bytes', 'gpu_pcie_link_width']) m;
INSERT INTO ingest_batch
    SELECT n, ('00000000-0000-4000-8000-' || lpad(n::text, 12, '0'))::uuid, s, '\\x00',
        to_timestamp(%(end)s / 1000) - interval '1 minute' * (4320 - s), 48, 8, NULL
    FROM generate_series(1, 4320) s, generate_series(1, %(gpus)s / 8) n;
INSERT INTO job_run (job, started_at, ended_at, outcome)
    SELECT (ARRAY['fold_usage', 'rate_usage', 'send_outbox'])[1 + s %% 3], now() - interval '20 seconds' * s,
        now() - interval '20 seconds' * s + interval '1 second', CASE WHEN s %% 5000 = 0 THEN 'failed' ELSE 'done' END
    FROM generate_series(1, 129600) s;
INSERT INTO imported_usage (workload_id, start_ms, end_ms, gpu_micro, pool, submitted_ms)
    SELECT w, %(start)s + w * 50000, %(start)s + w * 50000 + 7200000, 4000000, 'train', %(start)s + w * 50000 - 600000
    FROM generate_series(1, 50000::bigint) w;
INSERT INTO budget (name, owner, period, amount_micro, currency, terms, recorded_at)
    SELECT 'team-' || t, jsonb_build_object('team', 'team-' || t), 'month', 1e12, 'USD', '{}', now()
    FROM generate_series(1, 20) t;
INSERT INTO finding (key, kind, state, subject, accelerator_id, workload_id, team, owner, since_ms, opened_ms,
        until_ms,
        confidence, currency, cost_micro, per_day_micro, evidence)
    SELECT f::text, (ARRAY['idle', 'anomaly'])[1 + f %% 2], 'abandoned', 'GPU-' || f, f, f, 'team-1', '{}',
        %(end)s - f * 600000, %(end)s, %(end)s, 0.9, 'USD', 1000000, 2000000, '{}' FROM generate_series(1,
        300::bigint) f;
"""


BUSIEST = """
SELECT w.key FROM workload w JOIN (SELECT workload_id, count(*) AS lines FROM charge
    WHERE day_ms >= extract(epoch FROM now())::bigint * 1000 - 86400000 AND workload_id IS NOT NULL
    GROUP BY 1 ORDER BY 2 DESC LIMIT 1) c ON c.workload_id = w.id
"""


def seed(dsn: str, gpus: int, days: int, end: int) -> float:
    """The history; seconds that it took."""
    begun = time.perf_counter()
    values = {"gpus": gpus, "start": end - days * DAY, "end": end}
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in SEED.split(";\n"):
            if statement.strip():
                connection.execute(psycopg.ClientCursor(connection).mogrify(statement, values))
        for day in (end // DAY * DAY, end // DAY * DAY - DAY):
            node_utilization.recompute_day(connection, day, end)
        connection.execute("VACUUM ANALYZE")
        readers.grant(connection, "grafana_of_the_bench", None)
    return time.perf_counter() - begun


def span(board: dict, now: dt.datetime) -> Range:
    """The board's default range."""
    return Range(instant(board["time"]["from"], now), instant(board["time"]["to"], now, last=True))


def measure(reader: psycopg.Connection, now: dt.datetime) -> list[tuple[float, float, Asked, int]]:
    """Milliseconds of every panel, the first time and at best, and its rows."""
    found = []
    for name, board in BOARDS.items():
        if not reads_postgres(board):
            continue
        values = chosen(board, options(reader, board, span(board, now)), "all")
        if name == "node":
            values |= {"node": ["node-0007"]}
        if name == "workload":
            values |= {"workload": reader.execute(BUSIEST).fetchone()[0]}
        for one in asked(name, values, span(board, now)):
            times = []
            for _ in range(RUNS + 1):
                begun = time.perf_counter()
                rows = reader.execute(one.sql.encode()).fetchall()
                times.append((time.perf_counter() - begun) * 1000)
            found.append((times[0], min(times), one, len(rows)))
    return found


def main(arguments: list[str]) -> int:
    """Seeds, measures, prints the table; 1 when a panel misses the goal."""
    given = dict(argument[2:].partition("=")[::2] for argument in arguments)
    gpus, days = int(given.get("gpus", 2000)), int(given.get("days", 30))
    folder = Path(tempfile.mkdtemp(prefix="gpuledger-bench-"))
    folder.chmod(0o755)
    server = EmbeddedServer(
        folder, options={"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}
    )
    now = dt.datetime.now(dt.UTC).replace(second=0, microsecond=0)
    try:
        dsn = server.acquire()
        migrate.upgrade(dsn)
        took = seed(dsn, gpus, days, int(now.timestamp() * 1000) // HOUR * HOUR)
        print(f"seeding {gpus} GPUs x {days} days took {took:.0f} s\n", flush=True)
        # An administrator: the collector's own role may end a reader's sessions, and not become
        # one.
        admin = make_conninfo(server.admin_dsn, dbname=conninfo_to_dict(dsn)["dbname"])
        with psycopg.connect(admin, autocommit=True) as reader:
            reader.execute("SET ROLE grafana_of_the_bench")
            found = measure(reader, now)
            print("| board | panel | rows | first ms | best ms |\n|---|---|---:|---:|---:|")
            for first, best, one, rows in sorted(found, key=lambda item: -item[1]):
                print(f"| {one.board} | {one.title} | {rows} | {first:.1f} | {best:.1f} |")
            slow = [(best, one) for _, best, one, _ in found if best > GOAL_MS]
            print(f"\n{len(found)} panels, {len(slow)} above {GOAL_MS} ms")
            for best, one in slow if "slow" in given else []:
                print(
                    f"\n{one} {best:.0f} ms\n"
                    + "\n".join(
                        row[0]
                        for row in reader.execute(f"EXPLAIN (ANALYZE, BUFFERS) {one.sql}".encode())
                    )
                )
    finally:
        server.release()
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
