"""What the fleet costs, what of it is wasted, and where the month will end."""

from __future__ import annotations

from dashboards import savings
from dashboards.grafana import (
    BLUE,
    COUNT,
    EXACT,
    GRAY,
    GREEN,
    HOURS,
    MONEY,
    ORANGE,
    RATIO,
    SKY,
    VERMILION,
    Board,
    Json,
    Panel,
    band,
    chosen,
    color,
    column,
    line,
    link,
    series,
    shares,
    stat,
    table,
)
from dashboards.savings import TO_IDLE
from dashboards.sql import (
    AHEAD_SAID,
    AMOUNT_WIDTHS,
    BILLED,
    CHANGE_SAID,
    CHANGED,
    CORRECTION,
    CURRENCY,
    DAY_MS,
    DAY_TIME,
    DAYS,
    FLEET_AHEAD,
    FROM_MS,
    GPU_HOUR_NS,
    GRID,
    HOUR_NOW,
    KWH,
    LEDGER,
    MICRO,
    MODELS,
    OWN,
    OWNER,
    POOLS,
    TEAM,
    TO_MS,
    TODAY,
    currency,
    datasource,
    date,
    events,
    in_range,
    local,
    midnight_utc,
    model,
    month_end,
    other_currencies,
    pace_tables,
    pool,
    states_of_cost,
    whole,
)
from gpuledger_collector.insight.findings import AT_LISTED_RATES

CHOSEN = f"{DAYS} AND {CURRENCY} AND {POOLS} AND {MODELS}"
WASTE = """sum(CASE WHEN l.state = 'held' THEN l.idle_cost_micro
    WHEN l.state IN ('unallocated', 'stranded', 'commitment_unused') THEN l.cost_micro END)"""
TO_TEAM = (
    link(
        "Showback of this team",
        "gpuledger-team",
        "var-team=${__data.fields.team:percentencode}",
        keep=("datasource", "currency", "pool", "model"),
    ),
)
TO_BILL = link("The bill", "gpuledger-chargeback", "${datasource:queryparam}")
TO_PROOF = link("The proof of each day", "gpuledger-pipeline", "${datasource:queryparam}")
PARTS_OF_COST = (
    *(
        "busy",
        "idle",
        "activity unknown",
        "node costs",
        "adjustments",
        "unallocated",
        "unavailable",
        "unobserved",
    ),
    *("stranded", "unused commitments"),
)
"""The names of `states_of_cost`: together they are the spend."""
WASTE_STEPS = ((None, GREEN), (0.05, ORANGE), (0.2, VERMILION))

NUMBERS = (
    stat(
        "Spend ($currency)",
        "Capacity times rate over the range, held or not.",
        f"SELECT sum(l.cost_micro) / {MICRO} AS spend FROM {LEDGER} l WHERE {CHOSEN}",
        MONEY,
        decimals=0,
    ),
    stat(
        "Waste ($currency)",
        "Held idle, unallocated, stranded, and unused commitments. What nobody observed is not"
        " known, and not in it.",
        f"SELECT {WASTE} / {MICRO} AS waste FROM {LEDGER} l WHERE {CHOSEN}",
        MONEY,
        decimals=0,
        links=(TO_IDLE,),
    ),
    stat(
        "Waste share",
        "Held idle, unallocated, stranded and unused cost over all cost.",
        f"SELECT {WASTE} / nullif(sum(l.cost_micro), 0) AS part FROM {LEDGER} l WHERE {CHOSEN}",
        RATIO,
        width=3,
        decimals=1,
        steps=((None, GREEN), (0.25, ORANGE), (0.5, VERMILION)),
        limits=(0, 1),
        links=(TO_IDLE,),
    ),
    stat(
        "Busy hour, $currency",
        "All cost divided by busy GPU-hours: the true unit cost.",
        f"SELECT sum(l.cost_micro) / {MICRO} / nullif(sum(l.busy_ns) / {GPU_HOUR_NS}, 0) AS"
        f" unit_cost FROM {LEDGER} l WHERE {CHOSEN} AND {OWN}",
        EXACT,
        width=3,
        decimals=2,
    ),
    stat(
        "An hour now ($currency)",
        "What the GPUs of the last hour that was counted cost, and what of it nobody held, or was"
        " held without activity, whatever range is chosen; node costs, and time that nobody"
        " observed, are not in it. Nothing once six hours passed without a count: may be empty.",
        HOUR_NOW,
        MONEY,
        width=6,
        decimals=0,
    ),
    other_currencies(f"{DAYS} AND {POOLS} AND {MODELS}"),
)

