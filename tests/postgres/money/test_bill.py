"""A provider's bill against the ledger: each kind of difference where it belongs, and all of them
exactly the whole.
"""

import csv
import io
import json
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.fleet import DAY, HOUR, Held
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.provider_bill import (
    KINDS,
    BillLine,
    BillMatch,
    NodeCapacity,
    ObservedUsage,
    compare,
    gpu_unit,
)

HEADER = (
    "ProviderName",
    "BilledCost",
    "EffectiveCost",
    "BillingCurrency",
    "BillingPeriodStart",
    "BillingPeriodEnd",
    "ChargeCategory",
    "ChargeClass",
    "ChargeDescription",
    "ChargePeriodStart",
    "ChargePeriodEnd",
    "SkuId",
    "ResourceId",
    "RegionId",
    "CommitmentDiscountStatus",
    "PricingQuantity",
    "PricingUnit",
)
USUAL = {
    "ProviderName": "Big Cloud",
    "BillingCurrency": "USD",
    "BillingPeriodStart": "2025-10-01T00:00:00Z",
    "BillingPeriodEnd": "2025-11-01T00:00:00Z",
    "ChargeCategory": "Usage",
    "SkuId": "gpu.1x",
    "RegionId": "north",
    "ChargePeriodStart": "2025-10-01T00:00:00Z",
    "ChargePeriodEnd": "2025-10-02T00:00:00Z",
    "PricingUnit": "Hours",
}
MATCH = '[[bill_match]]\nprovider = "big cloud"\nsku = "gpu.*"\npool = "train"\n'


