"""From a page of every exporter to a line of the bill: by the agent, and by remote write."""

import json
from datetime import datetime

import psycopg
import pytest
from typer.testing import CliRunner

from fakes.collector import running
from fakes.exporters import synthetic
from fakes.postgres import fresh_database
from fakes.prometheus import WRITE, Point, headers, one, snappy
from gpuledger_agent.settings import Settings as AgentSettings
from gpuledger_agent.simulate import replay_pages
from gpuledger_collector import wiring
from gpuledger_collector.cli import build
from gpuledger_collector.services.hourly_usage import fold_usage
from gpuledger_collector.settings import Settings
from gpuledger_collector.storage.database import Database
from gpuledger_common.profiles.library import packaged_ids
from gpuledger_common.profiles.lines import read_lines

DAY, NEXT = "2026-11-01", "2026-11-02"
START, END = f"{DAY}T00:00:00Z", f"{DAY}T02:00:00Z"
START_MS = round(datetime.fromisoformat(START).timestamp() * 1000)
STEP_MS = 300_000
KWH_MJ = 3_600_000_000
"""What the energy counters of the pages rise by."""


def bridged(watts):
    """Millijoules where the counter falls at the last of 24 steps, which is bridged by power."""
    return KWH_MJ + watts * STEP_MS


LEDGER = """
[[price]]
purchase = "on_demand"
rate_per_gpu_hour = 2.00
currency = "USD"
effective_from = 2025-01-01
"""
HOLD = """
[[hold]]
node = "aws-neuron"
workload = "reserved-neuron"

[[hold]]
node = "all-smi"
workload = "reserved-npu"

[[hold]]
node = "intel-xpumanager-2"
workload = "reserved-arc"
"""
LINES = {
    ("all-smi", "reserved-npu"): ("Rebellions ATOM", 2.0, bridged(85)),
    ("amd-device-metrics-exporter", "vision/train-0"): ("AMD Instinct MI300X", 2.0, bridged(600)),
    ("amd-device-metrics-exporter", "71"): ("AMD Instinct MI300X", 1.0, None),
    ("aws-neuron", "reserved-neuron"): ("AWS Trainium2", 1.0, None),
    ("dcgm-exporter", "vision/train-0"): ("NVIDIA L4", 2.0, bridged(65)),
    ("google-tpu", "research/sweep-0"): ("Google TPU v6e", 4.0, None),
    ("hami", "dev/notebook-0"): ("NVIDIA A100", 1.0, None),
    ("hami", "dev/notebook-1"): ("NVIDIA A100", 0.6, None),
    ("huawei-ascend", "nlp/pretrain-0"): ("Huawei Ascend 910B", 2.0, 600 * 3_600_000),
    ("huawei-ascend", "hidden pods of Ascend-AAAA-02"): ("Huawei Ascend 910B", 2.0, None),
    ("huawei-ascend", "edge/ocr-0"): ("Huawei Ascend 310P", 0.5, None),
    ("huawei-ascend", "edge/ocr-1"): ("Huawei Ascend 310P", 1.0, None),
    ("intel-gaudi", "nlp/finetune-0"): ("Intel Gaudi", 2.0, 840 * 3_600_000),
    ("intel-xpumanager-1", "physics/lattice-0"): (
        "Intel(R) Data Center GPU Max 1550",
        2.0,
        bridged(480),
    ),
    ("intel-xpumanager-2", "reserved-arc"): ("Intel(R) Arc(TM) Pro B60", 2.0, bridged(160)),
    ("otel-hw", "serving/llm-0"): ("NVIDIA L4", 2.0, bridged(65)),
}
"""Model, GPU-hours and millijoules (None: not known) of two hours, by node (named after the
profile) and workload.
"""
BY_LABELS = {
    key: line for key, line in LINES.items() if key[0] != "hami" and not key[1].startswith("edge/")
}
"""What series tell without the rest of their page: no share that is a value, no part that another
family names.
"""
HOSTS = {
    "npu-01": "all-smi",
    "mi300-01": "amd-device-metrics-exporter",
    "l4-01": "dcgm-exporter",
    "edge-01": "otel-hw",
}
"""Nodes that the pages name themselves."""
HELD = """
SELECT n.name, CASE w.kind WHEN 'labels' THEN w.tags ->> 'team' ELSE w.external_id END, t.model,
  sum(u.held_ms * t.gpu_micro) / 3600000e6, sum(u.energy_mj)
FROM usage_interval u JOIN workload w ON w.id = u.workload_id JOIN node n ON n.id = u.node_id
JOIN accelerator_attributes t ON t.id = u.accelerator_attributes_id GROUP BY 1, 2, 3
"""


def gpuledger(dsn, *arguments):
    result = CliRunner().invoke(build(), [*map(str, arguments), "--dsn", dsn])
    assert result.exit_code == 0, result.output
    return result.stdout


def lines_of_the_bill(dsn, folder):
    """GPU-hours and cost (USD) of each line, by node, workload and model."""
    (folder / "ledger.toml").write_text(LEDGER)
    gpuledger(dsn, "apply", folder / "ledger.toml")
    form = ("--by", "node,workload,model", "--format", "json")
    report = json.loads(gpuledger(dsn, "chargeback", "--from", DAY, "--to", NEXT, *form))
    return {
        (HOSTS.get(row["node"], row["node"]), row["workload"], row["model"]): (
            row["gpu_ns"] / 3.6e12,
            row["cost_micro"] / 1e6,
        )
        for row in report["rows"]
        if not row["workload"].startswith("(")
    }


