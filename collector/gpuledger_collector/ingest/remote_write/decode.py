"""Decode a body of remote write to columns of samples, bounded before and after decompression.

Most of a 1.0 body repeats the scrape before: the same labels, one new value, in the same order. The
fast path walks such a body without protobuf. All bytes of a series but its last 18 (9 where the
value is 0) are its labels, which are cached, and the rest is one sample in the only form in which
senders write it. The labels are compared with those of the series that came next the last time, and
looked up where they differ. Labels enter the cache only after their bytes were parsed as labels and
nothing else, so the fast path reads exactly what protobuf reads; any other form sends the body
through protobuf.
"""

from __future__ import annotations

import zlib
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import cramjam
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from gpuledger_collector.accounting.counters import LATEST_DAYS
from gpuledger_collector.accounting.period import DAY_MS
from gpuledger_collector.accounting.token_counters import LATEST_DAYS as LATEST_PAGE_DAYS
from gpuledger_collector.ingest.batches.columns import Array
from gpuledger_collector.ingest.batches.decode import Refused
from gpuledger_collector.ingest.batches.validate import EARLIEST_MS, too_old
from gpuledger_collector.ingest.remote_write import symbols
from gpuledger_collector.ingest.remote_write.gateway_counters import (
    GatewayCounter,
    GatewaySample,
    ProcessStart,
)
from gpuledger_collector.ingest.remote_write.inference_counters import InferenceSample
from gpuledger_collector.ingest.remote_write.messages import RAW, TWO
from gpuledger_collector.ingest.remote_write.series import (
    ACCEPTED,
    BAD,
    GATEWAY,
    INFERENCE,
    MAX_LABELS,
    PROCESS,
    SERIES_BYTES,
    BadSeries,
    SeriesCache,
    parse_labels,
)
from gpuledger_common.catalog import METRICS
from gpuledger_common.serving_counters import count_of

MAX_INFLATED_BYTES = 8 * 1024 * 1024
"""Prometheus sends 2,000 samples in a request by default: about 1 MB."""
MAX_SAMPLES = 100_000
"""Samples, and series, of one request: the smallest take 2 bytes on the wire and 200 in memory."""
HEAVY_SAMPLES = 20_000
"""A request with more samples, ten times what Prometheus sends by default, is written alone."""
MAX_KEY_BYTES = 64 * 1024
FUTURE_MS = 600_000
"""How far ahead of our clock a scrape may be: one far ahead would make all scrapes after it too
old.
"""
STALE = 0x7FF0000000000002
"""The NaN that marks the end of a series."""
MAX_REASONS = 5
_TAIL = 18
"""Bytes of a sample inside a series: tag, length 16, tag and 8 bytes of value, tag and 6 bytes of
instant.
"""
_TAIL_START = b"\x12\x10\x09"
_ZERO_TAIL = 9
"""The same without the value: protobuf omits zeros."""
_ZERO_TAIL_START = b"\x12\x07\x10"
_INSTANT_TAG = 0x10
_TAIL_BYTES = np.frombuffer(_TAIL_START, dtype="u1")
_ZERO_TAIL_BYTES = np.frombuffer(_ZERO_TAIL_START[:2], dtype="u1")


@dataclass(frozen=True, slots=True)
class WriteRequest:
    """The accepted samples of a request, by column, and the series_indexes of the others.

    Stale markers of our series count as written: the scrapes after them show the end of the series
    as well.
    """

    cache: SeriesCache
    series: Array
    value: Array
    """In base units; NaN where the exporter reports a blank."""
    at_ms: Array
    foreign: int
    stale: int
    refusals: int
    refused: tuple[str, ...]
    """The first few reasons, as sentences."""
    size: int
    checksum: int
    inference: tuple[InferenceSample, ...] = ()
    """Counters of inference servers."""
    gateway: tuple[GatewaySample, ...] = ()
    """Counters of gateways, and starts of processes where there are any such counters."""

    @property
    def tokens(self) -> int:
        """Number of samples of gateways' counters."""
        return sum(sample.is_count for sample in self.gateway)

    @property
    def key(self) -> str:
        """Its name in the log."""
        return f"of remote write {self.checksum:08x}"

    @property
    def samples(self) -> int:
        """Number of accepted samples of GPUs."""
        return len(self.series)

    @property
    def is_heavy(self) -> bool:
        """Whether writing it would delay others noticeably."""
        return len(self.series) > HEAVY_SAMPLES


