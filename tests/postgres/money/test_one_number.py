"""What a number is called, it is: paid is what leaves the bank, spent is what is charged, and a
region is one place.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest

from fakes.fleet import DAY, HOUR, NOW_MS, Fleet, Held
from gpuledger_collector.accounting.period import month, parse_instant
from gpuledger_collector.services.chargeback import read_chargeback
from gpuledger_collector.storage.database import Database

Run = Callable[..., tuple[int, str, str]]
Written = Callable[[str, str], Path]
OCTOBER = ("--period", "2025-10")
NOVEMBER = ("--period", "2025-11")
BOTH = ("--from", "2025-10-01", "--to", "2025-12-01")
POLICIES = """
[[price]]
rate_per_gpu_hour = 2.00
purchase = "on_demand"
currency = "USD"
effective_from = 2025-01-01
pool = ""
gpu_model = ""

[[adjustment]]
name = "platform"
kind = "markup"
percent = 100
owner = { team = "team-1" }

[[adjustment]]
name = "volume"
kind = "tiered"
per = "team"
currency = "USD"
steps = { "0" = 2.0, "4" = 1.0 }
owner = { team = "team-2" }
"""


@pytest.fixture
def adjusted(fleet: Fleet, run: Run, written: Written) -> Fleet:
    """Two teams in October: one with a markup and a credit, one with a volume price; six hours of
    two GPUs each.
    """
    for number in (1, 2):
        fleet.capacity(number, 0, DAY)
        fleet.evidence([Held(number, number, 0, 6 * HOUR, busy=5 * HOUR, idle=HOUR)])
    code, _, err = run("apply", written("policies.toml", POLICIES))
    assert code == 0, err
    credit = (
        "--owner",
        "team=team-1",
        "--amount",
        "3",
        "--currency",
        "USD",
        "--from",
        "2025-10-01",
        "--to",
        "2025-10-02",
    )
    code, _, err = run(
        "adjustments", "credit", "outage", *credit, "--reason", "no network", "--approver", "head"
    )
    assert code == 0, err
    return fleet


def table(text: str) -> dict[str, dict[str, str]]:
    return {row["team"]: row for row in csv.DictReader(io.StringIO(text))}


def answer(run: Run, *command: object) -> str:
    code, out, err = run(*command)
    assert code == 0, err
    return out


def test_what_only_the_platform_and_its_owners_settle_is_not_paid(
    adjusted: Fleet, run: Run, tmp_path: Path
) -> None:
    """Neither markup nor volume price nor credit leaves the bank: in the cash view and in FOCUS'
    BilledCost.
    """
    borne = table(answer(run, "chargeback", *OCTOBER, "--format", "csv"))
    assert (borne["team-1"]["cost"], borne["team-2"]["cost"]) == ("21.00", "10.00")
    assert borne["team-1"]["cost_cash"] == ""
    paid = table(answer(run, "chargeback", *OCTOBER, "--view", "cash", "--format", "csv"))
    assert {team: paid[team]["cost"] for team in ("team-1", "team-2")} == {
        "team-1": "12.00",
        "team-2": "12.00",
    }
    assert paid["team-1"]["cost_cash"] == "12.00"
    assert paid["team-1"]["cost_effective"] == "21.00"
    path = tmp_path / "focus.csv"
    answer(run, "chargeback", *OCTOBER, "--format", "focus", "-o", path)
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    total = {
        name: sum(Decimal(row[name]) for row in rows) for name in ("BilledCost", "EffectiveCost")
    }
    assert total["BilledCost"] == sum(Decimal(row["cost"]) for row in paid.values())
    assert total["EffectiveCost"] == sum(Decimal(row["cost"]) for row in borne.values())


def test_a_forecast_starts_at_what_is_spent(
    adjusted: Fleet, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`forecast spend` says what the chargeback of the month so far says, adjustments included."""
    now_ms = parse_instant("2025-10-02T12:00:00Z")
    monkeypatch.setattr("gpuledger_collector.wiring.read_clock", lambda: now_ms)
    said = table(answer(run, "forecast", "spend", "--format", "csv"))
    charged = table(answer(run, "chargeback", *OCTOBER, "--format", "csv"))
    assert {team: said[team]["spent"] for team in ("team-1", "team-2")} == {
        team: charged[team]["cost"] for team in ("team-1", "team-2")
    }


