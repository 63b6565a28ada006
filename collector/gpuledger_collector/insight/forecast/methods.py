"""Forecast methods by name: our own, and those that installed packages add as entry points.

A package adds a method under the entry point group `gpuledger.forecasters`. The entry point is a
function

    forecaster(values, step_ms, leads, quantiles) -> levels

`values` is a series' past, one number a step, oldest first, NaN for a gap; `step_ms` the step in
milliseconds; `leads` the steps after the last value that are asked for, ascending from 1;
`quantiles` ascends between 0 and 1. `levels` has a row for each lead and a column for each
quantile. The function is called once for each instant of the past at which the method is judged,
and once for the forecast: it keeps what is slow to load. Gaps at the end are part of `values`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.metadata import EntryPoint, entry_points

import numpy as np

from gpuledger_collector.insight.series import Floats, Ints

GROUP = "gpuledger.forecasters"
OWN = ("analog", "persistence")
"""Methods of our own; the first is the default."""
Forecaster = Callable[[Floats, int, Ints, Floats], Floats]


class ForecasterFailed(Exception):
    """A method of another package cannot be loaded, or gave no usable answer; the message says
    which and why.
    """


def names() -> list[str]:
    """Every method that can be asked for."""
    return [*OWN, *sorted(_installed_methods())]


@cache
def _installed_methods() -> dict[str, EntryPoint]:
    # Once: the files of every installed package are read for it.
    return {entry.name: entry for entry in entry_points(group=GROUP) if entry.name not in OWN}


@cache
def load(name: str) -> Forecaster:
    """Load a method that a package added, with its answers checked.

    Raises KeyError for an unknown name.
    """
    entry = _installed_methods()[name]
    try:
        forecaster = entry.load()
    except Exception as error:  # whatever another package raises while it is imported
        raise ForecasterFailed(
            f"method {name!r} ({entry.value}) cannot be loaded: {error}"
        ) from error

    def forecast_checked(values: Floats, step_ms: int, leads: Ints, quantiles: Floats) -> Floats:
        try:
            levels = np.asarray(forecaster(values, step_ms, leads, quantiles), dtype=float)
        except Exception as error:  # whatever another package raises
            raise ForecasterFailed(f"method {name!r} ({entry.value}) failed: {error}") from error
        if levels.shape != (len(leads), len(quantiles)) or not np.isfinite(levels).all():
            raise ForecasterFailed(
                f"method {name!r} ({entry.value}) gave {levels.shape} values, or unknown ones,"
                f" where {(len(leads), len(quantiles))} known ones were asked for"
            )
        return levels

    return forecast_checked
