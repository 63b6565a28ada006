"""The right to create tables in the ledger's schema, granted to the ledger's owner by name.

Postgres gives it to the owner of a database through the role `pg_database_owner`. A session that is
admitted to a reserved connection looks its roles up before it has a database, and remembers that it
is no member: as long as it lasts, it could create no partition for a new day. A grant by name does
not depend on that.
"""

from __future__ import annotations

import logging
from contextlib import suppress

import psycopg
from psycopg import sql

from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import select_value

_HAS_GRANT = """
SELECT EXISTS (
    SELECT FROM pg_namespace n, aclexplode(coalesce(n.nspacl, acldefault('n', n.nspowner))) a
    WHERE n.nspname = %(schema)s AND a.privilege_type = 'CREATE' AND a.grantee <> 'pg_database_owner'::regrole
        AND CASE a.grantee WHEN 0 THEN true ELSE pg_has_role(%(role)s, a.grantee, 'USAGE') END)
"""

log = logging.getLogger(__name__)


def has_grant(connection: Connection, role: str, schema: str = "public") -> bool:
    """Whether a role may create tables in a schema by a grant, its own or of a role that it
    inherits from.
    """
    return bool(select_value(connection, _HAS_GRANT, {"role": role, "schema": schema}))


def grant(role: str, schema: str = "public") -> sql.Composed:
    """The statement that lets a role create tables in a schema."""
    return sql.SQL("GRANT USAGE, CREATE ON SCHEMA {} TO {}").format(
        sql.Identifier(schema), sql.Identifier(role)
    )


def missing(connection: Connection) -> str:
    """The grant that this user lacks on the ledger's schema, as a statement; empty when it has one."""
    row = connection.execute("SELECT current_user, current_schema()").fetchone()
    assert row is not None
    role, schema = map(str, row)
    return "" if has_grant(connection, role, schema) else grant(role, schema).as_string(connection)


def grant_to_self(connection: Connection) -> None:
    """Give this user the grant that it lacks, if it may; else log what an administrator has to run.

    `connection` is in autocommit mode.
    """
    statement = missing(connection)
    if not statement:
        return
    # Who has no right to grant gets an error, or no more than a warning of the server: only the
    # result tells.
    with suppress(psycopg.errors.InsufficientPrivilege):
        connection.execute(statement.encode())
    if missing(connection):
        log.warning(
            "partitions of new days may be refused: let an administrator run `%s`", statement
        )
