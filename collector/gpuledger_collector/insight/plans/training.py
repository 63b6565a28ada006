"""Days and money of a training run, and what checkpoints and failures add.

Arithmetic: 6 N operations a token for N parameters that take part (Kaplan et al. 2020; Hoffmann et
al. 2022), and 12 L h s for attention over s tokens (Chowdhery et al. 2022, appendix B, which counts
the masked half too). Time is tokens x operations / (GPUs x peak x MFU): MFU is the share of the
peak that these operations reach, so recomputation lowers it. Published ones: 0.21 GPT-3, 0.33
Gopher, 0.30 MT-NLG, 0.46 PaLM (there, table 3), 0.38 to 0.43 Llama 3.1 405B on 8,192 and 16,384
H100 (Dubey et al. 2024, table 4).

Failures: the job's time between failures is a GPU's over the number of GPUs. The best interval
between checkpoints and the whole time with them are Daly 2006, equations 37 and 20; the first order
of the interval is Young 1974's sqrt(2 checkpoint M). Limits: exponential failures, also while
restarting; none is seen late; no spares to wait for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal, localcontext

from gpuledger_collector.accounting.money import minor_digits
from gpuledger_collector.insight.plans.architecture import Architecture
from gpuledger_collector.insight.plans.hardware import GpuModel
from gpuledger_collector.insight.rates import GpuHourRate

HOUR_S = 3600.0
MFU = (0.3, 0.4, 0.5)
"""Low, expected, high where nothing was measured: large dense models on recent cards, from the
tables above.
"""
GPU_MTBF_HOURS = 16384 * 54 * 24 / 419
"""Dubey et al.

