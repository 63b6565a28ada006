"""Which GPUs are free, by model: now, and in how many hours of the last week so many were free at
once; and in how many of earlier mornings like tomorrow's. Exact, from the hourly ledger and the
latest readings; about the entire fleet.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Sequence

from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, Calendar, Period
from gpuledger_collector.insight.fleet_map import FRESH_MS
from gpuledger_collector.insight.free_gpus import (
    DAYS,
    MORNING_DAYS,
    FreeHour,
    FreeModel,
    FullestHour,
    ModelNow,
    count_free,
    day_kind,
    is_morning,
)
from gpuledger_collector.storage.capacity import free_gpus
from gpuledger_collector.storage.capacity.free_gpus import PoolChoice, PresentModel, UsedModelHour
from gpuledger_collector.storage.ledger import pool_hours, zones
from gpuledger_collector.storage.ledger.pool_hours import join_hours
from gpuledger_collector.storage.locks import Connection


def read_free_gpus(
    connection: Connection,
    now_ms: int,
    wanted: int | None = None,
    pool: str = "",
    words: str = "",
) -> list[FreeModel]:
    """Read every model of which a whole GPU is there now, the scarcest first: what is free of it,
    and in how many hours of the last DAYS the usual numbers, and `wanted`, were free at once; and in how
    many of earlier mornings.

    Of one pool (empty: of all), and of pools whose name has these words.
    """
    pools = PoolChoice(pool, words)
    end_ms = now_ms - now_ms % HOUR_MS
    models = _models_now(connection, pools, now_ms)
    last_days = range(end_ms - DAYS * DAY_MS, end_ms, HOUR_MS)
    calendar = zones.calendar(connection)
    tomorrow = day_kind(_clock(calendar, now_ms).date() + dt.timedelta(days=1))
    mornings = _mornings(calendar, tomorrow, end_ms)
    periods = join_hours(sorted({*last_days, *mornings}))
    used = {
        (row.model, row.hour_ms): row
        for period in periods
        for row in free_gpus.used_hours_of_models(connection, pools, period)
    }
    present: dict[str, list[PresentModel]] = defaultdict(list)
    for row in free_gpus.present_models(connection, pools, Period(periods[0].start_ms, end_ms)):
        present[row.model].append(row)
    return [
        count_free(
            model,
            _by_clock(_hours(model.model, last_days, used, present[model.model]), calendar),
            _hours(model.model, mornings, used, present[model.model]),
            tomorrow,
            wanted,
        )
        for model in models
    ]


def read_fullest_hour(
    connection: Connection, now_ms: int, pool: str = "", words: str = "", model: str = ""
) -> FullestHour | None:
    """Read the hour of the last DAYS in which most GPU-time was held, the latest of equal ones; None
    where nothing was. Of one pool, of pools whose name has these words, of a model (empty: of all).
    """
    pools = PoolChoice(pool, words)
    end_ms = now_ms - now_ms % HOUR_MS
    sums: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    for hour in pool_hours.read(connection, Period(end_ms - DAYS * DAY_MS, end_ms)):
        if pools.admits(hour.pool) and model in {"", hour.model}:
            sums[hour.hour_ms][0] += hour.held_ns
            sums[hour.hour_ms][1] += hour.seen_ns
    held_ns, at_ms = max(((held, at_ms) for at_ms, (held, _) in sums.items()), default=(0, 0))
    return FullestHour(at_ms, held_ns, sums[at_ms][1]) if held_ns else None


def count_free_now(connection: Connection, now_ms: int, pool: str = "") -> list[ModelNow]:
    """Count the GPUs of each model that are held and free now, the scarcest first, and of how many
    the list of idle GPUs says so. Of one pool (empty: of all).
    """
    return _models_now(connection, PoolChoice(pool), now_ms)


def _models_now(connection: Connection, pools: PoolChoice, now_ms: int) -> list[ModelNow]:
    """Count the GPUs of each model now, the scarcest first, as plans and the advice have them."""
    models = free_gpus.models_now(connection, pools, now_ms, FRESH_MS)
    return sorted(models, key=lambda model: (model.scarcity, model.model))


def _clock(calendar: Calendar, at_ms: int) -> dt.datetime:
    """An instant in the zone of the bills."""
    return dt.datetime.fromtimestamp(at_ms / 1000, calendar.zone_at(at_ms).tz)


def _mornings(calendar: Calendar, kind: str, end_ms: int) -> list[int]:
    """When the hours of earlier mornings of such days began."""
    hours = range(end_ms - MORNING_DAYS[kind] * DAY_MS, end_ms, HOUR_MS)
    return [
        at_ms
        for at_ms in hours
        if is_morning(at := _clock(calendar, at_ms)) and day_kind(at.date()) == kind
    ]


def _hours(
    model: str,
    among: Sequence[int],
    used: dict[tuple[str, int], UsedModelHour],
    present: Sequence[PresentModel],
) -> list[FreeHour]:
    """Of these hours those in which GPUs of a model were there."""
    hours = []
    for at_ms in among:
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
        by_clock[f"{_clock(calendar, hour.at_ms):%H:%M}"].append(hour)
    return by_clock
