"""GPUs wanted, GPUs there, and what the next two weeks look like if weeks repeat."""

from __future__ import annotations

from dashboards.grafana import (
    BLUE,
    COUNT,
    EXACT,
    GRAY,
    GREEN,
    MONEY,
    ORANGE,
    RATIO,
    SKY,
    VERMILION,
    Board,
    Json,
    band,
    color,
    column,
    line,
    link,
    series,
    shares,
    stat,
    table,
)
from dashboards.sql import (
    DAY_TIME,
    DAYS,
    FROM_MS,
    MODELS,
    POOLS,
    TO_MS,
    TODAY,
    datasource,
    date,
    in_choice,
    in_range,
    local,
    midnight_utc,
    model,
    pool,
    whole,
)

DAY_NS = "(max(p.until_ms - p.day_ms) * 1e6)"
"""The length of the day: 23 to 25 hours."""
CHOSEN = f"{POOLS} AND {MODELS}"
FULL = f"JOIN conservation_check p ON p.day_ms = l.day_ms AND {whole('p')}"
KNOWN = """(SELECT day_ms, state, pool, gpu_model, gpu_ns FROM ledger_day WHERE state <> 'commitment_unused'
    UNION ALL SELECT day_ms, state, pool, gpu_model, gpu_ns::numeric FROM correction
        WHERE state <> 'commitment_unused')"""
"""What is known of each day by now: its ledger, and what arrived after its month was closed.

Hours of a commitment that nothing used are paid, and are no GPUs.
"""
HELD_NS = "sum(l.gpu_ns) FILTER (WHERE l.state = 'held')"
SEEN = (
    """(coalesce(sum(l.gpu_ns) FILTER (WHERE l.state = 'unobserved'), 0) <= 0.05 * sum(l.gpu_ns))"""
)
HELD_GPUS = f"CASE WHEN {SEEN} THEN coalesce({HELD_NS}, 0) / {DAY_NS} END"
"""GPUs held on average; null on a day of which more than 5 % was unobserved: unknown demand is
not zero.
"""
SCALING, RESERVING = "Scaling decisions and their outcome", "How many GPUs to reserve"
STACK = ("busy", "idle", "activity unknown", "unallocated", "unavailable", "unobserved", "stranded")
QUEUES = "Queues and waiting times (where a scheduler's queue or records are read)"

AHEAD = 14
"""Days that the baseline looks ahead."""


def weeks(*by: str) -> str:
    """Tables `past`, `ahead` and `repeated`: each coming day as the same weekday of the last four
    weeks.

    Of those weeks that were observed: the baseline that every forecast has to beat. `by`: columns
    of the ledger, each of whose values has a baseline of its own.
    """
    names = "".join(f", l.{name}" for name in by)
    own = "".join(f", past.{name}" for name in by)
    return f"""
    WITH past AS (
        SELECT {date("l.day_ms")} AS day{names}, {HELD_GPUS} AS gpus FROM {KNOWN} l {FULL}
        WHERE {CHOSEN} AND l.day_ms >= {local(f"({TODAY} - 28)::timestamp")}
            AND l.day_ms < {local(f"{TODAY}::timestamp")} GROUP BY l.day_ms{names}
    ), ahead AS (
        SELECT {TODAY} + step AS day FROM generate_series(0, {AHEAD - 1}) step
    ), repeated AS (
        SELECT ahead.day{own}, avg(past.gpus) AS mean, min(past.gpus) AS low, max(past.gpus) AS high,
            count(past.gpus) AS weeks
        FROM ahead JOIN past ON mod(ahead.day - past.day, 7) = 0 GROUP BY ahead.day{own}
    )
"""


WEEKS = weeks()
PRESENT = f"""l.in_ms <= {local("ahead.day::timestamp")}
    AND coalesce(l.out_ms, {local("ahead.day::timestamp")} + 1) > {local("ahead.day::timestamp")}"""
