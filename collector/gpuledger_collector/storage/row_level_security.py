"""Row-level security: a second safeguard besides the filters of the code, for viewers' reads over
HTTP.

The collector reads as the owner of the tables, whom Postgres does not restrict. Where it reads rows
for a viewer it becomes the role `gpuledger_viewer` and names the viewer's owner in a setting of the
session. Policies then restrict every table to that owner's rows, and a table that is not listed
here cannot be read at all: a forgotten condition shows nothing of others. What must be computed
from all rows (shares of common costs, cents that add up) is read before or after.

A role belongs to the server and may need rights that the owner of a database lacks, so this is no
migration: the policies are enabled after migrating where possible, and disabled before, because
they depend on columns. Without them only the filters of the code apply, which `gpuledger doctor`
reports.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import time
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import psycopg
from psycopg import pq, sql

from gpuledger_collector.storage import distribution, locks
from gpuledger_collector.storage.locks import Connection, Lock
from gpuledger_collector.storage.rows import select_row, select_value, select_values

log = logging.getLogger(__name__)
ROLE = "gpuledger_viewer"
POLICY = "gpuledger_viewer"
EVERYBODY = "gpuledger_everybody"
"""The policy that lets everybody through whom no other one narrows."""
LOCK_TIMEOUT = "500ms"
"""Shorter than the deadlock timeout of Postgres, as for migrations, so that batches are not
delayed.
"""
_OWNER = "nullif(nullif(current_setting('gpuledger.owner', true), ''), '{}')::jsonb"
"""The viewer's owner (level -> value); null, so that no row is visible, when it is not set."""
_PATH = (
    "jsonb_build_object('org', org, 'team', team, 'project', project, 'experiment', experiment,"
    " 'run', run, 'user', user_name)"
)
_OWNED_BY_VIEWER = "owner_id IN (SELECT id FROM owner)"
_TEAM_OF_VIEWER = f"(jsonb_build_object('team', team) || owner) @> {_OWNER}"
_WORKLOAD_OF_VIEWER = (
    "EXISTS (SELECT FROM charge c WHERE c.workload_id = {0}) "
    "OR {0} IN (SELECT workload_id FROM correction) OR {0} IN (SELECT workload_id FROM finding) "
    "OR {0} IN (SELECT workload_id FROM dispute)"
)
OWNED = {
    "owner": f"{_PATH} @> {_OWNER}",
    "budget": f"owner @> {_OWNER}",
    "budget_alert": "budget_id IN (SELECT id FROM budget)",
    "budget_share": "budget_id IN (SELECT id FROM budget)",
    "charge": _OWNED_BY_VIEWER,
    "ledger_day": _OWNED_BY_VIEWER,
    "ledger_month": _OWNED_BY_VIEWER,
    "correction": _OWNED_BY_VIEWER,
    "owner_5min": _OWNED_BY_VIEWER,
    "finding": _TEAM_OF_VIEWER,
    "recommendation": _TEAM_OF_VIEWER,
    "dispute": f"owner @> {_OWNER}",
    "dispute_entry": "dispute_id IN (SELECT id FROM dispute)",
    "workload": _WORKLOAD_OF_VIEWER.format("workload.id"),
    # Not by way of `workload`: Citus fails on a policy that reads a table of its own.
    "closed_workload": _WORKLOAD_OF_VIEWER.format("closed_workload.workload_id"),
    "counter_series": _WORKLOAD_OF_VIEWER.format("counter_series.workload_id"),
    "counter_hour": "series_id IN (SELECT id FROM counter_series)",
    "accelerator": (
        "id IN (SELECT accelerator_id FROM finding) OR id IN (SELECT accelerator_id FROM dispute)"
    ),
}
"""Tables of which a viewer sees some rows -> their condition.

Policies also apply to tables inside a condition.
"""
_READ = re.compile(r"\bFROM (\w+)")
COMMON = {
    "conservation_check": "",
    "corrected_day": "",
    "month_proof": "",
    "day_recompute": "day_ms",
    "hour_recompute": "hour_ms",
    "finding_progress": "",
    "late_evidence": "late_ms, again_ms",
    "billing_zone": "",
    "fiscal_year": "",
    "series_day": "",
    "pool_location": "",
    "commitment": "id, region",
    "billing_period": "start_ms, end_ms, name, closed_ms, closed_by, lines, seal",
}
"""Tables of days, months and places without an owner -> the columns that are visible (empty: all).
"""


