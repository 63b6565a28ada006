"""Which GPUs are free, by model: now, and in how many hours of the last week (of many GPUs: of the
last day) so many were free at once. Exact, from the hourly ledger and the latest readings; about
the entire fleet.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Sequence

from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, Calendar, Period
from gpuledger_collector.insight.fleet_map import FRESH_MS
from gpuledger_collector.insight.free_gpus import (
    DAYS,
    DAYS_OF_MANY,
    MANY,
    FreeHour,
    FreeModel,
    count_free,
)
from gpuledger_collector.storage.capacity import free_gpus
from gpuledger_collector.storage.capacity.free_gpus import PoolChoice, PresentModel, UsedModelHour
from gpuledger_collector.storage.ledger import zones
from gpuledger_collector.storage.locks import Connection


def read_free_gpus(
    connection: Connection,
    now_ms: int,
    wanted: int | None = None,
    pool: str = "",
    words: str = "",
) -> list[FreeModel]:
    """Read every model of which a whole GPU is there now, most GPUs first: what is free of it, and
    in how many hours the usual numbers, and `wanted`, were free at once, of the last DAYS, or of
    DAYS_OF_MANY where more than MANY GPUs are asked for.

    Of one pool (empty: of all), and of pools whose name has these words.
    """
    pools = PoolChoice(pool, words)
    end_ms = now_ms - now_ms % HOUR_MS
    models = free_gpus.models_now(connection, pools, now_ms, FRESH_MS)
    days = DAYS if sum(model.gpus for model in models) <= MANY else DAYS_OF_MANY
    period = Period(end_ms - days * DAY_MS, end_ms)
    calendar = zones.calendar(connection)
    used = {
        (row.model, row.hour_ms): row
        for row in free_gpus.used_hours_of_models(connection, pools, period)
    }
    present: dict[str, list[PresentModel]] = defaultdict(list)
    for row in free_gpus.present_models(connection, pools, period):
        present[row.model].append(row)
    return [
        count_free(
            model,
            _by_clock(_hours(model.model, period, used, present[model.model]), calendar),
            wanted,
        )
        for model in models
    ]


def _hours(
    model: str,
    period: Period,
    used: dict[tuple[str, int], UsedModelHour],
    present: Sequence[PresentModel],
) -> list[FreeHour]:
    """The hours in which GPUs of a model were there."""
    hours = []
    for at_ms in range(period.start_ms, period.end_ms, HOUR_MS):
        gpus = sum(row.gpus for row in present if row.first_ms <= at_ms < row.end_ms)
        if not gpus:
            continue
        row = used.get((model, at_ms))
        free, taken = (0, 0) if row is None else (row.free, row.taken)
        hours.append(FreeHour(at_ms, free, taken, gpus))
    return hours


def _by_clock(hours: Sequence[FreeHour], calendar: Calendar) -> dict[str, list[FreeHour]]:
    """The hours of each hour of the day, in the zone of the bills."""
    by_clock: dict[str, list[FreeHour]] = defaultdict(list)
    for hour in hours:
        zone = calendar.zone_at(hour.at_ms)
        by_clock[f"{dt.datetime.fromtimestamp(hour.at_ms / 1000, zone.tz):%H:%M}"].append(hour)
    return by_clock
