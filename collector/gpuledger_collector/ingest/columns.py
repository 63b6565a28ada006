"""Columns of readings as numpy arrays, and rows of them as Postgres' binary COPY format.

Absent is NaN in a float array and the smallest int64 in an integer one; both become NULL. The packer groups rows by
which of their columns are NULL, because within such a group every row has the same layout and one structured array
writes them all (a fifth of the time that a call per value takes).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import psycopg
from psycopg.adapt import Dumper
from psycopg.pq import Format

from gpuledger_agent.wire import ABSENT_INT64, Column

Array = npt.NDArray[Any]

DTYPES: dict[str, str] = {"f4": "<f4", "f8": "<f8", "i8": "<i8"}
_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TRAILER = b"\xff\xff"
_ARRAY_HEAD = struct.Struct(">iiIii")
_OIDS = {"f4": 700, "f8": 701, "i8": 20}
"""Postgres' numbers of real, double precision and bigint (pg_type.dat)."""


def to_array(column: Column, rows: int, kind: str) -> Array:
    """A wire column as an array of `kind` (f4, f8, i8) with `rows` values. Raises ValueError with the reason."""
    values = _from_bytes(column) if isinstance(column.values, bytes) else _from_list(column.values, column.kind)
    if len(values) != rows:
        raise ValueError(f"has {len(values)} values for {rows} rows")
    if kind == column.kind:
        return absent_if_not_finite(values)
    if kind == "i8":
        return _to_integers(values)
    if column.kind == "i8":
        widened = values.astype("<f8")
        widened[values == ABSENT_INT64] = np.nan
        values = widened
    with np.errstate(over="ignore"):
        return absent_if_not_finite(values.astype(DTYPES[kind]))


def plain_arrays(columns: Mapping[str, Column], rows: int, kinds: Mapping[str, str]) -> dict[str, Array]:
    """What `to_array` makes of the columns that come as bytes in the kind that is kept, all of a kind at once.

    Others, and those of another length, are left out: `to_array` turns or refuses each. A batch has dozens of short
    columns, and numpy takes longer to begin with one than to go through it.
    """
    found: dict[str, Array] = {}
    for kind, dtype in DTYPES.items():
        size = rows * np.dtype(dtype).itemsize
        raw = {
            name: column.values
            for name, column in columns.items()
            if column.kind == kind == kinds.get(name) and isinstance(column.values, bytes)
        }
        raw = {name: values for name, values in raw.items() if len(values) == size}
        if raw:
            values = absent_if_not_finite(np.frombuffer(b"".join(raw.values()), dtype=dtype))
            found.update(zip(raw, values.reshape(len(raw), rows), strict=True))
    return found


def _from_bytes(column: Column) -> Array:
    dtype = np.dtype(DTYPES[column.kind])
    assert isinstance(column.values, bytes)
    if len(column.values) % dtype.itemsize:
        raise ValueError(f"has {len(column.values)} bytes, which is no whole number of {column.kind} values")
    return np.frombuffer(column.values, dtype=dtype)


def _from_list(values: list[float | int | None], kind: str) -> Array:
    try:
        if kind == "i8":
            if any(isinstance(value, float) for value in values):
                raise ValueError("holds a fraction and is declared i8")
            return np.array([ABSENT_INT64 if value is None else value for value in values], dtype="<i8")
        with np.errstate(over="ignore"):
            return np.array([np.nan if value is None else float(value) for value in values], dtype=DTYPES[kind])
    except OverflowError as error:
        raise ValueError(f"holds a number that {kind} cannot hold") from error


def _to_integers(values: Array) -> Array:
    known = np.isfinite(values) & (np.abs(values) < 2.0**63)
    return np.where(known, np.where(known, values, 0).astype("<i8"), ABSENT_INT64)


def absent_if_not_finite(values: Array) -> Array:
    """Infinities become NaN, the one sign of absence; integers stay as they are."""
    if values.dtype.kind == "i" or np.isfinite(values).all():
        return values
    return np.where(np.isfinite(values), values, values.dtype.type(np.nan))


def is_absent(values: Array) -> npt.NDArray[np.bool_]:
    """Where a column holds no reading."""
    return values == ABSENT_INT64 if values.dtype.kind == "i" else np.isnan(values)


def blank(rows: int, kind: str) -> Array:
    """A column without a reading."""
    return np.full(rows, ABSENT_INT64 if kind == "i8" else np.nan, dtype=DTYPES[kind])


def pack(columns: Sequence[Array]) -> bytes:
    """Rows of these columns (equal lengths; dtypes i8, f8, f4) as one binary COPY stream, order by NULL pattern."""
    rows = len(columns[0])
    absent = np.stack([is_absent(column) for column in columns])
    if (absent == absent[:, :1]).all():
        return b"".join((_HEADER, _pack_group(columns, absent[:, 0]), _TRAILER)) if rows else _HEADER + _TRAILER
    patterns, group = np.unique(np.packbits(absent, axis=0), axis=1, return_inverse=True)
    group = group.reshape(rows)
    parts = [_HEADER]
    for number in range(patterns.shape[1]):
        chosen = np.flatnonzero(group == number)
        parts.append(_pack_group([column[chosen] for column in columns], absent[:, chosen[0]]))
    parts.append(_TRAILER)
    return b"".join(parts)


def _pack_group(columns: Sequence[Array], absent: npt.NDArray[np.bool_]) -> bytes:
    layout = _layout(tuple("" if none else column.dtype.str[1:] for column, none in zip(columns, absent, strict=True)))
    packed = np.empty(len(columns[0]), dtype=layout)
    packed["fields"] = len(columns)
    for place, column in enumerate(columns):
        packed[f"l{place}"] = -1 if absent[place] else column.dtype.itemsize
        if not absent[place]:
            packed[f"v{place}"] = column
    return packed.tobytes()


@lru_cache(maxsize=1024)
def _layout(kinds: tuple[str, ...]) -> np.dtype[Any]:
    """A row whose columns are of these kinds; "" is NULL, which has a length and no value."""
    layout = [("fields", ">i2")]
    for place, kind in enumerate(kinds):
        layout.append((f"l{place}", ">i4"))
        if kind:
            layout.append((f"v{place}", ">" + kind))
    return np.dtype(layout)


class BinaryArray:
    """Numbers as a parameter of a statement: one of Postgres' arrays, NULL where a value is absent."""

    __slots__ = ("values",)

    def __init__(self, values: Array) -> None:
        self.values = values


class BinaryArrayDumper(Dumper):
    """Writes the array whole, for psycopg takes every value by itself. The statement says what it is an array of."""

    format = Format.BINARY

    def dump(self, obj: BinaryArray) -> bytes:
        """As Postgres sends it: dimensions, any NULLs, type, length, lower bound; then size and bytes of each value."""
        values, absent = obj.values, is_absent(obj.values)
        made = np.empty(len(values), dtype=[("size", ">i4"), ("value", values.dtype.newbyteorder(">").str)])
        made["size"], made["value"] = np.where(absent, -1, values.dtype.itemsize), values
        head = _ARRAY_HEAD.pack(1, bool(absent.any()), _OIDS[values.dtype.str[1:]], len(values), 1)
        there = made.view(np.uint8).reshape(len(values), made.dtype.itemsize)
        kept = np.ones_like(there, dtype=bool)
        kept[absent, 4:] = False
        return head + bytes(there[kept].tobytes())


psycopg.adapters.register_dumper(BinaryArray, BinaryArrayDumper)
