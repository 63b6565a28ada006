"""Row-level security for a dashboards' role that may see one owner's subtree: the wall that the
database itself holds.

A restrictive policy binds that role alone on each table that it may read; everybody else is let
through by a policy that is always true, so full readers and writers see and pay nothing of it.
Tables whose rows belong to no one owner (inventory, minutes, proofs, invoices) are not granted to
such a role at all. The owner of the tables and superusers are never bound by policies.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from psycopg import sql

from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.row_level_security import EVERYBODY

TABLES = (
    "budget",
    "budget_alert",
    "budget_forecast",
    "budget_share",
    "charge",
    "correction",
    "finding",
    "ledger_day",
    "ledger_month",
    "owner",
    "owner_forecast",
)
"""What a role of one owner may read."""
_COLUMNS = {"user": "user_name"}
_POLICY = "gpuledger_{}"


def condition(table: str, owner: Mapping[str, str]) -> sql.Composed:
    """The SQL condition for rows of a table that belong to the owner (level -> value) or below."""
    path = sql.SQL(" AND ").join(
        sql.SQL("{} = {}").format(sql.Identifier(_COLUMNS.get(level, level)), sql.Literal(value))
        for level, value in owner.items()
    )
    named = sql.SQL("owner @> {}::jsonb").format(sql.Literal(json.dumps(dict(owner))))
    if table == "owner":
        return path
    if table in {"budget", "owner_forecast"}:
        return named
    if table in {"budget_alert", "budget_forecast", "budget_share"}:
        return sql.SQL("budget_id IN (SELECT id FROM budget WHERE {})").format(named)
    if table == "finding":
        return sql.SQL("(jsonb_build_object('team', team) || owner) @> {}::jsonb").format(
            sql.Literal(json.dumps(dict(owner)))
        )
    return sql.SQL("owner_id IN (SELECT id FROM owner WHERE {})").format(path)


def statements(schema: str, role: str, owner: Mapping[str, str]) -> Iterator[sql.Composed]:
    """List the statements, for one transaction, that restrict the role to this owner's rows."""
    name, place = sql.Identifier(role), sql.Identifier(schema)
    yield sql.SQL("REVOKE ALL ON ALL TABLES IN SCHEMA {} FROM {}").format(place, name)
    for table in TABLES:
        target = sql.Identifier(schema, table)
        own = sql.Identifier(_POLICY.format(role))
        everybody = sql.Identifier(EVERYBODY)
        yield sql.SQL("DROP POLICY IF EXISTS {} ON {}").format(everybody, target)
        yield sql.SQL("CREATE POLICY {} ON {} USING (true) WITH CHECK (true)").format(
            everybody, target
        )
        yield sql.SQL("DROP POLICY IF EXISTS {} ON {}").format(own, target)
        yield sql.SQL("CREATE POLICY {} ON {} AS RESTRICTIVE TO {} USING ({})").format(
            own, target, name, condition(table, owner)
        )
        yield sql.SQL("ALTER TABLE {} ENABLE ROW LEVEL SECURITY").format(target)
        yield sql.SQL("GRANT SELECT ON {} TO {}").format(target, name)


def removal(schema: str, role: str) -> Iterator[sql.Composed]:
    """List the statements that take the role's restrictions away, with which the role could not be
    dropped.
    """
    for table in TABLES:
        yield sql.SQL("DROP POLICY IF EXISTS {} ON {}").format(
            sql.Identifier(_POLICY.format(role)), sql.Identifier(schema, table)
        )


def is_bound(connection: Connection, role: str) -> bool:
    """Whether a role is already restricted to an owner."""
    row = connection.execute(
        "SELECT 1 FROM pg_policies WHERE policyname = %s LIMIT 1", (_POLICY.format(role),)
    )
    return row.fetchone() is not None
