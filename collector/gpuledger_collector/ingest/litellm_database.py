"""Read LiteLLM's spend logs from its Postgres, page by page in the order of its own index.

The session is read-only and selects the columns of `COLUMNS`, that of the tenant, and one number of
the metadata, the cached prompt tokens, where its role may: prompts, answers, other metadata,
addresses and keys are never asked for.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row

from gpuledger_collector.accounting.period import Period
from gpuledger_collector.config.fields import DECLARED
from gpuledger_collector.config.files import MAX_RECORDS
from gpuledger_collector.config.model import Record
from gpuledger_collector.ingest.files.litellm import (
    CACHED,
    COLUMNS,
    LITELLM,
    SpendLogs,
    TenantColumn,
    add_row,
    cells_of,
)
from gpuledger_collector.storage.rows import select_value
from gpuledger_common.instants import to_datetime

TABLE = "LiteLLM_SpendLogs"
CACHED_PATHS = (
    "{additional_usage_values,cache_read_input_tokens}",
    "{additional_usage_values,prompt_tokens_details,cached_tokens}",
    "{usage_object,prompt_tokens_details,cached_tokens}",
)
"""Where LiteLLM's versions write the cached prompt tokens in their metadata; the first counts."""
PAGE_ROWS = 10_000
CONNECT_SECONDS = 10
STATEMENT_SECONDS = 60
OPTIONS = (
    "-c default_transaction_read_only=on -c timezone=UTC"
    f" -c statement_timeout={STATEMENT_SECONDS}s -c idle_in_transaction_session_timeout=60s"
)


_URLS = ("postgresql://", "postgres://")
_PLACES = ("host", "port", "dbname")


class BadDsn(Exception):
    """A text is no DSN; the message repeats nothing of it, since it may hold a password."""


class NoSpendLogs(Exception):
    """LiteLLM's database does not answer, or has no such table; the message says which."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a page begins: behind this row."""

    started_at: dt.datetime
    request_id: str = ""


def read_database(
    dsn: str,
    period: Period,
    gateway: str = LITELLM,
    tenant: TenantColumn = TenantColumn.team_id,
) -> SpendLogs:
    """The records of requests that began in a period. Raises BadDsn and NoSpendLogs."""
    require_dsn(dsn)
    logs = SpendLogs()
    try:
        with psycopg.connect(
            dsn, autocommit=True, connect_timeout=CONNECT_SECONDS, options=OPTIONS
        ) as connection:
            has_cached = may_read_metadata(connection)
            if not has_cached:
                logs.notes.append(
                    "how much of the input was cached is not known: the role may not read metadata"
                )
            for number, cells in enumerate(_rows(connection, period, tenant, has_cached), 1):
                if number > MAX_RECORDS:
                    raise NoSpendLogs(
                        f"there are more than {MAX_RECORDS:,} requests; read a shorter time"
                    )
                add_row(logs, Record(TABLE, number, cells), gateway, tenant, DECLARED)
    except psycopg.Error as error:
        reason = (error.diag.message_primary or str(error).splitlines()[0]) if str(error) else ""
        raise NoSpendLogs(f"LiteLLM's database: {reason or type(error).__name__}") from error
    return logs


def require_dsn(dsn: str) -> None:
    """Raise BadDsn for a text of which libpq would repeat parts that may be of a password."""
    try:
        parts = conninfo_to_dict(dsn)
    except psycopg.Error:
        raise BadDsn("holds no valid DSN") from None
    port = str(parts.get("port") or "")
    if dsn.startswith(_URLS) and any("@" in str(parts.get(key) or "") for key in _PLACES):
        raise BadDsn("holds no valid DSN: write @ and / of a password as %40 and %2F")
    if not port.replace(",", "").isdecimal() and port:
        raise BadDsn("holds no valid DSN: its port is no number")


def _rows(
    connection: psycopg.Connection, period: Period, tenant: TenantColumn, has_cached: bool
) -> Iterator[dict[str, str]]:
    """The cells of every row, in the order of begin and id."""
    query = page_query(tenant, has_cached)
    place = _Place(_naive(period.start_ms))
    while True:
        with connection.cursor(row_factory=dict_row) as cursor:
            rows = cursor.execute(
                query,
                {
                    "start": place.started_at,
                    "id": place.request_id,
                    "end": _naive(period.end_ms),
                    "rows": PAGE_ROWS,
                },
            ).fetchall()
        yield from map(cells_of, rows)
        if len(rows) < PAGE_ROWS:
            return
        place = _Place(rows[-1]["startTime"], rows[-1]["request_id"])


def may_read_metadata(connection: psycopg.Connection) -> bool:
    """Whether the role may read the column that has the cached tokens."""
    return bool(
        select_value(
            connection, "SELECT has_column_privilege(%s, 'metadata', 'SELECT')", (f'"{TABLE}"',)
        )
    )


def page_query(tenant: TenantColumn, has_cached: bool = True) -> sql.Composed:
    """The query of a page; with the cached tokens of the metadata, where the role may read it."""
    columns = [*COLUMNS, tenant.value]
    paths = CACHED_PATHS if has_cached else ()
    values = [sql.SQL("metadata #>> {}").format(sql.Literal(path)) for path in paths]
    return sql.SQL(
        'SELECT {columns}, {cached} FROM {table} WHERE ("startTime", request_id) > (%(start)s, %(id)s)'
        ' AND "startTime" < %(end)s ORDER BY "startTime", request_id LIMIT %(rows)s'
    ).format(
        columns=sql.SQL(", ").join(map(sql.Identifier, columns)),
        cached=sql.SQL("{} AS {}").format(
            sql.SQL("coalesce({})").format(sql.SQL(", ").join(values)) if values else sql.NULL,
            sql.Identifier(CACHED),
        ),
        table=sql.Identifier(TABLE),
    )


def _naive(at_ms: int) -> dt.datetime:
    """An instant as LiteLLM stores it: UTC without a zone."""
    return to_datetime(at_ms).replace(tzinfo=None)
