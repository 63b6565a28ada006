"""One node, one GPU: every metric that is kept, by tier, and who held it."""

from __future__ import annotations

from dashboards.grafana import COUNT, RATIO, Board, Panel, chosen, column, link, series, stat, table, timeline
from dashboards.sql import ACCELERATORS, between, datasource, node, picked
from gpuledger_common.catalog import HOT, METRICS

THERE = f"({ACCELERATORS}) a"
CHOSEN = f"{picked('a.node', 'node')} AND {picked('a.uuid', 'accelerator')}"
LANE = "coalesce(a.node, '?') || ' / ' || coalesce(a.gpu_index::text, a.uuid)"
MINUTES = between("m.minute_ms")
HOT_NAMES = tuple(metric.name for metric in HOT)
TO_WORKLOAD = (link("This workload", "gpuledger-workload", "var-workload=${__data.fields.workload}"),)


def rolled(title: str, description: str, name: str, unit: str, *, width: int = 8, top: float | None = None) -> Panel:
    """A minute rollup of the chosen accelerators, a line each."""
    query = f"""
        SELECT $__unixEpochGroupAlias(m.minute_ms / 1000, $__interval), {LANE} AS metric, avg(m.{name}) AS value
        FROM {THERE} JOIN gpu_minute m ON m.accelerator_id = a.id
        WHERE {CHOSEN} AND {MINUTES} AND m.{name} IS NOT NULL GROUP BY 1, 2 ORDER BY 1, 2
    """
    return series(title, description, query, unit, width=width, interval="1m", limits=(0, top))


def newest(title: str, description: str, tiers: tuple[str, ...]) -> Panel:
    """The newest sample of the chosen accelerators, a row a metric."""
    names = [metric.name for metric in METRICS if metric.tier in tiers and metric.name in HOT_NAMES]
    units = {metric.name: metric.unit for metric in HOT}
    values = ", ".join(f"('{name}', '{units[name]}', l.{name}::float8)" for name in names)
    query = f"""
        SELECT {LANE} AS "GPU", s.metric, s.value, s.unit, to_timestamp(l.at_ms / 1000) AS "read at"
        FROM {THERE} JOIN gpu_latest l ON l.accelerator_id = a.id,
            LATERAL (VALUES {values}) s (metric, unit, value)
        WHERE {CHOSEN} AND s.value IS NOT NULL ORDER BY 1, 2 LIMIT 1000
    """
    return table(
        title,
        description,
        query,
        "none",
        width=8,
        height=12,
        overrides=(column("read at", unit="dateTimeAsIso"), column("value", unit="short", decimals=3)),
    )


