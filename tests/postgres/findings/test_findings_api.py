"""GET /v1/idle and /v1/anomalies: the findings of the jobs, a page at a time."""

import pytest

from fakes.collector import running
from fakes.fleet import DAY, OCTOBER
from fakes.idle_day import furnish
from gpuledger_collector.services.idle_search import find_idle


@pytest.fixture
def collector(dsn, fleet, findings):
    furnish(fleet)
    find_idle(findings, OCTOBER + DAY)
    with running(dsn) as made:
        yield made


def test_idle_is_given_page_by_page_with_money(collector):
    """Every finding once over the pages, cost as an integer of micro-units, and up to when it was
    looked.
    """
    seen, after = [], ""
    while after is not None:
        status, _, answer = collector.request("GET", f"/v1/idle?days=400&limit=2&after={after}")
        assert status == 200
        seen += answer["items"]
        after = answer["next"]
    assert {item["state"] for item in seen} == {"gone_idle", "unallocated", "never_used"}
    assert len(seen) == len({item["key"] for item in seen}) == 3
    assert all(isinstance(item["cost_micro"], int) for item in seen)
    assert answer["looked_until"].startswith("2025-10-02T00:00")


def test_anomalies_are_empty_until_there_are_any(collector):
    """No episodes: an empty page, not an error; nonsense is refused."""
    status, _, answer = collector.request("GET", "/v1/anomalies?days=30")
    assert status == 200
    assert answer == {"items": [], "next": None, "looked_until": None}
    assert collector.request("GET", "/v1/idle?days=0")[0] == 422
