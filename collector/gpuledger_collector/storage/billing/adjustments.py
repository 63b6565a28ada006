"""Adjustments in Postgres: policies are superseded, entries are booked once and only ever reversed
by another entry.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from psycopg.rows import DictRow

from gpuledger_collector.accounting.adjustments import (
    CREDIT,
    DEBIT,
    ENTRIES,
    POLICIES,
    TIERED,
    Adjustment,
    EntryRefused,
    OwnerShare,
    opposite_of,
)
from gpuledger_collector.accounting.ledger_rows import ImportOutcome
from gpuledger_collector.accounting.owner_tree import LEVELS, OwnerPath
from gpuledger_collector.accounting.period import Calendar, Period
from gpuledger_collector.accounting.problems import DeclarationRefused, Problem
from gpuledger_collector.storage import locks
from gpuledger_collector.storage.access import audit, audited
from gpuledger_collector.storage.billing.prices import request_dated_days
from gpuledger_collector.storage.ledger import dated_rows, zones
from gpuledger_collector.storage.locks import Connection, Lock
from gpuledger_collector.storage.rows import select_dicts, select_value
from gpuledger_common.instants import to_datetime

_DECLARED = tuple(
    field.name
    for field in dataclasses.fields(Adjustment)
    if field.name not in {"id", "shares", "reverses"}
)
"""What a file declares of it; each is a column."""
_OPEN_TO = "coalesce(to_on, 'infinity')"


class BookedDiffers(DeclarationRefused):
    """A file declares an entry that is booked with other terms."""


def current(connection: Connection) -> list[Adjustment]:
    """The policies in force and every entry, reversed ones too, by date and name."""
    return _read(connection, "superseded_at IS NULL ORDER BY from_on NULLS FIRST, name, id", ())


def list_declared(connection: Connection) -> list[Adjustment]:
    """What a file can declare: the policies in force, and the credits and debits that nobody
    reversed.
    """
    known = current(connection)
    reversed_ids = {adjustment.reverses for adjustment in known}
    return [
        adjustment
        for adjustment in known
        if adjustment.kind in POLICIES
        or (
            adjustment.kind in {CREDIT, DEBIT}
            and adjustment.reverses is None
            and adjustment.id not in reversed_ids
        )
    ]


def by_id(connection: Connection, ids: Iterable[int]) -> dict[int | None, Adjustment]:
    """Adjustments by id, superseded ones too, without their shares: charges name the version that
    they follow from.
    """
    known = _read(connection, "id = ANY(%s)", (list(ids),), shares="NULL AS shares")
    return {adjustment.id: adjustment for adjustment in known}


def list_holding(connection: Connection, day_on: dt.date) -> list[Adjustment]:
    """Policies that hold on a day of the bill, and the entries that are charged on it: those whose
    days begin then.
    """
    return _read(
        connection,
        "superseded_at IS NULL AND ((kind = ANY(%s) AND coalesce(from_on, '-infinity') <= %s "
        f"AND {_OPEN_TO} > %s) OR (kind = ANY(%s) AND from_on = %s)) ORDER BY kind, name, id",
        (list(POLICIES), day_on, day_on, list(ENTRIES), day_on),
    )


def tiered_between(connection: Connection, from_on: dt.date, to_on: dt.date) -> bool:
    """Whether a tier holds on some of these days."""
    return bool(
        select_value(
            connection,
            "SELECT EXISTS (SELECT FROM adjustment WHERE superseded_at IS NULL AND kind = %s "
            f"AND coalesce(from_on, '-infinity') < %s AND {_OPEN_TO} > %s)",
            (TIERED, to_on, from_on),
        )
    )


def replace_adjustments(
    connection: Connection, wanted: Sequence[Adjustment], now_ms: int
) -> ImportOutcome:
    """Policies become these; entries are booked unless they are.

    The days that this changes are marked for rating.

    Raises BookedDiffers for an entry whose name is booked with other terms.
    """
    locks.take(connection, Lock.LEDGER)
    before = [adjustment for adjustment in current(connection) if adjustment.kind in POLICIES]
    policies = [adjustment for adjustment in wanted if adjustment.kind in POLICIES]
    rows = [_cells(policy) for policy in policies]
    outcome = dated_rows.replace_rows(
        connection,
        "adjustment",
        _DECLARED,
        rows,
        now_ms,
        among="kind IN ('tiered', 'markup', 'discount')",
    )
    after = [adjustment for adjustment in current(connection) if adjustment.kind in POLICIES]
    kept = {adjustment.id for adjustment in before} & {adjustment.id for adjustment in after}
    marked = 0
    for policy in (adjustment for adjustment in [*before, *after] if adjustment.id not in kept):
        marked += request_dated_days(connection, policy.from_on, policy.to_on, now_ms)
    booked = {adjustment.name: adjustment for adjustment in current(connection)}
    added = 0
    for entry in (adjustment for adjustment in wanted if adjustment.kind not in POLICIES):
        known = booked.get(entry.name)
        if known is None:
            book(connection, entry, now_ms)
            added += 1
            marked += 1
        elif _cells(known) != _cells(entry):
            message = (
                f"{known.kind} {known.name!r} is booked with other terms, and a booked entry does"
                " not change: gpuledger adjustments reverse takes it back; then book another name"
            )
            raise BookedDiffers([Problem("booked", "adjustment:name", message)])
    entries = sum(adjustment.kind not in POLICIES for adjustment in wanted)
    return ImportOutcome(
        outcome.added + added,
        outcome.updated,
        outcome.unchanged + entries - added,
        days_to_recompute=marked,
    )


def uncharged_owners(
    connection: Connection, entries: Iterable[Adjustment]
) -> list[Mapping[str, str]]:
    """Owners of entries of whom the ledger has no charge: most likely, a name is misspelled."""
    owners = {
        json.dumps(dict(entry.owner), sort_keys=True): entry.owner
        for entry in entries
        if entry.kind in ENTRIES
    }
    unknown: list[Mapping[str, str]] = []
    for owner in owners.values():
        conditions = " AND ".join(
            f"{'user_name' if level == 'user' else level} = %s" for level in owner
        )
        query = f"SELECT EXISTS (SELECT FROM owner WHERE {conditions or 'true'})"
        if not select_value(connection, query, list(owner.values())):
            unknown.append(owner)
    return unknown


def book(
    connection: Connection,
    entry: Adjustment,
    now_ms: int,
    evidence: Mapping[str, object] | None = None,
) -> Adjustment:
    """Book an entry, audited; its first day is marked for rating.

    Raises EntryRefused for a name that is taken.
    """
    locks.take(connection, Lock.LEDGER)
    if any(adjustment.name == entry.name for adjustment in current(connection)):
        raise EntryRefused(
            f"an adjustment is called {entry.name!r} already: give this one another name"
        )
    assert entry.from_on is not None
    shares = [_share_cells(share) for share in entry.shares]
    cells = {
        **_cells(entry),
        "shares": json.dumps(shares) if shares else None,
        "evidence": None if evidence is None else json.dumps(dict(evidence), sort_keys=True),
        "reverses": entry.reverses,
        "recorded_at": to_datetime(now_ms),
    }
    number: int = select_value(
        connection,
        f"INSERT INTO adjustment ({', '.join(cells)}) VALUES ({', '.join(['%s'] * len(cells))})"
        " RETURNING id",
        [json.dumps(value) if isinstance(value, dict) else value for value in cells.values()],
    )
    facts: dict[str, object] = {
        name: value for name, value in _plain(entry).items() if value not in (None, "", {})
    }
    facts |= {"shares": len(entry.shares)} if entry.shares else {}
    digest = audited.booked_digest(
        shares, None if evidence is None else dict(evidence), entry.reverses
    )
    facts |= {"sha256": digest} if digest is not None else {}
    audit.record(
        connection,
        [audit.Change("adjustment", entry.name, None, facts)],
        now_ms,
    )
    start_ms = zones.calendar(connection).start_of(entry.from_on)
    connection.execute("INSERT INTO day_recompute (day_ms) VALUES (%s)", (start_ms,))
    return dataclasses.replace(entry, id=number)


def reverse(
    connection: Connection, name: str, reason: str, approver: str, now_ms: int
) -> Adjustment:
    """Take a booked entry back by an entry of the opposite amounts; neither is ever deleted.

    Raises EntryRefused.
    """
    locks.take(connection, Lock.LEDGER)
    return book(connection, opposite_of(current(connection), name, reason, approver), now_ms)


def evidence_of(connection: Connection, ids: Sequence[int]) -> list[dict[str, Any]]:
    """What adjustments rest on, as a dispute shows it: their terms, and of a true-up the bill and
    its lines.
    """
    columns = f"{', '.join(_DECLARED)}, evidence, recorded_at::text AS recorded_at"
    return [
        {key: _text(value) for key, value in row.items() if value not in (None, "", {})}
        for row in select_dicts(
            connection,
            f"SELECT {columns} FROM adjustment WHERE id = ANY(%s) ORDER BY name",
            (list(ids),),
        )
    ]


def true_ups(connection: Connection, provider: str, period_name: str) -> list[Adjustment]:
    """The true-ups of a provider's bill of a month, reversed ones too, in the order of their
    booking.
    """
    where = (
        "kind = 'true_up' AND reverses IS NULL AND evidence->>'provider' = %s AND"
        " evidence->>'period' = %s"
    )
    return _read(connection, f"{where} ORDER BY id", (provider, period_name))


def is_reversed(connection: Connection, entry: Adjustment) -> bool:
    """Whether an entry was taken back."""
    query = "SELECT EXISTS (SELECT FROM adjustment WHERE reverses = %s)"
    return bool(select_value(connection, query, (entry.id,)))


def span_of(entry: Adjustment, calendar: Calendar) -> Period:
    """The days that an entry is about."""
    assert entry.from_on is not None
    assert entry.to_on is not None
    return Period(calendar.start_of(entry.from_on), calendar.start_of(entry.to_on))


def _read(
    connection: Connection, where: str, values: Sequence[object], shares: str = "shares"
) -> list[Adjustment]:
    columns = ", ".join(("id", *_DECLARED, shares, "reverses"))
    return [
        _adjustment(row)
        for row in select_dicts(
            connection, f"SELECT {columns} FROM adjustment WHERE {where}", values
        )
    ]


def _adjustment(row: DictRow) -> Adjustment:
    shares = [
        OwnerShare(owner=OwnerPath(*levels), pool=pool, gpu_model=model, micro=micro)
        for levels, pool, model, micro in row.pop("shares") or ()
    ]
    return Adjustment(**{**row, "percent": _plain_number(row), "shares": tuple(shares)})


def _share_cells(share: OwnerShare) -> list[object]:
    return [
        [share.owner.level(level) for level in LEVELS],
        share.pool,
        share.gpu_model,
        share.micro,
    ]


def _cells(adjustment: Adjustment) -> dict[str, Any]:
    """What is declared of it, by column."""
    cells = {name: getattr(adjustment, name) for name in _DECLARED}
    return {
        **cells,
        "owner": dict(cells["owner"]),
        "steps": dict(cells["steps"]),
        "percent": _plain_number(cells),
    }


def _plain_number(cells: Mapping[str, Any]) -> Decimal | None:
    """The percentage without the zeros that the database writes."""
    percent: Decimal | None = cells["percent"]
    return None if percent is None else Decimal(f"{percent.normalize():f}")


def _plain(adjustment: Adjustment) -> dict[str, object]:
    return {name: _text(value) for name, value in _cells(adjustment).items()}


def _text(value: object) -> object:
    return value if value is None or isinstance(value, str | int | dict | list) else str(value)
