"""The board of shared model servers says what `gpuledger inference` says of the same days."""

import datetime as dt
import json
from decimal import Decimal

import psycopg
import pytest

from fakes.boards import SINCE, SPAN, UNTIL, panel_rows
from fakes.books import Command
from gpuledger_collector.services.inference_days import store_inference_days
from gpuledger_collector.storage.database import Database

pytestmark = pytest.mark.slow
PERIOD = ("--from", SINCE.date(), "--to", (UNTIL + dt.timedelta(days=1)).date())


@pytest.fixture
def ledger(seeded):
    """A connection that may change the ledger, until the end of the test."""
    with psycopg.connect(seeded) as connection:
        yield connection
        connection.rollback()


def rows(connection, title):
    """The rows of a panel, by column, with all chosen."""
    return panel_rows(connection, "models", title, SPAN)


def listed(dsn, what, *more):
    code, out, err = Command(dsn)("inference", what, *PERIOD, "--format", "json", *more)
    assert code == 0, err
    return json.loads(out)


def test_prices_are_those_of_the_command(seeded, ledger):
    """To the sixth place, with the idle share and the coverage, cut off at the fourth."""
    servers = {row["server"]: row for row in listed(seeded, "servers") if row["currency"] == "USD"}
    shown = {row["server"]: row for row in rows(ledger, "A million tokens, by server ($currency)")}
    assert shown.keys() == servers.keys() == {"chat-api"}
    for name, row in shown.items():
        own = servers[name]
        for kind in ("input", "cached", "output"):
            for cost in ("held", "used"):
                price = Decimal(own[f"{kind}_price_{cost}"])
                assert abs(row[f"{kind}, {cost}"] - price) <= Decimal("0.000001")
        assert 0 <= row["coverage"] - Decimal(own["coverage"]) < Decimal("0.0001")
        assert abs(row["cost"] - Decimal(own["cost"])) < Decimal("0.01")
    (share,) = rows(ledger, "Idle share of the cost")
    assert share["part"] == shown["chat-api"]["idle share"] > 0


def test_who_asked_is_who_the_command_lists(seeded, ledger):
    tenants = {
        row["tenant"]: int(row["input_tokens"])
        for row in listed(seeded, "list", "--by", "tenant")
        if row["tenant"] not in ("(nobody)", "(idle)")
    }
    shown = rows(ledger, "Who asked, most tokens first")
    assert {row["tenant"]: row["input"] for row in shown} == tenants
    assert sum(row["share of tokens"] for row in shown) == pytest.approx(1)
    assert {row["requests"] for row in shown} == {None}, "the file counted none, which is not zero"
    (count,) = rows(ledger, "Tenants who asked")
    assert count["tenants"] == len(tenants) >= 3


def test_a_day_adds_up_to_the_cost(ledger):
    days = rows(ledger, "Cost a day, used and idle ($currency)")
    (cost,) = rows(ledger, "Cost of model servers ($currency)")
    assert sum(row["cost"] for row in days) == cost["cost"] > 0
    assert {row["metric"] for row in days} == {"busy", "idle"}


def test_what_is_not_known_is_empty(ledger):
    """Without counters there is no coverage; where weights changed and a day has no tokens by kind
    there is no price.
    """
    ledger.execute("UPDATE inference_day SET counted = NULL")
    ledger.execute(
        "UPDATE inference_day SET weights = '1 : 1 : 1', computed = NULL, cached = NULL, output ="
        " NULL WHERE day_ms = (SELECT min(day_ms) FROM inference_day)"
    )
    (row,) = rows(ledger, "A million tokens, by server ($currency)")
    assert (row["coverage"], row["input, held"], row["output, used"]) == (None,) * 3
    assert (row["cost"] > 0, row["weights"]) == (True, "changed")
    ledger.execute("DELETE FROM inference_day")
    assert rows(ledger, "A million tokens, by server ($currency)") == []
    (share,) = rows(ledger, "Idle share of the cost")
    assert share["part"] is None


def test_storing_again_replaces_what_was_stored(seeded):
    """A server that is no longer declared leaves no row."""
    until_ms = int(UNTIL.timestamp() * 1000)
    with psycopg.connect(seeded, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO inference_day (server, day_ms, currency, cost_micro, used_micro, asked,"
            " weighted, weights, split_ms) VALUES ('gone', %s, '', 0, 0, 0, 0, '1 : 1 : 1', 0)",
            (int(SINCE.timestamp() * 1000),),
        )
        before = connection.execute("SELECT * FROM inference_day WHERE server <> 'gone'").fetchall()
        count = store_inference_days(Database(seeded), until_ms)
        after = connection.execute("SELECT * FROM inference_day").fetchall()
    assert sorted(after, key=str) == sorted(before, key=str)
    assert count == len(after)
