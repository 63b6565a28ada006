"""What usually follows: how far demand may rise while ordered capacity is still on its way.

For each step t the quantity of interest is rise[t] = max(demand[t+1 .. t+reach]) - demand[t]. Two estimators, both
from the past alone and refitted once a day:

* `climate`: the quantile of the rises that followed at this hour of the last fourteen days;
* `drift`: a linear model of the rise (what just happened, what followed at this hour one, two and seven days ago, the
hour itself), with the quantile of its standardised errors; their scale is a linear model too, of the size of recent
errors.

A linear model sees a daily ramp as well as boosted trees do, and is fitted in milliseconds, which lets every pool run
its own back-test each day.
"""

from __future__ import annotations

import numpy as np

from gpuledger_collector.insight.series import Floats

PAST_DAYS = 21
CLIMATE_DAYS = 14
RIDGE = 1e-2


def rises(demand: Floats, reach: int) -> Floats:
    """max of the next `reach` values minus now, NaN where the future is not all there; may be negative."""
    count = len(demand)
    ahead = np.full(count, np.nan)
    if count > reach:
        windows = np.lib.stride_tricks.sliding_window_view(demand[1:], reach)
        ahead[: count - reach] = windows.max(axis=1) - demand[: count - reach]
    return ahead


def climate(demand: Floats, reach: int, per_day: int, quantiles: Floats, start: int) -> Floats:
    """Expected extra GPUs (n, Q), at least 0: quantiles of the rises within an hour of this time on the last 14
    days.
    """
    ahead = rises(demand, reach)
    out = np.zeros((len(demand), len(quantiles)))
    wide = max(1, per_day // 24)
    every = max(1, per_day // 96)
    for t in range(start, len(demand)):
        if t % every and t > start:
            out[t] = out[t - 1]
            continue
        parts = [
            ahead[max(0, t - k * per_day - wide) : t - k * per_day + wide + 1]
            for k in range(1, CLIMATE_DAYS + 1)
            if t - k * per_day + wide + reach < t and t - k * per_day >= 0
        ]
        if parts:
            out[t] = np.quantile(np.concatenate(parts), quantiles)
    return np.maximum(out, 0.0)


def features(demand: Floats, reach: int, per_day: int) -> Floats:
    """What the drift model sees at the end of each step, shape (n, F); nothing in row t is later than t."""
    count = len(demand)
    ahead = rises(demand, reach)
    wide = max(1, per_day // 96)
    calm, calm_rise = _smooth(demand, wide), _smooth(np.nan_to_num(ahead), wide)
    hour = 2 * np.pi * (np.arange(count) % per_day) / per_day
    columns = [np.ones(count), np.sin(hour), np.cos(hour), np.sin(2 * hour), np.cos(2 * hour)]
    columns.extend(demand - _shift(demand, lag) for lag in (1, 2, 3, 6, 12, 24))
    running = np.concatenate([[0.0], np.cumsum(demand)])
    index = np.arange(count)
    for days in (1 / 24, 0.25, 1):
        window = max(2, int(days * per_day))
        low = np.maximum(index + 1 - window, 0)
        columns.append(demand - (running[index + 1] - running[low]) / (index + 1 - low))
    for days in (1, 2, 7):
        lag = days * per_day
        # A day ago both what followed and its neighbours within a quarter of an hour are known in full.
        columns.append(_shift(calm_rise, lag))
        columns.append(demand - _shift(calm, lag))
    return np.stack(columns, axis=1)


def _smooth(values: Floats, wide: int) -> Floats:
    """The mean of each value and its `wide` neighbours on both sides."""
    padded = np.pad(values, wide, mode="edge")
    return np.asarray(np.convolve(padded, np.full(2 * wide + 1, 1 / (2 * wide + 1)), mode="valid"))


def _shift(values: Floats, lag: int) -> Floats:
    """values[t - lag], and the oldest value before there is one."""
    lag = min(lag, len(values))
    return np.concatenate([np.full(lag, values[0]), values[: len(values) - lag]])


def drift(demand: Floats, reach: int, per_day: int, quantiles: Floats, start: int) -> Floats:
    """Expected extra GPUs (n, Q), at least 0, refitted each day on the past three weeks."""
    count = len(demand)
    sight = features(demand, reach, per_day)
    ahead = rises(demand, reach)
    out = np.zeros((count, len(quantiles)))
    for day in range(start, count, per_day):
        end = day - reach  # the last rise known in full by the end of step day-1 is that of step day-1-reach
        first = max(0, end - PAST_DAYS * per_day)
        if end - first < 2 * per_day:
            continue
        now = slice(day, min(count, day + per_day))
        out[now] = _fit_day(sight[first:end], ahead[first:end], sight[now], quantiles)
    return np.maximum(out, 0.0)


def _fit_day(sight: Floats, ahead: Floats, now: Floats, quantiles: Floats) -> Floats:
    """Rises at each row of `now` (m, Q) from the pairs (sight, ahead) of the past."""
    width = sight.std(axis=0)
    width[width < 1e-9] = 1.0
    sight, now = sight / width, now / width
    expected = _ridge(sight, ahead)
    errors = ahead - sight @ expected
    spread = _ridge(np.abs(sight), np.abs(errors))
    least = 0.2 * float(np.abs(errors).mean()) + 1e-9
    scale = np.maximum(np.abs(sight) @ spread, least)
    standard = np.quantile(errors / scale, quantiles)
    return np.asarray((now @ expected)[:, None] + np.maximum(np.abs(now) @ spread, least)[:, None] * standard[None, :])


def _ridge(sight: Floats, wanted: Floats) -> Floats:
    gram = sight.T @ sight / len(sight)
    return np.asarray(np.linalg.solve(gram + RIDGE * np.eye(len(gram)), sight.T @ wanted / len(sight)))
