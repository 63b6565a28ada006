"""The autoscaling guide: its manifests and its script against the API that answers, on a real
ledger.
"""

import datetime as dt
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import jsonschema_rs
import pytest
import typer.main
import yaml

from fakes.collector import running
from gpuledger_collector.accounting.period import HOUR_MS
from gpuledger_collector.cli import build
from gpuledger_collector.services.hourly_usage import ALWAYS
from gpuledger_collector.services.refresh import refresh
from gpuledger_collector.storage.database import Database

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/guides/autoscaling.md").read_text()
BLOCKS = {}
for kind, body in re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
    BLOCKS.setdefault(kind, []).append(body)
MANIFESTS = {one["kind"]: one for block in BLOCKS["yaml"] for one in yaml.safe_load_all(block)}
NOW_MS = int(dt.datetime.now(dt.UTC).timestamp() * 1000)
GPUS, HOURS = 16, 24 * 12
TOKEN = "one-of-the-readers"


def evidence():
    """Two nodes' worth of GPUs of the pool `train`, all held for twelve days up to the last full
    hour.
    """
    end = NOW_MS // HOUR_MS * HOUR_MS
    usage_intervals = [
        {
            "accelerator": gpu,
            "start_ms": end - (HOURS - hour) * HOUR_MS,
            "end_ms": end - (HOURS - hour - 1) * HOUR_MS,
            "state": "held",
            "workload": 0,
            "held_ms": HOUR_MS,
            "busy_ms": HOUR_MS,
            "idle_ms": 0,
        }
        for gpu in range(GPUS)
        for hour in range(HOURS)
    ]
    cards = [
        {
            "uuid": f"GPU-{gpu}",
            "device_uuid": f"GPU-{gpu}",
            "index": gpu,
            "model": "NVIDIA L4",
            "pool": "train",
        }
        for gpu in range(GPUS)
    ]
    return {
        "version": 1,
        "node": "n1",
        "epoch": "0192aaaa-0000-7000-8000-000000000001",
        "seq": 1,
        "heartbeat": {"agent_version": "0", "source": "simulated", "status": "ok"},
        "accelerators": cards,
        "workloads": [{"id": "1", "kind": "slurm", "tags": {"team": "vision"}}],
        "usage_intervals": usage_intervals,
    }


@pytest.fixture
def collector(dsn, tmp_path):
    """A collector with that evidence, which asks readers for a token."""
    tokens = tmp_path / "readers"
    tokens.write_text(TOKEN + "\n")
    with running(dsn, reader_token_file=tokens) as made:
        status, answer = made.post(
            json.dumps(evidence()).encode(), {"Content-Type": "application/json"}
        )
        assert status == 200, answer
        refresh(Database(dsn), ALWAYS, NOW_MS)
        yield made


