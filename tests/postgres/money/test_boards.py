"""One number, one name, on the boards: each panel that shows money is read here, or has a reason
not to be.

The ledger has every feature and two currencies (fakes.rich_ledger); the queries are those that
Grafana would send.
"""

import csv
import datetime as dt
import io
import json
import re
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
GPU_HOUR_NS = Decimal(3_600_000_000_000)
CUT_AT_ZERO = re.compile(r"nullif\(greatest\((.*?), 0\), 0\)")
NOBODY = {
    f"({state})"
    for state in ("unallocated", "unavailable", "unobserved", "stranded", "commitment_unused")
}


class Boards:
    """What the panels of a month show, and what the chargeback of that month says."""

    def __init__(self, connection, run, month, currency):
        self.connection, self.run, self.month, self.currency = connection, run, month, currency
        self.span = MONTHS[month]

    def panel(self, board, title, edit=str, **choice):
        """The rows of a panel, with this currency and everything else chosen; `edit`: changes its
        statement.
        """
        offered = options(self.connection, BOARDS[board], self.span)
        values = chosen(BOARDS[board], offered, "all") | {"currency": self.currency} | choice
        for query in asked(board, values, self.span):
            if query.title == title:
                cursor = self.connection.execute(edit(query.sql).encode())
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

    def node_costs(self, workload):
        """What the ledger charges a workload for its nodes, on every day that the range touches."""
        (cost,) = self.connection.execute(
            "SELECT coalesce(sum(cost_micro), 0) FROM charge JOIN workload ON workload.id ="
            " workload_id WHERE key = %s AND currency = %s AND state = 'node_cost' AND day_ms + %s"
            " > %s AND day_ms < %s",
            (
                *(workload, self.currency, 25 * 3_600_000),
                *(edge.timestamp() * 1000 for edge in (self.span.since, self.span.until)),
            ),
        ).fetchone()
        return cost / MICRO

    def of_all_currencies(self, by="team"):
        """The whole chargeback."""
        return json.loads(
            self.out("chargeback", "--period", self.month, "--by", by, "--format", "json")
        )

    def out(self, *arguments):
        """What a command prints."""
        code, out, err = self.run(*arguments)
        assert code == 0, (arguments, out, err)
        return out


@pytest.fixture(
    params=[(month, currency) for month in MONTHS for currency in CURRENCIES], ids=" ".join
)
def boards(rich, run, request):
    return Boards(rich.connection, run, *request.param)


def billed(rows, name="cost_micro"):
    """The sum of what owners pay."""
    return sum(row[name] or 0 for row in rows if row["team"] not in NOBODY) / MICRO


def summed(rows, name="cost"):
    """The sum of a column."""
    return sum((row[name] or 0 for row in rows), Decimal())


def hours(rows, name="gpu_ns"):
    """The sum of exact time, in GPU-hours."""
    return Decimal(sum(row[name] or 0 for row in rows)) / GPU_HOUR_NS


def test_the_bill(boards):
    """The rows of the CSV in one currency and without a price, their sum, and the proof beside
    them.
    """
    _, total = boards.bill()
    exact = total["cost_micro"] / MICRO
    assert boards.number("chargeback", "Charged ($currency)") == exact
    for title, by in (
        ("By team ($currency)", "team"),
        ("By team and project ($currency)", "team,project"),
    ):
        text = boards.out("chargeback", "--period", boards.month, "--by", by, "--format", "csv")
        told = [
            row
            for row in csv.DictReader(io.StringIO(text))
            if row["currency"] in {boards.currency, ""}
        ]
        shown = boards.panel("chargeback", title)
        assert [str(row["cost"] or "") for row in told] == [f"{row['cost']:.2f}" for row in shown]
        assert summed(shown) == exact.quantize(Decimal("0.01")), (
            "the footer is the total of one currency"
        )
    proof = json.loads(boards.out("reconcile", "--period", boards.month, "--format", "json"))[
        "money"
    ]
    parts = sum(
        part["micro"] for name, part in proof[boards.currency].items() if f"({name})" in NOBODY
    )
    assert boards.number("chargeback", "Difference ($currency)") == 0
    owners = proof[boards.currency]["owners"]["micro"]
    assert (
        boards.number("chargeback", "Capacity times rate ($currency)") == (parts + owners) / MICRO
    )


