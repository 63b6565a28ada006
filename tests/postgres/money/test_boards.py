"""One number, one name, on the boards: each panel that shows money is read here, or has a reason not to be.

The ledger has every feature and two currencies (fakes.rich_ledger); the queries are those that Grafana would send.
"""

import csv
import datetime as dt
import io
import json
from collections import defaultdict
from decimal import Decimal

import pytest
from dashboards.sql import MICRO as MICRO_UNITS

from fakes.boards import BOARDS, asked, chosen, options, panels
from fakes.grafana import Range
from fakes.rich_ledger import CLOSED, OPEN, TEAMS, rich

__all__ = ["rich"]
pytestmark = pytest.mark.slow
MONTHS = {
    CLOSED: Range(dt.datetime(2025, 10, 1, tzinfo=dt.UTC), dt.datetime(2025, 11, 1, tzinfo=dt.UTC)),
    OPEN: Range(dt.datetime(2025, 11, 1, tzinfo=dt.UTC), dt.datetime(2025, 12, 1, tzinfo=dt.UTC)),
}
CURRENCIES = ("EUR", "USD")
MICRO = Decimal(10) ** 6
NOBODY = {f"({state})" for state in ("unallocated", "unavailable", "unobserved", "stranded", "commitment_unused")}


class Boards:
    """What the panels of a month show, and what the chargeback of that month says."""

    def __init__(self, connection, run, month, currency):
        self.connection, self.run, self.month, self.currency = connection, run, month, currency
        self.span = MONTHS[month]

    def panel(self, board, title, **choice):
        """The rows of a panel, with this currency and everything else chosen."""
        offered = options(self.connection, BOARDS[board], self.span)
        values = chosen(BOARDS[board], offered, "all") | {"currency": self.currency} | choice
        for query in asked(board, values, self.span):
            if query.title == title:
                cursor = self.connection.execute(query.sql.encode())
                names = [column.name for column in cursor.description]
                return [dict(zip(names, row, strict=True)) for row in cursor]
        raise AssertionError(title)

    def number(self, board, title, **choice):
        """The value of a panel with one number."""
        (row,) = self.panel(board, title, **choice)
        (value,) = row.values()
        return value

    def bill(self, by="team"):
        """Rows and totals of the chargeback in this currency."""
        bill = self.of_all_currencies(by)
        return [row for row in bill["rows"] if row["currency"] == self.currency], next(
            row for row in bill["totals"] if row["currency"] == self.currency
        )

    def of_all_currencies(self, by="team"):
        """The whole chargeback."""
        return json.loads(self.out("chargeback", "--period", self.month, "--by", by, "--format", "json"))

    def out(self, *arguments):
        """What a command prints."""
        code, out, err = self.run(*arguments)
        assert code == 0, (arguments, out, err)
        return out


@pytest.fixture(params=[(month, currency) for month in MONTHS for currency in CURRENCIES], ids=" ".join)
def boards(rich, run, request):
    return Boards(rich.connection, run, *request.param)


def billed(rows, name="cost_micro"):
    """The sum of what owners pay."""
    return sum(row[name] or 0 for row in rows if row["team"] not in NOBODY) / MICRO


def summed(rows, name="cost"):
    """The sum of a column."""
    return sum((row[name] or 0 for row in rows), Decimal())


def test_the_bill(boards):
    """The rows of the CSV in one currency and without a price, their sum, and the proof beside them."""
    _, total = boards.bill()
    exact = total["cost_micro"] / MICRO
    assert boards.number("chargeback", "Charged ($currency)") == exact
    for title, by in (("By team ($currency)", "team"), ("By team and project ($currency)", "team,project")):
        text = boards.out("chargeback", "--period", boards.month, "--by", by, "--format", "csv")
        told = [row for row in csv.DictReader(io.StringIO(text)) if row["currency"] in {boards.currency, ""}]
        shown = boards.panel("chargeback", title)
        assert [str(row["cost"] or "") for row in told] == [f"{row['cost']:.2f}" for row in shown]
        assert summed(shown) == exact.quantize(Decimal("0.01")), "the footer is the total of one currency"
    proof = json.loads(boards.out("reconcile", "--period", boards.month, "--format", "json"))["money"]
    parts = sum(part["micro"] for name, part in proof[boards.currency].items() if f"({name})" in NOBODY)
    assert boards.number("chargeback", "Difference ($currency)") == 0
    owners = proof[boards.currency]["owners"]["micro"]
    assert boards.number("chargeback", "Capacity times rate ($currency)") == (parts + owners) / MICRO


