"""Samples of old days, packed: a blob for an accelerator and UTC day in the place of thousands of rows.

A day is packed some accelerators at a time, each slice a transaction that holds nobody off: read, merged with what was
packed before, written, read back and compared bit for bit. Its hot rows stay meanwhile, and readers count a row that is
in both places once. The last transaction holds writers of that day off, packs again what came since (a partition only
ever grows, so a count tells), and drops the partition; of a partition of a whole month it removes the day's rows, and
the partition with the last of them. Stopped anywhere, the next run goes over it again. Late samples
make a new partition, which the next packing merges. A row that equals a packed one in every bit is that one said again.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import psycopg
from psycopg import sql

from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, Period
from gpuledger_collector.storage.database import open_connection
from gpuledger_collector.storage.errors import StorageError
from gpuledger_collector.storage.telemetry import day_rows
from gpuledger_collector.storage.telemetry.archive_ports import PackedDay
from gpuledger_collector.storage.telemetry.day_rows import DayRows, alone
from gpuledger_collector.storage.telemetry.day_rows import drop as _drop
from gpuledger_collector.storage.telemetry.sample_codec import Array, Column, DamagedBlob, Readings, pack, same, unpack
from gpuledger_common.catalogue import HOT

Connection = psycopg.Connection[tuple[Any, ...]]
KINDS = {metric.name: metric.column_kind for metric in HOT}
LOCK_WAIT = "5s"
"""How long a day may wait for its locks; writers of other days queue behind it no longer than this."""
SLICE = 256
"""Accelerators of one transaction of packing; the partition is read once for each slice."""
_SENT = {
    "f4": "float4send(coalesce({0}, 'NaN'))",
    "f8": "float8send(coalesce({0}, 'NaN'))",
    "i8": "int8send(coalesce({0}, 0))",
}
_ROW = np.dtype([("at_ms", ">i8"), ("absent", ">i8"), *((name, f">{kind}") for name, kind in KINDS.items())])
_ABSENT = " | ".join(f"(({name} IS NULL)::int::bigint << {place})" for place, name in enumerate(KINDS))
_SEND = (
    f"string_agg(int8send(at_ms) || int8send({_ABSENT}) || "
    + " || ".join(_SENT[kind].format(name) for name, kind in KINDS.items())
    + ", ''::bytea ORDER BY at_ms)"
)


BATCHES = 10_000
_FORGET_BATCHES = """DELETE FROM ingest_batch WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM ingest_batch WHERE received_at < to_timestamp(%s) LIMIT %s))"""


class ArchiveDamaged(StorageError):
    """What is packed cannot be given back, or does not equal what was to be packed; nothing was dropped for it."""

    permanent = True


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples by accelerator and instant: one value a row in each array; a column is NULL where it is not present."""

    accelerator_id: Array
    at_ms: Array
    columns: dict[str, Column]


