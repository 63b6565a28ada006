"""Manifests and chart: by Kubernetes' own schemas, by helm where there is one, and against the
programs themselves.
"""

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import jsonschema_rs
import pytest
import typer.main
import yaml

from gpuledger_agent import settings as agent_settings
from gpuledger_agent.cli import parser as agent_parser
from gpuledger_agent.owners import kubernetes_api
from gpuledger_agent.owners.containers import HOLD_LABEL
from gpuledger_agent.owners.processes import workload_of_cgroup
from gpuledger_agent.settings import Settings
from gpuledger_collector import settings as collector_settings
from gpuledger_collector.cli import build
from gpuledger_collector.cli.session import CONFIG_VARIABLE
from gpuledger_collector.ingest.scheduler_queues.reader import read_schedulers
from gpuledger_common import kubernetes_client
from gpuledger_common.settings import SettingsError

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PLAIN, CHART = ROOT / "deploy/kubernetes", ROOT / "deploy/helm/gpuledger"
SCHEMAS = json.loads((ROOT / "tests/fakes/kubernetes_schemas.json").read_text())
RELEASES = [name for name in SCHEMAS if name != "about"]
# Of the Prometheus operator and Gateway API.
FOREIGN = {
    "ServiceMonitor",
    "PodMonitor",
    "PrometheusRule",
    "HTTPRoute",
}
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def read(*names):
    """(path, manifest) of the files of folders below deploy/kubernetes."""
    files = [
        path
        for name in names
        for path in sorted((PLAIN / name).glob("*.yaml"))
        if path.stem != "kustomization"
    ]
    return [(path, one) for path in files for one in yaml.safe_load_all(path.read_text())]


BASE = {(one["kind"], one["metadata"]["name"]): one for _, one in read("base")}
AGENT = BASE["DaemonSet", "gpuledger-agent"]["spec"]["template"]
COLLECTOR = BASE["Deployment", "gpuledger-collector"]["spec"]["template"]
TEMPLATES = {"agent": AGENT, "collector": COLLECTOR}


def containers(template):
    """Every container of a pod, those that run first as well."""
    return [*template["spec"].get("initContainers", []), *template["spec"]["containers"]]


def environment(container):
    """Variables with a value of their own."""
    return {entry["name"]: entry.get("value", "given-by-the-node") for entry in container["env"]}


def validate(manifest, release):
    """Raises jsonschema_rs.ValidationError when a cluster of this release would refuse a field."""
    found = SCHEMAS[release]
    schema = {**found["kinds"][manifest["kind"]], "$defs": found["$defs"]}
    jsonschema_rs.Draft7Validator(schema).validate(manifest)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    "folder",
    ["base", "kernel-log", "tls", "."],
    ids=["base", "kernel-log", "tls", "secrets.example"],
)
def test_a_cluster_takes_the_manifests(folder, release):
    """By the strict schemas of the oldest and the newest release: no unknown field, no wrong type."""
    found = [one for _, one in read(folder)]
    assert found
    for manifest in found:
        if folder in ("base", "."):
            validate(manifest, release)
            continue
        patched = json.loads(json.dumps(BASE[manifest["kind"], manifest["metadata"]["name"]]))
        merge(patched, manifest)
        validate(patched, release)


def merge(target, patch):
    """A strategic merge as kustomize makes it: maps deeply, lists of named things by name (mounts
    by path).
    """
    for key, value in patch.items():
        if isinstance(value, dict):
            merge(target.setdefault(key, {}), value)
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            by = "mountPath" if key == "volumeMounts" else "name"
            known = {item[by]: item for item in target.setdefault(key, [])}
            for item in value:
                if item[by] in known:
                    merge(known[item[by]], item)
                else:
                    target[key].append(item)
        elif value is None:
            target.pop(key, None)
        else:
            target[key] = value


def test_the_schemas_see_a_wrong_field():
    """An unknown field and a wrong type, at any depth, or this file proves nothing."""
    for spoil in (
        lambda pod: pod["containers"][0].update(livenesProbe={}),
        lambda pod: pod["containers"][0]["ports"][0].update(containerPort="9440"),
        lambda pod: pod.update(hostPid=True),
    ):
        spoilt = json.loads(json.dumps(BASE["DaemonSet", "gpuledger-agent"]))
        spoil(spoilt["spec"]["template"]["spec"])
        with pytest.raises(jsonschema_rs.ValidationError):
            validate(spoilt, RELEASES[0])


