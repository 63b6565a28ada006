"""Usage intervals of old days, packed: one row of `usage_interval_day` for an accelerator and day.

Some accelerators of a day are packed in one transaction, which blocks nobody: their rows are
deleted, merged with what was packed of them before, written, unpacked by the server, and compared
with the seal of the rows. A run that stopped anywhere is continued by the next one, and late
intervals are merged into their day by the next run. A row that the format does not hold stays as
it is; readers see both (`usage_evidence`).

An emptied partition is dropped a day after its rows were packed: a snapshot from before still sees
them there, and nothing of the packed rows.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import psycopg
from psycopg import sql

from gpuledger_collector.accounting.period import DAY_MS, Period
from gpuledger_collector.storage import locks
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.errors import StorageError
from gpuledger_collector.storage.locks import Connection, Lock
from gpuledger_collector.storage.rows import select_value, select_values
from gpuledger_collector.storage.telemetry import day_rows, usage_evidence
from gpuledger_collector.storage.telemetry.interval_codec import (
    ABSENT,
    MAX_ENERGY_MJ,
    MAX_ID,
    MAX_RECORD,
    MAX_SEQ,
    NUMBERS,
    RECORD,
    STATES,
    Array,
    PackedIntervals,
    pack,
    seal,
)
from gpuledger_collector.storage.telemetry.interval_columns import (
    CONTEXT_PLANES,
    FORMAT,
    LEAST,
    PLANES,
)
from gpuledger_common.instants import to_datetime

SLICE = 64
"""Accelerators packed in one transaction: 92,000 intervals of a minute."""
LOCK_WAIT = "5s"
"""How long dropping an emptied partition may wait for its lock."""
_STATES = f"ARRAY[{', '.join(repr(state) for state in STATES)}]"
_ABSENT = ("workload_id", "energy_mj", "accelerator_attributes_id", "workload_attributes_id")
_VALUES = {
    **{name: name for name in NUMBERS if not name.startswith("epoch")},
    **{name: f"coalesce({name}, '{ABSENT}')" for name in _ABSENT},
    "state": f"array_position({_STATES}, state) - 1",
}
_RECORD = " || ".join([*(f"int8send({value})" for value in _VALUES.values()), "uuid_send(epoch)"])
"""SQL: an interval as RECORD."""
_PACKABLE = f"""state = ANY({_STATES}) AND end_ms >= start_ms AND end_ms <= start_ms + {DAY_MS}
    AND held_ms >= 0 AND held_ms <= CASE WHEN state = 'held' THEN end_ms - start_ms ELSE 0 END
    AND busy_ms >= 0 AND idle_ms >= 0 AND unknown_ms >= 0
    AND busy_ms + idle_ms + unknown_ms = held_ms
    AND coalesce(energy_mj BETWEEN 0 AND {MAX_ENERGY_MJ}, true) AND seq BETWEEN 0 AND {MAX_SEQ}
    AND record BETWEEN 0 AND {MAX_RECORD} AND coalesce(workload_id BETWEEN 0 AND {MAX_ID}, true)
    AND coalesce(workload_attributes_id BETWEEN 0 AND {MAX_ID}, true)"""
"""SQL: what ingest accepts, except absurd energy and ids."""
_KEY = ("accelerator_id", "day_ms")
_CONTENT = (
    "format",
    "rows",
    "contexts",
    *usage_evidence.SOURCE_COLUMNS,
    *PLANES,
    *CONTEXT_PLANES,
    *(f"{name}_least" for name in LEAST),
    *("workload_first", "attributes_first", "tick_ms", "power_step_mw"),
    *("seq_step_ms", "seq_offset_ms"),
    "sha256",
    "packed_at",
)
_REPLACED = ("workload_ids", "attributes_offsets", "power_mw", "length", "length_least")
"""Columns of the first format alone."""
_WRITE = f"""
INSERT INTO usage_interval_day ({", ".join((*_KEY, *_CONTENT))})
VALUES ({", ".join(f"%({name})s" for name in (*_KEY, *_CONTENT))})
ON CONFLICT (accelerator_id, day_ms) DO UPDATE
    SET {", ".join(f"{name} = excluded.{name}" for name in (*_CONTENT, *_REPLACED))}