def test_finops(boards):
    """The spend, its parts, its days and its teams are one amount, and the other currency is named."""
    rows, total = boards.bill()
    spend = total["cost_micro"] / MICRO
    corrections = sum(row["cost_micro"] for row in rows if row["correction_of"]) / MICRO
    assert boards.number("finops", "Spend ($currency)") == spend
    parts = boards.panel("finops", "Where the money went, by model ($currency)")
    assert sum(value or 0 for row in parts for name, value in row.items() if name != "model") == spend
    for title in ("Spend per day, by state ($currency)", "Spend per day, by model ($currency)"):
        assert summed(boards.panel("finops", title)) == spend - corrections, title
    teams = boards.panel("finops", "Teams ($currency)")
    shown = {(row["team"], row["correction of"]): row["cost"] for row in teams}
    assert shown == {
        (row["team"], row["correction_of"]): row["cost_micro"] / MICRO for row in rows if row["team"] not in NOBODY
    }
    whole = boards.of_all_currencies()
    (waste,) = [row for row in whole["waste"] if row["currency"] == boards.currency]
    assert boards.number("finops", "Waste ($currency)") == Decimal(waste["waste_cost_micro"]) / MICRO
    (prices,) = boards.panel("finops", "List price against effective cost ($currency)")
    own = [row for row in rows if not row["correction_of"] and row["list_cost_micro"]]
    assert (prices["at list price"] or 0) == summed(own, "list_cost_micro") / MICRO
    others = {row["currency"]: row["cost_micro"] / MICRO for row in whole["totals"] if row["currency"]}
    del others[boards.currency]
    for board in ("finops", "idle", "chargeback"):
        assert {row["currency"]: row["cost"] for row in boards.panel(board, "In other currencies")} == others, board


@pytest.mark.parametrize("board", ["team", "research"])
def test_owners(boards, board):
    """What all owners pay, in one number and in each table."""
    rows, _ = boards.bill()
    cost, idle = billed(rows), billed(rows, "held_idle_cost_micro")
    corrections = billed([row for row in rows if row["correction_of"]])
    assert boards.number(board, "Cost ($currency)") == cost
    assert summed(boards.panel(board, "Projects ($currency)")) == cost
    assert summed(boards.panel(board, "Projects ($currency)"), "held idle cost") == idle
    days = {"team": "Cost a day, by team ($currency)", "research": "Cost a day, by project ($currency)"}[board]
    assert summed(boards.panel(board, days)) == cost - corrections
    if board == "team":
        assert boards.number(board, "Held idle cost ($currency)") == idle
        assert summed(boards.panel(board, "People ($currency)")) == cost
    others = boards.panel(board, "In other currencies")
    assert [row["currency"] for row in others] == [name for name in CURRENCIES if name != boards.currency]


def test_workloads(boards):
    """Each workload's GPU-time and nodes, on its own board and in the table of its team."""
    rows, _ = boards.bill("workload")
    listed = defaultdict(Decimal)
    for row in boards.panel("team", "Workloads ($currency)"):
        listed[row["workload"]] += row["cost"]
    for number in TEAMS:
        key = f"slurm::{number}"
        own = summed([row for row in rows if row["workload"] == key], "cost_micro") / MICRO
        assert (boards.number("workload", "Cost ($currency)", workload=key) or 0) == own
        assert summed(boards.panel("workload", "By GPU ($currency)", workload=key)) == own
        assert listed[key] == own


def test_idle(boards):
    """Held idle cost in sum, by team and by workload; hours beside it are of the same GPUs."""
    rows, total = boards.bill()
    idle = billed(rows, "held_idle_cost_micro")
    assert boards.number("idle", "Held idle cost ($currency)") == idle == total["held_idle_cost_micro"] / MICRO
    assert summed(boards.panel("idle", "Idle by team ($currency)"), "held idle cost") == idle
    own = sum(row["held_idle_cost_micro"] or 0 for row in rows if not row["correction_of"]) / MICRO
    of_workloads = boards.panel("idle", "Workloads that cost most held idle ($currency)")
    assert summed(of_workloads, "held idle cost") == own
    hours = sum(Decimal(row["gpu_hours"]) for row in rows if row["team"] == "(unallocated)")
    assert round(boards.number("idle", "Unallocated GPU-hours ($currency)") or 0, 6) == hours


