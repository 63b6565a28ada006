"""What research costs, by project, experiment and model of GPU."""

from __future__ import annotations

from dashboards.grafana import (
    COUNT,
    EXACT,
    GREEN,
    HOURS,
    LONG_PALETTE,
    MONEY,
    ORANGE,
    RATIO,
    VERMILION,
    Board,
    chosen,
    column,
    link,
    name_colors,
    series,
    stat,
    table,
)
from dashboards.savings import TO_IDLE_OF_TEAM
from dashboards.sql import (
    AHEAD_SAID,
    AHEAD_WIDTHS,
    BILLED,
    CORRECTION,
    CURRENCY,
    DAY_TIME,
    DAYS,
    GPU_HOUR_NS,
    GRID,
    KWH,
    LEDGER,
    MICRO,
    MODEL_NAMES,
    MODELS,
    OWN,
    OWNER,
    OWNER_PROJECT,
    OWNER_TEAM,
    POOLS,
    PROJECT,
    PROJECT_NAMES,
    PROJECTS_AHEAD,
    TEAM,
    TEAMS,
    currency,
    datasource,
    events,
    in_choice,
    leading,
    mark_names,
    model,
    month_end,
    other_currencies,
    pool,
    team,
)

CHOICE = f"{BILLED} AND {TEAMS} AND {in_choice(PROJECT, 'project')} AND {POOLS} AND {MODELS}"
HELD = f"{DAYS} AND {CHOICE}"
PRICED = f"{HELD} AND {CURRENCY}"
NAMED = f"{TEAM} || ' / ' || {PROJECT}"
"""Two teams may have projects of the same name."""
TOP_PROJECT = leading(NAMED, f"{LEDGER} l {OWNER}", PRICED, "l.cost_micro")
TOP_MODEL = leading("l.gpu_model", f"{LEDGER} l", f"{DAYS} AND {CURRENCY}", "l.cost_micro")
IDLE_STEPS = ((None, GREEN), (0.25, ORANGE), (0.5, VERMILION))
TO_TEAM = (
    link(
        "Showback of this team",
        "gpuledger-team",
        "var-team=${__data.fields.team:percentencode}",
        keep=("datasource", "currency", "pool", "model"),
    ),
)
PER_KWH = f"""
    SELECT l.day_ms, l.owner_id, l.gpu_model, {KWH} AS kwh, {KWH} * grid.kg_per_kwh AS kg
    FROM ledger_day l {OWNER} {GRID} WHERE {HELD}
"""

