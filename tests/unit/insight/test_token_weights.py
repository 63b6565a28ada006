"""Weights of tokens from hours: a known truth is recovered within its interval, noise is refused."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import nnls

from gpuledger_collector.accounting.inference_split import GpuTime, parse_weights
from gpuledger_collector.insight.token_weights import (
    COVERED,
    MIN_HOURS,
    ServerHour,
    estimate_weights,
    fit_non_negative,
)

HOUR_MS = 3_600_000
HELD_MS = 2 * HOUR_MS
"""Two GPUs."""


def world(seed, days=21, noise=0.1, input_s=50.0, cached_s=1.0, output_s=250.0, base=0.03):
    """Hours of a server with a day and a night, whose GPU-seconds for a million tokens are known.

    A third of the prompts is cached on average; noise is a share of what tokens take.
    """
    random = np.random.default_rng(seed)
    hours = []
    for at in range(24 * days):
        daily = 1 + 0.8 * np.sin(2 * np.pi * at / 24)
        prompt = int(6e6 * daily * random.lognormal(0, 0.5))
        cached = int(prompt * random.uniform(0.1, 0.6))
        output = int(2e6 * daily * random.lognormal(0, 0.5))
        takes = (input_s * (prompt - cached) + cached_s * cached + output_s * output) / 1e6
        busy_s = base * HELD_MS / 1000 + takes * max(random.normal(1, noise), 0)
        busy_ms = min(int(busy_s * 1000), HELD_MS)
        hours.append(ServerHour(at * HOUR_MS, HELD_MS, busy_ms, 0, prompt, cached, output))
    return hours


@pytest.mark.parametrize("truth", [2.0, 5.0, 8.0])
def test_a_known_truth_is_recovered_within_the_interval(truth):
    """Of 20 servers the interval of 90 % holds the truth in at least 16; no estimate is refused,
    and none is far away.
    """
    scale = 50 * min(1, 6 / truth)
    within = cached_within = 0
    for seed in range(20):
        found = estimate_weights(
            world(seed, input_s=scale, cached_s=0.1 * scale, output_s=truth * scale)
        )
        assert found.reason == ""
        assert found.explained > 0.8
        within += found.output.low <= truth <= found.output.high
        cached_within += found.cached.low <= 0.1 <= found.cached.high
        assert found.output.likely == pytest.approx(truth, rel=0.5)
        assert found.output.low < found.output.likely < found.output.high
    assert within >= 16
    assert cached_within >= 16


@pytest.mark.parametrize("seed", range(10))
def test_pure_noise_is_refused(seed):
    """Busy time that has nothing to do with tokens: the reason says how little is explained."""
    random = np.random.default_rng(1000 + seed)
    hours = [replace(hour, busy_ms=int(HELD_MS * random.uniform(0.1, 0.9))) for hour in world(seed)]
    found = estimate_weights(hours)
    assert found.weights == ""
    assert found.explained < 0.1
    assert "tokens explain" in found.reason
    assert "50% are needed" in found.reason


def test_busy_time_that_follows_the_number_of_gpus_alone_is_refused():
    """Twice the GPUs are busy for twice the time: that is no merit of tokens."""
    random = np.random.default_rng(7)
    hours = [
        replace(
            hour,
            held_ms=HELD_MS * (1 + at % 3),
            busy_ms=int(HELD_MS * (1 + at % 3) * random.uniform(0.49, 0.51)),
        )
        for at, hour in enumerate(world(3))
    ]
    assert "tokens explain" in estimate_weights(hours).reason


def test_prompts_and_outputs_that_go_together_are_not_told_apart():
    random = np.random.default_rng(3)
    hours = []
    for hour in world(5):
        output = hour.prompt // 3
        busy_ms = int((50 * hour.prompt + 250 * output) / 1e3 * random.normal(1, 0.1))
        hours.append(replace(hour, cached=None, output=output, busy_ms=min(busy_ms, HELD_MS // 2)))
    found = estimate_weights(hours)
    assert found.explained > 0.5
    assert "rise and fall together" in found.reason
    assert found.weights == ""


def test_hours_that_say_nothing_are_left_out():
    """Unknown activity, gaps of counters, shared GPUs, and GPUs that were busy all the time."""
    good = world(1)
    bad = [
        replace(good[0], unknown_ms=HELD_MS // 2),
        replace(good[1], covered=COVERED - 0.01),
        replace(good[2], is_shared=True),
        replace(good[3], busy_ms=HELD_MS),
        replace(good[4], held_ms=0),
    ]
    found, alone = estimate_weights([*good[5:], *bad]), estimate_weights(good[5:])
    assert (found.hours, found.output) == (alone.hours, alone.output)
    assert found.left_out == alone.left_out + len(bad)


@pytest.mark.parametrize(
    ("hours", "said"),
    [
        (world(1)[: MIN_HOURS - 1], f"only {MIN_HOURS - 1} hours can be used"),
        ([], "only 0 hours can be used"),
        (
            [replace(hour, busy_ms=HELD_MS) for hour in world(1)],
            "in 504 more the GPUs were busy all the time",
        ),
        ([replace(hour, output=0) for hour in world(1)], "no output token was counted"),
    ],
)
def test_what_is_missing_is_said(hours, said):
    found = estimate_weights(hours)
    assert said in found.reason
    assert (found.weights, found.output) == ("", None)


def test_a_proposal_is_a_declaration():
    """Exact decimals of few digits; where cached tokens are not told apart they weigh as input."""
    found = estimate_weights(world(2))
    weights = parse_weights(found.weights)
    assert weights.input == 1_000_000
    assert weights.output == pytest.approx(found.output.likely * 1e6, rel=0.05)
    unknown = estimate_weights([replace(hour, cached=None) for hour in world(2, cached_s=50)])
    assert unknown.cached is None
    assert unknown.weights.startswith("1 : 1 : ")
    assert estimate_weights(world(2)) == found


def test_cached_tokens_are_told_apart_where_most_hours_know_them():
    """Hours that do not are left out then; where most do not, cached tokens are a part of input."""
    hours = world(4)
    few = [replace(hour, cached=None) if at % 4 == 0 else hour for at, hour in enumerate(hours)]
    most = [replace(hour, cached=None) if at % 4 else hour for at, hour in enumerate(hours)]
    found, without = estimate_weights(few), estimate_weights(most)
    assert found.cached is not None
    assert found.hours < estimate_weights(hours).hours == without.hours
    assert without.cached is None


def test_the_fit_is_that_of_scipy():
    random = np.random.default_rng(11)
    for _ in range(200):
        design = random.normal(size=(30, 4)) * [1000, 1, 1, 0.01]
        target = random.normal(size=30) + design @ random.normal(size=4)
        expected, _ = nnls(design, target)
        assert fit_non_negative(design, target) == pytest.approx(expected, rel=1e-6, abs=1e-9)


def counting_gpu_time(hours, ratio=5.0):
    """Hours of a server that says how long its GPUs computed what, with noise."""
    random = np.random.default_rng(3)
    return [
        replace(
            hour,
            gpu=GpuTime(
                int((hour.prompt - hour.cached) * 0.05 * random.normal(1, 0.1)),
                int(hour.output * 0.05 * ratio * random.normal(1, 0.1)),
                1,
                hour.prompt - hour.cached,
                hour.output,
            ),
        )
        for hour in hours
    ]


def test_gpu_seconds_are_taken_before_an_estimate():
    """Also of a few hours, and of hours that an estimate would leave out."""
    hours = [replace(hour, is_shared=True) for hour in counting_gpu_time(world(1, days=1))]
    found = estimate_weights(hours, parse_weights("2 : 0.2 : 4"))
    assert (found.source, found.reason, found.hours, found.left_out) == ("gpu_seconds", "", 24, 0)
    assert found.output.low < found.output.likely < found.output.high
    assert found.output.likely == pytest.approx(5, rel=0.1)
    assert found.weights.startswith("1 : 0.1 : ")
    assert found.explained is None


def test_without_gpu_seconds_of_both_kinds_weights_are_estimated():
    hours = [
        replace(hour, gpu=replace(hour.gpu, prefill_gpu_ms=0))
        for hour in counting_gpu_time(world(1))
    ]
    assert estimate_weights(hours) == replace(estimate_weights(world(1)), left_out=0)
    assert estimate_weights(hours).source == "busy_time"
