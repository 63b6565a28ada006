"""Quantiles of the GPUs that will be wanted over a horizon, from a series' own past and its workloads."""

from gpuledger_collector.insight.forecast.ensemble import (
    MODELS,
    QUANTILES,
    Forecast,
    ForecastSettings,
    forecast,
    settings_for,
)
from gpuledger_collector.insight.forecast.workloads import STILL_RUNNING, Workloads

__all__ = [
    "MODELS",
    "QUANTILES",
    "STILL_RUNNING",
    "Forecast",
    "ForecastSettings",
    "Workloads",
    "forecast",
    "settings_for",
]
