"""A dispute's preview, its decision and the ledger state the same amounts, under volume prices and
discounts.
"""

import re

import pytest

from fakes.fleet import DAY, NOW_MS, Held

OCTOBER = ("--period", "2025-10")
ADJUSTMENTS = """
[[adjustment]]
name = "volume"
kind = "tiered"
per = "team"
currency = "USD"
steps = { "0" = 2.5, "100" = 2.0, "200" = 1.5 }

[[adjustment]]
name = "partner"
kind = "discount"
owner = { team = "nlp" }
percent = 25
"""


@pytest.fixture
def october(fleet, run, written, monkeypatch):
    """Vision holds a GPU for 10 days, C(240) = 510; nlp another for 5, C(120) = 290 less 25 % =
    217.50.
    """
    run("prices", "set", "--rate", "2.5", "--currency", "USD", "--from", "2025-01-01")
    monkeypatch.setattr("gpuledger_collector.wiring.read_clock", lambda: NOW_MS)
    assert run("apply", written("adjustments.toml", ADJUSTMENTS))[0] == 0
    fleet.workload(1, team="vision")
    fleet.workload(2, team="nlp")
    fleet.capacity(1, 0, 10 * DAY)
    fleet.capacity(2, 0, 10 * DAY)
    fleet.evidence([Held(1, 1, day * DAY, (day + 1) * DAY) for day in range(10)])
    fleet.evidence([Held(2, 2, day * DAY, (day + 1) * DAY) for day in range(5)])
    assert run("chargeback", *OCTOBER)[0] == 0
    assert owed(fleet) == {"vision": 510_000_000, "nlp": 217_500_000}
    return run


def owed(fleet):
    """What the teams owe for October, with all corrections, in micro-units."""
    columns = "day_ms, owner_id, cost_micro"
    rows = fleet.rows(
        f"SELECT o.team, sum(l.cost_micro)::bigint FROM (SELECT {columns} FROM ledger_day UNION ALL"
        f" SELECT {columns} FROM correction) l JOIN owner o ON o.id = l.owner_id GROUP BY 1"
    )
    return dict(rows)


def contested(run):
    """A dispute of vision about its days 3 to 5, of 72 hours."""
    span = ("--from", "2025-10-03", "--to", "2025-10-06")
    code, out, err = run("disputes", "open", "--owner", "vision", *span, "--reason", "lent to nlp")
    assert code == 0, err
    return re.match(r"dispute (\d+) is open", out)[1]


@pytest.mark.parametrize("closed", [False, True])
def test_dry_run_decision_and_ledger_state_the_same_amounts(october, fleet, closed):
    """Vision is left with C(168) = 386, nlp has C(192) = 434 less 25 %: 124.00 less and 108.00
    more.
    """
    if closed:
        assert october("close", *OCTOBER)[0] == 0
    number = contested(october)
    decision = ("disputes", "resolve", number, "--accept", "--to", "team=nlp", "--note", "x")
    before = owed(fleet)
    code, dry, err = october(*decision, "--dry-run")
    assert code == 0, err
    assert owed(fleet) == before
    stated = [
        "72.000000 GPU-hours, 124.00 USD in all",
        "for team=nlp, at its own price, 108.00 USD",
    ]
    assert dry.splitlines()[-2:] == stated
    # Hours that moved on the 3rd make the rest of vision's October dearer.
    assert "2025-10-10  team=vision pays 12.00 USD more by its volume price" in dry
    assert dry.count("a correction: the day is closed") == (
        len(dry.splitlines()) - 4 if closed else 0
    )
    code, done, err = october(*decision)
    assert code == 0, err
    assert done.splitlines()[-3:-1] == stated
    assert done.splitlines()[-1].endswith(
        "team=vision pays 124.00 USD less, team=nlp pays 108.00 USD more"
    )
    assert owed(fleet) == {"vision": 386_000_000, "nlp": 325_500_000}


def test_unavailable_time_costs_its_rate_and_no_volume_price(october, fleet):
    """Vision pays 124.00 less; 72 hours at the rate of the book are nobody's."""
    number = contested(october)
    code, out, err = october(
        "disputes", "resolve", number, "--accept", "--unavailable", "--note", "x"
    )
    assert code == 0, err
    assert "for unavailable time, at its own price, 180.00 USD" in out
    assert out.rstrip().endswith(
        "team=vision pays 124.00 USD less, unavailable time costs 180.00 USD more"
    )
    assert owed(fleet)["vision"] == 386_000_000
