"""Cost centers and GL codes: in the chargeback, FOCUS, invoices, statement, journal, and in an
ERP's import file.
"""

import csv
import io
import json
from decimal import Decimal

import pytest

from fakes.fleet import DAY, HOUR, Held

OCTOBER = ("--period", "2025-10")
CENTERS = """
[[cost_center]]
owner = { team = "team-1" }
cost_center = "4711"
gl_code = "642000"

[[cost_center]]
owner = { team = "team-2" }
cost_center = "4712"
effective_to = 2025-10-02

[[cost_center]]
owner = { team = "team-2" }
cost_center = "4799"
gl_code = "642000"
effective_from = 2025-10-02

[[adjustment]]
name = "fee"
kind = "markup"
percent = 10

[[shared_cost]]
name = "support"
amount_per_month = 31
currency = "USD"
key = "even"
"""
TEMPLATE = """
delimiter = ";"
decimal = ","
date = "%d.%m.%Y"

[[column]]
name = "Company"
constant = 1000

[[column]]
name = "Posting date"
field = "last_day"

[[column]]
name = "Cost center"
field = "cost_center"

[[column]]
name = "Account"
field = "gl_code"

[[column]]
name = "Kind"
field = "kind"

[[column]]
name = "Text"
field = "description"

[[column]]
name = "Amount"
field = "amount"

[[column]]
name = "Reference"
field = "invoice"
"""


@pytest.fixture
def october(fleet, run, tmp_path):
    """At 2.00: team-1 holds 24 hours of 1 October, team-2 12 of them and 36 later; a fee of 10 %,
    31.00 of support.
    """
    run("prices", "set", "--rate", "2", "--currency", "USD", "--from", "2025-01-01")
    fleet.capacity(1, 0, 3 * DAY)
    fleet.capacity(2, 0, 12 * HOUR)
    fleet.evidence([Held(1, 1, 0, DAY), Held(1, 2, DAY, 2 * DAY + 12 * HOUR)])
    fleet.evidence([Held(2, 2, 0, 12 * HOUR)])
    (tmp_path / "centers.toml").write_text(CENTERS)
    code, _, wrong = run("apply", tmp_path / "centers.toml")
    assert code == 0, wrong
    return run


def test_codes_are_wherever_the_owner_is(october, tmp_path):
    """Dated codes of each owner: a row over several has all of them, a line has that of its day."""
    run = october
    rows = {
        row["team"]: row
        for row in csv.DictReader(io.StringIO(run("chargeback", *OCTOBER, "--format", "csv")[1]))
    }
    assert (rows["team-1"]["cost_center"], rows["team-1"]["gl_code"]) == ("4711", "642000")
    assert (rows["team-2"]["cost_center"], rows["team-2"]["gl_code"]) == ("4712; 4799", "642000")
    assert rows["(unobserved)"]["cost_center"] == ""
    first = ("--from", "2025-10-01", "--to", "2025-10-02")
    (row,) = [
        row
        for row in csv.DictReader(io.StringIO(run("chargeback", *first, "--format", "csv")[1]))
        if row["team"] == "team-2"
    ]
    assert (row["cost_center"], row["gl_code"]) == ("4712", "")
    focus = list(csv.DictReader(io.StringIO(run("chargeback", *OCTOBER, "--format", "focus")[1])))
    tagged = {
        (
            json.loads(row["Tags"])["team"],
            row["ChargePeriodStart"][:10],
            json.loads(row["Tags"]).get("cost_center"),
        )
        for row in focus
        if row["x_CostBasis"] in {"held", "markup"}
    }
    assert ("team-2", "2025-10-01", "4712") in tagged
    assert ("team-2", "2025-10-02", "4799") in tagged
    assert ("team-1", "2025-10-01", "4711") in tagged
    journal = run("chargeback", *OCTOBER, "--format", "beancount")[1]
    assert 'owner: "team-1"\n  cost-center: "4711"\n  gl-code: "642000"' in journal
    page = tmp_path / "team-1.html"
    assert run("statement", "--owner", "team-1", *OCTOBER, "-o", page)[0] == 0
    assert "Cost center" in page.read_text()
    assert "GL code 642000" in page.read_text()
    code, receipt, wrong = run("close", *OCTOBER, "--format", "json")
    assert code == 0, wrong
    invoices = {row["owner"]: row for row in json.loads(receipt)["invoices"]}
    assert (invoices["team-1"]["cost_center"], invoices["team-1"]["gl_code"]) == ("4711", "642000")
    # what is declared later is not of the closed month
    (tmp_path / "later.toml").write_text(
        '[[cost_center]]\nowner = { team = "team-1" }\ncost_center = "9"\n'
    )
    assert run("apply", tmp_path / "later.toml")[0] == 0
    again = list(csv.DictReader(io.StringIO(run("chargeback", *OCTOBER, "--format", "focus")[1])))
    assert {json.loads(row["Tags"]).get("cost_center") for row in again} == {
        None,
        "4711",
        "4712",
        "4799",
    }


