"""GPU-time of a run: a MIG slice counts by how much of its board it is."""

from gpuledger_collector.accounting.period import UTC_DAYS
from gpuledger_collector.accounting.quantity import GPU_NS_PER_HOUR
from gpuledger_collector.accounting.unit_cost import HeldHour
from gpuledger_collector.insight.run_report import active_periods, run_days

HOUR = 3_600_000
HELD = [
    HeldHour(1, 0, HOUR, HOUR, 0, 0, gpu_micro=500_000),
    HeldHour(2, 0, HOUR, 0, HOUR, 0),
]


def test_a_part_of_a_run_has_gpu_hours() -> None:
    """Half a board and a whole one for an hour are 1.5 GPU-hours, on two accelerators."""
    (part,) = active_periods(HELD, {})
    assert (part.accelerators, part.held_ms) == (2, 2 * HOUR)
    assert 2 * part.gpu_ns == 3 * GPU_NS_PER_HOUR


def test_a_day_of_a_run_has_gpu_hours() -> None:
    """Busy and idle by the share of each accelerator."""
    (day,) = run_days(HELD, {}, UTC_DAYS)
    assert (2 * day.busy_ns, day.idle_ns, day.unknown_ns) == (GPU_NS_PER_HOUR, GPU_NS_PER_HOUR, 0)
