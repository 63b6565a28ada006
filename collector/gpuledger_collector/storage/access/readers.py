"""A role that may read what dashboards read, and nothing else.

A role belongs to the whole server, a migration to one database and often to an owner who may not
create roles: so this is a command that can be repeated, not a revision. What may be read is a list,
because a default for future tables would also open raw samples and mail. Raw evidence stays closed:
a board that scanned it would slow the writers down.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql

from gpuledger_collector.storage.access import audit
from gpuledger_collector.storage.access import dashboard_row_security as row_security
from gpuledger_collector.storage.errors import StorageError
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import select_row, select_value, select_values

READABLE = (
    "accelerator",
    "backtest",
    "billing_period",
    "billing_zone",
    "budget",
    "budget_alert",
    "budget_forecast",
    "budget_share",
    "capacity",
    "capacity_plan",
    "carbon_intensity",
    "charge",
    "corrected_day",
    "correction",
    "conservation_check",
    "counter_hour",
    "counter_series",
    "day_recompute",
    "hour_recompute",
    "finding",
    "gpu_latest",
    "gpu_minute",
    "gpu_state",
    "gpu_state_hour",
    "imported_usage",
    "inference_day",
    "ingest_batch",
    "ingest_conflict",
    "invoice",
    "job_run",
    "ledger_day",
    "ledger_month",
    "node",
    "node_purchase",
    "node_retirement",
    "node_utilization",
    "owner",
    "owner_5min",
    "owner_forecast",
    "pool_share",
    "price",
    "queue_eviction",
    "queue_hour",
    "queue_quota",
    "queue_reading",
    "queue_wait_hour",
    "recommendation_run",
    "scaling_decision",
    "scaling_outcome",
    "scaling_pool",
    "token_asker",
    "token_hour",
    "usage_hour",
    "workload",
)
"""Rollups, ledgers and the names they need; tables missing from this schema are skipped."""
READABLE_COLUMNS = {
    "recommendation": (
        *(
            "id",
            "key",
            "kind",
            "team",
            "advice",
            "start_ms",
            "end_ms",
            "currency",
            "cash_expected_micro",
        ),
        *(
            "capacity_expected_micro",
            "state",
            "made_ms",
            "decided_ms",
            "realized_micro",
            "realized_until_ms",
        ),
    ),
    "dispute": ("id", "state", "opened_ms", "resolved_ms"),
    "outbox": ("id", "kind", "state", "attempts", "made_ms", "not_before_ms", "sent_ms"),
}
"""Columns of tables whose other columns hold mail, names of people and evidence: enough to count
and list rows.
"""
CONNECTIONS = 10
"""Concurrent sessions of a role: several boards of a person. Postgres refuses more."""
TEMP_FILE_MB = 64
TEMP_FILE_LIMIT = f"{TEMP_FILE_MB}MB"
"""Temporary files of a process, for sorts and joins; a role cannot raise it, as it can the other
settings. A statement may have processes beside that of its session.
"""
STATEMENT_TIMEOUT = "30s"
"""Longest query of a reader: nobody waits longer for a board."""
SETTINGS = {
    "statement_timeout": STATEMENT_TIMEOUT,
    "default_transaction_read_only": "on",
    "idle_in_transaction_session_timeout": "30s",
    "lock_timeout": "5s",
}
"""Settings with which a session of a reader begins.

It may change them; `reader_watch` then ends it.
"""
FUNCTIONS = (
    "pronamespace = 'pg_catalog'::regnamespace AND (proname ~ '^pg_(try_)?advisory_' "
    "OR proname IN ('lo_creat', 'lo_create', 'lo_from_bytea', 'pg_logical_emit_message'))"
)
"""Functions open to everybody that fill memory, disk or log of the server; the product uses none.
"""


_HERE = "SELECT current_database() AS database, current_schema() AS schema"
_NO_TEMP_FILE_LIMIT = (
    "NOT EXISTS (SELECT FROM unnest(r.rolconfig) entry WHERE entry LIKE 'temp_file_limit=%' "
    "AND entry <> 'temp_file_limit=-1')"
)
"""Whether the role `r` may write temporary files without end."""


class RoleRefused(StorageError):
    """The role cannot be created or used for reading; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Step:
    """A statement; `optional`: an owner without the right to it continues, with a warning."""

    statement: sql.Composed
    optional: bool = False
    secret: bool = False
    readiness_problems: sql.Composed | None = None
    """A query for whether it still needs to run: Postgres only warns when a REVOKE changes nothing.
    """


