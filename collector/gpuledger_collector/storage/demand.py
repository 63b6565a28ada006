"""What demand is made from: held hours, capacity and imported usage, by pool or model."""

from __future__ import annotations

from typing import Literal

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from gpuledger_collector.insight.demand import HeldHour, Span

Group = Literal["pool", "model"]
_MICRO = 1_000_000

_STAYS = """SELECT c.accelerator_id, {group} AS grouped, c.in_ms, coalesce(c.out_ms, :end_ms) AS out_ms, a.gpu_micro
    FROM capacity c JOIN accelerator a ON a.id = c.accelerator_id
    WHERE c.in_ms < :end_ms AND (c.out_ms IS NULL OR c.out_ms > :start_ms)"""
_HELD = """WITH stay AS ({stays})
    SELECT stay.grouped, u.hour_ms / 3600000 * 3600000 AS hour_ms,
           sum(u.held_ms * stay.gpu_micro) FILTER (WHERE u.state = 'held') AS held,
           sum(u.held_ms * stay.gpu_micro) AS seen
    FROM usage_hour u JOIN stay ON stay.accelerator_id = u.accelerator_id
         AND u.hour_ms + 3599999 >= stay.in_ms AND u.hour_ms < stay.out_ms
    WHERE u.hour_ms >= :start_ms AND u.hour_ms < :end_ms
    GROUP BY 1, 2"""
_COUNTED = """SELECT {group} AS grouped, gpu_micro, start_ms, least(coalesce(end_ms, :end_ms), :end_ms) AS end_ms
    FROM imported_usage WHERE start_ms < :end_ms AND (end_ms IS NULL OR end_ms > :start_ms)"""


def evidence(
    connection: Connection, start_ms: int, end_ms: int, group: Group
) -> tuple[list[HeldHour], list[Span], list[Span]]:
    """Held hours, capacity and imported usage of a period of whole hours, by pool or model."""
    period = {"start_ms": start_ms, "end_ms": end_ms}
    stays = _STAYS.format(group="c.pool" if group == "pool" else "a.model")
    held = [
        HeldHour(row.grouped, row.hour_ms, float(row.held or 0) / _MICRO, float(row.seen) / _MICRO)
        for row in connection.execute(sa.text(_HELD.format(stays=stays)), period)
    ]
    capacity = [
        Span(row.grouped, row.gpu_micro / _MICRO, row.in_ms, row.out_ms)
        for row in connection.execute(sa.text(stays), period)
    ]
    counted = [
        Span(row.grouped, row.gpu_micro / _MICRO, row.start_ms, row.end_ms)
        for row in connection.execute(
            sa.text(_COUNTED.format(group="pool" if group == "pool" else "gpu_model")), period
        )
    ]
    return held, capacity, counted
