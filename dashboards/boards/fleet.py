"""Which GPUs and nodes are ill, hot, throttled or silent."""

from __future__ import annotations

from collections.abc import Iterable

from dashboards.grafana import (
    COUNT,
    DURATION,
    EXACT,
    GREEN,
    MEANING,
    MODEL_WIDTH,
    ORANGE,
    RATIO,
    VERMILION,
    Board,
    bars,
    column,
    heatmap,
    link,
    series,
    stat,
    table,
    words,
)
from dashboards.sql import (
    ACCELERATORS,
    DAY_MS,
    FRESH,
    FROM_MS,
    INDEX,
    LANE,
    NOW_IDLE,
    STEPS,
    TO_MS,
    UNWATCHED,
    datasource,
    errors,
    in_choice,
    in_range,
    node,
)
from gpuledger_collector.insight.nodes import SILENT_MS

THERE = f"({ACCELERATORS}) a"
NODES = in_choice("a.node", "node")
KEEP = ("datasource",)
TO_NODE = (
    link("This node", "gpuledger-node", "var-node=${__data.fields.node:percentencode}", keep=KEEP),
)
NODE_OF_ROW = "var-node=${__data.fields[0]:percentencode}"
TO_CELL = link(
    "This GPU",
    "gpuledger-node",
    f"{NODE_OF_ROW}&var-accelerator=${{__field.name:percentencode}}",
    keep=KEEP,
)
"""From a cell of the matrix of states, whose column has the name that the board of nodes gives to a
GPU.
"""
SERIOUS = {
    "gpu_xid_errors_total": "Xid errors",
    "gpu_last_xid": "last Xid",
    "gpu_ecc_uncorrected_volatile_total": "ECC uncorrected",
    "gpu_ecc_uncorrected_aggregate_total": "ECC uncorrected ever",
    "gpu_remapped_rows_uncorrected": "rows remapped",
    "gpu_remapped_rows_pending": "row remaps pending",
    "gpu_remapped_rows_failure": "row remaps failed",
    "gpu_retired_pages_pending": "retired pages pending",
    "gpu_memory_unrepairable": "memory unrepairable",
    "gpu_repair_pending": "repair pending",
}
ERRORS = SERIOUS | {
    "gpu_pcie_replays_total": "PCIe replays",
    "gpu_nvlink_replay_errors_total": "NVLink replays",
    "gpu_nvlink_recovery_errors_total": "NVLink recoveries",
}
"""Counters of errors with their words, those of retries last, which healthy cards have too."""
SLOWED = (
    "gpu_throttle_power_seconds_total",
    "gpu_throttle_thermal_seconds_total",
    "gpu_throttle_hw_thermal_seconds_total",
    "gpu_throttle_hw_power_brake_seconds_total",
)
SILENT_S = SILENT_MS // 1000
KNOWN_HEALTH = f"FROM {THERE} WHERE {NODES} AND a.health <> 'unknown' HAVING count(*) > 0"
"""Accelerators whose health is known; where none is, nobody knows how many are ill."""
WATCHED = f"a.status NOT IN ({UNWATCHED})"
"""Nodes of which a sign of life is expected: none that went on purpose, until it reports again."""
HOUR_MS = 3_600_000
MOST_STEPS = 96
"""Of a heat map beyond two days: as many as a day has quarters."""
LANES = 10_000_000
"""More than there are nodes: cells are in order by one number, which is half the time of instants
and names.
"""


QUARTER_MS, MINUTE_MS, PARTS = 900_000, 60_000, 24
STATE_NOW = f"""CASE WHEN a.health = 'failed' THEN 'failed' WHEN a.health = 'degraded' THEN 'degraded'
    WHEN l.accelerator_id IS NULL OR NOT {FRESH} THEN 'unobserved' WHEN l.state <> 'held' THEN l.state
    WHEN {NOW_IDLE} THEN 'idle' WHEN {NOW_IDLE} IS NULL THEN 'activity unknown' ELSE 'busy' END"""


