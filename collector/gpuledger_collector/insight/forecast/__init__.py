"""Quantiles of the GPUs that will be wanted over a horizon, from a series' own past."""

from gpuledger_collector.insight.forecast.forecasts import (
    QUANTILES,
    Forecast,
    forecast,
    quantile_loss,
    quantile_losses,
)

__all__ = ["QUANTILES", "Forecast", "forecast", "quantile_loss", "quantile_losses"]