def bill(path, *rows, provider="ProviderName"):
    """A FOCUS file; each row says what is not usual about it."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(
            file, [provider if name == "ProviderName" else name for name in HEADER]
        )
        writer.writeheader()
        for row in rows:
            whole = USUAL | row
            whole.setdefault("EffectiveCost", whole["BilledCost"])
            whole[provider] = whole.pop("ProviderName")
            writer.writerow(whole)
    return path


@pytest.fixture
def october(fleet, run):
    """One GPU of pool train on node n1, observed for the 24 hours of 1 October at 2.00: 48.00."""
    run("prices", "set", "--rate", "2", "--currency", "USD", "--from", "2025-01-01")
    fleet.capacity(1, 0, DAY)
    fleet.evidence([Held(1, 1, 0, 12 * HOUR), Held(1, None, 12 * HOUR, DAY, "unallocated")])
    return run


def reconciled(run, tmp_path, *rows, match=MATCH, more=()):
    """Exit code and JSON of a reconciliation with a bill of these rows."""
    (tmp_path / "match.toml").write_text(match)
    assert run("apply", tmp_path / "match.toml")[0] == 0
    code, told, wrong = run("import", "bill", bill(tmp_path / "bill.csv", *rows))
    assert code == 0, wrong
    code, told, wrong = run(
        "reconcile", "--period", "2025-10", "--bill", "big cloud", "--format", "json", *more
    )
    found = json.loads(told)
    assert found["holds"], found
    for currency in {*found["bill"], *found["ledger"]}:
        difference = Decimal(found["bill"].get(currency, "0")) - Decimal(
            found["ledger"].get(currency, "0")
        )
        assert (
            sum(Decimal(one["amount"]) for one in found["kinds"] if one["currency"] == currency)
            == difference
        )
    return code, {(one["currency"], one["kind"]): one["amount"] for one in found["kinds"]}, found


def test_a_bill_that_is_the_ledger_leaves_no_question(october, tmp_path):
    """The same hours at the same rate: no difference at all, and exit code 0."""
    code, kinds, found = reconciled(
        october, tmp_path, {"BilledCost": "48.00", "PricingQuantity": "24"}
    )
    assert (code, kinds) == (0, {})
    assert (found["bill"], found["ledger"], found["pools"]) == (
        {"USD": "48"},
        {"USD": "48"},
        ["train"],
    )


CASES = [
    ([{"BilledCost": "60", "PricingQuantity": "24"}], {"price": "12"}),
    ([{"BilledCost": "60", "PricingQuantity": "30"}], {"unobserved": "12"}),
    ([{"BilledCost": "40", "PricingQuantity": "20"}], {"unbilled": "-8"}),
    ([{"BilledCost": "75", "PricingQuantity": "30"}], {"price": "12", "unobserved": "15"}),
    ([{"BilledCost": "48.004", "PricingQuantity": "24"}], {"price": "0.004"}),
    (
        [
            {"BilledCost": "48", "PricingQuantity": "24"},
            {"BilledCost": "9.12", "ChargeCategory": "Tax"},
        ],
        {"tax": "9.12"},
    ),
    (
        [
            {"BilledCost": "48", "PricingQuantity": "24"},
            {"BilledCost": "-5", "ChargeCategory": "Credit"},
        ],
        {"credit": "-5"},
    ),
    (
        [
            {"BilledCost": "48", "PricingQuantity": "24"},
            {"BilledCost": "-3", "ChargeClass": "Correction"},
        ],
        {"refund": "-3"},
    ),
    (
        [
            {"BilledCost": "48", "PricingQuantity": "24"},
            {"BilledCost": "0.01", "ChargeCategory": "Adjustment"},
        ],
        {"adjustment": "0.01"},
    ),
    (
        [
            {"BilledCost": "700", "ChargeCategory": "Purchase"},
            {"BilledCost": "0", "PricingQuantity": "24", "CommitmentDiscountStatus": "Used"},
        ],
        {"commitment": "652"},
    ),
    (
        [
            {"BilledCost": "48", "PricingQuantity": "24"},
            {"BilledCost": "3", "PricingQuantity": "2", "CommitmentDiscountStatus": "Unused"},
        ],
        {"commitment": "3"},
    ),
    (
        [
            {"BilledCost": "48", "PricingQuantity": "24"},
            {"BilledCost": "7", "SkuId": "storage", "PricingQuantity": "1"},
        ],
        {"unmatched": "7"},
    ),
    (
        [
            {"BilledCost": "48", "PricingQuantity": "24"},
            {
                "BilledCost": "6",
                "PricingQuantity": "3",
                "ChargePeriodStart": "2025-09-30T00:00:00Z",
                "ChargePeriodEnd": "2025-10-01T00:00:00Z",
            },
        ],
        {"other period": "6"},
    ),
]


def test_each_difference_has_its_kind(october, tmp_path):
    """And nothing of it is left over. Each bill supersedes the one before."""
    for rows, wanted in CASES:
        code, kinds, _ = reconciled(october, tmp_path, *rows)
        assert kinds == {("USD", kind): amount for kind, amount in wanted.items()}
        questions = set(wanted) & {"price", "unobserved", "unbilled", "unmatched", "currency"}
        assert code == (1 if questions else 0)


def test_two_currencies_are_never_netted(october, tmp_path):
    """Each side stands in its own currency."""
    _, kinds, _ = reconciled(
        october, tmp_path, {"BilledCost": "44", "BillingCurrency": "EUR", "PricingQuantity": "24"}
    )
    assert kinds == {("EUR", "currency"): "44", ("USD", "currency"): "-48"}


def test_amortized_costs_can_be_compared_instead(october, tmp_path):
    """A reservation's hours cost nothing on the invoice, and their part of it in effect."""
    row = {
        "BilledCost": "0",
        "EffectiveCost": "36",
        "PricingQuantity": "24",
        "CommitmentDiscountStatus": "Used",
    }
    assert reconciled(october, tmp_path, row)[1] == {("USD", "commitment"): "-48"}
    code, told, _ = october(
        "reconcile", "--period", "2025-10", "--bill", "Big Cloud", "--cost", "effective"
    )
    assert code == 0
    assert "commitment" in told
    assert "-12 USD" in told


