"""The loop that judges capacity policies, and the choice between them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.profiles import examples
from gpuledger_collector.cli import main
from gpuledger_collector.insight.backtest import ScalingScenario, TooShort, backtest_scaling
from gpuledger_collector.insight.scaling.lookahead import climate, drift, rises
from gpuledger_collector.insight.scaling.policies import (
    join_candidates,
    predictive,
    reactive,
    request_since,
)
from gpuledger_collector.insight.scaling.simulation import (
    CapacityBudget,
    CapacityRequest,
    GuardedReplay,
    measure_outcome,
    rolling_max,
    simulate,
    simulate_autoscaler,
    simulate_within,
)
from gpuledger_collector.insight.series import Series

STEP = 1_800_000
PER_DAY = 48


def one(demand, target, keep=None, delay=2, start=1, node=0.0):
    demand, target = np.asarray(demand, float), np.asarray(target, float)[:, None]
    keep = target if keep is None else np.asarray(keep, float)[:, None]
    return simulate(demand, target, keep, delay, start, node)[:, 0]


def daily(days=14, seed=0, level=40):
    rng = np.random.default_rng(seed)
    at = np.arange(days * PER_DAY)
    return np.maximum(
        np.round(
            level + 0.6 * level * np.sin(2 * np.pi * at / PER_DAY) + rng.normal(0, 1, len(at))
        ),
        0,
    )


def test_an_order_serves_after_the_delay():
    """What is wanted on seeing step 2 serves at step 2 + delay, and not before."""
    demand = [4, 4, 10, 10, 10, 10]
    assert one(demand, demand).tolist() == [4, 4, 4, 4, 10, 10]


def test_capacity_is_given_back_at_once_but_not_while_held():
    """Without a hold the next step is smaller; with a hold it stays for as long as the hold says."""
    demand = np.array([10.0, 10, 4, 4, 4, 4])
    assert one(demand, demand).tolist() == [10, 10, 10, 4, 4, 4]
    assert one(demand, demand, rolling_max(demand, 3)).tolist() == [10, 10, 10, 10, 10, 4]


def test_busy_gpus_are_never_taken():
    """A policy that wants nothing keeps what is in use."""
    assert one([5, 5, 5, 5], [0, 0, 0, 0]).tolist() == [5, 5, 5, 5]


def test_whole_nodes_round_up():
    """With nodes of eight GPUs capacity comes in eights."""
    demand = [3, 3, 9, 9, 9, 9]
    assert one(demand, demand, node=8.0).tolist() == [8, 8, 8, 8, 16, 16]


def test_the_measure_counts_gpu_hours_and_starts():
    """Two steps short of six GPUs at half an hour are six GPU-hours, and six starts that waited an
    hour each.
    """
    demand = np.array([4.0, 4, 10, 10, 10, 10])
    got = measure_outcome(demand, one(demand, demand), np.ones(6, dtype=bool), STEP)
    assert got.wait == pytest.approx(6.0)
    assert got.demand == pytest.approx(24.0)
    assert got.capacity == pytest.approx(18.0)
    assert (got.starts, got.cold_starts, got.wait_p95_s, got.actions) == (6, 6, 3600.0, 1)


def test_the_horizontal_autoscaler_follows_its_rule():
    """65 % wanted of 13 GPUs in use is 20 GPUs; inside the tolerance of a tenth nothing happens."""
    demand = np.array([13.0] * 6)
    grown = simulate_autoscaler(demand, 0.65, 1, 1, 1)
    assert grown[1] == 13
    assert grown[-1] == 20


@examples(20)
@given(values=st.lists(st.integers(0, 50), min_size=1, max_size=60), window=st.integers(1, 20))
def test_the_rolling_maximum_is_the_maximum_of_the_window(values, window):
    """The doubling trick gives what the plain definition gives."""
    array = np.array(values, float)
    assert rolling_max(array, window).tolist() == [
        array[max(0, i - window + 1) : i + 1].max() for i in range(len(array))
    ]


@pytest.mark.parametrize("look", [climate, drift])
def test_a_look_ahead_sees_only_the_past(look):
    """Other values from step T on leave every answer before T as it was."""
    demand = daily()
    changed = demand.copy()
    cut = 11 * PER_DAY + 17
    changed[cut:] = np.random.default_rng(5).integers(0, 500, len(demand) - cut)
    quantiles = np.array([0.5, 0.9])
    first = look(demand, 2, PER_DAY, quantiles, 3 * PER_DAY)
    second = look(changed, 2, PER_DAY, quantiles, 3 * PER_DAY)
    assert np.array_equal(first[:cut], second[:cut])
    assert (first >= 0).all()


def test_drift_foresees_a_ramp():
    """On a clean daily ramp the expected rise is near the rise that came."""
    demand = daily(21)
    rise = np.maximum(rises(demand, 4), 0)
    expected = drift(demand, 4, PER_DAY, np.array([0.5]), 3 * PER_DAY)[:, 0]
    judged = slice(14 * PER_DAY, 21 * PER_DAY - 4)
    assert np.abs(expected[judged] - rise[judged]).mean() < 0.3 * rise[judged].mean()


def outcomes(demand, **question):
    done = backtest_scaling(
        Series("demand", 0, STEP, demand),
        ScalingScenario(**{"delay_ms": STEP, "cost_cap": 1.1, **question}),
    )
    return {result.policy: result for result in done.results}, done


def test_ours_decides_without_the_future():
    """Capacity before an instant is the same whatever demand comes after it."""
    demand = daily(15)
    changed = demand.copy()
    cut = 12 * PER_DAY + 11
    changed[cut:] = 3.0
    first, second = outcomes(demand)[0], outcomes(changed)[0]
    for policy in ("gpuledger", "reactive-tuned", "reactive-plain", "hpa-default", "static-peak"):
        assert np.array_equal(
            first[policy].capacity[: cut + 1], second[policy].capacity[: cut + 1]
        ), policy


def test_ours_waits_less_than_the_tuned_reactive_on_a_daily_rhythm():
    """Where demand follows the clock, ours waits less than the best reactive setting, inside the
    money.
    """
    found, done = outcomes(daily(24, level=200), delay_ms=2 * STEP, cost_cap=1.1)
    assert found["gpuledger"].outcome.wait < 0.6 * found["reactive-tuned"].outcome.wait
    assert found["reactive-tuned"].outcome.wait > 0
    assert found["gpuledger"].outcome.capacity <= 1.12 * found["gpuledger"].outcome.demand
    assert done.predictive_days > 0


@examples(5)
@given(seed=st.integers(0, 1000), cap=st.sampled_from([1.02, 1.05, 1.1]))
def test_ours_keeps_to_the_money(seed, cap):
    """Capacity stays within the cap, and one step of busy GPUs, also where the days after the
    history are wilder and the tuned setting passes the cap.
    """
    demand = daily(26, seed)
    demand[12 * PER_DAY :] += np.random.default_rng(seed).poisson(3, 14 * PER_DAY) * 4
    found, _ = outcomes(demand, cost_cap=cap)
    ours = found["gpuledger"].outcome
    assert ours.capacity <= cap * ours.demand + demand.max() * STEP / 3_600_000


def guarded(demand, own, reference, delay, node=0.0, lent=0.0, ratio=1.02, cap=99.0):
    """Capacity of a guarded policy and of its reference."""
    budget = CapacityBudget(cap, ratio, lent, 10.0)
    replay = GuardedReplay(
        float(np.ceil(demand[0] / node) * node if node else demand[0]), delay, node, budget
    )
    tables = [CapacityRequest(table[:, None], table[:, None]) for table in (own, reference)]
    ours = simulate_within(demand, *tables, replay, np.ones(len(demand), dtype=bool), (1, 2))[:, 0]
    return ours, simulate(demand, reference[:, None], reference[:, None], delay, 1, node)[:, 0]


@given(
    seed=st.integers(0, 10_000),
    delay=st.integers(1, 5),
    node=st.sampled_from([0.0, 8.0]),
    lent=st.sampled_from([0, 99]),
)
def test_a_guarded_policy_never_waits_more_than_its_reference(seed, delay, node, lent):
    """Whatever it wants and however demand jumps, while the cap binds neither, at no step has it waited
    more in sum.
    """
    rng = np.random.default_rng(seed)
    demand = np.repeat(rng.integers(0, 60, 30), rng.integers(1, 9, 30)).astype(float)
    demand[2] += 1  # the first that is judged: any cap binds before there is demand
    reference = demand * rng.uniform(1, 1.5) + rng.integers(0, 9)
    own = demand * rng.choice([0.0, 1.0, 2.0], len(demand)) + rng.integers(0, 20, len(demand))
    ours, theirs = guarded(demand, own, reference, delay, node, lent=lent, cap=1e6)
    waited, allowed = (np.cumsum(np.maximum(demand - each, 0))[1:] for each in (ours, theirs))
    assert (waited <= allowed + 1e-6).all()


@given(
    seed=st.integers(0, 10_000),
    delay=st.integers(1, 5),
    cap=st.sampled_from([1.02, 1.1, 1.25]),
    lent=st.sampled_from([0, 99]),
)
def test_a_guarded_policy_keeps_to_the_cap(seed, delay, cap, lent):
    """Whatever it wants, whatever its reference spends and however demand ends, it has at no step
    spent more than the cap, the loan, what it began with, and one step of busy GPUs.
    """
    rng = np.random.default_rng(seed)
    demand = np.repeat(rng.integers(0, 60, 30), rng.integers(1, 9, 30)).astype(float)
    reference = demand * 1.5 + 9
    own = demand * rng.choice([1.0, 2.0], len(demand)) + rng.integers(0, 20, len(demand))
    ours, theirs = guarded(demand, own, reference, delay, lent=lent, cap=cap)
    spent, affordable = np.cumsum(ours[2:]), cap * np.cumsum(demand[2:])
    assert (spent - affordable).max() <= ours[2] + demand.max() + lent + 1e-6
    assert theirs[2:].sum() > affordable[-1]


def test_saved_wait_may_be_spent():
    """A policy that foresaw a rise may then hold less than its reference, by what it saved; before
    it may not.
    """
    demand = np.array([10.0] * 6 + [20.0] * 6)
    reference = np.where(np.arange(12) < 6, 12.0, 24.0)
    early = np.where(np.arange(12) < 3, 10.0, 20.0)
    ours, theirs = guarded(demand, early, reference, 2, lent=1000.0)
    assert ours[3:5].tolist() == [12.0] * 2
    assert np.maximum(demand - ours, 0).sum() == 0
    assert np.maximum(demand - theirs, 0).sum() == 16
    assert ours[-1] == 20.0
    assert theirs[-1] == 24.0


def test_a_reference_that_has_passed_the_cap_is_not_followed():
    """It would leave no money for the rise that the policy foresees."""
    demand = np.array([10.0] * 30 + [20.0] * 10)
    reference = np.full(40, 14.0)
    early = np.where(np.arange(40) < 26, 10.0, 20.0)
    ours, theirs = guarded(demand, early, reference, 2, cap=1.2)
    assert theirs[2:30].sum() > 1.2 * demand[2:30].sum()
    assert ours[2:].sum() <= 1.2 * demand[2:].sum()
    assert np.maximum(demand - ours, 0).sum() == 0


def test_a_policy_without_money_is_its_reference():
    """Allowed to cost no more than the reference, it has what the reference has."""
    demand = np.random.default_rng(3).integers(5, 40, 200).astype(float)
    ours, theirs = guarded(demand, demand * 2, demand * 1.2, 2, ratio=1.0)
    assert ours == pytest.approx(theirs)


def test_perfect_knowledge_waits_for_nothing_and_costs_the_demand():
    """The oracle's capacity is the demand; nothing can be cheaper without waiting."""
    found, _ = outcomes(daily())
    oracle = found["oracle"].outcome
    assert oracle.wait == 0
    assert oracle.capacity == pytest.approx(oracle.demand)


