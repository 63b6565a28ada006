"""What the agent asks of Kubernetes, asked of a real API server: pods, namespaces, slices, queue,
rights, manifests.
"""

import json
import time
from pathlib import Path

import pytest
import yaml

from fakes.ready_engines import control_plane
from gpuledger_agent.owners.kubernetes_api import ApiServer, ClaimedDevice, OfferedDevice, PodFacts
from gpuledger_agent.owners.pod_jobs import Controller
from gpuledger_agent.queue import kubernetes
from gpuledger_common.kubernetes_client import ApiFailed, NoSuchResource, NotAllowed
from gpuledger_common.readings import Machine

pytestmark = pytest.mark.slow

BASE = Path(__file__).parents[2] / "deploy" / "kubernetes" / "base"
GATED = {"schedulingGates": [{"name": "example.com/quota"}]}
PATHS = {
    "Namespace": "/api/v1/namespaces",
    "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "ConfigMap": "/api/v1/namespaces/{}/configmaps",
    "Service": "/api/v1/namespaces/{}/services",
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
    "DaemonSet": "/apis/apps/v1/namespaces/{}/daemonsets",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/{}/poddisruptionbudgets",
}


def manifests():
    """The plain manifests, the namespace first."""
    files = [path for path in sorted(BASE.glob("*.yaml")) if path.stem != "kustomization"]
    found = [
        manifest for path in files for manifest in yaml.safe_load_all(path.read_text()) if manifest
    ]
    return sorted(found, key=lambda manifest: manifest["kind"] != "Namespace")


@pytest.fixture(scope="module")
def plane():
    with control_plane() as running:
        namespace = {"metadata": {"name": "vision", "labels": {"team": "seg"}}}
        running.request("POST", PATHS["Namespace"], namespace)
        with pytest.raises(ApiFailed, match="403"):
            ApiServer(running.url, running.account).pods("n1")
        for manifest in manifests():
            place = manifest["metadata"].get("namespace", "")
            running.request(
                "POST", f"{PATHS[manifest['kind']].format(place)}?fieldValidation=Strict", manifest
            )
        # The same rights for the user of the test's token as the manifests give to the agent's
        # account.
        (binding,) = [one for one in manifests() if one["kind"] == "ClusterRoleBinding"]
        user = {"kind": "User", "name": "agent", "apiGroup": "rbac.authorization.k8s.io"}
        running.request(
            "POST",
            PATHS["ClusterRoleBinding"],
            {**binding, "metadata": {"name": "test"}, "subjects": [user]},
        )
        yield running


@pytest.fixture
def asked(plane):
    return ApiServer(plane.url, plane.account, timeout_s=60)


def add_pod(plane, name, node="", phase="", gpus=(), annotations=None, owner=None, **spec):
    """Create a pod, and say its phase in the kubelet's place; returns its uid."""
    containers = [
        {"name": f"c{at}", "image": "example.com/train", "resources": {"limits": dict([ask])}}
        for at, ask in enumerate(gpus or [("cpu", "1")])
    ]
    body = {
        "metadata": {
            "name": name,
            "labels": {"project": "x"},
            "annotations": annotations or {},
            "ownerReferences": [owner] if owner else [],
        },
        "spec": {"containers": containers, **({"nodeName": node} if node else {}), **spec},
    }
    path = "/api/v1/namespaces/vision/pods"
    created = plane.request("POST", path, body)
    if phase:
        status = {"status": {"phase": phase}}
        plane.request("PATCH", f"{path}/{name}/status", status, "application/merge-patch+json")
    return created["metadata"]["uid"]


