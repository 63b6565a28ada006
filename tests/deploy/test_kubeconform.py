"""What Helm renders, read by kubeconform: a second reader of the strict schemas, without a cluster."""

import json
import runpy
import subprocess
from pathlib import Path

import pytest
import yaml

from fakes.ready_engines import program

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SCHEMAS = json.loads((ROOT / "tests/fakes/kubernetes_schemas.json").read_text())
RELEASES = [name for name in SCHEMAS if name != "about"]
OPTIONS = yaml.safe_load((ROOT / "deploy/helm/options.yaml").read_text())
FOREIGN = "ServiceMonitor,PodMonitor,PrometheusRule,HTTPRoute"
"""Kinds of the Prometheus operator and of the Gateway API."""


@pytest.fixture(scope="module")
def schemas(tmp_path_factory):
    """A folder for each release with a file for each kind."""
    folder = tmp_path_factory.mktemp("schemas")
    for release in RELEASES:
        (folder / release).mkdir()
        for kind, schema in SCHEMAS[release]["kinds"].items():
            whole = {
                "$schema": "http://json-schema.org/draft-07/schema#",
                **schema,
                "$defs": SCHEMAS[release]["$defs"],
            }
            (folder / release / f"{kind.lower()}.json").write_text(json.dumps(whole))
    return folder


@pytest.fixture(scope="module")
def conform(chart_tools, schemas):
    """Ask kubeconform about manifests: its exit code and its summary."""

    def ask(release, manifests):
        done = subprocess.run(
            [
                program(chart_tools, "kubeconform"),
                "-strict",
                "-summary",
                "-output",
                "json",
                "-skip",
                FOREIGN,
                "-schema-location",
                f"{schemas}/{release}/{{{{ .ResourceKind }}}}.json",
            ],
            input=manifests,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, json.loads(done.stdout)

    return ask


@pytest.mark.parametrize("release", RELEASES)
def test_every_rendering_is_valid(helm, conform, release):
    """Each set of values, rendered now and not as recorded."""
    render = runpy.run_path(str(ROOT / "deploy/helm/compare"))["render"]
    for name, values in OPTIONS.items():
        manifests = render(helm, values)
        code, answer = conform(release, manifests)
        assert (code, answer.get("resources") or []) == (0, []), name
        assert answer["summary"]["valid"] + answer["summary"]["skipped"] == manifests.count(
            "\nkind: "
        ), name
        assert answer["summary"]["valid"] > 0, name


@pytest.mark.parametrize("release", RELEASES)
def test_the_plain_manifests_are_valid(conform, release):
    """Those that kustomize takes as they are."""
    files = [
        path
        for path in sorted((ROOT / "deploy/kubernetes/base").glob("*.yaml"))
        if path.stem != "kustomization"
    ]
    code, answer = conform(release, "\n---\n".join(path.read_text() for path in files))
    assert (code, answer.get("resources") or []) == (0, [])
    assert answer["summary"]["valid"] >= len(files)


@pytest.mark.parametrize(
    ("old", "new"),
    [("livenessProbe:", "livenesProbe:"), ("automountServiceAccountToken: false", "hostPid: true")],
)
def test_a_wrong_field_is_found(helm, conform, old, new):
    """Or the tests above show nothing."""
    manifests = runpy.run_path(str(ROOT / "deploy/helm/compare"))["render"](helm, {})
    assert old in manifests
    code, answer = conform(RELEASES[-1], manifests.replace(old, new))
    assert code == 1
    assert any(new.partition(":")[0] in resource["msg"] for resource in answer["resources"])
