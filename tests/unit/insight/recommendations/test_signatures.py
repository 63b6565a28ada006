"""Signatures: each advises on what it is for, says why where it cannot, and never on less than 95 %
of the evidence.
"""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger_collector.accounting.pricing import Price, PriceBook
from gpuledger_collector.insight.findings import Finding
from gpuledger_collector.insight.recommendations import (
    Holding,
    IntervalUsage,
    ObservedAccelerator,
    ReadingStats,
    Window,
    propose,
)
from gpuledger_collector.insight.recommendations.buying import cost, newsvendor, reserve, spot
from gpuledger_collector.insight.recommendations.reclaim import reclaim_free, reclaim_held
from gpuledger_collector.insight.recommendations.running import (
    input_pipeline,
    is_off,
    off_hours,
    power_cap,
)
from gpuledger_collector.insight.recommendations.sizing import mig_slice, pack, right_size

HOUR, DAY = 3_600_000, 86_400_000
START = 1_759_708_800_000
"""2025-10-06T00:00:00Z, a Monday."""
GIB = 2.0**30
H100 = "NVIDIA H100 80GB HBM3"
ON_DEMAND = Price(1, "", "H100", "on_demand", Decimal("4"), "USD", 0)
SPOT = Price(2, "", "H100", "spot", Decimal("1.5"), "USD", 0)
RESERVED = Price(3, "", "H100", "reserved", Decimal("2"), "USD", 0)
L40S = Price(4, "", "L40S", "on_demand", Decimal("1"), "USD", 0)
OWNED = Price(5, "", "H100", "owned", Decimal("2"), "USD", 0)


def reading(value: float, known: float = 1.0, p99: float | None = None) -> ReadingStats:
    top = value if p99 is None else p99
    return ReadingStats(known, value, value, top, top, top)


def intervals(
    card: int, hours: range, busy: float = 0.0, unknown: float = 0.0
) -> list[IntervalUsage]:
    parts = round(HOUR * busy), round(HOUR * unknown)
    return [
        IntervalUsage(
            card, START + hour * HOUR, HOUR, parts[0], HOUR - sum(parts), parts[1], 2_000_000
        )
        for hour in hours
    ]


def holding(number: int, made: list[IntervalUsage], **more: object) -> Holding:
    given_: dict[str, object] = {
        "workload_id": number,
        "key": f"slurm::{number}",
        "name": f"job-{number}",
        "kind": "slurm",
        "pool": "train",
        "model": H100,
        "owner": {"team": "vision"},
        "usage": made,
        "readings": {
            "memory_used_bytes": reading(6 * GIB),
            "sm_active_ratio": reading(0.1),
            "utilization_ratio": reading(0.1),
        },
    } | more
    return Holding(**given_)  # type: ignore[arg-type]


def window(
    *holdings: Holding, days: int = 28, prices: tuple[Price, ...] = (ON_DEMAND,), **more: object
) -> Window:
    cards = {interval.accelerator_id for one in holdings for interval in one.usage}
    given_: dict[str, object] = {
        "start_ms": START,
        "end_ms": START + days * DAY,
        "holdings": holdings,
        "free": {},
        "accelerators": {
            card: ObservedAccelerator("train", H100, "n1", 1_000_000, 1.0) for card in cards
        },
        "findings": (),
        "book": PriceBook(prices),
        "demand_ns": {},
    } | more
    return Window(**given_)  # type: ignore[arg-type]


def finding(card: int, workload: int, state: str, hours: range) -> Finding:
    since = START + hours.start * HOUR
    return Finding(
        key=f"idle:{card}:{state}",
        kind="idle",
        state=state,
        subject=f"GPU-{card}",
        accelerator_id=card,
        workload_id=workload,
        team="vision",
        owner={},
        since_ms=since,
        opened_ms=since + 2 * HOUR,
        until_ms=START + hours.stop * HOUR,
        resolved_ms=None,
        confidence=0.9,
        currency="USD",
        cost_micro=1,
        per_day_micro=1,
        evidence={
            "power_watts": 80.0,
            "wasted_gpu_ns": {str(START + hour * HOUR): 1_000_000 * HOUR for hour in hours},
        },
    )


