"""A provider's bill 3 % above the ledger is trued up, closed, corrected and disputed; proofs hold
at each step.
"""

import csv
import datetime as dt
import io
import json
from decimal import Decimal

import pytest
from typer.testing import CliRunner

from fakes.fleet import DAY, HOUR, Held
from gpuledger_collector.cli import build
from gpuledger_common.instants import to_ms

OCTOBER = ("--period", "2025-10")
MATCH = '[[bill_match]]\nprovider = "big cloud"\nsku = "gpu.*"\npool = "train"\n'
WHO = ("--reason", "October as invoiced", "--approver", "m.keller")
TRUE_UP = ("adjustments", "true-up", *OCTOBER, "--bill", "big cloud", *WHO)
HEADER = (
    "ProviderName,BillingCurrency,BillingPeriodStart,BillingPeriodEnd,ChargeCategory,ChargePeriodStart,ChargePeriodEnd,"
    "SkuId,PricingQuantity,PricingUnit,BilledCost"
)
MONTH = "Big Cloud,USD,2025-10-01T00:00:00Z,2025-11-01T00:00:00Z"
BILL = (
    f"{MONTH},Usage,2025-10-01T00:00:00Z,2025-10-02T00:00:00Z,gpu.1x,24,Hours",
    f"{MONTH},Usage,2025-10-02T00:00:00Z,2025-10-03T00:00:00Z,gpu.1x,24,Hours",
    f"{MONTH},Tax,2025-10-01T00:00:00Z,2025-11-01T00:00:00Z,,,",
)


@pytest.fixture
def october(fleet, run, tmp_path, monkeypatch):
    """Two days of one GPU at 2.00: team-1 18 hours, team-2 24 hours, 6 hours free; billed 3 % above
    it, and a tax.
    """
    monkeypatch.setattr(
        "gpuledger_collector.wiring.read_clock",
        lambda: to_ms(dt.datetime(2025, 11, 20, 12, tzinfo=dt.UTC)),
    )
    run("prices", "set", "--rate", "2", "--currency", "USD", "--from", "2025-01-01")
    fleet.capacity(1, 0, 2 * DAY)
    fleet.evidence(
        [
            Held(1, 1, 0, 18 * HOUR),
            Held(1, None, 18 * HOUR, DAY, "unallocated"),
            Held(1, 2, DAY, 2 * DAY),
        ]
    )
    (tmp_path / "match.toml").write_text(MATCH)
    assert run("apply", tmp_path / "match.toml")[0] == 0
    import_bill(run, tmp_path, "49.44", "49.44", "0.01")
    return run


def import_bill(run, tmp_path, *costs):
    """A bill of both days and the tax, at these costs."""
    rows = [f"{line},{cost}" for line, cost in zip(BILL, costs, strict=True)]
    (tmp_path / "bill.csv").write_text("\n".join([HEADER, *rows]) + "\n")
    code, _, wrong = run("import", "bill", tmp_path / "bill.csv")
    assert code == 0, wrong


def chargeback(run, *more, period="2025-10"):
    """Rows of the chargeback by their first cell and the month that they correct."""
    code, text, wrong = run("chargeback", "--period", period, "--format", "csv", *more)
    assert code == 0, wrong
    return {(row["team"], row["correction_of"]): row for row in csv.DictReader(io.StringIO(text))}


def booked(run, *more):
    """What a true-up says: code, shares by owner, and its sentences."""
    code, text, said = run(*TRUE_UP, "--format", "json", *more)
    return (
        code,
        {row["owner"]: row["amount"] for row in json.loads(text)} if code == 0 else text,
        said,
    )


def proof(run, period="2025-10"):
    """The reconciliation, which has to hold."""
    code, text, wrong = run("reconcile", "--period", period, "--format", "json")
    assert code == 0, wrong
    found = json.loads(text)
    assert found["holds"]
    assert found["misadjusted_days"] == []
    return found


