"""Where spending ends with the month: the overview, a budget, the boards, the assistant and the
command say one number on one ledger.
"""

import datetime as dt
import json

import psycopg
import pytest

from fakes.boards import BOARDS
from fakes.fleet import NOW_MS
from fakes.grafana import Range, expanded, interpolated
from fakes.rich_ledger import OPEN, rich
from fakes.surfaces import ledger
from gpuledger_collector.notifications import budget_mail
from gpuledger_collector.services.billing_calendar import calendar_of
from gpuledger_collector.services.budget_watch import watch_budgets
from gpuledger_collector.services.spend_forecasts import store_spend_forecasts
from gpuledger_collector.services.spend_series import read_spend
from gpuledger_collector.storage.database import Database

__all__ = ["ledger", "rich"]
pytestmark = pytest.mark.slow
BUDGETS = """
[[budget]]
name = "vision"
team = "vision"
period = "month"
amount = 90
currency = "USD"

[[budget]]
name = "all"
period = "month"
amount = 900
currency = "USD"
"""
UNEVEN_DAYS = """
INSERT INTO ledger_day (day_ms, owner_id, state, pool, gpu_model, currency, gpu_ns, busy_ns, idle_ns,
    unknown_ns, cost_micro)
SELECT day_ms, (SELECT min(id) FROM owner WHERE team = 'vision'), 'held', 'uneven', 'any', 'USD', 1, 1, 0,
    0, 1000000 + number * 37 %% 11 * 100000
FROM (SELECT day_ms, row_number() OVER (ORDER BY day_ms DESC) AS number FROM conservation_check
    WHERE day_ms < %(now)s AND day_ms >= %(start)s) day
"""
NOW = dt.datetime.fromtimestamp(NOW_MS / 1000, dt.UTC)
CHOICE = {"currency": "USD", "team": "*", "project": "*"}


def board_rows(dsn, board, title):
    """Rows of a panel as of the ledger's clock, by column."""
    (text,) = (
        target["rawSql"]
        for panel in BOARDS[board]["panels"]
        if panel["title"] == title
        for target in panel["targets"]
    )
    sql = expanded(interpolated(text, {}, CHOICE), Range(NOW - dt.timedelta(1), NOW), 60)
    with psycopg.connect(dsn) as connection:
        cursor = connection.execute(sql.replace("now()", f"to_timestamp({NOW_MS / 1000})").encode())
        names = [column.name for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def test_overview_budget_boards_and_command_say_one_number(rich, run, dsn, written):
    """Of a team, and of the fleet."""
    assert run("apply", written("budgets.toml", BUDGETS))[0] == 0
    assert run("forecast", "spend")[0] == 0
    with psycopg.connect(dsn) as connection:
        month = calendar_of(connection).period(OPEN)
        connection.execute(UNEVEN_DAYS, {"now": NOW_MS, "start": month.start_ms})
    code, out, err = run("forecast", "spend", "--by", "team", "--format", "json")
    assert code == 0, err
    said = {row["team"]: row for row in json.loads(out) if row["currency"] == "USD"}
    code, out, err = run("budgets", "--format", "json")
    assert code == 0, err
    budgets = {row["budget"]: row for row in json.loads(out)["budgets"]}
    database = Database(dsn)
    with database.transaction(read_only=True) as connection:
        found = read_spend(connection, month, "team", NOW_MS, {"team": "vision"})
    (overview,) = (spend for spend in found.currencies if spend.currency == "USD")
    assert store_spend_forecasts(database, NOW_MS) > 0
    watch_budgets(database, NOW_MS, budget_mail.write)
    title = "This month, and its forecast ($currency)"
    team = {row.pop("team"): row for row in board_rows(dsn, "team", title)}["vision"]
    (fleet,) = board_rows(dsn, "finops", title)
    projects = board_rows(dsn, "research", title)
    standing = {
        row["budget"]: row
        for row in board_rows(dsn, "finops", "Budgets in money, and their forecasts")
    }
    ahead = overview.standing.ahead
    end = {"low": ahead.low_micro, "forecast": ahead.middle_micro, "high": ahead.high_micro}
    assert ahead.low_micro < ahead.middle_micro < ahead.high_micro
    assert {name: round(team[name] * 10**6) for name in end} == end
    assert {name: float(said["vision"][name]) for name in end} == {
        name: pytest.approx(micro / 10**6, abs=0.005) for name, micro in end.items()
    }
    own = budgets["vision"]
    assert [float(own[name]) for name in ("forecast_low", "forecast", "forecast_high")] == [
        pytest.approx(micro / 10**6, abs=0.5) for micro in end.values()
    ]
    assert round(standing["vision"]["forecast"] * 10**6) == end["forecast"]
    assert round(standing["vision"]["spent"] * 10**6) == round(team["so far"] * 10**6)
    assert standing["all"]["forecast"] == fleet["forecast"] > team["forecast"]
    assert float(budgets["all"]["forecast"]) == pytest.approx(float(fleet["forecast"]), abs=0.5)
    assert {row["project"].split(" / ")[0] for row in projects} >= {"vision"}
