"""Batches as an agent would send them, made by hand."""

import uuid
from collections.abc import Sequence

import msgspec
import numpy as np

from gpuledger_collector.ingest.batches import bounds
from gpuledger_common.compression import zstd
from gpuledger_common.wire import (
    Batch,
    Column,
    Heartbeat,
    Samples,
    WireAccelerator,
    WireUsageInterval,
    WireWorkload,
    encode,
)

EPOCH = str(uuid.UUID("0190a5c8-0000-7000-8000-000000000001"))
HOUR_MS = 3_600_000
NOON_MS = 1_790_856_000_000
"""2026-10-01T12:00:00Z."""
HEARTBEAT = Heartbeat(agent_version="0.1.0", source="simulated", status="ok", produced=1)


def accelerator(number: int = 0, node: str = "node-1", **changes) -> WireAccelerator:
    uuid_ = f"GPU-{node}-{number}"
    return WireAccelerator(
        **{
            "uuid": uuid_,
            "device_uuid": uuid_,
            "index": number,
            "model": "NVIDIA H100 80GB HBM3",
            **changes,
        }
    )


def workload(identity: str = "job-1", **changes) -> WireWorkload:
    return WireWorkload(
        **{"id": identity, "kind": "slurm", "user": "ada", "tags": {"team": "vision"}, **changes}
    )


def held(
    accelerator: int, start_ms: int, end_ms: int, workload: int = 0, **changes
) -> WireUsageInterval:
    span = end_ms - start_ms
    parts = {"held_ms": span, "busy_ms": span, **changes}
    return WireUsageInterval(
        accelerator=accelerator,
        state="held",
        start_ms=start_ms,
        end_ms=end_ms,
        workload=workload,
        **parts,
    )


def free(accelerator: int, start_ms: int, end_ms: int) -> WireUsageInterval:
    return WireUsageInterval(
        accelerator=accelerator, state="unallocated", start_ms=start_ms, end_ms=end_ms
    )


def samples(
    accelerators: int, instants: Sequence[int], **columns: Sequence[float | None]
) -> Samples:
    """A row for each accelerator at each instant; columns as blobs, a value a row, default a ramp
    of utilization.
    """
    rows = [(place, at_ms) for at_ms in instants for place in range(accelerators)]
    wanted = columns or {
        "gpu_utilization_ratio": [row / max(len(rows), 1) for row in range(len(rows))]
    }
    return Samples(
        accelerator=[place for place, _ in rows],
        at_ms=[at_ms for _, at_ms in rows],
        columns={
            name: Column(
                "f4", np.array([np.nan if v is None else v for v in values], dtype="<f4").tobytes()
            )
            for name, values in wanted.items()
        },
    )


def batch(
    seq: int = 1, node: str = "node-1", accelerators: int = 2, start_ms: int = NOON_MS, **changes
) -> Batch:
    """A minute of a node: every accelerator held by one job, six samples each."""
    end_ms = start_ms + 60_000
    whole = {
        "version": 1,
        "node": node,
        "epoch": EPOCH,
        "seq": seq,
        "heartbeat": HEARTBEAT,
        "accelerators": [accelerator(number, node) for number in range(accelerators)],
        "workloads": [workload()],
        "usage_intervals": [held(number, start_ms, end_ms) for number in range(accelerators)],
        "samples": samples(accelerators, range(start_ms, end_ms, 10_000)),
    }
    return Batch(**{**whole, **changes})


def worst(seq: int, node: str, start_ms: int = NOON_MS - 240 * HOUR_MS) -> Batch:
    """Each list of a batch at its bound, every name new: the heaviest that is taken."""
    gpus, jobs, spans = (
        bounds.MAX_RECORDS[name] for name in ("accelerators", "workloads", "usage_intervals")
    )
    cards = [accelerator(number, f"{node}-{seq}") for number in range(gpus)]
    tags = {f"t{tag}": "x" * 20 for tag in range(8)}
    workloads = [workload(f"{node}-{seq}-{number}", tags=tags) for number in range(jobs)]
    hours = [start_ms + number // gpus * HOUR_MS for number in range(spans)]
    usage_intervals = [
        free(number % gpus, at_ms, at_ms + HOUR_MS) for number, at_ms in enumerate(hours)
    ]
    readings = samples(
        1, range(start_ms, start_ms + 200_000_000, 1_000), gpu_utilization_ratio=[0.5] * 200_000
    )
    whole = batch(
        seq,
        node,
        accelerators=0,
        workloads=workloads,
        usage_intervals=usage_intervals,
        samples=readings,
    )
    return msgspec.structs.replace(whole, accelerators=cards)


def body_of(made: Batch) -> bytes:
    return zstd.compress(encode(made))


def as_json(made: Batch) -> bytes:
    return msgspec.json.encode(made)
