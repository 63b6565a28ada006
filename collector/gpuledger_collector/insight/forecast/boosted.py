"""Boosted trees over all series of a run: one model per quantile learns from every series at once.

Problem: a single series has few days, so trees on it alone learn its noise. Idea: describe an instant by what does not
depend on the size of a series (where its level stands among its own past, its changes over the last hours, the same
hour yesterday and a week ago, the age of its plateau, the calendar of the target, how far ahead) and predict the change
to come in units of the series' own movement. One model then serves all, and a new pool borrows from the old ones.

Limit: on plateaus the quantile loss sees the sign of an error rather than its size, so that a rare step of 40 GPUs
teaches little. A model of the mean with one of its error behind it learns such steps, and was worse on every family of
series that it was measured on.

Law: it is fitted on what was known before the earliest instant at which it is asked, so its answers there can be judged
against what came.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from gpuledger_collector.insight.forecast.analogs import DAY_MS, History
from gpuledger_collector.insight.series import Floats, Ints

HOUR_MS = 3_600_000
HOLIDAYS = ((1, 1), (5, 1), (12, 24), (12, 25), (12, 26), (12, 31))
"""Month and day of the days that most of the world has off; a site's own are given with the settings."""
LAGS_HOURS = (1, 2, 3, 6, 12, 24, 48, 168)
FEWEST_ROWS = 200
WIDTH = 2 * len(LAGS_HOURS) + 17


@dataclass(frozen=True)
class ForecastTask:
    """One series and the instants at which it is asked: `origins` are lengths of the past known then, ascending."""

    past: History
    origins: tuple[int, ...]
    leads: tuple[Ints, ...]


@dataclass(frozen=True)
class TreeSettings:
    """How the trees grow; the same for any series."""

    rows: int = 8_000
    rounds: int = 40
    leaves: int = 8
    rate: float = 0.15
    in_leaf: int = 40
    seed: int = 7


@dataclass(frozen=True)
class _Rows:
    """What is learnt from: features (N, F) and changes to come (N,) in units of the series."""

    features: Floats
    change: Floats


Answer = tuple[Floats, Floats]


