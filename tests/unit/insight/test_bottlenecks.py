"""Bottlenecks on labeled synthetic runs: each named on its own run, none on a sound one, none
without its readings.
"""

import random

import pytest

from gpuledger_collector.insight.bottlenecks import (
    KINDS,
    MIN_MINUTES,
    GpuReadings,
    find_bottlenecks,
    mean_by_minute,
)

H100 = "NVIDIA H100 80GB HBM3"
GIB80 = 80 * 2**30
SOUND = {
    "utilization_ratio": 0.98,
    "zero_ratio": 0.0,
    "sm_active_ratio": 0.85,
    "tensor_active_ratio": 0.5,
    "dram_active_ratio": 0.4,
    "memory_used_bytes": 60 * 2.0**30,
    "power_watts": 620.0,
    "temperature_celsius": 62.0,
    "sm_clock_hertz": 1.9e9,
    "slowed_ratio": 0.0,
    "nvlink_bytes_per_second": 60e9,
    "thermal_ratio": 0.0,
    "power_cap_ratio": 0.0,
}
STARVED = {
    "utilization_ratio": 0.4,
    "zero_ratio": 0.5,
    "sm_active_ratio": 0.3,
    "dram_active_ratio": 0.05,
}
TALKING = {"sm_active_ratio": 0.3, "dram_active_ratio": 0.2, "nvlink_bytes_per_second": 400e9}
BOUND = {"dram_active_ratio": 0.72, "sm_active_ratio": 0.7}
SMALL = {
    "sm_active_ratio": 0.2,
    "dram_active_ratio": 0.1,
    "memory_used_bytes": 12 * 2.0**30,
    "nvlink_bytes_per_second": 5e9,
}


def gpu(number, minutes=120, seed=7, without=(), clock=None, **changes):
    """A GPU of a run: readings of a sound one with changes and 3 % of noise, and none of `without`."""
    chance = random.Random(f"{seed}:{number}")
    made = {}
    for minute in range(minutes):
        entry = {
            name: value * chance.uniform(0.97, 1.03) for name, value in {**SOUND, **changes}.items()
        }
        if clock is not None:
            entry["sm_clock_hertz"] = clock(minute)
        made[minute * 60_000] = {
            name: value for name, value in entry.items() if name not in without
        }
    return GpuReadings(f"GPU-{number}", H100, GIB80, made)


def run(count=4, **changes):
    return [gpu(number, **changes) for number in range(count)]


def kinds(found):
    return [one.kind for one in found.verdicts]


def slowed(minute):
    """Ten fast minutes in each hour, then a clock that heat or power holds down."""
    return 1.95e9 if minute % 60 < 10 else 1.4e9


LABELED = {
    "input": run(**STARVED),
    "communication": run(**TALKING),
    "throttling": run(slowed_ratio=0.9, thermal_ratio=0.9, clock=slowed),
    "memory": run(**BOUND),
    "batch": run(**SMALL),
    "imbalance": [*run(3, sm_active_ratio=0.55), gpu(3, sm_active_ratio=0.95)],
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_bottleneck_is_named_on_its_own_run_and_no_other(kind):
    """The label of the run is its only verdict; all else was looked at and is fine."""
    found = find_bottlenecks(LABELED[kind])
    assert kinds(found) == [kind]
    assert set(found.fine) == set(KINDS) - {kind}
    assert found.cannot_say == []
    assert found.verdicts[0].says
    assert found.verdicts[0].advice


def test_a_sound_run_has_nothing_wrong():
    """Everything was looked at, nothing was found."""
    found = find_bottlenecks(run())
    assert (kinds(found), list(found.fine), found.cannot_say) == ([], list(KINDS), [])


@pytest.mark.parametrize(
    ("missing", "unjudged"),
    [
        (("sm_active_ratio",), {"communication", "batch"}),
        (("dram_active_ratio",), {"memory"}),
        (("slowed_ratio",), {"throttling"}),
        (
            ("utilization_ratio", "sm_active_ratio"),
            {"input", "communication", "batch", "imbalance"},
        ),
        (
            ("sm_active_ratio", "dram_active_ratio", "nvlink_bytes_per_second"),
            {"communication", "memory", "batch"},
        ),
    ],
    ids=lambda given: "-".join(sorted(given)),
)
def test_what_is_not_read_is_not_judged_and_named(missing, unjudged):
    """A card without profiling metrics gets no verdict on them, and no clean bill either."""
    found = find_bottlenecks(run(without=missing))
    assert {one.kind for one in found.cannot_say} == unjudged
    assert kinds(found) == []
    assert set(found.fine) == set(KINDS) - unjudged
    assert all(any(name in one.missing for name in missing) for one in found.cannot_say)


def test_a_starved_run_without_dram_activity_is_not_called_starved():
    """Half of the rule's evidence is absent: it cannot be said."""
    found = find_bottlenecks(run(without=("dram_active_ratio",), **STARVED))
    assert "input" not in kinds(found)
    assert "input" in {one.kind for one in found.cannot_say}


def test_too_little_is_known_of_a_short_run():
    """Less than half an hour is no ground for any verdict."""
    found = find_bottlenecks([gpu(0, minutes=MIN_MINUTES - 1, **STARVED)])
    assert {one.kind for one in found.cannot_say} == set(KINDS)
    assert "29 minutes" in found.cannot_say[0].missing


def test_heat_and_power_are_told_apart_only_by_their_bits():
    """Without raw samples the verdict names both."""
    heat = find_bottlenecks(LABELED["throttling"]).verdicts[0]
    power = find_bottlenecks(run(slowed_ratio=0.9, power_cap_ratio=0.9, clock=slowed)).verdicts[0]
    either = find_bottlenecks(
        run(slowed_ratio=0.9, clock=slowed, without=("thermal_ratio", "power_cap_ratio"))
    ).verdicts[0]
    assert heat.says.startswith("heat slows")
    assert power.says.startswith("its power limit slows")
    assert either.says.startswith("heat or power slows")


def test_a_power_cap_that_costs_no_clock_is_no_bottleneck():
    """The bit alone says that the limit was reached, not that it hurt."""
    assert kinds(find_bottlenecks(run(slowed_ratio=1.0, power_cap_ratio=1.0))) == []


def test_a_gpu_with_less_to_do_is_named():
    """The advice differs from that for a slow one."""
    found = find_bottlenecks([*run(3), gpu(3, sm_active_ratio=0.3)]).verdicts[0]
    assert found.kind == "imbalance"
    assert "GPU-3 has less to do" in found.says


def test_one_gpu_neither_talks_nor_is_out_of_balance():
    """Rules about several GPUs are fine on one, also without link readings."""
    found = find_bottlenecks([gpu(0, without=("nvlink_bytes_per_second",))])
    assert kinds(found) == []
    assert found.cannot_say == []


def test_what_nobody_read_is_a_gap_in_the_plot():
    """Never a zero."""
    made = gpu(0, minutes=3)
    minutes = {at: entry for at, entry in made.minutes.items() if at != 60_000}
    values = mean_by_minute([GpuReadings("a", H100, GIB80, minutes)], "utilization_ratio")
    assert values[1] is None
    assert values[0] == minutes[0]["utilization_ratio"]
