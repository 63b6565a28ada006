"""One number, one name: tools of assistants, files of Parquet and pages say what the chargeback of
their question says.

The ledger is that of test_surfaces, which has commands, statements and forms of the chargeback.
"""

import json
import re
from collections import defaultdict
from decimal import Decimal
from html import unescape

import pytest

from fakes.assistant import over
from fakes.collector import running
from fakes.fleet import NOW_MS
from fakes.rich_ledger import CLOSED, OPEN, TEAMS, rich
from fakes.surfaces import CENT, MICRO, MONTHS, OWNERS, ledger, table
from gpuledger_collector.export.runs import GPU_TIME_ONLY

__all__ = ["ledger", "rich"]
pytestmark = pytest.mark.slow
STATES = ("unallocated", "unavailable", "unobserved", "stranded", "commitment_unused")
NAMED = {
    "owners": "owners: held, and charged to them",
    "unallocated": "unallocated: held by nobody",
    "unavailable": "unavailable: broken, draining or in maintenance",
    "unobserved": "unobserved: no evidence of either kind",
    "stranded": "stranded: outside every MIG slice",
    "commitment_unused": "unused commitments: paid for, and used by nobody",
}


def amount(money):
    return None if money is None else Decimal(money["amount"])


def text(row, column):
    return None if row[column] is None else Decimal(row[column])


def ordered(rows):
    return sorted(rows, key=repr)


def micro_by(rows, *names):
    """Exact sums of the chargeback by these cells and currency."""
    sums = defaultdict(int)
    for row in rows:
        sums[(*(row[name] for name in names), row["currency"])] += row["cost_micro"]
    return dict(sums)


def exact_by(rows, side, *names):
    """Exact sums of an answer's rows; a side of no cost is not in the chargeback at all."""
    sums = {
        (*(row["names"][name] for name in names), row["currency"]): int(amount(row[side]) * MICRO)
        for row in rows
    }
    return {key: micro for key, micro in sums.items() if micro}


@pytest.mark.parametrize("month", MONTHS)
def test_costs_waste_and_efficiency(ledger, month):
    """Row by row those of the chargeback; each total is the one that it prints."""
    bill = ledger.bill(month)
    assistant = over(ledger.dsn, NOW_MS, None)
    cost = assistant.ask("get_cost", period=month, limit=200)
    assert ordered(
        (row["names"]["team"], row["currency"], amount(row["cost"]), amount(row["cost_total"]))
        for row in cost.rows
    ) == ordered(
        (row["team"], row["currency"], text(row, "cost"), text(row, "cost_total"))
        for row in bill["rows"]
    )
    assert {row["currency"]: int(amount(row["cost_exact"]) * MICRO) for row in cost.totals} == {
        row["currency"]: row["cost_micro"] for row in bill["totals"]
    }
    waste = assistant.ask("get_gpu_waste", period=month, limit=200)
    assert ordered(
        (row["names"]["team"], amount(row["waste"]), row["waste"]["currency"], amount(row["cost"]))
        for row in waste.rows
    ) == ordered(
        (row["team"], text(row, "cost_waste"), row["currency"], text(row, "cost_effective"))
        for row in bill["rows"]
        if (row["waste_cost_micro"] or 0) > 0
    )
    assert {row["currency"]: amount(row["waste"]) for row in waste.totals} == {
        row["currency"]: text(row, "cost_waste") for row in bill["waste"]
    }
    efficiency = assistant.ask("get_efficiency", period=month, limit=200)
    assert ordered(
        (
            row["names"]["team"],
            row["currency"],
            amount(row["cost_allocated"]),
            amount(row["cost_used"]),
        )
        for row in efficiency.rows
        if row["names"]["team"] in OWNERS and row["cost_used"]
    ) == ordered(
        (
            row["team"],
            row["currency"],
            text(row, "cost_effective"),
            text(row, "cost_effective") - text(row, "cost_waste"),
        )
        for row in bill["rows"]
        if row["team"] in OWNERS and row["cost_waste"]
    )
    assert {row["currency"]: amount(row["cost_allocated"]) for row in efficiency.totals} == {
        row["currency"]: text(row, "cost") for row in bill["totals"]
    }


