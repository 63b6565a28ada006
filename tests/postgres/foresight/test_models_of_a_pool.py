"""A pool of unlike GPUs is planned by model: their demand adds up to that of the pool, and the model
with the least to spare comes first.
"""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import pytest

from fakes.assistant import over
from fakes.collector import running
from fakes.fleet import DAY, HOUR, NOW_MS, OCTOBER, Held
from fakes.furnishing import furnishing
from fakes.rich_ledger import rich
from fakes.worlds import world
from gpuledger_collector.services.capacity_plan import store_capacity_plans
from gpuledger_collector.storage.capacity.demand import (
    capacity_by_model,
    capacity_by_pool,
    demand,
    models_of_pool,
)
from gpuledger_collector.storage.database import Database
from postgres.foresight.test_capacity_plan import shown

__all__ = ["rich"]

A100, H100, L4 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "NVIDIA L4"
BEGIN, END = 20, 50
"""Days after OCTOBER of which something is known; the last one is that of NOW_MS."""
ALWAYS_HELD = (1, 2, 5)
"""Of two H100 (1, 2) and four A100 (3 to 6); the A100 3 and 4 are held in the afternoons."""


def furnish(dsn):
    """A pool of two H100, both always held, and four A100, of which two are free half of the time."""
    with furnishing(dsn) as (fleet, run, files):
        for number in range(1, 7):
            fleet.accelerator(number, model=H100 if number < 3 else A100)
            fleet.capacity(number, BEGIN * DAY)
        for day in range(BEGIN, END):
            at, noon, night = day * DAY, day * DAY + 12 * HOUR, (day + 1) * DAY
            held = [Held(number, number, at, night) for number in ALWAYS_HELD]
            for number in (3, 4):
                held += [
                    Held(number, None, at, noon, "unallocated"),
                    Held(number, number, noon, night),
                ]
            held.append(Held(6, None, at, night, "unallocated"))
            fleet.evidence(held)
        prices = [
            f'[[price]]\ngpu_model = "{model}"\npurchase = "{purchase}"\nrate_per_gpu_hour ='
            f' {rate}\ncurrency = "USD"\neffective_from = 2025-01-01\n'
            for model, purchase, rate in (
                ("H100", "on_demand", 4),
                ("H100", "reserved", 3),
                ("A100", "on_demand", 2),
                ("A100", "reserved", 1),
            )
        ]
        run("apply", files.write("prices.toml", "\n".join(prices)))
        run("chargeback", "--from", "2025-10-21", "--to", "2025-11-20")


@pytest.fixture
@world(furnish)
def mixed(fleet, monkeypatch):
    monkeypatch.setattr("gpuledger_collector.wiring.read_clock", lambda: NOW_MS)
    return fleet