class Archive:
    """What the job of packing asks of Postgres; each call is a transaction of its own."""

    def __init__(self, dsn: str, gives_way: Callable[[], bool] = lambda: False) -> None:
        """`gives_way` is asked between two slices: True ends the packing of a day there, for the next run to finish."""
        self._dsn = dsn
        self._gives_way = gives_way

    def days(self, table: str) -> list[int]:
        """Starts of the UTC days that have a partition, or rows in one of their month, by time."""
        with open_connection(self._dsn) as connection:
            return day_rows.days(connection, table)

    def pack(self, day_ms: int) -> PackedDay | None:
        """Pack a day; None when there is nothing to pack, another packs, or its locks are not to be had now.

        Raises ArchiveDamaged.
        """
        with alone(self._dsn) as is_alone:
            if not is_alone:
                return None
            packed: dict[int, _Packed] = {}
            for ids in self._slices(day_ms):
                if self._gives_way():
                    return None
                with open_connection(self._dsn) as connection:
                    packed |= _pack_slice(connection, day_ms, ids)
            with open_connection(self._dsn) as connection:
                return _finish(connection, day_ms, packed)

    def _slices(self, day_ms: int) -> list[list[int]]:
        with open_connection(self._dsn) as connection:
            part = day_rows.find(connection, "gpu_sample", day_ms)
            if part is None:
                return []
            statement = sql.SQL("SELECT DISTINCT accelerator_id FROM {} WHERE {} ORDER BY 1").format(
                part.table, part.condition
            )
            try:
                ids = [int(row[0]) for row in connection.execute(statement)]
            except psycopg.errors.UndefinedTable:
                return []
        return [ids[begin : begin + SLICE] for begin in range(0, len(ids), SLICE)]

    def forget_batches(self, before_ms: int) -> int:
        """Remove keys of batches received before an instant, some at a time; how many."""
        gone = 0
        while not self._gives_way():
            with open_connection(self._dsn) as connection:
                some = connection.execute(_FORGET_BATCHES, (before_ms / 1000, BATCHES)).rowcount
            gone += some
            if some < BATCHES:
                break
        return gone

    def drop_archive(self, before_ms: int) -> int:
        """Remove blobs of days before this one; how many."""
        with open_connection(self._dsn) as connection:
            return connection.execute("DELETE FROM sample_archive WHERE day_ms < %s", (before_ms,)).rowcount

    def droppable_usage_intervals(self, before_ms: int) -> list[int]:
        """Days before this one whose usage intervals may go: they and the day after are closed, and they never went
        before.

        A usage interval may reach into the day after its start, so that day's evidence is in both partitions.
        """
        with open_connection(self._dsn) as connection:
            days = day_rows.days(connection, "usage_interval")
            rows = connection.execute(
                "SELECT day FROM unnest(%s::bigint[]) AS day WHERE day < %s "
                "AND EXISTS (SELECT FROM billing_period WHERE start_ms <= day AND end_ms >= day + %s) "
                "AND EXISTS (SELECT FROM billing_period WHERE start_ms <= day + %s AND end_ms >= day + 2 * %s) "
                "AND NOT EXISTS (SELECT FROM expired_day WHERE day_ms = day) ORDER BY day",
                (days, before_ms, DAY_MS, DAY_MS, DAY_MS),
            ).fetchall()
        return [int(row[0]) for row in rows]

    def drop_usage_intervals(self, day_ms: int, now_ms: int) -> bool:
        """Drop a day's usage intervals and remember it; False when its locks are not to be had now."""
        with open_connection(self._dsn) as connection:
            try:
                with connection.transaction():
                    connection.execute(f"SET LOCAL lock_timeout = '{LOCK_WAIT}'")
                    connection.execute(
                        "INSERT INTO expired_day (day_ms, dropped_at) VALUES (%s, %s)",
                        (day_ms, dt.datetime.fromtimestamp(now_ms / 1000, dt.UTC)),
                    )
                    connection.execute(
                        "DELETE FROM hour_recompute WHERE hour_ms >= %s AND hour_ms < %s", (day_ms, day_ms + 2 * DAY_MS)
                    )
                    _drop(connection, "usage_interval", day_ms)
            except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
                return False
        return True


@dataclass(frozen=True, slots=True)
class _Packed:
    """What a slice packed of an accelerator: rows of the partition, bytes of the blob."""

    rows: int
    size: int


def _pack_slice(connection: Connection, day_ms: int, ids: Sequence[int]) -> dict[int, _Packed]:
    """Pack these accelerators' rows of a day in one transaction; the rows stay where they are."""
    found: dict[int, _Packed] = {}
    with connection.transaction():
        part = day_rows.find(connection, "gpu_sample", day_ms)
        if part is None:
            return found
        for accelerator_id, hot in _partition(connection, part, ids):
            found[accelerator_id] = _Packed(len(hot), len(_pack_one(connection, day_ms, accelerator_id, hot)))
    return found


def _finish(connection: Connection, day_ms: int, packed: dict[int, _Packed]) -> PackedDay | None:
    """Pack what came since and drop the partition, in one transaction that holds writers of the day off."""
    try:
        with connection.transaction():
            connection.execute(f"SET LOCAL lock_timeout = '{LOCK_WAIT}'")
            part = day_rows.find(connection, "gpu_sample", day_ms)
            if part is None or not _lock(connection, part):
                return None
            there, hot_bytes = _size(connection, part)
            since = [key for key, rows in there.items() if key not in packed or packed[key].rows != rows]
            for accelerator_id, hot in _partition(connection, part, since) if since else ():
                blob = _pack_one(connection, day_ms, accelerator_id, hot)
                packed[accelerator_id] = _Packed(len(hot), len(blob))
            if {key: one.rows for key, one in packed.items()} != there:
                name = part.partition.name
                raise ArchiveDamaged(f"{name} does not hold the rows that were packed of it: it stays as it is")
            _drop(connection, "gpu_sample", day_ms)
    except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
        return None
    size = sum(one.size for one in packed.values())
    return PackedDay(day_ms, sum(there.values()), len(there), hot_bytes, size)


