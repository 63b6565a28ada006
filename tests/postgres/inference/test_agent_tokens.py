"""Tokens of gateways that agents read: from a page over HTTP to the hours of the ledger."""

import time

import psycopg
import pytest

from fakes.batches import batch, body_of
from fakes.collector import running
from fakes.fleet import HOUR
from fakes.gateways import page_text
from fakes.serving import serving
from gpuledger_agent.gateways import GatewayReader, gateways
from gpuledger_collector.accounting.inference import CLAIM, Asker, Tokens
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.storage.ledger.token_usage import read_token_hours
from gpuledger_common.wire import Samples, TokenCount

T = round(time.time()) // 3600 * HOUR - 3 * HOUR
MINUTE = 60_000


def tokens(dsn):
    with psycopg.connect(dsn) as connection:
        sums = {}
        for hour in read_token_hours(connection, Period(0, 10**13)):
            sums[hour.asker] = sums.get(hour.asker, Tokens()) + hour.tokens
        return sums


def send(collector, seq, counts, node="gw-1"):
    """A batch with nothing but these counts."""
    sent = batch(
        seq,
        node,
        0,
        workloads=[],
        usage_intervals=[],
        samples=Samples(),
        token_counts=list(counts),
    )
    status, answer = collector.post(body_of(sent))
    return status, [entry["reason"] for entry in answer.get("rejected", [])]


def count(minute, value=None, tenant="vision", **changes):
    named = {} if value is None else {"counter": "output", "value": value, "tenant": tenant}
    return TokenCount(
        "litellm",
        "http://gw:4000/metrics",
        T + minute * MINUTE,
        **{"model": "qwen", "started_ms": T - HOUR, **named, **changes},
    )


VISION, NLP = (Asker("litellm", tenant, "qwen") for tenant in ("vision", "nlp"))


def test_pages_of_an_agent_are_counted_in_any_order_once(dsn):
    """Batches come late, doubled and in any order; a tenant that is new counts from zero, and a
    claim is marked.
    """
    sent = [
        [count(0), count(0, 100)],
        [count(1), count(1, 130)],
        [count(2), count(2, 20, "nlp"), count(2, 5, claim=True)],
    ]
    with running(dsn, gateway_nodes="gw-1, gw-2") as collector:
        for place in (2, 0, 1, 1):
            assert send(collector, place + 1, sent[place]) == (200, [])
    assert tokens(dsn) == {
        VISION: Tokens(output=30),
        NLP: Tokens(output=20),
        Asker("litellm", "vision", "qwen", "", CLAIM): Tokens(output=5),
    }


def test_only_the_nodes_of_the_setting_report_gateways(dsn):
    """Tokens move money between teams: a node's token alone is not enough."""
    with running(dsn, gateway_nodes="gw-1") as collector:
        for minute in (0, 1):
            _, reasons = send(collector, minute + 1, [count(minute, 100 * minute)], "node-7")
            assert "name it in the collector's gateway_nodes" in reasons[0]
            assert send(collector, minute + 1, [count(minute, 100 * minute)], "gw-1")[0] == 200
    assert tokens(dsn) == {VISION: Tokens(output=100)}


def test_two_nodes_never_change_each_others_pages(dsn):
    """The same address is another gateway on another node (loopback): both count."""
    with running(dsn, gateway_nodes="*") as collector:
        for node in ("gw-1", "gw-2"):
            for minute in (0, 1):
                send(collector, minute + 1, [count(minute, 100 * minute)], node)
    assert tokens(dsn) == {VISION: Tokens(output=200)}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"counter": "total"}, "counter: 'total' is not one of input, cached, output, requests"),
        ({"value": -1}, "value: is negative"),
        ({"value": 2**60}, "value: is negative, or more than a counter can show"),
        ({"tenant": "x" * 501}, "tenant"),
        ({"tenant": "a\0b"}, "tenant"),
        ({"at_ms": T - 10 * 24 * HOUR}, "at_ms: is more than 7 days old"),
        ({"started_ms": -5}, "started_ms: is out of range"),
        ({"page": ""}, "gateway, page: are needed"),
    ],
)
def test_a_bad_reading_is_refused_and_the_others_count(dsn, changes, words):
    values = {
        "gateway": "litellm",
        "page": "http://gw:4000/metrics",
        "at_ms": T + MINUTE,
        "counter": "output",
        "value": 7,
        "model": "qwen",
        "tenant": "nlp",
    }
    with running(dsn, gateway_nodes="*") as collector:
        send(collector, 1, [count(0, 100)])
        _, reasons = send(collector, 2, [count(1, 110), TokenCount(**{**values, **changes})])
    assert words in reasons[0]
    assert tokens(dsn) == {VISION: Tokens(output=10)}


def test_a_real_page_goes_from_the_gateway_to_the_ledger(dsn):
    """LiteLLM's page, read over HTTP by the agent's reader: 1,000 more output tokens of the team,
    and nothing else.
    """
    text = page_text("litellm")
    clock = [T]
    with serving(lambda: text) as server, running(dsn, gateway_nodes="gw-1") as collector:
        reader = GatewayReader(gateways(server.url), lambda: clock[0])
        reader.read()
        send(collector, 1, reader.take())
        text = text.replace("} 3e+06", "} 3.001e+06")
        clock[0] += MINUTE
        reader.read()
        send(collector, 2, reader.take())
    assert tokens(dsn) == {Asker("litellm", "e8d1", "hosted_vllm/Qwen3-32B"): Tokens(output=1_000)}
