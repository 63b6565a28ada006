"""Advice on a real Postgres: guarded, priced by two ledgers, counted once, kept once, and measured
once accepted.
"""

from __future__ import annotations

import csv
import io
import json
from decimal import Decimal

import pytest

from fakes.fleet import DAY, HOUR, OCTOBER, Fleet, Held
from gpuledger_collector import wiring
from gpuledger_collector.accounting.money import cost_micro
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.quantity import gpu_ns
from gpuledger_collector.services.idle_search import find_idle
from gpuledger_collector.services.recommendation_search import recommend
from gpuledger_collector.services.refresh import refresh
from gpuledger_collector.storage.database import Database

pytestmark = pytest.mark.slow

DAYS = 4
NOW = OCTOBER + DAYS * DAY
RATE = Decimal("2.49")
GIB = 2**30
RESTING = "reclaim:slurm::1/NVIDIA H100 80GB HBM3"


@pytest.fixture
def store(dsn: str) -> Database:
    """The recommendations of that database."""
    return Database(dsn)


def minutes(
    fleet: Fleet, number: int, start: int, end: int, utilization: float, gib: float = 60
) -> None:
    """A sample every five minutes, as the rollup leaves it."""
    fleet.connection.execute(
        "INSERT INTO gpu_minute (accelerator_id, minute_ms, samples, utilization_ratio,"
        " sm_active_ratio, memory_used_bytes, processes, zero_ratio, power_watts) SELECT %s, m, 4,"
        " %s, %s, %s, 1, %s, %s FROM generate_series(%s::bigint, %s::bigint - 1, 300000) AS m",
        (
            fleet.accelerator(number),
            utilization,
            utilization,
            gib * GIB,
            float(utilization == 0),
            70 + 500 * utilization,
            OCTOBER + start,
            OCTOBER + end,
        ),
    )


def price(fleet: Fleet, purchase: str, rate: Decimal, model: str = "H100") -> None:
    fleet.connection.execute(
        "INSERT INTO price (pool, gpu_model, purchase, rate_per_gpu_hour, currency,"
        " effective_from_ms, recorded_at) VALUES ('', %s, %s, %s, 'USD', 0, now())",
        (model, purchase, rate),
    )


def work(
    fleet: Fleet, number: int, workload: int | None, start: int, end: int, busy: float | None = 0.0
) -> None:
    """Hours of one accelerator; `busy` None: nobody knows what it did."""
    state = "unallocated" if workload is None else "held"
    for at in range(start, end, HOUR):
        if workload is None:
            fleet.evidence([Held(number, None, at, at + HOUR, state)])
        elif busy is None:
            fleet.evidence([Held(number, workload, at, at + HOUR)])
        else:
            worked = round(HOUR * busy)
            fleet.evidence([Held(number, workload, at, at + HOUR, busy=worked, idle=HOUR - worked)])


def furnish(fleet: Fleet, purchase: str = "on_demand", **tags: str) -> None:
    """1: works a day, then rests; 2: nobody's; 3: small work that can be restarted; 4: works."""
    price(fleet, purchase, RATE)
    for number in (1, 2, 3, 4):
        fleet.capacity(number, 0)
    fleet.workload(1, team="vision", **tags)
    fleet.workload(3, team="nlp", restartable="yes")
    fleet.workload(4, team="nlp")
    work(fleet, 1, 1, 0, DAY, 0.9)
    work(fleet, 1, 1, DAY, DAYS * DAY)
    work(fleet, 2, None, 0, DAYS * DAY)
    work(fleet, 3, 3, 0, DAYS * DAY, 0.1)
    work(fleet, 4, 4, 0, DAYS * DAY, 0.9)
    minutes(fleet, 1, 0, DAY, 0.9)
    minutes(fleet, 1, DAY, DAYS * DAY, 0.0)
    minutes(fleet, 2, 0, DAYS * DAY, 0.0, gib=0.5)
    minutes(fleet, 3, 0, DAYS * DAY, 0.1, gib=6)
    minutes(fleet, 4, 0, DAYS * DAY, 0.9)


def up_to_date(ledger, findings, now: int = NOW) -> None:
    refresh(ledger, Period(OCTOBER, OCTOBER + 60 * DAY), now)
    find_idle(findings, now)