def named(node, workload):
    """The holder by the agent's rules for nodes that remote write names by a label."""
    rules = {
        "aws-neuron": "reserved-neuron",
        "all-smi": "reserved-npu",
        "intel-xpumanager-2": "reserved-arc",
    }
    return rules.get(node, workload)


def held(dsn):
    with psycopg.connect(dsn) as connection:
        return {
            (HOSTS.get(node, node), workload): tuple(rest)
            for node, workload, *rest in connection.execute(HELD)
        }


@pytest.fixture(scope="module")
def by_agent(postgres, tmp_path_factory):
    """Two hours of every page through the real agent code."""
    pages = tmp_path_factory.mktemp("pages")
    for identity in packaged_ids():
        (pages / identity).mkdir()
        # The last page is shown at the last instant alone: its counter has fallen, which is no
        # energy.
        for hour, joules in enumerate((5e6, 8.6e6, 7e6)):
            (pages / identity / f"{hour}.prom").write_text(synthetic(identity, joules))
    rules = pages / "hold.toml"
    rules.write_text(HOLD)
    settings = AgentSettings(source="exporter", owner_rules_file=rules)
    with fresh_database(postgres) as dsn, running(dsn) as collector:
        replay_pages(settings, START, END, "5m", f"http://127.0.0.1:{collector.port}", str(pages))
        yield dsn


@pytest.fixture(scope="module")
def by_remote_write(postgres):
    """The same pages as a Prometheus sends them, a series of several requests at a time."""
    with fresh_database(postgres) as dsn, running(dsn) as collector:
        for tick in range(25):
            at_ms = START_MS + tick * STEP_MS
            for identity in packaged_ids():
                text = synthetic(identity, 5e6 if tick < 12 else 8.6e6)
                points = [
                    point
                    for line in read_lines(text).samples
                    for point in as_series(identity, line, at_ms)
                ]
                # Cut in the middle: a scrape arrives in two requests.
                for part in (points[: len(points) // 2], points[len(points) // 2 :]):
                    status, _, answer = collector.request(
                        "POST", WRITE, snappy(one(part)), headers()
                    )
                    assert status == 204, answer
        wiring.metering(Settings(remote_write_gap_seconds=900)).run(Database(dsn))
        fold_usage(Database(dsn))
        yield dsn


def as_series(identity, line, at_ms):
    """A line of a page with the labels of Prometheus; a relabel rule names the team of nodes
    without owners.
    """
    team = (
        {"team": "reserved"} if identity in {"aws-neuron", "all-smi", "intel-xpumanager-2"} else {}
    )
    own = {
        "__name__": line.name,
        "instance": f"{identity}:9400",
        "job": "gpu",
        "node": identity,
        **team,
    }
    renamed = {"node": "exported_node", "instance": "exported_instance"}
    labels = {renamed.get(name, name): value for name, value in line.labels.items()} | own
    yield Point(
        tuple(sorted((name, value) for name, value in labels.items() if value)), line.value, at_ms
    )


def test_every_profile_has_a_line_here():
    """A profile that nobody tests from its page to a bill is not packaged."""
    assert {node for node, _ in LINES} == set(packaged_ids())


def test_the_agents_pages_are_held_by_those_that_they_name(by_agent):
    """Time, share, model and energy of every workload, whatever the exporter calls them."""
    assert {
        key: (model, float(hours), energy) for key, (model, hours, energy) in held(by_agent).items()
    } == LINES


@pytest.mark.parametrize("door", ["by_agent", "by_remote_write"])
def test_the_bill_has_a_line_for_every_workload(door, request, tmp_path):
    """Each costs 2 USD per GPU-hour, and the conservation check of the day holds."""
    dsn = request.getfixturevalue(door)
    report = lines_of_the_bill(dsn, tmp_path)
    hours = {(node, model): 0.0 for node, _, model in report}
    for (node, _, model), (gpu_hours, cost) in report.items():
        assert cost == pytest.approx(2 * gpu_hours, abs=1e-5)
        hours[node, model] += gpu_hours
    expected = LINES if door == "by_agent" else BY_LABELS
    for (node, _), (model, _, _) in expected.items():
        assert hours[node, model] == pytest.approx(
            sum(h for (n, _), (m, h, _) in expected.items() if (n, m) == (node, model))
        )
    assert "holds" in gpuledger(dsn, "reconcile", "--from", DAY, "--to", NEXT)


def test_series_are_held_by_those_that_they_name(by_remote_write):
    """Remote write finds the same time, model and energy, where labels say them; a part of a page
    is never guessed.
    """
    found = {
        (node, named(node, workload)): tuple(rest)
        for (node, workload), rest in held(by_remote_write).items()
    }
    assert {key: (model, float(hours)) for key, (model, hours, _) in found.items()} == {
        key: (model, hours) for key, (model, hours, _) in BY_LABELS.items()
    }
    for key, (_, _, energy) in BY_LABELS.items():
        has_counter = energy is not None and key[0] not in {"huawei-ascend", "intel-gaudi"}
        assert found[key][2] == (KWH_MJ if has_counter else energy)
