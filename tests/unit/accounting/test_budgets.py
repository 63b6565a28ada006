"""Budgets: states of thresholds, periods, and why spend changed."""

from hypothesis import given
from hypothesis import strategies as st

from gpuledger_collector.accounting.budgets import (
    ACTUAL,
    FIRING,
    FORECAST,
    PENDING,
    RESOLVED,
    Alert,
    Budget,
    HolderSpend,
    Reading,
    Terms,
    drivers,
    evaluate,
    percent_of,
    top,
)
from gpuledger_collector.accounting.money import MICRO
from gpuledger_collector.accounting.period import (
    DAY_MS,
    HOUR_MS,
    date_range,
    format_date,
    parse_date,
)

BUDGET = Budget(
    1,
    "vision",
    {"team": "vision"},
    "month",
    None,
    1000 * MICRO,
    "USD",
    Terms((80, 100), (100,), 200),
)
NOVEMBER = date_range("2026-11-01", "2026-12-01")


def play(
    budget: Budget, readings: list[Reading]
) -> tuple[list[tuple[str, int, int]], dict[tuple[str, int], Alert]]:
    """Feeds readings one by one; what fired at which reading, and the last states."""
    known: dict[tuple[str, int], Alert] = {}
    fired = []
    for at, reading in enumerate(readings):
        made = evaluate(budget, reading, known.values())
        known |= {(alert.rule, alert.percent): alert for alert in made.changed}
        fired += [(alert.rule, alert.percent, at) for alert in made.fired]
    return fired, known


def reading(hour: int, spent: int, likely: int | None = None, middle: int | None = None) -> Reading:
    at = NOVEMBER.start_ms + hour * HOUR_MS
    scaled = [None if value is None else value * MICRO for value in (likely, middle)]
    return Reading(at, NOVEMBER, spent * MICRO, *scaled)


def test_an_actual_threshold_fires_at_once_and_only_once() -> None:
    """799.99 is not 80 % of 1000, 800 is; a correction below it resolves, and crossing again fires
    no second time.
    """
    almost = Reading(NOVEMBER.start_ms, NOVEMBER, 800 * MICRO - 1)
    fired, known = play(BUDGET, [almost, reading(1, 800), reading(2, 700), reading(3, 900)])
    assert fired == [(ACTUAL, 80, 1)]
    assert known[ACTUAL, 80].state == FIRING
    _, known = play(BUDGET, [reading(1, 800), reading(2, 700)])
    assert known[ACTUAL, 80].state == RESOLVED


def test_two_thresholds_crossed_at_once_both_fire() -> None:
    """A budget that is set late finds itself past both."""
    fired, _ = play(BUDGET, [reading(1, 1000)])
    assert fired == [(ACTUAL, 80, 0), (ACTUAL, 100, 0)]


def test_a_forecast_fires_after_three_evaluations_in_a_row() -> None:
    """Two crossings and a lull begin anew; evaluations within the hour count once."""
    lull = [
        reading(1, 1, 1100),
        reading(2, 1, 1100),
        reading(3, 1, 900),
        reading(4, 1, 1100),
        reading(5, 1, 1100),
    ]
    fired, known = play(BUDGET, lull)
    assert fired == []
    assert known[FORECAST, 100].state == PENDING
    assert play(BUDGET, [*lull, reading(5, 1, 1100), reading(6, 1, 1100)])[0] == [
        (FORECAST, 100, 6)
    ]


def test_a_forecast_resolves_only_well_below_its_threshold() -> None:
    """Within three percent of the budget the alert stands."""
    up = [reading(hour, 1, 1100, 1200) for hour in range(3)]
    assert play(BUDGET, [*up, reading(4, 1, 800, 970)])[1][FORECAST, 100].state == FIRING
    assert play(BUDGET, [*up, reading(4, 1, 800, 969)])[1][FORECAST, 100].state == RESOLVED


def test_no_forecast_is_no_news() -> None:
    """Without an estimate a forecast threshold stays as it is, and what is spent already is not
    forecast.
    """
    up = [reading(hour, 1, 1100, 1200) for hour in range(3)]
    assert play(BUDGET, [*up, reading(4, 1)])[1][FORECAST, 100].state == FIRING
    assert play(BUDGET, [reading(hour, 1000, 1100, 1200) for hour in range(5)])[0] == [
        (ACTUAL, 80, 0),
        (ACTUAL, 100, 0),
    ]


