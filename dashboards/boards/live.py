"""The agents' and the collector's /metrics on a Prometheus data source, for those who have one
already.
"""

from __future__ import annotations

from dashboards.grafana import (
    COUNT,
    DURATION,
    GREEN,
    ORANGE,
    PROMETHEUS,
    RATIO,
    VERMILION,
    Board,
    Json,
    Panel,
    promql,
    series,
    source,
    stat,
)

GPU = '{node=~"$node", uuid=~"$uuid"}'
LANE = "{{node}} / {{gpu}}"
UNHEALTHY = f"count((gpu_health_status{GPU} >= 1) < 3) or 0 * count(gpu_health_status{GPU} < 3)"
"""Nothing where no health is known, before anything was scraped: unknown is not zero."""
MOST_LINES = 10


def held_by_team(chosen: str) -> str:
    """The GPUs that each team holds, of those that are chosen."""
    return (
        f'sum by (team) (label_replace(gpu_held_ratio{chosen}, "team", "(no team)", "team", "^$"))'
    )


def label(name: str, title: str, query: str) -> Json:
    """A variable with the values of a label."""
    return {
        "name": name,
        "label": title,
        "type": "query",
        "datasource": PROMETHEUS,
        "definition": query,
        "query": {"query": query, "refId": name},
        "hide": 0,
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "options": [],
        "refresh": 2,
        "regex": "",
        "skipUrlSync": False,
        "sort": 1,
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def highest(metric: str, by: str) -> str:
    """The series of a gauge with the highest means of the range: the same ones at every instant of
    a chart.
    """
    return f"{metric} and on ({by}) topk({MOST_LINES}, avg_over_time({metric}[$__range] @ end()))"


def gauge(title: str, description: str, name: str, unit: str, top: float | None = None) -> Panel:
    """A metric of the chosen GPUs, a line each for the highest ones."""
    return series(
        title,
        description,
        promql(highest(f"{name}{GPU}", "uuid"), LANE),
        unit,
        width=8,
        height=10,
        limits=(0, top),
    )


def rate(name: str, by: str = "") -> str:
    """Per second, over what Grafana finds enough scrapes."""
    return f"sum{f' by ({by})' if by else ''} (rate({name}[$__rate_interval]))"


BOARD = Board(
    "gpuledger-live",
    "Live metrics",
    "what do GPUs and collector do this minute?",
    "Metrics that Prometheus scrapes from agents and collector: seconds old, without cost.",
    (
        source("prometheus", "Prometheus", "prometheus"),
        label("node", "Node", "label_values(gpu_health_status, node)"),
        label("uuid", "GPU", 'label_values(gpu_health_status{node=~"$node"}, uuid)'),
    ),
    (
        (
            "Now",
            (
                stat(
                    "Accelerators",
                    "Accelerators that agents show.",
                    promql(f"count(gpu_health_status{GPU})", "accelerators"),
                    COUNT,
                ),
                stat(
                    "Held",
                    "Accelerators that a workload holds.",
                    promql(
                        f"count(count by (uuid) (gpu_held_ratio{GPU})) or 0 *"
                        f" count(gpu_health_status{GPU})",
                        "held",
                    ),
                    COUNT,
                ),
                stat(
                    "Degraded or failed",
                    "Degraded or failed accelerators.",
                    promql(UNHEALTHY, "degraded or failed"),
                    COUNT,
                    steps=((None, GREEN), (1, VERMILION)),
                ),
                stat(
                    "Power",
                    "Sum of the devices' power.",
                    promql(f"sum(gpu_power_watts{GPU})", "power"),
                    "watt",
                ),
                stat(
                    "Oldest batch waiting",
                    "Age of the oldest batch in an agent's spool.",
                    promql("max(gpuledger_agent_oldest_undelivered_seconds)", "age"),
                    DURATION,
                    steps=((None, GREEN), (300, ORANGE), (3600, VERMILION)),
                ),
                stat(
                    "Database",
                    "Whether the collector's last check of its database succeeded.",
                    promql("min(gpuledger_database_up)", "up"),
                    "bool_on_off",
                    steps=((None, VERMILION), (1, GREEN)),
                ),
            ),
        ),
        (
            "The ten highest GPUs of each metric",
            (
                gauge(
                    "Utilization",
                    "Part of the time in which a kernel ran.",
                    "gpu_utilization_ratio",
                    RATIO,
                    1,
                ),
                gauge(
                    "SM activity",
                    "Part of the multiprocessors at work (profiling).",
                    "gpu_sm_active_ratio",
                    RATIO,
                    1,
                ),
                gauge(
                    "Tensor activity",
                    "Share of cycles in which tensor cores worked.",
                    "gpu_tensor_active_ratio",
                    RATIO,
                    1,
                ),
                gauge(
                    "Memory in use",
                    "Without what the driver reserves.",
                    "gpu_memory_used_bytes",
                    "bytes",
                ),
                gauge("Power", "Of the whole board.", "gpu_power_watts", "watt"),
                gauge(
                    "Temperature", "Of the core of the GPU.", "gpu_temperature_celsius", "celsius"
                ),
                series(
                    "Held GPUs, by team",
                    "By the tag `team` of the workloads that hold them. Teams that hold none of the"
                    " chosen are at 0: so each keeps its color.",
                    promql(f"{held_by_team(GPU)} or {held_by_team('')} * 0", "{{team}}"),
                    COUNT,
                    width=12,
                    height=9,
                    stacked=True,
                ),
                series(
                    "Errors and odd allocations",
                    "GPUs that are not healthy, that are allocated without a process or used"
                    " without an allocation; and Xid and uncorrected ECC errors in an hour, for"
                    " cards that had any.",
                    (
                        promql(UNHEALTHY, "degraded or failed"),
                        promql(
                            f"sum(gpu_allocated_without_process{GPU})",
                            "allocated without a process",
                        ),
                        promql(
                            f"sum(gpu_used_without_allocation{GPU})", "used without an allocation"
                        ),
                        promql(
                            f"topk({MOST_LINES}, sum by (node, gpu)"
                            f" (increase(gpu_xid_errors_total{GPU}[1h])) > 0)",
                            f"Xid {LANE}",
                        ),
                        promql(
                            f"topk({MOST_LINES}, sum by (node, gpu) "
                            f"(increase(gpu_ecc_uncorrected_volatile_total{GPU}[1h])) > 0)",
                            f"ECC {LANE}",
                        ),
                    ),
                    COUNT,
                    width=12,
                    height=9,
                    decimals=0,
                ),
            ),
        ),
        (
            "Agents (batches that wait or are lost)",
            (
                series(
                    "Batches waiting",
                    "In the ten fullest spools of agents.",
                    promql(highest("gpuledger_agent_batches_pending", "instance"), "{{instance}}"),
                    COUNT,
                    width=8,
                ),
                series(
                    "Batches lost",
                    "Batches that agents dropped or that the collector refuses for good, in an"
                    " hour.",
                    (
                        promql(
                            "sum(increase(gpuledger_agent_batches_dropped_total[1h]))", "dropped"
                        ),
                        promql("sum(increase(gpuledger_agent_batches_dead_total[1h]))", "dead"),
                    ),
                    COUNT,
                    width=8,
                    decimals=0,
                ),
                series(
                    "CPU use of agents",
                    "CPU seconds per second: the median of the agents, and the highest.",
                    (
                        promql(
                            "quantile(0.5,"
                            " rate(gpuledger_agent_cpu_seconds_total[$__rate_interval]))",
                            "median",
                        ),
                        promql(
                            "max(rate(gpuledger_agent_cpu_seconds_total[$__rate_interval]))",
                            "highest",
                        ),
                    ),
                    RATIO,
                    width=8,
                ),
            ),
        ),
        (
            "Collector",
            (
                series(
                    "Batches per second, by answer",
                    "committed and duplicate are well; refused and unavailable are not.",
                    promql(rate("gpuledger_ingest_batches_total", "status"), "{{status}}"),
                    "reqps",
                    width=8,
                    stacked=True,
                ),
                series(
                    "Answer latency",
                    "Median and 99th percentile.",
                    (
                        promql(
                            "histogram_quantile(0.5,"
                            f" {rate('gpuledger_ingest_answer_seconds_bucket', 'le')}) >= 0",
                            "half",
                        ),
                        promql(
                            "histogram_quantile(0.99,"
                            f" {rate('gpuledger_ingest_answer_seconds_bucket', 'le')}) >= 0",
                            "99 of 100",
                        ),
                    ),
                    "s",
                    width=8,
                ),
                series(
                    "Runs of jobs, by outcome",
                    "Ended runs in an hour; what failed is named by its job.",
                    (
                        promql(
                            'sum(increase(gpuledger_job_runs_total{outcome="done"}[1h]))', "done"
                        ),
                        promql(
                            "sum by (exported_job, outcome)"
                            ' (increase(gpuledger_job_runs_total{outcome!="done"}[1h])) > 0',
                            "{{exported_job}} {{outcome}}",
                        ),
                    ),
                    COUNT,
                    width=8,
                    decimals=0,
                ),
            ),
        ),
    ),
    collapsed=("Agents (batches that wait or are lost)",),
    since="now-1h",
    refresh="30s",
)
"""The tenth board."""
