"""How many GPUs will be wanted: quantiles of demand over a horizon, from a series' own past."""

from gpuledger_collector.insight.forecast.ensemble import QUANTILES, Forecast, Settings, forecast

__all__ = ["QUANTILES", "Forecast", "Settings", "forecast"]
