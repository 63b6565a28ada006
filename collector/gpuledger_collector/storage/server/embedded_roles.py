"""Roles of the embedded server: the supervisor's own superuser, and the owner of the ledger, who is
none.

Everything but starting and stopping is done by the owner: a statement that somebody slips to it
reaches no file and no program of the machine. Data folders of before had one role for both, the
first of their cluster. That one cannot stop being a superuser, so it gets the supervisor's name,
and the owner is made anew under the old name, with the password that it had; then each object is
handed over. Whatever ends this half-way, the next start goes on with it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from psycopg import sql

from gpuledger_collector.storage.access.readers import FUNCTIONS
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import select_value
from gpuledger_collector.storage.server import schema_rights

Open = Callable[[str, str, str], contextlib.AbstractContextManager[Connection]]
"""Opens an autocommit connection as a role, with a password, to a database."""
ADMIN = "gpuledger_admin"
OWNER = "gpuledger"
DATABASE = "gpuledger"
_STEP = "gpuledger_upgrade"
"""A superuser for as long as the first role is renamed, which it cannot do to itself."""
# Objects in `public` that the owner does not own yet. Sequences of identity columns follow their
# tables by themselves.
_FOREIGN = """
SELECT CASE c.relkind WHEN 'S' THEN 'SEQUENCE' WHEN 'v' THEN 'VIEW' WHEN 'm' THEN 'MATERIALIZED VIEW' ELSE 'TABLE' END,
    c.oid::regclass::text
FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'S', 'v', 'm')
AND c.relowner <> %(owner)s::regrole
AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid
    AND d.refclassid = 'pg_class'::regclass AND d.deptype IN ('a', 'i') AND c.relkind = 'S')
