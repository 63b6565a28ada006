"""GET /v1/series: what owners and pools held over time, in steps of five minutes, an hour or a day, for drawing.

Numbers come from the five-minute series, whose hours add up to the hourly ledger and whose days to the charges. A step
that was not rated yet, or was let go, is null in every series: it is not known, which is not nothing.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException, Query

from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, Period, format_instant, parse_date, parse_instant
from gpuledger_collector.api.auth.principal import Principal
from gpuledger_collector.api.reads import REFUSALS, Limit, Reads, guarded, may_read
from gpuledger_collector.storage.access.row_level_security import as_viewer
from gpuledger_collector.storage.telemetry import series

STEPS_MS = {"5m": series.STEP_MS, "1h": HOUR_MS, "1d": DAY_MS}
MOST_STEPS = 9_000
"""Thirty-one days at five minutes, a year by the hour."""
DATE_LENGTH = len("2026-10-01")

First = Annotated[str, Query(alias="from", description="Date (UTC) or instant, included; a whole step.")]
Last = Annotated[str, Query(alias="to", description="Date (UTC) or instant, not included; a whole step.")]
By = Annotated[str, Query(description="Comma-separated: org, team, project, pool, model, state; empty: one series.")]
Step = Annotated[Literal["5m", "1h", "1d"], Query(description="How long each step is.")]
State = Annotated[Literal["held", "unallocated", "unavailable"], Query(description="Which time is drawn.")]
After = Annotated[int, Query(alias="after", ge=0, description="`next` of the answer before.")]


def router(reads: Reads) -> APIRouter:
    """The route, bound to a ledger."""
    made = APIRouter(prefix="/v1", tags=["ledger"], responses=REFUSALS)
    reader = may_read(reads.keys)

    @made.get("/series")
    def series_over_time(
        start: First,
        end: Last,
        by: By = "team",
        step: Step = "1h",
        state: State = "held",
        limit: Limit = 100,
        after: After = 0,
        who: Principal = reader,
    ) -> dict[str, Any]:
        """GPUs, GPU-seconds, energy and cost of each series by step; a viewer sees its owner's held time alone."""
        return guarded(lambda: series_of(reads, start, end, by, step, state, limit, after, who))

    return made


def instants(start: str, end: str) -> Period:
    """The period between two dates or instants. Raises ValueError with a sentence."""
    bounds = []
    for name, text in (("from", start), ("to", end)):
        try:
            bounds.append(parse_date(text) if len(text) == DATE_LENGTH else parse_instant(text))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    if bounds[1] <= bounds[0]:
        raise ValueError("to: must be after from")
    return Period(*bounds)


def series_of(
    reads: Reads, start: str, end: str, by: str, step: str, state: str, limit: int, after: int, who: Principal
) -> dict[str, Any]:
    """One page of series, ordered by their names. Raises ValueError for what cannot be asked."""
    period, step_ms = instants(start, end), STEPS_MS[step]
    names = tuple(dict.fromkeys(name.strip() for name in by.split(",") if name.strip()))
    if strange := sorted(set(names) - set(series.GROUPS)):
        raise ValueError(f"by: {strange[0]!r} is nothing to group by; known are {', '.join(series.GROUPS)}")
    if period.start_ms % step_ms or period.end_ms % step_ms:
        raise ValueError(f"from and to: must be whole steps of {step} in UTC")
    if period.ms // step_ms > MOST_STEPS:
        raise ValueError(f"from and to: {period.ms // step_ms} steps of {step}; at most {MOST_STEPS} can be asked for")
    _allowed(who, state)
    with reads.ledger.transaction() as connection, as_viewer(connection, who.owner):
        found = series.read(connection, period, step_ms, names, who.owner, (state,))
        known = series.known(connection, period, step_ms).tolist()
    shown = found[after : after + limit]
    return {
        "from": format_instant(period.start_ms),
        "to": format_instant(period.end_ms),
        "step_seconds": step_ms // 1000,
        "items": [_item(one, names, known, step_ms) for one in shown],
        "next": after + limit if len(found) > after + limit else None,
    }


def _allowed(who: Principal, state: str) -> None:
    if who.owner is None:
        return
    if deeper := sorted(set(who.owner) - set(series.OWNER_LEVELS)):
        raise HTTPException(403, f"series are kept by org, team and project: this token is held to one {deeper[0]}")
    if state != "held":
        raise HTTPException(403, f"{state} time belongs to no owner: this token sees one owner's only")


def _item(one: series.OwnerSeries, names: tuple[str, ...], known: list[bool], step_ms: int) -> dict[str, Any]:
    """A series with a value a step: null where nothing is known of the step, or of the measure in it."""

    def told(name: str, per: float) -> list[float | None]:
        return [
            round(value / per, 6) if there and value != series.UNKNOWN else None
            for value, there in zip(one.values[name].tolist(), known, strict=True)
        ]

    return {
        **dict(zip(names, one.key, strict=True)),
        "currency": one.currency,
        "gpus": told("gpu_ns", step_ms * 1e6),
        "busy_gpus": told("busy_ns", step_ms * 1e6),
        "idle_gpus": told("idle_ns", step_ms * 1e6),
        "unknown_gpus": told("unknown_ns", step_ms * 1e6),
        "energy_joules": told("energy_mj", 1e3),
        "cost": told("cost_micro", 1e6) if one.currency is not None else None,
    }
