"""Names of any characters: each output shows them in one line with escapes, and each of them has
its page.
"""

import csv
import io
import json
import logging
import re
import unicodedata
from dataclasses import replace
from html import unescape
from operator import itemgetter
from urllib.parse import unquote, urljoin

import psycopg
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from markupsafe import Markup
from psycopg import sql
from typer.testing import CliRunner

from fakes.pages import Page
from fakes.postgres import fresh_database
from fakes.profiles import examples
from fakes.two_teams import day, two_teams
from gpuledger_agent.daemon import LineFormatter
from gpuledger_agent.diagnostics import once_text
from gpuledger_collector.accounting.period import UTC_DAYS
from gpuledger_collector.cli import build
from gpuledger_collector.config import toml
from gpuledger_collector.export import beancount, html, plots, site
from gpuledger_collector.export.cells import json_text
from gpuledger_collector.export.pieces import csv_pieces
from gpuledger_collector.export.report import Column, Report
from gpuledger_collector.insight.notifications.delivery_rules import Digest
from gpuledger_collector.insight.notifications.messages import Content, Message
from gpuledger_collector.logs import escape_event
from gpuledger_collector.notifications import budget_mail, digest_mail, templating
from gpuledger_collector.notifications import finding_mail as finding_mail
from gpuledger_collector.notifications.mime import compose
from gpuledger_collector.notifications.webhooks import WebhookTransport, adaptive_card
from gpuledger_common.escapes import escape_lines, escape_text, neutral
from postgres.budgets import test_mails as budgets
from postgres.notifications import test_finding_mails as notifications
from postgres.trust import test_tables as tables

HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
FORGED = "FORGED ok"
ACTING = (
    "\n",
    "\r",
    "\r\n",
    "\t",
    "\x00",
    "\x07",
    "\x08",
    "\x1b[8m",
    "\x1b[2J",
    "\x1b]0;owned\x07",
    "\x85",
    "\x9b2J",
    "\u2028",
    "\u2029",
    "\u202e",
    "\u2066",
    "\u200b",
    "\u200f",
    "\u061c",
    "\ufeff",
    "\u00ad",
    "\U000e0041",
)
PLAIN = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
hostile = st.lists(
    st.sampled_from(
        [*ACTING, FORGED, "=1+1", "<b>", "&amp;", "'\"", "/", "..", "%0A", "{{ 7*7 }}", "`"]
    )
    | PLAIN,
    min_size=1,
    max_size=8,
).map("".join)
stored = hostile.map(lambda text: text.replace("\x00", "")).filter(bool)
"""What Postgres can hold."""
MONTH = day(-2)[:7]
DATES = re.compile(r"\b(from|to)=\d{4}-\d\d-\d\d&?")
"""A period in days, of an address."""


def seen(text: str) -> list[str]:
    """What of a text acts on what shows it: every hidden character but line feeds."""
    return sorted(
        sign for sign in set(text) if sign != "\n" and unicodedata.category(sign) in HIDDEN
    )


def test_everything_that_is_not_seen_is_an_escape() -> None:
    """All of Unicode as this Python knows it: control, format (bidirectional, of no width),
    separators, surrogates.
    """
    for number in range(0x110000):
        sign = chr(number)
        assert (escape_text(sign) != sign) >= (unicodedata.category(sign) in HIDDEN), hex(number)
    shown = "Ada-Lovelace_7 äöü ß 視覚 विज़न فريق 🚀 👩\ufe0f №  ~\\n"
    assert escape_text(shown) == shown


@given(st.text())
def test_an_escaped_text_is_one_line_and_stays_so(text: str) -> None:
    """Again it is the same; JSON reads the text back from it; lines are those of the text."""
    once = escape_text(text)
    assert escape_text(once) == once
    assert once.splitlines() in ([once], [])
    assert seen(once) == []
    assert json.loads('"' + escape_text(json.dumps(text, ensure_ascii=False)[1:-1]) + '"') == text
    assert escape_lines(text).count("\n") == text.count("\n")
    assert seen(escape_lines(text).replace("\t", "")) == []


