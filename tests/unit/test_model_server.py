"""The stand-in for a model server counts as vLLM does, and logs what it worked for."""

import json
import re
import urllib.request

import pytest

from fakes.litellm_proxy import Chat
from fakes.model_server import ModelServer, serve
from fakes.replicas import until
from gpuledger_common import serving_counters


@pytest.fixture
def server(tmp_path):
    with serve(tmp_path / "server.jsonl") as running:
        yield running


def counted(server: ModelServer) -> dict[str, int]:
    with urllib.request.urlopen(f"{server.address}/metrics") as answer:
        counters, started_ms = serving_counters.parse(answer.read().decode())
    assert started_ms == round(server.started_s * 1000)
    return {counter.counter: counter.value for counter in counters}


def logged(server: ModelServer) -> dict[str, dict]:
    if not server.log.exists():
        return {}
    return {row["id"]: row for row in map(json.loads, server.log.read_text().splitlines())}


def test_answers_and_streams_are_counted_and_logged(server) -> None:
    """The ids that clients read are those of the log; a page says what vLLM's would."""
    chat = Chat(server.port)
    first = chat.ask("prompt=12 cached=4 output=3")
    second = chat.stream("prompt=100 output=30")
    assert counted(server) == {
        "prompt_tokens": 112,
        "cached_tokens": 4,
        "generated_tokens": 33,
        "inferences": 2,
    }
    until(lambda: len(logged(server)) == 2)
    rows = logged(server)
    assert (rows[first]["cached"], rows[first]["output"], rows[first]["streamed"]) == (4, 3, False)
    assert (rows[second]["prompt"], rows[second]["outcome"]) == (100, "stop")
    assert re.search(r'source="local_cache_hit"} 4.0\n', server.page())
    assert re.search(r'source="local_compute"} 108.0\n', server.page())


def test_an_aborted_stream_counts_its_prompt_and_no_request(server) -> None:
    """As vLLM does (issue 55634): its prompt and the tokens until then, but no inference."""
    chat = Chat(server.port)
    dropped = chat.stream("prompt=70 output=40 hold=10 say=a", stop_after=10)
    until(lambda: dropped in logged(server))
    assert logged(server)[dropped]["outcome"] == "abort"
    assert logged(server)[dropped]["output"] == 10
    assert counted(server) == {
        "prompt_tokens": 70,
        "cached_tokens": 0,
        "generated_tokens": 10,
        "inferences": 0,
    }


def test_a_failure_counts_its_prompt_and_the_retry_is_served(server) -> None:
    """What failed after its prompt was computed did use the GPU."""
    chat = Chat(server.port)
    status, answer = chat.attempt("prompt=50 output=5 fail=once say=z")
    assert (status, answer["error"]["code"]) == (500, 500)
    served = chat.ask("prompt=50 output=5 fail=once say=z")
    assert counted(server) == {
        "prompt_tokens": 100,
        "cached_tokens": 0,
        "generated_tokens": 5,
        "inferences": 1,
    }
    until(lambda: len(logged(server)) == 2)
    outcomes = [row["outcome"] for row in logged(server).values()]
    assert outcomes == ["error", "stop"]
    assert list(logged(server))[1] == served


def test_a_held_stream_goes_on_when_it_is_released(server) -> None:
    """Another request releases it, so that a test needs no pause."""
    chat = Chat(server.port)
    with chat._sent("prompt=7 output=3 hold=1 say=h", {"stream": True}) as answer:
        assert answer.readline().startswith(b"data: ")
        Chat(server.port).ask("prompt=1 release=h")
        assert answer.read().endswith(b"data: [DONE]\n\n")
    assert counted(server)["generated_tokens"] == 4


def test_what_is_not_understood_is_refused(server) -> None:
    """Nothing of it is counted."""
    status, _ = Chat(server.port).attempt("prompt=5 cached=6")
    assert status == 400
    assert counted(server)["prompt_tokens"] == 0
