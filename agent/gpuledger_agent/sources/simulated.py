"""One node of the simulated fleet as a source, and as the owner source of its workloads."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterable, Sequence

from gpuledger_agent.clock import wall_ms
from gpuledger_agent.sources.fleet import (
    GIB,
    HOT_GPU,
    MODELS,
    Fleet,
    Hold,
    Lane,
    activity,
    slowed_seconds,
)
from gpuledger_common.health import verdict
from gpuledger_common.readings import (
    WHOLE_GPU,
    Accelerator,
    Health,
    Holder,
    Holders,
    Inventory,
    Process,
    Sample,
    Workload,
)

__all__ = ["Fleet", "SimulatedSource"]

NO_COUNTER = "the simulation has no energy counter; energy is integrated from power"
IDLE, POWER_CAP, FULL_LOAD = 0x1, 0x4, 0.93
"""Bits of nvmlClocksEventReason*, and the activity from which the power limit reduces the clocks.
"""
MIG_REASON = "not supported on a MIG instance"


class SimulatedSource:
    """A node of a fleet at the current time, or at that of `clock` (unix ms), which is then its
    monotonic time too.
    """

    name = "simulated"

    def __init__(self, fleet: Fleet, node: str, clock: Callable[[], int] | None = None) -> None:
        self._fleet, self._node, self._clock = fleet, fleet.node(node), clock
        self._lane_of = {slot: lane for lane in self._node.lanes for slot in lane.slots}
        self._keys = [zlib.crc32(entry.uuid.encode()) for entry in self._node.accelerators]

    def open(self) -> Inventory:
        """The node's accelerators."""
        return Inventory("simulated", self._node.accelerators)

    def close(self) -> None:
        """Nothing to release."""

    def _now(self) -> tuple[int, int]:
        """Unix milliseconds and monotonic nanoseconds of this tick."""
        if self._clock is None:
            return wall_ms(), time.monotonic_ns()
        at_ms = self._clock()
        return at_ms, at_ms * 1_000_000

    def read(self, tiers: Iterable[str]) -> Sequence[Sample]:
        """A sample of every accelerator, with slow metrics when they are due; none while the node's
        agent is down.
        """
        slow = "slow" in tiers
        at_ms, monotonic_ns = self._now()
        if self._fleet.silent(self._node.name, at_ms):
            return ()
        return [
            self._sample(slot, entry, at_ms, monotonic_ns, slow=slow)
            for slot, entry in enumerate(self._node.accelerators)
        ]

    def _sample(
        self, slot: int, entry: Accelerator, at_ms: int, monotonic_ns: int, *, slow: bool
    ) -> Sample:
        if self._fleet.is_failed(self._node.name, slot, at_ms):
            return Sample(
                entry.uuid,
                monotonic_ns,
                {},
                {},
                (),
                Health("failed", "Xid 79: GPU has fallen off the bus"),
            )
        lane = self._lane_of.get(slot)
        hold = None if lane is None else self._fleet.holding(lane, at_ms)
        active = 0.0 if hold is None else activity(hold, self._keys[slot], at_ms)
        values, absent = readings(entry, self._node.model, hold, active)
        if hold is None and self._fleet.stuck(self._node.name, slot, at_ms):
            values["gpu_utilization_ratio"] = 1.0
        health = Health()
        if entry.gpu_micro == WHOLE_GPU:
            errors = self._fleet.errors(self._node.name, slot, at_ms)
            health = verdict(errors)
            if slow:
                values |= errors | self._limits(slot, at_ms)
        processes = (
            () if hold is None or hold.shape == "reserved" else (Process(20_000 + slot, None),)
        )
        return Sample(entry.uuid, monotonic_ns, values, absent, processes, health)

    def _limits(self, slot: int, at_ms: int) -> dict[str, float]:
        """The power limit, and for how long power and temperature have reduced the clocks."""
        is_hot = (self._node.name, slot) == HOT_GPU
        return {
            "gpu_power_limit_watts": MODELS[self._node.model][3],
            "gpu_throttle_power_seconds_total": slowed_seconds(
                at_ms, 0.02 if self._node.model == "h100" else 0.002
            ),
            "gpu_throttle_thermal_seconds_total": slowed_seconds(at_ms, 0.08) if is_hot else 0.0,
        }

    def holders(self, _accelerators: Sequence[Accelerator], _samples: Sequence[Sample]) -> Holders:
        """The holders of each accelerator now, also of failed ones."""
        at_ms, _ = self._now()
        holders: dict[str, Sequence[Holder]] = {}
        for slot, entry in enumerate(self._node.accelerators):
            lane = self._lane_of.get(slot)
            hold = None if lane is None else self._fleet.holding(lane, at_ms)
            if lane is not None and hold is not None:
                holders[entry.uuid] = lane_holders(lane, hold)
        return holders


def lane_holders(lane: Lane, hold: Hold) -> tuple[Holder, ...]:
    """The holders of a lane: one, or (where it is time-sliced) the workload and another one at
    equal weights.
    """
    first = Holder(hold.workload)
    if lane.sharers == 1:
        return (first,)
    tags = {"team": "nlp", "project": "retrieval"}
    second = Workload(
        f"{hold.workload.id}-b", "simulated", "ines", "nlp", "retrieval-serving", tags
    )
    return (first, Holder(second))


def readings(
    entry: Accelerator, model: str, hold: Hold | None, active: float
) -> tuple[dict[str, float | int], dict[str, str]]:
    """The readings of such a card: values in base units, and reasons for absent ones."""
    _, memory, idle_watts, full_watts = MODELS[model]
    total = entry.memory_bytes or memory
    used = (
        600 * 1024**2 if hold is None else min(int(total * (0.35 + 0.5 * active)), total - GIB // 2)
    )
    values: dict[str, float | int] = {
        "gpu_memory_used_bytes": used,
        "gpu_memory_free_bytes": total - used,
        "gpu_processes": 0 if hold is None or hold.shape == "reserved" else 1,
    }
    if entry.gpu_micro != WHOLE_GPU:
        return values, {"gpu_utilization_ratio": MIG_REASON, "gpu_power_watts": MIG_REASON}
    values |= {
        "gpu_utilization_ratio": 0.0 if active < 0.005 else min(1.0, active * 1.1 + 0.02),
        "gpu_memory_copy_utilization_ratio": active * 0.6,
        "gpu_power_watts": idle_watts + (full_watts - idle_watts) * min(1.0, active * 1.02),
        "gpu_temperature_celsius": 31.0 + 42.0 * active,
        "gpu_sm_clock_hertz": 345e6 if active == 0.0 else 1.755e9,
        "gpu_performance_state": 0 if hold else 8,
        "gpu_clocks_event_reasons_bitmask": IDLE
        if active == 0.0
        else (POWER_CAP if active > FULL_LOAD else 0),
    }
    if model in {"h100", "a100"}:
        values |= {
            "gpu_graphics_engine_active_ratio": min(1.0, active * 1.05),
            "gpu_sm_active_ratio": active,
            "gpu_sm_occupancy_ratio": active * 0.45,
            "gpu_tensor_active_ratio": active * 0.55,
            "gpu_dram_active_ratio": active
            * (0.15 if hold is not None and hold.shape == "starved" else 0.5),
        }
    return values, {"gpu_energy_joules_total": NO_COUNTER}
