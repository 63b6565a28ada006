"""Who may report and who may read: tokens by role, node and owner, their life, and what each is
told.
"""

import time
from dataclasses import replace

import psycopg
import pytest

from fakes.batches import batch, body_of
from fakes.collector import MSGPACK, running
from gpuledger_collector.accounting.tokens import Token, hash_of
from gpuledger_collector.api.auth import keys as keys_module
from gpuledger_collector.api.auth.keys import Keys, KeysUnavailable
from gpuledger_collector.api.auth.principal import Denied
from gpuledger_collector.storage.access import tokens

NOW_MS = 1_790_000_000_000


@pytest.fixture
def secret(dsn):
    """Makes a token and gives its secret."""

    def make(role, node=None, owner=None, **changes):
        name = node or "/".join((owner or {}).values()) or role
        wanted = Token(
            0, name, role, node, owner, "", **{"made_ms": round(time.time() * 1000), **changes}
        )
        with psycopg.connect(dsn) as connection:
            return tokens.create(connection, wanted)[1]

    return make


def bearer(secret):
    return {"Authorization": f"Bearer {secret}"}


def send(collector, made, secret):
    return collector.post(body_of(made), {**MSGPACK, **bearer(secret)})


def test_an_agent_reports_its_own_node_and_no_other(dsn, secret):
    """Threat: forged usage.

    403 with one sentence, nothing of the other node written; a fleet token may report any.
    """
    own, fleet = secret("agent", "node-1"), secret("agent")
    with running(dsn) as collector:
        assert send(collector, batch(node="node-1"), own)[0] == 200
        status, answer = send(collector, batch(node="node-2"), own)
        assert status == 403
        assert (
            answer["detail"] == "this token is that of node node-1 and may not report another one"
        )
        with psycopg.connect(dsn) as connection:
            assert connection.execute("SELECT name FROM node").fetchall() == [("node-1",)]
        assert send(collector, batch(node="node-2"), fleet)[0] == 200
        assert send(collector, batch(seq=2), "gpl_guess")[0] == 401
        assert collector.post(body_of(batch(seq=2)))[0] == 401
        assert (
            'gpuledger_ingest_denied_total{status="403"} 1.0'
            in collector.request("GET", "/metrics")[2]
        )


def test_a_token_that_is_bound_to_a_node_is_none_for_remote_write(dsn, secret):
    """Remote write speaks for many nodes, so it asks for a token that may."""
    headers = {"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy"}
    with running(dsn) as collector:
        for given, status in (
            (secret("agent", "node-1"), 403),
            (secret("agent"), 204),
            (secret("finance"), 403),
        ):
            assert (
                collector.request("POST", "/api/v1/write", b"\x00", {**headers, **bearer(given)})[0]
                == status
            )
        assert collector.request("POST", "/api/v1/write", b"\x00", headers)[0] == 401


def test_an_agents_token_reads_nothing_and_a_readers_reports_nothing(dsn, secret):
    """Threat: a stolen agent token.

    It opens no answer; the roles of people do not open the ingest.
    """
    agent, finance = secret("agent", "node-1"), secret("finance")
    with running(dsn) as collector:
        schema = collector.request("GET", "/openapi.json")[2]
        paths = [
            path
            for path, item in schema["paths"].items()
            if path.startswith("/v1/") and "get" in item
        ]
        assert len(paths) >= 8
        query = "?from=2026-10-01&to=2026-10-02"
        for path in paths:
            asked = path.replace("{pool}", "train") + query
            assert collector.request("GET", asked, headers=bearer(agent))[0] == 403, path
            assert collector.request("GET", asked)[0] == 401, path
        assert collector.request("GET", "/v1/nodes", headers=bearer(finance))[0] == 200
        status, answer = send(collector, batch(), finance)
        assert (status, answer["detail"]) == (
            403,
            "the token of finance is for reading: reporting needs an agent's",
        )