def test_keda_reads_a_number_where_it_is_told_to(collector):
    """The trigger's own address with its own kind of token gives a number at `valueLocation`, in
    nodes at last.
    """
    scaled = MANIFESTS["ScaledObject"]["spec"]
    (trigger,) = scaled["triggers"]
    address = urlsplit(trigger["metadata"]["url"])
    (secret,) = MANIFESTS["TriggerAuthentication"]["spec"]["secretTargetRef"]
    assert trigger["metadata"]["authMode"] == "bearer"
    assert secret["parameter"] == "token"
    assert secret["key"] in MANIFESTS["Secret"]["stringData"]
    assert secret["name"] == MANIFESTS["Secret"]["metadata"]["name"]
    assert (
        trigger["authenticationRef"]["name"]
        == MANIFESTS["TriggerAuthentication"]["metadata"]["name"]
    )
    path = f"{address.path}?{address.query}"
    assert collector.request("GET", path)[0] == 401
    status, _, answer = collector.request("GET", path, headers={"Authorization": f"Bearer {TOKEN}"})
    assert status == 200
    value = answer[trigger["metadata"]["valueLocation"]]
    assert isinstance(value, float)
    assert value >= GPUS == answer["demand_gpus"]
    assert (trigger["type"], trigger["metricType"]) == ("metrics-api", "AverageValue")
    nodes = -(-value // float(trigger["metadata"]["targetValue"]))
    assert scaled["minReplicaCount"] <= nodes <= scaled["maxReplicaCount"]
    assert set(scaled["fallback"]) == {"failureThreshold", "replicas"}  # KEDA wants both
    assert scaled["minReplicaCount"] <= scaled["fallback"]["replicas"] <= scaled["maxReplicaCount"]
    (shown,) = BLOCKS["json"]
    assert set(json.loads(shown)) == set(answer)


def test_addresses_are_those_of_the_manifests():
    """Service, namespace and port; the network policy lets KEDA's namespace in."""
    address = urlsplit(MANIFESTS["ScaledObject"]["spec"]["triggers"][0]["metadata"]["url"])
    base = [
        one
        for path in (ROOT / "deploy/kubernetes/base").glob("*.yaml")
        for one in yaml.safe_load_all(path.read_text())
    ]
    (service,) = [one for one in base if one["kind"] == "Service"]
    assert (
        address.hostname == f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc"
    )
    assert address.port == service["spec"]["ports"][0]["port"]
    policies = json.dumps([one for one in base if one["kind"] == "NetworkPolicy"])
    assert '"keda"' in policies
    assert "`keda`" in PAGE


def test_placeholders_hold_no_gpu_and_stand_once_a_node():
    """Else they would raise the demand by which they are scaled. A cluster takes them."""
    deployment = MANIFESTS["Deployment"]
    schemas = json.loads((ROOT / "tests/fakes/kubernetes_schemas.json").read_text())
    for release in [name for name in schemas if name != "about"]:
        schema = {**schemas[release]["kinds"]["Deployment"], "$defs": schemas[release]["$defs"]}
        jsonschema_rs.Draft7Validator(schema).validate(deployment)
    pod = deployment["spec"]["template"]
    assert "nvidia.com/gpu" not in json.dumps(pod["spec"]["containers"])
    (term,) = pod["spec"]["affinity"]["podAntiAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    assert term["labelSelector"]["matchLabels"] == pod["metadata"]["labels"]
    assert (
        MANIFESTS["ScaledObject"]["spec"]["scaleTargetRef"]["name"]
        == deployment["metadata"]["name"]
    )
    nodes = MANIFESTS["NodePool"]["spec"]
    assert pod["spec"]["nodeSelector"] == nodes["template"]["metadata"]["labels"]
    taints = {taint["key"] for taint in nodes["template"]["spec"]["taints"]}
    assert taints == {one["key"] for one in pod["spec"]["tolerations"]}
    node_gpus = int(MANIFESTS["ScaledObject"]["spec"]["triggers"][0]["metadata"]["targetValue"])
    assert (
        int(nodes["limits"]["nvidia.com/gpu"])
        == MANIFESTS["ScaledObject"]["spec"]["maxReplicaCount"] * node_gpus
    )


def run_script(folder, **given):
    """The group's script with an `aws` that writes down how it was called.

    Returns (exit code, calls).
    """
    for program in ("curl", "jq"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed (apt-get install {program})")
    (script,) = BLOCKS["bash"]
    (folder / "scale").write_text(script)
    (folder / "aws").write_text(f'#!/bin/sh\necho "$@" >> {folder}/calls\n')
    (folder / "aws").chmod(0o755)
    (folder / "token").write_text(TOKEN + "\n")
    environment = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "TOKEN_FILE": str(folder / "token"),
        **given,
    }
    done = subprocess.run(
        ["sh", folder / "scale"], env=environment, capture_output=True, text=True, check=False
    )
    calls = (folder / "calls").read_text().splitlines() if (folder / "calls").exists() else []
    return done.returncode, calls


def test_the_groups_script_moves_its_minimum_and_nothing_else(collector, tmp_path):
    """Run as it stands: nodes enough for the GPUs, within floor and ceiling; without a number
    nothing is called.
    """
    ledger = {"LEDGER": f"http://127.0.0.1:{collector.port}"}
    _, _, answer = collector.request(
        "GET", "/v1/scaling/train", headers={"Authorization": f"Bearer {TOKEN}"}
    )
    wanted = int(-(-answer["desired_gpus"] // 8))
    call = "autoscaling update-auto-scaling-group --auto-scaling-group-name gpu-train --min-size"
    assert run_script(tmp_path, **ledger) == (0, [f"{call} {wanted}"])
    assert run_script(tmp_path, **ledger, FLOOR="5")[1][1:] == [f"{call} 5"]
    assert run_script(tmp_path, **ledger, CEILING="1", FLOOR="0")[1][2:] == [f"{call} 1"]
    for changed in ({"POOL": "unknown"}, {"LEDGER": "http://127.0.0.1:1"}):
        code, calls = run_script(tmp_path, **{**ledger, **changed})
        assert (code, len(calls)) == (0, 3)


def test_commands_of_the_page_are_commands():
    """Every `gpuledger scale ...` with its options."""
    group = typer.main.get_command(build()).commands["scale"]
    found = re.findall(r"`gpuledger scale (\w+)([^`]*)`", PAGE)
    assert len(found) >= 3
    for name, options in found:
        words = options.split()
        if words:
            group.commands[name].make_context("gpuledger", words)
        assert name in group.commands
