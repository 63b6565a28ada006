"""What a body may hold: a kilobyte that would become gigabytes is refused before anything is made
of it.
"""

import resource
import struct
import tracemalloc

import msgspec
import pytest

from fakes.batches import as_json, batch, samples, workload
from fakes.poison import msgpack_lists
from gpuledger_collector.ingest.batches import bounds
from gpuledger_collector.ingest.batches.decode import Refused, decode
from gpuledger_common.compression import zstd
from gpuledger_common.wire import Column, Samples, encode

MIB = 1024 * 1024


def list_of(entries: int) -> bytes:
    return b"\xdd" + struct.pack(">I", entries) + b"\xc0" * entries


def text(name: str) -> bytes:
    return msgspec.msgpack.encode(name)


def many_tags() -> bytes:
    return encode(
        batch(workloads=[workload(tags={f"{number:07}": "" for number in range(1_200_000)})])
    )


def column_lists() -> bytes:
    columns = {f"c{number}": Column("f4", [None] * 200_000) for number in range(30)}
    return encode(batch(samples=Samples([0], [1], columns)))


def many_columns() -> bytes:
    columns = {str(number): Column("f4", b"1" * 100) for number in range(2000)}
    return encode(batch(samples=Samples([0], [1], columns)))


BOMBS = {
    "usage_intervals": (lambda: msgpack_lists(30_000_000), 413),
    "a first list hidden by a second": (
        lambda: (
            b"\x82"
            + (text("usage_intervals") + list_of(10_000_000)) * 1
            + text("usage_intervals")
            + b"\x90"
        ),
        400,
    ),
    "rows": (
        lambda: encode(
            batch(samples=samples(2, range(300_000), gpu_utilization_ratio=[0.0] * 600_000))
        ),
        413,
    ),
    "tags": (many_tags, 413),
    "values of columns": (column_lists, 413),
    "columns": (many_columns, 413),
    "a name that is none, after a list": (
        lambda: b"\x82" + text("usage_intervals") + list_of(10_000_000) + b"\xc0\xc0",
        400,
    ),
}
"""What makes each, and the status that refuses it: made by its own test alone, since every process
has this module.
"""


@pytest.mark.parametrize("name", sorted(BOMBS))
def test_a_bomb_is_refused_before_it_unfolds(name):
    """Each is small on the wire; nothing in Python grows by more than a few copies of the body."""
    make, status = BOMBS[name]
    plain = make()
    body = zstd.compress(plain)
    tracemalloc.start()
    try:
        with pytest.raises(Refused) as refusal:
            decode(body, "application/msgpack", "zstd")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert refusal.value.status == status
    assert peak < 6 * len(plain) + MIB


def test_json_is_bounded_by_its_commas():
    """Numbers without end in JSON are refused as well."""
    body = as_json(batch())[:-1] + b',"counts":[' + b"0," * 3_000_000 + b"0]}"
    with pytest.raises(Refused, match="values") as refusal:
        decode(zstd.compress(body), "application/json", "zstd")
    assert refusal.value.status == 413


def json_with(**lists: bytes) -> bytes:
    """A batch in JSON whose lists are these bytes."""
    parts = b"".join(b',"' + name.encode() + b'":' + value for name, value in lists.items())
    return (
        as_json(batch(accelerators=0, workloads=[], usage_intervals=[], samples=Samples()))[:-1]
        + parts
        + b"}"
    )


def repeated(entry: bytes, times: int) -> bytes:
    return b"[" + b",".join([entry] * times) + b"]"


LONG_TEXT = b'[{"id":"a","kind":"' + b"x" * 2 * bounds.MAX_BYTES["workloads"] + b'"}]'
WORKLOAD, GPU = b'{"id":"a","kind":"b"}', b'{"uuid":"a","device_uuid":"a","index":0,"model":"m"}'
COLUMN = b'{"kind":"f4","values":[0.5]}'
COLUMNS = b",".join(
    b'"column-%060d":%s' % (number, COLUMN) for number in range(bounds.MAX_COLUMNS + 1)
)
MANY_IN_JSON = {
    "workloads": json_with(workloads=repeated(WORKLOAD, bounds.MAX_RECORDS["workloads"] + 1)),
    "accelerators": json_with(accelerators=repeated(GPU, bounds.MAX_RECORDS["accelerators"] + 1)),
    "usage_intervals": json_with(
        usage_intervals=repeated(b"{}", bounds.MAX_RECORDS["usage_intervals"] + 1)
    ),
    "workloads that are none": json_with(
        workloads=repeated(b"[     ]", bounds.MAX_RECORDS["workloads"] + 1)
    ),
    "workloads of every kind": json_with(
        workloads=repeated(b'null,1,"a",true', bounds.MAX_RECORDS["workloads"] // 4 + 1)
    ),
    "bytes of workloads": json_with(workloads=LONG_TEXT),
    "rows": json_with(samples=b'{"at_ms":' + repeated(b"1", bounds.MAX_ROWS + 1) + b"}"),
    "columns": json_with(samples=b'{"columns":{' + COLUMNS + b"}}"),
}


@pytest.mark.parametrize("name", sorted(MANY_IN_JSON))
def test_json_is_bounded_as_msgpack_is(name):
    """The same numbers of records, in either encoding, before any of them becomes an object."""
    plain = MANY_IN_JSON[name]
    tracemalloc.start()
    try:
        with pytest.raises(Refused) as refusal:
            decode(plain, "application/json", "")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert refusal.value.status == 413
    assert peak < 6 * len(plain) + 4 * MIB


def test_a_name_that_comes_twice_in_json_is_refused():
    """The first of the two would be decoded, and nobody would have counted it."""
    with pytest.raises(Refused, match="comes twice") as refusal:
        decode(
            json_with(workloads=repeated(WORKLOAD, 100_000))[:-1] + b',"workloads":[]}',
            "application/json",
            "",
        )
    assert refusal.value.status == 400


def test_as_much_as_is_allowed_is_taken_in_json():
    """The documented numbers of workloads and accelerators, each with braces, quotes and commas in
    its texts.
    """
    workloads = [
        workload(f'{number} {{[,"\\', tags={'a,"b': "{]"})
        for number in range(bounds.MAX_RECORDS["workloads"])
    ]
    found = decode(as_json(batch(workloads=workloads)), "application/json", "")
    assert len(found.workloads.records) == bounds.MAX_RECORDS["workloads"]
    assert found.rejected == []


def test_what_a_busy_node_sends_is_far_below():
    """An hour of 112 MIG instances each second, with many holders, is taken."""
    made = batch(
        accelerators=112,
        samples=samples(
            112,
            range(1_700_000_000_000, 1_700_000_000_000 + 1_000_000, 1000),
            gpu_utilization_ratio=[0.5] * 112_000,
        ),
        workloads=[
            workload(f"job-{number}", tags={f"tag-{place}": "x" * 100 for place in range(30)})
            for number in range(300)
        ],
    )
    plain = encode(made)
    assert len(plain) > bounds.SMALL_BYTES
    assert len(decode(zstd.compress(plain), "application/msgpack", "zstd").samples.at_ms) == 112_000


def test_a_frame_that_says_that_it_is_a_bomb_is_not_opened():
    """A zstd frame tells its size: over the bound, nothing is decompressed."""
    body = zstd.compress(bytes(200 * MIB))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(Refused) as refusal:
        decode(body, "application/msgpack", "zstd")
    assert refusal.value.status == 413
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 * 1024
