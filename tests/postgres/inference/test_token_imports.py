"""Tokens from files and from LiteLLM's Postgres, by the command: each request counts once, and a
bad row keeps all of its file out.
"""

import os
import re
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from fakes.postgres import fresh_database
from gpuledger_collector.accounting.inference import Asker, TokenHour, Tokens
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.storage.ledger.token_counters import ReadPage, store_pages
from gpuledger_collector.storage.ledger.token_usage import read_token_hours
from gpuledger_common import bounded_file

HEADER = "start,end,model,tenant,input_tokens,cached_tokens,output_tokens"
GOOD = "2026-10-01T08:00:00Z,2026-10-01T09:00:00Z,qwen,vision,1200,200,300"
EIGHT = 1_790_841_600_000
TABLE = """CREATE TABLE "LiteLLM_SpendLogs" (request_id text PRIMARY KEY, call_type text NOT NULL,
api_key text NOT NULL DEFAULT '', spend double precision NOT NULL DEFAULT 0,
total_tokens integer NOT NULL DEFAULT 0, prompt_tokens integer NOT NULL DEFAULT 0,
completion_tokens integer NOT NULL DEFAULT 0, "startTime" timestamp(3) NOT NULL,
"endTime" timestamp(3) NOT NULL, "completionStartTime" timestamp(3), model text NOT NULL DEFAULT '',
model_id text DEFAULT '', model_group text DEFAULT '', custom_llm_provider text DEFAULT '',
api_base text DEFAULT '', "user" text DEFAULT '', metadata jsonb DEFAULT '{}',
cache_hit text DEFAULT '', cache_key text DEFAULT '', request_tags jsonb DEFAULT '[]',
team_id text, organization_id text, end_user text, requester_ip_address text,
messages jsonb DEFAULT '{}', response jsonb DEFAULT '{}', session_id text, status text);
CREATE INDEX ON "LiteLLM_SpendLogs" ("startTime", request_id)"""
"""LiteLLM's table by its published schema.prisma (v1.110.2)."""
INSERT = """INSERT INTO "LiteLLM_SpendLogs" (request_id, call_type, prompt_tokens,
completion_tokens, "startTime", "endTime", model, api_base, cache_hit, team_id)
VALUES (%s, 'acompletion', %s, %s, %s, %s, 'hosted_vllm/qwen', 'http://10.0.0.1:8000/v1', %s, %s)"""


def hours(dsn):
    with psycopg.connect(dsn) as connection:
        return read_token_hours(connection, Period(0, 10**13))


@pytest.fixture
def tokens(tmp_path):
    def write(*rows):
        path = tmp_path / "tokens.csv"
        path.write_text("\n".join([HEADER, *rows]) + "\n")
        return path

    return write


def test_a_file_is_imported_once(run, dsn, tokens):
    """The same file again changes nothing; a dry run writes nothing."""
    path = tokens(GOOD)
    code, out, _ = run("import", "inference", path, "--gateway", "kong", "--dry-run")
    assert (code, hours(dsn)) == (0, [])
    assert "1 added" in out
    assert run("import", "inference", path, "--gateway", "kong")[0] == 0
    expected = [TokenHour(Asker("kong", "vision", "qwen"), EIGHT, Tokens(1200, 200, 300))]
    assert hours(dsn) == expected
    code, out, _ = run("import", "inference", path, "--gateway", "kong")
    assert (code, out) == (0, "requests: 0 added, 1 unchanged\n")
    assert hours(dsn) == expected


def test_a_bad_row_keeps_all_of_its_file_out(run, dsn, tokens):
    """Row and reason, and nothing is imported without --skip-bad."""
    path = tokens(GOOD, GOOD.replace("1200,200", "100,200").replace("qwen", "other"))
    code, _, err = run("import", "inference", path)
    assert (code, hours(dsn)) == (2, [])
    assert "tokens.csv:3:cached_tokens: 200 are more than the 100 input tokens" in err
    assert "--skip-bad imports the others" in err
    assert run("import", "inference", path, "--skip-bad")[0] == 0
    assert [hour.asker.model for hour in hours(dsn)] == ["qwen"]


@pytest.mark.parametrize("identity", ["", "req-1"])
def test_a_name_that_was_erased_does_not_come_back_with_its_file(run, dsn, tmp_path, identity):
    """Neither with the same file nor with a greater count; no table keeps it beside the audit."""
    path = tmp_path / "tokens.csv"
    for given in (1200, 1200, 1300):
        row = GOOD.replace("vision,1200", f"ada.lovelace,{given}")
        path.write_text(f"{HEADER},id\n{row},{identity}\n")
        code, _, err = run("import", "inference", path)
        assert code == 0, err
        if given == 1200:
            assert run("privacy", "erase", "ada.lovelace")[0] == 0
        (hour,) = hours(dsn)
        assert re.fullmatch(r"erased-[0-9a-f]{8}", hour.asker.tenant)
        assert hour.tokens == Tokens(given, 200, 300)
    with psycopg.connect(dsn) as connection:
        stored = connection.execute("SELECT t::text FROM token_request t").fetchall()
        stored += connection.execute("SELECT t::text FROM token_hour t").fetchall()
    assert "ada" not in str(stored)