TEAMS = table(
    "Teams ($currency)",
    "What each team is billed, with node costs and adjustments and without shares"
    " of common costs, and how much of it is idle; highest cost first. A team opens"
    f" its showback. {CHANGE_SAID}",
    f"""
  WITH {pace_tables(TEAM, f"{CURRENCY} AND {POOLS} AND {MODELS} AND {BILLED}")}
  SELECT {TEAM} AS team, sum(l.cost_micro) / {MICRO} AS cost,
      sum(l.idle_cost_micro) / {MICRO} AS "held idle cost",
      sum(l.idle_ns) / nullif(sum(l.busy_ns + l.idle_ns), 0) AS "idle part",
      sum(l.gpu_ns) / {GPU_HOUR_NS} AS "GPU-hours", {CHANGED}, {CORRECTION}
  FROM {LEDGER} l {OWNER} LEFT JOIN pace ON pace.name = {TEAM} WHERE {CHOSEN} AND {BILLED}
  GROUP BY 1, l.correction_of, pace.cost, pace.before ORDER BY 2 DESC NULLS LAST, 1 LIMIT 50
  """,
    MONEY,
    width=14,
    height=11,
    decimals=0,
    overrides=(
        column("team", links=list(TO_TEAM), unit="string"),
        *AMOUNT_WIDTHS,
        column("correction of", unit="string"),
        column(
            "idle part",
            unit=RATIO,
            decimals=1,
            cell="color-text",
            steps=((None, GREEN), (0.25, ORANGE), (0.5, VERMILION)),
        ),
        column("GPU-hours", unit=HOURS, decimals=0),
        column("change", unit=RATIO, decimals=1, width=70),
    ),
)
BY_STATE = series(
    "Spend per day, by state ($currency)",
    "Held time is split into busy, idle and unknown activity. Corrections of closed"
    " months are in the tables.",
    f"""
   SELECT {DAY_TIME}, s.name AS metric, sum(s.cost) / {MICRO} AS cost
   FROM {states_of_cost("l.day_ms", f"{CHOSEN} AND {OWN}")}
   WHERE s.cost IS NOT NULL GROUP BY 1, 2 ORDER BY 1, 2
   """,
    MONEY,
    width=10,
    height=11,
    bars=True,
    stacked=True,
    interval="1d",
    decimals=0,
    order=PARTS_OF_COST,
)
WEEKS_CHANGE = f"""
    WITH day AS (
        SELECT {TODAY} - {date("p.day_ms")} AS ago, coalesce(sum(l.cost_micro), 0) AS cost,
            coalesce({WASTE}, 0) AS waste,
            coalesce(sum(l.gpu_ns) FILTER (WHERE l.state = 'held'), 0) AS held
        FROM conservation_check p LEFT JOIN (SELECT * FROM {LEDGER} l
            WHERE {CURRENCY} AND {POOLS} AND {MODELS} AND {OWN}) l ON l.day_ms = p.day_ms
        WHERE {whole("p")} AND p.day_ms >= {local(f"({TODAY} - 14)::timestamp")} GROUP BY 1
    )
    SELECT avg(cost) FILTER (WHERE ago <= 7) / nullif(avg(cost) FILTER (WHERE ago > 7), 0) - 1 AS spend,
        avg(waste) FILTER (WHERE ago <= 7) / nullif(avg(waste) FILTER (WHERE ago > 7), 0) - 1 AS waste,
        avg(held) FILTER (WHERE ago <= 7) / nullif(avg(held) FILTER (WHERE ago > 7), 0) - 1 AS "GPU-hours held"
    FROM day
"""
"""Means of the last seven full days against those of the seven before."""
MONTH = month_end("", FLEET_AHEAD)
LIST_PRICE = f"""
    SELECT sum(l.list_cost_micro) / {MICRO} AS "at list price",
        sum(l.cost_micro) FILTER (WHERE l.list_cost_micro IS NOT NULL) / {MICRO} AS effective,
        (sum(l.list_cost_micro) - sum(l.cost_micro) FILTER (WHERE l.list_cost_micro IS NOT NULL)) / {MICRO} AS saved
    FROM ledger_day l WHERE {CHOSEN}
"""
COVERED = f"""
    SELECT sum((SELECT coalesce(sum((c.terms ->> 'covered_ns')::numeric), 0)
            FROM jsonb_each(l.commitments) c (name, terms))) / nullif(sum(l.capacity_ns), 0) AS covered
    FROM conservation_check l WHERE {DAYS}
"""
SHARES = ", ".join(
    f"nullif(greatest(sum(s.cost) FILTER (WHERE s.name = '{name}'), 0), 0) / {MICRO} AS \"{name}\""
    for name in PARTS_OF_COST
)
"""A part below zero would be drawn as a whole bar to the left."""

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
IN_MONEY = "measure <> 'gpu_hours'"
BUDGET_PERIODS = f"""
    b AS (
        SELECT id, name, owner, amount_micro, currency, measure,
            CASE period WHEN 'range' THEN start_ms
                ELSE {local(f"date_trunc(period, {TODAY}::timestamp)")} END AS since_ms,
            CASE period WHEN 'range' THEN end_ms ELSE {
    local(
        f"(date_trunc(period, {TODAY}::timestamp) + CASE period WHEN 'quarter' THEN interval '3 months' "
        "ELSE interval '1 month' END)"
    )
} END AS until_ms
        FROM budget WHERE superseded_at IS NULL AND {IN_MONEY}
    )
"""
"""Budgets in money, and their forecasts in force, with their period of now."""
BUDGET_DAYS = f"""
    payer AS (
        SELECT id, org, team, project, experiment, run, user_name FROM owner
        UNION ALL SELECT 0, NULL, NULL, NULL, NULL, NULL, NULL
    ), line AS MATERIALIZED (
        SELECT l.day_ms, coalesce(l.owner_id, 0) AS owner_id, l.state, l.currency, sum(l.cost_micro) AS cost_micro,
            sum(l.gpu_ns) AS gpu_ns
        FROM ledger_day l WHERE l.day_ms >= (SELECT min(since_ms) FROM b) GROUP BY 1, 2, 3, 4
    ), spent AS (
        SELECT b.id, l.day_ms, sum(CASE b.measure WHEN 'gpu_hours' THEN l.gpu_ns / {GPU_HOUR_NS} * {MICRO}
            ELSE l.cost_micro END) AS cost
        FROM b JOIN payer o ON {OF_BUDGET} JOIN line l ON l.owner_id = o.id
            AND l.day_ms >= b.since_ms AND l.day_ms < b.until_ms
            AND CASE b.measure WHEN 'gpu_hours' THEN l.state = 'held' ELSE l.currency = b.currency END
        GROUP BY 1, 2
    ), ending AS (
        SELECT b.*, direct + shared AS cost, (direct + shared) / nullif(direct, 0) AS with_shares,
            f.low_micro, f.middle_micro, f.high_micro
        FROM b LEFT JOIN LATERAL (SELECT f.* FROM budget_forecast f
            WHERE f.budget_id = b.id AND f.period_start_ms = b.since_ms ORDER BY f.day_ms DESC LIMIT 1
        ) f ON true, LATERAL (SELECT
            coalesce((SELECT sum(cost) FROM spent WHERE spent.id = b.id AND spent.day_ms >= b.since_ms), 0) AS direct,
            CASE b.measure WHEN 'total' THEN (SELECT sum(s.shared_micro) FROM budget_share s
                WHERE s.budget_id = b.id AND s.start_ms >= b.since_ms AND s.start_ms < b.until_ms) ELSE 0 END AS shared
        ) AS sums
    )
"""
"""What counts against a budget by day, and where its period ends by the forecast that was stored when
it was watched last.

Shares of common costs, which the collector computes for budgets on total cost, are spread over the
days in proportion.
"""
BUDGETS = f"""
    WITH {BUDGET_PERIODS}, {BUDGET_DAYS}
    SELECT e.name AS budget, e.cost / nullif(e.amount_micro, 0) AS "part spent",
        least(1, greatest(0, (extract(epoch FROM now()) * 1000 - e.since_ms) / (e.until_ms - e.since_ms)))
            AS "time gone",
        e.middle_micro::numeric / nullif(e.amount_micro, 0) AS "by forecast", e.cost / {MICRO} AS spent,
        e.amount_micro / {MICRO} AS amount, e.middle_micro / {MICRO} AS forecast,
        nullif(e.currency, '') AS currency,
        (SELECT string_agg(t.alerts, '; ' ORDER BY t.alerts) FROM (
            SELECT a.rule || ' ' || string_agg(a.percent::text, ', ' ORDER BY a.percent) || ' % ' || a.state AS alerts
            FROM budget_alert a WHERE a.budget_id = e.id AND a.period_start_ms = e.since_ms GROUP BY a.rule, a.state
        ) t) AS thresholds,
        coalesce((SELECT string_agg(o.key || ' ' || o.value, ', ' ORDER BY o.key) FROM jsonb_each_text(e.owner) o),
            'the whole fleet') AS owner,
        CASE e.measure WHEN 'total' THEN 'total cost' WHEN 'gpu_hours' THEN 'GPU-hours' ELSE 'direct cost' END
            AS "of what", coalesce(e.owner ->> 'team', '$__all') AS team
    FROM ending e ORDER BY 2 DESC NULLS LAST, 1 LIMIT 200
"""
HOUR_BUDGETS = BUDGETS.replace(IN_MONEY, "measure = 'gpu_hours'")
BURN_UP = f"""
    WITH {BUDGET_PERIODS}, {BUDGET_DAYS}, chosen AS (
        SELECT ending.*, greatest(since_ms, coalesce((SELECT max(until_ms) FROM conservation_check), 0)) AS known_ms
        FROM ending WHERE name = ${{budget:sqlstring}} ORDER BY id LIMIT 1
    ), day AS (
        SELECT {date("p.day_ms")} AS date, coalesce(with_shares, 1)
                * sum(coalesce(spent.cost, 0)) OVER (ORDER BY p.day_ms) AS sum_micro
        FROM chosen c JOIN conservation_check p ON p.day_ms >= c.since_ms AND p.day_ms < c.until_ms
        LEFT JOIN spent ON spent.id = c.id AND spent.day_ms = p.day_ms
    ), every AS (
        SELECT c.*, d::date AS date, day.sum_micro,
            least(1, ({local("(d::date + 1)::timestamp")} - c.since_ms)::numeric / (c.until_ms - c.since_ms)) AS gone,
            least(1, ({local("(d::date + 1)::timestamp")} - c.known_ms)::numeric / nullif(c.until_ms - c.known_ms, 0))
                AS part
        FROM chosen c CROSS JOIN LATERAL generate_series({date("c.since_ms")}::timestamp,
            {date("(c.until_ms - 1)")}::timestamp, interval '1 day') d
        LEFT JOIN day ON day.date = d::date
    )
    SELECT {midnight_utc("l.date")} AS "time", s.name AS metric, s.micro / {MICRO} AS cost
    FROM every l, LATERAL (VALUES ('spent', l.sum_micro), ('even pace', l.amount_micro * l.gone),
        ('budget', l.amount_micro), ('forecast', l.cost + (l.middle_micro - l.cost) * l.part),
        ('low', l.cost + greatest(0, l.low_micro - l.cost) * l.part),
        ('high', l.cost + (l.high_micro - l.cost) * l.part)) s (name, micro)
    WHERE {in_range(f"extract(epoch FROM {midnight_utc('l.date')}) * 1000")}
        AND (l.part >= 0 OR s.name NOT IN ('forecast', 'low', 'high')) AND s.micro IS NOT NULL ORDER BY 1, 2
"""
OWN_PERIOD = f"""
    WITH {BUDGET_PERIODS}, chosen AS (
        SELECT {date("since_ms")} AS first, {date("(until_ms - 1)")} AS last FROM b
        WHERE name = ${{budget:sqlstring}} ORDER BY id LIMIT 1
    )"""
