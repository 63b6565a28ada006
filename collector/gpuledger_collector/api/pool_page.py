"""GET /pools/{pool}: what predicting the demand of a pool would have brought in money, beside the
switch for it.

The numbers are those of `gpuledger scale backtest --pool`. A back-test replays the demand under
several policies and is stored in no table, so no dashboard can show it; demand, forecasts and
decisions are on the demand board. It takes seconds and is computed on a thread, once an hour for a
pool that somebody looks at.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fastapi import APIRouter, Response

from gpuledger_collector.api.auth.principal import Principal
from gpuledger_collector.api.context import ReadContext
from gpuledger_collector.api.page_routes import (
    HourlyCache,
    PageRoute,
    View,
    csv_file,
    page,
    require_view,
)
from gpuledger_collector.export import html, pool_plots
from gpuledger_collector.export.scaling import POOL_POLICIES
from gpuledger_collector.export.site import pool_path
from gpuledger_collector.insight.pool_backtest import PoolBacktest, PricedPolicy
from gpuledger_collector.services.forecasts import forecast_records
from gpuledger_collector.services.scaling_advice import (
    backtest_as_declared,
    pool_state,
    require_known_pool,
)

MAX_POOLS = 64
NAMES = {
    "static-peak": "the peak, always",
    "hpa-default": "Kubernetes HPA",
    "reactive-plain": "current demand",
    "reactive-tuned": "best reactive",
    "gpuledger": "gpuledger",
    "oracle": "perfect knowledge",
}


@dataclass
class BacktestCache:
    """The back-tests of pools that somebody looked at lately."""

    context: ReadContext
    lock: threading.Lock = field(default_factory=threading.Lock)
    computing: threading.Lock = field(default_factory=threading.Lock)
    pools: dict[str, HourlyCache[PoolBacktest]] = field(default_factory=dict)

    def get(self, pool: str, principal: Principal) -> PoolBacktest | None:
        """The back-test of a pool, None while there is none. Raises UnknownPool."""
        with self.lock:
            cached = self.pools.get(pool)
        if cached is None:
            with self.context.connection(principal) as connection:
                require_known_pool(connection, pool)
            with self.lock:
                while len(self.pools) >= MAX_POOLS:
                    self.pools.pop(next(iter(self.pools)))
                cached = self.pools.setdefault(pool, HourlyCache(lambda: self._compute(pool)))
        return cached.get(self.context.now_ms)

    def _compute(self, pool: str) -> PoolBacktest:
        with self.computing:  # a back-test takes memory: one at a time
            return backtest_as_declared(self.context.database, self.context.now_ms, pool)


def router(context: ReadContext) -> APIRouter:
    """The page."""
    routes = APIRouter(tags=["pages"], include_in_schema=False, route_class=PageRoute)
    cache = BacktestCache(context)
    wanted = require_view(context.keys, fleet=True)

    @routes.get("/pools/{pool:name}")
    def pool(pool: str, name: str = "", view: View = wanted) -> Response:
        """A pool, for readers of the entire fleet; `name`: of a pool whose name cannot be part of a
        path.
        """
        pool = pool or name
        return pool_page(context, cache.get(pool, view.reader), pool, view)

    return routes


def pool_page(
    context: ReadContext, backtest: PoolBacktest | None, pool: str, view: View
) -> Response:
    """The page, or its policies as CSV. Raises Denied for a reader who sees one owner's part."""
    view.reader.require_fleet()
    now_ms = context.now_ms
    with context.connection(view.reader) as connection:
        state = pool_state(connection, now_ms, pool)
        records = forecast_records(connection, "pool", pool)
        path, _, is_dots = pool_path(pool).partition("?")
        extra = {"name": pool} if is_dots else {}
        has_csv = backtest is not None and backtest.backtest is not None
        site = view.site(
            connection, path, now_ms, has_csv=has_csv, is_filtered=False, periods=(), extra=extra
        )
    if view.wants_csv:
        policies = [] if backtest is None else backtest.policies()
        return csv_file(POOL_POLICIES.csv_rows(policies), "pool")
    if backtest is None:
        site = replace(site, being_made="The back-test is running", seconds=5)
    inside = records[0].inside if records else None
    text = html.render(
        "pool.html",
        site=site,
        pool=pool,
        latest=state.latest,
        unknown=state.silence,
        terms=state.terms,
        inside=None if inside is None else html.percent(inside),
        money=None if backtest is None else _money_facts(backtest),
    )
    return page(text, site=site)


def _money_facts(backtest: PoolBacktest) -> dict[str, Any]:
    """The back-test as a table and a picture, and the switch."""
    limits = backtest.terms.limits
    name = json.dumps(backtest.terms.pool)
    facts: dict[str, Any] = {
        "switch": ("[[pool]]", f"name = {name}", f"predict = {str(not limits.predict).lower()}"),
        "predict": limits.predict,
        "acts": backtest.terms.mode == "act",
        "short": backtest.note,
        "rows": [],
        "plot": None,
        "lead": f"{backtest.terms.lead_ms / 60_000:g} min",
        "cap": f"{limits.cost_cap:g}",
        "currency": backtest.rate.currency if backtest.rate else None,
    }
    if backtest.backtest is None:
        return facts
    rows = {policy.policy: policy for policy in backtest.policies() if policy.policy in NAMES}
    unit = backtest.rate.currency if backtest.rate else "GPU-hours of capacity"

    def cost(gpu_hours: float) -> float:
        money = backtest.money(gpu_hours)
        return gpu_hours if money is None else money

    outcomes = {result.policy: result.outcome for result in backtest.backtest.results}
    points = [
        (label, cost(outcomes[policy].capacity), outcomes[policy].wait)
        for policy, label in NAMES.items()
        if policy in outcomes
    ]
    summary = "; ".join(
        f"{label}: {wait:,.1f} GPU-hours of wait for {spent:,.0f} {unit}"
        for label, spent, wait in points
    )
    front = [(cost(capacity), wait) for capacity, wait in backtest.front]
    return facts | {
        "rows": list(map(_policy_facts, rows.values())),
        "days": backtest.backtest.judged_days,
        "ahead_days": backtest.backtest.predictive_days,
        "verdict": _compare(rows),
        "plot": pool_plots.frontier(
            points,
            front,
            f"cost, {unit}" if backtest.rate else unit,
            "Wait in GPU-hours over cost",
            summary,
        ),
    }


def _policy_facts(policy: PricedPolicy) -> dict[str, Any]:
    return {
        "name": NAMES[policy.policy],
        "ours": policy.policy == "gpuledger",
        "wait": f"{policy.wait:,.1f}",
        "p95": f"{policy.wait_p95_s / 60:,.0f} min",
        "actions": policy.actions,
        "cost": _whole(policy.cost),
        "over": _whole(policy.over_demand),
        "capacity": f"{policy.capacity:,.0f}",
    }


def _whole(amount: float | None) -> str:
    return html.UNKNOWN if amount is None else f"{amount:,.0f}"


def _compare(policies: Mapping[str, PricedPolicy]) -> str:
    """What prediction would have brought compared with the best reactive setting, in a sentence."""
    ours, reactive = policies["gpuledger"], policies["reactive-tuned"]
    sentence = (
        f"It would have waited {ours.wait:,.1f} GPU-hours, the best reactive setting"
        f" {reactive.wait:,.1f}"
    )
    if ours.cost is not None and reactive.cost is not None:
        more = ours.cost - reactive.cost
        sentence += f", for {abs(more):,.0f} {ours.currency} {'more' if more >= 0 else 'less'}"
    return sentence + "."
