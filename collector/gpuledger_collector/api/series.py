"""GET /v1/series: what owners and pools held over time, in steps of five minutes, an hour or a day,
for charts.

Numbers come from the five-minute series, whose hours add up to the hourly ledger and whose days to
the charges. A step that is not rated yet, or has expired, is null in every series: null means
unknown, not zero.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException, Query

from gpuledger_collector.accounting.period import (
    DAY_MS,
    HOUR_MS,
    Period,
    format_instant,
    parse_date,
    parse_instant,
)
from gpuledger_collector.api.auth.principal import Principal
from gpuledger_collector.api.context import (
    REFUSALS,
    Limit,
    ReadContext,
    ReadRoute,
    require_reader,
    split_names,
)
from gpuledger_collector.insight.owner_series import (
    GROUPS,
    OWNER_LEVELS,
    STEP_MS,
    OwnerSeries,
    SeriesOverTime,
)
from gpuledger_collector.services.usage_series import read_series

STEPS_MS = {"5m": STEP_MS, "1h": HOUR_MS, "1d": DAY_MS}
MAX_STEPS = 9_000
"""Thirty-one days at five minutes, a year by the hour."""
DATE_LENGTH = len("2026-10-01")

Start = Annotated[
    str, Query(alias="from", description="Date (UTC) or instant, included; a whole step.")
]
End = Annotated[
    str, Query(alias="to", description="Date (UTC) or instant, not included; a whole step.")
]
By = Annotated[
    str,
    Query(
        description="Comma-separated: org, team, project, pool, model, state; empty: one series."
    ),
]
Step = Annotated[Literal["5m", "1h", "1d"], Query(description="Length of a step.")]
State = Annotated[
    Literal["held", "unallocated", "unavailable"], Query(description="Which time to return.")
]
After = Annotated[int, Query(alias="after", ge=0, description="`next` of the previous answer.")]


def router(context: ReadContext) -> APIRouter:
    """The route."""
    routes = APIRouter(prefix="/v1", tags=["ledger"], responses=REFUSALS, route_class=ReadRoute)
    reader = require_reader(context.keys)

    @routes.get("/series")
    def series_over_time(
        start: Start,
        end: End,
        by: By = "team",
        step: Step = "1h",
        state: State = "held",
        limit: Limit = 100,
        after: After = 0,
        principal: Principal = reader,
    ) -> dict[str, Any]:
        """GPUs, energy and cost of each series by step, ordered by name; a viewer sees only its
        owner's held time.
        """
        period, step_ms = parse_instants(start, end), STEPS_MS[step]
        names = split_names(by)
        if unknown := sorted(set(names) - set(GROUPS)):
            raise ValueError(f"by: {unknown[0]!r} is not one of {', '.join(GROUPS)}")
        if period.start_ms % step_ms or period.end_ms % step_ms:
            raise ValueError(f"from and to: must be multiples of {step} in UTC")
        if period.ms // step_ms > MAX_STEPS:
            raise ValueError(
                f"from and to: {period.ms // step_ms} steps of {step}; at most {MAX_STEPS} are"
                " allowed"
            )
        _check_viewer(principal, state)
        with context.connection(principal) as connection:
            found = read_series(connection, period, step_ms, names, principal.owner, state)
        rows = found.items[after : after + limit]
        return {
            "from": format_instant(period.start_ms),
            "to": format_instant(period.end_ms),
            "step_seconds": step_ms // 1000,
            "items": [_as_json(found, row, names, step_ms) for row in rows],
            "next": after + limit if len(found.items) > after + limit else None,
        }

    return routes


def parse_instants(start: str, end: str) -> Period:
    """Parse the period between two dates or instants. Raises ValueError with a sentence."""
    bounds = []
    for name, text in (("from", start), ("to", end)):
        try:
            bounds.append(parse_date(text) if len(text) == DATE_LENGTH else parse_instant(text))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    if bounds[1] <= bounds[0]:
        raise ValueError("to: must be after from")
    return Period(*bounds)


def _check_viewer(principal: Principal, state: str) -> None:
    if principal.owner is None:
        return
    # The series keep no deeper levels: filtering by a higher one would show others' numbers.
    if deeper := sorted(set(principal.owner) - set(OWNER_LEVELS)):
        raise HTTPException(
            403, f"series exist by org, team and project: this token is limited to one {deeper[0]}"
        )
    if state != "held":
        raise HTTPException(
            403, f"{state} time belongs to no owner: this token sees one owner's only"
        )


def _as_json(
    found: SeriesOverTime, row: OwnerSeries, names: tuple[str, ...], step_ms: int
) -> dict[str, Any]:
    """A series with a value for each step: null where the step, or the measure in it, is unknown."""
    values = partial(found.values, row)
    return {
        **dict(zip(names, row.key, strict=True)),
        "currency": row.currency,
        "gpus": values("gpu_ns", step_ms * 1e6),
        "busy_gpus": values("busy_ns", step_ms * 1e6),
        "idle_gpus": values("idle_ns", step_ms * 1e6),
        "unknown_gpus": values("unknown_ns", step_ms * 1e6),
        "energy_joules": values("energy_mj", 1e3),
        "cost": values("cost_micro", 1e6) if row.currency is not None else None,
    }
