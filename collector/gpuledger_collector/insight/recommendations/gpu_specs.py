"""Data-sheet figures of GPU models that sizing compares: memory, dense 16-bit tensor throughput,
bandwidth, MIG.

Sources: NVIDIA's data sheets of T4, V100, A10, L4, L40S, A100, H100 (SXM) and H200, dense figures
without sparsity; MIG profiles of the MIG user guide (a slice has some of seven compute parts and
some of eight memory parts).
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuledger_collector.accounting.pricing import model_tokens

GIB = 2.0**30


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """A model: memory in GiB, dense BF16 or FP16 teraflops, gigabytes per second.

    `word` is how its name is found.
    """

    word: str
    memory_gib: int
    teraflops: float
    bandwidth: float
    mig: bool = False


GPU_SPECS = (
    GpuSpec("t4", 16, 65, 320),
    GpuSpec("v100", 32, 125, 900),
    GpuSpec("a10", 24, 125, 600),
    GpuSpec("l4", 24, 121, 300),
    GpuSpec("l40s", 48, 362, 864),
    GpuSpec("a100", 80, 312, 2039, mig=True),
    GpuSpec("h100", 80, 989, 3350, mig=True),
    GpuSpec("h200", 141, 989, 4800, mig=True),
)
MIG_SLICES = ((1, 1), (2, 2), (3, 4), (4, 4))
"""Compute sevenths and memory eighths of the slices that are smaller than the GPU, smallest first.
"""
A100_SMALL_GIB = 40


def gpu_spec(model: str) -> GpuSpec | None:
    """Return the figures of a model, None where it is unknown."""
    tokens = model_tokens(model)
    spec = next((spec for spec in GPU_SPECS if spec.word in tokens), None)
    if spec is not None and spec.word == "a100" and "40gb" in tokens:
        return GpuSpec("a100", A100_SMALL_GIB, spec.teraflops, 1555, mig=True)
    return spec