BUDGET_AXIS = (
    chosen(
        "budget_days",
        "Days of the budget",
        f"{OWN_PERIOD} SELECT last - first FROM chosen",
        many=False,
        hidden=True,
    ),
    chosen(
        "budget_gone",
        "Days since its begin",
        f"{OWN_PERIOD} SELECT greatest(0, (now() AT TIME ZONE 'UTC')::date - first) FROM chosen",
        many=False,
        hidden=True,
    ),
)
"""From now on so many days, moved back by those that are gone: the period of the chosen budget, to
its end.
"""
ANOMALY_WORDS = {
    "usage": "more use",
    "price": "higher price",
    "both": "more use, higher price",
    "storm": "retry storm",
}
ANOMALY_KIND = (
    "CASE f.state "
    + " ".join(f"WHEN '{name}' THEN '{said}'" for name, said in ANOMALY_WORDS.items())
    + " ELSE f.state END"
)
"""What drove it, for a finding without a sentence of its own."""
ANOMALIES = f"""
    SELECT coalesce(nullif(f.team, ''), f.subject) AS "who", f.cost_micro / {MICRO} AS cost,
        f.currency, to_timestamp(f.since_ms / 1000) AS "since",
        coalesce(to_char(to_timestamp(f.resolved_ms / 1000) AT TIME ZONE 'UTC', 'MM-DD HH24:MI'), 'ongoing')
            AS "until", coalesce(nullif(f.evidence ->> 'sentence', ''), {ANOMALY_KIND}) AS why,
        (f.since_ms - {DAY_MS})::float8 AS first_ms,
        coalesce(f.resolved_ms, {TO_MS})::float8 AS last_ms
    FROM finding f
    WHERE f.kind = 'anomaly' AND f.since_ms < {TO_MS} AND coalesce(f.resolved_ms, {TO_MS}) >= {FROM_MS}
    ORDER BY f.resolved_ms IS NOT NULL, coalesce(f.currency <> ${{currency:sqlstring}}, true),
        f.cost_micro DESC NULLS LAST, f.since_ms DESC LIMIT 100
"""
TO_ANOMALY = {
    "title": "This team, from the day before",
    "url": (
        "/d/gpuledger-team?from=${__data.fields.first_ms.numeric}&to=${__data.fields.last_ms.numeric}"
        "&var-team=${__data.fields.who:percentencode}&${datasource:queryparam}&${currency:queryparam}"
    ),
    "targetBlank": False,
}

