"""Anomalies of spending and usage: what stands out, judged with what was known then.

`judge` takes a series and gives every instant an expected value, a band, a score and a flag; `episodes` makes one alarm
of flags that belong together.
"""

from gpuledger_collector.insight.anomalies.detector import (
    TUNED,
    AnomalyEpisode,
    AnomalyLimit,
    Detection,
    Tuning,
    detect,
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
    "group_episodes",
    "limits",
    "next_limit",
    "price_rises",
]
