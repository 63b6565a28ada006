"""Opens the owner sources that ask another program of the node, each only where that program is.

They are asked for by default. The kubelet makes its socket anew at each start, so its folder says that it is there;
of an engine the socket does. A program that is absent, or may not be asked, is no error: the node has others.
"""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gpuledger_agent.owners.places import ENGINE_SOCKETS, KUBERNETES_ACCOUNT, Places
from gpuledger_agent.owners.refreshed import Refreshed

if TYPE_CHECKING:
    from gpuledger_agent.owners.containers import ContainerOwners
    from gpuledger_agent.owners.kubernetes import KubernetesOwners

log = logging.getLogger("gpuledger_agent")

INTERVAL_S = 5.0
"""Seconds between two looks; the kubelet allows 100 a second."""
FIRST_LOOK_S = 3.0
"""How long opening waits for the first look, so that a single look (`check`) sees owners."""


def kubernetes_owners(places: Places, node: str) -> KubernetesOwners | None:
    """Owners from this node's kubelet; None where there is none."""
    socket_path = places.kubelet_socket
    if socket_path is None or not _is_there(socket_path.parent):
        return None
    if _lacks("h2", "msgspec"):
        log.warning(
            "owners kubernetes: a kubelet is here, but gpuledger[kubernetes] is not installed; pods are unknown"
        )
        return None
    from gpuledger_agent.owners.kubernetes import ClusterView, KubernetesOwners
    from gpuledger_agent.owners.kubernetes_api import ApiServer, in_cluster_url
    from gpuledger_agent.owners.podresources import list_pods

    url = None if places.kubernetes_api_url == "off" else places.kubernetes_api_url or in_cluster_url()
    api = ApiServer(url, places.kubernetes_account_dir or KUBERNETES_ACCOUNT) if url else None
    view = ClusterView(partial(list_pods, socket_path), api, node, places.pod_logs_dir)
    cluster = Refreshed("kubernetes", view.look, INTERVAL_S, places.stale_s)
    cluster.start(FIRST_LOOK_S)
    return KubernetesOwners(cluster)


def container_owners(places: Places, node: str) -> ContainerOwners | None:  # noqa: ARG001 an engine knows one node
    """Owners from this node's container engine; None where there is none, or where it may not be asked."""
    wanted = ENGINE_SOCKETS if places.container_socket is None else (places.container_socket,)
    there = next((path for path in wanted if os.access(path, os.R_OK | os.W_OK)), None)
    if there is None:
        if places.container_socket is not None:
            log.warning("owners containers: %s is not there, or may not be asked", places.container_socket)
        return None
    speaks_grpc = "containerd" in there.name
    if _lacks("msgspec", *(["h2"] if speaks_grpc else [])):
        log.info("owners containers: %s is here, but what reads it is not installed; ids are all we know", there)
        return None
    from gpuledger_agent.owners.containerd import Containerd
    from gpuledger_agent.owners.containers import ContainerOwners, Engine

    look = Containerd(there).look if speaks_grpc else Engine(there).look
    containers = Refreshed("containers", look, INTERVAL_S, places.stale_s)
    containers.start(FIRST_LOOK_S)
    return ContainerOwners(containers)


def _is_there(folder: Path) -> bool:
    """Whether a folder is there, as far as this user may know; `Path.is_dir` raises where it may not."""
    if os.path.isdir(folder):  # noqa: PTH112
        return True
    if os.path.isdir(folder.parent) and not os.access(folder.parent, os.X_OK):  # noqa: PTH112
        log.warning("owners kubernetes: %s may not be entered, so that pods are unknown; run as root", folder.parent)
    return False


def _lacks(*modules: str) -> bool:
    """Whether any of the modules is not installed: `check`, `once` and `record` run with NVIDIA's binding alone."""
    try:
        return any(importlib.util.find_spec(name) is None for name in modules)
    except ModuleNotFoundError:
        return True


BY_NAME: Mapping[str, Callable[[Places, str], KubernetesOwners | ContainerOwners | None]] = {
    "kubernetes": kubernetes_owners,
    "containers": container_owners,
}
