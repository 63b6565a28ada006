"""A runaway is told within ten minutes of its first sample, once, and nothing else is."""

from __future__ import annotations

from decimal import Decimal

import pytest

from fakes.fleet import DAY, HOUR, OCTOBER, Fleet, Held
from gpuledger_collector.accounting.money import cost_micro
from gpuledger_collector.accounting.quantity import gpu_ns
from gpuledger_collector.services.anomaly_search import find_anomalies
from gpuledger_collector.services.hourly_usage import fold_usage
from gpuledger_collector.services.spending_watch import SpendingWatch

MINUTE = 60_000
START = 16 * DAY + 9 * HOUR + 20 * MINUTE
"""When the runaway begins, after OCTOBER."""
RATE = Decimal("2.5")


@pytest.fixture
def team(fleet: Fleet) -> Fleet:
    """Sixteen days in which vision held two of six accelerators, and nobody the others."""
    fleet.connection.execute(
        "INSERT INTO price (pool, gpu_model, purchase, rate_per_gpu_hour, currency,"
        " effective_from_ms, recorded_at) VALUES ('', 'H100', 'on_demand', 2.5, 'USD', 0, now())"
    )
    for number in range(1, 7):
        fleet.capacity(number, 0)
        workload = fleet.workload(1, team="vision") if number <= 2 else None
        fleet.connection.execute(
            "INSERT INTO usage_hour (accelerator_id, hour_ms, state, workload_id, held_ms, busy_ms,"
            " idle_ms, unknown_ms) SELECT %s, h, %s, %s, 3600000, 3000000, 600000, 0 FROM"
            " generate_series(%s::bigint, %s::bigint - 1, 3600000) AS h",
            (
                fleet.accelerator(number),
                "unallocated" if workload is None else "held",
                workload,
                OCTOBER,
                OCTOBER + START // HOUR * HOUR,
            ),
        )
    return fleet


def pushed(
    fleet: Fleet, minute: int, wild: int | None = None, cards: int = 3, silent: bool = False
) -> None:
    """A minute of evidence, as agents push it: vision's two, and `cards` of another workload."""
    if silent:
        return
    span = (START + minute * MINUTE, START + (minute + 1) * MINUTE)
    held = {1: 1, 2: 1} | (dict.fromkeys(range(3, 3 + cards), wild) if wild else {})
    fleet.evidence(
        (
            Held(number, held[number], *span)
            if number in held
            else Held(number, None, *span, "unallocated")
        )
        for number in range(1, 7)
    )


def found(fleet: Fleet) -> list[tuple[object, ...]]:
    return list(
        fleet.rows(
            "SELECT team, since_ms, opened_ms, until_ms, resolved_ms, cost_micro, key, evidence"
            " FROM finding"
        )
    )


def play(fleet: Fleet, watch: SpendingWatch, minutes: range, **more: object) -> int | None:
    """Push and look every minute; the first minute after which something was found."""
    first = None
    for minute in minutes:
        pushed(fleet, minute, **more)
        watch.run(OCTOBER + START + (minute + 1) * MINUTE + 20_000)
        if first is None and found(fleet):
            first = minute + 1
    return first


def test_a_runaway_is_told_within_ten_minutes_and_goes_on_under_one_key(team, findings, ledger):
    """Three more GPUs than ever: told in the eighth minute, with its exact cost; the hourly search
    takes it over.
    """
    number = team.workload(2, team="vision")
    name = str(number)
    watch = SpendingWatch(findings)
    assert play(team, watch, range(-10, 0)) is None
    minute = play(team, watch, range(12), wild=2)
    assert minute is not None
    assert minute <= 8
    ((whose, since, opened, until, resolved, cost, key, evidence),) = found(team)
    assert (whose, since, resolved) == ("vision", OCTOBER + START, None)
    assert opened - since <= 8 * MINUTE
    assert cost == cost_micro(gpu_ns(3_000_000, until - since), RATE)
    assert (evidence["cause"], evidence["workloads"], evidence["by_minutes"]) == (
        "new workload",
        [name],
        True,
    )
    assert evidence["workload_ids"] == [number]
    assert sum(driver["change_micro"] for driver in evidence["drivers"]) == cost

    for hour in range(10, 14):
        span = (16 * DAY + hour * HOUR, 16 * DAY + hour * HOUR + HOUR)
        team.evidence([Held(number, 1 if number <= 2 else 2, *span) for number in range(1, 6)])
        team.evidence([Held(6, None, *span, "unallocated")])
    fold_usage(ledger)
    assert find_anomalies(findings, OCTOBER + 16 * DAY + 14 * HOUR) == 1
    ((_, since, still, _, going, more, same, evidence),) = found(team)
    assert (same, still, going) == (key, opened, None)
    assert since == OCTOBER + START // HOUR * HOUR
    assert more > cost
    assert "by_minutes" not in evidence
    assert evidence["workload_ids"] == [number]
    watch.run(OCTOBER + 16 * DAY + 14 * HOUR + 5 * MINUTE)
    assert found(team)[0][5] == more


def test_what_falls_back_is_resolved_and_kept(team, findings, ledger):
    """Ten wild minutes and the usual after them: over when they were, and no hourly search drops
    what was told.
    """
    team.workload(2, team="vision")
    watch = SpendingWatch(findings)
    assert play(team, watch, range(10), wild=2) is not None
    play(team, watch, range(10, 45))
    fold_usage(ledger)
    find_anomalies(findings, OCTOBER + START // HOUR * HOUR + HOUR)
    ((_, _, _, until, resolved, _, _, _),) = found(team)
    assert resolved == until
    assert 6 * MINUTE <= until - OCTOBER - START <= 13 * MINUTE


@pytest.mark.parametrize("more", [{"wild": 1}, {"wild": 3}, {"silent": True}, {}])
def test_nothing_else_is_told(team, findings, more):
    """Not what a workload of long ago takes more, what another team takes, silence, and the usual."""
    team.workload(3, team="other")
    assert play(team, SpendingWatch(findings), range(12), **more) is None


def test_with_little_past_nothing_is_told_at_once(team, findings):
    """A week is too little to know what is usual."""
    team.connection.execute("DELETE FROM usage_hour WHERE hour_ms < %s", (OCTOBER + 10 * DAY,))
    team.workload(2, team="vision")
    assert play(team, SpendingWatch(findings), range(12), wild=2) is None