BOARD = Board(
    "gpuledger-research",
    "Research",
    "what do experiments cost, in money and energy?",
    "What experiments and projects cost, how well they use their GPUs, and their energy.",
    (
        datasource(),
        currency(),
        team(),
        chosen(
            "project",
            "Project",
            f"SELECT DISTINCT {PROJECT} FROM owner o WHERE {TEAMS} UNION SELECT '(unattributed)'"
            " ORDER BY 1",
        ),
        pool(),
        model(),
    ),
    (
        (
            "The range",
            (
                stat(
                    "Cost ($currency)",
                    "Charges of the chosen projects as in the chargeback, without shares of common"
                    " costs.",
                    f"SELECT sum(l.cost_micro) / {MICRO} AS cost FROM {LEDGER} l {OWNER} WHERE"
                    f" {PRICED}",
                    MONEY,
                    decimals=0,
                ),
                stat(
                    "GPU-hours",
                    "Time for which the chosen projects held GPUs.",
                    f"SELECT sum(l.gpu_ns) / {GPU_HOUR_NS} AS hours FROM {LEDGER} l {OWNER} WHERE"
                    f" {HELD} AND {OWN}",
                    HOURS,
                    width=3,
                    decimals=0,
                ),
                stat(
                    "A busy GPU-hour ($currency)",
                    "All charges divided by busy hours.",
                    f"SELECT sum(l.cost_micro) / {MICRO} / nullif(sum(l.busy_ns) / {GPU_HOUR_NS},"
                    f" 0) AS cost FROM {LEDGER} l {OWNER} WHERE {PRICED} AND {OWN}",
                    EXACT,
                    decimals=2,
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
                    "Measured energy while the chosen projects held GPUs, and its emissions by the"
                    " declared carbon intensity and PUE; unknown without one. Time whose energy"
                    " nobody read is not in it.",
                    'SELECT sum(e.kwh) AS "energy, kWh", sum(e.kg) AS "CO2e, kg" FROM'
                    f" ({PER_KWH}) e",
                    COUNT,
                    width=5,
                    decimals=0,
                ),
                other_currencies(HELD),
                table(
                    "This month, and its forecast ($currency)",
                    f"Whole projects, whatever pool and model are chosen. {AHEAD_SAID}",
                    month_end(
                        f"{OWNER_TEAM} || ' / ' || {OWNER_PROJECT} AS project,", PROJECTS_AHEAD
                    ),
                    MONEY,
                    width=14,
                    height=6,
                    decimals=0,
                    overrides=(column("project", unit="string"), *AHEAD_WIDTHS),
                ),
                stat(
                    "Projects, experiments and people",
                    "With a charge in the range; an experiment is a tag of its workloads.",
                    f"""
                  SELECT count(DISTINCT {NAMED}) AS projects,
                      count(DISTINCT {NAMED} || ' / ' || o.experiment) FILTER (WHERE o.experiment <> '') AS experiments,
                      count(DISTINCT o.user_name) FILTER (WHERE o.user_name <> '') AS people
                  FROM {LEDGER} l {OWNER} WHERE {PRICED} AND {OWN}
                  """,
                    COUNT,
                    width=10,
                    height=6,
                ),
            ),
        ),
        (
            "Experiments and projects",
            (
                table(
                    "Experiments ($currency)",
                    "Dearest experiments of the chosen projects, by the tags of their workloads: cost, hours,"
                    " idle part and energy. May be empty where workloads bear no such tag.",
                    f"""
                  WITH energy AS (
                      SELECT {NAMED} AS project, o.experiment, sum(e.kwh) AS kwh, sum(e.kg) AS kg
                      FROM ({PER_KWH}) e JOIN owner o ON o.id = e.owner_id WHERE o.experiment <> '' GROUP BY 1, 2
                  ), money AS (
                      SELECT {NAMED} AS project, o.experiment, l.correction_of, sum(l.cost_micro) / {MICRO} AS cost,
                          sum(l.idle_cost_micro) / {MICRO} AS idle_cost, sum(l.gpu_ns) / {GPU_HOUR_NS} AS hours,
                          sum(l.idle_ns) / nullif(sum(l.busy_ns + l.idle_ns), 0) AS idle_part
                      FROM {LEDGER} l {OWNER} WHERE {PRICED} AND o.experiment <> '' GROUP BY 1, 2, 3
                  )
                  SELECT l.project, l.experiment, l.cost, l.idle_cost AS "held idle cost", l.hours AS "GPU-hours",
                      l.idle_part AS "idle part", CASE WHEN {OWN} THEN energy.kwh END AS "energy, kWh",
                      CASE WHEN {OWN} THEN energy.kg END AS "CO2e, kg", {CORRECTION}
                  FROM money l LEFT JOIN energy USING (project, experiment)
                  ORDER BY 3 DESC NULLS LAST, 1, 2 LIMIT 100
                  """,
                    MONEY,
                    width=24,
                    height=10,
                    decimals=0,
                    overrides=(
                        column("project", unit="string"),
                        column("experiment", unit="string"),
                        *(column(name, width=110) for name in ("held idle cost", "energy, kWh")),
                        *(column(name, width=90) for name in ("cost", "GPU-hours", "CO2e, kg")),
                        column(
                            "idle part",
                            unit=RATIO,
                            decimals=1,
                            cell="color-text",
                            steps=IDLE_STEPS,
                            width=80,
                        ),
                        column("correction of", unit="string", width=105),
                    ),
                ),
                table(
                    "Projects ($currency)",
                    "Cost, hours, idle part and energy of each project, dearest first. A team opens"
                    " its showback.",
                    f"""
                  WITH e AS (
                      SELECT e.owner_id, sum(e.kwh) AS kwh, sum(e.kg) AS kg FROM ({PER_KWH}) e GROUP BY 1
                  ), energy AS (
                      SELECT {TEAM} AS team, {PROJECT} AS project, sum(e.kwh) AS kwh, sum(e.kg) AS kg
                      FROM e LEFT JOIN owner o ON o.id = e.owner_id GROUP BY 1, 2
                  ), money AS (
                      SELECT {TEAM} AS team, {PROJECT} AS project, l.correction_of,
                          sum(l.cost_micro) / {MICRO} AS cost, sum(l.gpu_ns) / {GPU_HOUR_NS} AS hours,
                          sum(l.idle_cost_micro) / {MICRO} AS idle_cost,
                          sum(l.idle_ns) / nullif(sum(l.busy_ns + l.idle_ns), 0) AS idle_part,
                          string_agg(DISTINCT l.gpu_model, ', ') AS models
                      FROM {LEDGER} l {OWNER} WHERE {PRICED} GROUP BY 1, 2, 3
                  )
                  SELECT l.team, l.project, l.cost, l.idle_cost AS "held idle cost", l.hours AS "GPU-hours",
                      l.idle_part AS "idle part", CASE WHEN {OWN} THEN energy.kwh END AS "energy, kWh",
                      CASE WHEN {OWN} THEN energy.kg END AS "CO2e, kg", {CORRECTION}, l.models
                  FROM money l LEFT JOIN energy USING (team, project) ORDER BY 3 DESC NULLS LAST, 1, 2 LIMIT 100
                  """,
                    MONEY,
                    width=24,
                    height=10,
                    decimals=0,
                    overrides=(
                        column("team", unit="string", links=list(TO_TEAM), width=100),
                        column("project", unit="string", width=120),
                        column(
                            "idle part",
                            unit=RATIO,
                            decimals=1,
                            cell="color-text",
                            steps=IDLE_STEPS,
                            width=80,
                        ),
                        column("correction of", unit="string", width=105),
                        *(column(name, width=110) for name in ("held idle cost", "energy, kWh")),
                        *(column(name, width=90) for name in ("cost", "GPU-hours", "CO2e, kg")),
                        column("models", unit="string"),
                    ),
                ),
                series(
                    "Cost a day, by project ($currency)",
                    "The nine dearest projects and all others; corrections of closed months are in"
                    " the table.",
                    mark_names(
                        f"""
                        SELECT {DAY_TIME}, {TOP_PROJECT} AS metric, sum(l.cost_micro) / {MICRO} AS cost
                        FROM {LEDGER} l {OWNER} WHERE {PRICED} AND {OWN} GROUP BY 1, 2
                        """,
                        PROJECT_NAMES,
                        "cost",
                        LONG_PALETTE,
                    ),
                    MONEY,
                    width=24,
                    overrides=name_colors(LONG_PALETTE),
                    bars=True,
                    stacked=True,
                    interval="1d",
                    height=10,
                    decimals=0,
                ),
            ),
        ),
        (
            "By model of GPU",
            (
                series(
                    "GPU-hours a day, by model",
                    "Held by the chosen projects: the nine dearest models of the fleet and all"
                    " others.",
                    mark_names(
                        f"""
                        SELECT {DAY_TIME}, {TOP_MODEL} AS metric, sum(l.gpu_ns) / {GPU_HOUR_NS} AS hours
                        FROM {LEDGER} l {OWNER} WHERE {HELD} AND {OWN} GROUP BY 1, 2
                        """,
                        MODEL_NAMES,
                        "hours",
                        LONG_PALETTE,
                    ),
                    HOURS,
                    width=24,
                    overrides=name_colors(LONG_PALETTE),
                    bars=True,
                    stacked=True,
                    interval="1d",
                    height=10,
                    decimals=0,
                ),
            ),
        ),
    ),
    collapsed=("By model of GPU",),
    annotations=events(),
)
"""For a head of research."""
