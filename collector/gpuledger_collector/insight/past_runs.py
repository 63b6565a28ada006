"""Past runs in the ledger, to compare a plan with: what is similar, and what was measured of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuledger_collector.accounting.period import DAY_MS, Period

LOOK_BACK_DAYS = 90
MAX_PAST_RUNS = 5
SIMILAR_FACTOR = 4
"""A past run is similar when it had at most this many times more or fewer GPUs of the same model.
"""


@dataclass(frozen=True, slots=True)
class PastRun:
    """A workload that held GPUs.

    Activities are means over the minutes of its last day, of whole hours in which it was alone on
    an accelerator: a long run on many GPUs has too many minutes to read.

    None: not measured, or for `cost_micro` unpriced or in several currencies. `accelerators`:
    distinct ones it held.
    """

    kind: str
    external_id: str
    name: str | None
    gpu_model: str
    accelerators: int
    gpu_ns: int
    start_ms: int
    end_ms: int
    cost_micro: int | None
    currency: str | None
    sm_active_ratio: float | None = None
    tensor_active_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class SimilarRuns:
    """Past runs of a GPU model on between `fewest` and `most` GPUs, most GPU-hours first."""

    gpu_model: str
    fewest: int
    most: int
    runs: Sequence[PastRun]


def similar_sizes(gpus: int) -> tuple[int, int]:
    """How many GPUs a run had that is similar to one on so many: from, to, both included."""
    return max(1, -(-gpus // SIMILAR_FACTOR)), gpus * SIMILAR_FACTOR


def recent_days(now_ms: int) -> Period:
    """The days in which past runs are looked for, today included."""
    today = now_ms // DAY_MS * DAY_MS
    return Period(today - LOOK_BACK_DAYS * DAY_MS, today + DAY_MS)