UNION ALL
SELECT 'ROUTINE', p.oid::regprocedure::text FROM pg_proc p
WHERE p.pronamespace = 'public'::regnamespace AND p.proowner <> %(owner)s::regrole
UNION ALL
SELECT 'TYPE', t.oid::regtype::text FROM pg_type t
WHERE t.typnamespace = 'public'::regnamespace AND t.typowner <> %(owner)s::regrole AND t.typtype IN ('e', 'd', 'r')
"""

_OPEN_TO_ALL = (
    "SELECT oid::regprocedure::text FROM pg_proc, aclexplode(coalesce(proacl, acldefault('f',"
    f" proowner))) a WHERE {FUNCTIONS} AND a.grantee = 0"
)


def divide(open_as: Open, owner_password: str, admin_password: str) -> None:
    """Give an older cluster, whose first role is the owner, a supervisor of its own."""
    with open_as(OWNER, owner_password, "postgres") as connection:
        _make(connection, _STEP, admin_password, "SUPERUSER LOGIN")
    with open_as(_STEP, admin_password, "postgres") as connection, connection.transaction():
        owner, admin = sql.Identifier(OWNER), sql.Identifier(ADMIN)
        connection.execute(sql.SQL("ALTER ROLE {} RENAME TO {}").format(owner, admin))
        _make(connection, ADMIN, admin_password, "")
        _make(connection, OWNER, owner_password, "LOGIN CREATEROLE")


def _make(connection: Connection, role: str, password: str, rights: str) -> None:
    """Create or change a role with these rights and this password, which is sent as its hash."""
    known = connection.execute("SELECT FROM pg_roles WHERE rolname = %s", (role,)).fetchone()
    # Hashed here, so that the server's log and statistics never contain the password.
    hashed = connection.pgconn.encrypt_password(
        password.encode(), role.encode(), b"scram-sha-256"
    ).decode()
    text = "CREATE ROLE {} {} PASSWORD {}" if known is None else "ALTER ROLE {} {} PASSWORD {}"
    connection.execute(
        sql.SQL(text).format(sql.Identifier(role), sql.SQL(rights), sql.Literal(hashed))
    )


def set_up(open_as: Open, owner_password: str, admin_password: str) -> None:
    """Create the owner and its database where missing, and transfer objects that it does not own
    yet.
    """
    with open_as(ADMIN, admin_password, "postgres") as connection:
        if not _is_set_up(connection):
            _set_up_server(connection, owner_password)
    with open_as(ADMIN, admin_password, DATABASE) as connection:
        for kind, name in connection.execute(_FOREIGN, {"owner": OWNER}).fetchall():
            change = sql.SQL("ALTER {} {} OWNER TO {}")
            connection.execute(change.format(sql.SQL(kind), sql.SQL(name), sql.Identifier(OWNER)))
        for (name,) in connection.execute(_OPEN_TO_ALL).fetchall():
            connection.execute(
                sql.SQL("REVOKE EXECUTE ON FUNCTION {} FROM PUBLIC").format(sql.SQL(name))
            )
        if not schema_rights.has_grant(connection, OWNER):
            connection.execute(schema_rights.grant(OWNER))
        if not _decides_temporary_files(connection):
            owner = sql.Identifier(OWNER)
            connection.execute(
                sql.SQL("GRANT SET ON PARAMETER temp_file_limit TO {}").format(owner)
            )
            # Rating sorts what the ledger holds; the limit of the server is for everybody else.
            connection.execute(sql.SQL("ALTER ROLE {} SET temp_file_limit = -1").format(owner))


def is_complete(connection: Connection) -> bool:
    """Whether `set_up` has nothing to do; `connection` is that of the supervisor, to the database
    of the ledger.
    """
    return (
        _is_set_up(connection)
        and connection.execute(_FOREIGN, {"owner": OWNER}).fetchone() is None
        and connection.execute(_OPEN_TO_ALL).fetchone() is None
        and schema_rights.has_grant(connection, OWNER)
        and _decides_temporary_files(connection)
    )


def _decides_temporary_files(connection: Connection) -> bool:
    """Whether the owner has no limit of temporary files, and may set that of readers."""
    return bool(
        select_value(
            connection,
            "SELECT has_parameter_privilege(%(owner)s, 'temp_file_limit', 'SET') AND EXISTS (SELECT"
            " FROM pg_roles WHERE rolname = %(owner)s AND 'temp_file_limit=-1' = ANY (rolconfig))",
            {"owner": OWNER},
        )
    )


def _is_set_up(connection: Connection) -> bool:
    """Whether `_set_up_server` finished."""
    return bool(
        select_value(
            connection,
            "SELECT EXISTS (SELECT FROM pg_database d JOIN pg_roles r ON r.oid = d.datdba WHERE"
            " datname"
            " = %s AND rolname = %s) AND NOT EXISTS (SELECT FROM pg_roles WHERE rolname = %s)",
            (DATABASE, OWNER, _STEP),
        )
    )


def _set_up_server(connection: Connection, owner_password: str) -> None:
    owner = sql.Identifier(OWNER)
    _make(connection, OWNER, owner_password, "LOGIN CREATEROLE")
    connection.execute(sql.SQL("GRANT pg_use_reserved_connections TO {}").format(owner))
    others = connection.execute(
        "SELECT rolname, rolcanlogin FROM pg_roles WHERE oid >= 16384 AND NOT rolsuper AND rolname"
        " <> %s",
        (OWNER,),
    ).fetchall()
    for role, is_reader in others:
        # INHERIT on a reader lets the owner end its sessions; SET on the viewer's role lets the
        # collector become it.
        how = "INHERIT TRUE, SET FALSE" if is_reader else "INHERIT FALSE, SET TRUE"
        grant = sql.SQL(f"GRANT {{}} TO {{}} WITH ADMIN TRUE, {how}")
        connection.execute(grant.format(sql.Identifier(role), owner))
    # By default every role may connect everywhere, readers included.
    for database in ("postgres", "template1"):
        connection.execute(
            sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(sql.Identifier(database))
        )
    connection.execute(sql.SQL("GRANT CONNECT ON DATABASE postgres TO {}").format(owner))
    place = sql.Identifier(DATABASE)
    if (
        connection.execute("SELECT FROM pg_database WHERE datname = %s", (DATABASE,)).fetchone()
        is None
    ):
        connection.execute(sql.SQL("CREATE DATABASE {}").format(place))
    connection.execute(sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(place))
    connection.execute(sql.SQL("DROP ROLE IF EXISTS {}").format(sql.Identifier(_STEP)))
    # Last, because it is what `_is_set_up` asks for.
    connection.execute(sql.SQL("ALTER DATABASE {} OWNER TO {}").format(place, owner))
