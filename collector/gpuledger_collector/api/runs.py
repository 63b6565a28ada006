"""Runs over HTTP: what they cost and produced, and the progress that a training script reports of
itself.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Path, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request

from gpuledger_collector.accounting.counters import MAX_COUNTED, REPORTED
from gpuledger_collector.accounting.period import parse_instant
from gpuledger_collector.api.auth.principal import Principal
from gpuledger_collector.api.context import (
    REFUSALS,
    End,
    LedgerRoute,
    PeriodName,
    ReadContext,
    ReadRoute,
    Start,
    requested_days,
    require_reader,
)
from gpuledger_collector.api.intake import Intake, authenticate_agent
from gpuledger_collector.api.limits import OverQuota
from gpuledger_collector.export.runs import run_json
from gpuledger_collector.services import runs
from gpuledger_collector.services.billing_calendar import calendar_of
from gpuledger_collector.services.database import Database

PROGRESS_PATH = "/v1/runs/{workload:name}/progress"
MAX_LISTED = 500


class Progress(BaseModel):
    """What a run has done since it began: totals that only grow, as it counts them.

    At least one of the four.
    """

    model_config = ConfigDict(extra="forbid")

    steps: Annotated[int | None, Field(ge=0, le=MAX_COUNTED, description="Training steps.")] = None
    tokens: Annotated[int | None, Field(ge=0, le=MAX_COUNTED, description="Tokens trained on.")] = (
        None
    )
    samples: Annotated[
        int | None, Field(ge=0, le=MAX_COUNTED, description="Samples trained on.")
    ] = None
    epochs: Annotated[
        int | None, Field(ge=0, le=MAX_COUNTED, description="Passes over the training set.")
    ] = None
    at: Annotated[
        str | None, Field(max_length=64, description="RFC 3339 with zone; default: now.")
    ] = None
    started_at: Annotated[
        str | None,
        Field(max_length=64, description="When this process began; a later one means a restart."),
    ] = None


def progress_router(context: ReadContext, intake: Intake) -> APIRouter:
    """The route of reports, which count against the quota of their node's samples."""
    routes = APIRouter(tags=["runs"], route_class=LedgerRoute)

    @routes.post(
        PROGRESS_PATH,
        status_code=202,
        responses={
            400: {"description": "No counter, or an impossible instant."},
            401: {"description": "No valid agent token."},
            403: {"description": "The token is a reader's."},
            404: {
                "description": (
                    "Not exactly one run with this key, id or name holds a GPU that the token may"
                    " see."
                )
            },
            429: {
                "description": (
                    "The node, or the token for any node, is over its quota: retry after"
                    " Retry-After."
                )
            },
            503: {"description": "Database unavailable; retry later."},
        },
    )
    async def progress(
        workload: Annotated[
            str, Path(max_length=1000, description="Its key, its id at the scheduler, or its name.")
        ],
        report: Progress,
        request: Request,
    ) -> dict[str, Any]:
        """Report how far a run has come.

        The same report again changes nothing; order does not matter.
        """
        sender = await authenticate_agent(request, context.keys)
        try:
            intake.quotas.take_progress(sender.payer)
        except OverQuota as error:
            intake.refusals.note("progress", error)
            raise HTTPException(429, str(error), {"Retry-After": str(error.retry_after)}) from error
        return await asyncio.to_thread(
            _record, context.database, workload, report, sender, context.now_ms
        )

    return routes


def router(context: ReadContext) -> APIRouter:
    """The route of readers."""
    routes = APIRouter(prefix="/v1", tags=["runs"], route_class=ReadRoute)
    reader = require_reader(context.keys)

    @routes.get("/runs", responses=REFUSALS)
    def list_runs(
        start: Start = "",
        end: End = "",
        period: PeriodName = "",
        limit: Annotated[
            int, Query(ge=1, le=MAX_LISTED, description="Largest number of runs in the answer.")
        ] = 100,
        principal: Principal = reader,
    ) -> dict[str, Any]:
        """Runs that were charged in a period, dearest first, with the cost of a unit of their
        output.
        """
        with context.database.transaction(read_only=True) as connection:
            try:
                days = requested_days(calendar_of(connection), start, end, period)
            except ValueError as error:
                raise HTTPException(400, str(error)) from error
            charged = runs.list_runs(
                connection, days, principal.owner or {}, principal.owner, top=limit
            )
        return {
            "items": [run_json(item) for item in charged.items],
            "left_out": len(charged.others),
        }

    return routes


def _record(
    database: Database, name: str, report: Progress, sender: Principal, now_ms: int
) -> dict[str, Any]:
    try:
        at_ms, started_ms = (
            None if text is None else parse_instant(text) for text in (report.at, report.started_at)
        )
    except ValueError as error:
        raise HTTPException(400, str(error)) from error
    values = report.model_dump(include=set(REPORTED), exclude_none=True)
    try:
        key = runs.report_progress(
            database,
            name,
            runs.Progress(values, at_ms, started_ms, now_ms),
            sender.node,
            dry_run=False,
        )
    except runs.NotOneWorkload as error:
        what = "no run has" if not error.count else f"{error.count} runs have"
        where = (
            "" if sender.node is None else f" and holds an accelerator of node {sender.node} now"
        )
        raise HTTPException(
            404, f"{what} the key, the id or the name {name[:200]!r}{where}"
        ) from error
    except ValueError as error:
        raise HTTPException(400, str(error)) from error
    return {"run": key, "kept": values}
