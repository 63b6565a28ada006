"""The job that stores forecasts of the month for boards: once an hour, and after days that came late."""

from fakes.fleet import DAY, HOUR, OCTOBER, Held
from gpuledger_collector.accounting.period import MINUTE_MS, Period
from gpuledger_collector.services.refresh import refresh
from gpuledger_collector.services.spend_forecasts import SpendForecasts

PRICE = (
    "INSERT INTO price (pool, gpu_model, purchase, rate_per_gpu_hour, currency, effective_from_ms,"
    " recorded_at) VALUES ('', 'H100', 'on_demand', 2.5, 'USD', 0, now())"
)


def test_a_day_that_is_rated_has_the_month_forecast_again(fleet, ledger) -> None:
    """Boards say the month's end by all days of history that came at once; else once an hour."""
    fleet.connection.execute(PRICE)
    fleet.capacity(1, 0)
    fleet.evidence([Held(1, 1, day * DAY, day * DAY + HOUR) for day in range(3)])
    now_ms = OCTOBER + 4 * DAY
    keeper = SpendForecasts(ledger)
    asked = "SELECT spent_micro FROM owner_forecast WHERE owner = '{}' AND currency = 'USD'"
    refresh(ledger, Period(OCTOBER, OCTOBER + DAY), now_ms)
    assert keeper.run(now_ms) > 0
    ((first,),) = fleet.rows(asked)
    assert keeper.run(now_ms + MINUTE_MS) == 0
    refresh(ledger, Period(OCTOBER, now_ms), now_ms)
    assert keeper.run(now_ms + 2 * MINUTE_MS) > 0
    assert first < max(spent for (spent,) in fleet.rows(asked))
    assert keeper.run(now_ms + 30 * MINUTE_MS) == 0
    assert keeper.run(now_ms + 2 * MINUTE_MS + HOUR) > 0


def test_past_days_that_are_rated_with_more_have_it_again(fleet, ledger) -> None:
    """Late evidence of most of a day moves the month's end within a minute; a little of it waits for
    the hour.
    """
    fleet.connection.execute(PRICE)
    fleet.capacity(1, 0)
    fleet.evidence([Held(1, 1, day * DAY, day * DAY + HOUR) for day in range(3)])
    now_ms = OCTOBER + 3 * DAY
    keeper = SpendForecasts(ledger)
    asked = "SELECT spent_micro FROM owner_forecast WHERE owner -> 'team' IS NOT NULL"
    refresh(ledger, Period(OCTOBER, now_ms), now_ms)
    assert keeper.run(now_ms) > 0
    first = max(spent for (spent,) in fleet.rows(asked))
    fleet.evidence([Held(1, 1, DAY + 2 * HOUR, DAY + 20 * HOUR)])
    refresh(ledger, Period(OCTOBER, now_ms), now_ms)
    assert keeper.run(now_ms + MINUTE_MS) > 0
    assert max(spent for (spent,) in fleet.rows(asked)) > first
    fleet.evidence([Held(1, 1, DAY + 21 * HOUR, DAY + 21 * HOUR + MINUTE_MS)])
    refresh(ledger, Period(OCTOBER, now_ms), now_ms)
    assert keeper.run(now_ms + 2 * MINUTE_MS) == 0
