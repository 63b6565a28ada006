"""Which days a forecast of spending goes by, for whoever asks."""

import pytest

from gpuledger_collector.accounting.budgets import MONTH, Budget
from gpuledger_collector.accounting.period import DAY_MS, Calendar, Period
from gpuledger_collector.insight.spend import MIN_DAYS, forecast_period, whole_days_of_spend
from gpuledger_collector.services.budget_status import _forecast

UTC = Calendar()
MONTH_OF_20 = Period(20 * DAY_MS, 50 * DAY_MS)


@pytest.mark.parametrize("free_days", [0, 1, 10])
def test_history_begins_at_the_first_charge_also_one_of_nothing(free_days: int) -> None:
    """Days before it are no history; days charged at no price are."""
    days = range(20, 20 + free_days + MIN_DAYS)
    by_day = {day * DAY_MS: 0 if day < 20 + free_days else 7_000_000 for day in days}
    known_ms = (days[-1] + 1) * DAY_MS + DAY_MS // 4
    history = whole_days_of_spend(UTC, 0, known_ms, by_day)
    assert history == list(by_day.values())
    assert whole_days_of_spend(UTC, 22 * DAY_MS, known_ms, by_day) == history[2:]
    spent = sum(history)
    end = forecast_period(UTC, MONTH_OF_20, known_ms, history, spent)
    budget = Budget(1, "", {"team": "vision"}, MONTH, None, 1, "USD", calendar=UTC)
    ahead = _forecast(budget, MONTH_OF_20, known_ms, spent, 0, by_day)
    assert end is not None
    assert ahead is not None
    assert (ahead.low_micro, ahead.middle_micro, ahead.high_micro) == end.end[:3]


def test_who_was_charged_nothing_is_known_to_pay_nothing() -> None:
    """Unlike one that was never charged, of whom nothing is known."""
    known_ms = 30 * DAY_MS
    free = {day * DAY_MS: 0 for day in range(20, 30)}
    for by_day, expected in ((free, (0, 0, 0, 0)), ({}, None)):
        history = whole_days_of_spend(UTC, 0, known_ms, by_day)
        end = forecast_period(UTC, MONTH_OF_20, known_ms, history, 0)
        assert (end and end.end) == expected
