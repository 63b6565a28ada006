"""The share of a device that a MIG instance counts for: its dominant resource share.

A profile such as `1g.10gb` names compute slices and memory. The share is max(compute slices / 7,
memory / the device's memory), so that a full device is charged in full; an A30 has 4 compute
slices. (Dominant resource fairness, Ghodsi et al., NSDI 2011.) Compute instances that share the
memory of one GPU instance (`1c.3g.40gb`) also share its weight, in proportion to their slices.
Where the instances of a board add up to more than the board, as 4g and 3g do with 4/7 of the
compute and 4/8 of the memory, `fitted` scales them down to exactly one board.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from gpuledger_common.largest_remainder import split
from gpuledger_common.readings import WHOLE_GPU, Accelerator

_PROFILE = re.compile(r"(\d+)(?:c\.(\d+))?g\.(\d+)gb")
_MEMORY_GB = re.compile(r"(\d+)\s*gb", re.IGNORECASE)
_KNOWN_GB = (
    ("a30", 24),
    ("h200", 141),
    ("b200", 180),
    ("h100 nvl", 94),
    ("h100", 80),
    ("h800", 80),
    ("a800", 80),
)


def compute_slices(model: str) -> int:
    """Compute slices of a device of this model."""
    return 4 if "a30" in model.lower() else 7


def memory_slices(model: str) -> int:
    """Memory slices of a device of this model."""
    return 4 if "a30" in model.lower() else 8


def device_gb(model: str) -> int | None:
    """Memory of a device in GB by its name or the table; None when neither has it."""
    # Its name has the CPU's memory: GH200 480GB has 96 GB, the HBM3e part 144.
    if "gh200" in model.lower():
        return 144 if "144g" in model.lower() else 96
    # Most names contain the size (`NVIDIA A100-SXM4-80GB`).
    match = _MEMORY_GB.search(model)
    if match:
        return int(match[1])
    lower = model.lower()
    return next((size for name, size in _KNOWN_GB if name in lower), None)


def profile_share(profile: str, model: str) -> int | None:
    """Micro-GPUs of an instance by its profile; None for a name that is not a profile.

    NVIDIA rounds the memory in profile names, so memory is counted in integer memory slices.
    """
    match = _PROFILE.match(profile.lower())
    if not match:
        return None
    device_memory_gb = device_gb(model)
    # 1g.10gb of an 80 GB device is one of eight slices.
    memory = (
        round(int(match[3]) * memory_slices(model) / device_memory_gb) if device_memory_gb else 0
    )
    return dominant_share(int(match[1]), int(match[2] or match[1]), memory, model)


def measured_share(
    compute: int, gpu_slices: int, memory_bytes: int, model: str, device_bytes: int | None
) -> int:
    """Micro-GPUs by NVML's attributes: compute slices of the instance, those of its GPU instance,
    and memory.
    """
    memory = round(memory_bytes * memory_slices(model) / device_bytes) if device_bytes else 0
    return dominant_share(compute, gpu_slices, memory, model)


def dominant_share(compute: int, gpu_slices: int, memory: int, model: str) -> int:
    """Micro-GPUs of `compute` slices in a GPU instance of `gpu_slices` compute and `memory` memory
    slices.
    """
    slices = memory_slices(model)
    # The dominant share of the GPU instance, rounded down; below, the part of it that the compute
    # instance has.
    gpu_instance = max(
        gpu_slices * WHOLE_GPU // compute_slices(model), min(memory, slices) * WHOLE_GPU // slices
    )
    return min(WHOLE_GPU, gpu_instance * min(compute, gpu_slices) // gpu_slices)


def fit_shares(accelerators: Iterable[Accelerator]) -> list[Accelerator]:
    """The same accelerators; shares of a board that add up to more than it are scaled down to
    exactly one board.
    """
    result = list(accelerators)
    boards: dict[str, list[int]] = defaultdict(list)
    for position, accelerator in enumerate(result):
        if accelerator.mig_instance is not None:
            boards[accelerator.device_uuid].append(position)
    for positions in boards.values():
        shares = [result[position].gpu_micro for position in positions]
        if sum(shares) > WHOLE_GPU:
            for position, share in zip(positions, split(WHOLE_GPU, shares), strict=True):
                result[position] = replace(result[position], gpu_micro=share)
    return result
