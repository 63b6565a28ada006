"""What counts against a budget: direct cost, total cost, and GPU-hours; each says its unit
everywhere.
"""

from __future__ import annotations

import csv
import io
import json

import pytest

from fakes.fleet import DAY, NOW_MS, OCTOBER, Held
from gpuledger_collector import wiring
from gpuledger_collector.accounting.money import MICRO
from gpuledger_collector.accounting.period import Period, parse_instant
from gpuledger_collector.export.budgets import BUDGETS
from gpuledger_collector.export.statement import budget_facts
from gpuledger_collector.services.budget_status import evaluate_shares, statuses
from gpuledger_collector.services.refresh import refresh
from gpuledger_collector.storage import row_level_security
from gpuledger_collector.storage.billing import budgets as stored
from gpuledger_collector.storage.database import Database

TOTAL = """
[[budget]]
name = "in all"
team = "vision"
period = "month"
amount = 500
currency = "USD"
measure = "total"
recipients = ["lead@example.com"]

[[shared_cost]]
name = "support"
amount_per_month = 620
currency = "USD"
key = "cost"

[[shared_cost]]
name = "network"
amount_per_month = 31
currency = "EUR"
key = "even"
"""
HOURS = """
[[budget]]
name = "hours"
team = "vision"
period = "month"
amount = 400.5
measure = "gpu_hours"
recipients = ["lead@example.com"]
"""
TENTH = OCTOBER + 10 * DAY
WHOLE = Period(OCTOBER, OCTOBER + 31 * DAY)


@pytest.fixture
def two_teams(october, dsn):
    """Vision and another team hold as much as each other until the 15th."""
    october.capacity(3, 0, 31 * DAY)
    october.workload(3, team="speech")
    october.evidence([Held(3, 3, day * DAY, (day + 1) * DAY, busy=DAY) for day in range(15)])
    refresh(Database(dsn), WHOLE, NOW_MS)
    return october


def evaluated(fleet, at_ms):
    """The only budget, after its shares were computed as of an instant."""
    (budget,) = stored.current(fleet.connection)
    evaluate_shares(fleet.connection, budget, budget.period_at(at_ms), at_ms)
    (status,) = statuses(fleet.connection, at_ms)
    return status