def newest(metrics: Iterable[str]) -> str:
    """An array of the newest values of metrics of a reading `l`.

    Each is a scalar subquery, which Citus takes; it refuses a lateral one with a LIMIT.
    """
    values = (
        f"""(SELECT s.value FROM gpu_state s
            WHERE s.accelerator_id = l.accelerator_id AND s.metric = '{name}' ORDER BY s.at_ms DESC LIMIT 1)"""
        for name in metrics
    )
    return f"ARRAY[{', '.join(values)}]"


ERRORS_OF = f"""CROSS JOIN LATERAL (
        SELECT string_agg(v.words || ' ' || v.value, ', ' ORDER BY v.place) AS text,
            count(*) FILTER (WHERE v.place <= {len(SERIOUS)}) AS serious
        FROM unnest(ARRAY[{", ".join(f"'{words}'" for words in ERRORS.values())}], l.counts)
            WITH ORDINALITY v (words, value, place)
        WHERE v.value > 0
    ) error"""
"""The errors of a row `l` with the newest values of all counters: their words in order, and how
many are serious.
"""
SICK_FIRST = "array_position(ARRAY['failed', 'degraded'], a.health), error.serious = 0"


def spread(column_name: str, size: int, unit: str) -> str:
    """Accelerators per band of a minute rollup in 24 parts of the range: bands of `size`, named by
    their start.

    Each accelerator counts by its first known minute in the first quarter of an hour of a part,
    which bounds what is read. Bands between the lowest and the highest are all there, so that none
    is missing from the axis.
    """
    return f"""
        WITH step AS MATERIALIZED (
            SELECT at_ms, least(at_ms + {QUARTER_MS}, at_ms + ({TO_MS} - {FROM_MS}) / {PARTS}) AS until_ms
            FROM generate_series({FROM_MS}, {TO_MS} - 1, greatest({MINUTE_MS}, ({TO_MS} - {FROM_MS}) / {PARTS})) at_ms
        ), chosen AS MATERIALIZED (
            SELECT a.id FROM {THERE} WHERE {NODES}
        ), mean AS MATERIALIZED (
            SELECT step.at_ms, (SELECT floor(m.{column_name} / {size})::int FROM gpu_minute m
                WHERE m.accelerator_id = l.accelerator_id AND m.minute_ms >= step.at_ms - mod(step.at_ms, {MINUTE_MS})
                    AND m.minute_ms < greatest(step.until_ms, step.at_ms + 1) AND m.{column_name} IS NOT NULL
                ORDER BY m.minute_ms LIMIT 1) AS band
            FROM gpu_latest l CROSS JOIN step WHERE l.accelerator_id IN (SELECT id FROM chosen)
        ), seen AS (
            SELECT at_ms, band, count(*) AS accelerators FROM mean WHERE band IS NOT NULL GROUP BY 1, 2
        ), band AS (
            SELECT generate_series(min(band), max(band)) AS band FROM seen
        )
        SELECT to_timestamp(step.at_ms / 1000) AS "time",
            lpad((band.band * {size})::text, 4, ' ') || ' {unit}' AS metric,
            coalesce(seen.accelerators, 0) AS accelerators
        FROM (SELECT DISTINCT at_ms FROM seen) step CROSS JOIN band LEFT JOIN seen USING (at_ms, band) ORDER BY 1, 2
    """


