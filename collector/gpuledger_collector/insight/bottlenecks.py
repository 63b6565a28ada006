"""What limits a run, judged from its GPUs' readings; where a reading that a rule needs is absent,
nothing is judged.

Each rule uses minutes in which the run alone held whole accelerators. Thresholds and their sources:

- *input*: utilization of 5 to 70 % on average with at least 20 % of samples at zero, and DRAM
  hardly active (< 10 %): the rule of the idle state `data_starved`, which was measured; the GPU
  waits with nothing in flight.
- *communication*: SMs active under 50 % while kernels are nearly always resident and the links
  between GPUs carry at least 20 % of their capacity. NVIDIA's DCGM guide calls SM activity under
  0.5 likely ineffective use; the share of the link is our judgment.
- *throttling*: slowdown bits in at least half of the minutes and an SM clock under 90 % of the
  run's own p95: the rule of the idle state `throttled`. Bits of heat and of power are distinguished
  while raw samples still exist.
- *memory*: DRAM active at 60 % or more: three quarters of the 0.8 that the DCGM guide calls the
  practical maximum.
- *batch*: kernels nearly always resident, SMs active under 50 %, DRAM under 30 %, links quiet, and
  at most half of the memory ever used: there is room for more work at once.
- *imbalance*: a GPU whose activity is a quarter or more away from the median of the run's GPUs (our
  judgment): the others wait for one that works more, one that works less has too little to do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

from gpuledger_collector.insight.plans.hardware import GPUS, link_named
from gpuledger_collector.insight.quantiles import quantile

MIN_MINUTES = 30
"""The window of the idle states."""
MIN_KNOWN = 0.95
"""Share of the minutes that must carry a reading, as for recommendations."""
KINDS = ("input", "communication", "throttling", "memory", "batch", "imbalance")
RESIDENT, INEFFECTIVE = 0.9, 0.5
LINK_SHARE, DRAM_BOUND, DRAM_QUIET, DRAM_LIGHT, ROOM = 0.2, 0.6, 0.1, 0.3, 0.5
STARVED_FROM, STARVED_TO, STARVED_ZERO = 0.05, 0.70, 0.20
THROTTLED_SHARE, THROTTLED_CLOCK = 0.5, 0.9
APART = 0.25


@dataclass(frozen=True)
class GpuReadings:
    """One GPU of a run, and its readings by minute (unix ms) and name; unread ones are absent."""

    uuid: str
    model: str
    memory_bytes: int | None
    minutes: Mapping[int, Mapping[str, float]]

    def values(self, name: str) -> list[float]:
        """A reading over the minutes that carry it."""
        return [readings[name] for readings in self.minutes.values() if name in readings]


@dataclass(frozen=True)
class Bottleneck:
    """A limit of the run: what it is, what to do, the evidence, and the readings to draw."""

    kind: str
    says: str
    advice: str
    evidence: Mapping[str, float]
    drawn: tuple[str, ...]


@dataclass(frozen=True)
class NotJudged:
    """A kind that could not be judged, and the evidence missing for it."""

    kind: str
    missing: str


@dataclass(frozen=True)
class BottleneckReport:
    """Bottlenecks, the kinds that were judged and are fine, and those that could not be judged."""

    minutes: int
    verdicts: Sequence[Bottleneck] = ()
    fine: Sequence[str] = ()
    cannot_say: Sequence[NotJudged] = field(default_factory=list)


class MissingReading(Exception):
    """A rule lacks a reading; the message names it."""


@dataclass(frozen=True)
class _Readings:
    """The readings of all GPUs of a run."""

    gpus: Sequence[GpuReadings]

    @property
    def minutes(self) -> int:
        """GPU-minutes with any reading."""
        return sum(len(gpu.minutes) for gpu in self.gpus)

    def values(self, name: str) -> list[float]:
        """A reading over every GPU-minute.

        Raises MissingReading where more than 5 % of them lack it.
        """
        values = [value for gpu in self.gpus for value in gpu.values(name)]
        if not values:
            raise MissingReading(f"{name} is not read")
        _require_minutes(name, len(values), self.minutes)
        return values

    def mean(self, name: str) -> float:
        """Mean of a reading."""
        return fmean(self.values(name))

    def link_share(self) -> float:
        """NVLink traffic as a share of the links' capacity."""
        # A single GPU has nobody to talk to; its links need not be read.
        if len(self.gpus) < 2:
            return 0.0
        return self.mean("nvlink_bytes_per_second") / _nvlink_rate(self.gpus[0].model)

    def memory_share(self) -> float:
        """99th percentile of used memory as a share of the GPUs' memory."""
        self.values("memory_used_bytes")
        if any(gpu.memory_bytes is None for gpu in self.gpus):
            raise MissingReading("the size of its GPUs' memory is not known")
        shares = [
            used / gpu.memory_bytes
            for gpu in self.gpus
            if gpu.memory_bytes
            for used in gpu.values("memory_used_bytes")
        ]
        return quantile(sorted(shares), 0.99)


