"""/v1/disputes: a viewer contests and follows its own lines, finance decides, and nobody sees a
foreign dispute.
"""

import datetime as dt
import json
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from fakes.postgres import fresh_database
from fakes.two_teams import FOREIGN, OWN, day, two_teams
from gpuledger_collector.accounting import disputes
from gpuledger_collector.accounting.adjustments import Adjustment
from gpuledger_collector.accounting.period import DAY_MS
from gpuledger_collector.services.hourly_usage import ALWAYS
from gpuledger_collector.services.refresh import refresh
from gpuledger_collector.storage.billing import adjustments
from gpuledger_collector.storage.billing import disputes as rows
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.ledger import zones
from gpuledger_collector.wiring import read_clock


@pytest.fixture(scope="module")
def fleet(postgres, tmp_path_factory):
    with (
        fresh_database(postgres) as dsn,
        two_teams(dsn, tmp_path_factory.mktemp("declared")) as made,
    ):
        yield made


@pytest.fixture
def ask(fleet):
    """Status and answer of a request as a role."""
    collector, secrets = fleet

    def request(role, method, path, body=None):
        headers = {"Authorization": f"Bearer {secrets[role]}", "Content-Type": "application/json"}
        raw = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        status, _, answer = collector.request(method, f"/v1/disputes{path}", raw, headers)
        return status, answer

    return request


def opening(team=OWN, **more):
    return {"owner": {"team": team}, "from": day(-3), "to": day(-2), "reason": "not ours", **more}


def test_a_viewer_contests_finance_answers_and_decides(ask, fleet):
    """From the opening to what the owner bears after the day was rated again."""
    status, made = ask("viewer", "POST", "", opening())
    assert (status, made["state"], made["cost_micro"]) == (201, "open", {"USD": 48_000_000})
    path = f"/{made['id']}"
    assert ask("viewer", "POST", f"{path}/answers", {"note": "well?"})[1]["state"] == "open"
    assert (
        ask("finance", "POST", f"{path}/answers", {"note": "see usage intervals"})[1]["state"]
        == "answered"
    )
    assert (
        ask("viewer", "POST", f"{path}/resolution", {"note": "x", "accept": True, "to": {}})[0]
        == 403
    )
    decision = {"note": "lent", "accept": True, "to": {"team": "speech"}}
    status, decided = ask("finance", "POST", f"{path}/resolution", decision)
    assert (status, decided["state"], decided["days_to_rate"]) == (200, "accepted", 1)
    assert ask("finance", "POST", f"{path}/resolution", decision)[0] == 409
    assert ask("viewer", "GET", path)[1]["rated"] is False
    collector, _ = fleet
    with psycopg.connect(collector.dsn) as connection:
        until = connection.execute("SELECT max(until_ms) FROM conservation_check").fetchone()[0]
    refresh(Database(collector.dsn), ALWAYS, until)
    status, shown = ask("viewer", "GET", path)
    assert (shown["billed_now"], shown["rated"], shown["seal_holds"]) == ({"USD": 0}, True, True)
    assert [entry["kind"] for entry in shown["entries"]] == [
        "opened",
        "contested",
        "answered",
        "accepted",
    ]
    assert shown["evidence"]["usage_intervals"]["count"] == DAY_MS // 3_600_000
    assert FOREIGN not in json.dumps(shown)


def test_days_are_those_of_the_transaction_that_opens_the_dispute(ask, monkeypatch):
    """A billing zone that changes meanwhile cannot shift what is contested."""
    begun = set()

    def noting(function):
        def call(connection, *arguments):
            begun.add(connection.execute("SELECT now()").fetchone())
            return function(connection, *arguments)

        return call

    monkeypatch.setattr(zones, "calendar", noting(zones.calendar))
    monkeypatch.setattr(rows, "insert", noting(rows.insert))
    assert (
        ask("finance", "POST", "", opening(FOREIGN, **{"from": day(-2), "to": day(-1)}))[0] == 201
    )
    assert len(begun) == 1


