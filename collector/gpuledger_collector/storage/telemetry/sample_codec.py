"""Binary format of an archive blob: all samples of one accelerator and UTC day, restored bit for
bit.

Format version 1, little-endian throughout:

    u8 version (1) · u32 rows · u16 columns · the instants (a part) · the columns
    a column: u8 length of its name · its name (ASCII) · its part

    a part: u8 kind (0 f4, 1 f8, 2 i8) · u8 transform · u8 bitmap (1: some rows are absent) · u32
    length · a zstd frame of [bitmap of the rows present, most significant bit first, when `bitmap`
    is 1] · the present values, transformed

A transform turns values into whole numbers (u8, modulo 2^64):

    1 bits: the bit patterns 2 decimals: u8 places, then value times 10^places, used only when
    dividing restores every value exactly 3 sums: value plus the value of the column before (free
    and used memory add up to a constant) +8: the first whole number (u8), then the difference of
    each to the one before

Whole numbers are stored with frame-of-reference encoding: u8 width · u8 shift · i8 least · bitmap
of the numbers equal to the one before · the others, minus the least and times 2^shift, in `width`
byte planes (all first bytes, then all second bytes). Every plane is a zstd block of its own with
its own Huffman code, so that a plane of noise does not spoil its neighbor; the shift moves the
place where the noise begins to a border between two planes. The writer tries all transforms and
shifts and keeps the smallest. Docs/performance.md compares the size with pcodec and
VictoriaMetrics.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

from gpuledger_collector.insight.readings import Array, Column, Readings
from gpuledger_common.compression import zstd

VERSION = 1
LEVEL = 1
"""Of zstd: planes of noise hold no matches, and searching for them costs time and bytes."""
_HEADER, _PART, _FRAME = struct.Struct("<BIH"), struct.Struct("<BBBI"), struct.Struct("<BBq")
_KINDS = ("<f4", "<f8", "<i8")
_BITS, _DECIMALS, _SUMS, _DELTA = 1, 2, 3, 8
_PLACES = range(7)
_SHIFTS = (0, 2, 4, 6)


class DamagedBlob(ValueError):
    """An archive blob cannot be read; the message says why."""


def pack(readings: Readings) -> bytes:
    """Return the blob of these samples; columns without any reading are left out."""
    filled = {
        name: column for name, column in sorted(readings.columns.items()) if column.present.any()
    }
    instants = Column(readings.at_ms.astype("<i8"), np.ones(len(readings), dtype=bool))
    parts = [_HEADER.pack(VERSION, len(readings), len(filled)), _pack_column(instants, None)]
    previous: Array | None = None
    for name, column in filled.items():
        parts += [bytes([len(name)]), name.encode("ascii"), _pack_column(column, previous)]
        # The column before, in the order of names, so that packing and unpacking pair the same
        # columns.
        previous = column.values[column.present]
    return b"".join(parts)


def unpack(blob: bytes) -> Readings:
    """Return the samples of a blob. Raises DamagedBlob."""
    try:
        version, rows, count = _HEADER.unpack_from(blob)
        if version != VERSION:
            raise DamagedBlob(
                f"has format version {version}, and this program reads version {VERSION}"
            )
        instants, offset = _unpack_column(blob, _HEADER.size, rows, None)
        columns: dict[str, Column] = {}
        previous: Array | None = None
        for _ in range(count):
            end = offset + 1 + blob[offset]
            name = blob[offset + 1 : end].decode("ascii")
            columns[name], offset = _unpack_column(blob, end, rows, previous)
            previous = columns[name].values[columns[name].present]
    except (struct.error, zstd.ZstdError, IndexError, UnicodeDecodeError) as error:
        raise DamagedBlob(f"ends early or is damaged ({error})") from error
    if offset != len(blob):
        raise DamagedBlob(f"has {len(blob) - offset} bytes too many")
    return Readings(instants.values, columns)


def same(first: Readings, second: Readings) -> bool:
    """Whether two sets of samples are equal bit for bit and row for row; an empty column equals a
    missing one.
    """
    names = {
        name
        for part in (first, second)
        for name, column in part.columns.items()
        if column.present.any()
    }
    return np.array_equal(first.at_ms, second.at_ms) and all(
        name in first.columns
        and name in second.columns
        and _same_column(first.columns[name], second.columns[name])
        for name in names
    )


def _same_column(first: Column, second: Column) -> bool:
    return (
        first.values.dtype == second.values.dtype
        and np.array_equal(first.present, second.present)
        and first.values[first.present].tobytes() == second.values[second.present].tobytes()
    )


def _pack_column(column: Column, previous: Array | None) -> bytes:
    values = np.ascontiguousarray(column.values[column.present])
    absent = not column.present.all()
    bitmap = np.packbits(column.present).tobytes() if absent else b""
    encodings = (
        (transform, _compress([bitmap, *blocks]))
        for transform, blocks in _encodings(values, previous)
    )
    # The smallest; of equal sizes the simplest transform, so that packing is deterministic.
    transform, body = min(encodings, key=lambda encoding: (len(encoding[1]), encoding[0]))
    return _PART.pack(_KINDS.index(values.dtype.str), transform, absent, len(body)) + body


def _unpack_column(
    blob: bytes, offset: int, rows: int, previous: Array | None
) -> tuple[Column, int]:
    """The column of the part at an offset, and the offset after it."""
    kind, transform, absent, length = _PART.unpack_from(blob, offset)
    offset += _PART.size
    body = zstd.decompress(blob[offset : offset + length])
    present = np.ones(rows, dtype=bool)
    if absent:
        size = (rows + 7) // 8
        present = np.unpackbits(np.frombuffer(body[:size], dtype=np.uint8), count=rows).astype(bool)
        body = body[size:]
    values = np.zeros(rows, dtype=_KINDS[kind])
    # Assigning floats could change the payload of a NaN.
    bits = values.view(f"<u{values.dtype.itemsize}")
    try:
        bits[present] = _decode(body, transform, values.dtype, int(present.sum()), previous).view(
            bits.dtype
        )
    except ValueError as error:
        raise DamagedBlob(f"holds a column of another length ({error})") from error
    return Column(values, present), offset + length


def _compress(blocks: list[bytes]) -> bytes:
    packer = zstd.ZstdCompressor(LEVEL)
    # FLUSH_BLOCK ends a zstd block, so that each plane gets a Huffman code of its own.
    parts = [packer.compress(block, zstd.ZstdCompressor.FLUSH_BLOCK) for block in blocks if block]
    return b"".join([*parts, packer.flush()])


def _encodings(values: Array, previous: Array | None) -> Iterator[tuple[int, list[bytes]]]:
    """Every encoding that restores these values: its transform and its blocks."""
    forms = [(_BITS, b"", values.view(f"<u{values.dtype.itemsize}").astype("<u8"))]
    if (decimals := _to_decimals(values)) is not None:
        forms.append((_DECIMALS, *decimals))
    if (sums := _to_sums(values, previous)) is not None:
        forms.append((_SUMS, b"", sums))
    # Each form is tried as it is and as differences.
    for transform, places, whole in forms:
        for blocks in _frames_of_reference(whole):
            yield transform, [places, *blocks]
        if len(whole) > 1:
            # The first number stands outside of the frame: among the differences it would be an
            # outlier.
            for blocks in _frames_of_reference(np.diff(whole)):
                yield transform | _DELTA, [places + whole[:1].tobytes(), *blocks]


def _decode(
    body: bytes, transform: int, dtype: np.dtype[Any], count: int, previous: Array | None
) -> Array:
    base = transform & ~_DELTA
    places, body = (body[0], body[1:]) if base == _DECIMALS else (0, body)
    if transform & _DELTA:
        differences = [
            np.frombuffer(body[:8], dtype="<u8"),
            _from_frame_of_reference(body[8:], count - 1),
        ]
        whole = np.cumsum(np.concatenate(differences), dtype="<u8")
    else:
        whole = _from_frame_of_reference(body, count)
    if base == _BITS:
        return whole.astype(f"<u{dtype.itemsize}")
    if base == _DECIMALS:
        return _from_decimals(whole, places, dtype)
    if base == _SUMS and previous is not None:
        return _from_sums(whole, previous, dtype)
    raise ValueError(f"transform {transform} is not known here")


def _frames_of_reference(whole: Array) -> Iterator[list[bytes]]:
    """The blocks of these whole numbers at every shift: header with bitmap, then the planes."""
    repeats = np.zeros(len(whole), dtype=bool)
    # Readings often stay the same: a bit per row replaces the repeated number.
    repeats[1:] = whole[1:] == whole[:-1]
    others = whole[~repeats]
    least = int(others.view("<i8").min()) if len(others) else 0
    # Modulo 2^64, so that negative numbers and any range work.
    offsets = others - np.int64(least).view("<u8")
    size = int(offsets.max(initial=0)).bit_length()
    for shift in _SHIFTS if size else (0,):
        if size + shift > 64:
            return
        width = max(1, (size + shift + 7) // 8)
        # Little-endian bytes of each number as a row; transposed, each row is one plane.
        planes = (offsets << np.uint64(shift)).view(np.uint8).reshape(-1, 8).T[:width]
        header = _FRAME.pack(width, shift, least) + np.packbits(repeats).tobytes()
        yield [header, *(plane.tobytes() for plane in planes)]


def _from_frame_of_reference(body: bytes, count: int) -> Array:
    width, shift, least = _FRAME.unpack_from(body)
    start = _FRAME.size + (count + 7) // 8
    repeats = np.unpackbits(np.frombuffer(body[_FRAME.size : start], dtype=np.uint8), count=count)
    planes = np.frombuffer(body[start:], dtype=np.uint8).reshape(width, count - int(repeats.sum()))
    offsets = np.zeros((planes.shape[1], 8), dtype=np.uint8)
    offsets[:, :width] = planes.T
    others = (offsets.view("<u8")[:, 0] >> np.uint64(shift)) + np.int64(least).view("<u8")
    # Each row takes the latest number that was not a repetition.
    whole: Array = others[np.cumsum(1 - repeats.astype(np.int64)) - 1]
    return whole


def _to_decimals(values: Array) -> tuple[bytes, Array] | None:
    """Decimal places and whole numbers of values with few decimals; None when a value cannot be
    restored from them.
    """
    # Beyond this, six decimal places would exceed 64 bits.
    if (
        values.dtype.kind != "f"
        or not np.isfinite(values).all()
        or np.abs(values).max(initial=0) >= 2.0**62 / 1e6
    ):
        return None
    wide = values.astype("<f8")
    for places in _PLACES:
        whole = np.rint(wide * 10.0**places).astype("<i8").view("<u8")
        # Compared as bytes: 0.0 and -0.0 are equal numbers, and only one of them would be restored.
        if _from_decimals(whole, places, values.dtype).tobytes() == values.tobytes():
            return bytes([places]), whole
    return None


def _from_decimals(whole: Array, places: int, dtype: np.dtype[Any]) -> Array:
    return (whole.view("<i8").astype("<f8") / 10.0**places).astype(dtype)


def _to_sums(values: Array, previous: Array | None) -> Array | None:
    """The sums with the column before; None when they do not restore the values."""
    if (
        previous is None
        or previous.dtype != values.dtype
        or values.dtype.kind != "f"
        or len(previous) != len(values)
    ):
        return None
    # Whole numbers below 2^53 are exact in a double; the bound leaves room for the sum, and
    # excludes NaN.
    if not (np.abs([previous, values]) < 2.0**50).all():
        return None
    sums = (previous.astype("<i8") + values.astype("<i8")).view("<u8")
    return sums if _from_sums(sums, previous, values.dtype).tobytes() == values.tobytes() else None


def _from_sums(sums: Array, previous: Array, dtype: np.dtype[Any]) -> Array:
    values: Array = (sums.view("<i8") - previous.astype("<i8")).astype(dtype)
    return values
