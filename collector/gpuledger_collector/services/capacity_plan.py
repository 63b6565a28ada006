"""What planners ask of a pool: its demand, rates and commitments as the ledger has them, and the
plan from these.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from decimal import Decimal
from typing import Any

import numpy as np

from gpuledger_collector.accounting.commitments import Commitment
from gpuledger_collector.accounting.money import MICRO
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, Calendar, Period, format_date
from gpuledger_collector.accounting.pricing import model_match
from gpuledger_collector.insight.plans.capacity import (
    CapacityPlan,
    Rates,
    TooFewDays,
    enough_days,
    plan_capacity,
)
from gpuledger_collector.insight.plans.daily_demand import MIN_DAYS
from gpuledger_collector.insight.rates import GpuHourRate
from gpuledger_collector.insight.series import Series
from gpuledger_collector.services.scaling_advice import MIXED, UnknownPool
from gpuledger_collector.storage.billing import commitments
from gpuledger_collector.storage.capacity import plans, scaling
from gpuledger_collector.storage.capacity.demand import (
    capacity_by_model,
    demand,
    held_by_teams,
    models_of_pool,
    pool_periods,
)
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.ledger import zones
from gpuledger_collector.storage.locks import Connection

HISTORY_DAYS = 400
"""How far back the hourly ledger is read: a quarter is back-tested on three quarters before."""
STALE_DAYS = 7
PURCHASES = ("on_demand", "reserved", "spot")
DEFAULT_CURRENCY = "USD"
NOTHING = np.empty(0)


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
    """The plan of a pool or of a model in it, the currency of its costs, and where each rate comes
    from ("": not known).

    `committed_gpus` are those of commitments in force that name the pool (and the model). `gpus`
    are those that the inventory has now; None: there is none.

    A pool of several models is planned by model: `models`, the scarcest first, have rates, costs and
    reservations of their own, and the pool has none. `unplanned` says of the others why.
    """

    plan: CapacityPlan
    currency: str
    sources: Mapping[str, str]
    committed_gpus: int
    gpus: float | None = None
    models: Sequence[PricedPlan] = ()
    unplanned: Mapping[str, str] = field(default_factory=dict)

    @property
    def headroom(self) -> float | None:
        """GPUs beyond what suffices in nine tenths of the hours, negative where some are missing;
        None: it is not known what is there, or they are of several models.
        """
        is_mixed = self.models or self.unplanned
        return None if self.gpus is None or is_mixed else self.gpus - self.plan.enough_gpus

    @property
    def scarcity(self) -> float:
        """The share of its GPUs that is headroom: what is least is scarcest; unknown comes last."""
        return self.headroom / self.gpus if self.headroom is not None and self.gpus else np.inf

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
            "gpus": self.gpus,
            "headroom": self.headroom,
            "models": [{"model": each.plan.pool.name, **each.record()} for each in self.models],
            "unplanned": dict(self.unplanned),
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


def store_capacity_plans(database: Database, now_ms: int, *, anew: bool = False) -> int:
    """Plan the pools that have no plan of today, for the demand board, and drop plans of earlier
    days; return the number of new plans.

    A plan is worth seconds of computing, so that each pool gets one a day; a pool that is new, or
    whose past has just become long enough, need not wait for tomorrow. `anew`: those that have one,
    too.
    """
    today_ms = now_ms // DAY_MS * DAY_MS
    with database.connect() as connection:
        planned = frozenset() if anew else plans.pools_planned_since(connection, today_ms)
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
    """The plan of a pool, by model where it has several."""
    # Before its teams of more than a year are read: that takes seconds.
    _require_known(pool, now_ms)
    past = history(now_ms)
    asked = _Asked(connection, pool.name, now_ms, period, given)
    teams = held_by_teams(connection, past.start_ms, past.end_ms, pool.name)
    priced = asked.plan(pool, teams)
    present = capacity_by_model(connection, now_ms, pool.name)
    demands = {
        series.name: series
        for series in models_of_pool(connection, past.start_ms, past.end_ms, pool.name)
    }
    names = present or {name for name, series in demands.items() if _is_recent(series, now_ms)}
    priced = replace(priced, gpus=sum(present.values()) if present else None)
    return priced if len(names) < MIXED else asked.by_model(priced, present, sorted(names), demands)


def _is_recent(demand: Series, now_ms: int) -> bool:
    known_ms = demand.known_until_ms
    return known_ms is not None and now_ms - known_ms <= STALE_DAYS * DAY_MS


def _require_known(demand: Series, now_ms: int) -> None:
    """Raise TooFewDays where demand is not known of late, or of too few days."""
    if not _is_recent(demand, now_ms):
        until_ms = demand.known_until_ms
        since = "" if until_ms is None else f" since {format_date(until_ms - demand.step_ms)}"
        raise TooFewDays(f"the demand of {demand.name!r} is unknown{since}: nothing to plan from")
    enough_days(demand)


@dataclass(frozen=True)
class _Asked:
    """A plan as it was asked for."""

    connection: Connection
    pool: str
    now_ms: int
    period: Period
    given: GivenRates

    def plan(self, demand: Series, teams: Sequence[Series], model: str | None = None) -> PricedPlan:
        """Plan the pool, or a model in it. Raises TooFewDays."""
        _require_known(demand, self.now_ms)
        in_force = [
            each
            for each in commitments.COMMITMENTS.in_force(self.connection)
            if each.pool == self.pool
            and each.starts_ms <= self.now_ms < each.ends_ms
            and (model is None or model_match(each.gpu_model, model) > 0)
        ]
        rates, currency, sources = self._rates(in_force, model)
        start_ms = max(self.period.start_ms, self.now_ms // DAY_MS * DAY_MS)
        plan = plan_capacity(demand, teams, start_ms, self.period.end_ms, rates)
        return PricedPlan(plan, currency, sources, sum(each.gpus for each in in_force))

    def by_model(
        self,
        whole: PricedPlan,
        present: Mapping[str, float],
        names: Sequence[str],
        demands: Mapping[str, Series],
    ) -> PricedPlan:
        """The plan of the pool with those of its models, the scarcest first, in place of its own
        rates, costs and reservation.
        """
        models, unplanned = [], {}
        for name in names:
            demand = demands.get(name, Series(name, history(self.now_ms).end_ms, HOUR_MS, NOTHING))
            try:
                models.append(replace(self.plan(demand, (), name), gpus=present.get(name)))
            except TooFewDays as error:
                unplanned[name] = str(error)
        unpriced = Rates(None, None, None, self.given.interruptions)
        return replace(
            whole,
            plan=replace(whole.plan, rates=unpriced, curve=(), reservation=None),
            sources=dict.fromkeys(PURCHASES, ""),
            models=sorted(models, key=lambda model: model.scarcity),
            unplanned=unplanned,
        )

    def _rates(
        self, in_force: Sequence[Commitment], model: str | None
    ) -> tuple[Rates, str, dict[str, str]]:
        """Rates by way of buying: given, else the price book's, else (reserved) that of the
        commitments.
        """
        given, offers = self.given, {}
        for purchase in PURCHASES:
            if purchase not in given.per_gpu_hour:
                rate = scaling.rate(self.connection, self.pool, self.now_ms, purchase, model)
                source = "price book"
                if rate is None and purchase == "reserved":
                    rate, source = _committed_rate(in_force, self.now_ms), "commitments"
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