def test_finance_sees_beforehand_what_an_acceptance_moves(ask):
    """By day, owner and currency, exactly what the owner bears; a viewer may not ask, and a bad
    question is a 4xx.
    """
    status, made = ask("finance", "POST", "", opening(FOREIGN))
    assert status == 201
    path = f"/{made['id']}/preview"
    status, answer = ask("finance", "POST", path, {"to": {"team": "speech"}})
    assert status == 200
    (move,) = answer["moves"]
    assert (move["day"], move["from"]["team"], move["to"]) == (day(-3), FOREIGN, {"team": "speech"})
    assert (move["gpu_ns"], {move["currency"]: move["cost_micro"]}) == (
        made["gpu_ns"],
        made["cost_micro"],
    )
    assert ask("finance", "POST", path, {"unavailable": True})[1]["moves"][0]["to"] is None
    assert ask("viewer", "POST", path, {"to": {}})[0] == 403
    assert ask("finance", "POST", "/999999/preview", {"to": {}})[0] == 404
    assert ask("finance", "POST", path, {})[0] == 422
    assert ask("finance", "POST", path, {"to": {}, "note": "x"})[0] == 422
    assert ask("finance", "GET", f"/{made['id']}")[1]["state"] == "open"


def test_nobody_sees_or_contests_what_is_anothers(ask):
    """A foreign dispute is 404 to a viewer, its lines 403, and an agent's token opens nothing."""
    status, made = ask("finance", "POST", "", opening(FOREIGN, **{"from": day(-4)}))
    assert status == 201
    path = f"/{made['id']}"
    assert (
        ask("viewer", "GET", path)[0]
        == ask("viewer", "POST", f"{path}/answers", {"note": "x"})[0]
        == 404
    )
    assert ask("viewer", "POST", "", opening(FOREIGN))[0] == 403
    assert (
        ask("viewer", "POST", "", {**opening(), "owner": {"project": f"{OWN}-project"}})[0] == 403
    )
    everything = ask("finance", "GET", "?all=true")[1]["items"]
    mine = ask("viewer", "GET", "?all=true")[1]["items"]
    assert made["id"] in {one["id"] for one in everything}
    assert {one["owner"]["team"] for one in mine} <= {OWN}
    for method, where, body in (("GET", "", None), ("GET", path, None), ("POST", "", opening())):
        assert ask("agent", method, where, body)[0] == 403


def test_pages_of_disputes(ask):
    """`next` leads on; what is no `next` is refused."""
    for number in (-5, -6):
        assert ask("finance", "POST", "", opening(FOREIGN, **{"from": day(number)}))[0] == 201
    first = ask("finance", "GET", "?limit=1&all=true")[1]
    second = ask("finance", "GET", f"?limit=1&all=true&after={first['next']}")[1]
    assert first["items"][0]["id"] < second["items"][0]["id"]
    assert ask("finance", "GET", "?after=x")[0] == 422


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b'{"owner": {"team": "\\ud800"}}',
        {"owner": {"team": "a\x00"}},
        opening(reason=""),
        opening(reason="\x00"),
        opening(reason="x" * 4001),
        {**opening(), "owner": {}},
        {**opening(), "owner": {"planet": "x"}},
        opening(line="zz"),
        opening(line="0" * 12),
        opening(workload="none"),
        {**opening(), "from": "2026-13-01"},
        {**opening(), "to": day(-9)},
        {**opening(), "more": 1},
    ],
)
def test_a_bad_opening_is_a_4xx_with_a_sentence(ask, body):
    """Never a fault, whatever the bytes."""
    status, answer = ask("finance", "POST", "", body)
    assert status in {400, 422}, answer
    assert answer["detail"]


@pytest.mark.parametrize(
    "decision",
    [
        {"accept": True},
        {"accept": False, "to": {"team": "a"}},
        {"accept": True, "to": {}, "unavailable": True},
    ],
)
def test_a_decision_says_one_thing(ask, decision):
    """Neither an acceptance without a remedy nor a rejection with one."""
    made = ask("finance", "POST", "", opening(FOREIGN, **{"from": day(-7)}))[1]
    assert ask("finance", "POST", f"/{made['id']}/resolution", {"note": "x", **decision})[0] == 422
    assert ask("finance", "GET", f"/{made['id']}")[1]["state"] == "open"
    assert (
        ask("finance", "POST", f"/{made['id']}/resolution", {"note": "x", "accept": False})[0]
        == 200
    )


