"""GET /v1/audit: who changed what, for admins."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query

from gpuledger_collector.api.auth.principal import Principal
from gpuledger_collector.api.reads import REFUSALS, Limit, Reads, denials, guarded, may_read, page
from gpuledger_collector.storage.access import audit
from gpuledger_collector.storage.access.row_level_security import as_viewer

MOST_NUMBER = 2**63 - 1


def router(reads: Reads) -> APIRouter:
    """The route, bound to a ledger."""
    made = APIRouter(prefix="/v1", tags=["trust"], responses=REFUSALS)
    reader = may_read(reads.keys)

    @made.get("/audit")
    def entries(
        limit: Limit = 100,
        after: Annotated[int, Query(ge=0, le=MOST_NUMBER, description="`next` of the answer before.")] = 0,
        who: Principal = reader,
    ) -> dict[str, Any]:
        """The audit log from its first row on: who changed which price, rule, budget, token or month, and how."""
        with denials():
            who.require_admin()
        return guarded(lambda: entries_of(reads, limit, after, who))

    return made


def entries_of(reads: Reads, limit: int, after: int, who: Principal) -> dict[str, Any]:
    """One page of the log, by number."""
    with reads.ledger.transaction() as connection, as_viewer(connection, who.owner):
        found = [asdict(entry) for entry in audit.entries(connection, after, limit + 1)]
    for entry in found:
        entry |= {name: None if entry[name] is None else json.loads(entry[name]) for name in ("before", "after")}
    return page(found, limit, "number")