def test_an_erp_gets_the_invoices_by_its_template(october, tmp_path):
    """Columns and constants as written; the amounts of an owner add up to its invoice, cent by
    cent.
    """
    run = october
    (tmp_path / "erp.toml").write_text(TEMPLATE)
    file = tmp_path / "postings.csv"
    code, _, said = run("export", "erp", "--template", tmp_path / "erp.toml", *OCTOBER, "-o", file)
    assert code == 0, said
    assert "2025-10 is not closed" in said
    receipt = json.loads(run("close", *OCTOBER, "--format", "json")[1])
    code, _, said = run("export", "erp", "--template", tmp_path / "erp.toml", *OCTOBER, "-o", file)
    assert (code, said) == (0, "")
    lines = file.read_text().splitlines()
    assert lines[0] == "Company;Posting date;Cost center;Account;Kind;Text;Amount;Reference"
    assert (
        lines[1]
        == "1000;31.10.2025;4711;642000;gpu_time;GPU 2025-10 team-1;48,00;2025-10/USD/team-1"
    )
    rows = list(csv.DictReader(io.StringIO(file.read_text()), delimiter=";"))
    assert {
        (row["Cost center"], row["Account"], row["Kind"]) for row in rows if "team-2" in row["Text"]
    } == {
        *(
            (center, account, kind)
            for center, account in (("4712", ""), ("4799", "642000"))
            for kind in ("gpu_time", "markup")
        ),
        ("4799", "642000", "shared"),
    }
    for invoice in receipt["invoices"]:
        own = [
            Decimal(row["Amount"].replace(",", "."))
            for row in rows
            if row["Reference"].endswith(invoice["owner"])
        ]
        if not invoice["owner"].startswith("("):
            assert sum(own) == Decimal(invoice["amount"])
    # fewer fields, fewer rows: a row for each invoice
    (tmp_path / "short.toml").write_text(
        '[[column]]\nname = "who"\nfield = "owner"\n[[column]]\nname = "what"\nfield = "amount"\n'
    )
    code, text, said = run("export", "erp", "--template", tmp_path / "short.toml", *OCTOBER)
    assert code == 0, said
    own = {
        invoice["owner"]: invoice["amount"]
        for invoice in receipt["invoices"]
        if not invoice["owner"].startswith("(")
    }
    assert {row["who"]: row["what"] for row in csv.DictReader(io.StringIO(text))} == own


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("", "write [[column]] for each column"),
        ('[[column]]\nname = "a"\n', "erp.toml:1:constant: is needed where there is no field"),
        (
            '[[column]]\nname = "a"\nfield = "amount"\nconstant = "1"\n',
            "refused where there is one",
        ),
        ('[[column]]\nname = "a"\nfield = "amuont"\n', "is not one of number, period"),
        ('delimter = ";"\n[[column]]\nname = "a"\nfield = "amount"\n', "is it 'delimiter'?"),
        ('delimiter = "x"\n[[column]]\nname = "a"\nfield = "amount"\n', "is no delimiter"),
        ('date = "%Y"\n[[column]]\nname = "a"\nfield = "amount"\n', "writes no day"),
        ("[[column]\n", "is not TOML"),
    ],
)
def test_a_bad_template_is_refused_with_its_line(run, tmp_path, template, words):
    """Every problem with file and line; exit code 2, and nothing is written."""
    (tmp_path / "erp.toml").write_text(template)
    code, text, said = run("export", "erp", "--template", tmp_path / "erp.toml", *OCTOBER)
    assert (code, text) == (2, "")
    assert words in said