def test_a_revoked_token_is_refused_within_seconds(dsn, secret, command):
    """By another process, as an admin would: every replica asks the database again once a second."""
    own = secret("agent", "node-1")
    with running(dsn) as collector:
        assert send(collector, batch(), own)[0] == 200
        assert command("token", "revoke", "node-1").exit_code == 0
        begun = time.monotonic()
        seq = 2
        while send(collector, batch(seq=seq), own)[0] == 200:
            seq += 1
            assert time.monotonic() - begun < keys_module.FRESH_SECONDS + 20
            time.sleep(0.1)
        # The last token is gone, and the door stays shut: it does not open because no token is
        # left.
        assert collector.post(body_of(batch(seq=100)))[0] == 401


def test_rotation_keeps_the_old_token_for_a_while(dsn, command):
    """Two live at a time: the agent can be given the new one while the old one still reports."""
    first = command("token", "create", "--role", "agent", "--node", "node-1").stdout.strip()
    made = command("token", "rotate", "node-1", "--grace-hours", "1")
    second = made.stdout.strip()
    assert first.startswith("gpl_")
    assert second.startswith("gpl_")
    assert first != second
    refused = command("token", "rotate", "node-1")
    assert refused.exit_code != 0
    assert "being rotated already" in str(refused.exception)
    assert "revoke one of them" in str(
        command("token", "create", "--role", "agent", "--node", "node-1").exception
    )
    with running(dsn) as collector:
        assert send(collector, batch(seq=1), first)[0] == 200
        assert send(collector, batch(seq=2), second)[0] == 200
    with psycopg.connect(dsn) as connection:
        ended, lives = tokens.list_all(connection)
        assert lives.expires_ms is None
        hour_ms = 3_600_000
        assert ended.live(ended.expires_ms - 1)
        assert not ended.live(ended.expires_ms)
        assert abs(ended.expires_ms - lives.made_ms - hour_ms) < 1000
    assert command("token", "rotate", "node-1", "--grace-hours", "0").exit_code != 0
    assert "2 of 2 tokens live" in command("token", "list").output


def test_secrets_are_shown_once_and_kept_as_hashes(dsn, command):
    """Neither the tables nor the lists hold a secret; its hash alone opens nothing."""
    made = command("token", "create", "--role", "admin", "--days", "30")
    given = made.stdout.strip()
    assert len(given) == 4 + 43
    with psycopg.connect(dsn) as connection:
        for table in ("token", "audit"):
            assert given not in str(connection.execute(f"SELECT t::text FROM {table} t").fetchall())
        (hashed,) = connection.execute("SELECT hash FROM token").fetchone()
    for shape in ("table", "json"):
        assert given not in command("token", "list", "--format", shape).output
    with running(dsn) as collector:
        assert collector.request("GET", "/v1/nodes", headers=bearer(given))[0] == 200
        assert collector.request("GET", "/v1/nodes", headers=bearer(hashed))[0] == 401


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--role", "agent"), "name the node"),
        (("--role", "finance", "--node", "n1"), "no node for the other roles"),
        (("--role", "viewer"), "name the subtree"),
        (("--role", "admin", "--owner", "team=vision"), "none for the other roles"),
        (("--role", "viewer", "--owner", "teem=vision"), "is not LEVEL=VALUE"),
        (("--role", "viewer", "--owner", "team="), "is not LEVEL=VALUE"),
    ],
)
def test_a_token_that_makes_no_sense_is_refused(command, arguments, words):
    """Exit code 2 and a sentence."""
    made = command("token", "create", *arguments)
    assert words in str(made.exception)
    assert made.exception.code == 2


def test_one_name_is_one_kind_of_token(command):
    """A second token of a name is its rotation, so it must have the same reach."""
    assert command("token", "create", "--role", "finance", "--name", "ada").exit_code == 0
    assert "of another kind" in str(
        command("token", "create", "--role", "admin", "--name", "ada").exception
    )
    assert "no live token" in str(command("token", "revoke", "bob").exception)


def test_tokens_are_asked_for_when_settings_say_so(dsn):
    """require_tokens shuts both doors before the first token is made."""
    with running(dsn, require_tokens=True) as collector:
        assert collector.post(body_of(batch()))[0] == 401
        assert collector.request("GET", "/v1/nodes")[0] == 401
    with running(dsn) as collector:
        assert collector.post(body_of(batch()))[0] == 200
        assert collector.request("GET", "/v1/nodes")[0] == 200