BY_FORECAST = (
    "Forecast: its end as the overview and mails state it, when the budget was watched last; empty"
    " with fewer than five full days."
)
TO_BURN_UP = link(
    "Burn-up of this budget",
    "gpuledger-finops",
    "var-budget=${__data.fields.budget:percentencode}&var-currency=${__data.fields.currency:percentencode}",
    keep=("datasource", "pool", "model"),
)
TO_OWNER = link(
    "Showback of its team",
    "gpuledger-team",
    "var-team=${__data.fields.team:percentencode}",
    keep=("datasource", "currency", "pool", "model"),
)


def budget_table(title: str, text: str, query: str, links: list[Json]) -> Panel:
    """A table of budgets in one unit, which its title says; `links` of a budget's name."""
    return table(
        title,
        text,
        query,
        MONEY,
        width=24,
        height=6,
        decimals=0,
        overrides=(
            column("budget", unit="string", links=links, width=100),
            column("team", **{"custom.hidden": True}),
            column("owner", unit="string", width=130),
            column("of what", unit="string", width=95),
            column("currency", unit="string", width=78),
            # The longest text has what the others leave.
            column("thresholds", unit="string"),
            column("time gone", unit=RATIO, decimals=0, width=90),
            *(column(name, width=78) for name in ("spent", "amount", "forecast")),
            *(
                column(
                    name,
                    unit=RATIO,
                    decimals=0,
                    width=90,
                    cell="color-text",
                    steps=((None, GREEN), (0.8, ORANGE), (1, VERMILION)),
                )
                for name in ("part spent", "by forecast")
            ),
        ),
    )


