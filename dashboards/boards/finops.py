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
    CORRECTION,
    CURRENCY,
    DAY_TIME,
    DAYS,
    FROM_MS,
    GPU_HOUR_NS,
    LEDGER,
    MICRO,
    MODELS,
    OWN,
    OWNER,
    POOLS,
    TEAM,
    TO_MS,
    TODAY,
    apart,
    currency,
    datasource,
    local,
    model,
    pool,
    whole,
)

CHOSEN = f"{DAYS} AND {CURRENCY} AND {POOLS} AND {MODELS}"
WASTE = "sum(CASE WHEN l.state = 'held' THEN l.idle_cost_micro ELSE l.cost_micro END)"
TO_TEAM = (link("Showback of this team", "gpuledger-team", "var-team=${__data.fields.team}"),)

NUMBERS = (
    stat(
        "Spend ($currency)",
        "Capacity times rate over the range, held or not.",
        f"SELECT sum(l.cost_micro) / {MICRO} AS spend FROM {LEDGER} l WHERE {CHOSEN}",
        MONEY,
        decimals=2,
    ),
    stat(
        "Waste ($currency)",
        "Cost of GPU time that was held and idle, or held by nobody.",
        f"SELECT {WASTE} / {MICRO} AS waste FROM {LEDGER} l WHERE {CHOSEN}",
        MONEY,
        decimals=2,
    ),
    stat(
        "Waste, share of spend",
        "Idle, unallocated, unavailable, unobserved and stranded cost over all cost.",
        f"SELECT {WASTE} / nullif(sum(l.cost_micro), 0) AS part FROM {LEDGER} l WHERE {CHOSEN}",
        RATIO,
        decimals=1,
        steps=((None, GREEN), (0.25, ORANGE), (0.5, VERMILION)),
        limits=(0, 1),
    ),
    stat(
        "Held, share of capacity",
        "GPU-hours held by a workload over all GPU-hours.",
        "SELECT sum(l.gpu_ns) FILTER (WHERE l.state = 'held') / nullif(sum(l.gpu_ns), 0) AS part "
        f"FROM {LEDGER} l WHERE {CHOSEN} AND {OWN}",
        RATIO,
        decimals=1,
        steps=((None, VERMILION), (0.4, ORANGE), (0.7, GREEN)),
        limits=(0, 1),
    ),
    stat(
        "Cost of a busy GPU-hour ($currency)",
        "All cost divided by busy hours: the true unit cost.",
        f"SELECT sum(l.cost_micro) / {MICRO} / nullif(sum(l.busy_ns) / {GPU_HOUR_NS}, 0) AS unit_cost "
        f"FROM {LEDGER} l WHERE {CHOSEN} AND {OWN}",
        MONEY,
        decimals=2,
    ),
    stat(
        "GPU-hours without a price",
        "Usage without a rate: it is missing from every amount here.",
        f"SELECT coalesce(sum(l.gpu_ns), 0) / {GPU_HOUR_NS} AS hours FROM {LEDGER} l "
        f"WHERE {DAYS} AND l.currency IS NULL AND {POOLS} AND {MODELS} AND {OWN}",
        HOURS,
        decimals=1,
        steps=((None, GREEN), (0.1, ORANGE)),
    ),
)

THIS_MONTH = f"date_trunc('month', {TODAY}::timestamp)"
MONTH = f"""
    WITH day AS (
        SELECT l.day_ms, sum(l.cost_micro) / {MICRO} AS cost FROM {LEDGER} l JOIN conservation_check p USING (day_ms)
        WHERE {CURRENCY} AND {POOLS} AND {MODELS} AND {whole("p")}
            AND l.day_ms >= {local(f"({TODAY} - 28)::timestamp")}
        GROUP BY 1
    ), pace AS (
        SELECT avg(cost) AS mean, coalesce(stddev_samp(cost), 0) AS spread FROM day
    ), done AS (
        SELECT sum(l.cost_micro) / {MICRO} AS cost, max(p.until_ms) AS until_ms
        FROM {LEDGER} l JOIN conservation_check p USING (day_ms)
        WHERE {CURRENCY} AND {POOLS} AND {MODELS}
            AND l.day_ms >= {local(THIS_MONTH)}
    ), ahead AS (
        SELECT greatest(0, ({local(f"{THIS_MONTH} + interval '1 month'")}
            - coalesce(done.until_ms, {local(THIS_MONTH)})) / 86400000.0) AS days
        FROM done
    )
    SELECT done.cost AS "so far", coalesce(done.cost, 0) + pace.mean * ahead.days AS "expected",
        coalesce(done.cost, 0) + greatest(0, pace.mean * ahead.days - 1.28 * pace.spread * sqrt(ahead.days)) AS "low",
        coalesce(done.cost, 0) + pace.mean * ahead.days + 1.28 * pace.spread * sqrt(ahead.days) AS "high"
    FROM done, pace, ahead
"""

