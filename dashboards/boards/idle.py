"""Where held GPUs do nothing, who holds them, and what smaller request would have done."""

from __future__ import annotations

from dashboards import savings
from dashboards.grafana import (
    COUNT,
    EXACT,
    GREEN,
    HOURS,
    MONEY,
    ORANGE,
    RATIO,
    VERMILION,
    Board,
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
    FROM_MS,
    GPU_HOUR_NS,
    HIDDEN_SPAN,
    LEDGER,
    MICRO,
    MODELS,
    NOW_IDLE,
    NOW_MS,
    OR_UNPRICED,
    OWN,
    OWNER,
    POOLS,
    SPAN_COLUMNS,
    TEAM,
    TEAMS,
    TO_MS,
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


RANGE_NS = f"(greatest(1, least({TO_MS}, {NOW_MS}) - {FROM_MS}) * 1e6)"
"""How long the range is, until now at most."""


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
    "Idle and right-sizing",
    "who holds GPUs that do nothing, and what would giving back save?",
    "Held idle, unallocated, and oversized: the three kinds of waste, by workload and owner.",
    (datasource(), currency(), team(), pool(), model()),
    (
        ("To save", (*savings.numbers(), savings.advice())),
        (
            "The range, and idle now",
            (
                stat(
                    "Held idle cost ($currency)",
                    "Charges for held GPUs without activity.",
                    f"SELECT sum(l.idle_cost_micro) / {MICRO} AS cost FROM {LEDGER} l {OWNER} "
                    f"WHERE {HELD} AND {CURRENCY}",
                    MONEY,
                    width=4,
                    decimals=2,
                ),
                stat(
                    "Idle GPU-hours",
                    "Held hours without activity, of GPUs with a price in $currency or with none.",
                    f"SELECT sum(l.idle_ns) / {GPU_HOUR_NS} AS hours FROM {LEDGER} l {OWNER} "
                    f"WHERE {HELD} AND {OR_UNPRICED} AND {OWN}",
                    HOURS,
                    width=4,
                    decimals=1,
                ),
                stat(
                    "Idle share",
                    "Idle hours over all hours with known activity, of GPUs with a price in"
                    " $currency or with none.",
                    "SELECT sum(l.idle_ns) / nullif(sum(l.busy_ns + l.idle_ns), 0) AS part "
                    f"FROM {LEDGER} l {OWNER} WHERE {HELD} AND {OR_UNPRICED} AND {OWN}",
                    RATIO,
                    width=4,
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
                    HOURS,
                    width=4,
                    decimals=1,
                ),
                stat(
                    "Idle now",
                    "Held accelerators whose latest reading shows no activity; may be empty while"
                    " agents are silent.",
                    number_now(f"{IS_HELD} AND {NOW_IDLE}", ACTIVITY_NOW),
                    COUNT,
                    width=4,
                    steps=((None, GREEN), (1, ORANGE)),
                ),
                other_currencies(f"{CHOSEN}", width=4),
            ),
        ),
        (
            "Held idle, or unallocated",
            (
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
                        column("cost", unit=EXACT, width=76),
                        column("cost a day", unit=EXACT, width=90),
                        column("currency", unit="string", width=78),
                        column("confidence", unit=RATIO, decimals=0, width=95),
                        *HIDDEN_SPAN,
                    ),
                ),
                table(
                    "Held idle now, or used without an allocation",
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
                              ELSE 'held idle' END AS what, l.workload_id, {TEAM} AS team, {READINGS}
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
                    "Open findings of the chosen pools and models, of all teams, by model and"
                    " reason: those priced in $currency first, by cost a day, and what a further"
                    " day costs. May be empty, and then that is good.",
                    f"""
                  SELECT regexp_replace(a.model, '^NVIDIA ', '') AS model, f.state AS finding, count(*) AS "GPUs",
                      sum(f.per_day_micro) / {MICRO} AS "cost a day", sum(f.cost_micro) / {MICRO} AS cost,
                      f.currency, to_timestamp(min(f.since_ms) / 1000) AS "oldest since",
                      string_agg(DISTINCT a.node, ', ' ORDER BY a.node) AS nodes
                  {FINDINGS} AND f.workload_id IS NULL
                  GROUP BY 1, 2, f.currency
                  ORDER BY coalesce(f.currency <> ${{currency:sqlstring}}, true), 4 DESC NULLS LAST, 1, 2 LIMIT 100
                  """,
                    MONEY,
                    width=24,
                    height=7,
                    decimals=2,
                    overrides=(
                        column("model", unit="string", width=186),
                        column("finding", unit="string", mappings=[codes(ATTENTION)], width=190),
                        column("GPUs", decimals=0, width=60),
                        column("cost a day", unit=EXACT, width=100),
                        column("cost", unit=EXACT, width=90),
                        column("currency", unit="string", width=78),
                        column("oldest since", unit="time:YYYY-MM-DD HH:mm", width=140),
                        column("nodes", unit="string"),
                    ),
                ),
            ),
        ),
        (
            "By workload",
            (
                table(
                    "Workloads that cost most held idle ($currency)",
                    "Workloads of one name and team together, and the dearest of them to open. GPUs"
                    " held, and GPUs busy, are means over the range until now: what lies between"
                    " them is a hint for the next request, not a measurement.",
                    f"""
                  WITH line AS (
                      SELECT l.workload_id, {TEAM} AS team, sum(l.idle_cost_micro) AS idle_cost, sum(l.gpu_ns) AS held,
                          sum(l.busy_ns) AS busy, sum(l.idle_ns) AS idle
                      FROM {CHARGES} l {OWNER} WHERE {HELD} AND {CURRENCY} AND {OWN} GROUP BY 1, 2
                  ), named AS (
                      SELECT line.*, w.id, coalesce(w.name, w.external_id) AS name, w.user_name
                      FROM line JOIN workload w ON w.id = line.workload_id
                  ), top AS (
                      SELECT name, team, string_agg(DISTINCT user_name, ', ' ORDER BY user_name) AS users,
                          count(DISTINCT id) AS workloads, sum(idle_cost) AS idle_cost, sum(held) AS held,
                          sum(busy) AS busy, sum(idle) AS idle,
                          (array_agg(id ORDER BY idle_cost DESC NULLS LAST, id))[1] AS id
                      FROM named GROUP BY 1, 2 HAVING sum(idle_cost) > 0
                      ORDER BY sum(idle_cost) DESC, 1, 2 LIMIT 50
                  )
                  SELECT top.name, top.team, top.users, top.workloads, w.key AS workload,
                      top.idle_cost / {MICRO} AS "held idle cost", top.idle / {GPU_HOUR_NS} AS "idle GPU-hours",
                      top.idle / nullif(top.busy + top.idle, 0) AS "idle part",
                      top.held / {RANGE_NS} AS "GPUs held", top.busy / {RANGE_NS} AS "GPUs busy", {SPAN_COLUMNS}
                  FROM top JOIN workload w ON w.id = top.id {WORKLOAD_SPAN} ORDER BY 6 DESC, 1, 2
                  """,
                    MONEY,
                    width=24,
                    decimals=2,
                    overrides=(
                        column("workload", links=TO_WORKLOAD, unit="string"),
                        column("name", unit="string"),
                        column("users", unit="string"),
                        column("team", unit="string", links=list(TO_TEAM), width=100),
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
                        column("workloads", decimals=0, width=85),
                        *(
                            column(name, decimals=1, width=90)
                            for name in ("GPUs held", "GPUs busy")
                        ),
                        *HIDDEN_SPAN,
                    ),
                ),
            ),
        ),
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
                    order=("idle", "unallocated"),
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
    ),
    since="now-7d/d",
    annotations=events(),
)
"""The board that saves money."""