BOARD = Board(
    "gpuledger-finops",
    "Executive FinOps",
    "who spends what, and is it worth it?",
    "Spend, waste, unit cost and the month's projection, from the daily ledger.",
    (
        datasource(),
        currency(),
        pool(),
        model(),
        chosen(
            "budget",
            "Budget",
            "SELECT b.name FROM budget b LEFT JOIN budget_alert a ON a.budget_id = b.id AND a.state"
            " = 'firing' WHERE b.superseded_at IS NULL AND b.currency = ${currency:sqlstring} GROUP"
            " BY 1 ORDER BY max(a.percent) DESC NULLS LAST, 1",
            many=False,
            description="Whose burn-up is drawn",
        ),
        *BUDGET_AXIS,
    ),
    (
        ("The range", (*NUMBERS, TEAMS, BY_STATE)),
        (
            "This month, and the last two weeks",
            (
                stat(
                    "This month, and its forecast ($currency)",
                    f"The fleet, with what no owner pays, whatever pool and model are chosen. {AHEAD_SAID}",
                    MONTH,
                    MONEY,
                    width=12,
                    decimals=0,
                ),
                stat(
                    "Last 7 days against the 7 before",
                    "Change of the mean of a full day; corrections of closed months are not in it."
                    " May be empty until more than a week is known.",
                    WEEKS_CHANGE,
                    RATIO,
                    width=12,
                    decimals=1,
                    # Less spend or fewer hours held is neither good nor bad; less waste is good.
                    overrides=(column("waste", steps=WASTE_STEPS),),
                ),
            ),
        ),
        (
            "More of the range",
            (
                stat(
                    "List price against effective cost ($currency)",
                    "The range's own days at list price and as charged, where the price book gives"
                    " a list rate; corrections are not in it.",
                    LIST_PRICE,
                    MONEY,
                    width=7,
                    decimals=0,
                ),
                stat(
                    "Committed",
                    "Part of all capacity that a commitment paid for, whatever pool and model are"
                    " chosen; 0 % without commitments.",
                    COVERED,
                    RATIO,
                    width=3,
                    decimals=1,
                    limits=(0, 1),
                    steps=((None, BLUE), (1, GREEN)),
                ),
                stat(
                    "Energy (kWh) and CO2e (kg)",
                    "Measured energy of all GPUs in the range, and its emissions by the declared"
                    " carbon intensity and PUE. Time whose energy nobody read is not in it; without"
                    " a carbon intensity the emissions are unknown.",
                    f'SELECT sum({KWH}) AS "energy, kWh", sum({KWH} * grid.kg_per_kwh) AS "CO2e,'
                    f' kg" FROM ledger_day l {GRID} WHERE {DAYS} AND {POOLS} AND {MODELS}',
                    COUNT,
                    width=5,
                    decimals=0,
                ),
                stat(
                    "Reconciled",
                    "Share of days for which charges and capacity times rate agree to the"
                    " micro-unit.",
                    "SELECT count(*) FILTER (WHERE l.holds)::float8 / nullif(count(*), 0) AS part "
                    f"FROM conservation_check l WHERE {DAYS}",
                    RATIO,
                    steps=((None, VERMILION), (1, GREEN)),
                    width=3,
                    limits=(0, 1),
                    links=(TO_PROOF,),
                ),
                stat(
                    "Held share",
                    "GPU-hours held by a workload over all GPU-hours; those of unused commitments are of no"
                    " GPU.",
                    "SELECT sum(l.gpu_ns) FILTER (WHERE l.state = 'held') / nullif(sum(l.gpu_ns), 0) AS part "
                    f"FROM {LEDGER} l WHERE {CHOSEN} AND {OWN} AND l.state <> 'commitment_unused'",
                    RATIO,
                    width=3,
                    decimals=1,
                    steps=((None, VERMILION), (0.4, ORANGE), (0.7, GREEN)),
                    limits=(0, 1),
                ),
                stat(
                    "Unpriced hours",
                    "GPU-hours of usage without a rate: it is missing from every amount here.",
                    "SELECT coalesce(sum(l.gpu_ns) FILTER (WHERE l.currency IS NULL), 0)"
                    f" / {GPU_HOUR_NS} AS hours FROM {LEDGER} l WHERE {DAYS} AND {POOLS} AND {MODELS} AND {OWN}"
                    " HAVING count(*) > 0",
                    HOURS,
                    width=3,
                    decimals=1,
                    steps=((None, GREEN), (0.1, ORANGE)),
                    links=(TO_BILL,),
                ),
                shares(
                    "Where the money went, by model ($currency)",
                    "Parts of the spend of each model in the range, corrections included, dearest"
                    " model first; the parts of all models are the spend above, but for a part that"
                    " corrections of a closed month turn below zero, which is left out.",
                    f"""
                   SELECT l.gpu_model AS model, {SHARES}
                   FROM {states_of_cost("l.gpu_model", CHOSEN)} GROUP BY 1 ORDER BY sum(s.cost) DESC NULLS LAST LIMIT 12
                   """,
                    MONEY,
                    width=24,
                    height=8,
                    decimals=0,
                ),
            ),
        ),
        ("To save", (*savings.numbers(), savings.advice())),
        (
            "Budgets and anomalies",
            (
                series(
                    "Burn-up of $budget, and its forecast ($currency)",
                    "From the first to the last day of the budget's period, whatever range is"
                    " chosen: spent by the end of each day, against an even pace and the amount,"
                    " and straight lines to where it ends by the forecast of the overview and mails,"
                    " with its band of 80 %. May be empty until budgets are declared.",
                    BURN_UP,
                    MONEY,
                    width=24,
                    height=9,
                    interval="1d",
                    decimals=0,
                    time_from="+${budget_days}d",
                    time_shift="${budget_gone}d/d",
                    calcs=(),
                    overrides=(
                        color("spent", BLUE),
                        line("even pace", GRAY),
                        line("budget", VERMILION),
                        line("forecast", SKY),
                        *band("low", "high", SKY),
                    ),
                ),
                table(
                    "Anomalies",
                    "Spending outside the expected band, ongoing first and then those in $currency"
                    " by cost, whatever pool and model are chosen, with what caused it. Amounts"
                    f" are more than in the same hours before, {AT_LISTED_RATES}. A name opens the"
                    " team's showback of those days. Empty is good.",
                    ANOMALIES,
                    MONEY,
                    width=24,
                    height=6,
                    decimals=0,
                    overrides=(
                        column("who", unit="string", width=112, links=[TO_ANOMALY]),
                        column("cost", width=65),
                        column("currency", unit="string", width=78),
                        column("since", unit="time:MM-DD HH:mm", width=95),
                        column("until", unit="string", width=95),
                        column("why", unit="string"),
                        *(
                            column(name, **{"custom.hidden": True})
                            for name in ("first_ms", "last_ms")
                        ),
                    ),
                ),
                budget_table(
                    "Budgets in money, and their forecasts",
                    "This period's spend against each budget in money, whatever currency, pool and"
                    " model are chosen; on total cost with the shares of common costs as last"
                    f" computed. More spent than time has passed is the sign to look. {BY_FORECAST}"
                    " May be empty until budgets are declared.",
                    BUDGETS,
                    [TO_BURN_UP, TO_OWNER],
                ),
            ),
        ),
        (
            "Budgets in GPU-hours",
            (
                budget_table(
                    "Budgets in GPU-hours, and their forecasts",
                    "GPU-hours held this period against each budget in GPU-hours, priced or not,"
                    f" whatever currency, pool and model are chosen. {BY_FORECAST} Empty unless one is"
                    " declared.",
                    HOUR_BUDGETS,
                    [TO_OWNER],
                ),
            ),
        ),
    ),
    collapsed=("Budgets in GPU-hours",),
    annotations=events(),
)
"""The first board to open."""
