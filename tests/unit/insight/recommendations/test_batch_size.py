"""A larger batch is advised where a run always runs, does little at once and has room; never
without the evidence.
"""

from decimal import Decimal

import pytest

from gpuledger_collector.accounting.pricing import Price, PriceBook
from gpuledger_collector.insight.recommendations import (
    Holding,
    IntervalUsage,
    ObservedAccelerator,
    ReadingStats,
    Window,
)
from gpuledger_collector.insight.recommendations.running import batch_size

HOUR = 3_600_000
START = 1_759_708_800_000
GIB = 2.0**30
H100 = "NVIDIA H100 80GB HBM3"
SMALL = {
    "utilization_ratio": 0.97,
    "sm_active_ratio": 0.2,
    "dram_active_ratio": 0.1,
    "memory_used_bytes": 12 * GIB,
}


def reading(value, known=1.0):
    return ReadingStats(known, value, value, value, value, value)


def window(readings, hours=48, cards=1, name="tune", known=1.0):
    intervals = [
        IntervalUsage(card, START + hour * HOUR, HOUR, HOUR, 0, 0)
        for card in range(cards)
        for hour in range(hours)
    ]
    held = Holding(
        1,
        "slurm::1",
        name,
        "slurm",
        "train",
        H100,
        {},
        {"team": "vision"},
        intervals,
        {key: reading(value, known) for key, value in readings.items()},
    )
    accelerators = {
        card: ObservedAccelerator("train", H100, "n1", 1_000_000, 1.0) for card in range(cards)
    }
    book = PriceBook([Price(1, "", "H100", "on_demand", Decimal(4), "USD", 0)])
    return Window(START, START + hours * HOUR, [held], {}, accelerators, [], book, {})


def test_a_run_that_does_little_at_once_is_advised():
    """At 0.2 of the SMs against 0.8 three quarters of the time could be spared; half of that is
    expected.
    """
    (one,), gaps = batch_size(window(SMALL))
    assert gaps == []
    assert (one.kind, one.subject) == ("batch_size", "slurm::1")
    assert one.low.changes == ()
    assert {change.spare_permille for change in one.expected.changes} == {375}
    assert {change.spare_permille for change in one.high.changes} == {750}
    assert len(one.high.changes) == 48


@pytest.mark.parametrize(
    "changes",
    [
        {"sm_active_ratio": 0.6},
        {"dram_active_ratio": 0.5},
        {"memory_used_bytes": 60 * GIB},
        {"utilization_ratio": 0.6},
    ],
    ids=["busy", "bandwidth", "full", "waits"],
)
def test_another_limit_is_no_small_batch(changes):
    """SMs that work, bandwidth that is used, memory that is full, a GPU that waits."""
    assert batch_size(window({**SMALL, **changes})) == ([], [])


def test_short_runs_several_gpus_and_servers_get_none():
    """A day at least, one GPU, and no warm replicas."""
    assert batch_size(window(SMALL, hours=20)) == ([], [])
    assert batch_size(window(SMALL, cards=2)) == ([], [])
    assert batch_size(window(SMALL, name="vllm chat")) == ([], [])


def test_what_is_not_read_is_said():
    """Without profiling metrics there is a reason and no advice."""
    advice, (gap,) = batch_size(window({"utilization_ratio": 0.97}))
    assert advice == []
    assert (gap.kind, gap.subject) == ("batch_size", "slurm::1")
    assert batch_size(window(SMALL, known=0.5))[0] == []
