"""How far demand may rise while ordered capacity is still on its way.

For each step t the quantity of interest is rise[t] = max(demand[t+1 .. t+reach]) - demand[t]. Two
estimators, both from the past alone and refitted once a day:

* `climate`: the quantile of the rises at this hour of the last fourteen days;
* `drift`: a linear model of the rise (what just happened, and the hour), with the quantile of its
  standardized errors; their scale is a linear model too, of the size of recent errors.

A linear model sees a daily ramp as well as boosted trees do, and is fitted in milliseconds, which
lets every pool run its own backtest each day.
"""

from __future__ import annotations

import numpy as np

from gpuledger_collector.insight.series import Floats

PAST_DAYS = 21
CLIMATE_DAYS = 14
RIDGE = 1e-2


def rises(demand: Floats, reach: int) -> Floats:
    """Return the max of the next `reach` values minus now, NaN where that future is incomplete; may
    be negative.
    """
    count = len(demand)
    ahead = np.full(count, np.nan)
    if count > reach:
        windows = np.lib.stride_tricks.sliding_window_view(demand[1:], reach)
        ahead[: count - reach] = windows.max(axis=1) - demand[: count - reach]
    return ahead


def climate(demand: Floats, reach: int, per_day: int, quantiles: Floats, start: int) -> Floats:
    """Return expected extra GPUs (n, Q), at least 0: rises within an hour of this time on the last
    14 days.
    """
    ahead = rises(demand, reach)
    out = np.zeros((len(demand), len(quantiles)))
    wide = max(1, per_day // 24)
    # Quarters of an hour: the same window an instant later gives nearly the same quantiles, and
    # costs as much.
    every = max(1, per_day // 96)
    for step in range(start, len(demand)):
        if step % every and step > start:
            out[step] = out[step - 1]
            continue
        centers = (step - days * per_day for days in range(1, CLIMATE_DAYS + 1))
        parts = [
            ahead[max(0, center - wide) : center + wide + 1]
            for center in centers
            # Only rises that are over by now: the last of the window ends `reach` steps after it.
            if center >= 0 and center + wide + reach < step
        ]
        if parts:
            out[step] = np.quantile(np.concatenate(parts), quantiles)
    return np.maximum(out, 0.0)


def features(demand: Floats, per_day: int) -> Floats:
    """Return the regressors of the drift model at the end of each step (n, F); row t uses nothing
    later than t.
    """
    count = len(demand)
    hour = 2 * np.pi * (np.arange(count) % per_day) / per_day
    columns = [np.ones(count), np.sin(hour), np.cos(hour), np.sin(2 * hour), np.cos(2 * hour)]
    # Differences only, never levels: a pool that grows keeps the model it has learnt.
    columns.extend(demand - _shift(demand, lag) for lag in (1, 2, 3, 6, 12, 24))
    running = np.concatenate([[0.0], np.cumsum(demand)])
    index = np.arange(count)
    for days in (1 / 24, 0.25, 1):
        window = max(2, int(days * per_day))
        low = np.maximum(index + 1 - window, 0)
        columns.append(demand - (running[index + 1] - running[low]) / (index + 1 - low))
    return np.stack(columns, axis=1)


def _shift(values: Floats, lag: int) -> Floats:
    """values[t - lag], and the oldest value before there is one."""
    lag = min(lag, len(values))
    return np.concatenate([np.full(lag, values[0]), values[: len(values) - lag]])


def drift(demand: Floats, reach: int, per_day: int, quantiles: Floats, start: int) -> Floats:
    """Return expected extra GPUs (n, Q), at least 0, refitted each day on the past three weeks."""
    count = len(demand)
    rows = features(demand, per_day)
    ahead = rises(demand, reach)
    out = np.zeros((count, len(quantiles)))
    for day in range(start, count, per_day):
        # The last rise known in full by the end of step day-1 is that of step day-1-reach.
        end = day - reach
        first = max(0, end - PAST_DAYS * per_day)
        if end - first < 2 * per_day:
            continue
        now = slice(day, min(count, day + per_day))
        out[now] = _fit_day(rows[first:end], ahead[first:end], rows[now], quantiles)
    return np.maximum(out, 0.0)


def _fit_day(rows: Floats, ahead: Floats, now: Floats, quantiles: Floats) -> Floats:
    """Rises at each row of `now` (m, Q), fitted on the pairs (rows, ahead) of the past."""
    # To one scale, so that a single ridge penalty fits every column; a constant column keeps its
    # own.
    width = rows.std(axis=0)
    width[width < 1e-9] = 1.0
    rows, now = rows / width, now / width
    expected = _ridge(rows, ahead)
    errors = ahead - rows @ expected
    spread = _ridge(np.abs(rows), np.abs(errors))
    # The model of the scale is linear and may go below zero; a fifth of the mean error is its
    # floor.
    least = 0.2 * float(np.abs(errors).mean()) + 1e-9
    scale = np.maximum(np.abs(rows) @ spread, least)
    standard = np.quantile(errors / scale, quantiles)
    return np.asarray(
        (now @ expected)[:, None]
        + np.maximum(np.abs(now) @ spread, least)[:, None] * standard[None, :]
    )


def _ridge(rows: Floats, wanted: Floats) -> Floats:
    gram = rows.T @ rows / len(rows)
    return np.asarray(
        np.linalg.solve(gram + RIDGE * np.eye(len(gram)), rows.T @ wanted / len(rows))
    )
