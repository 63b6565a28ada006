"""The second wall before a viewer over HTTP: a role of Postgres that sees one owner's rows, whatever is asked.

The collector reads as the owner of the tables, whom Postgres restricts in nothing. Where the rows of a viewer are read
it becomes the role `gpuledger_viewer` and names the viewer's owner in a setting of the session: policies then hold
every table to that owner's rows, and a table that is not named here cannot be read at all. A condition that somebody
forgets shows nothing foreign. What has to be worked out of the whole (shares of common costs, cents that add up) is
read before or after, for rows that came from behind the wall.

A role belongs to the whole server and may need rights that an owner of a database lacks, so this is no revision: it is
raised after migrating where that is possible, and lowered before migrating, because policies hold on to columns.
Without it the filters of the code stand alone, which `gpuledger doctor` says.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import pq, sql

from gpuledger_collector.storage import locks
from gpuledger_collector.storage.access.dashboard_row_security import EVERYBODY
from gpuledger_collector.storage.locks import Lock

Connection = psycopg.Connection[tuple[Any, ...]]
log = logging.getLogger(__name__)
ROLE = "gpuledger_viewer"
POLICY = "gpuledger_wall"
LOCK_TIMEOUT = "500ms"
"""Shorter than Postgres waits before it looks for deadlocks, as migrations do: batches go first."""
_OWNER = "nullif(nullif(current_setting('gpuledger.owner', true), ''), '{}')::jsonb"
"""The viewer's owner (level -> value); null, so that nothing is seen, where nobody is named."""
_PATH = (
    "jsonb_build_object('org', org, 'team', team, 'project', project, 'experiment', experiment, 'run', run, "
    "'user', user_name)"
)
_BORNE = "owner_id IN (SELECT id FROM owner)"
_TEAMED = f"(jsonb_build_object('team', team) || owner) @> {_OWNER}"
OWNED = {
    "owner": f"{_PATH} @> {_OWNER}",
    "budget": f"owner @> {_OWNER}",
    "budget_alert": "budget_id IN (SELECT id FROM budget)",
    "charge": _BORNE,
    "ledger_day": _BORNE,
    "ledger_month": _BORNE,
    "correction": _BORNE,
    "owner_5min": _BORNE,
    "finding": _TEAMED,
    "recommendation": _TEAMED,
    "dispute": f"owner @> {_OWNER}",
    "dispute_entry": "dispute_id IN (SELECT id FROM dispute)",
    "workload": (
        "EXISTS (SELECT FROM charge c WHERE c.workload_id = workload.id) "
        "OR id IN (SELECT workload_id FROM correction) OR id IN (SELECT workload_id FROM finding) "
        "OR id IN (SELECT workload_id FROM dispute)"
    ),
    "closed_workload": "EXISTS (SELECT FROM workload w WHERE w.id = closed_workload.workload_id)",
    "accelerator": "id IN (SELECT accelerator_id FROM finding) OR id IN (SELECT accelerator_id FROM dispute)",
}
"""Tables of which a viewer sees its own rows, and which those are. Tables within a condition are held by their own."""
COMMON = {
    "conservation_check": "",
    "corrected_day": "",
    "finding_progress": "",
    "billing_zone": "",
    "series_day": "",
    "billing_period": "start_ms, end_ms, name, closed_ms, closed_by, lines, seal",
}
"""Tables of days and months, that name no owner, and which columns of them (empty: all)."""


def statements(schema: str, tables: Container[str]) -> Iterator[sql.Composed]:
    """What raises the wall over these tables, in one transaction, by their owner; the role is there."""
    role, place = sql.Identifier(ROLE), sql.Identifier(schema)
    yield sql.SQL("GRANT USAGE ON SCHEMA {} TO {}").format(place, role)
    yield sql.SQL("REVOKE ALL ON ALL TABLES IN SCHEMA {} FROM {}").format(place, role)
    for table, columns in ((name, some) for name, some in COMMON.items() if name in tables):
        some = sql.SQL(f" ({columns})" if columns else "")
        yield sql.SQL("GRANT SELECT{} ON {} TO {}").format(some, sql.Identifier(schema, table), role)
    for table, condition in ((name, own) for name, own in OWNED.items() if name in tables):
        target, own, everybody = sql.Identifier(schema, table), sql.Identifier(POLICY), sql.Identifier(EVERYBODY)
        yield sql.SQL("DROP POLICY IF EXISTS {} ON {}").format(everybody, target)
        yield sql.SQL("CREATE POLICY {} ON {} USING (true) WITH CHECK (true)").format(everybody, target)
        yield sql.SQL("DROP POLICY IF EXISTS {} ON {}").format(own, target)
        yield sql.SQL("CREATE POLICY {} ON {} AS RESTRICTIVE TO {} USING ({})").format(
            own, target, role, sql.SQL(condition)
        )
        yield sql.SQL("ALTER TABLE {} ENABLE ROW LEVEL SECURITY").format(target)
        yield sql.SQL("GRANT SELECT ON {} TO {}").format(target, role)
    yield sql.SQL("COMMENT ON POLICY {} ON {} IS {}").format(
        sql.Identifier(POLICY), sql.Identifier(schema, "owner"), sql.Literal(VERSION)
    )