def blind(found: Window, seen: float) -> Window:
    """The same window with less of it seen."""
    return replace(
        found,
        accelerators={
            card: replace(place, seen=seen) for card, place in found.accelerators.items()
        },
    )


def test_reclaim_runs_from_its_begin_from_the_flag_and_a_day_later():
    """High, expected, low; the energy is power x time of what is given back."""
    made = window(
        holding(1, intervals(1, range(100))), findings=[finding(1, 1, "gone_idle", range(10, 90))]
    )
    (one,), gaps = reclaim_held(made)
    assert not gaps
    assert [len(estimate.changes) for estimate in (one.high, one.expected, one.low)] == [80, 78, 54]
    assert all(change.back_permille == 1000 for change in one.high.changes)
    assert one.high.kwh == pytest.approx(80 * 0.080)


@pytest.mark.parametrize("seen", [0.0, 0.5, 0.9499])
def test_less_evidence_gives_reasons_and_no_advice(seen):
    """Whatever signature: not one piece of advice of a window that was half seen."""
    idle, small = (
        holding(1, intervals(1, range(672))),
        holding(2, intervals(2, range(672), 0.1), tags={"restartable": "1"}),
    )
    free = Holding(None, "free", "", "", "train", H100, usage=intervals(3, range(672)))
    whole = window(
        idle,
        small,
        prices=(ON_DEMAND, SPOT, RESERVED),
        free={("train", H100): free},
        findings=[finding(1, 1, "never_used", range(600))],
    )
    whole = replace(
        whole,
        accelerators=whole.accelerators
        | {3: ObservedAccelerator("train", H100, "n1", 1_000_000, 1.0)},
        demand_ns={
            ("train", H100): {
                START - 60 * DAY + hour * HOUR: 2_000_000 * HOUR for hour in range(88 * 24)
            }
        },
    )
    advice, _ = propose(whole)
    assert {"reclaim", "spot", "reserve"} <= {one.kind for one in advice}
    dark = [
        replace(one, usage=[replace(a, busy_ms=0, idle_ms=0, unknown_ms=HOUR) for a in one.usage])
        for one in (idle, small)
    ]
    advice, gaps = propose(blind(replace(whole, holdings=dark), seen))
    assert advice == []
    named = {kind for gap in gaps for kind in gap.kind.split(", ")}
    assert {"reclaim", "spot", "reserve"} <= named
    assert all(gap.reason for gap in gaps)


@pytest.mark.parametrize("tag", ["warm_standby", "debug", "reservation"])
def test_tags_that_keep_are_respected(tag):
    """By every signature that would take something away."""
    made = window(
        holding(1, intervals(1, range(200)), tags={tag: "true", "restartable": "yes"}),
        prices=(ON_DEMAND, SPOT),
        findings=[finding(1, 1, "gone_idle", range(100))],
    )
    advice, gaps = propose(made)
    assert advice == []
    assert any(tag in gap.reason for gap in gaps)


