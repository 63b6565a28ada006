"""What holds a run back, judged from its GPUs' readings; where a reading that a verdict needs is absent, none is given.

Each rule looks at minutes in which the run alone held whole accelerators. Thresholds and where they come from:

- *input*: utilisation of 5 to 70 % on average with at least 20 % of samples at zero, and DRAM hardly active (< 10 %):
  the rule of the idle state `data_starved`, which was measured; the GPU waits with nothing in flight.
- *communication*: SMs active under 50 % while kernels are nearly always resident and the links between GPUs carry at
  least 20 % of what they can. NVIDIA's DCGM guide calls SM activity under 0.5 likely ineffective use; the share of the
  link is our judgement.
- *throttling*: slowdown bits in at least half of the minutes and an SM clock under 90 % of the run's own p95: the rule
  of the idle state `throttled`. Bits of heat and of power are told apart where raw samples are still there.
- *memory*: DRAM active at 60 % or more: three quarters of the 0.8 that the DCGM guide calls the most that is reached.
- *batch*: kernels nearly always resident, SMs active under 50 %, DRAM under 30 %, links quiet, and at most half of the
  memory ever used: there is room for more work at once.
- *imbalance*: a GPU whose activity lies a quarter or more away from the median of the run's GPUs (our judgement): one
  that works more than the rest is waited for, one that works less has too little to do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

import numpy as np

from gpuledger_collector.insight.plans.hardware import GPUS, link_named

MIN_MINUTES = 30
"""Fewer minutes are no ground for a verdict: the window of the idle states."""
MIN_KNOWN = 0.95
"""Part of the minutes that must carry a reading, as for recommendations."""
KINDS = ("input", "communication", "throttling", "memory", "batch", "imbalance")
RESIDENT, INEFFECTIVE = 0.9, 0.5
LINK_SHARE, DRAM_BOUND, DRAM_QUIET, DRAM_LIGHT, ROOM = 0.2, 0.6, 0.1, 0.3, 0.5
STARVED_FROM, STARVED_TO, STARVED_ZERO = 0.05, 0.70, 0.20
THROTTLED_SHARE, THROTTLED_CLOCK = 0.5, 0.9
APART = 0.25


@dataclass(frozen=True)
class GpuReadings:
    """One GPU of a run, and its readings by minute (unix ms) and name; what was not read is not there."""

    uuid: str
    model: str
    memory_bytes: int | None
    minutes: Mapping[int, Mapping[str, float]]


@dataclass(frozen=True)
class Bottleneck:
    """Something that holds the run back: what it is, what to do, and the readings that show it."""

    kind: str
    says: str
    advice: str
    evidence: Mapping[str, float]
    drawn: tuple[str, ...]
    """Readings to draw."""


@dataclass(frozen=True)
class NotJudged:
    """A kind that could not be judged, and what is missing for it."""

    kind: str
    missing: str


@dataclass(frozen=True)
class BottleneckReport:
    """What was found, what was looked for and not found, and what could not be judged."""

    minutes: int
    verdicts: Sequence[Bottleneck] = ()
    fine: Sequence[str] = ()
    cannot_say: Sequence[NotJudged] = field(default_factory=list)


class MissingReading(Exception):
    """A reading that a rule needs is not there; the message names it."""


@dataclass(frozen=True)
class _Look:
    """The readings of all GPUs of a run."""

    gpus: Sequence[GpuReadings]

    @property
    def minutes(self) -> int:
        """GPU-minutes that carry anything."""
        return sum(len(gpu.minutes) for gpu in self.gpus)

    def values(self, name: str) -> list[float]:
        """A reading over every GPU-minute. Raises Missing where it is absent in more than 5 % of them."""
        found = [entry[name] for gpu in self.gpus for entry in gpu.minutes.values() if name in entry]
        if not found or len(found) < MIN_KNOWN * self.minutes:
            share = f" is read in {len(found) / self.minutes:.0%} of its minutes only" if found else " is not read"
            raise MissingReading(f"{name}{share}")
        return found

    def mean(self, name: str) -> float:
        """Its mean."""
        return fmean(self.values(name))

    def link_share(self) -> float:
        """Traffic over NVLink as a share of what the links can carry."""
        if len(self.gpus) < 2:
            return 0.0
        return self.mean("nvlink_bytes_per_second") / _nvlink_rate(self.gpus[0].model)


def _nvlink_rate(model: str) -> float:
    """Bytes per second over a card's NVLink, both directions together. Raises Missing for a card that has none."""
    words = set(model.casefold().replace("-", " ").split())
    for card in GPUS:
        if "pcie" not in words and card.link.startswith("nvlink") and card.name.casefold().partition("-")[0] in words:
            return 2 * link_named(card.link).bytes_per_second
    raise MissingReading(f"the NVLink bandwidth of {model or 'this model'} is not known")