BOARD = Board(
    "gpuledger-node",
    "GPU Ledger / Node and GPU",
    "All data of the selected GPUs. Select a node first: there is one line per GPU.",
    (
        datasource(),
        node(),
        chosen(
            "accelerator",
            "GPU",
            f"SELECT a.uuid FROM {THERE} WHERE {picked('a.node', 'node')} ORDER BY a.node, a.gpu_index, 1 LIMIT 1000",
        ),
    ),
    (
        (
            "Holders",
            (
                timeline(
                    "State by hour",
                    "The prevailing state of each hour: busy or idle while held, or not held. At most 64 GPUs.",
                    f"""
                     WITH few AS (SELECT a.id, {LANE} AS lane FROM {THERE} WHERE {CHOSEN} ORDER BY 2 LIMIT 64)
                     SELECT DISTINCT ON (u.hour_ms, few.lane) to_timestamp(u.hour_ms / 1000) AS "time",
                         few.lane AS metric, s.state
                     FROM few JOIN usage_hour u ON u.accelerator_id = few.id,
                         LATERAL (VALUES (CASE WHEN u.state = 'held' THEN 'busy' ELSE u.state END,
                                 CASE WHEN u.state = 'held' THEN u.busy_ms ELSE u.held_ms END),
                             ('idle', u.idle_ms), ('activity unknown', u.unknown_ms)) s (state, ms)
                     WHERE {between("u.hour_ms")} ORDER BY u.hour_ms, few.lane, s.ms DESC
                     """,
                    interval="1h",
                ),
                table(
                    "Holders",
                    "Workloads that held the selected GPUs in the range, longest first.",
                    f"""
                  SELECT {LANE} AS "GPU", w.key AS workload, w.user_name AS "user", sum(u.held_ms) / 1000.0 AS held,
                      sum(u.busy_ms) / 1000.0 AS busy, sum(u.idle_ms) / 1000.0 AS idle
                  FROM {THERE} JOIN usage_hour u ON u.accelerator_id = a.id JOIN workload w ON w.id = u.workload_id
                  WHERE {CHOSEN} AND {between("u.hour_ms")} GROUP BY 1, 2, 3 ORDER BY 4 DESC, 1, 2 LIMIT 200
                  """,
                    "s",
                    width=16,
                    overrides=(
                        column("GPU", unit="string"),
                        column("workload", unit="string", links=list(TO_WORKLOAD)),
                    ),
                ),
                table(
                    "Selected GPUs",
                    "Model and location of the selected GPUs.",
                    f"""
                  SELECT a.node, a.gpu_index AS "GPU", a.model, a.pool, a.health, a.memory_bytes AS memory, a.uuid
                  FROM {THERE} WHERE {CHOSEN} ORDER BY 1, 2, 7 LIMIT 200
                  """,
                    COUNT,
                    width=8,
                    overrides=(column("GPU", unit="none"), column("memory", unit="bytes")),
                ),
            ),
        ),
        (
            "Activity, minute by minute",
            (
                rolled("Utilization", "Part of the time in which a kernel ran.", "utilization_ratio", RATIO, top=1),
                rolled(
                    "SM activity",
                    "Share of multiprocessors at work; from profiling, by NVML on Hopper and later. May be "
                    "empty on older cards.",
                    "sm_active_ratio",
                    RATIO,
                    top=1,
                ),
                rolled(
                    "Tensor activity",
                    "Share of cycles in which tensor cores worked; may be empty on older GPUs.",
                    "tensor_active_ratio",
                    RATIO,
                    top=1,
                ),
                rolled(
                    "DRAM activity",
                    "Share of the memory bandwidth in use; may be empty on older GPUs.",
                    "dram_active_ratio",
                    RATIO,
                    top=1,
                ),
                rolled("Memory in use", "Without what the driver reserves.", "memory_used_bytes", "bytes"),
                rolled("Power", "Mean over the minute; a MIG instance reads its whole board.", "power_watts", "watt"),
                rolled("Temperature", "Of the GPU's core.", "temperature_celsius", "celsius", width=12),
                stat(
                    "Energy",
                    "From the GPUs' own counters, per hour.",
                    f"SELECT sum(u.energy_mj) / 3.6e9 AS energy FROM {THERE} JOIN usage_hour u ON u.accelerator_id "
                    f"= a.id "
                    f"WHERE {CHOSEN} AND {between('u.hour_ms')}",
                    "kwatth",
                    width=12,
                    height=8,
                    decimals=2,
                ),
            ),
        ),
        (
            "Latest reading of every metric",
            (
                newest("Fast tier", "Read at every sample.", ("fast",)),
                newest("Profiling tier", "Hopper and later by NVML; may be empty on older cards.", ("gpm",)),
                table(
                    "Slow, static and event tiers",
                    "Stored when they change; the latest value of each. May be empty until the first slow round.",
                    f"""
                  SELECT {LANE} AS "GPU", s.metric, s.value, to_timestamp(s.at_ms / 1000) AS "since"
                  FROM {THERE} CROSS JOIN LATERAL (SELECT DISTINCT ON (metric) metric, value, at_ms FROM gpu_state
                      WHERE accelerator_id = a.id ORDER BY metric, at_ms DESC) s
                  WHERE {CHOSEN} ORDER BY 1, 2 LIMIT 1000
                  """,
                    "none",
                    width=8,
                    height=12,
                    overrides=(column("since", unit="dateTimeAsIso"), column("value", unit="short", decimals=3)),
                ),
            ),
        ),
    ),
    since="now-6h",
    refresh="1m",
)
"""From the fleet to one card."""