def test_a_bill_above_the_ledger_is_trued_up_closed_corrected_and_disputed(
    october, fleet, tmp_path
):
    """Every step leaves a proof that holds, and the parts add up to the difference to the
    micro-unit.
    """
    run = october
    before = chargeback(run)
    assert before["team-1", ""]["cost"] == "36.00"
    assert before["team-2", ""]["cost"] == "48.00"
    assert booked(run, "--dry-run")[0] == 0
    assert chargeback(run) == before
    # 1.44 of each day to who held on it, and the tax by cost of both days
    code, shares, said = booked(run)
    assert code == 0
    assert shares == {"team=team-1": "1.444286", "team=team-2": "1.445714"}
    assert sum(map(Decimal, shares.values())) == Decimal("2.89")
    assert "booked 'true-up of Big Cloud 2025-10': 2.89 USD" in said
    after = chargeback(run)
    assert (after["team-1", ""]["cost"], after["team-1", ""]["cost_adjustments"]) == (
        "37.44",
        "1.44",
    )
    assert (after["team-2", ""]["cost"], after["team-2", ""]["cost_adjustments"]) == (
        "49.45",
        "1.45",
    )
    assert after["(unallocated)", ""]["cost"] == "12.00"
    assert after["(unallocated)", ""]["cost_adjustments"] == ""
    assert proof(run)["adjustments_micro"] == {"true-up of Big Cloud 2025-10": {"USD": 2890000}}
    # the ledger's side of the comparison is what was observed: the difference is still all there
    assert run("reconcile", *OCTOBER, "--bill", "big cloud")[0] == 1
    # once
    code, shares, said = booked(run)
    assert "booked already as 'true-up of Big Cloud 2025-10': nothing was changed" in said
    assert chargeback(run) == after
    # closed and sealed with it
    code, receipt, wrong = run("close", *OCTOBER, "--format", "json")
    assert code == 0, wrong
    invoices = {row["owner"]: row["amount"] for row in json.loads(receipt)["invoices"]}
    assert run("periods", "--verify", "2025-10")[0] == 0
    assert invoices == {"team-1": "37.44", "team-2": "49.45", "(unallocated)": "12.00"}
    focus = list(csv.DictReader(io.StringIO(run("chargeback", *OCTOBER, "--format", "focus")[1])))
    rows = [row for row in focus if row["x_CostBasis"] == "true_up"]
    assert {row["ChargeCategory"] for row in rows} == {"Adjustment"}
    assert sum(Decimal(row["BilledCost"]) for row in rows) == Decimal("2.89")
    assert sum(Decimal(row["BilledCost"]) for row in focus) == Decimal("98.89")
    for version in ("1.2", "1.4"):
        file = tmp_path / f"focus-{version}.csv"
        assert (
            run(
                "chargeback", *OCTOBER, "--format", "focus", "--focus-version", version, "-o", file
            )[0]
            == 0
        )
        checked = CliRunner().invoke(build(), ["focus", "check", str(file)])
        assert checked.exit_code == 0, checked.output
    # corrected: late evidence of the closed month changes usage; what was booked stays booked
    fleet.evidence([Held(1, 4, 18 * HOUR, 20 * HOUR)])
    assert chargeback(run) == after
    assert proof(run)["adjustments_micro"] == {"true-up of Big Cloud 2025-10": {"USD": 2890000}}
    # reversed: a correction, booked in an open month
    name = "true-up of Big Cloud 2025-10"
    assert (
        run("adjustments", "reverse", name, "--reason", "wrong file", "--approver", "kim")[0] == 0
    )
    assert (
        "reversed already"
        in run("adjustments", "reverse", name, "--reason", "again", "--approver", "kim")[2]
    )
    later = chargeback(run, period="2025-11")
    assert later["team-2", "2025-10"]["cost_adjustments"] == "-1.45"
    assert chargeback(run) == after
    proof(run)
    # booked anew from a newer bill, after the close: corrections again
    import_bill(run, tmp_path, "49.44", "50.40", "0.01")
    code, shares, said = booked(run)
    assert "booked 'true-up of Big Cloud 2025-10 (2)': 3.85 USD" in said
    proof(run)
    assert run("periods", "--verify", "2025-10")[0] == 0
    # disputed: the bill's lines are in the evidence
    disputed = (
        "--owner",
        "team-2",
        "--from",
        "2025-10-01",
        "--to",
        "2025-10-02",
        "--reason",
        "not our bill",
    )
    assert run("disputes", "open", *disputed)[0] == 0
    assert run("disputes", "show", "1", "--evidence", tmp_path / "evidence.json")[0] == 0
    evidence = json.loads((tmp_path / "evidence.json").read_text())
    (first, *_) = [each for each in evidence["adjustments"] if each["name"] == name]
    assert first["evidence"]["bill_lines"]["count"] == 3
    assert [row["billed"] for row in first["evidence"]["bill_lines"]["rows"]] == [
        "49.44",
        "49.44",
        "0.01",
    ]
    assert first["approver"] == "m.keller"
    code, _, wrong = run(
        "disputes", "resolve", "1", "--accept", "--to", "team=team-1", "--note", "x"
    )
    assert code == 2
    assert "an acceptance that reverses (--reverse) takes them back" in wrong
    code, _, wrong = run("disputes", "resolve", "1", "--accept", "--reverse", "--note", "x")
    assert (code, "is reversed already" in wrong or "is a reversal itself" in wrong) == (2, True), (
        wrong
    )
    assert run("disputes", "resolve", "1", "--reject", "--note", "the bill stands")[0] == 0
    proof(run)
