"""Owners from Kubernetes: a real gRPC server on a unix socket as kubelet, a real HTTPS server as
API server.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from urllib.parse import unquote

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes import kubelet
from fakes.apiserver import TOKEN, api_server
from gpuledger_agent.holder_observations import observe_holders
from gpuledger_agent.owners import open_owners
from gpuledger_agent.owners.device_names import resolve
from gpuledger_agent.owners.grpc_unix import MAX_MESSAGE_BYTES, CallFailed, call
from gpuledger_agent.owners.kubernetes import (
    FEW_PODS,
    Cluster,
    ClusterView,
    KubernetesOwners,
    uids_by_logs,
)
from gpuledger_agent.owners.kubernetes_api import ApiServer, NamespaceFacts, OfferedDevice, PodFacts
from gpuledger_agent.owners.podresources import LIST, AllocatedDevice, AllocatedPod, list_pods
from gpuledger_agent.owners.polling import NoRecentAnswer, PolledValue
from gpuledger_agent.settings import Settings, SettingsError, load
from gpuledger_common.kubernetes_client import ApiFailed
from gpuledger_common.largest_remainder import split
from gpuledger_common.readings import WHOLE_GPU, Accelerator, Workload

UUID = "GPU-8c7a2f10-3b44-4a0e-9d55-0a1b2c3d4e5f"
OTHER = "GPU-11111111-2222-3333-4444-555555555555"
MIG = "MIG-5d1e0c6a-77f2-5b1c-8a3e-9f8e7d6c5b4a"
H100 = "NVIDIA H100 80GB HBM3"
WHOLE = Accelerator(UUID, UUID, 0, H100)
SECOND = Accelerator(OTHER, OTHER, 1, H100)
SLICES = (
    Accelerator(MIG, UUID, 0, H100, "1g.10gb/7", 142_857),
    Accelerator("MIG-b", UUID, 0, H100, "2g.20gb/3", 285_714),
    Accelerator("MIG-c", UUID, 0, H100, "1c.3g.40gb/2", 166_666),
    Accelerator("MIG-d", UUID, 0, H100, "1c.3g.40gb/2", 166_666),
)


@pytest.fixture
def node(tmp_path):
    with kubelet.running(tmp_path / "kubelet.sock") as running:
        yield running


def owners_of(cluster):
    """Owners from a cluster that is known and stays as it is."""
    refreshed = PolledValue("kubernetes", lambda: cluster, 60, 60)
    refreshed.refresh()
    return KubernetesOwners(refreshed)


def pod(name, *ids, namespace="vision", container="main"):
    return AllocatedPod(
        namespace, name, tuple(AllocatedDevice(container, "nvidia.com/gpu", one) for one in ids)
    )


# ---- the kubelet's client, against grpcio ----


def test_pods_are_listed_with_devices_or_without(node):
    """Names, namespaces, containers and ids come through; topology, memory and CPUs are skipped."""
    node.pods = [kubelet.pod("vision", "train-0", UUID, OTHER), kubelet.pod("web", "front-1")]
    assert list_pods(node.path) == (
        pod("train-0", UUID, OTHER),
        AllocatedPod("web", "front-1", ()),
    )


def test_claims_are_listed_with_driver_pool_device_and_cdi_names(node):
    """A pod with a resource claim (DRA) has no devices of a plugin, and is seen all the same."""
    node.pods = [kubelet.claiming_pod("vision", "infer", "gpu-1")]
    (found,) = list_pods(node.path)
    (device,) = found.devices
    assert (device.resource, device.pool, device.id, device.claim) == (
        "gpu.nvidia.com",
        "node1",
        "gpu-1",
        "infer-gpu",
    )
    assert device.cdi == ("k8s.gpu.nvidia.com/claim=0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0-gpu-1",)


def test_an_answer_of_many_frames_and_windows_comes_whole(node):
    """Some 2 MiB: beyond 64 KiB, HTTP/2's first window, and 16 KiB, a frame: credit must be given."""
    node.pods = [
        kubelet.pod("ns", f"pod-{n}", *(f"{UUID}::{n * 48 + r}" for r in range(48)))
        for n in range(900)
    ]
    assert len(kubelet.answer(*node.pods)) > 2_000_000
    found = list_pods(node.path)
    assert len(found) == 900
    assert sum(len(one.devices) for one in found) == 900 * 48


