"""What accepted advice brought: idle cost that went, or the same work for less; work that ended is no saving."""

from gpuledger_collector.insight.recommendations.record import Spent
from gpuledger_collector.jobs.recommend import brought

DAY = 86_400_000


def test_idle_time_that_went():
    """Four days of 10 idle against two days of 1: 20 - 1, whatever the work cost."""
    was, now = Spent(100, 40, 100, 60), Spent(500, 1, 500, 499)
    assert brought(was, now, 4 * DAY, 2 * DAY, idle=True) == (19, "cost of idle time, a day")


def test_the_same_work_for_less():
    """Twice the work at the old price would have been 200; it was 150. Work that ended saves nothing."""
    was = Spent(100, 0, 60, 60)
    assert brought(was, Spent(150, 0, 120, 120), DAY, DAY, idle=False)[0] == 50
    assert brought(was, Spent(10, 0, 6, 6), DAY, DAY, idle=False)[0] == 0
    assert brought(was, Spent(150, 0, 60, 60), DAY, DAY, idle=False)[0] == -50


def test_without_work_days_are_compared():
    """Free capacity that was given up; a half day counts half."""
    assert brought(Spent(100, 0, 10, 0), Spent(20, 0, 1, 0), 2 * DAY, DAY, idle=False) == (30, "cost, a day")