@given(st.lists(st.lists(hostile, min_size=2, max_size=2), min_size=1, max_size=4))
@example([["a\r=1+1", "b"]])
def test_a_row_of_a_csv_is_a_line(rows: list[list[str]]) -> None:
    """No name splits a row, for readers that end a line at a carriage return either; JSON gives the
    exact text.
    """
    listed = Report("jobs", (Column("team", itemgetter(0)), Column("job", itemgetter(1))))
    text = "".join(csv_pieces(listed.csv_rows(rows)))
    assert list(csv.reader(io.StringIO(text))) == [
        ["team", "job"],
        *([neutral(cell) for cell in row] for row in rows),
    ]
    assert len(text.splitlines()) == len(rows) + 1
    answer = json_text([listed.texts(row) for row in rows])
    assert [list(row.values()) for row in json.loads(answer)] == rows


@given(stored)
@example("\t")
def test_files_for_other_programs_hold_a_name_in_one_line(name: str) -> None:
    """beancount's journal and the TOML that is applied again, which gives the exact name back."""
    import tomllib

    assert seen(beancount._text(name)) == []
    assert "\n" not in beancount._text(name)
    line = f"name = {toml.quote_text(name)}"
    assert (seen(line), line.count("\n")) == ([], 0)
    assert tomllib.loads(line) == {"name": name}


@given(hostile)
@example("\t")
def test_pages_and_pictures_show_escapes(name: str) -> None:
    """A template's value, a sentence with a name in it, a plot's title; markup of ours keeps its
    lines.
    """
    shown = html.environment().from_string(
        "<p title='{{ name }}'>{{ name }} {{ name|said }} {{ name|coded }} {{ code|said }}</p>"
        "{{ plot }}"
    )
    page = shown.render(
        name=name,
        code=f"run `x {name}`",
        plot=plots.draw_plot(1, 1, name, name, [plots.label(0, 0, name)], "x"),
        calendar=UTC_DAYS,
    )
    assert seen(page) == []
    assert "\n" not in page
    mail = templating.environment().from_string("{{ name|coded }}").render(name=name)
    assert (seen(mail), mail.count("\n")) == ([], 0)
    assert html.show_value(Markup("<p>\n\x1b</p>")) == "<p>\n\\u001b</p>"


def mails_about(name: str) -> list[Content]:
    """One of each kind, in which everything that others named is called so."""
    job = replace(notifications.JOB, name=name, user=name, external_id=name)
    finding = replace(
        notifications.ANOMALY,
        subject=name,
        evidence={
            **notifications.ANOMALY.evidence,
            "sentence": name,
            "workloads": [name],
            "drivers": [{"workload": name, "model": name, "change_micro": 1_000_000}],
        },
    )
    standing = budgets.CASES["actual-100"]
    moved = tuple(replace(one, label=(name, name, name), model=name) for one in standing.drivers)
    of = replace(
        standing,
        drivers=moved,
        status=replace(standing.status, budget=replace(standing.status.budget, name=name)),
    )
    week = replace(
        notifications.WEEK,
        team=name,
        unreachable=(name,),
        wasted=tuple(replace(one, label=name, user=name) for one in notifications.WEEK.wasted),
    )
    told = [
        finding_mail.idle(
            notifications.IdleNotice((notifications.Section(17, job),), notifications.NOW, 3),
            notifications.LINKS,
        ),
        finding_mail.anomaly(
            notifications.AnomalyNotice(21, finding, notifications.NOW), notifications.LINKS
        ),
        finding_mail.summary(week),
        budget_mail.write(of, notifications.LINKS),
        finding_mail.write_reclaim_mail(
            replace(notifications.ACTION, target={"workload": name, "name": name}), job
        ),
    ]
    # A message's text is our own and begins with a word of ours; it shows its first paragraph.
    several = tuple(
        replace(notifications.TOLD[0], subject=name, text=f"About {name}") for _ in range(2)
    )
    return [*told, digest_mail.write(Digest("ada@example.org", notifications.NOW, "UTC", several))]