def _pack_one(connection: Connection, day_ms: int, accelerator_id: int, hot: Readings) -> bytes:
    whole = merged(_packed(connection, day_ms, accelerator_id), hot)
    blob = pack(whole)
    _write(connection, day_ms, accelerator_id, whole, blob)
    back = _packed(connection, day_ms, accelerator_id)
    if back is None or not same(back, whole):
        raise ArchiveDamaged(f"{_place(day_ms, accelerator_id)} did not come back as it went in: it stays as it is")
    return blob


def _lock(connection: Connection, part: DayRows) -> bool:
    try:
        with connection.transaction():
            connection.execute(sql.SQL("LOCK TABLE {} IN SHARE MODE").format(part.table))
    except psycopg.errors.UndefinedTable:
        return False
    return True


def _size(connection: Connection, part: DayRows) -> tuple[dict[int, int], int]:
    """Rows of each accelerator on a day, and the bytes of the partition."""
    counted = sql.SQL("SELECT accelerator_id, count(*) FROM {} WHERE {} GROUP BY 1").format(part.table, part.condition)
    there = {int(row[0]): int(row[1]) for row in connection.execute(counted)}
    row = connection.execute("SELECT pg_total_relation_size(%s::regclass)", (part.partition.name,)).fetchone()
    assert row is not None
    return there, int(row[0])


def _partition(connection: Connection, part: DayRows, ids: Sequence[int]) -> Iterator[tuple[int, Readings]]:
    """The rows of these accelerators, one after the other; the server sorts on disk, not in memory."""
    connection.execute("SET LOCAL enable_hashagg = off")
    with connection.cursor(name="packing", binary=True) as cursor:
        cursor.itersize = 16
        statement = sql.SQL(
            f"SELECT accelerator_id, {_SEND} FROM {{}} WHERE accelerator_id = ANY(%s) AND {{}} GROUP BY 1 ORDER BY 1"
        )
        cursor.execute(statement.format(part.table, part.condition), (list(ids),))
        for accelerator_id, sent in cursor:
            yield int(accelerator_id), _received(sent)


def _received(sent: bytes) -> Readings:
    rows = np.frombuffer(sent, dtype=_ROW)
    absent = rows["absent"].astype("<i8")
    columns = {
        name: Column(_native(rows[name], kind), (absent >> place) & 1 == 0)
        for place, (name, kind) in enumerate(KINDS.items())
    }
    return Readings(rows["at_ms"].astype("<i8"), columns)


def _native(values: Array, kind: str) -> Array:
    """Little-endian with every bit kept; a cast of floats may touch NaN payloads, a swap of bytes does not."""
    return np.ascontiguousarray(values).byteswap().view(f"<{kind}")


def _write(connection: Connection, day_ms: int, accelerator_id: int, whole: Readings, blob: bytes) -> None:
    metrics = sum(bool(column.present.any()) for column in whole.columns.values())
    connection.execute(
        "INSERT INTO sample_archive (day_ms, accelerator_id, rows, metrics, blob, sha256) "
        "VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT (day_ms, accelerator_id) DO UPDATE SET rows = excluded.rows, "
        "metrics = excluded.metrics, blob = excluded.blob, sha256 = excluded.sha256",
        (day_ms, accelerator_id, len(whole), metrics, blob, hashlib.sha256(blob).digest()),
    )


def _packed(connection: Connection, day_ms: int, accelerator_id: int) -> Readings | None:
    row = connection.execute(
        "SELECT blob, sha256 FROM sample_archive WHERE day_ms = %s AND accelerator_id = %s", (day_ms, accelerator_id)
    ).fetchone()
    return None if row is None else _opened(day_ms, accelerator_id, row[0], row[1])


def _opened(day_ms: int, accelerator_id: int, blob: bytes, digest: bytes) -> Readings:
    if hashlib.sha256(blob).digest() != digest:
        raise ArchiveDamaged(f"{_place(day_ms, accelerator_id)} has another checksum than when it was written")
    try:
        return unpack(blob)
    except DamagedBlob as error:
        raise ArchiveDamaged(f"{_place(day_ms, accelerator_id)} {error}") from error


