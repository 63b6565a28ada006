"""Where held GPUs do nothing, who holds them, and what smaller request would have done."""

from __future__ import annotations

from dashboards.grafana import (
    COUNT,
    GREEN,
    HOURS,
    MONEY,
    ORANGE,
    RATIO,
    VERMILION,
    Board,
    bars,
    column,
    link,
    series,
    stat,
    table,
)
from dashboards.sql import (
    ACCELERATORS,
    CHARGES,
    CORRECTION,
    CURRENCY,
    DAY_TIME,
    DAYS,
    GPU_HOUR_NS,
    LEDGER,
    MICRO,
    MODELS,
    OWN,
    OWNER,
    POOLS,
    TEAM,
    TEAMS,
    apart,
    currency,
    datasource,
    model,
    picked,
    pool,
    team,
)

CHOSEN = f"{DAYS} AND {POOLS} AND {MODELS}"
HELD = f"{CHOSEN} AND l.state = 'held' AND {TEAMS}"
TO_WORKLOAD = (link("This workload", "gpuledger-workload", "var-workload=${__data.fields.workload}"),)
TO_TEAM = (link("Showback of this team", "gpuledger-team", "var-team=${__data.fields.team}"),)
IDLE_STEPS = ((None, GREEN), (0.25, ORANGE), (0.5, VERMILION))
NOW_IDLE = "coalesce(l.gpu_sm_active_ratio, l.gpu_graphics_engine_active_ratio, l.gpu_utilization_ratio) < 0.01"
FRESH = "l.at_ms > extract(epoch FROM now()) * 1000 - 900000"
"""What a node said in the last 15 minutes is taken for now."""