@given(hostile)
@example("\t")
@example("\nFORGED ok")
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_mails_and_hooks_show_escapes(name: str) -> None:
    """Subject, text, HTML, attachments and what a chat is posted: as many lines as with a harmless
    name.
    """
    for harmless, content in zip(mails_about("x" * len(name)), mails_about(name), strict=True):
        mail = compose(Message("k", "t", "lead@example.com", content, 0, 0), "ledger@example.com")
        parts = [
            str(part.get_content()).replace("\r\n", "\n")
            for part in mail.walk()
            if not part.is_multipart()
        ]
        for text in (str(mail["Subject"]), content.subject, content.html, *parts):
            assert seen(text.replace("\t", "")) == [], content.subject
        assert "\n" not in content.subject
        # A long line is folded at its spaces, and so may a name be.
        folded = re.search(rf"(?:^| )[^\w\r\n]*{FORGED}", name)
        assert folded or not re.search(rf"^\W*{FORGED}", content.text, re.MULTILINE)
        for file, text in harmless.attachments.items():
            if file.endswith(".csv"):
                assert len(content.attachments[file].splitlines()) == len(text.splitlines())
        card = adaptive_card(content.subject, content.text)["attachments"][0]["content"]
        runs = [run for block in card["body"] for run in block["inlines"]]
        assert {block["type"] for block in card["body"]} == {"RichTextBlock"}
        assert [run["text"] for run in runs if seen(run["text"])] == []
        for channel in ("slack", "webhook"):
            body = json.loads(
                WebhookTransport(channel, {})._body(
                    Message("k", "t", f"{channel}:x", content, 0, 0)
                )
            )
            assert seen(body["text"]) == []
            assert seen(body.get("subject", "")) == []


@given(hostile)
@example("\t")
def test_a_record_of_a_log_is_a_line(name: str) -> None:
    """The agent's and the collector's; the lines of a traceback stand indented below theirs."""
    record = logging.LogRecord("x", logging.WARNING, "x.py", 1, "node %s", (name,), None)
    line = LineFormatter().format(record)
    assert (seen(line), line.count("\n")) == ([], 0)
    event = escape_event(
        None,
        "warning",
        {"event": name, "team": name, "exception": f"Traceback\nValueError: {name}"},
    )
    assert seen(f"{event['event']}{event['team']}") == []
    assert "\n" not in f"{event['event']}{event['team']}"
    assert all(line.startswith("    ") for line in str(event["exception"]).split("\n"))
    try:
        raise ValueError(name)
    except ValueError as error:
        record.exc_info = (ValueError, error, error.__traceback__)
    first, *below = LineFormatter().format(record).split("\n")
    assert first == line
    assert all(one.startswith("    ") for one in below)


@given(hostile)
@example("\t")
def test_what_the_agent_prints_of_a_node_is_a_line_each(name: str) -> None:
    """`gpuledger-agent once` over jobs, tags and problems that others named."""
    holder = {
        "id": name,
        "kind": "slurm",
        "user": name,
        "account": name,
        "name": name,
        "tags": {},
        "weight": 1.0,
    }
    entry = {
        "uuid": name,
        "model": name,
        "index": 0,
        "mig_instance": None,
        "health": {"status": "bad", "cause": name},
        "owner": [holder],
        "metrics": {"gpu_power_watts": 1.0},
        "series": {"x": [{"labels": {"l": name}, "value": 1}]},
    }
    text = once_text({"node": name, "driver": name, "problems": [name], "accelerators": [entry]})
    assert seen(text) == []
    assert text.count("\n") == 6


RENAMED = (
    ("workload", "name", ""),
    ("workload", "user_name", ""),
    ("owner", "team", "id = %(owner)s"),
    ("owner", "project", "id = %(owner)s"),
    ("finding", "team", "key LIKE '%%zebra'"),
    ("finding", "subject", "kind = 'anomaly'"),
    ("budget", "name", "id = %(budget)s"),
    ("node", "status_detail", ""),
    ("node", "source", ""),
    ("charge", "pool", ""),
    ("charge", "node", ""),
    ("capacity", "pool", ""),
    ("ledger_day", "pool", ""),
    ("notification", "subject", ""),
    ("notification", "team", ""),
    ("outbox", "recipient", ""),
    ("outbox", "subject", ""),
    ("outbox", "error", ""),
    ("dispute", "reason", ""),
    ("dispute_entry", "words", ""),
    ("token", "name", ""),
    ("scaling_decision", "pool", ""),
    ("scaling_decision", "reason", ""),
)
DAYS = f"--from {day(-4)} --to {day(-1)}"
LISTED = (
    "doctor",
    "disputes list",
    "disputes show 1",
    "notifications list",
    "outbox list",
    "scale history",
    f"tags check {DAYS}",
)
"""Commands whose every line is one thing, whatever it is called."""
TABLES = (
    "idle",
    "anomalies",
    "budgets",
    "token list",
    f"chargeback {DAYS} --by team,user",
    f"accelerators {DAYS}",
    f"runs {DAYS}",
    "receipt zebra-1",
)
FILES = (
    f"chargeback {DAYS} --by team,user",
    "idle",
    "notifications list",
    "outbox list",
    f"runs {DAYS}",
    "scale history",
)


