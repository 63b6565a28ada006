"""What planners ask of a pool: its demand, rates and commitments as the ledger has them, and the
plan from these.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np

from gpuledger_collector.accounting.commitments import Commitment
from gpuledger_collector.accounting.money import MICRO
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, Calendar, Period, format_date
from gpuledger_collector.insight.plans.capacity import (
    CapacityPlan,
    Rates,
    TooFewDays,
    plan_capacity,
)
from gpuledger_collector.insight.plans.daily_demand import MIN_DAYS
from gpuledger_collector.insight.rates import GpuHourRate
from gpuledger_collector.insight.series import Series
from gpuledger_collector.services.scaling_advice import UnknownPool
from gpuledger_collector.storage.billing import commitments
from gpuledger_collector.storage.capacity import plans, scaling
from gpuledger_collector.storage.capacity.demand import demand, held_by_teams, pool_periods
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.ledger import zones
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
    """Rates that replace those of the price book, by way of buying, and the assumed interruptions
    of a spot GPU a day.

    `currency` None: that of the price book.
    """

    per_gpu_hour: Mapping[str, Decimal] = field(default_factory=dict)
    currency: str | None = None
    interruptions: float = 1.0


@dataclass(frozen=True)
class PricedPlan:
    """The plan of a pool, the currency of its costs, and where each rate comes from ("": not
    known).

    `committed_gpus` are those of commitments in force that name the pool.
    """

    plan: CapacityPlan
    currency: str
    sources: Mapping[str, str]
    committed_gpus: int

    def record(self) -> dict[str, Any]:
        """The plan as JSON: what the command prints and the demand board shows."""
        bounds_ms = self.plan.start_ms, self.plan.start_ms + len(self.plan.days) * DAY_MS
        dates = zip(("from", "to"), map(format_date, bounds_ms), strict=True)
        return {
            **dict(dates),
            **asdict(self.plan),
            "currency": self.currency,
            "sources": dict(self.sources),
            "committed_gpus": self.committed_gpus,
        }


def history(now_ms: int) -> Period:
    """The complete hours that a plan is made from."""
    end_ms = now_ms // HOUR_MS * HOUR_MS
    return Period(end_ms - HISTORY_DAYS * DAY_MS, end_ms)


def quarter_ahead(calendar: Calendar, now_ms: int) -> Period:
    """The quarter that holds tomorrow: of the fiscal year where one is declared, else of the
    calendar year.
    """
    year, month = map(int, calendar.month_of(calendar.day_of(now_ms).end_ms).split("-"))
    first = 12 * year + month - 1 - (month - (calendar.fiscal_month or 1)) % 3
    start, end = (
        calendar.month(f"{at // 12}-{at % 12 + 1:02}").start_ms for at in (first, first + 3)
    )
    return Period(start, end)


def capacity_plan(
    connection: Connection, now_ms: int, pool: str | None, period: Period, given: GivenRates
) -> PricedPlan:
    """Plan a pool from today, or the start of the period if that comes later, to the end of the
    period.

    Raises UnknownPool, SeveralPools, TooFewDays.
    """
    pools = [series for series in _pools(connection, now_ms) if pool in {None, series.name}]
    if not pools:
        raise UnknownPool(pool or "")
    if len(pools) > 1:
        raise SeveralPools(
            f"there are several pools: {', '.join(repr(series.name) for series in pools)}"
        )
    return _plan(connection, now_ms, pools[0], period, given)


def plans_of_pools(
    connection: Connection, now_ms: int, planned: Collection[str] = ()
) -> Iterator[PricedPlan]:
    """Plan every pool with a long enough past to the end of this quarter, as `gpuledger plan
    capacity` does; those in `planned` have their plan already.

    The hourly ledger is read only where a pool without a plan is old enough for one.
    """
    past = history(now_ms)
    pools = pool_periods(connection, past.start_ms, past.end_ms)
    if not any(
        _may_suffice(period, now_ms) for name, period in pools.items() if name not in planned
    ):
        return
    period = quarter_ahead(zones.calendar(connection), now_ms)
    for series in _pools(connection, now_ms):
        if series.name in planned:
            continue
        with contextlib.suppress(TooFewDays):
            yield _plan(connection, now_ms, series, period, GivenRates())


def store_capacity_plans(database: Database, now_ms: int) -> int:
    """Plan the pools that have no plan of today, for the demand board, and drop plans of earlier
    days; return the number of new plans.

    A plan is worth seconds of computing, so that each pool gets one a day; a pool that is new, or
    whose past has just become long enough, need not wait for tomorrow.
    """
    today_ms = now_ms // DAY_MS * DAY_MS
    with database.connect() as connection:
        planned = plans.pools_planned_since(connection, today_ms)
        records = {
            priced.plan.pool.name: priced.record()
            for priced in plans_of_pools(connection, now_ms, planned)
        }
    with database.transaction() as connection:
        plans.delete_before(connection, today_ms)
        plans.upsert(connection, records, now_ms)
    return len(records)


def _may_suffice(known: Period, now_ms: int) -> bool:
    """Whether a pool of which nothing is known outside of a period may have a plan."""
    days = -(-known.end_ms // DAY_MS) - known.start_ms // DAY_MS
    return days >= MIN_DAYS and now_ms - known.end_ms <= STALE_DAYS * DAY_MS


def _pools(connection: Connection, now_ms: int) -> list[Series]:
    past = history(now_ms)
    return demand(connection, past.start_ms, past.end_ms, "pool")


def _plan(
    connection: Connection, now_ms: int, pool: Series, period: Period, given: GivenRates
) -> PricedPlan:
    known = np.flatnonzero(np.isfinite(pool.values))
    last_ms = pool.start_ms + int(known[-1]) * pool.step_ms if len(known) else pool.start_ms
    if not len(known) or now_ms - last_ms > STALE_DAYS * DAY_MS:
        raise TooFewDays(
            f"the demand of {pool.name!r} is unknown since {format_date(last_ms)}: nothing to plan"
            " from"
        )
    past = history(now_ms)
    teams = held_by_teams(connection, past.start_ms, past.end_ms, pool.name)
    every = commitments.COMMITMENTS.in_force(connection)
    in_force = [
        each for each in every if each.pool == pool.name and each.starts_ms <= now_ms < each.ends_ms
    ]
    rates, currency, sources = _rates(connection, pool.name, now_ms, given, in_force)
    start_ms = max(period.start_ms, now_ms // DAY_MS * DAY_MS)
    plan = plan_capacity(pool, teams, start_ms, period.end_ms, rates)
    return PricedPlan(plan, currency, sources, sum(each.gpus for each in in_force))


def _rates(
    connection: Connection,
    pool: str,
    now_ms: int,
    given: GivenRates,
    in_force: Sequence[Commitment],
) -> tuple[Rates, str, dict[str, str]]:
    """Rates by way of buying: given, else the price book's, else (reserved) that of the pool's
    commitments.
    """
    offers = {}
    for purchase in PURCHASES:
        if purchase not in given.per_gpu_hour:
            rate, source = scaling.rate(connection, pool, now_ms, purchase), "price book"
            if rate is None and purchase == "reserved":
                rate, source = _committed_rate(in_force, now_ms), "commitments"
            if rate is not None:
                offers[purchase] = rate, source
    currency = given.currency or next(
        (rate.currency for rate, _ in offers.values()), DEFAULT_CURRENCY
    )
    known = {name: (float(rate), "given") for name, rate in given.per_gpu_hour.items()}
    # Another currency is no number here: plans do not convert.
    known |= {
        name: (float(rate.per_gpu_hour), source)
        for name, (rate, source) in offers.items()
        if rate.currency == currency
    }
    on_demand, reserved, spot = (known.get(name, (None, ""))[0] for name in PURCHASES)
    sources = {name: known.get(name, (None, ""))[1] for name in PURCHASES}
    return Rates(on_demand, reserved, spot, given.interruptions), currency, sources


def _committed_rate(in_force: Sequence[Commitment], now_ms: int) -> GpuHourRate | None:
    """Cost of this hour of commitments, per GPU; None without, or in two currencies."""
    gpus = sum(each.gpus for each in in_force)
    if not gpus or len({each.currency for each in in_force}) > 1:
        return None
    micro = sum(each.hour_micro(now_ms // HOUR_MS * HOUR_MS) for each in in_force)
    return GpuHourRate(Decimal(micro) / MICRO / gpus, in_force[0].currency)
