"""Bodies that no agent and no Prometheus sends: each must get a verdict, and harm nobody beside it."""

import functools
import gzip
import json
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import numpy as np

from fakes.batches import EPOCH, NOON_MS, batch, held, samples, workload
from fakes.prometheus import WRITE, Point, headers, labels, one, snappy
from gpuledger_common.compression import zstd
from gpuledger_common.wire import Column, Samples, encode

BATCHES = "/v1/batches"
MIB = 1024 * 1024


@dataclass(frozen=True)
class Poison:
    """A body with the answers that it may get."""

    name: str
    path: str
    body: bytes
    headers: dict[str, str]
    answers: frozenset[int]


def of_batch(
    name: str, plain: bytes, answers: set[int], encoding: str = "zstd", kind: str = "msgpack"
) -> Poison:
    body = {"zstd": zstd.compress, "gzip": gzip.compress}.get(encoding, bytes)(plain)
    return raw(name, body, answers, encoding, kind)


def raw(
    name: str, body: bytes, answers: set[int], encoding: str = "zstd", kind: str = "msgpack"
) -> Poison:
    sent = {"Content-Type": f"application/{kind}", "Content-Encoding": encoding}
    return Poison(name, BATCHES, body, sent, frozenset(answers))


def of_prometheus(name: str, body: bytes, answers: set[int]) -> Poison:
    return Poison(name, WRITE, body, headers(), frozenset(answers))


def columns(values: list[float], kind: str = "f4") -> dict[str, Column]:
    return {"gpu_utilization_ratio": Column(kind, np.array(values, f"<{kind}").tobytes())}


def odd_numbers(seq: int) -> bytes:
    """NaN, infinities, the largest and smallest floats as readings: stored as absent, or as what
    they are.
    """
    values = [math.nan, math.inf, -math.inf, 3.4e38, -3.4e38, 1e-45] * 2
    return encode(
        batch(
            seq,
            "poison",
            samples=samples(
                2, range(NOON_MS, NOON_MS + 60_000, 10_000), gpu_utilization_ratio=values
            ),
        )
    )


def poisons(seq: int) -> Iterator[Poison]:
    """One of each kind; `seq` makes their keys differ from those of another call."""
    good = encode(batch(seq, "poison"))
    partial, no_text = {200, 422}, {400, 422}
    yield of_batch("NaN, infinities and extremes as readings", odd_numbers(seq), {200})
    yield of_batch(
        "the same key with other bytes",
        encode(batch(seq, "poison", workloads=[workload("x")])),
        {409},
    )
    changed = batch(seq, "poison-2")
    yield of_batch(
        "a tag of 1 MiB", with_parts(changed, workloads=[workload(tags={"team": "x" * MIB})]), {422}
    )
    tags = {f"tag-{number}": "x" for number in range(50_000)}
    yield of_batch(
        "50,000 tags", with_parts(changed, seq=seq + 1, workloads=[workload(tags=tags)]), {409, 422}
    )
    yield of_batch(
        "a NUL in a name", with_parts(changed, seq=seq + 2, workloads=[workload("a\0b")]), {422}
    )
    twisted = good.replace(b"job-1", b"\xff\xfe\xc0\x80\xed")
    yield of_batch("bad UTF-8", twisted, no_text)
    yield of_batch(
        "time that runs backwards",
        with_parts(changed, seq=seq + 3, usage_intervals=[held(0, NOON_MS, NOON_MS - 5_000)]),
        {422},
    )
    yield of_batch(
        "more time than there is",
        with_parts(
            changed,
            seq=seq + 4,
            usage_intervals=[held(0, NOON_MS, NOON_MS + 1000, held_ms=2**62, busy_ms=2**62)],
        ),
        {422},
    )
    yield of_batch(
        "instants before 1970 and after 9999",
        with_parts(
            changed, seq=seq + 5, samples=Samples([0, 0], [-(2**62), 2**62], columns([1.0, 2.0]))
        ),
        {422},
    )
    yield of_batch(
        "columns of the wrong length",
        with_parts(changed, seq=seq + 6, samples=Samples([0], [NOON_MS], columns([1.0] * 9))),
        partial - {200},
    )
    yield of_batch(
        "a metric that does not exist",
        with_parts(
            changed, seq=seq + 7, samples=Samples([0], [NOON_MS], {"none": Column("f4", b"1234")})
        ),
        {422},
    )
    yield from _wrongly_packed()
    yield from _of_prometheus()