def test_kustomizations_name_what_is_there():
    """Every file of a folder is a resource or a patch of it, and no more."""
    for path in PLAIN.glob("*/kustomization.yaml"):
        said = yaml.safe_load(path.read_text())
        named = {
            *said.get("resources", []),
            *(patch["path"] for patch in said.get("patches", []) if "path" in patch),
        }
        assert named == {one.name for one in path.parent.glob("*.yaml")} - {"kustomization.yaml"}, (
            path
        )
        assert said["kind"] == ("Kustomization" if path.parent.name == "base" else "Component")


def test_monitors_find_what_they_scrape():
    """Their selectors, ports and paths are those of Service and pods; the alert rules know the
    names of the jobs.
    """
    monitors = {one["kind"]: one["spec"] for _, one in read("monitoring")}
    assert set(monitors) == {"ServiceMonitor", "PodMonitor", "PrometheusRule"}
    service = BASE["Service", "gpuledger-collector"]
    (endpoint,) = monitors["ServiceMonitor"]["endpoints"]
    assert (
        monitors["ServiceMonitor"]["selector"]["matchLabels"].items()
        <= service["metadata"]["labels"].items()
    )
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    (pod,) = monitors["PodMonitor"]["podMetricsEndpoints"]
    assert (
        monitors["PodMonitor"]["selector"]["matchLabels"].items()
        <= AGENT["metadata"]["labels"].items()
    )
    assert pod["port"] in {port["name"] for port in AGENT["spec"]["containers"][0]["ports"]}
    assert endpoint["path"] == pod["path"] == "/metrics"
    jobs = {one["relabelings"][0]["replacement"] for one in (endpoint, pod)}
    source = (ROOT / "dashboards/alerts/prometheus.yml").read_text()
    assert jobs == set(re.findall(r'job="([^"]+)"', source))
    copied = yaml.safe_load((CHART / "files/alerts.yml").read_text())
    assert monitors["PrometheusRule"] == copied == yaml.safe_load(source)


def test_selectors_find_the_pods():
    """Service, disruption budget, network policies, DaemonSet and Deployment mean these pods."""
    for (kind, name), manifest in BASE.items():
        labels = TEMPLATES["agent" if name.endswith("agent") else "collector"]["metadata"]["labels"]
        if kind == "Service":
            selector = manifest["spec"]["selector"]
        elif kind == "NetworkPolicy":
            selector = manifest["spec"]["podSelector"]["matchLabels"]
        elif kind in {"PodDisruptionBudget", "DaemonSet", "Deployment"}:
            selector = manifest["spec"]["selector"]["matchLabels"]
        else:
            continue
        assert selector.items() <= labels.items(), (kind, name)
    first = BASE["NetworkPolicy", "gpuledger-collector"]["spec"]["ingress"][0]["from"][0]
    assert first["podSelector"]["matchLabels"].items() <= AGENT["metadata"]["labels"].items()


