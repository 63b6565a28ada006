"""GET /v1/idle and /v1/anomalies: open and resolved findings of the jobs, with amounts in
micro-units.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from gpuledger_collector.accounting.period import DAY_MS, Period, format_instant
from gpuledger_collector.api.auth.principal import Principal
from gpuledger_collector.api.context import (
    REFUSALS,
    After,
    Limit,
    ReadContext,
    ReadRoute,
    paginate,
    require_reader,
)
from gpuledger_collector.export.findings import ANOMALIES, FINDING_FACTS, IDLE
from gpuledger_collector.export.report import Report
from gpuledger_collector.insight.findings import NamedFinding
from gpuledger_collector.services.findings import Kind, list_findings

Days = Annotated[int, Query(ge=1, le=400, description="How many days back from now.")]
OpenOnly = Annotated[bool, Query(description="Only ongoing ones.")]
REPORTS: dict[Kind, Report[NamedFinding]] = {"idle": IDLE, "anomaly": ANOMALIES}


def router(context: ReadContext) -> APIRouter:
    """The routes."""
    routes = APIRouter(prefix="/v1", tags=["findings"], responses=REFUSALS, route_class=ReadRoute)
    reader = require_reader(context.keys)

    @routes.get("/idle")
    def idle(
        days: Days = 7,
        open_only: OpenOnly = False,
        limit: Limit = 100,
        after: After = "",
        principal: Principal = reader,
    ) -> dict[str, Any]:
        """Idle accelerators: state, owner, since when, confidence, cost so far and per day, by key."""
        return page_of_findings(context, "idle", days, open_only, limit, after, principal)

    @routes.get("/anomalies")
    def anomalies(
        days: Days = 30,
        open_only: OpenOnly = False,
        limit: Limit = 100,
        after: After = "",
        principal: Principal = reader,
    ) -> dict[str, Any]:
        """Episodes of unusual spending, with price, volume and mix against the same hours before,
        by key.

        Amounts are of GPU-time at the rates of the price book, without node costs, commitments and
        adjustments.
        """
        return page_of_findings(context, "anomaly", days, open_only, limit, after, principal)

    return routes


def page_of_findings(
    context: ReadContext,
    kind: Kind,
    days: int,
    open_only: bool,
    limit: int,
    after: str,
    principal: Principal,
) -> dict[str, Any]:
    """One page of findings, and up to when the job has looked (None: it never ran)."""
    now_ms = context.now_ms
    with context.database.transaction(read_only=True) as connection:
        found = list_findings(
            connection, kind, Period(now_ms - days * DAY_MS, now_ms + 1), principal
        )
    shown = (found.ongoing if open_only else found).by_key()
    # One more than asked for, which says that there is a next page.
    asked = [item for item in shown.items if item.key > after][: limit + 1]
    items = [finding_json(item, REPORTS[kind]) for item in asked]
    looked_until = None if found.looked_ms is None else format_instant(found.looked_ms)
    return {**paginate(items, limit, "key"), "looked_until": looked_until}


def finding_json(finding: NamedFinding, report: Report[NamedFinding]) -> dict[str, Any]:
    """A finding by the columns of its report, and by the names that it had before: those win where
    both have one.
    """
    named = FINDING_FACTS.exact(finding)
    return named | report.exact(finding) | named