def find_bottlenecks(gpus: Sequence[GpuReadings]) -> BottleneckReport:
    """Every rule over the GPUs of a run."""
    look = _Look([gpu for gpu in gpus if gpu.minutes])
    if look.minutes < MIN_MINUTES:
        reason = f"{look.minutes} minutes of whole hours are known, {MIN_MINUTES} are needed"
        return BottleneckReport(look.minutes, cannot_say=[NotJudged(kind, reason) for kind in KINDS])
    verdicts: list[Bottleneck] = []
    fine: list[str] = []
    cannot: list[NotJudged] = []
    for kind, rule in RULES.items():
        try:
            found = rule(look)
        except MissingReading as missing:
            cannot.append(NotJudged(kind, str(missing)))
            continue
        if found is None:
            fine.append(kind)
        else:
            verdicts.append(found)
    return BottleneckReport(look.minutes, verdicts, fine, cannot)


def _input(look: _Look) -> Bottleneck | None:
    busy, zero = look.mean("utilization_ratio"), look.mean("zero_ratio")
    if not (STARVED_FROM <= busy <= STARVED_TO and zero >= STARVED_ZERO):
        return None
    dram = look.mean("dram_active_ratio")
    if dram >= DRAM_QUIET:
        return None
    return Bottleneck(
        "input",
        f"its GPUs wait for data: busy {busy:.0%} of the time, and {zero:.0%} of samples show nothing at all",
        "give it more loader workers, prefetch, or faster or nearer storage",
        {"utilization_mean": busy, "samples_at_zero": zero, "dram_active_mean": dram},
        ("utilization_ratio",),
    )


def _communication(look: _Look) -> Bottleneck | None:
    if len(look.gpus) < 2:
        return None
    busy, active = look.mean("utilization_ratio"), look.mean("sm_active_ratio")
    if busy < RESIDENT or active >= INEFFECTIVE:
        return None
    share = look.link_share()
    if share < LINK_SHARE:
        return None
    return Bottleneck(
        "communication",
        f"its GPUs wait for each other: SMs {active:.0%} active while the links carry {share:.0%} of what they can",
        "overlap communication with computation, exchange less often in larger pieces, or use fewer GPUs a copy",
        {"utilization_mean": busy, "sm_active_mean": active, "link_share": share},
        ("sm_active_ratio", "nvlink_bytes_per_second"),
    )


def _throttling(look: _Look) -> Bottleneck | None:
    slowed = look.values("slowed_ratio")
    share = sum(value >= THROTTLED_SHARE for value in slowed) / len(slowed)
    if share < THROTTLED_SHARE:
        return None
    clocks = look.values("sm_clock_hertz")
    ratio = fmean(clocks) / float(np.quantile(clocks, 0.95))
    if ratio >= THROTTLED_CLOCK:
        return None
    try:
        heat, power = look.mean("thermal_ratio"), look.mean("power_cap_ratio")
    except MissingReading:
        cause, advice = "heat or power", "look at temperature and power limit of its nodes"
        which: dict[str, float] = {}
    else:
        which = {"thermal_share": heat, "power_cap_share": power}
        if heat >= power:
            cause, advice = "heat", "have the cooling of its nodes looked at"
        else:
            cause, advice = "its power limit", "try another power limit: the clock says what the present one costs"
    return Bottleneck(
        "throttling",
        f"{cause} slows its GPUs {share:.0%} of the time, to {ratio:.0%} of their clock",
        advice,
        {"slowed_share": share, "clock_ratio": ratio, **which},
        ("sm_clock_hertz", "temperature_celsius", "power_watts"),
    )


