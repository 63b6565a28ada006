"""What the fleet costs, what of it is wasted, and where the month will end."""

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
    CURRENCY,
    DAY_TIME,
    DAYS,
    GPU_HOUR_NS,
    MICRO,
    MODELS,
    OWNER,
    POOLS,
    TEAM,
    currency,
    datasource,
    model,
    pool,
)

CHOSEN = f"{DAYS} AND {CURRENCY} AND {POOLS} AND {MODELS}"
WASTE = "sum(CASE WHEN l.state = 'held' THEN l.idle_cost_micro ELSE l.cost_micro END)"
TO_TEAM = (link("Showback of this team", "gpuledger-team", "var-team=${__data.fields.team}"),)

NUMBERS = (
    stat("Spend ($currency)", "Capacity times rate over the days of the range: held or not, it is paid for.",
         f"SELECT sum(l.cost_micro) / {MICRO} AS spend FROM ledger_day l WHERE {CHOSEN}", MONEY, decimals=2),
    stat("Waste ($currency)", "Cost of GPU time that was held and idle, or held by nobody.",
         f"SELECT {WASTE} / {MICRO} AS waste FROM ledger_day l WHERE {CHOSEN}", MONEY, decimals=2),
    stat("Waste, part of spend", "Idle, unallocated, unavailable and unobserved cost over all cost.",
         f"SELECT {WASTE} / nullif(sum(l.cost_micro), 0) AS part FROM ledger_day l WHERE {CHOSEN}", RATIO, decimals=1,
         steps=((None, GREEN), (0.25, ORANGE), (0.5, VERMILION)), limits=(0, 1)),
    stat("Held, part of capacity", "GPU-hours held by a workload over all GPU-hours.",
         "SELECT sum(l.gpu_ns) FILTER (WHERE l.state = 'held') / nullif(sum(l.gpu_ns), 0) AS part "
         f"FROM ledger_day l WHERE {CHOSEN}", RATIO, decimals=1,
         steps=((None, VERMILION), (0.4, ORANGE), (0.7, GREEN)), limits=(0, 1)),
    stat("Cost of a busy GPU-hour ($currency)", "All cost over the hours in which GPUs did work: the true unit cost.",
         f"SELECT sum(l.cost_micro) / {MICRO} / nullif(sum(l.busy_ns) / {GPU_HOUR_NS}, 0) AS unit_cost "
         f"FROM ledger_day l WHERE {CHOSEN}", MONEY, decimals=2),
    stat("GPU-hours without a price", "Usage that no rate covers: it is missing in every amount here.",
         f"SELECT coalesce(sum(l.gpu_ns), 0) / {GPU_HOUR_NS} AS hours FROM ledger_day l "
         f"WHERE {DAYS} AND l.currency IS NULL AND {POOLS} AND {MODELS}", HOURS, decimals=1,
         steps=((None, GREEN), (0.1, ORANGE))),
)  # fmt: skip

MONTH = f"""
    WITH day AS (
        SELECT l.day_ms, sum(l.cost_micro) / {MICRO} AS cost FROM ledger_day l JOIN day_proof p USING (day_ms)
        WHERE {CURRENCY} AND {POOLS} AND {MODELS} AND p.until_ms = l.day_ms + 86400000
            AND l.day_ms >= extract(epoch FROM date_trunc('day', now(), 'UTC'))::bigint * 1000 - 28 * 86400000::bigint
        GROUP BY 1
    ), pace AS (
        SELECT avg(cost) AS mean, coalesce(stddev_samp(cost), 0) AS spread FROM day
    ), done AS (
        SELECT sum(l.cost_micro) / {MICRO} AS cost, max(p.until_ms) AS until_ms
        FROM ledger_day l JOIN day_proof p USING (day_ms)
        WHERE {CURRENCY} AND {POOLS} AND {MODELS}
            AND l.day_ms >= extract(epoch FROM date_trunc('month', now(), 'UTC'))::bigint * 1000
    ), ahead AS (
        SELECT greatest(0, (extract(epoch FROM date_trunc('month', now(), 'UTC') + interval '1 month') * 1000
            - coalesce(done.until_ms, extract(epoch FROM date_trunc('month', now(), 'UTC')) * 1000)) / 86400000) AS days
        FROM done
    )
    SELECT done.cost AS "so far", coalesce(done.cost, 0) + pace.mean * ahead.days AS "expected",
        coalesce(done.cost, 0) + greatest(0, pace.mean * ahead.days - 1.28 * pace.spread * sqrt(ahead.days)) AS "low",
        coalesce(done.cost, 0) + pace.mean * ahead.days + 1.28 * pace.spread * sqrt(ahead.days) AS "high"
    FROM done, pace, ahead
"""

