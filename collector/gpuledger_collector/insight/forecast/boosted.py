"""Gradient-boosted trees on one series, with scikit-learn: an example of a method that a package
adds.

The change over a lead is predicted from what an instant looks like: its level, its changes over the
last hours and days, the hour and the weekday of the target, and the lead. One model per quantile
(scikit-learn, HistGradientBoostingRegressor with loss="quantile"). Needs the extra `boosted`;
docs/forecasting.md says why it is not the default.
"""

from __future__ import annotations

import numpy as np

from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS
from gpuledger_collector.insight.series import Floats, Ints

LAGS_HOURS = (1, 2, 3, 6, 12, 24, 48, 168)
ROWS, ROUNDS, LEAVES, IN_LEAF, SEED = 4_000, 40, 8, 40, 7


def forecast(values: Floats, step_ms: int, leads: Ints, quantiles: Floats) -> Floats:
    """Quantiles (leads, quantiles) of what comes after the last value; the same answer each time."""
    from sklearn.ensemble import HistGradientBoostingRegressor
    from threadpoolctl import threadpool_limits

    end = len(values)
    generator = np.random.default_rng(SEED)
    origins = generator.integers(0, max(end - 1, 1), ROWS)
    steps = generator.choice(leads, ROWS)
    origins, steps = origins[origins + steps < end], steps[origins + steps < end]
    changes = values[origins + steps] - values[origins]
    is_known = np.isfinite(changes)
    now = _last_known(values)
    if is_known.sum() < 2 * IN_LEAF:
        raise ValueError(f"{int(is_known.sum())} known changes are too few to learn from")
    past = _features(values, step_ms, origins[is_known], steps[is_known])
    asked = _features(values, step_ms, np.full(len(leads), now), leads + (end - 1 - now))
    # In a history shorter than a lag that lag is unknown throughout, which scikit-learn refuses
    # from 1.9 on.
    is_feature = np.isfinite(past).any(axis=0)
    past, asked = past[:, is_feature], asked[:, is_feature]
    levels = np.empty((len(leads), len(quantiles)))
    # So few rows are one thread's work: on a busy machine threads that wait for each other take six
    # times its CPU.
    with threadpool_limits(1, "openmp"):
        for column, quantile in enumerate(quantiles):
            model = HistGradientBoostingRegressor(
                loss="quantile",
                quantile=float(quantile),
                max_iter=ROUNDS,
                max_leaf_nodes=LEAVES,
                learning_rate=0.15,
                min_samples_leaf=IN_LEAF,
                early_stopping=False,
                random_state=SEED,
            )
            levels[:, column] = values[now] + model.fit(past, changes[is_known]).predict(asked)
    return np.sort(levels, axis=1)


def _last_known(values: Floats) -> int:
    return int(np.flatnonzero(np.isfinite(values))[-1])


def _features(values: Floats, step_ms: int, origins: Ints, steps: Ints) -> Floats:
    """A row for each origin and number of steps after it, from values up to the origin alone; NaN
    where not known.
    """
    target_ms = (origins + steps) * step_ms
    columns = [
        values[origins],
        steps.astype(float),
        np.sin(target_ms % DAY_MS * 2 * np.pi / DAY_MS),
        np.cos(target_ms % DAY_MS * 2 * np.pi / DAY_MS),
        (target_ms // DAY_MS % 7).astype(float),
    ]
    for hours in LAGS_HOURS:
        before = origins - max(1, round(hours * HOUR_MS / step_ms))
        columns.append(
            np.where(before >= 0, values[np.maximum(before, 0)] - values[origins], np.nan)
        )
    return np.stack(columns, axis=1)
