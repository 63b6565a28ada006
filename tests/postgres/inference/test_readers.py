"""Who sees what tenants pay, what doctor says, and what is known of a person."""

import json

import psycopg
import pytest

from fakes.collector import running
from fakes.fleet import DAY, HOUR, NOW_MS, OCTOBER, Held
from gpuledger_collector.accounting.inference import Asker, TokenRecord, Tokens
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.tokens import Token
from gpuledger_collector.services.model_servers import read_model_servers
from gpuledger_collector.storage.access.tokens import create
from gpuledger_collector.storage.ledger.token_usage import store_token_usage

pytestmark = pytest.mark.slow

QUERY = "/v1/inference?from=2025-10-01&to=2025-10-02"
OCTOBER_1 = Period(OCTOBER, OCTOBER + DAY)
DECLARED = """
[[inference]]
name = "qwen"
models = ["qwen"]
served_by = { app = "qwen" }

[[tenant]]
tenant = "ada"
owner = { team = "vision", project = "detector" }

[[tenant]]
tenant = "t-nlp"
owner = { team = "nlp" }
"""


@pytest.fixture
def served(fleet, run, tmp_path):
    """A server of one GPU for an hour at 3.60 USD, asked by two tenants and for a model of nobody."""
    fleet.capacity(1, 0, DAY)
    fleet.connection.execute(
        "INSERT INTO price (pool, gpu_model, purchase, rate_per_gpu_hour, currency,"
        " effective_from_ms, recorded_at) VALUES ('train', '', 'on_demand', 3.6, 'USD', 0, now())"
    )
    fleet.workload(1, app="qwen", team="platform")
    fleet.evidence([Held(1, 1, 0, HOUR, busy=HOUR)])
    store_token_usage(
        fleet.connection,
        [
            TokenRecord(
                Asker("gw", tenant, model), f"{tenant}-{model}", OCTOBER, OCTOBER, Tokens(tokens)
            )
            for tenant, model, tokens in (
                ("ada", "qwen", 100),
                ("t-nlp", "qwen", 300),
                ("x", "y", 1),
            )
        ],
    )
    path = tmp_path / "declared.toml"
    path.write_text(DECLARED)
    code, out, err = run("apply", path)
    assert code == 0, (out, err)
    assert run("chargeback", "--from", "2025-10-01", "--to", "2025-10-02")[0] == 0
    return fleet


def test_a_viewer_sees_the_lines_of_its_own_owner(served, dsn):
    with psycopg.connect(dsn) as connection:
        secrets = {
            name: create(connection, Token(0, name, role, None, owner, "", NOW_MS))[1]
            for name, role, owner in (
                ("vision", "viewer", {"team": "vision"}),
                ("nobody", "viewer", {"team": "nobody"}),
                ("finance", "finance", None),
            )
        }
    with running(dsn) as collector:

        def ask(who):
            status, _, answer = collector.request(
                "GET", QUERY, headers={"Authorization": f"Bearer {secrets[who]}"}
            )
            assert status == 200, answer
            return answer

        everything, own, nothing = ask("finance"), ask("vision"), ask("nobody")
        assert [(row["tenant"], row["cost_micro"]) for row in everything["items"]] == [
            ("t-nlp", 2_700_000),
            ("ada", 900_000),
        ]
        assert everything["servers"][0]["cost_micro"] == 3_600_000
        assert everything["notes"]
        assert [(row["tenant"], row["cost_micro"]) for row in own["items"]] == [("ada", 900_000)]
        assert own["servers"] == own["notes"] == []
        assert "nlp" not in json.dumps(own)
        assert nothing == {"items": [], "left_out": 0, "servers": [], "notes": []}
        status, _, answer = collector.request(
            "GET",
            f"{QUERY}&by=color",
            headers={"Authorization": f"Bearer {secrets['finance']}"},
        )
        assert status == 422, answer


@pytest.mark.parametrize("owner", [None, {"team": "nlp"}, {"project": "detector"}])
def test_what_a_page_is_narrowed_to_opens_nothing_to_a_viewer(served, owner):
    """A viewer sees its own lines alone, whatever owner was asked for, and one without an owner no
    sum of a server.
    """
    own = read_model_servers(served.connection, OCTOBER_1, {"team": "vision"}, owner)
    assert {line.keys["tenant"] for line in own.lines} == {"ada"}
    nobody = read_model_servers(served.connection, OCTOBER_1, {}, owner)
    for answer in (own, nobody):
        assert [server.summary for server in answer.servers] == [None] * len(answer.servers)
        assert not answer.notes
        assert all(line.owner for line in answer.lines)


def test_hours_of_a_closed_month_are_refused_over_http(served, dsn, run):
    code, out, err = run("close", "--period", "2025-10", "--allow-unpriced")
    assert code == 0, (out, err)
    with running(dsn) as collector:
        status, _, answer = collector.request("GET", f"{QUERY}&by=hour")
        assert status == 422
        assert "a closed month keeps how its days were split" in answer["detail"]


def test_doctor_says_what_moves_nothing(served, run, monkeypatch):
    now_ms = OCTOBER + DAY
    monkeypatch.setattr("gpuledger_collector.wiring.read_clock", lambda: now_ms)
    _, out, _ = run("doctor", "--format", "json")
    said = [row["text"] if "text" in row else str(row) for row in json.loads(out)]
    assert any("gw: y: 1 tokens match no" in text for text in said)


def test_a_person_who_asked_is_known_and_erased(served, run, monkeypatch):
    code, out, err = run("privacy", "show", "ada")
    assert code == 0, err
    assert "token_asker" in out
    assert "inference_tenant" in out
    code, out, err = run("privacy", "erase", "ada")
    assert code == 0, (out, err)
    (tenants,) = served.rows("SELECT array_agg(tenant ORDER BY tenant) FROM token_asker")
    assert "ada" not in tenants[0]
    assert any(tenant.startswith("erased-") for tenant in tenants[0])