2024, section 3.3.4: 419 unexpected interruptions in 54 days of 16,384 H100, one in 50,677
GPU-hours.
"""
TOKENS_PER_PARAMETER = 20
"""Compute-optimal tokens a parameter, roughly (Hoffmann et al. 2022, table 3)."""
MAX_RESTART_SHARE = 10.0
"""Time to restart over time between failures, beyond which a run makes no progress worth a number.
"""


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """Model, tokens and GPUs of a run.

    `parameters`: those that take part in each token. `mfu`: low, expected, high.
    """

    architecture: Architecture
    parameters: float
    tokens: float
    card: GpuModel
    gpus: int
    precision: str = "bf16"
    sequence: int = 4096
    mfu: tuple[float, float, float] = MFU

    def __post_init__(self) -> None:
        if not (self.parameters > 0 and self.tokens > 0 and self.gpus > 0 and self.sequence > 0):
            raise ValueError("parameters, tokens, GPUs and the sequence must be above 0")
        low, expected, high = self.mfu
        if not 0 < low <= expected <= high <= 1:
            raise ValueError(
                f"MFU is a share above 0 to 1, low to high, not {low:g}, {expected:g}, {high:g}"
            )
        self.card.peak(self.precision)

    @property
    def flops_per_token(self) -> float:
        """Operations of forward and backward pass for one token."""
        return flops_per_token(self.architecture, self.parameters, self.sequence)

    @property
    def flops(self) -> float:
        """Operations of the whole run."""
        return self.flops_per_token * self.tokens

    def seconds(self, mfu: float) -> float:
        """Seconds of arithmetic alone, without checkpoints and failures."""
        return self.flops / (self.gpus * self.card.peak(self.precision) * mfu)

    def tokens_per_second(self, mfu: float) -> float:
        """Tokens a second of the whole job."""
        return self.tokens / self.seconds(mfu)


@dataclass(frozen=True, slots=True)
class Failures:
    """How runs fail.

    `checkpoint_seconds`: pause for one checkpoint; `interval_seconds` None: the optimal interval.
    """

    gpu_mtbf_hours: float = GPU_MTBF_HOURS
    checkpoint_seconds: float = 60.0
    restart_seconds: float = 600.0
    interval_seconds: float | None = None

    def __post_init__(self) -> None:
        if not (
            self.gpu_mtbf_hours > 0 and self.checkpoint_seconds > 0 and self.restart_seconds >= 0
        ):
            raise ValueError(
                "time between failures and of a checkpoint must be above 0, of a restart not"
                " below 0"
            )
        if self.interval_seconds is not None and not self.interval_seconds > 0:
            raise ValueError("the interval between checkpoints must be above 0")


@dataclass(frozen=True, slots=True)
class FailureOverhead:
    """Cost of checkpoints and failures.

    `wall_per_second`: wall time per second of work, at least 1.
    """

    mtbf_seconds: float
    interval_seconds: float
    wall_per_second: float
    checkpoint_share: float
    """Of the wall time without failures."""

    @property
    def lost_share(self) -> float:
        """Share of wall time for checkpoints, repeated work and restarts."""
        return 1 - 1 / self.wall_per_second


@dataclass(frozen=True, slots=True)
class TrainingEstimate:
    """The run at one MFU: wall time, GPU-hours, expected failures, and cost where a rate is known."""

    mfu: float
    work_seconds: float
    wall_seconds: float
    gpu_hours: float
    failures: float
    tokens_per_second: float
    cost: Decimal | None


def flops_per_token(architecture: Architecture, parameters: float, sequence: int) -> float:
    """Operations of forward and backward pass for one token: 6 N + 12 L h s."""
    return 6.0 * parameters + 12.0 * architecture.layers * architecture.hidden * sequence


def young_interval(checkpoint_seconds: float, mtbf_seconds: float) -> float:
    """Seconds of work between checkpoints, first order (Young 1974)."""
    return math.sqrt(2.0 * checkpoint_seconds * mtbf_seconds)


def daly_interval(checkpoint_seconds: float, mtbf_seconds: float) -> float:
    """Seconds of work between checkpoints, higher order (Daly 2006, equation 37)."""
    if checkpoint_seconds >= 2.0 * mtbf_seconds:
        return mtbf_seconds
    # The series holds for checkpoints shorter than twice the time between failures; beyond, the
    # interval is that time.
    part = checkpoint_seconds / (2.0 * mtbf_seconds)
    first = young_interval(checkpoint_seconds, mtbf_seconds)
    return first * (1.0 + math.sqrt(part) / 3.0 + part / 9.0) - checkpoint_seconds


def overhead(failures: Failures, gpus: int) -> FailureOverhead:
    """Wall time by Daly 2006, equation 20: M e^(R/M) (e^((t+d)/M) - 1) for t seconds of work.

    Raises ValueError when the run would fail more often than it could restart.
    """
    mtbf = failures.gpu_mtbf_hours * HOUR_S / gpus
    pause = failures.checkpoint_seconds
    interval = failures.interval_seconds or daly_interval(pause, mtbf)
    # Beyond this the exponentials below grow without bound: the run would fail before its next
    # checkpoint.
    if (
        failures.restart_seconds > MAX_RESTART_SHARE * mtbf
        or interval + pause > MAX_RESTART_SHARE * mtbf
    ):
        raise ValueError(
            f"{gpus} GPUs would fail every {mtbf:.3g} s, too often for checkpoints every"
            f" {interval:.3g} s that take {pause:g} s and restarts of {failures.restart_seconds:g}"
            " s: the run would make no progress"
        )
    wall = (
        mtbf
        * math.exp(failures.restart_seconds / mtbf)
        * math.expm1((interval + pause) / mtbf)
        / interval
    )
    return FailureOverhead(mtbf, interval, wall, pause / (interval + pause))


def outcomes(
    run: TrainingRun, around: FailureOverhead, rate: GpuHourRate | None
) -> tuple[TrainingEstimate, TrainingEstimate, TrainingEstimate]:
    """Estimate the run at its high, expected and low MFU: from the fastest to the slowest."""
    low, expected, high = (_outcome(run, mfu, around, rate) for mfu in run.mfu)
    return high, expected, low


def _outcome(
    run: TrainingRun, mfu: float, around: FailureOverhead, rate: GpuHourRate | None
) -> TrainingEstimate:
    work = run.seconds(mfu)
    wall = work * around.wall_per_second
    gpu_hours = wall * run.gpus / HOUR_S
    cost = None if rate is None else money(gpu_hours, rate)
    return TrainingEstimate(
        mfu, work, wall, gpu_hours, wall / around.mtbf_seconds, run.tokens / wall, cost
    )


def money(gpu_hours: float, rate: GpuHourRate) -> Decimal:
    """Return the cost of GPU-hours, rounded to the currency's minor unit."""
    with localcontext(prec=60):
        return round(Decimal(repr(gpu_hours)) * rate.per_gpu_hour, minor_digits(rate.currency))
