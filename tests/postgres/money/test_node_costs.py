"""Node costs from apply to the invoice: chargeback, FOCUS, statement, ERP, reconcile, close and a
later correction.
"""

import csv
import io
import json
import tomllib
from decimal import Decimal

import pytest

from fakes.fleet import DAY, HOUR, Held
from gpuledger_collector.export.focus_check import check

OCTOBER = ("--period", "2025-10")
COSTS = """
[[node_cost]]
name = "CPU and memory"
pool = "train"
cores = 64
price_per_core_hour = 0.0125
memory_gb = 800
price_per_gb_hour = 0.0005
currency = "USD"
effective_from = 2025-10-01

[[node_cost]]
name = "local disk"
node = "n*"
price_per_node_hour = 0.35
currency = "USD"
effective_from = 2025-10-02
"""
# 64 x 0.0125 + 800 x 0.0005
CPU = Decimal("1.2")


@pytest.fixture
def october(fleet, run, written):
    """Two GPUs of n1 at 2.00 for two days: team-1 holds one on the first day, team-2 both for
    twelve hours of both.
    """
    run("prices", "set", "--rate", "2", "--currency", "USD", "--from", "2025-01-01")
    for number in (1, 2):
        fleet.capacity(number, 0, 2 * DAY)
    fleet.evidence([Held(1, 1, 0, DAY), Held(1, 2, DAY, DAY + 12 * HOUR)])
    fleet.evidence([Held(2, None, 0, DAY, "unallocated"), Held(2, 2, DAY, DAY + 12 * HOUR)])
    code, out, wrong = run("apply", written("costs.toml", COSTS))
    assert code == 0, wrong
    assert "node costs: 2 added" in out
    return run


def costs(run, *more):
    rows = json.loads(run("chargeback", *OCTOBER, "--by", "team", "--format", "json", *more)[1])[
        "rows"
    ]
    return {row["team"]: (row["gpu_hours"], Decimal(row["cost"])) for row in rows}


def test_the_bill_has_them_and_the_proof_counts_them(october, fleet):
    """Whoever held half of the GPUs pays half of the node; reconcile has them in its equation, and
    hours once.
    """
    assert costs(october) == {
        "team-1": ("24.000000", 48 + 12 * CPU),
        "team-2": ("24.000000", Decimal("66.60")),
        "(unallocated)": ("24.000000", 48 + 12 * CPU),
        "(unobserved)": ("24.000000", Decimal("66.60")),
    }
    proof = json.loads(october("reconcile", *OCTOBER, "--format", "json")[1])
    assert proof["holds"]
    assert proof["money"]["USD"]["difference_micro"] == 0
    assert proof["node_costs_micro"] == {
        "CPU and memory": {"USD": 57_600_000},
        "local disk": {"USD": 8_400_000},
    }
    text = october("reconcile", *OCTOBER)[1]
    assert "capacity x rate + node costs" in text
    assert "Of it, node cost 'CPU and memory', 57.60 USD." in text
    fleet.connection.execute(
        "UPDATE charge SET cost_micro = cost_micro + 1 WHERE node_cost_id IS NOT NULL"
    )
    assert not json.loads(october("reconcile", *OCTOBER, "--format", "json")[1])["holds"]


def test_by_workload_they_stand_with_the_job(october):
    """A job that held the GPUs is charged its share of their node."""
    out = october("chargeback", *OCTOBER, "--by", "workload,node", "--format", "json")[1]
    rows = {row["workload"]: (row["node"], row["cost"]) for row in json.loads(out)["rows"]}
    assert rows["slurm::2"] == ("n1", "66.60")


def test_budgets_other_currencies_and_the_cash_view_have_them(october, written):
    """Total cost is total cost: of a budget, at an exchange rate, and as it is paid."""
    more = """
[[exchange]]
from = "USD"
to = "EUR"
rate = 0.5
effective_from = 2025-01-01

[[budget]]
name = "first days"
team = "team-1"
period = "range"
from = 2025-10-01
to = 2025-10-03
amount = 100
currency = "USD"
"""
    code, _, wrong = october("apply", written("more.toml", more))
    assert code == 0, wrong
    assert costs(october, "--currency", "EUR")["team-1"] == ("24.000000", Decimal("31.20"))
    assert costs(october, "--view", "cash") == costs(october)
    (budget,) = json.loads(october("budgets", "--format", "json")[1])["budgets"]
    assert Decimal(budget["spent"]) == Decimal("62.40")


def test_focus_has_node_hours_of_a_service_of_their_own(october, tmp_path):
    """Compute in node-hours at the price of a node, no GPU quantity; the file adds up and passes
    both checks.
    """
    path = tmp_path / "focus.csv"
    assert october("close", *OCTOBER)[0] == 0
    for version in ("1.4", "1.2"):
        assert (
            october(
                "chargeback", *OCTOBER, "--format", "focus", "--focus-version", version, "-o", path
            )[0]
            == 0
        )
        with path.open(newline="") as file:
            assert list(check(file)) == []
        rows = list(csv.DictReader(io.StringIO(path.read_text())))
        nodes = [row for row in rows if row["ServiceName"] == "GPU Node"]
        assert {
            (row["ServiceCategory"], row["PricingUnit"], row["ResourceId"]) for row in nodes
        } == {("Compute", "Node-Hours", "n1")}
        quantities = {
            (row["SubAccountName"], row["SkuId"]): (row["PricingQuantity"], row["BilledCost"])
            for row in nodes
        }
        assert quantities["team-1", "CPU and memory"] == ("12.0", "14.4")
        assert quantities["team-2", "local disk"] == ("12.0", "4.2")
        assert sum(Decimal(row["BilledCost"]) for row in rows) == Decimal("258.00")
        assert (
            sum(
                Decimal(row["PricingQuantity"]) for row in rows if row["PricingUnit"] == "GPU-Hours"
            )
            == 96
        )


