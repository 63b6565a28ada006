"""A vLLM endpoint, a file of a run, a real agent and collector: `gpuledger runs` says what a
million tokens cost.
"""

import json
import threading
from decimal import Decimal

import psycopg
import pytest

from fakes.agents import agent
from fakes.collector import running
from fakes.serving import serving, vllm

pytestmark = pytest.mark.slow

__all__ = ["agent"]

RATE = Decimal(3600)
"""A dollar a second: what is counted over some seconds has digits enough."""
HOLDS = """
[[hold]]
index = 0
workload = "chat"
tags = { team = "serving" }

[[hold]]
index = 1
workload = "train"
tags = { team = "vision" }
"""


class Counting:
    """A server that has generated 700 and read 1,300 tokens more each time that somebody looks."""

    def __init__(self):
        self.looks = 0
        self.lock = threading.Lock()

    def page(self):
        with self.lock:
            self.looks += 1
            return vllm(prompt=1_300 * self.looks, generated=700 * self.looks, stop=11 * self.looks)


@pytest.mark.usefixtures("priced")
def test_tokens_of_an_endpoint_cost_what_an_independent_sum_says(dsn, run, agent, tmp_path):
    """Cost of a million tokens = rate x covered time / tokens served in it, to the rounding of one
    micro-unit.
    """
    (tmp_path / "holds.toml").write_text(HOLDS)
    progress = tmp_path / "progress"
    progress.mkdir()
    server = Counting()
    with (
        running(dsn) as collector,
        serving(server.page) as endpoint,
        psycopg.connect(dsn, autocommit=True) as database,
    ):
        made = agent(
            f"http://127.0.0.1:{collector.port}",
            owners="static",
            owner_rules_file=tmp_path / "holds.toml",
            serving_endpoints=f"chat={endpoint.url}",
            progress_dir=progress,
            slow_interval_s=1,
        )

        def readings(counter):
            return database.execute(
                "SELECT r.at_ms, r.value FROM counter_reading r JOIN counter_series s ON s.id ="
                " r.series_id WHERE s.counter = %s ORDER BY 1",
                (counter,),
            ).fetchall()

        for steps in (10, 30):
            (progress / "train.tmp").write_text(f"gpuledger_run_steps_total {steps}\n")
            (progress / "train.tmp").rename(progress / "train.prom")
            made.wait_for(lambda want=steps: any(value == want for _, value in readings("steps")))
        made.wait_for(lambda: len(readings("generated_tokens")) >= 4)
        assert made.stop() == 0
        prompt, generated, steps = (
            readings(name) for name in ("prompt_tokens", "generated_tokens", "steps")
        )
    code, out, err = run("runs", "show", "chat", "--format", "json")
    assert code == 0, err
    (total,) = [one for one in json.loads(out)["unit_costs"] if one["counter"] == "total_tokens"]
    looks = (generated[-1][1] - generated[0][1]) // 700
    assert looks >= 3
    assert (
        total["units"]
        == looks * 2_000
        == prompt[-1][1] - prompt[0][1] + generated[-1][1] - generated[0][1]
    )
    covered_ms = generated[-1][0] - generated[0][0]
    assert total["covered_ms"] == covered_ms
    expected = RATE * covered_ms / 3_600_000 / total["units"] * 1_000_000
    assert abs(Decimal(total["cost"]) - expected) <= Decimal(3) / total["units"] + Decimal(
        "0.000001"
    )
    told = json.loads(run("runs", "--format", "json")[1])
    (listed,) = [one for one in told if one["id"] == "chat"]
    assert listed["unit_cost"]["cost"] == total["cost"]
    (trained,) = [one for one in told if one["id"] == "train"]
    assert trained["unit_cost"]["counter"] == "steps"
    assert trained["unit_cost"]["units"] == steps[-1][1] - steps[0][1] == 20


@pytest.fixture
def priced(dsn):
    """Every accelerator at the rate."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO price (pool, gpu_model, purchase, rate_per_gpu_hour, currency,"
            " effective_from_ms, recorded_at) VALUES ('', '', 'on_demand', %s, 'USD', 0, now())",
            (RATE,),
        )
