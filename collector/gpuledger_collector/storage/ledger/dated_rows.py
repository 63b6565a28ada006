"""Tables of declared rows, which a file replaces together: superseded rather than edited, and
audited. Their columns are the fields of the type of their rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Generic, TypeVar, cast

from gpuledger_collector.accounting.import_progress import OnRow, RowStages, tell_nobody
from gpuledger_collector.accounting.ledger_rows import ImportOutcome
from gpuledger_collector.storage import locks
from gpuledger_collector.storage.access import audit
from gpuledger_collector.storage.locks import Connection, Lock
from gpuledger_collector.storage.rows import select, select_as, select_value
from gpuledger_common.instants import to_datetime

Declared = TypeVar("Declared")
IN_FORCE = (
    "recorded_at <= coalesce(%(at)s, recorded_at) AND (superseded_at IS NULL OR superseded_at >"
    " %(at)s)"
)
"""SQL: rows in force, now (`at` null) or at an instant."""


@dataclass(frozen=True)
class DatedTable(Generic[Declared]):
    """A table of declared rows of one type, read and replaced by the fields of that type."""

    name: str
    type: type[Declared]
    order: str
    """SQL: the order in which rows are read."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Columns that are not called like their field, by field."""
    is_read_at_closes: bool = True
    """Whether reports of a closed month read it as of the close; what is declared during one then
    counts after it.
    """

    @cached_property
    def fields(self) -> Sequence[str]:
        """The fields of the type."""
        return [own.name for own in fields(cast("Any", self.type))]

    @cached_property
    def columns(self) -> Mapping[str, str]:
        """What is declared: columns by their fields, without the number of a row."""
        return {name: self.renamed.get(name, name) for name in self.fields if name != "id"}

    def in_force(self, connection: Connection, at_ms: int | None = None) -> list[Declared]:
        """Read the rows in force, now or at an instant."""
        return self._read(
            connection,
            f"{IN_FORCE} ORDER BY {self.order}",
            {"at": None if at_ms is None else to_datetime(at_ms)},
        )

    def by_id(self, connection: Connection, ids: Iterable[int]) -> dict[int, Declared]:
        """Read rows by number, superseded ones too: charges name the version that they follow from."""
        rows = self._read(connection, "id = ANY(%(ids)s)", {"ids": list(ids)})
        return {cast("Any", row).id: row for row in rows}

    def _read(
        self, connection: Connection, where: str, values: Mapping[str, object]
    ) -> list[Declared]:
        names = [f"{self.columns.get(name, name)} AS {name}" for name in self.fields]
        query = f"SELECT {', '.join(names)} FROM {self.name} WHERE {where}"
        return select_as(connection, self.type, query, values)

    def replace(
        self,
        connection: Connection,
        wanted: Iterable[Declared],
        now_ms: int,
        on_row: OnRow = tell_nobody,
    ) -> ImportOutcome:
        """Replace the rows in force; rows of the same content stay.

        `on_row` is told how many of the new rows are written.
        """
        rows = [
            {column: getattr(row, name) for name, column in self.columns.items()} for row in wanted
        ]
        since = after_closes(connection, now_ms) if self.is_read_at_closes else now_ms
        columns = list(self.columns.values())
        return replace_rows(connection, self.name, columns, rows, since, on_row=on_row)


def after_closes(connection: Connection, now_ms: int) -> int:
    """Return now, or just after the last close: a declaration during a close does not belong to the
    closed month.

    The ledger lock keeps months from being closed until the transaction ends.
    """
    locks.take(connection, Lock.LEDGER)
    closed_ms = select_value(connection, "SELECT max(closed_ms) FROM billing_period")
    return now_ms if closed_ms is None else max(now_ms, int(closed_ms) + 1)


def replace_rows(
    connection: Connection,
    table: str,
    columns: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    now_ms: int,
    among: str = "true",
    on_row: OnRow = tell_nobody,
) -> ImportOutcome:
    """Replace the rows in force `among` those of a condition; rows of the same content stay.

    `on_row` is told how many of the new rows are written.
    """
    known = {
        _content({name: getattr(row, name) for name in columns}): row.id
        for row in select(
            connection,
            f"SELECT id, {', '.join(columns)} FROM {table} WHERE superseded_at IS NULL AND {among}",
        )
    }
    wanted = {_content(row): row for row in rows}
    gone = [content for content in known if content not in wanted]
    new = [content for content in wanted if content not in known]
    connection.execute(
        f"UPDATE {table} SET superseded_at = %s WHERE id = ANY(%s)",
        (to_datetime(now_ms), [known[content] for content in gone]),
    )
    for content in RowStages(new, 1, on_row).one_by_one():
        cells = [_cell(wanted[content][name]) for name in columns]
        given = ", ".join(["%s"] * (len(columns) + 1))
        connection.execute(
            f"INSERT INTO {table} ({', '.join(columns)}, recorded_at) VALUES ({given})",
            (*cells, to_datetime(now_ms)),
        )
    changes = [
        audit.Change(table, _subject(content), json.loads(content), None) for content in gone
    ]
    changes += [
        audit.Change(table, _subject(content), None, json.loads(content)) for content in new
    ]
    audit.record(connection, changes, now_ms)
    return ImportOutcome(len(new), len(gone), len(wanted) - len(new))


def _cell(value: object) -> object:
    return json.dumps(dict(value)) if isinstance(value, Mapping) else value


def _content(row: Mapping[str, Any]) -> str:
    def plain(value: object) -> object:
        if isinstance(value, Mapping):
            return dict(value)
        if value is None or isinstance(value, str | int):
            return value
        return f"{value.normalize():f}" if hasattr(value, "normalize") else str(value)

    return json.dumps({name: plain(value) for name, value in row.items()}, sort_keys=True)


def _subject(content: str) -> str:
    row = json.loads(content)
    if "from_currency" in row:
        return f"{row['from_currency']} to {row['to_currency']}"
    if "cost_center" in row:
        return ", ".join(f"{level}={name}" for level, name in row["owner"].items())
    if "tenant" in row:
        return f"{row['gateway']}: {row['tenant']}" if row["gateway"] else str(row["tenant"])
    return str(row.get("name") or row.get("pool") or row.get("region") or "every pool")