class Shelf:
    """A book of tokens in memory that counts what it is asked."""

    def __init__(self, *tokens):
        self.kept, self.asked, self.read, self.away = list(tokens), 0, 0, False

    def version(self):
        self.asked += 1
        if self.away:
            raise psycopg.OperationalError("it is away")
        return len(self.kept), [token.revoked_ms for token in self.kept]

    def tokens(self):
        self.read += 1
        return self.kept

    def note(self, used):
        self.noted = dict(used)


def test_ingest_costs_no_query_a_batch():
    """Within a second the database is asked once, and tokens are read again only when something
    changed.
    """
    now = [100.0]
    secret = tokens.new_secret()
    shelf = Shelf(Token(1, "n", "agent", "n", None, hash_of(secret), 0))
    keys = Keys(shelf, lambda: NOW_MS, steady=lambda: now[0])
    for _ in range(1000):
        keys.refresh(f"Bearer {secret}")
        assert keys.agent(f"Bearer {secret}").node == "n"
        now[0] += 0.002
    assert (shelf.asked, shelf.read) == (2, 1)
    now[0] += 60
    keys.refresh()
    assert shelf.noted == {1: NOW_MS}


def test_a_revoked_token_is_refused_a_second_later_by_every_process():
    """Whoever has checked just before a token was revoked checks again within a second, however
    often it is asked.
    """
    now = [100.0]
    secret = tokens.new_secret()
    live = Token(1, "n", "agent", "n", None, hash_of(secret), 0)
    shelf = Shelf(live)
    processes = [Keys(shelf, lambda: NOW_MS, steady=lambda: now[0]) for _ in range(3)]
    for keys in processes:
        keys.refresh(f"Bearer {secret}")
        now[0] += 0.3
    shelf.kept = [replace(live, revoked_ms=NOW_MS)]
    now[0] += keys_module.FRESH_SECONDS
    for keys in processes:
        keys.refresh(f"Bearer {secret}")
        with pytest.raises(Denied):
            keys.agent(f"Bearer {secret}")
    assert keys_module.FRESH_SECONDS <= 1


def test_guessing_tokens_does_not_flood_the_database():
    """A token that is not known may be new, so the database is asked, but at most ten times a
    second.
    """
    now = [100.0]
    shelf = Shelf()
    keys = Keys(shelf, lambda: NOW_MS, steady=lambda: now[0])
    for _ in range(1000):
        keys.refresh("Bearer gpl_guess")
        now[0] += 0.001
    assert shelf.asked == 10
    assert shelf.read == 1


def test_while_the_database_is_away_nobody_is_let_in():
    """What was known grows old in a second; the database is then asked at most once a second."""
    now = [100.0]
    shelf = Shelf()
    keys = Keys(shelf, lambda: NOW_MS, steady=lambda: now[0])
    keys.refresh()
    shelf.away = True
    keys.refresh()
    now[0] += keys_module.FRESH_SECONDS + 0.01
    for _ in range(50):
        with pytest.raises(KeysUnavailable, match="it is away"):
            keys.refresh()
    assert shelf.asked == 2
    shelf.away = False
    now[0] += keys_module.RETRY_SECONDS + 0.01
    keys.refresh()


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer ", "bearer x y", "Basic gpl_x", "Bearer \udcff", "Bearer \x00"]
)
def test_a_header_that_bears_nothing_is_401(header):
    """Whatever stands there, the answer is 401 and never a fault."""
    keys = Keys(Shelf(), lambda: NOW_MS, required=True)
    keys.refresh()
    for ask in (keys.agent, keys.reader):
        with pytest.raises(Denied) as denied:
            ask(header)
        assert denied.value.status == 401


def test_a_replaced_database_brings_its_own_tokens(dsn, secret):
    """The log's head differs, so that all tokens are read again; a lost connection is made anew."""
    given = secret("finance")
    with running(dsn) as collector:
        assert collector.request("GET", "/v1/nodes", headers=bearer(given))[0] == 200
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name ="
                " 'gpuledger-tokens'"
            )
        time.sleep(keys_module.FRESH_SECONDS + 0.1)
        assert collector.request("GET", "/v1/nodes", headers=bearer(given))[0] == 200
        assert collector.request("GET", "/v1/nodes")[0] == 401
