"""From a body of remote write to columns of samples, bounded before and after decompression.

Most of a 1.0 body repeats what every scrape repeats: the same labels, one new value. Such a body is walked: the bytes
of a series but its last 18 (9 where the value is 0) are its labels, known from before, and those are one sample in the
only form in which senders write it. A key enters the book only after its bytes were read as labels and nothing else, so
a walked series is exactly what protobuf reads; whatever looks otherwise sends the whole body through protobuf.
"""

from __future__ import annotations

import zlib
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import cramjam
import numpy as np

from gpuledger_collector.accounting.counters import LATEST_DAYS
from gpuledger_collector.ingest.batches.columns import Array
from gpuledger_collector.ingest.batches.decode import Refused
from gpuledger_collector.ingest.batches.validate import DAY_MS, EARLIEST_MS, too_old
from gpuledger_collector.ingest.remote_write.counted import Sample
from gpuledger_collector.ingest.remote_write.messages import RAW, TWO
from gpuledger_collector.ingest.remote_write.series import BAD, COUNTED, MOST_LABELS, TAKEN, BadSeries, Book, labels_of
from gpuledger_common.serving_counters import whole

MAX_INFLATED_BYTES = 8 * 1024 * 1024
"""A request of Prometheus has 2,000 samples by default: about 1 MB."""
MOST_SAMPLES = 100_000
"""Samples, and series, of one request: the smallest take 2 bytes on the wire and a hundred times that in memory."""
HEAVY_SAMPLES = 20_000
"""A request of ten times the samples that Prometheus sends by default is written alone."""
MOST_KEY = 64 * 1024
FUTURE_MS = 600_000
"""How far ahead of our clock a scrape may be: an instant far ahead would make all that follows too old."""
STALE = 0x7FF0000000000002
"""The NaN that says that a series ended."""
MOST_REASONS = 5
_TAIL = 18
"""Bytes of a sample inside a series: tag, length 16, tag and 8 bytes of value, tag and 6 bytes of instant."""
_TAIL_START = b"\x12\x10\x09"
_ZERO_TAIL = 9
"""The same without the value: protobuf leaves out what is 0."""
_ZERO_TAIL_START = b"\x12\x07\x10"
_INSTANT_TAG = 0x10


@dataclass(frozen=True, slots=True)
class Writing:
    """The samples of a request that can be kept, by column, and how many cannot or need not.

    Stale markers of our series count as written: that a series has ended is what the scrapes after it show as well.
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
    checksum: int
    counts: tuple[Sample, ...] = ()
    """Counters of inference servers."""

    @property
    def key(self) -> str:
        """What the log calls it."""
        return f"of remote write {self.checksum:08x}"

    @property
    def samples(self) -> int:
        """Samples to keep."""
        return len(self.series)

    @property
    def is_heavy(self) -> bool:
        """Whether writing it takes long enough for others to notice."""
        return len(self.series) > HEAVY_SAMPLES


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


def decode(body: bytes, version: int, book: Book, now_ms: int, oldest_ms: int = EARLIEST_MS) -> Writing:
    """What a body (snappy, protobuf of version 1 or 2) says, judged at `now_ms`; samples from before `oldest_ms` are
    refused. Raises Refused.
    """
    plain = inflate(body)
    found = (_walk(plain, book) or _read_one(plain, book)) if version == 1 else _read_two(plain, book)
    return _judge(book, *found, (oldest_ms, now_ms), zlib.crc32(body), len(plain))


_Columns = tuple[Array, Array, Array]
"""Number of the series, value, instant."""


def _walk(plain: bytes, book: Book) -> _Columns | None:
    """The samples of a body of the common form; None for any other. Series that are new are entered."""
    numbers: list[int] = []
    ends: list[int] = []
    zeros: list[int] = []
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
        if at > size:
            return None
        if plain[tail : tail + 3] != _TAIL_START or tail < start:
            tail = at - _ZERO_TAIL
            if plain[tail : tail + 3] != _ZERO_TAIL_START or tail < start:
                return None
            zeros.append(len(ends))
        key = plain[start:tail]
        number = known.get(key)
        if number is None:
            number = _enter(book, key)
            if number is None:
                return None
        numbers.append(number)
        ends.append(at)
    return _tails(plain, np.array(numbers, dtype="<i8"), np.array(ends), np.array(zeros, dtype="<i8"))


def _tails(plain: bytes, numbers: Array, ends: Array, zeros: Array) -> _Columns | None:
    """Values and instants from the last bytes of each series; None when an instant is not written in 6 bytes."""
    if not 0 < len(ends) <= MOST_SAMPLES:
        return None
    grid = np.frombuffer(plain, dtype="u1")[np.maximum(ends[:, None] + np.arange(-15, 0), 0)]
    instants = grid[:, 9:]
    if (grid[:, 8] != _INSTANT_TAG).any() or (instants[:, :5] < 0x80).any() or (instants[:, 5] >= 0x80).any():
        return None
    values = np.ascontiguousarray(grid[:, :8]).view("<f8")[:, 0]
    values[zeros] = 0.0
    at_ms = (instants.astype("<i8") & 0x7F) @ (1 << 7 * np.arange(6, dtype="<i8"))
    return numbers, values, at_ms


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
    if len(parts) > MOST_LABELS or size > MOST_KEY:
        return book.enter(
            None, 0, BadSeries(f"has more than {MOST_LABELS} labels, or more than {MOST_KEY} bytes of them")
        )
    try:
        return book.enter(key, size, labels_of(parts))
    except BadSeries as bad:
        return book.enter(key, size, bad)


def _read_one(plain: bytes, book: Book) -> _Columns:
    try:
        request = RAW["WriteRequest"].FromString(plain)
    except Exception as error:  # protobuf's DecodeError
        raise Refused(400, "the body is no prometheus.WriteRequest") from error
    _bound(request)
    rows: list[tuple[int, float, int]] = []
    for series in request.timeseries:
        if not len(series.samples):
            continue
        parts = list(series.labels[: MOST_LABELS + 1])
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
    _bound(request)
    symbols = list(request.symbols)
    if symbols[:1] != [""]:
        raise Refused(400, "the first symbol is not the empty one")
    rows: list[tuple[int, float, int]] = []
    for series in request.timeseries:
        if len(series.samples):
            number = _number_two(series, symbols, book)
            rows += [(number, sample.value, sample.timestamp) for sample in series.samples]
    return _columns(rows)


def _bound(request: Any) -> None:
    """Raise Refused (413) for more than is taken at once, before any of it becomes Python's."""
    samples = 0
    if len(request.timeseries) <= MOST_SAMPLES:
        samples = sum(len(series.samples) for series in request.timeseries)
    if len(request.timeseries) > MOST_SAMPLES or samples > MOST_SAMPLES:
        raise Refused(413, f"the request has more than {MOST_SAMPLES} series or samples: send fewer in one request")


