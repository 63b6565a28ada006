"""Weights from what the ledger has of a server's hours, and as a file that `apply` takes."""

import json

import numpy as np
import pytest

from fakes.fleet import DAY, HOUR, OCTOBER, Held
from gpuledger_collector.accounting.counters import CounterReading
from gpuledger_collector.accounting.inference import Asker, TokenRecord, Tokens
from gpuledger_collector.ingest.batches import counters
from gpuledger_collector.storage.ledger.token_usage import store_token_usage

pytestmark = pytest.mark.slow

HOURS = 120
INPUT_S, CACHED_S, OUTPUT_S = 40.0, 4.0, 200.0
"""GPU-seconds for a million tokens."""
STEP = 600_000
PERIOD = ("--from", "2025-10-01", "--to", "2025-10-06")
SERVER = """
[[inference]]
name = "{name}"
models = ["{name}"]
served_by = {{ app = "{name}" }}
weights = "1 : 0.1 : 4"
"""


def work(seed):
    """Prompt, cached and generated tokens of each hour, and its busy milliseconds."""
    random = np.random.default_rng(seed)
    for _ in range(HOURS):
        prompt, output = (
            int(most * random.uniform(0.1, 1)) // 6 * 6 for most in (12_000_000, 4_000_000)
        )
        cached = int(prompt * random.uniform(0, 0.8))
        takes = INPUT_S * (prompt - cached) + CACHED_S * cached + OUTPUT_S * output
        yield prompt, cached, output, int(takes / 1000 * random.normal(1, 0.05))


@pytest.fixture
def served(fleet, run, tmp_path):
    """Two servers of one GPU: of one the busy time follows its tokens, of the other nothing."""
    random = np.random.default_rng(9)
    path = tmp_path / "declared.toml"
    path.write_text(SERVER.format(name="qwen") + SERVER.format(name="noise"))
    code, out, err = run("apply", path)
    assert code == 0, (out, err)
    fleet.connection.execute(
        "INSERT INTO price (pool, gpu_model, purchase, rate_per_gpu_hour, currency,"
        " effective_from_ms, recorded_at) VALUES ('train', '', 'on_demand', 3.6, 'USD', 0, now())"
    )
    for number, name in enumerate(("qwen", "noise"), 1):
        fleet.capacity(number, 0, 6 * DAY)
        fleet.workload(number, app=name, team="platform")
        held, records, prompts, outputs = [], [], [0], [0]
        for hour, (prompt, cached, output, takes) in enumerate(work(number)):
            busy = takes if name == "qwen" else int(HOUR * random.uniform(0.1, 0.9))
            start = hour * HOUR
            held.append(Held(number, number, start, start + HOUR, busy=busy, idle=HOUR - busy))
            at_ms = OCTOBER + start
            records.append(
                TokenRecord(
                    Asker("gw", "t", name),
                    f"{name}-{hour}",
                    at_ms,
                    at_ms + HOUR - 1,
                    Tokens(prompt, cached, output, 1),
                )
            )
            for series, count in ((prompts, prompt), (outputs, output)):
                series += [series[-1] + count * part // 6 for part in range(1, 7)]
        fleet.evidence(held)
        store_token_usage(fleet.connection, records)
        workload = fleet.workload(number)
        with fleet.connection.transaction():
            counters.store_readings(
                fleet.connection,
                [
                    (
                        counters.Series(workload, "agent", "http://s/metrics", "", counter, "vllm"),
                        CounterReading(OCTOBER + at * STEP, total),
                    )
                    for counter, totals in (
                        ("prompt_tokens", prompts),
                        ("generated_tokens", outputs),
                    )
                    for at, total in enumerate(totals)
                ],
            )
    return fleet


def listed(run, *more):
    code, out, err = run("inference", "weights", *PERIOD, "--format", "json", *more)
    assert code == 0, err
    return {row["server"]: row for row in json.loads(out)}


def test_weights_are_measured_from_stored_hours_and_noise_is_refused(served, run):
    rows = listed(run)
    own = rows["qwen"]
    assert (own["declared"], own["hours"], own["left_out"]) == ("1 : 0.1 : 4", str(HOURS), "0")
    assert float(own["output_low"]) <= OUTPUT_S / INPUT_S <= float(own["output_high"])
    assert float(own["cached_low"]) <= CACHED_S / INPUT_S <= float(own["cached_high"])
    assert float(own["explained"]) > 0.9
    assert own["reason"] == ""
    noise = rows["noise"]
    assert noise["measured"] == ""
    assert "of the busy time, and 50% are needed" in noise["reason"]
    assert set(listed(run, "--server", "noise")) == {"noise"}


def test_a_suggestion_can_be_applied_and_moves_nothing_of_the_past(served, run, tmp_path):
    """It keeps the other servers, says where its weights are from, and holds from tomorrow."""
    before = run("inference", "list", *PERIOD, "--format", "csv")
    path = tmp_path / "suggested.toml"
    code, out, err = run("inference", "weights", *PERIOD, "--suggest", "-o", path)
    assert (code, out) == (0, ""), err
    assert "not suggested: noise: on days held out tokens explain" in err
    text = path.read_text()
    assert text.count("[[inference]]") == 3
    assert f"estimated from {HOURS} hours of 2025-10-01 to 2025-10-05" in text
    assert "effective_to = 20" in text
    assert "effective_from = 20" in text
    code, out, err = run("apply", path)
    assert code == 0, (out, err)
    assert run("inference", "list", *PERIOD, "--format", "csv") == before
    weights = listed(run)["qwen"]["measured"]
    exported = run("export", "config")[1]
    assert f'weights = "{weights}"' in exported
    assert exported.count('weights = "1 : 0.1 : 4"') == 2


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        (("--server", "llama"), 2, "known are noise, qwen"),
        (("--server", "noise", "--suggest"), 1, "no weights to suggest; noise: on days held out"),
        (("-o", "x.toml"), 2, "-o goes with --suggest"),
    ],
)
def test_what_cannot_be_suggested_is_refused(served, run, more, code, said):
    ended, out, err = run("inference", "weights", *PERIOD, *more)
    assert (ended, out) == (code, "")
    assert said in err


def test_hours_without_counters_or_with_other_jobs_are_not_used(served, run):
    """A GPU that others held, too, says nothing of the server; neither does a gap of its counters."""
    served.connection.execute(
        "DELETE FROM counter_hour WHERE hour_ms >= %s AND hour_ms < %s",
        (OCTOBER, OCTOBER + 2 * HOUR),
    )
    listed(run)
    served.connection.execute(
        "INSERT INTO usage_hour (accelerator_id, hour_ms, state, workload_id, held_ms, busy_ms,"
        " idle_ms, unknown_ms) VALUES (%s, %s, 'held', %s, 1, 1, 0, 0)",
        (served.accelerator(1), OCTOBER + 10 * HOUR, served.workload(3, app="job", team="x")),
    )
    rows = listed(run)
    assert (rows["qwen"]["hours"], rows["qwen"]["left_out"]) == (str(HOURS - 3), "3")
    assert rows["noise"]["left_out"] == "2"
