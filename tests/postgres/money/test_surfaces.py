"""One number, one name, everywhere: what a month costs, on each surface that says it, is what the
chargeback says.

The ledger has every feature (fakes.rich_ledger). Each command, each address and each tool of
assistants is either read here, or has a reason not to be: a new one fails until somebody decides.
"""

import json
import re
from collections import defaultdict
from decimal import Decimal
from html import unescape
from inspect import signature

import pytest
from typer.main import get_command

from fakes.assistant import over
from fakes.collector import running
from fakes.fleet import NOW_MS
from fakes.rich_ledger import CLOSED, OPEN, TEAMS, rich
from fakes.surfaces import CENT, MICRO, MONTHS, OWNERS, added, cited_nowhere, ledger, table
from gpuledger_collector.cli import build
from gpuledger_collector.mcp.tools import TOOLS
from gpuledger_collector.notifications import budget_mail
from gpuledger_collector.services.budget_watch import watch_budgets
from gpuledger_collector.storage.database import Database

__all__ = ["ledger", "rich"]
pytestmark = pytest.mark.slow
PARTS = ("owners", "unallocated", "unavailable", "unobserved", "stranded", "commitment_unused")
ERP = """
[[column]]
name = "team"
field = "team"
[[column]]
name = "currency"
field = "currency"
[[column]]
name = "amount"
field = "amount"
"""


@pytest.mark.parametrize("month", MONTHS)
def test_forms_of_the_chargeback(ledger, month):
    """Table, CSV and the API; each way to group has the same totals; a quarter is the sum of its
    months.
    """
    told = table(ledger.out("chargeback", "--period", month, "--format", "csv"))
    assert added((row["team"], row["currency"], row["cost"]) for row in told) == ledger.direct(
        month
    )
    assert added((row["team"], row["currency"], row["cost_total"]) for row in told) == ledger.total(
        month
    )
    with running(ledger.dsn) as collector:
        status, _, answer = collector.request("GET", f"/v1/chargeback?period={month}&by=team")
    assert status == 200
    assert added(
        (row["team"], row["currency"], row["cost"]) for row in answer["rows"]
    ) == ledger.direct(month)
    whole = {row["currency"]: row["cost_micro"] for row in ledger.bill(month)["totals"]}
    for by in (
        "project",
        "user",
        "workload",
        "pool",
        "model",
        "node",
        "region",
        "team,region,node",
    ):
        assert {
            row["currency"]: row["cost_micro"] for row in ledger.bill(month, by)["totals"]
        } == whole, by


def test_a_quarter_is_its_months(ledger):
    """Q4 has October, November and no more yet."""
    months = [
        {row["currency"]: row["cost_micro"] for row in ledger.bill(month)["totals"]}
        for month in MONTHS
    ]
    quarter = {row["currency"]: row["cost_micro"] for row in ledger.bill("2025-Q4")["totals"]}
    assert quarter == {currency: sum(month[currency] for month in months) for currency in months[0]}


@pytest.mark.parametrize("month", MONTHS)
def test_focus_and_journal(ledger, month):
    """Borne by owner, paid in all; the journal books what is borne, to the micro-unit."""
    path = ledger.folder / "focus.csv"
    ledger.out("chargeback", "--period", month, "--format", "focus", "-o", path)
    rows = table(path.read_text())
    borne = added(
        (row["SubAccountName"], row["BillingCurrency"], row["EffectiveCost"]) for row in rows
    )
    assert {key: amount.quantize(CENT) for key, amount in borne.items()} == ledger.total(month)
    paid, billed = defaultdict(Decimal), defaultdict(Decimal)
    for row in ledger.bill(month, "team", "--view", "cash")["totals"]:
        paid[row["currency"]] += Decimal(row["cost_total"])
    for row in rows:
        billed[row["BillingCurrency"]] += Decimal(row["BilledCost"])
    assert {currency: amount.quantize(CENT) for currency, amount in billed.items()} == paid
    journal = ledger.out("chargeback", "--period", month, "--format", "beancount")
    booked = re.findall(r"^  Expenses:Gpu:(\w+) +(-?[\d.]+) ([A-Z]{3})$", journal, re.MULTILINE)
    exact = {
        key: (row["cost_micro"] + row["shared_cost_micro"]) / MICRO
        for key, row in ledger.rows(month).items()
    }
    assert (
        added((account.lower(), currency, amount) for account, amount, currency in booked) == exact
    )


