"""Packed usage intervals of one accelerator and UTC day: columns of bytes that SQL can read.

What intervals have in common (holder, state, node, epoch, attributes) is their context, stored once
for all of them. What follows from the rest is not stored: an interval begins where the one before
it ended, its holder has all of its time, what is neither idle nor unknown is busy, a batch comes
every so many milliseconds, and a holder draws about the same power. So equal intervals that adjoin
cost nothing, and what remains is noise: milliseconds, idle time, energy.

A column holds whole numbers from 0 in byte planes, the most significant first: byte `row` of plane
`p` stands at `p * rows + row`. Its number of planes is its length divided by the rows, 0 for a
column of zeros. Postgres compresses planes that repeat.

Law: the unpacked rows are the packed ones, all of them and nothing else, whatever their order.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuledger_collector.storage.telemetry.interval_columns import PLANES

STATES = ("held", "unallocated", "unavailable", "present")
ABSENT = int(np.iinfo("<i8").min)
"""Stands for NULL in a record."""
NUMBERS = (
    "start_ms",
    "end_ms",
    "workload_id",
    "state",
    "held_ms",
    "busy_ms",
    "idle_ms",
    "unknown_ms",
    "energy_mj",
    "node_id",
    "seq",
    "record",
    "accelerator_attributes_id",
    "workload_attributes_id",
    "epoch_high",
    "epoch_low",
)
"""Columns of `usage_interval` as a record has them: `state` is a place in STATES, `epoch` has two
halves.
"""
RECORD = np.dtype([(name, ">i8") for name in NUMBERS])
"""An interval as Postgres sends it, field by field."""
CONTEXT = (
    "workload_id",
    "state",
    "node_id",
    "accelerator_attributes_id",
    "workload_attributes_id",
    "epoch_high",
    "epoch_low",
)
MAX_ENERGY_MJ = 2**40
"""The most energy of an interval that is packed (305 kWh)."""
MAX_SEQ = 2**62
_SEQ_BITS = 30
"""A context has no more sequence numbers than this."""

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class PackedIntervals:
    """The packed intervals of an accelerator and day.

    `contexts` has a record for each context; its `seq` and `energy_mj` are what is added to those
    of its intervals: a sequence number, and millijoules for each second.
    """

    rows: int
    contexts: Array
    columns: Mapping[str, bytes]
    least: Mapping[str, int]
    seq_step_ms: int
    """Milliseconds after which the sequence number is expected to grow by one."""
    sha256: bytes


def seal(intervals: Array) -> bytes:
    """SHA-256 over the records of these intervals in their fixed order."""
    return hashlib.sha256(in_order(intervals).tobytes()).digest()


def in_order(intervals: Array) -> Array:
    """Sort intervals by start, end, and then every other field."""
    keys = [intervals[name].astype("<i8") for name in NUMBERS[::-1]]
    # The seal is of these bytes, whatever order of bytes a concatenation gave the numbers.
    ordered: Array = intervals[np.lexsort(keys)].astype(RECORD)
    return ordered


def pack(intervals: Array, day_ms: int) -> PackedIntervals:
    """Pack intervals that begin on a UTC day, at least one, as ingest accepts them.

    Raises ValueError for numbers that the format does not hold.
    """
    ordered = in_order(intervals)
    sha256 = hashlib.sha256(ordered.tobytes()).digest()
    contexts, context = _contexts(ordered)
    candidates = [(ordered, context)]
    if (np.diff(context) < 0).any():
        # Holders that share the accelerator lie better one after the other.
        order = np.argsort(context, kind="stable")
        candidates.append((ordered[order], context[order]))
    packed = [_pack(part, day_ms, contexts.copy(), places) for part, places in candidates]
    contexts, columns, least, step_ms = min(packed, key=lambda parts: _size(parts[1]))
    return PackedIntervals(len(ordered), contexts, columns, least, step_ms, sha256)


def unpack(packed: PackedIntervals, day_ms: int) -> Array:
    """Return the records of a packed day, in their fixed order."""
    numbers = {
        name: _from_planes(column, packed.rows) + packed.least.get(name, 0)
        for name, column in packed.columns.items()
    }
    contexts = packed.contexts[numbers["context"]]
    intervals = np.zeros(packed.rows, dtype=RECORD)
    for name in CONTEXT:
        intervals[name] = contexts[name]
    length = numbers["length"]
    until_ms = np.cumsum(numbers["gap"] + length)
    held = np.where(contexts["state"] == STATES.index("held"), length, 0) - numbers["missing"]
    energy = numbers["energy"] + contexts["energy_mj"].astype("<i8") * length // 1000
    intervals["start_ms"] = day_ms + until_ms - length
    intervals["end_ms"] = day_ms + until_ms
    intervals["held_ms"] = held
    intervals["idle_ms"], intervals["unknown_ms"] = numbers["idle"], numbers["unknown"]
    intervals["busy_ms"] = held - numbers["idle"] - numbers["unknown"]
    intervals["energy_mj"] = np.where(numbers["energy"] == packed.least["energy"], ABSENT, energy)
    intervals["seq"] = (
        contexts["seq"].astype("<i8") + until_ms // packed.seq_step_ms + numbers["seq"]
    )
    intervals["record"] = numbers["record"]
    return in_order(intervals)


def _pack(
    ordered: Array, day_ms: int, contexts: Array, context: Array
) -> tuple[Array, dict[str, bytes], dict[str, int], int]:
    value = {name: ordered[name].astype("<i8") for name in NUMBERS}
    length = value["end_ms"] - value["start_ms"]
    before_ms = np.concatenate([[day_ms], value["end_ms"][:-1]])
    until_ms = value["end_ms"] - day_ms
    contexts["energy_mj"] = power = _power(value["energy_mj"], length, context, len(contexts))
    measured = value["energy_mj"] != ABSENT
    energy = value["energy_mj"] - power[context] * length // 1000
    least_energy = int(energy[measured].min()) if measured.any() else 0
    step_ms = _seq_step(value["seq"], until_ms)
    seq = value["seq"] - until_ms // step_ms
    contexts["seq"] = first_seq = _least_of_epochs(seq, contexts, context)
    numbers = {
        "context": context,
        "gap": value["start_ms"] - before_ms,
        "length": length,
        "missing": np.where(value["state"] == STATES.index("held"), length, 0) - value["held_ms"],
        "idle": value["idle_ms"],
        "unknown": value["unknown_ms"],
        # 0 stands for energy that was not measured.
        "energy": np.where(measured, energy - least_energy + 1, 0),
        "seq": seq - first_seq[context],
        "record": value["record"],
    }
    least = {name: int(numbers[name].min()) for name in ("gap", "length")}
    columns = {
        name: _to_planes(numbers[name] - least.get(name, 0), PLANES[name]) for name in PLANES
    }
    return contexts, columns, least | {"energy": least_energy - 1}, step_ms


def _contexts(ordered: Array) -> tuple[Array, Array]:
    """The contexts by their first interval, and the place of each interval's context."""
    keys = np.zeros(len(ordered), dtype=[(name, "<i8") for name in (*CONTEXT, "seq")])
    for name in CONTEXT:
        keys[name] = ordered[name]
    # Part of what intervals have in common, so that few planes hold the rest of the number.
    keys["seq"] = ordered["seq"].astype("<i8") >> _SEQ_BITS
    raw = np.ascontiguousarray(keys).view(f"V{keys.dtype.itemsize}").reshape(-1)
    places: dict[bytes, int] = {}
    context = np.array([places.setdefault(key, len(places)) for key in raw.tolist()], dtype="<i8")
    first = np.unique(context, return_index=True)[1]
    return ordered[first].copy(), context