def _require_minutes(name: str, read: int, minutes: int) -> None:
    if read < MIN_KNOWN * minutes:
        raise MissingReading(f"{name} is read in only {read / minutes:.0%} of its minutes")


def _nvlink_rate(model: str) -> float:
    """Bytes per second over a GPU's NVLink, both directions.

    Raises MissingReading for a model without one.
    """
    words = set(model.casefold().replace("-", " ").split())
    for gpu in GPUS:
        # PCIe variants share the first word of the name, but not the NVLink of SXM boards.
        if (
            "pcie" not in words
            and gpu.link.startswith("nvlink")
            and gpu.name.casefold().partition("-")[0] in words
        ):
            return 2 * link_named(gpu.link).bytes_per_second
    raise MissingReading(f"the NVLink bandwidth of {model or 'this model'} is not known")


def find_bottlenecks(gpus: Sequence[GpuReadings]) -> BottleneckReport:
    """Apply every rule to the GPUs of a run."""
    readings = _Readings([gpu for gpu in gpus if gpu.minutes])
    if readings.minutes < MIN_MINUTES:
        reason = f"{readings.minutes} minutes of whole hours are known, {MIN_MINUTES} are needed"
        return BottleneckReport(
            readings.minutes, cannot_say=[NotJudged(kind, reason) for kind in KINDS]
        )
    bottlenecks: list[Bottleneck] = []
    fine: list[str] = []
    not_judged: list[NotJudged] = []
    for kind, rule in RULES.items():
        try:
            # A missing reading is an answer of its own: `fine` would claim what nobody measured.
            bottleneck = rule(readings)
        except MissingReading as missing:
            not_judged.append(NotJudged(kind, str(missing)))
        else:
            if bottleneck is None:
                fine.append(kind)
            else:
                bottlenecks.append(bottleneck)
    return BottleneckReport(readings.minutes, bottlenecks, fine, not_judged)


def _input(readings: _Readings) -> Bottleneck | None:
    busy, zero = readings.mean("utilization_ratio"), readings.mean("zero_ratio")
    if not (STARVED_FROM <= busy <= STARVED_TO and zero >= STARVED_ZERO):
        return None
    # Asked last: where utilization rules this out already, a missing DRAM reading does not matter.
    dram = readings.mean("dram_active_ratio")
    if dram >= DRAM_QUIET:
        return None
    return Bottleneck(
        "input",
        f"its GPUs wait for data: busy {busy:.0%} of the time, and {zero:.0%} of samples are at"
        " zero",
        "use more loader workers, prefetching, or faster or nearer storage",
        {"utilization_mean": busy, "samples_at_zero": zero, "dram_active_mean": dram},
        ("utilization_ratio",),
    )


def _ineffective(readings: _Readings) -> tuple[float, float] | None:
    """Utilization and SM activity where kernels are nearly always resident and SMs are not
    effectively used.
    """
    busy, active = readings.mean("utilization_ratio"), readings.mean("sm_active_ratio")
    return (busy, active) if busy >= RESIDENT and active < INEFFECTIVE else None


def _communication(readings: _Readings) -> Bottleneck | None:
    if len(readings.gpus) < 2 or (ineffective := _ineffective(readings)) is None:
        return None
    busy, active = ineffective
    share = readings.link_share()
    if share < LINK_SHARE:
        return None
    return Bottleneck(
        "communication",
        f"its GPUs wait for each other: SMs {active:.0%} active while the links carry {share:.0%}"
        " of their capacity",
        "overlap communication with computation, exchange less often in larger pieces, or use fewer"
        " GPUs per copy",
        {"utilization_mean": busy, "sm_active_mean": active, "link_share": share},
        ("sm_active_ratio", "nvlink_bytes_per_second"),
    )


