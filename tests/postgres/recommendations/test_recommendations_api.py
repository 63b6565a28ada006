"""GET /v1/recommendations: the job's advice, a page at a time."""

import pytest

from fakes.collector import running
from fakes.fleet import DAY, HOUR, OCTOBER, Held
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.services.recommendation_search import recommend
from gpuledger_collector.services.refresh import refresh
from gpuledger_collector.storage.database import Database

pytestmark = pytest.mark.slow


@pytest.fixture
def collector(dsn, fleet, ledger):
    """Two pools whose only GPU nobody held for two days, one priced and one not."""
    fleet.connection.execute(
        "INSERT INTO price (pool, gpu_model, purchase, rate_per_gpu_hour, currency,"
        " effective_from_ms, recorded_at) VALUES ('a', '', 'on_demand', 2, 'USD', 0, now())"
    )
    for number, pool in ((1, "a"), (2, "b")):
        fleet.capacity(number, 0, pool=pool)
    for hour in range(48):
        at = hour * HOUR
        fleet.evidence([Held(number, None, at, at + HOUR, "unallocated") for number in (1, 2)])
    refresh(ledger, Period(OCTOBER, OCTOBER + 2 * DAY), OCTOBER + 2 * DAY)
    recommend(Database(dsn), OCTOBER + 2 * DAY)
    with running(dsn) as made:
        yield made


def test_every_one_comes_once_with_its_amounts(collector):
    """Integers of micro-units, null where no rate is known, the whole beside them and never a sum."""
    status, _, first = collector.request("GET", "/v1/recommendations?limit=1")
    assert status == 200
    _, _, second = collector.request(
        "GET", f"/v1/recommendations?limit=1&after={first['next'].replace(' ', '%20')}"
    )
    items = [*first["items"], *second["items"]]
    assert [item["subject"].split("/")[1] for item in items] == ["a", "b"]
    assert items[0]["cash_micro"] == {"low": 96_000_000, "expected": 96_000_000, "high": 96_000_000}
    assert items[1]["cash_micro"] == {"low": None, "expected": None, "high": None}
    assert first["joint"]["USD"]["cash"] == [96_000_000] * 3
    assert items[0]["start"] == "2025-10-01T00:00:00Z"
    assert first["looked_until"] == "2025-10-03T00:00:00Z"


def test_nonsense_is_refused_with_its_sentence(collector):
    """A state that is none."""
    status, _, answer = collector.request("GET", "/v1/recommendations?state=dreamt")
    assert status == 422
    assert "dreamt" in answer["detail"]
    assert collector.request("GET", "/v1/recommendations?state=rejected")[2]["items"] == []