def told(fleet: Fleet) -> dict[str, dict[str, object]]:
    names = (
        "key",
        "state",
        "team",
        "currency",
        "cash_low_micro",
        "cash_expected_micro",
        "cash_high_micro",
        "capacity_low_micro",
        "capacity_expected_micro",
        "capacity_high_micro",
        "energy_expected_micro",
        "freed_gpu_ns",
        "price_ids",
        "evidence",
        "id",
        "realized_micro",
        "reason",
    )
    rows = fleet.rows(f"SELECT {', '.join(names)} FROM recommendation ORDER BY key")
    return {str(row[0]): dict(zip(names, row, strict=True)) for row in rows}


def not_evaluated(fleet: Fleet) -> list[dict[str, str]]:
    ((found,),) = fleet.rows("SELECT not_evaluated FROM recommendation_run")
    return found


def test_idle_time_of_rented_gpus_is_cash_to_the_micro_unit(fleet, ledger, findings, store):
    """High is the idle time since its begin times the rate, expected since the flag, low a day
    later.
    """
    furnish(fleet)
    up_to_date(ledger, findings)
    recommend(store, NOW)
    found = told(fleet)[RESTING]
    hour = cost_micro(gpu_ns(1_000_000, HOUR), RATE)
    assert found["cash_high_micro"] == 72 * hour
    assert found["cash_expected_micro"] in {70 * hour, 71 * hour}
    assert found["cash_expected_micro"] - found["cash_low_micro"] == 24 * hour
    assert (found["capacity_high_micro"], found["team"], found["currency"]) == (0, "vision", "USD")
    ((price_id,),) = fleet.rows("SELECT id FROM price")
    assert found["price_ids"] == [price_id]
    free = told(fleet)["reclaim:free/train/NVIDIA H100 80GB HBM3"]
    assert free["cash_low_micro"] == free["cash_high_micro"] == 96 * hour


def test_owned_gpus_free_capacity_and_save_no_cash(fleet, ledger, findings, store):
    """What is owned costs the same afterwards: capacity, and energy where it has a price."""
    from gpuledger_collector.insight.recommendations.energy import Tariff

    furnish(fleet, "owned")
    up_to_date(ledger, findings)
    recommend(store, NOW, Tariff(Decimal("0.25"), "USD", Decimal("1.2")))
    found = told(fleet)[RESTING]
    assert found["cash_high_micro"] == found["cash_low_micro"] == 0
    assert found["capacity_high_micro"] == 72 * cost_micro(gpu_ns(1_000_000, HOUR), RATE)
    hours = found["freed_gpu_ns"] / 3.6e12
    assert found["energy_expected_micro"] == pytest.approx(
        hours * 0.070 * 0.25 * 1.2 * 1e6, rel=0.02
    )


def test_overlapping_advice_is_counted_once(fleet, ledger, findings, store):
    """Idle time inside work that could run on spot, and on a slice: together less than the sum, by
    one ledger.
    """
    furnish(fleet, restartable="yes")
    price(fleet, "spot", Decimal("1.11"))
    up_to_date(ledger, findings)
    recommend(store, NOW)
    found = told(fleet)
    assert {RESTING, "spot:slurm::1", "spot:slurm::3"} <= set(found)
    ((joint,),) = fleet.rows("SELECT joint FROM recommendation_run")
    for at, which in enumerate(("low", "expected", "high")):
        alone = sum(one[f"cash_{which}_micro"] for one in found.values())
        assert 0 < joint["USD"]["cash"][at] <= alone
    assert joint["USD"]["cash"][2] < sum(one["cash_high_micro"] for one in found.values())
    alone = found[RESTING]["cash_high_micro"]
    spot = cost_micro(gpu_ns(1_000_000, HOUR), RATE) - cost_micro(
        gpu_ns(1_000_000, HOUR), Decimal("1.11")
    )
    others = found["reclaim:free/train/NVIDIA H100 80GB HBM3"]["cash_high_micro"]
    assert joint["USD"]["cash"][2] == alone + 24 * spot + 96 * spot + others