LEVELS = (
    ("org", "org"),
    ("team", "team"),
    ("project", "project"),
    ("experiment", "experiment"),
    ("run", "run"),
    ("user", "user_name"),
)
OF_BUDGET = " AND ".join(
    f"(b.owner ->> '{level}' IS NULL OR o.{name} = b.owner ->> '{level}')" for level, name in LEVELS
)
BUDGETS = f"""
    WITH b AS (
        SELECT id, name, owner, amount_micro, currency,
            CASE period WHEN 'range' THEN start_ms
                ELSE {local(f"date_trunc(period, {TODAY}::timestamp)")} END AS since_ms,
            CASE period WHEN 'range' THEN end_ms ELSE {
    local(
        f"(date_trunc(period, {TODAY}::timestamp) + CASE period WHEN 'quarter' THEN interval '3 months' "
        "ELSE interval '1 month' END)"
    )
} END AS until_ms
        FROM budget WHERE superseded_at IS NULL AND currency = ${{currency:sqlstring}}
    ), spent AS (
        SELECT b.id, sum(l.cost_micro) AS cost FROM b JOIN {LEDGER} l
            ON l.day_ms >= b.since_ms AND l.day_ms < b.until_ms AND l.currency = b.currency
        LEFT JOIN owner o ON o.id = l.owner_id WHERE {OF_BUDGET} GROUP BY 1
    )
    SELECT b.name AS budget, b.owner::text AS owner, b.amount_micro / {MICRO} AS amount,
        coalesce(spent.cost, 0) / {MICRO} AS spent, coalesce(spent.cost, 0) / nullif(b.amount_micro, 0) AS "part spent",
        least(1, greatest(0, (extract(epoch FROM now()) * 1000 - b.since_ms) / (b.until_ms - b.since_ms)))
            AS "part of the time",
        (SELECT string_agg(a.rule || ' ' || a.percent || ' %: ' || a.state, ', ' ORDER BY a.rule, a.percent)
            FROM budget_alert a WHERE a.budget_id = b.id AND a.period_start_ms = b.since_ms) AS thresholds
    FROM b LEFT JOIN spent ON spent.id = b.id ORDER BY 5 DESC NULLS LAST, 1 LIMIT 200
"""
ANOMALIES = f"""
    SELECT f.subject, f.state AS kind, f.team, to_timestamp(f.since_ms / 1000) AS "since",
        to_timestamp(f.resolved_ms / 1000) AS "ended", f.cost_micro / {MICRO} AS cost,
        f.per_day_micro / {MICRO} AS "cost a day", f.confidence
    FROM finding f
    WHERE f.kind = 'anomaly' AND f.since_ms < {TO_MS} AND coalesce(f.resolved_ms, {TO_MS}) >= {FROM_MS}
        AND (f.currency IS NULL OR f.currency = ${{currency:sqlstring}})
    ORDER BY f.since_ms DESC LIMIT 100
"""

