"""GET /v1/audit: who changed what, for admins."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query

from gpuledger_collector.api.auth.principal import Principal
from gpuledger_collector.api.context import (
    REFUSALS,
    Limit,
    ReadContext,
    ReadRoute,
    paginate,
    require_reader,
)
from gpuledger_collector.export.access import AUDIT
from gpuledger_collector.services.audit import list_changes

MAX_NUMBER = 2**63 - 1


def router(context: ReadContext) -> APIRouter:
    """The route."""
    routes = APIRouter(prefix="/v1", tags=["trust"], responses=REFUSALS, route_class=ReadRoute)
    admin = require_reader(context.keys, admin=True)

    @routes.get("/audit")
    def audit(
        limit: Limit = 100,
        after: Annotated[
            int, Query(ge=0, le=MAX_NUMBER, description="`next` of the previous answer.")
        ] = 0,
        principal: Principal = admin,
    ) -> dict[str, Any]:
        """The audit log from its first row on: who changed which price, rule, budget, token or
        month, and how.
        """
        entries = list_changes(context.database_for(principal), after, limit + 1)
        return paginate([asdict(entry) | AUDIT.exact(entry) for entry in entries], limit, "number")

    return routes
