"""GET /v1/idle and /v1/anomalies: open and resolved findings of the jobs, with amounts in micro-units."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query

from gpuledger_collector.accounting.period import DAY_MS, format_instant
from gpuledger_collector.api.auth.principal import Principal, visible
from gpuledger_collector.api.context import REFUSALS, After, Limit, ReadContext, ReadRoute, paginate, require_reader
from gpuledger_collector.storage.access.row_level_security import as_viewer
from gpuledger_collector.storage.findings.findings import named, progress

Days = Annotated[int, Query(ge=1, le=400, description="How many days back from now.")]
OpenOnly = Annotated[bool, Query(description="Only ongoing ones.")]
INSTANTS = ("since_ms", "opened_ms", "until_ms", "resolved_ms")
FIELDS = (
    "key",
    "state",
    "subject",
    "team",
    "owner",
    "model",
    "gpu_index",
    "workload",
    "workload_name",
    "user_name",
    "confidence",
    "currency",
    "cost_micro",
    "per_day_micro",
)


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
        return list_findings(context, "idle", days, open_only, limit, after, principal)

    @routes.get("/anomalies")
    def anomalies(
        days: Days = 30,
        open_only: OpenOnly = False,
        limit: Limit = 100,
        after: After = "",
        principal: Principal = reader,
    ) -> dict[str, Any]:
        """Episodes of unusual spending, with price, volume and mix against the same hours before, by key.

        Amounts are of GPU-time at the rates of the price book, without node costs, commitments and adjustments.
        """
        return list_findings(context, "anomaly", days, open_only, limit, after, principal)

    return routes


def list_findings(
    context: ReadContext,
    kind: Literal["idle", "anomaly"],
    days: int,
    open_only: bool,
    limit: int,
    after: str,
    principal: Principal,
) -> dict[str, Any]:
    """One page of findings, and up to when the job has looked (None: it never ran)."""
    now_ms = context.now_ms
    with context.database.transaction(read_only=True) as connection:
        with as_viewer(connection, principal.owner):
            rows = visible(named(connection, kind, now_ms - days * DAY_MS, now_ms + 1), principal)
        looked_ms = progress(connection, kind)
    items = [finding_json(row) for row in rows if not open_only or row["resolved_ms"] is None]
    ordered = sorted((item for item in items if item["key"] > after), key=lambda item: item["key"])
    looked_until = None if looked_ms is None else format_instant(looked_ms)
    return {**paginate(ordered, limit, "key"), "looked_until": looked_until}


def finding_json(row: dict[str, Any]) -> dict[str, Any]:
    """A finding: instants in RFC 3339, integers for money, waste as one sum."""
    instants = {name.removesuffix("_ms"): None if row[name] is None else format_instant(row[name]) for name in INSTANTS}
    evidence = dict(row["evidence"])
    if (wasted := evidence.pop("wasted_gpu_ns", None)) is not None:
        evidence["wasted_gpu_ns"] = sum(wasted.values())
    return {**{name: row[name] for name in FIELDS}, **instants, "evidence": evidence}
