"""Where the schedulers of a node are found: sockets and folders, as settings give them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

KUBELET_SOCKET = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
KUBERNETES_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
POD_LOGS = Path("/var/log/pods")
SLURM_JOBS = Path("/run/gpuledger/slurm")
ENGINE_SOCKETS = (
    Path("/var/run/docker.sock"),
    Path("/run/podman/podman.sock"),
    Path("/run/containerd/containerd.sock"),
)
STALE_S = 120.0


@dataclass(frozen=True, slots=True)
class Places:
    """Everything has the place that it usually has; None is nowhere (for the engine: one of the usual places)."""

    kubelet_socket: Path | None = KUBELET_SOCKET
    kubernetes_api_url: str = ""
    """Empty: the cluster's own, if this runs in a pod; `off`: none."""
    kubernetes_account_dir: Path | None = KUBERNETES_ACCOUNT
    pod_logs_dir: Path | None = POD_LOGS
    container_socket: Path | None = None
    stale_s: float = STALE_S
    slurm_jobs_dir: Path | None = SLURM_JOBS
    slurm_mapping_dir: Path | None = None