def inflated_size(body: bytes) -> int:
    """The size that the snappy header announces.

    Raises Refused: 400 without a header, 413 when it is too large.
    """
    size = 0
    # A varint of at most 32 bits: snappy's block format begins with the uncompressed length.
    for place, byte in enumerate(body[:5]):
        size |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            if size > MAX_INFLATED_BYTES:
                raise Refused(413, f"the body is over {MAX_INFLATED_BYTES} bytes when decompressed")
            return size
    raise Refused(400, "the body is not snappy in its block format")


def inflate(body: bytes) -> bytes:
    """Decompress a body. Raises Refused."""
    size = inflated_size(body)
    try:
        # The announced size was bounded above, so decompression cannot allocate more than that.
        plain = bytes(cramjam.snappy.decompress_raw(body))
    except Exception as error:  # cramjam's own error, or another for a wrong length
        raise Refused(400, "the body is not valid snappy in its block format") from error
    if len(plain) != size:
        raise Refused(400, "the body does not have the length in its snappy header")
    return plain


def decode(
    body: bytes, version: int, cache: SeriesCache, now_ms: int, oldest_ms: int = EARLIEST_MS
) -> WriteRequest:
    """Decode a body (snappy, protobuf of version 1 or 2) at `now_ms`. Raises Refused.

    Samples from before `oldest_ms` are refused.
    """
    plain = inflate(body)
    if version == 1:
        columns = _walk(plain, cache) or _parse_v1(plain, cache)
    else:
        columns = _walk_v2(plain, cache) or _parse_v2(plain, cache)
    return _accept(cache, *columns, (oldest_ms, now_ms), zlib.crc32(body), len(plain))


def decode_known(
    body: bytes, cache: SeriesCache, now_ms: int, oldest_ms: int
) -> WriteRequest | None:
    """Decode a 1.0 body in the common form that brings no new series; None for any other.

    Raises Refused.
    """
    plain = inflate(body)
    columns = _walk(plain, cache, is_complete=True)
    if columns is None:
        return None
    return _accept(cache, *columns, (oldest_ms, now_ms), zlib.crc32(body), len(plain))


_Columns = tuple[Array, Array, Array]
"""Index of the series, value, instant."""


def _walk(plain: bytes, cache: SeriesCache, is_complete: bool = False) -> _Columns | None:
    """The samples of a body in the common form; None for any other.

    New series enter the cache; where it is complete, a body with a new series is of another form.
    """
    places: list[int] = []
    ends: list[int] = []
    keys, after = cache.keys, cache.after
    at, size, place = 0, len(plain), 0
    while at < size:
        # 0x0A is the tag of field 1 (a time series) with a length before its bytes.
        if plain[at] != 0x0A or at + 4 > size:
            return None
        length = plain[at + 1]
        start = at + 2
        # A length of two bytes; a third one would mean a series over 16 KiB, which the general path
        # reads.
        if length >= 0x80:
            if plain[at + 2] >= 0x80:
                return None
            length = length & 0x7F | plain[at + 2] << 7
            start += 1
        at = start + length
        if at > size:
            return None
        following = after[place]
        if not plain.startswith(keys[following], start):
            found = _look_up(plain, start, at, cache, is_complete)
            if found is None:
                return None
            following = after[place] = found + 1
        place = following
        places.append(place)
        ends.append(at)
    if not places:
        return None
    all_ends, series = np.array(ends, dtype="<i8"), np.array(places, dtype="<i8") - 1
    sizes = np.diff(all_ends, prepend=0)
    # Without the tag of the series and its length, which takes a second byte from 128 on, and
    # without the labels.
    sizes -= np.where(sizes < 0x80 + 2, 2, 3) + cache.table()["key_size"][series]
    return _tails(plain, series, sizes, all_ends)


