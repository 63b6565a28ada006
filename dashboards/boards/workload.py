"""One workload: what it cost, and what the GPUs did while it held them."""

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
    Panel,
    chosen,
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
    DAY_MS,
    DAY_TIME,
    FROM_MS,
    GPU_HOUR_NS,
    MICRO,
    OWN,
    TO_MS,
    apart,
    between,
    currency,
    datasource,
)

MINE = "JOIN workload w ON w.id = l.workload_id AND w.key = ${workload:sqlstring}"
LONGEST_DAY_MS = DAY_MS + 3_600_000
RANGE = f"l.day_ms > {FROM_MS} - {LONGEST_DAY_MS} AND l.day_ms < {TO_MS}"
"""Charges of every day that the range touches; the longest has 25 hours."""
HOURS_HELD = f"""
    held AS MATERIALIZED (
        SELECT DISTINCT u.accelerator_id, u.hour_ms FROM (
            SELECT l.accelerator_id, l.workload_id, l.day_ms FROM charge l {MINE} WHERE {RANGE} GROUP BY 1, 2, 3) days
        JOIN usage_hour u ON u.accelerator_id = days.accelerator_id AND u.workload_id = days.workload_id
            AND u.hour_ms >= days.day_ms AND u.hour_ms < days.day_ms + {LONGEST_DAY_MS}
        WHERE {between("u.hour_ms")}
    )
"""
"""The hours in which it held each accelerator."""
TO_NODE = (link("This node", "gpuledger-node", "var-node=${__data.fields.node}"),)


def profile(title: str, description: str, name: str, unit: str, top: float | None = None) -> Panel:
    """Mean, lowest and highest GPU of the workload over time."""
    query = f"""
        WITH {HOURS_HELD}, gpu AS (
            SELECT floor(m.minute_ms / ($__interval_ms)) * ($__interval_ms) / 1000 AS at, m.accelerator_id,
                avg(m.{name}) AS value
            FROM held JOIN gpu_minute m ON m.accelerator_id = held.accelerator_id
                AND m.minute_ms >= held.hour_ms AND m.minute_ms < held.hour_ms + 3600000
            WHERE m.{name} IS NOT NULL GROUP BY 1, 2
        )
        SELECT at AS "time", avg(value) AS mean, min(value) AS "lowest GPU", max(value) AS "highest GPU"
        FROM gpu GROUP BY 1 ORDER BY 1
    """
    return series(title, description, query, unit, width=8, interval="1m", limits=(0, top))


