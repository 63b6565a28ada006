"""FOCUS 1.4: shared devices as charges that were split, billing periods with their status, and 1.2
as it was.
"""

import csv
import io
import json
from collections import defaultdict
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from fakes.fleet import DAY, HOUR, Held
from gpuledger_collector.cli import build
from gpuledger_collector.export import focus, focus_split
from gpuledger_collector.export.focus_check import VERSIONS, check

MONTH = ("--from", "2025-10-01", "--to", "2025-11-01", "--format", "focus")
_MADE: list[tuple[str, str]] = []


@pytest.fixture
def exports(request):
    """The same closed month in both versions: a shared GPU, a MIG-sliced one, one of a single
    holder; made once.
    """
    if not _MADE:
        fleet, run = request.getfixturevalue("fleet"), request.getfixturevalue("run")
        run("prices", "set", "--rate", "2.333333333", "--currency", "USD", "--from", "2025-01-01")
        for number in (1, 2):
            fleet.capacity(number, 0, DAY)
        for part, micro in (("a", 571_429), ("b", 428_571)):
            fleet.connection.execute(
                "INSERT INTO accelerator (uuid, device_uuid, model, mig_instance, gpu_micro) "
                "VALUES (%s, 'GPU-0009', 'NVIDIA H100 80GB HBM3', %s, %s)",
                (f"MIG-{part}", part, micro),
            )
            fleet.connection.execute(
                "INSERT INTO capacity (accelerator_id, gpu_model, gpu_micro, node_id, pool, in_ms,"
                " out_ms, source) SELECT id, model, gpu_micro, %s, 'train', 1759276800000,"
                " 1759363200000, 'agent' FROM accelerator WHERE uuid = %s",
                (fleet.node("n1"), f"MIG-{part}"),
            )
        fleet.evidence(
            [
                Held(1, 1, 0, 2 * HOUR, busy=HOUR // 3, idle=HOUR // 7),
                Held(1, 2, 2 * HOUR, 3 * HOUR + 17, idle=HOUR),
                Held(1, 3, 4 * HOUR, 5 * HOUR),
                Held(2, 3, 0, DAY, busy=DAY),
            ]
        )
        mig = fleet.rows("SELECT id FROM accelerator WHERE uuid = 'MIG-a'")[0][0]
        fleet.connection.execute(
            "INSERT INTO usage_interval SELECT %s, workload_id, state, start_ms, end_ms, held_ms,"
            " busy_ms, idle_ms, unknown_ms, energy_mj, node_id, epoch, 99, record FROM"
            " usage_interval WHERE workload_id IS NOT NULL LIMIT 1",
            (mig,),
        )
        fleet.connection.execute(
            "INSERT INTO hour_recompute (accelerator_id, hour_ms) SELECT %s, 1759276800000 + h *"
            " 3600000 FROM generate_series(0, 23) h",
            (mig,),
        )
        assert run("close", "--period", "2025-10")[0] == 0
        _MADE.append(
            (run("chargeback", *MONTH)[1], run("chargeback", *MONTH, "--focus-version", "1.4")[1])
        )
    return _MADE[0]


def rows_of(text):
    return list(csv.DictReader(io.StringIO(text)))


def found(rows):
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return list(check(io.StringIO(out.getvalue(), newline="")))


def test_both_versions_pass_and_say_the_same_money(exports):
    """1.4 has the rows of 1.2 with other columns: to the last digit the same cost by owner, invoice
    and in sum.
    """
    old, new = (rows_of(text) for text in exports)
    assert found(old) == found(new) == []
    assert tuple(old[0]) == focus.COLUMNS
    assert tuple(new[0]) == focus_split.COLUMNS
    assert not {"ProviderName", "PublisherName"} & set(new[0])

    def money(rows):
        return [
            (row["SubAccountName"], row["InvoiceId"], row["BilledCost"], row["ListCost"])
            for row in rows
        ]

    assert money(old) == money(new)


def test_an_origin_charge_is_a_device_at_a_rate_and_its_parts_are_the_whole(exports):
    """The device is the resource, the receiver stands in the Allocated columns, what nobody held
    has none.
    """
    rows = [row for row in rows_of(exports[1]) if row["ChargeCategory"] == "Usage"]
    devices = defaultdict(list)
    for row in rows:
        devices[row["ResourceId"]].append(row)
    assert set(devices) == {"GPU-0001", "GPU-0002", "GPU-0009"}
    (alone,) = devices["GPU-0002"]
    assert not any(alone[name] for name in focus_split.ALLOCATED)
    for device in ("GPU-0001", "GPU-0009"):
        mine = devices[device]
        ratios = [
            json.loads(row["AllocatedMethodDetails"], parse_float=Decimal)["Elements"][0]
            for row in mine
        ]
        assert sum(one["AllocatedRatio"] for one in ratios) == 1
        total = sum(Decimal(row["ConsumedQuantity"]) for row in mine)
        for row, one in zip(mine, ratios, strict=True):
            assert abs(one["AllocatedRatio"] - Decimal(row["ConsumedQuantity"]) / total) <= Decimal(
                "1e-9"
            )
        assert {row["AllocatedMethodId"] for row in mine} == {"dominant-share-v1"}
        assert (
            len({(row["ChargePeriodStart"], row["ChargePeriodEnd"], row["Tags"]) for row in mine})
            == 1
        )
    receivers = {row["AllocatedResourceId"] for row in devices["GPU-0001"]}
    assert receivers == {"slurm::1", "slurm::2", "slurm::3", ""}
    assert {row["AllocatedResourceId"] for row in devices["GPU-0009"]} == {"MIG-a", ""}
    held = next(row for row in devices["GPU-0009"] if row["AllocatedResourceId"])
    assert json.loads(held["AllocatedTags"])["team"] == "team-1"


DETAILS = '{"Elements": [{"AllocatedRatio": %s}]}'
MUTATIONS = {
    "details without a method": ({"AllocatedMethodId": ""}, "null", "AllocatedMethodDetails"),
    "a method without details": ({"AllocatedMethodDetails": ""}, "null", "AllocatedMethodDetails"),
    "a receiver without a name": ({"AllocatedResourceName": ""}, "null", "AllocatedResourceName"),
    "a name without a receiver": ({"AllocatedResourceId": ""}, "null", "AllocatedResourceId"),
    "details that are no JSON": (
        {"AllocatedMethodDetails": "half"},
        "json",
        "AllocatedMethodDetails",
    ),
    "details without elements": (
        {"AllocatedMethodDetails": '{"Elements": []}'},
        "json",
        "AllocatedMethodDetails",
    ),
    "a key of nobody's": (
        {"AllocatedMethodDetails": '{"Elements": [{"AllocatedRatio": 1, "Weight": 2}]}'},
        "json",
        "AllocatedMethodDetails",
    ),
    "a ratio above 1": (
        {"AllocatedMethodDetails": DETAILS % "1.5"},
        "ratio",
        "AllocatedMethodDetails",
    ),
    "a ratio that is text": (
        {"AllocatedMethodDetails": DETAILS % '"0.5"'},
        "ratio",
        "AllocatedMethodDetails",
    ),
    "a quantity without a unit": (
        {"AllocatedMethodDetails": '{"Elements": [{"AllocatedRatio": 0.5, "UsageQuantity": 2}]}'},
        "ratio",
        "AllocatedMethodDetails",
    ),
    "a unit of the street": (
        {
            "AllocatedMethodDetails": (
                '{"Elements": [{"AllocatedRatio": 0.5, "UsageUnit": "gpu secs"}]}'
            )
        },
        "unit",
        "AllocatedMethodDetails",
    ),
    "parts that are not the whole": (
        {"AllocatedMethodDetails": DETAILS % "0.000001"},
        "split",
        "AllocatedMethodDetails",
    ),
    "allocated tags that are no JSON": ({"AllocatedTags": "team=vision"}, "json", "AllocatedTags"),
    "nested allocated tags": (
        {"AllocatedTags": '{"team": {"name": "vision"}}'},
        "json",
        "AllocatedTags",
    ),
    "a tag said twice": (
        {"Tags": '{"team": "x"}', "AllocatedTags": '{"team": "x"}'},
        "twice",
        "AllocatedTags",
    ),
    "another unit price than the origin's": ({"ListUnitPrice": "9.0"}, "differs", "ListUnitPrice"),
    "no service provider": ({"ServiceProviderName": ""}, "null", "ServiceProviderName"),
    "no host provider": ({"HostProviderName": ""}, "null", "HostProviderName"),
    "another issuer": ({"InvoiceIssuerName": "Other"}, "cost", "BilledCost"),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_one_seeded_violation_of_the_new_columns_is_found(exports, name):
    """A good file but for one row fails for this reason; on its own line unless only the whole
    origin shows it.
    """
    changes, rule, column = MUTATIONS[name]
    rows = rows_of(exports[1])
    at = next(number for number, row in enumerate(rows) if row["AllocatedResourceId"] == "slurm::2")
    rows[at] |= changes
    told = [one for one in found(rows) if (one.rule, one.column) == (rule, column)]
    assert told, found(rows)
    if rule not in {"split", "differs"}:
        assert told[0].line == at + 2


def test_a_file_is_checked_against_the_version_that_is_asked_for(exports, tmp_path):
    """1.4's names are unknown to 1.2, and 1.2's lacking in 1.4; without a wish the header decides."""

    def checked(*arguments):
        result = CliRunner().invoke(
            build(), ["focus", "check", str(tmp_path / "bill.csv"), *arguments]
        )
        return result.exit_code, result.stdout

    for text, own, other in ((exports[0], "1.2", "1.4"), (exports[1], "1.4", "1.2")):
        (tmp_path / "bill.csv").write_text(text)
        assert checked()[0] == checked("--focus-version", own)[0] == 0
        code, shown = checked("--focus-version", other)
        assert code == 1
        assert "ProviderName" in shown
    assert set(VERSIONS) == {"1.2", "1.4"}


def test_billing_periods_are_open_until_they_are_closed(fleet, run):
    """A month that was rated is Open; closed it is Closed, as of that instant."""
    run("prices", "set", "--rate", "2", "--currency", "USD", "--from", "2025-01-01")
    fleet.capacity(1, 30 * DAY, 32 * DAY)
    fleet.evidence([Held(1, 1, 30 * DAY, 30 * DAY + HOUR), Held(1, 1, 31 * DAY, 31 * DAY + HOUR)])
    run("chargeback", "--from", "2025-10-01", "--to", "2025-12-01")
    assert run("close", "--period", "2025-10")[0] == 0
    code, text, _ = run("focus", "periods")
    assert code == 0
    rows = rows_of(text)
    assert list(rows[0]) == [column.name for column in focus_split.BILLING_PERIODS.columns]
    assert [(row["BillingPeriodStart"], row["BillingPeriodStatus"]) for row in rows] == [
        ("2025-10-01T00:00:00Z", "Closed"),
        ("2025-11-01T00:00:00Z", "Open"),
    ]
    closed_ms = fleet.rows("SELECT closed_ms FROM billing_period")[0][0]
    assert rows[0]["BillingPeriodLastUpdated"] == focus.format_instant(closed_ms - closed_ms % 1000)


@given(st.lists(st.integers(1, 10**14), min_size=1, max_size=30))
def test_ratios_of_any_split_add_up_to_one(weights):
    """Billionths by largest remainder, written as decimals."""
    from gpuledger_common.largest_remainder import split

    written = [Decimal(focus.fixed_decimal(part, 9)) for part in split(focus.NANO, weights)]
    assert sum(written) == 1
