"""Capacity scaling: how many GPUs to provide, given current demand and its usual course."""

from gpuledger_collector.insight.scaling.advice import ScalingAdvice, ScalingLimits, advise
from gpuledger_collector.insight.scaling.simulation import Outcome, measure_outcome, simulate

__all__ = ["Outcome", "ScalingAdvice", "ScalingLimits", "advise", "measure_outcome", "simulate"]