def _walk_v2(plain: bytes, cache: SeriesCache) -> _Columns | None:
    """The samples of a 2.0 body in the common form, of known series; None for any other."""
    walked = symbols.walk(plain, cache)
    if walked is None:
        return None
    series, starts, ends = walked
    return _tails(plain, series, ends - starts, ends)


def _look_up(
    plain: bytes, start: int, end: int, cache: SeriesCache, is_complete: bool
) -> int | None:
    """The index of a series by the bytes of its labels, which are all but those of one sample; None
    without one.
    """
    # The sample is recognized from the end: tag, length and tag of the value must be where a single
    # sample has them.
    tail = end - _TAIL
    if tail < start or plain[tail : tail + 3] != _TAIL_START:
        # A value of zero is omitted, which makes the sample nine bytes shorter.
        tail = end - _ZERO_TAIL
        if tail < start or plain[tail : tail + 3] != _ZERO_TAIL_START:
            return None
    key = plain[start:tail]
    index = cache.indexes.get(key)
    return _index_new(cache, key) if index is None and not is_complete else index


def _tails(plain: bytes, series: Array, sizes: Array, ends: Array) -> _Columns | None:
    """Values and instants from the encoded samples of series; None where one is no sample in the
    common form.
    """
    if not 0 < len(ends) <= MAX_SAMPLES or ends[0] < _TAIL:
        return None
    is_zero = sizes == _ZERO_TAIL
    # The last 18 bytes of every series; those with a value of zero have bytes of their labels in
    # the first nine.
    grid = sliding_window_view(np.frombuffer(plain, dtype="u1"), _TAIL)[ends - _TAIL]
    has_value = (sizes == _TAIL) & (grid[:, :3] == _TAIL_BYTES).all(axis=1)
    is_sample = has_value | is_zero & (grid[:, 9:11] == _ZERO_TAIL_BYTES).all(axis=1)
    instants = grid[:, 12:]
    # The varint of an instant in milliseconds takes six bytes from 1971 to 2109: five with the
    # continuation bit, one without.
    has_instant = (
        (grid[:, 11] == _INSTANT_TAG)
        & (instants[:, :5] >= 0x80).all(axis=1)
        & (instants[:, 5] < 0x80)
    )
    if not (is_sample & has_instant).all():
        return None
    values = np.where(is_zero, 0.0, np.ascontiguousarray(grid[:, 3:11]).view("<f8")[:, 0])
    # Seven bits from each byte, the least significant first.
    at_ms = (instants.astype("<i8") & 0x7F) @ (1 << 7 * np.arange(6, dtype="<i8"))
    return series, values, at_ms


def _index_new(cache: SeriesCache, key: bytes) -> int | None:
    """The index of a new series by the bytes of its labels; None when they hold anything else."""
    try:
        series = RAW["TimeSeries"].FromString(key)
    except Exception:  # protobuf's DecodeError
        return None
    # These bytes are more than labels: as a cached key they would hide samples.
    if len(series.samples) or len(series.exemplars) or len(series.histograms):
        return None
    return _index(cache, key, len(key), list(series.labels))


def _index(cache: SeriesCache, key: Hashable, size: int, parts: list[bytes]) -> int:
    # Refused without a key, so that a huge set of labels does not occupy the cache.
    if len(parts) > MAX_LABELS or size > MAX_KEY_BYTES:
        return cache.add(
            None,
            0,
            BadSeries(
                f"has more than {MAX_LABELS} labels, or more than {MAX_KEY_BYTES} bytes of them"
            ),
        )
    try:
        return cache.add(key, size, parse_labels(parts))
    except BadSeries as bad:
        return cache.add(key, size, bad)


