"""Commitments, owned hardware, spot series and other currencies, from the file that declares them
to the bill.
"""

import csv
import io
import json
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.fleet import DAY, HOUR, NOW_MS, OCTOBER, Held
from gpuledger_collector.accounting.owned_hardware import Owned, add_months, round_parts
from gpuledger_collector.accounting.period import parse_date
from gpuledger_collector.accounting.pricing import Price, PriceBook
from gpuledger_collector.export.focus_check import check
from gpuledger_collector.storage.billing import commitments, prices

pytestmark = pytest.mark.slow

DAYS = ("--from", "2025-10-01", "--to", "2025-10-02")
BOOK = """
[[price]]
rate_per_gpu_hour = 3.00
list_rate = 4.00
purchase = "on_demand"
currency = "USD"
effective_from = 2025-01-01
pool = ""
gpu_model = ""

[[commitment]]
name = "=three days"
pool = "train"
gpus = 3
upfront = 144
rate_per_gpu_hour = 0.50
currency = "USD"
starts = 2025-10-01
ends = 2025-10-04

[[exchange]]
from = "USD"
to = "EUR"
rate = 0.9
effective_from = 2025-10-01
"""


@pytest.fixture
def committed(fleet, run, written):
    """Two accelerators of a pool with three committed, one of a pool with none, for a day."""
    for number, pool in ((1, "train"), (2, "train"), (3, "other")):
        fleet.capacity(number, 0, DAY, pool=pool)
    fleet.evidence(
        [
            Held(1, 1, 0, DAY, busy=DAY // 2, idle=DAY // 3, energy=1001),
            Held(2, 2, 0, HOUR),
            Held(3, 1, 0, DAY),
        ]
    )
    code, _, err = run("apply", written("book.toml", BOOK))
    assert code == 0, err
    return fleet


def table(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_the_chargeback_has_list_contracted_and_effective_cost(committed, run):
    """Covered time costs 144 / 216 + 0.50 an hour instead of 3.00, or 4.00 at list; the unused
    third is nobody's.
    """
    code, out, err = run("chargeback", *DAYS, "--format", "csv")
    assert code == 0, err
    rows = {row["team"]: row for row in table(out)}
    # team-1 has a covered GPU for 24 hours (24 x 1.166667 = 28.00) and another at 3.00 (72.00).
    assert rows["team-1"]["cost"] == rows["team-1"]["cost_effective"] == "100.00"
    assert (rows["team-1"]["cost_contracted"], rows["team-1"]["cost_list"]) == ("144.00", "192.00")
    unused = rows["(commitment_unused)"]
    # What nobody used has no list cost: as a zero it would hide what the commitment saved on what
    # was used.
    assert (unused["gpu_hours"], unused["cost"], unused["cost_list"]) == ("24.000000", "28.00", "")
    assert (unused["cost_compared"], unused["cost_waste"], unused["billed"]) == ("", "28.00", "no")
    assert (rows["team-1"]["cost_compared"], rows["team-1"]["billed"]) == ("100.00", "yes")
    used = [row for row in rows.values() if row["cost_compared"]]
    saved = sum(Decimal(row["cost_contracted"]) - Decimal(row["cost_compared"]) for row in used)
    assert saved == Decimal("88.00"), "48 covered hours at 3.00, less 48 at 1.166667"
    assert sum(Decimal(row["cost"]) for row in rows.values()) == Decimal("156.00")
    code, out, _ = run("reconcile", "--period", "2025-10")
    assert code == 0
    assert "unused commitments" in out
    assert "324000000 = 324000000 micro-USD" in out
    assert "Commitments paid for 168.000000 GPU-hours that nobody used." in out
    sheet = json.loads(run("reconcile", "--period", "2025-10", "--format", "json")[1])
    assert sheet["money"]["USD"]["difference_micro"] == 0
    code, out, _ = run("chargeback", *DAYS, "--by", "workload", "--format", "csv")
    assert sum(Decimal(row["cost"]) for row in table(out)) == Decimal("156.00")


@pytest.mark.parametrize("version", ["1.2", "1.4"])
def test_focus_says_what_was_committed_covered_and_left_unused(committed, run, tmp_path, version):
    """Rows of a commitment are Committed, Used or Unused; the file passes the stricter checks."""
    path = tmp_path / "focus.csv"
    code, _, err = run(
        "chargeback", *DAYS, "--format", "focus", "--focus-version", version, "-o", path
    )
    assert code == 0, err
    with path.open(encoding="utf-8", newline="") as file:
        assert list(check(file, version)) == []
    rows = table(path.read_text())
    mine = [row for row in rows if row["CommitmentDiscountId"] and row["ChargeCategory"] == "Usage"]
    assert {row["CommitmentDiscountStatus"] for row in mine} == {"Used", "Unused"}
    assert {row["CommitmentDiscountId"] for row in mine} == {"'=three days"}
    assert {row["PricingCategory"] for row in mine} == {"Committed"}
    assert sum(Decimal(row["CommitmentDiscountQuantity"]) for row in mine) == 72
    assert sum(Decimal(row["EffectiveCost"]) for row in mine) == Decimal("84")
    (unused,) = [row for row in mine if row["CommitmentDiscountStatus"] == "Unused"]
    assert (unused["ConsumedQuantity"], unused["ResourceId"], Decimal(unused["ListCost"])) == (
        "",
        "",
        0,
    )
    used = [row for row in mine if row["CommitmentDiscountStatus"] == "Used"]
    assert all(
        Decimal(row["ContractedCost"]) == 3 * Decimal(row["PricingQuantity"]) for row in used
    )
    assert all(Decimal(row["ListCost"]) == 4 * Decimal(row["PricingQuantity"]) for row in used)
    assert sum(Decimal(row["EffectiveCost"]) for row in rows) == Decimal("156.00")
    # 72 at the price book's rate, 144 upfront and 72 GPU-hours at 0.50: what is paid on this day.
    assert sum(Decimal(row["BilledCost"]) for row in rows) == Decimal("252.00")


def test_another_currency_is_a_view_with_its_rate_on_every_row(committed, run):
    """The sum is the ledger's at the rate that each row names; the ledger itself does not change."""
    code, out, err = run("chargeback", *DAYS, "--format", "csv", "--currency", "EUR")
    assert code == 0, err
    rows = table(out)
    assert {row["currency"] for row in rows} == {"EUR"}
    assert {row["exchange"] for row in rows} == {"USD at 0.9 from 2025-10-01"}
    assert sum(Decimal(row["cost"]) for row in rows) == Decimal("140.40")
    assert run("chargeback", *DAYS, "--format", "csv", "--currency", "CHF")[0] == 2
    assert run("chargeback", *DAYS, "--format", "focus", "--currency", "EUR")[0] == 2
    plain = table(run("chargeback", *DAYS, "--format", "csv")[1])
    assert {row["currency"] for row in plain} == {"USD"}
    assert "exchange" not in plain[0]


def test_days_before_the_first_rate_keep_their_currency(committed, run):
    """What no rate converts is not guessed: it stays in dollars, on rows of its own, and is told."""
    rows = commitments.EXCHANGE_RATES.in_force(committed.connection)
    later = type(rows[0])("USD", "EUR", Decimal("0.5"), OCTOBER + DAY)
    with committed.connection.transaction():
        commitments.EXCHANGE_RATES.replace(committed.connection, [later], NOW_MS)
    span = ("--from", "2025-10-01", "--to", "2025-10-03")
    code, out, err = run("chargeback", *span, "--format", "csv", "--currency", "EUR")
    assert code == 0
    found = {(row["currency"], row["exchange"]) for row in table(out)}
    assert found == {("USD", ""), ("EUR", "USD at 0.5 from 2025-10-02")}
    assert "no rate from USD to EUR" in err


def test_applied_again_nothing_changes_and_what_is_gone_is_withdrawn(committed, run, written):
    """The same file is no news; without its [[commitment]] everything costs the price book's rate
    again.
    """
    run("chargeback", *DAYS)
    _, out, _ = run("apply", written("book.toml", BOOK))
    assert "commitments: 0 added, 0 superseded, 1 unchanged; no bill changes" in out
    _, out, _ = run("apply", written("none.toml", "commitment = []\n"))
    assert "commitments: 0 added, 1 superseded, 0 unchanged; 3 days" in out
    _, out, _ = run("chargeback", *DAYS, "--format", "json")
    assert [total["cost"] for total in json.loads(out)["totals"]] == ["216.00"]


TERM = '[[commitment]]\nname = "c"\ncurrency = "USD"\nends = 2026-01-01\n'
BOUGHT = '[[owned]]\nname = "o"\nmonths = 3\ncurrency = "USD"\nstarts = 2025-01-01\n'
RATE = '[[exchange]]\nfrom = "USD"\nrate = 1\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"{TERM}gpus = 1\nstarts = 2025-01-01\n", "costs something"),
        (f"{TERM}gpus = 1\nupfront = 5\nstarts = 2025-01-01T00:30:00Z\n", "whole hour"),
        (f"{TERM}gpus = 0\nupfront = 5\nstarts = 2025-01-01\n", "is not a whole number from 1"),
        (f"{BOUGHT}capex = 5\nsalvage = 6\n", "more than capex"),
        (f"{BOUGHT}capex = 5\npue = 0.9\n", "0.9 is not between 1 and 10"),
        (f'{BOUGHT}capex = 5\nper = "node"\n', "gpus is empty"),
        ('[[purchase]]\npurchase = "cheap"\n', "not one of on_demand"),
        (f'{RATE}to = "USD"\neffective_from = 2025-01-01\n', "same currency"),
        (f'{RATE}to = "EUR"\neffective_from = 2025-01-01T05:00:00Z\n', "whole day (UTC)"),
        (f"{BOUGHT}kapex = 5\n", "is it 'capex'?"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_line(run, written, text, words):
    """One sentence with file and line, and nothing is applied."""
    code, _, err = run("apply", written("bad.toml", text))
    assert code == 2
    assert words in err.replace(": is empty", " is empty")
    assert "bad.toml:1" in err


def test_owned_hardware_is_a_rate_with_its_parts_shown(fleet, run, written):
    """Rates are dated entries of the price book; --explain adds them up; another term supersedes
    both entries.
    """
    text = (
        '[[owned]]\nname = "DGX"\nnode = "dgx1"\nper = "node"\ngpus = 8\ncapex = 280000\nsalvage ='
        " 28000\nmonths = 48\nwatts = 10200\npue = 1.3\nprice_per_kwh = 0.19\nopex_per_month ="
        ' 900\ncurrency = "EUR"\nstarts = 2025-07-01\n'
    )
    assert run("apply", written("owned.toml", text))[0] == 0
    _, out, _ = run("prices", "list", "--explain")
    # 252000 / 8 / 35064 hours + 900 x 48 / 8 / 35064 + 10.2 x 1.3 x 0.19 / 8
    parts = "depreciation 0.898357289 + opex 0.154004107 + energy 0.314925"
    assert f"DGX: 1.367286396 EUR per GPU-hour from 2025-07-01T00:00:00Z = {parts}\n" in out
    assert "35064 hours" in out
    book = prices.current(fleet.connection)
    assert [(price.rate, price.effective_to_ms is None) for price in book] == [
        (Decimal("1.367286396"), False),
        (Decimal("0.468929107"), True),
    ]
    run("apply", written("owned.toml", text.replace("months = 48", "months = 60")))
    again = prices.current(fleet.connection)
    assert len(again) == 2
    assert again[0].effective_to_ms == again[1].effective_from_ms == parse_date("2030-07-01")


@given(
    st.decimals(0, 10**6, places=2),
    st.integers(1, 600),
    st.integers(1, 16),
    st.decimals(0, 10**4, places=2),
)
def test_the_parts_of_a_derived_rate_add_up_and_earn_what_was_paid(capex, months, gpus, opex):
    """Rounded parts are within a billionth of the exact ones; the exact ones over its life are what
    it cost.
    """
    owned = Owned(
        "o", capex, months, "USD", parse_date("2025-01-31"), "node", gpus, opex_per_month=opex
    )
    exact = owned.parts()
    assert (
        sum(exact.values()) * owned.life_hours * gpus == Fraction(capex) + Fraction(opex) * months
    )
    parts = round_parts(exact)
    assert sum(parts.values()) == owned.prices()[0].rate
    assert all(abs(Fraction(parts[name]) - exact[name]) < Fraction(1, 10**9) for name in exact)


@pytest.mark.parametrize(
    ("start", "months", "end"),
    [
        ("2025-01-31", 1, "2025-03-01"),
        ("2024-02-29", 12, "2025-03-01"),
        ("2025-11-15", 2, "2026-01-15"),
        ("2025-12-01", 12, "2026-12-01"),
    ],
)
def test_months_are_those_of_the_calendar(start, months, end):
    """The same day so many months later; where there is none, the first after it."""
    assert add_months(parse_date(start), months) == parse_date(end)


def spot_series(count):
    """A rate for every 53 minutes of about a year."""
    return [
        Price(
            number,
            "",
            "H100",
            "spot",
            Decimal(1000 + number % 700).scaleb(-3),
            "USD",
            number * 53 * 60_000,
            (number + 1) * 53 * 60_000,
        )
        for number in range(count)
    ]


def test_ten_thousand_spot_rates_are_asked_rightly():
    """The price is the one in force at the instant, just after each of its changes."""
    series = spot_series(10_000)
    book = PriceBook([*series, Price(10_000, "", "H100", "on_demand", Decimal(9), "USD", 0)])
    for number in range(0, 9_999, 97):
        at = number * 53 * 60_000 + 17
        assert book.price_at("train", "NVIDIA H100 80GB HBM3", "n1", at, "spot") == series[number]
        assert book.price_at("train", "NVIDIA H100 80GB HBM3", "n1", at).purchase == "on_demand"


def test_ten_thousand_spot_rates_are_imported(fleet, run, tmp_path):
    """One copy, one audit row each; the same file again changes nothing; hours in which a rate
    changes are cut.
    """
    fleet.capacity(1, 0, DAY)
    fleet.evidence([Held(1, 1, 0, DAY)])
    path = tmp_path / "spot.csv"
    start = OCTOBER // 1000
    lines = [
        f",H100,spot,{1 + number % 700 / 1000:.3f},USD,{start + number * 53 * 60},"
        for number in range(10_000)
    ]
    path.write_text(
        "pool,gpu_model,purchase,rate_per_gpu_hour,currency,effective_from,effective_to\n"
        + "\n".join(lines)
    )
    code, _, err = run("import", "prices", path)
    assert code == 0, err
    code, out, _ = run("import", "prices", path)
    assert "10000 unchanged" in out.replace(",", "")
    code, out, err = run("chargeback", *DAYS, "--format", "csv")
    assert code == 0, err
    # Each rate holds for 53 minutes: the day is 27 of them and 9 minutes of the next.
    exact = (
        sum(Fraction(1000 + number, 1000) * 53 / 60 for number in range(27))
        + Fraction(1027, 1000) * 9 / 60
    )
    assert Decimal(table(out)[0]["cost"]) == Decimal(round(exact * 100)) / 100


def test_the_receipt_of_a_workload_names_what_covered_it(committed, run):
    """Time that a commitment covers stands apart from time at a rate, and both add up to what was
    charged.
    """
    run("chargeback", *DAYS)
    code, out, err = run("receipt", "1")
    assert code == 0, err
    assert "covered by commitment =three days" in out
    assert "28.00 USD" in out
    assert "72.00 USD" in out


def test_a_month_with_a_commitment_closes_and_its_seal_holds(committed, run):
    """Invoices are the chargeback's rows, unused among them; the same export comes out again."""
    whole = ("--from", "2025-10-01", "--to", "2025-11-01")
    rows = table(run("chargeback", *whole, "--format", "csv")[1])
    code, out, err = run("close", "--period", "2025-10")
    assert code == 0, err
    invoices = committed.connection.execute(
        "SELECT owner, minor FROM invoice ORDER BY owner"
    ).fetchall()
    assert dict(invoices) == {row["team"]: int(Decimal(row["cost"]) * 100) for row in rows}
    first = run("chargeback", *whole, "--format", "focus")[1]
    assert "2025-10/USD/(commitment_unused)" in first
    assert run("chargeback", *whole, "--format", "focus")[1] == first
    code, out, err = run("periods", "--verify", "2025-10")
    assert code == 0, out + err
