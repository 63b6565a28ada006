"""One workload: what it cost, and what the GPUs did while it held them."""

from __future__ import annotations

from dashboards.grafana import (
    BLUE,
    COUNT,
    EXACT,
    GREEN,
    MODEL_WIDTH,
    MONEY,
    ORANGE,
    RATIO,
    SKY,
    VERMILION,
    Board,
    Panel,
    band,
    chosen,
    color,
    column,
    link,
    series,
    stat,
    table,
)
from dashboards.sql import (
    ACTIVITY_COSTS,
    CHARGES,
    CORRECTION,
    CURRENCY,
    DAY_MS,
    FROM_MS,
    GPU_HOUR_NS,
    MICRO,
    OWN,
    STEPS,
    TO_MS,
    currency,
    datasource,
    date,
    errors,
    in_range,
    midnight_utc,
    other_currencies,
)

OFFERS = 500
OFFERED = f"""
    WITH held AS (
        SELECT l.id, (SELECT sum(c.gpu_ns) FROM charge c WHERE c.workload_id = l.id) AS gpu_ns
        FROM (SELECT DISTINCT workload_id AS id FROM gpu_latest WHERE state = 'held' AND workload_id IS NOT NULL) l
    ), offered AS (
        SELECT id, gpu_ns FROM held UNION ALL (SELECT w.id, NULL FROM workload w
            WHERE NOT EXISTS (SELECT FROM held WHERE held.id = w.id) ORDER BY w.id DESC LIMIT {OFFERS})
    )
    SELECT w.key AS __value, concat_ws(' · ', nullif(w.name, ''), nullif(w.user_name, ''), w.key) AS __text
    FROM offered JOIN workload w USING (id) ORDER BY offered.gpu_ns DESC NULLS LAST, w.id DESC LIMIT {OFFERS}
"""
"""Those that run now, the most GPU-hours first, then the newest: the first one fills every panel.

An address may name an older one, so the list is not asked for again when the range changes.
"""
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
        WHERE u.hour_ms > {FROM_MS} - 3600000 AND u.hour_ms < {TO_MS}
    )
"""
"""The hours in which it held each accelerator."""
PREFERRED = "ARRAY['tokens', 'steps', 'samples', 'epochs']"
YEAR_MS = 365 * DAY_MS
SCALING = f"""
    WITH named AS (
        SELECT DISTINCT w.name, l.gpu_model, coalesce(o.team, '') AS team
        FROM {CHARGES} l {MINE} LEFT JOIN owner o ON o.id = l.owner_id WHERE {RANGE} AND w.name <> ''
    ), run AS (
        SELECT l.workload_id, l.gpu_model, count(DISTINCT l.accelerator_id) AS gpus,
            sum(l.cost_micro) / sum(l.gpu_ns) * {GPU_HOUR_NS} AS micro_per_gpu_hour
        FROM {CHARGES} l JOIN workload p ON p.id = l.workload_id LEFT JOIN owner o ON o.id = l.owner_id
        JOIN named n ON n.name = p.name AND n.gpu_model = l.gpu_model AND n.team = coalesce(o.team, '')
        WHERE l.day_ms > {TO_MS} - {YEAR_MS} AND l.day_ms < {TO_MS} AND {CURRENCY} AND l.accelerator_id IS NOT NULL
        GROUP BY 1, 2 HAVING sum(l.gpu_ns) > 0
    ), counted AS (
        SELECT run.*, s.counter, sum(h.units) AS units, sum(h.covered_ms) / 3600000.0 AS hours
        FROM run JOIN counter_series s ON s.workload_id = run.workload_id AND s.via = 'reported'
        JOIN counter_hour h ON h.series_id = s.id AND h.hour_ms > {TO_MS} - {YEAR_MS} AND h.hour_ms < {TO_MS}
        GROUP BY run.workload_id, run.gpu_model, run.gpus, run.micro_per_gpu_hour, s.counter
        HAVING sum(h.units) > 0 AND sum(h.covered_ms) > 0
    ), compared AS (
        SELECT counter FROM counted GROUP BY 1 HAVING count(DISTINCT gpus) > 1
        ORDER BY count(DISTINCT gpus) DESC, array_position({PREFERRED}, counter) LIMIT 1
    ), size AS (
        SELECT gpu_model, gpus, count(*) AS runs, counter,
            percentile_cont(0.5) WITHIN GROUP (ORDER BY hours * 3600 / units) AS seconds,
            percentile_cont(0.5) WITHIN GROUP (ORDER BY micro_per_gpu_hour * gpus * hours / units) / {MICRO} AS cost,
            percentile_cont(0.5) WITHIN GROUP (ORDER BY units / hours / gpus) AS rate,
            min(units / hours / gpus) AS lowest, max(units / hours / gpus) AS highest
        FROM counted JOIN compared USING (counter) GROUP BY gpu_model, gpus, counter
    ), fewest AS (SELECT DISTINCT ON (gpu_model) gpu_model, rate FROM size ORDER BY gpu_model, gpus)
    SELECT size.gpus AS "GPUs", size.runs, rtrim(size.counter, 's') AS unit, size.seconds AS "seconds a unit",
        size.cost AS "cost of a unit", size.rate / fewest.rate AS efficiency, size.lowest / fewest.rate AS lowest,
        size.highest / fewest.rate AS highest, size.gpu_model AS model
    FROM size JOIN fewest USING (gpu_model) ORDER BY size.gpu_model, size.gpus
