"""The waste receipt: everything charged, every finding with its evidence, and never more waste than
was charged.
"""

from __future__ import annotations

import json

import pytest

from fakes.fleet import DAY, OCTOBER
from fakes.idle_day import furnish
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.services.idle_search import find_idle
from gpuledger_collector.services.refresh import refresh

pytestmark = pytest.mark.slow


@pytest.fixture
def furnished(fleet, ledger, findings):
    furnish(fleet)
    refresh(ledger, Period(OCTOBER, OCTOBER + DAY), OCTOBER + DAY)
    find_idle(findings, OCTOBER + DAY)
    return fleet


def test_the_sums_are_those_of_the_ledger_and_of_the_findings(furnished, run):
    """To the micro-unit; each item says when, where, and what was read."""
    code, out, _ = run("receipt", "slurm::1", "--format", "json")
    assert code == 0
    told = json.loads(out)
    ((charged,),) = furnished.rows(
        "SELECT sum(cost_micro)::bigint FROM charge JOIN workload w ON w.id = workload_id WHERE"
        " w.key = 'slurm::1'"
    )
    ((wasted,),) = furnished.rows("SELECT cost_micro FROM finding WHERE state = 'gone_idle'")
    total = told["totals"]["USD"]
    assert (total["cost_micro"], total["found_micro"]) == (charged, wasted)
    assert 0 < wasted < charged
    (item,) = told["items"]
    assert (item["state"], item["accelerator"], item["node"]) == ("gone_idle", "GPU-0001", "n1")
    assert item["readings"]["utilization_ratio"] == 0
    assert len({one["price_id"] for one in told["held"]}) == 2


def test_one_page_that_people_can_read(furnished, run, tmp_path):
    """By the id at the scheduler; on the page stand the item, its evidence and the total."""
    path = tmp_path / "receipt.txt"
    code, _, _ = run("receipt", "1", "-o", str(path))
    text = path.read_text()
    assert code == 0
    assert len(text.splitlines()) <= 66
    assert "gone idle: 2025-10-01T06:00Z to 2025-10-02T00:00Z, 18.0 h" in text
    assert "0.0% utilized, 60.0 GiB held" in text
    assert "% of what was charged" in text


def test_who_is_not_there_or_not_alone_is_refused(furnished, run):
    """One sentence; two of a name are named by their keys."""
    code, _, err = run("receipt", "nobody")
    assert code == 2
    assert "nobody" in err
    furnished.connection.execute("UPDATE workload SET name = 'twin'")
    code, _, err = run("receipt", "twin")
    assert code == 2
    assert "slurm::1, slurm::3" in err
