"""Queues of Kubernetes schedulers over HTTP: their GPU-hours, quotas and evictions."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query

from gpuledger_collector.accounting.period import Period
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
)
from gpuledger_collector.export.report import Item, Report
from gpuledger_collector.export.scheduler_queues import EVICTIONS, QUEUE_TIMES, QUOTAS
from gpuledger_collector.services import scheduler_queues
from gpuledger_collector.services.billing_calendar import calendar_of
from gpuledger_collector.services.database import Connection

Limit = Annotated[
    int, Query(ge=1, le=MAX_ROWS, description="Largest number of rows in the answer.")
]


def router(context: ReadContext) -> APIRouter:
    """The routes of readers of the whole fleet: a queue belongs to no owner."""
    routes = APIRouter(prefix="/v1", tags=["queues"], responses=REFUSALS, route_class=ReadRoute)
    fleet = require_reader(context.keys, fleet=True)

    @routes.get("/queues")
    def list_queues(
        start: Start = "",
        end: End = "",
        period: PeriodName = "",
        limit: Limit = MAX_ROWS,
        principal: Principal = fleet,
    ) -> dict[str, Any]:
        """GPU-hours of each queue of a Kubernetes scheduler: reserved, used, borrowed, lent, waited
        for, lost.
        """
        with context.connection(principal) as connection:
            days = _days(connection, start, end, period)
            return _answer(QUEUE_TIMES, scheduler_queues.list_times(connection, days), limit)

    @routes.get("/queues/quotas")
    def list_quotas(
        start: Start = "",
        end: End = "",
        period: PeriodName = "",
        limit: Limit = MAX_ROWS,
        principal: Principal = fleet,
    ) -> dict[str, Any]:
        """Quotas of queues with their limits as they were: a row for each change."""
        with context.connection(principal) as connection:
            days = _days(connection, start, end, period)
            return _answer(QUOTAS, scheduler_queues.list_quotas(connection, days), limit)

    @routes.get("/queues/evictions")
    def list_evictions(
        start: Start = "",
        end: End = "",
        period: PeriodName = "",
        limit: Limit = MAX_ROWS,
        principal: Principal = fleet,
    ) -> dict[str, Any]:
        """Workloads that Kueue stopped before they had finished, newest first."""
        with context.connection(principal) as connection:
            days = _days(connection, start, end, period)
            return _answer(EVICTIONS, scheduler_queues.list_evictions(connection, days), limit)

    return routes


def _days(connection: Connection, start: str, end: str, period: str) -> Period:
    try:
        return requested_days(calendar_of(connection), start, end, period)
    except ValueError as error:
        raise HTTPException(400, str(error)) from error


def _answer(report: Report[Item], items: list[Item], limit: int) -> dict[str, Any]:
    return {
        "items": [report.exact(item) for item in items[:limit]],
        "left_out": max(len(items) - limit, 0),
    }