BOARD = Board(
    "gpuledger-finops",
    "GPU Ledger / Executive FinOps",
    "Spend, waste, unit cost and the month's projection, from the daily ledger.",
    (datasource(), currency(), pool(), model()),
    (
        ("The range", NUMBERS),
        (
            "The month",
            (
                stat(
                    "This month and its projection ($currency)",
                    "So far this month (of the billing zone), its end at the pace "
                    "of the last 28 full days, with a band of 80 % as if days were independent. A run rate, no model.",
                    MONTH,
                    MONEY,
                    width=12,
                    decimals=0,
                ),
                stat(
                    "Days that reconcile",
                    "Share of days for which charges and capacity times rate agree to the micro-unit.",
                    "SELECT count(*) FILTER (WHERE l.holds)::float8 / nullif(count(*), 0) AS part "
                    f"FROM conservation_check l WHERE {DAYS}",
                    RATIO,
                    steps=((None, VERMILION), (1, GREEN)),
                    width=6,
                    limits=(0, 1),
                ),
                stat(
                    "Teams with charges",
                    "Teams with a charge in the range; (unattributed) counts as one.",
                    f"SELECT count(DISTINCT {TEAM}) AS teams FROM {LEDGER} l {OWNER} "
                    f"WHERE {CHOSEN} AND l.state = 'held'",
                    COUNT,
                    width=6,
                ),
            ),
        ),
        (
            "Budgets and anomalies",
            (
                table(
                    "Budgets ($currency)",
                    "This period's spend against each budget. More spent than time has passed is "
                    "the sign to look. May be empty until budgets are declared.",
                    BUDGETS,
                    MONEY,
                    width=14,
                    decimals=2,
                    overrides=(
                        column("budget", unit="string"),
                        column("owner", unit="string"),
                        column("thresholds", unit="string"),
                        column("part of the time", unit=RATIO, decimals=0),
                        column(
                            "part spent",
                            unit=RATIO,
                            decimals=1,
                            cell="color-text",
                            steps=((None, GREEN), (0.8, ORANGE), (1, VERMILION)),
                        ),
                    ),
                ),
                table(
                    "Anomalies ($currency)",
                    "Spending outside the expected band, newest first. Empty is good.",
                    ANOMALIES,
                    MONEY,
                    width=10,
                    decimals=2,
                    overrides=(
                        column("subject", unit="string"),
                        column("since", unit="dateTimeAsIso"),
                        column("ended", unit="dateTimeAsIso"),
                        column("confidence", unit=RATIO, decimals=0),
                    ),
                ),
            ),
        ),
        (
            "Breakdown",
            (
                series(
                    "Spend per day, by state ($currency)",
                    "Held time is split into busy, idle and unknown activity.",
                    f"""
                   SELECT {DAY_TIME}, {apart("s.name")} AS metric, sum(s.cost) / {MICRO} AS cost
                   FROM {LEDGER} l, LATERAL (VALUES
                       (CASE WHEN l.state = 'held' THEN 'busy' ELSE l.state END,
                           l.cost_micro - CASE WHEN l.state = 'held' THEN coalesce(l.idle_cost_micro, 0) ELSE 0 END),
                       ('idle', CASE WHEN l.state = 'held' THEN l.idle_cost_micro END)) s (name, cost)
                   WHERE {CHOSEN} AND s.cost IS NOT NULL GROUP BY 1, 2 ORDER BY 1, 2
                   """,
                    MONEY,
                    bars=True,
                    stacked=True,
                    interval="1d",
                    decimals=2,
                ),
                series(
                    "Spend per day, by model ($currency)",
                    "All cost, held or not.",
                    f"""
                   SELECT {DAY_TIME}, {apart("l.gpu_model")} AS metric, sum(l.cost_micro) / {MICRO} AS cost
                   FROM {LEDGER} l WHERE {CHOSEN} GROUP BY 1, 2 ORDER BY 1, 2
                   """,
                    MONEY,
                    bars=True,
                    stacked=True,
                    interval="1d",
                    decimals=2,
                ),
                table(
                    "Teams ($currency)",
                    "What each team holds and how much of it is idle, highest cost first. A team opens its showback.",
                    f"""
                  SELECT {TEAM} AS team, sum(l.cost_micro) / {MICRO} AS cost,
                      sum(l.idle_cost_micro) / {MICRO} AS "idle cost",
                      sum(l.idle_ns) / nullif(sum(l.busy_ns + l.idle_ns), 0) AS "idle part",
                      sum(l.gpu_ns) / {GPU_HOUR_NS} AS "GPU-hours", {CORRECTION}
                  FROM {LEDGER} l {OWNER} WHERE {CHOSEN} AND l.state = 'held'
                  GROUP BY 1, l.correction_of ORDER BY 2 DESC NULLS LAST, 1 LIMIT 50
                  """,
                    MONEY,
                    decimals=2,
                    overrides=(
                        column("team", links=list(TO_TEAM), unit="string"),
                        column("correction of", unit="string"),
                        column(
                            "idle part",
                            unit=RATIO,
                            decimals=1,
                            cell="color-text",
                            steps=((None, GREEN), (0.25, ORANGE), (0.5, VERMILION)),
                        ),
                        column("GPU-hours", unit=HOURS, decimals=1),
                    ),
                ),
                bars(
                    "Waste by pool ($currency)",
                    "Idle, unallocated and unavailable cost of each pool.",
                    f"""
                 SELECT l.pool, {WASTE} / {MICRO} AS waste FROM {LEDGER} l WHERE {CHOSEN}
                 GROUP BY 1 ORDER BY 2 DESC NULLS LAST, 1 LIMIT 25
                 """,
                    MONEY,
                    decimals=2,
                ),
            ),
        ),
    ),
)
"""The first board to open."""
