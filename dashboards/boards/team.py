"""What one team (or several) held, used and wasted."""

from __future__ import annotations

from dashboards.grafana import (
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
    PROJECT,
    TEAM,
    TEAMS,
    apart,
    currency,
    datasource,
    model,
    pool,
    team,
)

HELD = f"{DAYS} AND l.state = 'held' AND {TEAMS} AND {POOLS} AND {MODELS}"
PRICED = f"{HELD} AND {CURRENCY}"
TO_WORKLOAD = (link("This workload", "gpuledger-workload", "var-workload=${__data.fields.workload}"),)
IDLE_STEPS = ((None, GREEN), (0.25, ORANGE), (0.5, VERMILION))

BOARD = Board(
    "gpuledger-team",
    "GPU Ledger / Team showback",
    "What a team held, what it cost, and what of it did nothing.",
    (datasource(), currency(), team(), pool(), model()),
    (
        (
            "The range",
            (
                stat(
                    "Cost ($currency)",
                    "Charges of the chosen teams.",
                    f"SELECT sum(l.cost_micro) / {MICRO} AS cost FROM {LEDGER} l {OWNER} WHERE {PRICED}",
                    MONEY,
                    width=6,
                    decimals=2,
                ),
                stat(
                    "Idle cost ($currency)",
                    "The part of the charges for held GPUs that did nothing.",
                    f"SELECT sum(l.idle_cost_micro) / {MICRO} AS cost FROM {LEDGER} l {OWNER} WHERE {PRICED}",
                    MONEY,
                    width=6,
                    decimals=2,
                ),
                stat(
                    "GPU-hours held",
                    "Held time, with or without a price.",
                    f"SELECT sum(l.gpu_ns) / {GPU_HOUR_NS} AS hours FROM {LEDGER} l {OWNER} WHERE {HELD} AND {OWN}",
                    HOURS,
                    width=6,
                    decimals=1,
                ),
                stat(
                    "Idle, share of known activity",
                    "Idle hours over all hours with known activity.",
                    "SELECT sum(l.idle_ns) / nullif(sum(l.busy_ns + l.idle_ns), 0) AS part "
                    f"FROM {LEDGER} l {OWNER} WHERE {HELD} AND {OWN}",
                    RATIO,
                    width=6,
                    decimals=1,
                    steps=IDLE_STEPS,
                    limits=(0, 1),
                ),
            ),
        ),
        (
            "By day",
            (
                series(
                    "Cost a day, by team ($currency)",
                    "Charges of held time.",
                    f"""
                   SELECT {DAY_TIME}, {apart(TEAM)} AS metric, sum(l.cost_micro) / {MICRO} AS cost
                   FROM {LEDGER} l {OWNER} WHERE {PRICED} GROUP BY 1, 2 ORDER BY 1, 2
                   """,
                    MONEY,
                    bars=True,
                    stacked=True,
                    interval="1d",
                    decimals=2,
                ),
                series(
                    "GPU-hours a day, by activity",
                    "Busy, idle, and time whose activity nobody could read.",
                    f"""
                   SELECT {DAY_TIME}, {apart("s.name")} AS metric, sum(s.ns) / {GPU_HOUR_NS} AS hours
                   FROM {LEDGER} l {OWNER}, LATERAL (VALUES ('busy', l.busy_ns), ('idle', l.idle_ns),
                       ('activity unknown', l.unknown_ns)) s (name, ns)
                   WHERE {HELD} GROUP BY 1, 2 ORDER BY 1, 2
                   """,
                    HOURS,
                    bars=True,
                    stacked=True,
                    interval="1d",
                    decimals=1,
                ),
            ),
        ),
        (
            "Who and what",
            (
                bars(
                    "Cost by project ($currency)",
                    "Projects of the chosen teams, dearest first.",
                    f"""
                 SELECT {PROJECT} AS project, sum(l.cost_micro) / {MICRO} AS cost
                 FROM {LEDGER} l {OWNER} WHERE {PRICED} GROUP BY 1 ORDER BY 2 DESC NULLS LAST, 1 LIMIT 25
                 """,
                    MONEY,
                    decimals=2,
                ),
                table(
                    "People ($currency)",
                    "Users of the chosen teams, as the owner rules name them.",
                    f"""
                  SELECT coalesce(nullif(o.user_name, ''), '(unattributed)') AS "user",
                      sum(l.cost_micro) / {MICRO} AS cost, sum(l.idle_cost_micro) / {MICRO} AS "idle cost",
                      sum(l.gpu_ns) / {GPU_HOUR_NS} AS "GPU-hours",
                      sum(l.idle_ns) / nullif(sum(l.busy_ns + l.idle_ns), 0) AS "idle part", {CORRECTION}
                  FROM {LEDGER} l {OWNER} WHERE {PRICED} GROUP BY 1, l.correction_of
                  ORDER BY 2 DESC NULLS LAST, 1 LIMIT 50
                  """,
                    MONEY,
                    decimals=2,
                    overrides=(
                        column("user", unit="string"),
                        column("correction of", unit="string"),
                        column("GPU-hours", unit=HOURS, decimals=1),
                        column("idle part", unit=RATIO, decimals=1, cell="color-text", steps=IDLE_STEPS),
                    ),
                ),
                table(
                    "Workloads ($currency)",
                    "The dearest workloads of the range; a click opens the workload's page.",
                    f"""
                  WITH top AS (
                      SELECT l.workload_id, sum(l.cost_micro) AS cost
                      FROM {CHARGES} l {OWNER} WHERE {PRICED} GROUP BY 1 ORDER BY 2 DESC NULLS LAST, 1 LIMIT 50
                  )
                  SELECT w.key AS workload, coalesce(w.name, w.external_id) AS name, w.user_name AS "user",
                      to_timestamp(min(l.start_ms) / 1000) AS "first charged",
                      sum(l.cost_micro) / {MICRO} AS cost, sum(l.idle_cost_micro) / {MICRO} AS "idle cost",
                      sum(l.gpu_ns) / {GPU_HOUR_NS} AS "GPU-hours",
                      sum(l.idle_ns) / nullif(sum(l.busy_ns + l.idle_ns), 0) AS "idle part", {CORRECTION}
                  FROM top JOIN {CHARGES} l ON l.workload_id = top.workload_id {OWNER}
                  LEFT JOIN workload w ON w.id = top.workload_id
                  WHERE {PRICED} GROUP BY top.workload_id, w.id, l.correction_of ORDER BY 5 DESC NULLS LAST, 1
                  """,
                    MONEY,
                    width=24,
                    decimals=2,
                    overrides=(
                        column("workload", links=list(TO_WORKLOAD), unit="string"),
                        column("name", unit="string"),
                        column("user", unit="string"),
                        column("correction of", unit="string"),
                        column("first charged", unit="dateTimeAsIso"),
                        column("GPU-hours", unit=HOURS, decimals=1),
                        column("idle part", unit=RATIO, decimals=1, cell="color-text", steps=IDLE_STEPS),
                    ),
                ),
            ),
        ),
    ),
)
"""The page that a team's lead opens."""
