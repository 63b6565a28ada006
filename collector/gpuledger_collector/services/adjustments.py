"""Adjustments: what is in force and booked, and entries that are booked once and reversed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuledger_collector.accounting.adjustments import Adjustment, ListedAdjustment
from gpuledger_collector.storage.billing import adjustments
from gpuledger_collector.storage.database import Database


def list_adjustments(database: Database) -> list[ListedAdjustment]:
    """List the policies in force and every entry, reversed ones too, by date and name."""
    with database.transaction(read_only=True) as connection:
        known = adjustments.current(connection)
    reversals = {entry.reverses: entry.name for entry in known if entry.reverses is not None}
    return [ListedAdjustment(entry, reversals.get(entry.id or 0, "")) for entry in known]


def book_entry(
    database: Database, entry: Adjustment, now_ms: int, *, dry_run: bool = False
) -> tuple[Adjustment, Sequence[Mapping[str, str]]]:
    """Book a credit or debit once; its owner, if nobody of that name was ever charged.

    Raises EntryRefused.
    """
    with database.transaction(dry_run=dry_run) as connection:
        unknown = adjustments.uncharged_owners(connection, [entry])
        return adjustments.book(connection, entry, now_ms), unknown


def reverse_entry(
    database: Database,
    name: str,
    reason: str,
    approver: str,
    now_ms: int,
    *,
    dry_run: bool = False,
) -> Adjustment:
    """Take a booked entry back by an entry of the opposite amounts. Raises EntryRefused."""
    with database.transaction(dry_run=dry_run) as connection:
        return adjustments.reverse(connection, name, reason, approver, now_ms)