def queue(run, tmp_path, *waiting):
    """A reading each half hour of the last day: (GPUs, model)."""
    instants = range(OCTOBER + (END - 1) * DAY, OCTOBER + END * DAY, HOUR // 2)
    lines = [
        f"{at // 1000},job-{number},{gpus},train,{model}"
        for at in instants
        for number, (gpus, model) in enumerate(waiting)
    ]
    file = tmp_path / "queue.csv"
    file.write_text("at,workload_id,gpus,pool,gpu_model\n" + "\n".join(lines) + "\n")
    code, _, error = run("import", "queue", file)
    assert code == 0, error


def by_name(series):
    return {each.name: each for each in series}


def test_models_add_up_to_their_pool(mixed, run, tmp_path):
    """Held and queued, hour by hour; what waits for any model is in the pool alone."""
    queue(run, tmp_path, (3, "h100"), (2, "A100 80GB"), (8, ""))
    period = OCTOBER + BEGIN * DAY, OCTOBER + END * DAY
    pool = by_name(demand(mixed.connection, *period, "pool"))["train"]
    models = by_name(models_of_pool(mixed.connection, *period, "train"))
    assert set(models) == {A100, H100}
    np.testing.assert_allclose(models[H100].values[:-24], 2.0)
    np.testing.assert_allclose(models[H100].values[-24:], 2.0 + 3.0)
    np.testing.assert_allclose(models[A100].values[:24], [1.0] * 12 + [3.0] * 12)
    any_model = np.zeros(len(pool.values))
    any_model[-24:] = 8.0
    np.testing.assert_allclose(
        sum(each.values for each in models.values()) + any_model, pool.values
    )
    present = capacity_by_model(mixed.connection, period[1], "train")
    assert present == {A100: 4.0, H100: 2.0}
    assert sum(present.values()) == capacity_by_pool(mixed.connection, period[1])["train"]


def test_models_of_every_pool_of_the_rich_ledger_add_up(rich):
    """Observed, counted by import, in slices and in another currency: the same hours as the pool."""
    period = OCTOBER, OCTOBER + 40 * DAY
    pools = demand(rich.connection, *period, "pool")
    assert {pool.name for pool in pools} == {"counted", "eu", "slices", "train"}
    for pool in pools:
        (model,) = models_of_pool(rich.connection, *period, pool.name)
        assert (model.start_ms, model.step_ms) == (pool.start_ms, pool.step_ms)
        np.testing.assert_array_equal(model.values, pool.values)


def plan(run, *more):
    code, text, error = run("plan", "capacity", "--pool", "train", *more)
    assert code == 0, error
    return text


def test_the_scarcest_model_comes_first_with_its_own_rates(mixed, run):
    """No H100 is left, of the A100 one is always free; neither is reserved at a mean rate."""
    answer = json.loads(plan(run, "--format", "json"))
    assert (answer["curve"], answer["reservation"], answer["headroom"]) == ([], None, None)
    assert answer["rates"]["on_demand"] is None
    h100, a100 = answer["models"]
    assert [each["model"] for each in (h100, a100)] == [H100, A100]
    assert (h100["gpus"], h100["headroom"], h100["enough_gpus"]) == (2.0, 0.0, 2.0)
    assert (a100["gpus"], a100["headroom"]) == (4.0, pytest.approx(1.0))
    assert (h100["rates"]["on_demand"], a100["rates"]["on_demand"]) == (4.0, 2.0)
    # Break-even: held in three quarters of the hours at 3 of 4, in half of them at 1 of 2.
    assert (h100["reservation"]["gpus"], h100["reservation"]["break_even"]) == (2, 0.75)
    assert a100["reservation"]["break_even"] == 0.5
    likely = answer["pool"]["plan"]["gpu_hours"]["likely"]
    parts = [each["pool"]["plan"]["gpu_hours"]["likely"] for each in (h100, a100)]
    assert sum(parts) == pytest.approx(likely)


def test_the_table_and_csv_say_the_same_of_each_model(mixed, run):
    text = plan(run)
    table = text[text.index("model  ") :]
    assert table.index(H100) < table.index(A100)
    assert "to reserve" not in text
    rows = {
        (row["about"], row["name"], row["measure"]): row
        for row in csv.DictReader(io.StringIO(plan(run, "--format", "csv")))
    }
    assert rows["model", H100, "headroom"]["likely"] == "0.0"
    assert rows["pool", "train", "headroom"]["likely"] == ""
    assert rows["reservation", H100, "GPUs"]["likely"] == "2"
    assert rows["capacity", f"2 of {H100}", "cost on demand"]["likely"] != ""


def test_a_model_with_too_short_a_past_is_named(mixed, run):
    """Installed a week ago and held: the pool has its plan, the model a sentence."""
    first = (END - 7) * DAY
    mixed.accelerator(7, model=L4)
    mixed.capacity(7, first)
    mixed.evidence([Held(7, 7, first + day * DAY, first + (day + 1) * DAY) for day in range(7)])
    answer = json.loads(plan(run, "--format", "json"))
    assert [each["model"] for each in answer["models"]] == [H100, A100]
    sentence = f"{L4!r} has 7 known days of demand: a plan needs 24 at least"
    assert answer["unplanned"] == {L4: sentence}
    assert f"no plan: {sentence}" in plan(run)


def test_the_board_shows_the_plan_of_each_model(mixed, run, dsn):
    """The stored plan is that of the command; costs and reservations are those of the models."""
    models = json.loads(plan(run, "--format", "json"))["models"]
    assert store_capacity_plans(Database(dsn), NOW_MS) == 1
    curve = shown(mixed.connection, "Cost of capacity against wait")
    assert [(row["model"], row["GPUs"], row["on demand"]) for row in curve] == [
        (model["model"].removeprefix("NVIDIA "), point["gpus"], point["on_demand"])
        for model in models
        for point in model["curve"]
    ]
    reserve = shown(mixed.connection, "How many to reserve")
    assert [(row["model"], row["headroom"], row["reserve"]) for row in reserve] == [
        (
            model["model"].removeprefix("NVIDIA "),
            model["headroom"],
            model["reservation"]["gpus"],
        )
        for model in models
    ]


def test_advice_has_the_headroom_of_each_model(mixed, run, dsn, monkeypatch):
    """Within the next hour no H100 is free, and half of the A100; the sentence and the API say so, CSV
    is as it was. A day later nobody knows.
    """
    monkeypatch.setattr("gpuledger_collector.wiring.read_clock", lambda: OCTOBER + END * DAY)
    code, text, error = run("scale", "advise", "--format", "json")
    assert code == 0, error
    ((h100, a100),) = (row["models"] for row in json.loads(text))
    assert [h100[key] for key in ("model", "gpus", "headroom_gpus")] == [H100, 2.0, 0.0]
    assert [a100[key] for key in ("model", "gpus", "demand_gpus")] == [A100, 4.0, 3.0]
    assert 0 < a100["headroom_gpus"] <= 1.0
    with running(dsn, clock=lambda: OCTOBER + END * DAY) as collector:
        status, _, answer = collector.request("GET", "/v1/scaling/train")
    assert (status, answer["models"]) == (200, [h100, a100])
    text = run("scale", "advise")[1]
    assert text.index(f"{H100}: 0.0 of 2 GPUs to spare within the lead time") < text.index(A100)
    assert "models" not in run("scale", "advise", "--format", "csv")[1].splitlines()[0]
    monkeypatch.setattr("gpuledger_collector.wiring.read_clock", lambda: OCTOBER + (END + 1) * DAY)
    assert f"{H100}: 2 GPUs; its demand is unknown lately" in run("scale", "advise")[1]


def test_an_assistant_is_told_the_headroom_of_each_model(mixed, dsn):
    """Of a pool that is named; the scarcest comes first."""
    assistant = over(dsn, OCTOBER + END * DAY)
    notices = assistant.ask("forecast_demand", pool="train").content["notices"]
    told = [notice.partition(":")[0] for notice in notices if "to spare" in notice]
    assert told == [H100, A100]
    assert not any(
        "to spare" in each for each in assistant.ask("forecast_demand").content["notices"]
    )
