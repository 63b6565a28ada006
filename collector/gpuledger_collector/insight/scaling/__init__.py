"""Capacity in time: how many GPUs to hold, given what is wanted now and what usually follows."""

from gpuledger_collector.insight.scaling.advice import ScalingAdvice, ScalingLimits, advise
from gpuledger_collector.insight.scaling.simulation import Outcome, Run, measure_outcome, simulate

__all__ = ["Outcome", "Run", "ScalingAdvice", "ScalingLimits", "advise", "measure_outcome", "simulate"]
