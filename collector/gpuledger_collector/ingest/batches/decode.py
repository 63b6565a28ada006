"""From bytes on the wire to a typed batch, bounded before and after decompression.

The fast way decodes the whole envelope at once. When one record does not fit its type, a second, slower way decodes
record by record, so that the good ones are kept and each bad one is named.
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
    WireAccelerator,
    WireUsageInterval,
    WireWorkload,
)

MSGPACK_TYPES = frozenset({"application/msgpack", "application/x-msgpack", "application/vnd.msgpack"})
JSON_TYPES = frozenset({"application/json"})
ENCODINGS = frozenset({"", "identity", "zstd", "gzip"})
_WINDOW_LOG_MAX = 26
"""A frame that asks for a window over 64 MiB is refused: the window is memory that we would have to hold."""

T = TypeVar("T")


class Refused(Exception):
    """A body that cannot become a batch: HTTP status and a sentence."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


class Listed(Generic[T]):
    """A list of records; those that its type could not hold are None. The same bytes may be the same object.

    `judged` is for whoever judges the list: what it found, so that a list that comes again is judged once.
    """

    __slots__ = ("judged", "records")

    def __init__(self, records: Sequence[T | None]) -> None:
        self.records = records
        self.judged: Any = None


@dataclass(frozen=True, slots=True)
class Decoded:
    """A batch with the records that its types could not hold already left out, at their positions as None."""

    version: int
    node: str
    epoch: str
    seq: int
    heartbeat: Heartbeat
    accelerators: Listed[WireAccelerator]
    workloads: Listed[WireWorkload]
    usage_intervals: Sequence[WireUsageInterval | None]
    samples: Samples
    rejected: list[Rejected]
    sha256: bytes
    size: int
    """Bytes after decompression."""
    counts: Sequence[Count | None] = ()


class Whole(msgspec.Struct, frozen=True):
    """A batch of which all is decoded but the lists that a node says again in every batch."""

    version: int
    node: str
    epoch: str
    seq: int
    heartbeat: Heartbeat
    accelerators: msgspec.Raw = msgspec.Raw(b"\x90")
    workloads: msgspec.Raw = msgspec.Raw(b"\x90")
    usage_intervals: list[WireUsageInterval] = []
    samples: Samples = Samples()
    counts: list[Count] = []


class Envelope(msgspec.Struct, frozen=True):
    """A batch whose records are not decoded yet."""

    version: int
    node: str
    epoch: str
    seq: int
    heartbeat: Heartbeat
    accelerators: list[msgspec.Raw] = []
    workloads: list[msgspec.Raw] = []
    usage_intervals: list[msgspec.Raw] = []
    samples: msgspec.Raw = msgspec.Raw(b"")
    counts: list[msgspec.Raw] = []


class RawSamples(msgspec.Struct, frozen=True):
    """Samples whose columns are not decoded yet."""

    accelerator: list[int] = []
    at_ms: list[int] = []
    columns: dict[str, msgspec.Raw] = {}


class Lists(Generic[T]):
    """Lists that were decoded before, by their bytes."""

    def __init__(self, kind: type[T]) -> None:
        self._decoder = msgspec.msgpack.Decoder(list[kind])  # type: ignore[valid-type]
        self._known: dict[bytes, Listed[T]] = {}
        self._bytes = 0

    def of(self, raw: msgspec.Raw) -> Listed[T]:
        """The list in these bytes. Raises msgspec.DecodeError."""
        said = bytes(raw)
        known = self._known.get(said)
        if known is not None:
            return known
        found: Listed[T] = Listed(self._decoder.decode(said))
        size = len(said) + LIST_BYTES + RECORD_BYTES * len(found.records)
        if size <= MOST_REMEMBERED_BYTES // 100:
            if self._bytes + size > MOST_REMEMBERED_BYTES:
                self._known, self._bytes = {}, 0
            self._known[said] = found
            self._bytes += size
        return found


MOST_REMEMBERED_BYTES = 40 * 1024 * 1024
"""Of lists of each kind, with all that is found out of them: those of some 6,000 nodes of eight accelerators."""
LIST_BYTES, RECORD_BYTES = 1500, 500
"""What a list, and each of its records, takes in memory besides the bytes that were sent."""
_whole = msgspec.msgpack.Decoder(Whole)
_json_batch = msgspec.json.Decoder(Batch)
_accelerators, _workloads = Lists(WireAccelerator), Lists(WireWorkload)


def inflate(body: bytes, encoding: str) -> bytes:
    """The body without its content encoding. Raises Refused: 413 beyond MAX_DECODED_BYTES, 400 when it is damaged."""
    try:
        if encoding == "zstd":
            plain, whole = _unzstd(body)
        elif encoding == "gzip":
            plain, whole = _gunzip(body)
        else:
            return body
    except (zstd.ZstdError, zlib.error) as error:
        raise Refused(400, f"the body is not valid {encoding}: {error}") from error
    if len(plain) > MAX_DECODED_BYTES:
        raise Refused(413, f"the body is over {MAX_DECODED_BYTES} bytes when decompressed")
    if not whole:
        raise Refused(400, f"the body is not one whole {encoding} frame")
    return plain