@pytest.mark.parametrize(
    ("tool", "by"), [("compare_periods", ["team"]), ("explain_change", ["workload", "model"])]
)
def test_both_ends_of_a_change(ledger, tool, by):
    """Before and after are the chargebacks of the two periods, each group and each total to the
    micro-unit.
    """
    reply = over(ledger.dsn, NOW_MS, None).ask(tool, period=OPEN, base_period=CLOSED, limit=200)
    for side, month in (("before", CLOSED), ("after", OPEN)):
        bill = ledger.bill(month, ",".join(by))
        expected = {key: micro for key, micro in micro_by(bill["rows"], *by).items() if micro}
        assert exact_by(reply.rows, side, *by) == expected
        assert {row["currency"]: int(amount(row[side]) * MICRO) for row in reply.totals} == {
            row["currency"]: row["cost_micro"] for row in bill["totals"]
        }


@pytest.mark.parametrize("month", MONTHS)
def test_statements_of_assistants(ledger, month):
    """What each owner pays, exactly; the lines by day add up to it to the micro-unit."""
    rows, assistant = ledger.rows(month), over(ledger.dsn, NOW_MS, None)
    for owner in OWNERS:
        reply = assistant.ask(
            "get_statement", owner=owner, month=month, section="models", limit=200
        )
        said = {
            row["currency"]: (
                amount(row["cost"]),
                amount(row["cost_total"]),
                int(amount(row["cost_exact"]) * MICRO),
            )
            for row in reply.totals
        }
        assert said == {
            currency: (row["cost"], row["cost_total"], row["cost_micro"])
            for (team, currency), row in rows.items()
            if team == owner
        }
        lines = defaultdict(Decimal)
        for line in reply.rows:
            lines[line["currency"]] += amount(line["cost"])
        assert dict(lines) == {currency: cost for currency, (cost, _, _) in said.items()}


def test_budgets_and_forecasts_of_assistants(ledger):
    """What is spent of a budget is what its team is charged; where nobody used anything since, it
    ends there.
    """
    own = {key: row["cost_micro"] for key, row in ledger.rows(OPEN).items()}
    later = {
        (row["team"], row["currency"]): row["cost_micro"]
        for row in ledger.bill(OPEN)["rows"]
        if row["correction_of"]
    }
    own = {key: micro - later.get(key, 0) for key, micro in own.items()}
    path = ledger.folder / "budgets.toml"
    path.write_text(
        "".join(
            f'[[budget]]\nname = "{team} {currency}"\nteam = "{team}"\nperiod = "month"\namount ='
            f' 9\ncurrency = "{currency}"\n\n'
            for team, currency in own
        )
    )
    ledger.out("apply", path)
    assistant = over(ledger.dsn, NOW_MS, None)
    spent = {
        tuple(row["budget"].split()): int(amount(row["spent"]) * MICRO)
        for row in assistant.ask("list_budgets").rows
    }
    assert spent == own
    ends = {
        (row["owner"], row["currency"]): int(amount(row["forecast"]["low"]) * MICRO)
        for row in assistant.ask("forecast_spend").rows
    }
    assert ends == own


@pytest.mark.parametrize("month", MONTHS)
def test_parquet_cell_by_cell(ledger, month):
    """Amounts are those of the chargeback and of FOCUS as CSV; what owners bear are their totals,
    to the last digit.
    """
    arrow = pytest.importorskip("pyarrow.parquet")
    path = ledger.folder / "bill.parquet"
    ledger.out("chargeback", "--period", month, "--format", "parquet", "-o", path)
    rows = arrow.read_table(path).to_pylist()
    bill = ledger.bill(month)
    columns = [
        name
        for name in rows[0]
        if name == "team" or (name.startswith("cost") and name != "cost_center")
    ]
    assert [[row[name] for name in columns] for row in rows] == [
        [row[name] if name == "team" else text(row, name) for name in columns]
        for row in bill["rows"]
    ]
    ledger.out("chargeback", "--period", month, "--by", "team", "--format", "focus", "-o", path)
    rows = arrow.read_table(path).to_pylist()
    borne = defaultdict(Decimal)
    for row in rows:
        if row["SubAccountName"] in OWNERS:
            borne[row["SubAccountName"], row["BillingCurrency"]] += row["EffectiveCost"]
    assert dict(borne) == ledger.total(month)
    ledger.out(
        "chargeback",
        "--period",
        month,
        "--by",
        "team",
        "--format",
        "focus",
        "-o",
        ledger.folder / "focus.csv",
    )
    costs = [name for name in rows[0] if name.endswith("Cost")]
    assert [[row[name] for name in costs] for row in rows] == [
        [Decimal(row[name]) if row[name] else None for name in costs]
        for row in table((ledger.folder / "focus.csv").read_text())
    ]