def _place(day_ms: int, accelerator_id: int) -> str:
    return f"the archive of accelerator {accelerator_id} on {dt.datetime.fromtimestamp(day_ms / 1000, dt.UTC):%Y-%m-%d}"


def merged(packed: Readings | None, late: Readings) -> Readings:
    """Both by instant, without the late rows that equal a packed one in every bit; equal instants keep their order."""
    if packed is None:
        return late
    names = sorted({*packed.columns, *late.columns})
    known = set(_rows(packed, names))
    new = np.array([row not in known for row in _rows(late, names)], dtype=bool)
    at_ms = np.concatenate([packed.at_ms, late.at_ms[new]])
    order = np.argsort(at_ms, kind="stable")
    columns = {}
    for name in names:
        pair = [(part.columns.get(name) or _nothing(part, name, late, packed)) for part in (packed, late)]
        columns[name] = Column(
            np.concatenate([pair[0].values, pair[1].values[new]])[order],
            np.concatenate([pair[0].present, pair[1].present[new]])[order],
        )
    return Readings(at_ms[order], columns)


def _nothing(part: Readings, name: str, *others: Readings) -> Column:
    dtype = next(other.columns[name].values.dtype for other in others if name in other.columns)
    return Column(np.zeros(len(part), dtype=dtype), np.zeros(len(part), dtype=bool))


def _rows(readings: Readings, names: Sequence[str]) -> list[bytes]:
    """Each row as bytes, equal for equal rows: NULLs as zeros with their mark."""
    parts = [readings.at_ms.astype("<i8").view(np.uint8).reshape(len(readings), 8)]
    for name in names:
        column = readings.columns.get(name)
        if column is None or not column.present.any():
            # A column that is not there and one without a reading are the same.
            parts.append(np.zeros((len(readings), 9), dtype=np.uint8))
            continue
        width = column.values.dtype.itemsize
        bits = np.ascontiguousarray(column.values).view(np.uint8).reshape(len(readings), width)
        padded = np.zeros((len(readings), 9), dtype=np.uint8)
        padded[:, :width] = np.where(column.present[:, None], bits, 0)
        padded[:, 8] = column.present
        parts.append(padded)
    whole = np.hstack(parts)
    return [row.tobytes() for row in whole]


def readings(connection: Connection, accelerator_ids: Sequence[int], period: Period) -> Iterator[tuple[int, Readings]]:
    """Samples of these accelerators in the period, hot and packed as one, by day and then by accelerator.

    The hot rows are read first: a day that is packed in between is then seen twice, and counted once, never missed.
    """
    ids = sorted(set(accelerator_ids))
    for day in period.days():
        hot = _hot(connection, ids, day)
        start = day.start_ms - day.start_ms % DAY_MS
        with connection.cursor(binary=True) as cursor:
            rows = cursor.execute(
                "SELECT accelerator_id, blob, sha256 FROM sample_archive "
                "WHERE day_ms = %s AND accelerator_id = ANY(%s)",
                (start, ids),
            ).fetchall()
        blobs = {int(row[0]): (row[1], row[2]) for row in rows}
        for accelerator_id in ids:
            found = hot.get(accelerator_id)
            if accelerator_id in blobs:
                packed = _within(_opened(start, accelerator_id, *blobs[accelerator_id]), day)
                found = packed if found is None else merged(packed, found)
            if found is not None and len(found):
                yield accelerator_id, found


@dataclass(frozen=True, slots=True)
class Place:
    """An accelerator, and the part of a period that is asked for."""

    accelerator_id: int
    uuid: str
    period: Period


