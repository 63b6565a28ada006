"""GET: what the ledger says, for those who ask over HTTP. The numbers are those of the commands, from the same code.

Reading changes nothing and rates nothing: the jobs do that, and answers say up to when they did. Who may read: anybody
on loopback while no reader token was ever made; else whoever bears one. A viewer sees one owner's subtree.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeVar

import psycopg
import sqlalchemy as sa
from fastapi import APIRouter, Depends, HTTPException, Path, Query, Request, Response
from sqlalchemy.engine import Engine

from gpuledger_collector.accounting.chargeback import DIMENSIONS, report
from gpuledger_collector.accounting.period import HOUR_MS, Period, date_range, format_instant
from gpuledger_collector.api.auth.keys import Keys, KeysUnavailable
from gpuledger_collector.api.auth.principal import Denied, Principal
from gpuledger_collector.services.chargeback import NO_INVENTORY, read_chargeback
from gpuledger_collector.storage.access import row_level_security
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.errors import StorageError
from gpuledger_collector.storage.ledger import reports, zones
from gpuledger_collector.storage.telemetry.activity import activity

if TYPE_CHECKING:
    from gpuledger_collector.insight.scaling.pools import ScalingDecision

RETRY_AFTER_SECONDS = "5"
DEMAND_DAYS = 56
MOST_DAYS = 400
MOST_ROWS = 1000
BEARER = "Bearer "
Answer = TypeVar("Answer")


@dataclass(slots=True)
class Reads:
    """What the routes need."""

    ledger: Database
    engine: Callable[[], Engine]
    clock: Callable[[], dt.datetime]
    keys: Keys

    @property
    def now_ms(self) -> int:
        """The instant of the request."""
        return round(self.clock().timestamp() * 1000)

    def behind(self, who: Principal) -> Reads:
        """The same for what no viewer is to read: should a viewer come so far, the wall stands before its engine."""
        if (owner := who.owner) is None:
            return self

        database = self.ledger.as_viewer(owner)

        def opened() -> psycopg.Connection[tuple[Any, ...]]:
            connection = database.connect()
            connection.autocommit = False
            return connection

        made = sa.create_engine("postgresql+psycopg://", creator=opened, poolclass=sa.NullPool)
        return replace(self, ledger=database, engine=lambda: made)


class Seen(Protocol):
    """What demand is read from: a database, and the instant."""

    @property
    def engine(self) -> Callable[[], Engine]:
        """The database, made when first asked for."""

    @property
    def now_ms(self) -> int:
        """Unix milliseconds."""


@dataclass(slots=True)
class Fleet:
    """A fleet's demand for callers that no reader's token stands before: they have a door of their own."""

    engine: Callable[[], Engine]
    clock: Callable[[], dt.datetime]

    @property
    def now_ms(self) -> int:
        """The instant of the question."""
        return round(self.clock().timestamp() * 1000)


Limit = Annotated[int, Query(ge=1, le=MOST_ROWS, description="Most items of one answer.")]
After = Annotated[str, Query(description="`next` of the answer before; empty: from the start.")]
First = Annotated[str, Query(alias="from", description="First day (of the billing zone), included, as 2026-10-01.")]
Last = Annotated[str, Query(alias="to", description="Last day (of the billing zone), not included.")]
FirstUtc = Annotated[str, Query(alias="from", description="First day (UTC), included, as 2026-10-01.")]
LastUtc = Annotated[str, Query(alias="to", description="Last day (UTC), not included.")]
By = Annotated[str, Query(description=f"Dimensions, separated by commas: {', '.join(DIMENSIONS)}.")]
Pool = Annotated[str | None, Query(description="Only this pool.")]
Delay = Annotated[
    int | None, Query(ge=1, le=86_400, description="Seconds from an order to the GPU that serves; else the pool's own.")
]
OfPool = Annotated[str, Path(description="Name of the pool.")]
Horizon = Annotated[int, Query(ge=1, le=168, description="Hours to look ahead.")]
REFUSALS: dict[int | str, dict[str, Any]] = {
    401: {"description": "A reader's token is asked for."},
    403: {"description": "This token may not read this, or reading is not open beyond loopback."},
    503: {"description": "The database, or the demand of late, is not there: come back after Retry-After."},
}


def router(reads: Reads) -> APIRouter:
    """The routes, bound to a ledger."""
    made = APIRouter(prefix="/v1", tags=["ledger"], responses=REFUSALS)

    reader, fleet = may_read(reads.keys), may_read(reads.keys, whole_fleet=True)

    @made.get("/chargeback")
    def chargeback(start: First, end: Last, by: By = "team", who: Principal = reader) -> Response:
        """Who bears what, by the dimensions of `by` (comma-separated), as `gpuledger chargeback --format json`."""
        return guarded(lambda: Response(chargeback_of(reads, start, end, by, who), media_type="application/json"))

    @made.get("/accelerators")
    def accelerators(
        start: FirstUtc, end: LastUtc, limit: Limit = 100, after: After = "", who: Principal = fleet
    ) -> dict[str, Any]:
        """What each accelerator did: held, busy, idle, unknown, unallocated and unavailable milliseconds, by UUID."""
        return guarded(lambda: accelerators_of(reads.behind(who), start, end, limit, after))

    @made.get("/nodes")
    def nodes(limit: Limit = 100, after: After = "", who: Principal = fleet) -> dict[str, Any]:
        """Every node with its agent's last sign of life, by name."""
        return guarded(lambda: nodes_of(reads.behind(who), limit, after))

    @made.get("/forecast")
    def forecast(horizon_hours: Horizon = 24, pool: Pool = None, who: Principal = fleet) -> dict[str, Any]:
        """Demand of each pool as quantiles, hour by hour."""
        return guarded(lambda: forecast_of(reads.behind(who), horizon_hours, pool))

    @made.get("/forecast/history")
    def forecast_history(pool: Pool = None, who: Principal = fleet) -> dict[str, Any]:
        """How good past forecasts of each pool were: hours in their band, loss beside that of the naive twin."""
        return guarded(lambda: forecast_history_of(reads.behind(who), pool))

    @made.get("/budgets")
    def budgets(who: Principal = reader) -> dict[str, Any]:
        """Every budget in its period of now: spent, forecast with its band, pace, run-out and alerts."""
        return guarded(lambda: budgets_of(reads, who))

    @made.get("/scaling/{pool:name}")
    def scaling(pool: OfPool, delay_s: Delay = None, who: Principal = fleet) -> dict[str, Any]:
        """GPUs that the pool should hold now, within its limits, as one flat object; 503 and no number when demand is
        not known. `delay_s`: from an order to the GPU that serves; without it the pool's own lead time.
        """
        return guarded(lambda: scaling_of(reads.behind(who), pool, delay_s))

    return made


