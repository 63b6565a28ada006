"""Packed usage intervals of one accelerator and UTC day: columns of bits that SQL can read.

What intervals have in common is stored once for all of them: the source (state, node, epoch,
attributes of the accelerator), and for each context the source, the workload and about what it
draws. What follows from the rest is not stored: an interval begins where the one before it ended,
its holder has all of its time, what is neither idle nor unknown is busy, a batch comes every so
many milliseconds. Agents sample at a steady pace, so an end is a number of ticks and some
milliseconds beside the tick, and so many of an interval's ticks were idle. Equal intervals that
adjoin cost nothing, and what remains is noise: milliseconds and energy.

A column holds whole numbers from 0, of as many bits as the largest needs. First come those that are
no whole byte, rounded up to 1, 2 or 4 (those of number `row` at bit `row * bits`, the lowest first),
then byte planes, the most significant first: byte `row` of plane `p` stands at `p * rows + row`.
The length of a column says how many of each it has. Postgres compresses what repeats.

Law: the unpacked rows are the packed ones, all of them and nothing else, whatever their order.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuledger_collector.storage.telemetry.interval_columns import (
    CONTEXT_PLANES,
    FEW,
    LEAST,
    PLANES,
)

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
SOURCE = ("state", "node_id", "accelerator_attributes_id", "epoch_high", "epoch_low")
MAX_ENERGY_MJ = 2**40
"""The most energy of an interval that is packed (305 kWh)."""
MAX_SEQ = 2**62
MAX_ID = 2**45
"""The largest id of a workload and of its attributes that is packed."""
MAX_RECORD = 2**30 - 1
"""The last place in a batch that is packed."""
_SEQ_BITS = 30
"""A source has no more sequence numbers than this."""
_PARTS = (1, 2, 3, 4, 5, 6, 10, 12, 20, 30, 60)
"""Samples that an interval may have between two pushes."""
_MIN_TICK_MS = 500
_POWER_STEPS_MW = (1, 64, 256, 1024, 2048, 4096, 8192, 16384, 65536)

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class PackedIntervals:
    """The packed intervals of an accelerator and day.

    `sources` has a record for each source; its `seq` is added to those of its intervals. `numbers`
    are what is added to columns (LEAST) and what ticks and steps are worth.
    """

    rows: int
    contexts: int
    sources: Array
    columns: Mapping[str, bytes]
    numbers: Mapping[str, int]
    sha256: bytes


@dataclass(frozen=True, slots=True)
class _Columns:
    """Columns, and the numbers that belong to them."""

    columns: Mapping[str, bytes]
    numbers: Mapping[str, int]

    @property
    def size(self) -> int:
        """Bytes before compression."""
        return sum(map(len, self.columns.values()))

    @property
    def compressed_size(self) -> int:
        """About how many bytes they take."""
        return sum(
            min(len(column), len(zlib.compress(column, 1))) for column in self.columns.values()
        )

    def __or__(self, other: _Columns) -> _Columns:
        return _Columns({**self.columns, **other.columns}, {**self.numbers, **other.numbers})


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
    context = _places(ordered, (*SOURCE, "workload_id", "workload_attributes_id"))
    candidates = [_pack(ordered, day_ms, context)]
    if (np.diff(context) < 0).any():
        # Holders that share the accelerator lie better one after the other.
        order = np.argsort(context, kind="stable")
        candidates.append(_pack(ordered[order], day_ms, context[order]))
    sources, packed = min(candidates, key=lambda candidate: candidate[1].compressed_size)
    contexts = int(context.max()) + 1
    return PackedIntervals(len(ordered), contexts, sources, packed.columns, packed.numbers, sha256)


def unpack(packed: PackedIntervals, day_ms: int) -> Array:
    """Return the records of a packed day, in their fixed order."""
    number = packed.numbers
    value = {
        name: _from_bits(packed.columns[name], packed.rows) + number.get(f"{name}_least", 0)
        for name in PLANES
    }
    of_context = {
        name: _from_bits(packed.columns[name], packed.contexts) for name in CONTEXT_PLANES
    }
    workload_id = _from_steps(of_context["workload"], number["workload_first"])
    offset = _from_steps(of_context["attributes"], number["attributes_first"])
    code = value["context"]
    context = np.where(code > 1, code - 2, np.cumsum(code == 1) - 1)
    sources = packed.sources[of_context["source"][context]]
    until_ms = np.cumsum(value["ticks"]) * number["tick_ms"] + value["jitter"]
    length = np.diff(until_ms, prepend=0) - value["gap"]
    held = np.where(sources["state"] == STATES.index("held"), length, 0) - value["missing"]
    idle, unknown = (
        held * value[f"{name}_ticks"] // _ticks(length, number["tick_ms"]) + value[name]
        for name in ("idle", "unknown")
    )
    power = of_context["power"] * number["power_step_mw"]
    energy = value["energy"] + power[context] * length // 1000
    intervals = np.zeros(packed.rows, dtype=RECORD)
    for name in SOURCE:
        intervals[name] = sources[name]
    intervals["workload_id"] = workload_id[context]
    attributes = offset + np.where(workload_id == ABSENT, 0, workload_id)
    intervals["workload_attributes_id"] = np.where(offset == ABSENT, ABSENT, attributes)[context]
    intervals["start_ms"] = day_ms + until_ms - length
    intervals["end_ms"] = day_ms + until_ms
    intervals["held_ms"], intervals["busy_ms"] = held, held - idle - unknown
    intervals["idle_ms"], intervals["unknown_ms"] = idle, unknown
    intervals["energy_mj"] = np.where(value["energy"] == number["energy_least"], ABSENT, energy)
    batch = (until_ms + number["seq_offset_ms"]) // number["seq_step_ms"]
    intervals["seq"] = sources["seq"].astype("<i8") + batch + value["seq"]
    intervals["record"] = np.cumsum(value["record"])
    return in_order(intervals)


def _pack(ordered: Array, day_ms: int, context: Array) -> tuple[Array, _Columns]:
    value = {name: ordered[name].astype("<i8") for name in NUMBERS}
    before_ms = np.concatenate([[day_ms], value["end_ms"][:-1]])
    length = value["end_ms"] - value["start_ms"]
    held = np.where(value["state"] == STATES.index("held"), length, 0)
    times = _times(value, day_ms)
    source = _places(ordered, SOURCE, ordered["seq"].astype("<i8") >> _SEQ_BITS)
    first = np.unique(context, return_index=True)[1]
    sources = ordered[np.unique(source, return_index=True)[1]].copy()
    batches, sources["seq"] = _batches(
        value, value["end_ms"] - day_ms, sources, source, times.numbers["tick_ms"]
    )
    workload_id, attributes_id = value["workload_id"][first], value["workload_attributes_id"][first]
    offset = attributes_id - np.where(workload_id == ABSENT, 0, workload_id)
    steps = {
        "workload": _to_steps(workload_id),
        "attributes": _to_steps(np.where(attributes_id == ABSENT, ABSENT, offset)),
    }
    rest = _columns(
        {
            "context": _codes(context),
            "gap": value["start_ms"] - before_ms,
            "missing": held - value["held_ms"],
            "record": np.diff(value["record"], prepend=0),
            "source": source[first],
            **{name: numbers for name, (numbers, _) in steps.items()},
        },
        {f"{name}_first": first_id for name, (_, first_id) in steps.items()},
    )
    return sources, times | batches | _energy(value, length, context) | rest


def _columns(numbers: Mapping[str, Array], known: dict[str, int]) -> _Columns:
    """Columns of these numbers, less the least of those in LEAST where it is not known."""
    least = {
        name: known.get(f"{name}_least", int(numbers[name].min()))
        for name in LEAST
        if name in numbers
    }
    most = PLANES | CONTEXT_PLANES
    return _Columns(
        {
            name: _to_bits(values - least.get(name, 0), most[name])
            for name, values in numbers.items()
        },
        known | {f"{name}_least": number for name, number in least.items()},
    )


def _places(ordered: Array, names: Iterable[str], more: Array | None = None) -> Array:
    """The place of each interval's combination of these fields, by their first appearance."""
    keys = [ordered[name].astype("<i8") for name in names]
    keys += [ordered["seq"].astype("<i8") >> _SEQ_BITS] if more is None else [more]
    raw = np.ascontiguousarray(np.stack(keys, axis=1))
    places: dict[bytes, int] = {}
    width = raw.dtype.itemsize * raw.shape[1]
    rows = raw.view(f"V{width}").reshape(-1).tolist()
    return np.array([places.setdefault(row, len(places)) for row in rows], dtype="<i8")