def _unzstd(body: bytes) -> tuple[bytes, bool]:
    if (bounds.inflated_bytes(body, "zstd") or 0) > MAX_DECODED_BYTES:
        raise Refused(413, f"the body is over {MAX_DECODED_BYTES} bytes when decompressed")
    decompressor = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _WINDOW_LOG_MAX})
    plain = decompressor.decompress(body, max_length=MAX_DECODED_BYTES + 1)
    return plain, decompressor.eof and not decompressor.unused_data


def _gunzip(body: bytes) -> tuple[bytes, bool]:
    decompressor = zlib.decompressobj(wbits=31)
    plain = decompressor.decompress(body, MAX_DECODED_BYTES + 1)
    return plain, decompressor.eof and not decompressor.unused_data


def decode(body: bytes, content_type: str, encoding: str) -> Decoded:
    """The batch in a body. `content_type` and `encoding` are lower case and known (see the sets above).

    Raises Refused when not even the batch's key and heartbeat can be read.
    """
    plain = inflate(body, encoding)
    digest = hashlib.sha256(plain).digest()
    is_json = content_type in JSON_TYPES
    try:
        bounds.check(plain, is_json)
    except bounds.Large as error:
        raise Refused(413, f"{error}: send less in one batch") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise Refused(400, f"the body cannot be decoded: {_reason(error)}") from error
    try:
        return _from_json(plain, digest) if is_json else _from_msgpack(plain, digest)
    except msgspec.ValidationError:
        return _record_by_record(plain, is_json, digest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise Refused(400, f"the body cannot be decoded: {_reason(error)}") from error


def _from_msgpack(plain: bytes, digest: bytes) -> Decoded:
    batch = _whole.decode(plain)
    lists = _accelerators.of(batch.accelerators), _workloads.of(batch.workloads)
    return _decoded(batch, *lists, digest, len(plain))


def _from_json(plain: bytes, digest: bytes) -> Decoded:
    batch = _json_batch.decode(plain)
    return _decoded(batch, Listed(batch.accelerators), Listed(batch.workloads), digest, len(plain))


def _decoded(
    batch: Batch | Whole,
    accelerators: Listed[WireAccelerator],
    workloads: Listed[WireWorkload],
    digest: bytes,
    size: int,
) -> Decoded:
    return Decoded(
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
        sha256=digest,
        size=size,
        counts=batch.counts,
    )


def _record_by_record(plain: bytes, is_json: bool, digest: bytes) -> Decoded:
    one: Callable[..., Any] = msgspec.json.decode if is_json else msgspec.msgpack.decode
    rejected: list[Rejected] = []
    try:
        envelope: Envelope = one(plain, type=Envelope)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise Refused(400, f"the batch cannot be read: {_reason(error)}") from error

    def each(name: str, raws: list[msgspec.Raw], kind: type[T]) -> list[T | None]:
        return [_one_record(one, raw, kind, f"{name}[{place}]", rejected) for place, raw in enumerate(raws)]

    return Decoded(
        version=envelope.version,
        node=envelope.node,
        epoch=envelope.epoch,
        seq=envelope.seq,
        heartbeat=envelope.heartbeat,
        accelerators=Listed(each("accelerators", envelope.accelerators, WireAccelerator)),
        workloads=Listed(each("workloads", envelope.workloads, WireWorkload)),
        usage_intervals=each("usage_intervals", envelope.usage_intervals, WireUsageInterval),
        samples=_samples(one, envelope.samples, rejected),
        rejected=rejected,
        sha256=digest,
        size=len(plain),
        counts=each("counts", envelope.counts, Count),
    )


def _one_record(
    one: Callable[..., Any], raw: msgspec.Raw, kind: type[T], record: str, rejected: list[Rejected]
) -> T | None:
    try:
        decoded: T = one(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        rejected.append(Rejected(record, _reason(error)))
        return None
    return decoded


def _samples(one: Callable[..., Any], raw: msgspec.Raw, rejected: list[Rejected]) -> Samples:
    if not bytes(raw):
        return Samples()
    loose = _one_record(one, raw, RawSamples, "samples", rejected)
    if loose is None:
        return Samples()
    columns = {
        name: column
        for name, part in loose.columns.items()
        if (column := _one_record(one, part, Column, f"samples.columns[{name}]", rejected)) is not None
    }
    return Samples(loose.accelerator, loose.at_ms, columns)


def _reason(error: Exception) -> str:
    return str(error).partition("\n")[0][:300]
