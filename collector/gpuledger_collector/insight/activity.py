"""What an accelerator did over a period."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AcceleratorActivity:
    """One accelerator's time over a period, in milliseconds; `energy_mj` is None where nothing
    measured it.
    """

    node: str
    gpu_index: int | None
    uuid: str
    model: str
    mig_instance: str | None
    pool: str
    held_ms: int
    busy_ms: int
    idle_ms: int
    unknown_ms: int
    unallocated_ms: int
    unavailable_ms: int
    energy_mj: int | None

    @property
    def busy_permille(self) -> int | None:
        """Busy thousandths of the held time whose activity is known; None when none is known."""
        known = self.busy_ms + self.idle_ms
        return self.busy_ms * 1000 // known if known else None
