"""The audit log: every change is in it, in its own transaction, and nothing can be taken out
unseen.
"""

import json

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.profiles import examples
from gpuledger_collector.accounting.audit_log import check_chain
from gpuledger_collector.storage.access import audit
from gpuledger_collector.storage.access.audit import Change

DECLARED = """
[[rule]]
name = "vision"
match = { user = "ada" }
assign = { team = "vision" }

[[price]]
pool = "train"
gpu_model = "H100"
purchase = "on_demand"
rate_per_gpu_hour = 2.50
currency = "USD"
effective_from = 2026-10-01

[[budget]]
name = "vision-2026"
team = "vision"
period = "month"
amount = 1000
currency = "USD"
recipients = ["lead@example.com"]
"""


def log(dsn):
    with psycopg.connect(dsn) as connection:
        return list(audit.entries(connection))


def fill(dsn, rows=5):
    with psycopg.connect(dsn) as connection:
        for number in range(rows):
            audit.record(
                connection,
                [Change("price", f"p{number}", None, {"rate": f"{number}.50"})],
                1000 + number,
                "ada",
            )


def test_every_change_of_money_is_in_the_log(dsn, command, tmp_path):
    """Price, rule, budget and token: what it was and what it is, who and when."""
    (tmp_path / "ledger.toml").write_text(DECLARED)
    assert command("apply", tmp_path / "ledger.toml").exit_code == 0
    assert [entry.what for entry in log(dsn)] == ["price", "rule", "budget"]
    assert all(entry.before is None for entry in log(dsn))
    assert {entry.who for entry in log(dsn)} == {audit.person()}
    changed = (
        "--pool",
        "train",
        "--model",
        "H100",
        "--rate",
        "3.00",
        "--currency",
        "USD",
        "--from",
        "2026-10-01",
    )
    assert command("prices", "set", *changed).exit_code == 0
    last = log(dsn)[-1]
    assert [float(json.loads(text)["rate"]) for text in (last.before, last.after)] == [2.5, 3.0]
    assert command("token", "create", "--role", "finance").exit_code == 0
    last = log(dsn)[-1]
    assert (last.what, last.subject, json.loads(last.after)["role"]) == (
        "token",
        "finance",
        "finance",
    )
    assert "gpl_" not in last.after
    assert "hash" not in last.after
    shown = command("audit", "list", "--what", "price").output
    assert "rate" in shown
    assert "H100" in shown
    _, _, budget = DECLARED.partition("[[budget]]")
    (tmp_path / "ledger.toml").write_text("[[budget]]" + budget.replace("1000", "2000"))
    assert command("apply", tmp_path / "ledger.toml").exit_code == 0
    last = log(dsn)[-1]
    assert [json.loads(text)["amount_micro"] for text in (last.before, last.after)] == [
        1_000_000_000,
        2_000_000_000,
    ]
    verdict = command("audit", "verify")
    assert verdict.exit_code == 0
    assert "6 rows, every one as it was written" in verdict.output


def test_the_same_again_and_a_dry_run_write_nothing(dsn, command, tmp_path):
    """Only what changed is logged."""
    (tmp_path / "ledger.toml").write_text(DECLARED)
    assert command("apply", tmp_path / "ledger.toml", "--dry-run").exit_code == 0
    assert log(dsn) == []
    for _ in range(2):
        assert command("apply", tmp_path / "ledger.toml").exit_code == 0
    assert len(log(dsn)) == 3


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE audit SET who = 'eve'",
        "DELETE FROM audit",
        "TRUNCATE audit",
        "DELETE FROM audit WHERE false",
    ],
)
def test_the_database_refuses_to_rewrite_the_log(dsn, statement):
    """Triggers refuse every change, even by the owner of the table."""
    fill(dsn)
    with (
        psycopg.connect(dsn) as connection,
        pytest.raises(psycopg.errors.RestrictViolation, match="only takes new rows"),
    ):
        connection.execute(statement)
    assert len(log(dsn)) == 5


@pytest.mark.parametrize(
    ("tampering", "words"),
    [
        ("DELETE FROM audit WHERE number = 3", "row 3 is missing"),
        ("DELETE FROM audit WHERE number = 1", "row 1 is missing"),
        ("UPDATE audit SET who = 'eve' WHERE number = 3", "row 3 was changed"),
        ('UPDATE audit SET after = \'{"rate": "0.01"}\' WHERE number = 2', "row 2 was changed"),
        ("UPDATE audit SET at_ms = at_ms + 1 WHERE number = 5", "row 5 was changed"),
        (
            (
                "UPDATE audit SET number = -number WHERE number IN (2, 3); UPDATE audit SET number"
                " = 5 + number WHERE number < 0"
            ),
            "row 2 does not follow on row 1",
        ),
    ],
)
def test_verify_finds_what_was_tampered_with(dsn, command, tampering, words):
    """A removed, changed or reordered row is named, even if somebody took the triggers away first."""
    fill(dsn)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("ALTER TABLE audit DISABLE TRIGGER audit_only_grows")
        connection.execute(tampering)
    verdict = command("audit", "verify")
    assert verdict.exit_code == 1
    assert words in verdict.output


def test_a_log_cut_off_or_written_anew_is_found_by_a_noted_head(dsn, command):
    """A chain cannot miss its own end; a head that was noted elsewhere does."""
    fill(dsn)
    head = command("audit", "verify").output.split("head ")[1].strip()
    assert command("audit", "verify", "--noted", head).exit_code == 0
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("ALTER TABLE audit DISABLE TRIGGER audit_only_grows")
        connection.execute("DELETE FROM audit WHERE number = 5")
    assert command("audit", "verify").exit_code == 0
    assert "its end was cut off" in command("audit", "verify", "--noted", head).output
    with psycopg.connect(dsn) as connection:
        audit.record(connection, [Change("price", "p4", None, {"rate": "0.01"})], 1004, "ada")
    assert "whose hash was noted" in command("audit", "verify", "--noted", head).output


def test_what_is_undone_is_not_logged(dsn):
    """The row stands in the transaction of the change."""
    with psycopg.connect(dsn) as connection:
        audit.record(connection, [Change("price", "p", None, {})], 1, "ada")
        connection.rollback()
    assert log(dsn) == []


texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)


@examples(12)
@given(
    content=st.dictionaries(
        texts,
        texts | st.integers() | st.none() | st.floats(allow_nan=False, allow_infinity=False),
        max_size=4,
    ),
    who=texts,
)
def test_any_content_survives_the_database(postgres, content, who):
    """What is read back has the hash that was written."""
    with psycopg.connect(postgres) as connection:
        audit.record(connection, [Change("rule", who, content, None)], 1, who)
        assert check_chain(audit.entries(connection)).fault is None
        connection.rollback()