def test_pods_of_a_node_and_labels_of_namespaces(plane, asked):
    """More than a page of them; those of other nodes and of none are left out, and what has ended
    says so.
    """
    uids = {f"p{number}": add_pod(plane, f"p{number}", "n1", "Running") for number in range(105)}
    ended = add_pod(plane, "ended", "n1", "Succeeded")
    add_pod(plane, "far", "n2", "Running")
    facts = asked.pods("n1")
    assert {name: fact.uid for (_, name), fact in facts.items()} == {**uids, "ended": ended}
    assert facts["vision", "ended"] == PodFacts(
        ended, {"project": "x"}, ended=True, scheduler="default-scheduler"
    )
    assert facts["vision", "p0"].ended is False
    namespaces = asked.namespaces({"vision"})
    assert {name: space.labels["team"] for name, space in namespaces.items()} == {"vision": "seg"}


def test_annotations_that_are_read(plane, asked):
    """The fraction of KAI Scheduler and the cards of HAMi; what else is annotated stays there."""
    cards = "GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448,NVIDIA,3000,25:;"
    annotations = {
        "gpu-fraction": "0.5",
        "hami.io/vgpu-devices-allocated": cards,
        "example.com/notes": "n" * 200_000,
    }
    owner = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": "train",
        "uid": "1f",
        "controller": True,
    }
    add_pod(plane, "annotated", "n4", "Running", annotations=annotations, owner=owner)
    (facts,) = asked.pods("n4").values()
    assert facts.controller == Controller("Job", "train", "1f", "batch")
    assert facts.annotations == {
        "gpu-fraction": "0.5",
        "hami.io/vgpu-devices-allocated": cards,
    }


def test_pods_that_wait(plane, asked):
    """Unbound pods that ask for GPUs; the server itself says of a gated one that it is no candidate
    yet.
    """
    add_pod(plane, "two", gpus=[("nvidia.com/gpu", "2"), ("nvidia.com/gpu", "1")])
    add_pod(plane, "mig", gpus=[("nvidia.com/mig-3g.40gb", "1")])
    add_pod(plane, "gated", gpus=[("nvidia.com/gpu", "4")], **GATED)
    add_pod(plane, "bound", "n3", gpus=[("nvidia.com/gpu", "8")])
    add_pod(plane, "none")
    waiting = kubernetes.pending(asked, "train")
    assert sorted(item.gpus for item in waiting) == [pytest.approx(3 / 7), 3.0]
    assert {item.team for item in waiting} == {"vision"}