def test_boards_open_on_the_currency_with_most_gpu_time(rich):
    """Not on the first of the alphabet, nor on one that is declared and never used."""
    for board in ("finops", "idle", "chargeback", "team", "research", "workload"):
        offered = options(rich.connection, BOARDS[board], MONTHS[OPEN])["currency"]
        assert offered == ["USD", "EUR"], board
    rich.connection.execute("UPDATE price SET currency = 'AED' WHERE id = (SELECT max(id) FROM price)")
    assert options(rich.connection, BOARDS["finops"], MONTHS[OPEN])["currency"][0] == "USD"


HERE = {
    *(("chargeback", title) for title in ("Charged ($currency)", "By team ($currency)")),
    *(("chargeback", title) for title in ("By team and project ($currency)", "Difference ($currency)")),
    ("chargeback", "Capacity times rate ($currency)"),
    *(("finops", title) for title in ("Spend ($currency)", "Waste ($currency)", "Teams ($currency)")),
    *(("finops", f"Spend per day, by {what} ($currency)") for what in ("state", "model")),
    ("finops", "Where the money went, by model ($currency)"),
    ("finops", "List price against effective cost ($currency)"),
    *((board, "In other currencies") for board in ("chargeback", "finops", "idle", "team", "research")),
    *(("team", f"{what} ($currency)") for what in ("Cost", "Held idle cost", "Projects", "People", "Workloads")),
    ("team", "Cost a day, by team ($currency)"),
    *(("research", f"{what} ($currency)") for what in ("Cost", "Projects", "Cost a day, by project")),
    *(("idle", f"{what} ($currency)") for what in ("Held idle cost", "Idle by team")),
    ("idle", "Workloads that cost most held idle ($currency)"),
    *(("workload", f"{what} ($currency)") for what in ("Cost", "By GPU")),
}
"""Panels that this file reads."""
ELSEWHERE = {
    ("finops", "This month and its projection ($currency)"): "asks for now: tests/dashboards/test_meaning.py",
    ("finops", "Last 7 days against the 7 before"): "asks for now",
    ("finops", "Burn-up of $budget ($currency)"): "asks for now: tests/dashboards/test_meaning.py",
    ("finops", "Budgets in money"): "asks for now: tests/dashboards/test_meaning.py",
    ("finops", "Budgets (GPU-hours)"): "asks for now: tests/dashboards/test_meaning.py",
    ("team", "This month and its projection ($currency)"): "asks for now",
    ("research", "This month and its projection ($currency)"): "asks for now",
    ("finops", "Anomalies"): "estimates, each with its currency",
    ("idle", "Open findings of workloads"): "estimates, each with its currency",
    ("idle", "Accelerators that nobody holds"): "estimates, each with its currency",
    ("team", "Idle or underused now"): "estimates",
    ("team", "Can be given back, or used better, now"): "estimates, each with its currency",
    ("team", "What was held of each share, lent and borrowed ($currency)"): "tests/dashboards/test_meaning.py",
    ("demand", "How many to reserve"): "estimates",
    ("demand", "Outcome of the decisions"): "estimates",
    ("demand", "GPUs requested in queues"): "GPUs, which are kept in millionths",
    ("fleet", "Inventory"): "GPUs, which are kept in millionths",
    ("finops", "Waste, share of spend"): "a quotient of amounts that are read here",
    ("finops", "A busy GPU-hour ($currency)"): "a quotient of amounts that are read here",
    ("research", "A busy GPU-hour ($currency)"): "a quotient of amounts that are read here",
    ("research", "Experiments ($currency)"): "a part of the projects, of those with a tag",
    ("research", "What each project's GPU-hours did"): "hours, in the order of cost",
    ("workload", "Held idle cost ($currency)"): "a part of what is read here, by one more column",
    ("workload", "Cost a day ($currency)"): "the same charges by day",
    ("workload", "By number of GPUs ($currency)"): "a quotient: tests/dashboards/test_meaning.py",
}
"""Panels that show amounts, and where these are compared, or why not."""


def test_every_panel_with_an_amount_is_read_or_has_a_reason():
    """A new panel fails here until somebody says where its amounts are compared."""
    shown = {
        (name, panel["title"])
        for name, board in BOARDS.items()
        for panel in panels(board)
        # Amounts are kept in micro-units: whatever shows one divides by a million.
        if any(f"/ {MICRO_UNITS}" in target.get("rawSql", "") for target in panel["targets"])
    }
    assert shown <= HERE | ELSEWHERE.keys(), shown - HERE - ELSEWHERE.keys()
    assert not HERE & ELSEWHERE.keys(), "in one list each"
    titles = {(name, panel["title"]) for name, board in BOARDS.items() for panel in panels(board)}
    assert HERE | ELSEWHERE.keys() <= titles, (HERE | ELSEWHERE.keys()) - titles
