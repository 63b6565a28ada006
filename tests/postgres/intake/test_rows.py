"""Rows of a flush: whatever pattern of absent values, blocks and hours, what is there is what was
said.
"""

import uuid

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.batches import HOUR_MS, NOON_MS, accelerator, workload
from fakes.postgres import fresh_database
from fakes.profiles import examples
from gpuledger_collector.ingest.batches.attributes import ResolvedBatch
from gpuledger_collector.ingest.batches.evidence import touched_hours
from gpuledger_collector.ingest.batches.samples import SampleRows, join_samples
from gpuledger_collector.ingest.batches.usage_intervals import (
    copy_usage_intervals,
    join_usage_intervals,
    latest_states,
)
from gpuledger_collector.ingest.batches.validate import (
    METRIC_KINDS,
    Accepted,
    AcceptedRecords,
    SampleBlock,
)
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.telemetry import partitions
from gpuledger_common.wire import WireUsageInterval

DAY_MS = 24 * HOUR_MS
BIG = 2**38
"""Far above what 32 bits hold."""
F4 = sorted(name for name, kind in METRIC_KINDS.items() if kind == "f4")[:3]


@pytest.fixture(scope="module")
def connection(postgres):
    with fresh_database(postgres) as dsn, Database(dsn).connect() as opened:
        with opened.transaction():
            partitions.ensure(
                opened,
                "usage_interval",
                [NOON_MS // DAY_MS * DAY_MS + day * DAY_MS for day in (-1, 0, 1)],
            )
        yield opened


@st.composite
def usage_interval(draw):
    start_ms = NOON_MS + draw(st.integers(-DAY_MS // 2, DAY_MS // 2))
    end_ms = start_ms + draw(
        st.sampled_from([1, 1000, HOUR_MS, DAY_MS - 1, DAY_MS]) | st.integers(1, DAY_MS)
    )
    energy = draw(st.none() | st.sampled_from([0, 2**63 - 1]))
    state = draw(st.sampled_from(["held", "unallocated", "unavailable"]))
    if state != "held":
        return WireUsageInterval(draw(st.integers(0, 2)), state, start_ms, end_ms, energy_mj=energy)
    held_ms = draw(st.integers(0, end_ms - start_ms))
    return WireUsageInterval(
        draw(st.integers(0, 2)),
        state,
        start_ms,
        end_ms,
        draw(st.integers(0, 1)),
        held_ms,
        held_ms,
        0,
        0,
        energy,
    )


def numbered(seq, usage_intervals=(), block=None):
    """A batch with three accelerators and two workloads, all with large numbers."""
    batch = Accepted(
        "n",
        uuid.UUID(int=2**127 + seq),
        seq,
        b"",
        0,
        None,
        AcceptedRecords(enumerate(accelerator(place) for place in range(3))),
        AcceptedRecords(enumerate(workload(str(place)) for place in range(2))),
        dict(enumerate(usage_intervals)),
        block,
        [],
    )
    said = (
        {place: BIG + 20 + place for place in range(3)},
        {place: BIG + 30 + place for place in range(2)},
    )
    return ResolvedBatch(
        batch,
        BIG + seq,
        {place: BIG + place for place in range(3)},
        {0: BIG + 10, 1: BIG + 11},
        *said,
    )


@examples(20)
@given(told=st.lists(st.lists(usage_interval(), max_size=5), min_size=1, max_size=3))
def test_usage_intervals_arrive_as_they_were_said(connection, told):
    """States, holders, energy that is absent, zero or as large as can be, over midnight, from
    several batches.
    """
    connection.execute("DELETE FROM usage_interval")
    batches = [numbered(2**62 + seq, usage_intervals) for seq, usage_intervals in enumerate(told)]
    copy_usage_intervals(connection, join_usage_intervals(batches))
    found = connection.execute(
        "SELECT node_id, epoch, seq, record, accelerator_id, workload_id, state, start_ms, end_ms,"
        " held_ms, busy_ms, idle_ms, unknown_ms, energy_mj, accelerator_attributes_id,"
        " workload_attributes_id FROM usage_interval ORDER BY seq, record"
    ).fetchall()
    assert found == [
        (
            each.node_id,
            each.batch.epoch,
            each.batch.seq,
            record,
            BIG + one.accelerator,
            None if one.workload is None else BIG + 10 + one.workload,
            one.state,
            one.start_ms,
            one.end_ms,
            one.held_ms,
            one.busy_ms,
            one.idle_ms,
            one.unknown_ms,
            one.energy_mj,
            BIG + 20 + one.accelerator,
            None if one.workload is None else BIG + 30 + one.workload,
        )
        for each in batches
        for record, one in each.batch.usage_intervals.items()
    ]


@given(
    told=st.lists(st.lists(usage_interval(), max_size=5), min_size=1, max_size=3),
    instants=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2 * DAY_MS)), max_size=5),
)
def test_hours_are_those_that_are_touched(told, instants):
    """Every hour of every usage interval and of every sample, each once, of the right accelerator,
    however large its id.
    """
    batches = [numbered(seq, usage_intervals) for seq, usage_intervals in enumerate(told)]
    samples = None
    if instants:
        numbers, at_ms = (
            np.array([BIG + place for place, _ in instants]),
            np.array([at for _, at in instants]),
        )
        samples = SampleRows(numbers, at_ms, {})
    expected = {
        (BIG + one.accelerator, hour)
        for usage_intervals in told
        for one in usage_intervals
        for hour in range(one.start_ms // HOUR_MS, (one.end_ms - 1) // HOUR_MS + 1)
    } | {(BIG + place, at // HOUR_MS) for place, at in instants}
    assert touched_hours(join_usage_intervals(batches), samples).tolist() == [
        list(one) for one in sorted(expected)
    ]


@given(told=st.lists(st.lists(usage_interval(), max_size=6), min_size=1, max_size=3))
def test_the_latest_state_is_that_of_the_latest_usage_interval(told):
    """The usage interval that ends last; of those that end together the one that is held longest,
    then the first.
    """
    expected = {}
    for usage_intervals in told:
        for one in usage_intervals:
            rank = (one.end_ms, one.held_ms)
            if one.accelerator not in expected or rank > expected[one.accelerator][0]:
                expected[one.accelerator] = rank, one.state, one.workload
    found = latest_states(
        join_usage_intervals(
            [numbered(seq, usage_intervals) for seq, usage_intervals in enumerate(told)]
        )
    )
    assert found.accelerator.tolist() == [BIG + place for place in sorted(expected)]
    assert found.end_ms.tolist() == [expected[place][0][0] for place in sorted(expected)]
    states = ["held", "unallocated", "unavailable"]
    assert [states[state] for state in found.state] == [
        expected[place][1] for place in sorted(expected)
    ]
    holders = [None if holder < 0 else holder - BIG - 10 for holder in found.workload.tolist()]
    assert holders == [expected[place][2] for place in sorted(expected)]


blocks = st.lists(
    st.tuples(
        st.lists(st.integers(0, 2), min_size=1, max_size=4),
        st.dictionaries(st.sampled_from(F4), st.sampled_from([0.5, np.inf, -np.inf, np.nan])),
    ),
    min_size=1,
    max_size=4,
)


@given(told=blocks)
def test_blocks_with_other_columns_are_joined(told):
    """A column that a block does not bring is absent there, and so is what is no number; every row
    keeps its card.
    """
    batches = []
    for seq, (places, columns) in enumerate(told):
        made = {
            name: np.full(len(places), value, "<f4").tobytes() for name, value in columns.items()
        }
        at = np.arange(len(places), dtype="<i8") + NOON_MS + seq * 100
        batches.append(
            numbered(seq, block=SampleBlock.from_columns(np.array(places, dtype="<i8"), at, made))
        )
    joined = join_samples([numbered(99), *batches])
    assert joined.accelerator.tolist() == [BIG + place for places, _ in told for place in places]
    assert joined.at_ms.tolist() == [
        NOON_MS + seq * 100 + row
        for seq, (places, _) in enumerate(told)
        for row in range(len(places))
    ]
    assert sorted(joined.columns) == sorted({name for _, columns in told for name in columns})
    for name, values in joined.columns.items():
        expected = [columns.get(name, np.nan) for places, columns in told for _ in places]
        assert [None if value != value else value for value in values.tolist()] == [
            value if np.isfinite(value) else None for value in expected
        ]