def test_finops(boards):
    """The spend, its parts, its days and its teams are one amount, and the other currency is named."""
    rows, total = boards.bill()
    spend = total["cost_micro"] / MICRO
    corrections = sum(row["cost_micro"] for row in rows if row["correction_of"]) / MICRO
    assert boards.number("finops", "Spend ($currency)") == spend
    title = "Where the money went, by model ($currency)"
    shown = boards.panel("finops", title)
    parts = boards.panel("finops", title, lambda sql: CUT_AT_ZERO.sub(r"\1", sql))
    assert (
        sum(value or 0 for row in parts for name, value in row.items() if name != "model") == spend
    )
    assert shown == [
        {
            name: value if name == "model" or (value or 0) > 0 else None
            for name, value in row.items()
        }
        for row in parts
    ]
    days = boards.panel("finops", "Spend per day, by state ($currency)")
    assert summed(days) == spend - corrections
    teams = boards.panel("finops", "Teams ($currency)")
    shown = {(row["team"], row["correction of"]): row["cost"] for row in teams}
    assert shown == {
        (row["team"], row["correction_of"]): row["cost_micro"] / MICRO
        for row in rows
        if row["team"] not in NOBODY
    }
    whole = boards.of_all_currencies()
    (waste,) = [row for row in whole["waste"] if row["currency"] == boards.currency]
    assert (
        boards.number("finops", "Waste ($currency)") == Decimal(waste["waste_cost_micro"]) / MICRO
    )
    (prices,) = boards.panel("finops", "List price against effective cost ($currency)")
    own = [row for row in rows if not row["correction_of"] and row["list_cost_micro"]]
    assert (prices["at list price"] or 0) == summed(own, "list_cost_micro") / MICRO
    others = {
        row["currency"]: row["cost_micro"] / MICRO for row in whole["totals"] if row["currency"]
    }
    del others[boards.currency]
    for board in ("finops", "idle", "chargeback"):
        assert {
            row["currency"]: row["cost"] for row in boards.panel(board, "In other currencies")
        } == others, board


@pytest.mark.parametrize("board", ["team", "research"])
def test_owners(boards, board):
    """What all owners pay, in one number and in each table."""
    rows, _ = boards.bill()
    cost, idle = billed(rows), billed(rows, "held_idle_cost_micro")
    corrections = billed([row for row in rows if row["correction_of"]])
    assert boards.number(board, "Cost ($currency)") == cost
    assert summed(boards.panel(board, "Projects ($currency)")) == cost
    assert summed(boards.panel(board, "Projects ($currency)"), "held idle cost") == idle
    days = {
        "team": "Cost a day, by team ($currency)",
        "research": "Cost a day, by project ($currency)",
    }[board]
    assert summed(boards.panel(board, days)) == cost - corrections
    if board == "team":
        assert boards.number(board, "Held idle cost ($currency)") == idle
        assert summed(boards.panel(board, "People ($currency)")) == cost
    others = boards.panel(board, "In other currencies")
    assert [row["currency"] for row in others] == [
        name for name in CURRENCIES if name != boards.currency
    ]


def test_workloads(boards):
    """Each workload's GPU-time and nodes, on its own board and in the table of its team."""
    rows, _ = boards.bill("workload")
    whole = boards.of_all_currencies("workload")["rows"]
    listed = defaultdict(Decimal)
    for row in boards.panel("team", "Workloads ($currency)"):
        listed[row["workload"]] += row["cost"]
    for number in TEAMS:
        key = f"slurm::{number}"
        own = summed([row for row in rows if row["workload"] == key], "cost_micro") / MICRO
        assert (boards.number("workload", "Cost ($currency)", workload=key) or 0) == own
        assert summed(boards.panel("workload", "By GPU ($currency)", workload=key)) == own
        assert listed[key] == own
        elsewhere = defaultdict(Decimal)
        for row in whole:
            if row["workload"] == key and row["currency"] not in {boards.currency, None}:
                elsewhere[row["currency"]] += row["cost_micro"] / MICRO
        others = boards.panel("workload", "In other currencies", workload=key)
        assert {row["currency"]: row["cost"] for row in others} == {
            currency: cost for currency, cost in elsewhere.items() if cost
        }
        idle = (
            summed([row for row in rows if row["workload"] == key], "held_idle_cost_micro") / MICRO
        )
        assert (boards.number("workload", "Held idle cost ($currency)", workload=key) or 0) == idle
        days = [row for row in rows if row["workload"] == key and not row["correction_of"]]
        charted = boards.panel("workload", "Cost a day ($currency)", workload=key)
        assert summed(charted) == pytest.approx(summed(days, "cost_micro") / MICRO)
        nodes = summed([row for row in charted if row["metric"] == "node costs"])
        assert nodes == boards.node_costs(key)
        everywhere = [row for row in whole if row["workload"] == key and not row["correction_of"]]
        assert (boards.number("workload", "GPU-hours", workload=key) or 0) == pytest.approx(
            hours(everywhere)
        )


