"""Forecasts that are kept, scored when their hours are known, and told; and the ledger's demand by
the command.
"""

import datetime as dt
import json
import math
from dataclasses import replace

import numpy as np
import pytest

from fakes.collector import running
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS
from gpuledger_collector.insight.forecast_history import (
    REPLAYED_DAYS,
    StoredForecast,
    daily_origins,
    forecast_at,
    score_forecast,
    summarize_scores,
)
from gpuledger_collector.insight.series import Series
from gpuledger_collector.services.forecasts import forecast_records, store_forecasts
from gpuledger_collector.storage.capacity.backtests import insert, list_stored

pytestmark = pytest.mark.slow

NOW = dt.datetime.now(dt.UTC).replace(minute=30, second=0, microsecond=0)
NOW_MS = int(NOW.timestamp() * 1000)


@pytest.fixture
def used(run, tmp_path):
    """Thirty days of a pool that holds four GPUs by day and one by night, of team vision."""
    rows = ["workload_id,start,end,gpus,pool,tag:team"]
    start = NOW.replace(hour=0, minute=0) - dt.timedelta(days=30)
    rows.append(f"base,{start.isoformat()},,1,train,vision")
    for day in range(30):
        morning = start + dt.timedelta(days=day, hours=8)
        rows.append(
            f"day-{day},{morning.isoformat()},{(morning + dt.timedelta(hours=9)).isoformat()},3,train,vision"
        )
    (tmp_path / "jobs.csv").write_text("\n".join(rows) + "\n")
    assert run("import", "usage", tmp_path / "jobs.csv")[0] == 0


def test_forecasts_are_kept_once_and_scored(used, database):
    """The past days are replayed and scored on the first run; a second run adds nothing; a day
    later one is made.
    """
    store = database
    assert store_forecasts(store, NOW_MS) == 2 * (REPLAYED_DAYS + 1)  # of the pool and of the team
    assert store_forecasts(store, NOW_MS) == 0
    with database.connect() as connection:
        (found,) = forecast_records(connection, "pool", "train")
        assert forecast_records(connection, "team")[0].series == "vision"
        assert forecast_records(connection, "pool", "none") == []
    assert found.forecasts == REPLAYED_DAYS + 1
    assert found.replayed == REPLAYED_DAYS
    assert found.hours >= REPLAYED_DAYS * 24
    assert found.inside is not None
    assert found.inside > 0.8
    assert found.skill is not None
    assert found.skill > 0.3  # a daily shape is learnt
    assert store_forecasts(store, NOW_MS + DAY_MS) == 2
    with database.connect() as connection:
        assert forecast_records(connection, "pool", "train")[0].replayed == REPLAYED_DAYS


