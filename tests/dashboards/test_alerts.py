"""Alert rules for Prometheus: each fires on its fault, none on a healthy fleet, and each has a page
that helps.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from dashboards.boards.runbooks import PAGES, address, content, list_alerts

from fakes.runbooks import assert_runbook
from gpuledger_collector.api.metrics import Metrics
from gpuledger_collector.api.scaling_gauge import ScalingGauge
from gpuledger_common.catalog import BY_NAME

ROOT = Path(__file__).parents[2]
RULES = ROOT / "dashboards" / "alerts" / "prometheus.yml"
ALERTS = {
    rule["alert"]: rule
    for group in yaml.safe_load(RULES.read_text())["groups"]
    for rule in group["rules"]
}
AGENT = 'instance="n1:9440", job="gpuledger-agent"'
COLLECTOR = 'instance="c:8440", job="gpuledger-collector"'
GPU = 'uuid="GPU-1", gpu="0", model="H100", node="n1", mig_instance="", ' + AGENT
OTHER = GPU.replace("GPU-1", "GPU-2").replace('gpu="0"', 'gpu="1"')
HELD = (
    'uuid="GPU-1", node="n1", workload="7", kind="slurm", user="ann", account="", team="nlp",'
    ' project="", ' + AGENT
)
HEALTHY = {
    f"up{{{AGENT}}}": "1x400",
    f"up{{{COLLECTOR}}}": "1x400",
    f"gpuledger_agent_ticks_total{{{AGENT}}}": "0+6x400",
    f"gpuledger_agent_batches_dropped_total{{{AGENT}}}": "0x400",
    f"gpuledger_agent_batches_dead_total{{{AGENT}}}": "2x400",
    f"gpuledger_agent_oldest_undelivered_seconds{{{AGENT}}}": "30x400",
    f"gpuledger_agent_conservation_violation{{{AGENT}}}": "0x400",
    f"gpu_health_status{{{GPU}}}": "0x400",
    f"gpu_health_status{{{OTHER}}}": "3x400",
    f"gpu_xid_errors_total{{{GPU}}}": "1x400",
    f"gpu_ecc_uncorrected_volatile_total{{{GPU}}}": "0x400",
    f"gpu_temperature_celsius{{{GPU}}}": "71x400",
    f"gpu_utilization_ratio{{{GPU}}}": "0x100 0.9x5 0x295",
    f"gpu_held_ratio{{{HELD}}}": "_x60 1x340",
    f"gpuledger_database_up{{{COLLECTOR}}}": "1x400",
    f"gpuledger_jobs_leader{{{COLLECTOR}}}": "1x400",
    f'gpuledger_job_runs_total{{exported_job="fold_usage", outcome="done", {COLLECTOR}}}': (
        "0+2x400"
    ),
    f'gpuledger_job_runs_total{{exported_job="fold_usage", outcome="unavailable", {COLLECTOR}}}': (
        "0x100 1x300"
    ),
    f'gpuledger_ingest_batches_total{{status="committed", {COLLECTOR}}}': "0+9x400",
    f'gpuledger_ingest_batches_total{{status="refused", {COLLECTOR}}}': "3x400",
    f'gpuledger_ingest_batches_total{{status="unavailable", {COLLECTOR}}}': "0x400",
    f'gpuledger_ingest_answer_seconds_bucket{{le="0.05", {COLLECTOR}}}': "0+9x400",
    f'gpuledger_ingest_answer_seconds_bucket{{le="5.0", {COLLECTOR}}}': "0+9x400",
    f'gpuledger_ingest_answer_seconds_bucket{{le="+Inf", {COLLECTOR}}}': "0+9x400",
    f"gpuledger_ingest_contested_accelerators_total{{{COLLECTOR}}}": "0x400",
    f'gpuledger_scaling_desired_gpus{{pool="train", {COLLECTOR}}}': "8x100 12x300",
    f'gpuledger_scaling_desired_gpus{{pool="gone", {COLLECTOR}}}': "8x60 stale",
}
"""A fleet of one node, a sample a minute; the last look is at minute 240."""
LOOK = "200m"
FAULTS = {
    "GpuLedgerAgentDown": {f"up{{{AGENT}}}": "1x190 0x210"},
    "GpuLedgerAgentStuck": {f"gpuledger_agent_ticks_total{{{AGENT}}}": "0+6x180 1080x220"},
    "GpuLedgerBatchesLost": {f"gpuledger_agent_batches_dropped_total{{{AGENT}}}": "0x195 4x205"},
    "GpuLedgerDeliveryLate": {
        f"gpuledger_agent_oldest_undelivered_seconds{{{AGENT}}}": "30x150 0+60x250"
    },
    "GpuLedgerConservationViolated": {
        f"gpuledger_agent_conservation_violation{{{AGENT}}}": "0x190 1x210"
    },
    "GpuLedgerGpuFailed": {f"gpu_health_status{{{GPU}}}": "0x190 2x210"},
    "GpuLedgerGpuDegraded": {f"gpu_health_status{{{GPU}}}": "0x180 1x220"},
    "GpuLedgerGpuVanished": {f"gpu_health_status{{{OTHER}}}": "0x180 stale"},
    "GpuLedgerXid": {f"gpu_xid_errors_total{{{GPU}}}": "1x195 2x205"},
    "GpuLedgerEccUncorrected": {f"gpu_ecc_uncorrected_volatile_total{{{GPU}}}": "0x195 1x205"},
    "GpuLedgerGpuHot": {f"gpu_temperature_celsius{{{GPU}}}": "71x180 93x220"},
    "GpuLedgerHeldIdle": {f"gpu_utilization_ratio{{{GPU}}}": "0x400"},
    "GpuLedgerCollectorDown": {f"up{{{COLLECTOR}}}": None},
    "GpuLedgerDatabaseDown": {f"gpuledger_database_up{{{COLLECTOR}}}": "1x190 0x210"},
    "GpuLedgerNoLeader": {f"gpuledger_jobs_leader{{{COLLECTOR}}}": "1x180 0x220"},
    "GpuLedgerJobFailing": {
        f'gpuledger_job_runs_total{{exported_job="rate_usage", outcome="failed", {COLLECTOR}}}': (
            "0x190 0+1x210"
        )
    },
    "GpuLedgerJobsStalled": {
        f'gpuledger_job_runs_total{{exported_job="fold_usage", outcome="done", {COLLECTOR}}}': (
            "0+2x150 300x250"
        )
    },
    "GpuLedgerBatchesRefused": {
        f'gpuledger_ingest_batches_total{{status="refused", {COLLECTOR}}}': "3x180 3+1x220"
    },
    "GpuLedgerIngestFull": {
        f'gpuledger_ingest_batches_total{{status="unavailable", {COLLECTOR}}}': "0x185 0+1x215"
    },
    "GpuLedgerIngestSlow": {
        f'gpuledger_ingest_answer_seconds_bucket{{le="0.05", {COLLECTOR}}}': "0x400"
    },
    "GpuLedgerScalingAdviceGone": {
        f'gpuledger_scaling_desired_gpus{{pool="train", {COLLECTOR}}}': "8x180 stale"
    },
    "GpuLedgerContestedGpu": {
        f"gpuledger_ingest_contested_accelerators_total{{{COLLECTOR}}}": "0x195 2x205"
    },
}
"""What goes wrong for each alert, in promtool's notation for series."""
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is in Debian's prometheus"
)


