"""Days, money, checkpoints and failures: published runs, and the laws of the formulas."""

import math
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger_collector.insight.plans.architecture import Architecture, published_shape
from gpuledger_collector.insight.plans.hardware import GPUS, gpu_named
from gpuledger_collector.insight.plans.training import (
    GPU_MTBF_HOURS,
    HOUR_S,
    Failures,
    GpuHourRate,
    TrainingRun,
    daly_interval,
    flops_per_token,
    money,
    outcomes,
    overhead,
    young_interval,
)

H100 = gpu_named("H100")
WITHOUT_ATTENTION = Architecture(1, 1, 1, 1, 1, 1)


def wall(step, pause, mtbf, restart=0.0):
    around = Failures(mtbf / HOUR_S, pause, restart, step)
    return overhead(around, 1).wall_per_second


def test_chinchilla_is_six_n_d():
    """70 B parameters on 1.4 T tokens: 5.88e23 operations, Gopher's budget of 5.76e23 (Hoffmann et
    al. 2022).
    """
    assert flops_per_token(WITHOUT_ATTENTION, 70e9, 1) * 1.4e12 == pytest.approx(5.88e23, rel=1e-9)


def test_gpt3_is_3640_petaflop_days():
    """Brown et al.

    2020, table D.1: 174.6 B parameters, 300 B tokens, 3.14e23 operations, 3,640 petaflop-days.
    """
    operations = 6 * 174.6e9 * 300e9
    assert flops_per_token(WITHOUT_ATTENTION, 174.6e9, 1) * 300e9 == pytest.approx(
        operations, rel=1e-9
    )
    assert operations / (1e15 * 86400) == pytest.approx(3640, rel=0.001)


def test_gpt3_takes_34_days_on_1024_a100():
    """Narayanan et al.

    2021, section 5.1: 8 T P / (n X) at 140 Tflop/s, recomputation counted: 34 days.
    """
    mfu = 140 / 312 * 6 / 8
    run = TrainingRun(
        WITHOUT_ATTENTION,
        174.6e9,
        300e9,
        gpu_named("A100-80GB"),
        1024,
        sequence=1,
        mfu=(mfu, mfu, mfu),
    )
    assert run.seconds(mfu) / 86400 == pytest.approx(33.8, abs=0.1)


def test_attention_of_palm():
    """Chowdhery et al.

    2022, appendix B: PaLM 540B at 238.3 K tokens/s on 6,144 TPU v4 of 275 Tflop/s is 46.2 % MFU.

    118 layers, 48 heads of 256 (12,288 wide queries), 2,048 tokens; 45.7 % without attention.
    """
    attention = Architecture(118, 12288, 48, 1, 1, 1)
    peak = 6144 * 275e12
    assert 238.3e3 * flops_per_token(attention, 540.35e9, 2048) / peak == pytest.approx(
        0.462, abs=0.001
    )
    assert 238.3e3 * flops_per_token(WITHOUT_ATTENTION, 540.35e9, 1) / peak == pytest.approx(
        0.457, abs=0.001
    )


def test_llama_3_1_took_the_gpu_hours_that_meta_reports():
    """30.84 M H100-hours for 15.6 T tokens (model card): the range at the published MFU of 0.38 to
    0.43 holds them.
    """
    run = TrainingRun(
        published_shape("llama-3.1-405b"),
        published_shape("llama-3.1-405b").parameters,
        15.6e12,
        H100,
        16384,
        sequence=8192,
        mfu=(0.38, 0.41, 0.43),
    )
    best, _, worst = outcomes(
        run, overhead(Failures(checkpoint_seconds=10.0, restart_seconds=300.0), 16384), None
    )
    assert best.gpu_hours < 30.84e6 < worst.gpu_hours


def test_the_default_time_between_failures_is_the_one_published():
    """419 interruptions in 54 days of 16,384 GPUs are one in three hours of that job."""
    assert overhead(Failures(), 16384).mtbf_seconds / HOUR_S == pytest.approx(54 * 24 / 419)
    assert pytest.approx(50677, abs=1) == GPU_MTBF_HOURS


def test_young_and_daly():
    """Five minutes a checkpoint, a failure a day: Young 2 h; Daly a little less.

    Daly is M once checkpoints take 2M.
    """
    day, pause = 86400.0, 300.0
    assert young_interval(pause, day) == 7200.0
    part = pause / (2 * day)
    assert daly_interval(pause, day) == pytest.approx(
        7200 * (1 + math.sqrt(part) / 3 + part / 9) - 300
    )
    assert daly_interval(2 * day, day) == day


