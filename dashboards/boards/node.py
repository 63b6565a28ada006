"""One node and its GPUs: every metric that is kept, by tier, and who held them."""

from __future__ import annotations

from dashboards.grafana import (
    COUNT,
    DURATION,
    EXACT,
    GREEN,
    MODEL_WIDTH,
    MONEY,
    NAME_PALETTE,
    ORANGE,
    RATIO,
    VERMILION,
    Board,
    Panel,
    chosen,
    column,
    number_of,
    series,
    stat,
    table,
    timeline,
    words,
)
from dashboards.sql import (
    ACCELERATORS,
    CHARGES,
    FRESH,
    FROM_MS,
    HIDDEN_SPAN,
    IN_RANGE,
    INDEX,
    MICRO,
    NOW_IDLE,
    NOW_MS,
    SPAN_COLUMNS,
    STEPS,
    TO_MS,
    TOUCHED,
    WORKLOAD_SPAN,
    datasource,
    errors,
    in_choice,
    in_range,
    to_workload,
)
from gpuledger_common.catalog import HOT, METRICS

LANE = f"'GPU ' || {INDEX}"
THERE = f"({ACCELERATORS}) a"
BOARD_LANE = "'GPU ' || a.gpu_index"
NAMED = f"coalesce({BOARD_LANE}, a.uuid)"
CHOSEN = (
    f"{in_choice('a.node', 'node')} AND ({in_choice(NAMED, 'accelerator')} OR {LANE} IN"
    " (${accelerator:sqlstring}))"
)
"""A GPU is chosen by its name on the node, with all of its MIG instances, an instance by its own.

The matrix of the fleet's board knows these names alone, and links to them.
"""
MINUTES = in_range("m.minute_ms")
MOST_LINES = 10
HOUR_MS, MOST_STEPS = 3_600_000, 200
STEP_MS = f"({HOUR_MS} * (1 + ({TO_MS} - {FROM_MS} - 1) / ({MOST_STEPS}::bigint * {HOUR_MS})))"
"""An hour, or as many as make MOST_STEPS columns."""
READABLE = {
    "ratio": (100, "%"),
    "bytes": (2**-30, "GiB"),
    "bytes/s": (1e-9, "GB/s"),
    "hertz": (1e-6, "MHz"),
    "joules": (1 / 3.6e6, "kWh"),
    "celsius": (1, "°C"),
    "watts": (1, "W"),
    "seconds": (1, "s"),
}
"""By which factor a unit of the catalog becomes one that people read, and its name."""


GPU_COLORS = tuple(
    {
        "matcher": {"id": "byRegexp", "options": f"/^GPU ({'|'.join(map(str, same))})( |$)/"},
        "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": hue}}],
    }
    for hue, same in ((hue, range(at, 16, 8)) for at, hue in enumerate(NAME_PALETTE))
)
"""A GPU keeps its color, whichever others are chosen; eight are told apart."""


def minute_rollup(
    title: str,
    description: str,
    name: str,
    unit: str,
    *,
    height: int = 10,
    top: float | None = None,
) -> Panel:
    """A minute rollup of the chosen accelerators, a line each for the highest ones."""
    query = f"""
        WITH line AS (
            SELECT $__unixEpochGroup(m.minute_ms / 1000, $__interval) AS at, {LANE} AS metric, avg(m.{name}) AS value
            FROM {THERE} JOIN gpu_minute m ON m.accelerator_id = a.id
            WHERE {CHOSEN} AND {MINUTES} AND m.{name} IS NOT NULL GROUP BY 1, 2
        ), top AS (SELECT metric FROM line GROUP BY 1 ORDER BY avg(value) DESC, 1 LIMIT {MOST_LINES})
        SELECT to_timestamp(step.at_ms / 1000.0) AS "time", top.metric, line.value
        FROM {STEPS} CROSS JOIN top LEFT JOIN line ON line.metric = top.metric AND line.at * 1000 = step.at_ms
        ORDER BY 1, 2
    """
    return series(
        title,
        description,
        query,
        unit,
        width=8,
        height=height,
        interval="1m",
        limits=(0, top),
        overrides=GPU_COLORS,
    )


def metric_rows() -> str:
    """Every metric of the catalog as a row: its name, the factor for reading, and a label with the
    unit.
    """
    rows = []
    for metric in METRICS:
        factor, unit = READABLE.get(metric.unit, (1, metric.unit))
        rows.append(f"('{metric.name}', {factor!r}::float8, '{metric.name}, {unit}')")
    return ", ".join(rows)


COUNTED_MS = f"(SELECT least(max(p.until_ms), {NOW_MS} - 900000) FROM conservation_check p)"
"""Up to where usage is counted, but for the last 15 minutes, which may still be on their way."""
LATEST = ", ".join(f"('{metric.name}', l.{metric.name}::float8)" for metric in HOT)

