"""Walk a 2.0 body in the form in which senders write it, without protobuf.

The labels of a series are references to the request's symbols, which every request numbers anew.
Symbols of known series have numbers of their own in the cache: translated to those by array, the
references of a series are the bytes under which the cache finds it. Only series that protobuf has
read before are found, so the walk reads exactly what protobuf reads; any other form sends the body
through protobuf.
"""

from __future__ import annotations

import re

import numpy as np

from gpuledger_collector.ingest.batches.columns import Array
from gpuledger_collector.ingest.remote_write.series import SeriesCache

_SYMBOL, _SERIES, _REFERENCES, _SAMPLE = 0x22, 0x2A, 0x0A, 0x12
"""Tags of a request's symbols and series, and of a series' references and sample."""
_METADATA = re.compile(
    rb"(?:\x2a[^\x80-\xff](?:\x08[^\x80-\xff])?(?:\x18[\x80-\xff]?[^\x80-\xff])?(?:\x20[\x80-\xff]?[^\x80-\xff])?)?"
)
"""Metadata, with its length: type, and references to help and unit."""


def walk(plain: bytes, cache: SeriesCache) -> tuple[Array, Array, Array] | None:
    """The known series of a body, and the start and end of the sample of each; None for a body of
    any other form.
    """
    table = _read_symbols(plain, cache)
    if table is None:
        return None
    numbers, at = table
    parts: list[bytes] = []
    starts: list[int] = []
    ends: list[int] = []
    known_metadata: set[bytes] = set()
    size = len(plain)
    try:
        while at < size:
            if plain[at] != _SERIES:
                return None
            length, start = plain[at + 1], at + 2
            if length >= 0x80:
                length, start = length & 0x7F | plain[at + 2] << 7, at + 3
            at = start + length
            sample = start + 2 + plain[start + 1]
            end = sample + 2 + plain[sample + 1]
            # Lengths of more than one byte inside a series, and of more than two before it, end
            # here.
            if plain[start] != _REFERENCES or plain[sample] != _SAMPLE or end > at or at > size:
                return None
            metadata = plain[end:at]
            if metadata not in known_metadata:
                if not _METADATA.fullmatch(metadata) or (
                    metadata and metadata[1] != len(metadata) - 2
                ):
                    return None
                known_metadata.add(metadata)
            parts.append(plain[start + 2 : sample])
            starts.append(sample)
            ends.append(end)
    except IndexError:
        return None
    series = _find(parts, numbers, cache)
    return (
        None
        if series is None
        else (series, np.array(starts, dtype="<i8"), np.array(ends, dtype="<i8"))
    )


def _read_symbols(plain: bytes, cache: SeriesCache) -> tuple[Array, int] | None:
    """The cache's numbers of the symbols (0: unknown) and where they end; None where protobuf might
    refuse them.
    """
    symbols: list[bytes] = []
    at, size = 0, len(plain)
    while at + 1 < size and plain[at] == _SYMBOL:
        length, start = plain[at + 1], at + 2
        if length >= 0x80:
            if at + 2 >= size or plain[at + 2] >= 0x80:
                return None
            length, start = length & 0x7F | plain[at + 2] << 7, at + 3
        at = start + length
        symbols.append(plain[start:at])
    if at > size or symbols[:1] != [b""] or not all(map(_is_text, symbols)):
        return None
    find = cache.symbols.get
    return np.array([find(symbol, 0) for symbol in symbols], dtype="<u4"), at


def _is_text(symbol: bytes) -> bool:
    if symbol.isascii():
        return True
    try:
        symbol.decode()
    except UnicodeDecodeError:
        return False
    return True


def _find(parts: list[bytes], numbers: Array, cache: SeriesCache) -> Array | None:
    """The series with these encoded references; None when one is unknown or encoded in another way."""
    if not parts or not all(parts):
        return None
    octets = np.frombuffer(b"".join(parts), dtype="u1")
    is_last = octets < 0x80
    last = np.flatnonzero(is_last)
    ends = np.cumsum(np.fromiter(map(len, parts), dtype="<i8", count=len(parts)))
    # References of one or two bytes; the last byte of a series must end one.
    sizes = np.diff(last, prepend=-1)
    if not is_last[ends - 1].all() or sizes.max() > 2:
        return None
    references = octets[last].astype("<i8")
    is_long = sizes == 2
    references[is_long] = references[is_long] << 7 | octets[last[is_long] - 1] & 0x7F
    if references.max() >= len(numbers):
        return None
    translated = numbers[references].tobytes()
    bounds = (np.cumsum(is_last)[ends - 1] * numbers.itemsize).tolist()
    find = cache.by_symbols.get
    found = [
        find(translated[start:end]) for start, end in zip([0, *bounds[:-1]], bounds, strict=True)
    ]
    return None if None in found else np.array(found, dtype="<i8")
