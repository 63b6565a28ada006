"""Columns of readings as numpy arrays, and rows of them as Postgres' binary COPY format.

An absent reading is NaN in a float array and the smallest int64 in an integer one; both become
NULL. The packer groups rows by which of their columns are NULL: within such a group every row has
the same layout, so one structured array writes them all, in a fifth of the time that a call per
value takes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import psycopg
from psycopg.adapt import Dumper
from psycopg.pq import Format

from gpuledger_common.wire import ABSENT_INT64, Column

Array = npt.NDArray[Any]

DTYPES: dict[str, str] = {"f4": "<f4", "f8": "<f8", "i8": "<i8"}
COPY_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
COPY_TRAILER = b"\xff\xff"
_ROWS_AT_ONCE = 1200
"""About 300 KB of wide rows: larger buffers are fresh memory pages each time, which costs more than
filling them.
"""
_ARRAY_HEAD = struct.Struct(">iiIii")
_OIDS = {"f4": 700, "f8": 701, "i8": 20, "V16": 2950, "V32": 17}
"""Postgres' type OIDs of real, double precision, bigint, uuid and bytea (pg_type.dat); hashes are
stored as bytea.
"""


def to_array(column: Column, rows: int, kind: str) -> Array:
    """Convert a wire column to an array of `kind` (f4, f8, i8) with `rows` values.

    Raises ValueError.
    """
    values = (
        _from_bytes(column)
        if isinstance(column.values, bytes)
        else _from_list(column.values, column.kind)
    )
    if len(values) != rows:
        raise ValueError(f"has {len(values)} values for {rows} rows")
    if kind == column.kind:
        return absent_if_not_finite(values)
    if kind == "i8":
        return _to_integers(values)
    # The sentinel of an absent integer would become an ordinary number in a float column.
    if column.kind == "i8":
        widened = values.astype("<f8")
        widened[values == ABSENT_INT64] = np.nan
        values = widened
    with np.errstate(over="ignore"):
        return absent_if_not_finite(values.astype(DTYPES[kind]))


def _from_bytes(column: Column) -> Array:
    dtype = np.dtype(DTYPES[column.kind])
    assert isinstance(column.values, bytes)
    if len(column.values) % dtype.itemsize:
        raise ValueError(
            f"has {len(column.values)} bytes, which is no whole number of {column.kind} values"
        )
    return np.frombuffer(column.values, dtype=dtype)


def _from_list(values: list[float | int | None], kind: str) -> Array:
    try:
        if kind == "i8":
            if any(isinstance(value, float) for value in values):
                raise ValueError("holds a fraction and is declared i8")
            return np.array(
                [ABSENT_INT64 if value is None else value for value in values], dtype="<i8"
            )
        with np.errstate(over="ignore"):
            return np.array(
                [np.nan if value is None else float(value) for value in values], dtype=DTYPES[kind]
            )
    except OverflowError as error:
        raise ValueError(f"holds a number that {kind} cannot hold") from error


def _to_integers(values: Array) -> Array:
    # Casting a float that int64 cannot hold is undefined, so the inner `where` replaces it before
    # the cast.
    in_range = np.isfinite(values) & (np.abs(values) < 2.0**63)
    return np.where(in_range, np.where(in_range, values, 0).astype("<i8"), ABSENT_INT64)


def absent_if_not_finite(values: Array) -> Array:
    """Replace infinities by NaN, which means absent; integers stay as they are."""
    if values.dtype.kind == "i" or np.isfinite(values).all():
        return values
    return np.where(np.isfinite(values), values, values.dtype.type(np.nan))


def is_absent(values: Array) -> npt.NDArray[np.bool_]:
    """Mark the rows without a reading."""
    if values.dtype.kind in "SV":
        return np.zeros(len(values), dtype=bool)
    return values == ABSENT_INT64 if values.dtype.kind == "i" else np.isnan(values)


def blank(rows: int, kind: str) -> Array:
    """Create a column without readings."""
    return np.full(rows, ABSENT_INT64 if kind == "i8" else np.nan, dtype=DTYPES[kind])


def last_of_each(ordered: Array) -> npt.NDArray[np.intp]:
    """The index of the last row of each value in a sorted column."""
    return np.flatnonzero(np.append(ordered[1:] != ordered[:-1], len(ordered) > 0))


def pack(*blocks: Sequence[Array]) -> Iterator[bytes]:
    """Encode rows as a binary COPY stream, in the order of their NULL patterns.

    A block has an array for each column of the table: dtypes i8, i4, f8, f4; text as S and UUIDs as
    V are never absent.
    """
    yield COPY_HEADER
    for columns in blocks:
        for begin in range(0, len(columns[0]), _ROWS_AT_ONCE):
            yield from _pack_block([column[begin : begin + _ROWS_AT_ONCE] for column in columns])
    yield COPY_TRAILER


def _pack_block(columns: Sequence[Array]) -> Iterator[bytes]:
    absent = np.stack([is_absent(column) for column in columns])
    # The usual case: every row has the same columns, as from one kind of GPU.
    if (absent == absent[:, :1]).all():
        yield _pack_group(columns, absent[:, 0])
        return
    # A bit per column: equal bytes mean equal NULL patterns.
    patterns, group = np.unique(np.packbits(absent, axis=0), axis=1, return_inverse=True)
    group = group.reshape(len(columns[0]))
    for pattern in range(patterns.shape[1]):
        chosen = np.flatnonzero(group == pattern)
        yield _pack_group([column[chosen] for column in columns], absent[:, chosen[0]])


def _pack_group(columns: Sequence[Array], absent: npt.NDArray[np.bool_]) -> bytes:
    # The dtype without its byte order: COPY wants big-endian, which `_row` declares.
    kinds = tuple(
        "" if null else column.dtype.str[1:] for column, null in zip(columns, absent, strict=True)
    )
    packed = np.repeat(_row(kinds), len(columns[0]))
    for place, column in enumerate(columns):
        if kinds[place]:
            packed[f"v{place}"] = column
    return packed.tobytes()


@lru_cache(maxsize=1024)
def _row(kinds: tuple[str, ...]) -> Array:
    """A row of columns of these kinds, values still zero; "" is NULL, which has a length and no
    value.
    """
    # A row of binary COPY: the number of fields, then for each its length (-1 for NULL) and its
    # bytes.
    layout, lengths = [("fields", ">i2")], {}
    for place, kind in enumerate(kinds):
        layout.append((f"l{place}", ">i4"))
        lengths[f"l{place}"] = np.dtype(kind).itemsize if kind else -1
        if kind:
            layout.append((f"v{place}", ">" + kind))
    row = np.zeros(1, dtype=np.dtype(layout))
    row["fields"] = len(kinds)
    for name, length in lengths.items():
        row[name] = length
    return row


class BinaryArray:
    """A statement parameter: numbers, UUIDs (V16) or hashes (V32) as a Postgres array, NULL where
    one is absent.
    """

    __slots__ = ("values",)

    def __init__(self, values: Array) -> None:
        self.values = values


class BinaryArrayDumper(Dumper):
    """Encodes the array at once, where psycopg encodes value by value.

    The statement casts it to the element type.
    """

    format = Format.BINARY

    def dump(self, obj: BinaryArray) -> bytes:
        """Encode as Postgres does: dimensions, any NULLs, type, length, lower bound; size and bytes
        of each value.
        """
        values, absent = obj.values, is_absent(obj.values)
        kind = values.dtype.str[1:]
        elements = np.empty(len(values), dtype=[("size", ">i4"), ("value", ">" + kind)])
        elements["size"], elements["value"] = np.where(absent, -1, values.dtype.itemsize), values
        head = _ARRAY_HEAD.pack(1, bool(absent.any()), _OIDS[kind], len(values), 1)
        if not absent.any():
            return head + elements.tobytes()
        # With NULLs the elements differ in length, so the bytes of absent values are cut out of the
        # packed rows.
        octets = elements.view(np.uint8).reshape(len(values), elements.dtype.itemsize)
        kept = np.ones_like(octets, dtype=bool)
        kept[absent, 4:] = False  # NULL has a size and no bytes
        return head + bytes(octets[kept].tobytes())


psycopg.adapters.register_dumper(BinaryArray, BinaryArrayDumper)
