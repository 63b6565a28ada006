"""Chargeback, FOCUS and reconciliation as people and tools read them."""

import csv
import io
import json
import re
from collections import defaultdict
from decimal import Decimal

import pytest

from fakes.fleet import DAY, HOUR, OCTOBER, Held
from gpuledger_collector.export import focus

MONTH = ("--from", "2025-10-01", "--to", "2025-11-01")


@pytest.fixture
def furnished(fleet, run):
    """Three accelerators for three days, one at a third of a device, holders of three teams, two
    currencies.
    """
    run(
        "prices",
        "set",
        "--rate",
        "2.333333333",
        "--list-rate",
        "3",
        "--currency",
        "USD",
        "--from",
        "2025-01-01",
    )
    run(
        "prices",
        "set",
        "--rate",
        "1.7",
        "--currency",
        "EUR",
        "--pool",
        "eu",
        "--from",
        "2025-01-01",
    )
    fleet.accelerator(3, gpu_micro=333_333)
    for number, pool in ((1, "us"), (2, "eu"), (3, "us")):
        fleet.capacity(number, 0, 3 * DAY, pool=pool)
    for day in range(3):
        at = day * DAY
        fleet.workload(9, team="=HYPERLINK(1)", project="p,1")
        fleet.evidence(
            [
                Held(1, 1, at, at + HOUR - 7, busy=HOUR // 3, idle=HOUR // 7, energy=123_456_789),
                Held(2, 2, at + HOUR, at + 2 * HOUR, idle=HOUR),
                Held(3, 9, at + 5 * HOUR, at + 6 * HOUR),
                Held(3, None, at + 7 * HOUR, at + 8 * HOUR, "unallocated"),
                Held(1, None, at + 9 * HOUR, at + 10 * HOUR, "unavailable"),
            ]
        )
    return fleet


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_csv_columns_rows_and_totals(furnished, run) -> None:
    """Columns as documented; the special rows are there; rows add up to the totals; formulas are
    made harmless.
    """
    code, out, err = run("chargeback", *MONTH, "--by", "team,project", "--format", "csv")
    assert (code, err) == (0, "")
    rows = table(out)
    documented = "team,project,gpu_hours,gpu_hours_held_idle,cost,cost_held_idle,currency"
    more = "cost_shared,cost_total,energy_kwh,co2e_grams,cost_list,cost_contracted,cost_compared,cost_effective"
    own = "cost_adjustments,cost_center,gl_code"
    assert (
        out.splitlines()[0]
        == f"{documented},{more},cost_waste,billed,correction_of,{own},notice,cost_nodes,cost_cash"
    )
    assert {"(unallocated)", "(unavailable)", "(unobserved)", "'=HYPERLINK(1)"} <= {
        row["team"] for row in rows
    }
    held_by_formula = next(row for row in rows if row["team"] == "'=HYPERLINK(1)")
    assert held_by_formula["gpu_hours_held_idle"] == held_by_formula["cost_held_idle"] == ""
    _, text, _ = run("chargeback", *MONTH, "--by", "team,project", "--format", "json")
    for total in json.loads(text)["totals"]:
        mine = [row for row in rows if row["currency"] == total["currency"]]
        assert sum(Decimal(row["cost"]) for row in mine) == Decimal(total["cost"])
        assert sum(Decimal(row["gpu_hours"]) for row in mine) == Decimal(total["gpu_hours"])
    costs = [Decimal(row["cost"]) for row in rows if row["currency"] == "USD"]
    assert costs == sorted(costs, reverse=True)


@pytest.mark.parametrize(
    "by", ["pool", "model", "node", "user", "workload", "org,run", "experiment,node,workload"]
)
def test_every_dimension_adds_up_to_the_same(furnished, run, by) -> None:
    """However it is cut, the bill is the same bill."""
    _, out, _ = run("chargeback", *MONTH, "--by", by, "--format", "json")
    report = json.loads(out)
    totals = {
        total["currency"]: (total["cost_micro"], total["gpu_ns"]) for total in report["totals"]
    }
    rows = furnished.rows(
        "SELECT currency, sum(cost_micro)::bigint, sum(gpu_ns)::bigint FROM charge GROUP BY 1"
    )
    assert totals == {row[0]: row[1:] for row in rows}
    assert set(by.split(",")) <= set(report["rows"][0])


def test_unpriced_usage_has_a_row(furnished, run) -> None:
    """What no rate covers is shown with hours and without cost, and the command ends with 1 when
    asked to.
    """
    furnished.connection.execute("UPDATE price SET superseded_at = now() WHERE currency = 'EUR'")
    furnished.connection.execute("UPDATE price SET pool = 'us'")
    code, out, err = run("chargeback", *MONTH, "--format", "csv", "--exit-code")
    row = next(row for row in table(out) if row["team"] == "(unpriced)")
    assert code == 1
    assert (row["gpu_hours"], row["cost"], row["currency"]) == ("72.000000", "", "")
    assert "72.000000 GPU-hours have no price" in err
    assert {one["notice"] for one in table(out)} == {err.strip().removeprefix("gpuledger: ")}, (
        "and in every row"
    )
    assert run("reconcile", "--period", "2025-10")[0] == 1


def test_before_any_price_there_are_hours_by_team(furnished, run) -> None:
    """No bill, but who held how much, adding up to the same hours, and the command that sets a
    rate.
    """
    furnished.connection.execute("UPDATE price SET superseded_at = now()")
    _, out, err = run("chargeback", *MONTH)
    _, *lines = [line.split() for line in out.splitlines() if line.strip()]
    assert lines[0][:2] == ["team", "gpu_hours"]
    assert not {"cost", "currency"} & set(lines[0])
    hours = {line[0]: Decimal(line[1]) for line in lines[1:] if line[0] != "rows"}
    assert {"team-2", "(unallocated)", "total"} <= set(hours)
    assert "(unpriced)" not in hours
    # Each row is rounded by half a tenth at most, and the line below says so.
    assert lines[-1][:3] == ["rows", "are", "rounded"]
    assert abs(sum(hours.values()) - 2 * hours["total"]) <= Decimal("0.05") * len(hours)
    assert (
        "nothing has a price yet. One makes them a bill: gpuledger prices set --rate 2.50"
        " --currency USD" in err
    )
    rows = table(run("chargeback", *MONTH, "--format", "csv")[1])
    # A name that a spreadsheet would run has an apostrophe before it.
    exact = {row["team"].lstrip("'"): Decimal(row["gpu_hours"]) for row in rows}
    assert exact.keys() == hours.keys() - {"total"}
    assert all(abs(exact[name] - hours[name]) <= Decimal("0.05") for name in exact)
    assert {(row["cost"], row["currency"], row["cost_total"]) for row in rows} == {("", "", "")}
    report = json.loads(run("chargeback", *MONTH, "--format", "json")[1])
    assert {row["cost_micro"] for row in report["rows"]} == {None}
    assert sum(row["gpu_ns"] for row in report["rows"]) == report["totals"][0]["gpu_ns"]
    cure = next(line for line in err.splitlines() if "prices set" in line).partition(
        "a bill: gpuledger "
    )[2]
    assert run(*cure.split())[0] == 0
    priced = table(run("chargeback", *MONTH, "--format", "csv")[1])
    assert {row["team"]: Decimal(row["gpu_hours"]) for row in priced} == {
        row["team"]: Decimal(row["gpu_hours"]) for row in rows
    }
    assert {row["currency"] for row in priced} == {"USD"}


def test_a_zone_is_that_of_the_ledger_or_refused_with_the_cure(run, written, fleet) -> None:
    """`--zone` is no other view: it says which days a reader expects."""
    assert run("chargeback", *MONTH, "--zone", "UTC")[0] == 0
    code, out, err = run("chargeback", *MONTH, "--zone", "Europe/Berlin")
    assert (code, out) == (2, "")
    assert (
        "--zone: days and months of this ledger are those of UTC; for all of its bills: echo"
        " 'billing_zone" in err
    )
    assert run("apply", written("zone.toml", 'billing_zone = "Europe/Berlin"\n'))[0] == 0
    assert run("chargeback", *MONTH, "--zone", "Europe/Berlin")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--from", "2025-10-01", "--to", "2025-10-01"], "is empty"),
        (["--from", "1.10.2025", "--to", "2025-11-01"], "is not a date"),
        ([*MONTH, "--by", "teem"], "'teem' is none of"),
        ([*MONTH, "-o", "/nowhere/at/all.csv"], "is not an existing folder"),
    ],
)
def test_bad_questions_are_one_sentence(run, arguments, words) -> None:
    """A question that cannot be answered gets one sentence and exit 2."""
    code, out, err = run("chargeback", *arguments)
    assert (code, out) == (2, "")
    assert words in err


