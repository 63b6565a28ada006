"""How often the bands of demand hold that state 80 %, by horizon, judged by forecasts from what was
known before.

Hours: of 24 hours and of 7 days ahead, from earlier origins of the open traces. Days and GPU-hours:
plans of capacity over 7, 30 and 90 days on daily means, as `gpuledger plan capacity` makes them.
No open trace of GPUs is longer than 40 days, so that 30 and 90 days are judged on request counts,
taxi rides and made-up pools of five kinds, 260 days each:

jobs      arrivals by weekday, 1 to 16 GPUs for days with a heavy tail
plateaus  a level that is now and then scaled to another one
growth    up to 0.6 % a day, fewer at the weekend
drift     a level that wanders by 2 or 5 % a day
projects  5 to 45 days of 4 to 39 GPUs on top of a base

The widening by days ahead is chosen without the family on which it is shown: the one of CHOICES
with which the bands of the other families (made-up pools: seeds 0 to 7) hold nearest to 80 % in the
mean of all columns. Shown are the traces and pools of seeds 1000 to 1007. `before` has no widening,
`by days ahead` only that one, `ships` adds the widths of past periods.
"""

from __future__ import annotations

import sys
from unittest.mock import patch

import numpy as np

from bench._traces import folder
from bench.forecast import cases, load, load_rhythms
from gpuledger_collector.accounting.period import DAY_MS
from gpuledger_collector.insight.forecast import forecast
from gpuledger_collector.insight.forecast.analogs import Similarity
from gpuledger_collector.insight.plans import daily_demand
from gpuledger_collector.insight.plans.daily_demand import HIGH, LOW, MAX_PERIODS, MIN_DAYS, Period
from gpuledger_collector.insight.series import Series

CHOICES = (0.0, 0.25, 0.5, 0.75, 1.0)
SHIPS = Similarity().widening
CHOSEN_SEEDS, FRESH_SEEDS = range(8), range(1000, 1008)
MADE_DAYS, WARM_DAYS, SHORT_DAYS = 260, 60, 60
HOURS, REACHES = (24, 168), (7, 30, 90)
COLUMNS = (
    "24 h",
    "7 d by the hour",
    *(f"{reach} d" for reach in REACHES),
    *(f"GPU-hours of {reach} d" for reach in REACHES),
)
STATED = 0.8


def jobs(random):
    used = np.zeros(WARM_DAYS + MADE_DAYS)
    for day in range(len(used)):
        for _ in range(random.poisson(4 if day % 7 < 5 else 2)):
            lasts = max(1, int(2 * random.pareto(1.5) + 0.5))
            used[day : day + lasts] += 2 ** random.integers(0, 5)
    return used[WARM_DAYS:]


def plateaus(random):
    level, days = float(random.integers(8, 100)), []
    for _ in range(MADE_DAYS):
        if random.random() < 0.06:
            level = max(1.0, level * np.exp(random.normal(0, 0.25)))
        days.append(round(level))
    return np.array(days, float)


def growth(random):
    steps = random.uniform(0, 0.006) + random.normal(0, 0.01, MADE_DAYS)
    return 40 * np.exp(np.cumsum(steps)) * weekdays(random) * noise(random, 0.05)


def drift(random):
    steps = random.normal(0, random.choice([0.02, 0.05]), MADE_DAYS)
    return 40 * np.exp(np.cumsum(steps)) * weekdays(random) * noise(random, 0.1)


def projects(random):
    level, day = np.full(MADE_DAYS, 20.0), 0
    while day < MADE_DAYS:
        day += int(random.exponential(15)) + 1
        level[day : day + int(random.uniform(5, 45))] += random.integers(4, 40)
    return level * weekdays(random) * noise(random, 0.05)


def weekdays(random):
    return np.where(np.arange(MADE_DAYS) % 7 < 5, 1.0, random.uniform(0.5, 1))


def noise(random, width):
    return np.exp(random.normal(0, width, MADE_DAYS))


MADE = (jobs, plateaus, growth, drift, projects)


