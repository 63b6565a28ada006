"""GPU models and links as their vendors publish them: memory, peak arithmetic, bandwidth.

`memory_bytes` is what the driver reports as total (nvidia-smi, ECC on), which is a little less than
the name says. `peak_flops` are dense tensor-core figures; data sheets that print sparse ones (Ada,
Hopper, Blackwell) are halved. fp32 is without tensor cores, tf32 with them. A precision that is
absent is one that the card does not have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MIB, GIB = 2**20, 2**30
TERA = 10**12


@dataclass(frozen=True, slots=True)
class GpuModel:
    """One card.

    `peak_flops`: dense operations per second by precision. `link`: name of its link to its
    neighbors.
    """

    name: str
    memory_bytes: int
    peak_flops: Mapping[str, float]
    link: str
    source: str

    def peak(self, precision: str) -> float:
        """Operations per second at a precision.

        Raises ValueError when the card does not have it.
        """
        if precision not in self.peak_flops:
            raise ValueError(
                f"{self.name} has no {precision} arithmetic; it has {', '.join(self.peak_flops)}"
            )
        return self.peak_flops[precision]


@dataclass(frozen=True, slots=True)
class Link:
    """Bytes per second that one GPU can send, and the latency of a hop of NCCL's ring and of its
    tree in seconds.
    """

    name: str
    bytes_per_second: float
    ring_hop_seconds: float
    tree_hop_seconds: float
    source: str


def _gpu(name: str, mib: int, link: str, source: str, **tera: float) -> GpuModel:
    return GpuModel(
        name,
        mib * MIB,
        {precision: value * TERA for precision, value in tera.items()},
        link,
        source,
    )


def _half(
    name: str,
    mib: int,
    link: str,
    source: str,
    fp32: float,
    tf32: float,
    half: float,
    fp8: float = 0,
) -> GpuModel:
    rest = {"fp8": fp8} if fp8 else {}
    return _gpu(name, mib, link, source, fp32=fp32, tf32=tf32, bf16=half, fp16=half, **rest)


GPUS = (
    _gpu("T4", 15360, "pcie3", "NVIDIA T4 data sheet", fp32=8.1, fp16=65.0),
    _gpu("V100-16GB", 16384, "nvlink2", "NVIDIA V100 data sheet", fp32=15.7, fp16=125.0),
    _half("A10", 23028, "pcie4", "NVIDIA A10 data sheet", 31.2, 62.5, 125.0),
    _half("L4", 23034, "pcie4", "NVIDIA L4 data sheet, halved", 30.3, 60.0, 121.0, 242.5),
    _half("A30", 24576, "pcie4", "NVIDIA A30 data sheet", 10.3, 82.0, 165.0),
    _gpu("V100-32GB", 32768, "nvlink2", "NVIDIA V100 data sheet", fp32=15.7, fp16=125.0),
    _half("A100-40GB", 40960, "nvlink3", "NVIDIA A100 data sheet", 19.5, 156.0, 312.0),
    _half("A40", 46068, "pcie4", "NVIDIA A40 data sheet", 37.4, 74.8, 149.7),
    _half("L40S", 46068, "pcie4", "NVIDIA L40S data sheet", 91.6, 183.0, 362.05, 733.0),
    _half(
        "H100-PCIe", 81559, "pcie5", "NVIDIA H100 data sheet, halved", 51.0, 378.0, 756.0, 1513.0
    ),
    _half(
        "H100",
        81559,
        "nvlink4",
        "NVIDIA H100 (SXM5) data sheet, halved",
        67.0,
        494.5,
        989.5,
        1979.0,
    ),
    _half("A100-80GB", 81920, "nvlink3", "NVIDIA A100 data sheet", 19.5, 156.0, 312.0),
    _half(
        "H200",
        143771,
        "nvlink4",
        "NVIDIA H200 (SXM) data sheet, halved",
        67.0,
        494.5,
        989.5,
        1979.0,
    ),
    _half(
        "B200",
        183359,
        "nvlink5",
        "NVIDIA HGX B200 data sheet, halved",
        75.0,
        1100.0,
        2250.0,
        4500.0,
    ),
    _half(
        "MI300X", 196592, "xgmi3", "AMD Instinct MI300X data sheet", 163.4, 653.7, 1307.4, 2614.9
    ),
)
"""From the smallest memory to the largest."""

_NCCL = "hop latencies of NCCL's tuning tables (protocol Simple)"
LINKS = (
    Link("nvlink2", 150e9, 3.4e-6, 28e-6, f"V100 data sheet, 300 GB/s both ways; {_NCCL}"),
    Link("nvlink3", 300e9, 3.4e-6, 28e-6, f"A100 data sheet, 600 GB/s both ways; {_NCCL}"),
    Link("nvlink4", 450e9, 3.4e-6, 28e-6, f"H100 data sheet, 900 GB/s both ways; {_NCCL}"),
    Link("nvlink5", 900e9, 3.4e-6, 28e-6, f"B200 data sheet, 1.8 TB/s both ways; {_NCCL}"),
    Link(
        "xgmi3",
        448e9,
        3.4e-6,
        28e-6,
        f"MI300X data sheet, 896 GB/s both ways over seven links; {_NCCL}, NVLink's",
    ),
    Link("pcie3", 15.75e9, 5.7e-6, 28e-6, f"PCI Express 3.0 x16; {_NCCL}"),
    Link("pcie4", 31.5e9, 5.7e-6, 28e-6, f"PCI Express 4.0 x16; {_NCCL}"),
    Link("pcie5", 63.0e9, 5.7e-6, 28e-6, f"PCI Express 5.0 x16; {_NCCL}"),
    Link("ib-edr", 12.5e9, 14e-6, 28e-6, f"InfiniBand EDR, 100 Gb/s; {_NCCL}"),
    Link("ib-hdr", 25e9, 14e-6, 28e-6, f"InfiniBand HDR, 200 Gb/s; {_NCCL}"),
    Link("ib-ndr", 50e9, 14e-6, 28e-6, f"InfiniBand NDR, 400 Gb/s; {_NCCL}"),
    Link("ib-xdr", 100e9, 14e-6, 28e-6, f"InfiniBand XDR, 800 Gb/s; {_NCCL}"),
    Link("eth-25", 3.125e9, 14e-6, 28e-6, f"Ethernet, 25 Gb/s; {_NCCL}"),
    Link("eth-100", 12.5e9, 14e-6, 28e-6, f"Ethernet, 100 Gb/s; {_NCCL}"),
    Link("eth-400", 50e9, 14e-6, 28e-6, f"Ethernet, 400 Gb/s; {_NCCL}"),
)
"""Bytes per second in one direction; a network link is one adapter for each GPU unless said
otherwise.
"""


def gpu_named(name: str) -> GpuModel:
    """The card of this name, whatever its case. Raises ValueError naming those that there are."""
    for card in GPUS:
        if card.name.casefold() == name.strip().casefold():
            return card
    raise ValueError(
        f"{name!r} is none of the GPU models known here: {', '.join(card.name for card in GPUS)}"
    )


def link_named(name: str) -> Link:
    """The link of this name. Raises ValueError naming those that there are."""
    for link in LINKS:
        if link.name == name.strip().casefold():
            return link
    raise ValueError(
        f"{name!r} is none of the links known here: {', '.join(link.name for link in LINKS)}"
    )