def _number_two(series: Any, symbols: list[str], book: Book) -> int:
    refs = list(series.labels_refs[: 2 * MOST_LABELS + 2])
    if len(refs) % 2 or (refs and max(refs) >= len(symbols)):
        raise Refused(400, "labels_refs: are not pairs of places in symbols")
    key = tuple([symbols[ref] for ref in refs])
    if len(refs) > 2 * MOST_LABELS or sum(map(len, key)) > MOST_KEY:
        return _number(book, None, 0, [b""] * (MOST_LABELS + 1))
    number = book.numbers.get(key)
    if number is None:
        pairs = list(zip(key[::2], key[1::2], strict=True))
        number = book.enter(key, sum(map(len, key)), pairs)
    return number


def _columns(rows: Iterable[tuple[int, float, int]]) -> _Columns:
    numbers, values, instants = zip(*rows, strict=True) if rows else ((), (), ())
    return np.array(numbers, dtype="<i8"), np.array(values, dtype="<f8"), np.array(instants, dtype="<i8")


def _judge(
    book: Book, series: Array, value: Array, at_ms: Array, bounds_ms: tuple[int, int], checksum: int, size: int
) -> Writing:
    """Parts what is kept from what is refused (bad series, impossible instants) or not ours.

    `bounds_ms`: the oldest instant that is taken, and now.
    """
    oldest_ms, now_ms = bounds_ms
    table = book.table()
    kind = table["kind"][series]
    ours, counted = kind == TAKEN, kind == COUNTED
    possible = (at_ms >= EARLIEST_MS) & (at_ms <= now_ms + FUTURE_MS)
    bad = kind == BAD
    reasons = [f"a series {book.reasons[number]}" for number in np.unique(series[bad])[:MOST_REASONS].tolist()]
    if not possible[ours | counted].all():
        reasons.append(
            f"{int(((ours | counted) & ~possible).sum())} samples lie before the year 2000 or more than 10 minutes "
            "ahead"
        )
    recent = at_ms >= now_ms - LATEST_DAYS * DAY_MS
    if not recent[counted & possible].all():
        reasons.append(f"{int((counted & possible & ~recent).sum())} counters are more than {LATEST_DAYS} days old")
    stale = value.view("<u8") == STALE
    aged = ours & possible & ~stale & (at_ms < oldest_ms)
    if aged.any():
        reasons.append(f"{int(aged.sum())} samples: each {too_old(oldest_ms)}")
    kept = ours & possible & ~stale & ~aged
    chosen = counted & possible & recent & ~stale
    counts = tuple(
        (book.counted[place], number, instant)
        for place, number, instant in zip(
            table["workload"][series[chosen]].tolist(),
            map(whole, value[chosen].tolist()),
            at_ms[chosen].tolist(),
            strict=True,
        )
        if number is not None
    )
    return Writing(
        book,
        series[kept],
        value[kept],
        at_ms[kept],
        foreign=int((~ours & ~counted & ~bad).sum()) + int(chosen.sum()) - len(counts),
        stale=int(((ours | counted) & possible & stale).sum()),
        refusals=int((bad | aged | (ours | counted) & ~possible | counted & possible & ~recent & ~stale).sum()),
        refused=tuple(reasons),
        size=size + 48 * len(series),
        checksum=checksum,
        counts=counts,
    )