BOARD = Board(
    "gpuledger-finops",
    "GPU Ledger / Executive FinOps",
    "Spend, waste, unit cost and the month's end, from the daily ledger.",
    (datasource(), currency(), pool(), model()),
    (
        ("The range", NUMBERS),
        ("The month", (
            stat("This month and its end ($currency)", "So far this month (UTC), its end at the pace of the last 28 "
                 "full days, with a band of 80 % as if days were independent. A run rate, no model.",
                 MONTH, MONEY, width=12, decimals=0),
            stat("Days whose proof holds", "Days of the range for which charges and capacity times rate agree to the "
                 "last micro-unit.",
                 "SELECT count(*) FILTER (WHERE l.holds)::float8 / nullif(count(*), 0) AS part "
                 f"FROM day_proof l WHERE {DAYS}", RATIO,
                 steps=((None, VERMILION), (1, GREEN)), width=6, limits=(0, 1)),
            stat("Teams with charges", "Teams that bore a charge in the range; (unattributed) counts as one.",
                 f"SELECT count(DISTINCT {TEAM}) AS teams FROM ledger_day l {OWNER} "
                 f"WHERE {CHOSEN} AND l.state = 'held'", COUNT, width=6),
        )),
        ("Where it goes", (
            series("Spend a day, by state ($currency)", "Held time is split into busy, idle and unknown activity.",
                   f"""
                   SELECT {DAY_TIME}, s.name AS metric, sum(s.cost) / {MICRO} AS cost
                   FROM ledger_day l, LATERAL (VALUES
                       (CASE WHEN l.state = 'held' THEN 'busy' ELSE l.state END,
                           l.cost_micro - CASE WHEN l.state = 'held' THEN coalesce(l.idle_cost_micro, 0) ELSE 0 END),
                       ('idle', CASE WHEN l.state = 'held' THEN l.idle_cost_micro END)) s (name, cost)
                   WHERE {CHOSEN} AND s.cost IS NOT NULL GROUP BY 1, 2 ORDER BY 1, 2
                   """, MONEY, bars=True, stacked=True, interval="1d", decimals=2),
            series("Spend a day, by model ($currency)", "All cost, held or not.",
                   f"""
                   SELECT {DAY_TIME}, l.gpu_model AS metric, sum(l.cost_micro) / {MICRO} AS cost
                   FROM ledger_day l WHERE {CHOSEN} GROUP BY 1, 2 ORDER BY 1, 2
                   """, MONEY, bars=True, stacked=True, interval="1d", decimals=2),
            table("Teams ($currency)", "What each team holds, and what of it is idle; dearest first. The team opens "
                  "its showback.",
                  f"""
                  SELECT {TEAM} AS team, sum(l.cost_micro) / {MICRO} AS cost,
                      sum(l.idle_cost_micro) / {MICRO} AS "idle cost",
                      sum(l.idle_ns) / nullif(sum(l.busy_ns + l.idle_ns), 0) AS "idle part",
                      sum(l.gpu_ns) / {GPU_HOUR_NS} AS "GPU-hours"
                  FROM ledger_day l {OWNER} WHERE {CHOSEN} AND l.state = 'held'
                  GROUP BY 1 ORDER BY 2 DESC NULLS LAST, 1 LIMIT 50
                  """, MONEY, decimals=2, overrides=(
                      column("team", links=list(TO_TEAM), unit="string"),
                      column("idle part", unit=RATIO, decimals=1, cell="color-text",
                             steps=((None, GREEN), (0.25, ORANGE), (0.5, VERMILION))),
                      column("GPU-hours", unit=HOURS, decimals=1))),
            bars("Waste by pool ($currency)", "Idle and unheld cost of each pool.",
                 f"""
                 SELECT l.pool, {WASTE} / {MICRO} AS waste FROM ledger_day l WHERE {CHOSEN}
                 GROUP BY 1 ORDER BY 2 DESC NULLS LAST, 1 LIMIT 25
                 """, MONEY, decimals=2),
        )),
    ),
)  # fmt: skip
"""The first board to open."""