"""Accelerators (`l`) that the inventory has at the first instant of a coming day (`ahead`)."""
THERE_AHEAD = f"""
    SELECT ahead.day, sum(l.gpu_micro) / 1e6 AS gpus FROM ahead JOIN capacity l ON {PRESENT}
    WHERE {CHOSEN} GROUP BY 1
"""
FIT = f"""
    {weeks("gpu_model")}, there AS (
        SELECT ahead.day, l.gpu_model, sum(l.gpu_micro) / 1e6 AS gpus FROM ahead JOIN capacity l ON {PRESENT}
        WHERE {CHOSEN} GROUP BY 1, 2
    ), worst AS (
        SELECT DISTINCT ON (r.gpu_model) r.gpu_model, r.day, r.mean, r.high, r.weeks,
            known.gpus AS there, known.gpus - r.high AS free
        FROM repeated r LEFT JOIN there ON there.day = r.day AND there.gpu_model = r.gpu_model,
            LATERAL (SELECT CASE WHEN r.gpu_model IN (SELECT gpu_model FROM capacity)
                THEN coalesce(there.gpus, 0) END AS gpus) known
        WHERE r.high IS NOT NULL
        ORDER BY r.gpu_model, known.gpus - r.high, r.day
    )
    SELECT coalesce(nullif(gpu_model, ''), '(no model)') AS model,
        CASE WHEN there < mean THEN 'no' WHEN free < 0.05 * there THEN 'maybe'
            WHEN free IS NOT NULL THEN 'yes' END AS fits,
        free, there AS "GPUs", mean AS likely, high, {midnight_utc("day")} AS "tightest day", weeks
    FROM worst ORDER BY there IS NULL, free / nullif(there, 0) NULLS FIRST, 1 LIMIT 50
"""
"""Each model on its tightest day: demand as in the last four weeks against what is there then."""
FITS: Json = {
    "type": "value",
    "options": {
        "yes": {"color": GREEN, "index": 0},
        "maybe": {"color": ORANGE, "index": 1},
        "no": {"color": VERMILION, "index": 2},
    },
}
NOW_HELD = f"""
    SELECT count(*) FILTER (WHERE n.state = 'held') AS accelerators FROM gpu_latest n
    JOIN capacity l ON l.accelerator_id = n.accelerator_id AND l.out_ms IS NULL
    WHERE n.at_ms > extract(epoch FROM now()) * 1000 - 900000 AND {CHOSEN} HAVING count(*) > 0
"""
"""What a node said in the last 15 minutes is taken for now."""

PLACEMENTS = """(
    SELECT accelerator_id, pool, gpu_model, gpu_micro, in_ms, out_ms,
        lead(in_ms) OVER (PARTITION BY accelerator_id ORDER BY in_ms, id) AS next_ms FROM capacity)"""
"""Where each accelerator was; of two in an hour the later one counts."""


def times_share(*states: str) -> str:
    """SQL: milliseconds in each state, times the share of a GPU in millionths."""
    return ", ".join(f"sum(u.{state}_ms * l.gpu_micro) AS {state}" for state in states)


DECISIONS = series(
    "Decisions and demand",
    "GPUs that each pool should hold by its decisions, what the best reactive "
    "setting asked for, and the demand that they were made from.",
    f"""
   SELECT $__unixEpochGroupAlias(d.made_ms / 1000, $__interval), d.pool || ', ' || s.name AS metric,
       avg(s.gpus) AS gpus
   FROM scaling_decision d, LATERAL (VALUES ('wanted', d.demand_gpus), ('reactive', d.reactive_gpus),
       ('decided', d.desired_gpus)) s (name, gpus)
   WHERE {in_range("d.made_ms")} AND {in_choice("d.pool", "pool")} GROUP BY 1, 2 ORDER BY 1, 2
   """,
    COUNT,
    width=24,
    interval="5m",
    decimals=1,
    time_from="24h",
)

