"""Samples of old days, packed: one blob for an accelerator and UTC day instead of thousands of
rows.

A day is packed in slices of accelerators, each a transaction that blocks nobody: rows are read,
merged with what was packed before, written, read back and compared bit for bit. Its hot rows stay
meanwhile; readers count a row that is in both places once. The last transaction blocks writers of
that day, packs again what was added since (a partition only grows, so a row count tells), and drops
the partition; from the partition of a whole month it deletes the day's rows, and drops the
partition with the last of them. A run that stopped anywhere is completed by the next one. Late
samples create a new partition, which the next run merges; a row that equals a packed one in every
bit is a repetition of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import psycopg
from psycopg import sql

from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, Period
from gpuledger_collector.insight.readings import AcceleratorPeriod, Array, Column, Readings
from gpuledger_collector.storage import distribution, locks
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.errors import StorageError
from gpuledger_collector.storage.locks import Connection, Lock
from gpuledger_collector.storage.rows import select, select_row, select_value, select_values
from gpuledger_collector.storage.telemetry import day_rows
from gpuledger_collector.storage.telemetry.day_rows import DayRows
from gpuledger_collector.storage.telemetry.sample_codec import DamagedBlob, pack, same, unpack
from gpuledger_common.catalog import HOT
from gpuledger_common.instants import to_datetime

KINDS = {metric.name: metric.column_kind for metric in HOT}
LOCK_WAIT = "5s"
"""How long a day may wait for its locks: writers of other days queue behind it for no longer."""
SLICE = 256
"""Accelerators packed in one transaction; the partition is read once for each slice."""
_SENT = {
    "f4": "float4send(coalesce({0}, 'NaN'))",
    "f8": "float8send(coalesce({0}, 'NaN'))",
    "i8": "int8send(coalesce({0}, 0))",
}
_ROW = np.dtype(
    [("at_ms", ">i8"), ("absent", ">i8"), *((name, f">{kind}") for name, kind in KINDS.items())]
)
_ABSENT = " | ".join(f"(({name} IS NULL)::int::bigint << {bit})" for bit, name in enumerate(KINDS))
_SEND = (
    f"string_agg(int8send(at_ms) || int8send({_ABSENT}) || "
    + " || ".join(_SENT[kind].format(name) for name, kind in KINDS.items())
    + ", ''::bytea ORDER BY at_ms)"
)
"""SQL: all rows of an accelerator as one value of _ROW records, which is far cheaper than a row
each.
"""

BATCHES = 10_000
_EXPIRE_BATCHES = """DELETE FROM ingest_batch WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM ingest_batch WHERE received_at < to_timestamp(%s) LIMIT %s))"""


class ArchiveDamaged(StorageError):
    """A blob cannot be restored, or differs from what was to be packed; nothing was dropped for it."""

    permanent = True


@dataclass(frozen=True, slots=True)
class PackedDay:
    """A UTC day that was packed: rows and accelerators of its partition, bytes before and after."""

    day_ms: int
    rows: int
    accelerators: int
    hot_bytes: int
    archive_bytes: int


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples by accelerator and instant: one value a row in each array; a column is NULL where it
    is not present.
    """

    accelerator_id: Array
    at_ms: Array
    columns: dict[str, Column]


def pack_day(
    database: Database, day_ms: int, stopping: Callable[[], bool] = lambda: False
) -> PackedDay | None:
    """Pack a day; None when there is nothing to pack, another process packs, or its locks are not
    available now.

    `stopping` is asked before each slice: True leaves the day to the next run. Raises
    ArchiveDamaged.
    """
    # Merging months holds the same lock, so a partition cannot be replaced while it is packed.
    with database.try_hold(Lock.PACKING) as holder:
        if holder is None:
            return None
        # 1. Slices, each committed by itself. Samples that arrive meanwhile are found by their row
        # counts below.
        packed: dict[int, _Packed] = {}
        for ids in _slices(database, day_ms):
            if stopping():
                return None
            with database.transaction() as connection:
                packed |= _pack_slice(connection, day_ms, ids)
        try:
            # 2. Block writers of the day, pack what was added since, and drop the partition.
            with database.transaction() as connection:
                return _finish(connection, day_ms, packed)
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
            return None


def _slices(database: Database, day_ms: int) -> list[list[int]]:
    with database.connect() as connection:
        part = day_rows.find(connection, "gpu_sample", day_ms)
        if part is None:
            return []
        statement = sql.SQL("SELECT DISTINCT accelerator_id FROM {} WHERE {} ORDER BY 1")
        try:
            ids = select_values(connection, statement.format(part.table, part.condition))
        except psycopg.errors.UndefinedTable:
            return []
    return [ids[begin : begin + SLICE] for begin in range(0, len(ids), SLICE)]


