"""Idle accelerators: what every minute was, which stretches of them a person should see, and how sure that is."""

from gpuledger_collector.insight.idle.episodes import Episode, episodes
from gpuledger_collector.insight.idle.minutes import Minutes, carried
from gpuledger_collector.insight.idle.states import RULES, Rules, State, Verdict, classify
from gpuledger_collector.insight.idle.survival import OPEN_CURVE, Curve, curve_of, gaps_of

__all__ = [
    "OPEN_CURVE",
    "RULES",
    "Curve",
    "Episode",
    "Minutes",
    "Rules",
    "State",
    "Verdict",
    "carried",
    "classify",
    "curve_of",
    "episodes",
    "gaps_of",
]
