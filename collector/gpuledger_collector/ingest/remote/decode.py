"""From a body of remote write to columns of samples, bounded before and after decompression.

Most of a 1.0 body repeats what every scrape repeats: the same labels, one new value. Such a body is walked: the bytes
of a series but its last 18 are its labels, known from before, and those 18 are one sample in the only form in which
senders write it. A key enters the book only after its bytes were read as labels and nothing else, so a walked series
is exactly what protobuf reads; whatever looks otherwise sends the whole body through protobuf.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import cramjam
import numpy as np

from gpuledger_collector.ingest.columns import Array
from gpuledger_collector.ingest.decode import Refused
from gpuledger_collector.ingest.remote.messages import RAW, TWO
from gpuledger_collector.ingest.remote.series import BAD, TAKEN, BadSeries, Book, labels_of
from gpuledger_collector.ingest.validate import EARLIEST_MS

MAX_INFLATED_BYTES = 16 * 1024 * 1024
"""A request of Prometheus has 2,000 samples by default: about 1 MB."""
FUTURE_MS = 600_000
"""How far ahead of our clock a scrape may be: an instant far ahead would make all that follows too old."""
STALE = 0x7FF0000000000002
"""The NaN that says that a series ended."""
MOST_REASONS = 5
_TAIL = 18
"""Bytes of a sample inside a series: tag, length 16, tag and 8 bytes of value, tag and 6 bytes of instant."""
_TAIL_START = b"\x12\x10\x09"
_INSTANT_TAG = 0x10


@dataclass(frozen=True, slots=True)
class Writing:
    """The samples of a request that can be kept, by column, and how many cannot or need not.

    `written` counts those of our series, stale markers among them: they say that a series has ended, which the
    scrapes after them show as well.
    """

    book: Book
    series: Array
    value: Array
    at_ms: Array
    foreign: int
    stale: int
    refusals: int
    refused: tuple[str, ...]
    """Sentences about what is refused, the first few."""
    size: int
    digest: bytes

    @property
    def key(self) -> str:
        """What the log calls it."""
        return self.digest.hex()

    @property
    def samples(self) -> int:
        """Samples to keep."""
        return len(self.series)


def inflated_size(body: bytes) -> int:
    """What the snappy header says that the body becomes. Raises Refused: 400 without a header, 413 for a bomb."""
    size = 0
    for place, byte in enumerate(body[:5]):
        size |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            if size > MAX_INFLATED_BYTES:
                raise Refused(413, f"the body is over {MAX_INFLATED_BYTES} bytes when decompressed")
            return size
    raise Refused(400, "the body is not snappy in its block format")


def inflate(body: bytes) -> bytes:
    """The message in a body. Raises Refused."""
    size = inflated_size(body)
    try:
        plain = bytes(cramjam.snappy.decompress_raw(body))
    except Exception as error:  # cramjam raises its own error, and others for lengths that lie
        raise Refused(400, "the body is not valid snappy in its block format") from error
    if len(plain) != size:
        raise Refused(400, "the body does not have the length that its snappy header says")
    return plain


def decode(body: bytes, version: int, book: Book, now_ms: int) -> Writing:
    """What a body (snappy, protobuf of version 1 or 2) says, judged at `now_ms`. Raises Refused."""
    plain = inflate(body)
    found = (_walk(plain, book) or _read_one(plain, book)) if version == 1 else _read_two(plain, book)
    return _judge(book, *found, now_ms, hashlib.blake2b(plain, digest_size=8).digest(), len(plain))


_Columns = tuple[Array, Array, Array]
"""Number of the series, value, instant."""


def _walk(plain: bytes, book: Book) -> _Columns | None:
    """The samples of a body of the common form; None for any other. Series that are new are entered."""
    numbers, tails = [], []
    known = book.numbers
    at, size = 0, len(plain)
    while at < size:
        if plain[at] != 0x0A or at + 4 > size:
            return None
        length = plain[at + 1]
        start = at + 2
        if length >= 0x80:
            if plain[at + 2] >= 0x80:
                return None
            length = length & 0x7F | plain[at + 2] << 7
            start += 1
        at = start + length
        tail = at - _TAIL
        if at > size or tail < start or plain[tail : tail + 3] != _TAIL_START:
            return None
        key = plain[start:tail]
        number = known.get(key)
        if number is None:
            number = _enter(book, key)
            if number is None:
                return None
        numbers.append(number)
        tails.append(tail)
    if not numbers:
        return None
    grid = np.frombuffer(plain, dtype="u1")[np.array(tails)[:, None] + np.arange(3, _TAIL)]
    instants = grid[:, 9:15]
    if (grid[:, 8] != _INSTANT_TAG).any() or (instants[:, :5] < 0x80).any() or (instants[:, 5] >= 0x80).any():
        return None
    values = np.ascontiguousarray(grid[:, :8]).view("<f8")[:, 0]
    at_ms = (instants.astype("<i8") & 0x7F) @ (1 << 7 * np.arange(6, dtype="<i8"))
    return np.array(numbers, dtype="<i8"), values, at_ms


def _enter(book: Book, key: bytes) -> int | None:
    """The number of a series whose labels are these bytes; None when they are not labels and nothing else."""
    try:
        series = RAW["TimeSeries"].FromString(key)
    except Exception:  # protobuf's DecodeError
        return None
    if len(series.samples) or len(series.exemplars) or len(series.histograms):
        return None
    return _number(book, key, len(key), list(series.labels))


def _number(book: Book, key: Hashable, size: int, parts: list[bytes]) -> int:
    try:
        return book.enter(key, size, labels_of(parts))
    except BadSeries as bad:
        return book.enter(key, size, bad)


def _read_one(plain: bytes, book: Book) -> _Columns:
    try:
        request = RAW["WriteRequest"].FromString(plain)
    except Exception as error:  # protobuf's DecodeError
        raise Refused(400, "the body is no prometheus.WriteRequest") from error
    rows: list[tuple[int, float, int]] = []
    for series in request.timeseries:
        parts = list(series.labels)
        if not len(series.samples):
            continue
        key = tuple(parts)
        number = book.numbers.get(key)
        if number is None:
            number = _number(book, key, sum(map(len, parts)), parts)
        rows += [(number, sample.value, sample.timestamp) for sample in series.samples]
    return _columns(rows)


def _read_two(plain: bytes, book: Book) -> _Columns:
    try:
        request = TWO["Request"].FromString(plain)
    except Exception as error:  # protobuf's DecodeError
        raise Refused(400, "the body is no io.prometheus.write.v2.Request") from error
    symbols = list(request.symbols)
    if symbols[:1] != [""]:
        raise Refused(400, "the first symbol is not the empty one")
    rows: list[tuple[int, float, int]] = []
    for series in request.timeseries:
        if len(series.samples):
            number = _number_two(series, symbols, book)
            rows += [(number, sample.value, sample.timestamp) for sample in series.samples]
    return _columns(rows)


def _number_two(series: Any, symbols: list[str], book: Book) -> int:
    refs = list(series.labels_refs)
    if len(refs) % 2 or (refs and max(refs) >= len(symbols)):
        raise Refused(400, "labels_refs: are not pairs of places in symbols")
    key = tuple([symbols[ref] for ref in refs])
    number = book.numbers.get(key)
    if number is None:
        pairs = list(zip(key[::2], key[1::2], strict=True))
        number = book.enter(key, sum(map(len, key)), pairs)
    return number


def _columns(rows: Iterable[tuple[int, float, int]]) -> _Columns:
    numbers, values, instants = zip(*rows, strict=True) if rows else ((), (), ())
    return np.array(numbers, dtype="<i8"), np.array(values, dtype="<f8"), np.array(instants, dtype="<i8")


def _judge(book: Book, series: Array, value: Array, at_ms: Array, now_ms: int, digest: bytes, size: int) -> Writing:
    """Parts what is kept from what is refused (bad series, impossible instants) or not ours."""
    kind = book.table()["kind"][series]
    ours = kind == TAKEN
    possible = (at_ms >= EARLIEST_MS) & (at_ms <= now_ms + FUTURE_MS)
    bad = kind == BAD
    reasons = [f"a series {book.reasons[number]}" for number in np.unique(series[bad])[:MOST_REASONS].tolist()]
    if not possible[ours].all():
        reasons.append(
            f"{int((ours & ~possible).sum())} samples lie before the year 2000 or more than 10 minutes ahead"
        )
    stale = value.view("<u8") == STALE
    kept = ours & possible & ~stale
    return Writing(
        book,
        series[kept],
        value[kept],
        at_ms[kept],
        foreign=int((~ours & ~bad).sum()),
        stale=int((ours & possible & stale).sum()),
        refusals=int((bad | ours & ~possible).sum()),
        refused=tuple(reasons),
        size=size + 48 * len(series),
        digest=digest,
    )