def expire_batches(
    database: Database, before_ms: int, stopping: Callable[[], bool] = lambda: False
) -> int:
    """Delete keys of batches received before an instant, some at a time; return how many."""
    deleted = 0
    with database.connect() as connection:
        while not stopping():
            count = connection.execute(_EXPIRE_BATCHES, (before_ms / 1000, BATCHES)).rowcount
            deleted += count
            if count < BATCHES:
                break
    return deleted


def expire_archive(database: Database, before_ms: int) -> int:
    """Delete blobs of days before this one; return how many."""
    with database.connect() as connection:
        return connection.execute(
            "DELETE FROM sample_archive WHERE day_ms < %s", (before_ms,)
        ).rowcount


def expirable_usage_intervals(database: Database, before_ms: int) -> list[int]:
    """Days before this one whose usage intervals may be dropped: they and the day after are closed.

    A usage interval may reach into the day after its start, so that day's evidence is in both
    partitions.
    """
    with database.connect() as connection:
        return select_values(
            connection,
            "SELECT day FROM unnest(%s::bigint[]) AS day WHERE day < %s AND EXISTS (SELECT FROM"
            " billing_period WHERE start_ms <= day AND end_ms >= day + %s) AND EXISTS (SELECT FROM"
            " billing_period WHERE start_ms <= day + %s AND end_ms >= day + 2 * %s) AND NOT EXISTS"
            " (SELECT FROM expired_day WHERE day_ms = day) ORDER BY day",
            (_evident_days(connection), before_ms, DAY_MS, DAY_MS, DAY_MS),
        )


def _evident_days(connection: Connection) -> list[int]:
    packed = select_values(connection, "SELECT DISTINCT day_ms FROM usage_interval_day")
    return sorted({*day_rows.days(connection, "usage_interval"), *packed})


def expire_usage_intervals(database: Database, day_ms: int, now_ms: int) -> bool:
    """Drop a day's usage intervals, packed ones too, and record that; False when its locks are not
    available now.
    """
    try:
        with database.transaction() as connection:
            connection.execute(f"SET LOCAL lock_timeout = '{LOCK_WAIT}'")
            # Nobody packs rows of this day while it is dropped.
            locks.take(connection, Lock.PACKING)
            connection.execute(
                "INSERT INTO expired_day (day_ms, dropped_at) VALUES (%s, %s)",
                (day_ms, to_datetime(now_ms)),
            )
            connection.execute(
                "DELETE FROM hour_recompute WHERE hour_ms >= %s AND hour_ms < %s",
                (day_ms, day_ms + 2 * DAY_MS),
            )
            connection.execute("DELETE FROM usage_interval_day WHERE day_ms = %s", (day_ms,))
            day_rows.drop(connection, "usage_interval", day_ms)
    except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
        return False
    return True


@dataclass(frozen=True, slots=True)
class _Packed:
    """What was packed of an accelerator: rows of the partition, bytes of the blob."""

    rows: int
    size: int


def _pack_slice(connection: Connection, day_ms: int, ids: Sequence[int]) -> dict[int, _Packed]:
    """Pack these accelerators' rows of a day, in the caller's transaction; the rows stay where they
    are.
    """
    part = day_rows.find(connection, "gpu_sample", day_ms)
    if part is None:
        return {}
    return {
        key: _pack_accelerator(connection, day_ms, key, hot)
        for key, hot in _hot_rows(connection, part, ids)
    }


def _finish(connection: Connection, day_ms: int, packed: dict[int, _Packed]) -> PackedDay | None:
    """Pack what was added since and drop the partition, in the caller's transaction, which blocks
    writers of the day.

    Raises psycopg.errors.LockNotAvailable or DeadlockDetected when the locks are not available.
    """
    connection.execute(f"SET LOCAL lock_timeout = '{LOCK_WAIT}'")
    part = day_rows.find(connection, "gpu_sample", day_ms)
    if part is None or not _lock(connection, part):
        return None
    row_counts, hot_bytes = _size(connection, part)
    # A partition only grows, so equal row counts mean equal rows.
    changed = [
        key for key, rows in row_counts.items() if key not in packed or packed[key].rows != rows
    ]
    for accelerator_id, hot in _hot_rows(connection, part, changed) if changed else ():
        packed[accelerator_id] = _pack_accelerator(connection, day_ms, accelerator_id, hot)
    if {key: entry.rows for key, entry in packed.items()} != row_counts:
        name = part.partition.name
        raise ArchiveDamaged(
            f"{name} does not hold the rows that were packed of it: it stays as it is"
        )
    day_rows.drop(connection, "gpu_sample", day_ms)
    size = sum(entry.size for entry in packed.values())
    return PackedDay(day_ms, sum(row_counts.values()), len(row_counts), hot_bytes, size)