def daily_series(hourly, seeds):
    """Daily means by `family/name`: the traces, and made-up pools of these seeds."""
    days = {}
    for name, whole in hourly.items():
        values = np.nan_to_num(whole.values)
        days[name] = values[: len(values) // 24 * 24].reshape(-1, 24).mean(axis=1)
    for number, make in enumerate(MADE):
        for seed in seeds:
            days[f"{make.__name__}/{seed}"] = make(np.random.default_rng([seed, number]))
    return days


def with_widening(factor):
    """Forecasts with another widening by days ahead."""
    return patch(
        "gpuledger_collector.insight.forecast.forecasts.Similarity",
        lambda: Similarity(widening=factor),
    )


def hours_inside(hourly):
    """By horizon and family, the share of the hours between the quantiles 0.1 and 0.9."""
    shares = [{} for _ in HOURS]
    for place, horizon in enumerate(HOURS):
        for case in cases(hourly, horizon)[::4]:
            (ahead,) = forecast([case.past], horizon, (0.1, 0.5, 0.9), judged=False)
            low, _, high = ahead.values.T
            inside = (case.actual >= low - 1e-9) & (case.actual <= high + 1e-9)
            shares[place].setdefault(case.family, []).append(inside.mean())
    return shares


def periods_of(values, reach):
    """Every period of a series with its forecast, by its first day, so that earlier ones are at
    hand: their distance divides a period.
    """
    apart = 1 if len(values) < SHORT_DAYS else {7: 7, 30: 15, 90: 15}[reach]
    whole = Series("pool", 0, DAY_MS, values)
    periods = {}
    for origin in range(MIN_DAYS, len(values) - reach + 1, apart):
        levels = daily_demand.day_levels(whole.known_before(origin), reach)
        periods[origin] = Period(levels, levels, values[origin : origin + reach])
    return periods


def days_inside(periods, reach, by_past):
    """Of each period, the share of its days in the band, and whether its sum was."""
    rows = []
    for origin, period in periods.items():
        first = max(reach, MIN_DAYS)
        earlier = (
            [periods[at] for at in range(origin - reach, first - 1, -reach)[:MAX_PERIODS]]
            if by_past
            else []
        )
        levels, in_sum = (
            daily_demand.widen(period.levels, daily_demand.widening(needed))
            for needed in (
                [each.needed() for each in earlier],
                [each.needed_in_sum() for each in earlier],
            )
        )
        total, actual = in_sum.sum(axis=0), period.actual
        inside = (actual >= levels[:, LOW] - 1e-9) & (actual <= levels[:, HIGH] + 1e-9)
        rows.append((inside.mean(), total[LOW] - 1e-6 <= actual.sum() <= total[HIGH] + 1e-6))
    return rows


def coverage(hourly, seeds, factor, by_past):
    """By column, the share inside of each family."""
    with with_widening(factor):
        table = hours_inside(hourly)
        known = [
            (name.split("/")[0], reach, periods_of(values, reach))
            for name, values in daily_series(hourly, seeds).items()
            for reach in REACHES
        ]
    for number in range(2):
        for reach in REACHES:
            shares = {}
            for family, length, periods in known:
                if length == reach and periods:
                    rows = days_inside(periods, reach, by_past)
                    shares.setdefault(family, []).append(np.mean([row[number] for row in rows]))
            table.append(shares)
    return [
        {family: float(np.mean(shares)) for family, shares in column.items()} for column in table
    ]


def off(table, left_out):
    """How far the means of the columns are from what is stated, without a family."""
    means = [
        np.mean([share for family, share in column.items() if family != left_out])
        for column in table
    ]
    return float(np.abs(np.array(means) - STATED).sum())


def report(label, table):
    families = dict.fromkeys(family for column in table for family in column)
    print(f"\n| {label} | {' | '.join(COLUMNS)} |\n|---|{'---|' * len(COLUMNS)}")
    for family in families:
        cells = [f"{column[family]:.2f}" if family in column else "" for column in table]
        print(f"| {family} | {' | '.join(cells)} |")
    means = [f"{np.mean(list(column.values())):.3f}" for column in table]
    print(f"| mean of families | {' | '.join(means)} |", flush=True)


def main() -> int:
    place = folder()
    hourly = {**load(place, 3600), **load_rhythms(place)}
    chosen_on = {factor: coverage(hourly, CHOSEN_SEEDS, factor, True) for factor in CHOICES}
    shown = {factor: coverage(hourly, FRESH_SEEDS, factor, True) for factor in CHOICES}
    families = dict.fromkeys(family for column in shown[SHIPS] for family in column)
    chosen = {
        left_out: min(CHOICES, key=lambda factor, without=left_out: off(chosen_on[factor], without))
        for left_out in (*families, None)
    }
    for left_out, factor in chosen.items():
        print(f"without {left_out or 'none'}: {factor:g}")
    print(f"ships: {SHIPS:g}")
    report("before", coverage(hourly, FRESH_SEEDS, 0.0, False))
    report("by days ahead", coverage(hourly, FRESH_SEEDS, SHIPS, False))
    left_out = [
        {family: shown[chosen[family]][number][family] for family in column}
        for number, column in enumerate(shown[SHIPS])
    ]
    report("left out", left_out)
    report("ships", shown[SHIPS])
    return 0


if __name__ == "__main__":
    sys.exit(main())
