"""Usage intervals of an accelerator and day, packed as at first (format 1): for tests of who still
reads and replaces such days.
"""

from __future__ import annotations

import uuid

import numpy as np

from gpuledger_collector.storage.telemetry.first_interval_format import PLANES
from gpuledger_collector.storage.telemetry.interval_codec import (
    ABSENT,
    NUMBERS,
    STATES,
    Array,
    in_order,
    seal,
)

CONTEXT = (
    "workload_id",
    "state",
    "node_id",
    "accelerator_attributes_id",
    "workload_attributes_id",
    "epoch_high",
    "epoch_low",
)
_SEQ_BITS = 30


def first_format(intervals: Array, day_ms: int) -> dict[str, object]:
    """Columns of `usage_interval_day` for these intervals, without the key."""
    ordered = in_order(intervals)
    contexts, context = _contexts(ordered)
    contexts, columns, least, step_ms = _pack(ordered, day_ms, contexts, context)

    def numbers(name: str) -> list[int | None]:
        return [None if value == ABSENT else value for value in contexts[name].tolist()]

    workload_ids, attributes_ids = numbers("workload_id"), numbers("workload_attributes_id")
    halves = np.stack([contexts["epoch_high"], contexts["epoch_low"]], axis=1).astype(">i8")
    return {
        "format": 1,
        "rows": len(ordered),
        "workload_ids": workload_ids,
        "states": [STATES[place] for place in contexts["state"]],
        "node_ids": numbers("node_id"),
        "epochs": [uuid.UUID(bytes=epoch.tobytes()) for epoch in halves],
        "accelerator_attributes_ids": numbers("accelerator_attributes_id"),
        "attributes_offsets": [
            None if attributes_id is None else attributes_id - (workload_id or 0)
            for workload_id, attributes_id in zip(workload_ids, attributes_ids, strict=True)
        ],
        "seqs": numbers("seq"),
        "power_mw": numbers("energy_mj"),
        **columns,
        **{f"{name}_least": number for name, number in least.items()},
        "seq_step_ms": step_ms,
        "sha256": seal(intervals),
    }


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


def _to_planes(numbers: Array, most: int) -> bytes:
    planes = (int(numbers.max(initial=0)).bit_length() + 7) // 8
    if planes > most or int(numbers.min(initial=0)) < 0:
        raise ValueError(f"numbers up to {numbers.max()} take more than {most} planes")
    rows = numbers.astype(">u8").view(np.uint8).reshape(-1, 8)
    return rows[:, 8 - planes :].T.tobytes()
