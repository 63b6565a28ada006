"""Alarms from scores: which instants of a series are flagged, and which alarm each of them is in.

Problem: a series that leaps about is above its threshold again and again, and an alarm that stays
open for days hides what begins within it. Idea: outside an alarm the threshold rises with the
alarms of the weeks before (fatigue), and a leap or a dearer rate that begins within an older alarm
is an alarm of its own.

Law: the alarm of an instant depends on scores up to that instant alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuledger_collector.accounting.period import HOUR_MS
from gpuledger_collector.insight.series import Flags, Floats, Ints

MERGE_HOURS = 12
"""Flags no further apart than this are one episode."""
FATIGUE_HOURS = 168
"""Half-life of the weight that an alarm has in the fatigue."""


@dataclass(frozen=True, slots=True)
class AlarmRule:
    """When a score is an alarm.

    `persistence_hours`: hours in a row above the threshold, but for a score of `far` times the
    threshold. `fatigue`: by what share each recent alarm raises the threshold of the next one.
    """

    threshold: float
    persistence_hours: int
    far: float
    fatigue: float


@dataclass
class _Run:
    """How long a value has been above its limit, over known instants."""

    length: int = 0

    def reaches(self, value: float, limit: float, far: float, hold: int) -> bool:
        """Count another instant; whether the value has persisted, or is far above at once."""
        self.length = self.length + 1 if value > limit else 0
        return self.length >= hold or value > far * limit


def find_alarms(score: Floats, leap: Floats, price: Flags, rule: AlarmRule, step_ms: int) -> Ints:
    """Return the number of the alarm that each instant is in, counted from 1; 0: it is not flagged.

    `leap` is the part of the score that is above everything usual; NaN in `score`: unknown. `price`
    marks instants with a dearer rate: they are flagged whatever the score, and tire nobody.
    """
    hold = max(1, round(rule.persistence_hours * HOUR_MS / step_ms))
    apart = max(1, MERGE_HOURS * HOUR_MS // step_ms)
    forget = 0.5 ** (step_ms / (FATIGUE_HOURS * HOUR_MS))
    alarm = np.zeros(len(score), dtype=np.int64)
    above, leaping = _Run(), _Run()
    long_ago = -apart - 1
    began = last = last_leap = last_price = long_ago
    recent, number = 0.0, 0
    for at, (value, height, is_dearer) in enumerate(
        zip(score.tolist(), leap.tolist(), price.tolist(), strict=True)
    ):
        recent *= forget
        tired = rule.threshold * (1.0 + rule.fatigue * recent)
        is_open = at - last <= apart
        leaps = is_high = False
        # An unobserved hour neither ends nor lengthens a run of high scores.
        if value == value:
            is_high = above.reaches(value, rule.threshold if is_open else tired, rule.far, hold)
            leaps = leaping.reaches(height, tired, rule.far, hold)
        if not (is_high or leaps or is_dearer):
            continue
        is_new = (leaps and at - last_leap > apart) or (is_dearer and at - last_price > apart)
        if not is_open or (is_new and at - began > apart):
            number += 1
            began = at
            recent += is_high or leaps
        alarm[at] = number
        last = at
        last_leap = at if leaps else last_leap
        last_price = at if is_dearer else last_price
    return alarm
