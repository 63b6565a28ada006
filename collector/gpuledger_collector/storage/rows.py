"""Rows by the names of their columns, so that a column that is added shifts no other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from psycopg.rows import class_row, namedtuple_row, scalar_row

from gpuledger_collector.storage.locks import Connection

Item = TypeVar("Item")
Values = Mapping[str, object] | Sequence[object] | None


def select(connection: Connection, query: str, values: Values = None) -> list[Any]:
    """Read rows whose columns are attributes."""
    return connection.cursor(row_factory=namedtuple_row).execute(query.encode(), values).fetchall()


def select_as(
    connection: Connection, kind: type[Item], query: str, values: Values = None
) -> list[Item]:
    """Read rows as objects of a class whose fields are called as the columns."""
    return connection.cursor(row_factory=class_row(kind)).execute(query.encode(), values).fetchall()


def select_values(connection: Connection, query: str, values: Values = None) -> list[Any]:
    """Read the first column of each row."""
    return connection.cursor(row_factory=scalar_row).execute(query.encode(), values).fetchall()


def select_value(connection: Connection, query: str, values: Values = None) -> Any:
    """Read the first column of the first row; None where there is no row."""
    return connection.cursor(row_factory=scalar_row).execute(query.encode(), values).fetchone()
