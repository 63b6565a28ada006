"""A dry run says what the command would do and leaves every row of the database as it was; then it
is done.
"""

import csv
import io
import json
from hashlib import sha256

import pytest

from fakes.fleet import DAY, HOUR, Held

SPAN = ("--from", "2025-10-01", "--to", "2025-10-02")
DECLARED = """[[rule]]
name = "those of b"
match = { team = "b" }
assign = { team = "a" }

[[price]]
rate_per_gpu_hour = "3"
purchase = "on_demand"
currency = "USD"
effective_from = "2025-11-01"
"""
QUEUE = "at,workload_id,gpus\n2025-10-01T10:00:00Z,77,4\n"
ADVICE = (
    "INSERT INTO recommendation (key, kind, subject, team, owner, advice, evidence, scope,"
    " start_ms, end_ms, price_ids, freed_gpu_ns, state, made_ms, expires_ms) SELECT 'k' || n,"
    " 'idle', 's', 't', '{}', 'give it', '{}', '{}', 0, 1, '{}', 0, 'open', 0, 9999999999999 FROM"
    " generate_series(1, 2) n"
)
LETTER = (
    "INSERT INTO notification (key, kind, subject, team, recipients, findings, since_ms, until_ms,"
    " notified_ms) VALUES ('k', 'idle', 's', 't', '[]', '[]', 0, 1, 2)"
)
MESSAGE = (
    "INSERT INTO outbox (key, recipient, subject, text, made_ms, not_before_ms, state) "
    "VALUES ('k', 'ada@example.com', '=the subject', 'hello', 0, 0, 'waiting')"
)
BUDGET = (
    '[[budget]]\nname = "vision"\nteam = "vision"\namount = "10.00"\ncurrency = "USD"\nperiod ='
    ' "month"\n'
)
ALERT = (
    "INSERT INTO budget_alert (budget_id, period_start_ms, rule, percent, state, seen,"
    " evaluated_ms) SELECT id, 0, 'actual', 80, 'firing', 1, 0 FROM budget"
)

COMMANDS = (
    "prices set --rate 3 --currency USD --from 2025-11-01",
    "apply ledger.toml",
    "import queue queue.csv",
    "token create --role finance",
    "token rotate n1",
    "token revoke n1",
    "disputes answer 1 --note no",
    "disputes resolve 1 --accept --to team=speech --note yes",
    f"disputes open --owner speech {' '.join(SPAN)} --reason again --workload 1",
    "recommend accept 1",
    "recommend reject 2",
    "runs report 1 --steps 5",
    "notifications ack 1",
    "budgets ack vision",
    "outbox send",
)
LISTS = (
    "outbox list",
    "notifications list",
    "actions list",
    "actions dry-run",
    "token list",
    "prices list",
    "apply ledger.toml",
    "db check",
)


@pytest.fixture
def furnished(fleet, run, tmp_path, monkeypatch):
    """A rated day, a token, an open dispute, and one of each thing that people answer."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GPULEDGER_MAIL_DIR", str(tmp_path / "mails"))
    for name, text in (("ledger.toml", DECLARED), ("queue.csv", QUEUE), ("budget.toml", BUDGET)):
        (tmp_path / name).write_text(text)
    run("prices", "set", "--rate", "2", "--currency", "USD", "--from", "2025-01-01")
    fleet.capacity(1, 0, DAY)
    fleet.workload(1, team="vision")
    fleet.evidence([Held(1, 1, 0, HOUR, busy=HOUR)])
    assert run("token", "create", "--role", "agent", "--node", "n1")[0] == 0
    assert run("disputes", "open", "--owner", "vision", *SPAN, "--reason", "not ours")[0] == 0
    assert run("apply", "budget.toml")[0] == 0
    for statement in (ADVICE, LETTER, MESSAGE, ALERT):
        fleet.connection.execute(statement)
    return fleet


def state(fleet) -> dict[str, str]:
    """A hash of every row of each table."""
    found = {}
    for (name,) in fleet.rows(
        "SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1"
    ):
        rows = fleet.rows(f'SELECT t::text FROM "{name}" t ORDER BY 1')
        found[name] = sha256(repr(rows).encode()).hexdigest()
    return found


def test_a_dry_run_changes_nothing(furnished, run, tmp_path):
    """Each command, tried and then done: the first leaves every table and every file as it was, the
    second does not.
    """
    mails = tmp_path / "mails"
    for command in COMMANDS:
        before = state(furnished)
        code, told, wrong = run(*command.split(), "--dry-run")
        assert (code, "dry run" in told + wrong) == (0, True), (command, wrong)
        assert state(furnished) == before, command
        assert not (mails.exists() and list(mails.iterdir())), command
        code, told, wrong = run(*command.split())
        assert (code, "dry run" in told + wrong) == (0, False), (command, wrong)
        assert state(furnished) != before, command


def test_a_token_that_was_only_tried_shows_no_secret(furnished, run):
    """What is printed opens nothing, so nothing that looks like a secret is printed."""
    for command in (("create", "--role", "finance"), ("rotate", "n1")):
        code, told, wrong = run("token", *command, "--dry-run")
        assert (code, told) == (0, "")
        assert "gpl_" not in wrong


def test_lists_for_programs_hold_the_same_in_both_forms(furnished, run):
    """JSON and CSV have the same rows under the same names; a cell that would begin a formula is
    harmless in CSV.
    """
    for command in LISTS:
        as_json, as_csv = (run(*command.split(), "--format", form) for form in ("json", "csv"))
        rows = json.loads(as_json[1])
        cells = list(csv.DictReader(io.StringIO(as_csv[1])))
        assert (as_json[0], as_csv[0]) == (0, 0), command
        assert [list(row) for row in rows] == [list(line) for line in cells], command
        assert rows or command.startswith("actions"), command
        if command == "outbox list":
            assert (rows[0]["subject"], cells[0]["subject"]) == ("=the subject", "'=the subject")
