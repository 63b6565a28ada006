"""Prices of models by command, of what the ledger charged."""

import json
from decimal import Decimal

import pytest

from fakes.fleet import DAY, HOUR, OCTOBER, Held
from gpuledger_collector.accounting.inference import Asker, TokenRecord, Tokens
from gpuledger_collector.storage.ledger.token_usage import store_token_usage

pytestmark = pytest.mark.slow

PERIOD = ("--from", "2025-10-01", "--to", "2025-10-02")
SERVER = """
[[inference]]
name = "{name}"
models = [{models}]
served_by = {{ app = "{name}" }}
weights = "1 : 0.1 : 4"
"""


@pytest.fixture
def served(fleet, run, tmp_path):
    """Two servers of one GPU at 3.60 USD: one for ten hours, half of it busy; of one nobody knows a
    price.
    """
    for number in (1, 2):
        fleet.capacity(number, 0, DAY, **({} if number == 1 else {"pool": "unpriced"}))
    fleet.connection.execute(
        "INSERT INTO price (pool, gpu_model, purchase, rate_per_gpu_hour, currency,"
        " effective_from_ms, recorded_at) VALUES ('train', '', 'on_demand', 3.6, 'USD', 0, now())"
    )
    fleet.workload(1, app="qwen", team="platform")
    fleet.workload(2, app="llama", team="platform")
    fleet.evidence(
        [
            Held(number, number, hour * HOUR, (hour + 1) * HOUR, busy=HOUR // 2, idle=HOUR // 2)
            for number in (1, 2)
            for hour in range(10)
        ]
    )
    store_token_usage(
        fleet.connection,
        [
            TokenRecord(Asker("gw", "t", model), model, OCTOBER, OCTOBER, Tokens(*tokens))
            for model, tokens in (
                ("qwen", (2_000_000, 1_000_000, 100_000, 1)),
                ("llama", (100, 0, 0, 1)),
                ("other", (7, 0, 0, 1)),
            )
        ],
    )
    path = tmp_path / "declared.toml"
    path.write_text(
        SERVER.format(name="qwen", models='"qwen"') + SERVER.format(name="llama", models='"llama"')
    )
    code, out, err = run("apply", path)
    assert code == 0, (out, err)
    return fleet


def test_litellm_gets_what_is_known_and_hears_of_the_rest(served, run, tmp_path):
    """36 USD for 1,500,000 weighted tokens: a million of input cost 24; the rest is said."""
    code, out, err = run("prices", "models", *PERIOD, "--format", "litellm")
    assert code == 0, err
    assert json.loads(out, parse_float=Decimal) == {
        "qwen": {
            "input_cost_per_token": Decimal("0.000024"),
            "output_cost_per_token": Decimal("0.000096"),
            "cache_read_input_token_cost": Decimal("0.0000024"),
        }
    }
    assert "llama: no price, since nothing of llama was charged" in err
    assert "gw: other: 7 tokens match no [[inference]] table" in err
    file = tmp_path / "prices.json"
    assert run("prices", "models", *PERIOD, "--format", "litellm", "-o", file)[0] == 0
    assert file.read_text() == out


def test_the_list_has_the_prices_of_inference_servers(served, run):
    servers = json.loads(run("inference", "servers", *PERIOD, "--format", "json")[1])
    (server,) = [row for row in servers if row["server"] == "qwen"]
    for cost in ("held", "used"):
        ((row),) = json.loads(
            run("prices", "models", *PERIOD, "--cost", cost, "--format", "json")[1]
        )
        assert (row["input_price"], row["cached_price"], row["output_price"]) == tuple(
            server[f"{kind}_price_{cost}"] for kind in ("input", "cached", "output")
        )


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--server", "nobody"), "known are llama, qwen"),
        (("--cost", "list"), "--cost: 'list' is not one of held, used"),
    ],
)
def test_bad_choices_are_refused(served, run, more, said):
    code, _, err = run("prices", "models", *PERIOD, *more)
    assert code == 2
    assert said in err
