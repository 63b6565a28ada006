"""GET /v1/samples: raw readings of a few accelerators, recent and packed alike, or means of them over longer spans.

It reads through the same reader as `gpuledger export samples`. Raw rows go over at most an hour; with `step` each
instant is the mean of the readings that there are in it, and the span may be long. Bounds keep one question cheap:
a packed day of one accelerator is one blob to open.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, HTTPException, Query

from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, Period, format_instant
from gpuledger_collector.api.auth.principal import Principal
from gpuledger_collector.api.reads import REFUSALS, Reads, guarded, may_read
from gpuledger_collector.api.series import First, Last, instants
from gpuledger_collector.storage.access.row_level_security import as_viewer
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.telemetry import archive
from gpuledger_collector.storage.telemetry.sample_codec import Column, Readings

MOST_ACCELERATORS = 16
RAW_MS = HOUR_MS
MOST_ACCELERATOR_DAYS = 128
MOST_POINTS = 5_000

Gpus = Annotated[str, Query(description=f"UUIDs, comma-separated, at most {MOST_ACCELERATORS}.")]
Node = Annotated[str, Query(description="Instead of UUIDs: what was on this node, while it was there.")]
Metrics = Annotated[str, Query(description="Names of the catalogue, comma-separated; empty: all that are kept.")]
Step = Annotated[int, Query(ge=0, le=86_400, description="Seconds of which means are given; 0: raw, an hour at most.")]
Limit = Annotated[int, Query(ge=1, le=MOST_POINTS, description="Most instants of one answer, of all accelerators.")]
After = Annotated[int, Query(ge=0, description="`next` of the answer before.")]


def router(reads: Reads) -> APIRouter:
    """The route, bound to a ledger."""
    made = APIRouter(prefix="/v1", tags=["ledger"], responses=REFUSALS)
    fleet = may_read(reads.keys, whole_fleet=True)

    @made.get("/samples")
    def samples(
        start: First,
        end: Last,
        gpu: Gpus = "",
        node: Node = "",
        metrics: Metrics = "",
        step: Step = 0,
        limit: Limit = 1000,
        after: After = 0,
        who: Principal = fleet,
    ) -> dict[str, Any]:
        """Instants and readings by metric, an accelerator after the other; null is an absent reading."""
        return guarded(lambda: samples_of(reads, start, end, gpu, node, metrics, step, limit, after, who))

    return made


def samples_of(
    reads: Reads,
    start: str,
    end: str,
    gpu: str,
    node: str,
    metrics: str,
    step: int,
    limit: int,
    after: int,
    who: Principal,
) -> dict[str, Any]:
    """One page of samples. Raises ValueError for what cannot be asked, 404 for accelerators that nobody knows."""
    period = instants(start, end)
    names = tuple(dict.fromkeys(name.strip() for name in metrics.split(",") if name.strip())) or tuple(archive.KINDS)
    if strange := sorted(set(names) - set(archive.KINDS)):
        raise ValueError(f"metrics: {strange[0]!r} is not kept as samples; kept are {', '.join(archive.KINDS)}")
    uuids = tuple(dict.fromkeys(name.strip() for name in gpu.split(",") if name.strip()))
    if bool(uuids) == bool(node):
        raise ValueError("gpu and node: name the accelerators with one of them")
    if not step and period.ms > RAW_MS:
        raise ValueError("from and to: raw samples go over at most an hour; ask for longer spans with step, in seconds")
    items: list[dict[str, Any]] = []
    passed, left = after, limit
    with reads.ledger.transaction() as connection, as_viewer(connection, who.owner):
        places = _places(connection, period, uuids, node)
        for place in places:
            whole = _joined(connection, place, step * 1000)
            rows = len(whole)
            first, passed = min(passed, rows), max(0, passed - rows)
            taken = min(left, rows - first)
            if taken:
                items.append(_item(place.uuid, whole, names, slice(first, first + taken)))
            left -= taken
            if first + taken < rows:
                return {"items": items, "next": after + limit}
            if not left and place is not places[-1]:
                return {"items": items, "next": after + limit}
    return {"items": items, "next": None}


def _places(connection: Connection, period: Period, uuids: Sequence[str], node: str) -> list[archive.AcceleratorPeriod]:
    found = archive.accelerator_periods(connection, period, node) if node else []
    for uuid in uuids:
        mine = archive.accelerator_periods(connection, period, uuid=uuid)
        if not mine:
            raise HTTPException(404, f"no accelerator is called {uuid!r}")
        found += mine
    if not found:
        raise HTTPException(404, f"nothing was on {node!r} then")
    if len(found) > MOST_ACCELERATORS:
        raise ValueError(f"{len(found)} accelerators: at most {MOST_ACCELERATORS} can be asked for at once")
    days = len(found) * -(-period.ms // DAY_MS)
    if days > MOST_ACCELERATOR_DAYS:
        raise ValueError(
            f"{days} days of accelerators: at most {MOST_ACCELERATOR_DAYS} can be asked for at once; "
            "shorten the span or name fewer"
        )
    return found


def _joined(connection: Connection, place: archive.AcceleratorPeriod, step_ms: int) -> Readings:
    """All of a place's readings by instant, as they are or as means of each step."""
    found = archive.samples(connection, [place.accelerator_id], place.period)
    whole = Readings(found.at_ms, found.columns)
    return means(whole, step_ms) if step_ms else whole


def means(found: Readings, step_ms: int) -> Readings:
    """The mean of each metric over each step that has a sample, leaving out absent readings and what is no number.

    Of counters too it is the mean: their difference over a step is lost only below the step.
    """
    at, place = np.unique(found.at_ms - found.at_ms % step_ms, return_inverse=True)
    columns = {}
    for name, column in found.columns.items():
        values = column.values.astype(np.float64)
        there = column.present & np.isfinite(values)
        count = np.bincount(place[there], minlength=len(at))
        total = np.bincount(place[there], weights=values[there], minlength=len(at))
        columns[name] = Column(np.divide(total, count, out=np.zeros(len(at)), where=count > 0), count > 0)
    return Readings(at, columns)


def _item(uuid: str, found: Readings, names: Sequence[str], part: slice) -> dict[str, Any]:
    return {
        "uuid": uuid,
        "ts": [format_instant(int(at)) for at in found.at_ms[part]],
        "metrics": {name: _values(found.columns.get(name), part, len(found.at_ms[part])) for name in names},
    }


def _values(column: Column | None, part: slice, rows: int) -> list[float | int | None]:
    """Readings of one metric; what JSON has no number for (NaN, infinities) is null, as an absent one."""
    if column is None:
        return [None] * rows
    values = column.values[part]
    there = column.present[part] & np.isfinite(values.astype(np.float64))
    shortest = [float(str(value)) for value in values] if values.dtype == np.float32 else values.tolist()
    return [value if known else None for value, known in zip(shortest, there.tolist(), strict=True)]