def node_utilization(name: str) -> str:
    """The mean of a ratio over each node's accelerators: by quarters of an hour in ranges of up to
    two days.

    Beyond, by as many hours as make MOST_STEPS at most. What nobody knows has no row.
    """
    step_ms = f"({HOUR_MS} * (1 + ({TO_MS} - {FROM_MS} - 1) / ({MOST_STEPS}::bigint * {HOUR_MS})))"
    there = f"""
        FROM node_utilization h
        JOIN (SELECT id, name, row_number() OVER (ORDER BY name) AS lane FROM node) a ON a.id = h.node_id
        WHERE h.hour_ms > {FROM_MS} - {HOUR_MS} AND h.hour_ms < {TO_MS} AND {in_choice("a.name", "node")}
            AND {TO_MS} - {FROM_MS}"""
    total = " + ".join(f"coalesce(h.{name}[{at}], 0)" for at in range(1, 5))
    minutes = " + ".join(f"h.{name}_minutes[{at}]" for at in range(1, 5))
    return f"""
        SELECT cell.at AS "time", cell.metric, (cell.total / cell.minutes)::real AS ratio
        FROM (
            SELECT step.at + generate_series(0, 2700, 900) AS at, step.metric, step.lane,
                unnest(step.total) AS total, unnest(step.minutes) AS minutes
            FROM (
                SELECT h.hour_ms / 1000 AS at, a.name AS metric, a.lane, h.{name} AS total, h.{name}_minutes AS minutes
                {there} <= 2 * {DAY_MS}
                UNION ALL
                SELECT (h.hour_ms - mod(h.hour_ms, {step_ms})) / 1000, a.name, a.lane, ARRAY[sum({total})],
                    ARRAY[sum({minutes})]::int[]
                {there} > 2 * {DAY_MS} GROUP BY 1, 2, 3
            ) step
        ) cell
        WHERE cell.minutes > 0 AND cell.at < {TO_MS} / 1000 AND cell.at > {FROM_MS} / 1000
            - CASE WHEN {TO_MS} - {FROM_MS} <= 2 * {DAY_MS} THEN 900 ELSE {step_ms} / 1000 END
        ORDER BY cell.at * {LANES}::bigint + cell.lane
    """