def case(changes, *firing):
    """What fires of all alerts at the last look."""
    series = {**HEALTHY, **changes}
    return {
        "interval": "1m",
        "input_series": [
            {"series": one, "values": values}
            for one, values in series.items()
            if values is not None
        ],
        "promql_expr_test": [
            {
                "expr": (
                    "count by (alertname) (ALERTS{alertstate='firing'}"
                    + (f" and on (alertname) ALERTS{{alertname='{firing[0]}'}})" if firing else ")")
                ),
                "eval_time": LOOK,
                "exp_samples": [
                    {"labels": f'{{alertname="{name}"}}', "value": 1} for name in firing
                ],
            }
        ],
    }


def promtool(*arguments):
    return subprocess.run(
        ["promtool", *map(str, arguments)], capture_output=True, text=True, timeout=280, check=False
    )


@needs_promtool
@pytest.mark.slow
def test_every_alert_fires_on_its_fault_and_not_on_a_healthy_fleet(tmp_path):
    """Both ways for each rule, by Prometheus' own evaluation."""
    assert set(FAULTS) == set(ALERTS)
    cases = [case({}), *(case(changes, name) for name, changes in FAULTS.items())]
    made = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": cases}
    (tmp_path / "test.yml").write_text(yaml.safe_dump(made))
    answer = promtool("test", "rules", tmp_path / "test.yml")
    assert answer.returncode == 0, answer.stdout + answer.stderr