def test_free_capacity_counts_what_was_never_needed():
    """Two free GPUs by day and one by night: one can always go, none of it at p5 when an hour in
    ten has none.
    """
    free = [*intervals(1, range(100)), *intervals(2, range(0, 100, 2))]
    nobody = Holding(None, "free", "", "", "train", H100, usage=free)
    made = replace(
        window(days=4),
        end_ms=START + 100 * HOUR,
        free={("train", H100): nobody},
        accelerators={
            card: ObservedAccelerator("train", H100, "n1", 1_000_000, 1.0) for card in (1, 2)
        },
    )
    (one,), _ = reclaim_free(made)
    assert [len(estimate.changes) for estimate in (one.low, one.expected, one.high)] == [
        100,
        100,
        150,
    ]
    gone = replace(nobody, usage=[interval for interval in free if interval.at_ms // HOUR % 10])
    assert reclaim_free(replace(made, free={("train", H100): gone})) == ([], [])


def test_a_slice_must_hold_the_peaks():
    """6 GiB and 10 %: one of seven.

    A p99 of 60 % needs no slice; without memory there is a reason.
    """
    small = holding(1, intervals(1, range(48), 0.1))
    (one,), gaps = mig_slice(window(small, days=2))
    assert (one.evidence["slice"], gaps) == ("1g.10gb", [])
    assert {change.spare_permille for change in one.high.changes} == {857}
    assert one.low.changes == ()
    peaky = replace(small, readings=small.readings | {"sm_active_ratio": reading(0.1, p99=0.6)})
    assert mig_slice(window(peaky, days=2)) == ([], [])
    dark = replace(small, readings={"sm_active_ratio": reading(0.1)})
    assert [gap.kind for gap in mig_slice(window(dark, days=2))[1]] == ["mig_slice"]
    served = replace(small, tags={"serving": "true"})
    assert "latency_slo" in mig_slice(window(served, days=2))[1][0].reason


def test_right_size_needs_throughput_and_bandwidth():
    """With low tensor and memory activity a cheaper card is to be tried; unmeasured ones are a
    reason.
    """
    quiet = {"tensor_active_ratio": reading(0.05), "dram_active_ratio": reading(0.05)}
    one = holding(1, intervals(1, range(48), 0.1))
    fit = replace(one, readings=one.readings | quiet)
    (made,), _ = right_size(window(fit, prices=(ON_DEMAND, L40S)))
    assert made.evidence["to"] == "l40s"
    rates = [next(iter(e.changes)).moved_to.rate for e in (made.low, made.expected, made.high)]
    assert rates[0] > rates[1] > rates[2] == Decimal(1)
    advice, gaps = right_size(window(one, prices=(ON_DEMAND, L40S)))
    assert (advice, "tensor" in gaps[0].reason) == ([], True)
    hungry = replace(fit, readings=fit.readings | {"dram_active_ratio": reading(0.5)})
    assert right_size(window(hungry, prices=(ON_DEMAND, L40S))) == ([], [])


def test_two_small_jobs_share_one_gpu():
    """They ran at the same time and fit together; 45 GiB each do not, and two teams are not put
    together.
    """
    first, second = (
        holding(1, intervals(1, range(48), 0.1)),
        holding(2, intervals(2, range(24, 72), 0.1)),
    )
    (one,), _ = pack(window(first, second))
    assert {(change.workload_id, change.back_permille) for change in one.expected.changes} == {
        (2, 1000)
    }
    assert len(one.expected.changes) == 24
    big = [
        replace(h, readings=h.readings | {"memory_used_bytes": reading(45 * GIB)})
        for h in (first, second)
    ]
    assert pack(window(*big))[0] == []
    assert pack(window(first, replace(second, owner={"team": "nlp"})))[0] == []


def test_spot_is_for_what_says_that_it_can_be_restarted():
    """At the book's own rate with interruptions on top; silence is a reason, services are none of
    it.
    """
    ready = holding(1, intervals(1, range(10), 0.9), tags={"restartable": "yes"})
    (one,), _ = spot(window(ready, prices=(ON_DEMAND, SPOT)))
    rates = [e.changes[0].moved_to.rate for e in (one.low, one.expected, one.high)]
    assert rates == [Decimal("1.75050"), Decimal("1.5420"), Decimal("1.5")]
    assert spot(window(ready, prices=(ON_DEMAND,))) == ([], [])
    silent = replace(ready, tags={})
    assert "restarted" in spot(window(silent, prices=(ON_DEMAND, SPOT)))[1][0].reason
    served = replace(ready, tags={"serving": "true"})
    assert spot(window(served, prices=(ON_DEMAND, SPOT))) == ([], [])


@given(st.lists(st.floats(0, 20), min_size=1, max_size=60), st.floats(0.05, 0.95))
def test_the_newsvendor_optimum_is_the_cheapest_count(gpus, break_even):
    """No count costs less than the one chosen."""
    demand = np.array(gpus)
    best = cost(demand, newsvendor(demand, break_even), break_even)
    assert all(best <= cost(demand, count, break_even) + 1e-6 for count in range(22))


def test_reserve_breaks_even_and_needs_sixty_days():
    """Four GPUs by day and two by night at half the rate: four are wanted in half of the hours, two
    always.
    """
    hours = {
        START - 60 * DAY + hour * HOUR: (4 if hour % 24 < 14 else 2) * 1_000_000 * HOUR
        for hour in range(88 * 24)
    }
    made = window(
        holding(1, intervals(1, range(10))),
        prices=(ON_DEMAND, RESERVED),
        demand_ns={("train", H100): hours},
    )
    (one,), _ = reserve(made)
    assert (one.expected.reservation.gpus, one.low.reservation.gpus) == (4, 2)
    assert one.evidence["regret_on_demand_hours"] == 0
    late = {at: ns for at, ns in hours.items() if at >= START}
    advice, gaps = reserve(replace(made, demand_ns={("train", H100): late}))
    assert advice == []
    assert gaps[0].reason == "28 days of demand are known, 60 are needed"


def test_off_hours_are_nights_and_weekends():
    """A pool that works on weekdays by day; with one that works at night there is no advice."""
    assert [is_off(START + hour * HOUR) for hour in (5, 6, 19, 20, 5 * 24 + 12)] == [
        True,
        False,
        False,
        True,
        True,
    ]
    by_day = [
        interval if is_off(interval.at_ms) else replace(interval, busy_ms=HOUR, idle_ms=0)
        for interval in intervals(1, range(672))
    ]
    (one,), _ = off_hours(window(holding(1, by_day)))
    assert len(one.expected.changes) == sum(is_off(interval.at_ms) for interval in by_day)
    assert one.low.changes == []
    assert off_hours(window(holding(1, intervals(1, range(672), 0.5))))[0] == []
    assert "28 are needed" in off_hours(window(holding(1, by_day[:480]), days=20))[1][0].reason


def test_power_cap_and_input_pipeline():
    """Clocks held down near full power: energy only.

    Waiting for data: spare time, at the job's own p90.
    """
    base = holding(1, intervals(1, range(48), 0.4))
    hot = replace(
        base, readings=base.readings | {"slowed_ratio": reading(0.8), "power_watts": reading(690.0)}
    )
    (one,), _ = power_cap(window(hot))
    assert (one.expected.changes, one.low.kwh) == ((), 0)
    assert one.high.kwh == pytest.approx(0.15 * 48 * 2_000_000 / 3.6e9)
    assert power_cap(window(base)) == ([], [])
    starved = replace(
        base,
        readings=base.readings | {"utilization_ratio": ReadingStats(1, 0.4, 0.4, 0.8, 0.9, 1.0)},
    )
    (fed,), _ = input_pipeline(window(starved, findings=[finding(1, 1, "data_starved", range(48))]))
    assert {change.spare_permille for change in fed.high.changes} == {500}
    assert {change.spare_permille for change in fed.expected.changes} == {250}


def test_runs_of_one_name_and_team_are_one_advice():
    """They come again as other workloads: one row, all their hours, measured later by name."""
    runs = [holding(n, intervals(n, range(50)), name="nightly") for n in (1, 2)]
    other = holding(3, intervals(3, range(50)), name="nightly", owner={"team": "nlp"})
    found = [finding(n, n, "never_used", range(40)) for n in (1, 2, 3)]
    advice, _ = reclaim_held(window(*runs, other, findings=found))
    assert [len(one.high.changes) for one in advice] == [40, 80]
    assert advice[1].scope == {
        "workload_ids": [1, 2],
        "measure": "idle",
        "name": "nightly",
        "team": "vision",
    }
    assert advice[1].text.endswith("never used for 80 GPU-hours in 2 runs")