def test_table_is_plain_text_in_a_pipe(furnished, run) -> None:
    """The table has every row and a total per currency, without escape codes."""
    code, out, _ = run("chargeback", *MONTH)
    assert code == 0
    assert "\x1b" not in out
    assert len(re.findall(r"^ ?total ", out, re.MULTILINE)) == 2
    assert "(unobserved)" in out


def test_focus_keeps_its_identities(furnished, run, tmp_path) -> None:
    """Cost is price x quantity on every Usage row, and each invoice ends in cents by exactly one
    Adjustment row.
    """
    path = tmp_path / "focus.csv"
    assert run("chargeback", *MONTH, "--by", "team", "--format", "focus", "-o", path)[0] == 0
    rows = table(path.read_text())
    assert tuple(rows[0]) == focus.COLUMNS
    invoices: dict[tuple[str, str], Decimal] = defaultdict(Decimal)
    adjustments: dict[tuple[str, str], int] = defaultdict(int)
    for row in rows:
        assert row["InvoiceId"] == ""  # the month is open: it has no invoices yet
        invoice = (row["BillingCurrency"], row["SubAccountName"].removeprefix("'"))
        invoices[invoice] += Decimal(row["BilledCost"])
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", row["ChargePeriodStart"])
        assert (
            row["BillingPeriodStart"]
            <= row["ChargePeriodStart"]
            < row["ChargePeriodEnd"]
            <= row["BillingPeriodEnd"]
        )
        assert all(isinstance(value, str) for value in json.loads(row["Tags"]).values())
        if row["ChargeCategory"] == "Adjustment":
            adjustments[invoice] += 1
            continue
        quantity = Decimal(row["PricingQuantity"])
        assert Decimal(row["BilledCost"]) == Decimal(row["ContractedUnitPrice"]) * quantity
        assert Decimal(row["ListCost"]) == Decimal(row["ListUnitPrice"]) * quantity
        assert abs(Decimal(row["ConsumedQuantity"]) / 3600 - quantity) <= Decimal("0.0000000005")
    assert set(adjustments) == set(invoices)
    assert set(adjustments.values()) == {1}
    _, out, _ = run("chargeback", *MONTH, "--by", "team", "--format", "csv")
    billed = {
        (row["currency"], row["team"].removeprefix("'")): Decimal(row["cost"]) for row in table(out)
    }
    assert invoices == billed


