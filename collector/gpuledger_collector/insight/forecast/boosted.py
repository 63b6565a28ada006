"""Boosted trees over all series of a run: one model per quantile learns from every series at once.

Problem: a single series has few days, so trees on it alone learn its noise. Idea: describe an instant by what does not
depend on the size of a series (where its level stands in its own past, its changes over the last hours, the same hour
yesterday and a week ago, the age of its plateau, the calendar of the target, the lead) and predict the change to come
in units of the series' own movement. One model then serves all, and a new pool borrows from the old ones.

Limit: on plateaus the quantile loss sees the sign of an error rather than its size, so that a rare step of 40 GPUs
teaches little. A model of the mean followed by one of its error learns such steps, and was worse on every family of
series that it was measured on.

Law: it is fitted on what was known before the earliest instant at which it is asked, so its predictions there can be
judged against what came.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS
from gpuledger_collector.insight.forecast.analogs import History, Prediction
from gpuledger_collector.insight.series import Floats, Ints, is_weekend

HOLIDAYS = ((1, 1), (5, 1), (12, 24), (12, 25), (12, 26), (12, 31))
"""Month and day of the holidays of most of the world."""
LAGS_HOURS = (1, 2, 3, 6, 12, 24, 48, 168)
MIN_ROWS = 200
FEATURES = 2 * len(LAGS_HOURS) + 17


@dataclass(frozen=True)
class ForecastTask:
    """One series and the instants at which it is asked: `origins` are lengths of the past known then, ascending."""

    history: History
    origins: tuple[int, ...]
    leads: tuple[Ints, ...]

    @property
    def scale(self) -> float:
        """Mean absolute change over a day, from what was known at the first origin."""
        known = self.history.values[: self.origins[0]]
        reach = min(len(known) - 1, max(1, DAY_MS // self.history.step_ms))
        if reach < 1:
            return 1.0
        moved = np.abs(known[reach:] - known[:-reach]).mean()
        return float(max(moved, 0.02 * np.abs(known).mean(), 1e-6))


@dataclass(frozen=True)
class TreeSettings:
    """How the trees grow; the same for any series."""

    rows: int = 8_000
    rounds: int = 40
    leaves: int = 8
    rate: float = 0.15
    in_leaf: int = 40
    seed: int = 7


def predict_all(
    tasks: Sequence[ForecastTask], quantiles: Floats, settings: TreeSettings | None = None
) -> list[dict[int, Prediction]]:
    """Return each task's predictions by origin; empty where there is too little to learn from."""
    settings = settings or TreeSettings()
    samples = [_training_rows(task, settings, max(1, settings.rows // len(tasks))) for task in tasks]
    if sum(len(change) for _, change in samples) < MIN_ROWS:
        return [{} for _ in tasks]
    features, changes = (np.concatenate(part) for part in zip(*samples, strict=True))
    asked = [(number, place) for number, task in enumerate(tasks) for place in range(len(task.origins))]
    blocks = [_question_rows(tasks[number], place) for number, place in asked]
    informative = np.isfinite(features).any(axis=0)  # a lag longer than every past is no feature
    predicted = _fit_predict(
        features[:, informative], changes, np.concatenate(blocks)[:, informative], quantiles, settings
    )
    predictions: list[dict[int, Prediction]] = [{} for _ in tasks]
    begin = 0
    for (number, place), block in zip(asked, blocks, strict=True):
        task = tasks[number]
        origin = task.origins[place]
        levels = task.history.values[origin - 1] + predicted[begin : begin + len(block)] * task.scale
        predictions[number][origin] = levels, _mean(levels, quantiles)
        begin += len(block)
    return predictions


def _fit_predict(
    features: Floats, changes: Floats, questions: Floats, quantiles: Floats, settings: TreeSettings
) -> Floats:
    """Quantiles (rows, Q) of the change for each question, in units of its series."""
    from sklearn.ensemble import HistGradientBoostingRegressor
    from threadpoolctl import threadpool_limits

    def trees(quantile: float) -> Any:
        return HistGradientBoostingRegressor(
            loss="quantile",
            quantile=quantile,
            max_iter=settings.rounds,
            max_leaf_nodes=settings.leaves,
            learning_rate=settings.rate,
            min_samples_leaf=settings.in_leaf,
            random_state=settings.seed,
            early_stopping=False,
            max_bins=63,
        )

    levels = np.empty((len(questions), len(quantiles)))
    with threadpool_limits(1):  # on tables this small, threads wait for each other longer than they work
        for column, quantile in enumerate(quantiles):
            levels[:, column] = trees(float(quantile)).fit(features, changes).predict(questions)
    # The models of the quantiles are fitted apart and may cross.
    return np.sort(levels, axis=1)


def _mean(levels: Floats, quantiles: Floats) -> Floats:
    """The mean of a distribution that is linear between its quantiles and flat beyond them."""
    edges = np.concatenate([[0.0], quantiles, [1.0]])
    padded = np.concatenate([levels[:, :1], levels, levels[:, -1:]], axis=1)
    return np.asarray(((padded[:, 1:] + padded[:, :-1]) / 2 * np.diff(edges)).sum(axis=1))


def _training_rows(task: ForecastTask, settings: TreeSettings, max_rows: int) -> tuple[Floats, Floats]:
    """Features and changes to come, sampled from what was known at the earliest origin."""
    end = task.origins[0]
    furthest = int(max(leads[-1] for leads in task.leads))
    if end < 72:
        return np.empty((0, FEATURES)), np.empty(0)
    generator = np.random.default_rng(settings.seed)
    # Twice as many as wanted, since some fall into gaps or beyond the end.
    origin = generator.integers(24, end - 1, 2 * max_rows)
    # Leads are drawn evenly on a logarithmic scale: the next hours are as frequent as the following days.
    lead = np.exp(generator.uniform(0, np.log(furthest + 1), 2 * max_rows)).astype(np.int64)
    known, values = task.history.known, task.history.values
    inside = (origin + lead < end) & known[origin] & known[np.minimum(origin + lead, end - 1)]
    use = np.flatnonzero(inside)[:max_rows]
    origin, lead = origin[use], lead[use]
    features = _features(task.history, origin, lead, task.scale)
    return features, (values[origin + lead] - values[origin]) / task.scale


def _question_rows(task: ForecastTask, place: int) -> Floats:
    leads = task.leads[place]
    return _features(task.history, np.full(len(leads), task.origins[place] - 1), leads, task.scale)


def _features(history: History, origin: Ints, lead: Ints, scale: float) -> Floats:
    """One row per (origin, lead), from values up to `origin` alone; what lies before the series is NaN."""
    values = history.values
    now = values[origin]
    per_hour = HOUR_MS / history.step_ms
    columns = [lead / per_hour, np.log1p(lead)]
    lags = [max(1, round(hours * per_hour)) for hours in LAGS_HOURS]
    for lag in lags:
        before = origin - lag
        columns.append(np.where(before >= 0, values[np.maximum(before, 0)] - now, np.nan) / scale)
    for lag in lags:
        # What followed an instant a lag ago over the same lead, where it is over by now.
        before, after = origin - lag, origin - lag + lead
        change = values[np.clip(after, 0, len(values) - 1)] - values[np.maximum(before, 0)]
        columns.append(np.where((before >= 0) & (after <= origin), change, np.nan) / scale)
    total = np.concatenate([[0.0], np.cumsum(values)])
    for hours in (6, 24, 168):
        width = np.minimum(origin + 1, max(1, round(hours * per_hour)))
        columns.append(((total[origin + 1] - total[origin + 1 - width]) / width - now) / scale)
    # Extremes up to each origin, not of the series: those would tell the model the future.
    peak, floor = np.maximum.accumulate(values)[origin], np.minimum.accumulate(values)[origin]
    span = np.where(peak > floor, peak - floor, 1.0)
    columns += [(now - floor) / span, (peak - now) / scale, (now - floor) / scale, history.age[origin]]
    columns += _calendar(history.at_ms[origin] + lead * history.step_ms, history.at_ms[origin])
    return np.stack(columns, axis=1)


def _calendar(target_ms: Ints, now_ms: Ints) -> list[Floats]:
    """Hour, weekday, day of the month and holiday of the target, and the hour of now; UTC."""
    hour, hour_now = (at % DAY_MS / HOUR_MS for at in (target_ms, now_ms))
    day = target_ms // DAY_MS
    holiday, day_of_month = np.array([_day(int(number)) for number in day], dtype=float).reshape(-1, 2).T
    weekday = ((day + 3) % 7).astype(float)
    return [
        np.sin(hour * np.pi / 12),
        np.cos(hour * np.pi / 12),
        hour_now,
        weekday,
        (weekday >= 5) - is_weekend(now_ms).astype(float),
        holiday,
        day_of_month,
        np.minimum(day_of_month, 4),
    ]


@lru_cache(maxsize=4096)
def _day(number: int) -> tuple[float, float]:
    """Whether a day (counted from 1970) is a holiday, and its number in the month."""
    date = dt.date(1970, 1, 1) + dt.timedelta(days=number)
    return float((date.month, date.day) in HOLIDAYS), float(date.day)