def _power(energy_mj: Array, length: Array, context: Array, contexts: int) -> Array:
    """Millijoules for each second of each context's measured intervals."""
    measured = energy_mj != ABSENT
    total = np.bincount(context[measured], energy_mj[measured].astype(float), contexts)
    seconds = np.bincount(context[measured], length[measured].astype(float), contexts)
    power = np.rint(1000 * np.divide(total, seconds, out=np.zeros(contexts), where=seconds > 0))
    # As integers of Postgres.
    numbers: Array = np.minimum(power, 2**31 - 1).astype("<i8")
    return numbers


def _seq_step(seq: Array, until_ms: Array) -> int:
    """The usual time between two batches."""
    batches = np.diff(np.unique(seq))
    if not len(batches) or (batches == 1).sum() * 2 < len(batches):
        return 2**31 - 1
    first = np.unique(seq, return_index=True)[1]
    return max(1, int(np.median(np.diff(np.sort(until_ms[first])))))


def _least_of_epochs(seq: Array, contexts: Array, context: Array) -> Array:
    """The least number of all contexts of an epoch, for each context."""
    least = np.full(len(contexts), np.iinfo("<i8").max, dtype="<i8")
    np.minimum.at(least, context, seq)
    epochs = list(
        zip(
            contexts["epoch_high"].tolist(),
            contexts["epoch_low"].tolist(),
            (contexts["seq"].astype("<i8") >> _SEQ_BITS).tolist(),
            strict=True,
        )
    )
    of_epoch: dict[tuple[int, int, int], int] = {}
    for epoch, number in zip(epochs, least.tolist(), strict=True):
        of_epoch[epoch] = min(of_epoch.get(epoch, number), number)
    return np.array([of_epoch[epoch] for epoch in epochs], dtype="<i8")


def _size(columns: Mapping[str, bytes]) -> int:
    return sum(len(zlib.compress(column, 1)) for column in columns.values())


def _to_planes(numbers: Array, most: int) -> bytes:
    planes = (int(numbers.max(initial=0)).bit_length() + 7) // 8
    if planes > most or int(numbers.min(initial=0)) < 0:
        raise ValueError(f"numbers up to {numbers.max()} take more than {most} planes")
    rows = numbers.astype(">u8").view(np.uint8).reshape(-1, 8)
    return rows[:, 8 - planes :].T.tobytes()


def _from_planes(column: bytes, rows: int) -> Array:
    planes = np.frombuffer(column, dtype=np.uint8).reshape(-1, rows)
    numbers = np.zeros((rows, 8), dtype=np.uint8)
    numbers[:, 8 - len(planes) :] = planes.T
    return numbers.view(">u8").reshape(-1).astype("<i8")