def test_claims_of_a_file_are_marked(run, dsn, tokens):
    """Tenants that callers claim are stored as claims."""
    assert run("import", "inference", tokens(GOOD), "--claims")[0] == 0
    assert [hour.asker.trust for hour in hours(dsn)] == ["claim"]


@pytest.fixture
def litellm(postgres, tmp_path):
    """LiteLLM's database, whose DSN stands in a file."""
    with fresh_database(postgres) as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(TABLE)
        path = tmp_path / "litellm.dsn"
        path.write_text(dsn)
        path.chmod(0o600)
        yield connection, path


def test_the_logs_of_a_database_are_counted_once_by_request_id(run, dsn, litellm, monkeypatch):
    """Page by page, a retry as a row of its own, without what LiteLLM answered from its cache; a
    later import reads what is new, and what came late.
    """
    monkeypatch.setattr("gpuledger_collector.ingest.litellm_database.PAGE_ROWS", 3)
    connection, path = litellm
    for number in range(10):
        # Three requests at one instant lie across the border of a page.
        second = number // 4
        row = (f"req-{number}", 100, 10, f"2026-10-01 08:00:{second:02d}", "2026-10-01 08:01:00")
        connection.execute(INSERT, (*row, "True" if number == 9 else "False", "e8d1"))
    code, out, err = run("import", "litellm", "--database", path)
    assert (code, out) == (
        0,
        "requests: 9 added, 0 unchanged; 1 request answered from the gateway's cache: left out\n",
    ), err
    asker = Asker("litellm", "e8d1", "hosted_vllm/qwen", "http://10.0.0.1:8000/v1")
    assert hours(dsn) == [TokenHour(asker, EIGHT, Tokens(900, 0, 90, 9))]
    late = ("late", 5, 5, "2026-10-01 07:30:00", "2026-10-01 07:31:00", "", None)
    connection.execute(INSERT, late)
    code, out, _ = run("import", "litellm", "--database", path)
    assert out.startswith("requests: 1 added, 9 unchanged")
    assert {hour.asker.tenant for hour in hours(dsn)} == {"e8d1", ""}


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://reader:two words@h",
        "host=h password=two words",
        "postgresql://reader:a/words@h/litellm",
        "postgresql://reader:5/words@h/litellm",
        "postgresql://reader:a@words@h/litellm",
        "host=h passwords=words",
        "words",
    ],
)
def test_nothing_of_a_bad_dsn_is_said(run, tmp_path, text):
    """A password may be in it, and in what libpq says of it."""
    path = tmp_path / "litellm.dsn"
    path.write_text(text)
    path.chmod(0o600)
    code, out, err = run("import", "litellm", "--database", path)
    assert (code, out) == (2, "")
    assert "litellm.dsn holds no valid DSN" in err
    assert "words" not in err


def test_cached_tokens_are_read_from_the_metadata_and_nothing_else_of_it(run, dsn, litellm):
    """Where the real LiteLLM writes them (1.106.12): for answers, for streams, and not at all."""
    connection, path = litellm
    metadata = (
        '{"additional_usage_values": {"cache_read_input_tokens": 4}, "user_agent": "curl"}',
        '{"usage_object": {"prompt_tokens_details": {"cached_tokens": 50}}}',
        '{"additional_usage_values": {"prompt_tokens_details": null}, "usage_object": null}',
    )
    for number, text in enumerate(metadata):
        row = (f"r{number}", 100, 10, "2026-10-01 08:00:00", "2026-10-01 08:01:00", "", "e8d1")
        connection.execute(INSERT, row)
        connection.execute(
            'UPDATE "LiteLLM_SpendLogs" SET metadata = %s WHERE request_id = %s', (text, row[0])
        )
    code, _, err = run("import", "litellm", "--database", path)
    assert code == 0, err
    assert [hour.tokens for hour in hours(dsn)] == [Tokens(300, 54, 30, 3)]


