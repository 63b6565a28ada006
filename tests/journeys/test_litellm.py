"""LiteLLM's proxy before a model server: what it says of tokens, beside what the server did."""

import json
import subprocess
from decimal import Decimal

import psycopg
import pytest
from psycopg.rows import dict_row

from fakes.gateways import read, sums
from fakes.litellm_proxy import Chat, LiteLLM, create_spend_logs, litellm_environment
from fakes.model_server import serve
from fakes.postgres import fresh_database, postgres
from fakes.replicas import until
from gpuledger_collector.accounting.model_prices import ModelPrice
from gpuledger_collector.export.model_prices import litellm_text

__all__ = ["postgres"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
KEYS = {
    "sk-vision": ("key-vision", "vision"),
    "sk-speech": ("key-speech", "speech"),
    "sk-lone": ("key-lone", None),
}
CONTINUOUS = {"continuous_usage_stats": True}


@pytest.fixture(scope="module")
def programs():
    with litellm_environment() as folder:
        yield folder


@pytest.fixture
def stand(programs, postgres, tmp_path):
    """A proxy with an empty spend log, before a model server."""
    with (
        serve(tmp_path / "server.jsonl") as server,
        fresh_database(postgres, "template0") as dsn,
    ):
        create_spend_logs(programs, dsn)
        gateway = LiteLLM(programs, tmp_path, server.address, server.model, KEYS, dsn)
        try:
            gateway.start()
            yield gateway, server
        finally:
            gateway.stop()


def spent(gateway: LiteLLM) -> dict[str, dict]:
    with psycopg.connect(gateway.dsn, row_factory=dict_row) as connection:
        rows = connection.execute('SELECT * FROM "LiteLLM_SpendLogs"')
        return {row["request_id"]: row for row in rows}


def shown(gateway: LiteLLM) -> dict[tuple[str, str], float]:
    """Tokens on its page, by kind and team."""
    found = {}
    for line in gateway.metrics().splitlines():
        for kind in ("input", "output", "input_cached"):
            if line.startswith(f"litellm_{kind}_tokens_metric_total{{"):
                (team,) = [part[6:-1] for part in line.split(",") if part.startswith('team="')]
                found[kind, team] = found.get((kind, team), 0) + float(line.rpartition(" ")[2])
    return found


def tokens(row: dict) -> tuple[int, int]:
    return row["prompt_tokens"], row["completion_tokens"]


def test_what_litellm_says_of_tokens(stand) -> None:
    """Facts that the importer and the profile rely on, of the version that is pinned.

    A row's id is the server's. Its address has the path of the request. Of a retry there is one
    row, though the server computed the prompt twice. An aborted stream is counted: exactly where
    the client asked for continuous usage, else by LiteLLM's own tokenizer. A key without a team is
    `None` on the page. A restart begins at zero.
    """
    gateway, server = stand
    vision, speech, lone = (Chat(gateway.port, key) for key in KEYS)
    plain = vision.ask("prompt=120 cached=64 output=30")
    streamed = speech.stream("prompt=400 cached=100 output=25")
    retried = lone.ask("prompt=50 output=5 fail=once say=z")
    exact = speech.stream("prompt=70 output=40 hold=10 say=a", stop_after=10, **CONTINUOUS)
    assert vision.attempt("prompt=0 cached=1")[0] == 400
    assert Chat(gateway.port, "sk-nobody").attempt("prompt=1")[0] in {401, 500}
    until(lambda: spent(gateway).keys() >= {plain, streamed, retried, exact})
    rows = spent(gateway)
    assert {key: tokens(row) for key, row in rows.items()} == {
        plain: (120, 30),
        streamed: (400, 25),
        retried: (50, 5),
        exact: (70, 10),
    }
    assert {row["api_base"] for row in rows.values()} == {f"{server.address}/v1/chat/completions"}
    assert {row["model"] for row in rows.values()} == {f"hosted_vllm/{server.model}"}
    assert [rows[key]["team_id"] for key in (plain, streamed, retried)] == ["vision", "speech", ""]
    assert {row["cache_hit"] for row in rows.values()} == {"None", "False"}
    cached = {
        key: row["metadata"]["additional_usage_values"].get("cache_read_input_tokens")
        for key, row in rows.items()
    }
    assert (cached[plain], cached[streamed]) == (64, 100)
    work = [json.loads(line) for line in server.log.read_text().splitlines()]
    assert [row["prompt"] for row in work if row["outcome"] == "error"] == [50]
    assert len(work) == 5
    assert shown(gateway) == {
        ("input", "vision"): 120,
        ("input", "speech"): 470,
        ("input", "None"): 50,
        ("output", "vision"): 30,
        ("output", "speech"): 35,
        ("output", "None"): 5,
        ("input_cached", "vision"): 64,
        ("input_cached", "speech"): 100,
    }
    assert sums(read(gateway.metrics(), "litellm")) == {
        ("vision", server.model, ""): {"input": 120, "output": 30, "cached": 64, "requests": 1},
        ("speech", server.model, ""): {"input": 470, "output": 35, "cached": 100, "requests": 2},
        ("", server.model, ""): {"input": 50, "output": 5, "requests": 1},
    }
    guessed = vision.stream("prompt=1000 output=40 hold=10 say=b", stop_after=10)
    until(lambda: guessed in spent(gateway))
    row = spent(gateway)[guessed]
    assert row["metadata"]["error_information"]["error_code"] == "499"
    assert row["status"] == "success"
    assert row["prompt_tokens"] < 100, "counted by the words of the message"
    gateway.stop()
    gateway.start()
    assert shown(gateway) == {}
    Chat(gateway.port, "sk-vision").ask("prompt=11 output=1")
    until(lambda: len(spent(gateway)) == 6)
    assert shown(gateway)["input", "vision"] == 11


REGISTER = """
import json, sys
import litellm
from litellm.types.utils import PromptTokensDetailsWrapper, Usage
litellm.register_model(json.load(open(sys.argv[1])))
usage = Usage(
    prompt_tokens=1000,
    completion_tokens=100,
    total_tokens=1100,
    prompt_tokens_details=PromptTokensDetailsWrapper(cached_tokens=600),
)
print(json.dumps(litellm.cost_per_token(model=sys.argv[2], usage_object=usage)))
"""


def test_litellm_prices_requests_by_our_prices(programs, postgres, tmp_path):
    """What `prices models --format litellm` writes: as a map of models for its library, and as
    numbers of a deployment for its proxy, whose spend is then what the tokens cost.
    """
    with (
        serve(tmp_path / "server.jsonl") as server,
        fresh_database(postgres, "template0") as dsn,
    ):
        model = f"hosted_vllm/{server.model}"
        own = ModelPrice(
            model, "qwen", Decimal("1.964600"), Decimal("0.196460"), Decimal("7.858500"), "USD"
        )
        file = tmp_path / "prices.json"
        file.write_text(litellm_text([own]))
        answer = subprocess.run(
            [programs / "python", "-c", REGISTER, file, model],
            env={"LITELLM_LOCAL_MODEL_COST_MAP": "True"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        costs = json.loads(answer.stdout.splitlines()[-1])
        assert costs == pytest.approx([0.000903716, 0.00078585], rel=1e-9)
        create_spend_logs(programs, dsn)
        (prices,) = json.loads(file.read_text(), parse_float=str).values()
        gateway = LiteLLM(programs, tmp_path, server.address, server.model, KEYS, dsn)
        gateway.prices = prices
        try:
            gateway.start()
            asked = Chat(gateway.port, "sk-vision").ask("prompt=1000 cached=600 output=100")
            until(lambda: asked in spent(gateway))
            assert spent(gateway)[asked]["spend"] == pytest.approx(0.001689566, rel=1e-9)
        finally:
            gateway.stop()
