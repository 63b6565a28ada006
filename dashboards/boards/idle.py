"""Where held GPUs do nothing, who holds them, and what smaller request would have done."""

from __future__ import annotations

from dashboards import savings
from dashboards.grafana import (
    COUNT,
    EXACT,
    GREEN,
    MONEY,
    ORANGE,
    RATIO,
    VERMILION,
    Board,
    bars,
    codes,
    column,
    link,
    series,
    stat,
    table,
)
from dashboards.sql import (
    ACCELERATORS,
    ACTIVITY_NOW,
    CHARGES,
    CHOSEN_FIRST,
    CORRECTION,
    CURRENCY,
    DAY_TIME,
    DAYS,
    FRESH,
    GPU_HOUR_NS,
    HIDDEN_SPAN,
    LEDGER,
    MICRO,
    MODELS,
    NOW_IDLE,
    OR_UNPRICED,
    OWN,
    OWNER,
    POOLS,
    SPAN_COLUMNS,
    TEAM,
    TEAMS,
    WORKLOAD_SPAN,
    currency,
    datasource,
    events,
    in_choice,
    model,
    other_currencies,
    pool,
    team,
    to_workload,
)

CHOSEN = f"{DAYS} AND {POOLS} AND {MODELS}"
HELD = f"{CHOSEN} AND l.state = 'held' AND {TEAMS}"
KEEP = ("datasource", "currency", "pool", "model")
TO_WORKLOAD = to_workload("currency")
TO_TEAM = (
    link(
        "Showback of this team",
        "gpuledger-team",
        "var-team=${__data.fields.team:percentencode}",
        keep=KEEP,
    ),
)
TO_NODE = (
    link(
        "This node",
        "gpuledger-node",
        "var-node=${__data.fields.node:percentencode}",
        keep=("datasource",),
    ),
)
IDLE_STEPS = ((None, GREEN), (0.25, ORANGE), (0.5, VERMILION))
ATTENTION = {
    "gone_idle": "was used, then went idle",
    "never_used": "never used since given",
    "throttled": "held back by heat or power",
    "data_starved": "waits for its data",
    "hollow": "busy, with hardly any arithmetic",
    "underused": "a smaller GPU would do",
    "zombie": "used without an allocation",
    "faulty": "failed or degraded",
    "abandoned": "abandoned",
}
"""States of findings in words; docs/insight.md defines them."""
PLACES = f"{in_choice('a.pool', 'pool')} AND {in_choice('a.model', 'model')}"
NOW = f"""FROM (SELECT * FROM gpu_latest l WHERE {FRESH} OFFSET 0) l JOIN ({ACCELERATORS}) a ON a.id = l.accelerator_id
    LEFT JOIN LATERAL (SELECT p.team FROM charge c JOIN owner p ON p.id = c.owner_id
        WHERE c.workload_id = l.workload_id ORDER BY c.day_ms DESC LIMIT 1) o ON true
    WHERE {PLACES}"""
"""Fresh readings of the chosen accelerators, each with the team that its workload was charged to
last (`o`).

With OFFSET, because Citus joins readings to charges of the coordinator only once it has fetched
them.
"""
IS_HELD = f"l.state = 'held' AND {TEAMS}"
HELD_NOW = f"{NOW} AND {IS_HELD}"
IS_UNHELD_USE = f"l.state = 'unallocated' AND (l.gpu_processes > 0 OR {ACTIVITY_NOW} >= 0.05)"
UNHELD_USE = f"{NOW} AND {IS_UNHELD_USE}"
READINGS = f"""l.gpu_processes AS processes, {ACTIVITY_NOW} AS activity, l.gpu_memory_used_bytes AS memory,
    l.gpu_power_watts AS power"""
FINDINGS = f"""FROM finding f LEFT JOIN ({ACCELERATORS}) a ON a.id = f.accelerator_id
    WHERE f.kind = 'idle' AND f.resolved_ms IS NULL AND {PLACES}"""
BANDS = ("0 to 10 %", "10 to 25 %", "25 to 50 %", "50 to 75 %", "75 to 100 %")