BOARD = Board(
    "gpuledger-workload",
    "GPU Ledger / Workload",
    "What one workload cost and what its GPUs did meanwhile. Where several share a GPU, activity is that of all.",
    (
        datasource(),
        currency(),
        chosen("workload", "Workload", "SELECT key FROM workload ORDER BY id DESC LIMIT 500", many=False),
    ),
    (
        (
            "What it cost",
            (
                stat(
                    "Cost ($currency)",
                    "Charges of the days that the range touches.",
                    f"SELECT sum(l.cost_micro) / {MICRO} AS cost FROM {CHARGES} l {MINE} WHERE {RANGE} AND {CURRENCY}",
                    MONEY,
                    decimals=2,
                ),
                stat(
                    "Idle cost ($currency)",
                    "The part paid for GPUs that did nothing.",
                    f"SELECT sum(l.idle_cost_micro) / {MICRO} AS cost FROM {CHARGES} l {MINE} "
                    f"WHERE {RANGE} AND {CURRENCY}",
                    MONEY,
                    decimals=2,
                ),
                stat(
                    "GPU-hours",
                    "Held, busy or not.",
                    f"SELECT sum(l.gpu_ns) / {GPU_HOUR_NS} AS hours FROM {CHARGES} l {MINE} WHERE {RANGE} AND {OWN}",
                    HOURS,
                    decimals=1,
                ),
                stat(
                    "Busy, part of known activity",
                    "Busy hours over the hours whose activity is known.",
                    "SELECT sum(l.busy_ns) / nullif(sum(l.busy_ns + l.idle_ns), 0) AS part "
                    f"FROM {CHARGES} l {MINE} WHERE {RANGE} AND {OWN}",
                    RATIO,
                    decimals=1,
                    limits=(0, 1),
                    steps=((None, VERMILION), (0.5, ORANGE), (0.75, GREEN)),
                ),
                stat(
                    "GPUs",
                    "Different accelerators that it held.",
                    f"SELECT count(DISTINCT l.accelerator_id) AS gpus FROM {CHARGES} l {MINE} WHERE {RANGE}",
                    COUNT,
                ),
                stat(
                    "Energy",
                    "Its share of what its GPUs drew.",
                    f"SELECT sum(l.energy_mj) / 3.6e9 AS energy FROM {CHARGES} l {MINE} WHERE {RANGE}",
                    "kwatth",
                    decimals=2,
                ),
            ),
        ),
        (
            "What it is",
            (
                table(
                    "The workload",
                    "Its names and tags, and who is charged for it.",
                    f"""
                  SELECT w.key AS workload, coalesce(w.name, w.external_id) AS name, w.kind, w.user_name AS "user",
                      w.account, w.tags::text AS tags, o.team, o.project,
                      min(to_timestamp(l.start_ms / 1000)) AS "from",
                      max(to_timestamp(l.end_ms / 1000)) AS "until"
                  FROM {CHARGES} l {MINE} LEFT JOIN owner o ON o.id = l.owner_id WHERE {RANGE}
                  GROUP BY 1, 2, 3, 4, 5, 6, 7, 8 ORDER BY 9
                  """,
                    "string",
                    width=24,
                    height=5,
                    overrides=(column("from", unit="dateTimeAsIso"), column("until", unit="dateTimeAsIso")),
                ),
                series(
                    "Cost a day ($currency)",
                    "Busy and idle parts of its charges.",
                    f"""
                   SELECT {DAY_TIME}, {apart("s.name")} AS metric, sum(s.cost) / {MICRO} AS cost
                   FROM {CHARGES} l {MINE}, LATERAL (VALUES ('busy', l.cost_micro - coalesce(l.idle_cost_micro, 0)),
                       ('idle', l.idle_cost_micro)) s (name, cost)
                   WHERE {RANGE} AND {CURRENCY} AND s.cost IS NOT NULL GROUP BY 1, 2 ORDER BY 1, 2
                   """,
                    MONEY,
                    bars=True,
                    stacked=True,
                    interval="1d",
                    decimals=2,
                ),
                table(
                    "By GPU ($currency)",
                    "Each GPU that it held.",
                    f"""
                  SELECT l.node, a.gpu_index AS "GPU", l.gpu_model AS model, sum(l.cost_micro) / {MICRO} AS cost,
                      sum(l.gpu_ns) / {GPU_HOUR_NS} AS "GPU-hours",
                      sum(l.idle_ns) / nullif(sum(l.busy_ns + l.idle_ns), 0) AS "idle part", {CORRECTION}
                  FROM {CHARGES} l {MINE} LEFT JOIN accelerator a ON a.id = l.accelerator_id
                  WHERE {RANGE} AND {CURRENCY} GROUP BY 1, 2, 3, l.correction_of
                  ORDER BY 4 DESC NULLS LAST, 1, 2 LIMIT 200
                  """,
                    MONEY,
                    height=8,
                    decimals=2,
                    overrides=(
                        column("node", unit="string", links=list(TO_NODE)),
                        column("GPU", unit="none", decimals=0),
                        column("GPU-hours", unit=HOURS, decimals=1),
                        column("correction of", unit="string"),
                        column("idle part", unit=RATIO, decimals=1),
                    ),
                ),
            ),
        ),
        (
            "What its GPUs did",
            (
                profile(
                    "Utilization",
                    "Part of the time in which a kernel ran; mean, lowest and highest GPU. May be empty "
                    "where minutes are no longer kept.",
                    "utilization_ratio",
                    RATIO,
                    1,
                ),
                profile(
                    "SM activity",
                    "Multiprocessors at work: the best single sign of use. May be empty on older cards.",
                    "sm_active_ratio",
                    RATIO,
                    1,
                ),
                profile(
                    "Tensor activity",
                    "Low for training in mixed precision means a bottleneck elsewhere. May be empty on older cards.",
                    "tensor_active_ratio",
                    RATIO,
                    1,
                ),
                profile(
                    "DRAM activity",
                    "Memory bandwidth in use: near 1, memory is the bound. May be empty on older cards.",
                    "dram_active_ratio",
                    RATIO,
                    1,
                ),
                profile(
                    "Memory in use",
                    "Lowest and highest GPU show an uneven split. May be empty where minutes are no longer kept.",
                    "memory_used_bytes",
                    "bytes",
                ),
                profile(
                    "Power",
                    "Power tells work from waiting where no other metric does. May be empty where minutes are "
                    "no longer kept.",
                    "power_watts",
                    "watt",
                ),
                table(
                    "Traffic now",
                    "PCIe and NVLink of the GPUs that it holds at this moment; may be empty when it is "
                    "over, or on older cards.",
                    """
                  SELECT n.name AS node, a.gpu_index AS "GPU", l.gpu_pcie_receive_bytes_per_second AS "PCIe in",
                      l.gpu_pcie_transmit_bytes_per_second AS "PCIe out",
                      l.gpu_nvlink_receive_bytes_per_second AS "NVLink in",
                      l.gpu_nvlink_transmit_bytes_per_second AS "NVLink out",
                      l.gpu_sm_occupancy_ratio AS "SM occupancy", to_timestamp(l.at_ms / 1000) AS "read at"
                  FROM gpu_latest l JOIN workload w ON w.id = l.workload_id AND w.key = ${workload:sqlstring}
                  JOIN accelerator a ON a.id = l.accelerator_id
                  LEFT JOIN capacity c ON c.accelerator_id = a.id AND c.out_ms IS NULL
                  LEFT JOIN node n ON n.id = c.node_id ORDER BY 1, 2 LIMIT 200
                  """,
                    "Bps",
                    width=24,
                    height=6,
                    overrides=(
                        column("node", unit="string", links=list(TO_NODE)),
                        column("GPU", unit="none"),
                        column("SM occupancy", unit=RATIO, decimals=1),
                        column("read at", unit="dateTimeAsIso"),
                    ),
                ),
            ),
        ),
    ),
    since="now-7d",
)
"""The page that a link from any table of workloads opens."""