def test_a_resource_that_is_called_like_a_node_is_that_node(fleet, run, tmp_path):
    """Its hours count for all GPUs that the inventory has there; what another node lacks does not
    make up for it.
    """
    run("prices", "set", "--rate", "2", "--currency", "USD", "--from", "2025-01-01")
    for number, node in ((1, "n1"), (2, "n1"), (3, "n2")):
        fleet.capacity(number, 0, DAY, node=node)
        fleet.evidence([Held(number, number, 0, DAY)], node=node)
    rows = [
        {
            "BilledCost": "100",
            "PricingQuantity": "25",
            "ResourceId": "arn:x:instance/n1",
            "SkuId": "big",
        }
    ]
    _, kinds, found = reconciled(run, tmp_path, *rows, match="")
    assert kinds == {("USD", "unobserved"): "4", ("USD", "unbilled"): "-48"}
    told = {one["kind"]: (one["node"], one["gpu_hours"]) for one in found["differences"]}
    assert told == {"unobserved": ("n1", "2.000000"), "unbilled": ("", "-24.000000")}


def test_lines_over_days_are_laid_on_each_and_what_is_left_out_is_told(fleet, run, tmp_path):
    """A line of two days against one observed day: half of it was billed and not observed."""
    run("prices", "set", "--rate", "2", "--currency", "USD", "--from", "2025-01-01")
    fleet.capacity(1, 0, 2 * DAY)
    fleet.evidence([Held(1, 1, 0, DAY)])
    rows = [
        {"BilledCost": "96.01", "PricingQuantity": "6", "ChargePeriodEnd": "2025-10-03T00:00:00Z"},
        {"BilledCost": "1.50", "SkuId": "net", "PricingUnit": "GB", "PricingQuantity": "3"},
    ]
    match = MATCH + "gpus = 8\n" + '[[bill_match]]\nsku = "net"\nleave_out = true\n'
    _, kinds, found = reconciled(run, tmp_path, *rows, match=match)
    assert kinds == {
        ("USD", "unobserved"): "48.005",
        ("USD", "left out"): "1.5",
        ("USD", "rounding"): "0.005",
    }
    assert {one["day"] for one in found["differences"] if one["kind"] == "unobserved"} == {
        "2025-10-02"
    }


def test_the_days_of_a_bill_have_their_names_in_the_billing_zone(fleet, run, tmp_path):
    """October of Berlin begins on 30 September in UTC; page, CSV and JSON name its first day alike."""
    run("prices", "set", "--rate", "2", "--currency", "USD", "--from", "2025-01-01")
    fleet.capacity(1, -2 * HOUR, 22 * HOUR)
    fleet.evidence([Held(1, 1, -2 * HOUR, 22 * HOUR)])
    row = {
        "BilledCost": "60",
        "PricingQuantity": "24",
        "BillingPeriodStart": "2025-09-30T22:00:00Z",
        "BillingPeriodEnd": "2025-10-31T23:00:00Z",
        "ChargePeriodStart": "2025-09-30T22:00:00Z",
        "ChargePeriodEnd": "2025-10-01T22:00:00Z",
    }
    _, kinds, found = reconciled(
        run, tmp_path, row, match='billing_zone = "Europe/Berlin"\n' + MATCH
    )
    assert kinds == {("USD", "price"): "12"}
    assert [one["day"] for one in found["differences"]] == ["2025-10-01"]
    asked = ("reconcile", "--period", "2025-10", "--bill", "Big Cloud")
    assert "\nprice,2025-10-01,train,,gpu.1x,north,,12,USD\n" in run(*asked, "--format", "csv")[1]
    page = run(*asked)[1]
    assert page.startswith("bill of Big Cloud for 2025-10 against the ledger of train\n")
    assert "12 USD  2025-10-01 train gpu.1x north\n" in page
    assert "2025-09" not in page