def test_idle(boards):
    """Held idle cost in sum, by team and by workload; hours beside it are of the same GPUs."""
    rows, total = boards.bill()
    idle = billed(rows, "held_idle_cost_micro")
    assert (
        boards.number("idle", "Held idle cost ($currency)")
        == idle
        == total["held_idle_cost_micro"] / MICRO
    )
    assert summed(boards.panel("idle", "Idle by team ($currency)"), "held idle cost") == idle
    own = sum(row["held_idle_cost_micro"] or 0 for row in rows if not row["correction_of"]) / MICRO
    of_workloads = boards.panel("idle", "Workloads that cost most held idle ($currency)")
    assert summed(of_workloads, "held idle cost") == own
    hours = sum(Decimal(row["gpu_hours"]) for row in rows if row["team"] == "(unallocated)")
    assert round(boards.number("idle", "Unallocated GPU-hours") or 0, 6) == hours


def test_nodes(boards):
    """All charges of each node on the days that the range touches, currency by currency."""
    charged = boards.connection.execute(
        "SELECT node, currency, sum(cost_micro) FROM (SELECT node, currency, cost_micro, day_ms FROM"
        " charge UNION ALL SELECT node, currency, cost_micro, booked_day_ms FROM correction) c WHERE"
        " currency IS NOT NULL AND day_ms + %s > %s AND day_ms < %s GROUP BY 1, 2",
        (
            25 * 3_600_000,
            *(edge.timestamp() * 1000 for edge in (boards.span.since, boards.span.until)),
        ),
    ).fetchall()
    expected = {(node, currency): micro / MICRO for node, currency, micro in charged if node}
    assert len(expected) > 1
    shown = {
        (node, row["currency"]): row["cost"]
        for node in {node for node, _ in expected}
        for row in boards.panel("node", "Cost of the node's days", node=node)
    }
    assert shown == expected


def test_shares_of_the_spend(boards):
    """Waste over spend, held over capacity, and what a busy hour costs by the hours of its own
    activity.
    """
    rows, total = boards.bill()
    (waste,) = [
        row for row in boards.of_all_currencies()["waste"] if row["currency"] == boards.currency
    ]
    share = boards.number("finops", "Waste share")
    assert share == pytest.approx(Decimal(waste["waste_cost_micro"]) / total["cost_micro"])
    own = [row for row in rows if not row["correction_of"] and row["team"] != "(commitment_unused)"]
    held = hours([row for row in own if row["team"] not in NOBODY])
    assert boards.number("finops", "Held share") == pytest.approx(held / hours(own))
    days = boards.panel("team", "GPU-hours a day, by activity")
    busy = summed([row for row in days if row["metric"] == "busy"], "hours")
    everything = boards.of_all_currencies()["rows"]
    if {row["currency"] for row in everything if row["team"] not in NOBODY} == {boards.currency}:
        cost = billed(own)
        assert boards.number("research", "A busy GPU-hour ($currency)") == pytest.approx(
            cost / busy
        )


