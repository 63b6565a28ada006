"""POST /v1/inference: records of a gateway, stored once; one bad record refuses all."""

import json
import time

import psycopg
import pytest

from fakes.collector import JSON, running
from gpuledger_collector.accounting.inference import CLAIM, Asker, Tokens
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.tokens import Token
from gpuledger_collector.ingest import token_records
from gpuledger_collector.storage.access import tokens
from gpuledger_collector.storage.ledger.token_counters import ReadPage, store_pages
from gpuledger_collector.storage.ledger.token_usage import read_token_hours

NOW = round(time.time())


def hours(dsn):
    with psycopg.connect(dsn) as connection:
        return read_token_hours(connection, Period(0, 10**13))


def record(number=1, **changes):
    return {
        "id": f"r{number}",
        "start": NOW - 60,
        "end": NOW,
        "model": "qwen",
        "tenant": "vision",
        "input_tokens": 1200,
        "cached_tokens": 200,
        "output_tokens": 300,
        **changes,
    }


def post(collector, *records, headers=JSON, gateway="kong"):
    body = json.dumps({"gateway": gateway, "records": records}).encode()
    status, _, answer = collector.request("POST", "/v1/inference", body, headers)
    return status, answer


@pytest.fixture
def collector(dsn):
    with running(dsn) as started:
        yield started


def test_records_are_stored_once(collector, dsn):
    """The same again changes nothing; a claim is marked."""
    sent = record(), record(2, claim=True, tenant="", requests=1)
    stored = {"stored": 2, "unchanged": 0, "conflicting": 0, "too_old": 0}
    assert post(collector, *sent) == (200, stored)
    assert post(collector, *sent) == (200, {**stored, "stored": 0, "unchanged": 2})
    sums = {}
    for hour in hours(dsn):
        sums[hour.asker] = sums.get(hour.asker, Tokens()) + hour.tokens
    assert sums == {
        Asker("kong", "vision", "qwen"): Tokens(1200, 200, 300),
        Asker("kong", "", "qwen", "", CLAIM): Tokens(1200, 200, 300, 1),
    }


REFUSED = {
    "a count is negative": {"output_tokens": -1},
    "cached tokens are more than its": {"cached_tokens": 1201},
    "ends before it starts": {"start": NOW, "end": NOW - 60},
    "model: is empty": {"model": ""},
    "id: a text of at most 500 characters": {"id": "x" * 501},
    "tenant: a text of at most 500 characters without NUL is needed": {"tenant": "a\0b"},
    "has no id": {"id": ""},
    "end: lies more than 10 minutes ahead": {"end": NOW + 3600},
    "gpuledger import inference takes older ones": {"start": NOW - 10**9},
    "a count is over 9,007,199,254,740,992": {"input_tokens": 2**60},
    "Expected `int`, got `float`": {"input_tokens": 0.5},
    "Object missing required field `cached_tokens`": {"cached_tokens": None},
}


@pytest.mark.parametrize("words", REFUSED)
def test_one_bad_record_refuses_all(collector, dsn, words):
    """With its place and the reason; nothing is stored."""
    bad = {key: value for key, value in record(2, **REFUSED[words]).items() if value is not None}
    status, answer = post(collector, record(), bad)
    assert status == 400
    assert words in answer["detail"]
    assert "records[1]" in answer["detail"]
    assert hours(dsn) == []


def test_more_records_than_are_taken_are_refused_before_they_are_read(collector, dsn, monkeypatch):
    monkeypatch.setattr(token_records, "MAX_RECORDS", 5000)
    many = [record(number, requests=1) for number in range(5001)]
    status, answer = post(collector, *many)
    assert (status, answer["detail"]) == (413, "records: has 5001 entries, 5000 are allowed")
    assert post(collector, *many[1:])[0] == 200
    assert sum(hour.tokens.requests for hour in hours(dsn)) == 5000


def test_another_type_or_a_bad_gateway_is_refused(collector):
    assert post(collector, record(), headers={"Content-Type": "text/plain"})[0] == 415


def test_half_of_a_surrogate_pair_is_no_text(collector, dsn):
    """It has no UTF-8, and could not be stored."""
    for half in ("a\ud800", "\udc00b"):
        status, answer = post(collector, record(tenant=half))
        assert (status, "JSON is malformed" in answer["detail"]) == (400, True)
    assert hours(dsn) == []


@pytest.mark.parametrize("name", ["", "  ", "a\nb", "a\0b", "a\u200bb", "\u2028", "g" * 101])
def test_a_gateway_is_named_alike_in_a_body_and_a_command(collector, run, tmp_path, name):
    """What one refuses, the other refuses too: the records would be those of two gateways."""
    status, answer = post(collector, record(), gateway=name)
    assert (status, answer["detail"]) == (
        400,
        "gateway: a name of 1 to 100 printable characters is needed",
    )
    code, _, err = run("import", "inference", tmp_path / "none.csv", f"--gateway={name}")
    assert (code, "--gateway: must be a name of 1 to 100 printable characters" in err) == (2, True)


def test_the_token_of_a_node_may_not_speak_for_a_gateway(dsn):
    """Tokens of tenants move money between teams: a node's own token is not enough."""
    secrets = {}
    with psycopg.connect(dsn) as connection:
        for name, role, node in (
            ("one", "agent", "n1"),
            ("any", "agent", None),
            ("people", "finance", None),
        ):
            token = Token(0, name, role, node, None, "", made_ms=round(time.time() * 1000))
            secrets[name] = tokens.create(connection, token)[1]
    with running(dsn, require_tokens=True) as collector:
        codes = {
            name: post(collector, record(), headers={**JSON, "Authorization": f"Bearer {secret}"})[
                0
            ]
            for name, secret in secrets.items()
        }
        assert codes == {"one": 403, "any": 200, "people": 403}
        assert post(collector, record())[0] == 401


def test_a_sender_over_its_quota_comes_later(dsn):
    """A record counts as a sample."""
    with running(dsn, node_samples_per_second=1) as collector:
        many = [record(number) for number in range(2000)]
        assert post(collector, *many)[0] == 200
        status, answer = post(collector, record())
        assert (status, "more than 1 samples a second" in answer["detail"]) == (429, True), answer


def test_a_model_that_no_declared_server_answers_is_refused(collector, dsn, run, tmp_path):
    """Once servers are declared; before, every model is taken."""
    assert post(collector, record(1, model="gpt-5"))[0] == 200
    (tmp_path / "servers.toml").write_text(
        '[[inference]]\nname = "qwen"\nmodels = ["qwen*"]\nserved_by = { namespace = "llm" }\n'
    )
    assert run("apply", tmp_path / "servers.toml")[0] == 0
    status, answer = post(collector, record(2), record(3, model="gpt-5"))
    assert status == 400
    assert answer["detail"].startswith("records[1].model: no [[inference]] table names 'gpt-5'")
    assert post(collector, record(2))[0] == 200


def test_records_beside_a_metrics_page_are_refused(collector, dsn):
    """Both would count the same tokens; of a time without readings they are taken."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        store_pages(connection, [ReadPage("kong", "http://gw/metrics", (NOW - 30) * 1000)])
    status, answer = post(collector, record())
    assert status == 400
    assert "a metrics page of kong was read in the time of these records" in answer["detail"]
    assert post(collector, record(start=NOW - 300, end=NOW - 200))[0] == 200
