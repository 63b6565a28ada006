"""GET /pools/{pool}: the commands' numbers of a pool on one page; for the whole fleet's readers;
good to look at.
"""

import json
from urllib.parse import quote

import pytest

from fakes.collector import running
from fakes.pages import Page
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, format_instant, parse_instant
from gpuledger_collector.api import fleet_pages, pool_page
from gpuledger_collector.api.auth.principal import ANYBODY, Denied, Principal
from gpuledger_collector.api.page_routes import HourlyCache, View
from gpuledger_collector.export.plots import dates
from gpuledger_collector.insight.demand import DEMAND_DAYS
from gpuledger_collector.insight.pool_outlook import Outlook
from gpuledger_collector.services.forecasts import (
    forecast_outlook,
    forecast_pools,
    pool_demand,
    store_forecasts,
)
from gpuledger_collector.services.scaling_advice import UnknownPool, advise_scaling

from .conftest import HOSTILE, OCTOBER_NIGHT_MS

pytestmark = pytest.mark.slow

NOW_MS = OCTOBER_NIGHT_MS
DAYS = 16


def usage(pool, now_ms, days=DAYS):
    """A base of 16 GPUs that goes on, and 8 more every afternoon."""
    start = now_ms - days * 24 * HOUR_MS
    rows = [f"base,{format_instant(start)},,16,{pool}"]
    rows += [
        f"rise-{day},{format_instant(start + (24 * day + 12) * HOUR_MS)},"
        f"{format_instant(start + (24 * day + 18) * HOUR_MS)},8,{pool}"
        for day in range(days)
    ]
    return "\n".join(["workload_id,start,end,gpus,pool", *rows]) + "\n"


@pytest.fixture
def pool(run, written, reads):
    """Pool `train` of sixteen days at 2 USD, its forecasts kept, and decisions of its last hours
    judged.
    """
    assert run("import", "usage", written("usage.csv", usage("train", NOW_MS)))[0] == 0
    assert run("prices", "set", "--rate", "2", "--currency", "USD", "--from", "2025-01-01")[0] == 0
    assert (
        run(
            "apply",
            written("pools.toml", '[[pool]]\nname = "train"\nlead_time_s = 1800\nmin_gpus = 20\n'),
        )[0]
        == 0
    )
    assert store_forecasts(reads.database, NOW_MS) > 0
    for hours in (30, 29, 26, 2, 1, 0):
        advise_scaling(reads.database, NOW_MS - hours * HOUR_MS)
    return "train"


def page_of(reads, pool, who=ANYBODY):
    return pool_text(
        reads, pool_page.backtest_as_declared(reads.database, reads.now_ms, pool), pool, who
    )


def pool_text(reads, backtest, pool, who=ANYBODY):
    return pool_page.pool_page(reads, backtest, pool, View(who)).body.decode()


def test_its_numbers_are_those_of_the_commands(pool, reads, run, monkeypatch, request):
    """The back-test row by row, the last decision, the share of hours in their band; its picture."""
    monkeypatch.setattr("gpuledger_collector.wiring.read_clock", lambda: OCTOBER_NIGHT_MS)
    text = page_of(reads, pool)
    page = Page(text)
    assert page.faults == []
    backtest = json.loads(run("scale", "backtest", "--pool", pool, "--format", "json")[1])
    rows = page.table("policy").rows[1:]
    assert [row[0] for row in rows] == [
        pool_page.NAMES[policy["policy"]] for policy in backtest["policies"]
    ]
    for row, policy in zip(rows, backtest["policies"], strict=True):
        assert (row[1], row[4]) == (f"{policy['wait']:,.1f}", f"{policy['cost']:,.0f}")
    latest = json.loads(run("scale", "history", "--pool", pool, "--format", "json")[1])[0]
    assert f"Last decision {latest['desired_gpus']:g} GPUs" in page.text
    assert latest["reason"] in page.text
    (past,) = json.loads(run("forecast", "history", "--pool", pool, "--format", "json")[1])
    assert f"inside the forecast band {100 * past['inside']:.0f} %" in page.text
    assert "Prediction on advice only" in page.text
    assert 'name = "train"\npredict = false' in text.replace("&#34;", '"')
    # Only now: without a Chromium all the rest is still judged.
    pictured = request.getfixturevalue("pictured")
    for width, dark in ((1280, False), (390, False), (390, True)):
        picture, wanted = pictured(text, width, 2400, dark=dark)
        assert wanted <= width
        assert picture.stat().st_size > 15_000


def test_a_pool_of_few_days_says_so(run, written, reads):
    """No back-test, no price, no forecast, no decision: sentences, and nothing is zero instead."""
    assert run("import", "usage", written("usage.csv", usage("new", NOW_MS, 2)))[0] == 0
    page = Page(page_of(reads, "new"))
    assert page.faults == []
    for words in ("No back-test yet: ", "Last decision none", "inside the forecast band not known"):
        assert words in page.text, words


