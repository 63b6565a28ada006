"""Node costs in Postgres: superseded rather than edited, since charges name the version that they
follow from.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import fields
from dataclasses import replace as changed

from gpuledger_collector.accounting.ledger_rows import ImportOutcome
from gpuledger_collector.accounting.node_costs import NodeCost
from gpuledger_collector.storage import locks
from gpuledger_collector.storage.billing.prices import mark_dated
from gpuledger_collector.storage.ledger import dated_rows
from gpuledger_collector.storage.locks import Connection, Lock

_COLUMNS = tuple(field.name for field in fields(NodeCost) if field.name != "id")
_SELECT = f"SELECT id, {', '.join(_COLUMNS)} FROM node_cost"


def current(connection: Connection) -> list[NodeCost]:
    """Read the node costs in force, whatever their days, by name and place."""
    rows = connection.execute(
        f"{_SELECT} WHERE superseded_at IS NULL ORDER BY name, pool, node, from_on NULLS FIRST, id"
    )
    return [NodeCost(row[0], **dict(zip(_COLUMNS, row[1:], strict=True))) for row in rows]


def holding(connection: Connection, day_on: dt.date) -> list[NodeCost]:
    """Read the node costs that hold on a day of the bill."""
    return [cost for cost in current(connection) if cost.holds_on(day_on)]


def by_id(connection: Connection, ids: Iterable[int]) -> dict[int, NodeCost]:
    """Read node costs by id, superseded ones too."""
    rows = connection.execute(f"{_SELECT} WHERE id = ANY(%s)", (list(ids),))
    return {row[0]: NodeCost(row[0], **dict(zip(_COLUMNS, row[1:], strict=True))) for row in rows}


def replace(connection: Connection, wanted: Sequence[NodeCost], now: dt.datetime) -> ImportOutcome:
    """Replace the node costs in force; the days of those that came or went are marked for rating."""
    locks.take(connection, Lock.LEDGER)
    rows = [{name: getattr(cost, name) for name in _COLUMNS} for cost in wanted]
    before = current(connection)
    outcome = dated_rows.replace_rows(connection, "node_cost", _COLUMNS, rows, now)
    different = set(before) ^ set(current(connection))
    if not different:
        return outcome
    # Once from the first day to the last: what changed together overlaps.
    starts = [cost.from_on for cost in different if cost.from_on is not None]
    ends = [cost.to_on for cost in different if cost.to_on is not None]
    first = min(starts) if len(starts) == len(different) else None
    last = max(ends) if len(ends) == len(different) else None
    return changed(outcome, days_to_recompute=mark_dated(connection, first, last, now))