def test_days_whose_evidence_is_still_to_come_are_replayed_once_it_is_there():
    """A collector that has seen one day keeps no forecast of the days after it from that day."""
    hours = (REPLAYED_DAYS + 20) * 24
    start_ms = NOW_MS // DAY_MS * DAY_MS - hours * HOUR_MS
    whole = Series(
        "train", start_ms, HOUR_MS, np.tile(np.r_[np.ones(12), np.full(12, 4.0)], hours // 24)
    )
    first_day = replace(whole, values=np.r_[whole.values[:24], np.full(hours - 24, np.nan)])
    for origin_ms in daily_origins(NOW_MS):
        assert forecast_at([first_day], "pool", origin_ms, NOW_MS) == []
        assert len(forecast_at([whole], "pool", origin_ms, NOW_MS)) == 1


def test_the_record_is_told_by_command_and_over_http(used, run, dsn):
    """`forecast history` and GET /v1/forecast/history say the same; an unknown pool is refused in a
    sentence.
    """
    code, told, _ = run("forecast", "history", "--pool", "train", "--format", "json")
    assert code == 0
    (made,) = json.loads(told)
    with running(dsn) as collector:
        status, _, answer = collector.request("GET", "/v1/forecast/history?pool=train")
    assert status == 200
    assert answer["items"] == [made]
    assert "in band" in run("forecast", "history")[1]
    code, _, said = run("forecast", "history", "--team", "nobody")
    assert code == 2
    assert "no forecast of team 'nobody'" in said


def test_demand_of_an_owner_is_forecast(used, run):
    """By team as by pool: the same GPUs; an owner that is none, and two questions at once, are
    refused.
    """
    made = {}
    for asked in (("--pool", "train"), ("--owner", "team=vision")):
        code, told, _ = run(
            "forecast", *asked, "--method", "analog", "--horizon", "6h", "--format", "json"
        )
        assert code == 0
        (entry,) = json.loads(told)
        made[asked[0]] = [point["q0.9"] for point in entry["points"]]
    assert len(made["--owner"]) == 6
    np.testing.assert_allclose(made["--owner"], made["--pool"])
    for asked, words in (
        (("--owner", "team=none"), "there are vision"),
        (("--owner", "shoe=1"), "LEVEL=VALUE"),
        (("--pool", "train", "--model", "H100"), "give one of them"),
        (("--pool", "train", "--method", "oracle"), "not one of analog, persistence"),
        (("--pool", "train", "--step", "7m"), "neither 5m nor 1h"),
    ):
        code, _, said = run("forecast", *asked)
        assert (code, words in said) == (2, True), said


def test_a_pool_is_forecast_by_five_minutes(used, run):
    """Twelve steps an hour, from the last full five minutes on."""
    code, told, _ = run(
        "forecast", "--pool", "train", "--step", "5m", "--horizon", "1h", "--format", "csv"
    )
    assert code == 0
    assert len(told.splitlines()) == 13


def kept(values, origin_ms):
    rows = tuple((value - 2.0, value, value + 2.0, value + 3.0) for value in values)
    return StoredForecast(
        "pool", "p", origin_ms, origin_ms, False, (0.1, 0.5, 0.9, 0.95), rows, rows, {}
    )


def test_a_score_counts_known_hours_only():
    """Of four hours one is unknown and one has not come: two are judged, one of them in the band."""
    series = Series("p", 0, HOUR_MS, np.array([5.0, 5.0, 9.0, np.nan]))
    made = score_forecast(kept([5.0, 5.0, 5.0, 5.0], 0), series)
    assert (made.known, made.inside, made.under) == (
        2,
        1,
        {"0.1": 0, "0.5": 1, "0.9": 1, "0.95": 1},
    )
    assert made.actual == 14.0
    assert (
        made.loss
        == made.naive_loss
        == pytest.approx(
            ((0.1 * 2 + 0.1 * 2 + 0.05 * 3) + (0.1 * 6 + 0.5 * 4 + 0.9 * 2 + 0.95 * 1)) / 4
        )
    )
    told = summarize_scores("p", [(False, made)])
    assert told.wql == pytest.approx(2 * made.loss / 14)
    assert told.skill == pytest.approx(0.0)


def test_an_hour_without_a_baseline_is_stored_and_not_judged(database):
    """A baseline that has no value in an hour is unknown there: stored as such, read as such, and
    not scored.
    """
    made = kept([1, 2, 3, 4], NOW_MS // HOUR_MS * HOUR_MS)
    gap = tuple(math.nan for _ in made.quantiles)
    made = replace(made, grouped="pool", naive=(made.naive[0], gap, *made.naive[2:]))
    with database.transaction() as connection:
        insert(connection, [made])
        (read,) = list_stored(connection, "pool", 0)
    assert np.array_equal(read.naive, made.naive, equal_nan=True)
    assert read.values == made.values
    actual = Series("train", made.origin_ms + HOUR_MS, HOUR_MS, np.array([1.0, 2.0, 3.0, 4.0]))
    score = score_forecast(read, actual)
    assert (score.known, score.actual) == (3, 8.0)
    assert math.isfinite(score.naive_loss)


def test_nothing_known_is_no_record():
    """Without a known hour there is no share and no loss, never a zero."""
    made = score_forecast(kept([5.0], 9 * HOUR_MS), Series("p", 0, HOUR_MS, np.array([5.0])))
    told = summarize_scores("p", [(True, made)])
    assert (told.hours, told.inside, told.wql, told.skill) == (0, None, None, None)


def test_forecasts_start_before_midnight():
    """Each knows the last hour of a day."""
    found = daily_origins(20_000 * DAY_MS + 5 * HOUR_MS)
    assert found[-1] == 20_000 * DAY_MS - HOUR_MS
    assert len(found) == REPLAYED_DAYS + 1
    assert set(np.diff(found).tolist()) == {DAY_MS}


def test_spend_of_a_month_is_looked_ahead_from_rated_days(used, run, tmp_path):
    """Thirty even days: what is spent plus what is left of the month at the daily cost; without a
    price no estimate.
    """
    assert run("forecast", "spend", "--exit-code")[0] == 1
    prices = tmp_path / "prices.csv"
    prices.write_text(
        "pool,gpu_model,purchase,rate_per_gpu_hour,currency,effective_from\n,,on_demand,2,USD,2025-01-01\n"
    )
    assert run("import", "prices", prices)[0] == 0
    code, told, _ = run("forecast", "spend", "--by", "team", "--format", "json")
    assert code == 0
    (made,) = json.loads(told)
    assert (made["team"], made["currency"]) == ("vision", "USD")
    spent, forecast, low, high = (
        float(made[name]) for name in ("spent", "forecast", "low", "high")
    )
    assert spent <= low <= forecast <= high
    now = dt.datetime.now(dt.UTC)
    next_month = (now.replace(day=1) + dt.timedelta(days=32)).replace(
        day=1, hour=0, minute=0, second=0, microsecond=0
    )
    daily = 2.0 * (24 + 3 * 9)
    left = (next_month - now) / dt.timedelta(days=1)
    assert forecast == pytest.approx(spent + daily * left, abs=1.5 * daily)
    assert run("forecast", "spend", "--by", "pool")[0] == 2