def test_who_may_look_and_what_is_not_there(pool, dsn, reads, run, written, monkeypatch):
    """A viewer of one team does not; an unknown pool is a page with 404; a hostile name is text,
    and its link works.
    """
    with pytest.raises(Denied):
        pool_text(reads, None, pool, Principal("viewer", "vision", owner={"team": "vision"}))
    start = format_instant(NOW_MS - HOUR_MS)
    evil = 'workload_id,start,end,gpus,pool\nevil,{},,1,"{}"\n'.format(
        start, HOSTILE.replace('"', '""')
    )
    assert run("import", "usage", written("evil.csv", evil))[0] == 0
    # No thread is to outlive the test.
    monkeypatch.setattr(pool_page, "backtest_as_declared", lambda *_: None)
    with running(dsn) as collector:
        status, headers, answer = collector.request("GET", "/pools/nowhere")
        assert (status, Page(answer).faults) == (404, [])
        for name in ("train", quote(HOSTILE, safe="")):
            status, headers, answer = collector.request("GET", f"/pools/{name}")
            assert (status, Page(answer).faults) == (200, [])
            assert headers["Content-Security-Policy"].startswith(
                "default-src 'none'; style-src 'sha256-"
            )
    page = Page(pool_text(reads, None, HOSTILE))
    assert page.faults == []
    assert HOSTILE in page.text
    assert "back-test is running" in page.text
    assert quote(HOSTILE, safe="") in pool_page.pool_path(HOSTILE)


@pytest.fixture
def left(run, written, reads):
    """Pool `left`, whose forecasts are kept, and whose last job ended before the weeks that demand
    is read of.
    """
    start, end = NOW_MS - 80 * DAY_MS, NOW_MS - (DEMAND_DAYS + 1) * DAY_MS
    row = f"job,{format_instant(start)},{format_instant(end)},4,left"
    assert (
        run("import", "usage", written("usage.csv", f"workload_id,start,end,gpus,pool\n{row}\n"))[0]
        == 0
    )
    assert store_forecasts(reads.database, end) > 0
    return "left"


def backtest_of(reads, pool):
    """What the page of a pool shows once its back-test has ended."""
    cache = pool_page.BacktestCache(reads)
    cache.get(pool, ANYBODY)
    cache.pools[pool].thread.join(60)
    return cache.get(pool, ANYBODY)


def test_demand_that_has_ended_is_not_drawn_as_the_next_hours(pool, reads, run, written):
    """An import that ended ten days ago: pages forecast nothing of it, and a forecast says that it
    lies in the past.
    """
    start, end = (format_instant(NOW_MS - days * DAY_MS) for days in (14, 10))
    rows = f"workload_id,start,end,gpus,pool\nold,{start},{end},4,<ended>\n"
    assert run("import", "usage", written("old.csv", rows))[0] == 0
    outlook = forecast_outlook(reads.database, NOW_MS)
    assert [each.name for each in outlook.pools] == [pool]
    assert outlook.ended == (("<ended>", NOW_MS - 10 * DAY_MS),)
    kept = HourlyCache(lambda: outlook)
    kept.get(NOW_MS, wait_s=60)
    sentence = "Nothing is known of pool &lt;ended&gt; since "
    assert sentence in fleet_pages.demand_page(reads, kept, View(ANYBODY)).body.decode()
    with reads.database.connect() as connection:
        demand = pool_demand(connection, NOW_MS)
    notes = {each.series: each.note for each in forecast_pools(demand, 24, NOW_MS)}
    said = f"nothing is known since {end}: this follows that instant, and is not what comes next"
    assert (notes["<ended>"], notes[pool]) == (said, None)


def test_a_pool_that_left_the_window_of_demand_says_so(left, reads):
    """It is a known pool, and no back-test runs for it: neither a 404 nor a page that waits."""
    backtest = backtest_of(reads, left)
    assert backtest is not None
    page = Page(pool_text(reads, backtest, left))
    assert page.faults == []
    assert "No back-test yet: no demand in the last 56 days" in page.text
    assert "is running" not in page.text
    with pytest.raises(UnknownPool):
        pool_page.BacktestCache(reads).get("nowhere", ANYBODY)


def test_the_demand_page_leads_to_every_pool_with_forecasts(left, reads, run, written):
    """Also before its own outlook is made, and where only the record of forecasts knows the pool."""
    with reads.database.transaction() as connection:
        connection.execute("DELETE FROM imported_usage")
    text = fleet_pages.demand_page(reads, HourlyCache(Outlook), View(ANYBODY)).body.decode()
    assert f'href="{pool_page.pool_path(left)}"' in text
    assert backtest_of(reads, left) is not None


def test_days_stand_under_a_chart_where_they_begin():
    """Days (UTC) by their first hour, six at most."""
    first = parse_instant("2025-10-30T21:00:00Z")
    assert dates(first, HOUR_MS, 52) == [(3, "31 Oct"), (27, "1 Nov"), (51, "2 Nov")]
    assert dates(first, HOUR_MS, 3) == []
    many = dates(first + 3 * HOUR_MS, HOUR_MS, 8 * 24)
    assert many == [(0, "31 Oct"), (48, "2 Nov"), (96, "4 Nov"), (144, "6 Nov")]
