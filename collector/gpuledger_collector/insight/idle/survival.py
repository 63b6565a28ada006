"""How long an idle episode goes on: the measured confidence of an idle finding.

The probability that an episode lasts another 30 minutes, by how long it has lasted, is counted: how
many episodes ended, over the time in which they were watched (from when each was flagged, as none
can end before). Episodes that have not ended count by their time. While little was watched, the
estimate is drawn towards the one of an open trace.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuledger_collector.insight.series import Flags, Floats

AHEAD = 30
"""Minutes of further idleness that are predicted."""
WEIGHT = 600.0
"""Weight of the open trace, in minutes of an episode that was watched."""


@dataclass(frozen=True)
class IdleSurvival:
    """P(idle AHEAD more minutes) of episodes that have lasted so many minutes or longer
    (ascending).
    """

    minutes: tuple[int, ...]
    probability: tuple[float, ...]

    def probability_at(self, length: float) -> float:
        """The probability after any length."""
        at = int(np.searchsorted(self.minutes, length, side="right")) - 1
        return self.probability[max(at, 0)]


OPEN_SURVIVAL = IdleSurvival((0, 90, 120), (0.64, 0.78, 0.99))
"""Counted on one day of 68 serving pods (alibaba_genai_2026), 60 episodes; before 90 minutes, where
none was watched for an hour, how often gaps without any work continued.
"""


def estimate_survival(flagged: Floats, length: Floats, ended: Flags) -> IdleSurvival:
    """Count these episodes: minutes from their begin to the flag and to their end, and whether that
    was seen.
    """
    bounds = [*OPEN_SURVIVAL.minutes, np.inf]
    probability = []
    for start, stop, prior in zip(bounds[:-1], bounds[1:], OPEN_SURVIVAL.probability, strict=True):
        watched = np.minimum(length, stop) - np.maximum(flagged, start)
        minutes = float(np.maximum(watched, 0.0).sum())
        ends = int((ended & (length >= start) & (length < stop)).sum())
        per_minute = (ends - WEIGHT * np.log(prior) / AHEAD) / (minutes + WEIGHT)
        probability.append(float(np.exp(-AHEAD * per_minute)))
    return IdleSurvival(OPEN_SURVIVAL.minutes, tuple(probability))
