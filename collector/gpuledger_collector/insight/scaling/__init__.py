"""Capacity in time: how many GPUs to hold, given what is wanted now and what usually follows."""

from gpuledger_collector.insight.scaling.advice import Advice, Limits, advise
from gpuledger_collector.insight.scaling.simulation import Outcome, Run, measure, simulate

__all__ = ["Advice", "Limits", "Outcome", "Run", "advise", "measure", "simulate"]