def may_read(keys: Keys, *, whole_fleet: bool = False) -> Any:
    """What a route depends on: the reader behind the request, who may see the whole fleet if that is asked for."""

    def reader(request: Request) -> Principal:
        with denials():
            who = keys.person(request)
            if whole_fleet:
                who.require_fleet()
        return who

    return Depends(reader)


@contextmanager
def denials() -> Iterator[None]:
    """What is denied as the answer of HTTP."""
    try:
        yield
    except Denied as denial:
        challenge = {"WWW-Authenticate": "Bearer"} if denial.status == 401 else None
        raise HTTPException(denial.status, str(denial), challenge) from denial
    except KeysUnavailable as error:
        raise HTTPException(503, str(error), {"Retry-After": RETRY_AFTER_SECONDS}) from error


def guarded(read: Callable[[], Answer]) -> Answer:
    """The answer; a database that is away is a 503, what cannot be asked a 422 with its sentence."""
    try:
        return read()
    except ValueError as error:
        raise HTTPException(422, str(error)) from error
    except (sa.exc.ProgrammingError, psycopg.errors.InsufficientPrivilege) as error:
        if not isinstance(getattr(error, "orig", error), psycopg.errors.InsufficientPrivilege):
            raise
        raise HTTPException(403, "this token sees one owner's part only, and this answer is of more") from error
    except (StorageError, sa.exc.OperationalError, psycopg.OperationalError) as error:
        detail = "the database is away: come back later"
        raise HTTPException(503, detail, {"Retry-After": RETRY_AFTER_SECONDS}) from error