def test_an_answer_that_is_too_large_is_refused(node):
    """One byte above the limit is an error and not memory."""
    node.behave = lambda context: bytes(MAX_MESSAGE_BYTES + 1)
    with pytest.raises(CallFailed, match="larger than"):
        call(node.path, LIST, timeout_s=20)


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (grpc.StatusCode.PERMISSION_DENIED, "gRPC status 7: not for you, 50% off"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "gRPC status 8: not for you"),
        (grpc.StatusCode.UNAVAILABLE, "gRPC status 14: not for you"),
    ],
)
def test_a_status_other_than_ok_is_told_with_its_message(node, code, sentence):
    """The message is percent-encoded on the wire and read as it was meant."""
    node.behave = lambda context: context.abort(code, "not for you, 50% off")
    with pytest.raises(CallFailed, match=sentence):
        list_pods(node.path)


def test_a_method_that_the_server_does_not_have_is_a_status_in_trailers_only(node):
    """An old kubelet answers UNIMPLEMENTED with no body and no second header block."""
    with pytest.raises(CallFailed, match="gRPC status 12"):
        call(node.path, "/v1.PodResourcesLister/Nothing")


def test_a_kubelet_that_hangs_costs_the_timeout_and_no_more(node):
    """The deadline is that of the whole call."""
    stop = threading.Event()
    node.behave = lambda context: stop.wait(120) and b""
    began = time.monotonic()
    with pytest.raises(CallFailed, match=r"no complete answer within 0\.3 s"):
        list_pods(node.path, timeout_s=0.3)
    took = time.monotonic() - began
    stop.set()
    assert took < 20


def test_a_kubelet_that_goes_away_and_comes_back_is_asked_again(tmp_path):
    """Its socket disappears and is made anew, as at a restart of the kubelet."""
    place = tmp_path / "kubelet.sock"
    with pytest.raises(CallFailed, match="No such file"):
        list_pods(place)
    for name in ("before", "after"):
        with kubelet.running(place) as running:
            running.pods = [kubelet.pod("ns", name, UUID)]
            assert [one.name for one in list_pods(place)] == [name]
        with pytest.raises(CallFailed):
            list_pods(place)


# ---- whose device ----


@pytest.mark.parametrize(
    ("name", "accelerators", "expected"),
    [
        (UUID, (WHOLE, SECOND), (UUID,)),
        (f"{UUID}::3", (WHOLE, SECOND), (UUID,)),
        (MIG, SLICES, (MIG,)),
        (f"{MIG}::7", SLICES, (MIG,)),
        (UUID, SLICES, (MIG, "MIG-b", "MIG-c", "MIG-d")),
        (f"MIG-{UUID}/7/0", SLICES, (MIG,)),
        (f"MIG-{UUID}/2/1", SLICES, ("MIG-d",)),
        (f"MIG-{OTHER}/7/0", SLICES, ()),
        ("nvidia1", (WHOLE, SECOND), (OTHER,)),
        ("nvidia0/gi3", SLICES, ("MIG-b",)),
        ("nvidia1/vgpu2", (WHOLE, SECOND), (OTHER,)),
        ("nvidia0/gi7/vgpu0", SLICES, (MIG,)),
        ("GPU-unknown", (WHOLE, SECOND), ()),
        ("0000:3b:00.0", (WHOLE, SECOND), ()),
        ("", (WHOLE, SECOND), ()),
    ],
)
def test_every_form_of_a_device_id_finds_its_accelerator(name, accelerators, expected):
    """Device plugin, replicas, MIG new and old, Google's plugin; a whole device with MIG on is all
    of its instances.
    """
    assert resolve(AllocatedDevice("main", "nvidia.com/gpu", name), accelerators) == expected


@pytest.mark.parametrize(
    ("device", "cdi", "accelerators", "expected"),
    [
        (
            "gpu-1",
            "k8s.gpu.nvidia.com/claim=0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0-gpu-1",
            (WHOLE, SECOND),
            (OTHER,),
        ),
        ("some-name", f"nvidia.com/gpu={OTHER}", (WHOLE, SECOND), (OTHER,)),
        ("gpu-0-mig-2g20gb-14-0", "", SLICES, ("MIG-b",)),
        ("gpu-0-mig-1c3g40gb-9-0", "", SLICES, ()),
        ("channel-0", "", (WHOLE, SECOND), ()),
    ],
)
def test_claimed_devices_find_their_accelerator(device, cdi, accelerators, expected):
    """By number, by a UUID in a CDI name, by the one instance of a profile; of two alike instances
    neither is taken.
    """
    assert (
        resolve(AllocatedDevice("main", "gpu.nvidia.com", device, (cdi,), "claim"), accelerators)
        == expected
    )


