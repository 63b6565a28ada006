"""The pool of nodes that labels of GKE, EKS, AKS and Karpenter name."""

from __future__ import annotations

from collections.abc import Mapping

_POOLS = (
    "karpenter.sh/nodepool",
    "cloud.google.com/gke-nodepool",
    "eks.amazonaws.com/nodegroup",
    "kubernetes.azure.com/agentpool",
    "agentpool",
)


def pool_of(labels: Mapping[str, str]) -> str:
    """The pool that the first of these labels names; empty where there is none."""
    return next((labels[name] for name in _POOLS if labels.get(name)), "")