def test_hours(boards):
    """Hours beside the amounts: of owners, of each state, of idle GPUs and of those without a
    price.
    """
    everything = [row for row in boards.of_all_currencies()["rows"] if not row["correction_of"]]
    unpriced = [row for row in everything if row["currency"] is None]
    mine = [row for row in everything if row["currency"] in {boards.currency, None}]
    assert boards.number("finops", "Unpriced hours") == pytest.approx(hours(unpriced))
    days = boards.panel("chargeback", "Day by day")
    seen = [row for row in everything if row["team"] != "(commitment_unused)"]
    assert summed(days, "capacity") + summed(days, "imported") == pytest.approx(hours(seen))
    for state in ("unallocated", "unavailable", "unobserved", "stranded"):
        named = [row for row in everything if row["team"] == f"({state})"]
        unnamed = hours(unpriced)  # its rows do not say in which state
        assert 0 <= summed(days, state) - hours(named) <= unnamed
    assert boards.number("idle", "Idle GPU-hours") == pytest.approx(hours(mine, "held_idle_gpu_ns"))
    charted = boards.panel("idle", "Idle GPU-hours per day")
    free = boards.number("idle", "Unallocated GPU-hours") or 0
    assert summed(charted, "hours") == pytest.approx(hours(mine, "held_idle_gpu_ns") + free)
    priced = hours([row for row in everything if row["team"] not in {*NOBODY, "(unpriced)"}])
    for board, title in (("team", "GPU-hours held"), ("research", "GPU-hours")):
        assert 0 <= boards.number(board, title) - priced <= hours(unpriced)
    held = boards.number("team", "GPU-hours held")
    assert summed(boards.panel("team", "GPU-hours a day, by activity"), "hours") == pytest.approx(
        held
    )
    assert summed(boards.panel("research", "GPU-hours a day, by model"), "hours") == pytest.approx(
        held
    )


def test_boards_open_on_the_currency_with_most_gpu_time(rich):
    """Not on the first of the alphabet, nor on one that is declared and never used."""
    for board in ("finops", "idle", "chargeback", "team", "research", "workload"):
        offered = options(rich.connection, BOARDS[board], MONTHS[OPEN])["currency"]
        assert offered == ["USD", "EUR"], board
    rich.connection.execute(
        "UPDATE price SET currency = 'AED' WHERE id = (SELECT max(id) FROM price)"
    )
    assert options(rich.connection, BOARDS["finops"], MONTHS[OPEN])["currency"][0] == "USD"


