"""What a MIG instance is worth: its dominant share of the device.

A profile such as `1g.10gb` names compute slices and memory. The share is max(compute slices / 7, memory / the device's
memory), so that a physically full device is paid for in full; on A30 there are 4 compute slices. (dominant resource
share, Ghodsi et al., NSDI 2011)
"""

from __future__ import annotations

import re

from gpuledger_agent.readings import WHOLE_GPU

_PROFILE = re.compile(r"(\d+)(?:c\.(\d+))?g\.(\d+)gb")
_MEMORY_GB = re.compile(r"(\d+)\s*gb", re.IGNORECASE)
_KNOWN_GB = (("a30", 24), ("gh200", 96), ("h200", 141), ("b200", 180), ("h100", 80), ("h800", 80), ("a800", 80))
GIB = 1024**3


def compute_slices(model: str) -> int:
    """Compute slices of a device of this model."""
    return 4 if "a30" in model.lower() else 7


def memory_slices(model: str) -> int:
    """Memory slices of a device of this model."""
    return 4 if "a30" in model.lower() else 8


def device_gb(model: str) -> int | None:
    """Memory of a device in GB as its name tells it; None when neither name nor table does."""
    found = _MEMORY_GB.search(model)
    if found:
        return int(found[1])
    lower = model.lower()
    return next((size for name, size in _KNOWN_GB if name in lower), None)


def profile_share(profile: str, model: str) -> int | None:
    """Micro-GPUs of an instance by its profile; None for a name that is no profile.

    Profile memory is rounded by NVIDIA, so the memory part is counted in whole memory slices.
    """
    found = _PROFILE.match(profile.lower())
    if not found:
        return None
    compute = int(found[1] if found[2] is None else found[2])
    share = min(WHOLE_GPU, compute * WHOLE_GPU // compute_slices(model))
    whole_gb = device_gb(model)
    if whole_gb:
        slices = memory_slices(model)
        taken = min(slices, max(1, round(int(found[3]) * slices / whole_gb)))
        share = max(share, taken * WHOLE_GPU // slices)
    return share


def measured_share(compute: int, memory_bytes: int, model: str, device_bytes: int | None) -> int:
    """Micro-GPUs of an instance from what NVML says of it: compute slices, and memory beside the device's."""
    share = min(WHOLE_GPU, compute * WHOLE_GPU // compute_slices(model))
    if device_bytes:
        slices = memory_slices(model)
        taken = min(slices, max(1, round(memory_bytes * slices / device_bytes)))
        share = max(share, taken * WHOLE_GPU // slices)
    return share
