"""A shared model server: two GPUs that serve one model for ten hours, what tenants asked of it, and
what its counters counted.
"""

import csv
import io

import pytest

from fakes.fleet import DAY, HOUR, OCTOBER, Held
from gpuledger_collector.accounting.counters import CounterReading
from gpuledger_collector.accounting.inference import Asker, TokenRecord, Tokens
from gpuledger_collector.ingest.batches import counters
from gpuledger_collector.storage.ledger.token_usage import store_token_usage

MINUTE = 60_000
PERIOD = ("--from", "2025-10-01", "--to", "2025-10-02")
MODEL = "hosted_vllm/Qwen3-32B"
VISION = Asker("litellm", "t-vision", MODEL, "http://10.0.0.7:8000/v1")
NLP = Asker("litellm", "t-nlp", MODEL, "http://10.0.0.7:8000/v1")
KEY = Asker("litellm", "", MODEL, "http://10.0.0.7:8000/v1")
DECLARED = """
[[inference]]
name = "qwen"
gateway = "litellm"
models = ["hosted_vllm/Qwen3*"]
served_by = { app = "qwen" }
weights = "1 : 0.1 : 4"

[[tenant]]
gateway = "litellm"
tenant = "t-vision"
owner = { team = "vision" }

[[tenant]]
tenant = "t-nlp"
owner = { team = "nlp", project = "chat" }
"""


@pytest.fixture
def apply(run, tmp_path):
    def apply(text):
        path = tmp_path / "declared.toml"
        path.write_text(text)
        return run("apply", path)

    return apply


@pytest.fixture
def served(fleet):
    """A server of two GPUs at 3.60 USD that holds them for ten hours, half of it busy: 72 USD."""
    for number in (1, 2):
        fleet.capacity(number, 0, DAY)
    fleet.connection.execute(
        "INSERT INTO price (pool, gpu_model, purchase, rate_per_gpu_hour, currency,"
        " effective_from_ms, recorded_at) VALUES ('train', '', 'on_demand', 3.6, 'USD', 1759276800000, now())"
    )
    fleet.workload(1, app="qwen", team="platform")
    fleet.evidence(
        [
            Held(number, 1, hour * HOUR, (hour + 1) * HOUR, busy=HOUR // 2, idle=HOUR // 2)
            for number in (1, 2)
            for hour in range(10)
        ]
    )
    return fleet


def ask(fleet, *rows):
    """Requests of (asker, hour, input, cached, output)."""
    store_token_usage(
        fleet.connection,
        [
            TokenRecord(
                asker,
                f"{asker.tenant}-{hour}-{given}",
                OCTOBER + round(hour * HOUR),
                OCTOBER + round(hour * HOUR) + MINUTE,
                Tokens(given, cached, output, 1),
            )
            for asker, hour, given, cached, output in rows
        ],
    )


def count(fleet, prompt, generated, part="engine=0,model_name=Qwen3-32B", workload=1, day=0):
    """Counters of the server that begin at zero and end there, read every five minutes for the first
    ten hours of a day.
    """
    workload = fleet.workload(workload)
    with fleet.connection.transaction():
        counters.store_readings(
            fleet.connection,
            [
                (
                    counters.Series(workload, "agent", "http://s/metrics", part, counter, "vllm"),
                    CounterReading(OCTOBER + day * DAY + minute * MINUTE, total * minute // 600),
                )
                for counter, total in (("prompt_tokens", prompt), ("generated_tokens", generated))
                for minute in range(0, 601, 5)
            ],
        )


def compute(fleet, seconds, tokens, workload=1, other=0, day=0, last=()):
    """SGLang's GPU seconds of prompts and of answers, and how many tokens these were, as `count`
    has them; `last`: the minute after which some counters are not read any more.
    """
    last = dict(last)
    workload = fleet.workload(workload)
    totals = {
        "prefill_gpu_ms": 1000 * seconds[0],
        "decode_gpu_ms": 1000 * seconds[1],
        "other_gpu_ms": 1000 * other,
        "computed_tokens": tokens[0],
        "decoded_tokens": tokens[1],
    }
    with fleet.connection.transaction():
        counters.store_readings(
            fleet.connection,
            [
                (
                    counters.Series(
                        workload,
                        "agent",
                        "http://s/metrics",
                        "model_name=Qwen3-32B,tp_rank=0",
                        counter,
                        "sglang",
                    ),
                    CounterReading(OCTOBER + day * DAY + minute * MINUTE, total * minute // 600),
                )
                for counter, total in totals.items()
                for minute in range(0, last.get(counter, 600) + 1, 5)
            ],
        )


def rows(run, *more, command="list", period=PERIOD):
    code, out, err = run("inference", command, *period, "--format", "csv", *more)
    assert code == 0, err
    return list(csv.DictReader(io.StringIO(out)))


def costs(run, *more):
    return {row["tenant"]: row["cost"] for row in rows(run, "--by", "tenant", *more)}


def notes(run, command="list"):
    code, out, err = run("inference", command, *PERIOD)
    assert code == 0, err
    return out