def with_parts(made: object, **changes: object) -> bytes:
    return encode(msgspec.structs.replace(made, **changes))


@functools.cache
def _wrongly_packed() -> tuple[Poison, ...]:
    return tuple(_packings(encode(batch(1, "poison-3"))))


def _packings(good: bytes) -> Iterator[Poison]:
    yield raw("zstd that is gzip", gzip.compress(good), {400})
    yield raw("gzip that is zstd", zstd.compress(good), {400}, "gzip")
    yield raw("zstd cut off", zstd.compress(good)[:-7], {400})
    yield raw("an encoding that nobody knows", good, {415}, "br")
    yield raw("a content type that nobody knows", good, {415}, "", "x-www-form-urlencoded")
    yield of_batch("a bomb of zstd", bytes(80 * MIB), {413})
    yield of_batch("a bomb of gzip", bytes(80 * MIB), {413}, "gzip")
    yield of_batch("lists without end", msgpack_lists(3_000_000), {400, 413})
    yield of_batch(
        "a list that claims 4,000,000,000 entries",
        b"\x81\xa9usage intervals\xdd\xee\x6b\x28\x00",
        {400, 413},
    )
    yield of_batch("JSON 100,000 deep", b'{"version":' + b"[" * 100_000, {400}, "gzip", "json")
    yield of_batch(
        "JSON with NaN", json.dumps({"version": math.nan}).encode(), {400}, "gzip", "json"
    )
    yield raw("nothing", b"", {400})


def msgpack_lists(entries: int) -> bytes:
    """A batch whose list of usage intervals holds nothing but nil: a byte on the wire, many in
    memory.
    """
    whole = msgspec.msgpack.decode(encode(batch(1, "poison-3", epoch=EPOCH)))
    whole["usage_intervals"] = []
    head = msgspec.msgpack.encode(whole)
    key = msgspec.msgpack.encode("usage_intervals")
    return head.replace(
        key + b"\x90", key + b"\xdd" + struct.pack(">I", entries) + b"\xc0" * entries
    )


def _of_prometheus() -> Iterator[Poison]:
    name = "DCGM_FI_DEV_GPU_UTIL"
    now = NOON_MS
    good = one([Point(labels(name), 1.0, now)])
    yield of_prometheus("remote write: no snappy", good, {400})
    yield of_prometheus("remote write: a bomb", b"\xff\xff\xff\xff\x07" + bytes(100), {413})
    yield of_prometheus("remote write: a length that lies", b"\x64" + snappy(good)[1:], {400})
    yield of_prometheus(
        "remote write: a label of 1 MiB",
        snappy(one([Point(labels(name, namespace="x" * MIB), 1.0, now)])),
        {400, 413},
    )
    yield of_prometheus(
        "remote write: 5,000 labels",
        snappy(one([Point(labels(name, **{f"l{n}": "x" for n in range(5000)}), 1.0, now)])),
        {400, 413},
    )
    yield of_prometheus(
        "remote write: bad UTF-8",
        snappy(good.replace(b"nvidia0", b"\xff\xfe\xc0\x80\xed\xa0\x80")),
        {400},
    )
    yield of_prometheus(
        "remote write: NaN and infinity",
        snappy(
            one(
                [
                    Point(labels(name, gpu), value, now)
                    for gpu, value in enumerate((math.nan, math.inf, -math.inf))
                ]
            )
        ),
        {204, 400},
    )