def test_a_uuid_that_the_driver_published_goes_before_a_number():
    """gpu-0 is a minor number; where it is not NVML's index, the resource slice tells."""
    device = AllocatedDevice("main", "gpu.nvidia.com", "gpu-0", (), "claim", "node1")
    assert resolve(device, (WHOLE, SECOND), {("gpu.nvidia.com", "node1", "gpu-0"): OTHER}) == (
        OTHER,
    )


def test_four_pods_with_a_quarter_each_make_one_gpu():
    """Each replica is a weight; the container that holds is named."""
    owners = owners_of(Cluster([pod(f"p{n}", f"{UUID}::{n}") for n in range(4)]))
    holders = owners.holders([WHOLE], [])[UUID]
    assert [holder.weight for holder in holders] == [1, 1, 1, 1]
    assert holders[2].workload == Workload(
        "vision/p2",
        "kubernetes",
        None,
        None,
        "vision/p2",
        {"namespace": "vision", "pod": "p2", "container": "main"},
    )


def test_two_of_four_replicas_share_the_whole_device():
    """Nobody else holds it: three quarters for who has three of the four taken, none left over."""
    owners = owners_of(
        Cluster([pod("big", f"{UUID}::0", f"{UUID}::2", f"{UUID}::3"), pod("small", f"{UUID}::1")])
    )
    assert {
        holder.workload.name: holder.weight for holder in owners.holders([WHOLE], [])[UUID]
    } == {
        "vision/big": 3,
        "vision/small": 1,
    }
    assert len(owners_of(Cluster([pod("alone", f"{UUID}::1")])).holders([WHOLE], [])[UUID]) == 1


def test_two_containers_of_a_pod_with_one_device_are_one_holder():
    """A claim may be shared by containers; the device is not counted twice."""
    shared = AllocatedPod(
        "ns",
        "p",
        tuple(AllocatedDevice(name, "gpu.nvidia.com", "gpu-0", (), "c") for name in ("a", "b")),
    )
    (holder,) = owners_of(Cluster([shared])).holders([WHOLE], [])[UUID]
    assert (holder.weight, holder.workload.id) == (1, "ns/p")


@given(
    st.lists(st.sets(st.integers(0, 47), min_size=1), min_size=1, max_size=12),
    st.integers(0, 10**9),
)
def test_parts_of_a_replicated_device_always_make_a_whole(replicas, span_ms):
    """Whatever replicas pods have, their parts of a span and of a GPU add up to it exactly, in
    proportion.
    """
    taken = set()
    pods = []
    for number, wanted in enumerate(replicas):
        mine = wanted - taken
        taken |= mine
        if mine:
            pods.append(pod(f"p{number}", *(f"{UUID}::{one}" for one in sorted(mine))))
    holders = owners_of(Cluster(pods)).holders([WHOLE], [])[UUID]
    weights = [holder.weight for holder in holders]
    assert sum(weights) == len(taken)
    assert sum(split(WHOLE_GPU, weights)) == WHOLE_GPU
    assert sum(split(span_ms, weights)) == span_ms


def test_a_pod_that_has_ended_holds_nothing():
    """Kubelets list completed pods, whose device another pod may have by now (kubernetes issue
    119423).
    """
    facts = {("vision", "done"): PodFacts("u1", ended=True), ("vision", "runs"): PodFacts("u2")}
    owners = owners_of(Cluster([pod("done", UUID), pod("runs", UUID)], facts))
    assert [holder.workload.id for holder in owners.holders([WHOLE], [])[UUID]] == ["u2"]


