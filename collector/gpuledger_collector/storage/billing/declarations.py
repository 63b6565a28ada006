"""Declared rows that a file replaces together, superseded and audited: shared costs, cost centers
and carbon.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from gpuledger_collector.accounting.carbon import Intensity
from gpuledger_collector.accounting.cost_centers import CostCenter
from gpuledger_collector.accounting.fair_share import PoolShare
from gpuledger_collector.accounting.import_progress import OnRow, tell_nobody
from gpuledger_collector.accounting.ledger_rows import ImportOutcome
from gpuledger_collector.accounting.shared_costs import SharedCost
from gpuledger_collector.storage.ledger.dated_rows import IN_FORCE, after_closes, replace_rows
from gpuledger_collector.storage.locks import Connection

_SHARED = (
    "name",
    "source",
    "amount_micro",
    "currency",
    "pool",
    "key",
    "level",
    "weights",
    "scope",
    "from_on",
    "to_on",
)
_CENTER = ("owner", "cost_center", "gl_code", "from_on", "to_on")
_CARBON = ("region", "pool", "grams_per_kwh", "pue", "from_on", "to_on")
_SHARE = ("team", "pool", "fraction", "gpus", "from_on", "to_on", "read_from")


def shared_costs(connection: Connection, at: dt.datetime | None = None) -> list[SharedCost]:
    """Read the shared costs in force, now or at an instant, by name."""
    rows = connection.execute(
        f"SELECT {', '.join(_SHARED)} FROM shared_cost WHERE {IN_FORCE} ORDER BY name, from_on"
        " NULLS FIRST, id",
        {"at": at},
    )
    return [SharedCost(*row) for row in rows]


def replace_shared_costs(
    connection: Connection, wanted: Sequence[SharedCost], now: dt.datetime
) -> ImportOutcome:
    """Replace the shared costs in force. No charge changes: reports compute the shares."""
    rows = [{name: getattr(cost, name) for name in _SHARED} for cost in wanted]
    return replace_rows(connection, "shared_cost", _SHARED, rows, after_closes(connection, now))


def pool_shares(connection: Connection, at: dt.datetime | None = None) -> list[PoolShare]:
    """Read the shares of pools in force, now or at an instant, by pool and team."""
    rows = connection.execute(
        f"SELECT {', '.join(_SHARE)} FROM pool_share WHERE {IN_FORCE} ORDER BY pool, team, from_on"
        " NULLS FIRST, id",
        {"at": at},
    )
    return [PoolShare(*row) for row in rows]


def declared_shares(connection: Connection) -> list[PoolShare]:
    """Read the declared shares in force."""
    return [share for share in pool_shares(connection) if not share.read_from]


def replace_shares(
    connection: Connection,
    wanted: Sequence[PoolShare],
    now: dt.datetime,
    read_from: str = "",
    on_row: OnRow = tell_nobody,
) -> ImportOutcome:
    """Replace the shares in force of one scheduler and pool, or the declared ones.

    No charge changes.

    `on_row` is told how far it is.
    """
    others = [share for share in pool_shares(connection) if share.read_from != read_from]
    rows = [{name: getattr(share, name) for name in _SHARE} for share in (*others, *wanted)]
    outcome = replace_rows(
        connection, "pool_share", _SHARE, rows, after_closes(connection, now), on_row=on_row
    )
    return ImportOutcome(outcome.added, outcome.updated, outcome.unchanged - len(others))


def cost_centers(connection: Connection, at: dt.datetime | None = None) -> list[CostCenter]:
    """Read the cost centers in force, now or at an instant."""
    rows = connection.execute(
        f"SELECT {', '.join(_CENTER)} FROM cost_center WHERE {IN_FORCE} ORDER BY owner, from_on"
        " NULLS FIRST, id",
        {"at": at},
    )
    return [CostCenter(*row) for row in rows]


def replace_cost_centers(
    connection: Connection, wanted: Sequence[CostCenter], now: dt.datetime
) -> ImportOutcome:
    """Replace the cost centers in force. No charge changes: exports look the codes up."""
    rows = [{name: getattr(center, name) for name in _CENTER} for center in wanted]
    return replace_rows(connection, "cost_center", _CENTER, rows, after_closes(connection, now))


def carbon(connection: Connection, at: dt.datetime | None = None) -> list[Intensity]:
    """Read the carbon intensities in force, now or at an instant, by pool."""
    rows = connection.execute(
        f"SELECT {', '.join(_CARBON)} FROM carbon_intensity WHERE {IN_FORCE} ORDER BY pool, from_on"
        " NULLS FIRST, id",
        {"at": at},
    )
    return [Intensity(*row) for row in rows]


def replace_carbon(
    connection: Connection, wanted: Sequence[Intensity], now: dt.datetime
) -> ImportOutcome:
    """Replace the carbon intensities in force."""
    rows = [{name: getattr(intensity, name) for name in _CARBON} for intensity in wanted]
    return replace_rows(
        connection, "carbon_intensity", _CARBON, rows, after_closes(connection, now)
    )
