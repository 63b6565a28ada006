"""How many GPUs will be wanted: quantiles of demand over a horizon, from a series' own past."""

from gpuledger_collector.insight.forecast.ensemble import (
    MODELS,
    QUANTILES,
    Forecast,
    Settings,
    forecast,
    settings_for,
)
from gpuledger_collector.insight.forecast.workloads import GOES_ON, Workloads

__all__ = ["GOES_ON", "MODELS", "QUANTILES", "Forecast", "Settings", "Workloads", "forecast", "settings_for"]
