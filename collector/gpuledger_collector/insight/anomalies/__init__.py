"""Anomalies of spending and usage: upward deviations, judged with what was known then.

`detect` gives every instant of a series an expected value, a band, a score and a flag;
`group_episodes` gives the episode of each alarm.
"""

from gpuledger_collector.insight.anomalies.detector import (
    TUNED,
    AnomalyEpisode,
    AnomalyLimit,
    Detection,
    Tuning,
    detect,
    detect_spending,
    group_episodes,
    limits,
    next_limit,
    price_rises,
)

__all__ = [
    "TUNED",
    "AnomalyEpisode",
    "AnomalyLimit",
    "Detection",
    "Tuning",
    "detect",
    "detect_spending",
    "group_episodes",
    "limits",
    "next_limit",
    "price_rises",
]