VERSION = hashlib.sha256(json.dumps([OWNED, COMMON], sort_keys=True).encode()).hexdigest()[:16]
"""Of these policies; a wall of another version is raised anew."""

_MAY = (
    "EXISTS (SELECT FROM pg_roles WHERE rolname = %(role)s AND pg_has_role(current_user, oid, "
    "CASE WHEN current_setting('server_version_num')::int >= 160000 THEN 'SET' ELSE 'MEMBER' END))"
)
_STANDING = (
    "EXISTS (SELECT FROM pg_policy p WHERE p.polname = %(policy)s AND p.polrelid = to_regclass('owner') "
    "AND obj_description(p.oid, 'pg_policy') = %(version)s)"
)
_ASKED = {"role": ROLE, "policy": POLICY, "version": VERSION}


def stands(connection: Connection) -> bool:
    """Whether the wall of this version stands in this database, and this user may step behind it."""
    row = connection.execute(f"SELECT {_MAY} AND {_STANDING}", _ASKED).fetchone()
    return bool(row and row[0])


@contextmanager
def behind(connection: Connection, owner: Mapping[str, str] | None) -> Iterator[None]:
    """Within the block the connection sees the rows of this owner (level -> value) and below; None: everything.

    Where there is no wall it stays as it is, and the log says so.
    """
    if owner is None:
        yield
        return
    entered = enter(connection, owner)
    try:
        yield
    finally:
        if entered and connection.info.transaction_status != pq.TransactionStatus.INERROR:
            connection.execute("RESET ROLE")


def enter(connection: Connection, owner: Mapping[str, str]) -> bool:
    """Step behind the wall for good; whether there is one."""
    row = connection.execute(
        "SELECT set_config('gpuledger.owner', %(owner)s, false), set_config('role', %(role)s, false) "
        f"WHERE {_MAY} AND {_STANDING}",
        {**_ASKED, "owner": json.dumps(dict(owner))},
    ).fetchone()
    if row is None:
        log.warning("no row-level security stands before viewers: gpuledger doctor says why")
    return row is not None


def lower(connection: Connection) -> int:
    """Take the policies of the wall away, so that tables can change; how many there were."""
    found = connection.execute(
        "SELECT polrelid::regclass::text FROM pg_policy WHERE polname = %s", (POLICY,)
    ).fetchall()
    for (table,) in found:
        connection.execute(sql.SQL("DROP POLICY {} ON {}").format(sql.Identifier(POLICY), sql.SQL(table)))
    return len(found)


def lift(connection: Connection, tries: int = 1, pause_s: float = 0) -> str:
    """Raise the wall where it does not stand; what is in the way, in a sentence, empty when it stands.

    While others hold a table it is tried again, `pause_s` apart.
    """
    if stands(connection):
        return ""
    for left in reversed(range(tries)):
        try:
            _raise(connection)
            break
        except psycopg.Error as error:
            if left and isinstance(error, psycopg.errors.LockNotAvailable):
                time.sleep(pause_s)
                continue
            said = str(error).strip().partition("\n")[0]
            log.warning("row-level security for viewers was not set up: %s", said)
            return said
    return "" if stands(connection) else f"this user may not become {ROLE}"


def _raise(connection: Connection) -> None:
    """The role and the policies, in one transaction. Raises psycopg.Error."""
    with connection.transaction():
        connection.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
        _role(connection)
        row = connection.execute("SELECT current_schema()").fetchone()
        assert row is not None
        found = connection.execute("SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace", row)
        for statement in statements(row[0], {name for (name,) in found}):
            connection.execute(statement)


def _role(connection: Connection) -> None:
    """The role, and the right of this user to become it. Raises psycopg.Error where this user may not give it."""
    with connection.transaction():
        locks.take(connection, Lock.VIEWER_WALL)
        there = connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (ROLE,)).fetchone()
        if there is None:
            connection.execute(sql.SQL("CREATE ROLE {} NOLOGIN").format(sql.Identifier(ROLE)))
        may = connection.execute(f"SELECT {_MAY}", _ASKED).fetchone()
        if may is None or not may[0]:
            version = connection.info.server_version
            grant = "GRANT {} TO CURRENT_USER" + (" WITH INHERIT FALSE, SET TRUE" if version >= 160_000 else "")
            connection.execute(sql.SQL(grant).format(sql.Identifier(ROLE)))


def advice(connection: Connection) -> str:
    """What an administrator of the server has to run so that the wall can be raised."""
    row = connection.execute("SELECT quote_ident(current_user)").fetchone()
    assert row is not None
    return f"CREATE ROLE {ROLE} NOLOGIN; GRANT {ROLE} TO {row[0]}; then: gpuledger db upgrade"
