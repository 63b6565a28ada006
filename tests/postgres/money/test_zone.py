"""A billing zone through every command: one local month in chargeback, proof, close, FOCUS,
statement and budgets.
"""

import csv
import io
import json
from decimal import Decimal

import pytest

from fakes.fleet import DAY, HOUR, Held
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.export.focus_check import check
from gpuledger_collector.services.refresh import refresh

OCT = ("--from", "2025-10-01", "--to", "2025-11-01")
FIRST, LAST = "2025-09-30T22:00:00Z", "2025-10-31T23:00:00Z"
ZONE = """
billing_zone = "Europe/Berlin"

[[budget]]
name = "fleet"
period = "range"
from = 2025-10-01
to = 2025-11-01
amount = 10000
currency = "USD"
"""


@pytest.fixture
def berlin(fleet, run, written):
    """One accelerator from the first local midnight of October 2025 on, held around the ends of the
    month.
    """
    run("prices", "set", "--rate", "2", "--currency", "USD", "--from", "2025-01-01")
    fleet.capacity(1, -2 * HOUR, 33 * DAY)
    fleet.evidence(
        [Held(1, 1, at * HOUR, (at + 1) * HOUR, busy=HOUR) for at in (-2, -1, 0, 742, 743)]
    )
    run("chargeback", *OCT)
    code, out, err = run("apply", written("zone.toml", ZONE))
    assert (code, err) == (0, "")
    assert out.startswith("billing zone: 1 added")
    return fleet


def test_the_month_is_the_zones_in_every_report(berlin, run, tmp_path) -> None:
    """745 hours from local midnight to local midnight; FOCUS, statement and proof name the same
    days.
    """
    made = json.loads(run("chargeback", *OCT, "--format", "json")[1])
    assert (made["from"], made["to"]) == (FIRST, LAST)
    assert made["totals"][0]["gpu_hours"] == "745.000000"
    held = {row["team"]: row["gpu_hours"] for row in made["rows"]}
    assert held["team-1"] == "4.000000"
    november = json.loads(
        run(
            "chargeback",
            "--from",
            "2025-11-01",
            "--to",
            "2025-11-02",
            "--by",
            "team",
            "--format",
            "json",
        )[1]
    )
    assert (
        next(row for row in november["rows"] if row["team"] == "team-1")["gpu_hours"] == "1.000000"
    )
    proof = json.loads(run("reconcile", "--period", "2025-10", "--format", "json")[1])
    assert proof["holds"]
    days = [day["day"] for day in proof["days"]]
    assert (days[0], days[-1], len(days)) == ("2025-10-01", "2025-10-31", 31)
    path = tmp_path / "statement.html"
    assert run("statement", "--owner", "team-1", "--period", "2025-10", "-o", path)[0] == 0
    page = path.read_text()
    assert "2025-10-31" in page
    assert "2025-09-30" not in page.partition("<table")[0]


def test_a_local_month_is_closed_and_exported(berlin, run, tmp_path) -> None:
    """The receipt and FOCUS have the bounds of the zone; corrections are of local days; the seal
    holds.
    """
    code, closed, err = run("close", "--period", "2025-10", "--format", "json")
    assert (code, err) == (0, "")
    receipt = json.loads(closed)
    assert (receipt["from"], receipt["to"]) == (FIRST, LAST)
    assert Decimal(receipt["totals"]["USD"]) == 1490
    rows = list(csv.DictReader(io.StringIO(run("chargeback", *OCT, "--format", "focus")[1])))
    assert {(row["BillingPeriodStart"], row["BillingPeriodEnd"]) for row in rows} == {(FIRST, LAST)}
    path = tmp_path / "focus.csv"
    run("chargeback", *OCT, "--format", "focus", "-o", path)
    with path.open(encoding="utf-8", newline="") as file:
        assert list(check(file)) == []
    berlin.evidence([Held(1, 2, 10 * HOUR, 11 * HOUR)])
    said = run("corrections", "--period", "2025-10", "--format", "json")[1]
    assert {row["gpu_hours"] for row in json.loads(said)["rows"]} == {"1.000000", "-1.000000"}
    assert "as it was sealed" in run("periods", "--verify", "2025-10")[1]


def test_an_exchange_rate_holds_from_a_day_of_the_zone(berlin, run, written) -> None:
    """A rate from the first of October is that of the whole first of October, which begins on 30
    September in UTC.
    """
    text = "".join(
        f'[[exchange]]\nfrom = "USD"\nto = "EUR"\nrate = {rate}\neffective_from = {day}\n'
        for rate, day in (("0.5", "2025-10-01"), ("0.25", "2025-10-31"))
    )
    assert run("apply", written("rates.toml", text))[0] == 0
    made = json.loads(run("chargeback", *OCT, "--currency", "EUR", "--format", "json")[1])
    totals = {
        one["exchange"]: (one["currency"], one["gpu_hours"], one["cost"]) for one in made["totals"]
    }
    assert totals == {
        "USD at 0.25 from 2025-10-31": ("EUR", "24.000000", "12.00"),
        "USD at 0.5 from 2025-10-01": ("EUR", "721.000000", "721.00"),
    }


def test_a_budgets_days_are_the_zones(berlin, run) -> None:
    """What was spent counts from the local midnight on."""
    found = json.loads(run("budgets", "--format", "json")[1])
    (one,) = found["budgets"]
    assert (one["period_from"], one["period_to"], one["spent"]) == (
        "2025-10-01",
        "2025-11-01",
        "1490.00",
    )


def test_there_and_back_is_the_same_ledger(berlin, run, written, ledger) -> None:
    """Zones of whole and half hours and UTC again: the same charges, to the micro-unit, and every
    proof holds.
    """
    everything = Period(1_700_000_000_000, 1_900_000_000_000)

    def state() -> list[tuple[object, ...]]:
        refresh(ledger, everything, 1_763_640_000_000)
        assert berlin.rows("SELECT day_ms FROM conservation_check WHERE NOT holds") == []
        assert berlin.rows("SELECT day_ms FROM day_recompute") == []
        return berlin.rows(
            "SELECT state, workload_id, sum(gpu_ns), sum(cost_micro) FROM charge GROUP BY 1, 2"
            " ORDER BY 1, 2"
        )

    first = state()
    for zone in ("Asia/Kathmandu", "America/New_York", "UTC"):
        assert run("apply", written("zone.toml", f'billing_zone = "{zone}"\n'))[0] == 0
        assert state() == first
    named = berlin.rows("SELECT subject FROM audit WHERE what = 'billing_zone' ORDER BY number")
    assert [one[0] for one in named] == [
        "Europe/Berlin",
        "Asia/Kathmandu",
        "America/New_York",
        "UTC",
    ]


def test_billing_periods_are_local_months(berlin, run) -> None:
    """FOCUS 1.4's billing periods have the bounds of the zone, and each month of the ledger once."""
    run("chargeback", "--from", "2025-10-01", "--to", "2025-11-02")
    rows = list(csv.DictReader(io.StringIO(run("focus", "periods")[1])))
    assert [row["BillingPeriodStart"] for row in rows] == [FIRST, LAST]
