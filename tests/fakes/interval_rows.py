"""Rows of `usage_interval` of one accelerator and day, as ingest accepts them: minutes of an agent,
and anything else.
"""

import numpy as np
from hypothesis import strategies as st

from gpuledger_collector.accounting.period import DAY_MS
from gpuledger_collector.storage.telemetry.interval_codec import (
    ABSENT,
    MAX_ENERGY_MJ,
    MAX_ID,
    MAX_RECORD,
    MAX_SEQ,
    NUMBERS,
    RECORD,
    STATES,
)
from gpuledger_common.largest_remainder import split

DAY = 20_000 * DAY_MS
_FEW = st.integers(1, 3)
_INT64 = st.integers(-(2**63) + 1, 2**63 - 1)


def interval(draw, start_ms, length, holder, seq, record):
    state, workload, node, attributes, epoch = holder
    held = draw(st.sampled_from([length, length // 2])) if state == "held" else 0
    parts = draw(st.sampled_from([(1, 0, 0), (0, 1, 0), (2, 1, 0), (3, 2, 1), (0, 0, 1)]))
    busy, idle, unknown = split(held, parts)
    energy = draw(
        st.just(ABSENT)
        | st.integers(0, 400).map(lambda milliwatts: length * (300_000 + milliwatts) // 1000)
        | st.integers(0, MAX_ENERGY_MJ)
    )
    return {
        "start_ms": DAY + start_ms,
        "end_ms": DAY + start_ms + length,
        "workload_id": workload if state == "held" else ABSENT,
        "state": STATES.index(state),
        "held_ms": held,
        "busy_ms": busy,
        "idle_ms": idle,
        "unknown_ms": unknown,
        "energy_mj": energy,
        "node_id": node,
        "seq": seq,
        "record": record,
        "accelerator_attributes_id": attributes,
        "workload_attributes_id": draw(st.just(ABSENT) | st.integers(1, 2**40)),
        "epoch_high": epoch,
        "epoch_low": -epoch,
    }


@st.composite
def rows(draw):
    """Minutes of an agent that adjoin, and intervals of any time, length, holder and number; some
    of them twice.
    """
    holders = draw(
        st.lists(
            st.tuples(
                st.sampled_from(STATES),
                st.integers(1, MAX_ID),
                _FEW,
                st.just(ABSENT) | _FEW,
                _FEW | _INT64,
            ),
            min_size=1,
            max_size=4,
        )
    )
    some = []
    at_ms, seq = draw(st.integers(0, DAY_MS // 2)), draw(st.integers(0, 2**31))
    for _ in range(draw(st.integers(1, 12))):
        length = draw(st.sampled_from([60_000, 59_998, 10_000]))
        holder = draw(st.sampled_from(holders))
        for record in range(draw(st.integers(1, 2))):
            some.append(interval(draw, at_ms, length, holder, seq, record))
        at_ms, seq = at_ms + length, seq + 1
    for _ in range(draw(st.integers(0, 4))):
        start_ms = draw(st.integers(0, DAY_MS - 1))
        some.append(
            interval(
                draw,
                start_ms,
                draw(st.integers(1, DAY_MS)),
                draw(st.sampled_from(holders)),
                draw(st.integers(0, MAX_SEQ)),
                draw(st.integers(0, MAX_RECORD)),
            )
        )
    some += draw(st.lists(st.sampled_from(some), max_size=2))
    return records(draw(st.permutations(some)))


def records(some):
    """Rows by name as RECORD."""
    intervals = np.zeros(len(some), dtype=RECORD)
    for name in NUMBERS:
        intervals[name] = [row[name] for row in some]
    return intervals