def test_nothing_is_advised_without_coverage(fleet, ledger, findings, store):
    """A node that was silent for a third of the time, and work whose activity nobody measured:
    reasons, no advice.
    """
    furnish(fleet)
    fleet.capacity(5, 0)
    fleet.workload(5, team="dark")
    work(fleet, 5, 5, 0, 64 * HOUR)
    minutes(fleet, 5, 0, 64 * HOUR, 0.0)
    fleet.capacity(6, 0)
    fleet.workload(6, team="dark")
    work(fleet, 6, 6, 0, DAYS * DAY, None)
    minutes(fleet, 6, 0, DAYS * DAY, 0.0)
    up_to_date(ledger, findings)
    recommend(store, NOW)
    assert not [key for key in told(fleet) if "slurm::5" in key or "slurm::6" in key]
    reasons = {
        (kind, gap["subject"]): gap["reason"]
        for gap in not_evaluated(fleet)
        for kind in gap["kind"].split(", ")
    }
    assert "observed 66.7%" in reasons["reclaim", "slurm::5"]
    assert "observed 0.0%" in reasons["reclaim", "slurm::6"]
    assert "reclaim:free/train/NVIDIA H100 80GB HBM3" not in told(fleet)
    assert RESTING in told(fleet)


def test_a_tag_that_keeps_it_is_respected(fleet, ledger, findings, store):
    """Warm standby, debugging, reservations: named with the tag, and left alone."""
    furnish(fleet, warm_standby="true")
    up_to_date(ledger, findings)
    recommend(store, NOW)
    assert RESTING not in told(fleet)
    reason = next(one["reason"] for one in not_evaluated(fleet) if one["subject"] == "slurm::1")
    assert "warm_standby" in reason


def test_without_a_rate_nothing_is_worth_zero(fleet, ledger, findings, store):
    """Unpriced advice stands without amounts."""
    furnish(fleet)
    fleet.connection.execute("TRUNCATE price CASCADE")
    up_to_date(ledger, findings)
    recommend(store, NOW)
    found = told(fleet)[RESTING]
    assert (found["cash_expected_micro"], found["capacity_high_micro"], found["currency"]) == (
        None,
        None,
        None,
    )


def test_a_second_run_changes_nothing_and_gone_evidence_expires(fleet, ledger, findings, store):
    """Idempotent; when the job is done and the window has passed on, open advice expires with the
    reason.
    """
    furnish(fleet)
    up_to_date(ledger, findings)
    recommend(store, NOW)
    made = told(fleet)
    recommend(store, NOW)
    assert told(fleet) == made
    fleet.connection.execute("DELETE FROM finding")
    recommend(store, NOW)
    after = told(fleet)[RESTING]
    assert (after["state"], after["reason"]) == ("expired", "its evidence is gone")


def at(monkeypatch, ms: int) -> None:
    monkeypatch.setattr(wiring, "read_clock", lambda: ms)


def test_accepted_advice_shows_what_it_brought(fleet, ledger, findings, store, run, monkeypatch):
    """Two days after the idle job was stopped: half of what four days of idling cost; in the end it
    is done.
    """
    furnish(fleet)
    at(monkeypatch, NOW)
    code, out, _ = run("recommend", "--format", "json", "--exit-code")
    assert code == 1
    (number,) = [one["id"] for one in json.loads(out)["items"] if one["key"] == RESTING]
    code, out, _ = run("recommend", "accept", number, "--reason", "stopped")
    assert (code, out) == (0, f"recommendation {number} is accepted\n")
    end = DAYS * DAY
    work(fleet, 1, None, end, end + 2 * DAY)
    minutes(fleet, 1, end, end + 2 * DAY, 0.0, gib=0.5)
    at(monkeypatch, NOW + 2 * DAY)
    run("recommend")
    found = told(fleet)[RESTING]
    assert found["state"] == "accepted"
    ((idle,),) = fleet.rows(
        "SELECT sum(idle_cost_micro)::bigint FROM charge JOIN workload w ON w.id = workload_id"
        " WHERE w.key = 'slurm::1'"
    )
    assert found["realized_micro"] == idle // 2
    assert idle == pytest.approx(74.4 * 2.49e6, rel=1e-6)
    code, out, _ = run("recommend", "--state", "accepted", "--format", "csv")
    (row,) = csv.DictReader(io.StringIO(out))
    assert (row["realized"], row["reason"]) == ("92.63", "stopped")
    code, _, err = run("recommend", "reject", number)
    assert code == 2
    assert "accepted already" in err
    assert fleet.rows(
        "SELECT what, subject, after->>'state' FROM audit ORDER BY number DESC LIMIT 1"
    ) == [("recommendation", number, "accepted")]
    at(monkeypatch, NOW + 20 * DAY)
    run("recommend")
    found = told(fleet)[RESTING]
    assert (found["state"], found["realized_micro"]) == ("done", idle)