def test_labels_are_tags_and_those_of_the_namespace_their_defaults():
    """The pod's own label wins; no label takes the place of the real namespace; hashes for machines
    are left out.
    """
    facts = {
        ("vision", "p"): PodFacts(
            "u1", {"project": "seg", "namespace": "fake", "pod-template-hash": "5d4f", "a.b/c": "d"}
        )
    }
    labels = {"team": "vision", "project": "default", "kubernetes.io/metadata.name": "vision"}
    namespaces = {"vision": NamespaceFacts(labels)}
    (holder,) = owners_of(Cluster([pod("p", UUID)], facts, namespaces)).holders([WHOLE], [])[UUID]
    assert holder.workload.id == "u1"
    assert dict(holder.workload.tags) == {
        "team": "vision",
        "project": "seg",
        "a.b/c": "d",
        "namespace": "vision",
        "pod": "p",
        "pod_uid": "u1",
        "container": "main",
    }


def test_labels_are_kept_within_bounds():
    """A thousand labels give 64 tags, plain names first; long values are cut."""
    labels = {f"x.io/l{n}": "v" for n in range(1000)} | {
        "team": "vision",
        "long": "y" * 9999,
        "bad": "a\0b",
    }
    (holder,) = owners_of(
        Cluster([pod("p", UUID)], {("vision", "p"): PodFacts("u", labels)})
    ).holders([WHOLE], [])[UUID]
    tags = holder.workload.tags
    assert len(tags) == 64 + 4
    assert tags["team"] == "vision"
    assert len(tags["long"]) == 256
    assert "bad" not in tags


@pytest.mark.parametrize("level", ["org", "team", "project", "experiment", "run", "user"])
def test_many_labels_of_a_pod_push_out_no_owner(level):
    """Who may write a pod's labels cannot drop the owner that its namespace has."""
    many = {f"a{n:02}": "v" for n in range(64)}
    facts = {("vision", "p"): PodFacts("u", many)}
    spaces = {"vision": NamespaceFacts({level: "vision"})}
    (holder,) = owners_of(Cluster([pod("p", UUID)], facts, spaces)).holders([WHOLE], [])[UUID]
    assert holder.workload.tags[level] == "vision"


def test_a_gpu_that_is_not_ours_is_said_once(caplog):
    """A claim of which nobody can tell the instance is worth a line, not a line each tick."""
    owners = owners_of(Cluster([pod("p", "GPU-elsewhere")]))
    for _ in range(3):
        assert owners.holders([WHOLE], []) == {}
    assert caplog.text.count("GPU-elsewhere") == 1


# ---- freshness ----


def test_what_is_stale_is_not_known_and_is_said_once(caplog):
    """Up to the limit a silent kubelet's pods hold on; then nobody knows who does; when it answers
    they hold again.
    """
    caplog.set_level("INFO")
    now, fails = [0.0], [False]

    def look():
        if fails[0]:
            raise CallFailed("kubelet.sock: No such file or directory")
        return Cluster([pod("p", UUID)])

    cluster = PolledValue("kubernetes", look, 5, 120, clock=lambda: now[0])
    owners = KubernetesOwners(cluster)
    cluster.refresh()
    fails[0] = True
    for now[0] in (60.0, 120.0):
        cluster.refresh()
        assert UUID in owners.holders([WHOLE], [])
    assert caplog.text == ""
    for now[0] in (121.0, 130.0, 900.0):
        cluster.refresh()
        with pytest.raises(NoRecentAnswer, match="No such file"):
            owners.holders([WHOLE], [])
    assert (
        caplog.text.count("holders are unknown until it answers: kubelet.sock: No such file") == 1
    )
    observations = observe_holders([owners], [WHOLE], [], lambda *_: None)
    assert (observations.holders, observations.complete) == ({}, False)  # unobserved, not free
    fails[0] = False
    cluster.refresh()
    assert UUID in owners.holders([WHOLE], [])
    assert caplog.text.count("answers again") == 1


def test_a_slow_kubelet_never_delays_a_tick():
    """The look hangs; asking for holders takes no time, and what was known stays."""
    hang = threading.Event()
    looks = []

    def look():
        looks.append(1)
        if len(looks) > 1:
            hang.wait(120)
        return Cluster([pod("p", UUID)])

    cluster = PolledValue("kubernetes", look, 0.01, 120)
    cluster.start(wait_s=60)
    owners = KubernetesOwners(cluster)
    deadline = time.monotonic() + 60
    while len(looks) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    began = time.monotonic()
    for _ in range(100):
        assert UUID in owners.holders([WHOLE], [])
    took = time.monotonic() - began
    hang.set()
    cluster.close()
    assert took < 20
    assert len(looks) == 2


# ---- the API server ----