SCARCEST = stat(
    "Headroom of the scarcest models",
    "Share of a model's capacity that nobody held on that model's busiest day, the least first: one"
    " model cannot stand in for another.",
    f"""
    SELECT model, 1 - max(part) AS part FROM (
        SELECT coalesce(nullif(l.gpu_model, ''), '(no model)') AS model,
            CASE WHEN {SEEN} THEN coalesce({HELD_NS}, 0) / nullif(sum(l.gpu_ns), 0) END AS part
        FROM {KNOWN} l {FULL} WHERE {DAYS} AND {CHOSEN} GROUP BY l.day_ms, l.gpu_model) days
    GROUP BY 1 HAVING max(part) IS NOT NULL ORDER BY 2, 1 LIMIT 3
    """,
    RATIO,
    width=6,
    height=8,
    decimals=1,
    limits=(0, 1),
    steps=((None, VERMILION), (0.05, ORANGE), (0.15, GREEN)),
    each_row=True,
    orientation="horizontal",
)

TO_FLEET = link("State of every GPU", "gpuledger-fleet", "${datasource:queryparam}")
AS_COMMAND = (
    "As `gpuledger plan capacity` printed it today; may be empty: a plan needs 24 known days of"
    " demand."
)


def from_plans(parts: str) -> str:
    """SQL: the stored plans of the chosen pools, with parts of each."""
    return f"FROM capacity_plan p, {parts} WHERE {in_choice('p.pool', 'pool')}"


def planned_band(name: str, *labels: str) -> str:
    """SQL: the columns likely, low and high of a band of a plan."""
    keys = zip(("likely", "low", "high"), labels, strict=True)
    return ", ".join(
        f"(ahead -> '{name}' ->> '{key}')::float8 AS \"{label}\"" for key, label in keys
    )


EACH_DAY = (
    "jsonb_array_elements(p.plan -> 'days') WITH ORDINALITY d (band, place),"
    " jsonb_each_text(d.band) b"
)
EACH_MODEL = """
    LATERAL jsonb_array_elements(CASE WHEN jsonb_array_length(p.plan -> 'models') > 0
        THEN p.plan -> 'models' ELSE jsonb_build_array(p.plan) END) WITH ORDINALITY m (part, place)"""
"""The plan of each model of a pool of several, the scarcest first; else that of the pool."""
PART_MODEL = "regexp_replace(m.part ->> 'model', '^NVIDIA ', '')"
EACH_HORIZON = """
    LATERAL (SELECT '(all)' AS team, p.plan -> 'pool' AS entry, 0 AS place
        UNION ALL SELECT t.entry ->> 'name', t.entry, t.place
        FROM jsonb_array_elements(p.plan -> 'teams') WITH ORDINALITY t (entry, place)) o,
    jsonb_array_elements((o.entry -> 'next') || jsonb_build_array(o.entry -> 'plan'))
        WITH ORDINALITY h (ahead, span)"""
