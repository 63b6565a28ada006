"""Decode a body from the wire to a typed batch, bounded before and after decompression.

The fast path decodes everything at once. When a record does not fit its type, a slow path decodes
record by record: the good ones are accepted and each bad one is named.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from gpuledger_collector.ingest.batches import bounds
from gpuledger_common.compression import zstd
from gpuledger_common.wire import (
    MAX_DECODED_BYTES,
    Batch,
    Column,
    Count,
    Heartbeat,
    Rejected,
    Samples,
    TokenCount,
    WireAccelerator,
    WireUsageInterval,
    WireWorkload,
)

MSGPACK_TYPES = frozenset(
    {"application/msgpack", "application/x-msgpack", "application/vnd.msgpack"}
)
JSON_TYPES = frozenset({"application/json"})
ENCODINGS = frozenset({"", "identity", "zstd", "gzip"})
MAX_CACHED_BYTES = 40 * 1024 * 1024
"""For lists of one kind, with everything derived from them: those of about 6,000 nodes of eight
accelerators.
"""
LIST_BYTES, RECORD_BYTES = 1500, 500
"""Memory of a list, and of each of its records, besides the bytes that were sent."""
_WINDOW_LOG_MAX = 26
"""A frame that asks for a window over 64 MiB is refused: decompression would have to allocate it.
"""
_DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError)

T = TypeVar("T")


class Refused(Exception):
    """A body that cannot become a batch: HTTP status and a sentence."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


class RecordList(Generic[T]):
    """A list of records, None where a record did not fit its type.

    Equal bytes may decode to the same object.

    `validated` holds the result of the validation, so that a list that is sent again is validated
    once.
    """

    __slots__ = ("records", "validated")

    def __init__(self, records: Sequence[T | None]) -> None:
        self.records = records
        self.validated: Any = None


@dataclass(frozen=True, slots=True)
class DecodedBatch:
    """A batch; records that did not fit their types are None at their positions."""

    version: int
    node: str
    epoch: str
    seq: int
    heartbeat: Heartbeat
    accelerators: RecordList[WireAccelerator]
    workloads: RecordList[WireWorkload]
    usage_intervals: Sequence[WireUsageInterval | None]
    samples: Samples
    rejected: list[Rejected]
    sha256: bytes
    size: int
    """Bytes after decompression."""
    counts: Sequence[Count | None] = ()
    token_counts: Sequence[TokenCount | None] = ()


class _Head(msgspec.Struct, frozen=True):
    version: int
    node: str
    epoch: str
    seq: int
    heartbeat: Heartbeat


class RawListsBatch(_Head, frozen=True):
    """A batch, decoded but for the lists that a node repeats in every batch."""

    # 0x90 is an empty list in msgpack.
    accelerators: msgspec.Raw = msgspec.Raw(b"\x90")
    workloads: msgspec.Raw = msgspec.Raw(b"\x90")
    usage_intervals: list[WireUsageInterval] = []
    samples: Samples = Samples()
    counts: list[Count] = []
    token_counts: list[TokenCount] = []


class RawRecordsBatch(_Head, frozen=True):
    """A batch whose records are not decoded yet."""

    accelerators: list[msgspec.Raw] = []
    workloads: list[msgspec.Raw] = []
    usage_intervals: list[msgspec.Raw] = []
    samples: msgspec.Raw = msgspec.Raw(b"")
    counts: list[msgspec.Raw] = []
    token_counts: list[msgspec.Raw] = []


class RawSamples(msgspec.Struct, frozen=True):
    """Samples whose columns are not decoded yet."""

    accelerator: list[int] = []
    at_ms: list[int] = []
    columns: dict[str, msgspec.Raw] = {}


