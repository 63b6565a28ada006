"""Spending anomalies from the ledger: one finding an episode, explained to the micro-unit, none
from silence.
"""

from __future__ import annotations

import csv
import io
import json
from decimal import Decimal

import pytest

from fakes.fleet import DAY, HOUR, OCTOBER, Fleet, Held
from gpuledger_collector.accounting.money import cost_micro
from gpuledger_collector.accounting.quantity import gpu_ns
from gpuledger_collector.services.anomaly_search import find_anomalies
from gpuledger_collector.services.hourly_usage import fold_usage

pytestmark = pytest.mark.slow

DAYS = 24
RUNAWAY = (18 * 24 + 6, 19 * 24 + 12)
"""Hours in which team-2's job holds four more accelerators."""


def usage(fleet: Fleet, hours: range, *, runaway: bool = True, silent: range = range(0)) -> None:
    """Team vision holds two accelerators all day; its runaway four more; of eight the rest is free."""
    for number in range(1, 9):
        fleet.accelerator(number)
    for hour in hours:
        if hour in silent:
            continue
        span = (hour * HOUR, hour * HOUR + HOUR)
        wild = runaway and RUNAWAY[0] <= hour < RUNAWAY[1]
        held = {1: 1, 2: 1} | ({3: 2, 4: 2, 5: 2, 6: 2} if wild else {})
        fleet.evidence(
            [
                (
                    Held(number, held[number], *span)
                    if number in held
                    else Held(number, None, *span, "unallocated")
                )
                for number in range(1, 9)
            ]
        )


def furnish(fleet: Fleet, change_at: int = 400 * DAY) -> None:
    fleet.connection.execute(
        "INSERT INTO price (pool, gpu_model, purchase, rate_per_gpu_hour, currency,"
        " effective_from_ms, recorded_at) VALUES ('', 'H100', 'on_demand', 2.5, 'USD', 0, now()),"
        " ('', 'H100', 'on_demand', 3.1, 'USD', %s, now())",
        (OCTOBER + change_at,),
    )
    for number in range(1, 9):
        fleet.capacity(number, 0)
    for number in (1, 2):
        fleet.workload(number, team="vision")


def found(fleet: Fleet) -> list[tuple[object, ...]]:
    return list(
        fleet.rows(
            "SELECT state, team, since_ms, until_ms, resolved_ms IS NULL, cost_micro, key, evidence"
            " FROM finding WHERE kind = 'anomaly' ORDER BY since_ms"
        )
    )


def test_a_runaway_is_one_finding_with_its_exact_cost(fleet, findings, ledger):
    """Seen in its first hours, still going on; later over: one finding under one key, by volume
    alone, named.
    """
    furnish(fleet)
    usage(fleet, range(RUNAWAY[0] + 6))
    fold_usage(ledger)
    assert find_anomalies(findings, OCTOBER + (RUNAWAY[0] + 6) * HOUR) == 1
    ((state, team, since, until, going, cost, key, evidence),) = found(fleet)
    assert (state, team, going) == ("usage", "vision", True)
    assert OCTOBER + RUNAWAY[0] * HOUR <= since <= OCTOBER + (RUNAWAY[0] + 1) * HOUR
    assert cost == cost_micro(gpu_ns(4_000_000, until - since), Decimal("2.5"))
    assert (evidence["price_micro"], evidence["volume_micro"] + evidence["mix_micro"]) == (0, cost)
    assert sum(driver["change_micro"] for driver in evidence["drivers"]) == cost
    assert (evidence["cause"], evidence["workloads"]) == ("new workload", ["2"])
    assert evidence["sentence"] == "2 is new since 19 Oct, 06:00 UTC: 1 run on 4 GPUs"

    usage(fleet, range(RUNAWAY[0] + 6, DAYS * 24))
    fold_usage(ledger)
    find_anomalies(findings, OCTOBER + DAYS * DAY)
    ((_, _, _, later, going, more, same, _),) = found(fleet)
    assert (same, going) == (key, False)
    assert later >= OCTOBER + RUNAWAY[1] * HOUR
    assert more > cost


