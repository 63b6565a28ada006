"""Queues of Kubernetes schedulers over HTTP: their GPU-hours, quotas and evictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from gpuledger_collector.export.report import Report
from gpuledger_collector.export.scheduler_queues import EVICTIONS, QUEUE_TIMES, QUOTAS
from gpuledger_collector.services import scheduler_queues
from gpuledger_collector.services.billing_calendar import calendar_of
from gpuledger_collector.services.database import Connection

Limit = Annotated[
    int, Query(ge=1, le=MAX_ROWS, description="Largest number of rows in the answer.")
]
LISTS: Sequence[tuple[str, str, Report[Any], Callable[[Connection, Period], list[Any]]]] = (
    (
        "/queues",
        "GPU-hours of each queue of a Kubernetes scheduler: reserved, used, borrowed, lent, waited"
        " for, lost. Those that waited beside unused quota come first.",
        QUEUE_TIMES,
        scheduler_queues.list_times,
    ),
    (
        "/queues/quotas",
        "Quotas of queues with their limits as they were: a row for each change.",
        QUOTAS,
        scheduler_queues.list_quotas,
    ),
    (
        "/queues/evictions",
        "Workloads that Kueue stopped before they had finished, newest first.",
        EVICTIONS,
        scheduler_queues.list_evictions,
    ),
)
"""Each list by its address: what it is, its columns, and what answers it."""


def router(context: ReadContext) -> APIRouter:
    """The routes of readers of the whole fleet: a queue belongs to no owner."""
    routes = APIRouter(prefix="/v1", tags=["queues"], responses=REFUSALS, route_class=ReadRoute)
    fleet = require_reader(context.keys, fleet=True)

    def add(
        path: str,
        about: str,
        report: Report[Any],
        read: Callable[[Connection, Period], list[Any]],
    ) -> None:
        def list_rows(
            start: Start = "",
            end: End = "",
            period: PeriodName = "",
            limit: Limit = MAX_ROWS,
            principal: Principal = fleet,
        ) -> dict[str, Any]:
            with context.connection(principal) as connection:
                try:
                    days = requested_days(calendar_of(connection), start, end, period)
                except ValueError as error:
                    raise HTTPException(400, str(error)) from error
                items = read(connection, days)
            return {
                "items": [report.exact(item) for item in items[:limit]],
                "left_out": max(len(items) - limit, 0),
            }

        routes.add_api_route(path, list_rows, name=f"list_{report.name}", description=about)

    for path, about, report, read in LISTS:
        add(path, about, report, read)
    return routes