def _pack_accelerator(
    connection: Connection, day_ms: int, accelerator_id: int, hot: Readings
) -> _Packed:
    readings = merge_readings(_read_packed(connection, day_ms, accelerator_id), hot)
    blob = pack(readings)
    _write(connection, day_ms, accelerator_id, readings, blob)
    # Read back what the database stored, not what was sent: the hot rows are dropped on the
    # strength of this comparison.
    restored = _read_packed(connection, day_ms, accelerator_id)
    if restored is None or not same(restored, readings):
        raise ArchiveDamaged(
            f"{_blob_name(day_ms, accelerator_id)} did not come back as it went in: it stays as"
            " it is"
        )
    return _Packed(len(hot), len(blob))


def _lock(connection: Connection, part: DayRows) -> bool:
    try:
        with connection.transaction():
            connection.execute(sql.SQL("LOCK TABLE {} IN SHARE MODE").format(part.table))
    except psycopg.errors.UndefinedTable:
        return False
    return True


def _size(connection: Connection, part: DayRows) -> tuple[dict[int, int], int]:
    """Rows of each accelerator on a day, and the bytes of the partition."""
    counts = sql.SQL("SELECT accelerator_id, count(*) FROM {} WHERE {} GROUP BY 1").format(
        part.table, part.condition
    )
    row_counts: dict[int, int] = dict(connection.execute(counts).fetchall())
    size = f"SELECT {distribution.size_function(connection)}(%s::regclass)"
    return row_counts, int(select_value(connection, size, (part.partition.name,)))


def _hot_rows(
    connection: Connection, part: DayRows, ids: Sequence[int]
) -> Iterator[tuple[int, Readings]]:
    """The rows of these accelerators, one accelerator after the other; the server sorts on disk,
    not in memory.
    """
    # A hash aggregate would keep the rows of all accelerators in memory; sorted, they come one
    # after the other.
    connection.execute("SET LOCAL enable_hashagg = off")
    # A server-side cursor that fetches a few accelerators at a time: each value contains all rows
    # of a day.
    with connection.cursor(name="packing", binary=True) as cursor:
        cursor.itersize = 16
        statement = sql.SQL(
            f"SELECT accelerator_id, {_SEND} FROM {{}} WHERE accelerator_id = ANY(%s) AND {{}}"
            " GROUP BY 1 ORDER BY 1"
        )
        cursor.execute(statement.format(part.table, part.condition), (list(ids),))
        for accelerator_id, sent in cursor:
            yield int(accelerator_id), _unpack_readings(sent)


def _unpack_readings(sent: bytes) -> Readings:
    rows = np.frombuffer(sent, dtype=_ROW)
    absent = rows["absent"].astype("<i8")
    columns = {
        name: Column(_native(rows[name], kind), (absent >> bit) & 1 == 0)
        for bit, (name, kind) in enumerate(KINDS.items())
    }
    return Readings(rows["at_ms"].astype("<i8"), columns)


def _native(values: Array, kind: str) -> Array:
    """Little-endian with every bit kept: a cast of floats may change NaN payloads, a byte swap does
    not.
    """
    return np.ascontiguousarray(values).byteswap().view(f"<{kind}")


def _write(
    connection: Connection, day_ms: int, accelerator_id: int, readings: Readings, blob: bytes
) -> None:
    metrics = sum(bool(column.present.any()) for column in readings.columns.values())
    connection.execute(
        "INSERT INTO sample_archive (day_ms, accelerator_id, rows, metrics, blob, sha256) VALUES"
        " (%s, %s, %s, %s, %s, %s) ON CONFLICT (day_ms, accelerator_id) DO UPDATE SET rows ="
        " excluded.rows, metrics = excluded.metrics, blob = excluded.blob, sha256 ="
        " excluded.sha256",
        (day_ms, accelerator_id, len(readings), metrics, blob, hashlib.sha256(blob).digest()),
    )


def _read_packed(connection: Connection, day_ms: int, accelerator_id: int) -> Readings | None:
    row = select_row(
        connection,
        "SELECT blob, sha256 FROM sample_archive WHERE day_ms = %s AND accelerator_id = %s",
        (day_ms, accelerator_id),
    )
    return None if row is None else _open(day_ms, accelerator_id, row.blob, row.sha256)