def test_a_second_look_changes_nothing(fleet, findings, ledger):
    """Idempotent: the same findings, to the byte."""
    furnish(fleet)
    usage(fleet, range(DAYS * 24))
    fold_usage(ledger)
    find_anomalies(findings, OCTOBER + DAYS * DAY)
    made = json.dumps(found(fleet), default=str)
    find_anomalies(findings, OCTOBER + DAYS * DAY)
    assert json.dumps(found(fleet), default=str) == made


def test_a_dearer_rate_is_named_by_the_price_book(fleet, findings, ledger):
    """The same usage at a higher rate: one finding, by price alone, with the rate before and now."""
    furnish(fleet, change_at=20 * DAY)
    usage(fleet, range(DAYS * 24), runaway=False)
    fold_usage(ledger)
    find_anomalies(findings, OCTOBER + DAYS * DAY)
    ((state, _, since, _, _, cost, _, evidence),) = found(fleet)
    assert (state, since) == ("price", OCTOBER + 20 * DAY)
    assert evidence["volume_micro"] == evidence["mix_micro"] == 0
    assert evidence["price_micro"] == cost > 0
    (rate,) = evidence["rates"]
    assert (rate["before"], rate["now"]) == ("2.5", "3.1")


def test_silence_is_neither_a_saving_nor_an_anomaly(fleet, findings, ledger):
    """A day without agents, and the usual spend after it: nothing is found."""
    furnish(fleet)
    usage(fleet, range(DAYS * 24), runaway=False, silent=range(19 * 24, 20 * 24))
    fold_usage(ledger)
    assert find_anomalies(findings, OCTOBER + DAYS * DAY) == 0
    assert found(fleet) == []


PATTERNS = {1: range(24), 2: range(20, 24), 3: range(8, 18)}
"""Hours of the day in which each of three teams holds its two accelerators."""


def teams(fleet: Fleet, *, away: range = range(0), change: float = 1.0) -> None:
    """Twenty-six days of three teams; number 3 is away in some days; a rate that rises at 20 days
    and 30 minutes.
    """
    at = OCTOBER + 20 * DAY + HOUR // 2
    fleet.connection.execute(
        "INSERT INTO price (pool, gpu_model, purchase, rate_per_gpu_hour, currency,"
        " effective_from_ms, recorded_at) VALUES ('', 'H100', 'on_demand', 2.5, 'USD', 0, now()),"
        " ('', 'H100', 'on_demand', %s, 'USD', %s, now())",
        (2.5 * change, at),
    )
    for number, hours in PATTERNS.items():
        workload = fleet.workload(number, team=f"team-{number}")
        for card in (2 * number, 2 * number + 1):
            fleet.capacity(card, 0, pool=f"pool-{number}")
            fleet.connection.execute(
                "INSERT INTO usage_hour (accelerator_id, hour_ms, state, workload_id, held_ms,"
                " busy_ms, idle_ms, unknown_ms) SELECT %(card)s, h, CASE WHEN held THEN 'held' ELSE"
                " 'unallocated' END, CASE WHEN held THEN %(workload)s::bigint END, 3600000, 0, 0, 0"
                " FROM (SELECT h, (h / 3600000) %% 24 = ANY(%(hours)s) AND NOT (%(number)s = 3 AND"
                " (h - %(zero)s) / 86400000 = ANY(%(away)s)) AS held FROM"
                " generate_series(%(zero)s::bigint, %(end)s::bigint, 3600000) AS h) AS x",
                {
                    "card": fleet.accelerator(card),
                    "workload": workload,
                    "hours": list(hours),
                    "number": number,
                    "zero": OCTOBER,
                    "away": list(away),
                    "end": OCTOBER + 26 * DAY - 1,
                },
            )


def test_every_team_that_uses_a_gpu_after_a_rise_is_told_of_the_rate(fleet, findings):
    """Fifteen per cent, for one that always runs, one of four hours a day, and one that is away for
    a day.
    """
    teams(fleet, away=range(20, 21), change=1.15)
    find_anomalies(findings, OCTOBER + 26 * DAY)
    rows = found(fleet)
    assert {row[1] for row in rows} == {"team-1", "team-2", "team-3"}
    for state, _, _, _, _, cost, _, evidence in rows:
        assert (state, evidence["cause"]) == ("price", "price")
        assert "a GPU-hour of NVIDIA H100 80GB HBM3 in pool" in evidence["sentence"]
        assert evidence["price_micro"] == cost > 0


