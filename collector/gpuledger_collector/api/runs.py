"""Runs over HTTP: what they cost and produced, and the progress that a training script reports of itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

import psycopg
from fastapi import APIRouter, HTTPException, Path, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request

from gpuledger_collector.accounting.counters import MAX_COUNTED
from gpuledger_collector.accounting.period import date_range, parse_instant
from gpuledger_collector.api.auth.keys import KeysUnavailable
from gpuledger_collector.api.auth.principal import Denied, Principal
from gpuledger_collector.api.intake import authenticate_agent
from gpuledger_collector.api.reads import REFUSALS, Reads, guarded, may_read
from gpuledger_collector.export.runs import run_json
from gpuledger_collector.services.run_report import chief_unit_costs, record_progress
from gpuledger_collector.storage.access.row_level_security import as_viewer
from gpuledger_collector.storage.findings import recommendations
from gpuledger_collector.storage.ledger import runs, zones

MAX_LISTED = 500


class Progress(BaseModel):
    """What a run has done since it began: totals that only grow, as it counts them. At least one of the three."""

    model_config = ConfigDict(extra="forbid")

    steps: Annotated[int | None, Field(ge=0, le=MAX_COUNTED, description="Training steps.")] = None
    tokens: Annotated[int | None, Field(ge=0, le=MAX_COUNTED, description="Tokens trained on.")] = None
    samples: Annotated[int | None, Field(ge=0, le=MAX_COUNTED, description="Samples trained on.")] = None
    at: Annotated[str | None, Field(max_length=64, description="RFC 3339 with zone; default: now.")] = None
    started_at: Annotated[
        str | None, Field(max_length=64, description="When this process began; a later one means a restart.")
    ] = None


def router(reads: Reads, connect: Callable[[], psycopg.Connection[tuple[Any, ...]]]) -> APIRouter:
    """The routes. `connect` opens a connection that may write."""
    routes = APIRouter(prefix="/v1", tags=["runs"])
    reader = may_read(reads.keys)

    @routes.post(
        "/runs/{workload:name}/progress",
        status_code=202,
        responses={
            400: {"description": "No counter, or an impossible instant."},
            401: {"description": "No valid agent token."},
            403: {"description": "The token is a reader's."},
            404: {"description": "Not exactly one run with this key, id or name holds a GPU that the token may see."},
            503: {"description": "Database unavailable; retry later."},
        },
    )
    async def progress(
        workload: Annotated[str, Path(max_length=1000, description="Its key, its id at the scheduler, or its name.")],
        report: Progress,
        request: Request,
    ) -> dict[str, Any]:
        """Report how far a run has come. The same report again changes nothing; order does not matter."""
        try:
            who = await authenticate_agent(request, reads.keys)
            return await asyncio.to_thread(_record, connect, workload, report, who, reads.now_ms)
        except Denied as denial:
            raise HTTPException(denial.status, str(denial)) from denial
        except (KeysUnavailable, psycopg.OperationalError) as error:
            raise HTTPException(503, "database unavailable; retry later") from error

    @routes.get("/runs", responses=REFUSALS)
    def list_runs(
        start: Annotated[str, Query(alias="from", description="First day (of the billing zone), included.")],
        end: Annotated[str, Query(alias="to", description="Last day (of the billing zone), not included.")],
        limit: Annotated[int, Query(ge=1, le=MAX_LISTED, description="Largest number of runs in the answer.")] = 100,
        who: Principal = reader,
    ) -> dict[str, Any]:
        """Runs that were charged in a period, dearest first, with the cost of a unit of their output."""
        return guarded(lambda: _list(reads, start, end, limit, who))

    return routes


def _list(reads: Reads, start: str, end: str, limit: int, who: Principal) -> dict[str, Any]:
    try:
        nominal = date_range(start, end)
    except ValueError as error:
        raise HTTPException(400, str(error)) from error
    with reads.ledger.transaction() as connection:
        period = zones.in_zone(connection, nominal)
        with as_viewer(connection, who.owner):
            rows = runs.listed(connection, period, who.owner or {})
        rows.sort(key=lambda row: (-(row.cost_micro or 0), row.key))
        units = chief_unit_costs(connection, rows[:limit], period)
    return {
        "items": [run_json(row, units.get((row.workload_id, row.currency))) for row in rows[:limit]],
        "left_out": max(len(rows) - limit, 0),
    }


def _record(
    connect: Callable[[], psycopg.Connection[tuple[Any, ...]]], name: str, report: Progress, who: Principal, now_ms: int
) -> dict[str, Any]:
    try:
        at_ms, started_ms = (None if text is None else parse_instant(text) for text in (report.at, report.started_at))
    except ValueError as error:
        raise HTTPException(400, str(error)) from error
    values = report.model_dump(include={"steps", "tokens", "samples"}, exclude_none=True)
    with connect() as connection:
        # A token bound to a node learns nothing of other nodes: their runs are as if they did not exist.
        workloads = recommendations.workloads_called(connection, name, who.node)
        if len(workloads) != 1:
            what = "no run has" if not workloads else f"{len(workloads)} runs have"
            where = "" if who.node is None else f" and holds an accelerator of node {who.node} now"
            raise HTTPException(404, f"{what} the key, the id or the name {name[:200]!r}{where}")
        workload_id, key, *_ = workloads[0]
        try:
            record_progress(connection, workload_id, values, at_ms, started_ms, now_ms)
        except ValueError as error:
            raise HTTPException(400, str(error)) from error
    return {"run": key, "kept": values}