@pytest.fixture(scope="module")
def named(postgres, tmp_path_factory):
    """A collector, a secret, and a function that gives everything of the second team another name."""
    with (
        fresh_database(postgres) as dsn,
        two_teams(dsn, tmp_path_factory.mktemp("declared")) as (collector, secrets),
    ):
        opened = run(
            dsn,
            "disputes",
            "open",
            "--owner",
            "team=vision",
            "--from",
            day(-4),
            "--to",
            day(-1),
            "--reason",
            "not us",
        )
        assert opened.exit_code == 0, opened.output
        with psycopg.connect(dsn, autocommit=True) as connection:
            tables.more_names(connection)
            connection.execute("DELETE FROM scaling_pool")
            # An episode names its job as it was called when it was found: here by its id, which no
            # rename changes.
            connection.execute(
                "UPDATE finding f SET evidence = replace(evidence::text, w.name,"
                " w.external_id)::jsonb FROM workload w WHERE f.kind = 'anomaly' AND w.name ="
                " f.team || '-job'"
            )
            connection.execute("UPDATE node SET status = 'degraded'")
            for table in ("dispute", "dispute_entry"):
                connection.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
            keys = {
                "owner": "SELECT id FROM owner WHERE team = 'zebra'",
                "budget": "SELECT id FROM budget LIMIT 1",
            }
            ids = {key: connection.execute(query).fetchone()[0] for key, query in keys.items()}

            def rename(name: str) -> None:
                for table, column, where in RENAMED:
                    connection.execute(
                        sql.SQL("UPDATE {} SET {} = %(name)s WHERE {}").format(
                            sql.Identifier(table), sql.Identifier(column), sql.SQL(where or "true")
                        ),
                        {"name": name, **ids},
                    )

            yield collector, secrets["admin"], rename


def run(dsn: str, *words: str):
    """A command on this database."""
    return CliRunner().invoke(build(), [*words, "--dsn", dsn])


@given(stored)
@example("\t")
@example(f"a\n{FORGED}\r\x1b[8m\u202e")
@examples(3)
def test_commands_show_escapes_and_no_line_more(named, name: str) -> None:
    """Tables, lists and CSV of a ledger in which everything has this name, as with a harmless one."""
    collector, _, rename = named
    rename("harmless")
    lines = {command: run(collector.dsn, *command.split()).output.count("\n") for command in LISTED}
    rows = {
        command: run(collector.dsn, *command.split(), "--format", "csv").stdout for command in FILES
    }
    rename(name)
    for command in (*LISTED, *TABLES):
        shown = run(collector.dsn, *command.split())
        assert shown.exit_code in {0, 1}, (command, shown.output, shown.exception)
        assert seen(shown.output) == [], command
        assert lines.get(command, shown.output.count("\n")) == shown.output.count("\n"), (
            command,
            shown.output,
        )
    for command, before in rows.items():
        text = run(collector.dsn, *command.split(), "--format", "csv").stdout
        assert seen(text) == [], command
        assert (
            len(text.splitlines())
            == len(before.splitlines())
            == len(list(csv.reader(io.StringIO(text))))
        ), command