@pytest.fixture(scope="module")
def api(tmp_path_factory):
    with api_server(tmp_path_factory.mktemp("api")) as server:
        yield server


@pytest.fixture
def asked(api):
    api.reset()
    return ApiServer(api.url, api.account)


def test_pods_of_the_node_come_with_uid_labels_and_phase(api, asked):
    """Only those of this node, page by page, by token and the cluster's own CA."""
    api.pods = [
        {
            "metadata": {
                "name": f"p{n}",
                "namespace": "ns",
                "uid": f"u{n}",
                "labels": {"team": "t"},
            },
            "spec": {"nodeName": "n1", "containers": [{"name": "main"}]},
            "status": {"phase": "Succeeded" if n == 7 else "Running"},
        }
        for n in range(250)
    ]
    api.pods.append(
        {"metadata": {"name": "far", "namespace": "ns"}, "spec": {"nodeName": "n2"}, "status": {}}
    )
    found = asked.pods("n1")
    assert len(found) == 250
    assert found["ns", "p7"] == PodFacts("u7", {"team": "t"}, ended=True)
    assert len(api.requests) == 3
    assert all(f"Bearer {TOKEN}" == authorization for authorization, _ in api.requests)


def test_a_rotated_token_is_read_anew(api, asked):
    """The kubelet writes a new token; the next question carries it."""
    (api.account / "token").write_text("second\n")
    with pytest.raises(ApiFailed, match="HTTP status 401"):
        asked.pods("n1")
    (api.account / "token").write_text(TOKEN)
    assert asked.pods("n1") == {}


def test_a_server_that_another_authority_vouches_for_is_not_told_the_token(api, asked, tmp_path):
    """The certificate is checked before anything is sent."""
    with api_server(tmp_path) as impostor:
        with pytest.raises(ApiFailed, match="certificate verify failed"):
            ApiServer(impostor.url, api.account).pods("n1")
        assert impostor.requests == []


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"items": 3}', b"\xff", b'{"items": [{"metadata": {"labels": 3}}]}']
)
def test_an_answer_that_is_no_list_is_an_error_of_ours(api, asked, body):
    """Never a traceback of JSON."""
    api.body = body
    with pytest.raises(ApiFailed):
        asked.pods("n1")


def test_no_token_and_no_server_are_errors_of_ours(api, tmp_path):
    """A host that is no pod has no account; a server that is gone refuses."""
    with pytest.raises(ApiFailed, match="No such file"):
        ApiServer(api.url, tmp_path).pods("n1")
    with pytest.raises(ApiFailed, match="refused"):
        ApiServer("https://127.0.0.1:1", api.account).pods("n1")


def test_a_server_that_trickles_does_not_hold_the_thread_for_ever(api, asked, monkeypatch):
    """Each byte comes in time, the whole does not: the list has a deadline, and the kubelet is
    asked again.
    """
    monkeypatch.setattr(asked, "_list_s", 0.4)
    api.trickle_s = 0.05
    began = time.monotonic()
    with pytest.raises(ApiFailed, match="no complete answer within"):
        asked.pods("n1")
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_uuids_of_claimed_devices_come_from_resource_slices(api, asked, version):
    """In the v1 API attributes are the device's, in v1beta1 they lie in `basic`; profiles have no
    UUID.
    """
    attributes = {
        "attributes": {"uuid": {"string": OTHER}, "index": {"int": 1}},
        "capacity": {"memory": {"value": "80Gi"}},
    }
    named = {"name": "gpu-0", **(attributes if version == "v1" else {"basic": attributes})}
    spec = {"driver": "gpu.nvidia.com", "pool": {"name": "n1"}, "nodeName": "n1"}
    api.slices[version] = [
        {"metadata": {"name": "s"}, "spec": {**spec, "devices": [named, {"name": "gpu-0-mig-1"}]}}
    ]
    assert asked.devices("n1") == {
        ("gpu.nvidia.com", "n1", "gpu-0"): OfferedDevice(OTHER, {"memory": "80Gi"}),
        ("gpu.nvidia.com", "n1", "gpu-0-mig-1"): OfferedDevice(),
    }