PLANS = (
    shares(
        "Demand to the end of the quarter",
        "Mean GPUs a day in each week that is left, named by its Monday: likely, and the ends of"
        f" each day's band of 80 %. Bands of several pools are added up. {AS_COMMAND}",
        f"""
       WITH day AS (
           SELECT (to_timestamp((p.plan ->> 'start_ms')::bigint / 1000 + (d.place - 1) * 86400)
                   AT TIME ZONE 'UTC')::date AS date, b.key, sum(b.value::float8) AS gpus
           {from_plans(EACH_DAY)} GROUP BY 1, 2)
       SELECT to_char(date_trunc('week', date), 'MM-DD') AS week, avg(gpus) FILTER (WHERE key = 'low') AS low,
           avg(gpus) FILTER (WHERE key = 'likely') AS likely, avg(gpus) FILTER (WHERE key = 'high') AS high
       FROM day GROUP BY date_trunc('week', date) ORDER BY date_trunc('week', date)
       """,
        COUNT,
        width=9,
        height=9,
        decimals=1,
        grouped=True,
        overrides=(color("low", SKY), color("likely", BLUE), color("high", GRAY)),
    ),
    table(
        "Cost of capacity against wait",
        "Cost to the end of the quarter by way of buying, of so many GPUs at most, and how many"
        " GPU-hours of demand will wait with them. Reserved GPUs are paid in every hour, the"
        " others follow demand; spot repeats what interruptions lose. A pool of several models is"
        f" planned by model. {AS_COMMAND}",
        f"""
      SELECT p.pool, {PART_MODEL} AS model, (ahead ->> 'gpus')::int AS "GPUs",
          (ahead ->> 'wait')::float8 AS "GPU-hours of wait",
          (ahead ->> 'on_demand')::float8 AS "on demand", (ahead ->> 'reserved')::float8 AS reserved,
          (ahead ->> 'spot')::float8 AS spot, m.part ->> 'currency' AS currency
      {from_plans(EACH_MODEL + ", jsonb_array_elements(m.part -> 'curve') ahead")}
      ORDER BY p.pool, m.place, (ahead ->> 'gpus')::int LIMIT 40
      """,
        MONEY,
        width=15,
        decimals=0,
        overrides=(
            column("pool", unit="string"),
            column("model", unit="string", width=160),
            *(column(name, width=54) for name in ("GPUs", "spot")),
            column("GPU-hours of wait", width=138),
            column("currency", unit="string", width=78),
        ),
    ),
    table(
        "Growth by team",
        "Grown: the last 7 days over the 7 that ended so many days earlier. Grows: the last 7 of"
        " the days to come over the last 7, with its band. In band: the part of past days whose"
        " demand was in such a band (80 % is right); a past of less than three periods is not"
        f" judged. {AS_COMMAND}",
        f"""
      SELECT p.pool, o.team, (o.entry ->> 'gpus')::float8 AS "GPUs",
          CASE WHEN h.span > jsonb_array_length(o.entry -> 'next') THEN 'quarter end, ' ELSE '' END
              || (ahead ->> 'days') || ' days' AS ahead,
          (ahead ->> 'grown')::float8 AS grown, {planned_band("growth", "grows", "grows, low", "grows, high")},
          {planned_band("gpu_hours", "GPU-hours", "GPU-hours, low", "GPU-hours, high")},
          coalesce(round(100 * (ahead -> 'backtest' ->> 'covered')::numeric) || ' %', 'unjudged') AS "in band"
      {from_plans(EACH_HORIZON)} ORDER BY p.pool, o.place, (ahead ->> 'days')::int, h.span LIMIT 400
      """,
        COUNT,
        width=24,
        height=10,
        decimals=0,
        overrides=(
            *(column(name, unit="string") for name in ("pool", "team")),
            column("GPUs", unit=EXACT, decimals=1, width=65),
            column("ahead", unit="string", width=165),
            *(column(name, unit=RATIO, width=75) for name in ("grown", "grows")),
            *(column(name, unit=RATIO, width=95) for name in ("grows, low", "grows, high")),
            *(column(name, width=126) for name in ("GPU-hours, low", "GPU-hours, high")),
            column("in band", unit="string", width=85),
        ),
    ),
)

RESERVE = (
    table(
        "How many to reserve",
        "The count of least expected cost with the rest on demand, the counts that would be best"
        " if demand turns out low or high, and what is lost then; commitments in force are"
        " included. Empty without rates. Headroom: GPUs beyond what suffices in nine tenths of the"
        " hours. A pool of several models is planned by model, the scarcest first."
        f" {AS_COMMAND}",
        f"""
      SELECT p.pool, {PART_MODEL} AS model, (m.part ->> 'headroom')::float8 AS headroom,
          (r ->> 'gpus')::int AS reserve, (r ->> 'low')::int AS "if low", (r ->> 'high')::int AS "if high",
          (m.part ->> 'committed_gpus')::int AS "committed now", (r ->> 'cost')::float8 AS cost,
          (r ->> 'on_demand_cost')::float8 AS "all on demand", (r ->> 'regret_low')::float8 AS "lost if low",
          (r ->> 'regret_high')::float8 AS "lost if high", m.part ->> 'currency' AS currency,
          (r ->> 'break_even')::float8 AS "break-even"
      {from_plans(EACH_MODEL + ", LATERAL (SELECT m.part -> 'reservation' AS r) reservation")}
      ORDER BY p.pool, m.place LIMIT 100
      """,
        EXACT,
        width=24,
        height=5,
        decimals=0,
        overrides=(
            column("pool", unit="string"),
            column("model", unit="string", width=160),
            column("headroom", unit="suffix: GPUs", decimals=1, width=90),
            column("currency", unit="string", width=78),
            column("if low", width=60),
            column("if high", width=65),
            column("committed now", width=122),
            column("all on demand", width=114),
            column("break-even", unit=RATIO, width=96),
        ),
    ),
)

