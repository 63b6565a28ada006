"""What a token of each kind weighs on a model server, estimated from its hours.

The busy time of the server's accelerators in an hour is explained by what it counted in that hour:

    busy = a x held time + b x computed prompt tokens + c x cached ones + d x generated tokens

with no negative coefficient (least squares). `a` takes what does not depend on tokens. A weight is
a coefficient over that of a computed prompt token; nobody pays for an estimate, it may only be
proposed as a declaration. An hour is left out where a counter misses a part of it, where the
activity is unknown, where others shared an accelerator, and where the accelerators were busy for
all of it: their time then says nothing of how much there was to do.

Whether tokens explain the busy time is judged on days that the fit has not seen. An estimate is
refused, with its reason, where

- fewer than MIN_HOURS hours are left: three days, so that each of three folds has a day and a night;
- less than MIN_EXPLAINED of what the held time alone leaves open is explained in those days: below
  a half, most of what the busy time does has another cause than tokens, and on noise the share is
  about zero, whatever was fitted;
- the interval of the weight of output is wider than MAX_SPREAD: price lists have output at 2 to 8
  times input, so a wider interval says less than any price list. Prompts and outputs that rise and
  fall together have such an interval.

Where a server says how long its GPUs computed prompts and answers (SGLang), the weight of output is
measured: GPU-time of an answer token over that of a computed prompt token, in all hours together.
Nothing needs to be explained then, and cached tokens weigh as they are declared.

The interval has 90 %: the fit is repeated with blocks of six hours drawn at random, since hours
that follow each other are alike. The draw is the same at each call.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from decimal import Decimal
from itertools import combinations

import numpy as np
import numpy.typing as npt

from gpuledger_collector.accounting.inference_split import (
    EVEN,
    GPU_SECONDS,
    NO_GPU_TIME,
    GpuTime,
    Weights,
)
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS

MIN_HOURS = 72
FOLDS = 5
MIN_EXPLAINED = 0.5
MAX_SPREAD = 4.0
SATURATED = 0.98
"""Busy share of the held time from which an hour says nothing of how much there was to do."""
COVERED = 0.95
"""Share of an hour that counters must cover, and of which the activity must be known."""
BLOCK_MS = 6 * HOUR_MS
DRAWS = 400
LOW, HIGH = 0.05, 0.95
DIGITS = 2
"""Significant digits of a weight that is proposed: an interval has no more."""
MOST_DECIMALS = 6
MILLION = 1e6
BUSY_TIME = "busy_time"
"""Weights are estimated from the busy time of accelerators."""
RIDGE = 1e-12
"""Added to the products of columns of length 1, so that two equal ones can be solved, too."""

Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ServerHour:
    """An hour of a model server: what its accelerators did, together, and what it counted.

    `covered`: the part of the hour that its counters cover. `prompt`: all prompt tokens; `cached`:
    of them, None where it is not known. `gpu`: what its GPUs computed, as it says itself.
    """

    at_ms: int
    held_ms: int
    busy_ms: int
    unknown_ms: int
    prompt: int
    cached: int | None
    output: int
    covered: float = 1.0
    is_shared: bool = False
    gpu: GpuTime = NO_GPU_TIME


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with the bounds of its interval."""

    low: float
    likely: float
    high: float


@dataclass(frozen=True, slots=True)
class TokenWeights:
    """What a token weighs, or in `reason` why that is not known.

    `hours`: that were used; `left_out`: that were not. `explained`: the share of the busy time that
    tokens explain on days that were held out. `seconds`: of GPU-time for a million computed, cached
    and generated tokens. `cached`, `output`: their weight where a computed prompt token weighs 1;
    `cached` is None where cached tokens are not told apart; then they weigh `otherwise`. `source`:
    where the weights are from, busy_time or gpu_seconds.
    """

    hours: int
    left_out: int
    explained: float | None = None
    seconds: tuple[float, float | None, float] | None = None
    cached: Interval | None = None
    output: Interval | None = None
    reason: str = ""
    source: str = BUSY_TIME
    otherwise: Decimal = Decimal(1)

    @property
    def weights(self) -> str:
        """Weights to declare, as `1 : 0.02 : 4.1`; empty where the estimate is refused."""
        if self.reason or self.output is None:
            return ""
        cached = self.otherwise if self.cached is None else _short(self.cached.likely)
        return " : ".join(
            f"{weight:f}" for weight in (Decimal(1), cached, _short(self.output.likely))
        )