def test_the_api_is_asked_when_a_pod_is_new_and_otherwise_twice_a_minute(api, asked):
    """A kubelet's list each five seconds is no reason to ask a server that all nodes share."""
    now, pods = [0.0], [pod("p0", UUID)]
    api.pods = [api.pod("vision", f"p{n}", f"u{n}") for n in range(3)]
    view = ClusterView(lambda: tuple(pods), asked, "n1", clock=lambda: now[0])
    for now[0] in (0.0, 5.0, 10.0):
        assert view.look().facts["vision", "p0"].uid == "u0"
    assert len(api.requests) == 3  # pods, namespaces and the node, which changes less often
    pods.append(pod("p1", OTHER))
    assert view.look().facts["vision", "p1"].uid == "u1"
    assert len(api.requests) == 5
    now[0] = 41.0
    view.look()
    assert len(api.requests) == 7


def test_a_new_pod_is_asked_for_alone(api, asked):
    """With its namespace, by lists of one: a role that may list is enough."""
    pods = [pod("p0", UUID)]
    api.pods = [api.pod("vision", f"p{n}", f"u{n}") for n in range(3)]
    api.namespaces = [{"metadata": {"name": "vision", "labels": {"team": "before"}}}]
    view = ClusterView(lambda: tuple(pods), asked, "n1", clock=lambda: 0.0)
    assert view.look().namespaces["vision"].labels == {"team": "before"}
    del api.requests[:]
    # The list of the node had another pod of this name, and its namespace another label.
    api.pods[1] = api.pod("vision", "p1", "again")
    api.namespaces[0]["metadata"]["labels"] = {"team": "now"}
    pods.append(pod("p1", OTHER))
    cluster = view.look()
    assert [unquote(path) for _, path in api.requests] == [
        "/api/v1/namespaces/vision/pods?fieldSelector=metadata.name=p1,spec.nodeName=n1&limit=100",
        "/api/v1/namespaces?fieldSelector=metadata.name=vision&limit=500",
    ]
    assert {name: facts.uid for (_, name), facts in cluster.facts.items()} == {
        "p0": "u0",
        "p1": "again",
        "p2": "u2",
    }
    assert cluster.namespaces["vision"].labels == {"team": "now"}


def test_a_pod_of_the_same_name_on_another_node_is_another(api, asked):
    """The API server may have a successor of a pod that the kubelet still lists."""
    pods = [pod("p0", UUID)]
    api.pods = [api.pod("vision", "p0", "u0"), api.pod("vision", "p1", "u1", node="n2")]
    view = ClusterView(lambda: tuple(pods), asked, "n1", clock=lambda: 0.0)
    view.look()
    pods.append(pod("p1", OTHER))
    assert ("vision", "p1") not in view.look().facts


def test_many_new_pods_are_asked_for_as_all_of_the_node(api, asked):
    """One list costs less than each of them."""
    pods = [pod("p0", UUID)]
    names = [f"p{n}" for n in range(FEW_PODS + 2)]
    api.pods = [api.pod("vision", name, f"uid-{name}") for name in names]
    view = ClusterView(lambda: tuple(pods), asked, "n1", clock=lambda: 0.0, reads=set())
    view.look()
    del api.requests[:]
    pods[:] = [pod(name, UUID) for name in names]
    assert {facts.uid for facts in view.look().facts.values()} == {f"uid-{name}" for name in names}
    assert len(api.requests) == 1


@pytest.mark.parametrize(("keeps", "connections"), [(True, 1), (False, 5)])
def test_what_is_asked_together_shares_a_connection(api, asked, keeps, connections):
    """Three pages of pods, namespaces and the node; a server that closes after each answer is
    connected to again.
    """
    api.keeps_connections = keeps
    api.pods = [api.pod("vision", f"p{n}", f"u{n}") for n in range(250)]
    api.node("n1")
    cluster = ClusterView(lambda: (pod("p0", UUID),), asked, "n1").look()
    assert len(cluster.facts) == 250
    assert (len(api.requests), api.connections) == (5, connections)


def test_labels_outlive_an_api_server_that_fails_and_a_name_that_comes_again_is_a_new_pod(
    api, asked, caplog
):
    """Labels are kept while the pod is listed; a StatefulSet's pod that was away has another UID."""
    now, pods = [0.0], [pod("p0", UUID)]
    api.pods = [api.pod("vision", "p0", "first")]
    view = ClusterView(lambda: tuple(pods), asked, "n1", clock=lambda: now[0])
    assert view.look().facts["vision", "p0"].uid == "first"
    api.status = 503
    for now[0] in (40.0, 80.0):
        assert view.look().facts["vision", "p0"].uid == "first"
    assert caplog.text.count("earlier answers on pods stay in use") == 1
    pods.clear()
    view.look()
    pods.append(pod("p0", UUID))
    assert ("vision", "p0") not in view.look().facts