def test_pace_needs_both_windows() -> None:
    """A burst of an hour is no alert; six hours of it are."""
    burst = Reading(NOVEMBER.start_ms, NOVEMBER, 1, pace_percents=(900, 199))
    steady = Reading(NOVEMBER.start_ms, NOVEMBER, 1, pace_percents=(200, 200))
    assert play(BUDGET, [burst])[0] == []
    assert play(BUDGET, [burst, steady, steady])[0] == [("pace", 200, 1)]


@given(
    st.lists(
        st.tuples(st.integers(0, 2000), st.none() | st.integers(0, 2000), st.integers(0, 2000)),
        max_size=40,
    )
)
def test_every_threshold_fires_at_most_once(values) -> None:
    """Whatever spend and forecast do, one alert per (budget, threshold, period)."""
    fired, known = play(BUDGET, [reading(hour, *value) for hour, value in enumerate(values)])
    keys = [(rule, percent) for rule, percent, _ in fired]
    assert len(keys) == len(set(keys))
    for percent in (80, 100):
        assert ((ACTUAL, percent) in keys) == any(spent >= percent * 10 for spent, _, _ in values)
    assert all(alert.fired_ms is not None for key, alert in known.items() if key in keys)


@given(st.integers(0, 80_000), st.sampled_from(["month", "quarter"]))
def test_periods_tile_time(day: int, kind: str) -> None:
    """Every instant lies in its period, and the next period begins where it ends."""
    budget = Budget(1, "b", {}, kind, None, 1, "USD")
    period = budget.period_at(day * DAY_MS)
    assert period.start_ms <= day * DAY_MS < period.end_ms
    assert budget.period_at(period.end_ms).start_ms == period.end_ms
    assert budget.period_at(period.start_ms) == budget.period_at(period.end_ms - 1) == period


def test_quarters_and_ranges() -> None:
    """November lies in the fourth quarter; a range is itself."""
    quarter = Budget(1, "b", {}, "quarter", None, 1, "USD").period_at(parse_date("2026-11-21"))
    assert (format_date(quarter.start_ms), format_date(quarter.end_ms)) == (
        "2026-10-01",
        "2027-01-01",
    )
    assert Budget(1, "b", {}, "range", NOVEMBER, 1, "USD").period_at(0) == NOVEMBER


def held(max_cost: int = 10**13):
    labels = st.tuples(st.sampled_from(["a", "b", "c", "d"]))
    return st.lists(
        st.builds(
            HolderSpend,
            labels,
            st.sampled_from(["H100", "L4"]),
            st.integers(0, 10**15),
            st.integers(0, max_cost),
        )
    )


@given(held(), held(), st.integers(0, 5))
def test_drivers_add_up_to_the_change_exactly(before, after, count) -> None:
    """Price, volume and mix add up to each driver's change, drivers to the whole, also when the
    rest is one line.
    """
    found = drivers(before, after)
    change = sum(one.cost_micro for one in after) - sum(one.cost_micro for one in before)
    for shown in (found, top(found, count)):
        assert sum(driver.change_micro for driver in shown) == change
        for driver in shown:
            assert (
                driver.price_micro + driver.volume_micro + driver.mix_micro == driver.change_micro
            )
    assert [abs(driver.change_micro) for driver in found] == sorted(
        (abs(d.change_micro) for d in found), reverse=True
    )


def test_drivers_tell_price_from_volume_from_mix() -> None:
    """The three textbook cases, in GPU-hours at a price of 2."""
    old = [HolderSpend(("a",), "H100", 100, 200), HolderSpend(("b",), "L4", 100, 100)]
    dearer = drivers(old, [HolderSpend(("a",), "H100", 100, 300), old[1]])[0]
    assert (dearer.price_micro, dearer.volume_micro, dearer.mix_micro) == (100, 0, 0)
    double = drivers(
        old, [HolderSpend(("a",), "H100", 200, 400), HolderSpend(("b",), "L4", 200, 200)]
    )
    assert [
        sum(getattr(d, f"{name}_micro") for d in double) for name in ("price", "volume", "mix")
    ] == [0, 300, 0]
    moved = drivers(old, [HolderSpend(("a",), "H100", 200, 400)])
    assert [
        sum(getattr(d, f"{name}_micro") for d in moved) for name in ("price", "volume", "mix")
    ] == [0, 0, 100]
    new = drivers(old, [*old, HolderSpend(("c",), "H100", 10, 25)])[0]
    assert (new.label, new.price_micro, new.volume_micro, new.mix_micro) == (("c",), 5, 15, 5)


def test_percents_are_of_what_is_spent() -> None:
    """Only what is reached counts: 99.9 % is 99."""
    assert percent_of(999, 1000) == 99
