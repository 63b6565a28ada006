"""Pool, way of buying, type and zone of a node by the labels of its cloud, without a setting."""

import pytest

from fakes import kubelet
from fakes.apiserver import api_server
from fakes.kubernetes_node import cluster_owners
from gpuledger_agent.owners import discovery
from gpuledger_agent.owners.kubernetes import NODE_INTERVAL_S, ClusterView
from gpuledger_agent.owners.kubernetes_api import ApiServer
from gpuledger_agent.owners.machine_note import MAX_NOTE_BYTES, NAME, MachineNote
from gpuledger_agent.owners.node_labels import machine_of
from gpuledger_agent.owners.podresources import list_pods
from gpuledger_agent.sampler import Sampler
from gpuledger_agent.settings import Settings, SettingsError, load
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
        owners = cluster_owners(running.path, api, lambda: now[0])

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


@pytest.fixture
def start(tmp_path, api):
    """Start an agent on node n1, and let it ask once; its owners."""
    with kubelet.running(tmp_path / "kubelet.sock") as running:

        def start(node="n1"):
            note = MachineNote(tmp_path / "state", node)
            owners = cluster_owners(running.path, api, lambda: 0.0, note)
            owners._cluster.refresh()
            return owners

        yield start


def test_an_agent_that_starts_without_the_server_knows_its_machine(start, api, caplog):
    """Its pool would be `default` until the server answers; another node's note is none."""
    api.node("n1", "gce://n1", **{"cloud.google.com/gke-nodepool": "a3"})
    known = start().machine()
    api.forbidden = "/api/"
    assert start().machine() == known == Machine("a3", provider_id="gce://n1")
    assert "how it is bought stay as they were known" in caplog.text
    assert start("n2").machine() is None
    # What the server says later is what counts.
    api.forbidden = None
    api.node("n1", **{"cloud.google.com/gke-nodepool": "b4"})
    assert start().machine() == Machine("b4")
    assert start().machine() == Machine("b4")


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"node": "n1", "machine": {}, ',
        '{"node": "n1", "machine": {"pool": 7}}',
        '{"node": "n1", "machine": {"pool": "%s"}}' % ("x" * 257),
        '{"node": "n1", "machine": {"size": "1"}}',
        '{"node": "n1", "machine": {"pool": "a3"}}'.ljust(MAX_NOTE_BYTES + 1),
    ],
)
def test_a_note_that_is_broken_is_none(start, api, tmp_path, content):
    """As if the agent had never run here."""
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / NAME).write_text(content)
    api.forbidden = "/api/"
    assert start().machine() is None


def test_a_folder_that_cannot_be_written_is_said_once(start, api, tmp_path, caplog):
    """The machine is known all the same."""
    (tmp_path / "state").write_text("")
    api.node("n1", **{"cloud.google.com/gke-nodepool": "a3"})
    owners = start()
    assert owners.machine() == Machine("a3")
    owners._note.write(Machine("b4"))
    assert caplog.text.count("machine.json cannot be written") == 1


@pytest.mark.parametrize(("reads", "expected"), [("node", "a3"), ("claims", None)])
def test_the_note_is_that_of_the_spool(api, tmp_path, reads, expected):
    """Where nodes are not to be read, it is not either."""
    MachineNote(tmp_path, "n1").write(Machine("a3"))
    with kubelet.running(tmp_path / "kubelet.sock") as running:
        owners = discovery.kubernetes_owners(
            Settings(
                node="n1",
                spool_dir=tmp_path,
                kubelet_socket=running.path,
                kubernetes_api_url=api.url,
                kubernetes_account_dir=api.account,
                kubernetes_reads=reads,
            )
        )
        owners._cluster.close()
        machine = owners.machine()
    assert (None if machine is None else machine.pool) == expected


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