"""
_OF_FIRST_FORMAT = f"FROM usage_interval_day WHERE format < {FORMAT}"


class EvidenceDamaged(StorageError):
    """Packed intervals are not those that were packed; nothing was deleted for them."""

    permanent = True


def days_to_pack(database: Database, before_ms: int) -> list[int]:
    """Days whose intervals end by an instant, with rows that are not packed or packed as at first,
    and without an hour that is still to be folded.
    """
    with database.connect() as connection:
        old = select_values(connection, f"SELECT DISTINCT day_ms {_OF_FIRST_FORMAT}")
        return [
            day_ms
            for day_ms in sorted({*day_rows.days(connection, "usage_interval"), *old})
            # An interval may reach into the day after.
            if day_ms + 2 * DAY_MS <= before_ms and _is_settled(connection, day_ms)
        ]


def pack_day(
    database: Database, day_ms: int, now_ms: int, stopping: Callable[[], bool] = lambda: False
) -> int:
    """Pack a day and return how many intervals that were; 0 also while another process packs.

    `stopping` is asked before each slice: True leaves the rest to the next run. Raises
    EvidenceDamaged.
    """
    # Merging months and retention hold the same lock, so no partition is replaced meanwhile.
    with database.try_hold(Lock.PACKING) as holder:
        if holder is None:
            return 0
        packed = 0
        for ids in _slices(database, day_ms):
            if stopping():
                return packed
            with database.transaction() as connection:
                packed += _pack_slice(connection, day_ms, ids, now_ms)
        if not packed:
            _drop_emptied(database, day_ms, now_ms)
        return packed


def unpack(connection: Connection, accelerator_ids: Sequence[int], days_ms: Sequence[int]) -> bool:
    """Make rows of what is packed of these accelerators and days, for who replaces some of them;
    return whether there was any.

    Partitions of these days exist. Raises EvidenceDamaged.
    """
    is_packed = False
    for day_ms in days_ms:
        ids = select_values(
            connection,
            "SELECT accelerator_id FROM usage_interval_day WHERE day_ms = %s AND accelerator_id ="
            " ANY(%s)",
            (day_ms, list(accelerator_ids)),
        )
        if not ids:
            continue
        if not is_packed:
            # Nobody packs until the end of the caller's transaction.
            locks.take(connection, Lock.PACKING)
            is_packed = True
        _packed(connection, day_ms, ids)
        columns = ", ".join(usage_evidence.COLUMNS)
        connection.execute(
            f"INSERT INTO usage_interval ({columns}) SELECT {columns} FROM"
            f" {usage_evidence.packed(day_ms)} AS s WHERE accelerator_id = ANY(%s)".encode(),
            (ids,),
        )
        connection.execute(
            "DELETE FROM usage_interval_day WHERE day_ms = %s AND accelerator_id = ANY(%s)",
            (day_ms, ids),
        )
    return is_packed


def require_sealed(connection: Connection, period: Period) -> None:
    """Raise EvidenceDamaged when packed intervals that may overlap a period differ from their seal."""
    packed = connection.execute(
        "SELECT day_ms, array_agg(accelerator_id ORDER BY accelerator_id) FROM usage_interval_day"
        " WHERE day_ms > %s AND day_ms < %s GROUP BY day_ms ORDER BY day_ms",
        (period.start_ms - 2 * DAY_MS, period.end_ms),
    ).fetchall()
    for day_ms, ids in packed:
        for begin in range(0, len(ids), SLICE):
            _packed(connection, day_ms, ids[begin : begin + SLICE])


def _is_settled(connection: Connection, day_ms: int) -> bool:
    return not select_value(
        connection,
        "SELECT EXISTS (SELECT FROM hour_recompute WHERE hour_ms >= %s AND hour_ms < %s)",
        (day_ms, day_ms + 2 * DAY_MS),
    )


def _slices(database: Database, day_ms: int) -> Iterator[list[int]]:
    with database.connect() as connection:
        ids = select_values(
            connection,
            f"SELECT accelerator_id FROM usage_interval WHERE {_of_day(day_ms)} AND {_PACKABLE}"
            f" UNION SELECT accelerator_id {_OF_FIRST_FORMAT} AND day_ms = {int(day_ms)} ORDER BY 1",
        )
    return (ids[begin : begin + SLICE] for begin in range(0, len(ids), SLICE))


def _of_day(day_ms: int) -> str:
    # Part of the text, so that the planner can exclude partitions.
    return f"start_ms >= {int(day_ms)} AND start_ms < {int(day_ms) + DAY_MS}"


def _pack_slice(connection: Connection, day_ms: int, ids: Sequence[int], now_ms: int) -> int:
    """Pack these accelerators' rows of a day, and what is packed as at first, in the caller's
    transaction; return how many intervals.
    """
    # What is deleted is what is packed: a row that arrives meanwhile is in neither.
    deleted = connection.cursor(binary=True).execute(
        f"DELETE FROM usage_interval WHERE {_of_day(day_ms)} AND accelerator_id = ANY(%s)"
        f" AND {_PACKABLE} RETURNING accelerator_id, {_RECORD}".encode(),
        (list(ids),),
    )
    fresh = _by_accelerator(deleted.fetchall())
    old = select_values(
        connection,
        f"SELECT accelerator_id {_OF_FIRST_FORMAT} AND day_ms = %s AND accelerator_id = ANY(%s)",
        (day_ms, list(ids)),
    )
    before = _packed(connection, day_ms, sorted({*fresh, *old}))
    sealed: dict[int, tuple[int, bytes]] = {}
    rows = []
    for accelerator_id in sorted({*fresh, *old}):
        parts = [part[accelerator_id] for part in (before, fresh) if accelerator_id in part]
        packed = pack(np.concatenate(parts), day_ms)
        sealed[accelerator_id] = packed.rows, packed.sha256
        rows.append(
            {"accelerator_id": accelerator_id, "day_ms": day_ms, "packed_at": to_datetime(now_ms)}
            | _columns(packed)
        )
    connection.cursor().executemany(_WRITE, rows)
    # Read back what the server unpacks: rows are deleted on the strength of this comparison.
    back = _packed(connection, day_ms, list(sealed))
    if {key: (len(part), seal(part)) for key, part in back.items()} != sealed:
        raise EvidenceDamaged(
            f"usage intervals of {to_datetime(day_ms):%Y-%m-%d} did not come back as they went in:"
            " they stay as they are"
        )
    return sum(map(len, fresh.values())) + sum(len(before[each]) for each in old)


def _packed(connection: Connection, day_ms: int, ids: Sequence[int]) -> Mapping[int, Array]:
    """Packed intervals of a day by accelerator, compared with their seals."""
    seals: dict[int, bytes] = dict(
        connection.execute(
            "SELECT accelerator_id, sha256 FROM usage_interval_day WHERE day_ms = %s AND"
            " accelerator_id = ANY(%s)",
            (day_ms, list(ids)),
        ).fetchall()
    )
    if not seals:
        return {}
    rows = connection.cursor(binary=True).execute(
        f"SELECT accelerator_id, {_RECORD} FROM {usage_evidence.packed(day_ms)} AS s"
        " WHERE accelerator_id = ANY(%s)".encode(),
        (list(seals),),
    )
    intervals = _by_accelerator(rows.fetchall())
    for accelerator_id, sha256 in seals.items():
        if seal(intervals.get(accelerator_id, np.zeros(0, dtype=RECORD))) != sha256:
            raise EvidenceDamaged(
                f"the packed usage intervals of accelerator {accelerator_id} on"
                f" {to_datetime(day_ms):%Y-%m-%d} have another checksum than when they were packed"
            )
    return intervals


def _by_accelerator(rows: Sequence[tuple[int, bytes]]) -> dict[int, Array]:
    ids = np.array([accelerator_id for accelerator_id, _ in rows], dtype="<i8")
    records = np.frombuffer(b"".join([record for _, record in rows]), dtype=RECORD)
    order = np.argsort(ids, kind="stable")
    keys, first = np.unique(ids[order], return_index=True)
    parts = np.split(records[order], first[1:]) if len(keys) else []
    return dict(zip(keys.tolist(), parts, strict=True))


def _columns(packed: PackedIntervals) -> dict[str, object]:
    sources = packed.sources
    attributes_ids = sources["accelerator_attributes_id"].tolist()
    halves = np.stack([sources["epoch_high"], sources["epoch_low"]], axis=1).astype(">i8")
    return {
        "format": FORMAT,
        "rows": packed.rows,
        "contexts": packed.contexts,
        "states": [STATES[place] for place in sources["state"]],
        "node_ids": sources["node_id"].tolist(),
        "epochs": [uuid.UUID(bytes=epoch.tobytes()) for epoch in halves],
        "accelerator_attributes_ids": [
            None if number == ABSENT else number for number in attributes_ids
        ],
        "seqs": sources["seq"].tolist(),
        **packed.columns,
        **packed.numbers,
        "sha256": packed.sha256,
    }


def _drop_emptied(database: Database, day_ms: int, now_ms: int) -> None:
    """Drop the partition of a day that was packed a day ago or earlier and has no rows left."""
    try:
        with database.transaction() as connection:
            connection.execute(f"SET LOCAL lock_timeout = '{LOCK_WAIT}'")
            part = day_rows.find(connection, "usage_interval", day_ms)
            if part is None or _was_packed_since(connection, part, to_datetime(now_ms - DAY_MS)):
                return
            # Writers of the partition wait, so that no row arrives before it is dropped.
            connection.execute(sql.SQL("LOCK TABLE {} IN SHARE MODE").format(part.table))
            rows = sql.SQL("SELECT FROM {} LIMIT 1").format(part.table)
            if connection.execute(rows).fetchone() is None:
                connection.execute(sql.SQL("DROP TABLE {}").format(part.table))
    except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
        return


def _was_packed_since(connection: Connection, part: day_rows.DayRows, since: dt.datetime) -> bool:
    packed_at = select_value(
        connection,
        "SELECT max(packed_at) FROM usage_interval_day WHERE day_ms >= %s AND day_ms < %s",
        (part.partition.day_ms, part.partition.end_ms),
    )
    return packed_at is not None and packed_at > since