@pytest.mark.parametrize("month", MONTHS)
def test_statements(ledger, month):
    """'You pay' is direct cost and shares; the list of statements and assistants say the same."""
    total = ledger.total(month)
    assistant = over(ledger.dsn, NOW_MS, None)
    for owner in OWNERS:
        own = {currency: amount for (team, currency), amount in total.items() if team == owner}
        page = unescape(ledger.out("statement", "--period", month, "--owner", owner))
        said = re.findall(r"<dt>You pay</dt><dd>([\d.,-]+) ([A-Z]{3})", page)
        assert {currency: Decimal(amount.replace(",", "")) for amount, currency in said} == own, (
            owner
        )
        reply = assistant.ask("get_statement", owner=owner, month=month)
        assert not reply.is_error, reply.text


def test_pages_of_a_closed_month(ledger):
    """The overview has what is charged, the list of statements what is paid; their clock is that of
    the machine.
    """
    with running(ledger.dsn) as collector:
        pages = [
            collector.request("GET", path)
            for path in (f"/?period={CLOSED}", f"/statements/team/{CLOSED}")
        ]
    assert [status for status, _, _ in pages] == [200, 200]
    overview, statements = (unescape(re.sub(r"<[^>]+>", " ", page)) for _, _, page in pages)
    assert "Amounts are without shares of common costs" in overview
    for key, row in ledger.rows(CLOSED).items():
        assert f" {row['cost']:,} " in overview, key
        assert f" {row['cost_total']:,} {key[1]}" in re.sub(r"\s+", " ", statements), key


@pytest.mark.parametrize("month", MONTHS)
def test_assistants(ledger, month):
    """get_cost groups by team as the chargeback does."""
    reply = over(ledger.dsn, NOW_MS, None).ask("get_cost", period=month, group_by="team", limit=50)
    rows = reply.rows
    assert added(
        (row["names"]["team"], row["currency"], row["cost"]["amount"]) for row in rows
    ) == ledger.direct(month)


def test_invoices_and_postings_of_a_closed_month(ledger):
    """What the close invoiced and what the ERP books: the chargeback with shares, cent by cent."""
    template = ledger.folder / "erp.toml"
    template.write_text(ERP)
    posted = table(ledger.out("export", "erp", "--period", CLOSED, "--template", template))
    assert added((row["team"], row["currency"], row["amount"]) for row in posted) == ledger.total(
        CLOSED
    )
    periods = json.loads(ledger.out("periods", "--format", "json"))
    assert [period["period"] for period in periods] == [CLOSED]


@pytest.mark.parametrize("month", MONTHS)
def test_the_proof_and_what_stands_beside_it(ledger, month):
    """Its parts, imports and adjustments are the bill of these days: with the corrections that
    amend them.
    """
    proof = json.loads(ledger.out("reconcile", "--period", month, "--format", "json"))
    assert proof["holds"]
    bill = defaultdict(int)
    for row in [
        *ledger.bill(month)["rows"],
        *(ledger.bill(OPEN)["rows"] if month == CLOSED else []),
    ]:
        if row["correction_of"] in {None, month} and (
            row["correction_of"] or row in ledger.bill(month)["rows"]
        ):
            bill[row["currency"]] += row["cost_micro"] or 0
    adjusted = defaultdict(int)
    for by_currency in proof["adjustments_micro"].values():
        for currency, micro in by_currency.items():
            adjusted[currency] += micro
    for currency, money in proof["money"].items():
        parts = sum(part["micro"] for name, part in money.items() if name in PARTS)
        imported = proof["outside"]["imported_cost_micro"].get(currency, 0)
        whole = parts + imported + adjusted[currency]
        assert whole == bill[currency], (currency, money)


