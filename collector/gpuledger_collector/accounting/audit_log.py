"""The chain of the audit log: rows are only added, and each is sealed with the one before.

A row's hash covers its content and the hash of its predecessor, so whoever removes, changes or
reorders a row breaks the chain from there on. A chain cannot show that its last rows are gone: for
that, note its head (`gpuledger audit verify` prints it) where the owner of the database cannot
write, and have it looked for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass


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

    @property
    def change(self) -> str:
        """What became of the subject: added, changed or ended."""
        if self.before is None:
            return "added"
        return "ended" if self.after is None else "changed"

    def differences(self) -> list[str]:
        """A line for each field that changed."""
        if self.before is None or self.after is None:
            return []
        old, new = json.loads(self.before), json.loads(self.after)
        names = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
        return [
            f"{name}: {json.dumps(old.get(name))} -> {json.dumps(new.get(name))}" for name in names
        ]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Number of checked rows, the head (number, hash) of the chain, and the first fault, if any."""

    rows: int
    head: tuple[int, str]
    fault: str | None


def check_chain(entries: Iterable[Entry], noted: tuple[int, str] | None = None) -> Verdict:
    """Check that every row is unchanged and in its place; `noted` is a head noted before, which
    must be found.
    """
    rows, head, fault = 0, (0, ""), None
    for entry in entries:
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