@given(st.floats(1, 600), st.floats(3e3, 1e8))
def test_dalys_interval_is_the_best(pause, mtbf):
    """No interval a third longer or shorter gives less wall time than Daly's."""
    best = daly_interval(pause, mtbf)
    if best + pause > 5 * mtbf:
        return
    here = wall(best, pause, mtbf)
    assert here >= 1
    assert here <= wall(best * 1.33, pause, mtbf) * (1 + 1e-9)
    assert here <= wall(best / 1.33, pause, mtbf) * (1 + 1e-9)


@given(st.integers(1, 4096), st.integers(2, 8), st.floats(1, 300), st.floats(0, 1200))
def test_more_gpus_lose_more_to_failures(gpus, times, pause, restart):
    """The share lost grows with the GPUs, with checkpoints and with restarts, and stays between 0
    and 1.
    """
    here = overhead(Failures(checkpoint_seconds=pause, restart_seconds=restart), gpus)
    more = overhead(Failures(checkpoint_seconds=pause, restart_seconds=restart), gpus * times)
    slower = overhead(Failures(checkpoint_seconds=pause * 2, restart_seconds=restart + 60), gpus)
    assert 0 < here.lost_share < 1
    assert here.lost_share <= more.lost_share
    assert here.lost_share < slower.lost_share


@given(
    st.floats(1e6, 1e13),
    st.floats(1e6, 1e14),
    st.sampled_from([card for card in GPUS if "bf16" in card.peak_flops]),
    st.integers(1, 10**5),
    st.integers(2, 100),
    st.floats(0.01, 1),
)
def test_time_by_gpus_is_constant(parameters, tokens, card, gpus, times, mfu):
    """At one MFU GPU-seconds of arithmetic do not depend on how many GPUs there are; tokens count
    in proportion.
    """
    run = TrainingRun(
        published_shape("llama-2-7b"), parameters, tokens, card, gpus, mfu=(mfu, mfu, mfu)
    )
    spent = run.seconds(mfu) * gpus
    assert replace(run, gpus=gpus * times).seconds(mfu) * gpus * times == pytest.approx(spent)
    assert replace(run, tokens=tokens * 2).seconds(mfu) == pytest.approx(2 * run.seconds(mfu))
    assert replace(run, parameters=parameters * 2).seconds(mfu) > run.seconds(mfu)
    assert run.seconds(mfu) > 0


def test_money_is_decimal_and_in_minor_units():
    """GPU-hours by rate, rounded once to the currency's minor unit; the range runs from the fastest
    to the slowest.
    """
    assert money(1000.0, GpuHourRate(Decimal("2.49"), "USD")) == Decimal("2490.00")
    assert money(1e40, GpuHourRate(Decimal("2.49"), "USD")) == Decimal("2.49e40")
    assert money(1.5, GpuHourRate(Decimal("333.3"), "JPY")) == Decimal("500")
    run = TrainingRun(published_shape("llama-2-7b"), 7e9, 1e12, H100, 64)
    found = outcomes(run, overhead(Failures(), 64), GpuHourRate(Decimal("2"), "USD"))
    assert [one.mfu for one in found] == [0.5, 0.4, 0.3]
    costs = [one.cost for one in found]
    assert costs == sorted(costs)
    assert costs[0] == pytest.approx(Decimal(2) * Decimal(found[0].gpu_hours), abs=Decimal("0.01"))
    assert all(one.cost is None for one in outcomes(run, overhead(Failures(), 64), None))


def test_a_run_that_cannot_get_on_is_refused():
    """A job that fails every second while it restarts for ten minutes has no end to name."""
    with pytest.raises(ValueError, match="would make no progress"):
        overhead(Failures(gpu_mtbf_hours=1.0), 3600)
    with pytest.raises(ValueError, match="no fp8"):
        TrainingRun(published_shape("llama-2-7b"), 7e9, 1e12, gpu_named("A100-80GB"), 8, "fp8")
    with pytest.raises(ValueError, match="MFU"):
        TrainingRun(published_shape("llama-2-7b"), 7e9, 1e12, H100, 8, mfu=(0.5, 0.4, 0.6))
