"""The audit log: who changed what and when, in rows that are only added and each sealed with the
one before.

A row's hash covers its content and the hash of its predecessor, so whoever removes, changes or
reorders a row breaks the chain from there on. A chain cannot show that its last rows are gone: for
that, note its head (`gpuledger audit verify` prints it) where the owner of the database cannot
write, and have it looked for.
"""

from __future__ import annotations

import hashlib
import json
import os
import pwd
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpuledger_collector.storage import locks
from gpuledger_collector.storage.locks import Connection, Lock

_COLUMNS = "number, at_ms, who, what, subject, before::text, after::text, previous, hash"


@dataclass(frozen=True, slots=True)
class Change:
    """A changed object. `before` None: it did not exist; `after` None: it is no longer in force."""

    what: str
    subject: str
    before: Mapping[str, object] | None
    after: Mapping[str, object] | None


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of the log; `before` and `after` are the JSON texts as hashed."""

    number: int
    at_ms: int
    who: str
    what: str
    subject: str
    before: str | None
    after: str | None
    previous: str
    hash: str

    def seal(self) -> str:
        """Compute the hash of this content after this predecessor."""
        # One canonical text: ASCII, no spaces, fields in a fixed order, so that the hash can be
        # recomputed anywhere.
        parts = [
            self.number,
            self.at_ms,
            self.who,
            self.what,
            self.subject,
            self.before,
            self.after,
            self.previous,
        ]
        return hashlib.sha256(
            json.dumps(parts, ensure_ascii=True, separators=(",", ":")).encode()
        ).hexdigest()


@dataclass(frozen=True, slots=True)
class Verdict:
    """Number of checked rows, the head (number, hash) of the chain, and the first fault, if any."""

    rows: int
    head: tuple[int, str]
    fault: str | None


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
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM audit WHERE number > %s ORDER BY number LIMIT %s", (after, most)
    )
    for row in rows:
        yield Entry(*row)


def newest(connection: Connection, most: int, what: str | None = None) -> list[Entry]:
    """Read the last rows (of a kind), oldest first."""
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM audit WHERE what = coalesce(%s, what) ORDER BY number DESC"
        " LIMIT %s",
        (what, most),
    ).fetchall()
    return [Entry(*row) for row in reversed(rows)]


def verify(connection: Connection, noted: tuple[int, str] | None = None) -> Verdict:
    """Check that every row is unchanged and in its place; `noted` is a head noted before, which
    must be found.
    """
    rows, head, fault = 0, (0, ""), None
    for entry in entries(connection):
        rows += 1
        fault = fault or _fault(entry, head)
        # A chain that was rewritten from some row on is consistent in itself; only a head that was
        # noted outside reveals it.
        if noted is not None and entry.number == noted[0] and entry.hash != noted[1]:
            fault = fault or f"row {entry.number} is not the one whose hash was noted"
        head = (entry.number, entry.hash)
    if noted is not None and head[0] < noted[0]:
        fault = (
            fault
            or f"the log ends at row {head[0]}, but row {noted[0]} was noted: its end was cut off"
        )
    return Verdict(rows, head, fault)


def _fault(entry: Entry, head: tuple[int, str]) -> str | None:
    if entry.number != head[0] + 1:
        return f"row {head[0] + 1} is missing: row {entry.number} follows on row {head[0]}"
    if entry.previous != head[1]:
        return (
            f"row {entry.number} does not follow on row {head[0]}: one of them was replaced or"
            " moved"
        )
    if entry.hash != entry.seal():
        return f"row {entry.number} was changed after it was written"
    return None