def test_a_close_seals_them_and_late_usage_corrects_them(october, fleet, run):
    """After the close a late spool moves its part of the node as a correction; closed charges stay."""
    assert run("close", *OCTOBER)[0] == 0
    before = costs(run)
    fleet.evidence([Held(2, 3, DAY + 12 * HOUR, DAY + 18 * HOUR)])
    # 6 GPU-hours at 2.00, half of 6 node-hours at 1.20, and of 6 at 0.35
    rows = csv.DictReader(io.StringIO(run("corrections", *OCTOBER, "--format", "csv")[1]))
    assert {row["team"]: (row["gpu_hours"], row["cost"]) for row in rows} == {
        "team-0": ("6.000000", "16.65"),
        "(unobserved)": ("-6.000000", "-16.65"),
    }
    assert costs(run) == before
    assert run("reconcile", *OCTOBER)[0] == 0
    assert run("periods", "--verify", "2025-10")[0] == 0


def test_the_erp_and_the_statement_name_them(october, written, tmp_path):
    """Postings tell GPU time and node costs apart; the statement has them in a line of their own."""
    template = 'delimiter = ";"\n' + "".join(
        f'[[column]]\nname = "{name}"\nfield = "{name}"\n' for name in ("owner", "kind", "amount")
    )
    code, out, wrong = october(
        "export", "erp", "--template", written("erp.toml", template), *OCTOBER
    )
    assert code == 0, wrong
    rows = {
        (row["owner"], row["kind"]): row["amount"]
        for row in csv.DictReader(io.StringIO(out), delimiter=";")
    }
    assert rows["team-1", "gpu_time"] == "48.00"
    assert rows["team-1", "node_cost"] == "14.40"
    page = tmp_path / "statement.html"
    assert october("statement", "--owner", "team-1", *OCTOBER, "-o", page)[0] == 0
    assert "(node_cost)" in page.read_text()
    assert "of it 14.40 node costs" in page.read_text()


def test_they_follow_a_dispute(october, run):
    """Who is charged for the time is charged for the node: a decision moves both."""
    own = ("--owner", "team=team-1", "--from", "2025-10-01", "--to", "2025-10-02")
    assert run("disputes", "open", *own, "--reason", "not ours")[0] == 0
    code, text, wrong = run(
        "disputes", "resolve", "1", "--accept", "--to", "team=team-2", "--note", "was theirs"
    )
    assert code == 0, wrong
    assert "team=team-1 pays 62.40 USD less, team=team-2 pays 62.40 USD more" in text
    assert costs(run)["team-2"] == ("48.000000", Decimal("129.00"))


def test_what_if_keeps_them(october, written):
    """Other GPU prices leave what nodes cost."""
    book = "pool,gpu_model,purchase,rate_per_gpu_hour,currency,effective_from\n,,on_demand,1,USD,2025-01-01\n"
    code, out, wrong = october(
        "what-if",
        "--prices",
        written("book.csv", book),
        *OCTOBER,
        "--by",
        "team",
        "--format",
        "json",
    )
    assert code == 0, wrong
    assert "38.40" in out


def test_export_config_gives_the_file_back(october, written):
    """Applied again nothing changes; without the tables no bill has them."""
    text = october("export", "config")[1]
    assert tomllib.loads(text)["node_cost"] == tomllib.loads(COSTS)["node_cost"]
    assert (
        "node costs: 0 added, 0 superseded, 2 unchanged; no bill changes"
        in october("apply", written("same.toml", text))[1]
    )
    assert october("apply", written("none.toml", "node_cost = []\n"))[0] == 0
    assert costs(october)["team-1"] == ("24.000000", Decimal(48))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"price_per_node_hour": 0}, "a node cost costs something"),
        ({"cores": 8}, "cores: belongs to price_per_core_hour"),
        ({"price_per_core_hour": 1}, "price_per_core_hour needs how many a node has"),
        ({"price_per_node_hour": -1}, "is not between 0"),
        ({"cpus": 8}, "is not known here"),
    ],
)
def test_bad_declarations_are_refused(run, written, change, sentence):
    """One sentence with the line and the key; nothing is applied."""
    cells = {"name": '"cpu"', "price_per_node_hour": 1, "currency": '"USD"'} | change
    table = "[[node_cost]]\n" + "".join(f"{key} = {value}\n" for key, value in cells.items())
    code, _, wrong = run("apply", written("costs.toml", table))
    assert code == 2
    assert sentence in wrong


def test_the_same_nodes_on_the_same_days_are_declared_once(run, written):
    """Two tables of one name, pool and node may only follow each other."""
    table = '[[node_cost]]\nname = "cpu"\npool = "p"\nprice_per_node_hour = 1\ncurrency = "USD"\n'
    code, _, wrong = run("apply", written("costs.toml", table + table))
    assert (code, "line 1 declares this cost of the same nodes" in wrong) == (2, True)
    follows = table + "effective_to = 2025-10-02\n" + table + "effective_from = 2025-10-02\n"
    assert run("apply", written("costs.toml", follows))[0] == 0
