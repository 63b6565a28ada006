"""GET: what the ledger holds. The numbers are those of the commands, from the same services."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response

from gpuledger_collector.accounting.cash import AMORTIZED
from gpuledger_collector.accounting.chargeback import DIMENSIONS, report
from gpuledger_collector.accounting.period import format_instant
from gpuledger_collector.api.auth.principal import Principal
from gpuledger_collector.api.context import (
    REFUSALS,
    After,
    End,
    Limit,
    PeriodName,
    ReadContext,
    ReadRoute,
    Start,
    in_pieces,
    paginate,
    parse_days,
    requested_days,
    require_reader,
    split_names,
)
from gpuledger_collector.export.budgets import BUDGETS
from gpuledger_collector.export.chargeback import as_json
from gpuledger_collector.services.accelerators import UUID, list_activity
from gpuledger_collector.services.billing_calendar import calendar_of
from gpuledger_collector.services.budget_status import statuses
from gpuledger_collector.services.chargeback import read_bill
from gpuledger_collector.services.nodes import list_heartbeats

StartUtc = Annotated[
    str, Query(alias="from", description="First day (UTC), included, as 2026-10-01.")
]
EndUtc = Annotated[str, Query(alias="to", description="Last day (UTC), not included.")]
By = Annotated[str, Query(description=f"Dimensions, separated by commas: {', '.join(DIMENSIONS)}.")]
View = Annotated[
    Literal["amortized", "cash"],
    Query(description="Cost as it is borne hour by hour, or as it is paid on its day."),
]


def router(context: ReadContext) -> APIRouter:
    """The routes."""
    routes = APIRouter(prefix="/v1", tags=["ledger"], responses=REFUSALS, route_class=ReadRoute)
    reader, fleet = require_reader(context.keys), require_reader(context.keys, fleet=True)

    @routes.get("/chargeback")
    def chargeback(
        start: Start = "",
        end: End = "",
        period: PeriodName = "",
        by: By = "team",
        view: View = "amortized",
        principal: Principal = reader,
    ) -> Response:
        """What each owner pays, by the dimensions of `by`, as `gpuledger chargeback --format json`."""
        pieces = chargeback_json(context, start, end, by, principal, view, period)
        return in_pieces(pieces, "application/json")

    @routes.get("/accelerators")
    def accelerators(
        start: StartUtc,
        end: EndUtc,
        limit: Limit = 100,
        after: After = "",
        principal: Principal = fleet,
    ) -> dict[str, Any]:
        """Held, busy, idle, unknown, unallocated and unavailable milliseconds of each accelerator,
        by UUID.
        """
        period = parse_days(start, end)
        with context.connection(principal) as connection:
            rows = list_activity(connection, period, UUID)
        return paginate([asdict(row) for row in rows if row.uuid > after], limit, "uuid")

    @routes.get("/nodes")
    def nodes(
        limit: Limit = 100, after: After = "", principal: Principal = fleet
    ) -> dict[str, Any]:
        """Every node with the last heartbeat of its agent, by name; `status` is that of now, and
        `silent` where the heartbeat is overdue.
        """
        with context.connection(principal) as connection:
            heartbeats = list_heartbeats(connection, after, limit + 1, context.now_ms)
        return paginate([asdict(heartbeat) for heartbeat in heartbeats], limit, "name")

    @routes.get("/budgets")
    def budgets(principal: Principal = reader) -> dict[str, Any]:
        """Every budget in its current period: spent, forecast with its band, pace, run-out and
        alerts.
        """
        with context.connection(principal) as connection:
            listed = statuses(connection, context.now_ms, principal)
        return {"budgets": [BUDGETS.exact(status) for status in listed]}

    return routes


def chargeback_json(
    context: ReadContext,
    start: str,
    end: str,
    by: str,
    principal: Principal,
    view: str = AMORTIZED,
    name: str = "",
) -> Iterator[str]:
    """The chargeback as pieces of JSON; for a viewer only what its subtree pays.

    Raises ValueError for a viewer's cash view.
    """
    names = split_names(by) or ("team",)
    report([], names)  # refuses an unknown dimension before the database is asked
    if start and end:
        parse_days(start, end)  # refuses too many days
    with context.database.transaction(read_only=True) as connection:
        period = requested_days(calendar_of(connection), start, end, name)
        bill = read_bill(connection, period, names, context.now_ms, principal.owner, view)
    notes = [f"rated up to {format_instant(bill.rated_ms)}", *bill.notes]
    return as_json(bill.report, period, notes, bill.waste)