def _throttling(readings: _Readings) -> Bottleneck | None:
    slowed = readings.values("slowed_ratio")
    share = sum(value >= THROTTLED_SHARE for value in slowed) / len(slowed)
    if share < THROTTLED_SHARE:
        return None
    clocks = readings.values("sm_clock_hertz")
    # Against the run's own p95: the nominal clock of a model says little about a board with a power
    # limit.
    ratio = fmean(clocks) / quantile(sorted(clocks), 0.95)
    if ratio >= THROTTLED_CLOCK:
        return None
    cause, advice, shares = _throttling_cause(readings)
    return Bottleneck(
        "throttling",
        f"{cause} slows its GPUs {share:.0%} of the time, to {ratio:.0%} of their clock",
        advice,
        {"slowed_share": share, "clock_ratio": ratio, **shares},
        ("sm_clock_hertz", "temperature_celsius", "power_watts"),
    )


def _throttling_cause(readings: _Readings) -> tuple[str, str, dict[str, float]]:
    try:
        heat, power = readings.mean("thermal_ratio"), readings.mean("power_cap_ratio")
    except MissingReading:
        return "heat or power", "check the temperature and power limit of its nodes", {}
    shares = {"thermal_share": heat, "power_cap_share": power}
    if heat >= power:
        return "heat", "have the cooling of its nodes checked", shares
    return (
        "its power limit",
        "try another power limit: the clock shows what the present one costs",
        shares,
    )


def _memory(readings: _Readings) -> Bottleneck | None:
    dram = readings.mean("dram_active_ratio")
    if dram < DRAM_BOUND:
        return None
    return Bottleneck(
        "memory",
        f"memory bandwidth is its limit: DRAM {dram:.0%} active, and 80 % is the practical maximum",
        "fuse kernels, use a narrower number format or larger batches per weight, or a GPU with"
        " more bandwidth",
        {"dram_active_mean": dram},
        ("dram_active_ratio", "sm_active_ratio"),
    )


def _batch(readings: _Readings) -> Bottleneck | None:
    if (ineffective := _ineffective(readings)) is None:
        return None
    busy, active = ineffective
    dram = readings.mean("dram_active_ratio")
    if dram >= DRAM_LIGHT or readings.link_share() >= LINK_SHARE:
        return None
    used = readings.memory_share()
    if used > ROOM:
        return None
    return Bottleneck(
        "batch",
        f"it does too little at once: SMs {active:.0%} active, and at most {used:.0%} of the memory"
        " is used",
        "try a larger batch, or put it on a smaller GPU or a MIG slice",
        {
            "utilization_mean": busy,
            "sm_active_mean": active,
            "dram_active_mean": dram,
            "memory_p99_share": used,
        },
        ("sm_active_ratio", "memory_used_bytes"),
    )


def _imbalance(readings: _Readings) -> Bottleneck | None:
    if len(readings.gpus) < 2:
        return None
    name = "sm_active_ratio"
    try:
        readings.values(name)
    except MissingReading:
        name = "utilization_ratio"
        readings.values(name)
    means = {gpu.uuid: _mean_of(gpu, name) for gpu in readings.gpus}
    middle = median(means.values())
    worst = max(means, key=lambda uuid: abs(means[uuid] - middle))
    if middle < STARVED_FROM or abs(means[worst] - middle) < APART * middle:
        return None
    if means[worst] > middle:
        what = "works more than the rest, which wait for it"
        advice = (
            "check this GPU's clock and health, and even out the stages: the slowest sets the pace"
            " of all"
        )
    else:
        what, advice = (
            "has less to do than the rest",
            "even out the stages or the data of its ranks",
        )
    return Bottleneck(
        "imbalance",
        f"{worst} {what}: {means[worst]:.0%} active against {middle:.0%}",
        advice,
        {"activity": means[worst], "median_activity": middle, "gpus": float(len(means))},
        (name,),
    )


def _mean_of(gpu: GpuReadings, name: str) -> float:
    values = gpu.values(name)
    _require_minutes(f"{name} of GPU {gpu.uuid}", len(values), len(gpu.minutes))
    return fmean(values)


RULES: Mapping[str, Callable[[_Readings], Bottleneck | None]] = dict(
    zip(KINDS, (_input, _communication, _throttling, _memory, _batch, _imbalance), strict=True)
)


def mean_by_minute(gpus: Sequence[GpuReadings], name: str) -> list[float | None]:
    """Return the mean of a reading over the GPUs for every minute from the first to the last; None
    where unread.
    """
    instants = {at_ms for gpu in gpus for at_ms in gpu.minutes}
    if not instants:
        return []
    means: list[float | None] = []
    for at_ms in range(min(instants), max(instants) + 60_000, 60_000):
        values = [gpu.minutes[at_ms][name] for gpu in gpus if name in gpu.minutes.get(at_ms, ())]
        means.append(fmean(values) if values else None)
    return means
