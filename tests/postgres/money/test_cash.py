"""Both views of one bill: what is paid to providers and what is borne, in tables, CSV, JSON and
FOCUS.
"""

from __future__ import annotations

import csv
import io
import json
from collections import defaultdict
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest

from fakes.fleet import DAY, HOUR, Fleet, Held
from gpuledger_collector.export.focus_check import check

pytestmark = pytest.mark.slow
TERM = ("--from", "2025-10-01", "--to", "2025-10-04")
BOOK = """
[[price]]
rate_per_gpu_hour = 3.00
purchase = "on_demand"
currency = "USD"
effective_from = 2025-01-01
pool = ""
gpu_model = ""

[[commitment]]
name = "three days"
pool = "train"
gpus = 3
upfront = 144
rate_per_gpu_hour = 0.50
currency = "USD"
starts = 2025-10-01
ends = 2025-10-04

[[owned]]
name = "our own"
pool = "lab"
capex = 8760
months = 12
opex_per_month = 73
currency = "USD"
starts = 2025-10-02
count = 2

[[purchase]]
pool = "lab"
purchase = "owned"
"""
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def paid(fleet: Fleet, run: Run, written: Callable[[str, str], Path]) -> Fleet:
    """Two accelerators under a commitment of three, one at the price book's rate, and owned ones
    from day two.
    """
    for number, pool in ((1, "train"), (2, "train"), (3, "other"), (4, "lab")):
        fleet.capacity(number, DAY if pool == "lab" else 0, 3 * DAY, pool=pool)
    fleet.evidence(
        [
            Held(1, 1, 0, DAY, busy=DAY // 2),
            Held(2, 2, 0, HOUR),
            Held(3, 1, 0, DAY),
            Held(4, 2, DAY, 2 * DAY),
        ]
    )
    code, _, err = run("apply", written("book.toml", BOOK))
    assert code == 0, err
    return fleet


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def cents(run: Run, view: str) -> dict[str, Decimal]:
    code, out, err = run("chargeback", *TERM, "--view", view, "--format", "csv")
    assert code == 0, err
    return {row["team"]: Decimal(row["cost"]) for row in table(out)}


def test_each_view_adds_up_to_its_own_whole(paid: Fleet, run: Run) -> None:
    """The upfront payment and the fees are rows of nobody; what they cover costs nothing more; both
    wholes are said.
    """
    cash, borne = cents(run, "cash"), cents(run, "amortized")
    # 144 upfront, 3 GPUs x 72 h x 0.50, and two GPUs at 8,760.
    assert cash["(purchase)"] == Decimal("144") + Decimal("108") + 2 * Decimal("8760")
    assert cash["(commitment_unused)"] == 0 < borne["(commitment_unused)"]
    # GPU 4 for 24 h: 1.00 of depreciation and 0.10 of running costs an hour.
    assert borne["team-2"] - cash["team-2"] == Decimal("24.00") + Decimal("1.17"), (
        "depreciation, and a covered hour"
    )
    (total,) = json.loads(run("chargeback", *TERM, "--view", "cash", "--format", "json")[1])[
        "totals"
    ]
    assert Decimal(total["cost"]) == sum(cash.values())
    assert Decimal(total["cost_effective"]) == sum(borne.values())
    out = run("chargeback", *TERM, "--view", "cash")[1]
    assert (
        f"cash view: {sum(cash.values()):,} USD paid, of it 17,772.00 in purchases;"
        f" {sum(borne.values()):,} borne" in out
    )


def test_over_its_term_a_commitment_is_paid_for_as_it_is_borne(paid: Fleet, run: Run) -> None:
    """To the micro-unit both views differ by the hardware alone, which outlives the range."""
    sums = {}
    for view in ("cash", "amortized"):
        bill = json.loads(
            run("chargeback", *TERM, "--by", "pool", "--view", view, "--format", "json")[1]
        )
        sums[view] = sum(row["cost_micro"] for row in bill["rows"])
    hardware = 2 * 8760 * 10**6 - 48 * 10**6
    assert sums["cash"] - sums["amortized"] == hardware, (
        "two GPUs less two days of depreciation of the one in service"
    )


@pytest.mark.parametrize("version", ["1.2", "1.4"])
def test_focus_has_both_views_in_its_rows(
    paid: Fleet, run: Run, tmp_path: Path, version: str
) -> None:
    """BilledCost by sub-account is the cash view, EffectiveCost the amortized one, to the cent; the
    checks pass.
    """
    path = tmp_path / "focus.csv"
    code, _, err = run(
        "chargeback", *TERM, "--format", "focus", "--focus-version", version, "-o", path
    )
    assert code == 0, err
    with path.open(encoding="utf-8", newline="") as file:
        assert list(check(file, version)) == []
    rows = table(path.read_text())
    for column, view in (("BilledCost", "cash"), ("EffectiveCost", "amortized")):
        sums: dict[str, Decimal] = defaultdict(Decimal)
        for row in rows:
            sums[row["SubAccountName"]] += Decimal(row[column])
        expected = cents(run, view)
        assert {name: amount for name, amount in sums.items() if amount} == {
            name: amount for name, amount in expected.items() if amount
        }
    bought = [row for row in rows if row["ChargeCategory"] == "Purchase"]
    facts = {
        (row["ChargeFrequency"], Decimal(row["BilledCost"]), Decimal(row["EffectiveCost"]))
        for row in bought
    }
    assert facts == {("One-Time", 144, 0), ("Recurring", 108, 0), ("One-Time", 17520, 0)}
    covered = [row for row in rows if row.get("CommitmentDiscountStatus")]
    assert covered
    assert {Decimal(row["BilledCost"]) for row in covered} == {0}


def test_what_does_not_fit_is_refused(paid: Fleet, run: Run) -> None:
    """FOCUS has both views, the journal one, and another currency is a view of its own."""
    for other in (("--format", "focus"), ("--format", "beancount"), ("--currency", "EUR")):
        code, _, err = run("chargeback", *TERM, "--view", "cash", *other)
        assert code == 2, err


PROVIDERS = """
[[provider]]
pool = "train"
name = "Example Cloud"

[[provider]]
pool = "other"
name = "Example Cloud"
publisher = "Seller GPU"

[[provider]]
name = "Our Own Platform"
"""


@pytest.mark.parametrize("version", ["1.2", "1.4"])
def test_cloud_marketplace_and_owned_are_told_apart(
    paid: Fleet, run: Run, written: Callable[[str, str], Path], tmp_path: Path, version: str
) -> None:
    """Each pool has its provider, who is paid; on a marketplace the seller published it; invoices
    are whole cents.
    """
    assert run("apply", written("providers.toml", PROVIDERS))[0] == 0
    path = tmp_path / "focus.csv"
    code, _, err = run(
        "chargeback", *TERM, "--format", "focus", "--focus-version", version, "-o", path
    )
    assert code == 0, err
    with path.open(encoding="utf-8", newline="") as file:
        assert list(check(file, version)) == []
    rows = table(path.read_text())
    names = (
        ("ProviderName", "PublisherName", "InvoiceIssuerName")
        if version == "1.2"
        else ("HostProviderName", "ServiceProviderName", "InvoiceIssuerName")
    )
    told = {
        (row["x_Pool"], *(row[name] for name in names))
        for row in rows
        if row["ChargeCategory"] != "Adjustment"
    }
    assert told == {
        ("train", "Example Cloud", "Example Cloud", "Example Cloud"),
        ("other", "Example Cloud", "Seller GPU", "Example Cloud"),
        ("lab", "Our Own Platform", "Our Own Platform", "Our Own Platform"),
    }
    for column, view in (("BilledCost", "cash"), ("EffectiveCost", "amortized")):
        sums: dict[tuple[str, str], Decimal] = defaultdict(Decimal)
        for row in rows:
            sums[row["SubAccountName"], row["InvoiceIssuerName"]] += Decimal(row[column])
        assert all(amount == round(amount, 2) for amount in sums.values()), (
            "whole cents of each provider"
        )
        assert sum(sums.values()) == sum(cents(run, view).values())
    exported = run("export", "config")[1]
    assert 'publisher = "Seller GPU"' in exported
    assert run("apply", written("again.toml", PROVIDERS), "--dry-run")[0] == 0
