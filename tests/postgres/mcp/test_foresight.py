"""Budgets and forecasts as an assistant gets them: the numbers of the command and the pages, in
their own periods.
"""

import json

import psycopg
import pytest

from fakes.assistant import over
from fakes.facts import DAY, SEPTEMBER_MS
from gpuledger_collector.services import forecasts
from gpuledger_collector.services.budget_status import standings
from gpuledger_collector.services.findings import WHOLE_FLEET
from gpuledger_collector.services.forecasts import forecast_pools, pool_demand
from gpuledger_collector.services.spend_forecasts import forecast_owners
from gpuledger_collector.storage.ledger import zones
from gpuledger_common.plurals import plural

NOW_MS = SEPTEMBER_MS + 20 * DAY + 6 * 3_600_000
BUDGETS = """
[[budget]]
name = "alpha until Christmas"
team = "alpha"
period = "range"
from = 2026-07-20
to = 2026-12-24
amount = 1000
currency = "USD"

[[budget]]
name = "hours"
team = "bravo"
period = "month"
measure = "gpu_hours"
amount = 500
"""


@pytest.fixture(scope="module")
def budgeted(books, tmp_path_factory):
    """The books, with a budget of a range and one of GPU-hours."""
    path = tmp_path_factory.mktemp("budgets") / "budgets.toml"
    path.write_text(BUDGETS)
    books.out("apply", path)
    yield books
    path.write_text("budget = []\n")
    books.out("apply", path)


def test_a_budget_stands_in_its_own_period(budgeted) -> None:
    """What is spent of it is that of `gpuledger budgets`, and its period is said."""
    answer = budgeted.assistant().ask("list_budgets").content
    rows = {row["budget"]: row for row in answer["rows"]}
    with psycopg.connect(budgeted.dsn) as connection:
        stands = {
            status.budget.name: status for status in standings(connection, NOW_MS, WHOLE_FLEET)
        }
    assert set(rows) == set(stands) == {"alpha until Christmas", "hours"}
    money, hours = rows["alpha until Christmas"], rows["hours"]
    assert (money["period"]["start"], money["period"]["end"]) == (
        "2026-07-20T00:00:00Z",
        "2026-12-24T00:00:00Z",
    )
    assert money["amount"] == {"amount": "1000.000000", "currency": "USD"}
    spent = stands["alpha until Christmas"].spend.micro
    assert spent
    assert money["spent"] == {"amount": f"{spent / 10**6:.6f}", "currency": "USD"}
    assert hours["amount"] == {"value": "500.000000", "unit": "GPU-hour"}
    assert hours["owner"] == {"team": "bravo"}
    assert all(row["spent_percent"] == stands[name].spent_percent for name, row in rows.items())


def test_a_viewer_sees_the_viewers_budgets(budgeted) -> None:
    """And no forecast of others."""
    assistant = budgeted.assistant({"team": "bravo"})
    assert [row["budget"] for row in assistant.ask("list_budgets").content["rows"]] == ["hours"]
    assert {row["owner"] for row in assistant.ask("forecast_spend").content["rows"]} <= {"bravo"}
    assert assistant.ask("forecast_demand").is_error


def test_a_forecast_of_spending_is_that_of_the_budget(books) -> None:
    """The range of each team by the end of the month; an estimate, and never a charge."""
    answer = books.assistant().ask("forecast_spend").content
    with psycopg.connect(books.dsn) as connection:
        calendar = zones.calendar(connection)
        month = calendar.month(calendar.month_of(NOW_MS))
        ends = forecast_owners(connection, "team", ["alpha", "bravo"], month, NOW_MS)
    assert "alpha" in ends
    rows = {(row["owner"], row["currency"]): row["forecast"] for row in answer["rows"]}
    expected = {
        (owner, currency): end for owner, by in ends.items() for currency, end in by.items()
    }
    assert set(rows) == set(expected)
    for key, end in expected.items():
        assert rows[key]["middle"] == {
            "amount": f"{end.middle_micro / 10**6:.6f}",
            "currency": key[1],
        }
    assert answer["proof"]["state"] == "estimated"


def test_a_forecast_of_demand_is_that_of_the_pages(books) -> None:
    """Mean, peak and its hour of each pool, from the same function."""
    answer = books.assistant().ask("forecast_demand", hours=12).content
    with psycopg.connect(books.dsn) as connection:
        ahead = {
            each.series: each
            for each in forecast_pools(pool_demand(connection, NOW_MS), 12, NOW_MS)
        }
    assert ahead
    assert {row["pool"] for row in answer["rows"]} == set(ahead)
    for row in answer["rows"]:
        forecast = ahead[row["pool"]]
        middle = forecast.values[:, forecast.quantiles.index(0.5)]
        assert float(row["peak"]["value"]) == round(float(middle.max()), 1)
        assert float(row["mean"]["value"]) == round(float(forecast.mean.mean()), 1)
    assert answer["proof"]["state"] == "estimated"
    one = books.assistant().ask("forecast_demand", pool=answer["rows"][0]["pool"]).content
    assert one["row_count"] == 1


def test_pools_of_less_demand_are_counted(books, monkeypatch) -> None:
    """As over HTTP: those of most demand, and a sentence about the others."""
    every = books.assistant().ask("forecast_demand").content
    assert (every["row_count"] > 1, every["notices"]) == (True, [])
    monkeypatch.setattr(forecasts, "MOST_POOLS", 1)
    answer = books.assistant().ask("forecast_demand").content
    assert answer["row_count"] == 1
    assert answer["notices"] == [
        f"{plural(every['row_count'] - 1, 'pool')} of less demand not forecast; pool=NAME asks for one"
    ]


def test_without_any_the_answer_says_so(dsn) -> None:
    """An empty ledger: no budget, nobody with a history, no demand."""
    for tool, words in (
        ("list_budgets", "no budget is in force"),
        ("forecast_spend", "nobody has enough history"),
        ("forecast_demand", "no demand is known yet"),
    ):
        answer = over(dsn, NOW_MS).ask(tool).content
        assert (answer["status"], answer["rows"]) == ("empty", []), tool
        assert words in answer["reason"]
        assert json.dumps(answer)