def test_uuids_of_resource_slices(plane, asked):
    """As a DRA driver publishes them."""
    uuid = "GPU-5fd4f087-86f3-7a43-b711-4771313afc50"
    devices = [
        {
            "name": "gpu-0",
            "attributes": {"uuid": {"string": uuid}, "index": {"int": 0}},
            "capacity": {"memory": {"value": "80Gi"}},
        },
        {"name": "gpu-1", "attributes": {"index": {"int": 1}}},
    ]
    pool = {"name": "n1", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.nvidia.com", "nodeName": "n1", "pool": pool, "devices": devices}
    path = "/apis/resource.k8s.io/v1/resourceslices"
    plane.request(
        "POST", f"{path}?fieldValidation=Strict", {"metadata": {"name": "n1-gpus"}, "spec": spec}
    )
    assert asked.devices("n1") == {
        ("gpu.nvidia.com", "n1", "gpu-0"): OfferedDevice(uuid, {"memory": "80Gi"}),
        ("gpu.nvidia.com", "n1", "gpu-1"): OfferedDevice(),
    }
    assert asked.devices("n2") == {}


def test_a_node_says_what_it_is_to_its_cloud(plane, asked):
    """Its own labels and the id by which the cloud's bill names it."""
    labels = {
        "cloud.google.com/gke-nodepool": "a3",
        "cloud.google.com/gke-spot": "true",
        "node.kubernetes.io/instance-type": "a3-highgpu-8g",
        "topology.kubernetes.io/zone": "us-central1-a",
    }
    body = {
        "metadata": {"name": "n1", "labels": labels},
        "spec": {"providerID": "gce://project/us-central1-a/n1"},
    }
    plane.request("POST", "/api/v1/nodes", body)
    assert asked.node("n1") == Machine(
        pool="a3",
        purchase="spot",
        instance_type="a3-highgpu-8g",
        zone="us-central1-a",
        provider_id="gce://project/us-central1-a/n1",
    )
    with pytest.raises(NoSuchResource):
        asked.node("n2")


@pytest.mark.parametrize(
    ("rule", "ask"),
    [
        ({"apiGroups": [""], "resources": ["namespaces"]}, lambda api: api.namespaces({"vision"})),
        ({"apiGroups": [""], "resources": ["nodes"]}, lambda api: api.node("n1")),
        (
            {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"]},
            lambda api: api.claim("vision", "both"),
        ),
        (
            {"apiGroups": ["resource.k8s.io"], "resources": ["resourceslices"]},
            lambda api: api.devices("n1"),
        ),
    ],
)
def test_without_a_right_the_server_itself_refuses(plane, asked, rule, ask):
    """Each rule of the role is needed by one question, and by that alone."""
    path = f"{PATHS['ClusterRole']}/gpuledger-agent"
    role = plane.request("GET", path)
    kept = [one for one in role["rules"] if not _is_rule(one, rule)]
    assert len(kept) == len(role["rules"]) - 1
    metadata = {"name": "gpuledger-agent"}
    plane.request("PUT", path, {**role, "rules": kept, "metadata": metadata})
    try:
        _wait_until(lambda: _is_refused(ask, asked))
        asked.pods("n1")
    finally:
        plane.request("PUT", path, {**role, "metadata": metadata})
        _wait_until(lambda: not _is_refused(ask, asked))


def _is_rule(one, rule):
    return all(one[key] == value for key, value in rule.items())


def _is_refused(ask, asked):
    try:
        ask(asked)
    except NotAllowed:
        return True
    except NoSuchResource:
        return False
    return False


def _wait_until(true):
    """The authorizer hears of a changed role a moment later."""
    deadline = time.monotonic() + 120
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_claim_says_whether_it_only_observes(plane, asked):
    """Its status as a scheduler writes it; a claim that is not there is no answer."""
    results = [
        {"request": "gpu", "driver": "gpu.nvidia.com", "pool": "n1", "device": "gpu-0"},
        {
            "request": "watch",
            "driver": "gpu.nvidia.com",
            "pool": "n1",
            "device": "gpu-1",
            "adminAccess": True,
        },
    ]
    requests = [
        {"name": "gpu", "exactly": {"deviceClassName": "gpu"}},
        {"name": "watch", "exactly": {"deviceClassName": "gpu", "adminAccess": True}},
    ]
    # Observing devices is allowed only where the namespace says so.
    label = {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}
    plane.request("PATCH", "/api/v1/namespaces/vision", label, "application/merge-patch+json")
    path = "/apis/resource.k8s.io/v1/namespaces/vision/resourceclaims"
    spec = {"devices": {"requests": requests}}
    plane.request("POST", path, {"metadata": {"name": "both"}, "spec": spec})
    status = {"status": {"allocation": {"devices": {"results": results}}}}
    plane.request("PATCH", f"{path}/both/status", status, "application/merge-patch+json")
    assert asked.claim("vision", "both") == {
        ("gpu.nvidia.com", "n1", "gpu-0", ""): ClaimedDevice(),
        ("gpu.nvidia.com", "n1", "gpu-1", ""): ClaimedDevice(is_admin=True),
    }
    with pytest.raises(NoSuchResource):
        asked.claim("vision", "none")


def test_the_server_refuses_a_field_that_does_not_exist(plane):
    """Or that it took the manifests would show nothing."""
    (deployment,) = [one for one in manifests() if one["kind"] == "Deployment"]
    spoilt = json.loads(json.dumps(deployment).replace('"livenessProbe"', '"livenesProbe"'))
    spoilt["metadata"]["name"] = "spoilt"
    path = PATHS["Deployment"].format(deployment["metadata"]["namespace"])
    with pytest.raises(AssertionError, match="livenesProbe"):
        plane.request("POST", f"{path}?fieldValidation=Strict", spoilt)
