"""What an attacker feeds: markup in every page, numbers that are none, files that bomb, names that
climb folders.
"""

import io
import json
import logging
import re
import time
from pathlib import Path

import psycopg
import pytest
from typer.testing import CliRunner

from fakes import two_teams as made
from fakes.postgres import fresh_database
from fakes.two_teams import day, two_teams
from gpuledger_collector.accounting.attribution import fnmatchcase
from gpuledger_collector.api import (
    fleet_map_page,
    fleet_pages,
    handbook,
    list_pages,
    model_page,
    pages,
    pool_page,
    queue_page,
    spend_page,
)
from gpuledger_collector.api.context import ReadContext
from gpuledger_collector.api.page_routes import HourlyCache
from gpuledger_collector.cli import build
from gpuledger_collector.cli.common import explain
from gpuledger_collector.insight.pool_outlook import Outlook
from gpuledger_collector.storage.server import backup

MARKUP = "<script>alert(1)</script>"
CLIMBING = "../../climbed"
MONTH = day(-2)[:7]


@pytest.fixture(scope="module")
def marked(postgres, tmp_path_factory):
    """A collector whose second team, its pool, node, job and budget are called by markup."""
    with pytest.MonkeyPatch.context() as patch, fresh_database(postgres) as dsn:
        patch.setattr(made, "FOREIGN", MARKUP)
        with two_teams(dsn, tmp_path_factory.mktemp("declared")) as fleet:
            with psycopg.connect(dsn) as connection:
                for column, table in (
                    ("name", "workload"),
                    ("user_name", "workload"),
                    ("model", "accelerator"),
                ):
                    connection.execute(f"UPDATE {table} SET {column} = %s", (MARKUP,))
            yield fleet


def test_markup_in_names_is_text_on_every_page(marked):
    """Threat: markup in names.

    Every page that the collector serves, found by itself, shows it escaped.
    """
    collector, secrets = marked
    names = {"level": "team", "month": MONTH, "owner": "%3Cscript%3Ealert(1)%3C%2Fscript%3E"}
    names |= {"pool": f"{names['owner']}-pool", "job": f"{names['owner']}-1"}
    names |= {"gpu": f"GPU-{names['owner']}"}
    context, outlook = ReadContext(None, None, None), HourlyCache(Outlook)
    routers = [module.router(context, outlook) for module in (pages, fleet_pages)]
    routers += [
        module.router(context)
        for module in (list_pages, model_page, pool_page, queue_page, spend_page, fleet_map_page)
    ]
    paths = [
        route.path for router in (*routers, handbook.router(dict, None)) for route in router.routes
    ]
    assert {
        "/",
        "/docs",
        "/idle",
        "/anomalies",
        "/jobs",
        "/models",
        "/demand",
        "/queues",
        "/spend",
        "/fleet",
        "/trust",
    } <= set(paths)
    showing = 0
    for path in paths:
        asked = re.sub(r"{(\w+)(:\w+)?}", lambda found: names[found[1]], path)
        status, headers, text = collector.request(
            "GET", asked, headers={"Authorization": f"Bearer {secrets['admin']}"}
        )
        assert status < 500, asked
        # The collector's own scripts are files of its own, which its policy names.
        foreign = re.sub(r'<script src="/assets/[\w.]+" defer></script>', "", str(text))
        assert "<script" not in foreign.lower(), asked
        showing += "&lt;script&gt;" in str(text)
        if "html" in headers.get("Content-Type", ""):
            assert "default-src 'none'" in headers["Content-Security-Policy"], asked
    assert showing >= 8


def test_markup_in_the_report_of_a_run_is_text(marked):
    """The same in the page that `gpuledger runs show` writes, and in statements as files."""
    shown = CliRunner().invoke(
        build(), ["runs", "show", f"{MARKUP}-1", "--format", "html", "--dsn", marked[0].dsn]
    )
    assert shown.exit_code == 0, shown.output
    assert "&lt;script&gt;" in shown.stdout
    assert "<script" not in shown.stdout


BODIES = (
    b"NaN",
    b"Infinity",
    b'{"a": NaN}',
    b"1e400",
    b"9" * 5000,
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b"\xff\xfe{",
    b'"\\ud800"',
    b'{"source": "x", "at": 1e400, "waiting": []}',
    b'{"source": "x", "at": NaN, "waiting": []}',
    b'{"source": "x", "at": 1, "waiting": [{"workload_id": "a", "gpus": 1e308}]}',
    b'{"source": "x", "at": 1, "waiting": [{"workload_id": "a", "gpus": 1, "submitted": 1e308}]}',
    b'{"source": "\\ud800", "at": 1, "waiting": []}',
    b'{"source": "x", "at": "9999999999-01-01T00:00:00Z", "waiting": []}',
    b'{"steps": ' + b"9" * 400 + b"}",
    b'{"steps": 1e400}',
    b'{"tokens": 1, "at": "0000-00-00T00:00:00Z"}',
    b'{"tokens": -1}',
    b'{"tokens": 1, "at": "9999-12-31T23:59:59Z"}',
    b'{"owner": {"team": "a"}, "from": "0001-01-01", "to": "9999-12-31", "reason": "x"}',
    b'{"owner": {"team": 1e999}, "from": "2026-01-01", "to": "2026-01-02", "reason": "x"}',
    b'{"note": "x", "accept": true, "to": {"team": "\\ud800"}}',
)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/queue",
        "/v1/inference",
        "/v1/batches",
        "/v1/runs/x/progress",
        "/v1/disputes",
        "/v1/disputes/1/answers",
        "/v1/disputes/1/resolution",
        "/v1/disputes/1/preview",
        "/api/v1/write",
    ],
)
def test_numbers_that_are_none_and_depths_are_refused(marked, path):
    """Threat: huge integers, NaN, infinities, nesting, broken Unicode.

    Always a 4xx with a sentence, never a fault.
    """
    collector, secrets = marked
    for role in ("agent", "admin"):
        for body in BODIES:
            headers = {
                "Authorization": f"Bearer {secrets[role]}",
                "Content-Type": "application/json",
            }
            status, _, answer = collector.request("POST", path, body, headers)
            assert 400 <= status < 500 or (status == 200 and path == "/v1/queue"), (
                path,
                body[:60],
                status,
                answer,
            )