def test_total_cost_is_what_the_chargeback_asks(two_teams, apply, run) -> None:
    """Direct cost and shares, to the micro-unit; the other currency is in no amount, and the
    forecast has both.
    """
    apply(TOTAL)
    (unknown,) = statuses(two_teams.connection, TENTH)
    assert (unknown.spend.micro, unknown.ahead, unknown.spent_percent) == (
        None,
        None,
        None,
    ), "not zero"
    assert budget_facts(unknown)["spent"] == "not known"
    status = evaluated(two_teams, TENTH)
    range_of_days = (
        "--from",
        "2025-10-01",
        "--to",
        "2025-10-11",
        "--by",
        "team",
        "--format",
        "json",
    )
    bill = json.loads(run("chargeback", *range_of_days)[1])["rows"]
    (mine,) = [row for row in bill if row["team"] == "vision" and row["currency"] == "USD"]
    assert status.spend.micro == mine["cost_micro"] + mine["shared_cost_micro"] == 340 * MICRO
    assert status.spend.shared_micro == 100 * MICRO
    assert status.ahead.middle_micro == 31 * 34 * MICRO
    assert status.pace_percents == (100 * 34 * 31 // 500, 100 * 34 * 31 // 500)
    row = BUDGETS.exact(status)
    assert (row["measure"], row["unit"], row["currency"], row["spent"]) == (
        "total",
        "USD",
        "USD",
        "340.00",
    )


def test_a_viewer_reads_the_total_that_was_stored(two_teams, apply) -> None:
    """A share depends on what everybody held; who sees one team reads it as it was computed."""
    apply(TOTAL)
    expected = evaluated(two_teams, TENTH)
    row_level_security.enable(two_teams.connection)
    with row_level_security.as_viewer(two_teams.connection, {"team": "vision"}):
        (seen,) = statuses(two_teams.connection, TENTH)
        assert two_teams.rows("SELECT count(*) FROM owner") == [(2,)], "its own projects"
    assert seen == expected
    with row_level_security.as_viewer(two_teams.connection, {"team": "speech"}):
        assert two_teams.rows("SELECT count(*) FROM budget_share") == [(0,)]


def test_thresholds_of_total_cost_fire_by_it(two_teams, apply, watch) -> None:
    """34 a day: half of 500 is reached on the eighth day, when the direct cost is 192; the mail
    says what is shared.
    """
    apply(TOTAL)
    assert [day for day in range(1, 9) if watch(day) and day != 7] == [8]
    ((text, attachments),) = two_teams.rows(
        "SELECT text, attachments FROM outbox WHERE key LIKE '%%actual/50'"
    )
    assert "Spent      USD 272.00" in text
    assert "Shared     USD 80.00 of it are shares of common costs" in text
    drivers = csv.DictReader(io.StringIO(attachments["drivers.csv"]))
    assert {row["workload"]: row["currency"] for row in drivers}["(shared costs)"] == "USD"


def test_hours_count_whatever_they_cost(october, apply, watch, run, dsn, monkeypatch) -> None:
    """Without any price hours are known; the mail, table, JSON and page speak of GPU-hours and of
    no money.
    """
    october.connection.execute("UPDATE price SET superseded_at = now()")
    october.connection.execute(
        "INSERT INTO day_recompute (day_ms) SELECT day_ms FROM conservation_check"
    )
    refresh(Database(dsn), WHOLE, NOW_MS)
    apply(HOURS)
    monkeypatch.setattr(wiring, "read_clock", lambda: parse_instant("2025-10-11T00:00:00Z"))
    (row,) = json.loads(run("budgets", "--format", "json")[1])["budgets"]
    facts = [
        row[name]
        for name in ("measure", "unit", "currency", "amount", "spent", "spent_percent", "forecast")
    ]
    assert facts == ["gpu_hours", "GPU-hours", None, "400.50", "240.00", 59, "744"]
    assert row["unpriced_gpu_hours"] == 0
    assert "240.00 GPU-hours" in run("budgets")[1]
    facts = budget_facts(evaluated(october, TENTH))
    assert (facts["spent"], facts["unit"], facts["forecast"].split(" ")[0]) == (
        "240.00",
        "GPU-hours",
        "744",
    )
    assert watch(9) == 1
    ((subject, text, attachments),) = october.rows("SELECT subject, text, attachments FROM outbox")
    assert subject.startswith(
        "[GPU budget] hours: 53 % of 400 GPU-hours on day 9 of 31, forecast 744 GPU-hours"
    )
    assert (
        "hours (vision) has used 216.00 GPU-hours, which is past 50 % of its budget of 400.50"
        " GPU-hours." in " ".join(text.split())
    )
    assert "Held idle  54.00 GPU-hours of what was used" in text
    assert "USD" not in text
    assert next(csv.DictReader(io.StringIO(attachments["drivers.csv"])))["unit"] == "GPU-hours"


def test_a_measure_goes_round_and_supersedes(october, apply, run, watch) -> None:
    """`export config` writes it; another measure is another budget, whose thresholds are fresh."""
    apply(HOURS)
    assert watch(9) == 1
    exported = run("export", "config")[1]
    assert 'measure = "gpu_hours"' in exported
    assert "budgets: 0 added, 0 superseded, 1 unchanged" in apply(exported)[1]
    money = HOURS.replace('measure = "gpu_hours"', 'currency = "USD"')
    assert "budgets: 0 added, 1 superseded" in apply(money)[1]
    assert watch(9.1) == 1
    assert [row[0] for row in october.rows("SELECT DISTINCT measure FROM budget ORDER BY 1")] == [
        "direct",
        "gpu_hours",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            HOURS + 'currency = "USD"\n',
            ':2:currency: belongs to money: with measure = "gpu_hours" the amount is in GPU-',
        ),
        (HOURS.replace("gpu_hours", "total"), ":2:currency: is empty"),
        (
            HOURS.replace("gpu_hours", "hours"),
            ":2:measure: 'hours' is not one of direct, total, gpu_hours",
        ),
    ],
)
def test_a_budget_has_one_unit(apply, text, said) -> None:
    """Hours have no currency and money has one."""
    code, _, err = apply(text)
    assert code == 2
    assert said in err
