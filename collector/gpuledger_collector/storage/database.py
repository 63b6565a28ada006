"""SQLAlchemy engines and psycopg connections from one DSN, with the limits that every session of ours keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from gpuledger_collector.storage.errors import ServerUnavailable

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine

SUPPORTED = range(15, 19)
"""Major versions of Postgres that are tested."""
SESSION = (
    "-c timezone=UTC -c statement_timeout=600000 -c idle_in_transaction_session_timeout=600000"
    " -c tcp_keepalives_idle=10 -c tcp_keepalives_interval=5 -c tcp_keepalives_count=3"
    " -c plan_cache_mode=force_custom_plan"
)
"""The server notices within 25 s that a client's machine is gone, and gives its locks (the leadership) to others.

A prepared statement is planned for its values each time: a generic plan locks every partition before it looks which
ones it needs.
"""
SORT_MEMORY = "64MB"
"""A month of a big team is added up in memory; the server's own setting is usually made for small queries."""


def parameters(dsn: str, application: str = "gpuledger") -> dict[str, Any]:
    """The DSN (URI or key=value, also SQLAlchemy's postgresql+psycopg://) as psycopg keywords.

    Raises ServerUnavailable with a sentence, without the password, when it cannot be read.
    """
    plain = dsn.replace("postgresql+psycopg://", "postgresql://", 1)
    try:
        given = conninfo_to_dict(plain)
    except psycopg.ProgrammingError as error:
        raise ServerUnavailable(
            f"the DSN cannot be read ({str(error).strip()}): postgresql://user@host/name"
        ) from error
    options = " ".join(filter(None, [SESSION, str(given.pop("options", "") or "")]))
    return {"application_name": application, "connect_timeout": 10, **given, "options": options}


def connect(dsn: str, *, pool_size: int = 5) -> Engine:
    """An engine over psycopg 3; connections are tried before use, so that a restarted server is noticed."""
    from sqlalchemy import create_engine  # most commands open connections of their own and need no SQLAlchemy

    keywords = parameters(dsn)
    return create_engine(
        "postgresql+psycopg://", connect_args=keywords, pool_size=pool_size, pool_pre_ping=True, pool_recycle=1800
    )


def open_connection(
    dsn: str, *, autocommit: bool = False, application: str = "gpuledger", session: str = ""
) -> psycopg.Connection[tuple[Any, ...]]:
    """A psycopg connection of our own, with further options of its session (`-c name=value`).

    Raises ServerUnavailable when the server cannot be reached.
    """
    keywords = parameters(dsn, application)
    keywords["options"] = f"{keywords['options']} {session}".strip()
    try:
        return psycopg.connect(**keywords, autocommit=autocommit)
    except psycopg.OperationalError as error:
        raise ServerUnavailable(f"the database cannot be reached: {reason(error)}") from error


def snapshot(connection: psycopg.Connection[tuple[Any, ...]]) -> None:
    """Every read of the connection's transaction sees the same state. To be called before the first read."""
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    connection.read_only = True
    connection.execute(f"SET LOCAL work_mem = '{SORT_MEMORY}'")


def reason(error: Exception) -> str:
    """The first line of what the driver said."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