def test_a_receipt_is_the_chargeback_by_workload(ledger):
    """Over all months, with its share of nodes; in the terminal, as JSON and on the page of the
    job.
    """
    charged = defaultdict(int)
    for month in MONTHS:
        for row in ledger.bill(month, "workload")["rows"]:
            charged[row["workload"], row["currency"]] += row["cost_micro"] or 0
    for number in TEAMS:
        receipt = json.loads(ledger.out("receipt", str(number), "--format", "json"))
        said = {currency: total["cost_micro"] for currency, total in receipt["totals"].items()}
        assert said == {
            currency: micro
            for (job, currency), micro in charged.items()
            if job == f"slurm::{number}"
        }
    listed = table(ledger.out("runs", "--period", OPEN, "--format", "csv"))
    of_time = {
        (row["workload"], row["currency"]): Decimal(row["cost"]) - Decimal(row["cost_nodes"] or 0)
        for row in table(
            ledger.out("chargeback", "--period", OPEN, "--by", "workload", "--format", "csv")
        )
        if not row["correction_of"]
    }
    for row in listed:
        name = row["run"].removeprefix("imported:import:")
        # What a run lists is its GPU-time: rows of the chargeback are rounded together, so a cent
        # may lie elsewhere.
        assert abs(Decimal(row["cost"]) - of_time[name, row["currency"]]) <= CENT


def test_budgets_forecasts_and_other_prices_begin_at_the_bill(ledger):
    """What is spent is what is charged so far: of a budget, of a forecast, and of what-if's
    present.
    """
    budgets = "".join(
        f'[[budget]]\nname = "{owner} {currency}"\nteam = "{owner}"\nperiod = "range"\nfrom ='
        f' 2025-11-01\nto = 2025-12-01\namount = 1\ncurrency = "{currency}"\nrecipients ='
        ' ["team@example.com"]\n\n'
        for owner, currency in ledger.direct(OPEN)
    )
    path = ledger.folder / "budgets.toml"
    path.write_text(budgets)
    ledger.out("apply", path)
    own = {
        (row["team"], row["currency"]): (Decimal(row["cost_micro"]) / MICRO).quantize(CENT)
        for row in ledger.bill(OPEN)["rows"]
        if row["team"] in OWNERS and not row["correction_of"]
    }
    spent = {
        tuple(budget["budget"].split()): Decimal(budget["spent"])
        for budget in json.loads(ledger.out("budgets", "--format", "json"))["budgets"]
    }
    assert spent == own
    database = Database(ledger.dsn)
    assert watch_budgets(database, NOW_MS, budget_mail.write) >= len(own)
    with database.transaction() as connection:
        mails = " ".join(text for (text,) in connection.execute("SELECT text FROM outbox"))
    mailed = re.findall(
        r"(\w+) ([A-Z]{3}) \([^)]*\) has spent its whole budget: [A-Z]{3} ([\d.,]+) of", mails
    )
    assert {
        (team, currency): Decimal(amount.replace(",", "")) for team, currency, amount in mailed
    } == own
    forecast = table(ledger.out("forecast", "spend", "--format", "csv"))
    assert {(row["team"], row["currency"]): Decimal(row["spent"]) for row in forecast} == own
    prices = ledger.folder / "prices.csv"
    prices.write_text(
        "pool,gpu_model,purchase,rate_per_gpu_hour,currency,effective_from\n,,on_demand,9,USD,2025-01-01\n"
    )
    now = table(
        ledger.out(
            "what-if", "--period", OPEN, "--by", "team", "--prices", prices, "--format", "csv"
        )
    )
    assert added(
        (row["team"], row["currency"], row["cost_now"]) for row in now if row["currency"]
    ) == ledger.direct(OPEN)


