"""What people call an accelerator."""

from __future__ import annotations

from typing import Protocol


class NamedGpu(Protocol):
    """An accelerator with its place."""

    @property
    def node(self) -> str:
        """Empty: on none that is known."""

    @property
    def gpu_index(self) -> int | None:
        """Its number on the node."""

    @property
    def mig_instance(self) -> str | None:
        """The slice of a board that it is."""

    @property
    def uuid(self) -> str:
        """What tells it from all others."""


def gpu_name(item: NamedGpu) -> str:
    """What people call an accelerator: `GPU 4 of a100-01`."""
    gpu = f"GPU {item.gpu_index}" if item.gpu_index is not None else item.uuid
    if item.mig_instance:
        gpu += f", slice {item.mig_instance}"
    return f"{gpu} of {item.node}" if item.node else gpu
