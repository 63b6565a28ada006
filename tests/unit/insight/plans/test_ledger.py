"""Plans beside a ledger: its rates, its past runs, and the budget that a plan becomes."""

import json

import pytest

from fakes.fleet import DAY, HOUR, NOW_MS, OCTOBER, Held
from fakes.ledger import fleet, run
from gpuledger_collector.services.rating import rate_usage
from gpuledger_collector.storage.database import Database

__all__ = ["fleet", "run"]
LINE = (
    "plan",
    "training",
    "--parameters",
    "7B",
    "--tokens",
    "10e9",
    "--gpus",
    "8",
    "--format",
    "json",
)


@pytest.fixture(autouse=True)
def november(monkeypatch):
    """It is 20 November 2025."""
    monkeypatch.setattr("gpuledger_collector.wiring.read_clock", lambda: NOW_MS)


def planned(run, *more):
    code, text, error = run(*LINE, *more)
    assert code == 0, error
    return json.loads(text)


def test_the_rate_of_the_price_book(run):
    """The rate in force now, by the card's short name or a longer one; without one a sentence,
    never nothing to pay.
    """
    code, _, error = run(*LINE, "--price-book")
    assert code == 2
    assert "no rate in force for H100" in error
    run(
        "prices",
        "set",
        "--model",
        "NVIDIA H100 80GB HBM3",
        "--rate",
        "3",
        "--currency",
        "USD",
        "--from",
        "2025-01-01",
    )
    assert planned(run, "--price-book")["rate"] == {
        "per_gpu_hour": "3.000000000",
        "currency": "USD",
    }
    run(
        "prices",
        "set",
        "--pool",
        "spot",
        "--model",
        "H100",
        "--rate",
        "1",
        "--currency",
        "EUR",
        "--from",
        "2025-01-01",
    )
    assert planned(run, "--price-book", "--pool", "spot")["rate"]["currency"] == "EUR"


def test_a_plan_becomes_a_budget_and_the_others_stay(run, fleet):
    """The expected cost for the owner and days of the run, as `gpuledger budgets` shows; again,
    nothing changes.
    """
    save = (
        "--rate",
        "2.5",
        "--save-budget",
        "v7",
        "--owner",
        "team=vision,run=v7",
        "--from",
        "2025-11-20",
    )
    made = planned(run, *save)
    rows = fleet.rows(
        "SELECT name, owner, period, amount_micro, currency, start_ms, end_ms FROM budget"
    )
    expected = made["outcomes"][1]
    days = int(expected["wall_seconds"] // 86400) + 1
    assert rows == [
        (
            "v7",
            {"team": "vision", "run": "v7"},
            "range",
            int(expected["cost"].replace(".", "")) * 10_000,
            "USD",
            OCTOBER + 50 * DAY,
            OCTOBER + (50 + days) * DAY,
        )
    ]
    assert "saved" in made["notes"][-1]
    planned(run, "--rate", "9", "--save-budget", "other", "--owner", "team=speech")
    assert "same as before" in planned(run, *save)["notes"][-1]
    assert "replaced" in planned(run, *save, "--mfu", "0.2")["notes"][-1]
    names = fleet.rows("SELECT name FROM budget WHERE superseded_at IS NULL ORDER BY name")
    assert names == [("other",), ("v7",)]
    code, text, _ = run("budgets", "--format", "json")
    assert code == 0
    assert '"v7"' in text


def test_similar_past_runs_lie_beside(run, fleet, dsn):
    """Runs on the same model with about as many GPUs, with what was measured; what was not measured
    is unknown.
    """
    run("prices", "set", "--rate", "2", "--currency", "USD", "--from", "2024-01-01")
    for number in range(1, 12):
        fleet.capacity(number, 0, 31 * DAY)
    fleet.evidence(
        [Held(number, 1, 0, 10 * HOUR, busy=10 * HOUR) for number in range(1, 9)]
        + [Held(number, 2, 0, 5 * HOUR, busy=5 * HOUR) for number in (9, 10)]
        + [Held(11, 3, 0, DAY, busy=DAY)]
    )
    fleet.connection.execute("UPDATE workload SET name = 'train-' || external_id")
    rate_usage(Database(dsn), NOW_MS)
    fleet.connection.execute(
        "INSERT INTO gpu_minute (accelerator_id, minute_ms, samples, sm_active_ratio,"
        " tensor_active_ratio) SELECT a.id, %s + minute * 60000, 6, 0.5 + 0.25 * (minute %% 2),"
        " 0.25 FROM accelerator a, generate_series(0, 599) AS minute WHERE a.uuid < 'GPU-0009'",
        (OCTOBER,),
    )
    past = planned(run, "--from-ledger")["past_runs"]
    assert [(one["name"], one["accelerators"], one["gpu_ns"] / 3.6e12) for one in past] == [
        ("train-1", 8, 80.0),
        ("train-2", 2, 10.0),
    ]
    assert (past[0]["sm_active_ratio"], past[0]["tensor_active_ratio"]) == (0.625, 0.25)
    assert (past[1]["sm_active_ratio"], past[1]["tensor_active_ratio"]) == (None, None)
    assert (past[0]["cost_micro"], past[0]["currency"]) == (160_000_000, "USD")
    table = run(*LINE[:-1], "table", "--from-ledger")[1]
    assert "62.5 %" in table
    assert "160.00 USD" in table
    assert "proxy for MFU" in table


def test_no_similar_run_is_said(run):
    """An empty ledger gives no table, and a sentence."""
    made = planned(run, "--from-ledger")
    assert made["past_runs"] == []
    assert "no run of 2 to 32 H100" in made["notes"][-1]
