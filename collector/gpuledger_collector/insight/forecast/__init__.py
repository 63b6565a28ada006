"""How many GPUs will be wanted: quantiles of demand over a horizon, from a series' own past."""

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
