"""A dispute about adjustments alone: accepted, each is taken back by an opposite entry, as the
preview says.
"""

import json
import re

import pytest

from fakes.fleet import DAY, NOW_MS, Held

OCTOBER = ("--period", "2025-10")
FEE = (
    "--amount",
    "250",
    "--from",
    "2025-10-07",
    "--to",
    "2025-10-08",
    "--reason",
    "seats",
    "--approver",
    "kim",
)
ACCEPT = ("--accept", "--reverse", "--note", "ticket 9: booked twice")
MARKUP = """
[[adjustment]]
name = "platform fee"
kind = "markup"
percent = 10
"""


@pytest.fixture
def october(fleet, run, monkeypatch):
    """Vision holds a GPU for ten days at 2 USD an hour, and has an entry of 250 EUR and one of 250
    USD.
    """
    run("prices", "set", "--rate", "2", "--currency", "USD", "--from", "2025-01-01")
    monkeypatch.setattr("gpuledger_collector.wiring.read_clock", lambda: NOW_MS)
    fleet.workload(1, team="vision")
    fleet.capacity(1, 0, 10 * DAY)
    fleet.evidence([Held(1, 1, day * DAY, (day + 1) * DAY) for day in range(10)])
    for kind, currency in (("debit", "EUR"), ("credit", "USD")):
        entry = (
            "adjustments",
            kind,
            f"{kind} of licenses",
            "--owner",
            "team=vision",
            "--currency",
            currency,
        )
        assert run(*entry, *FEE)[0] == 0
    assert run("chargeback", *OCTOBER)[0] == 0
    assert owed(fleet) == {"EUR": 250_000_000, "USD": 230_000_000}
    return run


def owed(fleet):
    """What vision owes for October, with all corrections, in micro-units by currency."""
    columns = "day_ms, owner_id, currency, cost_micro"
    rows = fleet.rows(
        f"SELECT l.currency, sum(l.cost_micro)::bigint FROM (SELECT {columns} FROM ledger_day UNION"
        f" ALL SELECT {columns} FROM correction) l JOIN owner o ON o.id = l.owner_id WHERE o.team ="
        " 'vision' GROUP BY 1"
    )
    return dict(rows)


def contested(run, currency):
    """A dispute of vision about its line of 7 October in a currency that is no time."""
    span = ("--from", "2025-10-07", "--to", "2025-10-08")
    lines = json.loads(run("disputes", "lines", "--owner", "vision", *span, "--format", "json")[1])
    (line,) = [
        line["id"] for line in lines if line["cost"].endswith(currency) and not line["workload"]
    ]
    code, out, err = run(
        "disputes", "open", "--owner", "vision", *span, "--line", line, "--reason", "twice"
    )
    assert code == 0, err
    return re.match(r"dispute (\d+) is open", out)[1]


@pytest.mark.parametrize(
    ("kind", "currency", "change"), [("debit", "EUR", -250), ("credit", "USD", 250)]
)
@pytest.mark.parametrize("closed", [False, True], ids=["open", "closed"])
def test_preview_and_ledger_change_by_the_same_amount(
    october, fleet, kind, currency, change, closed
):
    """In the currency of the entry; of a closed month as a correction, so that its invoice stays."""
    if closed:
        assert october("close", *OCTOBER)[0] == 0
    number = contested(october, currency)
    before = owed(fleet)
    code, dry, err = october("disputes", "resolve", number, *ACCEPT, "--dry-run")
    assert code == 0, err
    paid = f"pays 250.00 {currency} {'more' if change > 0 else 'less'}"
    note = " (a correction: the day is closed)" if closed else ""
    booked = f"  2025-10-07  team=vision {paid}: reversal of {kind} of licenses{note}"
    assert dry.splitlines()[1:] == ["this would be booked:", booked]
    assert (
        f"if it is accepted now, this changes:\n{booked}\n"
        in october("disputes", "show", number)[1]
    )
    assert owed(fleet) == before
    code, done, err = october("disputes", "resolve", number, *ACCEPT)
    assert code == 0, err
    assert done.splitlines()[1:] == [
        "this is booked:",
        booked,
        f"1 day rated again; team=vision {paid}",
    ]
    assert owed(fleet) == before | {currency: before[currency] + change * 1_000_000}
    assert f"now team=vision pays 0.00 {currency} of it" in october("disputes", "show", number)[1]
    assert october("reconcile", *OCTOBER)[0] == 0
    assert october("periods", *(("--verify", "2025-10") if closed else ()))[0] == 0
    (reversal,) = fleet.rows(
        "SELECT name, currency, reason FROM adjustment WHERE reverses IS NOT NULL"
    )
    assert reversal == (
        f"reversal of {kind} of licenses",
        currency,
        f"dispute {number}: ticket 9: booked twice",
    )
    said = fleet.rows(
        "SELECT after FROM audit WHERE what = 'dispute' ORDER BY number DESC LIMIT 1"
    )[0][0]
    assert (said["state"], said["booked"]) == ("accepted", [reversal[0]])
    assert "the dispute is accepted already" in october("disputes", "resolve", number, *ACCEPT)[2]


def test_what_cannot_be_reversed_is_refused_in_a_sentence(october, written, fleet):
    """Time, a policy, an entry that is reversed already; and who says nothing is told of the way."""
    number = contested(october, "EUR")
    code, _, err = october(
        "disputes", "resolve", number, "--accept", "--to", "team=nlp", "--note", "x"
    )
    assert code == 2
    assert (
        "adjustments are amounts, and no time that could move: an acceptance that reverses"
        " (--reverse) takes them back" in err
    )
    reverse = ("adjustments", "reverse", "debit of licenses", "--reason", "x", "--approver", "kim")
    assert october(*reverse)[0] == 0
    code, _, err = october("disputes", "resolve", number, *ACCEPT)
    assert (code, "'debit of licenses' is reversed already" in err) == (2, True)
    whole = (
        "--owner",
        "vision",
        "--from",
        "2025-10-07",
        "--to",
        "2025-10-08",
        "--reason",
        "all of it",
    )
    assert october("disputes", "open", *whole)[0] == 0
    code, _, err = october("disputes", "resolve", "2", *ACCEPT)
    assert (code, "not only adjustments are contested" in err) == (2, True)
    assert october("apply", written("markup.toml", MARKUP))[0] == 0
    assert october("chargeback", *OCTOBER)[0] == 0
    lines = json.loads(october("disputes", "lines", *whole[:6], "--format", "json")[1])
    (line,) = [line["id"] for line in lines if line["cost"] == "4.80 USD"]
    code, _, err = october("disputes", "open", *whole, "--line", line)
    assert code == 0, err
    code, _, err = october("disputes", "resolve", "3", *ACCEPT)
    assert (code, "no entry is called 'platform fee'" in err) == (2, True)
    assert fleet.rows("SELECT count(*) FROM adjustment WHERE reverses IS NOT NULL") == [(1,)]


def test_an_entry_that_is_contested_in_part_is_not_reversed(october, fleet):
    """The opposite entry would give back what others, or other lines, were charged as well."""
    number = contested(october, "EUR")
    fleet.connection.execute("ALTER TABLE dispute DISABLE TRIGGER USER")
    part = "replace(evidence::text, '250000000', '125000000')::jsonb"
    fleet.connection.execute(f"UPDATE dispute SET evidence = {part} WHERE id = %s", (number,))
    code, _, err = october("disputes", "resolve", number, *ACCEPT)
    assert (code, "'debit of licenses' is contested in part" in err) == (2, True)