@given(stored)
@example("\t")
@example("a\nb")
@example("a\n")
@example("..")
@example(".")
@example("a/b?c#d%2F\\")
@example(f"a/{MONTH}")
@examples(4)
def test_every_name_has_its_pages(named, name: str) -> None:
    """Every link of our own pages leads to a page, that of this owner or pool, and shows escapes
    only.
    """
    collector, secret, rename = named
    rename(name)
    known = {"Authorization": f"Bearer {secret}"}
    statement, pool = site.statement_path("team", name, MONTH), site.pool_path(name)
    pages_seen = {}
    for start in ("/", f"/statements/team/{MONTH}", "/idle", "/anomalies", "/jobs"):
        status, _, text = collector.request("GET", start, headers=known)
        assert status == 200
        pages_seen[start] = text
    links = {
        link for text in pages_seen.values() for link in Page(text).links if link.startswith("/")
    }
    # The forecast of an hour names the pools of that hour: of the names before.
    links = {link for link in links if not link.startswith("/pools/")} | {pool}
    assert statement in links
    assert [link for link in links if resolved(link) != link] == []
    # The bars of a chart lead to a day each: of links that differ in their dates alone one is asked.
    asked = {DATES.sub("", link): link for link in sorted(links)}
    for link in asked.values():
        status, _, text = collector.request("GET", link, headers=known)
        assert status == 200, (link, status, text)
        pages_seen[link] = str(text)
    assert not [link for link, text in pages_seen.items() if link != "/metrics" and seen(text)]
    shown = escape_text(name)
    assert f"{shown}, {MONTH}" in unescape(pages_seen[statement])
    assert f"{name!r}"[1:-1] in unescape(pages_seen[pool]) or shown in unescape(pages_seen[pool])


def resolved(link: str) -> str:
    """The address that a browser asks for: steps through folders are taken, also percent-encoded
    ones.
    """
    path, mark, query = link.partition("?")
    steps = [unquote(part) if unquote(part) in {".", ".."} else part for part in path.split("/")]
    return urljoin("http://x/", "/".join(steps)).removeprefix("http://x") + mark + query


def test_no_address_answers_for_another_name(named) -> None:
    """A line break at the end is a part of the name: the page of `vision` is not shown for `vision`
    and a line feed.
    """
    collector, secret, rename = named
    rename("harmless")
    known = {"Authorization": f"Bearer {secret}"}
    for path in (site.statement_path("team", "vision", MONTH), site.pool_path("harmless")):
        assert collector.request("GET", path, headers=known)[0] == 200
    for path in (
        site.statement_path("team", "vision\n", MONTH),
        site.pool_path("harmless\n"),
        "/v1/scaling/harmless%0A",
        "/v1/scaling/a%2Fb",
    ):
        status, headers, _ = collector.request("GET", path, headers=known)
        assert status in {404, 503}, path
        if path.startswith("/v1"):
            assert headers["Content-Type"] == "application/json"


def test_no_answer_can_be_framed_or_guessed_at(named) -> None:
    """Pages, ack pages, JSON, refusals and agents' batches: nosniff, no frame, and nothing told to
    other sites.
    """
    collector, secret, _ = named
    known = {"Authorization": f"Bearer {secret}"}
    asked = [
        ("GET", path, None)
        for path in (
            "/",
            "/docs",
            f"/statements/team/{MONTH}",
            "/nowhere",
            "/metrics",
            "/healthz",
            "/readyz",
            "/v1/nodes",
            "/v1/budgets/ack?budget=1&period=1&mac=x",
            "/pools/nobody",
            "/v1/notifications/ack",
            "/openapi.json",
            "/v1/nodes?after=%00",
        )
    ]
    asked += [
        ("POST", "/v1/batches", b"x"),
        ("POST", "/v1/queue", b"{}"),
        ("POST", "/v1/inference", b"{}"),
        ("POST", "/api/v1/write", b""),
        ("POST", "/v1/budgets/ack?budget=1&period=1&mac=x", b""),
        ("DELETE", "/v1/nodes", None),
    ]
    for method, path, body in asked:
        for headers in ({}, known):
            _, answer, _ = collector.request(method, path, body, headers)
            assert answer.get_all("X-Content-Type-Options") == ["nosniff"], path
            assert answer.get_all("X-Frame-Options") == ["DENY"], path
            assert answer.get_all("Referrer-Policy") == ["no-referrer"], path
            (policy,) = answer.get_all("Content-Security-Policy")
            assert "frame-ancestors 'none'" in policy, path
            assert "default-src 'none'" in policy, path
