"""Which accelerators the name of an allocated device refers to: names of device plugins and of DRA
drivers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from gpuledger_agent.owners.kubernetes_api import DeviceKey
from gpuledger_agent.owners.podresources import AllocatedDevice
from gpuledger_common.readings import Accelerator

_OLD_MIG = re.compile(r"MIG-(GPU-[^/]+)/(\d+)/(\d+)$")
"""Names of MIG devices in drivers before R470: UUID of the GPU, GPU instance, compute instance."""
_GKE = re.compile(r"nvidia(\d+)(?:/gi(\d+))?$")
"""Google's device plugin: number of the device, and its GPU instance."""
_CLAIMED = re.compile(r"gpu-(\d+)(?:-mig-([a-z0-9-]+))?$")
"""NVIDIA's DRA driver: minor number of the device, and for MIG the profile (1g18gb) with profile id
and placement.
"""
_UUID = re.compile(r"(?:GPU|MIG)-[0-9a-fA-F-]{36}")
_REPLICA = re.compile(r"(?:::\d+|/vgpu\d+)$")
_VIRTUAL = re.compile(r"(GPU-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})-\d+$")
"""A slot of HAMi's and Volcano's device plugins: UUID of the device, number of the slot."""


def resolve(
    device: AllocatedDevice,
    accelerators: Sequence[Accelerator],
    device_uuids: Mapping[DeviceKey, str] = MappingProxyType({}),
) -> tuple[str, ...]:
    """The accelerators that a device's name refers to: one, all instances of a device with MIG on,
    or none.

    Forms: `GPU-…`, `MIG-…`, either with `::n`; `GPU-…-n` of HAMi and Volcano; `MIG-GPU-…/gi/ci`;
    `nvidia0`, `nvidia0/gi1`, with `/vgpuN`; `gpu-0` and `gpu-0-mig-…` of NVIDIA's DRA driver, or
    any UUID in the CDI names of a claim. Numbers are read as NVML's indices, which they are unless
    device files were made in another order; a UUID that the driver published takes precedence.
    """
    name = device_uuids.get((device.resource, device.pool, device.id))
    if name is None:
        virtual = _VIRTUAL.match(device.id)
        name = virtual[1] if virtual else _REPLICA.sub("", device.id)
    exact = _of_uuid(name, accelerators)
    if exact:
        return exact
    old, gke, claimed = _OLD_MIG.match(name), _GKE.match(name), _CLAIMED.match(name)
    if old:
        instances = _instances(
            [entry for entry in accelerators if entry.device_uuid == old[1]], old[2]
        )
        # Without compute instances of its own a GPU instance is one accelerator, whatever number
        # the name ends with.
        position = int(old[3])
        return instances[position : position + 1] if len(instances) > 1 else instances
    if gke:
        of_device = [entry for entry in accelerators if entry.index == int(gke[1])]
        return (
            tuple(entry.uuid for entry in of_device)
            if gke[2] is None
            else _instances(of_device, gke[2])
        )
    for cdi in device.cdi:
        uuid = _UUID.search(cdi.partition("=")[2])
        exact = _of_uuid(uuid[0], accelerators) if uuid else ()
        if exact:
            return exact
    return (
        _of_claim(claimed, accelerators)
        if claimed and device.resource.endswith("nvidia.com")
        else ()
    )


def _of_uuid(name: str, accelerators: Sequence[Accelerator]) -> tuple[str, ...]:
    exact = tuple(entry.uuid for entry in accelerators if entry.uuid == name)
    return exact or tuple(entry.uuid for entry in accelerators if entry.device_uuid == name)


def _instances(of_device: Iterable[Accelerator], gpu_instance: str) -> tuple[str, ...]:
    return tuple(
        entry.uuid
        for entry in of_device
        if entry.mig_instance is not None and entry.mig_instance.rpartition("/")[2] == gpu_instance
    )


def _of_claim(claimed: re.Match[str], accelerators: Sequence[Accelerator]) -> tuple[str, ...]:
    """The device of that number; of its instances the one of that profile, if only one has it."""
    of_device = [entry for entry in accelerators if entry.index == int(claimed[1])]
    if claimed[2] is None:
        return tuple(entry.uuid for entry in of_device)
    profile = claimed[2].partition("-")[0]
    uuids = tuple(
        entry.uuid
        for entry in of_device
        if entry.mig_instance is not None
        and entry.mig_instance.partition("/")[0].replace(".", "") == profile
    )
    return uuids if len(uuids) == 1 else ()


def is_virtual(device: AllocatedDevice) -> bool:
    """Whether it is a slot of a virtual device, of which the pod's annotation tells card and share."""
    return _VIRTUAL.match(device.id) is not None


def is_gpu(device: AllocatedDevice) -> bool:
    """Whether a device should be an accelerator of this node."""
    resource = device.resource
    return resource.startswith("volcano.sh/vgpu") or (
        "nvidia.com" in resource and not resource.startswith("compute-domain.")
    )
