"""How much of an accelerator each pod holds: the holder behind the holder.

The kubelet says which pod was given a device. Where a scheduler or a driver divides devices, that is
not yet who holds it:

- KAI Scheduler and Run:ai take the card with a *reservation pod*; the pods of its group use it, each
  by its fraction, and have no device at the kubelet. The reservation keeps what they leave.
- HAMi and Volcano take the card from an annotation of the pod, which also has its share.
- A claim (DRA) may consume a part of a device's capacity, or only observe it (`adminAccess`).

Whatever is said, the parts of an accelerator that is held add up to exactly one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from gpuledger_agent.owners.kubernetes_api import (
    ClaimedDevice,
    DeviceKey,
    OfferedDevice,
    PodFacts,
    ShareKey,
)
from gpuledger_agent.owners.podresources import AllocatedDevice, AllocatedPod
from gpuledger_agent.owners.shares import (
    VirtualCard,
    read_capacity,
    read_fraction,
    read_memory,
    read_virtual_cards,
    weights_of,
)
from gpuledger_common.readings import Accelerator

PodKey = tuple[str, str]
"""Namespace and name."""
ClaimKey = tuple[str, str]
"""Namespace and name."""
_GROUP = "runai-gpu-group"
"""Label of a reservation pod and of its users; `runai-gpu-group/ID` for a user of several cards."""
_CARDS = ("hami.io/vgpu-devices-allocated", "volcano.sh/vgpu-ids-new")
_NOTHING = ClaimedDevice()


@dataclass(frozen=True, slots=True)
class Part:
    """What a pod holds of one accelerator.

    `replicas` is the number of its devices there; `share` a stated part of the accelerator, None
    where none is stated.
    """

    pod: PodKey
    containers: frozenset[str]
    replicas: int = 1
    share: Fraction | None = None


def device_key(device: AllocatedDevice) -> DeviceKey:
    """The name of a claimed device at its driver."""
    return device.resource, device.pool, device.id


def share_key(device: AllocatedDevice) -> ShareKey:
    """The name of a claimed device, or of a share of it, in the status of its claim."""
    return device.resource, device.pool, device.id, device.share


@dataclass(frozen=True, slots=True)
class Claims:
    """What claims got, and how many pods of this node use each part of them."""

    claimed: Mapping[ClaimKey, Mapping[ShareKey, ClaimedDevice]]
    offered: Mapping[DeviceKey, OfferedDevice]
    users: Mapping[tuple[ClaimKey, ShareKey], int]

    @classmethod
    def of_pods(
        cls,
        pods: Iterable[AllocatedPod],
        claimed: Mapping[ClaimKey, Mapping[ShareKey, ClaimedDevice]],
        offered: Mapping[DeviceKey, OfferedDevice],
    ) -> Claims:
        """Count the pods of each claimed share."""
        users: Counter[tuple[ClaimKey, ShareKey]] = Counter()
        for pod in pods:
            users.update({_use(device) for device in pod.devices if device.claim is not None})
        return cls(claimed, offered, users)

    def is_admin(self, device: AllocatedDevice) -> bool:
        """Whether the claim only observes the device, and so holds nothing of it."""
        return device.claim is not None and self._claimed(device).is_admin

    def share(self, device: AllocatedDevice) -> Fraction | None:
        """This pod's part of what the claim consumes of a device; None where that is not known."""
        offered = self.offered.get(device_key(device))
        if device.claim is None or offered is None:
            return None
        share = read_capacity(self._claimed(device).consumed, offered.capacities)
        # Pods that share one claim have equal parts of it.
        return None if share is None else share / max(self.users.get(_use(device), 1), 1)

    def _claimed(self, device: AllocatedDevice) -> ClaimedDevice:
        of_claim = self.claimed.get((device.claim_namespace, device.claim or ""), {})
        return of_claim.get(share_key(device), _NOTHING)


def _use(device: AllocatedDevice) -> tuple[ClaimKey, ShareKey]:
    return (device.claim_namespace, device.claim or ""), share_key(device)


def allocated_part(pod: PodKey, devices: Sequence[AllocatedDevice], claims: Claims) -> Part:
    """What a pod holds by the devices of one accelerator, each of which another container may have,
    too.
    """
    distinct = {share_key(device): device for device in devices}
    shares = [claims.share(device) for device in distinct.values()]
    known = [share for share in shares if share is not None]
    containers = frozenset(device.container for device in devices if device.container)
    share = sum(known, Fraction(0)) if len(known) == len(shares) else None
    return Part(pod, containers, len(distinct), share)


def annotated_cards(facts: PodFacts | None) -> tuple[VirtualCard, ...] | None:
    """The virtual cards that a pod's annotation names; None where there is none, or none that can be
    read.
    """
    if facts is None:
        return None
    text = next((facts.annotations[name] for name in _CARDS if name in facts.annotations), None)
    return None if text is None else read_virtual_cards(text)


def annotated_parts(
    pod: PodKey,
    cards: Iterable[VirtualCard],
    containers: frozenset[str],
    accelerators: Mapping[str, Accelerator],
) -> dict[str, Part]:
    """What a pod holds of each accelerator by its virtual cards."""
    parts: dict[str, Part] = {}
    for card in cards:
        share = card.share(accelerators[card.uuid].memory_bytes)
        before = parts.get(card.uuid)
        if before is None:
            parts[card.uuid] = Part(pod, containers, 1, share)
        else:
            known = None if before.share is None or share is None else before.share + share
            parts[card.uuid] = replace(before, replicas=before.replicas + 1, share=known)
    return parts


def divide_reservation(
    reservation: Part,
    facts: Mapping[PodKey, PodFacts],
    users: Iterable[PodKey],
    memory_bytes: int | None,
) -> list[Part]:
    """A reserved card as parts of `users`, the pods of its group; the reservation keeps what they
    leave.

    A user whose fraction cannot be read has an equal part of the rest: it is not known, and not
    nothing.
    """
    parts = []
    for user in users:
        of_user = facts[user]
        container = of_user.annotations.get("gpu-fraction-container-name", "")
        containers = frozenset({container} - {""})
        parts.append(Part(user, containers, 1, _fraction_of(of_user, memory_bytes)))
    rest = 1 - sum((part.share for part in parts if part.share is not None), Fraction(0))
    unknown = sum(part.share is None for part in parts)
    if unknown and rest > 0:
        return [part if part.share else replace(part, share=rest / unknown) for part in parts]
    return [*parts, replace(reservation, share=rest)] if rest > 0 else parts


def groups_of(labels: Mapping[str, str]) -> set[str]:
    """The groups of cards that a pod has a part of."""
    return {
        value for name, value in labels.items() if name == _GROUP or name.startswith(f"{_GROUP}/")
    }


def _fraction_of(facts: PodFacts, memory_bytes: int | None) -> Fraction | None:
    share = read_fraction(facts.annotations.get("gpu-fraction", ""))
    if share is None:
        share = read_memory(facts.annotations.get("gpu-memory", ""), memory_bytes)
    return share


def weigh(parts: Sequence[Part]) -> list[int]:
    """Weights of the holders of one accelerator: by stated shares, else by their replicas."""
    if all(part.share is None for part in parts):
        return [part.replicas for part in parts]
    return weights_of([part.share for part in parts])
