"""The wire between agent and collector: one typed envelope, the same in msgpack (zstd) and in JSON.

A batch is identified by `(node, epoch, seq)`. Its bytes never change once it is spooled, so a retry
is byte-identical and the collector distinguishes a duplicate from a forgery by its SHA-256. Gauges
travel as float32 columns, counters as float64 or int64 (float32 would lose precision); NaN, or the
smallest int64, means *absent*. In JSON a column may be a plain list with nulls, for curl and for
tests.

*Usage intervals* are what is billed: time of one accelerator in one state, integrated by the agent
from differences of the monotonic clock. All times are integer milliseconds; instants are UTC unix
milliseconds.
"""

from __future__ import annotations

from typing import Literal

import msgspec

WIRE_VERSION = 1
ABSENT_INT64 = -(2**63)
MAX_BODY_BYTES = 8 * 1024 * 1024
"""Largest body as sent; the collector refuses a larger one with 413, and the agent then splits the
batch.
"""
MAX_DECODED_BYTES = 64 * 1024 * 1024

State = Literal["held", "unallocated", "unavailable"]


class WireAccelerator(msgspec.Struct, frozen=True, omit_defaults=True):
    """An accelerator as the agent sees it; rows of the batch refer to it by its position in
    `Batch.accelerators`.
    """

    uuid: str
    device_uuid: str
    index: int
    model: str
    mig_instance: str | None = None
    gpu_micro: int = 1_000_000
    memory_bytes: int | None = None
    pci_bus_id: str | None = None
    pool: str = ""
    health: Literal["ok", "degraded", "failed", "unknown"] = "unknown"
    health_cause: str = ""


class WireWorkload(msgspec.Struct, frozen=True, omit_defaults=True):
    """A workload that holds an accelerator, with its tags and its job at that time.

    `job` is the work that it is a part of (`JobSet vision/train`), `job_uid` which one of that name,
    `queue` the queue of its scheduler.
    `refused` are owners that it claimed against its namespace, by level: they are no tags.
    Receivers that do not know them ignore them.
    """

    id: str
    kind: str
    user: str | None = None
    account: str | None = None
    name: str | None = None
    tags: dict[str, str] = {}
    job: str | None = None
    job_uid: str | None = None
    queue: str | None = None
    refused: dict[str, str] = {}


class WireUsageInterval(msgspec.Struct, frozen=True, omit_defaults=True):
    """Time of one accelerator in one state, as held by one workload.

    `start_ms` and `end_ms` bound it (start in, end out). For state `held`, `held_ms` is this
    workload's part of it: over the workloads that share an accelerator the parts add up to `end_ms
    - start_ms` (largest remainder), and `busy_ms + idle_ms + unknown_ms == held_ms`. For the other
    states `workload` is None, `held_ms` is 0 and so are busy, idle and unknown. `energy_mj` is
    millijoules, None where the card does not measure it; a device's energy is counted once, never
    once per MIG instance.
    """

    accelerator: int
    state: State
    start_ms: int
    end_ms: int
    workload: int | None = None
    held_ms: int = 0
    busy_ms: int = 0
    idle_ms: int = 0
    unknown_ms: int = 0
    energy_mj: int | None = None


class Column(msgspec.Struct, frozen=True):
    """One metric of every row: little-endian `f4`, `f8` or `i8` bytes, or a list with nulls in
    JSON.
    """

    kind: Literal["f4", "f8", "i8"]
    values: bytes | list[float | int | None]


class Samples(msgspec.Struct, frozen=True, omit_defaults=True):
    """Rows of readings, by column: row i is accelerator `accelerator[i]` at `at_ms[i]`."""

    accelerator: list[int] = []
    at_ms: list[int] = []
    columns: dict[str, Column] = {}


class Count(msgspec.Struct, frozen=True, omit_defaults=True):
    """A counter of a workload's output (tokens, inferences, steps) as it stood at an instant.

    `source` is the endpoint without credentials, `part` the labels that distinguish its series, and
    `started_ms` the start of the counting process, None if unknown. Receivers that do not know this
    record ignore it.
    """

    workload: int
    source: str
    counter: str
    at_ms: int
    value: int
    part: str = ""
    engine: str = ""
    started_ms: int | None = None


class TokenCount(msgspec.Struct, frozen=True, omit_defaults=True):
    """A counter of tokens of a gateway's page as it stood at an instant, or (without a counter) that
    the page was read then.

    `counter` is input, cached, output or requests; `page` is the address without credentials.
    `claim`: the tenant is what the caller says. `started_ms` is the start of the counting process,
    None if unknown. Receivers that do not know this record ignore it.
    """

    gateway: str
    page: str
    at_ms: int
    counter: str = ""
    value: int = 0
    tenant: str = ""
    model: str = ""
    backend: str = ""
    claim: bool = False
    started_ms: int | None = None


class Heartbeat(msgspec.Struct, frozen=True, omit_defaults=True):
    """The agent's sign of life, also on a node without a GPU, with the batch counts of its spool.

    `uninstalled` marks the last one of an agent that is being uninstalled: nobody need wait for the
    next. `machine` is what the node is to its cloud (readings.Machine), without what is not known.
    Receivers that do not know them ignore them.
    """

    agent_version: str
    source: str
    status: Literal["ok", "no_driver", "no_gpu", "degraded"]
    detail: str = ""
    driver: str | None = None
    boot_id: str = ""
    produced: int = 0
    acked: int = 0
    pending: int = 0
    dropped: int = 0
    dead: int = 0
    uninstalled: bool = False
    machine: dict[str, str] = {}


class Batch(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything that a node reports about a period of time.

    `epoch` is the UUID of the spool that numbered it.
    """

    version: int
    node: str
    epoch: str
    seq: int
    heartbeat: Heartbeat
    accelerators: list[WireAccelerator] = []
    workloads: list[WireWorkload] = []
    usage_intervals: list[WireUsageInterval] = []
    samples: Samples = Samples()
    counts: list[Count] = []
    token_counts: list[TokenCount] = []


class Rejected(msgspec.Struct, frozen=True):
    """One record that was refused: `record` is a path such as `usage_intervals[3]` or
    `samples[17]`.
    """

    record: str
    reason: str


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The collector's answer to a batch."""

    status: Literal["committed", "duplicate", "partial", "refused"]
    rejected: list[Rejected] = []
    detail: str = ""


_encoder = msgspec.msgpack.Encoder()


def encode(batch: Batch) -> bytes:
    """The batch as msgpack, not yet compressed."""
    return _encoder.encode(batch)
