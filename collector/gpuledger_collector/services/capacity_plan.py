"""What planners ask of a pool: its demand, rates and commitments as the ledger has them, and the plan from these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

import numpy as np

from gpuledger_collector.accounting.commitments import Commitment
from gpuledger_collector.accounting.money import MICRO
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, Calendar, Period, format_date, parse_period
from gpuledger_collector.insight.plans.capacity import CapacityPlan, Rates, TooFewDays, plan_capacity
from gpuledger_collector.insight.rates import GpuHourRate
from gpuledger_collector.insight.series import Series
from gpuledger_collector.services.scaling_advice import UnknownPool
from gpuledger_collector.storage.billing import commitments
from gpuledger_collector.storage.capacity import scaling
from gpuledger_collector.storage.capacity.demand import demand, held_by_teams
from gpuledger_collector.storage.locks import Connection

HISTORY_DAYS = 400
"""How far back the hourly ledger is read: a quarter is back-tested on three quarters before."""
STALE_DAYS = 7
PURCHASES = ("on_demand", "reserved", "spot")
DEFAULT_CURRENCY = "USD"


class SeveralPools(LookupError):
    """No pool was named, and there are several; the message says which."""


@dataclass(frozen=True)
class GivenRates:
    """Rates that replace those of the price book, by way of buying, and the assumed interruptions of a spot GPU."""

    per_gpu_hour: Mapping[str, Decimal]
    currency: str | None
    interruptions: float


@dataclass(frozen=True)
class PricedPlan:
    """The plan of a pool, the currency of its costs, and where each rate comes from ("": not known).

    `committed` are the GPUs of commitments in force that name the pool.
    """

    pool: str
    plan: CapacityPlan
    currency: str
    sources: Mapping[str, str]
    committed: int


def history(now_ms: int) -> Period:
    """The complete hours that a plan is made from."""
    end_ms = now_ms // HOUR_MS * HOUR_MS
    return Period(end_ms - HISTORY_DAYS * DAY_MS, end_ms)


def this_quarter(calendar: Calendar, now_ms: int) -> Period:
    """The quarter of the billing calendar that holds an instant."""
    year, month = calendar.month_of(now_ms).split("-")
    return calendar.named(parse_period(f"{year}-Q{(int(month) + 2) // 3}"))


def capacity_plan(
    connection: Connection, now_ms: int, pool: str | None, period: Period, given: GivenRates
) -> PricedPlan:
    """Plan a pool from today, or the start of the period if that comes later, to the end of the period.

    Raises UnknownPool, SeveralPools, TooFewDays.
    """
    past = history(now_ms)
    series = _pool(demand(connection, past.start_ms, past.end_ms, "pool"), pool)
    _require_recent(series, now_ms)
    rates, currency, sources = _rates(connection, series.name, now_ms, given)
    teams = held_by_teams(connection, past.start_ms, past.end_ms, series.name)
    start_ms = max(period.start_ms, now_ms // DAY_MS * DAY_MS)
    plan = plan_capacity(series, teams, start_ms, period.end_ms, rates)
    committed = sum(each.gpus for each in _in_force(connection, series.name, now_ms))
    return PricedPlan(series.name, plan, currency, sources, committed)


def _pool(pools: Sequence[Series], name: str | None) -> Series:
    chosen = [series for series in pools if name in {None, series.name}]
    if not chosen:
        raise UnknownPool(name or "")
    if len(chosen) > 1:
        raise SeveralPools(f"there are several pools: {', '.join(repr(series.name) for series in chosen)}")
    return chosen[0]


def _require_recent(series: Series, now_ms: int) -> None:
    known = np.flatnonzero(np.isfinite(series.values))
    last_ms = series.start_ms + int(known[-1]) * series.step_ms if len(known) else series.start_ms
    if not len(known) or now_ms - last_ms > STALE_DAYS * DAY_MS:
        raise TooFewDays(f"the demand of {series.name!r} is unknown since {format_date(last_ms)}: nothing to plan from")


def _rates(connection: Connection, pool: str, now_ms: int, given: GivenRates) -> tuple[Rates, str, dict[str, str]]:
    """Rates by way of buying: given, else the price book's, else (reserved) that of the pool's commitments."""
    known = {
        purchase: (scaling.rate(connection, pool, now_ms, purchase), "price book")
        for purchase in PURCHASES
        if purchase not in given.per_gpu_hour
    }
    if "reserved" in known and known["reserved"][0] is None:
        known["reserved"] = (_committed_rate(connection, pool, now_ms), "commitments")
    currencies = [rate.currency for rate, _ in known.values() if rate is not None]
    currency = given.currency or next(iter(currencies), DEFAULT_CURRENCY)
    values: dict[str, float | None] = {name: float(rate) for name, rate in given.per_gpu_hour.items()}
    sources = dict.fromkeys(given.per_gpu_hour, "given")
    for purchase, (rate, source) in known.items():
        # Another currency is no number here: plans do not convert.
        usable = rate is not None and rate.currency == currency
        values[purchase] = float(rate.per_gpu_hour) if rate is not None and usable else None
        sources[purchase] = source if usable else ""
    return Rates(**values, interruptions=given.interruptions), currency, sources


def _in_force(connection: Connection, pool: str, now_ms: int) -> list[Commitment]:
    every = commitments.current(connection)
    return [each for each in every if each.pool == pool and each.starts_ms <= now_ms < each.ends_ms]


def _committed_rate(connection: Connection, pool: str, now_ms: int) -> GpuHourRate | None:
    """Cost of this hour of the commitments in force that name the pool, per GPU; None without, or in two currencies."""
    in_force = _in_force(connection, pool, now_ms)
    gpus = sum(each.gpus for each in in_force)
    if not gpus or len({each.currency for each in in_force}) > 1:
        return None
    micro = sum(each.hour_micro(now_ms // HOUR_MS * HOUR_MS) for each in in_force)
    return GpuHourRate(Decimal(micro) / MICRO / gpus, in_force[0].currency)
