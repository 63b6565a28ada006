"""What the boards say of savings, causes and scarce models: as the commands say it, and each model
by itself.
"""

import json

import psycopg
import pytest

from fakes.boards import BOARDS, SPAN, asked, chosen, options, panels
from gpuledger_collector.accounting.money import MICRO

pytestmark = pytest.mark.slow

WHERE = ("finops", "idle")
ADVICE = "Give back two of four GPUs of sim2real-notebook"


@pytest.fixture
def ledger(seeded):
    """A connection that may change the ledger, until the end of the test."""
    with psycopg.connect(seeded) as connection:
        yield connection
        connection.rollback()


def rows(connection, board, title, **choice):
    """The rows of a panel, by column, with all chosen but for `choice`."""
    values = {**chosen(BOARDS[board], options(connection, BOARDS[board], SPAN), "all"), **choice}
    (query,) = [query for query in asked(board, values, SPAN) if query.title == title]
    cursor = connection.execute(query.sql.encode())
    names = [column.name for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def recommend(ledger):
    """Open advice, accepted advice that saved something, advice in another currency, and the search
    that found it.
    """
    ledger.execute(
        "INSERT INTO recommendation (key, kind, subject, team, owner, advice, evidence, scope,"
        " start_ms, end_ms, price_ids, currency, cash_expected_micro, capacity_expected_micro,"
        " freed_gpu_ns, state, made_ms, expires_ms, decided_by, reason, realized_micro) SELECT key,"
        " 'release', key, 'robotics', '{}', %s, '{}', '{}', 0, 1, '{}', currency, cash, 7000000, 0,"
        " state, 0, 1, 'ann', 'private', realized FROM (VALUES ('a', 'USD', 5000000::bigint,"
        " 'open', NULL::bigint), ('b', 'USD', 1000000, 'accepted', 3000000), ('c', 'EUR', 9000000,"
        " 'open', NULL), ('d', 'USD', 2000000, 'rejected', NULL), ('e', 'USD', 2000000, 'done',"
        " 4000000)) r (key, currency, cash, state, realized)",
        (ADVICE,),
    )
    together = {
        "USD": {"cash": [1_000_000, 5_500_000, 8_000_000], "capacity": [0, 6_000_000, 7_000_000]}
    }
    ledger.execute("DELETE FROM recommendation_run")
    ledger.execute(
        "INSERT INTO recommendation_run (made_ms, start_ms, end_ms, joint, not_evaluated) VALUES"
        " (1, 0, 1, %s, '[]')",
        (json.dumps(together),),
    )


@pytest.mark.parametrize("board", WHERE)
def test_savings_and_recommendations_are_on_the_boards_of_money(ledger, board):
    """All advice together, counted once; what was saved by the ledger; what the open findings cost
    a day.
    """
    recommend(ledger)
    (save,) = rows(ledger, board, "To save ($currency)", currency="USD")
    assert (save["expected"], save["low"], save["high"]) == (5.5, 1, 8)
    (free,) = rows(ledger, board, "Capacity to free ($currency)", currency="USD")
    assert free["worth"] == 6
    (saved,) = rows(ledger, board, "Saved by advice ($currency)", currency="USD")
    assert saved["saved"] == 7
    listed = rows(ledger, board, "Recommendations ($currency)", currency="USD")
    assert [(row["state"], row["saves"], row["advice"]) for row in listed] == [
        ("open", 5, ADVICE),
        ("accepted", 1, ADVICE),
    ]
    (idle,) = rows(ledger, board, "Idle GPUs, a day ($currency)", currency="USD")
    total = (
        "SELECT sum(per_day_micro) FROM finding WHERE kind = 'idle' AND resolved_ms IS NULL AND"
        " currency = 'USD'"
    )
    ((micro,),) = ledger.execute(total).fetchall()
    assert idle["cost"] * MICRO == micro > 0


def test_advice_without_a_team_leads_to_a_choice_that_there_is(ledger):
    """A link is on every cell of a column: what a pool has free leads to all teams, and a workload
    without a team to those.
    """
    recommend(ledger)
    ledger.execute("UPDATE recommendation SET team = '' WHERE key <> 'a'")
    ledger.execute("UPDATE recommendation SET key = 'reclaim:free/pool/L4' WHERE key = 'b'")
    ledger.execute("UPDATE recommendation SET kind = 'reserve', state = 'open' WHERE key = 'e'")
    ledger.execute("UPDATE recommendation SET state = 'open' WHERE key = 'd'")
    listed = rows(ledger, "finops", "Recommendations ($currency)", currency="USD")
    assert sorted(row["team"] for row in listed) == ["(unattributed)", "All", "All", "robotics"]


def test_the_dashboards_role_reads_advice_and_not_who_decided(reader):
    """Names and reasons of people stay closed."""
    reader.execute("SELECT advice, realized_micro FROM recommendation")
    reader.execute("SELECT at_ms FROM node_retirement")
    for column in ("decided_by", "reason", "evidence"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege), reader.transaction():
            reader.execute(f"SELECT {column} FROM recommendation")


def test_an_anomaly_says_why_and_leads_to_its_team(ledger):
    """The sentence of the command, and the team's showback from the day before it on."""
    sentence = "sim2real-notebook has held 1 GPU flat for 2 days"
    ledger.execute(
        "UPDATE finding SET evidence = jsonb_build_object('sentence', %s::text) WHERE kind ="
        " 'anomaly'",
        (sentence,),
    )
    found = rows(ledger, "finops", "Anomalies")
    assert found
    assert {row["why"] for row in found} == {sentence}
    assert all(row["first_ms"] < row["last_ms"] for row in found)
    (panel,) = [panel for panel in panels(BOARDS["finops"]) if panel["title"] == "Anomalies"]
    links = [
        setting["value"][0]["url"]
        for override in panel["fieldConfig"]["overrides"]
        if override["matcher"]["options"] == "who"
        for setting in override["properties"]
        if setting["id"] == "links"
    ]
    assert len(links) == 1
    assert links[0].startswith("/d/gpuledger-team?from=${__data.fields.first_ms.numeric}")


def test_headroom_is_that_of_the_scarcest_model(ledger):
    """One model without a free GPU is no headroom, however many of another are free."""
    models = [
        name
        for (name,) in ledger.execute(
            "SELECT DISTINCT gpu_model FROM ledger_day WHERE gpu_model <> ''"
        )
    ]
    full, free = sorted(models)[:2]
    ledger.execute("UPDATE ledger_day SET state = 'held' WHERE gpu_model = %s", (full,))
    ledger.execute("UPDATE ledger_day SET state = 'unallocated' WHERE gpu_model = %s", (free,))
    told = rows(ledger, "demand", "Headroom of the scarcest models")
    assert {"model": full, "part": 0} in told
    assert [row["part"] for row in told] == sorted(row["part"] for row in told)
    (alone,) = rows(ledger, "demand", "Headroom of the scarcest models", model=[free])
    assert alone == {"model": free, "part": 1}