@pytest.mark.parametrize(("currency", "brought"), [("USD", 0), ("EUR", None), ("", None)])
def test_another_rate_is_no_saving(
    currency, brought, fleet, ledger, findings, store, run, monkeypatch
):
    """The idle job goes on, at half the rate: nothing was saved.

    In another currency, or without a rate: not known.
    """
    furnish(fleet)
    at(monkeypatch, NOW)
    run("recommend")
    run("recommend", "accept", str(told(fleet)[RESTING]["id"]))
    end = DAYS * DAY
    # As before: a day of work, then rest.
    work(fleet, 1, 1, end, end + DAY, 0.9)
    work(fleet, 1, 1, end + DAY, end + DAYS * DAY)
    minutes(fleet, 1, end, end + DAY, 0.9)
    minutes(fleet, 1, end + DAY, end + DAYS * DAY, 0.0)
    fleet.connection.execute("UPDATE price SET effective_to_ms = %s", (NOW,))
    if currency:
        fleet.connection.execute(
            "INSERT INTO price (pool, gpu_model, purchase, rate_per_gpu_hour, currency,"
            " effective_from_ms, recorded_at) VALUES ('', 'H100', 'on_demand', 1.245, %s, %s,"
            " now())",
            (currency, NOW),
        )
    at(monkeypatch, NOW + DAYS * DAY)
    run("recommend")
    found = told(fleet)[RESTING]
    assert found["realized_micro"] == brought
    assert found["state"] == ("done" if brought == 0 else "accepted")
    ((said,),) = fleet.rows("SELECT realized FROM recommendation WHERE key = %s", RESTING)
    assert said["before"]["idle_ns"] == said["after"]["idle_ns"] > 0
    assert bool(said["unknown"]) is (brought is None)
    if brought is None:
        out = run("recommend", "--state", "accepted")[1]
        assert "not known" in out.splitlines()[1]


def test_a_look_as_of_an_instant_does_not_undo_a_later_one(
    fleet, ledger, findings, store, run, monkeypatch
):
    """As of two hours ago there is the advice of then; what was made up to now is not replaced by
    it.
    """
    furnish(fleet)
    at(monkeypatch, NOW + 2 * HOUR)
    code, out, _ = run("recommend", "--as-of", "2025-10-05T00:00:00Z", "--format", "json")
    assert code == 0
    assert {one["to"] for one in json.loads(out)["items"]} == {"2025-10-05T00:00:00Z"}
    run("recommend", "--fresh")
    before = told(fleet)
    code, _, err = run("recommend", "--as-of", "2025-10-05T00:00:00Z")
    assert code == 2
    assert "made as of 2025-10-05T02:00:00Z" in err
    assert told(fleet) == before
    for option in (("recommend", "--as-of"), ("recommend", "accept", "1", "--at")):
        code, _, err = run(*option, "2025-10-06T00:00:00Z")
        assert code == 2
        assert "is in the future" in err


def test_rejected_advice_is_not_made_again(fleet, ledger, findings, store, run, monkeypatch):
    """Until it would have expired; a number that is none is refused."""
    furnish(fleet)
    at(monkeypatch, NOW)
    run("recommend")
    number = str(told(fleet)[RESTING]["id"])
    assert run("recommend", "reject", number, "--reason", "deadline")[0] == 0
    run("recommend")
    assert told(fleet)[RESTING]["state"] == "rejected"
    code, out, _ = run("recommend", "--exit-code")
    assert "amounts are of the observed window" in out
    assert code == 1
    code, _, err = run("recommend", "accept", "4711")
    assert code == 2
    assert "no recommendation 4711" in err
    assert run("recommend", "--state", "dreamt")[0] == 2


