"""Packed usage intervals: what comes out is what went in, and equal minutes cost nothing."""

import numpy as np
import pytest
from hypothesis import given

from fakes.interval_rows import DAY, records, rows
from gpuledger_collector.storage.telemetry.interval_codec import (
    ABSENT,
    MAX_ENERGY_MJ,
    in_order,
    pack,
    seal,
    unpack,
)

MINUTE = {
    "workload_id": 12,
    "state": 0,
    "held_ms": 60_000,
    "busy_ms": 60_000,
    "idle_ms": 0,
    "unknown_ms": 0,
    "energy_mj": 25_000_000,
    "node_id": 3,
    "record": 5,
    "accelerator_attributes_id": 2,
    "workload_attributes_id": ABSENT,
    "epoch_high": 77,
    "epoch_low": -1,
}


def minutes(count, **others):
    return records(
        [
            MINUTE
            | {
                "start_ms": DAY + place * 60_000,
                "end_ms": DAY + (place + 1) * 60_000,
                "seq": 900 + place,
            }
            | others
            for place in range(count)
        ]
    )


@given(rows())
def test_unpacked_rows_are_the_packed_ones(intervals):
    """Every field of every row, also those that come twice, and the seal is of them."""
    packed = pack(intervals, DAY)
    back = unpack(packed, DAY)
    assert back.tobytes() == in_order(intervals).tobytes()
    joined = np.concatenate([intervals[:1], intervals[1:]])
    assert packed.sha256 == seal(back) == seal(intervals[::-1]) == seal(joined)


@given(rows())
def test_the_order_of_rows_changes_nothing(intervals):
    """The same rows in another order are the same bytes."""
    packed, other = pack(intervals, DAY), pack(intervals[::-1], DAY)
    assert (other.columns, other.numbers) == (packed.columns, packed.numbers)
    assert other.sources.tobytes() == packed.sources.tobytes()


def test_adjoining_equal_minutes_take_no_bytes():
    """A day of them is one context and columns without a byte, but for whether energy is known and
    where the first of them stands in its batch.
    """
    packed = pack(minutes(1_440), DAY)
    assert packed.contexts == 1
    sizes = {name: len(column) for name, column in packed.columns.items() if column}
    assert sizes.keys() <= {"context", "energy", "record", "workload", "attributes", "power"}
    assert sum(sizes.values()) < 1_440


@pytest.mark.parametrize(("largest", "size"), [(0, 0), (1, 125), (3, 250), (7, 500), (15, 500)])
def test_small_numbers_take_a_part_of_a_byte(largest, size):
    """1, 2 or 4 bits, beside whole bytes: what an interval has beside the tick."""
    intervals = minutes(1_000)
    intervals["record"] = np.arange(1_000) * largest % (largest + 1)
    jitter = np.arange(1_000) % (largest + 1)
    intervals["end_ms"] += jitter
    intervals["start_ms"][1:] += jitter[:-1]
    intervals["held_ms"] = intervals["busy_ms"] = intervals["end_ms"] - intervals["start_ms"]
    packed = pack(intervals, DAY)
    assert len(packed.columns["jitter"]) == size
    assert np.array_equal(unpack(packed, DAY), in_order(intervals))


def test_a_job_of_its_own_takes_few_bytes():
    """Jobs of a minute, one after the other, whose numbers grow: a byte or two for the workload, and
    no noise but that of their energy.
    """
    intervals = minutes(1_440)
    places = np.arange(1_440)
    intervals["workload_id"] = 10**6 + places * 50
    intervals["workload_attributes_id"] = 10**6 + places * 50 + 777
    intervals["energy_mj"] = 20_000_000 + places * 7_919 % 100_000
    packed = pack(intervals, DAY)
    assert packed.contexts == 1_440
    sizes = {name: len(column) for name, column in packed.columns.items()}
    assert sizes["workload"] == 1_440
    assert sizes["context"] <= 180
    assert sizes["attributes"] <= 180
    assert sizes["energy"] + sizes["power"] <= 4 * 1_440
    assert np.array_equal(unpack(packed, DAY), in_order(intervals))


def test_the_seal_covers_every_field():
    """Any other number of any row is another seal."""
    intervals = minutes(3)
    seals = {seal(intervals)}
    for name in intervals.dtype.names:
        changed = intervals.copy()
        changed[name][1] += 1
        seals.add(seal(changed))
    assert len(seals) == 1 + len(intervals.dtype.names)


def test_what_the_format_does_not_hold_is_refused():
    """Energy beyond its bound by far, rather than other numbers."""
    intervals = minutes(2)
    intervals["energy_mj"] = [0, 2**60]
    assert MAX_ENERGY_MJ < 2**60
    with pytest.raises(ValueError, match="bytes"):
        pack(intervals, DAY)
    assert np.array_equal(unpack(pack(minutes(2), DAY), DAY), minutes(2))