EMPTY = {
    series: None
    for series in HEALTHY
    if AGENT in series or not re.match(r"up|gpuledger_(database|jobs?)_", series)
}
"""A collector to which no agent has reported: its jobs run."""
REMOVED = {series: "1x60 stale" for series in HEALTHY if AGENT in series}
"""A node that is scraped no more, as when service discovery no longer finds it."""


@needs_promtool
@pytest.mark.slow
@pytest.mark.parametrize("fleet", [EMPTY, REMOVED], ids=["empty", "a node removed"])
def test_nothing_fires_where_nothing_is(tmp_path, fleet):
    """On a fresh installation, and when a node was taken out of Prometheus' targets."""
    assert 0 < len(fleet) < len(HEALTHY)
    made = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [case(fleet)]}
    (tmp_path / "test.yml").write_text(yaml.safe_dump(made))
    answer = promtool("test", "rules", tmp_path / "test.yml")
    assert answer.returncode == 0, answer.stdout + answer.stderr


@needs_promtool
def test_prometheus_takes_the_rules():
    """Syntax, names and templates."""
    answer = promtool("check", "rules", "--lint=all", RULES)
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_the_faults_change_something():
    """A fault that is spelled like nothing in the healthy fleet would prove nothing."""
    for name, changes in FAULTS.items():
        known = [series for series in changes if series in HEALTHY]
        assert known or name == "GpuLedgerJobFailing", name


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_tells_what_to_do(name):
    """Severity, a summary, and a page with its name, what it means, what to look at and what to do."""
    rule = ALERTS[name]
    assert rule["labels"]["severity"] in ("info", "warning", "critical")
    url = rule["annotations"]["runbook_url"]
    (page,) = [page for page in PAGES if url.endswith(f"/{address(page)}")]
    assert_runbook((ROOT / "docs" / "runbooks" / f"{page}.md").read_text(), name)
    assert url.startswith("{{ with $externalLabels.grafana }}{{ . }}{{ else }}http://")


def test_alerts_use_metrics_that_exist():
    """Names come from the catalog, the agent's exposition and the collector's registry."""
    exposition = (ROOT / "agent" / "gpuledger_agent" / "exposition.py").read_text()
    metrics = Metrics()
    metrics.registry.register(ScalingGauge(dict))
    own = {family.name for family in metrics.registry.collect()}
    for name, rule in ALERTS.items():
        for metric in set(re.findall(r"\b(?:gpu_|gpuledger_)[a-z0-9_]+", rule["expr"])):
            base = re.sub(r"_(total|bucket)$", "", metric)
            batches = re.fullmatch(r"gpuledger_agent_batches_(produced|acked|dropped|dead)", base)
            assert metric in BY_NAME or base in own or f'"{metric}"' in exposition or batches, (
                name,
                metric,
            )


def test_the_list_of_alerts_opens_each_page():
    """Every page has its row, with the sentence that it begins with, and its own address."""
    rows = [line for line in list_alerts().splitlines() if "viewPanel=" in line]
    assert len(rows) == len(PAGES)
    for page, row in zip(PAGES, rows, strict=True):
        title, body = content(page)
        assert row.startswith(f"| [{title}](/{address(page)}) | ")
        sentence = row.split(" | ", 1)[1].removesuffix(" |")
        assert len(sentence) > 15
        assert sentence.endswith(".")
        assert sentence in " ".join(body.split()).replace("|", "/")