"""
"""Runs of its name, team and model in a year, by their number of GPUs: medians, and efficiency
against the fewest.

As `gpuledger runs --scaling` compares them, for counters that runs report of themselves.
"""
TO_NODE = (
    link(
        "This node",
        "gpuledger-node",
        "var-node=${__data.fields.node:percentencode}",
        keep=("datasource",),
    ),
)
DAY_OR_START = (
    f'greatest({midnight_utc(date("l.day_ms"))}, to_timestamp({FROM_MS} / 1000)) AS "time"'
)
"""A day's midnight; of the first day, where the range begins, which may be an instant of that day.
"""


def profile(title: str, description: str, name: str, unit: str, top: float | None = None) -> Panel:
    """Mean, lowest and highest GPU of the workload over time."""
    query = f"""
        WITH {HOURS_HELD}, gpu AS (
            SELECT floor(m.minute_ms / ($__interval_ms)) * ($__interval_ms) / 1000 AS at, m.accelerator_id,
                avg(m.{name}) AS value
            FROM held JOIN gpu_minute m ON m.accelerator_id = held.accelerator_id
                AND m.minute_ms >= held.hour_ms AND m.minute_ms < held.hour_ms + 3600000
            WHERE m.{name} IS NOT NULL AND {in_range("m.minute_ms")} GROUP BY 1, 2
        )
        SELECT to_timestamp(step.at_ms / 1000.0) AS "time", avg(value) AS mean, min(value) AS "lowest GPU",
            max(value) AS "highest GPU"
        FROM {STEPS} LEFT JOIN gpu ON gpu.at * 1000 = step.at_ms GROUP BY 1 ORDER BY 1
    """
    return series(
        title,
        description,
        query,
        unit,
        width=8,
        interval="1m",
        limits=(0, top),
        overrides=(color("mean", BLUE), *band("lowest GPU", "highest GPU", SKY)),
    )


BOARD = Board(
    "gpuledger-workload",
    "Workload",
    "what did it cost, and did its GPUs work?",
    "What one workload cost and what its GPUs did meanwhile. Where several share a GPU, activity is"
    " that of all.",
    (
        datasource(),
        currency(),
        chosen("workload", "Workload", OFFERED, many=False, on_range=False),
    ),
    (
        (
            "What it cost",
            (
                stat(
                    "Cost ($currency)",
                    "Charges of the days that the range touches.",
                    f"SELECT sum(l.cost_micro) / {MICRO} AS cost FROM {CHARGES} l {MINE} WHERE"
                    f" {RANGE} AND {CURRENCY}",
                    MONEY,
                    decimals=2,
                ),
                stat(
                    "Held idle cost ($currency)",
                    "The part paid for GPUs that did nothing.",
                    f"SELECT sum(l.idle_cost_micro) / {MICRO} AS cost FROM {CHARGES} l {MINE} "
                    f"WHERE {RANGE} AND {CURRENCY}",
                    MONEY,
                    decimals=2,
                ),
                stat(
                    "GPU-hours",
                    "Held, busy or not.",
                    f"SELECT sum(l.gpu_ns) / {GPU_HOUR_NS} AS hours FROM {CHARGES} l {MINE} WHERE"
                    f" {RANGE} AND {OWN}",
                    EXACT,
                    decimals=1,
                    width=3,
                ),
                stat(
                    "Busy part",
                    "Busy hours over the hours whose activity is known.",
                    "SELECT sum(l.busy_ns) / nullif(sum(l.busy_ns + l.idle_ns), 0) AS part "
                    f"FROM {CHARGES} l {MINE} WHERE {RANGE} AND {OWN}",
                    RATIO,
                    decimals=1,
                    limits=(0, 1),
                    steps=((None, VERMILION), (0.5, ORANGE), (0.75, GREEN)),
                    width=3,
                ),
                stat(
                    "GPUs",
                    "Different accelerators that it held.",
                    f"SELECT count(DISTINCT l.accelerator_id) AS gpus FROM {CHARGES} l {MINE} WHERE"
                    f" {RANGE}",
                    COUNT,
                    width=3,
                ),
                stat(
                    "Energy",
                    "Its share of what its GPUs drew.",
                    f"SELECT sum(l.energy_mj) / 3.6e9 AS energy FROM {CHARGES} l {MINE} WHERE"
                    f" {RANGE}",
                    "kwatth",
                    decimals=2,
                    width=3,
                ),
                other_currencies(RANGE, lines=f"{CHARGES} l {MINE}"),
            ),
        ),
        (
            "What it is",
            (
                table(
                    "The workload",
                    "Its names and tags, and who is charged for it. Until is now at the latest.",
                    f"""
                  SELECT w.key AS workload, coalesce(w.name, w.external_id) AS name, w.kind, w.user_name AS "user",
                      w.account,
                      (SELECT string_agg(t.key || '=' || t.value, ', ' ORDER BY t.key)
                          FROM jsonb_each_text(w.tags) t) AS tags, o.team, o.project,
                      min(to_timestamp(l.start_ms / 1000)) AS "from",
                      least(max(to_timestamp(l.end_ms / 1000)), now()) AS "until"
                  FROM {CHARGES} l {MINE} LEFT JOIN owner o ON o.id = l.owner_id WHERE {RANGE}
                  GROUP BY w.id, o.id ORDER BY 9
                  """,
                    "string",
                    width=24,
                    height=4,
                    overrides=(
                        *(column(name, width=140) for name in ("workload", "name")),
                        *(column(name, width=85) for name in ("kind", "user", "account", "team")),
                        column("project", width=140),
                        *(
                            column(name, unit="time:YYYY-MM-DD HH:mm", width=140)
                            for name in ("from", "until")
                        ),
                    ),
                ),
                series(
                    "Cost a day ($currency)",
                    "Its charges by activity, without corrections of closed months, which the table"
                    " beside has.",
                    f"""
                   SELECT {DAY_OR_START}, s.name AS metric, sum(s.cost) / {MICRO} AS cost
                   FROM {CHARGES} l {MINE}, {ACTIVITY_COSTS}
                   WHERE {RANGE} AND {CURRENCY} AND {OWN} AND s.cost <> 0 GROUP BY 1, 2 ORDER BY 1, 2
                   """,
                    EXACT,
                    width=11,
                    bars=True,
                    stacked=True,
                    interval="1d",
                    decimals=2,
                    order=("busy", "idle", "activity unknown", "node costs", "adjustments"),
                ),
                table(
                    "By GPU ($currency)",
                    "Each GPU that it held; a row without a GPU is its part of a node's costs or an"
                    " adjustment.",
                    f"""
                  SELECT l.node, a.gpu_index AS "GPU", sum(l.cost_micro) / {MICRO} AS cost,
                      nullif(sum(l.gpu_ns), 0) / {GPU_HOUR_NS} AS "GPU-hours",
                      sum(l.idle_ns) / nullif(sum(l.busy_ns + l.idle_ns), 0) AS "idle part", {CORRECTION},
                      l.gpu_model AS model
                  FROM {CHARGES} l {MINE} LEFT JOIN accelerator a ON a.id = l.accelerator_id
                  WHERE {RANGE} AND {CURRENCY} GROUP BY 1, 2, l.gpu_model, l.correction_of
                  ORDER BY 3 DESC NULLS LAST, 1, 2 LIMIT 200
                  """,
                    MONEY,
                    width=13,
                    height=8,
                    decimals=2,
                    overrides=(
                        column("node", unit="string", links=list(TO_NODE), width=75),
                        column("GPU", unit="none", decimals=0, width=45),
                        column("cost", width=85),
                        column("GPU-hours", decimals=1, width=87),
                        column("idle part", unit=RATIO, decimals=1, width=72),
                        column("correction of", unit="string", width=102),
                    ),
                ),
            ),
        ),
        (
            "What its GPUs did",
            (
                profile(
                    "Utilization",
                    "Part of the time in which a kernel ran; mean, lowest and highest GPU. May be"
                    " empty where minutes are no longer kept.",
                    "utilization_ratio",
                    RATIO,
                    1,
                ),
                profile(
                    "SM activity",
                    "Multiprocessors at work: the best single sign of use. May be empty on older"
                    " cards.",
                    "sm_active_ratio",
                    RATIO,
                    1,
                ),
                profile(
                    "Tensor activity",
                    "Low for training in mixed precision means a bottleneck elsewhere. May be empty"
                    " on older cards.",
                    "tensor_active_ratio",
                    RATIO,
                    1,
                ),
                profile(
                    "DRAM activity",
                    "Memory bandwidth in use: near 1, memory is the bound. May be empty on older"
                    " cards.",
                    "dram_active_ratio",
                    RATIO,
                    1,
                ),
                profile(
                    "Memory in use",
                    "Lowest and highest GPU show an uneven split. May be empty where minutes are no"
                    " longer kept.",
                    "memory_used_bytes",
                    "bytes",
                ),
                profile(
                    "Power",
                    "Power tells work from waiting where no other metric does. May be empty where"
                    " minutes are no longer kept.",
                    "power_watts",
                    "watt",
                ),
            ),
        ),
        (
            "Traffic of its GPUs",
            (
                table(
                    "Traffic now",
                    "PCIe and NVLink of the GPUs that it holds at this moment; may be empty when it"
                    " is over, or on older cards.",
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
                        column("node", unit="string", links=list(TO_NODE), width=90),
                        column("GPU", unit="none", width=50),
                        column("SM occupancy", unit=RATIO, decimals=1),
                        column("read at", unit="time:YYYY-MM-DD HH:mm", width=140),
                    ),
                ),
            ),
        ),
        (
            "How runs of its name scale",
            (
                table(
                    "By number of GPUs ($currency)",
                    "Runs of its name, team and model in the year before the range's end: time and"
                    " cost of a step (or of another unit that they report), and output per GPU"
                    " against the fewest GPUs. May be empty where runs report no progress, or all"
                    " had equally many GPUs.",
                    SCALING,
                    EXACT,
                    width=24,
                    height=6,
                    overrides=(
                        column("GPUs", unit="none", decimals=0, width=70),
                        column("runs", unit="none", decimals=0, width=70),
                        column("unit", unit="string", width=90),
                        column("seconds a unit", unit="none", decimals=3),
                        column("cost of a unit", decimals=6),
                        *(
                            column(name, unit=RATIO, decimals=1)
                            for name in ("efficiency", "lowest", "highest")
                        ),
                        column("model", unit="string", width=MODEL_WIDTH),
                    ),
                ),
            ),
        ),
    ),
    collapsed=("Traffic of its GPUs", "How runs of its name scale"),
    since="now-2d",
    annotations=errors(
        f"a.id IN (SELECT l.accelerator_id FROM charge l {MINE})",
        f"EXISTS (SELECT FROM charge l {MINE} WHERE l.accelerator_id = a.id AND s.at_ms >= l.start_ms"
        " AND s.at_ms < l.end_ms)",
    ),
)
"""The page that a link from any table of workloads opens."""