NEEDS = (
    "failed",
    "degraded",
    "unavailable",
    "unobserved",
    "idle",
    "activity unknown",
    "busy",
    "stranded",
    "unallocated",
)
"""States, what needs most attention first."""
ATTENTION = ", ".join(f"'{name}'" for name in NEEDS)
ATTENTION_WORDS = (
    {
        "type": "value",
        "options": {
            str(at): {"color": MEANING[name], "index": at, "text": name}
            for at, name in enumerate(NEEDS, start=1)
        },
    },
    {
        "type": "special",
        "options": {"match": "empty", "result": {"color": "transparent", "index": 0, "text": " "}},
    },
)
"""No color where a node has no such GPU."""
BOARD = Board(
    "gpuledger-fleet",
    "Fleet health",
    "which GPUs are sick, hot or silent?",
    "Health, errors, throttling and temperature of every GPU, and silent agents.",
    (datasource(), node()),
    (
        (
            "Now",
            (
                stat(
                    "Accelerators",
                    "Present by the inventory at this moment.",
                    f"SELECT count(*) AS accelerators FROM {THERE} WHERE {NODES}",
                    COUNT,
                ),
                stat(
                    "Failed",
                    "Accelerators that should not run work; causes are listed below.",
                    "SELECT count(*) FILTER (WHERE a.health = 'failed') AS accelerators"
                    f" {KNOWN_HEALTH}",
                    COUNT,
                    steps=((None, GREEN), (1, VERMILION)),
                ),
                stat(
                    "Degraded",
                    "Accelerators that work but need attention.",
                    "SELECT count(*) FILTER (WHERE a.health = 'degraded') AS accelerators"
                    f" {KNOWN_HEALTH}",
                    COUNT,
                    steps=((None, GREEN), (1, ORANGE)),
                ),
                stat(
                    "Silent nodes",
                    f"Nodes without a sign of life for {SILENT_S // 60} minutes; those that were"
                    " retired, or whose agent was uninstalled, are left out.",
                    "SELECT count(*) FILTER (WHERE a.last_seen_at < now() - interval"
                    f" '{SILENT_S} seconds') AS nodes FROM node a WHERE {WATCHED} AND"
                    f" {in_choice('a.name', 'node')} HAVING count(*) > 0",
                    COUNT,
                    steps=((None, GREEN), (1, VERMILION)),
                ),
                stat(
                    "Hottest GPU",
                    "Highest temperature among the latest readings.",
                    "SELECT max(l.gpu_temperature_celsius) AS celsius FROM gpu_latest l JOIN"
                    f" {THERE} ON a.id = l.accelerator_id WHERE {NODES}",
                    "celsius",
                    decimals=0,
                    steps=((None, GREEN), (80, ORANGE), (90, VERMILION)),
                ),
                stat(
                    "Power",
                    "Sum of the latest power readings of devices (a MIG instance reports its entire"
                    " board).",
                    "SELECT sum(watts) AS watts FROM (SELECT max(l.gpu_power_watts) AS watts FROM"
                    f" gpu_latest l JOIN {THERE} ON a.id = l.accelerator_id JOIN accelerator d ON"
                    f" d.id = a.id WHERE {NODES} GROUP BY d.device_uuid) devices",
                    "watt",
                ),
                table(
                    "State of every GPU",
                    "A row a node, a column an index; of several MIG instances of a board, the one"
                    " that needs most attention. A click opens the GPU, or its node. Unobserved: no"
                    " reading for 15 minutes.",
                    f"""
                  SELECT gpu.node, 'GPU ' || gpu.gpu_index AS gpu, min(gpu.state) AS state
                  FROM (SELECT coalesce(a.node, '?') AS node, a.gpu_index,
                          array_position(ARRAY[{ATTENTION}], {STATE_NOW}) AS state
                      FROM {THERE} LEFT JOIN gpu_latest l ON l.accelerator_id = a.id
                      WHERE {NODES} AND a.gpu_index IS NOT NULL) gpu
                  GROUP BY gpu.node, gpu.gpu_index ORDER BY gpu.gpu_index, 1 LIMIT 20000
                  """,
                    "none",
                    width=24,
                    height=10,
                    color_mode="palette-classic",
                    mappings=ATTENTION_WORDS,
                    links=(TO_CELL,),
                    transformations=(
                        {
                            "id": "groupingToMatrix",
                            "options": {
                                "rowField": "node",
                                "columnField": "gpu",
                                "valueField": "state",
                            },
                        },
                    ),
                    cell="color-background-solid",
                    overrides=(
                        column(
                            "node\\gpu",
                            displayName="node",
                            unit="string",
                            width=90,
                            cell="auto",
                            links=[link("This node", "gpuledger-node", NODE_OF_ROW, keep=KEEP)],
                        ),
                        # States are numbers here, whose names Grafana would put on the right.
                        {
                            "matcher": {"id": "byRegexp", "options": "/^GPU /"},
                            "properties": [{"id": "custom.align", "value": "left"}],
                        },
                    ),
                ),
            ),
        ),
        (
            "Problems",
            (
                table(
                    "Accelerators, worst first",
                    "Failed and degraded ones with their cause, then those with errors (retries of"
                    " links alone are none) or throttled time, then the hottest. Throttled is the"
                    " time that the driver has counted since its start.",
                    f"""
                  WITH chosen AS MATERIALIZED (SELECT a.id FROM {THERE} WHERE {NODES}),
                  reading AS MATERIALIZED (
                      SELECT l.*, {newest(ERRORS)} AS counts, {newest(SLOWED)} AS slowed_s
                      FROM gpu_latest l WHERE l.accelerator_id IN (SELECT id FROM chosen)
                  )
                  SELECT a.node, {INDEX} AS "GPU", {STATE_NOW} AS state, nullif(a.health_cause, '') AS cause,
                      slowed.seconds AS throttled, l.gpu_temperature_celsius AS temperature,
                      l.gpu_power_watts AS power, regexp_replace(a.model, '^NVIDIA ', '') AS model
                  FROM {THERE} LEFT JOIN reading l ON l.accelerator_id = a.id
                  {ERRORS_OF}
                  CROSS JOIN LATERAL (SELECT sum(v.seconds) AS seconds FROM unnest(l.slowed_s) v (seconds)) slowed
                  WHERE {NODES}
                  ORDER BY {SICK_FIRST},
                      coalesce(slowed.seconds, 0) DESC, l.gpu_temperature_celsius DESC NULLS LAST, 1, 2 LIMIT 200
                  """,
                    "string",
                    width=24,
                    height=10,
                    overrides=(
                        column("node", links=list(TO_NODE), width=75),
                        column("GPU", width=50),
                        column("state", mappings=[words()], cell="color-text", width=100),
                        column("throttled", unit=DURATION, width=118),
                        column("temperature", unit="celsius", decimals=0, width=105),
                        column("power", unit="watt", decimals=0, width=65),
                        column("model", width=156),
                    ),
                ),
                table(
                    "Errors that accelerators count",
                    "The newest values of the counters of Xid, ECC, row remapping, PCIe and NVLink"
                    " above 0, of failed and degraded accelerators first; those that have retries"
                    " of links alone come last.",
                    f"""
                  WITH chosen AS MATERIALIZED (SELECT a.id FROM {THERE} WHERE {NODES}),
                  reading AS MATERIALIZED (
                      SELECT l.*, {newest(ERRORS)} AS counts
                      FROM gpu_latest l WHERE l.accelerator_id IN (SELECT id FROM chosen)
                  )
                  SELECT a.node, {INDEX} AS "GPU", {STATE_NOW} AS state, error.text AS errors
                  FROM {THERE} JOIN reading l ON l.accelerator_id = a.id
                  {ERRORS_OF}
                  WHERE {NODES} AND error.text IS NOT NULL
                  ORDER BY {SICK_FIRST}, 1, 2 LIMIT 200
                  """,
                    "string",
                    width=24,
                    height=7,
                    overrides=(
                        column("node", links=list(TO_NODE), width=75),
                        column("GPU", width=50),
                        column("state", mappings=[words()], cell="color-text", width=100),
                    ),
                ),
                table(
                    "Nodes",
                    "Every node with its agent, the longest silent first; those that went on"
                    " purpose (retired, uninstalled) come last. back again: retired, and it reports"
                    " since.",
                    f"""
                  SELECT a.name AS node,
                      CASE WHEN {WATCHED} THEN extract(epoch FROM now() - a.last_seen_at) END AS "silent for",
                      CASE WHEN {WATCHED} AND a.last_seen_at < now() - interval '{SILENT_S} seconds' THEN 'silent'
                          WHEN a.status = 'ok' AND EXISTS (SELECT FROM node_retirement r WHERE r.node = a.name
                          AND r.superseded_at IS NULL) THEN 'back again' ELSE a.status END AS status,
                      a.status_detail AS detail, a.last_seen_at AS "last seen", a.agent_version AS agent, a.driver,
                      a.source
                  FROM node a WHERE {in_choice("a.name", "node")}
                  ORDER BY {WATCHED} DESC, a.last_seen_at, 1 LIMIT 2000
                  """,
                    "string",
                    width=24,
                    height=10,
                    overrides=(
                        column("node", links=list(TO_NODE), width=90),
                        column("status", mappings=[words()], cell="color-text", width=75),
                        column("last seen", unit="time:YYYY-MM-DD HH:mm", width=140),
                        column(
                            "silent for",
                            unit=DURATION,
                            width=105,
                            cell="color-text",
                            steps=((None, GREEN), (SILENT_S, ORANGE), (3600, VERMILION)),
                        ),
                    ),
                ),
            ),
        ),
        (
            "Throttling",
            (
                series(
                    "Throttled part of the time, by node",
                    "Part of the readings in which a power cap, heat or another slowdown held"
                    " clocks down: the mean over a node's accelerators, of the ten highest nodes;"
                    " may be empty where cards do not tell it.",
                    f"""
                   WITH line AS (
                       SELECT $__unixEpochGroup(m.minute_ms / 1000, $__interval) AS at, a.node AS metric,
                           avg(m.slowed_ratio) AS ratio
                       FROM {THERE} JOIN gpu_minute m ON m.accelerator_id = a.id
                       WHERE {NODES} AND {in_range("m.minute_ms")} AND m.slowed_ratio IS NOT NULL
                           AND a.node IS NOT NULL GROUP BY 1, 2
                   ), top AS (SELECT metric FROM line GROUP BY 1 ORDER BY avg(ratio) DESC, 1 LIMIT 10)
                   SELECT to_timestamp(step.at_ms / 1000.0) AS "time", top.metric, line.ratio
                   FROM {STEPS} CROSS JOIN top
                       LEFT JOIN line ON line.metric = top.metric AND line.at * 1000 = step.at_ms
                   ORDER BY 1, 2
                   """,
                    RATIO,
                    width=24,
                    height=9,
                    interval="5m",
                    decimals=1,
                    limits=(0, 1),
                ),
            ),
        ),
        (
            "Activity",
            (
                heatmap(
                    "Utilization of nodes",
                    "Mean over each node's accelerators, by quarters of an hour (hours beyond "
                    "two days); where nobody knows, there is nothing.",
                    node_utilization("utilization"),
                    RATIO,
                    height=12,
                    parts=True,
                ),
                heatmap(
                    "SM activity of nodes",
                    "The same for SM activity, which measures how much of a GPU is at work and not "
                    "only whether it is; may be empty where cards do not tell it.",
                    node_utilization("sm_active"),
                    RATIO,
                    height=12,
                    parts=True,
                ),
            ),
        ),
        (
            "Temperature",
            (
                bars(
                    "The ten hottest GPUs",
                    "By readings of the last 15 minutes; may be empty while agents are silent.",
                    f"""
                 SELECT {LANE} AS name, l.gpu_temperature_celsius AS celsius
                 FROM gpu_latest l JOIN {THERE} ON a.id = l.accelerator_id
                 WHERE {NODES} AND l.gpu_temperature_celsius IS NOT NULL AND {FRESH}
                 ORDER BY 2 DESC, 1 LIMIT 10
                 """,
                    "celsius",
                    width=12,
                    height=9,
                    limits=(0, 100),
                    decimals=0,
                    thresholds=((None, GREEN), (80, ORANGE), (90, VERMILION)),
                ),
                heatmap(
                    "Temperature of the fleet",
                    "Accelerators per band of 5 °C, each by its first known minute in each of 24"
                    " parts of the range.",
                    spread("temperature_celsius", 5, "°C"),
                    COUNT,
                ),
            ),
        ),
        (
            "Inventory",
            (
                table(
                    "Inventory",
                    "Accelerators present now by pool and model.",
                    f"""
                  SELECT a.model, a.pool, count(*) AS accelerators, sum(a.gpu_micro) / 1e6 AS "whole GPUs",
                      count(*) FILTER (WHERE a.health = 'ok') AS ok,
                      count(*) FILTER (WHERE a.health = 'unknown') AS "health unknown"
                  FROM {THERE} WHERE {NODES} GROUP BY 1, 2 ORDER BY 1, 2
                  """,
                    COUNT,
                    width=24,
                    height=7,
                    overrides=(
                        column("accelerators", width=100),
                        column("ok", width=60),
                        column("health unknown", width=125),
                        column("whole GPUs", unit=EXACT, decimals=2, width=98),
                        column("model", unit="string", width=MODEL_WIDTH),
                    ),
                ),
            ),
        ),
    ),
    since="now-24h",
    refresh="1m",
    annotations=errors(NODES),
)
"""For the person on call."""