def test_waste_follows_a_price_that_is_corrected(
    fleet: Fleet, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The idle part of a closed month at a new price: its correction has no time of its own, and
    yet a held idle cost.

    Hours of which nothing is known are those of both months, less what late evidence says of them.
    """
    now_ms = parse_instant("2025-11-20T00:00:00Z")
    monkeypatch.setattr("gpuledger_collector.wiring.read_clock", lambda: now_ms)
    fleet.capacity(1, 0, DAY)
    fleet.evidence([Held(1, 1, 0, 4 * HOUR, busy=3 * HOUR, idle=HOUR)])
    price = ("prices", "set", "--currency", "USD", "--from", "2025-01-01", "--rate")
    answer(run, *price, "2.00")
    before = json.loads(answer(run, "chargeback", *OCTOBER, "--format", "json"))["waste"]
    answer(run, "close", *OCTOBER)
    answer(run, *price, "3.00")
    fleet.evidence([Held(1, 1, 8 * HOUR, 10 * HOUR)])
    rows = table(answer(run, "chargeback", *NOVEMBER, "--format", "csv"))
    assert rows["team-1"]["cost_held_idle"] == "1.00"
    (waste,) = json.loads(answer(run, "chargeback", *BOTH, "--format", "json"))["waste"]
    # One idle hour, and the day's rest of capacity that nobody held or saw.
    assert waste["parts"]["held_idle"] == "3.00"
    assert waste["unknown_gpu_ns"] == before[0]["unknown_gpu_ns"], (
        "time that was unobserved is held and unknown now"
    )


def test_cost_by_region_is_what_focus_says(
    adjusted: Fleet, run: Run, dsn: str, written: Written, tmp_path: Path
) -> None:
    """A pool that moved has rows of both regions; sums are those of the whole, in both views."""
    for number, pool in ((3, "north"), (4, "south")):
        adjusted.capacity(number, 0, 2 * DAY, pool=pool)
        adjusted.workload(number, team=f"team-{number}")
        adjusted.evidence([Held(number, number, 0, DAY), Held(number, number, DAY, DAY + HOUR)])
    places = """
[[location]]
pool = "north"
region = "eu"
effective_to = 2025-10-02

[[location]]
pool = "north"
region = "us"
effective_from = 2025-10-02

[[location]]
pool = "south"
region = "us"
"""
    answer(run, "apply", written("places.toml", POLICIES + places))
    out = answer(run, "chargeback", *OCTOBER, "--by", "region,team", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    known = {
        (row["region"], row["team"]): row["cost"]
        for row in rows
        if row["team"] in {"team-3", "team-4"}
    }
    assert known == {("eu", "team-3"): "48.00", ("us", "team-3"): "2.00", ("us", "team-4"): "50.00"}
    for view in ("amortized", "cash"):
        asked = ("chargeback", *OCTOBER, "--view", view, "--format", "csv", "--by")
        by_region = csv.DictReader(io.StringIO(answer(run, *asked, "region")))
        total = sum(
            Decimal(row["cost"]) for row in csv.DictReader(io.StringIO(answer(run, *asked, "pool")))
        )
        assert sum(Decimal(row["cost"]) for row in by_region) == total
    with Database(dsn).connect() as connection:
        seen = read_chargeback(
            connection, month("2025-10"), ("region",), NOW_MS, {"team": "team-3"}
        ).report
    assert {row.keys: row.cost_minor for row in seen.rows} == {("eu",): 4800, ("us",): 200}, (
        "and for who sees a team"
    )
    path = tmp_path / "focus.csv"
    answer(run, "chargeback", *OCTOBER, "--format", "focus", "-o", path)
    billed: dict[str, Decimal] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["SubAccountName"] in {"team-3", "team-4"} and row["ChargeCategory"] == "Usage":
                billed[row["RegionId"]] = billed.get(row["RegionId"], Decimal()) + Decimal(
                    row["EffectiveCost"]
                )
    assert billed == {"eu": Decimal(48), "us": Decimal(52)}


def test_a_markup_is_no_negative_saving(adjusted: Fleet, run: Run) -> None:
    """A statement says how much more is paid than at list prices, where that is so."""
    pages = {
        team: answer(run, "statement", *OCTOBER, "--owner", team) for team in ("team-1", "team-2")
    }
    assert "you pay 12.00 (133 %) more" in pages["team-1"]
    assert "you save 2.00 (17 %)" in pages["team-2"]


def test_node_costs_have_a_column(adjusted: Fleet, run: Run, written: Written) -> None:
    """By team, in table, CSV and JSON: how much of the cost is what the nodes cost; after the older
    columns.
    """
    node_cost = '\n[[node_cost]]\nname = "CPU"\nprice_per_node_hour = 0.5\ncurrency = "USD"\n'
    answer(run, "apply", written("nodes.toml", POLICIES + node_cost))
    out = answer(run, "chargeback", *OCTOBER, "--format", "csv")
    header = out.splitlines()[0].split(",")
    assert header[-3:] == ["notice", "cost_nodes", "cost_cash"]
    assert table(out)["team-2"]["cost_nodes"] == "1.50"
    (row,) = (
        row
        for row in json.loads(answer(run, "chargeback", *OCTOBER, "--format", "json"))["rows"]
        if row["team"] == "team-2"
    )
    assert (row["cost_nodes"], row["node_cost_micro"]) == ("1.50", 1_500_000)
    assert "cost_nodes" in answer(run, "chargeback", *OCTOBER)
