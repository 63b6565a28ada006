"""The agents' and the collector's /metrics on a Prometheus data source, for those who have one already."""

from __future__ import annotations

from dashboards.grafana import (
    COUNT,
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


def gauge(title: str, description: str, name: str, unit: str, top: float | None = None) -> Panel:
    """A metric of the chosen GPUs, a line each."""
    return series(title, description, promql(f"{name}{GPU}", LANE), unit, width=8, limits=(0, top))


def rate(name: str, by: str = "") -> str:
    """Per second, over what Grafana finds enough scrapes."""
    return f"sum{f' by ({by})' if by else ''} (rate({name}[$__rate_interval]))"


BOARD = Board(
    "gpuledger-live",
    "GPU Ledger / Live metrics (Prometheus)",
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
                stat("GPUs", "Accelerators that agents show.", promql(f"count(gpu_health_status{GPU})", "GPUs"), COUNT),
                stat(
                    "Held",
                    "Accelerators that a workload holds.",
                    promql(f"count(count by (uuid) (gpu_held_ratio{GPU}))", "held"),
                    COUNT,
                ),
                stat(
                    "Unhealthy",
                    "Degraded or failed accelerators.",
                    promql(f"count((gpu_health_status{GPU} >= 1) < 3) or vector(0)", "not healthy"),
                    COUNT,
                    steps=((None, GREEN), (1, VERMILION)),
                ),
                stat("Power", "Sum of the devices' power.", promql(f"sum(gpu_power_watts{GPU})", "power"), "watt"),
                stat(
                    "Oldest undelivered batch",
                    "Age of the oldest batch in an agent's spool.",
                    promql("max(gpuledger_agent_oldest_undelivered_seconds)", "age"),
                    "s",
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
            "GPUs",
            (
                gauge("Utilization", "Part of the time in which a kernel ran.", "gpu_utilization_ratio", RATIO, 1),
                gauge(
                    "SM activity", "Part of the multiprocessors at work (profiling).", "gpu_sm_active_ratio", RATIO, 1
                ),
                gauge(
                    "Tensor activity",
                    "Share of cycles in which tensor cores worked.",
                    "gpu_tensor_active_ratio",
                    RATIO,
                    1,
                ),
                gauge("Memory in use", "Without what the driver reserves.", "gpu_memory_used_bytes", "bytes"),
                gauge("Power", "Of the whole board.", "gpu_power_watts", "watt"),
                gauge("Temperature", "Of the core of the GPU.", "gpu_temperature_celsius", "celsius"),
                series(
                    "Held GPUs, by team",
                    "By the tag `team` of the workloads that hold them.",
                    promql('sum by (team) (gpu_held_ratio{node=~"$node", uuid=~"$uuid"})', "{{team}}"),
                    COUNT,
                    width=12,
                    stacked=True,
                ),
                series(
                    "Error counters",
                    "Xid errors and uncorrected ECC errors in an hour.",
                    (
                        promql(f"sum by (node, gpu) (increase(gpu_xid_errors_total{GPU}[1h]))", f"Xid {LANE}"),
                        promql(
                            f"sum by (node, gpu) (increase(gpu_ecc_uncorrected_volatile_total{GPU}[1h]))", f"ECC {LANE}"
                        ),
                    ),
                    COUNT,
                    width=12,
                ),
            ),
        ),
        (
            "Agents",
            (
                series(
                    "Batches waiting",
                    "In each agent's spool.",
                    promql("gpuledger_agent_batches_pending", "{{instance}}"),
                    COUNT,
                    width=8,
                ),
                series(
                    "Batches lost",
                    "Dropped and dead batches in an hour.",
                    (
                        promql(
                            "sum by (instance) (increase(gpuledger_agent_batches_dropped_total[1h]))",
                            "dropped {{instance}}",
                        ),
                        promql(
                            "sum by (instance) (increase(gpuledger_agent_batches_dead_total[1h]))", "dead {{instance}}"
                        ),
                    ),
                    COUNT,
                    width=8,
                ),
                series(
                    "CPU use of agents",
                    "CPU seconds per second of each agent.",
                    promql("rate(gpuledger_agent_cpu_seconds_total[$__rate_interval])", "{{instance}}"),
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
                            f"histogram_quantile(0.5, {rate('gpuledger_ingest_answer_seconds_bucket', 'le')})", "half"
                        ),
                        promql(
                            f"histogram_quantile(0.99, {rate('gpuledger_ingest_answer_seconds_bucket', 'le')})",
                            "99 of 100",
                        ),
                    ),
                    "s",
                    width=8,
                ),
                series(
                    "Runs of jobs, by outcome",
                    "Ended runs per hour.",
                    promql(
                        "sum by (exported_job, outcome) (increase(gpuledger_job_runs_total[1h]))",
                        "{{exported_job}} {{outcome}}",
                    ),
                    COUNT,
                    width=8,
                ),
            ),
        ),
    ),
    since="now-3h",
    refresh="30s",
)
"""The tenth board."""
