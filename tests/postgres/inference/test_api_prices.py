"""What an API would have charged, by command, address and page, beside our own cost."""

import json

import pytest

from fakes.collector import running
from fakes.fleet import DAY, HOUR, OCTOBER, Held
from gpuledger_collector.accounting.inference import Asker, TokenRecord, Tokens
from gpuledger_collector.storage.ledger.token_usage import store_token_usage

pytestmark = pytest.mark.slow

PERIOD = ("--from", "2025-10-01", "--to", "2025-10-02")
SERVER = """
[[inference]]
name = "qwen"
models = ["qwen"]
served_by = { app = "qwen" }
"""
PRICE = """
[[api_price]]
name = "an API"
models = ["qwen", "llama*"]
input = 0.15
cached = 0.003
output = 0.6
currency = "USD"
effective_from = 2025-09-01
"""


@pytest.fixture
def apply(run, tmp_path):
    def apply(text):
        path = tmp_path / "declared.toml"
        path.write_text(text)
        return run("apply", path)

    return apply


@pytest.fixture
def served(fleet, apply):
    """A GPU for an hour at 3.60 USD, half of it idle, asked for 30 M tokens."""
    fleet.capacity(1, 0, DAY)
    fleet.connection.execute(
        "INSERT INTO price (pool, gpu_model, purchase, rate_per_gpu_hour, currency,"
        " effective_from_ms, recorded_at) VALUES ('train', '', 'on_demand', 3.6, 'USD', 1759276800000, now())"
    )
    fleet.workload(1, app="qwen", team="platform")
    fleet.evidence([Held(1, 1, 0, HOUR, busy=HOUR // 2, idle=HOUR // 2)])
    store_token_usage(
        fleet.connection,
        [
            TokenRecord(
                Asker("gw", "vision", "qwen"),
                "1",
                OCTOBER,
                OCTOBER,
                Tokens(20_000_000, 10_000_000, 10_000_000, 1),
            )
        ],
    )
    code, out, err = apply(SERVER)
    assert code == 0, (out, err)
    return fleet


def servers(run):
    code, out, err = run("inference", "servers", *PERIOD, "--format", "json")
    assert code == 0, err
    return json.loads(out)


def test_ours_stands_beside_bought(served, dsn, run, apply):
    """1.50 + 0.03 + 6.00 USD bought; 3.60 here at today's load, 1.80 at full load."""
    (before,) = servers(run)
    assert before["cost_bought"] == ""
    assert apply(PRICE)[0] == 0
    (row,) = servers(run)
    assert (row["cost_bought"], row["cost"], row["cost_used"]) == ("7.53", "3.60", "1.80")
    with running(dsn) as collector:
        _, _, answer = collector.request("GET", "/v1/inference?from=2025-10-01&to=2025-10-02")
        _, _, page = collector.request("GET", "/models?from=2025-10-01&to=2025-10-02")
    assert answer["servers"][0]["cost_bought_micro"] == 7_530_000
    assert "The same tokens bought" in page
    assert "here 3.60 at today's load, 1.80 without idle time" in page.replace("&#39;", "'")


def test_a_price_is_exported_as_applied(served, run, apply, tmp_path):
    assert apply(PRICE)[0] == 0
    path = tmp_path / "export.toml"
    assert run("export", "config", "-o", path)[0] == 0
    assert 'models = ["qwen", "llama*"]' in path.read_text()
    code, out, err = run("apply", path)
    assert code == 0, err
    assert "0 added" in out or "unchanged" in out


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (('models = ["qwen", "llama*"]', "models = []"), "names no model"),
        (("input = 0.15", "input = -1"), "input"),
        (('currency = "USD"', 'currency = "dollars"'), "currency"),
    ],
)
def test_bad_prices_are_refused(run, apply, wrong, said):
    code, _, err = apply(PRICE.replace(*wrong))
    assert code == 2
    assert said in err
