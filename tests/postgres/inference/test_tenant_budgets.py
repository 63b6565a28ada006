"""Budgets, forecasts and hours of tenants: what an owner is charged for a shared server is spent like any
other charge.
"""

import json

import pytest

from fakes.fleet import DAY, HOUR, OCTOBER, Held
from fakes.shared_server import DECLARED, KEY, NLP, VISION, ask
from gpuledger_collector import wiring
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.notifications import budget_mail
from gpuledger_collector.services.budget_watch import watch_budgets
from gpuledger_collector.services.spend_series import list_spend
from gpuledger_collector.storage.database import Database

pytestmark = pytest.mark.slow

CHARGED = DECLARED.replace("weights =", 'mode = "charged"\nweights =')
DAYS = 16
NOW_MS = OCTOBER + DAYS * DAY + 10 * HOUR
"""In the middle of a day, when what is rated of it ends."""
BUDGETS = "".join(
    f"""
[[budget]]
name = "{name}"
{owner}
period = "month"
amount = 2000
currency = "USD"
"""
    for name, owner in (
        ("platform", 'team = "platform"'),
        ("vision", 'team = "vision"'),
        ("chat", 'team = "nlp"\nproject = "chat"'),
    )
)


@pytest.fixture
def month(served, monkeypatch):
    """The server of `served` on more days, each as dear as one of another length."""
    served.connection.execute("UPDATE capacity SET out_ms = NULL")
    served.evidence(
        [
            Held(number, 1, day * DAY + hour * HOUR, day * DAY + (hour + 1) * HOUR, busy=HOUR)
            for number in (1, 2)
            for day in range(1, DAYS + 1)
            for hour in range(10 - day % 3 if day < DAYS else 10)
        ]
    )
    monkeypatch.setattr(wiring, "read_clock", lambda: NOW_MS)
    return served


def ask_daily(fleet, asker, given, hours=(1,)):
    """The same every day."""
    ask(
        fleet, *((asker, 24 * day + hour, given, 0, 0) for day in range(DAYS + 1) for hour in hours)
    )


def budgets(run):
    """The standings by budget, without what names it."""
    code, out, err = run("budgets", "--format", "json")
    assert code == 0, (out, err)
    return {
        row.pop("budget"): {name: value for name, value in row.items() if name != "owner"}
        for row in json.loads(out)["budgets"]
    }


def forecasts(run):
    """Spent and expected at the end of the month by team."""
    code, out, err = run("forecast", "spend", "--by", "team", "--format", "json")
    assert code == 0, (out, err)
    return {row.pop("team"): row for row in json.loads(out)}


def test_a_tenant_that_asks_for_all_stands_where_the_platform_stood(month, run, apply):
    """Its budget, pace and forecast are those that the platform has while it is only shown."""
    ask_daily(month, VISION, 300)
    assert apply(DECLARED + BUDGETS)[0] == 0
    shown, shown_ahead = budgets(run), forecasts(run)
    assert apply(CHARGED + BUDGETS)[0] == 0
    charged, charged_ahead = budgets(run), forecasts(run)
    assert shown["platform"]["forecast"] is not None
    assert charged["vision"] == shown["platform"]
    # Charged nothing is known to end at nothing; never charged is not known.
    ends = {"forecast": "0", "forecast_low": "0", "forecast_high": "0"}
    assert charged["platform"] == shown["vision"] | ends
    assert {shown["vision"][name] for name in ends} == {None}
    assert charged_ahead["vision"] == shown_ahead["platform"]
    assert charged_ahead["platform"]["forecast"] == "0.00"


def test_a_budget_of_a_tenants_project_is_met_by_what_it_is_charged(month, run, apply, dsn):
    """Of 1,116 USD chat asked for a quarter and vision for the rest. Thresholds fire by that, as the
    forecast goes; the platform's own budget has nothing left to fire for.
    """
    ask_daily(month, VISION, 300)
    ask_daily(month, NLP, 100)
    rules = 'currency = "USD"\nactual = [10, 40]\nforecast = [20]\npace = 150\n'
    mails = 'recipients = ["lead@example.com"]\n'
    fired = BUDGETS.replace('currency = "USD"\n', rules + mails)
    assert apply(CHARGED + fired)[0] == 0
    spent = {name: row["spent"] for name, row in budgets(run).items()}
    assert spent == {"platform": "0.00", "vision": "837.00", "chat": "279.00"}
    bill = forecasts(run)
    assert (bill["vision"]["spent"], bill["nlp"]["spent"]) == ("837.00", "279.00")
    assert float(bill["nlp"]["forecast"]) > 279
    for days_ago in (2, 1, 0):
        watch_budgets(Database(dsn), NOW_MS - days_ago * DAY, budget_mail.write)
    assert {name: row["alerts"] for name, row in budgets(run).items()} == {
        "platform": [],
        "vision": ["actual 10 % firing", "actual 40 % firing", "pace 150 % firing"],
        "chat": ["actual 10 % firing", "forecast 20 % firing"],
    }


@pytest.mark.parametrize("text", [DECLARED, CHARGED], ids=["showback", "charged"])
def test_tenants_have_a_forecast_whether_they_are_charged_or_shown(month, run, apply, text):
    """That of an owner who is charged the same; of a tenant without an owner, too."""
    ask_daily(month, VISION, 300)
    ask_daily(month, KEY, 100)
    assert apply(CHARGED)[0] == 0
    owner = forecasts(run)["vision"]
    assert apply(text)[0] == 0
    code, out, err = run("forecast", "spend", "--tenants", "--format", "json")
    assert code == 0, (out, err)
    tenants = {row.pop("tenant"): row for row in json.loads(out)}
    assert set(tenants) == {"t-vision", "(unattributed)"}
    for amount in ("spent", "forecast", "low", "high"):
        assert tenants["t-vision"][amount] == owner[amount]
    assert tenants["(unattributed)"]["spent"] == "279.00"
    assert float(tenants["(unattributed)"]["forecast"]) > 279


def test_tenants_of_a_few_days_have_no_forecast(served, run, apply, monkeypatch):
    monkeypatch.setattr(wiring, "read_clock", lambda: OCTOBER + DAY + HOUR)
    ask(served, (VISION, 1, 300, 0, 0))
    assert apply(DECLARED)[0] == 0
    arguments = ("forecast", "spend", "--tenants", "--exit-code")
    code, out, err = run(*arguments, "--format", "json")
    assert (code, err) == (1, "")
    (row,) = json.loads(out)
    assert (row["tenant"], row["spent"], row["forecast"]) == ("t-vision", "72.00", "")


def test_hours_of_today_that_are_to_come_cost_a_tenant_nothing(month, run, apply):
    """What is charged of a day lies in the hours that are rated."""
    ask_daily(month, VISION, 300)
    assert apply(CHARGED)[0] == 0
    forecasts(run)
    today = Period(NOW_MS - 10 * HOUR, NOW_MS + 14 * HOUR)
    amounts = list_spend(month.connection, today, "team", NOW_MS, {"team": "vision"})
    by_hour = {amount.bucket.start_ms: amount.cost.micro for amount in amounts}
    assert by_hour == {NOW_MS - hours * HOUR: 7_200_000 for hours in range(1, 11)}
