"""GET /v1/recommendations: what to do about waste, what it would have saved, what it saved, and
what was not judged.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from gpuledger_collector.accounting.period import format_instant
from gpuledger_collector.api.auth.principal import Principal
from gpuledger_collector.api.context import (
    REFUSALS,
    After,
    Limit,
    ReadContext,
    ReadRoute,
    paginate,
    require_reader,
    split_names,
)
from gpuledger_collector.storage.findings.recommendations import last_run, listed
from gpuledger_collector.storage.row_level_security import as_viewer

STATES = ("open", "accepted", "rejected", "done", "expired")
State = Annotated[str, Query(description=f"States, separated by commas: {', '.join(STATES)}.")]
FIELDS = (
    "id",
    "key",
    "kind",
    "subject",
    "team",
    "owner",
    "advice",
    "state",
    "currency",
    "freed_gpu_ns",
    "price_ids",
    "evidence",
    "decided_by",
    "reason",
    "realized_micro",
    "realized",
)
INSTANTS = ("start_ms", "end_ms", "made_ms", "expires_ms", "decided_ms", "realized_until_ms")


def router(context: ReadContext) -> APIRouter:
    """The route."""
    routes = APIRouter(prefix="/v1", tags=["findings"], responses=REFUSALS, route_class=ReadRoute)
    reader = require_reader(context.keys)

    @routes.get("/recommendations")
    def recommendations(
        state: State = "open,accepted",
        limit: Limit = 100,
        after: After = "",
        principal: Principal = reader,
    ) -> dict[str, Any]:
        """Savings of the observed window as low, expected and high: cash, freed capacity and energy
        apart, by key.

        Amounts are of GPU-time at the rates of the price book, without node costs, commitments and
        adjustments. `joint` is all open advice followed at once; the items overlap and must not be
        added up. It and `not_evaluated` concern the entire fleet and are left out for a token that
        sees one owner's part.
        """
        states = split_names(state)
        if unknown := [name for name in states if name not in STATES]:
            raise ValueError(f"state: {unknown[0]!r} is not one of {', '.join(STATES)}")
        with context.database.transaction(read_only=True) as connection:
            with as_viewer(connection, principal.owner):
                rows = [
                    row
                    for row in listed(connection, list(states))
                    if principal.sees(row["owner"] or {}, row["team"] or "")
                ]
            run = last_run(connection)
        items = sorted(
            (_as_json(row) for row in rows if row["key"] > after), key=lambda item: str(item["key"])
        )
        looked_until = None if run is None else format_instant(run["made_ms"])
        answer = {**paginate(items, limit, "key"), "looked_until": looked_until}
        if run is not None and principal.owner is None:
            answer |= {"joint": run["joint"], "not_evaluated": run["not_evaluated"]}
        return answer

    return routes


def _as_json(row: dict[str, Any]) -> dict[str, Any]:
    """A recommendation: instants in RFC 3339, money as integers of micro-units, null where it is
    unknown.
    """
    instants = {
        name.removesuffix("_ms"): None if row[name] is None else format_instant(row[name])
        for name in INSTANTS
    }
    amounts = {
        f"{kind}_micro": {
            which: row[f"{kind}_{which}_micro"] for which in ("low", "expected", "high")
        }
        for kind in ("cash", "capacity", "energy")
    }
    return {**{name: row[name] for name in FIELDS}, **instants, **amounts}
