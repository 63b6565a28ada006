"""GET /pools/{pool}: a pool's demand with its forecast and how past ones did, its back-test in money beside the switch
that turns prediction on, and what was decided for it and came of it.

The numbers are those of `gpuledger forecast`, `gpuledger scale backtest --pool` and `gpuledger scale history`. What
takes seconds is made beside the requests, once an hour for a pool that somebody looks at.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from fastapi import APIRouter, HTTPException, Request, Response
from psycopg import OperationalError
from sqlalchemy.exc import OperationalError as EngineError

from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, format_instant
from gpuledger_collector.api.auth.keys import KeysUnavailable
from gpuledger_collector.api.auth.principal import Denied, Principal
from gpuledger_collector.api.pages import Outlook, offered, page, refused
from gpuledger_collector.api.reads import Reads, guarded
from gpuledger_collector.export import html, plots, pool_plots
from gpuledger_collector.export.scaling import row
from gpuledger_collector.insight.forecast_history import ForecastRecord, StoredForecast
from gpuledger_collector.insight.pool_backtest import PoolBacktest, backtest_pool
from gpuledger_collector.insight.series import Series
from gpuledger_collector.storage.capacity import backtests, demand, scaling
from gpuledger_collector.storage.errors import StorageError
from gpuledger_common.plurals import plural

PAST_HOURS, HOURS_AHEAD = 7 * 24, 24
MOST_DECISIONS = 30
OUTCOME_DAYS = 28
MOST_POOLS = 64
NAMES = {
    "static-peak": "the peak, always",
    "hpa-default": "Kubernetes HPA",
    "reactive-plain": "demand now",
    "reactive-tuned": "best reactive",
    "gpuledger": "gpuledger",
    "oracle": "perfect knowledge",
}
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Look:
    """What is slow to make of a pool: hours of the past and ahead, and the back-test."""

    hours: Series
    kept: tuple[StoredForecast, ...]
    ahead: tuple[tuple[float, float, float], ...]
    note: str
    month: PoolBacktest


@dataclass
class Looks:
    """One `Outlook` for each pool that somebody looks at."""

    reads: Reads
    lock: threading.Lock = field(default_factory=threading.Lock)
    working: threading.Lock = field(default_factory=threading.Lock)
    made: dict[str, Outlook[Look]] = field(default_factory=dict)

    def of(self, pool: str) -> Look | None:
        """What was made of a pool, None while there is nothing. Raises 404 for a pool that the ledger does not know."""
        with self.lock:
            known = self.made.get(pool)
        if known is None:
            with self.reads.engine().connect() as connection:
                if pool not in scaling.pools(connection, self.reads.now_ms):
                    raise HTTPException(404, f"no pool {pool!r} held GPUs in the last {scaling.DEMAND_DAYS} days")
            with self.lock:
                while len(self.made) >= MOST_POOLS:
                    self.made.pop(next(iter(self.made)))
                known = self.made.setdefault(pool, Outlook(lambda: self._make(pool)))
        return known.at(self.reads.now_ms)

    def _make(self, pool: str) -> Look:
        with self.working:  # a back-test takes memory: one at a time
            return look_of(self.reads, pool)


def look_of(reads: Reads, pool: str) -> Look:
    """Forecast, past forecasts and back-test of a pool; seconds. Raises LookupError where nothing is known of it."""
    from gpuledger_collector.insight.forecast import forecast
    from gpuledger_collector.insight.scaling.pools import ScalingTerms

    now_ms = reads.now_ms
    end_ms = now_ms // HOUR_MS * HOUR_MS
    start_ms = end_ms - scaling.DEMAND_DAYS * DAY_MS
    with reads.engine().connect() as connection:
        hours = next((one for one in demand.demand(connection, start_ms, end_ms, "pool") if one.name == pool), None)
        behind = demand.lives(connection, start_ms, end_ms, "pool")
        found = scaling.demand(connection, now_ms, pool)
        kept = backtests.ForecastUnit(connection).kept("pool", end_ms - (PAST_HOURS + HOURS_AHEAD) * HOUR_MS)
        terms = scaling.terms(connection).get(pool, ScalingTerms(pool))
        rate = scaling.rate(connection, pool, now_ms)
    if hours is None or not found:
        raise LookupError(pool)
    ahead, note = [], "no hour is known"
    if hours.known:
        (made,) = forecast([hours], HOURS_AHEAD, workloads=behind)
        low, middle, high = (made.quantiles.index(quantile) for quantile in (0.1, 0.5, 0.9))
        ahead, note = [(float(one[low]), float(one[middle]), float(one[high])) for one in made.values], made.note or ""
    mine = tuple(one for one in kept if one.series == pool)
    done = backtest_pool(found[0].series, terms, rate, with_front=True)
    return Look(hours, mine, tuple(ahead), note, done)


def router(reads: Reads) -> APIRouter:
    """The page, bound to a ledger."""
    made = APIRouter(tags=["pages"], include_in_schema=False)
    looks = Looks(reads)

    @made.get("/pools/{pool:name}")
    def pool(request: Request, pool: str, name: str = "") -> Response:
        """A pool, to those who may see the whole fleet; `name`: of one that is no part of a path."""
        pool = pool or name
        try:
            who = reads.keys.person(request, offered(request.headers.get("authorization", "")))
            who.require_fleet()
            return page(guarded(lambda: pool_of(reads.behind(who), looks.of(pool), pool, who)))
        except Denied as denial:
            return refused(denial.status, str(denial))
        except HTTPException as error:
            return refused(error.status_code, str(error.detail))
        except (KeysUnavailable, StorageError, OperationalError, EngineError) as error:
            log.warning("a page was not made: %s", error)
            return refused(503, "the database is away: come back in a moment")

    return made


def pool_of(reads: Reads, look: Look | None, pool: str, who: Principal) -> str:
    """The page. Raises Denied for a reader who sees one owner's part."""
    who.require_fleet()
    now_ms = reads.now_ms
    with reads.engine().connect() as connection:
        past = scaling.history(connection, pool, now_ms - OUTCOME_DAYS * DAY_MS, MOST_DECISIONS)
        records = backtests.records(connection, "pool", pool)
        came = {
            kind: gpu_s
            for (name, kind), gpu_s in scaling.sums(connection, now_ms - OUTCOME_DAYS * DAY_MS).items()
            if name == pool
        }
        terms = scaling.terms(connection).get(pool)
        unknown = scaling.silence(connection, pool, now_ms)
    decisions = [row(one.facts) for one in past]
    return html.render(
        "pool.html",
        policy=html.policy(),
        pool=pool,
        now=format_instant(now_ms - now_ms % 1000),
        latest=decisions[0] if decisions else None,
        unknown=unknown,
        terms=terms,
        demand=None if look is None else _demand(look),
        record=_record(records[0]) if records else None,
        money=None if look is None else _money(look.month),
        decisions=[_decision(one) for one in decisions],
        came={kind: _gpu_hours(gpu_s) for kind, gpu_s in came.items()},
        outcome_days=OUTCOME_DAYS,
    )