def plan(
    connection: Connection, role: str, password: str | None, owner: Mapping[str, str] | None = None
) -> list[Step]:
    """List the statements that let the role read everything, or one owner's rows (level -> value).

    Raises RoleRefused when the role would be too powerful or is not allowed.
    """
    if owner is None and row_security.is_bound(connection, role):
        raise RoleRefused(
            f"{role} sees one owner's part only: drop the role first, or name another one"
        )
    name = sql.Identifier(role)
    # A superuser ignores every limit, and a role that has this user's rights may write whatever the
    # collector may.
    row = connection.execute(
        "SELECT rolsuper, pg_has_role(oid, current_user, 'USAGE') FROM pg_roles WHERE rolname = %s",
        (role,),
    ).fetchone()
    if row is not None and any(row):
        raise RoleRefused(
            f"{role} is no role for reading alone: it is a superuser or has this user's own rights"
        )
    steps: list[Step] = []
    if row is None:
        # Created in the transaction that also limits it, so that an error leaves no half-finished
        # role.
        steps.append(_creation(connection, role, password))
    elif password is not None:
        # LOGIN as well: this is how a role that was revoked comes back.
        change = sql.SQL("ALTER ROLE {} LOGIN PASSWORD {}").format(
            name, _hash_password(connection, role, password)
        )
        steps.append(Step(change, optional=True, secret=True))
    database, schema = select_row(connection, _HERE)
    steps.append(
        Step(
            sql.SQL("GRANT CONNECT ON DATABASE {} TO {}").format(sql.Identifier(database), name),
            optional=True,
        )
    )
    steps.append(
        Step(sql.SQL("GRANT USAGE ON SCHEMA {} TO {}").format(sql.Identifier(schema), name))
    )
    if owner is None:
        tables = sql.SQL(", ").join(sql.Identifier(schema, table) for table in _present(connection))
        steps.append(Step(sql.SQL("GRANT SELECT ON {} TO {}").format(tables, name)))
        for table in _present(connection, READABLE_COLUMNS):
            columns = sql.SQL(", ").join(map(sql.Identifier, READABLE_COLUMNS[table]))
            place_of = sql.Identifier(schema, table)
            steps.append(
                Step(sql.SQL("GRANT SELECT ({}) ON {} TO {}").format(columns, place_of, name))
            )
    else:
        steps += [Step(statement) for statement in row_security.statements(schema, role, owner)]
    steps += _limits(connection, role, database)
    known = sql.SQL("INSERT INTO {} (role) VALUES ({}) ON CONFLICT DO NOTHING")
    steps.append(Step(known.format(sql.Identifier(schema, "database_reader"), sql.Literal(role))))
    return steps


