"""gpuledger focus check: our own export passes, and each seeded violation is found on its line."""

import contextlib
import csv
import io
import json
import string
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.fleet import DAY, HOUR, Held
from gpuledger_collector.export.focus_check import NotFocus, check

MONTH = ("--from", "2025-10-01", "--to", "2025-11-01", "--format", "focus")


_MADE: list[str] = []


@pytest.fixture
def export(request):
    """A closed month of three teams, shared and whole accelerators, two prices, as FOCUS; made
    once.
    """
    if not _MADE:
        _MADE.append(made(request.getfixturevalue("fleet"), request.getfixturevalue("run")))
    return _MADE[0]


def made(fleet, run) -> str:
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
    run("prices", "set", "--rate", "2.5", "--currency", "USD", "--from", "2025-10-02")
    fleet.accelerator(3, gpu_micro=333_333)
    for number in (1, 2, 3):
        fleet.capacity(number, 0, 2 * DAY)
    fleet.evidence(
        [
            Held(1, 1, 0, HOUR, busy=HOUR // 3, idle=HOUR // 7),
            Held(2, 2, 5, 2 * HOUR, idle=HOUR),
            Held(3, 3, 0, HOUR + 1),
            Held(1, 2, 2 * HOUR, 3 * HOUR),
            Held(1, 1, 4 * HOUR, 5 * HOUR),
            Held(2, None, 7 * HOUR, 8 * HOUR, "unallocated"),
            Held(1, 1, DAY, DAY + HOUR),
        ]
    )
    assert run("close", "--period", "2025-10")[0] == 0
    return run("chargeback", *MONTH)[1]


def rows_of(text):
    return list(csv.DictReader(io.StringIO(text)))


def written(rows, columns=None) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, columns or list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def found(text):
    return list(check(io.StringIO(text, newline="")))


def test_our_export_passes(export):
    """A closed month: its invoices have numbers and are whole cents."""
    assert found(export) == []
    assert {row["InvoiceId"].split("/")[0] for row in rows_of(export)} == {"2025-10"}


MUTATIONS = {
    "bad ChargeCategory": ({"ChargeCategory": "Usages"}, "allowed"),
    "bad currency": ({"BillingCurrency": "DOL"}, "currency"),
    "Tags not JSON": ({"Tags": "team=vision"}, "json"),
    "null BilledCost": ({"BilledCost": ""}, "null"),
    "bad ServiceCategory": ({"ServiceCategory": "GPU"}, "allowed"),
    "SubAccountId without name": ({"SubAccountName": ""}, "null"),
    "null PricingQuantity": ({"PricingQuantity": "", "PricingUnit": ""}, "null"),
    "bad ChargeClass": ({"ChargeClass": "Fix"}, "allowed"),
    "bad unit": ({"PricingUnit": "gpu hours"}, "unit"),
    "a comma for a point": ({"BilledCost": "8,09"}, "number"),
    "ResourceName without Id": ({"ResourceId": ""}, "null"),
    "negative unit price": ({"ListUnitPrice": "-1.0"}, "number"),
    "ListCost is not price x quantity": ({"ListCost": "0.01"}, "cost"),
    "naive timestamp": ({"ChargePeriodStart": "2025-10-01T00:00:00"}, "instant"),
    "timestamp with an offset": ({"ChargePeriodStart": "2025-10-01T00:00:00+01:00"}, "instant"),
    "a day that is none": ({"ChargePeriodEnd": "2025-10-32T00:00:00Z"}, "instant"),
    "end before start": ({"ChargePeriodEnd": "2025-10-01T00:00:00Z"}, "period"),
    "PricingCategory of the street": ({"PricingCategory": "spot"}, "allowed"),
    "nested Tags": ({"Tags": '{"team": {"name": "vision"}}'}, "json"),
    "a period outside of the bill": ({"ChargePeriodStart": "2025-09-30T23:00:00Z"}, "period"),
    "seconds that are not the hours": ({"ConsumedQuantity": "1.5"}, "quantity"),
    "an issuer of another name": ({"InvoiceIssuerName": "Other"}, "cost"),
    "a quantity without a unit": ({"ConsumedUnit": ""}, "null"),
    "a formula": ({"ChargeDescription": "=HYPERLINK(1)"}, "formula"),
    "an invoice in two currencies": ({"BillingCurrency": "EUR"}, "differs"),
    "another rate under the same id": ({"ContractedUnitPrice": "9.9"}, "differs"),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_one_seeded_violation_is_found_with_its_line(export, name):
    """A file that is good but for one row fails, for this reason, on this line."""
    changes, rule = MUTATIONS[name]
    rows = rows_of(export)
    mine = [
        at
        for at, row in enumerate(rows)
        if row["SubAccountName"] == "team-1" and row["ChargeCategory"] == "Usage"
    ]
    at = mine[1]
    rows[at] |= changes
    violations = found(written(rows))
    assert rule in {violation.rule for violation in violations if violation.line == at + 2}, (
        violations
    )
    told = [violation for violation in violations if violation.line == at + 2]
    assert any(
        column == one.column or column in one.sentence for one in told for column in changes
    ), told


def test_what_only_shows_over_rows_is_found(export):
    """An invoice that is no whole cents, time used twice, a row too short, columns that lack or are
    misplaced.
    """
    rows = rows_of(export)
    missing = [row for row in rows if row["ChargeCategory"] != "Adjustment"]
    assert {violation.rule for violation in found(written(missing))} == {"invoice"}
    gpu = next(
        row for row in rows if row["ResourceType"] == "GPU" and row["x_CostBasis"] == "unobserved"
    )
    assert "overlap" in {violation.rule for violation in found(written([*rows, gpu]))}
    columns = [name for name in rows[0] if name != "ListCost"]
    readiness_problems = [{name: row[name] for name in columns} for row in rows]
    assert ("column missing", "ListCost") in {
        (one.rule, one.column) for one in found(written(readiness_problems))
    }
    moved = [name for name in rows[0] if name != "Tags"] + ["Tags"]
    assert {(one.rule, one.column) for one in found(written(rows, moved))} == {
        ("column order", "Tags")
    }
    lines = export.splitlines(keepends=True)
    short = found("".join([*lines[:3], "1,2,3\n", *lines[3:]]))
    assert [(one.line, one.rule) for one in short] == [(4, "cells")]


def test_a_correction_may_lie_outside_of_its_billing_period(export):
    """It amends an earlier day; everything else of it must still hold."""
    rows = rows_of(export)
    at = next(at for at, row in enumerate(rows) if row["ChargeCategory"] == "Usage")
    rows[at] |= {"ChargeClass": "Correction", "ChargePeriodStart": "2025-09-01T00:00:00Z"}
    assert found(written(rows)) == []


def test_numbers_in_scientific_notation_are_legal(export):
    """FOCUS's numeric format allows mEn."""
    rows = rows_of(export)
    rows[0]["BilledCost"] = f"{Decimal(rows[0]['BilledCost']):E}".replace("E+", "E")
    assert "number" not in {violation.rule for violation in found(written(rows))}


def test_the_command_names_lines_and_ends_with_1(export, tmp_path):
    """Without a database; JSON for machines; a file that is none gets one sentence and exit 2."""
    from typer.testing import CliRunner

    from gpuledger_collector.cli import build

    bad = tmp_path / "bad.csv"
    rows = rows_of(export)
    for row in rows[:9]:
        row["BillingCurrency"] = "DOL"
    bad.write_text(written(rows))
    result = CliRunner().invoke(build(), ["focus", "check", str(bad)])
    assert result.exit_code == 1
    assert f"{bad}:2: currency: BillingCurrency 'DOL' is no currency of ISO 4217" in result.stdout
    assert "more like these" in result.stdout
    told = json.loads(
        CliRunner()
        .invoke(build(), ["focus", "check", str(bad), "--format", "json", "--all"])
        .stdout
    )
    assert told["violations"] == len(told["shown"]) >= 9


@pytest.mark.parametrize("text", ["", 'a,"b\nc'])
def test_what_is_no_csv_is_one_sentence(text):
    """Empty, or a quote that never ends."""
    with pytest.raises(NotFocus):
        found(text)


@given(st.text(alphabet=string.printable, max_size=300))
def test_nothing_makes_the_check_fail_but_its_own_error(text):
    """Any text gives violations or NotFocus."""
    with contextlib.suppress(NotFocus):
        found("BilledCost,Tags,x_a\n" + text)