def period_of(start: str, end: str) -> Period:
    """The days asked for. Raises ValueError with a sentence."""
    period = date_range(start, end)
    if period.ms > MOST_DAYS * 24 * HOUR_MS:
        raise ValueError(f"from and to: at most {MOST_DAYS} days can be asked for at once")
    return period


def chargeback_of(reads: Reads, start: str, end: str, by: str, who: Principal) -> str:
    """The chargeback as JSON text; of a viewer's subtree only what it bears itself."""
    from gpuledger_collector.export.chargeback import as_json, shared_notes

    names = tuple(dict.fromkeys(name.strip() for name in by.split(",") if name.strip())) or ("team",)
    report([], names)  # an unknown dimension is refused before the database is asked
    period = period_of(start, end)
    with reads.ledger.transaction(read_only=True) as connection:
        period = zones.in_zone(connection, period)
        chargeback = read_chargeback(connection, period, names, reads.now_ms, who.owner).report
        proofs = reports.conservation_checks(connection, period)
        capacity = reports.has_capacity(connection, period)
    rated = format_instant(max((proof.until_ms for proof in proofs), default=period.start_ms))
    notes = [f"rated up to {rated}"]
    if not capacity:
        notes.append(NO_INVENTORY)
    return as_json(chargeback, period, notes + shared_notes(chargeback.shared))


def accelerators_of(reads: Reads, start: str, end: str, limit: int, after: str) -> dict[str, Any]:
    """One page of accelerators, by UUID."""
    period = period_of(start, end)
    with reads.ledger.connect() as connection:
        found = sorted(activity(connection, period.start_ms, period.end_ms), key=lambda entry: entry.uuid)
    return page([asdict(entry) for entry in found if entry.uuid > after], limit, "uuid")


def nodes_of(reads: Reads, limit: int, after: str) -> dict[str, Any]:
    """One page of nodes, by name."""
    query = sa.text(
        "SELECT name, first_seen_at, last_seen_at, status, status_detail, agent_version, source, driver FROM node "
        "WHERE name > :after ORDER BY name LIMIT :most"
    )
    with reads.engine().connect() as connection:
        rows = connection.execute(query, {"after": after, "most": limit + 1}).mappings().all()
    return page([dict(row) for row in rows], limit, "name")


def budgets_of(reads: Reads, who: Principal) -> dict[str, Any]:
    """The standing of every budget of the reader's, as `gpuledger budgets --format json`."""
    from gpuledger_collector.export.budgets import rows
    from gpuledger_collector.services.budget_status import statuses

    with reads.ledger.transaction() as connection, row_level_security.as_viewer(connection, who.owner):
        found = statuses(connection, reads.now_ms)
    return {"budgets": rows([one for one in found if who.sees(one.budget.owner)])}


def page(items: list[dict[str, Any]], limit: int, key: str) -> dict[str, Any]:
    """The first items, and where the next page begins (None: there is none)."""
    shown = items[:limit]
    return {"items": shown, "next": shown[-1][key] if len(items) > limit else None}


def demand_of(reads: Seen, pool: str | None) -> Any:
    """Hourly demand of the pools over the last weeks. Raises 404 for a pool that the ledger does not know."""
    from gpuledger_collector.storage.capacity.demand import demand

    end_ms = reads.now_ms // HOUR_MS * HOUR_MS
    start_ms = end_ms - DEMAND_DAYS * 24 * HOUR_MS
    with reads.engine().connect() as connection:
        found = demand(connection, start_ms, end_ms, "pool")
    chosen = [one for one in found if pool in {None, one.name}]
    if pool is not None and not chosen:
        raise HTTPException(404, f"no pool {pool!r} held GPUs in the last {DEMAND_DAYS} days")
    return chosen