HERE = {
    *(
        "chargeback",
        "statement",
        "reconcile",
        "periods",
        "export erp",
        "receipt",
        "runs",
        "budgets",
    ),
    *("forecast spend", "what-if"),
}
"""Commands that this file reads."""
ELSEWHERE = {
    "corrections": "test_close.py: rows of the chargeback that name a month",
    "close": "test_close.py: its receipt is sealed, and compared by --verify",
    "disputes lines": "test_disputes.py: the charges of an owner, one by one",
    "disputes open": "test_dispute_amounts.py",
    "disputes show": "test_dispute_amounts.py",
    "disputes resolve": "test_dispute_amounts.py: the difference of two ratings",
    "disputes list": "test_disputes.py",
    "disputes answer": "test_disputes.py",
    "adjustments list": "test_true_up.py",
    "adjustments credit": "test_true_up.py: an amount that is given",
    "adjustments debit": "test_true_up.py: an amount that is given",
    "adjustments reverse": "test_true_up.py: an amount that is given",
    "adjustments true-up": "test_true_up.py: equal to reconcile --bill",
    "runs show": "tests/postgres/runs: a run's own time",
    "runs report": "tests/postgres/runs: a run's own time",
    "budgets list": "the same as budgets",
    "budgets replay": "tests/postgres/budgets: budgets as of earlier days",
    "anomalies": "tests/postgres/findings: differences to weeks before, not a bill",
    "idle": (
        "tests/postgres/findings: at the price book's rate, as docs/guides/what-a-gpu-hour-costs.md"
        " says"
    ),
    "recommend": "tests/postgres/recommendations: estimates",
    "focus check": "checks a file that is given",
    "focus periods": "reads a file that is given",
    "start": "test_start.py: ends with the chargeback",
    "demo": "tests/journeys/test_demo.py",
    "prices list": "rates, as they were declared",
    "prices models": "tests/postgres/inference: the prices of `inference servers`",
    "inference list": "tests/postgres/inference: adds up to what its servers cost",
    "inference servers": "tests/postgres/inference: what the workloads of a server were charged",
    "plan capacity": "tests/unit: estimates of a plan that is given",
    "export config": "test_export_config.py: what was declared",
}
"""Commands that say amounts, and where these are compared."""
NO_AMOUNTS = """
recommend accept, recommend reject, accelerators, notifications list, notifications write, notifications ack,
actions list, actions dry-run, actions run, budgets ack, forecast, forecast history, scale advise, scale history,
scale backtest, plan memory, plan training, plan storage, plan network, import usage, import sacct, import prices,
import inventory, import samples, import bill, import queue, import shares, import inference,
import litellm, inference weights, apply, prices set, tags check, examples,
queues list, queues quotas, queues evictions, queues names, queues read, jobs, serve, mcp,
profiles list, profiles show, profiles check, doctor, token create, token list, token revoke, token rotate,
completion, db upgrade, db check, db partitions, db distribute, db pack, db backup, db restore, db grant-reader,
db revoke-reader, nodes list, nodes retire, export samples, audit list, audit verify, privacy show, privacy erase,
outbox list, outbox send
"""
TOOLS_HERE = {
    *(
        "get_cost",
        "get_statement",
        "get_gpu_waste",
        "get_efficiency",
        "compare_periods",
        "explain_change",
    ),
    *("list_idle_gpus", "list_budgets", "forecast_spend"),
}
"""test_surface_answers.py compares them with the chargeback."""
TOOLS_ELSEWHERE = {
    "get_rightsizing": "tests/postgres/recommendations: estimates",
    "get_inference_cost": "tests/postgres/inference: the rows of `inference list`",
}
TOOLS_WITHOUT = {
    "describe_ledger",
    "list_values",
    "verify_statement",
    "get_device_usage",
    "list_queues",
    "forecast_demand",
}
"""Their answers have no field of money, as their schemas say."""


def commands(command, path=()):
    if not hasattr(command, "commands"):
        yield " ".join(path)
        return
    if path and command.invoke_without_command:
        yield " ".join(path)
    for name, inner in command.commands.items():
        yield from commands(inner, (*path, name))


def test_every_surface_is_read_or_has_a_reason():
    """A new command or tool fails here until somebody says where its amounts are compared."""
    silent = {name.strip() for name in NO_AMOUNTS.replace("\n", " ").split(",")}
    assert set(commands(get_command(build()))) == HERE | set(ELSEWHERE) | silent
    assert len(HERE) + len(ELSEWHERE) + len(silent) == len(HERE | set(ELSEWHERE) | silent), (
        "in one list each"
    )
    answers = {
        tool.__name__: signature(tool, eval_str=True).return_annotation.model_json_schema()
        for tool in TOOLS
    }
    assert {
        name for name, schema in answers.items() if "Money" not in json.dumps(schema)
    } == TOOLS_WITHOUT
    assert set(answers) == TOOLS_HERE | set(TOOLS_ELSEWHERE) | TOOLS_WITHOUT
    assert cited_nowhere([*ELSEWHERE.values(), *TOOLS_ELSEWHERE.values()]) == set()