def places(connection: Connection, period: Period, node: str | None = None, uuid: str | None = None) -> list[Place]:
    """The accelerator with this UUID for all of the period, or those of a node while they were there, by index."""
    if uuid is not None:
        rows = connection.execute("SELECT id, uuid FROM accelerator WHERE uuid = %s", (uuid,)).fetchall()
        return [Place(int(row[0]), str(row[1]), period) for row in rows]
    rows = connection.execute(
        "SELECT a.id, a.uuid, greatest(c.in_ms, %s), least(coalesce(c.out_ms, %s), %s) FROM capacity c "
        "JOIN accelerator a ON a.id = c.accelerator_id JOIN node n ON n.id = c.node_id "
        "WHERE n.name = %s AND c.in_ms < %s AND (c.out_ms IS NULL OR c.out_ms > %s) "
        "ORDER BY a.gpu_index, a.uuid, c.in_ms",
        (period.start_ms, period.end_ms, period.end_ms, node, period.end_ms, period.start_ms),
    ).fetchall()
    return [Place(int(row[0]), str(row[1]), Period(int(row[2]), int(row[3]))) for row in rows]


def _hot(connection: Connection, ids: Sequence[int], period: Period) -> dict[int, Readings]:
    with connection.cursor(binary=True) as cursor:
        rows = cursor.execute(
            f"SELECT accelerator_id, {_SEND} FROM gpu_sample "
            "WHERE accelerator_id = ANY(%s) AND at_ms >= %s AND at_ms < %s GROUP BY 1",
            (list(ids), period.start_ms, period.end_ms),
        ).fetchall()
    return {int(accelerator_id): _received(sent) for accelerator_id, sent in rows}


def _within(found: Readings, period: Period) -> Readings:
    chosen: npt.NDArray[np.bool_] = (found.at_ms >= period.start_ms) & (found.at_ms < period.end_ms)
    columns = {name: Column(one.values[chosen], one.present[chosen]) for name, one in found.columns.items()}
    return Readings(found.at_ms[chosen], columns)


def samples(connection: Connection, accelerator_ids: Sequence[int], period: Period) -> Samples:
    """Samples of these accelerators in the period as arrays, hot and packed as one, by accelerator and instant."""
    found = sorted(readings(connection, accelerator_ids, period), key=lambda one: one[0])
    names = sorted({name for _, part in found for name in part.columns})
    others = [part for _, part in found]
    columns = {}
    for name in names:
        parts = [part.columns.get(name) or _nothing(part, name, *others) for part in others]
        columns[name] = Column(
            np.concatenate([part.values for part in parts]), np.concatenate([part.present for part in parts])
        )
    return Samples(
        np.repeat(np.array([key for key, _ in found], dtype="<i8"), [len(part) for part in others]),
        np.concatenate([np.zeros(0, dtype="<i8"), *[part.at_ms for part in others]]),
        columns,
    )


def unpack_hours(connection: Connection, hours: Sequence[tuple[int, int]]) -> bool:
    """Put the packed samples of these (accelerator, hour) pairs into a temporary `packed_sample`, like gpu_sample.

    False, and no table, when nothing of them is packed. The table lives until COMMIT.
    """
    wanted: dict[tuple[int, int], set[int]] = {}
    for accelerator_id, hour_ms in hours:
        wanted.setdefault((hour_ms - hour_ms % DAY_MS, accelerator_id), set()).add(hour_ms)
    rows = connection.execute(
        "SELECT a.day_ms, a.accelerator_id, a.blob, a.sha256 FROM sample_archive a "
        "JOIN unnest(%s::bigint[], %s::bigint[]) AS w (day_ms, accelerator_id) USING (day_ms, accelerator_id)",
        ([key[0] for key in wanted], [key[1] for key in wanted]),
    ).fetchall()
    if not rows:
        return False
    connection.execute("DROP TABLE IF EXISTS pg_temp.packed_sample")
    connection.execute("CREATE TEMP TABLE packed_sample (LIKE gpu_sample) ON COMMIT DROP")
    names = ", ".join(["accelerator_id", "at_ms", *KINDS])
    with connection.cursor().copy(f"COPY packed_sample ({names}) FROM STDIN") as copy:
        for day_ms, accelerator_id, blob, digest in rows:
            found = _opened(day_ms, accelerator_id, blob, digest)
            chosen = np.isin(found.at_ms - found.at_ms % HOUR_MS, list(wanted[day_ms, accelerator_id]))
            for row in np.flatnonzero(chosen):
                values = (_value(found.columns.get(name), int(row)) for name in KINDS)
                copy.write_row((accelerator_id, int(found.at_ms[row]), *values))
    return True


def _value(column: Column | None, row: int) -> float | int | None:
    if column is None or not column.present[row]:
        return None
    value: float | int = column.values[row].item()
    return value
