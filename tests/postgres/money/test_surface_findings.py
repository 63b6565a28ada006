"""One number, one name: unusual spending and advice say what the chargeback of their days says.

Both ledgers have a node cost and a markup, which are in no amount of a finding: every surface says
so.
"""

import json
from decimal import Decimal

import pytest

from fakes.assistant import over
from fakes.collector import running
from fakes.fleet import DAY, HOUR, OCTOBER, Held
from fakes.surfaces import CENT, MICRO, Surfaces, table
from gpuledger_collector.accounting.money import Money
from gpuledger_collector.insight.findings import AT_LISTED_RATES
from gpuledger_collector.notifications import finding_mail, spending_week_mail
from gpuledger_collector.services.finding_notifications import MailWriters, notify_findings
from gpuledger_collector.storage.database import Database
from postgres.recommendations.test_recommend import DAYS as WINDOW_DAYS
from postgres.recommendations.test_recommend import RATE, minutes, work

pytestmark = pytest.mark.slow
WRITERS = MailWriters(
    finding_mail.idle, finding_mail.anomaly, finding_mail.summary, spending_week_mail.spending_week
)
MORE = """
[[node_cost]]
name = "cpu"
price_per_node_hour = 0.5
currency = "USD"

[[adjustment]]
name = "platform fee"
kind = "markup"
percent = 10

[[contact]]
team = "vision"
recipients = ["vision@example.org"]
"""
PRICES = (
    "pool,gpu_model,purchase,rate_per_gpu_hour,currency,effective_from\n"
    ",H100,on_demand,2.49,USD,2025-01-01\n,L4,on_demand,0.10,USD,2025-01-01\n"
)
FIRST, RUNAWAY_HOURS = 18, 48
"""Day of October on which team vision's runaway begins, counted from 0, and how long it holds four
accelerators.
"""


def at(monkeypatch, ms):
    monkeypatch.setattr("gpuledger_collector.wiring.read_clock", lambda: ms)


def day(number):
    return f"2025-10-{1 + number:02d}"


def without_nodes(row):
    """GPU-time of a workload at the rates of the price book; adjustments are of owners, and in no
    workload's row.
    """
    assert row["node_cost_micro"] > 0
    return row["cost_micro"] - row["node_cost_micro"]


def one_line(text):
    return " ".join(text.split())


@pytest.fixture
def declared(fleet, run, dsn, tmp_path):
    """Prices, a node cost, a markup and a contact."""
    surfaces = Surfaces(run, dsn, tmp_path)
    for name, text, kind in (
        ("prices.csv", PRICES, ("import", "prices")),
        ("more.toml", MORE, ("apply",)),
    ):
        (tmp_path / name).write_text(text)
        surfaces.out(*kind, str(tmp_path / name))
    return surfaces


@pytest.fixture
def unusual(declared, fleet, monkeypatch):
    """Team vision holds two accelerators all day, and four more for two days, at the end of which
    it is now.
    """
    for number in range(1, 9):
        fleet.capacity(number, 0)
    for number in (1, 2):
        fleet.workload(number, team="vision")
    end = FIRST * 24 + RUNAWAY_HOURS
    for hour in range(end):
        held = {1: 1, 2: 1} | ({3: 2, 4: 2, 5: 2, 6: 2} if hour >= FIRST * 24 else {})
        span = hour * HOUR, hour * HOUR + HOUR
        fleet.evidence(
            [
                Held(number, held[number], *span)
                if number in held
                else Held(number, None, *span, "unallocated")
                for number in range(1, 9)
            ]
        )
    at(monkeypatch, OCTOBER + end * HOUR)
    return declared


