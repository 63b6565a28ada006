"""Runs over HTTP: what they cost and produced, and POST /v1/runs/{workload}/progress by the training script itself.

The report of a run is gathered here for the command and for readers alike.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import psycopg
from fastapi import APIRouter, HTTPException, Path, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request

from gpuledger_collector.accounting.counting import LATEST_DAYS, MOST_COUNTED, CounterReading
from gpuledger_collector.accounting.period import (
    DAY_MS,
    HOUR_MS,
    UTC_DAYS,
    Calendar,
    Period,
    date_range,
    format_instant,
    parse_instant,
)
from gpuledger_collector.accounting.unit_cost import UnitCost, hour_costs, unit_costs
from gpuledger_collector.api.auth.keys import KeysAway
from gpuledger_collector.api.auth.principal import Denied, Principal
from gpuledger_collector.api.batches import sender_of
from gpuledger_collector.api.reads import REFUSALS, Reads, guarded, may_read
from gpuledger_collector.ingest.batches import counters
from gpuledger_collector.insight import run_report as made_of
from gpuledger_collector.insight.bottlenecks import Gpu, judge
from gpuledger_collector.services.waste_receipt import receipt
from gpuledger_collector.storage.access.row_level_security import behind
from gpuledger_collector.storage.findings import recommendations
from gpuledger_collector.storage.ledger import runs, zones

PEER_DAYS = 365
MOST_PEERS = 10
JUDGED_HOURS = 24
"""Bottlenecks are judged on the last whole hours of a run: a run of weeks has too many minutes to read for a page."""
FUTURE_MS = 300_000
MOST_LISTED = 500
Bucket = Callable[[int], int]


class Progress(BaseModel):
    """What a run has done since it began: totals that only grow, as it counts them. At least one of the three."""

    model_config = ConfigDict(extra="forbid")

    steps: Annotated[int | None, Field(ge=0, le=MOST_COUNTED, description="Training steps.")] = None
    tokens: Annotated[int | None, Field(ge=0, le=MOST_COUNTED, description="Tokens trained on.")] = None
    samples: Annotated[int | None, Field(ge=0, le=MOST_COUNTED, description="Samples trained on.")] = None
    at: Annotated[str | None, Field(max_length=64, description="RFC 3339 with zone; without it, now.")] = None
    started_at: Annotated[str | None, Field(max_length=64, description="When this process began; tells a restart.")] = (
        None
    )


def router(reads: Reads, connect: Callable[[], psycopg.Connection[tuple[Any, ...]]]) -> APIRouter:
    """The routes. `connect` opens a connection that may write."""
    made = APIRouter(prefix="/v1", tags=["runs"])
    reader = may_read(reads.keys)

    @made.post(
        "/runs/{workload:name}/progress",
        status_code=202,
        responses={
            400: {"description": "No counter, or an instant that cannot be."},
            401: {"description": "No valid agent's token."},
            403: {"description": "The token is a reader's."},
            404: {"description": "No run has this key, id or name and holds a GPU of the token's node, or several do."},
            503: {"description": "The database is away: say it again later."},
        },
    )
    async def progress(
        workload: Annotated[str, Path(max_length=1000, description="Its key, its id at the scheduler, or its name.")],
        told: Progress,
        request: Request,
    ) -> dict[str, Any]:
        """Say how far a run has come. The same report again changes nothing; order does not matter."""
        try:
            who = await sender_of(request, reads.keys)
            return await asyncio.to_thread(_written, connect, workload, told, who, reads.now_ms)
        except Denied as denial:
            raise HTTPException(denial.status, str(denial)) from denial
        except (KeysAway, psycopg.OperationalError) as error:
            raise HTTPException(503, "the database is away: say it again later") from error

    @made.get("/runs", responses=REFUSALS)
    def list_runs(
        start: Annotated[str, Query(alias="from", description="First day (of the billing zone), included.")],
        end: Annotated[str, Query(alias="to", description="Last day (of the billing zone), not included.")],
        limit: Annotated[int, Query(ge=1, le=MOST_LISTED, description="Most runs of one answer.")] = 100,
        who: Principal = reader,
    ) -> dict[str, Any]:
        """Runs that were charged in a period, dearest first, with what a unit of their output cost."""
        return guarded(lambda: _listed(reads, start, end, limit, who))

    return made


def _listed(reads: Reads, start: str, end: str, limit: int, who: Principal) -> dict[str, Any]:
    try:
        nominal = date_range(start, end)
    except ValueError as error:
        raise HTTPException(400, str(error)) from error
    with reads.ledger.connect() as connection:
        period = zones.in_zone(connection, nominal)
        with behind(connection, who.owner):
            rows = runs.listed(connection, period, who.owner or {})
        rows.sort(key=lambda row: (-(row.cost_micro or 0), row.key))
        units = units_of(connection, rows[:limit], period)
    return {
        "items": [run_json(row, units.get((row.workload_id, row.currency))) for row in rows[:limit]],
        "left_out": max(len(rows) - limit, 0),
    }


def run_json(row: runs.RunRow, unit: UnitCost | None) -> dict[str, Any]:
    """A run of a list: integers of micro-units, instants in RFC 3339."""
    return {
        "key": row.key,
        "kind": row.kind,
        "id": row.external_id,
        "name": row.name,
        "user": row.user,
        "team": row.team,
        "gpu_model": row.gpu_model,
        "accelerators": row.accelerators,
        "from": format_instant(row.start_ms),
        "to": format_instant(row.end_ms),
        "gpu_ns": row.gpu_ns,
        "busy_ns": row.busy_ns,
        "idle_ns": row.idle_ns,
        "unknown_ns": row.unknown_ns,
        "currency": row.currency,
        "cost_micro": row.cost_micro,
        "idle_cost_micro": row.idle_cost_micro,
        "energy_mj": row.energy_mj,
        "unit_cost": None if unit is None else unit_json(unit),
    }


def unit_json(one: UnitCost) -> dict[str, Any]:
    """A unit cost: the decimal that people read, and the integers that it is made of."""
    return {
        "counter": one.counter,
        "from": format_instant(one.bucket_ms) if one.bucket_ms else None,
        "currency": one.currency,
        "per": one.per,
        "cost": None if one.cost is None else str(one.cost),
        "used_cost": None if one.used_cost is None else str(one.used_cost),
        "units": one.units,
        "cost_micro": one.cost_micro,
        "used_micro": one.used_micro,
        "charged_micro": one.charged_micro,
        "held_ms": one.held_ms,
        "covered_ms": one.covered_ms,
        "coverage": f"{one.coverage:.6f}",
        "restarts": one.restarts,
    }


def _written(
    connect: Callable[[], psycopg.Connection[tuple[Any, ...]]], name: str, told: Progress, who: Principal, now_ms: int
) -> dict[str, Any]:
    instants = {"at": told.at, "started_at": told.started_at}
    try:
        at_ms, started_ms = (None if text is None else parse_instant(text) for text in instants.values())
    except ValueError as error:
        raise HTTPException(400, str(error)) from error
    values = {name: value for name in ("steps", "tokens", "samples") if (value := getattr(told, name)) is not None}
    with connect() as connection:
        # A bound token learns nothing of other nodes: runs there are as if they did not exist.
        found = recommendations.workloads_called(connection, name, who.node)
        if len(found) != 1:
            what = "no run has" if not found else f"{len(found)} runs have"
            where = "" if who.node is None else f" and holds an accelerator of node {who.node} now"
            raise HTTPException(404, f"{what} the key, the id or the name {name[:200]!r}{where}")
        try:
            report(connection, found[0][0], values, at_ms, started_ms, now_ms)
        except ValueError as error:
            raise HTTPException(400, str(error)) from error
    return {"run": found[0][1], "kept": values}


def report(
    connection: psycopg.Connection[tuple[Any, ...]],
    workload_id: int,
    values: Mapping[str, int],
    at_ms: int | None,
    started_ms: int | None,
    now_ms: int,
) -> None:
    """Keep what a run says of itself. Raises ValueError with a sentence."""
    at_ms = now_ms if at_ms is None else at_ms
    if not values:
        raise ValueError("say at least one of steps, tokens and samples")
    if not now_ms - LATEST_DAYS * DAY_MS <= at_ms <= now_ms + FUTURE_MS:
        raise ValueError(f"{format_instant(at_ms)} is more than {LATEST_DAYS} days ago, or lies ahead")
    with connection.transaction():
        counters.keep(
            connection,
            [
                (
                    counters.Series(workload_id, "reported", "run", "", counter, "run"),
                    CounterReading(at_ms, value, started_ms),
                )
                for counter, value in values.items()
            ],
        )


def units_of(
    connection: psycopg.Connection[tuple[Any, ...]], rows: list[runs.RunRow], period: Period
) -> dict[tuple[int, str | None], UnitCost]:
    """The cost of the chief unit of those of these runs that counted anything, by run and currency."""
    counted = runs.counted(connection, [row.workload_id for row in rows], period)
    found: dict[tuple[int, str | None], UnitCost] = {}
    for workload_id, counts in counted.items():
        charges = [
            one
            for one in recommendations.charged_to(connection, workload_id)
            if period.start_ms <= one.day_ms < period.end_ms
        ]
        held = _held(connection, workload_id, charges, period)
        units = unit_costs(hour_costs(charges, held), counts)
        for currency in {one.currency for one in units}:
            chief = made_of.chief_of([one for one in units if one.currency == currency])
            if chief is not None:
                found[workload_id, currency] = chief
    return found


def _held(
    connection: psycopg.Connection[tuple[Any, ...]], workload_id: int, charges: list[Any], period: Period
) -> list[Any]:
    cards = sorted({one.accelerator_id for one in charges if one.accelerator_id is not None})
    return runs.held_hours(connection, workload_id, cards, period)


def report_of(
    connection: psycopg.Connection[tuple[Any, ...]],
    workload_id: int,
    bucket: str | None,
    now_ms: int,
    period: Period | None = None,
) -> made_of.RunReport | None:
    """The report of a run over all of its charges, or those of a period; None where it was charged nothing.

    `bucket`: what a unit cost by hour, day or month; None: over the whole run only.
    """
    charges = [
        one
        for one in recommendations.charged_to(connection, workload_id)
        if period is None or period.start_ms <= one.day_ms < period.end_ms
    ]
    if not charges:
        return None
    calendar = zones.calendar(connection)
    last = calendar.day_of(max(one.day_ms for one in charges))
    span = Period(min(one.day_ms for one in charges), last.end_ms)
    (row, *_) = runs.rows_of(connection, [workload_id], span)
    held = _held(connection, workload_id, charges, span)
    hours = hour_costs(charges, held)
    counts = runs.counted(connection, [workload_id], span).get(workload_id, [])
    units = unit_costs(hours, counts)
    gpus = _gpus(connection, held)
    peers = _peers(connection, calendar, row, now_ms)
    findings = [
        one
        for one in recommendations.findings_of(connection, workload_id)
        if one.since_ms < span.end_ms and one.until_ms > span.start_ms
    ]
    return made_of.RunReport(
        key=row.key,
        name=row.called,
        user=row.user,
        team=row.team,
        kind=row.kind,
        made_ms=now_ms,
        receipt=receipt(charges, findings, recommendations.advice_for(connection, workload_id)),
        hours=hours,
        days=made_of.days_of(held, hours, calendar),
        parts=made_of.parts_of(held, hours),
        energy_mj=made_of.energy_of(charges),
        units=units,
        by=() if bucket is None else unit_costs(hours, counts, bucket_of(bucket, calendar)),
        restarts=max((one.restarts for one in units), default=0),
        outcome=runs.outcomes(connection, [workload_id]).get(workload_id, ""),
        peers=peers,
        scaling=made_of.scaling_of(peers),
        gpus=gpus,
        judgement=judge(gpus),
        notes=_notes(counts, units),
    )


def _gpus(connection: psycopg.Connection[tuple[Any, ...]], held: list[Any]) -> list[Gpu]:
    readings = runs.minutes(connection, runs.whole_hours(held, JUDGED_HOURS))
    names = runs.named_cards(connection, sorted(readings))
    return [Gpu(*names[card], readings[card]) for card in sorted(readings)]


def _peers(
    connection: psycopg.Connection[tuple[Any, ...]], calendar: Calendar, row: runs.RunRow, now_ms: int
) -> list[made_of.Peer]:
    """This run and the newest others of its name and team."""
    period = Period(row.end_ms - PEER_DAYS * DAY_MS, max(row.end_ms, now_ms))
    owner = {"team": row.team} if row.team else {}
    like = [] if row.name is None else runs.listed(connection, period, owner, row.name)
    others = sorted(
        (one for one in like if one.workload_id != row.workload_id and one.currency == row.currency),
        key=lambda one: -one.start_ms,
    )[:MOST_PEERS]
    chosen = [row, *others]
    ended = runs.outcomes(connection, [one.workload_id for one in chosen])
    found = []
    for one in chosen:
        days = Period(calendar.day_of(one.start_ms).start_ms, one.end_ms)
        unit = units_of(connection, [one], days).get((one.workload_id, one.currency))
        rate = None
        if unit is not None:
            charges = recommendations.charged_to(connection, one.workload_id)
            rate = made_of.per_gpu_hour(unit, charges, _held(connection, one.workload_id, charges, days))
        found.append(
            made_of.Peer(
                one.key,
                one.start_ms,
                one.end_ms,
                one.accelerators,
                one.gpu_ns,
                one.busy_ns,
                one.idle_ns,
                one.currency,
                one.cost_micro,
                unit,
                rate,
                ended.get(one.workload_id, ""),
            )
        )
    return found


def _notes(counts: list[Any], units: list[UnitCost]) -> list[str]:
    notes = []
    if not counts:
        notes.append(
            "nothing counts what it produced: name its endpoint in the agent's serving_endpoints, or let it report "
            "(docs/guides/unit-cost.md)"
        )
    elif not units:
        notes.append("what it produced is counted, but its time has no price yet")
    notes += [
        f"{one.counter}: counted in {one.coverage:.1%} of the charged time; the rest is left out, not estimated"
        for one in units
        if one.covered_ms < one.held_ms
    ]
    if any(one.counter == "inferences" and one.units for one in units) and len({one.source for one in counts}) > 1:
        notes.append("several endpoints count for it; each stands for an equal part of it")
    return notes


def bucket_of(name: str, calendar: Calendar = UTC_DAYS) -> Bucket:
    """The begin of the hour, or of the day or month of the bill, of an hour. Raises ValueError for another name."""
    if name == "hour":
        return lambda at_ms: at_ms - at_ms % HOUR_MS
    if name == "day":
        return lambda at_ms: calendar.day_of(at_ms).start_ms
    if name == "month":
        return lambda at_ms: calendar.month(calendar.month_of(at_ms)).start_ms
    raise ValueError(f"{name!r} is none of hour, day, month")