def forecast_of(reads: Reads, horizon_hours: int, pool: str | None) -> dict[str, Any]:
    """Quantiles of demand per pool."""
    from gpuledger_collector.insight.forecast import forecast as compute
    from gpuledger_collector.storage.capacity.demand import lives

    usable = [one for one in demand_of(reads, pool) if one.known]
    end_ms = reads.now_ms // HOUR_MS * HOUR_MS
    with reads.engine().connect() as connection:
        behind = lives(connection, end_ms - DEMAND_DAYS * 24 * HOUR_MS, end_ms, "pool")
    items = []
    for entry in compute(usable, horizon_hours, workloads=behind) if usable else []:
        names = [f"q{quantile:g}" for quantile in entry.quantiles]
        points = [
            {"ts": format_instant(int(at)), "mean": mean, **dict(zip(names, row, strict=True))}
            for at, mean, row in zip(
                entry.at_ms, entry.mean.round(6).tolist(), entry.values.round(6).tolist(), strict=True
            )
        ]
        items.append({"pool": entry.series, "note": entry.note, "points": points})
    return {"items": items, "next": None}


def forecast_history_of(reads: Reads, pool: str | None) -> dict[str, Any]:
    """The record of each pool's kept forecasts, as `gpuledger forecast history --format json`."""
    from gpuledger_collector.storage.capacity.backtests import records

    with reads.engine().connect() as connection:
        return {"items": [asdict(one) for one in records(connection, "pool", pool)], "next": None}


def decided(
    reads: Seen, pool: str | None, delay_s: int | None, otherwise_s: int | None = None
) -> dict[str, ScalingDecision | str]:
    """What would be decided now for the pools, by their own limits and what was decided before; nothing is recorded.

    The lead time is `delay_s`, else the pool's own, else `otherwise_s`. A sentence instead where the demand is not
    known of late. Raises 404 for a pool that the ledger does not know.
    """
    from gpuledger_collector.insight.scaling.pools import DEFAULT_LEAD_MS, ScalingTerms, decide, explain_no_decision
    from gpuledger_collector.storage.capacity import scaling

    usual = ScalingTerms("", lead_ms=DEFAULT_LEAD_MS if otherwise_s is None else otherwise_s * 1000)
    made: dict[str, ScalingDecision | str] = {}
    with reads.engine().connect() as connection:
        demand = scaling.demand(connection, reads.now_ms, pool)
        if pool is not None and not demand:
            raise HTTPException(404, f"no pool {pool!r} held GPUs in the last {scaling.DEMAND_DAYS} days")
        terms = scaling.terms(connection)
        for one in demand:
            own = terms.get(one.pool) or replace(usual, pool=one.pool)
            own = own if delay_s is None else replace(own, lead_ms=delay_s * 1000)
            rate = None if own.money_per_hour is None else scaling.rate(connection, one.pool, reads.now_ms)
            past = scaling.past(connection, one.pool, reads.now_ms)
            made[one.pool] = decide(one, own, reads.now_ms, rate, past) or explain_no_decision(one)
    return made


def desired_of(reads: Seen, delay_s: int) -> dict[str, float]:
    """Desired GPUs of every pool by name, without those whose demand is not known of late.

    `delay_s` is for pools that declare no lead time of their own.
    """
    found = decided(reads, None, None, delay_s)
    return {pool: made.advice.desired_gpus for pool, made in found.items() if not isinstance(made, str)}


def outcomes_of(reads: Seen) -> dict[tuple[str, str], float]:
    """GPU-seconds of the last 28 days by pool and kind, had what was decided been followed."""
    from gpuledger_collector.storage.capacity import scaling

    with reads.engine().connect() as connection:
        return scaling.sums(connection, reads.now_ms - 28 * 24 * HOUR_MS)


def scaling_of(reads: Seen, pool: str, delay_s: int | None) -> dict[str, Any]:
    """Advice for one pool, flat, with numbers as numbers (KEDA's metrics-api scaler reads `desired_gpus`)."""
    (decision,) = decided(reads, pool, delay_s).values()
    if isinstance(decision, str):
        raise HTTPException(503, decision, {"Retry-After": RETRY_AFTER_SECONDS})
    advice = decision.advice
    return {
        "pool": pool,
        "desired_gpus": advice.desired_gpus,
        "desired_nodes": advice.desired_nodes,
        "demand_gpus": advice.demand_now,
        "reactive_gpus": advice.reactive_gpus,
        "limited": advice.desired_gpus < advice.demand_now,
        "mode": advice.mode,
        "acting": decision.mode == "act",
        "lead_s": decision.lead_ms // 1000,
        "reason": advice.reason,
        "as_of": format_instant(advice.as_of_ms),
        "valid_until": format_instant(advice.valid_until_ms),
    }