def test_unusual_spending_is_the_difference_of_chargebacks(unusual, fleet):
    """Finding, mail, command, page with its CSV, address and tool: what GPU-time of its hours is
    charged more.
    """
    days = ("--from", day(FIRST), "--to", day(FIRST + 2), "--by", "workload", "--format", "json")
    rows = {row["workload"]: row for row in json.loads(unusual.out("chargeback", *days))["rows"]}
    runaway = rows["slurm::2"]
    gpu_time = without_nodes(runaway)
    command = unusual.out("anomalies", "--from", day(0), "--to", day(FIRST + 3))
    ((since, until, cost),) = fleet.rows(
        "SELECT since_ms, until_ms, cost_micro FROM finding WHERE kind = 'anomaly'"
    )
    # It may begin an hour late; each hour costs the same.
    assert cost * RUNAWAY_HOURS == gpu_time * ((until - since) // HOUR)
    assert (until - since) // HOUR in {RUNAWAY_HOURS - 1, RUNAWAY_HOURS}
    assert AT_LISTED_RATES in one_line(command)
    more = (cost / MICRO).quantize(CENT)
    said = json.loads(
        unusual.out("anomalies", "--from", day(0), "--to", day(FIRST + 3), "--format", "json")
    )
    assert [(row["team"], Decimal(row["more_than_before"])) for row in said] == [("vision", more)]
    now_ms = OCTOBER + (FIRST * 24 + RUNAWAY_HOURS) * HOUR
    assert notify_findings(Database(unusual.dsn), now_ms, WRITERS).anomalies == 1
    ((mail,),) = fleet.rows("SELECT text FROM outbox WHERE kind = 'anomaly'")
    assert f"vision has spent USD {more:,} more than in the same hours a week before" in one_line(
        mail
    )
    assert AT_LISTED_RATES in one_line(mail)
    with running(unusual.dsn) as collector:
        page = collector.request("GET", "/anomalies?period=2025-10")[2]
        listed = table(collector.request("GET", "/anomalies?period=2025-10&format=csv")[2])
        overview = collector.request("GET", "/")[2]
        items = collector.request("GET", "/v1/anomalies?days=30")[2]["items"]
    assert f"<dt>Difference</dt><dd>+{more:,} USD</dd>" in page
    assert [Decimal(row["more_than_before"]) for row in listed] == [more]
    assert [item["cost_micro"] for item in items] == [cost]
    assert f"{more:,} USD" in overview
    assert all(AT_LISTED_RATES in one_line(text) for text in (page, overview))
    unusual.out("chargeback", "--from", day(FIRST - 7), "--to", day(FIRST))
    reply = over(unusual.dsn, now_ms, None).ask(
        "explain_change",
        start=day(FIRST),
        end=day(FIRST + 2),
        base_start=day(FIRST - 7),
        base_end=day(FIRST - 5),
    )
    events = [
        event for total in reply.totals for event in total["events"] if event["kind"] == "anomaly"
    ]
    assert [
        (Decimal(event["amount"]["amount"]), event["amount"]["currency"]) for event in events
    ] == [(cost / MICRO, "USD")]


@pytest.fixture
def small(declared, fleet, monkeypatch):
    """Team nlp's job uses a tenth of an H100 for four days; a card of its pool is never free."""
    fleet.capacity(3, 0)
    fleet.workload(3, team="nlp")
    work(fleet, 3, 3, 0, WINDOW_DAYS * DAY, 0.1)
    minutes(fleet, 3, 0, WINDOW_DAYS * DAY, 0.1, gib=6)
    fleet.connection.execute(
        "UPDATE gpu_minute SET tensor_active_ratio = 0.01, dram_active_ratio = 0.01"
    )
    at(monkeypatch, OCTOBER + WINDOW_DAYS * DAY)
    return declared


def advice_of(surfaces):
    """What is advised now, by kind, and what all of it saves together."""
    answer = json.loads(surfaces.out("recommend", "--fresh", "--format", "json"))
    return {item["kind"]: item for item in answer["items"]}, answer["joint"]["USD"]


def test_what_would_cost_more_is_no_advice(small, tmp_path):
    """A smaller GPU on which the job would run longer than it is cheaper: neither alone, nor in what
    all advice saves together.
    """
    before, together = advice_of(small)
    assert {"right_size", "mig_slice"} <= set(before)
    assert together["cash"][2] > 0
    (tmp_path / "dear.csv").write_text(PRICES.replace("0.10", "0.81"))
    small.out("import", "prices", str(tmp_path / "dear.csv"))
    after, together = advice_of(small)
    assert set(after) == {"mig_slice"}
    assert together["cash"] == [0, 0, 0]
    assert together["capacity"][1] > 0


def amounts(row, saving):
    """Low, expected and high of a saving, in micro-units."""
    return [row[f"{saving}_micro"][which] for which in ("low", "expected", "high")]


def test_advice_to_a_smaller_gpu_is_the_difference_of_two_bills(small, fleet):
    """Of a smaller model at its rate, of a slice what is left of the board: command, CSV, address
    and tool say it.
    """
    days = ("--from", day(0), "--to", day(WINDOW_DAYS), "--by", "workload", "--format", "json")
    (job,) = (
        row
        for row in json.loads(small.out("chargeback", *days))["rows"]
        if row["workload"] == "slurm::3"
    )
    gpu_time = without_nodes(job)
    text = small.out("recommend", "--fresh")
    assert AT_LISTED_RATES in one_line(text)
    answer = json.loads(small.out("recommend", "--format", "json"))
    with running(small.dsn) as collector:
        served = collector.request("GET", "/v1/recommendations")[2]
    stored = {item["kind"]: item for item in served["items"]}
    assert {"right_size", "mig_slice"} <= set(stored)
    assert amounts(stored["right_size"], "cash")[2] == gpu_time - gpu_time * Decimal("0.10") / RATE
    assert amounts(stored["mig_slice"], "capacity")[2] == gpu_time * 857 // 1000
    assert answer["joint"] == served["joint"]
    listed = {row["kind"]: row for row in table(small.out("recommend", "--format", "csv"))}
    reply = over(small.dsn, OCTOBER + WINDOW_DAYS * DAY, None).ask("get_rightsizing")
    told = {row["kind"]: row for row in reply.rows}
    assert set(told) == set(listed) == set(stored) == {item["kind"] for item in answer["items"]}
    for kind, item in stored.items():
        (row,) = (row for row in answer["items"] if row["kind"] == kind)
        for saving in ("cash", "capacity"):
            names = ("low", "expected", "high")
            cents = [
                (micro / MICRO).quantize(CENT) for micro in map(Decimal, amounts(item, saving))
            ]
            assert [Decimal(row[f"{saving}_{name}"]) for name in names] == cents
            assert [Decimal(listed[kind][f"{saving}_{name}"]) for name in names] == cents
            assert [Decimal(told[kind][saving][name]["amount"]) for name in names] == cents
    together = str(Money(served["joint"]["USD"]["cash"][1], "USD"))
    assert f"counted once: {together} cash" in one_line(text)