def test_where_nothing_moves_no_forecast_is_switched_on():
    """A flat pool is run reactively, at the cost of its demand."""
    found, done = outcomes(np.full(14 * PER_DAY, 12.0))
    assert done.predictive_days == 0
    assert found["gpuledger"].outcome.wait == 0
    assert found["gpuledger"].outcome.capacity == pytest.approx(found["gpuledger"].outcome.demand)


def test_the_first_ten_days_are_not_judged():
    """Demand in GPU-hours covers the days after the tenth; gaps are neither demand nor wait."""
    demand = np.full(12 * PER_DAY, 6.0)
    demand[11 * PER_DAY : 11 * PER_DAY + 10] = np.nan
    found, _ = outcomes(demand)
    assert found["gpuledger"].outcome.demand == pytest.approx(6.0 * (2 * PER_DAY - 10) / 2)


def test_too_little_history_is_refused():
    """Nine days leave nothing to judge."""
    with pytest.raises(TooShort, match="nothing is left to judge"):
        backtest_scaling(Series("demand", 0, STEP, daily(9)), ScalingScenario(STEP))


@pytest.fixture
def call(monkeypatch, capsys):
    def call(*arguments):
        monkeypatch.setattr("sys.argv", ["gpuledger", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return ended.value.code or 0, said.out, said.err

    return call


@pytest.fixture
def demand_file(tmp_path):
    path = tmp_path / "demand.csv"
    path.write_text(
        "ts,demand\n" + "\n".join(f"{1800 * i},{v:g}" for i, v in enumerate(daily())) + "\n"
    )
    return path


def test_the_contract_of_the_backtest(call, demand_file):
    """JSON holds a row per policy with the agreed fields, ours among them by name."""
    code, out, _ = call(
        "scale", "backtest", demand_file, "--delay", "30m", "--cost-cap", "1.1", "--format", "json"
    )
    rows = {row["policy"]: row for row in json.loads(out)["policies"]}
    assert code == 0
    assert {"gpuledger", "reactive-tuned", "hpa-default", "static-peak", "oracle"} <= set(rows)
    assert all(
        {"capacity", "demand", "wait", "wait_p95_s", "actions"} <= set(row) for row in rows.values()
    )
    assert rows["gpuledger"]["demand"] == rows["oracle"]["demand"]


def test_a_coarser_step_is_the_mean_and_a_finer_one_holds(call, demand_file):
    """GPU-hours of demand are the same on every step that divides."""
    found = []
    for step in ("15m", "30m", "1h"):
        code, out, _ = call(
            "scale", "backtest", demand_file, "--delay", "1h", "--step", step, "--format", "json"
        )
        assert code == 0
        found.append(json.loads(out)["policies"][0]["demand"])
    assert found == pytest.approx([found[0]] * 3)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--step", "7m"], "--step"),
        (["--delay", "later"], "--delay"),
        (["--step", "2h"], "divide the day"),
    ],
)
def test_impossible_settings_are_refused(call, demand_file, options, said):
    """A step or delay that cannot be is one sentence and exit code 2."""
    code, out, err = call("scale", "backtest", demand_file, *options)
    assert (code, out) == (2, "")
    assert said in err