def _parse_v1(plain: bytes, cache: SeriesCache) -> _Columns:
    try:
        request = RAW["WriteRequest"].FromString(plain)
    except Exception as error:  # protobuf's DecodeError
        raise Refused(400, "the body is no prometheus.WriteRequest") from error
    # Parsed messages stay in protobuf's memory; only iterating over samples creates Python objects.
    _bound(request)
    rows: list[tuple[int, float, int]] = []
    for series in request.timeseries:
        if not len(series.samples):
            continue
        # One label more than allowed is enough to recognize too many.
        parts = list(series.labels[: MAX_LABELS + 1])
        key = tuple(parts)
        index = cache.indexes.get(key)
        if index is None:
            index = _index(cache, key, sum(map(len, parts)), parts)
        rows += [(index, sample.value, sample.timestamp) for sample in series.samples]
    return _columns(rows)


def _parse_v2(plain: bytes, cache: SeriesCache) -> _Columns:
    try:
        request = TWO["Request"].FromString(plain)
    except Exception as error:  # protobuf's DecodeError
        raise Refused(400, "the body is no io.prometheus.write.v2.Request") from error
    _bound(request)
    texts = list(request.symbols)
    # The specification requires it: a reference of 0 means an empty string.
    if texts[:1] != [""]:
        raise Refused(400, "the first symbol is not the empty one")
    rows: list[tuple[int, float, int]] = []
    for series in request.timeseries:
        if len(series.samples):
            index = _index_v2(series, texts, cache)
            rows += [(index, sample.value, sample.timestamp) for sample in series.samples]
    return _columns(rows)


def _bound(request: Any) -> None:
    """Raise Refused (413) for too many samples, before any of them becomes a Python object."""
    samples = 0
    if len(request.timeseries) <= MAX_SAMPLES:
        samples = sum(len(series.samples) for series in request.timeseries)
    if len(request.timeseries) > MAX_SAMPLES or samples > MAX_SAMPLES:
        raise Refused(
            413,
            f"the request has more than {MAX_SAMPLES} series or samples: send fewer in one request",
        )


def _index_v2(series: Any, texts: list[str], cache: SeriesCache) -> int:
    refs = list(series.labels_refs[: 2 * MAX_LABELS + 2])
    if len(refs) % 2 or (refs and max(refs) >= len(texts)):
        raise Refused(400, "labels_refs: are not pairs of indexes into symbols")
    key = tuple([texts[ref] for ref in refs])
    if len(refs) > 2 * MAX_LABELS or sum(map(len, key)) > MAX_KEY_BYTES:
        return _index(cache, None, 0, [b""] * (MAX_LABELS + 1))
    index = cache.indexes.get(key)
    if index is None:
        pairs = list(zip(key[::2], key[1::2], strict=True))
        index = cache.add(key, sum(map(len, key)) + SERIES_BYTES, pairs)
        cache.add_symbols(key, index)
    return index


def _columns(rows: Iterable[tuple[int, float, int]]) -> _Columns:
    series_indexes, values, instants = zip(*rows, strict=True) if rows else ((), (), ())
    return (
        np.array(series_indexes, dtype="<i8"),
        np.array(values, dtype="<f8"),
        np.array(instants, dtype="<i8"),
    )