def _limits(connection: Connection, role: str, database: str) -> Iterator[Step]:
    """The statements that limit the role's share of the server and let this user end its sessions."""
    name, place, text = sql.Identifier(role), sql.Identifier(database), sql.Literal(role)
    for setting, value in SETTINGS.items():
        change = sql.SQL("ALTER ROLE {} IN DATABASE {} SET {} = {}")
        yield Step(
            change.format(name, place, sql.Identifier(setting), sql.Literal(value)), optional=True
        )
    yield Step(
        sql.SQL("ALTER ROLE {} SET temp_file_limit = {}").format(
            name, sql.Literal(TEMP_FILE_LIMIT)
        ),
        optional=True,
        readiness_problems=sql.SQL("SELECT {} FROM pg_roles r WHERE rolname = {}").format(
            sql.SQL(_NO_TEMP_FILE_LIMIT), text
        ),
    )
    yield Step(
        sql.SQL("ALTER ROLE {} CONNECTION LIMIT {}").format(name, sql.Literal(CONNECTIONS)),
        optional=True,
        readiness_problems=sql.SQL(
            "SELECT rolconnlimit <> {} FROM pg_roles WHERE rolname = {}"
        ).format(sql.Literal(CONNECTIONS), text),
    )
    yield Step(
        sql.SQL("REVOKE TEMPORARY ON DATABASE {} FROM PUBLIC, {}").format(place, name),
        optional=True,
        readiness_problems=sql.SQL(
            "SELECT has_database_privilege({}, current_database(), 'TEMPORARY')"
        ).format(text),
    )
    functions = sql.SQL(", ").join(
        map(
            sql.SQL,
            select_values(
                connection, f"SELECT oid::regprocedure::text FROM pg_proc WHERE {FUNCTIONS}"
            ),
        )
    )
    yield Step(
        sql.SQL("REVOKE EXECUTE ON FUNCTION {} FROM PUBLIC").format(functions),
        optional=True,
        readiness_problems=sql.SQL(
            "SELECT bool_or(has_function_privilege({}, oid, 'EXECUTE')) FROM pg_proc WHERE {}"
        ).format(text, sql.SQL(FUNCTIONS)),
    )
    # From Postgres 16 on INHERIT and SET are separate: ending a role's sessions needs the first,
    # becoming it the second.
    inherits = " WITH INHERIT TRUE, SET FALSE" if connection.info.server_version >= 160_000 else ""
    me = select_value(connection, "SELECT current_user")
    yield Step(
        sql.SQL(f"GRANT {{}} TO {{}}{inherits}").format(name, sql.Identifier(me)),
        optional=True,
        readiness_problems=sql.SQL("SELECT NOT pg_has_role({}, 'USAGE')").format(text),
    )


def _creation(connection: Connection, role: str, password: str | None) -> Step:
    name = sql.Identifier(role)
    if not select_value(
        connection, "SELECT rolsuper OR rolcreaterole FROM pg_roles WHERE rolname = current_user"
    ):
        raise RoleRefused(
            f"there is no role {role}, and this user may not create one; let an administrator run:"
            f" CREATE ROLE {name.as_string(connection)} LOGIN PASSWORD '...'"
        )
    if password is None:
        return Step(sql.SQL("CREATE ROLE {} LOGIN").format(name))
    hashed = _hash_password(connection, role, password)
    return Step(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(name, hashed), secret=True)


def _hash_password(connection: Connection, role: str, password: str) -> sql.Literal:
    """The password as the server stores it, so that no log of statements contains it."""
    hashed = connection.pgconn.encrypt_password(password.encode(), role.encode(), b"scram-sha-256")
    return sql.Literal(hashed.decode())


def _present(connection: Connection, wanted: Iterable[str] = READABLE) -> Sequence[str]:
    return select_values(
        connection,
        "SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND"
        " relkind IN ('r', 'p') AND relname = ANY(%s) ORDER BY 1",
        (list(wanted),),
    )


def grant(
    connection: Connection, role: str, password: str | None, owner: Mapping[str, str] | None = None
) -> list[str]:
    """Let the role read, in one transaction; return the optional statements that this user may not
    run.
    """
    with connection.transaction():
        return _run(connection, role, plan(connection, role, password, owner))


def _run(connection: Connection, role: str, steps: Iterable[Step]) -> list[str]:
    left: list[str] = []
    for step in steps:
        if not step.optional:
            connection.execute(step.statement)
        elif _has_readiness_problems(connection, step) and not _try_step(connection, step):
            statement = sql.SQL("ALTER ROLE {} LOGIN PASSWORD '...'").format(sql.Identifier(role))
            left.append((statement if step.secret else step.statement).as_string(connection))
    return left