def test_without_rights_on_namespaces_pods_keep_their_own_labels(api, asked, caplog):
    """A role that may list pods only is enough."""
    api.forbidden = "/api/v1/namespaces"
    api.pods = [api.pod("vision", "p0", "u0", team="vision")]
    cluster = ClusterView(lambda: (pod("p0", UUID),), asked, "n1").look()
    assert cluster.facts["vision", "p0"].labels == {"team": "vision"}
    assert cluster.namespaces == {}
    assert "no defaults, and pods may name any owner" in caplog.text


def test_without_an_api_server_the_names_of_log_folders_tell_uids(tmp_path):
    """NAMESPACE_NAME_UID; of two folders of one pod's name none is believed; a missing folder tells
    nothing.
    """
    for name in ("vision_p0_u0", "vision_p1_old", "vision_p1_new", "odd", "a_b_c_d"):
        (tmp_path / name).mkdir()
    assert uids_by_logs(tmp_path) == {("vision", "p0"): "u0"}
    assert uids_by_logs(tmp_path / "none") == {}
    cluster = ClusterView(lambda: (pod("p0", UUID), pod("p1", UUID)), None, "n1", tmp_path).look()
    assert cluster.facts == {("vision", "p0"): PodFacts("u0")}


# ---- opened as the agent opens it ----


class Nvml:
    name = "nvml"


def test_a_node_with_a_kubelet_tells_its_pods_and_describes_processes(node, api, asked, tmp_path):
    """The kubelet first; a pod that is found by its processes only gets the labels that the API
    server knows.
    """
    node.pods = [kubelet.pod("vision", "p0", f"{UUID}::1")]
    api.pods = [
        api.pod("vision", "p0", "u0", team="vision"),
        api.pod("web", "p1", "u1", team="web"),
    ]
    settings = Settings(
        owners="kubernetes,containers,processes",
        node="n1",
        kubelet_socket=node.path,
        kubernetes_api_url=api.url,
        kubernetes_account_dir=api.account,
        pod_logs_dir=tmp_path / "logs",
        container_socket=tmp_path / "no.sock",
    )
    first, processes = open_owners(settings, Nvml())
    assert (first.name, processes.name) == ("kubernetes", "processes")
    (holder,) = first.holders([WHOLE], [])[UUID]
    assert (holder.workload.id, holder.workload.tags["team"]) == ("u0", "vision")
    told = first.describe(Workload("u1", "kubernetes", "root", None, "pod u1", {"pod_uid": "u1"}))
    assert (told.name, told.user, told.tags["team"], told.tags["namespace"]) == (
        "web/p1",
        "root",
        "web",
        "web",
    )
    unknown = Workload("u9", "kubernetes")
    assert first.describe(unknown) is unknown


def test_a_node_without_a_kubelet_has_no_such_source(tmp_path):
    """Neither a thread nor a warning: most nodes are no Kubernetes nodes."""
    settings = Settings(
        owners="kubernetes,processes", kubelet_socket=tmp_path / "none" / "kubelet.sock"
    )
    assert [one.name for one in open_owners(settings, Nvml())] == ["processes"]


def test_a_kubelet_that_cannot_be_asked_for_lack_of_a_library_is_said(node, monkeypatch, caplog):
    """Where NVIDIA's binding alone is installed: a sentence with what is missing, and the other
    sources.
    """
    monkeypatch.setitem(sys.modules, "msgspec", None)
    containerd = node.path.parent / "containerd.sock"
    settings = Settings(
        owners="kubernetes,containers", kubelet_socket=node.path, container_socket=containerd
    )
    node.path.parent.joinpath("containerd.sock").touch()
    assert [one.name for one in open_owners(settings, Nvml())] == []
    assert "msgspec is not installed (pip install msgspec)" in caplog.text
    assert node.calls == 0


