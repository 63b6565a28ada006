"""What one team (or several) held, used and wasted."""

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
    chosen,
    codes,
    column,
    link,
    name_colors,
    series,
    stat,
    table,
)
from dashboards.savings import TO_IDLE_OF_TEAM
from dashboards.sql import (
    ACCELERATORS,
    AHEAD_SAID,
    AHEAD_WIDTHS,
    AMOUNT_WIDTHS,
    BILLED,
    CHANGE_SAID,
    CHANGED,
    CHARGES,
    CHOSEN_FIRST,
    CORRECTION,
    CURRENCY,
    DAY_TIME,
    DAYS,
    GPU_HOUR_NS,
    GRID,
    HIDDEN_SPAN,
    INDEX,
    KWH,
    LEDGER,
    MICRO,
    MODELS,
    OWN,
    OWNER,
    OWNER_TEAM,
    POOLS,
    PROJECT,
    SPAN_COLUMNS,
    TEAM,
    TEAM_NAMES,
    TEAMS,
    TEAMS_AHEAD,
    WORKLOAD_SPAN,
    currency,
    datasource,
    date,
    events,
    in_choice,
    in_range,
    leading,
    mark_names,
    model,
    month_end,
    other_currencies,
    pace_tables,
    pool,
    team,
    to_workload,
)