def _gpu_hours(gpu_s: float | None) -> str:
    return "not yet" if gpu_s is None else f"{gpu_s / 3600:,.1f}"


def hours_of(look: Look) -> tuple[list[pool_plots.Hour], int]:
    """The last hours with the forecasts made before them, those ahead, and where now is."""
    bands: dict[int, tuple[float, float, float]] = {}
    for one in sorted(look.kept, key=lambda kept: kept.origin_ms):
        if {0.1, 0.5, 0.9} <= set(one.quantiles):
            low, middle, high = (one.quantiles.index(quantile) for quantile in (0.1, 0.5, 0.9))
            bands |= {
                one.origin_ms + (at + 1) * HOUR_MS: (values[low], values[middle], values[high])
                for at, values in enumerate(one.values)
            }
    values = look.hours.values[-PAST_HOURS:]
    first_ms = look.hours.end_ms - (len(values) - 1) * HOUR_MS
    past = [
        pool_plots.Hour(float(value) if np.isfinite(value) else None, bands.get(first_ms + at * HOUR_MS))
        for at, value in enumerate(values)
    ]
    return past + [pool_plots.Hour(None, one) for one in look.ahead], len(past)


def _demand(look: Look) -> dict[str, Any]:
    hours, now = hours_of(look)
    days = plots.dates(look.hours.end_ms - (now - 1) * HOUR_MS, HOUR_MS, len(hours))
    judged = [one for one in hours[:now] if one.actual is not None and one.band is not None]
    inside = sum(not one.missed for one in judged)
    said = f"Of the last {plural(now, 'hour')} "
    said += (
        f"{inside} of {len(judged)} that had been forecast came inside their band."
        if judged
        else ("none was forecast yet.")
    )
    if look.ahead:
        peak = max(range(len(look.ahead)), key=lambda at: look.ahead[at][2])
        low, _, high = look.ahead[peak]
        said += (
            f" The most of the next {plural(len(look.ahead), 'hour')}, in {plural(peak + 1, 'hour')}, "
            f"is between {low:.0f} and {high:.0f} GPUs with eight chances in ten."
        )
    title = f"GPUs wanted in the last {plural(now, 'hour')} and the next {len(look.ahead)}"
    table = [(at + 1, *look.ahead[at]) for at in range(2, len(look.ahead), 3)]
    return {"plot": pool_plots.hits(hours, now, title, said, days), "said": said, "note": look.note, "rows": table}