BOARD = Board(
    "gpuledger-demand",
    "Demand and autoscaling",
    "will it fit?",
    "Held GPUs against capacity, waiting times, a baseline for the coming two weeks, and the plan"
    " to the end of the quarter. The models, with their bands and back-tests, are `gpuledger"
    " forecast` and `gpuledger scale advise`.",
    (datasource(), pool(), model()),
    (
        (
            "The coming two weeks, each model by itself",
            (
                table(
                    "Does it fit?",
                    "The tightest of the coming 14 days of each model, the scarcest first: GPUs"
                    " held as on the same weekday of the last four weeks (likely: their mean; high:"
                    " their highest), against the GPUs that the inventory has on that day. Free: at"
                    " the high; with less than 5 % of it, more may have been wanted than there was."
                    " One model cannot stand in for another; of one that no inventory has nothing"
                    " is known.",
                    FIT,
                    EXACT,
                    width=18,
                    height=8,
                    decimals=1,
                    overrides=(
                        column("model", unit="string", width=190),
                        column("fits", unit="string", mappings=[FITS], cell="color-text", width=65),
                        column("tightest day", unit="time:ddd YYYY-MM-DD", width=130),
                        column("weeks", decimals=0, width=65),
                    ),
                ),
                SCARCEST,
            ),
        ),
        (
            "Now and in the range",
            (
                stat(
                    "Held now",
                    "Accelerators held by a workload, by samples of the last 15 minutes; may be"
                    " empty while agents are silent.",
                    NOW_HELD,
                    COUNT,
                    width=8,
                    links=(TO_FLEET,),
                ),
                stat(
                    "Mean demand",
                    "GPUs held on average over the full days of the range; days that are"
                    " unobserved are left out.",
                    f"SELECT avg(gpus) AS gpus FROM (SELECT {HELD_GPUS} AS gpus FROM {KNOWN} l "
                    f"{FULL} WHERE {DAYS} AND {CHOSEN} GROUP BY l.day_ms) days",
                    EXACT,
                    width=8,
                    decimals=1,
                ),
                stat(
                    "Busiest day",
                    "Highest daily mean of held GPUs in the range.",
                    f"SELECT max(gpus) AS gpus FROM (SELECT {HELD_GPUS} AS gpus FROM {KNOWN} l"
                    f" {FULL} WHERE {DAYS} AND {CHOSEN} GROUP BY l.day_ms) days",
                    EXACT,
                    width=8,
                    decimals=1,
                ),
            ),
        ),
        (
            "History and baseline",
            (
                series(
                    "Demand, capacity and baseline",
                    "GPUs held and present (daily means), and for the coming days the same weekday"
                    " of the last four weeks (mean, lowest and highest) against the GPUs that the"
                    " inventory has then. Several models are added up here, and above they are not.",
                    f"""
                   {WEEKS}
                   SELECT {DAY_TIME}, s.name AS metric, s.gpus FROM (
                       SELECT l.day_ms, {HELD_GPUS} AS held, sum(l.gpu_ns) / {DAY_NS} AS capacity
                       FROM {KNOWN} l {FULL} WHERE {DAYS} AND {CHOSEN} GROUP BY 1) l,
                       LATERAL (VALUES ('held', l.held), ('capacity', l.capacity)) s (name, gpus)
                   WHERE s.gpus IS NOT NULL
                   UNION ALL
                   SELECT {midnight_utc("l.day")}, s.name, s.gpus FROM repeated l,
                       LATERAL (VALUES ('baseline', l.mean), ('baseline, low', l.low),
                           ('baseline, high', l.high)) s (name, gpus) WHERE s.gpus IS NOT NULL
                   UNION ALL
                   SELECT {midnight_utc("l.day")}, 'capacity', l.gpus FROM ({THERE_AHEAD}) l
                   ORDER BY 1, 2
                   """,
                    COUNT,
                    width=24,
                    height=10,
                    interval="1d",
                    calcs=(),
                    decimals=1,
                    overrides=(
                        line("capacity", "text"),
                        line("baseline", SKY),
                        *band("baseline, low", "baseline, high", SKY),
                    ),
                ),
                series(
                    "Held and unallocated, hour by hour",
                    "GPUs by their state in each hour of the last four days; hours of a longer"
                    " range are too many to add up while a person waits.",
                    f"""
                   SELECT to_timestamp(l.hour_ms / 1000) AS "time", s.name AS metric, sum(s.micro_ms) / 3.6e12 AS gpus
                   FROM (
                       SELECT u.hour_ms, u.state, {times_share("held", "busy", "idle", "unknown")}
                       FROM usage_hour u JOIN {PLACEMENTS} l ON l.accelerator_id = u.accelerator_id
                           AND l.in_ms < u.hour_ms + 3600000 AND coalesce(l.out_ms, u.hour_ms + 1) > u.hour_ms
                           AND coalesce(l.next_ms, u.hour_ms + 3600000) >= u.hour_ms + 3600000
                       WHERE {in_range("u.hour_ms")} AND {CHOSEN}
                           AND u.hour_ms + 3600000 <= (SELECT max(until_ms) FROM conservation_check)
                       GROUP BY 1, 2) l,
                       LATERAL (VALUES (CASE WHEN l.state = 'held' THEN 'busy' ELSE l.state END,
                               CASE WHEN l.state = 'held' THEN l.busy ELSE l.held END),
                           ('idle', l.idle), ('activity unknown', l.unknown)) s (name, micro_ms)
                   WHERE s.micro_ms > 0
                   GROUP BY 1, 2 ORDER BY 1, 2
                   """,
                    COUNT,
                    width=24,
                    height=11,
                    stacked=True,
                    interval="1h",
                    order=STACK,
                    decimals=1,
                    time_from="4d",
                ),
            ),
        ),
        ("To the end of the quarter", PLANS),
        (RESERVING, RESERVE),
        (
            "Forecasts and actual demand",
            (
                series(
                    "Forecast and actual demand, all models",
                    "Hour by hour: GPUs of the chosen pools that were held, and the forecast that"
                    " was stored at the midnight before: likely, and a band that 80 % of the hours"
                    " should lie in. Forecasts are made for pools, so the choice of models changes"
                    " neither; bands of several pools are added up.",
                    f"""
                   WITH forecast AS (
                       SELECT (b.origin_ms + h.place * b.step_ms) / 1000 AS at,
                           CASE q.quantile::float8 WHEN 0.1 THEN 'low' WHEN 0.5 THEN 'forecast' ELSE 'high' END AS name,
                           (h.gpus ->> (q.place - 1)::int)::float8 AS gpus
                       FROM backtest b, jsonb_array_elements(b.forecast -> 'values') WITH ORDINALITY h (gpus, place),
                           jsonb_array_elements(b.forecast -> 'quantiles') WITH ORDINALITY q (quantile, place)
                       WHERE b.grouped = 'pool' AND {in_choice("b.series", "pool")}
                           AND b.origin_ms >= {FROM_MS} - b.horizon_ms AND b.origin_ms < {TO_MS}
                           AND q.quantile::float8 IN (0.1, 0.5, 0.9)
                   )
                   SELECT * FROM (
                       SELECT to_timestamp(at) AS "time", name AS metric, sum(gpus) AS gpus FROM forecast GROUP BY 1, 2
                       UNION ALL
                       SELECT to_timestamp(l.at_ms / 3600000 * 3600), 'actual', sum(l.gpu_ns) / 3.6e12
                       FROM owner_5min l WHERE {in_range("l.at_ms")} AND l.state = 'held' AND {POOLS}
                           AND l.at_ms < (SELECT max(until_ms) FROM conservation_check) / 3600000 * 3600000
                       GROUP BY 1) hours
                   ORDER BY 1, 2
                   """,
                    COUNT,
                    width=24,
                    height=10,
                    interval="1h",
                    calcs=(),
                    decimals=1,
                    overrides=(
                        line("actual", "text"),
                        line("forecast", BLUE),
                        *band("low", "high", SKY),
                    ),
                ),
                table(
                    "Forecast accuracy",
                    "Over the known hours of the range, all models of a pool: the share inside the "
                    "band, and how much smaller the loss was than that of the naive forecast.",
                    f"""
                  SELECT b.series AS pool, count(*) AS forecasts, sum(b.known) AS hours,
                      sum(b.inside)::float8 / nullif(sum(b.known), 0) AS "in band",
                      1 - sum(b.loss) / nullif(sum(b.naive_loss), 0) AS "better than naive"
                  FROM backtest b WHERE b.grouped = 'pool' AND {in_range("b.origin_ms")}
                      AND {in_choice("b.series", "pool")}
                  GROUP BY 1 ORDER BY 1 LIMIT 100
                  """,
                    COUNT,
                    width=24,
                    height=6,
                    overrides=(
                        column(
                            "in band",
                            unit=RATIO,
                            decimals=0,
                            cell="color-text",
                            steps=((None, VERMILION), (0.65, ORANGE), (0.75, GREEN)),
                        ),
                        column("better than naive", unit=RATIO, decimals=0, width=136),
                    ),
                ),
            ),
        ),
        (
            SCALING,
            (
                DECISIONS,
                table(
                    "Outcome of the decisions",
                    "If each was followed: GPU-hours of wait (demand above what was decided) and"
                    " waste (the opposite), compared with the best reactive setting; waste in"
                    " money. A decision is judged when its hour is over.",
                    f"""
                  SELECT p.pool, p.decisions, coalesce(o.judged, 0) AS judged, o.wait,
                      o.reactive_wait AS "reactive wait", o.waste, o.reactive_waste AS "reactive waste",
                      o.cost AS "waste cost", o.currency
                  FROM (SELECT d.pool, count(*) AS decisions FROM scaling_decision d
                      WHERE {in_range("d.made_ms")} AND {in_choice("d.pool", "pool")} GROUP BY 1) p
                  LEFT JOIN LATERAL (SELECT o.currency, count(*) AS judged, sum(o.wait_gpu_s) / 3600 AS wait,
                          sum(o.reactive_wait_gpu_s) / 3600 AS reactive_wait, sum(o.waste_gpu_s) / 3600 AS waste,
                          sum(o.reactive_waste_gpu_s) / 3600 AS reactive_waste, sum(o.waste_micro) / 1e6 AS cost
                      FROM scaling_outcome o JOIN scaling_decision d ON d.id = o.decision_id
                      WHERE d.pool = p.pool AND {in_range("d.made_ms")} GROUP BY 1) o ON true
                  ORDER BY 1, o.currency LIMIT 100
                  """,
                    EXACT,
                    width=24,
                    height=5,
                    decimals=1,
                    overrides=(
                        column("decisions", decimals=0),
                        column("judged", decimals=0),
                        column("waste cost", unit=MONEY, decimals=2),
                        column("currency", unit="string"),
                    ),
                ),
                table(
                    "Latest decisions",
                    "The most recent decisions of each pool in the range, with their reasons.",
                    f"""
                  SELECT to_timestamp(d.made_ms / 1000) AS "time", d.pool, d.desired_gpus AS decided,
                      d.demand_gpus AS demand, d.reactive_gpus AS reactive, o.wait_gpu_s / 3600 AS wait,
                      o.waste_gpu_s / 3600 AS waste, d.reason
                  FROM scaling_decision d LEFT JOIN scaling_outcome o ON o.decision_id = d.id
                  WHERE {in_range("d.made_ms")} AND {in_choice("d.pool", "pool")} ORDER BY d.made_ms DESC, d.id DESC
                  LIMIT 100
                  """,
                    EXACT,
                    width=24,
                    height=7,
                    decimals=1,
                    overrides=(
                        column("time", unit="time:YYYY-MM-DD HH:mm", width=140),
                        column("pool", unit="string", width=120),
                        *(
                            column(name, width=80)
                            for name in ("decided", "demand", "reactive", "wait", "waste")
                        ),
                        column("reason", unit="string"),
                    ),
                ),
            ),
        ),
        (
            "Pools",
            (
                table(
                    "Pools over the range",
                    "Where GPUs are scarce and where they are idle: daily means of held GPUs, over"
                    " full days that were observed. Capacity is that of the bill: boards count in"
                    " full, with what no MIG instance of them covers (stranded).",
                    f"""
                  SELECT pool, model, 1 - max(held) / nullif(max(there), 0) AS headroom, avg(held) AS "mean",
                      max(held) AS "busiest day", avg(there) AS capacity
                  FROM (SELECT l.day_ms, l.pool, l.gpu_model AS model, {HELD_GPUS} AS held,
                          sum(l.gpu_ns) / {DAY_NS} AS there
                      FROM {KNOWN} l {FULL} WHERE {DAYS} AND {CHOSEN} GROUP BY 1, 2, 3) days
                  GROUP BY 1, 2 ORDER BY 3, 1, 2 LIMIT 100
                  """,
                    EXACT,
                    width=24,
                    decimals=1,
                    overrides=(
                        column("pool", unit="string"),
                        column("model", unit="string", width=190),
                        column(
                            "headroom",
                            unit=RATIO,
                            decimals=0,
                            cell="color-text",
                            steps=((None, VERMILION), (0.05, ORANGE), (0.15, GREEN)),
                        ),
                    ),
                ),
            ),
        ),
        (
            QUEUES,
            (
                series(
                    "Waiting times of imported jobs",
                    "From submission to start: half of the jobs waited less, and nine "
                    "of ten did. May be empty where no scheduler's records are imported.",
                    f"""
                   SELECT $__unixEpochGroupAlias(l.start_ms / 1000, $__interval),
                       percentile_cont(0.5) WITHIN GROUP (ORDER BY (l.start_ms - l.submitted_ms) / 1000.0) AS "half",
                       percentile_cont(0.9) WITHIN GROUP (ORDER BY (l.start_ms - l.submitted_ms) / 1000.0)
                           AS "nine of ten"
                   FROM imported_usage l WHERE {in_range("l.start_ms")} AND l.submitted_ms IS NOT NULL AND {POOLS}
                       AND {MODELS} GROUP BY 1 ORDER BY 1
                   """,
                    "s",
                    interval="1h",
                    overrides=(color("half", BLUE), color("nine of ten", ORANGE)),
                ),
                series(
                    "GPUs requested in queues",
                    "Requested in the queue of each scheduler and not held yet, whatever pool and"
                    " model are chosen. May be empty where no queue is read.",
                    f"""
                   SELECT $__unixEpochGroupAlias(l.at_ms / 1000, $__interval), l.source AS metric,
                       avg(l.gpu_micro) / 1e6 AS gpus
                   FROM queue_reading l WHERE {in_range("l.at_ms")} GROUP BY 1, 2 ORDER BY 1, 2
                   """,
                    COUNT,
                    interval="5m",
                    decimals=1,
                ),
            ),
        ),
    ),
    since="now-28d/d",
    until="now+14d/d",
    collapsed=(SCALING, RESERVING, QUEUES),
)
"""For those who buy, rent and scale."""
