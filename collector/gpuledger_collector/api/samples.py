"""GET /v1/samples: raw readings of a few accelerators, recent and packed alike, or means of them
over longer spans.

It reads as `gpuledger export samples` does. Raw rows cover at most an hour; with `step` each
instant is the mean of its readings, and the span may be long. Bounds keep one request cheap: a
packed day of an accelerator is one blob to decode.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, HTTPException, Query

from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, Period, format_instant
from gpuledger_collector.api.auth.principal import Principal
from gpuledger_collector.api.context import (
    REFUSALS,
    ReadContext,
    ReadRoute,
    require_reader,
    split_names,
)
from gpuledger_collector.api.series import End, Start, parse_instants
from gpuledger_collector.insight.readings import (
    AcceleratorPeriod,
    Column,
    Readings,
    mean_readings,
)
from gpuledger_collector.services.database import Connection
from gpuledger_collector.services.samples import METRICS, accelerators_named, read_samples

MAX_ACCELERATORS = 16
RAW_MS = HOUR_MS
MAX_ACCELERATOR_DAYS = 128
MAX_POINTS = 5_000

Gpus = Annotated[str, Query(description=f"UUIDs, comma-separated, at most {MAX_ACCELERATORS}.")]
Node = Annotated[
    str, Query(description="Instead of UUIDs: accelerators of this node, while they were there.")
]
Metrics = Annotated[
    str, Query(description="Names of the catalog, comma-separated; empty: all stored ones.")
]
Step = Annotated[
    int, Query(ge=0, le=86_400, description="Seconds of each mean; 0: raw, an hour at most.")
]
Limit = Annotated[
    int, Query(ge=1, le=MAX_POINTS, description="Largest number of instants, of all accelerators.")
]
After = Annotated[int, Query(ge=0, description="`next` of the previous answer.")]


def router(context: ReadContext) -> APIRouter:
    """The route."""
    routes = APIRouter(prefix="/v1", tags=["ledger"], responses=REFUSALS, route_class=ReadRoute)
    fleet = require_reader(context.keys, fleet=True)

    @routes.get("/samples")
    def samples(
        start: Start,
        end: End,
        gpu: Gpus = "",
        node: Node = "",
        metrics: Metrics = "",
        step: Step = 0,
        limit: Limit = 1000,
        after: After = 0,
        principal: Principal = fleet,
    ) -> dict[str, Any]:
        """Instants and readings by metric, one accelerator after the other; null is an absent
        reading.
        """
        period = parse_instants(start, end)
        names = split_names(metrics) or tuple(METRICS)
        if unknown := sorted(set(names) - set(METRICS)):
            raise ValueError(
                f"metrics: {unknown[0]!r} is not stored; stored are {', '.join(METRICS)}"
            )
        uuids = split_names(gpu)
        if bool(uuids) == bool(node):
            raise ValueError("gpu and node: name the accelerators with one of them")
        if not step and period.ms > RAW_MS:
            raise ValueError(
                "from and to: raw samples cover at most an hour; use step, in seconds, for longer"
                " spans"
            )
        with context.connection(principal) as connection:
            return _read_page(
                connection, _find(connection, period, uuids, node), names, step * 1000, limit, after
            )

    return routes


def _read_page(
    connection: Connection,
    accelerators: Sequence[AcceleratorPeriod],
    names: Sequence[str],
    step_ms: int,
    limit: int,
    after: int,
) -> dict[str, Any]:
    """Rows `after` to `after + limit` of all accelerators, one after the other."""
    items: list[dict[str, Any]] = []
    skip, remaining = after, limit
    for accelerator in accelerators:
        readings = read_samples(connection, accelerator)
        if step_ms:
            readings = mean_readings(readings, step_ms)
        rows = len(readings)
        # `after` counts instants over all accelerators, so what is skipped is used up by one after
        # the other.
        first, skip = min(skip, rows), max(0, skip - rows)
        count = min(remaining, rows - first)
        if count:
            items.append(_as_json(accelerator.uuid, readings, names, slice(first, first + count)))
        remaining -= count
        if first + count < rows or (not remaining and accelerator is not accelerators[-1]):
            return {"items": items, "next": after + limit}
    return {"items": items, "next": None}


def _find(
    connection: Connection, period: Period, uuids: Sequence[str], node: str
) -> list[AcceleratorPeriod]:
    accelerators = accelerators_named(connection, period, node=node) if node else []
    for uuid in uuids:
        periods = accelerators_named(connection, period, uuid=uuid)
        if not periods:
            raise HTTPException(404, f"no accelerator is called {uuid!r}")
        accelerators += periods
    if not accelerators:
        raise HTTPException(404, f"no accelerator was on node {node!r}")
    if len(accelerators) > MAX_ACCELERATORS:
        raise ValueError(
            f"{len(accelerators)} accelerators: at most {MAX_ACCELERATORS} can be requested at once"
        )
    days = len(accelerators) * -(-period.ms // DAY_MS)
    if days > MAX_ACCELERATOR_DAYS:
        raise ValueError(
            f"{days} days of accelerators: at most {MAX_ACCELERATOR_DAYS} can be requested at once;"
            " shorten the span or name fewer"
        )
    return accelerators


def _as_json(uuid: str, readings: Readings, names: Sequence[str], part: slice) -> dict[str, Any]:
    at_ms = readings.at_ms[part]
    return {
        "uuid": uuid,
        "ts": [format_instant(int(at)) for at in at_ms],
        "metrics": {name: _values(readings.columns.get(name), part, len(at_ms)) for name in names},
    }


def _values(column: Column | None, part: slice, rows: int) -> list[float | int | None]:
    """Readings of one metric; NaN and infinities, which JSON lacks, are null like absent ones."""
    if column is None:
        return [None] * rows
    values = column.values[part]
    is_present = column.present[part] & np.isfinite(values.astype(np.float64))
    # A float32 is shown by its own shortest digits, not by those of the float64 that it converts
    # to.
    shortest = (
        [float(str(value)) for value in values] if values.dtype == np.float32 else values.tolist()
    )
    return [
        value if present else None
        for value, present in zip(shortest, is_present.tolist(), strict=True)
    ]