def predict_all(
    plans: Sequence[ForecastTask],
    quantiles: Floats,
    growth: TreeSettings | None = None,
    holidays: frozenset[dt.date] = frozenset(),
) -> list[dict[int, Answer]]:
    """Levels (H, Q) and means (H,) of each plan's series by origin; empty where there is too little to learn from."""
    growth = growth or TreeSettings()
    rows = [_taught(plan, growth, max(1, growth.rows // max(1, len(plans))), holidays) for plan in plans]
    taught = _Rows(*(np.concatenate(part) for part in zip(*rows, strict=True))) if rows else None
    if taught is None or len(taught.change) < FEWEST_ROWS:
        return [{} for _ in plans]
    asked = [(number, place) for number, plan in enumerate(plans) for place in range(len(plan.origins))]
    blocks = [_asked(plans[number], place, holidays) for number, place in asked]
    question = np.concatenate(blocks)
    told = np.isfinite(taught.features).any(axis=0)  # a lag longer than every past tells nothing
    taught = _Rows(taught.features[:, told], taught.change)
    made = _learn(taught, question[:, told], quantiles, growth)
    out: list[dict[int, Answer]] = [{} for _ in plans]
    begin = 0
    for (number, place), block in zip(asked, blocks, strict=True):
        plan = plans[number]
        origin = plan.origins[place]
        levels = plan.past.values[origin - 1] + made[begin : begin + len(block)] * _scale(plan)
        out[number][origin] = levels, _mean(levels, quantiles)
        begin += len(block)
    return out


def _learn(taught: _Rows, question: Floats, quantiles: Floats, growth: TreeSettings) -> Floats:
    """Quantiles (rows, Q) of the change for each question, in units of its series."""
    from sklearn.ensemble import HistGradientBoostingRegressor
    from threadpoolctl import threadpool_limits

    def trees(quantile: float) -> Any:
        return HistGradientBoostingRegressor(
            loss="quantile",
            quantile=quantile,
            max_iter=growth.rounds,
            max_leaf_nodes=growth.leaves,
            learning_rate=growth.rate,
            min_samples_leaf=growth.in_leaf,
            random_state=growth.seed,
            early_stopping=False,
            max_bins=63,
        )

    out = np.empty((len(question), len(quantiles)))
    with threadpool_limits(1):  # tables this small lose more to threads that wait for each other than they win
        for column, quantile in enumerate(quantiles):
            out[:, column] = trees(float(quantile)).fit(taught.features, taught.change).predict(question)
    return np.sort(out, axis=1)


def _mean(levels: Floats, quantiles: Floats) -> Floats:
    """The mean of a distribution that is linear between its quantiles and flat beyond them."""
    edges = np.concatenate([[0.0], quantiles, [1.0]])
    padded = np.concatenate([levels[:, :1], levels, levels[:, -1:]], axis=1)
    return np.asarray(((padded[:, 1:] + padded[:, :-1]) / 2 * np.diff(edges)).sum(axis=1))


def _scale(plan: ForecastTask) -> float:
    """What a series moves by: the mean absolute change over a day and over an hour, of what was known first."""
    known = plan.past.values[: plan.origins[0]]
    reach = min(len(known) - 1, max(1, DAY_MS // plan.past.step_ms))
    if reach < 1:
        return 1.0
    moved = np.abs(known[reach:] - known[:-reach]).mean()
    return float(max(moved, 0.02 * np.abs(known).mean(), 1e-6))


def _taught(plan: ForecastTask, growth: TreeSettings, most: int, holidays: frozenset[dt.date]) -> tuple[Floats, Floats]:
    """Rows of features and changes to come, of what was known at the earliest origin."""
    end = plan.origins[0]
    furthest = int(max(leads[-1] for leads in plan.leads))
    if end < 72:
        return np.empty((0, WIDTH)), np.empty(0)
    generator = np.random.default_rng(growth.seed)
    origin = generator.integers(24, end - 1, 2 * most)
    lead = np.exp(generator.uniform(0, np.log(furthest + 1), 2 * most)).astype(np.int64)
    known, values = plan.past.known, plan.past.values
    inside = (origin + lead < end) & known[origin] & known[np.minimum(origin + lead, end - 1)]
    use = np.flatnonzero(inside)[:most]
    origin, lead = origin[use], lead[use]
    scale = _scale(plan)
    features = _features(plan.past, origin, lead, scale, holidays)
    return features, (values[origin + lead] - values[origin]) / scale


def _asked(plan: ForecastTask, place: int, holidays: frozenset[dt.date]) -> Floats:
    leads = plan.leads[place]
    return _features(plan.past, np.full(len(leads), plan.origins[place] - 1), leads, _scale(plan), holidays)


def _features(past: History, origin: Ints, lead: Ints, scale: float, holidays: frozenset[dt.date]) -> Floats:
    """One row per (origin, lead), from values up to `origin` alone; what lies before the series is NaN."""
    values = past.values
    now = values[origin]
    per_hour = HOUR_MS / past.step_ms
    columns = [lead / per_hour, np.log1p(lead)]
    for hours in LAGS_HOURS:
        steps = max(1, round(hours * per_hour))
        before = origin - steps
        columns.append(np.where(before >= 0, values[np.maximum(before, 0)] - now, np.nan) / scale)
    for hours in LAGS_HOURS:
        # What followed an instant one, two, ... spans ago over the same lead, where it had happened by now.
        steps = max(1, round(hours * per_hour))
        before, after = origin - steps, origin - steps + lead
        fine = (before >= 0) & (after <= origin)
        change = values[np.clip(after, 0, len(values) - 1)] - values[np.maximum(before, 0)]
        columns.append(np.where(fine, change, np.nan) / scale)
    total = np.concatenate([[0.0], np.cumsum(values)])
    for hours in (6, 24, 168):
        width = np.minimum(origin + 1, max(1, round(hours * per_hour)))
        columns.append(((total[origin + 1] - total[origin + 1 - width]) / width - now) / scale)
    peak, floor = np.maximum.accumulate(values)[origin], np.minimum.accumulate(values)[origin]
    span = np.where(peak > floor, peak - floor, 1.0)
    columns += [(now - floor) / span, (peak - now) / scale, (now - floor) / scale, past.age[origin]]
    columns += _calendar(past.at_ms[origin] + lead * past.step_ms, past.at_ms[origin], holidays)
    return np.stack(columns, axis=1)


def _calendar(target_ms: Ints, now_ms: Ints, holidays: frozenset[dt.date]) -> list[Floats]:
    """Hour, weekday, place in the month and holiday of the target, and the hour of now; UTC."""
    hour, hour_now = (at % DAY_MS / HOUR_MS for at in (target_ms, now_ms))
    day = target_ms // DAY_MS
    off, in_month = np.empty(len(day)), np.empty(len(day))
    for one in np.unique(day):
        rows = day == one
        off[rows], in_month[rows] = _day(int(one), holidays)
    weekday = ((day + 3) % 7).astype(float)
    weekend_now = ((now_ms // DAY_MS + 3) % 7 >= 5).astype(float)
    return [
        np.sin(hour * np.pi / 12),
        np.cos(hour * np.pi / 12),
        hour_now,
        weekday,
        (weekday >= 5) - weekend_now,
        off,
        in_month,
        np.minimum(in_month, 4),
    ]


@lru_cache(maxsize=4096)
def _day(number: int, holidays: frozenset[dt.date]) -> tuple[float, float]:
    """Whether a day (counted from 1970) is a holiday, and its number in the month."""
    date = dt.date(1970, 1, 1) + dt.timedelta(days=number)
    return float((date.month, date.day) in HOLIDAYS or date in holidays), float(date.day)