def test_a_role_that_may_not_read_the_metadata_is_enough(run, dsn, litellm):
    """The grant of the guide without its metadata: cached tokens are not known, and it is said."""
    connection, path = litellm
    guide = (Path(__file__).parents[3] / "docs" / "guides" / "gateways.md").read_text()
    (grant,) = re.findall(r"^GRANT SELECT .*?;$", guide, re.S | re.M)
    row = ("r1", 100, 10, "2026-10-01 08:00:00", "2026-10-01 08:01:00", "", "e8d1")
    connection.execute(INSERT, row)
    database = connection.info.dbname
    connection.execute("CREATE ROLE ledger_reader LOGIN PASSWORD 'x'")
    try:
        allowed = grant.replace("TO ledger", "TO ledger_reader")
        connection.execute(f'GRANT CONNECT ON DATABASE "{database}" TO ledger_reader')
        connection.execute(allowed.replace(", metadata", ""))
        path.write_text(make_conninfo(path.read_text(), user="ledger_reader", password="x"))
        code, out, err = run("import", "litellm", "--database", path)
        assert (code, out) == (0, "requests: 1 added, 0 unchanged\n"), err
        assert "how much of the input was cached is not known" in err
        connection.execute(allowed)
        assert "not known" not in run("import", "litellm", "--database", path)[2]
    finally:
        connection.execute('REVOKE ALL ON "LiteLLM_SpendLogs" FROM ledger_reader')
        connection.execute(f'REVOKE ALL ON DATABASE "{database}" FROM ledger_reader')
        connection.execute("DROP ROLE ledger_reader")


def test_a_bad_row_of_a_database_keeps_all_out(run, dsn, litellm):
    connection, path = litellm
    for name, end in (("good", "09"), ("bad", "07")):
        row = (name, 1, 1, "2026-10-01 08:00:00", f"2026-10-01 {end}:00:00", "", "t")
        connection.execute(INSERT, row)
    code, _, err = run("import", "litellm", "--database", path)
    assert (code, hours(dsn)) == (2, [])
    assert "endTime: lies before startTime" in err
    assert run("import", "litellm", "--database", path, "--skip-bad")[0] == 0
    assert sum(hour.tokens.requests for hour in hours(dsn)) == 1


def test_a_pipe_with_a_dsn_that_nobody_writes_is_not_waited_for(run, dsn, tmp_path, monkeypatch):
    """Threat: a secret that never comes holds the command."""
    monkeypatch.setattr(bounded_file, "PIPE_SECONDS", 0.2)
    os.mkfifo(tmp_path / "dsn")
    assert run("import", "litellm", "--database", tmp_path / "dsn")[0] in {2, 3}
    assert hours(dsn) == []


def test_a_database_that_is_away_or_is_none_of_litellm_is_another_code(run, dsn, tmp_path):
    """Exit 3 with the reason."""
    path = tmp_path / "x.dsn"
    path.write_text(dsn)
    path.chmod(0o600)
    code, _, err = run("import", "litellm", "--database", path)
    assert code == 3
    assert 'relation "LiteLLM_SpendLogs" does not exist' in err
    path.write_text("postgresql://nobody@127.0.0.1:1/none")
    assert run("import", "litellm", "--database", path)[0] == 3


def test_logs_beside_a_metrics_page_are_refused(run, dsn, tokens):
    """Both would count the same tokens; --also says that they are others."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        store_pages(connection, [ReadPage("kong", "http://gw/metrics", EIGHT + 60_000)])
    code, _, err = run("import", "inference", tokens(GOOD), "--gateway", "kong")
    assert (code, hours(dsn)) == (2, [])
    assert "metrics pages of kong were read in the time of these records too" in err
    assert run("import", "inference", tokens(GOOD), "--gateway", "kong", "--also")[0] == 0
    assert len(hours(dsn)) == 1
    before = tokens(GOOD.replace("T08:", "T06:").replace("T09:", "T07:"))
    assert run("import", "inference", before, "--gateway", "kong")[0] == 0
    assert len(hours(dsn)) == 2


SERVER = """[[inference]]
name = "qwen"
gateway = "kong"
models = ["qwen*"]
served_by = { namespace = "llm" }
"""


def test_a_model_that_no_declared_server_answers_is_a_bad_row(run, dsn, tokens, tmp_path):
    """Row and reason, once servers are declared; LiteLLM's logs hold models of others too, which
    stay and move nothing.
    """
    (tmp_path / "servers.toml").write_text(SERVER)
    assert run("apply", tmp_path / "servers.toml")[0] == 0
    path = tokens(GOOD, GOOD.replace("qwen", "gpt-5"))
    code, _, err = run("import", "inference", path, "--gateway", "kong")
    assert (code, hours(dsn)) == (2, [])
    assert "tokens.csv:3:model: no [[inference]] table names 'gpt-5'" in err
    code, out, err = run("import", "inference", path, "--gateway", "kong", "--skip-bad")
    assert (code, out) == (0, "requests: 1 added, 0 unchanged\n"), err
    assert [hour.asker.model for hour in hours(dsn)] == ["qwen"]
    logs = tmp_path / "spend.csv"
    logs.write_text(
        "request_id,startTime,endTime,model,prompt_tokens,completion_tokens,cache_hit,team_id\n"
        "1,2026-10-01 08:00:00,2026-10-01 08:00:01,gpt-5,1,1,False,e8d1\n"
    )
    assert run("import", "litellm", logs)[0] == 0
    assert {hour.asker.model for hour in hours(dsn)} == {"qwen", "gpt-5"}