def number_now(condition: str, reading: str) -> str:
    """SQL: how many accelerators meet a condition by fresh readings; no row where none tells what
    is asked.
    """
    return (
        f"SELECT count(*) FILTER (WHERE {condition}) AS accelerators {NOW}"
        f" HAVING count({reading}) > 0"
    )


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
                    "Held idle cost ($currency)",
                    "Charges for held GPUs without activity.",
                    f"SELECT sum(l.idle_cost_micro) / {MICRO} AS cost FROM {LEDGER} l {OWNER} "
                    f"WHERE {HELD} AND {CURRENCY}",
                    MONEY,
                    width=6,
                    decimals=2,
                ),
                stat(
                    "Idle GPU-hours",
                    "Held hours without activity, of GPUs with a price in $currency or with none.",
                    f"SELECT sum(l.idle_ns) / {GPU_HOUR_NS} AS hours FROM {LEDGER} l {OWNER} "
                    f"WHERE {HELD} AND {OR_UNPRICED} AND {OWN}",
                    EXACT,
                    width=6,
                    decimals=1,
                ),
                stat(
                    "Idle share",
                    "Idle hours over all hours with known activity, of GPUs with a price in"
                    " $currency or with none.",
                    "SELECT sum(l.idle_ns) / nullif(sum(l.busy_ns + l.idle_ns), 0) AS part "
                    f"FROM {LEDGER} l {OWNER} WHERE {HELD} AND {OR_UNPRICED} AND {OWN}",
                    RATIO,
                    width=6,
                    decimals=1,
                    steps=IDLE_STEPS,
                    limits=(0, 1),
                ),
                stat(
                    "Unallocated GPU-hours",
                    "Present and not held by any team, of GPUs with a price in $currency or with"
                    " none.",
                    f"SELECT sum(l.gpu_ns) / {GPU_HOUR_NS} AS hours FROM {LEDGER} l "
                    f"WHERE {CHOSEN} AND {OR_UNPRICED} AND l.state = 'unallocated' AND {OWN}",
                    EXACT,
                    width=6,
                    decimals=1,
                ),
                stat(
                    "Idle now",
                    "Held accelerators whose latest reading shows no activity; may be empty while"
                    " agents are silent.",
                    number_now(f"{IS_HELD} AND {NOW_IDLE}", ACTIVITY_NOW),
                    COUNT,
                    width=6,
                    steps=((None, GREEN), (1, ORANGE)),
                ),
                stat(
                    "No process",
                    "Held accelerators on which no process runs now, by the driver's list of"
                    " processes; may be empty where none is read.",
                    number_now(f"{IS_HELD} AND l.gpu_processes = 0", "l.gpu_processes"),
                    COUNT,
                    width=6,
                    steps=((None, GREEN), (1, ORANGE)),
                ),
                stat(
                    "Used without allocation",
                    "Accelerators that nobody holds, with a process or activity of 5 % and more; of"
                    " all teams. May be empty while agents are silent.",
                    number_now(IS_UNHELD_USE, f"coalesce(l.gpu_processes, {ACTIVITY_NOW})"),
                    COUNT,
                    width=6,
                    steps=((None, GREEN), (1, VERMILION)),
                ),
                other_currencies(f"{CHOSEN}", width=6),
            ),
        ),
        ("To save", (*savings.numbers(), savings.advice())),
        (
            "By day and by team",
            (
                series(
                    "Idle GPU-hours per day",
                    "Idle (chosen teams) and unallocated hours of each day, with a price in"
                    " $currency or none, without corrections of closed months.",
                    f"""
                   SELECT {DAY_TIME}, s.name AS metric, sum(s.ns) / {GPU_HOUR_NS} AS hours
                   FROM {LEDGER} l {OWNER}, LATERAL (VALUES
                       ('idle', CASE WHEN l.state = 'held' AND {TEAMS} THEN l.idle_ns END),
                       ('unallocated', CASE WHEN l.state = 'unallocated' THEN l.gpu_ns END)) s (name, ns)
                   WHERE {CHOSEN} AND {OR_UNPRICED} AND {OWN} AND s.ns IS NOT NULL GROUP BY 1, 2 ORDER BY 1, 2
                   """,
                    EXACT,
                    bars=True,
                    stacked=True,
                    interval="1d",
                    decimals=1,
                ),
                table(
                    "Idle by team ($currency)",
                    "Cost of idle GPUs by team.",
                    f"""
                  SELECT {TEAM} AS team, sum(l.idle_cost_micro) / {MICRO} AS "held idle cost",
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
                        column("held idle cost", width=115),
                        column("idle GPU-hours", decimals=1, width=120),
                        column(
                            "idle part",
                            unit=RATIO,
                            decimals=1,
                            cell="color-text",
                            steps=IDLE_STEPS,
                            width=85,
                        ),
                        column("correction of", unit="string", width=110),
                    ),
                ),
            ),
        ),
        (
            "By workload",
            (
                table(
                    "Workloads that cost most held idle ($currency)",
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
                      top.idle_cost / {MICRO} AS "held idle cost", top.idle / {GPU_HOUR_NS} AS "idle GPU-hours",
                      top.idle / nullif(top.busy + top.idle, 0) AS "idle part", top.gpus AS "GPUs",
                      ceil(top.gpus * top.busy / nullif(top.busy + top.idle, 0)) AS "would do",
                      {SPAN_COLUMNS}
                  FROM top JOIN workload w ON w.id = top.workload_id {WORKLOAD_SPAN} ORDER BY 4 DESC, 1
                  """,
                    MONEY,
                    width=24,
                    decimals=2,
                    overrides=(
                        column("workload", links=TO_WORKLOAD, unit="string"),
                        column("name", unit="string"),
                        column("user", unit="string", width=110),
                        column("held idle cost", width=115),
                        column("idle GPU-hours", decimals=1, width=130),
                        column(
                            "idle part",
                            unit=RATIO,
                            decimals=1,
                            cell="color-text",
                            steps=IDLE_STEPS,
                            width=100,
                        ),
                        *(column(name, decimals=0, width=90) for name in ("GPUs", "would do")),
                        *HIDDEN_SPAN,
                    ),
                ),
                table(
                    "Open findings of workloads",
                    "Idle or oversized allocations that go on now, those priced in $currency first,"
                    " by cost a day, and what a further day costs. May be empty, and then that is"
                    " good.",
                    f"""
                  SELECT a.node, a.gpu_index AS "GPU", f.state AS finding, w.key AS workload,
                      coalesce(w.name, w.external_id) AS name, w.user_name AS "user", f.team,
                      to_timestamp(f.since_ms / 1000) AS "since", f.cost_micro / {MICRO} AS cost,
                      f.per_day_micro / {MICRO} AS "cost a day", f.currency, f.confidence, {SPAN_COLUMNS}
                  FROM (SELECT f.*, a.node, a.gpu_index {FINDINGS}
                      AND {in_choice("coalesce(nullif(f.team, ''), '(unattributed)')", "team")}
                      AND f.workload_id IS NOT NULL ORDER BY {CHOSEN_FIRST} LIMIT 100) f
                  JOIN LATERAL (SELECT f.node, f.gpu_index) a ON true
                  JOIN workload w ON w.id = f.workload_id {WORKLOAD_SPAN}
                  ORDER BY {CHOSEN_FIRST}
                  """,
                    MONEY,
                    width=24,
                    height=6,
                    decimals=2,
                    overrides=(
                        column("node", links=list(TO_NODE), unit="string", width=75),
                        column("GPU", decimals=0, width=50),
                        column("finding", unit="string", mappings=[codes(ATTENTION)], width=190),
                        column("workload", links=TO_WORKLOAD, unit="string"),
                        column("name", unit="string"),
                        column("user", unit="string", width=70),
                        column("team", unit="string", width=85),
                        column("since", unit="time:YYYY-MM-DD HH:mm", width=140),
                        column("cost", width=76),
                        column("cost a day", width=90),
                        column("currency", unit="string", width=78),
                        column("confidence", unit=RATIO, decimals=0, width=95),
                        *HIDDEN_SPAN,
                    ),
                ),
                table(
                    "Held and idle now, or used without an allocation",
                    "Accelerators held now whose latest reading shows no activity or no process,"
                    " and those that are used though nobody holds them (of all teams): a leaked"
                    " allocation, or a process beside the scheduler. May be empty, and then that is"
                    " good.",
                    f"""
                  SELECT now.node, now.gpu_index AS "GPU", now.what, w.key AS workload,
                      coalesce(w.name, w.external_id) AS name, w.user_name AS "user", now.team, now.processes,
                      now.activity, now.memory AS "memory used", now.power, {SPAN_COLUMNS}
                  FROM (
                      SELECT a.node, a.gpu_index, CASE WHEN l.gpu_processes = 0 THEN 'allocated without a process'
                              ELSE 'held and idle' END AS what, l.workload_id, {TEAM} AS team, {READINGS}
                      {HELD_NOW} AND ({NOW_IDLE} OR l.gpu_processes = 0)
                      UNION ALL
                      SELECT a.node, a.gpu_index, 'used without an allocation', NULL, NULL, {READINGS} {UNHELD_USE}
                      ORDER BY 3 DESC, 1, 2 LIMIT 200
                  ) now LEFT JOIN workload w ON w.id = now.workload_id {WORKLOAD_SPAN} ORDER BY 3 DESC, 1, 2
                  """,
                    "none",
                    width=24,
                    height=7,
                    overrides=(
                        column("node", links=list(TO_NODE), unit="string", width=90),
                        column("GPU", width=60),
                        column("what", unit="string", width=210),
                        column("workload", links=TO_WORKLOAD, unit="string"),
                        column("name", unit="string"),
                        column("user", unit="string", width=90),
                        column("team", unit="string", width=100),
                        column("processes", decimals=0, width=90),
                        column("activity", unit=RATIO, decimals=0, width=80),
                        column("memory used", unit="bytes", width=110),
                        column("power", unit="watt", decimals=0, width=70),
                        *HIDDEN_SPAN,
                    ),
                ),
                table(
                    "Accelerators that nobody holds",
                    "Open findings of the chosen pools and models, of all teams: those priced in"
                    " $currency first, by cost a day, and what a further day costs. May be empty,"
                    " and then that is good.",
                    f"""
                  SELECT a.node, a.gpu_index AS "GPU", f.state AS finding, to_timestamp(f.since_ms / 1000) AS "since",
                      f.cost_micro / {MICRO} AS cost, f.per_day_micro / {MICRO} AS "cost a day", f.currency,
                      f.confidence, regexp_replace(a.model, '^NVIDIA ', '') AS model
                  {FINDINGS} AND f.workload_id IS NULL
                  ORDER BY {CHOSEN_FIRST} LIMIT 100
                  """,
                    MONEY,
                    width=17,
                    height=8,
                    decimals=2,
                    overrides=(
                        column("node", links=list(TO_NODE), unit="string", width=75),
                        column("GPU", decimals=0, width=50),
                        column("finding", unit="string", mappings=[codes(ATTENTION)], width=100),
                        column("since", unit="time:YYYY-MM-DD HH:mm", width=140),
                        column("cost", width=76),
                        column("cost a day", width=90),
                        column("currency", unit="string", width=78),
                        column("confidence", unit=RATIO, decimals=0, width=95),
                    ),
                ),
                bars(
                    "GPUs by memory in use now",
                    "How much of their memory held accelerators use: many in the lowest bands are"
                    " candidates for smaller models or MIG instances. A full bar is all of them.",
                    f"""
                 SELECT band.name, count(held.band) AS accelerators
                 FROM unnest(ARRAY[{", ".join(f"'{name}'" for name in BANDS)}]) WITH ORDINALITY band (name, number)
                 LEFT JOIN (SELECT width_bucket(l.gpu_memory_used_bytes / nullif(a.memory_bytes, 0),
                         ARRAY[0, 0.1, 0.25, 0.5, 0.75]::float8[]) AS band {HELD_NOW}) held
                     ON held.band = band.number
                 GROUP BY band.number, 1 ORDER BY band.number
                 """,
                    COUNT,
                    width=7,
                    height=8,
                    whole=(
                        "SELECT greatest(count(l.gpu_memory_used_bytes / nullif(a.memory_bytes,"
                        f" 0)), 1) AS max {HELD_NOW}"
                    ),
                ),
            ),
        ),
    ),
    since="now-7d/d",
    annotations=events(),
)
"""The board that saves money."""