def _open(day_ms: int, accelerator_id: int, blob: bytes, digest: bytes) -> Readings:
    if hashlib.sha256(blob).digest() != digest:
        raise ArchiveDamaged(
            f"{_blob_name(day_ms, accelerator_id)} has another checksum than when it was written"
        )
    try:
        return unpack(blob)
    except DamagedBlob as error:
        raise ArchiveDamaged(f"{_blob_name(day_ms, accelerator_id)} {error}") from error


def _blob_name(day_ms: int, accelerator_id: int) -> str:
    return f"the archive of accelerator {accelerator_id} on {to_datetime(day_ms):%Y-%m-%d}"


def merge_readings(packed: Readings | None, late: Readings) -> Readings:
    """Both by instant, without the late rows that equal a packed one in every bit; equal instants
    keep their order.
    """
    if packed is None:
        return late
    names = sorted({*packed.columns, *late.columns})
    # Repetitions are recognized by their bytes, so that -0.0, NaN and absent values stay distinct.
    known = set(_row_keys(packed, names))
    new = np.array([row not in known for row in _row_keys(late, names)], dtype=bool)
    at_ms = np.concatenate([packed.at_ms, late.at_ms[new]])
    # Stable, so that packing the same rows again gives the same blob.
    order = np.argsort(at_ms, kind="stable")
    columns = {}
    for name in names:
        pair = [
            (part.columns.get(name) or _absent_column(part, name, late, packed))
            for part in (packed, late)
        ]
        columns[name] = Column(
            np.concatenate([pair[0].values, pair[1].values[new]])[order],
            np.concatenate([pair[0].present, pair[1].present[new]])[order],
        )
    return Readings(at_ms[order], columns)


def _absent_column(part: Readings, name: str, *others: Readings) -> Column:
    dtype = next(other.columns[name].values.dtype for other in others if name in other.columns)
    return Column(np.zeros(len(part), dtype=dtype), np.zeros(len(part), dtype=bool))


def _row_keys(readings: Readings, names: Sequence[str]) -> list[bytes]:
    """Each row as bytes that are equal for equal rows: a value and a byte that says whether it is
    present.
    """
    parts = [readings.at_ms.astype("<i8").view(np.uint8).reshape(len(readings), 8)]
    for name in names:
        column = readings.columns.get(name)
        if column is None or not column.present.any():
            # A missing column and one without any reading are the same.
            parts.append(np.zeros((len(readings), 9), dtype=np.uint8))
            continue
        width = column.values.dtype.itemsize
        bits = np.ascontiguousarray(column.values).view(np.uint8).reshape(len(readings), width)
        padded = np.zeros((len(readings), 9), dtype=np.uint8)
        padded[:, :width] = np.where(column.present[:, None], bits, 0)
        padded[:, 8] = column.present
        parts.append(padded)
    return [row.tobytes() for row in np.hstack(parts)]


def readings(
    connection: Connection, accelerator_ids: Sequence[int], period: Period
) -> Iterator[tuple[int, Readings]]:
    """Samples of these accelerators in the period, hot and packed together, by day and then by
    accelerator.

    Hot rows are read first: a day that is packed in between is then seen twice and counted once,
    never missed.
    """
    ids = sorted(set(accelerator_ids))
    for day in period.days():
        hot = _hot(connection, ids, day)
        start = day.start_ms - day.start_ms % DAY_MS
        with connection.cursor(binary=True) as cursor:
            cursor.execute(
                "SELECT accelerator_id, blob, sha256 FROM sample_archive "
                "WHERE day_ms = %s AND accelerator_id = ANY(%s)",
                (start, ids),
            )
            blobs = {number: (blob, digest) for number, blob, digest in cursor}
        for accelerator_id in ids:
            rows = hot.get(accelerator_id)
            if accelerator_id in blobs:
                packed = _clip_readings(_open(start, accelerator_id, *blobs[accelerator_id]), day)
                rows = packed if rows is None else merge_readings(packed, rows)
            if rows is not None and len(rows):
                yield accelerator_id, rows


