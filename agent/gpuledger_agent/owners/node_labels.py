"""What a node is to its cloud, by the labels that GKE, EKS, AKS and Karpenter put on it: its pool, how
it is bought, its type and its zone.

A label that is absent says nothing: a node without a mark of a spot machine is not thereby bought on
demand.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpuledger_common.node_pools import pool_of
from gpuledger_common.readings import Machine

_PURCHASES: Mapping[str, Mapping[str, str]] = {
    "karpenter.sh/capacity-type": {
        "spot": "spot",
        "on-demand": "on_demand",
        "reserved": "reserved",
    },
    "eks.amazonaws.com/capacityType": {
        "SPOT": "spot",
        "ON_DEMAND": "on_demand",
        "CAPACITY_BLOCK": "reserved",
    },
    "cloud.google.com/gke-spot": {"true": "spot"},
    "cloud.google.com/gke-preemptible": {"true": "spot"},
    "cloud.google.com/gke-provisioning": {
        "spot": "spot",
        "preemptible": "spot",
        "standard": "on_demand",
        "reservation": "reserved",
    },
    "kubernetes.azure.com/scalesetpriority": {"spot": "spot", "regular": "on_demand"},
}
"""Ways of buying, as the price book calls them, by label and value; the first that is known counts."""
_TYPES = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
_REGIONS = ("topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region")
_ZONES = ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone")
MAX_CHARACTERS = 256


def machine_of(labels: Mapping[str, str], provider_id: str) -> Machine:
    """The machine of a node with these labels."""
    purchase = next(
        (
            words[labels[label]]
            for label, words in _PURCHASES.items()
            if labels.get(label, "") in words
        ),
        "",
    )
    return Machine(
        pool=pool_of(labels)[:MAX_CHARACTERS],
        purchase=purchase,
        instance_type=_first(labels, _TYPES),
        region=_first(labels, _REGIONS),
        zone=_first(labels, _ZONES),
        provider_id=provider_id[:MAX_CHARACTERS],
    )


def _first(labels: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((labels[name][:MAX_CHARACTERS] for name in names if labels.get(name)), "")
