"""Which GPUs and nodes are ill, hot, throttled or silent."""

from __future__ import annotations

from dashboards.grafana import (
    COUNT,
    GREEN,
    ORANGE,
    RATIO,
    VERMILION,
    Board,
    bars,
    column,
    heatmap,
    link,
    stat,
    table,
    words,
)
from dashboards.sql import ACCELERATORS, DAY_MS, FROM_MS, TO_MS, datasource, node, picked

THERE = f"({ACCELERATORS}) a"
NODES = picked("a.node", "node")
TO_NODE = (link("This node", "gpuledger-node", "var-node=${__data.fields.node}"),)
REASONS = (
    (0x4, "power cap (software)"),
    (0x8, "slowdown (hardware)"),
    (0x10, "sync boost"),
    (0x20, "thermal (software)"),
    (0x40, "thermal (hardware)"),
    (0x80, "power brake (hardware)"),
    (0x100, "display clocks"),
    (0x2, "applications clocks"),
    (0x1, "idle"),
)
"""nvmlClocksEventReason* of nvml.h."""
ERRORS = (
    "gpu_xid_errors_total",
    "gpu_last_xid",
    "gpu_ecc_uncorrected_volatile_total",
    "gpu_ecc_uncorrected_aggregate_total",
    "gpu_remapped_rows_uncorrected",
    "gpu_remapped_rows_pending",
    "gpu_remapped_rows_failure",
    "gpu_retired_pages_pending",
    "gpu_memory_unrepairable",
    "gpu_repair_pending",
    "gpu_pcie_replays_total",
    "gpu_nvlink_replay_errors_total",
    "gpu_nvlink_recovery_errors_total",
)
SLOWED = (
    "gpu_throttle_power_seconds_total",
    "gpu_throttle_thermal_seconds_total",
    "gpu_throttle_hw_thermal_seconds_total",
    "gpu_throttle_hw_power_brake_seconds_total",
)
SILENT_S = 900
"""As gpuledger_collector.services.node_health has it."""
HOUR_MS = 3_600_000
MOST_STEPS = 96
"""Of a heat map beyond two days: as many as a day has quarters."""
LANES = 10_000_000
"""More than there are nodes: cells are in order by one number, which is half the time of instants and names."""


def named(metrics: tuple[str, ...]) -> str:
    """Metrics as rows of one column."""
    return ", ".join(f"('{name}')" for name in metrics)


def spread(column_name: str, size: int, unit: str) -> str:
    """Accelerators per band of a minute rollup at 24 instants of the range: bands of `size`, named by their start."""
    return f"""
        WITH step AS (
            SELECT at_ms - mod(at_ms, 60000) AS at_ms FROM generate_series({FROM_MS}, {TO_MS} - 1,
                greatest(60000, ({TO_MS} - {FROM_MS}) / 24)) at_ms
        )
        SELECT to_timestamp(step.at_ms / 1000) AS "time",
            lpad((floor(m.{column_name} / {size}) * {size})::int::text, 4, ' ') || ' {unit}' AS metric,
            count(*) AS accelerators
        FROM step CROSS JOIN {THERE}
        JOIN gpu_minute m ON m.accelerator_id = a.id AND m.minute_ms = step.at_ms
        WHERE {NODES} AND m.{column_name} IS NOT NULL GROUP BY 1, 2 ORDER BY 1, 2
    """