def accelerator_periods(
    connection: Connection, period: Period, node: str | None = None, uuid: str | None = None
) -> list[AcceleratorPeriod]:
    """The accelerator with this UUID for the whole period, or those of a node while they were on
    it, by index.
    """
    if uuid is not None:
        query = "SELECT id, uuid FROM accelerator WHERE uuid = %s"
        return [
            AcceleratorPeriod(row.id, row.uuid, period)
            for row in select(connection, query, (uuid,))
        ]
    return [
        AcceleratorPeriod(row.id, row.uuid, Period(row.in_ms, row.out_ms))
        for row in select(
            connection,
            "SELECT a.id, a.uuid, greatest(c.in_ms, %s) AS in_ms, least(coalesce(c.out_ms, %s),"
            " %s) AS"
            " out_ms FROM capacity c JOIN accelerator a ON a.id = c.accelerator_id JOIN node n ON"
            " n.id"
            " = c.node_id WHERE n.name = %s AND c.in_ms < %s AND (c.out_ms IS NULL OR c.out_ms >"
            " %s)"
            " ORDER BY a.gpu_index, a.uuid, c.in_ms",
            (period.start_ms, period.end_ms, period.end_ms, node, period.end_ms, period.start_ms),
        )
    ]


def _hot(connection: Connection, ids: Sequence[int], period: Period) -> dict[int, Readings]:
    with connection.cursor(binary=True) as cursor:
        rows = cursor.execute(
            f"SELECT accelerator_id, {_SEND} FROM gpu_sample "
            "WHERE accelerator_id = ANY(%s) AND at_ms >= %s AND at_ms < %s GROUP BY 1",
            (list(ids), period.start_ms, period.end_ms),
        ).fetchall()
    return {int(accelerator_id): _unpack_readings(sent) for accelerator_id, sent in rows}


def _clip_readings(readings: Readings, period: Period) -> Readings:
    inside: Array = (readings.at_ms >= period.start_ms) & (readings.at_ms < period.end_ms)
    columns = {
        name: Column(column.values[inside], column.present[inside])
        for name, column in readings.columns.items()
    }
    return Readings(readings.at_ms[inside], columns)


def samples(connection: Connection, accelerator_ids: Sequence[int], period: Period) -> Samples:
    """Samples of these accelerators in the period as arrays, hot and packed together, by
    accelerator and instant.
    """
    by_accelerator = sorted(readings(connection, accelerator_ids, period), key=lambda pair: pair[0])
    parts = [part for _, part in by_accelerator]
    columns = {}
    for name in sorted({name for part in parts for name in part.columns}):
        pieces = [part.columns.get(name) or _absent_column(part, name, *parts) for part in parts]
        columns[name] = Column(
            np.concatenate([piece.values for piece in pieces]),
            np.concatenate([piece.present for piece in pieces]),
        )
    return Samples(
        np.repeat(
            np.array([key for key, _ in by_accelerator], dtype="<i8"), [len(part) for part in parts]
        ),
        np.concatenate([np.zeros(0, dtype="<i8"), *[part.at_ms for part in parts]]),
        columns,
    )


def unpack_hours(connection: Connection, hours: Sequence[tuple[int, int]]) -> bool:
    """Copy the packed samples of these (accelerator, hour) pairs into a temporary `packed_sample`,
    like gpu_sample.

    False, and no table, when none of them is packed. The table lives until COMMIT.
    """
    wanted: dict[tuple[int, int], set[int]] = {}
    for accelerator_id, hour_ms in hours:
        wanted.setdefault((hour_ms - hour_ms % DAY_MS, accelerator_id), set()).add(hour_ms)
    rows = connection.execute(
        "SELECT a.day_ms, a.accelerator_id, a.blob, a.sha256 FROM sample_archive a JOIN"
        " unnest(%s::bigint[], %s::bigint[]) AS w (day_ms, accelerator_id) USING (day_ms,"
        " accelerator_id)",
        ([key[0] for key in wanted], [key[1] for key in wanted]),
    ).fetchall()
    if not rows:
        return False
    # A second call in the same transaction replaces the table of the first.
    connection.execute("DROP TABLE IF EXISTS pg_temp.packed_sample")
    connection.execute("CREATE TEMP TABLE packed_sample (LIKE gpu_sample) ON COMMIT DROP")
    names = ", ".join(["accelerator_id", "at_ms", *KINDS])
    with connection.cursor().copy(f"COPY packed_sample ({names}) FROM STDIN") as copy:
        for day_ms, accelerator_id, blob, digest in rows:
            packed = _open(day_ms, accelerator_id, blob, digest)
            inside = np.isin(
                packed.at_ms - packed.at_ms % HOUR_MS, list(wanted[day_ms, accelerator_id])
            )
            for row in np.flatnonzero(inside):
                values = (_value(packed.columns.get(name), int(row)) for name in KINDS)
                copy.write_row((accelerator_id, int(packed.at_ms[row]), *values))
    return True


def _value(column: Column | None, row: int) -> float | int | None:
    if column is None or not column.present[row]:
        return None
    value: float | int = column.values[row].item()
    return value