def test_no_request_writes_a_line_of_its_own_into_the_log(marked, caplog):
    """Threat: log injection. What a request says is one line, control characters spelt out."""
    collector, secrets = marked
    forged = "x%0d%0a2026-01-01%20INFO%20forged%1b[2J"
    with caplog.at_level(logging.DEBUG):
        for path in (
            f"/v1/scaling/{forged}",
            f"/statements/team/{forged}/{MONTH}",
            f"/{forged}",
            f"/v1/nodes?after={forged}",
        ):
            collector.request("GET", path, headers={"Authorization": f"Bearer {secrets['admin']}"})
        headers = {
            "Authorization": f"Bearer {secrets['agent']}",
            "Content-Type": "application/json",
        }
        collector.request(
            "POST", "/v1/batches", b'{"version": 1, "node": "x\\r\\nforged\\u001b[2J"}', headers
        )
    assert caplog.records
    for record in caplog.records:
        said = record.getMessage()
        assert not any(sign in said for sign in "\r\n\x1b"), said


def test_a_statement_stays_in_its_folder(dsn, tmp_path, monkeypatch):
    """Threat: path traversal.

    An owner that is called like a path is a file in the folder that was named.
    """
    monkeypatch.setattr(made, "FOREIGN", CLIMBING)
    folder = tmp_path / "a" / "b" / "statements"
    with two_teams(dsn, tmp_path):
        pass
    written = CliRunner().invoke(
        build(), ["statement", "--all", "--period", MONTH, "--dir", str(folder), "--dsn", dsn]
    )
    assert written.exit_code == 0, written.output
    files = {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()}
    assert {path.parent for path in files if path.suffix == ".html"} == {Path("a/b/statements")}
    assert not list(tmp_path.parent.glob("*climbed*"))


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 50_000,
        "[a" + ".a" * 5_000 + "]\nb = 1",
        "[[price]]\nrate_per_gpu_hour = " + "9" * 50_000,
        "[[price]]\nrate_per_gpu_hour = 1e999999999",
        '[[rule]]\nname = "\\u0000"',
        "\x00" * 1000,
        "[[budget]]\namount = nan",
    ],
)
def test_a_file_that_bombs_is_refused_in_a_sentence(dsn, tmp_path, text):
    """Threat: files made to break what reads them. Exit 2 and a sentence, soon."""
    (tmp_path / "bomb.toml").write_text(text)
    begun = time.monotonic()
    done = CliRunner().invoke(build(), ["apply", str(tmp_path / "bomb.toml"), "--dsn", dsn])
    code = done.exit_code if isinstance(done.exception, SystemExit) else explain(done.exception)[1]
    assert code == 2, (done.output, done.exception)
    assert time.monotonic() - begun < 60


def test_a_pattern_of_a_rule_is_matched_soon():
    """Threat: patterns that take for ever. Many stars against a long value."""
    begun = time.monotonic()
    assert not fnmatchcase("a" * 4_000, "*a" * 40 + "*b")
    assert time.monotonic() - begun < 20


def test_secrets_are_in_no_output_log_or_argument(dsn, tmp_path, caplog, monkeypatch):
    """Threat: leaked secrets.

    A token and the database's password stand in no log, list, audit or command line.
    """
    run = CliRunner()
    with caplog.at_level(logging.DEBUG):
        made_token = run.invoke(
            build(), ["token", "create", "--role", "admin", "--name", "root", "--dsn", dsn]
        )
        secret = next(word for word in made_token.output.split() if word.startswith("gpl_"))
        password = psycopg.conninfo.conninfo_to_dict(dsn)["password"]
        seen = [
            run.invoke(build(), [*words.split(), "--dsn", dsn]).output
            for words in (
                "token list",
                "token list --format json",
                "audit list --format json",
                "doctor",
                "doctor --format json",
                "db check",
                "periods",
            )
        ]
        called: list[list[str]] = []
        plain = backup.subprocess.run
        monkeypatch.setattr(
            backup.subprocess,
            "run",
            lambda given, **more: called.append(given) or plain(given, **more),
        )
        assert (
            run.invoke(build(), ["db", "backup", str(tmp_path / "x.dump"), "--dsn", dsn]).exit_code
            == 0
        )
        wrong = run.invoke(build(), ["db", "check", "--dsn", dsn.replace("dbname=", "dbname=no_")])
        seen.append(explain(wrong.exception)[0])
    assert called
    told = io.StringIO()
    told.write(
        "\n".join([*seen, caplog.text, json.dumps([[str(word) for word in one] for one in called])])
    )
    assert password not in told.getvalue()
    assert secret not in told.getvalue()