def node_utilization(name: str) -> str:
    """The mean of a ratio over each node's accelerators: by quarters of an hour in ranges of up to two days.

    Beyond, by as many hours as make MOST_STEPS at most. What nobody knows has no row.
    """
    step_ms = f"({HOUR_MS} * (1 + ({TO_MS} - {FROM_MS} - 1) / ({MOST_STEPS}::bigint * {HOUR_MS})))"
    there = f"""
        FROM node_utilization h
        JOIN (SELECT id, name, row_number() OVER (ORDER BY name) AS lane FROM node) a ON a.id = h.node_id
        WHERE h.hour_ms > {FROM_MS} - {HOUR_MS} AND h.hour_ms < {TO_MS} AND {picked("a.name", "node")}
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


BOARD = Board(
    "gpuledger-fleet",
    "GPU Ledger / Fleet health",
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
                    f"SELECT count(*) AS accelerators FROM {THERE} WHERE {NODES} AND a.health = 'failed'",
                    COUNT,
                    steps=((None, GREEN), (1, VERMILION)),
                ),
                stat(
                    "Degraded",
                    "Accelerators that work but need attention.",
                    f"SELECT count(*) AS accelerators FROM {THERE} WHERE {NODES} AND a.health = 'degraded'",
                    COUNT,
                    steps=((None, GREEN), (1, ORANGE)),
                ),
                stat(
                    "Silent nodes",
                    f"Nodes without a sign of life for {SILENT_S // 60} minutes.",
                    "SELECT count(*) AS nodes FROM node a WHERE "
                    f"a.last_seen_at < now() - interval '{SILENT_S} seconds' AND {picked('a.name', 'node')}",
                    COUNT,
                    steps=((None, GREEN), (1, VERMILION)),
                ),
                stat(
                    "Hottest GPU",
                    "Highest temperature among the latest readings.",
                    f"SELECT max(l.gpu_temperature_celsius) AS celsius FROM gpu_latest l JOIN {THERE} "
                    f"ON a.id = l.accelerator_id WHERE {NODES}",
                    "celsius",
                    decimals=0,
                    steps=((None, GREEN), (80, ORANGE), (90, VERMILION)),
                ),
                stat(
                    "Power",
                    "Sum of the latest power readings of devices (a MIG instance reports its entire board).",
                    "SELECT sum(watts) AS watts FROM (SELECT max(l.gpu_power_watts) AS watts FROM gpu_latest l "
                    f"JOIN {THERE} ON a.id = l.accelerator_id JOIN accelerator d ON d.id = a.id WHERE {NODES} "
                    "GROUP BY d.device_uuid) devices",
                    "watt",
                ),
            ),
        ),
        (
            "Problems",
            (
                table(
                    "Unhealthy accelerators",
                    "Failed and degraded accelerators with their cause; empty is good.",
                    f"""
                  SELECT a.node, a.gpu_index AS "GPU", a.model, a.health, a.health_cause AS cause, a.uuid
                  FROM {THERE} WHERE {NODES} AND a.health IN ('failed', 'degraded') ORDER BY a.health DESC, 1, 2
                  """,
                    COUNT,
                    overrides=(
                        column("node", links=list(TO_NODE), unit="string"),
                        column("GPU", unit="none"),
                        column("health", mappings=[words()], cell="color-background"),
                    ),
                ),
                table(
                    "GPU error counters",
                    "Newest value of each error counter above 0: Xid, ECC, row remapping, "
                    "PCIe and NVLink; empty is good.",
                    f"""
                  SELECT a.node, a.gpu_index AS "GPU", metric.name AS metric, s.value,
                      to_timestamp(s.at_ms / 1000) AS "since"
                  FROM {THERE} CROSS JOIN (VALUES {named(ERRORS)}) metric (name)
                  CROSS JOIN LATERAL (SELECT value, at_ms FROM gpu_state
                      WHERE accelerator_id = a.id AND gpu_state.metric = metric.name
                      ORDER BY at_ms DESC LIMIT 1) s
                  WHERE {NODES} AND s.value > 0 ORDER BY 5 DESC, 1, 2, 3 LIMIT 500
                  """,
                    COUNT,
                    overrides=(
                        column("node", links=list(TO_NODE), unit="string"),
                        column("GPU", unit="none"),
                        column("since", unit="dateTimeAsIso"),
                    ),
                ),
                bars(
                    "Clock throttling now, by reason",
                    "Accelerators whose latest reading names the reason (several are possible; idle is no fault).",
                    f"""
                 SELECT reason.name, count(l.accelerator_id) AS accelerators
                 FROM (VALUES {", ".join(f"({bit}::bigint, '{name}')" for bit, name in REASONS)}) reason (bit, name)
                 LEFT JOIN (SELECT l.* FROM gpu_latest l JOIN {THERE} ON a.id = l.accelerator_id WHERE {NODES}) l
                     ON l.gpu_clocks_event_reasons_bitmask & reason.bit <> 0
                 GROUP BY reason.bit, 1 ORDER BY reason.bit DESC
                 """,
                    COUNT,
                    width=8,
                ),
                table(
                    "Time lost to throttling",
                    "Throttled seconds counted since each driver's start, worst first; may be "
                    "empty where cards do not count them.",
                    f"""
                  SELECT a.node, a.gpu_index AS "GPU", metric.name AS metric, s.value AS throttled
                  FROM {THERE} CROSS JOIN (VALUES {named(SLOWED)}) metric (name)
                  CROSS JOIN LATERAL (SELECT value FROM gpu_state
                      WHERE accelerator_id = a.id AND gpu_state.metric = metric.name
                      ORDER BY at_ms DESC LIMIT 1) s
                  WHERE {NODES} AND s.value > 0 ORDER BY 4 DESC, 1, 2, 3 LIMIT 100
                  """,
                    "s",
                    width=8,
                    overrides=(column("node", links=list(TO_NODE), unit="string"), column("GPU", unit="none")),
                ),
                table(
                    "Nodes",
                    "Every node with its agent; silent when its last heartbeat is old.",
                    f"""
                  SELECT a.name AS node, a.status, a.status_detail AS detail, a.last_seen_at AS "last seen",
                      extract(epoch FROM now() - a.last_seen_at) AS "silent for", a.agent_version AS agent, a.driver,
                      a.source
                  FROM node a WHERE {picked("a.name", "node")} ORDER BY a.last_seen_at, 1 LIMIT 2000
                  """,
                    COUNT,
                    width=8,
                    overrides=(
                        column("node", links=list(TO_NODE), unit="string"),
                        column("last seen", unit="dateTimeAsIso"),
                        column(
                            "silent for",
                            unit="s",
                            decimals=0,
                            cell="color-text",
                            steps=((None, GREEN), (SILENT_S, ORANGE), (3600, VERMILION)),
                        ),
                    ),
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
            "Temperature and power",
            (
                heatmap(
                    "Temperature of the fleet",
                    "Accelerators per band of 5 °C, at 24 instants of the range.",
                    spread("temperature_celsius", 5, "°C"),
                    COUNT,
                ),
                heatmap(
                    "Power of the fleet",
                    "Accelerators per band of 50 W, at 24 instants of the range.",
                    spread("power_watts", 50, "W"),
                    COUNT,
                ),
            ),
        ),
        (
            "Inventory and drivers",
            (
                table(
                    "Inventory",
                    "Accelerators present now by pool and model.",
                    f"""
                  SELECT a.pool, a.model, count(*) AS accelerators, sum(a.gpu_micro) / 1e6 AS "whole GPUs",
                      count(*) FILTER (WHERE a.health = 'ok') AS ok,
                      count(*) FILTER (WHERE a.health = 'unknown') AS "health unknown"
                  FROM {THERE} WHERE {NODES} GROUP BY 1, 2 ORDER BY 1, 2
                  """,
                    COUNT,
                ),
                table(
                    "Drivers",
                    "Nodes by driver and agent version.",
                    f"""
                  SELECT coalesce(a.driver, 'unknown') AS driver, a.agent_version AS agent, count(*) AS nodes
                  FROM node a WHERE {picked("a.name", "node")} GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2
                  """,
                    COUNT,
                ),
            ),
        ),
    ),
    since="now-24h",
    refresh="1m",
)
"""For the person on call."""
