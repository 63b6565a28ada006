"""Declared rows that a file replaces together, superseded and audited: shared costs, cost centers
and carbon.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from typing import Any

from gpuledger_collector.accounting.carbon import Intensity
from gpuledger_collector.accounting.cost_centers import CostCenter
from gpuledger_collector.accounting.fair_share import PoolShare
from gpuledger_collector.accounting.import_progress import OnRow, RowStages, tell_nobody
from gpuledger_collector.accounting.ledger_rows import ImportOutcome
from gpuledger_collector.accounting.problems import Problem
from gpuledger_collector.accounting.shared_costs import SharedCost
from gpuledger_collector.storage import locks
from gpuledger_collector.storage.access import audit
from gpuledger_collector.storage.locks import Connection, Lock

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
IN_FORCE = (
    "recorded_at <= coalesce(%(at)s, recorded_at) AND (superseded_at IS NULL OR superseded_at >"
    " %(at)s)"
)
"""SQL: rows in force, now (`at` null) or at an instant."""


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


def after_closes(connection: Connection, now: dt.datetime) -> dt.datetime:
    """Return now, or just after the last close: a declaration during a close does not belong to the
    closed month.

    The ledger lock keeps months from being closed until the transaction ends.
    """
    locks.take(connection, Lock.LEDGER)
    row = connection.execute("SELECT max(closed_ms) FROM billing_period").fetchone()
    if row is None or row[0] is None:
        return now
    return max(now, dt.datetime.fromtimestamp((row[0] + 1) / 1000, dt.UTC))


class DeclarationRefused(ValueError):
    """What is in force does not allow a declaration; `problems` name file and line of each."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems = problems


def replace_rows(
    connection: Connection,
    table: str,
    columns: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    now: dt.datetime,
    among: str = "true",
    on_row: OnRow = tell_nobody,
) -> ImportOutcome:
    """Replace the rows in force `among` those of a condition; rows of the same content stay.

    `on_row` is told how many of the new rows are written.
    """
    known = {
        _content(dict(zip(columns, row[1:], strict=True))): row[0]
        for row in connection.execute(
            f"SELECT id, {', '.join(columns)} FROM {table} WHERE superseded_at IS NULL AND {among}"
        )
    }
    wanted = {_content(row): row for row in rows}
    gone = [content for content in known if content not in wanted]
    new = [content for content in wanted if content not in known]
    connection.execute(
        f"UPDATE {table} SET superseded_at = %s WHERE id = ANY(%s)",
        (now, [known[content] for content in gone]),
    )
    for content in RowStages(new, 1, on_row).one_by_one():
        cells = [_cell(wanted[content][name]) for name in columns]
        given = ", ".join(["%s"] * (len(columns) + 1))
        connection.execute(
            f"INSERT INTO {table} ({', '.join(columns)}, recorded_at) VALUES ({given})",
            (*cells, now),
        )
    changes = [
        audit.Change(table, _subject(content), json.loads(content), None) for content in gone
    ]
    changes += [
        audit.Change(table, _subject(content), None, json.loads(content)) for content in new
    ]
    audit.record(connection, changes, int(now.timestamp() * 1000))
    return ImportOutcome(len(new), len(gone), len(wanted) - len(new))


def _cell(value: object) -> object:
    return json.dumps(dict(value)) if isinstance(value, Mapping) else value


def _content(row: Mapping[str, Any]) -> str:
    def plain(value: object) -> object:
        if isinstance(value, Mapping):
            return dict(value)
        if value is None or isinstance(value, str | int):
            return value
        return f"{value.normalize():f}" if hasattr(value, "normalize") else str(value)

    return json.dumps({name: plain(value) for name, value in row.items()}, sort_keys=True)


def _subject(content: str) -> str:
    row = json.loads(content)
    if "from_currency" in row:
        return f"{row['from_currency']} to {row['to_currency']}"
    if "cost_center" in row:
        return ", ".join(f"{level}={name}" for level, name in row["owner"].items())
    return str(row.get("name") or row.get("pool") or row.get("region") or "every pool")