def test_reconcile_shows_the_proof(furnished, run) -> None:
    """Owners + unallocated + unavailable + unobserved = capacity x rate, to the micro-unit and as
    printed.
    """
    code, out, _ = run("reconcile", "--period", "2025-10", "--format", "json")
    proof = json.loads(out)
    assert code == 0
    assert proof["holds"] is True
    assert len(proof["days"]) == 3
    assert proof["gpu_ns"]["capacity"] == 3 * DAY * 2_333_333
    for money in proof["money"].values():
        parts = [money[name] for name in ("owners", "unallocated", "unavailable", "unobserved")]
        assert sum(part["micro"] for part in parts) == money["capacity_x_rate"]["micro"]
        assert sum(Decimal(part["amount"]) for part in parts) == Decimal(
            money["capacity_x_rate"]["amount"]
        )
    code, out, _ = run("reconcile", "--from", "2025-10-01", "--to", "2025-10-04")
    assert code == 0
    assert "It holds on each of 3 days" in out
    assert "% of the capacity was observed" in out


def test_reconcile_sees_tampering(furnished, run) -> None:
    """One micro-unit taken from a charge, or a proof that was altered, is found and named with its
    day.
    """
    run("chargeback", *MONTH)
    furnished.connection.execute(
        "UPDATE charge SET cost_micro = cost_micro - 1 WHERE ctid = (SELECT min(ctid) FROM charge"
        " WHERE day_ms = %s)",
        (OCTOBER + DAY,),
    )
    code, out, _ = run("reconcile", "--period", "2025-10")
    assert code == 1
    assert "It does NOT hold on 2025-10-02." in out


def test_reconcile_without_inventory_says_so(run) -> None:
    """Without capacity there is nothing to reconcile against, and the command says it."""
    code, out, _ = run("reconcile", "--period", "2025-10")
    assert code == 0
    assert "There is no inventory for this period" in out
    assert run("reconcile", "--period", "2025-13")[0] == 2


def test_tags_check_names_what_nobody_pays_for(furnished, run) -> None:
    """Tags and unattributed usage are listed with hours and cost; a tag that looks like a level is
    pointed out.
    """
    furnished.workload(20, tema="vision", project="x")
    furnished.evidence([Held(2, 20, 10 * HOUR, 12 * HOUR)])
    code, out, _ = run("tags", "check", *MONTH)
    assert code == 1
    assert "the tag 'tema' is no level: is it 'team'?" in out
    assert re.search(
        r"without a team\n  slurm pool=eu project=x tema=vision: 1 workload, 2.000 GPU-hours,"
        r" 3.40 EUR",
        out,
    )
    furnished.connection.execute("DELETE FROM usage_interval")
    code, out, _ = run("tags", "check", "--from", "2025-10-02", "--to", "2025-10-03")
    assert code == 0
    assert "every held GPU-second has a team" in out
