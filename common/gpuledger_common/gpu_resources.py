"""Resources of Kubernetes that are GPUs, and its quantities, exactly.

A MIG instance counts as the sevenths of a GPU in its resource's name.
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

WHOLE = frozenset({"nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/i915", "gpu.intel.com/xe"})
MICRO = 1_000_000
MAX_GPUS = 10_000_000
_MIG = re.compile(r"nvidia\.com/mig-([1-7])g\..*")
_QUANTITY = re.compile(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]{1,2})?)(m|u|n|k|M|G|T|P|E|[KMGTPE]i)?")
_UNITS = {
    "": Decimal(1),
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    **{unit: Decimal(1000) ** power for power, unit in enumerate("kMGTPE", 1)},
    **{f"{unit}i": Decimal(1024) ** power for power, unit in enumerate("KMGTPE", 1)},
}


def is_gpu(resource: str) -> bool:
    """Whether a resource counts GPUs, or instances of them."""
    return resource in WHOLE or _MIG.fullmatch(resource) is not None


def gpu_micro(resource: str, quantity: str | float | None) -> int | None:
    """A quantity of a resource in millionths of a GPU; None for what is no quantity."""
    if quantity is None:
        return None
    parsed = _QUANTITY.fullmatch(str(quantity).strip())
    if parsed is None:
        return None
    try:
        count = Decimal(parsed[1]) * _UNITS[parsed[2] or ""]
    except InvalidOperation:
        return None
    if not abs(count) <= MAX_GPUS:
        return None
    part = _MIG.fullmatch(resource)
    return int(count * MICRO) if part is None else int(count * MICRO * int(part[1]) / 7)