def test_rights_are_what_the_agent_asks_for_and_no_more():
    """The paths in the code, each as a rule: group, resource, list; claims and the node by name."""
    source = Path(kubernetes_api.__file__).read_text()
    client = Path(kubernetes_client.__file__).read_text()
    asked = set()
    for path in re.findall(r'_list\(\s*"([^"]+)"', source):
        core = re.fullmatch(r"/api/v1/(\w+)", path)
        group = re.fullmatch(r"/apis/([\w.]+)/\w+/(\w+)", path)
        asked.add(("", core[1], "list") if core else (*group.groups(), "list"))
    assert len(asked) >= 3
    # One object by its name: `group` and `own` of `ApiServer.claim`.
    (group,) = re.findall(r'group = "/apis/([\w.]+)"', source)
    for resource in re.findall(r'own = f"namespaces/\{[^}]+\}/(\w+)/', source):
        asked.add((group, resource, "get"))
    for resource in re.findall(r'_get\(f"/api/v1/(\w+)/', source):
        asked.add(("", resource, "get"))
    assert set(re.findall(r'\.exchange\("(\w+)"', source + client)) == {"GET"}
    rules = BASE["ClusterRole", "gpuledger-agent"]["rules"]
    assert {
        (group, name, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for name in rule["resources"]
        for verb in rule["verbs"]
    } == asked
    (subject,) = BASE["ClusterRoleBinding", "gpuledger-agent"]["subjects"]
    assert BASE["ServiceAccount", subject["name"]]["metadata"]["namespace"] == subject["namespace"]
    assert AGENT["spec"]["serviceAccountName"] == subject["name"]
    assert COLLECTOR["spec"]["automountServiceAccountToken"] is False


SERVICE_LINKS = {
    "GPULEDGER_COLLECTOR_PORT": "tcp://10.0.0.1:8440",
    "GPULEDGER_COLLECTOR_SERVICE_HOST": "10.0.0.1",
    "GPULEDGER_AGENT_PORT": "tcp://10.0.0.2:9440",
}


def test_variables_that_kubernetes_makes_stay_out(tmp_path):
    """A Service `gpuledger-collector` would put variables into every pod, which are no settings:
    links are off.
    """
    with pytest.raises(SettingsError, match="GPULEDGER_COLLECTOR_PORT"):
        collector_settings.load(None, SERVICE_LINKS, tmp_path)
    with pytest.raises(SettingsError, match="GPULEDGER_AGENT_PORT"):
        agent_settings.load(None, SERVICE_LINKS)
    assert all(template["spec"]["enableServiceLinks"] is False for template in TEMPLATES.values())


def placed(text, folder):
    """The folder of secrets, moved."""
    return text.replace("/run/secrets/gpuledger", str(folder))


def secrets_in(folder):
    """The Secrets of the example, as the pods mount them: NAME/KEY.

    Returns where containers see them.
    """
    seen = {}
    stored = {
        one["metadata"]["name"]: one["stringData"]
        for _, one in read(".")
        if one["kind"] == "Secret"
    }
    stored["gpuledger-tls"] = {"tls.crt": "certificate", "tls.key": "key", "ca.crt": "authority"}
    for template in TEMPLATES.values():
        volumes = {
            one["name"]: one["secret"]["secretName"]
            for one in template["spec"]["volumes"]
            if "secret" in one
        }
        for container in containers(template):
            for mount in container["volumeMounts"]:
                if mount["name"] in volumes:
                    for key, value in stored[volumes[mount["name"]]].items():
                        path = Path(placed(mount["mountPath"], folder)) / key
                        path.parent.mkdir(parents=True, exist_ok=True)
                        path.write_text(value)
                        seen[path] = volumes[mount["name"]]
    for key, value in stored["gpuledger-tls"].items():
        path = folder / "tls" / key
        path.parent.mkdir(exist_ok=True)
        path.write_text(value)
    return seen


@pytest.mark.parametrize("folder", ["base", "tls"])
def test_the_collectors_settings_are_good(folder, tmp_path):
    """The file of the ConfigMap and every container's variables load, with the secrets where they
    are mounted.
    """
    secrets_in(tmp_path)
    (found,) = [one for _, one in read(folder) if one["kind"] == "ConfigMap"]
    (name,) = found["data"]
    main = COLLECTOR["spec"]["containers"][0]
    config = (
        next(mount["mountPath"] for mount in main["volumeMounts"] if mount["name"] == "config")
        + "/"
        + name
    )
    assert main["args"] == ["serve"]
    # Also for `gpuledger doctor` by kubectl exec.
    assert environment(main)[CONFIG_VARIABLE] == config
    path = tmp_path / name
    path.write_text(placed(found["data"][name], tmp_path))
    for container in containers(COLLECTOR):
        given = {key: placed(value, tmp_path) for key, value in environment(container).items()}
        given.pop(CONFIG_VARIABLE, None)
        loaded = collector_settings.load(path, given, tmp_path)
        assert loaded.database_dsn().startswith("postgresql://")
        assert loaded.agent_tokens()
        assert loaded.reader_tokens()
        assert (
            (loaded.tls_certificate_file is None) == (folder == "base") == loaded.allow_plain_http
        )
    assert loaded.listen_port == main["ports"][0]["containerPort"] == 8440
    assert COLLECTOR["spec"]["terminationGracePeriodSeconds"] > 3 * loaded.drain_seconds + 5


@pytest.mark.parametrize("folder", ["base", "tls"])
def test_the_agents_settings_are_good(folder, tmp_path):
    """The variables load; the token is the collector's; collector and port are those of the
    Service.
    """
    secrets_in(tmp_path)
    template = json.loads(json.dumps({"spec": {"template": AGENT}}))
    if folder == "tls":
        (patch,) = [one for path, one in read("tls") if path.stem == "agent"]
        merge(template, {"spec": patch["spec"]})
    (container,) = template["spec"]["template"]["spec"]["containers"]
    given = {
        key: placed(value, tmp_path)
        for key, value in environment(container).items()
        if "GPULEDGER" in key
    }
    loaded = agent_settings.load(None, given)
    service = BASE["Service", "gpuledger-collector"]
    assert (
        loaded.collector_url
        == f"{'https' if folder == 'tls' else 'http'}://gpuledger-collector.{service['metadata']['namespace']}.svc:"
        f"{service['spec']['ports'][0]['port']}"
    )
    assert (loaded.ca_file is not None and loaded.ca_file.read_text() == "authority") == (
        folder == "tls"
    )
    assert loaded.token_path.read_text() == (tmp_path / "agent/token").read_text()
    assert loaded.node == "given-by-the-node"
    assert loaded.metrics_listen == f"0.0.0.0:{container['ports'][0]['containerPort']}"
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert str(loaded.kubelet_socket.parent) in mounts
    assert str(loaded.spool_folder.parent) in mounts
    assert loaded.kubelet_socket == Settings().kubelet_socket


def test_the_agent_may_do_what_it_must_and_is_not_killed():
    """Other pods' processes are seen, no capability is had, nothing ends it with SIGKILL but its
    grace.
    """
    pod, (container,) = AGENT["spec"], AGENT["spec"]["containers"]
    assert AGENT["metadata"]["labels"][HOLD_LABEL] == "false"
    assert pod["hostPID"] is True
    assert "limits" not in container["resources"]
    assert set(container["resources"]["requests"]) == {"cpu", "memory"}
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    # It asks for no device: it would hold it.
    assert "nvidia.com/gpu" not in json.dumps(container["resources"])
    probe = container["livenessProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 180  # WatchdogSec= of the unit
    hosts = {volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    assert hosts == {str(Settings().kubelet_socket.parent), "/var/lib/gpuledger-agent"}
    (patch,) = [one for _, one in read("kernel-log")]
    (mount,) = patch["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    from gpuledger_agent.sources.kernel_log import KMSG

    assert mount["mountPath"] == str(KMSG)


@pytest.mark.parametrize(
    "way",
    ["/kubepods.slice/kubepods-burstable.slice", "/../../../kubepods-burstable.slice", "/../.."],
)
def test_other_pods_are_known_from_inside_of_the_agents(way):
    """In a pod's own cgroup namespace the paths of others begin with steps up
    (cgroup_namespaces(7)).
    """
    uid = "0c7e1b2a_1111_2222_3333_444455556666"
    line = f"0::{way}/kubepods-burstable-pod{uid}.slice/cri-containerd-{'ab' * 32}.scope\n"
    assert workload_of_cgroup(line) == ("kubernetes", uid.replace("_", "-"))


def test_prices_come_through_standard_input(dsn):
    """As the guide and the chart's notes say it, through `kubectl exec -i`: from what cannot be
    read twice.
    """
    command = "gpuledger import prices /dev/stdin"
    notes = (CHART / "templates/NOTES.txt").read_text()
    assert command in (ROOT / "docs/guides/deploy.md").read_text()
    assert command in notes
    book = "pool,gpu_model,purchase,rate_per_gpu_hour,currency,effective_from\ntrain,,owned,2.50,USD,2026-01-01\n"
    given = {**os.environ, "GPULEDGER_DSN": dsn}
    words = [Path(sys.executable).with_name("gpuledger"), *command.split()[1:]]
    done = subprocess.run(words, input=book, env=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    shown = subprocess.run(
        [words[0], "prices", "list"], env=given, capture_output=True, text=True, check=False
    )
    assert "2.5" in shown.stdout, shown.stderr


def test_only_the_agent_is_more_than_restricted():
    """The collector keeps to Kubernetes' `restricted`: no root, no capability, nothing to write to."""
    assert COLLECTOR["spec"]["securityContext"]["runAsNonRoot"] is True
    assert not {"hostPID", "hostNetwork", "hostIPC"} & set(COLLECTOR["spec"])
    assert not any("hostPath" in volume for volume in COLLECTOR["spec"]["volumes"])
    for container in containers(COLLECTOR):
        context = container["securityContext"]
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True


@pytest.mark.parametrize("name", TEMPLATES)
def test_images_and_commands_are_ours(name):
    """The image that the Dockerfile makes, in this version; arguments that its program takes; its
    user and port.
    """
    dockerfile = (ROOT / f"deploy/docker/{name}.Dockerfile").read_text()
    for container in containers(TEMPLATES[name]):
        assert container["image"] == f"gpuledger-{name}:{VERSION}"
        if name == "agent":
            agent_parser().parse_args(container["args"])
            continue
        command, arguments = typer.main.get_command(build()), container["args"]
        while hasattr(command, "commands"):
            command, arguments = command.commands[arguments[0]], arguments[1:]
        command.make_context("gpuledger", list(arguments))
    assert f"EXPOSE {container['ports'][0]['containerPort']}\n" in dockerfile
    if name == "collector":
        assert f"USER {COLLECTOR['spec']['securityContext']['runAsUser']}:" in dockerfile


def test_probes_ask_for_paths_that_are_answered():
    """Each path is a route of the API, the agent's is that of its healthcheck; each port has that
    name.
    """
    routes = (ROOT / "collector/gpuledger_collector/api/app.py").read_text()
    for template in TEMPLATES.values():
        for container in template["spec"]["containers"]:
            probes = [container[name] for name in container if name.endswith("Probe")]
            assert len(probes) >= 2
            for probe in probes:
                assert probe["httpGet"]["port"] == container["ports"][0]["name"]
                path = probe["httpGet"]["path"]
                assert (
                    path == "/metrics"
                    if template is AGENT
                    else re.search(rf'@app\.get\(\s*"{path}"', routes)
                )
    assert COLLECTOR["spec"]["containers"][0]["readinessProbe"]["httpGet"]["path"] == "/readyz"


def leaves(value, path=()):
    """Paths of a tree of values down to what is no map, and to empty maps."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    else:
        yield path


VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
CHART_SCHEMA = json.loads((CHART / "values.schema.json").read_text())


def test_values_are_good_and_every_key_is_in_the_schema():
    """An unknown key or a wrong type is refused at any depth of ours."""
    validator = jsonschema_rs.Draft7Validator(CHART_SCHEMA)
    validator.validate(VALUES)
    for path in leaves(VALUES):
        spoilt = json.loads(json.dumps(VALUES))
        inner = spoilt
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = {"unknown": {}} if not isinstance(inner[path[-1]], dict) else 5
        assert not validator.is_valid(spoilt), path
        if len(path) <= 2:
            inner[path[-1] + "x"] = inner.pop(path[-1])
            assert not validator.is_valid(spoilt), path


def test_templates_use_every_value_and_no_other():
    """What is written `.agent.x` or `.Values.a.b` in a template stands in values.yaml, and the
    other way round.
    """
    text = "\n".join(path.read_text() for path in (CHART / "templates").iterdir())
    for name in re.findall(r"\.Values\.([\w.]+)", text):
        inner = VALUES
        for key in name.split("."):
            assert key in inner, name
            inner = inner[key]
    for path in leaves(VALUES):
        assert any(
            re.search(rf"\.{key}\b", text) for key in reversed(path) if re.fullmatch(r"\w+", key)
        ), path
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == VERSION
    assert chart["kubeVersion"] == f">={RELEASES[0]}.0-0"


COMPARE = ROOT / "deploy/helm/compare"
RENDERED = json.loads((ROOT / "deploy/helm/rendered.json").read_text())
OPTIONS = yaml.safe_load((ROOT / "deploy/helm/options.yaml").read_text())


def rendered(name):
    """The recorded manifests of a value set, by kind; kinds that occur twice by kind and component."""
    by_kind = {}
    for manifest in RENDERED["options"][name]:
        kind, component = (
            manifest["kind"],
            manifest["metadata"].get("labels", {}).get("app.kubernetes.io/component"),
        )
        by_kind[kind] = by_kind[kind, component] = manifest
    return by_kind


def test_the_records_are_of_this_chart():
    """deploy/helm/compare wrote both when chart and manifests agreed last; a change of either needs
    another run.
    """
    current = runpy.run_path(str(COMPARE))["digest"]()
    sealed = json.loads((ROOT / "deploy/helm/compared.json").read_text())
    assert sealed["sha256"] == RENDERED["sha256"] == current, (
        "run deploy/helm/compare with helm and kustomize"
    )
    assert sealed["variants"] == ["plain", "kernel-log", "tls"]


def differs(values, path):
    """Whether a set of values gives something other than the default at a path."""
    default = VALUES
    for key in path:
        default = default[key]
        if key not in values:
            return False
        values = values[key]
        if values is None:
            return True
    return values != default


PARTS = {
    "namespaces": {("", "namespaces", "list")},
    "claims": {
        ("resource.k8s.io", "resourceslices", "list"),
        ("resource.k8s.io", "resourceclaims", "get"),
    },
    "node": {("", "nodes", "get")},
}


def rights_of(role):
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


class Empty:
    """A cluster without a queue, which keeps what it was asked for."""

    def __init__(self):
        self.asked = set()

    def list_all(self, path, kind):
        _, _, group, _, resource = path.split("/")
        self.asked.add((group, resource, "list"))
        return []


@pytest.mark.parametrize("name", OPTIONS)
def test_collectors_have_the_rights_of_the_queues_that_they_read_and_no_others(name):
    """And the token of their account only where they read any."""
    queues = OPTIONS[name].get("collector", {}).get("queues", [])
    found = rendered(name)
    asked = Empty()
    read_schedulers(asked, queues, 0)
    if ("ClusterRole", "collector") in found:
        assert rights_of(found["ClusterRole", "collector"]) == asked.asked
        (subject,) = found["ClusterRoleBinding", "collector"]["subjects"]
        assert subject["name"] == found["ServiceAccount", "collector"]["metadata"]["name"]
    else:
        assert not queues or OPTIONS[name]["collector"]["rbac"] == {"create": False}
    if ("Deployment", "collector") in found:
        pods = found["Deployment", "collector"]["spec"]["template"]["spec"]
        assert pods["automountServiceAccountToken"] is bool(queues)
        loaded = tomllib.loads(found["ConfigMap", "collector"]["data"]["collector.toml"])
        assert loaded.get("kubernetes_queues", "") == ",".join(queues)
    if queues and ("NetworkPolicy", "collector") in found:
        egress = found["NetworkPolicy", "collector"]["spec"]["egress"][0]["ports"]
        assert {443, 6443} <= {entry["port"] for entry in egress}


@pytest.mark.parametrize("name", OPTIONS)
def test_each_part_asks_for_its_own_rights_and_no_others(name):
    """Agents are told what they may not ask for, so that they do not try."""
    wanted = VALUES["agent"]["kubernetes"] | OPTIONS[name].get("agent", {}).get("kubernetes", {})
    enabled = [part for part in PARTS if wanted[part]]
    found = rendered(name)
    if ("ClusterRole", "agent") in found:
        rights = rights_of(found["ClusterRole", "agent"])
        assert rights == {("", "pods", "list")}.union(*(PARTS[part] for part in enabled))
    if "DaemonSet" in found:
        containers = found["DaemonSet"]["spec"]["template"]["spec"]["containers"]
        (agent,) = [one for one in containers if one["name"] == "agent"]
        given = {key: value for key, value in environment(agent).items() if "GPULEDGER" in key}
        assert agent_settings.load(None, given).kubernetes_parts == tuple(enabled)


def test_every_value_is_changed_by_a_recorded_set():
    """No option is without a rendering that the schemas check."""
    for path in leaves(VALUES):
        assert any(differs(values, path) for values in OPTIONS.values()), path


@pytest.mark.parametrize("name", OPTIONS)
def test_a_cluster_takes_every_recorded_rendering(name):
    """By the strict schemas of both releases; settings of agents and collectors load."""
    for manifest in RENDERED["options"][name]:
        for release in RELEASES:
            if manifest["kind"] not in FOREIGN:
                validate(manifest, release)
        if manifest["kind"] == "DaemonSet":
            (agent,) = [
                one
                for one in manifest["spec"]["template"]["spec"]["containers"]
                if one["name"] == "agent"
            ]
            given = {key: value for key, value in environment(agent).items() if "GPULEDGER" in key}
            endpoints = agent_settings.load(None, given).serving_endpoints
            assert endpoints == ",".join(OPTIONS[name].get("agent", {}).get("servingEndpoints", []))
        if manifest["kind"] == "ConfigMap":
            loaded = tomllib.loads(manifest["data"]["collector.toml"])
            assert ("tls_key_file" in loaded) != ("allow_plain_http" in loaded)


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_only_agents_that_tell_rays_jobs_apart_read_environments(name):
    """One capability, the setting, and the port of the job API; nobody else has either."""
    found, clusters = rendered(name), OPTIONS[name].get("agent", {}).get("rayClusters", [])
    if "DaemonSet" not in found:
        return
    (agent,) = [
        one
        for one in found["DaemonSet"]["spec"]["template"]["spec"]["containers"]
        if one["name"] == "agent"
    ]
    context = agent["securityContext"]
    if not context.get("privileged"):
        wanted = {"drop": ["ALL"]} | ({"add": ["SYS_PTRACE"]} if clusters else {})
        assert context["capabilities"] == wanted
    assert environment(agent).get("GPULEDGER_AGENT_RAY_CLUSTERS", "") == ",".join(clusters)
    if ("NetworkPolicy", "agent") in found:
        egress = found["NetworkPolicy", "agent"]["spec"]["egress"]
        ports = {port["port"] for rule in egress for port in rule.get("ports", ())}
        assert (8265 in ports) is bool(clusters)


def test_all_options_reach_their_objects():
    """What the value set `everything` asks for stands where Kubernetes reads it."""
    found, values = rendered("everything"), OPTIONS["everything"]
    everywhere = [
        one
        for one in RENDERED["options"]["everything"]
        if one["kind"] not in {"ClusterRole", "Namespace"}
    ]
    assert {one["metadata"].get("namespace") for one in everywhere} == {
        None,
        "finops",
        "observability",
    }
    assert all(one["metadata"]["labels"]["cost-center"] == "4711" for one in everywhere)
    assert all(
        one["metadata"]["annotations"]["contact"] == "gpu-team@example.com" for one in everywhere
    )
    assert found["Namespace"]["metadata"]["name"] == "finops"
    assert found["Namespace"]["metadata"]["labels"].items() >= {"team": "finops"}.items()
    agent, collector = (found[kind]["spec"]["template"] for kind in ("DaemonSet", "Deployment"))
    for component, template in (("agent", agent), ("collector", collector)):
        # The selector's, whatever is given.
        assert template["metadata"]["labels"]["app.kubernetes.io/name"] == "gpuledger"
        assert template["metadata"]["labels"]["sidecar.istio.io/inject"] == "false"
        given, spec = values[component], template["spec"]
        ours = [
            one for one in containers(template) if one["image"].startswith("registry.example.com")
        ]
        assert len(ours) == (1 if component == "agent" else 2)
        for container in ours:
            assert given["extraEnv"][0] in container["env"]
            assert given["extraVolumeMounts"][0] in container["volumeMounts"]
        assert given["extraVolumes"][0] in spec["volumes"]
        assert [one["name"] for one in spec["containers"]] == [
            component,
            given["extraContainers"][0]["name"],
        ]
        assert spec["initContainers"][0]["name"] == given["extraInitContainers"][0]["name"]
    assert (
        collector["spec"]["containers"][0]["image"]
        == f"{values['collector']['image']['repository']}@{values['collector']['image']['digest']}"
    )
    assert agent["spec"]["containers"][0]["image"] == "registry.example.com/gpuledger-agent:0.1.0-1"
    assert agent["spec"]["securityContext"] == values["agent"]["podSecurityContext"]
    assert "runAsUser" not in collector["spec"]["securityContext"]
    assert found["Service", "agent"]["spec"]["clusterIP"] == "None"
    assert (
        found["Service", "collector"]["metadata"]["annotations"]["example.com/internal"] == "true"
    )


def test_ways_into_the_collector_are_open():
    """Ingress and HTTPRoute lead to the Service; the network policy lets their controllers in."""
    found = rendered("everything")
    service = found["Service", "collector"]["metadata"]["name"]
    first, second = found["Ingress"]["spec"]["rules"]
    assert first["http"]["paths"] == [
        {
            "path": "/",
            "pathType": "Prefix",
            "backend": {"service": {"name": service, "port": {"name": "http"}}},
        }
    ]
    assert (second["http"]["paths"][0]["path"], second["http"]["paths"][0]["pathType"]) == (
        "/v1",
        "Exact",
    )
    assert found["HTTPRoute"]["spec"]["rules"] == [
        {"backendRefs": [{"name": service, "port": 8440}]}
    ]
    rules = found["NetworkPolicy", "collector"]["spec"]["ingress"]
    namespaces = next(
        one["namespaceSelector"] for one in rules[0]["from"] if "namespaceSelector" in one
    )
    assert namespaces["matchExpressions"][0]["values"] == [
        "observability",
        "keda",
        "finance",
        "edge",
    ]
    assert rendered("collector")["Ingress"]["spec"]["defaultBackend"]["service"]["port"] == {
        "name": "http"
    }


def allowed_ports(policy):
    """TCP ports of the first egress rule."""
    return {
        entry["port"]
        for entry in policy["spec"]["egress"][0]["ports"]
        if entry["protocol"] == "TCP"
    }


def test_agents_reach_the_collector_and_the_inference_servers_of_their_settings():
    """The ports of the URLs, each once, beside those that are listed."""
    assert allowed_ports(rendered("everything")["NetworkPolicy", "agent"]) == {
        53,
        8440,
        443,
        8000,
        8002,
        8265,
    }
    assert allowed_ports(rendered("agents")["NetworkPolicy", "agent"]) == {53, 9443}
    plain = BASE["NetworkPolicy", "gpuledger-agent"]
    assert allowed_ports(plain) == {53, *VALUES["networkPolicy"]["agentEgressPorts"]}


def test_no_monitoring_namespace_means_nobody():
    """A rule without peers would admit everybody: agents get none, collectors only agents and
    labeled pods.
    """
    assert rendered("agents")["NetworkPolicy", "agent"]["spec"]["ingress"] == []
    assert "Ingress" in rendered("agents")["NetworkPolicy", "agent"]["spec"]["policyTypes"]
    (rule,) = rendered("collector")["NetworkPolicy", "collector"]["spec"]["ingress"]
    assert [
        one for one in rule["from"] if "matchExpressions" in one.get("namespaceSelector", {})
    ] == [
        {
            "namespaceSelector": {
                "matchExpressions": [
                    {
                        "key": "kubernetes.io/metadata.name",
                        "operator": "In",
                        "values": ["ingress-nginx"],
                    }
                ]
            }
        }
    ]


def test_monitors_of_another_namespace_still_find_the_pods():
    """They select the namespace of the objects, and the rules go to where Prometheus looks."""
    found = rendered("everything")
    for kind, endpoints in (("ServiceMonitor", "endpoints"), ("PodMonitor", "podMetricsEndpoints")):
        spec = found[kind]["spec"]
        assert found[kind]["metadata"]["namespace"] == "observability"
        assert spec["namespaceSelector"] == {"matchNames": ["finops"]}
        (endpoint,) = spec[endpoints]
        assert [one["targetLabel"] for one in endpoint["relabelings"]] == ["job", "cluster"]
        assert endpoint["scrapeTimeout"] == "10s"
    assert (
        found["ServiceMonitor"]["spec"]["endpoints"][0]["tlsConfig"]["serverName"]
        == "ledger-collector.finops.svc"
    )
    assert found["PrometheusRule"]["metadata"]["labels"]["release"] == "prometheus"


def test_helm_renders_what_is_recorded(helm):
    """The same manifests, and chart and plain manifests agree."""
    names = runpy.run_path(str(COMPARE))
    assert names["differences"](helm, None) == []
    assert names["rendered_options"](helm) == RENDERED["options"]


def test_the_alert_rules_are_rendered_unchanged(helm):
    """Their `{{ $labels }}` are Prometheus', not Helm's."""
    names = runpy.run_path(str(COMPARE))
    text = names["render"](helm, {"rules": {"enabled": True}})
    (rule,) = [one for one in yaml.safe_load_all(text) if one and one["kind"] == "PrometheusRule"]
    assert rule["spec"] == yaml.safe_load((ROOT / "dashboards/alerts/prometheus.yml").read_text())


@pytest.mark.parametrize("flag", ["--set", "--set-json"])
def test_lists_and_maps_may_be_null(helm, flag):
    """`--set networkPolicy.monitoringNamespaces=null` and the like render valid manifests, for
    every list and map.
    """
    open_ended = [
        ".".join(path) for path in leaves(VALUES) if isinstance(value_at(path), list | dict)
    ]
    assert "networkPolicy.monitoringNamespaces" in open_ended
    words = [word for name in open_ended for word in (flag, f"{name}=null")]
    switches = [
        "--set",
        "collector.ingress.enabled=true,monitors.enabled=true,namespace.create=true",
    ]
    done = subprocess.run(
        [helm, "template", "r", CHART, *words, *switches],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for manifest in yaml.safe_load_all(done.stdout):
        if manifest and manifest["kind"] not in FOREIGN:
            validate(manifest, RELEASES[-1])


def value_at(path):
    """A default of the chart."""
    value = VALUES
    for key in path:
        value = value[key]
    return value


@pytest.mark.parametrize(
    "values",
    [
        ["agent.settings.GPULEDGER_AGENT_SERVING_ENDPOINTS=http://a:1"],
        ["agent.servingEndpoints[0]=vllm:8000"],
        ["agent.settings.GPULEDGER_AGENT_RAY_CLUSTERS=ml/shared"],
        ["agent.rayClusters[0]=shared"],
        ["collector.image.digest=latest"],
        ["collector.ingress.hosts[0]=gpuledger.example.com"],
        ["networkPolicy.monitoringNamespaces=monitoring"],
        ["agent.resources.limits.memory=1Gi"],
    ],
    ids=lambda values: values[0].partition("=")[0],
)
def test_helm_refuses_wrong_values(helm, values):
    """Before anything reaches the cluster."""
    words = [word for value in values for word in ("--set", value)]
    done = subprocess.run(
        [helm, "template", "r", CHART, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "values don't meet the specifications of the schema" in done.stderr


def test_the_comparison_sees_a_difference(helm, tmp_path):
    """A chart with another path of a probe, or a manifest less, appears as lines of a diff."""
    names = runpy.run_path(str(COMPARE))
    changed = shutil.copytree(CHART, tmp_path / "gpuledger")
    names["differences"].__globals__["CHART"] = changed
    assert names["differences"](helm, None) == []
    template = changed / "templates/collector.yaml"
    template.write_text(template.read_text().replace('"/readyz"', '"/ready"'))
    (changed / "templates/network.yaml").unlink()
    found = "\n".join(names["differences"](helm, None))
    assert re.search(r'^\+ +"path": "/ready"', found, re.MULTILINE)
    assert "NetworkPolicy gpuledger-agent" in found
