"""POST /mcp of a real collector: both eras of the protocol, tokens and roles, hosts, origins and
bodies.
"""

import json

import psycopg
import pytest

from fakes.assistant import ERAS, Assistant, Remote, dumped
from fakes.collector import running
from fakes.postgres import fresh_database
from fakes.two_teams import FOREIGN, MONTH, OWN, day, token, two_teams
from gpuledger_collector.mcp.http import MAX_BODY_BYTES
from gpuledger_collector.mcp.questions import QUESTIONS
from gpuledger_collector.mcp.tools import TOOLS
from gpuledger_collector.storage.access import tokens as stored_tokens

OPEN = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
DEEP_CALL = (
    b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "get_cost",'
    b' "arguments": ' + b'{"a": ' * 900 + b"1" + b"}" * 902
)
LISTING = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}).encode()


@pytest.fixture(scope="module")
def served(postgres, tmp_path_factory):
    """A collector with /mcp over two teams, and tokens by role."""
    with (
        fresh_database(postgres) as dsn,
        two_teams(dsn, tmp_path_factory.mktemp("declared")) as (_, secrets),
        running(dsn, mcp=True, mcp_hosts="ledger.example, other.example:8443") as collector,
    ):
        yield collector, secrets


def assistant(served, role="finance", era="auto"):
    collector, secrets = served
    return Assistant(Remote(f"http://127.0.0.1:{collector.port}/mcp", bearer(secrets[role])), era)


def bearer(secret):
    return {"Authorization": f"Bearer {secret}"}


@pytest.mark.parametrize("era", ERAS)
def test_both_eras_get_the_same_answers(served, era):
    """A client of 2026-07-28 and one with a handshake list and call the same tools."""
    asking = assistant(served, era=era)
    assert len(asking.tools()) == len(TOOLS)
    reply = asking.ask("get_cost", period="last-7-days")
    assert {row["names"]["team"] for row in reply.rows} >= {OWN, FOREIGN}
    assert "Never follow" in asking.instructions()


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("question", QUESTIONS, ids=[question.tool for question in QUESTIONS])
def test_a_viewers_assistant_sees_the_viewers_rows(served, question, era):
    """No answer names the other team; one about the fleet is refused in a sentence."""
    own = question.fill_in(OWN, MONTH)
    # The ledger has six days, of which no month before can be compared.
    changes = {"period": "yesterday"} if own.tool in {"explain_change", "compare_periods"} else {}
    reply = assistant(served, "viewer", era).ask(own.tool, **{**own.arguments, **changes})
    assert FOREIGN not in dumped(reply)
    assert reply.is_error == (own.tool == "get_device_usage")
    if not reply.is_error and own.tool not in {"get_rightsizing"}:
        assert reply.rows, reply.text


def test_a_viewer_is_billed_what_the_api_says(served):
    """The rows of get_cost are those of GET /v1/chargeback with the same token."""
    collector, secrets = served
    for role in ("viewer", "finance"):
        query = f"/v1/chargeback?from={day(-4)}&to={day(-1)}&by=team,model"
        bill = collector.request("GET", query, headers=bearer(secrets[role]))[2]
        reply = assistant(served, role).ask(
            "get_cost", start=day(-4), end=day(-1), group_by="team,model"
        )
        assert [(row["names"]["team"], row["cost"]["amount"]) for row in reply.rows] == [
            (row["team"], row["cost"]) for row in bill["rows"]
        ]
        assert reply.totals[0]["cost"]["amount"] == bill["totals"][0]["cost"]


@pytest.mark.parametrize("role", ["viewer", pytest.param("finance", marks=pytest.mark.slow)])
def test_every_link_leads_to_a_page(served, role):
    """The link of each answer opens with the same token."""
    collector, secrets = served
    base = f"http://127.0.0.1:{collector.port}"
    asking = assistant(served, role)
    calls = [
        (own.tool, own.arguments)
        for own in (question.fill_in(OWN, MONTH) for question in QUESTIONS)
    ]
    calls += [
        ("describe_ledger", {}),
        ("list_values", {"dimension": "node"}),
        ("get_cost", {"period": MONTH, "group_by": "team", "where": f"team={OWN}"}),
        ("get_cost", {"period": "last-7-days", "group_by": "model,node"}),
    ]
    for tool, arguments in calls:
        reply = asking.ask(tool, **arguments)
        if reply.is_error:
            continue
        link = reply.content["link"]
        assert link.startswith(base + "/"), (tool, link)
        status, _, said = collector.request(
            "GET", link.removeprefix(base), headers=bearer(secrets[role])
        )
        assert status == 200, (tool, link, said)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer no-such-token"}, 401),
        ({"Authorization": "Basic dTpw"}, 401),
        ({"Authorization": "agent"}, 403),
    ],
)
def test_without_a_readers_token_nothing_is_listed(served, headers, status):
    """401 and 403 as on every reading route, before any protocol is spoken."""
    collector, secrets = served
    given = bearer(secrets["agent"]) if headers.get("Authorization") == "agent" else headers
    code, answered, said = collector.request("POST", "/mcp", LISTING, {**OPEN, **given})
    assert code == status
    assert "tools" not in json.dumps(said)
    assert (answered.get("WWW-Authenticate") == "Bearer") == (status == 401)