HERE = {
    *(("chargeback", title) for title in ("Charged ($currency)", "By team ($currency)")),
    *(
        ("chargeback", title)
        for title in ("By team and project ($currency)", "Difference ($currency)")
    ),
    ("chargeback", "Capacity times rate ($currency)"),
    *(
        ("finops", title)
        for title in ("Spend ($currency)", "Waste ($currency)", "Teams ($currency)")
    ),
    ("finops", "Spend per day, by state ($currency)"),
    ("finops", "Where the money went, by model ($currency)"),
    ("finops", "List price against effective cost ($currency)"),
    *(
        (board, "In other currencies")
        for board in ("chargeback", "finops", "idle", "team", "research", "workload")
    ),
    *(
        ("team", f"{what} ($currency)")
        for what in ("Cost", "Held idle cost", "Projects", "People", "Workloads")
    ),
    ("team", "Cost a day, by team ($currency)"),
    *(
        ("research", f"{what} ($currency)")
        for what in ("Cost", "Projects", "Cost a day, by project")
    ),
    *(("idle", f"{what} ($currency)") for what in ("Held idle cost", "Idle by team")),
    ("idle", "Workloads that cost most held idle ($currency)"),
    *(
        ("workload", f"{what} ($currency)")
        for what in ("Cost", "By GPU", "Held idle cost", "Cost a day")
    ),
    *(("finops", title) for title in ("Waste share", "Held share", "Unpriced hours")),
    *(("idle", title) for title in ("Idle GPU-hours", "Idle GPU-hours per day")),
    ("idle", "Unallocated GPU-hours"),
    *(("team", title) for title in ("GPU-hours held", "GPU-hours a day, by activity")),
    *(
        ("research", title)
        for title in ("GPU-hours", "GPU-hours a day, by model", "A busy GPU-hour ($currency)")
    ),
    ("workload", "GPU-hours"),
    ("node", "Cost of the node's days"),
    ("chargeback", "Day by day"),
}
"""Panels that this file reads."""
ELSEWHERE = {
    (
        "finops",
        "This month, and its forecast ($currency)",
    ): "asks for now: tests/dashboards/test_meaning.py",
    ("finops", "Last 7 days against the 7 before"): "asks for now",
    ("finops", "An hour now ($currency)"): "asks for now: tests/dashboards/test_meaning.py",
    (
        "finops",
        "Burn-up of $budget, and its forecast ($currency)",
    ): "asks for now: tests/dashboards/test_meaning.py",
    (
        "finops",
        "Budgets in money, and their forecasts",
    ): "asks for now: tests/dashboards/test_meaning.py",
    (
        "finops",
        "Budgets in GPU-hours, and their forecasts",
    ): "asks for now: tests/dashboards/test_meaning.py",
    ("team", "This month, and its forecast ($currency)"): "asks for now",
    ("research", "This month, and its forecast ($currency)"): "asks for now",
    ("finops", "Anomalies"): "estimates, each with its currency",
    ("idle", "Open findings of workloads"): "estimates, each with its currency",
    ("idle", "Accelerators that nobody holds"): "estimates, each with its currency",
    ("team", "Idle or underused now"): "estimates",
    ("team", "Can be given back, or used better, now"): "estimates, each with its currency",
    (
        "team",
        "What was held of each share, lent and borrowed ($currency)",
    ): "tests/dashboards/test_meaning.py",
    **{
        (board, f"{title} ($currency)"): "estimates: tests/dashboards/test_savings.py"
        for board in ("finops", "idle")
        for title in (
            "To save",
            "Capacity to free",
            "Saved by advice",
            "Idle GPUs, a day",
            "Recommendations",
        )
    },
    (
        "idle",
        "Idle share",
    ): "idle hours are read here; no bill says which hours were known to be busy",
    ("demand", "Cost of capacity against wait"): "a plan",
    ("demand", "Forecast and actual demand, all models"): "a forecast, beside GPUs by the hour",
    ("demand", "Held and unallocated, hour by hour"): "the last four days: GPUs, not amounts",
    ("demand", "How many to reserve"): "estimates",
    **{
        ("demand", title): "GPUs, which are kept in millionths: tests/dashboards/test_meaning.py"
        for title in ("Does it fit?", "Demand, capacity and baseline")
    },
    ("demand", "Outcome of the decisions"): "estimates",
    ("demand", "GPUs requested in queues"): "GPUs, which are kept in millionths",
    **{
        ("team", title): "GPU-hours of queues, not billed: tests/dashboards/test_meaning.py"
        for title in (
            "Queues: quota, and who waited beside unused quota",
            "GPUs that waited beside unused quota, by queue",
            "Who was stopped, and for whom",
        )
    },
    ("fleet", "Inventory"): "GPUs, which are kept in millionths",
    ("finops", "Busy hour, $currency"): "a quotient of amounts that are read here",
    ("research", "Experiments ($currency)"): "a part of the projects, of those with a tag",
    ("workload", "By number of GPUs ($currency)"): "a quotient: tests/dashboards/test_meaning.py",
    **{
        ("models", title): "sums of splits, beside the command: tests/dashboards/test_models.py"
        for title in (
            "A million input tokens at held cost, by day ($currency)",
            "A million tokens, by server ($currency)",
            "Cost a day, used and idle ($currency)",
            "Cost of model servers ($currency)",
            "In other currencies",
        )
    },
}
"""Panels that show amounts, and where these are compared, or why not."""


HOURS = "3.6e12"
"""Billed time is kept in nanoseconds, and amounts in micro-units: whatever shows one divides by
such a number.
"""
PLANNED = "'on_demand'"
"""A plan has its amounts in units."""


def shows_amounts(panel):
    """Whether a panel shows money, or billed hours."""
    texts = [target.get("rawSql", "") for target in panel["targets"]]
    return "($currency)" in panel["title"] or any(
        part in text for text in texts for part in (f"/ {MICRO_UNITS}", HOURS, PLANNED)
    )


def test_every_panel_with_an_amount_is_read_or_has_a_reason():
    """A new panel fails here until somebody says where its amounts are compared."""
    shown = {
        (name, panel["title"])
        for name, board in BOARDS.items()
        for panel in panels(board)
        if shows_amounts(panel)
    }
    assert shown <= HERE | ELSEWHERE.keys(), shown - HERE - ELSEWHERE.keys()
    assert not HERE & ELSEWHERE.keys(), "in one list each"
    titles = {(name, panel["title"]) for name, board in BOARDS.items() for panel in panels(board)}
    assert HERE | ELSEWHERE.keys() <= titles, (HERE | ELSEWHERE.keys()) - titles