IDLE_WORDS = {
    "never_used": "never used",
    "gone_idle": "went idle",
    "hollow": "hardly computes",
    "data_starved": "waits for data",
    "underused": "needs less",
}
PERSON = "coalesce(nullif(o.user_name, ''), '(unattributed)')"
PEOPLE = in_choice(PERSON, "person")
HELD = f"{DAYS} AND {BILLED} AND {TEAMS} AND {PEOPLE} AND {POOLS} AND {MODELS}"
PRICED = f"{HELD} AND {CURRENCY}"
TO_WORKLOAD = to_workload("currency")
TO_PROJECT = (
    link(
        "Research by project",
        "gpuledger-research",
        "var-project=${__data.fields.project:percentencode}",
        keep=("datasource", "currency", "team", "pool", "model"),
    ),
)
TO_PERSON = (
    link(
        "This person's projects and workloads",
        "gpuledger-team",
        "var-person=${__data.fields.user:percentencode}",
        keep=("datasource", "currency", "team", "pool", "model"),
    ),
)
STEP_NS = "3e11"
SHARES = f"""
    WITH used AS MATERIALIZED (
        SELECT l.at_ms, l.pool, CASE WHEN l.state = 'held' THEN {TEAM} END AS team, sum(l.gpu_ns)::float AS ns,
            (sum(l.cost_micro) FILTER (WHERE l.state = 'held' AND {CURRENCY}))::float AS cost
        FROM owner_5min l {OWNER} WHERE {in_range("l.at_ms")} AND l.state IN ('held', 'unallocated') AND {POOLS}
            AND l.pool IN (SELECT pool FROM pool_share) AND l.pool IN (SELECT pool FROM capacity) GROUP BY 1, 2, 3
    ), step AS MATERIALIZED (SELECT at_ms, pool, sum(ns) AS capacity FROM used GROUP BY 1, 2),
    part AS (
        SELECT at_ms, pool, team, ns AS held, cost, NULL::float AS wanted FROM used WHERE team IS NOT NULL
        UNION ALL
        SELECT l.at_ms, l.pool, s.team, 0, NULL, coalesce(s.fraction * l.capacity, s.gpus * {STEP_NS})
        FROM step l JOIN pool_share s ON s.pool = l.pool AND s.superseded_at IS NULL
            AND (s.from_on IS NULL OR s.from_on <= {date("l.at_ms")})
            AND (s.to_on IS NULL OR s.to_on > {date("l.at_ms")})
    ), team AS (
        SELECT at_ms, pool, team, sum(held) AS held, sum(cost) AS cost, sum(wanted) AS wanted FROM part GROUP BY 1, 2, 3
    ), entitled AS (
        SELECT team.*, capacity, sum(wanted) OVER step AS all_wanted,
            coalesce(wanted * least(1, capacity / nullif(sum(wanted) OVER step, 0)), 0) AS share
        FROM team JOIN step USING (at_ms, pool) WINDOW step AS (PARTITION BY at_ms, pool)
    ), compared AS (
        SELECT *, greatest(held - share, 0) AS beyond, greatest(share - held, 0) AS unused FROM entitled
        WHERE all_wanted IS NOT NULL
    ), moved AS (
        SELECT *, sum(beyond) OVER step AS all_beyond, sum(unused) OVER step AS all_unused,
            least(greatest(sum(beyond) OVER step - greatest(capacity - all_wanted, 0), 0),
                sum(unused) OVER step) AS ns
        FROM compared WINDOW step AS (PARTITION BY at_ms, pool)
    )
    SELECT l.pool, l.team, sum(share) / {GPU_HOUR_NS} AS "share, GPU-hours",
        sum(held) / {GPU_HOUR_NS} AS "GPU-hours held",
        sum(least(held, share)) / nullif(sum(share), 0) AS "used of share",
        sum(ns * unused / nullif(all_unused, 0)) / {GPU_HOUR_NS} AS lent,
        sum(ns * beyond / nullif(all_beyond, 0)) / {GPU_HOUR_NS} AS borrowed,
        sum(cost * ns * beyond / nullif(all_beyond, 0) / nullif(held, 0)) / {MICRO} AS "cost of borrowed"
    FROM moved l WHERE {in_choice("l.team", "team")} GROUP BY 1, 2 ORDER BY 1, 2
"""
"""What each team had of its shares of pools: `chargeback --by share` in the range, for pools of the
inventory.
"""
QUEUE_NAME = "h.scheduler || ' / ' || h.queue"
NOT_TEAMS = "Of all queues, whatever team is chosen: a queue belongs to no owner."
QUEUE_TIMES = f"""
    WITH used AS (
        SELECT h.scheduler, h.queue, sum(h.reserved_ns)::float AS reserved, sum(h.used_ns)::float AS used,
            sum(h.borrowed_ns)::float AS borrowed, sum(h.lent_ns)::float AS lent, sum(h.unused_ns)::float AS unused,
            sum(h.observed_ms) > 0 AS is_observed
        FROM queue_hour h WHERE {in_range("h.hour_ms")} GROUP BY 1, 2
    ), waited AS (
        SELECT h.scheduler, h.queue, sum(h.waiting_ns)::float AS waiting, sum(h.beside_unused_ns)::float AS beside
        FROM queue_wait_hour h WHERE {in_range("h.hour_ms")} GROUP BY 1, 2
    ), stopped AS (
        SELECT h.queue, count(*) AS evictions,
            sum((h.evicted_ms - h.admitted_ms) * h.gpu_micro)::float AS lost
        FROM queue_eviction h WHERE {in_range("h.evicted_ms")} GROUP BY 1
    )
    SELECT u.scheduler, u.queue, u.reserved / {GPU_HOUR_NS} AS reserved,
        CASE WHEN u.is_observed THEN u.used / {GPU_HOUR_NS} END AS used,
        CASE WHEN u.is_observed THEN u.borrowed / {GPU_HOUR_NS} END AS borrowed,
        CASE WHEN u.is_observed THEN u.lent / {GPU_HOUR_NS} END AS lent,
        CASE WHEN u.is_observed THEN u.unused / {GPU_HOUR_NS} END AS unused, w.waiting / {GPU_HOUR_NS} AS waited,
        w.beside / {GPU_HOUR_NS} AS "beside unused quota", coalesce(s.evictions, 0) AS stopped,
        s.lost / {GPU_HOUR_NS} AS lost
    FROM used u LEFT JOIN waited w USING (scheduler, queue)
        LEFT JOIN stopped s ON s.queue = u.queue AND u.scheduler = 'kueue'
    ORDER BY w.beside DESC NULLS LAST, 1, 2 LIMIT 200
"""
"""`gpuledger queues list` of the hours of the range."""
QUEUE_PANELS = (
    table(
        "Queues: quota, and who waited beside unused quota",
        f"GPU-hours of Kubernetes schedulers' queues, those that waited beside unused quota first."
        f" {NOT_TEAMS} May be empty where no queues are read.",
        QUEUE_TIMES,
        HOURS,
        width=24,
        height=7,
        decimals=1,
        overrides=(
            *(column(name, unit="string") for name in ("scheduler", "queue")),
            column("beside unused quota", width=165),
            column("stopped", unit=COUNT, decimals=0, width=75),
        ),
    ),
    series(
        "GPUs that waited beside unused quota, by queue",
        f"By the hour: GPUs of workloads that unused quota of other queues would have served; of the"
        f" nine queues with most. {NOT_TEAMS} May be empty where nothing waited or nothing is read.",
        f"""
       WITH line AS (
           SELECT h.hour_ms, {QUEUE_NAME} AS name, sum(h.beside_unused_ns)::float AS ns,
               max(h.observed_ms) AS observed_ms
           FROM queue_wait_hour h WHERE {in_range("h.hour_ms")} GROUP BY 1, 2
       ), top AS (SELECT name FROM line GROUP BY 1 HAVING sum(ns) > 0 ORDER BY sum(ns) DESC, 1 LIMIT 9)
       SELECT to_timestamp(hour_ms / 1000) AS "time", name AS metric, ns / nullif(observed_ms, 0) / 1e6 AS gpus
       FROM line WHERE name IN (SELECT name FROM top) ORDER BY 1, 2
       """,
        COUNT,
        width=24,
        bars=True,
        stacked=True,
        interval="1h",
        decimals=1,
    ),
    table(
        "Who was stopped, and for whom",
        f"Workloads that Kueue stopped before they had finished, newest first. {NOT_TEAMS} May be"
        " empty.",
        f"""
      SELECT to_timestamp(h.evicted_ms / 1000) AS "when", h.workload, h.queue,
          nullif(h.preempted_by, '') AS "made room for", nullif(h.preempting_queue, '') AS "of queue",
          h.gpu_micro / 1e6 AS "GPUs",
          ((h.evicted_ms - h.admitted_ms) * h.gpu_micro)::float / {GPU_HOUR_NS} AS "GPU-hours lost"
      FROM queue_eviction h WHERE {in_range("h.evicted_ms")} ORDER BY h.evicted_ms DESC, h.uid LIMIT 50
      """,
        "string",
        width=24,
        height=8,
        overrides=(
            column("when", unit="time:YYYY-MM-DD HH:mm", width=140),
            column("GPUs", unit=COUNT, decimals=1, width=60),
            column("GPU-hours lost", unit=HOURS, decimals=1, width=115),
        ),
    ),
)
TOP_TEAM = leading(TEAM, f"{LEDGER} l {OWNER}", PRICED, "l.cost_micro")
CHOICE = f"{BILLED} AND {CURRENCY} AND {TEAMS} AND {PEOPLE} AND {POOLS} AND {MODELS}"
MONTH = month_end(f"{OWNER_TEAM} AS team,", TEAMS_AHEAD)
FINDING_TEAM = "coalesce(nullif(f.team, ''), '(unattributed)')"
GIVE_BACK = f"""
    FROM finding f LEFT JOIN workload w ON w.id = f.workload_id
    LEFT JOIN ({ACCELERATORS}) a ON a.id = f.accelerator_id
    WHERE f.kind = 'idle' AND f.resolved_ms IS NULL AND f.state IN ({", ".join(f"'{state}'" for state in IDLE_WORDS)})
        AND {in_choice(FINDING_TEAM, "team")} AND {in_choice("a.pool", "pool")} AND {in_choice("a.model", "model")}
"""
"""Held GPUs that do nothing now: what a team can give back."""
IDLE_STEPS = ((None, GREEN), (0.25, ORANGE), (0.5, VERMILION))

