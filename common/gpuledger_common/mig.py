"""What a MIG instance is worth: its dominant share of the device.

A profile such as `1g.10gb` names compute slices and memory. The share is max(compute slices / 7, memory / the device's
memory), so that a physically full device is paid for in full; on A30 there are 4 compute slices. (dominant resource
share, Ghodsi et al., NSDI 2011) Compute instances that share the memory of one GPU instance (`1c.3g.40gb`) share its
weight too, in proportion to their slices. Where the instances of a board come to more than the board, as 4g and 3g do
with 4/7 of the compute and 4/8 of the memory, `fitted` makes them one board.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from gpuledger_common.readings import WHOLE_GPU, Accelerator

_PROFILE = re.compile(r"(\d+)(?:c\.(\d+))?g\.(\d+)gb")
_MEMORY_GB = re.compile(r"(\d+)\s*gb", re.IGNORECASE)
_KNOWN_GB = (("a30", 24), ("h200", 141), ("b200", 180), ("h100 nvl", 94), ("h100", 80), ("h800", 80), ("a800", 80))
GIB = 1024**3


def compute_slices(model: str) -> int:
    """Compute slices of a device of this model."""
    return 4 if "a30" in model.lower() else 7


def memory_slices(model: str) -> int:
    """Memory slices of a device of this model."""
    return 4 if "a30" in model.lower() else 8


def device_gb(model: str) -> int | None:
    """Memory of a device in GB as its name tells it; None when neither name nor table does."""
    if "gh200" in model.lower():  # its name tells the memory of the CPU: GH200 480GB has 96 GB, the HBM3e part 144
        return 144 if "144g" in model.lower() else 96
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
    gpu_slices = int(found[1] if found[2] is None else found[2])
    slices = memory_slices(model)
    whole_gb = device_gb(model)
    taken = round(int(found[3]) * slices / whole_gb) if whole_gb else 0
    return share_of(int(found[1]), gpu_slices, taken, model)


def measured_share(compute: int, gpu_slices: int, memory_bytes: int, model: str, device_bytes: int | None) -> int:
    """Micro-GPUs by what NVML says: compute slices of the instance, those of its GPU instance, and memory."""
    taken = round(memory_bytes * memory_slices(model) / device_bytes) if device_bytes else 0
    return share_of(compute, gpu_slices, taken, model)


def share_of(compute: int, gpu_slices: int, memory: int, model: str) -> int:
    """The dominant share: of `gpu_slices` compute slices with `memory` memory slices, the part of `compute` slices."""
    slices = memory_slices(model)
    whole = max(gpu_slices * WHOLE_GPU // compute_slices(model), min(memory, slices) * WHOLE_GPU // slices)
    return min(WHOLE_GPU, whole * min(compute, gpu_slices) // gpu_slices)


def fitted(accelerators: Iterable[Accelerator]) -> list[Accelerator]:
    """The same, with the shares of a board that exceed it scaled down in proportion to exactly one board.

    Micro-GPUs that the proportion leaves over go to the largest remainders, the first of equal ones.
    """
    found = list(accelerators)
    boards: dict[str, list[int]] = defaultdict(list)
    for place, one in enumerate(found):
        if one.mig_instance is not None:
            boards[one.device_uuid].append(place)
    for places in boards.values():
        whole = sum(found[place].gpu_micro for place in places)
        if whole <= WHOLE_GPU:
            continue
        parts = {place: divmod(found[place].gpu_micro * WHOLE_GPU, whole) for place in places}
        left = WHOLE_GPU - sum(share for share, _ in parts.values())
        lucky = sorted(places, key=lambda place: -parts[place][1])[:left]
        for place, (share, _) in parts.items():
            found[place] = replace(found[place], gpu_micro=share + (place in lucky))
    return found