BAD = [
    ('[[adjustment]]\nname = "a"\nkind = "markup"\n', "percent: is empty: a markup needs it"),
    ('[[adjustment]]\nname = "a"\nkind = "discount"\npercent = 101\n', "is more than 100"),
    (
        '[[adjustment]]\nname = "a"\nkind = "markup"\npercent = 1\namount = 5\n',
        "amount: belongs to kind = 'credit' or 'debit'",
    ),
    (
        '[[adjustment]]\nname = "a"\nkind = "tiered"\ncurrency = "USD"\nsteps = { 5 = 2 }\n',
        "must begin at 0",
    ),
    (
        '[[adjustment]]\nname = "a"\nkind = "true_up"\n',
        "is not one of tiered, markup, discount, credit, debit",
    ),
    (
        (
            '[[adjustment]]\nname = "a"\nkind = "credit"\nowner = { team = "x" }\namount ='
            ' 5\ncurrency = "USD"\neffective_from = 2025-10-30\neffective_to = 2025-11-02\nreason ='
            ' "r"\napprover = "a"\n'
        ),
        "lies in another month",
    ),
    ('[[cost_center]]\nowner = { team = "x" }\n', "gl_code: is empty, and so is cost_center"),
    ('[[cost_center]]\nowner = { taem = "x" }\ncost_center = "1"\n', "is it 'team'?"),
    (
        (
            '[[cost_center]]\nowner = { team = "x" }\ncost_center = "1"\n[[cost_center]]\nowner = {'
            ' team = "x" }\ncost_center = "2"\neffective_from = 2025-10-01\n'
        ),
        "gives this owner codes for some of these days already",
    ),
]


@pytest.mark.parametrize(("text", "words"), BAD)
def test_bad_declarations_are_refused(run, tmp_path, text, words):
    """One sentence, exit code 2, nothing applied."""
    (tmp_path / "bad.toml").write_text(text)
    code, _, said = run("apply", tmp_path / "bad.toml")
    assert code == 2
    assert words in said


def test_what_is_applied_is_exported_and_taken_back(october, tmp_path):
    """Policies, entries and codes survive the round trip; a booked entry with other terms is
    refused.
    """
    run = october
    entry = (
        "--owner",
        "team=team-1",
        "--amount",
        "5",
        "--currency",
        "USD",
        "--from",
        "2025-10-01",
        "--to",
        "2025-10-02",
    )
    words = ("--reason", "outage", "--approver", "kim")
    code, said, wrong = run("adjustments", "credit", "sorry", *entry, *words)
    assert code == 0, wrong
    assert said == "booked credit 'sorry': -5.00 USD for team=team-1 on 2025-10-01\n"
    assert "is called 'sorry' already" in run("adjustments", "credit", "sorry", *entry, *words)[2]
    file = tmp_path / "ledger.toml"
    assert run("export", "config", "-o", file)[0] == 0
    code, said, wrong = run("apply", file)
    assert code == 0, wrong
    assert "adjustments: 0 added, 0 superseded, 2 unchanged; no bill changes" in said
    assert "cost centers: 0 added, 0 superseded, 3 unchanged; no bill changes" in said
    file.write_text(file.read_text().replace("amount = 5", "amount = 6"))
    code, _, wrong = run("apply", file)
    assert code == 2
    assert "'sorry' is booked with other terms" in wrong
    code, text, _ = run("adjustments", "list", "--format", "csv")
    listed = {row["name"]: row for row in csv.DictReader(io.StringIO(text))}
    assert (listed["sorry"]["amount"], listed["sorry"]["approver"]) == ("-5.00", "kim")
    assert listed["fee"]["what"] == "10 %"
