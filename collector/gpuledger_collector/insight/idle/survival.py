"""How long idleness lasts once it has lasted: the measured confidence of an idle finding.

P(idle for another 30 minutes | idle for w) from the gaps seen so far; gaps that have not ended are
right-censored (Kaplan and Meier 1958). While there are few, the estimate is shrunk towards the
curve of an open trace.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuledger_collector.insight.series import Flags, Floats

AHEAD = 30
"""Minutes of further idleness that are predicted."""
WEIGHT = 20.0
"""Weight of the open curve, in gaps."""


@dataclass(frozen=True)
class IdleSurvivalCurve:
    """P(idle AHEAD more minutes) at some lengths of idleness so far (minutes, ascending)."""

    minutes: tuple[int, ...]
    probability: tuple[float, ...]

    def probability_at(self, length: float) -> float:
        """The probability at any length, interpolated linearly."""
        return float(np.interp(length, self.minutes, self.probability))


OPEN_CURVE = IdleSurvivalCurve(
    (5, 10, 15, 30, 60, 90, 120, 180), (0.16, 0.22, 0.26, 0.36, 0.64, 0.84, 0.83, 0.91)
)
"""Measured on one day of 68 serving pods (alibaba_genai_2026), 2,245 gaps."""


def idle_gaps(low: Flags, known: Flags) -> tuple[Floats, Flags]:
    """Return the lengths in minutes of the idle runs of each row, and whether each was seen to end."""
    lengths: list[Floats] = [np.zeros(0)]
    ended: list[Flags] = [np.zeros(0, dtype=bool)]
    for idle, seen in zip(low & known, known, strict=True):
        edge = np.diff(np.concatenate([[False], idle, [False]]).astype(np.int8))
        start, stop = np.flatnonzero(edge == 1), np.flatnonzero(edge == -1)
        lengths.append((stop - start).astype(np.float64))
        # A gap has ended if the minute after it is known; else it is censored there.
        ended.append(np.concatenate([seen, [False]])[stop])
    return np.concatenate(lengths), np.concatenate(ended)


def estimate_curve(lengths: Floats, ended: Flags) -> IdleSurvivalCurve:
    """Estimate the curve of these gaps, each point weighted against the open curve by how many gaps
    reached it.
    """
    probability = []
    for point in OPEN_CURVE.minutes:
        reached = float((lengths >= point).sum())
        own = _conditional(lengths, ended, point, point + AHEAD)
        # As if WEIGHT gaps of the open trace had been seen here as well: their influence fades as
        # own gaps come in.
        probability.append(
            (reached * own + WEIGHT * OPEN_CURVE.probability_at(point)) / (reached + WEIGHT)
        )
    return IdleSurvivalCurve(OPEN_CURVE.minutes, tuple(probability))


def _conditional(lengths: Floats, ended: Flags, start: int, end: int) -> float:
    """Kaplan-Meier P(length >= end | length >= start); 1 where nothing ended in between."""
    survival = 1.0
    inside = ended & (lengths >= start) & (lengths < end)
    for moment, count in zip(*np.unique(lengths[inside], return_counts=True), strict=True):
        survival *= 1 - count / (lengths >= moment).sum()
    return survival