def revocation(connection: Connection, role: str) -> list[Step]:
    """List the statements that take back what `plan` gave.

    Raises RoleRefused for a role that is no reader.

    The role stays among those that are watched, so that a session which begins at this moment is
    ended, too.
    """
    known = select_values(connection, "SELECT role FROM database_reader ORDER BY 1")
    if role not in known:
        raise RoleRefused(f"{role} is no reader; there are {', '.join(known) or 'none'}")
    here = select_row(connection, _HERE)
    name, place, schema = map(sql.Identifier, (role, here.database, here.schema))
    if connection.execute("SELECT FROM pg_roles WHERE rolname = %s", (role,)).fetchone() is None:
        return [
            Step(
                sql.SQL("DELETE FROM {} WHERE role = {}").format(
                    sql.Identifier("database_reader"), sql.Literal(role)
                )
            )
        ]
    return [
        Step(sql.SQL("REVOKE ALL ON ALL TABLES IN SCHEMA {} FROM {}").format(schema, name)),
        Step(sql.SQL("REVOKE ALL ON SCHEMA {} FROM {}").format(schema, name)),
        *map(Step, row_security.removal(here.schema, role)),
        Step(sql.SQL("REVOKE ALL ON DATABASE {} FROM {}").format(place, name), optional=True),
        Step(
            sql.SQL("ALTER ROLE {} NOLOGIN").format(name),
            optional=True,
            readiness_problems=sql.SQL(
                "SELECT rolcanlogin FROM pg_roles WHERE rolname = {}"
            ).format(sql.Literal(role)),
        ),
    ]


def revoke(connection: Connection, role: str, at_ms: int) -> list[str]:
    """Take back what `grant` gave, in one transaction; return the optional statements that this
    user may not run.
    """
    with connection.transaction():
        left = _run(connection, role, revocation(connection, role))
        audit.record(connection, [audit.Change("reader", role, {"state": "granted"}, None)], at_ms)
    return left


def end_sessions(connection: Connection, role: str) -> tuple[int, str]:
    """End the role's sessions; returns how many, and the statement for an administrator where this
    user may not.
    """
    sessions = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = {}"
    statement = sql.SQL(sessions).format(sql.Literal(role))
    try:
        return select_value(connection, statement), ""
    except psycopg.errors.InsufficientPrivilege:
        return 0, statement.as_string(connection)


def _has_readiness_problems(connection: Connection, step: Step) -> bool:
    """Whether it still needs to run; so it does where the role is not there yet."""
    if step.readiness_problems is None:
        return True
    problems = select_values(connection, step.readiness_problems)
    return not problems or bool(problems[0])


def _try_step(connection: Connection, step: Step) -> bool:
    """Run an optional statement; return whether it had its effect."""
    try:
        # A savepoint: a right that is missing must not end the transaction of the required
        # statements.
        with connection.transaction():
            connection.execute(step.statement)
    except psycopg.errors.InsufficientPrivilege:
        return False
    return step.readiness_problems is None or not _has_readiness_problems(connection, step)


# Roles that may read charges and log in, but are no registered readers, lack a limit, or have
# sessions that this user cannot end.
_NOT_HELD = f"""
SELECT r.rolname FROM pg_class c, aclexplode(c.relacl) a JOIN pg_roles r ON r.oid = a.grantee
WHERE c.oid = to_regclass('charge') AND a.privilege_type = 'SELECT' AND r.rolcanlogin AND NOT r.rolsuper
AND NOT pg_has_role(r.oid, current_user, 'USAGE') AND (
    r.rolname NOT IN (SELECT role FROM database_reader) OR r.rolconnlimit = -1
    OR has_database_privilege(r.oid, current_database(), 'TEMPORARY') OR {_NO_TEMP_FILE_LIMIT}
    OR NOT (pg_has_role(r.oid, 'USAGE') OR pg_has_role('pg_signal_backend', 'USAGE')))
ORDER BY 1
"""


def not_held(connection: Connection) -> list[str]:
    """List roles that read the ledger without limits, or whose sessions this user cannot end."""
    return select_values(connection, _NOT_HELD)


def script(
    connection: Connection, role: str, password: str | None, owner: Mapping[str, str] | None = None
) -> list[str]:
    """The statements as text, for people who run them; a password is not shown."""
    steps = plan(connection, role, password, owner)
    return [
        f"-- sets the password of {role}" if step.secret else step.statement.as_string(connection)
        for step in steps
    ]