def test_bad_demand_is_refused_with_its_line(call, tmp_path):
    """A demand that is not a number names file, line and column."""
    path = tmp_path / "demand.csv"
    path.write_text("ts,demand\n0,1\n1800,x\n")
    code, _, err = call("scale", "backtest", path)
    assert code == 2
    assert "demand.csv:3:demand: 'x' is not a number" in err


@pytest.mark.parametrize("today", [1, 2, 17, 48])
def test_what_is_asked_today_is_what_was_replayed(today):
    """Every candidate asks at each step of the last day what it asked in its replay."""
    per_day, step, warm = 48, 1_800_000, 3 * 48
    at = np.arange(12 * per_day + today)
    demand = np.maximum(
        np.round(
            30
            + 20 * np.sin(2 * np.pi * at / per_day)
            + np.random.default_rng(1).normal(0, 4, len(at))
        ),
        0.0,
    )
    replayed = join_candidates(reactive(demand, 2.0, step), *predictive(demand, 2.0, 2, step, warm))
    for column in range(0, len(replayed.settings), 11):
        asked = request_since(replayed.settings[column], demand, 2, step, 12 * per_day)
        assert asked.target == pytest.approx(replayed.target[-today:, column])
        assert asked.keep == pytest.approx(replayed.keep[-today:, column])