@dataclass(frozen=True, slots=True)
class ServerWeights:
    """What tokens weigh on a server: as it is declared, and as its hours say."""

    server: str
    declared: str
    estimate: TokenWeights


def _short(weight: float) -> Decimal:
    """A weight with as many digits as it deserves, as a declaration may have it."""
    decimal = Decimal(f"{weight:.{DIGITS - 1}e}")
    return round(decimal, MOST_DECIMALS).normalize() + 0


def estimate_weights(hours: Sequence[ServerHour], declared: Weights = EVEN) -> TokenWeights:
    """Measure or estimate what tokens weigh, or say why not."""
    return _measure_weights(hours, declared) or _estimate_weights(hours)


def _measure_weights(hours: Sequence[ServerHour], declared: Weights) -> TokenWeights | None:
    """Weights from the time that GPUs computed prompts and answers; None where that does not tell."""
    used = [hour for hour in hours if hour.gpu != NO_GPU_TIME]
    ratio = sum((hour.gpu for hour in used), NO_GPU_TIME).output_ratio
    if ratio is None or not declared.input:
        return None
    blocks: dict[int, GpuTime] = defaultdict(lambda: NO_GPU_TIME)
    for hour in used:
        blocks[hour.at_ms // BLOCK_MS] += hour.gpu
    sums = np.array([astuple(blocks[block]) for block in sorted(blocks)], dtype=np.float64)
    drawn = np.random.default_rng(0).integers(0, len(sums), (DRAWS, len(sums)))
    prefill, decode, _, computed, decoded = np.moveaxis(sums[drawn].sum(axis=1), 1, 0)
    own, unit = ratio
    return TokenWeights(
        len(used),
        len(hours) - len(used),
        output=_interval(float(own), float(unit), decode * computed, prefill * decoded),
        source=GPU_SECONDS,
        otherwise=_short(declared.cached / declared.input),
    )


def _estimate_weights(hours: Sequence[ServerHour]) -> TokenWeights:
    usable = sorted(filter(_is_usable, hours), key=lambda hour: hour.at_ms)
    full = [hour for hour in usable if _is_saturated(hour)]
    used = [hour for hour in usable if not _is_saturated(hour)]
    # Gateways count at the end of a request: some hours of theirs are not those of the server.
    known = [hour for hour in used if hour.cached is not None]
    tells_cached = (
        len(known) >= MIN_HOURS
        and 2 * len(known) >= len(used)
        and any(hour.cached for hour in known)
    )
    used = known if tells_cached else used
    left_out = len(hours) - len(used)
    if len(used) < MIN_HOURS:
        return TokenWeights(len(used), left_out, reason=_too_few(len(used), len(full)))
    design, busy = _design(used, tells_cached)
    constant = [name for name, at in (("prompt", 1), ("output", -1)) if not design[:, at].any()]
    if constant:
        return TokenWeights(len(used), left_out, reason=f"no {constant[0]} token was counted")
    explained = _explained(design, busy, _folds(used))
    fitted = fit_non_negative(design, busy)
    seconds = (
        float(fitted[1]),
        float(fitted[2]) if tells_cached else None,
        float(fitted[-1]),
    )
    draws = _draw_fits(design, busy, [hour.at_ms // BLOCK_MS for hour in used])
    output = _interval(fitted[-1], fitted[1], draws[:, -1], draws[:, 1])
    cached = _interval(fitted[2], fitted[1], draws[:, 2], draws[:, 1]) if tells_cached else None
    reason = _doubt(explained, output)
    return TokenWeights(len(used), left_out, explained, seconds, cached, output, reason)


def _is_usable(hour: ServerHour) -> bool:
    return (
        hour.held_ms > 0
        and not hour.is_shared
        and hour.covered >= COVERED
        and hour.unknown_ms <= (1 - COVERED) * hour.held_ms
    )


def _is_saturated(hour: ServerHour) -> bool:
    return hour.busy_ms >= SATURATED * hour.held_ms


def _too_few(count: int, full: int) -> str:
    reason = f"only {count} hours can be used, and {MIN_HOURS} are needed"
    return f"{reason}; in {full} more the GPUs were busy all the time" if full else reason


def _doubt(explained: float, output: Interval) -> str:
    """Why an estimate is refused; empty: it is not."""
    if explained < MIN_EXPLAINED:
        return (
            f"on days held out tokens explain {max(explained, 0):.0%} of the busy time, and"
            f" {MIN_EXPLAINED:.0%} are needed"
        )
    if not np.isfinite(output.high) or output.high > MAX_SPREAD * max(output.low, 0.0):
        return (
            "prompts and outputs rise and fall together: an output token may weigh"
            f" {output.low:.1f} to {output.high:.1f} input tokens"
        )
    return ""


def _design(hours: Sequence[ServerHour], tells_cached: bool) -> tuple[Matrix, Matrix]:
    """Columns of held seconds and of millions of tokens, and seconds of busy time."""
    rows = []
    for hour in hours:
        cached = min(hour.cached or 0, hour.prompt) if tells_cached else 0
        kinds = [hour.prompt - cached, *([cached] if tells_cached else []), hour.output]
        rows.append([hour.held_ms / 1000, *(count / MILLION for count in kinds)])
    return np.array(rows), np.array([hour.busy_ms / 1000 for hour in hours])


def fit_non_negative(design: Matrix, target: Matrix) -> Matrix:
    """Least squares without negative coefficients.

    There are so few columns that every set of them is tried: the best one whose own solution has no
    negative part is the answer.
    """
    return np.asarray(_solve((design.T @ design)[None], (design.T @ target)[None])[0])


def _solve(products: Matrix, right: Matrix) -> Matrix:
    """The same of many problems at once, from the products of their columns, which add up over
    blocks of hours.
    """
    columns = right.shape[1]
    diagonal = np.einsum("nii->ni", products)
    scale = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    products, right = products / scale[:, :, None] / scale[:, None, :], right / scale
    best, least = np.zeros_like(right), np.zeros(len(right))
    for size in range(1, columns + 1):
        for chosen in map(list, combinations(range(columns), size)):
            own = products[:, chosen][:, :, chosen] + RIDGE * np.eye(size)
            part = np.linalg.solve(own, right[:, chosen, None])[:, :, 0]
            loss = np.einsum("ni,nij,nj->n", part, own, part) - 2 * np.einsum(
                "ni,ni->n", part, right[:, chosen]
            )
            better = (part >= 0).all(axis=1) & (loss < least)
            least = np.where(better, loss, least)
            whole = np.zeros_like(right)
            whole[:, chosen] = part
            best = np.where(better[:, None], whole, best)
    return np.asarray(best / scale)


def _folds(hours: Sequence[ServerHour]) -> Matrix:
    """The fold of each hour; a day is in one of them, so that no hour is judged by its neighbors."""
    days = np.array([hour.at_ms // DAY_MS for hour in hours])
    numbers = {day: at for at, day in enumerate(sorted(set(days.tolist())))}
    folds = min(FOLDS, len(numbers))
    return np.array([numbers[day] % folds for day in days.tolist()], dtype=np.float64)


def _explained(design: Matrix, busy: Matrix, folds: Matrix) -> float:
    """The share of what the held time alone leaves open that is explained on days held out."""
    left = alone = 0.0
    for fold in np.unique(folds):
        seen, kept = folds != fold, folds == fold
        fitted = fit_non_negative(design[seen], busy[seen])
        share = fit_non_negative(design[seen][:, :1], busy[seen])
        left += float(((busy[kept] - design[kept] @ fitted) ** 2).sum())
        alone += float(((busy[kept] - design[kept][:, :1] @ share) ** 2).sum())
    return 1 - left / alone if alone else 0.0


def _draw_fits(design: Matrix, busy: Matrix, blocks: Sequence[int]) -> Matrix:
    """Coefficients of fits to blocks of hours drawn with replacement."""
    names = np.array(blocks)
    products, rights = [], []
    for block in np.unique(names):
        own = names == block
        products.append(design[own].T @ design[own])
        rights.append(design[own].T @ busy[own])
    sums, right = np.array(products), np.array(rights)
    random = np.random.default_rng(0)
    drawn = random.integers(0, len(sums), (DRAWS, len(sums)))
    return _solve(sums[drawn].sum(axis=1), right[drawn].sum(axis=1))


def _interval(own: float, unit: float, drawn: Matrix, units: Matrix) -> Interval:
    """A coefficient over another one; infinite where that is nothing."""
    ratios = np.sort(np.where(units > 0, drawn / np.where(units > 0, units, 1.0), np.inf))
    low, high = (float(ratios[round(share * (len(ratios) - 1))]) for share in (LOW, HIGH))
    return Interval(low, float(own / unit) if unit > 0 else float("inf"), high)