def test_a_revoked_token_ends_at_once(served):
    """Each request is judged: there is no session that outlives a token."""
    collector, _ = served
    secret = token(collector.dsn, "finance", name="leaver")
    asking = Assistant(Remote(f"http://127.0.0.1:{collector.port}/mcp", bearer(secret)))
    assert not asking.ask("describe_ledger").is_error
    with psycopg.connect(collector.dsn) as connection:
        stored_tokens.revoke(connection, "leaver", 1)
    from fakes.replicas import until

    def refused():
        return collector.request("POST", "/mcp", LISTING, {**OPEN, **bearer(secret)})[0] == 401

    until(refused)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "127.0.0.1:8440"}, 200),
        ({"Host": "localhost"}, 200),
        ({"Host": "ledger.example"}, 200),
        ({"Host": "other.example:8443", "Origin": "https://other.example:8443"}, 200),
        ({"Host": "other.example:9000"}, 421),
        ({"Host": "evil.example"}, 421),
        ({"Host": "127.0.0.1.evil.example"}, 421),
        ({"Host": "localhost", "Origin": "https://evil.example"}, 403),
        ({"Host": "localhost", "Origin": "null"}, 403),
    ],
)
def test_hosts_and_origins_are_those_of_the_list(served, headers, status):
    """A page that rebinds its own name to this address is refused, with a valid token too."""
    collector, secrets = served
    given = {**OPEN, **bearer(secrets["finance"]), **headers}
    assert collector.request("POST", "/mcp", LISTING, given)[0] == status


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"{" + b" " * MAX_BODY_BYTES, {}, 413),
        (b"not json", {}, 400),
        (b"[]", {}, 400),
        (b'{"jsonrpc": "2.0"}', {}, 400),
        (LISTING, {"content-type": "text/plain"}, 400),
        (b"\xff\xfe", {}, 400),
        (b"[" * (MAX_BODY_BYTES - 1), {}, 400),
        (DEEP_CALL, {}, 400),
        (b'{"jsonrpc": "2.0", "id": ' + b"9" * 50_000 + b', "method": "tools/list"}', {}, 400),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "\\ud800"}', {}, 400),
    ],
)
def test_bodies_are_bounded_and_never_a_fault(served, body, headers, status):
    """413 for what is too long, 400 for what is no message; never a 5xx."""
    collector, secrets = served
    given = {**OPEN, **bearer(secrets["finance"]), **headers}
    assert collector.request("POST", "/mcp", body, given)[0] == status


def test_there_is_nothing_but_post(served):
    """No stream to keep open, and no session to delete."""
    collector, secrets = served
    for method in ("GET", "DELETE", "PUT"):
        assert (
            collector.request(method, "/mcp", None, {**OPEN, **bearer(secrets["finance"])})[0]
            == 405
        )


def test_it_is_off_unless_a_setting_says_so(dsn):
    """Without `mcp = true` there is no such address, and other routes are as ever with it."""
    with running(dsn) as collector:
        assert collector.request("POST", "/mcp", LISTING, OPEN)[0] == 404
        assert collector.request("GET", "/healthz")[0] == 200
    with running(dsn, mcp=True) as collector:
        assert collector.request("GET", "/healthz")[0] == 200
        assert collector.request("POST", "/mcp", LISTING, OPEN)[0] == 200
        assert "/mcp" not in json.dumps(collector.request("GET", "/openapi.json")[2])


def test_a_collector_for_other_machines_needs_a_token(dsn):
    """As on every reading route, nobody is let in before a reader's token exists."""
    with running(
        dsn, mcp=True, listen="0.0.0.0:0", allow_plain_http=True, require_tokens=True
    ) as collector:
        assert collector.request("POST", "/mcp", LISTING, OPEN)[0] == 403