def statements(
    schema: str, tables: Container[str], unfiltered: Container[str] = ()
) -> Iterator[sql.Composed]:
    """Yield the statements that set up grants and policies for these tables; the role must exist.

    `unfiltered_tables`: tables that take no policy on Citus, so that a viewer may read every row of them.
    """
    role, place = sql.Identifier(ROLE), sql.Identifier(schema)
    yield sql.SQL("GRANT USAGE ON SCHEMA {} TO {}").format(place, role)
    yield sql.SQL("REVOKE ALL ON ALL TABLES IN SCHEMA {} FROM {}").format(place, role)
    for table, columns in ((name, columns) for name, columns in COMMON.items() if name in tables):
        visible = sql.SQL(f" ({columns})" if columns else "")
        yield sql.SQL("GRANT SELECT{} ON {} TO {}").format(
            visible, sql.Identifier(schema, table), role
        )
    for table, condition in ((name, own) for name, own in OWNED.items() if name in tables):
        target, own, everybody = (
            sql.Identifier(schema, table),
            sql.Identifier(POLICY),
            sql.Identifier(EVERYBODY),
        )
        yield sql.SQL("GRANT SELECT ON {} TO {}").format(target, role)
        if table in unfiltered:
            continue
        yield sql.SQL("DROP POLICY IF EXISTS {} ON {}").format(everybody, target)
        # With row-level security on, a role without a policy sees nothing: this one restores the
        # usual rights for everybody, and the restrictive one below narrows them for the viewer
        # alone.
        yield sql.SQL("CREATE POLICY {} ON {} USING (true) WITH CHECK (true)").format(
            everybody, target
        )
        yield sql.SQL("DROP POLICY IF EXISTS {} ON {}").format(own, target)
        yield sql.SQL("CREATE POLICY {} ON {} AS RESTRICTIVE TO {} USING ({})").format(
            own, target, role, sql.SQL(condition)
        )
        yield sql.SQL("ALTER TABLE {} ENABLE ROW LEVEL SECURITY").format(target)
    yield sql.SQL("COMMENT ON POLICY {} ON {} IS {}").format(
        sql.Identifier(POLICY), sql.Identifier(schema, "owner"), sql.Literal(VERSION)
    )


VERSION = hashlib.sha256(json.dumps([OWNED, COMMON], sort_keys=True).encode()).hexdigest()[:16]
"""Version of these policies; those of another version are replaced."""

_MAY_BECOME_VIEWER = (
    "EXISTS (SELECT FROM pg_roles WHERE rolname = %(role)s AND pg_has_role(current_user, oid, "
    "CASE WHEN current_setting('server_version_num')::int >= 160000 THEN 'SET' ELSE 'MEMBER' END))"
)
_UP_TO_DATE = (
    "EXISTS (SELECT FROM pg_policy p WHERE p.polname = %(policy)s AND p.polrelid ="
    " to_regclass('owner') AND obj_description(p.oid, 'pg_policy') = %(version)s)"
)
_PARAMETERS = {"role": ROLE, "policy": POLICY, "version": VERSION}


def unfiltered_tables(connection: Connection) -> set[str]:
    """Tables without a policy because Citus took them over, or because their condition reads one of
    those.
    """
    if not distribution.managed_tables(connection):
        return set()
    converted = distribution.converted_tables(connection)
    return {
        table
        for table, condition in OWNED.items()
        if table in converted or converted.intersection(_READ.findall(condition))
    }


def is_enabled(connection: Connection) -> bool:
    """Whether the policies of this version are in force, and this user may become the viewer."""
    condition = f"SELECT {_MAY_BECOME_VIEWER} AND {_UP_TO_DATE}"
    return bool(select_value(connection, condition, _PARAMETERS))


@contextmanager
def as_viewer(connection: Connection, owner: Mapping[str, str] | None) -> Iterator[None]:
    """Restrict the connection to the rows of an owner (level -> value) and below while the block
    runs; None: no further. Afterwards it is as restricted as before.

    Without row-level security nothing is restricted, and a warning is logged.
    """
    if owner is None:
        yield
        return
    before = become_viewer(connection, owner)
    try:
        yield
    finally:
        # In a failed transaction no statement runs; its rollback also undoes the change of the
        # role.
        is_failed = connection.info.transaction_status == pq.TransactionStatus.INERROR
        if before is not None and not is_failed:
            connection.execute(
                "SELECT set_config('role', %s, false), set_config('gpuledger.owner', %s, false)",
                (before.role, before.owner or ""),
            )