def test_a_place_that_cannot_be_looked_at_is_no_kubelet(tmp_path, caplog):
    """Where a folder cannot even be asked for (here: by its length), the agent goes on."""
    kubelet, engine = tmp_path / ("x" * 300) / "k.sock", tmp_path / ("y" * 300)
    settings = Settings(
        owners="kubernetes,containers", kubelet_socket=kubelet, container_socket=engine
    )
    assert open_owners(settings, Nvml()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_a_user_who_may_not_enter_the_kubelets_folder_is_told():
    """In a process of user nobody: a sentence and no source, instead of a traceback at every start."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        shut = Path(made) / "kubelet"
        (shut / "pod-resources").mkdir(parents=True)
        shut.chmod(0o700)
        told = as_nobody(shut)
    assert told.returncode == 0, told.stderr
    assert "may not be entered" in told.stdout
    assert told.stdout.endswith("None None\n")


def as_nobody(shut):
    """Opens both sources with sockets in a folder, as user nobody."""
    code = (
        "import os, logging, sys\n"
        "from pathlib import Path\n"
        "from gpuledger_agent.owners import discovery\n"
        "from gpuledger_agent.settings import Settings\n"
        "logging.basicConfig(stream=sys.stdout)\n"
        "os.setuid(65534)\n"
        f"shut = Path({str(shut)!r})\n"
        "sockets = shut / 'pod-resources/kubelet.sock', shut / 'docker.sock'\n"
        "settings = Settings(kubelet_socket=sockets[0], container_socket=sockets[1])\n"
        "print(discovery.kubernetes_owners(settings), discovery.container_owners(settings))\n"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)


def test_settings_say_where_the_owner_sources_look():
    """By environment as a DaemonSet gives them; an empty path is none; plain HTTP would show the
    token to all.
    """
    given = {
        "GPULEDGER_AGENT_KUBELET_SOCKET": "",
        "GPULEDGER_AGENT_KUBERNETES_API_URL": "https://10.0.0.1:6443",
        "GPULEDGER_AGENT_CONTAINER_SOCKET": "/run/podman/podman.sock",
        "GPULEDGER_AGENT_OWNER_STALE_S": "30",
    }
    settings = load(None, given)
    assert (settings.kubelet_socket, settings.kubernetes_api_url) == (None, "https://10.0.0.1:6443")
    assert (settings.container_socket, settings.owner_stale_s) == (
        Path("/run/podman/podman.sock"),
        30,
    )
    refused = [
        ("KUBERNETES_API_URL", "http://10.0.0.1"),
        ("KUBERNETES_API_URL", "https://[x"),
        ("OWNER_STALE_S", "0"),
    ]
    for name, value in refused:
        with pytest.raises(SettingsError, match=name.lower()):
            load(None, {f"GPULEDGER_AGENT_{name}": value})


def test_a_list_of_pods_that_is_too_short_does_not_split_a_workload():
    """An API server that has just started may know fewer pods than the kubelet: what was known of
    them stays.
    """
    pod = AllocatedPod("ml", "train-0", (AllocatedDevice("c", "nvidia.com/gpu", "GPU-a"),))
    answers = [{("ml", "train-0"): PodFacts("uid-1")}, {}, {("ml", "train-0"): PodFacts("uid-2")}]
    now = iter(range(0, 10_000, 60))

    class Api:
        connected = staticmethod(contextlib.nullcontext)

        def pods(self, node):
            return answers.pop(0)

        def namespaces(self, wanted):
            return {}

    view = ClusterView(lambda: [pod], Api(), "n1", clock=lambda: next(now), reads={"namespaces"})
    seen = [view.look().facts["ml", "train-0"].uid for _ in range(3)]
    assert seen == ["uid-1", "uid-1", "uid-2"]


def test_only_namespaces_of_pods_of_the_node_are_kept():
    """Those of pods that the kubelet has, with a device or without, and of pods that the API server
    has; not the hundreds of others that a cluster has.
    """
    pods = [
        AllocatedPod("ml", "train-0", (AllocatedDevice("c", "nvidia.com/gpu", "GPU-a"),)),
        AllocatedPod("tools", "plugin", ()),
    ]
    asked = []

    class Api:
        connected = staticmethod(contextlib.nullcontext)

        def pods(self, node):
            return {("late", "p"): PodFacts("uid-1")}

        def namespaces(self, wanted):
            asked.append(set(wanted))
            return {}

    ClusterView(lambda: pods, Api(), "n1", reads={"namespaces"}).look()
    assert asked == [{"ml", "tools", "late"}]