def test_the_same_lines_are_contested_once(ask, fleet):
    """409 with the number of the dispute that does, also when both are opened at once; after a
    decision anew.
    """
    body = opening(**{"from": day(-5), "to": day(-4)})
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: ask("viewer", "POST", "", body), range(4)))
    assert sorted(status for status, _ in answers) == [201, 409, 409, 409]
    number = next(answer["id"] for status, answer in answers if status == 201)
    refused = next(answer for status, answer in answers if status == 409)
    assert (
        refused["detail"] == f"these lines are already contested by dispute {number}: answer there"
    )
    assert ask("viewer", "POST", "", body | {"reason": "another word"})[0] == 409
    with psycopg.connect(fleet[0].dsn) as connection:
        audited = "SELECT count(*) FROM audit WHERE what = 'dispute' AND subject = %s"
        assert connection.execute(audited, (str(number),)).fetchone() == (1,)
    assert (
        ask("finance", "POST", f"/{number}/resolution", {"note": "no", "accept": False})[0] == 200
    )
    assert ask("viewer", "POST", "", body)[0] == 201


def test_an_owner_has_so_many_undecided_disputes(ask, monkeypatch):
    """Whatever part of it they contest; another team goes on."""
    monkeypatch.setattr(disputes, "MOST_OPEN", 1)
    assert ask("viewer", "POST", "", opening(**{"from": day(-6), "to": day(-5)}))[0] in {201, 409}
    status, answer = ask("viewer", "POST", "", opening(**{"from": day(-6), "to": day(-4)}))
    assert (status, "undecided disputes" in answer["detail"]) == (409, True)
    assert ask("finance", "POST", "", opening("speech"))[0] != 409


def test_messages_of_a_dispute_are_bounded(ask, monkeypatch):
    """Beyond so many it waits for a decision."""
    status, made = ask("viewer", "POST", "", opening(**{"from": day(-9), "to": day(-4)}))
    assert status == 201
    monkeypatch.setattr(disputes, "MOST_ENTRIES", 2)
    assert ask("viewer", "POST", f"/{made['id']}/answers", {"note": "well?"})[0] == 200
    assert ask("viewer", "POST", f"/{made['id']}/answers", {"note": "well?"})[0] == 409


def test_finance_takes_a_contested_adjustment_back(ask, fleet):
    """The preview is what is booked, as micro-units; another acceptance than `reverse` is no answer
    to an amount.
    """
    database = Database(fleet[0].dsn)
    on = dt.date.fromisoformat(day(-20))
    dates = {"from_on": on, "to_on": on + dt.timedelta(days=1)}
    terms = {"amount_micro": 7_500_000, "currency": "EUR", "reason": "seats", "approver": "kim"}
    entry = Adjustment(None, "licenses", "debit", {"team": OWN}, **dates, **terms)
    with database.transaction() as connection:
        adjustments.book(connection, entry, read_clock())
        until = connection.execute("SELECT max(until_ms) FROM conservation_check").fetchone()[0]
    refresh(database, ALWAYS, until)
    status, made = ask("viewer", "POST", "", opening(**{"from": day(-20), "to": day(-19)}))
    assert (status, made["cost_micro"]) == (201, {"EUR": 7_500_000})
    path = f"/{made['id']}"
    status, answer = ask("finance", "POST", f"{path}/preview", {"reverse": True})
    assert status == 200
    booked = {
        "day": day(-20),
        "owner": {"team": OWN},
        "adjustment": "reversal of licenses",
        "currency": "EUR",
    }
    assert answer["reversals"] == [booked | {"cost_micro": -7_500_000, "correction": False}]
    assert (answer["moves"], answer["destination_cost_micro"]) == ([], {})
    status, refused = ask(
        "finance", "POST", f"{path}/resolution", {"note": "x", "accept": True, "to": {}}
    )
    assert (
        status,
        "an acceptance that reverses (--reverse) takes them back" in refused["detail"],
    ) == (422, True)
    for wrong in (
        {"accept": True, "reverse": True, "unavailable": True},
        {"accept": False, "reverse": True},
    ):
        assert ask("finance", "POST", f"{path}/resolution", {"note": "x", **wrong})[0] == 422
    assert ask("viewer", "POST", f"{path}/preview", {"reverse": True})[0] == 403
    status, decided = ask(
        "finance", "POST", f"{path}/resolution", {"note": "x", "accept": True, "reverse": True}
    )
    assert (status, decided["state"], decided["days_to_rate"]) == (200, "accepted", 1)
    refresh(database, ALWAYS, until)
    shown = ask("viewer", "GET", path)[1]
    assert (shown["billed_now"], shown["rated"]) == ({"EUR": 0}, True)
