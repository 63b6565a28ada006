"""One number, one name: what mails say is what the chargeback, the command or the tool says of the
same days.

The ledger is that of test_surfaces, where a job of speech holds its accelerator in Frankfurt for 20
hours of 5 November, in euros; here it used none of them.
"""

import json
import re
from collections import defaultdict
from decimal import Decimal

import pytest

from fakes.assistant import over
from fakes.fleet import DAY, HOUR, NOW_MS, OCTOBER
from fakes.idle_day import minutes
from fakes.rich_ledger import EUROPEAN, OPEN, rich
from fakes.surfaces import CENT, MICRO, ledger, table
from gpuledger_collector.notifications import budget_mail, finding_mail, spending_week_mail
from gpuledger_collector.services.budget_watch import watch_budgets
from gpuledger_collector.services.finding_notifications import MailWriters, notify_findings
from gpuledger_collector.services.idle_search import find_idle
from gpuledger_collector.storage.database import Database

__all__ = ["ledger", "rich"]
pytestmark = pytest.mark.slow
DAY_OF = 35 * DAY
"""5 November, after OCTOBER."""
HOURS = 20
WRITERS = MailWriters(
    finding_mail.idle, finding_mail.anomaly, finding_mail.summary, spending_week_mail.spending_week
)
CONTACT = """
[[contact]]
team = "speech"
recipients = ["speech@example.org"]
leads = ["lead@example.org"]
"""
BUDGETS = """
[[budget]]
name = "{owner} {currency}"
team = "{owner}"
period = "month"
amount = 1
currency = "{currency}"
recipients = ["team@example.com"]

"""


def cents(micro):
    return (micro / MICRO).quantize(CENT)


@pytest.fixture
def idle(ledger, rich, tmp_path):
    """The ledger with readings of that day, a contact, and the search up to its last reading."""
    path = tmp_path / "contact.toml"
    path.write_text(CONTACT)
    ledger.out("apply", path)
    minutes(rich, EUROPEAN, DAY_OF + HOUR, DAY_OF + (1 + HOURS) * HOUR, 0.0)
    find_idle(Database(ledger.dsn), OCTOBER + DAY_OF + (1 + HOURS) * HOUR)
    return ledger


def charged(ledger):
    """What the job is charged for that day, in micro-euros."""
    days = ("--from", "2025-11-05", "--to", "2025-11-06", "--by", "workload", "--format", "json")
    rows = json.loads(ledger.out("chargeback", *days))["rows"]
    ((micro,),) = [
        [row["cost_micro"]]
        for row in rows
        if (row["workload"], row["currency"]) == ("slurm::3", "EUR")
    ]
    return micro


def test_idle_time_is_its_charge(idle, rich, monkeypatch):
    """Finding, mail with its CSV, command, tool and the week's summary, to the last digit that each
    of them has.
    """
    micro = charged(idle)
    ((cost,),) = rich.rows("SELECT cost_micro FROM finding WHERE state = 'gone_idle'")
    assert cost == micro
    assert (
        notify_findings(Database(idle.dsn), OCTOBER + DAY_OF + (1 + HOURS) * HOUR, WRITERS).idle
        == 1
    )
    ((text, attached),) = rich.rows(
        "SELECT text, attachments->>'idle.csv' FROM outbox WHERE kind = 'idle'"
    )
    assert f"EUR {cents(micro)} so far" in text
    assert "Cost is the idle time at the rates in force." in text.replace("\n", " ")
    assert [row["cost"] for row in table(attached)] == [f"{cost / MICRO:.6f}"]
    command = json.loads(
        idle.out("idle", "--from", "2025-11-01", "--to", "2025-11-20", "--format", "json")
    )
    reply = over(idle.dsn, NOW_MS, None).ask("list_idle_gpus", days=30, ongoing_only=False)
    assert [(row["team"], row["cost"]) for row in reply.rows if row["team"]] == [
        ("speech", {"amount": str(cents(micro)), "currency": "EUR"})
    ]
    assert reply.content["proof"]["state"] == "estimated"
    assert [Decimal(row["cost"]) for row in command if row["team"]] == [cents(micro)]
    monkeypatch.setattr(
        "gpuledger_collector.services.weekly_summaries.MIN_SUMMARY_GPU_HOURS", HOURS
    )
    assert notify_findings(Database(idle.dsn), OCTOBER + 40 * DAY + HOUR, WRITERS).summaries == 1
    ((week,),) = rich.rows("SELECT text FROM outbox WHERE kind = 'summary'")
    said = re.search(
        r"speech held 20\.0 GPU-hours that were idle, 3 Nov to 9 Nov: EUR ([\d,]+\.\d\d)",
        " ".join(week.split()),
    )
    assert said, week
    assert Decimal(said[1]) == cents(micro)
    assert "at the rates that were in force" in " ".join(week.split())


def test_drivers_of_a_budget_are_the_chargeback_of_their_days(ledger):
    """A mail's table by workload adds up to the command that the mail names."""
    spent = {
        (row["team"], row["currency"]): row["cost_micro"]
        for row in ledger.bill(OPEN)["rows"]
        if row["billed"] == "yes" and not row["correction_of"]
    }
    path = ledger.folder / "budgets.toml"
    path.write_text(
        "".join(BUDGETS.format(owner=owner, currency=currency) for owner, currency in spent)
    )
    ledger.out("apply", path)
    database = Database(ledger.dsn)
    assert watch_budgets(database, NOW_MS, budget_mail.write) >= len(spent)
    with database.transaction() as connection:
        mails = connection.execute(
            "SELECT text, attachments->>'drivers.csv' FROM outbox"
        ).fetchall()
    days = {"before": ("2025-10-13", "2025-11-01"), "after": ("2025-11-01", "2025-11-20")}
    drivers = {"before": defaultdict(int), "after": defaultdict(int)}
    for text, attached in mails:
        assert "gpuledger chargeback --from 2025-11-01 --to 2025-11-20 --by workload,user" in text
        assert "(1 Nov to 19 Nov compared with 13 Oct to 31 Oct)" in text
        (owner,) = re.findall(r"budget (\w+) [A-Z]{3}, and are notified", text)
        for row in table(attached):
            for side, sums in drivers.items():
                sums[owner, row["currency"]] += int(Decimal(row[side]) * MICRO)
    for side, (start, end) in days.items():
        bill = json.loads(
            ledger.out(
                "chargeback", "--from", start, "--to", end, "--by", "team", "--format", "json"
            )
        )
        own = defaultdict(int)
        for row in bill["rows"]:
            if row["billed"] == "yes" and not row["correction_of"]:
                own[row["team"], row["currency"]] += row["cost_micro"]
        assert {key: micro for key, micro in drivers[side].items() if micro} == dict(own), side