def _memory(look: _Look) -> Bottleneck | None:
    dram = look.mean("dram_active_ratio")
    if dram < DRAM_BOUND:
        return None
    return Bottleneck(
        "memory",
        f"memory bandwidth is its limit: DRAM {dram:.0%} active, and 80 % is the most that is reached",
        "fuse kernels, use a narrower number format or larger batches per weight, or a GPU with more bandwidth",
        {"dram_active_mean": dram},
        ("dram_active_ratio", "sm_active_ratio"),
    )


def _batch(look: _Look) -> Bottleneck | None:
    busy, active = look.mean("utilization_ratio"), look.mean("sm_active_ratio")
    if busy < RESIDENT or active >= INEFFECTIVE:
        return None
    dram = look.mean("dram_active_ratio")
    if dram >= DRAM_LIGHT or look.link_share() >= LINK_SHARE:
        return None
    used = _memory_share(look)
    if used > ROOM:
        return None
    return Bottleneck(
        "batch",
        f"it does too little at once: SMs {active:.0%} active, and never more than {used:.0%} of the memory is used",
        "try a larger batch, or put it on a smaller GPU or a MIG slice",
        {"utilization_mean": busy, "sm_active_mean": active, "dram_active_mean": dram, "memory_p99_share": used},
        ("sm_active_ratio", "memory_used_bytes"),
    )


def _memory_share(look: _Look) -> float:
    look.values("memory_used_bytes")
    if any(gpu.memory_bytes is None for gpu in look.gpus):
        raise MissingReading("the size of its GPUs' memory is not known")
    shares = [
        entry["memory_used_bytes"] / gpu.memory_bytes
        for gpu in look.gpus
        for entry in gpu.minutes.values()
        if gpu.memory_bytes and "memory_used_bytes" in entry
    ]
    return float(np.quantile(shares, 0.99))


def _imbalance(look: _Look) -> Bottleneck | None:
    if len(look.gpus) < 2:
        return None
    name = "sm_active_ratio"
    try:
        look.values(name)
    except MissingReading:
        name = "utilization_ratio"
        look.values(name)
    means = {gpu.uuid: _mean_of(gpu, name) for gpu in look.gpus}
    middle = median(means.values())
    worst = max(means, key=lambda uuid: abs(means[uuid] - middle))
    apart = abs(means[worst] - middle)
    if middle < STARVED_FROM or apart < APART * middle:
        return None
    slow = means[worst] > middle
    what = "works more than the rest, which wait for it" if slow else "has less to do than the rest"
    advice = (
        "look at this GPU's clock and health, and even out the stages: the slowest sets the pace of all"
        if slow
        else "even out the stages or the data of its ranks"
    )
    return Bottleneck(
        "imbalance",
        f"{worst} {what}: {means[worst]:.0%} active against {middle:.0%}",
        advice,
        {"activity": means[worst], "median_activity": middle, "gpus": float(len(means))},
        (name,),
    )


def _mean_of(gpu: GpuReadings, name: str) -> float:
    values = [entry[name] for entry in gpu.minutes.values() if name in entry]
    if len(values) < MIN_KNOWN * len(gpu.minutes):
        raise MissingReading(
            f"{name} of GPU {gpu.uuid} is read in {len(values) / len(gpu.minutes):.0%} of its minutes only"
        )
    return fmean(values)


RULES: Mapping[str, Callable[[_Look], Bottleneck | None]] = {
    "input": _input,
    "communication": _communication,
    "throttling": _throttling,
    "memory": _memory,
    "batch": _batch,
    "imbalance": _imbalance,
}


def mean_by_minute(gpus: Sequence[GpuReadings], name: str) -> list[float | None]:
    """The mean of a reading over the GPUs, minute by minute from the first to the last; None where nobody read it."""
    instants = sorted({at_ms for gpu in gpus for at_ms in gpu.minutes})
    if not instants:
        return []
    by_minute: dict[int, list[float]] = {}
    for gpu in gpus:
        for at_ms, entry in gpu.minutes.items():
            if name in entry:
                by_minute.setdefault(at_ms, []).append(entry[name])
    return [
        fmean(by_minute[at_ms]) if at_ms in by_minute else None
        for at_ms in range(instants[0], instants[-1] + 60_000, 60_000)
    ]