class ListCache(Generic[T]):
    """Decodes lists of one kind and caches them by their bytes."""

    def __init__(self, kind: type[T]) -> None:
        self._decoder = msgspec.msgpack.Decoder(list[kind])  # type: ignore[valid-type]
        self._lists: dict[bytes, RecordList[T]] = {}
        self._bytes = 0

    def decode(self, raw: msgspec.Raw) -> RecordList[T]:
        """Decode the list in these bytes, or return it from the cache.

        Raises msgspec.DecodeError.
        """
        # An agent repeats these lists byte for byte in every batch, so the bytes themselves are the
        # key.
        key = bytes(raw)
        cached = self._lists.get(key)
        if cached is not None:
            return cached
        records: RecordList[T] = RecordList(self._decoder.decode(key))
        size = len(key) + LIST_BYTES + RECORD_BYTES * len(records.records)
        # One sender must not displace the lists of all others, so a very large list is decoded each
        # time.
        if size <= MAX_CACHED_BYTES // 100:
            if self._bytes + size > MAX_CACHED_BYTES:
                # Emptied completely rather than by age: lists in use return with the next batches
                # at the cost of one decoding.
                self._lists, self._bytes = {}, 0
            self._lists[key] = records
            self._bytes += size
        return records


_raw_lists_batch = msgspec.msgpack.Decoder(RawListsBatch)
_json_batch = msgspec.json.Decoder(Batch)
_accelerators, _workloads = ListCache(WireAccelerator), ListCache(WireWorkload)


def inflate(body: bytes, encoding: str) -> bytes:
    """Decompress a body. Raises Refused: 413 beyond MAX_DECODED_BYTES, 400 when it is damaged."""
    try:
        if encoding == "zstd":
            plain, is_complete = _unzstd(body)
        elif encoding == "gzip":
            plain, is_complete = _gunzip(body)
        else:
            return body
    except (zstd.ZstdError, zlib.error) as error:
        raise Refused(400, f"the body is not valid {encoding}: {error}") from error
    if len(plain) > MAX_DECODED_BYTES:
        raise Refused(413, f"the body is over {MAX_DECODED_BYTES} bytes when decompressed")
    if not is_complete:
        raise Refused(400, f"the body is not one complete {encoding} frame")
    return plain


def _unzstd(body: bytes) -> tuple[bytes, bool]:
    # The frame's header is checked first because it costs nothing; it may be forged, hence the
    # limit below.
    if (bounds.inflated_bytes(body, "zstd") or 0) > MAX_DECODED_BYTES:
        raise Refused(413, f"the body is over {MAX_DECODED_BYTES} bytes when decompressed")
    decompressor = zstd.ZstdDecompressor(
        options={zstd.DecompressionParameter.window_log_max: _WINDOW_LOG_MAX}
    )
    # One byte more than allowed, so that the caller can tell a body at the limit from one beyond
    # it.
    plain = decompressor.decompress(body, max_length=MAX_DECODED_BYTES + 1)
    return plain, decompressor.eof and not decompressor.unused_data


def _gunzip(body: bytes) -> tuple[bytes, bool]:
    # 31: the gzip format alone, with the largest window.
    decompressor = zlib.decompressobj(wbits=31)
    plain = decompressor.decompress(body, MAX_DECODED_BYTES + 1)
    return plain, decompressor.eof and not decompressor.unused_data


def decode(body: bytes, content_type: str, encoding: str) -> DecodedBatch:
    """Decode a body. `content_type` and `encoding` are lower case and among the sets above.

    Raises Refused when not even the batch's key and heartbeat can be read.
    """
    plain = inflate(body, encoding)
    # Of the plain bytes: the same batch compressed anew is a repetition, not a conflict.
    sha256 = hashlib.sha256(plain).digest()
    is_json = content_type in JSON_TYPES
    try:
        # Before any record becomes an object: see `bounds` on how little a million records weigh on
        # the wire.
        bounds.check(plain, is_json)
        try:
            return _decode_json(plain, sha256) if is_json else _decode_msgpack(plain, sha256)
        # The structure is sound but some record does not fit its type: accept the others.
        except msgspec.ValidationError:
            return _decode_records(plain, is_json, sha256)
    except bounds.TooLarge as error:
        raise Refused(413, f"{error}: send less in one batch") from error
    except _DECODE_ERRORS as error:
        raise Refused(400, f"the body cannot be decoded: {_reason(error)}") from error