def _codes(context: Array) -> Array:
    """0: the newest context again; 1: the next new one; from 2 on: an earlier one, by its place."""
    newest = np.maximum.accumulate(context)
    is_new = np.diff(newest, prepend=-1) > 0
    codes: Array = np.where(is_new, 1, np.where(context == newest, 0, context + 2))
    return codes


def _to_steps(ids: Array) -> tuple[Array, int]:
    """From one known id to the next, 0 for none; and the first known one."""
    steps = np.zeros(len(ids), dtype="<i8")
    known = ids[ids != ABSENT]
    first = int(known[0]) if len(known) else 0
    step = np.diff(known, prepend=first)
    steps[ids != ABSENT] = 1 + np.where(step < 0, -2 * step - 1, 2 * step)
    return steps, first


def _from_steps(steps: Array, first: int) -> Array:
    code = steps - 1
    step = np.where(code & 1, -(code >> 1) - 1, code >> 1)
    ids: Array = np.where(steps > 0, first + np.cumsum(np.where(steps > 0, step, 0)), ABSENT)
    return ids


def _ticks(length: Array, tick_ms: int) -> Array:
    ticks: Array = np.maximum(1, (length + tick_ms // 2) // tick_ms)
    return ticks


def _times(value: Mapping[str, Array], day_ms: int) -> _Columns:
    """Ends, idle and unknown time by the pace of sampling that takes the fewest bytes."""
    ends = np.diff(np.unique(value["end_ms"]))
    ends = ends[ends >= _MIN_TICK_MS]
    usual = [float(np.median(ends)), float(np.percentile(ends, 5))] if len(ends) else []
    exact = {round(ms / parts) for ms in usual for parts in _PARTS}
    paces = {1} | {ms for pace in exact for ms in (pace, round(pace, -2))}
    return min(
        (
            _times_by(pace, value, day_ms)
            for pace in sorted(paces, reverse=True)
            if pace == 1 or pace >= _MIN_TICK_MS
        ),
        key=lambda times: times.size,
    )


def _times_by(tick_ms: int, value: Mapping[str, Array], day_ms: int) -> _Columns:
    until_ms = value["end_ms"] - day_ms
    length = value["end_ms"] - value["start_ms"]
    tick = (until_ms - _phase(until_ms, tick_ms) + tick_ms // 2) // tick_ms
    numbers = {"ticks": np.diff(tick, prepend=0), "jitter": until_ms - tick * tick_ms}
    held, ticks = value["held_ms"], _ticks(length, tick_ms)
    for name in ("idle", "unknown"):
        part = value[f"{name}_ms"]
        share = np.minimum(ticks, (part * ticks + held // 2) // np.maximum(held, 1))
        numbers[f"{name}_ticks"], numbers[name] = share, part - held * share // ticks
    return _columns(numbers, {"tick_ms": tick_ms})


def _phase(instants: Array, step: int) -> int:
    """Where between two steps most of these instants lie."""
    shifted = (instants - instants[0] + step // 2) % step
    return int(np.median(shifted)) + int(instants[0] % step) - step // 2


def _energy(value: Mapping[str, Array], length: Array, context: Array) -> _Columns:
    """Energy beside what each context draws on average, in steps that take the fewest bytes; 0
    stands for energy that was not measured.
    """
    measured = value["energy_mj"] != ABSENT
    contexts = int(context.max()) + 1
    total = np.bincount(context[measured], value["energy_mj"][measured].astype(float), contexts)
    seconds = np.bincount(context[measured], length[measured].astype(float), contexts)
    mean = 1000 * np.divide(total, seconds, out=np.zeros(contexts), where=seconds > 0)

    def by(step_mw: int) -> _Columns:
        # As integers of Postgres.
        power = np.rint(np.minimum(mean, 2**31 - 1) / step_mw).astype("<i8")
        energy = value["energy_mj"] - power[context] * step_mw * length // 1000
        absent = int(energy[measured].min(initial=1)) - 1
        columns = {"energy": np.where(measured, energy, absent), "power": power}
        return _columns(columns, {"power_step_mw": step_mw, "energy_least": absent})

    return min(map(by, _POWER_STEPS_MW), key=lambda packed: packed.size)


def _batches(
    value: Mapping[str, Array], until_ms: Array, sources: Array, source: Array, tick_ms: int
) -> tuple[_Columns, Array]:
    """Sequence numbers beside what a steady push would give, and the least of each epoch."""
    seq = value["seq"]
    batches, batch = np.unique(seq, return_inverse=True)
    pushed_ms = np.zeros(len(batches), dtype="<i8")
    np.maximum.at(pushed_ms, batch, until_ms)
    step_ms, offset_ms = 2**31 - 1, 0
    follows = np.diff(batches) == 1
    if follows.sum() * 2 >= len(batches) > 1:
        step_ms = max(1, int(np.median(np.diff(np.sort(pushed_ms)))))
        # An interval belongs to the push at its end or after it, which may come a little late.
        late_ms = max(1, min(tick_ms, step_ms) // 2)
        offset_ms = -(_phase(pushed_ms, step_ms) + late_ms) % step_ms
    seq = seq - (until_ms + offset_ms) // step_ms
    first = _least_of_epochs(seq, sources, source)
    numbers = {"seq_step_ms": step_ms, "seq_offset_ms": offset_ms}
    return _columns({"seq": seq - first[source]}, numbers), first


def _least_of_epochs(seq: Array, sources: Array, source: Array) -> Array:
    """The least number of all sources of an epoch, for each source."""
    least = np.full(len(sources), np.iinfo("<i8").max, dtype="<i8")
    np.minimum.at(least, source, seq)
    epochs = list(
        zip(
            sources["epoch_high"].tolist(),
            sources["epoch_low"].tolist(),
            (sources["seq"].astype("<i8") >> _SEQ_BITS).tolist(),
            strict=True,
        )
    )
    of_epoch: dict[tuple[int, int, int], int] = {}
    for epoch, number in zip(epochs, least.tolist(), strict=True):
        of_epoch[epoch] = min(of_epoch.get(epoch, number), number)
    return np.array([of_epoch[epoch] for epoch in epochs], dtype="<i8")


def _to_bits(numbers: Array, most: int) -> bytes:
    bits = int(numbers.max(initial=0)).bit_length()
    if bits > 8 * most or int(numbers.min(initial=0)) < 0:
        raise ValueError(f"numbers up to {numbers.max()} take more than {most} bytes")
    planes, rest = divmod(bits, 8)
    if rest > 4 or (rest and len(numbers) < FEW):
        planes, rest = planes + 1, 0
    raw = numbers.astype(">u8").view(np.uint8).reshape(-1, 8)
    whole = raw[:, 8 - planes :].T.tobytes()
    if not rest:
        return whole
    each = 1 << (rest - 1).bit_length()
    top = np.unpackbits(
        (numbers >> 8 * planes).astype(np.uint8)[:, None], axis=1, count=each, bitorder="little"
    )
    return np.packbits(top.reshape(-1), bitorder="little").tobytes() + whole


def _from_bits(column: bytes, rows: int) -> Array:
    planes, head = divmod(len(column), rows)
    raw = np.frombuffer(column, dtype=np.uint8)
    numbers = np.zeros((rows, 8), dtype=np.uint8)
    numbers[:, 8 - planes :] = raw[head:].reshape(planes, rows).T
    whole: Array = numbers.view(">u8").reshape(-1).astype("<i8")
    each = 8 * head // rows
    if not each:
        return whole
    bits = np.unpackbits(raw[:head], count=rows * each, bitorder="little").reshape(rows, each)
    top: Array = (bits.astype("<i8") << np.arange(each)).sum(axis=1)
    whole |= top << 8 * planes
    return whole
