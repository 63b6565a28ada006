"""The bytes of an archive blob: all samples of one accelerator and UTC day.

Format, version 2, little-endian throughout (version 1 is the same without 9 to 12, and is read as well):

    u8 version (2) · u32 rows · u16 columns · the instants · the columns
    a column: u8 length of its name · its name (ASCII) · its part

    a part: u8 kind (0 f4, 1 f8, 2 i8) · u8 how · u8 bitmap (1: some rows are absent) · u32 length · a zstd frame of
    [bitmap of the rows present, most significant bit first, when `bitmap` is 1] · the present values, encoded by `how`

    how: 1 bytes in planes · 2 bit patterns xor the one before, planes · 3 bit patterns minus the one before (modulo
    2^n), planes · 4 a table of at most 256 bit patterns (u16 count, patterns), then a byte for each value ·
    5 differences of the differences (modulo 2^64), planes · 6 and 7 decimals: u8 places, then whole numbers (i8) that
    divided by 10^places in f8 and rounded to the kind are the values, in planes; 7: minus the one before · 8 whole
    numbers (i8): these and those of the column before added up (free and used memory), in planes · 9 and 10 bit
    patterns as whole numbers, and decimals (u8 places), laid close: u8 width · u8 shift · i8 least · bitmap of those
    that equal the one before · the others, less the least and times 2^shift (modulo 2^64), in `width` planes · 11
    and 12 as 9 and 10, of whole numbers minus the one before (modulo 2^64), all but the first (u8), which stands ahead

The instants are a part without a name (kind i8, how 5). Planes: all first bytes, then all second bytes, and so on.
Each column is a frame of its own; all but 5 are tried, and the smallest is taken, only if it is exact. The writer puts
each plane of 9 to 12 in a block of its own, which has its own Huffman code: a plane of noise next to one of few values
is then not paid for twice. The shift moves the places where noise begins to a border between two planes.
What comes out is what went in, bit for bit: NaN payloads, signed zeros, absent (NULL) beside NaN, rows of one instant
in their order.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuledger_common.compression import zstd

Array = npt.NDArray[Any]
Present = npt.NDArray[np.bool_]

VERSION, READ = 2, (1, 2)
LEVEL, NOISE_LEVEL = 3, 1
"""Of zstd; where planes of noise have been set apart there is nothing to look for, and looking costs bytes as well."""
_HEAD, _PART, _LAID = struct.Struct("<BIH"), struct.Struct("<BBBI"), struct.Struct("<BBq")
_KINDS = ("<f4", "<f8", "<i8")
(
    _PLAIN,
    _XOR,
    _DELTA,
    _TABLE,
    _DELTA2,
    _DECIMAL,
    _DECIMAL_DELTA,
    _SUM,
    _CLOSE,
    _CLOSE_DECIMAL,
    _CLOSE_DELTA,
    _CLOSE_DECIMAL_DELTA,
) = range(1, 13)
_PLACES = range(7)
_SHIFTS = (0, 2, 4, 6)
_UNDER = {
    _DECIMAL: _PLAIN,
    _DECIMAL_DELTA: _DELTA,
    _CLOSE_DECIMAL: _CLOSE,
    _CLOSE_DECIMAL_DELTA: _CLOSE_DELTA,
}
"""How the whole numbers of decimals are written."""


class DamagedBlob(ValueError):
    """An archive blob cannot be read; the message says why."""


@dataclass(frozen=True, slots=True)
class Column:
    """Values (f4, f8 or i8), one a row, and where there is one: False is NULL, whatever the value there says."""

    values: Array
    present: Present


@dataclass(frozen=True, slots=True)
class Readings:
    """Samples of one accelerator: instants (unix ms, int64) and columns of the same length."""

    at_ms: Array
    columns: Mapping[str, Column]

    def __len__(self) -> int:
        return len(self.at_ms)


def pack(readings: Readings) -> bytes:
    """The blob of these samples; columns without any reading are left out."""
    filled = {name: column for name, column in sorted(readings.columns.items()) if column.present.any()}
    parts = [_HEAD.pack(VERSION, len(readings), len(filled)), _pack_instants(readings.at_ms.astype("<i8"))]
    before: Array | None = None
    for name, column in filled.items():
        parts += [bytes([len(name)]), name.encode("ascii"), _pack_column(column, before)]
        before = column.values[column.present]
    return b"".join(parts)


def unpack(blob: bytes) -> Readings:
    """The samples of a blob. Raises DamagedBlob."""
    try:
        version, rows, columns = _HEAD.unpack_from(blob)
        if version not in READ:
            raise DamagedBlob(f"has format version {version}, and this program reads {READ[0]} to {READ[-1]}")
        instants, at = _unpack_part(blob, _HEAD.size, rows)
        found: dict[str, Column] = {}
        before: Array | None = None
        for _ in range(columns):
            name = blob[at + 1 : at + 1 + blob[at]].decode("ascii")
            found[name], at = _unpack_part(blob, at + 1 + blob[at], rows, before)
            before = found[name].values[found[name].present]
    except (struct.error, zstd.ZstdError, IndexError, UnicodeDecodeError) as error:
        raise DamagedBlob(f"ends early or is damaged ({error})") from error
    if at != len(blob):
        raise DamagedBlob(f"has {len(blob) - at} bytes too many")
    return Readings(instants.values, found)


def same(one: Readings, other: Readings) -> bool:
    """Whether two sets of samples are equal bit for bit, row for row; an empty column is as good as none."""
    names = {name for part in (one, other) for name, column in part.columns.items() if column.present.any()}
    return np.array_equal(one.at_ms, other.at_ms) and all(
        name in one.columns and name in other.columns and _same_column(one.columns[name], other.columns[name])
        for name in names
    )


def _same_column(one: Column, other: Column) -> bool:
    return (
        one.values.dtype == other.values.dtype
        and np.array_equal(one.present, other.present)
        and one.values[one.present].tobytes() == other.values[other.present].tobytes()
    )


def _pack_instants(at_ms: Array) -> bytes:
    body = _frame([_planes(_differences(_differences(at_ms.view("<u8"))))])
    return _PART.pack(_KINDS.index("<i8"), _DELTA2, 0, len(body)) + body


def _pack_column(column: Column, before: Array | None = None) -> bytes:
    values = np.ascontiguousarray(column.values[column.present])
    whole = bool(column.present.all())
    head = b"" if whole else np.packbits(column.present).tobytes()
    tried = (
        (how, _frame([head, *blocks], NOISE_LEVEL if how >= _CLOSE else LEVEL))
        for how, blocks in _encoded(values, before)
    )
    how, body = min(tried, key=lambda one: (len(one[1]), one[0]))
    return _PART.pack(_KINDS.index(values.dtype.str), how, 0 if whole else 1, len(body)) + body


def _encoded(values: Array, before: Array | None) -> Iterator[tuple[int, list[bytes]]]:
    """All ways to write these values that give them back, each as blocks."""
    bits = values.view(f"<u{values.dtype.itemsize}")
    yield _PLAIN, [_planes(bits)]
    yield _XOR, [_planes(np.concatenate([bits[:1], bits[1:] ^ bits[:-1]]))]
    yield _DELTA, [_planes(_differences(bits))]
    whole = bits.astype("<u8")
    yield from ((_CLOSE, laid) for laid in _laid_close(whole))
    yield from ((_CLOSE_DELTA, laid) for laid in _steps_laid_close(whole))
    if (table := _table(bits)) is not None:
        yield _TABLE, [table]
    if (sums := _sums(values, before)) is not None:
        yield _SUM, [sums]
    if (decimals := _decimals(values)) is not None:
        places, whole = decimals
        yield _DECIMAL, [places, _planes(whole)]
        yield _DECIMAL_DELTA, [places, _planes(_differences(whole))]
        yield from ((_CLOSE_DECIMAL, [places, *laid]) for laid in _laid_close(whole))
        yield from ((_CLOSE_DECIMAL_DELTA, [places, *laid]) for laid in _steps_laid_close(whole))


def _frame(blocks: list[bytes], level: int = LEVEL) -> bytes:
    packer = zstd.ZstdCompressor(level)
    parts = [packer.compress(block, zstd.ZstdCompressor.FLUSH_BLOCK) for block in blocks if block]
    return b"".join([*parts, packer.flush()])


def _unpack_part(blob: bytes, at: int, rows: int, before: Array | None = None) -> tuple[Column, int]:
    kind, how, with_bitmap, length = _PART.unpack_from(blob, at)
    at += _PART.size
    body = zstd.decompress(blob[at : at + length])
    present = np.ones(rows, dtype=bool)
    if with_bitmap:
        size = (rows + 7) // 8
        present = np.unpackbits(np.frombuffer(body[:size], dtype=np.uint8), count=rows).astype(bool)
        body = body[size:]
    dtype = np.dtype(_KINDS[kind])
    try:
        bits = (
            _unsum(body, before, dtype)
            if how == _SUM
            else _decode(body, how, f"<u{dtype.itemsize}", int(present.sum()))
        )
        values = np.zeros(rows, dtype=dtype)
        values.view(bits.dtype)[present] = bits
    except (ValueError, KeyError) as error:
        raise DamagedBlob(f"holds a column of another length ({error})") from error
    return Column(values, present), at + length


def _decode(body: bytes, how: int, unsigned: str, count: int) -> Array:
    if how == _TABLE:
        (count,) = struct.unpack_from("<H", body)
        start = 2 + count * np.dtype(unsigned).itemsize
        table: Array = np.frombuffer(body[2:start], dtype=unsigned)
        return table[np.frombuffer(body[start:], dtype=np.uint8)]
    if how in _UNDER:
        whole = _decode(body[1:], _UNDER[how], "<u8", count).view("<i8")
        return _from_decimals(whole, body[0], unsigned.replace("u", "f")).view(unsigned)
    if how == _CLOSE:
        return _from_close(body, count).astype(unsigned)
    if how == _CLOSE_DELTA:
        steps = [np.frombuffer(body[:8], dtype="<u8"), _from_close(body[8:], count - 1)]
        return np.cumsum(np.concatenate(steps), dtype="<u8").astype(unsigned)
    width = np.dtype(unsigned).itemsize
    bits: Array = np.ascontiguousarray(np.frombuffer(body, dtype=np.uint8).reshape(width, -1).T).view(unsigned)[:, 0]
    if how == _XOR:
        return np.bitwise_xor.accumulate(bits)
    for _ in range({_PLAIN: 0, _DELTA: 1, _DELTA2: 2}[how]):
        bits = np.cumsum(bits, dtype=unsigned)
    return bits


def _differences(bits: Array) -> Array:
    return np.concatenate([bits[:1], bits[1:] - bits[:-1]])


def _planes(bits: Array) -> bytes:
    return np.ascontiguousarray(bits).view(np.uint8).reshape(len(bits), bits.dtype.itemsize).T.tobytes()


def _table(bits: Array) -> bytes | None:
    table, places = np.unique(bits, return_inverse=True)
    if len(table) > 256:
        return None
    return struct.pack("<H", len(table)) + table.tobytes() + places.astype(np.uint8).tobytes()


def _laid_close(whole: Array) -> Iterator[list[bytes]]:
    """Whole numbers (u8) without repeats, from the least one on, at every shift: header and bitmap, then the planes."""
    repeats = np.concatenate([[False], whole[1:] == whole[:-1]])
    others = whole[~repeats]
    least = others.view("<i8").min()
    offsets = others - least.view("<u8")
    size = int(offsets.max()).bit_length()
    for shift in _SHIFTS if size else (0,):
        if size + shift > 64:
            return
        width = max(1, (size + shift + 7) // 8)
        planes = (offsets << np.uint64(shift)).view(np.uint8).reshape(-1, 8).T[:width]
        head = _LAID.pack(width, shift, int(least)) + np.packbits(repeats).tobytes()
        yield [head, *(plane.tobytes() for plane in planes)]


def _steps_laid_close(whole: Array) -> Iterator[list[bytes]]:
    """The same of the differences; the first value stands ahead, for it would be an outlier among them."""
    if len(whole) > 1:
        yield from ([whole[:1].tobytes(), *laid] for laid in _laid_close(whole[1:] - whole[:-1]))


def _from_close(body: bytes, count: int) -> Array:
    width, shift, least = _LAID.unpack_from(body)
    start = _LAID.size + (count + 7) // 8
    repeats = np.unpackbits(np.frombuffer(body[_LAID.size : start], dtype=np.uint8), count=count)
    planes = np.frombuffer(body[start:], dtype=np.uint8).reshape(width, count - int(repeats.sum()))
    offsets = np.zeros((planes.shape[1], 8), dtype=np.uint8)
    offsets[:, :width] = planes.T
    others = (offsets.view("<u8")[:, 0] >> np.uint64(shift)) + np.int64(least).view("<u8")
    whole: Array = others[np.cumsum(1 - repeats.astype(np.int64)) - 1]
    return whole


def _decimals(values: Array) -> tuple[bytes, Array] | None:
    """Places and whole numbers (u8) of values that all are decimals of few places; None when one of them is not."""
    if values.dtype.kind != "f" or not np.isfinite(values).all() or np.abs(values).max(initial=0) >= 2.0**62 / 1e6:
        return None
    wide = values.astype("<f8")
    for places in _PLACES:
        whole = np.rint(wide * 10.0**places).astype("<i8")
        if _from_decimals(whole, places, values.dtype.str).tobytes() == values.tobytes():
            return bytes([places]), whole.view("<u8")
    return None


def _from_decimals(whole: Array, places: int, dtype: str) -> Array:
    return (whole.astype("<f8") / 10.0**places).astype(dtype)


def _sums(values: Array, before: Array | None) -> bytes | None:
    """Both columns added up, None when that does not give these values back."""
    if before is None or before.dtype != values.dtype or values.dtype.kind != "f" or len(before) != len(values):
        return None
    if not (np.abs([before, values]) < 2.0**50).all():
        return None
    body = _planes((before.astype("<i8") + values.astype("<i8")).view("<u8"))
    return body if _unsum(body, before, values.dtype).tobytes() == values.tobytes() else None


def _unsum(body: bytes, before: Array | None, dtype: np.dtype[Any]) -> Array:
    if before is None:
        raise ValueError("a sum with no column before it")
    whole = _decode(body, _PLAIN, "<u8", len(before)).view("<i8") - before.astype("<i8")
    bits: Array = whole.astype(dtype).view(f"<u{dtype.itemsize}")
    return bits
