"""The audit log: who changed what and when, in a chain of rows (`accounting.audit_log`)."""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpuledger_collector.accounting.audit_log import Entry
from gpuledger_collector.storage import locks
from gpuledger_collector.storage.locks import Connection, Lock
from gpuledger_collector.storage.rows import select_as

_COLUMNS = "number, at_ms, who, what, subject, before::text, after::text, previous, hash"


@dataclass(frozen=True, slots=True)
class Change:
    """A changed object. `before` None: it did not exist; `after` None: it is no longer in force."""

    what: str
    subject: str
    before: Mapping[str, object] | None
    after: Mapping[str, object] | None


def person() -> str:
    """The user of this process by the system's user database, not by the environment."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"


def record(
    connection: Connection, changes: Sequence[Change], at_ms: int, who: str | None = None
) -> None:
    """Append a row for each change in the caller's transaction, which waits for other writers of
    the log.

    Under REPEATABLE READ take Lock.AUDIT before the snapshot, so that the snapshot shows the latest
    head.
    """
    if not changes:
        return
    # Each row contains the hash of the row before, so writers append one after the other until
    # COMMIT.
    locks.take(connection, Lock.AUDIT)
    last = connection.execute(
        "SELECT number, hash FROM audit ORDER BY number DESC LIMIT 1"
    ).fetchone()
    number, previous = (0, "") if last is None else last
    by = person() if who is None else who
    rows = []
    for change in changes:
        number += 1
        content = (_text(change.before), _text(change.after))
        bare = Entry(number, at_ms, by, change.what, change.subject, *content, previous, "")
        previous = bare.seal()
        rows.append(
            (number, at_ms, by, change.what, change.subject, *content, bare.previous, previous)
        )
    with connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO audit VALUES (%s, %s, %s, %s, %s, %s::json, %s::json, %s, %s)", rows
        )


def _text(value: Mapping[str, object] | None) -> str | None:
    return None if value is None else json.dumps(value, sort_keys=True, default=str)


def entries(connection: Connection, after: int = 0, most: int | None = None) -> Iterator[Entry]:
    """Read rows in order, from the one after `after`."""
    yield from select_as(
        connection,
        Entry,
        f"SELECT {_COLUMNS} FROM audit WHERE number > %s ORDER BY number LIMIT %s",
        (after, most),
    )


def newest(connection: Connection, most: int, what: str | None = None) -> list[Entry]:
    """Read the last rows (of a kind), oldest first."""
    rows = select_as(
        connection,
        Entry,
        f"SELECT {_COLUMNS} FROM audit WHERE what = coalesce(%s, what) ORDER BY number DESC"
        " LIMIT %s",
        (what, most),
    )
    return rows[::-1]