def test_a_newer_file_supersedes_and_the_same_changes_nothing(october, tmp_path):
    """Both are kept; the reconciliation sees the newer one alone, whichever columns name the
    provider.
    """
    first = bill(tmp_path / "a.csv", {"BilledCost": "1", "PricingQuantity": "24"})
    assert "bills: 1 added, 0 updated, 0 unchanged" in october("import", "bill", first)[1]
    assert "bills: 0 added, 0 updated, 1 unchanged" in october("import", "bill", first)[1]
    newer = bill(
        tmp_path / "b.csv",
        {"BilledCost": "48", "PricingQuantity": "24"},
        provider="ServiceProviderName",
    )
    assert "bills: 0 added, 1 updated, 0 unchanged" in october("import", "bill", newer)[1]
    (tmp_path / "match.toml").write_text(MATCH)
    october("apply", tmp_path / "match.toml")
    code, told, _ = october("reconcile", "--period", "2025-10", "--bill", "Big Cloud")
    assert (code, "no question is left" in told) == (0, True)
    assert october("audit", "verify")[0] == 0


def test_parquet_is_read_as_the_csv_is(october, tmp_path):
    """Decimals, timestamps, nulls."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    text = bill(tmp_path / "a.csv", {"BilledCost": "48.00", "PricingQuantity": "24"}).read_text()
    (row,) = csv.DictReader(io.StringIO(text))
    instants = {
        name: pa.array([row[name]]).cast(pa.timestamp("us", tz="UTC"))
        for name in row
        if name.endswith(("Start", "End"))
    }
    numbers = {
        name: pa.array([Decimal(row[name])], pa.decimal128(38, 9))
        for name in ("BilledCost", "PricingQuantity")
    }
    columns = (
        {name: pa.array([cell or None], pa.string()) for name, cell in row.items()}
        | instants
        | numbers
    )
    pq.write_table(pa.table(columns), tmp_path / "b.parquet")
    assert october("import", "bill", tmp_path / "b.parquet")[0] == 0
    (tmp_path / "match.toml").write_text(MATCH)
    october("apply", tmp_path / "match.toml")
    assert october("reconcile", "--period", "2025-10", "--bill", "Big Cloud")[0] == 0


BAD = [
    ({"BilledCost": "8,09"}, "bill.csv:2:BilledCost: '8,09' is not a decimal number"),
    ({"BilledCost": ""}, "bill.csv:2:BilledCost: is empty"),
    ({"BilledCost": "1e-19"}, "more than 18 decimals"),
    ({"BilledCost": "1", "ChargePeriodStart": "yesterday"}, "bill.csv:2:ChargePeriodStart"),
    (
        {"BilledCost": "1", "ChargePeriodEnd": "2025-09-01T00:00:00Z"},
        "lies before ChargePeriodStart",
    ),
    ({"BilledCost": "1", "BillingCurrency": "Dollar"}, "is not an ISO 4217 code"),
    ({"BilledCost": "1", "ProviderName": ""}, "bill.csv:2:ProviderName: is empty"),
]


def test_a_bad_bill_is_refused_with_its_line(run, tmp_path):
    """Nothing of it is kept."""
    for row, words in BAD:
        code, _, told = run("import", "bill", bill(tmp_path / "bill.csv", row))
        assert code == 2
        assert words in told
    assert "there is no bill" in run("reconcile", "--period", "2025-10", "--bill", "x")[2]


def test_matches_come_back_as_they_were_applied(run, tmp_path):
    """`export config` writes them, and applying that changes nothing."""
    (tmp_path / "m.toml").write_text(
        MATCH + 'gpus = 7.5\n[[bill_match]]\nresource = "i-*"\nleave_out = true\n'
    )
    assert "bill matches: 2 added" in run("apply", tmp_path / "m.toml")[1]
    assert run("export", "config", "-o", tmp_path / "out.toml")[0] == 0
    code, told, wrong = run("apply", tmp_path / "out.toml")
    assert code == 0, wrong
    assert "bill matches: 0 added, 0 superseded, 2 unchanged" in told


def test_bad_matches_are_refused_with_their_line(run, tmp_path):
    """All at once."""
    (tmp_path / "m.toml").write_text(
        '[[bill_match]]\npool = "a"\n[[bill_match]]\nsku = "x"\n[[bill_match]]\nsku = "x"\npool ='
        ' "a"\ngpus = 0\n'
    )
    code, _, told = run("apply", tmp_path / "m.toml")
    assert code == 2
    for words in (
        "m.toml:1:sku: says nothing of the line",
        "m.toml:3:pool: name a pool or a node",
        "m.toml:5:gpus",
    ):
        assert words in told


@pytest.mark.parametrize(
    ("unit", "wanted"),
    [
        ("Hours", (HOUR, False)),
        ("GPU-Hours", (HOUR, True)),
        ("Hrs", (HOUR, False)),
        ("1 Hour", (HOUR, False)),
        ("GPU-Seconds", (1000, True)),
        ("Instance-Hours", (HOUR, False)),
        ("GB", None),
        ("GB-Mo", None),
        ("", None),
        ("Requests", None),
    ],
)
def test_units_of_time(unit, wanted):
    """What providers write for an hour."""
    assert gpu_unit(unit) == wanted


DAYS = [Period(at * DAY, (at + 1) * DAY) for at in range(3)]
AMOUNTS = st.decimals(-10_000, 10_000, places=4) | st.decimals(0, 100, places=18)
LINES = st.builds(
    lambda n, start, length, category, status, sku, resource, quantity, unit, currency, billed: (
        BillLine(
            n,
            start,
            start + length,
            category,
            "",
            "",
            sku,
            resource,
            "",
            "r",
            "",
            status,
            quantity,
            unit,
            currency,
            billed,
            None,
        )
    ),
    st.integers(1, 99),
    st.integers(-DAY, 4 * DAY),
    st.integers(0, 3 * DAY),
    st.sampled_from(["Usage", "Usage", "Usage", "Tax", "Credit", "Purchase", "Adjustment", "Odd"]),
    st.sampled_from(["", "", "Used", "Unused"]),
    st.sampled_from(["gpu", "gpu2", "disk"]),
    st.sampled_from(["", "n1", "x/n2"]),
    st.none() | st.decimals(0, 500, places=6),
    st.sampled_from(["Hours", "GPU-Seconds", "GB"]),
    st.sampled_from(["USD", "USD", "EUR"]),
    AMOUNTS,
)
OBSERVED = st.builds(
    ObservedUsage,
    st.sampled_from([day.start_ms for day in DAYS]),
    st.sampled_from(["a", "b"]),
    st.sampled_from(["n1", "n2", "n3"]),
    st.sampled_from(["USD", "USD", "EUR", None]),
    gpu_ns=st.integers(0, 10**15),
    cost_micro=st.integers(0, 10**10),
)
MATCHES = [BillMatch(sku="gpu", pool="a"), BillMatch(sku="gpu2", pool="b", gpus=Decimal("7.5"))]
PLACES = {
    (node, day.start_ms): NodeCapacity("a", 4_500_000) for node in ("n1", "n2") for day in DAYS
}


@given(st.lists(LINES, max_size=12), st.lists(OBSERVED, max_size=12), st.booleans())
def test_the_kinds_are_the_difference_whatever_the_bill(lines, observed, effective):
    """To the last of eighteen digits, in every currency, for every bill and ledger; kinds are those
    that are stated.
    """
    found = compare("p", lines, MATCHES, observed, PLACES, DAYS, effective=effective)
    assert found.holds
    assert {one.kind for one in found.differences} <= set(KINDS)
    assert sum(found.bill.values()) == sum(line.billed for line in lines)