@pytest.mark.parametrize(("first", "length"), [(16 * 24 + 3, 6), (18 * 24 + 19, 23), (24 * 24, 48)])
def test_hours_that_nobody_saw_are_no_anomaly_whoever_is_silent(fleet, findings, first, length):
    """The node of each team is silent for hours to days; nothing is found, then or after."""
    teams(fleet)
    gap = (OCTOBER + first * HOUR, OCTOBER + (first + length) * HOUR)
    fleet.connection.execute("DELETE FROM usage_hour WHERE hour_ms >= %s AND hour_ms < %s", gap)
    find_anomalies(findings, OCTOBER + 26 * DAY)
    assert found(fleet) == []


def test_usage_without_a_rate_is_left_alone(fleet, findings, ledger):
    """What has no price has no spending."""
    furnish(fleet)
    fleet.connection.execute("TRUNCATE price CASCADE")
    usage(fleet, range(3 * 24))
    fold_usage(ledger)
    assert find_anomalies(findings, OCTOBER + 3 * DAY) == 0


def test_the_command_says_what_it_is(fleet, findings, ledger, run):
    """Cause and sentence in every form; with --exit-code 1 when an anomaly is ongoing, else 0."""
    furnish(fleet)
    usage(fleet, range(RUNAWAY[0] + 6))
    fold_usage(ledger)
    find_anomalies(findings, OCTOBER + (RUNAWAY[0] + 6) * HOUR)
    with_days = ("anomalies", "--days", "36500")
    code, out, err = run(*with_days, "--format", "csv", "--exit-code")
    (row,) = csv.DictReader(io.StringIO(out))
    assert (code, row["cause"], row["workloads"]) == (1, "new workload", "2"), err
    assert row["sentence"].startswith("2 is new since ")
    assert json.loads(run(*with_days, "--format", "json")[1])[0]["sentence"] == row["sentence"]
    assert run(*with_days)[0] == 0
    assert row["sentence"][:20] in " ".join(run(*with_days)[1].split())


@pytest.mark.parametrize(("hours", "days"), [(2, [11]), (30, [11, 18])])
def test_what_costs_hardly_more_than_a_week_before_is_not_told(fleet, findings, hours, days):
    """The same burst comes back a week later with one GPU more, for two hours (USD 5) or for all of
    it (USD 75).

    Both stand out from what is expected; what a person is told is the amount against the week
    before, and a twentieth of the team's usual day is USD 6.
    """
    furnish(fleet)
    burst = range(11 * 24 + 6, 12 * 24 + 12)
    again = range(burst.start + 7 * 24, burst.stop + 7 * 24)
    held = {1: range(DAYS * 24), 2: range(DAYS * 24), 7: again[:hours], 8: ()}
    for card in range(1, 9):
        fleet.connection.execute(
            "INSERT INTO usage_hour (accelerator_id, hour_ms, state, workload_id, held_ms, busy_ms,"
            " idle_ms, unknown_ms) SELECT %(card)s, %(zero)s + h * 3600000, CASE WHEN held THEN"
            " 'held' ELSE 'unallocated' END, CASE WHEN held THEN %(workload)s::bigint END, 3600000,"
            " 0, 0, 0 FROM (SELECT h, h = ANY(%(held)s) AS held FROM generate_series(0::bigint,"
            " %(last)s) AS h) AS x",
            {
                "card": fleet.accelerator(card),
                "workload": fleet.workload(1 if card < 3 else 2, team="vision"),
                "zero": OCTOBER,
                "held": list(held.get(card, [*burst, *again])),
                "last": DAYS * 24 - 1,
            },
        )
    find_anomalies(findings, OCTOBER + DAYS * DAY)
    assert [(since - OCTOBER) // DAY for _, _, since, *_ in found(fleet)] == days