@pytest.mark.parametrize("said", ["cheap EUR", "0.21", "-1 EUR", "nan EUR"])
def test_a_price_of_energy_that_is_none_is_refused(run, monkeypatch, said):
    """One sentence that names the setting and an example."""
    monkeypatch.setenv("GPULEDGER_ENERGY_RATE", said)
    code, _, err = run("recommend")
    assert code == 2
    assert "energy_rate is an amount and a currency such as `0.21 EUR`" in err


def listed(run, *options: str) -> tuple[str, dict[str, dict[str, object]]]:
    """As of when `recommend` says that it judged, and its rows by key."""
    code, out, err = run("recommend", "--format", "json", *options)
    assert code == 0, err
    answer = json.loads(out)
    return answer.pop("as_of"), {row["key"]: row for row in answer["items"]} | {"": answer}


MINUTE = 60_000
AT_NOW, LATER = "2025-10-05T00:30:00Z", "2025-10-05T00:40:00Z"


def test_stored_recommendations_are_those_that_would_be_computed(
    fleet, ledger, findings, store, run, monkeypatch
):
    """Ten minutes later the stored ones are read, and computing them again gives the same rows and
    amounts.
    """
    furnish(fleet)
    price(fleet, "spot", Decimal("1.11"))
    at(monkeypatch, NOW + 30 * MINUTE)
    first = listed(run, "--state", "all")
    assert first[0] == AT_NOW
    assert first[1][RESTING]["cash_high"] == "179.28"
    at(monkeypatch, NOW + 40 * MINUTE)
    assert listed(run, "--state", "all") == first
    as_of, computed = listed(run, "--state", "all", "--fresh")
    assert (as_of, computed) == (LATER, first[1])


def late_usage(fleet: Fleet) -> None:
    work(fleet, 4, 4, 2 * DAY, 2 * DAY + HOUR, 0.2)


def usage_of_the_last_hour(fleet: Fleet) -> None:
    work(fleet, 1, None, DAYS * DAY - HOUR, DAYS * DAY)


def new_price(fleet: Fleet) -> None:
    fleet.connection.execute("UPDATE price SET rate_per_gpu_hour = 1.5")
    fleet.connection.execute(
        "INSERT INTO day_recompute (day_ms) SELECT day_ms FROM conservation_check"
    )


def gone_finding(fleet: Fleet) -> None:
    fleet.connection.execute("DELETE FROM finding")


@pytest.mark.parametrize("change", [late_usage, usage_of_the_last_hour, new_price, gone_finding])
def test_recommendations_are_computed_again_when_what_they_rest_on_changes(
    change, fleet, ledger, findings, store, run, monkeypatch
):
    """Late usage, another price, a finding that is no more: the next list is a new one."""
    furnish(fleet)
    at(monkeypatch, NOW + 30 * MINUTE)
    assert listed(run)[0] == AT_NOW
    change(fleet)
    at(monkeypatch, NOW + 40 * MINUTE)
    assert listed(run)[0] == LATER


def test_a_decision_has_the_rest_computed_again(fleet, ledger, findings, store, run, monkeypatch):
    """What was rejected is no longer part of what all open advice saves together."""
    furnish(fleet)
    at(monkeypatch, NOW + 30 * MINUTE)
    _, before = listed(run)
    run("recommend", "reject", str(before[RESTING]["id"]))
    at(monkeypatch, NOW + 40 * MINUTE)
    as_of, after = listed(run)
    assert as_of == LATER
    assert after[""]["joint"]["USD"]["cash"][2] < before[""]["joint"]["USD"]["cash"][2]


def test_stored_recommendations_grow_old(fleet, ledger, findings, store, run, monkeypatch):
    """After `recommend_seconds`, six hours unless set, they are computed again although nothing has
    changed.
    """
    furnish(fleet)
    at(monkeypatch, NOW + 30 * MINUTE)
    listed(run)
    at(monkeypatch, NOW + 30 * MINUTE + 6 * HOUR - 1)
    assert listed(run)[0] == AT_NOW
    at(monkeypatch, NOW + 30 * MINUTE + 6 * HOUR)
    assert listed(run)[0] == "2025-10-05T06:30:00Z"