def _record(made: ForecastRecord) -> dict[str, Any]:
    return {
        "forecasts": made.forecasts,
        "replayed": made.replayed,
        "inside": None if made.inside is None else f"{made.inside:.0%}",
        "better": None if made.skill is None else f"{abs(made.skill):.0%} {'less' if made.skill >= 0 else 'more'}",
    }


def _money(made: PoolBacktest) -> dict[str, Any]:
    """The back-test as a table and a picture, and the switch beside it."""
    limits = made.terms.limits
    facts: dict[str, Any] = {
        "switch": ("[[pool]]", f"name = {json.dumps(made.terms.pool)}", f"predict = {str(not limits.predict).lower()}"),
        "predict": limits.predict,
        "acts": made.terms.mode == "act",
        "short": made.note,
        "rows": [],
        "plot": None,
        "lead": f"{made.terms.lead_ms / 60_000:g} min",
        "cap": f"{limits.cost_cap:g}",
        "currency": made.rate.currency if made.rate else None,
    }
    if made.backtest is None:
        return facts
    rows = [one for one in made.rows() if str(one["policy"]) in NAMES]
    unit = made.rate.currency if made.rate else "GPU-hours of capacity"

    def spent(gpu_hours: float) -> float:
        money = made.money(gpu_hours)
        return gpu_hours if money is None else money

    by_name = {one.policy: one.outcome for one in made.backtest.results}
    points = [(NAMES[name], spent(by_name[name].capacity), by_name[name].wait) for name in NAMES if name in by_name]
    front = [(spent(capacity), wait) for capacity, wait in made.front]
    said = "; ".join(f"{name}: {wait:,.1f} GPU-hours of wait for {cost:,.0f} {unit}" for name, cost, wait in points)
    return facts | {
        "rows": [_policy(one) for one in rows],
        "days": made.backtest.judged_days,
        "ahead_days": made.backtest.predictive_days,
        "verdict": _verdict(rows, facts["currency"]),
        "plot": pool_plots.frontier(points, front, unit, "Wait in GPU-hours over cost", said),
        "said": said,
    }


def _policy(one: dict[str, object]) -> dict[str, Any]:
    def amount(name: str) -> str:
        value = one[name]
        return html.UNKNOWN if not isinstance(value, float) else f"{value:,.0f}"

    return {
        "name": NAMES[str(one["policy"])],
        "ours": one["policy"] == "gpuledger",
        "wait": f"{one['wait']:,.1f}",
        "p95": f"{float(str(one['wait_p95_s'])) / 60:,.0f} min",
        "actions": one["actions"],
        "cost": amount("cost"),
        "over": amount("over_demand"),
        "capacity": f"{one['capacity']:,.0f}",
    }


def _verdict(rows: Sequence[dict[str, object]], currency: str | None) -> str:
    """What ours would have brought beside the best reactive setting, in a sentence."""
    found = {str(one["policy"]): one for one in rows}
    ours, theirs = found["gpuledger"], found["reactive-tuned"]
    wait, other = float(str(ours["wait"])), float(str(theirs["wait"]))
    said = f"It would have waited {wait:,.1f} GPU-hours, the best reactive setting {other:,.1f}"
    if currency is not None:
        more = float(str(ours["cost"])) - float(str(theirs["cost"]))
        said += f", for {abs(more):,.0f} {currency} {'more' if more >= 0 else 'less'}"
    return said + "."


def _decision(one: dict[str, object]) -> dict[str, Any]:
    def hours(name: str) -> str:
        value = one[name]
        return _gpu_hours(value if isinstance(value, float) else None)

    waste = f"{one['waste_cost']} {one['currency']}" if one["waste_cost"] is not None else ""
    return {
        "made": str(one["made_at"])[:16].replace("T", " "),
        "demand": f"{one['demand_gpus']:.1f}",
        "desired": f"{one['desired_gpus']:g}",
        "wait": hours("wait_gpu_s"),
        "waste": hours("waste_gpu_s"),
        "waste_cost": waste,
        "reason": one["reason"],
        "told": f"{one['told']}: {one['told_state'] or 'put out'}" if one["told"] else "",
    }