def _decode_msgpack(plain: bytes, sha256: bytes) -> DecodedBatch:
    batch = _raw_lists_batch.decode(plain)
    accelerators, workloads = (
        _accelerators.decode(batch.accelerators),
        _workloads.decode(batch.workloads),
    )
    return _to_decoded(batch, accelerators, workloads, sha256, len(plain))


def _decode_json(plain: bytes, sha256: bytes) -> DecodedBatch:
    batch = _json_batch.decode(plain)
    return _to_decoded(
        batch, RecordList(batch.accelerators), RecordList(batch.workloads), sha256, len(plain)
    )


def _to_decoded(
    batch: Batch | RawListsBatch,
    accelerators: RecordList[WireAccelerator],
    workloads: RecordList[WireWorkload],
    sha256: bytes,
    size: int,
) -> DecodedBatch:
    return DecodedBatch(
        version=batch.version,
        node=batch.node,
        epoch=batch.epoch,
        seq=batch.seq,
        heartbeat=batch.heartbeat,
        accelerators=accelerators,
        workloads=workloads,
        usage_intervals=batch.usage_intervals,
        samples=batch.samples,
        rejected=[],
        sha256=sha256,
        size=size,
        counts=batch.counts,
        token_counts=batch.token_counts,
    )


def _decode_records(plain: bytes, is_json: bool, sha256: bytes) -> DecodedBatch:
    decode_one: Callable[..., Any] = msgspec.json.decode if is_json else msgspec.msgpack.decode
    rejected: list[Rejected] = []
    # Key and heartbeat must be readable here: without a key the batch cannot be answered
    # idempotently.
    batch: RawRecordsBatch = decode_one(plain, type=RawRecordsBatch)

    def decode_record(raw: msgspec.Raw, kind: type[T], record: str) -> T | None:
        try:
            decoded: T = decode_one(raw, type=kind)
        except _DECODE_ERRORS as error:
            rejected.append(Rejected(record, _reason(error)))
            return None
        return decoded

    def decode_list(name: str, raws: list[msgspec.Raw], kind: type[T]) -> list[T | None]:
        return [decode_record(raw, kind, f"{name}[{place}]") for place, raw in enumerate(raws)]

    def decode_samples(raw: msgspec.Raw) -> Samples:
        # A column that cannot be decoded loses only itself; instants or accelerators that cannot
        # lose all samples.
        samples = decode_record(raw, RawSamples, "samples") if bytes(raw) else None
        if samples is None:
            return Samples()
        columns = {
            name: column
            for name, part in samples.columns.items()
            if (column := decode_record(part, Column, f"samples.columns[{name}]")) is not None
        }
        return Samples(samples.accelerator, samples.at_ms, columns)

    return DecodedBatch(
        version=batch.version,
        node=batch.node,
        epoch=batch.epoch,
        seq=batch.seq,
        heartbeat=batch.heartbeat,
        accelerators=RecordList(decode_list("accelerators", batch.accelerators, WireAccelerator)),
        workloads=RecordList(decode_list("workloads", batch.workloads, WireWorkload)),
        usage_intervals=decode_list("usage_intervals", batch.usage_intervals, WireUsageInterval),
        samples=decode_samples(batch.samples),
        rejected=rejected,
        sha256=sha256,
        size=len(plain),
        counts=decode_list("counts", batch.counts, Count),
        token_counts=decode_list("token_counts", batch.token_counts, TokenCount),
    )


def _reason(error: Exception) -> str:
    return str(error).partition("\n")[0][:300]
