"""A whole agent process over the NVML stand-in, beside a kubelet (real gRPC), an API server and a
container engine.
"""

import pytest

from fakes import engine, kubelet
from fakes.apiserver import api_server


@pytest.fixture
def surroundings(card, tmp_path):
    """The agent's settings point at a kubelet, an API server and an engine; UUIDs by index beside
    them.
    """
    account = tmp_path / "account"
    account.mkdir()
    (tmp_path / "pods").mkdir()
    with (
        kubelet.running(tmp_path / "pods/kubelet.sock") as node,
        engine.running(tmp_path / "docker.sock") as docker,
        api_server(account) as api,
    ):
        card.environment |= {
            "GPULEDGER_AGENT_NODE": "n1",
            "GPULEDGER_AGENT_KUBELET_SOCKET": str(node.path),
            "GPULEDGER_AGENT_KUBERNETES_API_URL": api.url,
            "GPULEDGER_AGENT_KUBERNETES_ACCOUNT_DIR": str(account),
            "GPULEDGER_AGENT_CONTAINER_SOCKET": str(docker.path),
        }
        yield node, docker, api


def test_a_pod_and_a_container_hold_each_its_card(card, surroundings):
    """Two pods at time-slicing replicas of card 0, a container with card 1, nobody on card 2: in
    one look of `once`.
    """
    node, docker, api = surroundings
    card.scenario("gpus 3\n")
    uuids = {entry["index"]: entry["uuid"] for entry in card.once()["accelerators"]}
    node.pods = [
        kubelet.pod("vision", "train", f"{uuids[0]}::0", f"{uuids[0]}::1"),
        kubelet.pod("nlp", "infer", f"{uuids[0]}::2"),
    ]
    api.pods = [
        api.pod("vision", "train", "u1", project="segmentation"),
        api.pod("nlp", "infer", "u2", team="nlp"),
    ]
    api.namespaces = [{"metadata": {"name": "vision", "labels": {"team": "vision"}}}]
    docker.containers = [
        engine.container("a", "notebook", requests=engine.gpus("1"), team="research")
    ]
    seen = {entry["index"]: entry for entry in card.once()["accelerators"]}
    assert [
        (owner["id"], owner["tags"]["team"], owner["weight"]) for owner in seen[0]["owner"]
    ] == [
        ("u1", "vision", 2),
        ("u2", "nlp", 1),
    ]
    assert seen[0]["owner"][0]["tags"]["project"] == "segmentation"
    assert [
        (owner["kind"], owner["name"], owner["tags"]["team"]) for owner in seen[1]["owner"]
    ] == [("container", "notebook", "research")]
    assert seen[2]["owner"] == []


def test_an_agent_whose_kubelet_and_engine_are_away_still_looks(card, surroundings):
    """Both are silent: the cards are read as ever, nobody holds them, and the command ends well."""
    node, docker, _ = surroundings
    node.stop()
    docker.odd["/containers/json"] = 500, b""
    seen = card.once()["accelerators"]
    assert [entry["owner"] for entry in seen] == [[], []]
    assert all(entry["metrics"] for entry in seen)