@pytest.mark.parametrize("month", MONTHS)
def test_trust_is_the_chargeback_by_state(ledger, month):
    """What owners held, without what was only counted and adjustments, and what nobody held; as the
    page rounds it.
    """
    proof = json.loads(ledger.out("reconcile", "--period", month, "--format", "json"))
    rows = [row for row in ledger.bill(month)["rows"] if not row["correction_of"]]
    rows += [row for row in ledger.bill(OPEN)["rows"] if row["correction_of"] == month]
    charged = defaultdict(int)
    for row in rows:
        state = row["team"].strip("()")
        own = row["cost_micro"] - (0 if state in STATES else row["adjusted_cost_micro"] or 0)
        charged[row["currency"], state if state in STATES else "owners"] += own
    for currency, micro in proof["outside"]["imported_cost_micro"].items():
        charged[currency, "owners"] -= micro
    parts = {
        (currency, name): money[name]["micro"]
        for currency, money in proof["money"].items()
        for name in NAMED
    }
    assert {key: micro for key, micro in parts.items() if micro} == dict(charged)
    with running(ledger.dsn) as collector:
        status, _, page = collector.request("GET", f"/trust?period={month}")
    assert status == 200
    for name, title in NAMED.items():
        (cells,) = re.findall(rf'<th scope="row">{title}</th>(.*?)</tr>', page)
        shown = [
            cell.replace(",", "") for cell in re.findall(r'<td class="num">(.*?)</td>', cells)[1:]
        ]
        assert shown == [proof["money"][currency][name]["amount"] for currency in proof["money"]], (
            name
        )


def test_a_job_is_the_chargeback_by_workload(ledger):
    """Charged in all months; a line with a price multiplies to its cost, one of a commitment says
    what it names.
    """
    charged = defaultdict(int)
    for month in MONTHS:
        for row in ledger.bill(month, "workload")["rows"]:
            charged[row["workload"], row["currency"]] += row["cost_micro"]
    multiplied = 0
    with running(ledger.dsn) as collector:
        for number in TEAMS:
            page = unescape(collector.request("GET", f"/jobs/{number}")[2])
            lines = table(collector.request("GET", f"/jobs/{number}?format=csv")[2])
            own = {
                currency: micro
                for (job, currency), micro in charged.items()
                if job == f"slurm::{number}"
            }
            said = re.findall(r"<dt>Charged</dt><dd>([\d.,]+) ([A-Z]{3})", page)
            assert {currency: Decimal(paid.replace(",", "")) for paid, currency in said} == {
                currency: (micro / MICRO).quantize(CENT) for currency, micro in own.items()
            }
            for line in lines:
                if line["commitment"]:
                    assert f"commitment {line['commitment']}, {line['rate']} without it" in page
                elif line["rate"]:
                    multiplied += 1
                    cost = Decimal(line["rate"]) * Decimal(line["gpu_hours"])
                    assert abs(cost - Decimal(line["cost"])) <= CENT, line
    assert multiplied >= len(TEAMS)


def test_lists_of_runs_say_what_they_leave_out(ledger):
    """GPU-time without node costs: the chargeback's cost less its node costs, and each form says
    so.
    """
    expected = {
        (row["workload"], row["currency"]): row["cost_micro"] - (row["node_cost_micro"] or 0)
        for row in ledger.bill(OPEN, "workload")["rows"]
        if row["workload"].startswith("slurm::") and not row["correction_of"]
    }
    listed = json.loads(ledger.out("runs", "--period", OPEN, "--format", "json"))
    assert {
        (run["key"], run["currency"]): run["cost_micro"]
        for run in listed
        if run["key"].startswith("slurm::")
    } == expected
    assert any(row["node_cost_micro"] for row in ledger.bill(OPEN, "workload")["rows"])
    assert {run["notice"] for run in listed} == {GPU_TIME_ONLY}
    assert {
        row["notice"] for row in table(ledger.out("runs", "--period", OPEN, "--format", "csv"))
    } == {GPU_TIME_ONLY}
    assert ledger.out("runs", "--period", OPEN).endswith(f"{GPU_TIME_ONLY}\n")
    with running(ledger.dsn) as collector:
        page = collector.request("GET", f"/jobs?period={OPEN}")[2]
        rows = table(collector.request("GET", f"/jobs?period={OPEN}&format=csv")[2])
    assert GPU_TIME_ONLY[1:] in page
    assert {row["notice"] for row in rows} == {GPU_TIME_ONLY}
