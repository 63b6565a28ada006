"""Open the owner sources that ask another program on the node, each only where that program exists.

They are enabled by default. The kubelet recreates its socket at each start, so its folder shows
that it exists; of a container engine the socket does. A program that is absent, or that may not be
asked, is not an error.
"""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gpuledger_agent.owners.polling import PolledValue
from gpuledger_agent.settings import KUBERNETES_ACCOUNT, Settings
from gpuledger_common.settings import SettingsError

if TYPE_CHECKING:
    from gpuledger_agent.owners.containers import ContainerOwners
    from gpuledger_agent.owners.kubernetes import KubernetesOwners
    from gpuledger_agent.owners.machine_note import MachineNote
    from gpuledger_agent.owners.ray import RayOwners

log = logging.getLogger("gpuledger_agent")

ENGINE_SOCKETS = tuple(
    map(
        Path, ("/var/run/docker.sock", "/run/podman/podman.sock", "/run/containerd/containerd.sock")
    )
)
POLL_INTERVAL_S = 5.0
"""The kubelet allows 100 requests a second."""
FIRST_ANSWER_S = 3.0
"""How long opening waits for the first answer, so that a single look (`check`) sees owners."""


def kubernetes_owners(settings: Settings) -> KubernetesOwners | None:
    """Owners from this node's kubelet; None where there is none."""
    from gpuledger_agent.owners.slurm import slurm_owners

    socket_path = settings.kubelet_socket
    if socket_path is None or not _is_folder(socket_path.parent):
        return None
    if not _has_msgspec():
        log.warning(
            "owners kubernetes: this node has a kubelet, but msgspec is not installed (pip install"
            " msgspec); pods are unknown"
        )
        return None
    from gpuledger_agent.owners.kubernetes import ClusterView, KubernetesOwners
    from gpuledger_agent.owners.kubernetes_api import ApiServer
    from gpuledger_agent.owners.podresources import list_pods
    from gpuledger_common.kubernetes_client import in_cluster_url

    url = (
        None
        if settings.kubernetes_api_url == "off"
        else settings.kubernetes_api_url or in_cluster_url()
    )
    api = ApiServer(url, settings.kubernetes_account_dir or KUBERNETES_ACCOUNT) if url else None
    view = ClusterView(
        partial(list_pods, socket_path, known={}),
        api,
        settings.node_name,
        settings.pod_logs_dir,
        reads=frozenset(settings.kubernetes_parts),
    )
    cluster = PolledValue("kubernetes", view.look, POLL_INTERVAL_S, settings.owner_stale_s)
    cluster.start(FIRST_ANSWER_S)
    # Whoever keeps the agent from reading nodes does not want their pool either.
    is_asked = api is not None and "node" in settings.kubernetes_parts
    reads_slurm = "slurm" in settings.owner_sources and slurm_owners(settings) is not None
    return KubernetesOwners(
        cluster,
        _machine_note(settings) if is_asked else None,
        reads_slurm=reads_slurm,
        ray=_ray_owners(settings),
        cluster_name=settings.kubernetes_cluster,
    )


def _ray_owners(settings: Settings) -> RayOwners | None:
    if not settings.ray_clusters:
        return None
    from gpuledger_agent.owners.ray import RayOwners, ray_clusters

    owners = RayOwners(ray_clusters(settings.ray_clusters))
    PolledValue("ray", owners.ask, POLL_INTERVAL_S, settings.owner_stale_s).start()
    return owners


def _machine_note(settings: Settings) -> MachineNote | None:
    from gpuledger_agent.owners.machine_note import MachineNote

    try:
        return MachineNote(settings.spool_folder, settings.node_name)
    except SettingsError:  # no folder: an agent that only looks (`check`) needs none
        return None


def container_owners(settings: Settings) -> ContainerOwners | None:
    """Owners from this node's container engine; None where there is none, or where it may not be
    asked.
    """
    candidates = (
        ENGINE_SOCKETS if settings.container_socket is None else (settings.container_socket,)
    )
    socket_path = next((path for path in candidates if os.access(path, os.R_OK | os.W_OK)), None)
    if socket_path is None:
        if settings.container_socket is not None:
            log.warning(
                "owners containers: %s does not exist or is not accessible",
                settings.container_socket,
            )
        return None
    if not _has_msgspec():
        log.info(
            "owners containers: msgspec, which reads %s, is not installed; containers are known by"
            " id only",
            socket_path,
        )
        return None
    from gpuledger_agent.owners.containerd import Containerd
    from gpuledger_agent.owners.containers import ContainerOwners, Engine

    client = Containerd if "containerd" in socket_path.name else Engine
    containers = PolledValue(
        "containers", client(socket_path).look, POLL_INTERVAL_S, settings.owner_stale_s
    )
    containers.start(FIRST_ANSWER_S)
    return ContainerOwners(containers)


def _is_folder(path: Path) -> bool:
    """Whether this is a folder, as far as this user may know; `Path.is_dir` would raise where it
    may not.
    """
    if os.path.isdir(path):  # noqa: PTH112
        return True
    if os.path.isdir(path.parent) and not os.access(path.parent, os.X_OK):  # noqa: PTH112
        log.warning(
            "owners kubernetes: %s may not be entered, so pods are unknown; run as root",
            path.parent,
        )
    return False


def _has_msgspec() -> bool:
    """Whether it is installed: `check`, `once` and `record` run with nvidia-ml-py alone."""
    return importlib.util.find_spec("msgspec") is not None


BY_NAME: Mapping[str, Callable[[Settings], KubernetesOwners | ContainerOwners | None]] = {
    "kubernetes": kubernetes_owners,
    "containers": container_owners,
}
