"""Owners from Kubernetes: a real gRPC server on a unix socket, a real HTTPS server as API server."""

import pytest
from fakes import kubelet

from gpuledger_agent.owners.podresources import GivenDevice, list_pods


@pytest.fixture
def node(tmp_path):
    with kubelet.running(tmp_path / "kubelet.sock") as running:
        yield running


def test_pods_with_devices_are_listed_and_the_others_left_out(node):
    """Names, namespaces, containers and ids come through; topology, memory and CPUs are skipped."""
    node.pods = [kubelet.pod("vision", "train-0", "GPU-a", "GPU-b"), kubelet.pod("web", "front-1")]
    (pod,) = list_pods(node.path)
    assert (pod.namespace, pod.name) == ("vision", "train-0")
    assert pod.devices == (
        GivenDevice("main", "nvidia.com/gpu", "GPU-a"),
        GivenDevice("main", "nvidia.com/gpu", "GPU-b"),
    )