BOARD = Board(
    "gpuledger-idle",
    "GPU Ledger / Idle and right-sizing",
    "Idle while held, unallocated, and oversized: the three kinds of waste, by workload and owner.",
    (datasource(), currency(), team(), pool(), model()),
    (
        (
            "Amount",
            (
                stat(
                    "Idle cost ($currency)",
                    "Charges for held GPUs without activity.",
                    f"SELECT sum(l.idle_cost_micro) / {MICRO} AS cost FROM {LEDGER} l {OWNER} "
                    f"WHERE {HELD} AND {CURRENCY}",
                    MONEY,
                    width=5,
                    decimals=2,
                ),
                stat(
                    "Idle GPU-hours",
                    "Held hours without activity.",
                    f"SELECT sum(l.idle_ns) / {GPU_HOUR_NS} AS hours FROM {LEDGER} l {OWNER} WHERE {HELD} AND {OWN}",
                    HOURS,
                    width=5,
                    decimals=1,
                ),
                stat(
                    "Idle, share of known activity",
                    "Idle hours over all hours with known activity.",
                    "SELECT sum(l.idle_ns) / nullif(sum(l.busy_ns + l.idle_ns), 0) AS part "
                    f"FROM {LEDGER} l {OWNER} WHERE {HELD} AND {OWN}",
                    RATIO,
                    width=5,
                    decimals=1,
                    steps=IDLE_STEPS,
                    limits=(0, 1),
                ),
                stat(
                    "Unallocated GPU-hours",
                    "Present, not held by any team.",
                    f"SELECT sum(l.gpu_ns) / {GPU_HOUR_NS} AS hours FROM {LEDGER} l "
                    f"WHERE {CHOSEN} AND l.state = 'unallocated' AND {OWN}",
                    HOURS,
                    width=5,
                    decimals=1,
                ),
                stat(
                    "Held and idle now",
                    "Held accelerators whose latest reading shows no activity.",
                    f"SELECT count(*) AS accelerators FROM gpu_latest l WHERE l.state = 'held' AND {NOW_IDLE} AND "
                    f"{FRESH}",
                    COUNT,
                    width=4,
                    steps=((None, GREEN), (1, ORANGE)),
                ),
            ),
        ),
        (
            "By day and by team",
            (
                series(
                    "Idle GPU-hours per day",
                    "Idle (chosen teams) and unallocated hours.",
                    f"""
                   SELECT {DAY_TIME}, {apart("s.name")} AS metric, sum(s.ns) / {GPU_HOUR_NS} AS hours
                   FROM {LEDGER} l {OWNER}, LATERAL (VALUES
                       ('idle', CASE WHEN l.state = 'held' AND {TEAMS} THEN l.idle_ns END),
                       ('unallocated', CASE WHEN l.state = 'unallocated' THEN l.gpu_ns END)) s (name, ns)
                   WHERE {CHOSEN} AND s.ns IS NOT NULL GROUP BY 1, 2 ORDER BY 1, 2
                   """,
                    HOURS,
                    bars=True,
                    stacked=True,
                    interval="1d",
                    decimals=1,
                ),
                table(
                    "Idle by team ($currency)",
                    "Cost of idle GPUs by team.",
                    f"""
                  SELECT {TEAM} AS team, sum(l.idle_cost_micro) / {MICRO} AS "idle cost",
                      sum(l.idle_ns) / {GPU_HOUR_NS} AS "idle GPU-hours",
                      sum(l.idle_ns) / nullif(sum(l.busy_ns + l.idle_ns), 0) AS "idle part", {CORRECTION}
                  FROM {LEDGER} l {OWNER} WHERE {HELD} AND {CURRENCY}
                  GROUP BY 1, l.correction_of ORDER BY 2 DESC NULLS LAST, 1 LIMIT 50
                  """,
                    MONEY,
                    height=8,
                    decimals=2,
                    overrides=(
                        column("team", links=list(TO_TEAM), unit="string"),
                        column("correction of", unit="string"),
                        column("idle GPU-hours", unit=HOURS, decimals=1),
                        column("idle part", unit=RATIO, decimals=1, cell="color-text", steps=IDLE_STEPS),
                    ),
                ),
            ),
        ),
        (
            "By workload",
            (
                table(
                    "Workloads with the most idle cost ($currency)",
                    "would do: the GPUs that would have carried the "
                    "same busy time at full load. A hint for the next request, not a measurement.",
                    f"""
                  WITH top AS (
                      SELECT l.workload_id, count(DISTINCT l.accelerator_id) AS gpus,
                          sum(l.idle_cost_micro) AS idle_cost, sum(l.busy_ns) AS busy, sum(l.idle_ns) AS idle
                      FROM {CHARGES} l {OWNER} WHERE {HELD} AND {CURRENCY} AND {OWN}
                          AND l.idle_cost_micro > 0
                      GROUP BY 1 ORDER BY 3 DESC, 1 LIMIT 50
                  )
                  SELECT w.key AS workload, coalesce(w.name, w.external_id) AS name, w.user_name AS "user",
                      top.idle_cost / {MICRO} AS "idle cost", top.idle / {GPU_HOUR_NS} AS "idle GPU-hours",
                      top.idle / nullif(top.busy + top.idle, 0) AS "idle part", top.gpus AS "GPUs",
                      ceil(top.gpus * top.busy / nullif(top.busy + top.idle, 0)) AS "would do"
                  FROM top LEFT JOIN workload w ON w.id = top.workload_id ORDER BY 4 DESC, 1
                  """,
                    MONEY,
                    width=24,
                    decimals=2,
                    overrides=(
                        column("workload", links=list(TO_WORKLOAD), unit="string"),
                        column("name", unit="string"),
                        column("user", unit="string"),
                        column("idle GPU-hours", unit=HOURS, decimals=1),
                        column("idle part", unit=RATIO, decimals=1, cell="color-text", steps=IDLE_STEPS),
                        column("GPUs", unit=COUNT, decimals=0),
                        column("would do", unit=COUNT, decimals=0),
                    ),
                ),
                table(
                    "Open findings ($currency)",
                    "Ongoing idle allocations, highest cost first, and what a further day costs. Empty is good.",
                    f"""
                  SELECT f.team, f.state, a.node, a.gpu_index AS "GPU", w.key AS workload, w.user_name AS "user",
                      to_timestamp(f.since_ms / 1000) AS "since", f.cost_micro / {MICRO} AS cost,
                      f.per_day_micro / {MICRO} AS "cost a day", f.confidence
                  FROM finding f LEFT JOIN ({ACCELERATORS}) a ON a.id = f.accelerator_id
                  LEFT JOIN workload w ON w.id = f.workload_id
                  WHERE f.kind = 'idle' AND f.resolved_ms IS NULL
                      AND (f.currency IS NULL OR f.currency = ${{currency:sqlstring}})
                      AND {picked("coalesce(nullif(f.team, ''), '(unattributed)')", "team")}
                  ORDER BY f.per_day_micro DESC NULLS LAST, f.since_ms LIMIT 100
                  """,
                    MONEY,
                    width=24,
                    decimals=2,
                    overrides=(
                        column("workload", links=list(TO_WORKLOAD), unit="string"),
                        column("GPU", unit="none", decimals=0),
                        column("since", unit="dateTimeAsIso"),
                        column("confidence", unit=RATIO, decimals=0),
                    ),
                ),
                table(
                    "Held and idle now",
                    "Accelerators held now whose latest reading shows no activity; may "
                    "be empty, and then that is good.",
                    f"""
                  SELECT a.node, a.gpu_index AS "GPU", a.model, w.key AS workload, w.user_name AS "user",
                      l.gpu_utilization_ratio AS utilization, l.gpu_memory_used_bytes AS "memory used",
                      l.gpu_power_watts AS power, to_timestamp(l.at_ms / 1000) AS "read at"
                  FROM gpu_latest l JOIN ({ACCELERATORS}) a ON a.id = l.accelerator_id
                  LEFT JOIN workload w ON w.id = l.workload_id
                  WHERE l.state = 'held' AND {NOW_IDLE} AND {FRESH} ORDER BY 1, 2 LIMIT 200
                  """,
                    COUNT,
                    width=14,
                    overrides=(
                        column("workload", links=list(TO_WORKLOAD), unit="string"),
                        column("GPU", unit="none"),
                        column("utilization", unit=RATIO),
                        column("memory used", unit="bytes"),
                        column("power", unit="watt"),
                        column("read at", unit="dateTimeAsIso"),
                    ),
                ),
                bars(
                    "GPUs by memory in use now",
                    "How much of their memory held accelerators use: many in the lowest "
                    "bands are candidates for smaller models or MIG instances.",
                    """
                 SELECT CASE WHEN part < 0.1 THEN '0 to 10 %' WHEN part < 0.25 THEN '10 to 25 %'
                     WHEN part < 0.5 THEN '25 to 50 %' WHEN part < 0.75 THEN '50 to 75 %'
                     ELSE '75 to 100 %' END AS band,
                     count(*) AS accelerators
                 FROM (SELECT l.gpu_memory_used_bytes / nullif(a.memory_bytes, 0) AS part
                     FROM gpu_latest l JOIN accelerator a ON a.id = l.accelerator_id WHERE l.state = 'held') held
                 WHERE part IS NOT NULL GROUP BY 1 ORDER BY 1
                 """,
                    COUNT,
                    width=10,
                ),
            ),
        ),
    ),
    since="now-7d/d",
)
"""The board that saves money."""
