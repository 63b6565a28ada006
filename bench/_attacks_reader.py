"""Attacks by a dashboards' role of one team, over its own sessions in Postgres."""

from __future__ import annotations

import contextlib
import threading
import time

import psycopg
from psycopg.conninfo import make_conninfo

from bench._attacks_arena import Arena, Row
from fakes import two_teams
from fakes.two_teams import FOREIGN, OWN

READER = "attacking_reader"
REFUSED_STATEMENTS = """DELETE FROM token
UPDATE charge SET cost_micro = 0
INSERT INTO audit DEFAULT VALUES
TRUNCATE charge
DROP TABLE charge
CREATE TABLE mine (n int)
CREATE TEMP TABLE mine (n int)
SELECT * FROM token
SELECT text FROM outbox
SELECT pg_read_file('/etc/passwd')
COPY (SELECT 1) TO PROGRAM 'id'
COPY charge TO '/tmp/x'
SELECT * FROM usage_interval
SELECT lo_create(0)
SELECT pg_advisory_lock(1)
SELECT pg_try_advisory_lock(7, 7)
SELECT pg_reload_conf()
SET ROLE gpuledger
SET SESSION AUTHORIZATION gpuledger
ALTER ROLE attacking_reader SUPERUSER
SELECT * FROM pg_authid
ALTER ROLE attacking_reader CONNECTION LIMIT -1
CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'
LOCK TABLE lock_audit IN EXCLUSIVE MODE
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'gpuledger'
SET row_security = off; SELECT * FROM charge
SELECT pg_logical_emit_message(false, 'x', 'y')""".splitlines()


def reader(arena: Arena) -> None:
    """A dashboards' role of one team that lifts its limits, takes locks and sessions, and looks at
    everything.
    """
    (arena.folder / "password").write_text("a password\n")
    given = ("--owner", f"team={OWN}", "--password-file", str(arena.folder / "password"))
    arena.command("db", "grant-reader", READER, *given)
    address = make_conninfo(arena.dsn, user=READER, password="a password")
    with (
        arena.attack(
            "a reader's role: rights, locks, sessions, time", "dashboards of a team"
        ) as row,
        contextlib.ExitStack() as stack,
    ):
        time.sleep(16)  # the watch knows the role from now on
        session = stack.enter_context(contextlib.closing(_connect_without_limits(address)))
        for statement in REFUSED_STATEMENTS:
            _expect_refusal(row, session, statement)
        tables = [
            str(name)
            for (name,) in arena.query(
                "SELECT relname FROM pg_class WHERE relkind IN ('r', 'p', 'v') "
                "AND relnamespace = 'public'::regnamespace"
            )
        ]
        for table in tables:
            with contextlib.suppress(psycopg.errors.InsufficientPrivilege):
                shown = str(session.execute(f"SELECT t::text FROM {table} t").fetchall())
                row.count("table read")
                row.expect(FOREIGN not in shown, f"{table} shows {FOREIGN}")
        _sessions(arena, row, address)
        holder = stack.enter_context(contextlib.closing(_connect_without_limits(address)))
        holder.execute("BEGIN")
        for table in tables:
            with contextlib.suppress(psycopg.Error), holder.transaction():
                holder.execute(f"LOCK TABLE {table} IN ACCESS SHARE MODE NOWAIT")
            holder.execute(f"PREPARE held_{table} AS DELETE FROM {table}")
        row.count("lock held", len(tables))
        sleeper = stack.enter_context(contextlib.closing(_connect_without_limits(address)))
        began, ended = time.monotonic(), list[float]()

        def sleep() -> None:
            with contextlib.suppress(psycopg.Error):
                sleeper.execute("SELECT pg_sleep(90)")
            ended.append(time.monotonic() - began)

        thread = threading.Thread(target=sleep)
        thread.start()
        _revoke_meanwhile(arena, row)
        thread.join()
        row.count(f"ended after {ended[0]:.0f} s")
        row.expect(ended[0] < 60, f"a statement of the reader ran for {ended[0]:.0f} s")


def _connect_without_limits(address: str) -> psycopg.Connection[tuple[object, ...]]:
    opened = psycopg.connect(address, autocommit=True)
    for setting in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"):
        opened.execute(f"SET {setting} = 0")
    opened.execute("SET default_transaction_read_only = off")
    return opened


def _expect_refusal(
    row: Row, session: psycopg.Connection[tuple[object, ...]], statement: str
) -> None:
    try:
        answer = session.execute(statement)  # type: ignore[call-overload]
        ended = answer.fetchall() if answer.description else []
        harmless = statement.startswith("SELECT pg_terminate") and not any(
            value for (value,) in ended
        )
        row.count("statement without effect" if harmless else "statement run")
        row.expect(harmless, f"the reader ran {statement}")
    except psycopg.Error as error:
        row.count("statement refused")
        row.expect(not session.closed, f"{statement} ended the session: {error}")


def _sessions(arena: Arena, row: Row, address: str) -> None:
    held_open = 0
    with contextlib.ExitStack() as sessions:
        for _ in range(40):
            try:
                sessions.enter_context(psycopg.connect(address))
                held_open += 1
            except psycopg.OperationalError:
                row.count("session refused")
        row.expect(held_open <= 10, f"the reader holds {held_open} sessions")
        arena.probe(row)


def _revoke_meanwhile(arena: Arena, row: Row) -> None:
    """While a reader holds what it can, a token is revoked within seconds."""
    secret = two_teams.token(arena.dsn, "admin", "leaver")
    known = {"Authorization": f"Bearer {secret}"}
    row.expect(
        arena.ask("GET", "/v1/nodes", "nobody", None, known)[0] == 200, "a new token is not known"
    )
    begun = time.monotonic()
    arena.command("token", "revoke", "leaver")
    while (
        arena.ask("GET", "/v1/nodes", "nobody", None, known)[0] != 401
        and time.monotonic() - begun < 60
    ):
        time.sleep(0.1)
    row.count("revocation")
    row.expect(time.monotonic() - begun < 20, f"a revocation took {time.monotonic() - begun:.0f} s")