NODES = f"""SELECT n.name FROM node n LEFT JOIN (
    SELECT a.node, count(*) AS held FROM {THERE} JOIN gpu_latest l ON l.accelerator_id = a.id AND l.state = 'held'
    GROUP BY 1) busiest ON busiest.node = n.name ORDER BY busiest.held DESC NULLS LAST, 1"""
"""The node with the most held GPUs first: it is the one shown where the address names none."""

MORE_ACTIVITY = "Tensor cores and memory bandwidth"
LONGEST_DAY_MS = 25 * HOUR_MS
TOUCHED_DAYS = f"l.day_ms > {FROM_MS} - {LONGEST_DAY_MS} AND l.day_ms < {TO_MS}"
"""Charges of every day that the range touches; the longest has 25 hours."""
READ_NOW = f"""FROM {THERE} LEFT JOIN gpu_latest l ON l.accelerator_id = a.id AND {FRESH}
    WHERE {CHOSEN} HAVING count(l.accelerator_id) > 0"""
"""The chosen GPUs with their fresh readings; no row while the agent is silent."""

BOARD = Board(
    "gpuledger-node",
    "Node and GPU",
    "what does this node do, and for whom?",
    "All data of one node's GPUs: one line per GPU.",
    (
        datasource(),
        chosen("node", "Node", NODES, many=False),
        chosen(
            "accelerator",
            "GPU",
            f"""SELECT s.name AS __value, s.name AS __text
            FROM {THERE}, LATERAL (VALUES ({NAMED}), (CASE WHEN a.gpu_index IS NOT NULL THEN {LANE} END)) s (name)
            WHERE {in_choice("a.node", "node")} AND s.name IS NOT NULL
            GROUP BY s.name ORDER BY min(a.gpu_index), 1 LIMIT 1000""",
        ),
    ),
    (
        (
            "Now, and the range",
            (
                stat(
                    "GPUs held now",
                    "Of the selected GPUs, by readings of the last 15 minutes; and those held"
                    " without activity. May be empty while the agent is silent.",
                    "SELECT count(*) AS \"selected\", count(*) FILTER (WHERE l.state = 'held') AS"
                    f' "held", count(*) FILTER (WHERE l.state = \'held\' AND {NOW_IDLE}) AS "idle"'
                    f" {READ_NOW}",
                    COUNT,
                    width=6,
                ),
                stat(
                    "Not healthy",
                    "Selected GPUs that are degraded or failed, by what is known of their health.",
                    "SELECT count(*) FILTER (WHERE a.health IN ('degraded', 'failed')) AS gpus"
                    f" FROM {THERE} WHERE {CHOSEN} AND a.health <> 'unknown' HAVING count(*) > 0",
                    COUNT,
                    width=3,
                    steps=((None, GREEN), (1, VERMILION)),
                ),
                stat(
                    "Hottest",
                    "Of the selected GPUs; may be empty while the agent is silent.",
                    f"SELECT max(l.gpu_temperature_celsius) AS celsius {READ_NOW}",
                    "celsius",
                    width=3,
                    decimals=0,
                    steps=((None, GREEN), (80, ORANGE), (90, VERMILION)),
                ),
                stat(
                    "Power",
                    "Of the selected GPUs' boards; may be empty while the agent is silent.",
                    "SELECT sum(watts) AS watts FROM (SELECT max(l.gpu_power_watts) AS watts FROM"
                    f" {THERE} JOIN accelerator d ON d.id = a.id JOIN gpu_latest l ON"
                    f" l.accelerator_id = a.id AND {FRESH} WHERE {CHOSEN} GROUP BY d.device_uuid)"
                    " boards",
                    "watt",
                    width=3,
                    decimals=1,
                ),
                stat(
                    "Cost of the node's days",
                    "All charges of this node on the days that the range touches, held or not,"
                    " whatever GPU is chosen; each currency by itself.",
                    f"SELECT l.currency, sum(l.cost_micro) / {MICRO} AS cost FROM {CHARGES} l WHERE"
                    f" {in_choice('l.node', 'node')} AND {TOUCHED_DAYS} AND l.currency IS NOT NULL"
                    " GROUP BY 1 ORDER BY 1",
                    MONEY,
                    width=5,
                    decimals=2,
                    each_row=True,
                ),
                stat(
                    "Energy",
                    "From the GPUs' own counters. Of an hour that lies in the range in part, the"
                    " same part counts.",
                    f"SELECT sum(u.energy_mj * {IN_RANGE}) / 3.6e9 AS energy FROM {THERE} "
                    f"JOIN usage_hour u ON u.accelerator_id = a.id WHERE {CHOSEN} AND {TOUCHED}",
                    "kwatth",
                    width=4,
                    decimals=2,
                ),
            ),
        ),
        (
            "Holders",
            (
                timeline(
                    "State by hour",
                    "The prevailing state of each hour: busy, held idle, unallocated, or"
                    " unobserved; of several hours in ranges beyond eight days. At most 64 GPUs. A"
                    " gap is not counted yet, or before the GPU came.",
                    f"""
                     WITH few AS (SELECT a.id, a.in_ms, {LANE} AS lane FROM {THERE} WHERE {CHOSEN}
                         ORDER BY 3, 1 LIMIT 64),
                     step AS (SELECT at_ms - mod(at_ms, {STEP_MS}) AS at_ms
                         FROM generate_series({FROM_MS}, {TO_MS} - 1, {STEP_MS}) at_ms),
                     summed AS MATERIALIZED (
                         SELECT u.accelerator_id, u.hour_ms - mod(u.hour_ms, {STEP_MS}) AS at_ms, s.state,
                             sum(s.ms) AS ms
                         FROM usage_hour u,
                             LATERAL (VALUES (CASE WHEN u.state = 'held' THEN 'busy' ELSE u.state END,
                                     CASE WHEN u.state = 'held' THEN u.busy_ms ELSE u.held_ms END),
                                 ('idle', u.idle_ms), ('activity unknown', u.unknown_ms)) s (state, ms)
                         WHERE u.accelerator_id IN (SELECT id FROM few)
                             AND u.hour_ms >= {FROM_MS} - mod({FROM_MS}, {STEP_MS})
                             AND u.hour_ms < {TO_MS} + {STEP_MS} AND s.ms > 0
                         GROUP BY 1, 2, 3),
                     known AS (SELECT accelerator_id, at_ms, sum(ms) AS ms FROM summed GROUP BY 1, 2),
                     every AS (
                         TABLE summed UNION ALL
                         SELECT few.id, step.at_ms, 'unobserved',
                             least(step.at_ms + {STEP_MS}, {COUNTED_MS}) - greatest(step.at_ms, few.in_ms)
                                 - coalesce(known.ms, 0)
                         FROM step CROSS JOIN few
                         LEFT JOIN known ON known.accelerator_id = few.id AND known.at_ms = step.at_ms),
                     prevailing AS (SELECT DISTINCT ON (accelerator_id, at_ms) accelerator_id, at_ms, state
                         FROM every WHERE ms > 0 ORDER BY accelerator_id, at_ms, ms DESC, state)
                     SELECT to_timestamp(greatest(step.at_ms, {FROM_MS}) / 1000) AS "time", few.lane AS metric,
                         {number_of("prevailing.state")} AS state
                     FROM step CROSS JOIN few
                     LEFT JOIN prevailing ON prevailing.accelerator_id = few.id AND prevailing.at_ms = step.at_ms
                     ORDER BY 1, 2
                     """,
                    height=9,
                    interval="1h",
                ),
                table(
                    "Holders",
                    "Workloads that held the selected GPUs in the range, longest first. Of an hour"
                    " that lies in the range in part, the same part of its times counts.",
                    f"""
                  WITH held AS (
                      SELECT {INDEX} AS gpu, u.workload_id, sum(u.held_ms * {IN_RANGE}) / 1000 AS held,
                          sum(u.busy_ms * {IN_RANGE}) / 1000 AS busy, sum(u.idle_ms * {IN_RANGE}) / 1000 AS idle
                      FROM {THERE} JOIN usage_hour u ON u.accelerator_id = a.id
                      WHERE {CHOSEN} AND {TOUCHED} AND u.workload_id IS NOT NULL
                      GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2 LIMIT 200
                  )
                  SELECT held.gpu AS "GPU", w.key AS workload, coalesce(w.name, w.external_id) AS name,
                      w.user_name AS "user", held.held, held.busy, held.idle, {SPAN_COLUMNS}
                  FROM held JOIN workload w ON w.id = held.workload_id {WORKLOAD_SPAN}
                  ORDER BY held.held DESC, 1, 2
                  """,
                    DURATION,
                    width=13,
                    overrides=(
                        column("GPU", unit="string", width=50),
                        column("workload", unit="string", links=to_workload()),
                        column("name", unit="string"),
                        column("user", unit="string", width=65),
                        *(column(name, width=95) for name in ("held", "busy", "idle")),
                        *HIDDEN_SPAN,
                    ),
                ),
                table(
                    "Selected GPUs",
                    "State by the latest reading, health and model of the selected GPUs.",
                    f"""
                  SELECT {INDEX} AS "GPU", a.health, coalesce(l.state, 'unknown') AS state,
                      l.gpu_temperature_celsius AS temperature, l.gpu_power_watts AS power,
                      to_timestamp(l.at_ms / 1000) AS "read at",
                      regexp_replace(a.model, '^NVIDIA ', '') AS model, a.pool, a.memory_bytes AS memory, a.uuid
                  FROM {THERE} LEFT JOIN gpu_latest l ON l.accelerator_id = a.id
                  WHERE {CHOSEN} ORDER BY a.gpu_index, a.uuid LIMIT 200
                  """,
                    "string",
                    width=11,
                    overrides=(
                        column("GPU", width=70),
                        column("health", mappings=[words()], cell="color-text", width=75),
                        column("state", mappings=[words()], cell="color-text", width=95),
                        column("temperature", unit="celsius", decimals=0, width=100),
                        column("power", unit="watt", decimals=0, width=70),
                        column("read at", unit="time:YYYY-MM-DD HH:mm", width=140),
                        column("model", width=MODEL_WIDTH),
                        column("pool", width=80),
                        column("memory", unit="bytes", decimals=0, width=80),
                        column("uuid", width=330),
                    ),
                ),
            ),
        ),
        (
            "Activity, minute by minute: the ten highest GPUs",
            (
                minute_rollup(
                    "Utilization",
                    "Part of the time in which a kernel ran.",
                    "utilization_ratio",
                    RATIO,
                    top=1,
                ),
                minute_rollup(
                    "SM activity",
                    "Share of multiprocessors at work; from profiling, by NVML on Hopper and later."
                    " May be empty on older cards.",
                    "sm_active_ratio",
                    RATIO,
                    top=1,
                ),
                minute_rollup(
                    "Memory in use",
                    "Without what the driver reserves.",
                    "memory_used_bytes",
                    "bytes",
                ),
                minute_rollup(
                    "Power",
                    "Mean over the minute; a MIG instance reads its whole board.",
                    "power_watts",
                    "watt",
                ),
                minute_rollup(
                    "Temperature", "Of the GPU's core.", "temperature_celsius", "celsius"
                ),
                minute_rollup(
                    "SM clock",
                    "Of the multiprocessors; it falls where a power cap, heat or a slowdown holds it"
                    " down. May be empty where cards do not tell it.",
                    "sm_clock_hertz",
                    "hertz",
                ),
            ),
        ),
        (
            MORE_ACTIVITY,
            (
                minute_rollup(
                    "Tensor activity",
                    "Share of cycles in which tensor cores worked; may be empty on older GPUs.",
                    "tensor_active_ratio",
                    RATIO,
                    top=1,
                ),
                minute_rollup(
                    "DRAM activity",
                    "Share of the memory bandwidth in use; may be empty on older GPUs.",
                    "dram_active_ratio",
                    RATIO,
                    top=1,
                ),
            ),
        ),
        (
            "Latest reading of every metric",
            (
                table(
                    "Latest readings",
                    "A row a metric, a column a GPU: the fast and profiling tiers as read last, the"
                    " slow, static and event tiers as they changed last. An empty cell is a metric"
                    " that the card does not give.",
                    f"""
                  WITH few AS MATERIALIZED (SELECT a.id, a.gpu_index, a.uuid, {LANE} AS lane FROM {THERE}
                      WHERE {CHOSEN}),
                  fast AS MATERIALIZED (SELECT l.accelerator_id, s.name, s.value
                      FROM gpu_latest l, LATERAL (VALUES {LATEST}) s (name, value)
                      WHERE l.accelerator_id IN (SELECT id FROM few) AND s.value IS NOT NULL),
                  slow AS MATERIALIZED (SELECT DISTINCT ON (accelerator_id, metric) accelerator_id, metric, value
                      FROM gpu_state WHERE accelerator_id IN (SELECT id FROM few)
                      ORDER BY accelerator_id, metric, at_ms DESC)
                  SELECT metric.label AS metric, few.lane AS gpu, reading.value * metric.factor AS value
                  FROM few JOIN (TABLE fast UNION ALL TABLE slow) reading ON reading.accelerator_id = few.id
                  JOIN (VALUES {metric_rows()}) metric (name, factor, label) USING (name)
                  WHERE reading.value IS NOT NULL ORDER BY few.gpu_index, few.uuid, 1 LIMIT 5000
                  """,
                    EXACT,
                    width=24,
                    height=14,
                    decimals=2,
                    transformations=(
                        {
                            "id": "groupingToMatrix",
                            "options": {
                                "rowField": "metric",
                                "columnField": "gpu",
                                "valueField": "value",
                            },
                        },
                    ),
                    overrides=(
                        column("metric\\gpu", unit="string", width=340, displayName="metric, unit"),
                    ),
                ),
            ),
        ),
    ),
    collapsed=(MORE_ACTIVITY,),
    since="now-6h",
    refresh="1m",
    annotations=errors(CHOSEN),
)
"""From the fleet to one node's cards."""