class Restriction(NamedTuple):
    """The role of a session (`none`: that of its login) and the owner of whom it sees rows."""

    role: str
    owner: str | None


def become_viewer(connection: Connection, owner: Mapping[str, str]) -> Restriction | None:
    """Restrict the session to an owner's rows until it ends; return how it was restricted before,
    and None without row-level security.
    """
    # Both settings and the condition in one statement: the role is changed only if the policies are
    # in force.
    row = select_row(
        connection,
        "WITH before AS MATERIALIZED (SELECT current_setting('role') AS role,"
        " current_setting('gpuledger.owner', true) AS owner)"
        " SELECT role, owner, set_config('gpuledger.owner', %(owner)s, false) AS new_owner,"
        f" set_config('role', %(role)s, false) AS new_role FROM before WHERE {_MAY_BECOME_VIEWER}"
        f" AND {_UP_TO_DATE}",
        {**_PARAMETERS, "owner": json.dumps(dict(owner))},
    )
    if row is None:
        log.warning("row-level security for viewers is not enabled: gpuledger doctor says why")
        return None
    return Restriction(row.role, row.owner)


def disable(connection: Connection) -> int:
    """Drop the policies, so that tables can change; return how many there were."""
    tables = connection.execute(
        "SELECT polrelid::regclass::text FROM pg_policy WHERE polname = %s", (POLICY,)
    ).fetchall()
    for (table,) in tables:
        connection.execute(
            sql.SQL("DROP POLICY {} ON {}").format(sql.Identifier(POLICY), sql.SQL(table))
        )
    return len(tables)


def enable(connection: Connection, tries: int = 1, pause_s: float = 0) -> str:
    """Enable row-level security unless it is; return what prevents it in a sentence, empty when it
    is enabled.

    While others lock a table it is tried again, `pause_s` apart. `connection` is in autocommit
    mode.
    """
    if is_enabled(connection):
        return ""
    for left in reversed(range(tries)):
        try:
            _enable(connection)
            break
        except psycopg.Error as error:
            if left and isinstance(error, psycopg.errors.LockNotAvailable):
                time.sleep(pause_s)
                continue
            reason = str(error).strip().partition("\n")[0]
            log.warning("row-level security for viewers was not enabled: %s", reason)
            return reason
    return "" if is_enabled(connection) else f"this user may not become {ROLE}"


def _enable(connection: Connection) -> None:
    """Create the role and the policies in one transaction. Raises psycopg.Error."""
    with connection.transaction():
        connection.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
        _ensure_role(connection)
        schema = select_value(connection, "SELECT current_schema()")
        tables = select_values(
            connection,
            "SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace",
            [schema],
        )
        for statement in statements(schema, set(tables), unfiltered_tables(connection)):
            connection.execute(statement)


def _ensure_role(connection: Connection) -> None:
    """Create the role and let this user become it. Raises psycopg.Error when this user may not."""
    with connection.transaction():
        locks.take(connection, Lock.ROW_LEVEL_SECURITY)
        there = connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (ROLE,)).fetchone()
        if there is None:
            connection.execute(sql.SQL("CREATE ROLE {} NOLOGIN").format(sql.Identifier(ROLE)))
        may = connection.execute(f"SELECT {_MAY_BECOME_VIEWER}", _PARAMETERS).fetchone()
        if may is None or not may[0]:
            version = connection.info.server_version
            grant = "GRANT {} TO CURRENT_USER" + (
                " WITH INHERIT FALSE, SET TRUE" if version >= 160_000 else ""
            )
            connection.execute(sql.SQL(grant).format(sql.Identifier(ROLE)))


def advice(connection: Connection) -> str:
    """What must be done before row-level security is enabled: an administrator's SQL where the role
    is missing.
    """
    row = connection.execute(
        f"SELECT quote_ident(current_user), {_MAY_BECOME_VIEWER}", _PARAMETERS
    ).fetchone()
    assert row is not None
    user, may_become_viewer = row
    if may_become_viewer:
        return "gpuledger db upgrade, which says what prevents it"
    return f"CREATE ROLE {ROLE} NOLOGIN; GRANT {ROLE} TO {user}; then: gpuledger db upgrade"