BOARD = Board(
    "gpuledger-team",
    "Team showback",
    "what did my team get for its money?",
    "What a team held, what it cost, and what of it did nothing.",
    (
        datasource(),
        currency(),
        team(),
        chosen("person", "Person", f"SELECT DISTINCT {PERSON} FROM owner o ORDER BY 1"),
        pool(),
        model(),
    ),
    (
        (
            "The range",
            (
                stat(
                    "Cost ($currency)",
                    "Charges of the chosen teams as in the chargeback, without shares of common"
                    " costs.",
                    f"SELECT sum(l.cost_micro) / {MICRO} AS cost FROM {LEDGER} l {OWNER} WHERE"
                    f" {PRICED}",
                    MONEY,
                    decimals=0,
                ),
                stat(
                    "Held idle cost ($currency)",
                    "The part of the charges for held GPUs that did nothing.",
                    f"SELECT sum(l.idle_cost_micro) / {MICRO} AS cost FROM {LEDGER} l {OWNER} WHERE"
                    f" {PRICED}",
                    MONEY,
                    decimals=0,
                    links=(TO_IDLE_OF_TEAM,),
                ),
                stat(
                    "GPU-hours held",
                    "Held time, with or without a price.",
                    f"SELECT sum(l.gpu_ns) / {GPU_HOUR_NS} AS hours FROM {LEDGER} l {OWNER} WHERE"
                    f" {HELD} AND {OWN}",
                    HOURS,
                    width=3,
                    decimals=0,
                ),
                stat(
                    "Idle, of known time",
                    "Idle hours over all hours with known activity.",
                    "SELECT sum(l.idle_ns) / nullif(sum(l.busy_ns + l.idle_ns), 0) AS part "
                    f"FROM {LEDGER} l {OWNER} WHERE {HELD} AND {OWN}",
                    RATIO,
                    decimals=1,
                    steps=IDLE_STEPS,
                    limits=(0, 1),
                    links=(TO_IDLE_OF_TEAM,),
                ),
                stat(
                    "Energy (kWh) and CO2e (kg)",
                    "Measured energy of the GPUs while the chosen teams held them, and its"
                    " emissions by the declared carbon intensity and PUE; unknown without one. Time"
                    " whose energy nobody read is not in it.",
                    f'SELECT sum({KWH}) AS "energy, kWh", sum({KWH} * grid.kg_per_kwh) AS "CO2e,'
                    f' kg" FROM ledger_day l {OWNER} {GRID} WHERE {HELD}',
                    COUNT,
                    width=5,
                    decimals=0,
                ),
                other_currencies(HELD),
                table(
                    "This month, and its forecast ($currency)",
                    f"Whole teams, whatever person, pool and model are chosen. {AHEAD_SAID}",
                    MONTH,
                    MONEY,
                    width=12,
                    height=6,
                    decimals=0,
                    overrides=(column("team", unit="string"), *AHEAD_WIDTHS),
                ),
                stat(
                    "Idle or underused now",
                    "GPUs that the table below lists, and what another day of those priced in"
                    " $currency costs.",
                    'SELECT count(DISTINCT f.accelerator_id) AS "GPUs", '
                    "CASE WHEN count(*) = 0 THEN 0 ELSE sum(f.per_day_micro) "
                    f"FILTER (WHERE f.currency = ${{currency:sqlstring}}) / {MICRO} END "
                    f'AS "cost a day" {GIVE_BACK}',
                    MONEY,
                    width=12,
                    height=6,
                    decimals=0,
                    steps=((None, GREEN), (1, ORANGE)),
                    overrides=(column("cost a day", displayName="$currency a day"),),
                ),
            ),
        ),
        (
            "What to give back",
            (
                table(
                    "Can be given back, or used better, now",
                    "Held GPUs that are idle or underused now, those priced in $currency first, by"
                    " cost; a workload opens its page. Empty is good: may be empty.",
                    f"""
                  SELECT w.key AS workload, coalesce(w.name, w.external_id) AS name, w.user_name AS "user",
                      a.node || ' / ' || {INDEX} AS "GPU", f.state AS finding,
                      to_timestamp(f.since_ms / 1000) AS "since", f.cost_micro / {MICRO} AS "cost so far",
                      f.per_day_micro / {MICRO} AS "cost a day", f.currency, {SPAN_COLUMNS}
                  FROM (SELECT f.* {GIVE_BACK} ORDER BY {CHOSEN_FIRST} LIMIT 50) f
                  LEFT JOIN workload w ON w.id = f.workload_id
                  LEFT JOIN ({ACCELERATORS}) a ON a.id = f.accelerator_id {WORKLOAD_SPAN}
                  ORDER BY {CHOSEN_FIRST}
                  """,
                    MONEY,
                    width=24,
                    height=6,
                    decimals=0,
                    overrides=(
                        column("workload", links=TO_WORKLOAD, unit="string"),
                        column("name", unit="string"),
                        *(column(name, unit="string", width=95) for name in ("user", "GPU")),
                        column("currency", unit="string", width=78),
                        *(column(name, width=90) for name in ("cost so far", "cost a day")),
                        column("finding", unit="string", mappings=[codes(IDLE_WORDS)], width=150),
                        column("since", unit="time:YYYY-MM-DD HH:mm", width=140),
                        *HIDDEN_SPAN,
                    ),
                ),
            ),
        ),
        (
            "By day",
            (
                series(
                    "Cost a day, by team ($currency)",
                    "Charges, node costs and adjustments included: the nine dearest teams and all"
                    " others. Corrections of closed months are in the tables.",
                    mark_names(
                        f"""
                        SELECT {DAY_TIME}, {TOP_TEAM} AS metric, sum(l.cost_micro) / {MICRO} AS cost
                        FROM {LEDGER} l {OWNER} WHERE {PRICED} AND {OWN} GROUP BY 1, 2
                        """,
                        TEAM_NAMES,
                        "cost",
                    ),
                    MONEY,
                    overrides=name_colors(),
                    bars=True,
                    stacked=True,
                    interval="1d",
                    decimals=0,
                ),
                series(
                    "GPU-hours a day, by activity",
                    "Busy, idle, and time whose activity nobody could read; corrections of closed"
                    " months are in the tables.",
                    f"""
                   SELECT {DAY_TIME}, s.name AS metric, sum(s.ns) / {GPU_HOUR_NS} AS hours
                   FROM {LEDGER} l {OWNER}, LATERAL (VALUES ('busy', l.busy_ns), ('idle', l.idle_ns),
                       ('activity unknown', l.unknown_ns)) s (name, ns)
                   WHERE {HELD} AND {OWN} GROUP BY 1, 2 ORDER BY 1, 2
                   """,
                    HOURS,
                    bars=True,
                    stacked=True,
                    interval="1d",
                    decimals=0,
                    order=("busy", "idle", "activity unknown"),
                ),
            ),
        ),
        (
            "Projects, workloads and people",
            (
                table(
                    "Projects ($currency)",
                    "Projects of the chosen teams, dearest first; a project opens its own board."
                    f" {CHANGE_SAID}",
                    f"""
                  WITH {pace_tables(PROJECT, CHOICE)}
                  SELECT {PROJECT} AS project, sum(l.cost_micro) / {MICRO} AS cost,
                      sum(l.idle_cost_micro) / {MICRO} AS "held idle cost",
                      sum(l.gpu_ns) / {GPU_HOUR_NS} AS "GPU-hours",
                      sum(l.idle_ns) / nullif(sum(l.busy_ns + l.idle_ns), 0) AS "idle part", {CHANGED}, {CORRECTION}
                  FROM {LEDGER} l {OWNER} LEFT JOIN pace ON pace.name = {PROJECT} WHERE {PRICED}
                  GROUP BY 1, l.correction_of, pace.cost, pace.before
                  ORDER BY 2 DESC NULLS LAST, 1 LIMIT 50
                  """,
                    MONEY,
                    width=24,
                    height=7,
                    decimals=0,
                    overrides=(
                        column("project", unit="string", links=list(TO_PROJECT)),
                        *AMOUNT_WIDTHS,
                        column("change", unit=RATIO, decimals=1, width=70),
                        column("correction of", unit="string"),
                        column(
                            "idle part", unit=RATIO, decimals=1, cell="color-text", steps=IDLE_STEPS
                        ),
                    ),
                ),
                table(
                    "Workloads ($currency)",
                    "The dearest workloads of the range; a click opens the workload's page.",
                    f"""
                  WITH top AS (
                      SELECT l.workload_id, sum(l.cost_micro) AS cost
                      FROM {CHARGES} l {OWNER} WHERE {PRICED} AND l.workload_id IS NOT NULL
                      GROUP BY 1 ORDER BY 2 DESC NULLS LAST, 1 LIMIT 50
                  ), own AS MATERIALIZED (
                      SELECT l.* FROM top JOIN {CHARGES} l ON l.workload_id = top.workload_id
                  ), line AS (
                      SELECT l.workload_id, l.correction_of, min(l.start_ms) AS start_ms,
                          sum(l.cost_micro) / {MICRO} AS cost, sum(l.idle_cost_micro) / {MICRO} AS idle_cost,
                          sum(l.gpu_ns) / {GPU_HOUR_NS} AS hours,
                          sum(l.idle_ns) / nullif(sum(l.busy_ns + l.idle_ns), 0) AS idle_part
                      FROM own l {OWNER} WHERE {PRICED} GROUP BY 1, 2
                  )
                  SELECT w.key AS workload, coalesce(w.name, w.external_id) AS name, w.user_name AS "user",
                      to_timestamp(l.start_ms / 1000) AS "first charged", l.cost, l.idle_cost AS "held idle cost",
                      l.hours AS "GPU-hours", l.idle_part AS "idle part", {CORRECTION}, {SPAN_COLUMNS}
                  FROM line l LEFT JOIN workload w ON w.id = l.workload_id {WORKLOAD_SPAN}
                  ORDER BY 5 DESC NULLS LAST, 1
                  """,
                    MONEY,
                    width=24,
                    decimals=0,
                    overrides=(
                        column("workload", links=TO_WORKLOAD, unit="string"),
                        column("name", unit="string"),
                        column("user", unit="string", width=95),
                        column("correction of", unit="string", width=105),
                        column("first charged", unit="time:YYYY-MM-DD HH:mm", width=140),
                        column("cost", width=90),
                        column("held idle cost", width=110),
                        column("GPU-hours", unit=HOURS, decimals=1, width=95),
                        column(
                            "idle part",
                            unit=RATIO,
                            decimals=1,
                            cell="color-text",
                            steps=IDLE_STEPS,
                            width=80,
                        ),
                        *HIDDEN_SPAN,
                    ),
                ),
                table(
                    "People ($currency)",
                    "Users of the chosen teams, as the owner rules name them; a name chooses that"
                    " person above.",
                    f"""
                  SELECT {PERSON} AS "user",
                      sum(l.cost_micro) / {MICRO} AS cost, sum(l.idle_cost_micro) / {MICRO} AS "held idle cost",
                      sum(l.gpu_ns) / {GPU_HOUR_NS} AS "GPU-hours",
                      sum(l.idle_ns) / nullif(sum(l.busy_ns + l.idle_ns), 0) AS "idle part", {CORRECTION}
                  FROM {LEDGER} l {OWNER} WHERE {PRICED} GROUP BY 1, l.correction_of
                  ORDER BY 2 DESC NULLS LAST, 1 LIMIT 50
                  """,
                    MONEY,
                    width=24,
                    height=7,
                    decimals=0,
                    overrides=(
                        column("user", unit="string", links=list(TO_PERSON)),
                        *AMOUNT_WIDTHS,
                        column("correction of", unit="string"),
                        column(
                            "idle part", unit=RATIO, decimals=1, cell="color-text", steps=IDLE_STEPS
                        ),
                    ),
                ),
            ),
        ),
        (
            "Shares of pools",
            (
                table(
                    "What was held of each share, lent and borrowed ($currency)",
                    "GPU-hours by pool and team; borrowed is what a team held beyond its share"
                    " while another left that much unused, with the borrower's charge for it. May"
                    " be empty where no share is declared.",
                    SHARES,
                    HOURS,
                    width=24,
                    height=6,
                    decimals=1,
                    overrides=(
                        *(column(name, unit="string") for name in ("pool", "team")),
                        column("used of share", unit=RATIO, decimals=1),
                        column("cost of borrowed", unit=MONEY, decimals=2),
                    ),
                ),
            ),
        ),
        ("Queues of Kubernetes", QUEUE_PANELS),
    ),
    annotations=events(),
    collapsed=("Shares of pools", "Queues of Kubernetes"),
)
"""The page that a team's lead opens."""
