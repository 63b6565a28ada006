"""Ledgers of earlier versions: what they recorded is kept, what they did not is filled in, or said
to be unknown.
"""

import datetime as dt
import json

import pytest
from alembic import command

from fakes.rich_ledger import CLOSED, rich
from fakes.surfaces import MONTHS
from gpuledger_collector.storage.billing import rating_times
from gpuledger_collector.storage.server import migrate
from gpuledger_common.instants import to_ms

__all__ = ["rich"]
pytestmark = pytest.mark.slow
FIRST_RELEASE = "0013"
"""Newest migration of 0.1.0, which recorded neither sources nor hashes of times, and sealed lines
only.
"""
TIMES = (
    "SELECT 'conservation_check', day_ms, proved_at, times_sha256 FROM conservation_check UNION ALL"
    " SELECT 'corrected_day', day_ms, proved_at, times_sha256 FROM corrected_day ORDER BY 1, 2"
)
SEALS = "SELECT to_jsonb(p) FROM billing_period p ORDER BY start_ms"
CLOSES = "SELECT to_jsonb(a) FROM audit a WHERE what = 'close' ORDER BY number"


def downgrade(dsn):
    """Bring a ledger to the schema of 0.1.0."""
    config = migrate.configuration()
    with migrate.connected(dsn) as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, FIRST_RELEASE)


@pytest.fixture
def of_before(rich, dsn):
    """The rich ledger as 0.1.0 left it; it stands at that schema until it is upgraded."""
    rich.connection.execute("ALTER TABLE audit DISABLE TRIGGER USER")
    rich.connection.execute(
        "UPDATE audit SET after = (after::jsonb - 'tables')::json WHERE what = 'close'"
    )
    rich.connection.execute("ALTER TABLE audit ENABLE TRIGGER USER")
    downgrade(dsn)
    return rich


def test_times_of_before_are_hashed_as_rating_hashes_them(rich, dsn):
    """Of each day and each corrected day, whole seconds and fractions, with all lines of a
    correction.
    """
    for table in rating_times.TABLES:
        rich.connection.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
        ((day_ms, proved_at),) = rich.rows(
            f"SELECT day_ms, proved_at FROM {table} ORDER BY day_ms LIMIT 1"
        )
        at = proved_at + dt.timedelta(milliseconds=120)
        changed = at, rating_times.hash_check(rich.connection, table, day_ms, to_ms(at)), day_ms
        rich.connection.execute(
            f"UPDATE {table} SET proved_at = %s, times_sha256 = %s WHERE day_ms = %s", changed
        )
        rich.connection.execute(f"ALTER TABLE {table} ENABLE TRIGGER USER")
    expected = rich.rows(TIMES)
    assert {table for table, *_ in expected} == {"conservation_check", "corrected_day"}
    assert all(recorded for *_, recorded in expected)
    assert {bool(proved_at.microsecond) for _, _, proved_at, _ in expected} == {True, False}
    downgrade(dsn)
    migrate.upgrade(dsn)
    assert rich.rows(TIMES) == expected


def test_an_upgraded_ledger_is_what_it_was(of_before, dsn, run):
    """Every proof holds, nothing that was sealed or logged is written anew, and triggers stand as
    before.
    """
    sealed, closes = of_before.rows(SEALS), of_before.rows(CLOSES)
    migrate.upgrade(dsn)
    assert (of_before.rows(SEALS), of_before.rows(CLOSES)) == (sealed, closes)
    for month in MONTHS:
        code, text, _ = run("reconcile", "--period", month, "--evidence")
        assert code == 0, text
    (row,) = json.loads(run("periods", "--verify", CLOSED, "--format", "json")[1])
    covered = "billing_period, invoice, closed_workload, conservation_check"
    assert (row["intact"], row["wrong"], row["not_covered"]) == (True, "", covered)
    disabled = (
        "SELECT tgrelid::regclass, tgname FROM pg_trigger WHERE tgenabled = 'D' AND NOT"
        " tgisinternal"
    )
    assert of_before.rows(disabled) == []


def test_a_time_of_before_is_not_changed_unseen(of_before, dsn, run):
    """From the upgrade on: also by removing the hash."""
    migrate.upgrade(dsn)
    of_before.connection.execute("ALTER TABLE conservation_check DISABLE TRIGGER USER")
    of_before.connection.execute(
        "UPDATE conservation_check SET proved_at = proved_at + interval '1 day'"
    )
    code, text, _ = run("reconcile", "--period", CLOSED)
    assert code == 1
    assert (
        "The times of 2025-10-01 in conservation_check are NOT those that rating recorded" in text
    )
    of_before.connection.execute("UPDATE conservation_check SET times_sha256 = NULL")
    code, text, _ = run("reconcile", "--period", CLOSED)
    assert code == 1
    assert "The times of 2025-10-01 in conservation_check have NO hash: it was removed" in text