def _accept(
    cache: SeriesCache,
    series: Array,
    value: Array,
    at_ms: Array,
    bounds_ms: tuple[int, int],
    checksum: int,
    size: int,
) -> WriteRequest:
    """Separate accepted samples from refused ones (bad series, impossible instants) and foreign
    ones.

    `bounds_ms`: the oldest accepted instant, and now.
    """
    oldest_ms, now_ms = bounds_ms
    table = cache.table()
    rows = table[series]
    kind = rows["kind"]
    of_gpus, of_inference, is_bad = kind == ACCEPTED, kind == INFERENCE, kind == BAD
    of_gateways, of_processes = kind == GATEWAY, kind == PROCESS
    in_base_units = cache.base_values(rows, value)
    is_outside = of_gpus & ((in_base_units < rows["low"]) | (in_base_units > rows["high"]))
    is_ours = of_gpus | of_inference | of_gateways
    is_possible = (at_ms >= EARLIEST_MS) & (at_ms <= now_ms + FUTURE_MS)
    # Compared by bits, because NaN never equals NaN.
    is_stale = value.view("<u8") == STALE
    is_aged = of_gpus & is_possible & ~is_stale & (at_ms < oldest_ms)
    # Counters have a limit of their own: their readings are kept for a fixed number of days,
    # whatever ages are accepted.
    is_late = of_inference & is_possible & (at_ms < now_ms - LATEST_DAYS * DAY_MS)
    is_late_page = of_gateways & is_possible & (at_ms < now_ms - LATEST_PAGE_DAYS * DAY_MS)
    reasons = [
        f"a series {cache.reasons[index]}"
        for index in np.unique(series[is_bad])[:MAX_REASONS].tolist()
    ]
    if impossible := int((is_ours & ~is_possible).sum()):
        reasons.append(
            f"{impossible} samples lie before the year 2000 or more than 10 minutes ahead"
        )
    if is_late.any():
        reasons.append(f"{int(is_late.sum())} counters are more than {LATEST_DAYS} days old")
    if is_late_page.any():
        reasons.append(
            f"{int(is_late_page.sum())} counters of gateways are more than {LATEST_PAGE_DAYS} days"
            " old"
        )
    if is_aged.any():
        reasons.append(f"{int(is_aged.sum())} samples: each {too_old(oldest_ms)}")
    if is_outside.any():
        names = sorted({METRICS[number].name for number in rows["metric"][is_outside].tolist()})
        reasons.append(
            f"{int(is_outside.sum())} values of {', '.join(names)} are outside the range of their"
            " profile"
        )
    # Stale markers are neither written nor refused: they carry no reading.
    accepted = of_gpus & is_possible & ~is_stale & ~is_aged & ~is_outside
    counted = of_inference & is_possible & ~is_late & ~is_stale
    inference = tuple(
        (cache.inference[place], count, instant)
        for place, number, instant in zip(
            table["workload"][series[counted]].tolist(),
            value[counted].tolist(),
            at_ms[counted].tolist(),
            strict=True,
        )
        if (count := count_of(cache.inference[place].counter, number)) is not None
    )
    counts = len(inference)
    gateway: tuple[GatewaySample, ...] = ()
    if cache.gateways or cache.processes:
        gateway = _gateway_samples(
            cache,
            table,
            series,
            value,
            at_ms,
            (of_gateways | of_processes) & is_possible & ~is_stale & ~is_late_page,
        )
        inference += tuple(
            (sample.series.server, count, sample.at_ms)
            for sample in gateway
            if isinstance(sample.series, GatewayCounter)
            and sample.series.server is not None
            and (count := count_of(sample.series.server.counter, sample.value)) is not None
        )
    return WriteRequest(
        cache,
        series[accepted],
        in_base_units[accepted],
        at_ms[accepted],
        foreign=int((~is_ours & ~is_bad).sum()) + int(counted.sum()) - counts,
        stale=int((is_ours & is_possible & is_stale).sum()),
        refusals=int(
            (
                is_bad
                | is_aged
                | is_outside
                | is_ours & ~is_possible
                | (is_late | is_late_page) & ~is_stale
            ).sum()
        ),
        refused=tuple(reasons),
        # Roughly what the columns of a sample and their selections occupy in memory.
        size=size + 48 * len(series),
        checksum=checksum,
        inference=inference,
        gateway=gateway,
    )


def _gateway_samples(
    cache: SeriesCache, table: Array, series: Array, value: Array, at_ms: Array, chosen: Array
) -> tuple[GatewaySample, ...]:
    """Samples of gateways' counters and of starts of processes."""
    lists: dict[int, Sequence[GatewayCounter | ProcessStart]] = {
        GATEWAY: cache.gateways,
        PROCESS: cache.processes,
    }
    rows = table[series[chosen]]
    return tuple(
        GatewaySample(lists[kind][place], raw, instant)
        for kind, place, raw, instant in zip(
            rows["kind"].tolist(),
            rows["workload"].tolist(),
            value[chosen].tolist(),
            at_ms[chosen].tolist(),
            strict=True,
        )
    )
