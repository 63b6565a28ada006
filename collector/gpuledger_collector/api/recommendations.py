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
from gpuledger_collector.export.recommendations import RECOMMENDATION_FACTS, RECOMMENDATIONS
from gpuledger_collector.insight.recommendation_record import (
    STATES,
    StoredRecommendation,
)
from gpuledger_collector.services.recommendations import list_recommendations

State = Annotated[str, Query(description=f"States, separated by commas: {', '.join(STATES)}.")]


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
            listed = list_recommendations(connection, states, principal)
        run = listed.run
        items = sorted(
            (recommendation_json(item) for item in listed.items if item.key > after),
            key=lambda item: str(item["key"]),
        )
        looked_until = None if run is None else format_instant(run.made_ms)
        answer = {**paginate(items, limit, "key"), "looked_until": looked_until}
        if run is not None and principal.owner is None:
            answer |= {"joint": run.joint, "not_evaluated": run.not_evaluated}
        return answer

    return routes


def recommendation_json(item: StoredRecommendation) -> dict[str, Any]:
    """A recommendation by the columns of its report, and by the names that it had before: those win
    where both have one.
    """
    named = RECOMMENDATION_FACTS.exact(item)
    return named | RECOMMENDATIONS.exact(item) | named
