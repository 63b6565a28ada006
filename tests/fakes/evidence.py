"""A day of one accelerator with evidence that overlaps, repeats and is late: what the laws are
tried on.
"""

from hypothesis import strategies as st

from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, Period
from gpuledger_collector.accounting.usage import UsageInterval

DAY = Period(20_000 * DAY_MS, 20_000 * DAY_MS + DAY_MS)
WHOLE = [Period(0, 2**60)]


def usage_interval(
    start,
    end,
    *,
    workload=1,
    state="held",
    busy=None,
    node=1,
    epoch="e",
    seq=1,
    record=0,
    held=None,
    mj=None,
):
    length = end - start
    held_ms = (length if held is None else held) if state == "held" else 0
    busy_ms = held_ms if busy is None else busy
    return UsageInterval(
        7,
        workload if state == "held" else None,
        state,
        DAY.start_ms + start,
        DAY.start_ms + end,
        held_ms,
        busy_ms if state == "held" else 0,
        held_ms - busy_ms if state == "held" else 0,
        0,
        mj,
        node,
        epoch,
        seq,
        record,
    )


@st.composite
def evidence(draw):
    """Some spans of a day, each with one to three holders, overlapping as they like, from two
    nodes.
    """
    facts = []
    for seq in range(draw(st.integers(1, 8))):
        start = draw(st.integers(0, DAY_MS - 2))
        end = min(DAY_MS, start + draw(st.integers(1, 5 * HOUR_MS)))
        node = draw(st.integers(1, 2))
        state = draw(st.sampled_from(["held", "held", "unallocated", "unavailable"]))
        energy = draw(st.none() | st.integers(0, 10**9))
        if state != "held":
            facts.append(usage_interval(start, end, state=state, node=node, seq=seq, mj=energy))
            continue
        holders = draw(st.integers(1, 3))
        left = end - start
        for record in range(holders):
            held = left if record == holders - 1 else draw(st.integers(0, left))
            left -= held
            busy = draw(st.integers(0, held))
            facts.append(
                usage_interval(
                    start,
                    end,
                    workload=record + 1,
                    held=held,
                    busy=busy,
                    node=node,
                    seq=seq,
                    record=record,
                    mj=energy,
                )
            )
    return facts
