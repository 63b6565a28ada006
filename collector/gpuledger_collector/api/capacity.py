"""GET: the demand of pools to come, how good past forecasts were, and how many GPUs a pool should
hold.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query

from gpuledger_collector.accounting.period import format_instant
from gpuledger_collector.api.auth.principal import Principal
from gpuledger_collector.api.context import REFUSALS, ReadContext, ReadRoute, require_reader
from gpuledger_collector.export.scaling import model_facts
from gpuledger_collector.services.forecasts import (
    forecast_pools,
    forecast_records,
    largest_pools,
)
from gpuledger_collector.services.scaling_advice import decide_pool, headroom_by_model

Pool = Annotated[str | None, Query(description="Only this pool.")]
PoolName = Annotated[str, Path(description="Name of the pool.")]
Horizon = Annotated[int, Query(ge=1, le=168, description="Hours to forecast.")]
Delay = Annotated[
    int | None,
    Query(
        ge=1,
        le=86_400,
        description="Seconds from an order to the GPU that serves; default: the pool's.",
    ),
]


def router(context: ReadContext) -> APIRouter:
    """The routes."""
    routes = APIRouter(prefix="/v1", tags=["ledger"], responses=REFUSALS, route_class=ReadRoute)
    fleet = require_reader(context.keys, fleet=True)

    @routes.get("/forecast")
    def forecast(
        horizon_hours: Horizon = 24, pool: Pool = None, principal: Principal = fleet
    ) -> dict[str, Any]:
        """Demand of a pool, or of those of most demand, as quantiles, hour by hour; `left_out` is
        how many other pools are known.
        """
        with context.connection(principal) as connection:
            largest = largest_pools(connection, context.now_ms, pool)
        items = []
        for entry in forecast_pools(largest.pools, horizon_hours, context.now_ms):
            names = [f"q{quantile:g}" for quantile in entry.quantiles]
            rows = zip(
                entry.at_ms,
                entry.mean.round(6).tolist(),
                entry.values.round(6).tolist(),
                strict=True,
            )
            points = [
                {
                    "ts": format_instant(int(at_ms)),
                    "mean": mean,
                    **dict(zip(names, values, strict=True)),
                }
                for at_ms, mean, values in rows
            ]
            items.append({"pool": entry.series, "note": entry.note, "points": points})
        return {"items": items, "left_out": largest.left_out, "next": None}

    @routes.get("/forecast/history")
    def forecast_history(pool: Pool = None, principal: Principal = fleet) -> dict[str, Any]:
        """How good past forecasts of each pool were: hours inside the band, loss compared with a
        naive forecast.
        """
        with context.connection(principal) as connection:
            return {
                "items": [asdict(record) for record in forecast_records(connection, "pool", pool)],
                "next": None,
            }

    @routes.get("/scaling/{pool:name}")
    def scaling(
        pool: PoolName, delay_s: Delay = None, principal: Principal = fleet
    ) -> dict[str, Any]:
        """GPUs that the pool should hold now, within its limits, as one object with numbers as numbers
        (KEDA's metrics-api scaler reads `desired_gpus`); 503 without a number when recent demand is
        unknown. `models`: the headroom of each model of a pool of several, the scarcest first.
        """
        with context.connection(principal) as connection:
            decision = decide_pool(connection, context.now_ms, pool, delay_s)
            models = headroom_by_model(connection, context.now_ms, pool, decision.lead_ms)
        advice = decision.advice
        return {
            "pool": pool,
            "desired_gpus": advice.desired_gpus,
            "desired_nodes": advice.desired_nodes,
            "demand_gpus": advice.demand_now,
            "reactive_gpus": advice.reactive_gpus,
            "limited": advice.desired_gpus < advice.demand_now,
            "mode": advice.mode,
            "acting": decision.mode == "act",
            "lead_s": decision.lead_ms // 1000,
            "reason": advice.reason,
            "as_of": format_instant(advice.as_of_ms),
            "valid_until": format_instant(advice.valid_until_ms),
            "models": [model_facts(model) for model in models],
        }

    return routes
