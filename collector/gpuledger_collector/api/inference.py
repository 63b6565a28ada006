"""Shared model servers over HTTP: what tenants pay, and what servers cost."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query

from gpuledger_collector.accounting.inference_lines import DEFAULT_KEYS, KEYS
from gpuledger_collector.api.auth.principal import Principal
from gpuledger_collector.api.context import (
    MAX_ROWS,
    REFUSALS,
    End,
    PeriodName,
    ReadContext,
    ReadRoute,
    Start,
    requested_days,
    require_reader,
    split_names,
)
from gpuledger_collector.export.inference import INFERENCE_SERVERS, inference_report
from gpuledger_collector.services.billing_calendar import calendar_of
from gpuledger_collector.services.inference_costs import NoHours, read_inference


def router(context: ReadContext) -> APIRouter:
    """The route of readers."""
    routes = APIRouter(prefix="/v1", tags=["inference"], route_class=ReadRoute)
    reader = require_reader(context.keys)

    @routes.get("/inference", responses=REFUSALS)
    def list_inference(
        by: Annotated[
            str, Query(description=f"Keys of a row, with commas between: {', '.join(KEYS)}.")
        ] = ",".join(DEFAULT_KEYS),
        start: Start = "",
        end: End = "",
        period: PeriodName = "",
        limit: Annotated[
            int, Query(ge=1, le=MAX_ROWS, description="Largest number of lines in the answer.")
        ] = MAX_ROWS,
        principal: Principal = reader,
    ) -> dict[str, Any]:
        """What tenants of shared model servers pay for a period, dearest first, and what the
        servers cost. A viewer sees the lines of its own owner.
        """
        keys = split_names(by)
        if not keys or not set(keys) <= set(KEYS):
            raise HTTPException(422, f"by: known keys are {', '.join(KEYS)}")
        with context.database.transaction(read_only=True) as connection:
            try:
                days = requested_days(calendar_of(connection), start, end, period)
            except ValueError as error:
                raise HTTPException(400, str(error)) from error
            try:
                answer = read_inference(connection, days, keys, principal.owner)
            except NoHours as error:
                raise HTTPException(422, str(error)) from error
        report = inference_report(keys)
        return {
            "items": [report.exact(line) for line in answer.lines[:limit]],
            "left_out": max(len(answer.lines) - limit, 0),
            "servers": [INFERENCE_SERVERS.exact(server) for server in answer.servers],
            "notes": list(answer.notes),
        }

    return routes
