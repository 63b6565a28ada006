"""The cause of an episode: each is recognized from runs, with its numbers, and not where it does
not hold.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, MINUTE_MS
from gpuledger_collector.accounting.quantity import GPU_MICRO
from gpuledger_collector.insight.anomalies.causes import (
    AnomalyCase,
    RateChange,
    WorkloadRun,
    explain,
    find_storms,
    gpus_text,
    lasting,
)

FRIDAY = 20_721 * DAY_MS + 18 * HOUR_MS
"""A Friday 18:00 UTC, long after unix time began."""


def run(name, start, hours, gpus=1, busy=0.8, **more):
    length = round(hours * HOUR_MS)
    held = gpus * length
    facts = {
        "gpu_ns": GPU_MICRO * held,
        "busy_ms": round(busy * held),
        "idle_ms": round((1 - busy) * held),
        "cost_micro": 1,
    }
    return WorkloadRun(name, start, start + length, gpus * GPU_MICRO, **{**facts, **more})


def past(name="train", hours=3.0, gpus=2, many=12):
    """A run every morning of the days before."""
    return [run(name, FRIDAY - (day + 1) * DAY_MS, hours, gpus) for day in range(many)]


def case(runs, moved, hours=48, **more):
    return AnomalyCase("vision", FRIDAY, FRIDAY + hours * HOUR_MS, runs, moved, **more)


def test_a_runaway_goes_on_far_longer_than_such_on_more_gpus():
    wild = run("train", FRIDAY, 44, 4, ongoing=True)
    told = explain(case([*past(), wild], {"train": 900, "other": 10}))
    assert (told.kind, told.workloads) == ("runaway", ("train",))
    assert (
        told.sentence
        == "train has run for 44 hours on 4 GPUs; runs of train lasted 3 hours (median), 19 of 20"
        " at most 3 hours, on 2 GPUs (median), 2 GPUs at most"
    )


def test_a_new_name_is_a_runaway_against_the_owners_large_workloads_only():
    """Compared with what is at least half as large; with too few of those it is just new."""
    wild = run("retry-all", FRIDAY, 44, 4)
    assert explain(case([*past(), wild], {"retry-all": 900})).kind == "runaway"
    assert explain(case([*past(gpus=1), wild], {"retry-all": 900})).kind == "new workload"


def test_twice_the_gpus_of_any_run_of_the_name_is_a_runaway_before_its_age_tells():
    wild = run("train", FRIDAY, 0.2, 8, ongoing=True)
    assert explain(case([*past(gpus=4), wild], {"train": 900})).kind == "runaway"
    assert explain(case([*past(gpus=5), wild], {"train": 900})).kind != "runaway"


def short(count, minutes=10, start=FRIDAY, name="asr-eval"):
    return [run(name, start + at * minutes * MINUTE_MS, minutes / 60) for at in range(count)]


def test_many_short_runs_of_a_name_are_a_storm():
    runs = [*past("asr-eval", hours=1.6, gpus=1), *short(54)]
    told = explain(case(runs, {"asr-eval": 900}, hours=9))
    assert told.kind == "retry storm"
    assert (
        told.sentence
        == "54 runs of asr-eval of 10 minutes each in 9 hours; runs of asr-eval lasted 96 minutes"
        " before (median)"
    )


def test_storms_are_found_without_an_episode():
    """Told with the tenth run; nine are none, nor what comes back a third time, nor as many as the
    name always has.
    """
    old = past("train", hours=5)
    (found,) = find_storms("vision", [*old, *short(54)], FRIDAY - 90 * DAY_MS)
    assert (found.name, found.begin_ms, len(found.runs)) == ("asr-eval", FRIDAY, 54)
    assert found.until_ms == FRIDAY + 9 * HOUR_MS
    assert found.opened_ms == FRIDAY + 100 * MINUTE_MS
    assert find_storms("vision", [*old, *short(9)], 0) == []
    often = [each for day in range(1, 9) for each in short(20, start=FRIDAY - day * DAY_MS)]
    assert find_storms("vision", [*often, *short(54)], FRIDAY) == []
    assert find_storms("vision", [*old, *short(54)], FRIDAY + DAY_MS) == []
    weekly = [one for week in range(4) for one in short(54, start=FRIDAY + week * 7 * DAY_MS)]
    assert [one.begin_ms for one in find_storms("vision", [*old, *weekly], 0)] == [
        FRIDAY,
        FRIDAY + 7 * DAY_MS,
    ]


@given(
    lengths=st.lists(st.integers(1, 300), min_size=1, max_size=60),
    gaps=st.lists(st.integers(0, 300), min_size=60, max_size=60),
)
def test_no_storm_is_made_of_long_runs(lengths, gaps):
    """Whatever the runs: a storm has ten of them, at most half an hour at the median, and lies
    within its runs.
    """
    at, runs = FRIDAY, past("train", hours=6)
    for length, gap in zip(lengths, gaps, strict=False):
        runs.append(run("x", at, length / 60))
        at += (length + gap) * MINUTE_MS
    for found in find_storms("vision", runs, 0):
        lasted = sorted(one.length_ms for one in found.runs)
        assert len(lasted) >= 10
        assert lasted[(len(lasted) - 1) // 2] <= 30 * MINUTE_MS
        assert found.begin_ms <= found.opened_ms <= found.until_ms


def test_a_reservation_that_nobody_uses_is_a_plateau():
    hold = run("weekend-hold", FRIDAY, 62, 2, busy=0.0)
    told = explain(case([*past(), hold], {"weekend-hold": 900}, hours=62))
    assert told.kind == "plateau"
    assert (
        told.sentence
        == "weekend-hold has held 2 GPUs flat for 62 hours, from 25 Sep, 18:00 UTC to 28 Sep, 08:00"
        " UTC, and used 0.0 % of it"
    )
    busy = replace(hold, busy_ms=hold.idle_ms // 2)
    unknown = replace(hold, busy_ms=0, idle_ms=0)
    for other in (busy, unknown):
        assert explain(case([*past(), other], {"weekend-hold": 900}, hours=62)).kind != "plateau"


def test_slow_growth_of_many_is_a_leak_and_a_leap_is_none():
    names = {f"service-{at}": 100 - at for at in range(8)}
    runs = [run(name, FRIDAY - 10 * DAY_MS, 400, 1) for name in names]
    grown = case(runs, names, hours=5 * 24, daily=[100.0, 104, 109, 113, 118, 124])
    told = explain(grown)
    assert told.kind == "leak"
    assert (
        told.sentence
        == "spending grows by 4 % a day for 6 days, never by a leap; most by service-0"
    )
    assert explain(replace(grown, daily=[100.0, 100, 100, 124, 124, 124])).kind != "leak"
    # Four days by their parts, of an episode of a day and a half, are no slow growth.
    short = replace(grown, until_ms=grown.begin_ms + 33 * HOUR_MS, daily=[100.0, 104, 109, 113])
    assert explain(short).kind != "leak"
    assert explain(replace(grown, daily=[100.0, 120, 90, 130, 95, 124])).kind != "leak"


def test_a_dearer_rate_is_named():
    told = explain(
        case(
            past(),
            {"train": 100},
            price_micro=90,
            currency="USD",
            rates=[RateChange("train", "H100", "2.5", "3.1")],
        )
    )
    assert told.kind == "price"
    assert told.sentence == "a GPU-hour of H100 in pool train costs USD 3.10 instead of USD 2.50"


def test_names_never_seen_before_are_new():
    told = explain(case([*past(many=3), run("moe", FRIDAY, 20, 8)], {"moe": 900, "train": 100}))
    assert told.kind == "new workload"
    assert told.sentence == "moe is new since 25 Sep, 18:00 UTC: 1 run on 8 GPUs, 90 % of what rose"


def test_new_runs_that_pile_up_are_said_to():
    """Four that go on, in even steps; not where one has ended, all began at once, or they are few."""
    runs = [
        replace(run(f"replica-{at}", FRIDAY + 3 * at * HOUR_MS, 40 - 3 * at, 1), ongoing=True)
        for at in range(4)
    ]
    moved = {each.name: 100 for each in runs}

    def sentence(runs):
        return explain(case([*past(many=3), *runs], moved)).sentence

    assert sentence(runs).endswith("; none has ended, and another begins every 3 hours")
    assert "another" not in sentence([*runs[:3], replace(runs[3], ongoing=False)])
    assert "another" not in sentence([replace(each, start_ms=FRIDAY) for each in runs])
    assert "another" not in sentence(runs[:3])


def test_the_same_workloads_on_more_gpus_scale_up():
    serve = [run("chat", FRIDAY - 7 * DAY_MS, 168, 2), run("chat", FRIDAY, 48, 3)]
    told = explain(case(serve, {"chat": 500}))
    assert told.kind == "scale-up"
    assert (
        told.sentence == "chat holds 3 GPUs on average instead of 2 in the same hours a week before"
    )


def test_no_single_cause_is_many_small():
    names = {f"job-{at}": 10 for at in range(7)}
    runs = [run(name, FRIDAY - 7 * DAY_MS, 168 + 48, 1) for name in names]
    told = explain(case(runs, names))
    assert told.kind == "many small"
    assert told.sentence.startswith("7 workload names cost more than before; the largest, job-")
    assert explain(case(runs, {})).kind == "many small"


@pytest.mark.parametrize(
    ("minutes", "said"),
    [
        (1, "1 minute"),
        (96, "96 minutes"),
        (179, "179 minutes"),
        (180, "3 hours"),
        (5700, "95 hours"),
        (8640, "6 days"),
    ],
)
def test_lengths_are_said_as_people_do(minutes, said):
    assert lasting(minutes * MINUTE_MS) == said


def test_parts_of_a_gpu_are_said():
    assert [gpus_text(micro) for micro in (GPU_MICRO, 4 * GPU_MICRO, 285_714, 999_999)] == [
        "1 GPU",
        "4 GPUs",
        "0.29 GPUs",
        "1 GPU",
    ]
