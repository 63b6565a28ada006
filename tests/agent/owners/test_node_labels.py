"""Pool, way of buying, type and zone of a node by the labels of its cloud, without a setting."""

import pytest

from fakes import kubelet
from fakes.apiserver import api_server
from gpuledger_agent.owners.kubernetes import NODE_INTERVAL_S, ClusterView, KubernetesOwners
from gpuledger_agent.owners.kubernetes_api import ApiServer
from gpuledger_agent.owners.node_labels import machine_of
from gpuledger_agent.owners.podresources import list_pods
from gpuledger_agent.owners.polling import PolledValue
from gpuledger_agent.sampler import Sampler
from gpuledger_agent.settings import SettingsError, load
from gpuledger_agent.spool import Spool
from gpuledger_common.batches import unpack
from gpuledger_common.meter import Meter
from gpuledger_common.readings import Accelerator, Inventory, Machine

TYPE, ZONE = "node.kubernetes.io/instance-type", "topology.kubernetes.io/zone"
CARD = Accelerator("GPU-1", "GPU-1", 0, "NVIDIA H100")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with api_server(tmp_path_factory.mktemp("api")) as running:
        yield running


@pytest.fixture
def api(server):
    server.reset()
    return server


@pytest.mark.parametrize(
    ("labels", "pool", "purchase"),
    [
        ({"cloud.google.com/gke-nodepool": "a3"}, "a3", ""),
        (
            {"cloud.google.com/gke-nodepool": "a3", "cloud.google.com/gke-spot": "true"},
            "a3",
            "spot",
        ),
        ({"cloud.google.com/gke-provisioning": "standard"}, "", "on_demand"),
        ({"cloud.google.com/gke-spot": "false"}, "", ""),
        (
            {"eks.amazonaws.com/nodegroup": "p5", "eks.amazonaws.com/capacityType": "ON_DEMAND"},
            "p5",
            "on_demand",
        ),
        ({"eks.amazonaws.com/capacityType": "SPOT"}, "", "spot"),
        ({"eks.amazonaws.com/capacityType": "CAPACITY_BLOCK"}, "", "reserved"),
        (
            {"karpenter.sh/nodepool": "gpu", "karpenter.sh/capacity-type": "reserved"},
            "gpu",
            "reserved",
        ),
        ({"karpenter.sh/capacity-type": "on-demand"}, "", "on_demand"),
        (
            {
                "kubernetes.azure.com/agentpool": "nc",
                "kubernetes.azure.com/scalesetpriority": "spot",
            },
            "nc",
            "spot",
        ),
        ({"kubernetes.azure.com/scalesetpriority": "something new"}, "", ""),
        ({}, "", ""),
    ],
)
def test_each_cloud_says_it_by_its_own_labels(labels, pool, purchase):
    """What no label says is not known: the absence of a mark is not a way of buying."""
    machine = machine_of({**labels, TYPE: "x", ZONE: "z"}, "id")
    assert machine == Machine(pool, purchase, "x", "", "z", "id")


@pytest.fixture
def look(tmp_path, api):
    """Look once at a node after a while; the owners that know it."""
    with kubelet.running(tmp_path / "kubelet.sock") as running:
        now = [0.0]
        view = ClusterView(
            lambda: list_pods(running.path),
            ApiServer(api.url, api.account),
            "n1",
            clock=lambda: now[0],
        )
        owners = KubernetesOwners(PolledValue("kubernetes", view.look, 5, 1e9))

        def again(wait_s):
            now[0] += wait_s
            owners._cluster.refresh()
            return owners

        yield again


class NoSource:
    name = "nvml"

    def read(self, tiers):
        return []


@pytest.mark.parametrize(("setting", "expected"), [("", "a3"), ("train", "train")])
def test_the_pool_of_the_node_is_that_of_its_accelerators(look, api, tmp_path, setting, expected):
    """Unless the setting says another one; the heartbeat has all that is known, and no more."""
    api.node("n1", "gce://n1", **{"cloud.google.com/gke-nodepool": "a3", TYPE: "a3-highgpu-8g"})
    sampler = Sampler("n1", setting, NoSource(), [look(0)], Meter(60_000))
    sampler.attach(Inventory("1", [CARD]))
    spool = Spool(tmp_path / "spool", 2**20, 0)
    sampler.flush(spool, 1000)
    batch = unpack(spool.next("oldest").body)
    assert [entry.pool for entry in batch.accelerators] == [expected]
    assert batch.heartbeat.machine == {
        "pool": "a3",
        "instance_type": "a3-highgpu-8g",
        "provider_id": "gce://n1",
    }


def test_the_node_is_asked_for_now_and_then(look, api, caplog):
    """Every ten minutes; one who may not ask is told once, and the rest goes on."""
    api.node("n1", **{TYPE: "a"})
    for _ in range(21):
        assert look(31).machine().instance_type == "a"

    def asked():
        return sum(target == "/api/v1/nodes/n1" for _, target in api.requests)

    assert asked() == 2
    api.forbidden = "/api/v1/nodes"
    for _ in range(5):
        assert look(NODE_INTERVAL_S + 1).machine().instance_type == "a"
    assert caplog.text.count("may not ask for nodes, so the pool of this node") == 1


def test_a_node_that_the_server_does_not_know_is_said_once(look, caplog):
    """A name that differs from the cluster's, for example."""
    for _ in range(5):
        assert look(31).machine() is None
    assert caplog.text.count("cannot ask for nodes, so the pool of this node") == 1
    assert "stay in use" not in caplog.text


def test_parts_that_are_not_to_be_read_are_settings():
    """An empty list leaves pods alone; a part that does not exist is refused."""
    assert load(None, {"GPULEDGER_AGENT_KUBERNETES_READS": ""}).kubernetes_parts == ()
    with pytest.raises(SettingsError, match="kubernetes_reads: 'secrets' is not one of"):
        load(None, {"GPULEDGER_AGENT_KUBERNETES_READS": "node,secrets"})


@pytest.mark.parametrize("part", ["namespaces", "claims", "node"])
def test_what_is_not_to_be_read_is_not_asked_for(tmp_path, api, part):
    """So a role without that right is no fault."""
    paths = {"namespaces": "/api/v1/namespaces", "claims": "resource", "node": "/api/v1/nodes"}
    with kubelet.running(tmp_path / "kubelet.sock") as running:
        running.pods = [kubelet.claiming_pod("vision", "a", "gpu-0")]
        for reads in ({part}, set(paths) - {part}):
            api.reset()
            account = ApiServer(api.url, api.account)
            ClusterView(lambda: list_pods(running.path), account, "n1", reads=reads).look()
            asked = {target.partition("?")[0] for _, target in api.requests}
            assert any(paths[part] in target for target in asked) == (part in reads)
            assert "/api/v1/pods" in asked
