"""Packed evidence where other parts of the product meet it: a new price, late evidence, a dispute, a
name that is erased, a backup, retention, an older version.
"""

import contextlib
import json
import re

import psycopg
import pytest
from alembic import command

from fakes.fleet import DAY, HOUR, NOW_MS, OCTOBER, Held
from fakes.postgres import fresh_database
from fakes.rich_ledger import CLOSED, OPEN, rich
from gpuledger_collector.services.hourly_usage import ALWAYS
from gpuledger_collector.services.refresh import refresh
from gpuledger_collector.services.upkeep import (
    ArchiveRetention,
    pack_samples,
    pack_usage_intervals,
)
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.server import migrate
from gpuledger_collector.storage.telemetry import (
    interval_packing,
    partitions,
    usage_evidence,
)

__all__ = ["rich"]
pytestmark = pytest.mark.slow
LATER = NOW_MS + 100 * DAY
DAYS_MS = range(OCTOBER - DAY, NOW_MS, DAY)
PRICES = """pool,gpu_model,purchase,rate_per_gpu_hour,currency,effective_from
,,on_demand,3.60,USD,2025-01-01
"""
DERIVED = ("usage_hour", "charge", "correction", "ledger_day")


def pack(dsn):
    """Pack every day of evidence; some of it is."""
    packed = pack_usage_intervals(Database(dsn), 37, LATER)
    assert packed.intervals
    return packed


def unpack(dsn):
    """Make rows of all of it."""
    database = Database(dsn)
    with database.transaction() as connection:
        ids = [row[0] for row in connection.execute("SELECT id FROM accelerator")]
        partitions.ensure(connection, "usage_interval", DAYS_MS)
        assert interval_packing.unpack(connection, ids, DAYS_MS)


def fold_all(ledger, dsn):
    """Fold every hour and rate every day of evidence again."""
    ledger.connection.execute(
        "INSERT INTO hour_recompute (accelerator_id, hour_ms) SELECT DISTINCT accelerator_id,"
        " hour_ms - hour_ms % 3600000 FROM usage_hour"
    )
    ledger.connection.execute(
        "INSERT INTO day_recompute (day_ms) SELECT day_ms FROM conservation_check"
    )
    refresh(Database(dsn), ALWAYS, NOW_MS)


def derived(ledger):
    """Every row of what is made of evidence."""
    return {
        table: sorted(map(repr, ledger.rows(f"SELECT to_jsonb(t) - 'id' FROM {table} t")))
        for table in DERIVED
    }


def seen(connection):
    """Every interval, in rows or packed."""
    columns = ", ".join(usage_evidence.COLUMNS)
    source = usage_evidence.intervals(OCTOBER - DAY)
    return sorted(map(repr, connection.execute(f"SELECT {columns} FROM {source} AS s")))


@pytest.fixture
def in_rows(rich, dsn):
    """How many intervals are rows."""
    return lambda: rich.rows("SELECT count(*) FROM usage_interval")[0][0]


def test_a_new_price_and_late_evidence_of_packed_days_rate_as_of_rows(rich, run, dsn, in_rows):
    """Of the open month and of the closed one, which is corrected; once in rows, once packed."""

    def change(dsn):
        assert run("prices", "set", "--rate", "3.1", "--currency", "USD", "--from", "2025-11-01",
                   "--pool", "train")[0] == 0  # fmt: skip
        refresh(Database(dsn), ALWAYS, NOW_MS)

    pack(dsn)
    assert in_rows() == 0
    # Late evidence lies beside its packed day.
    partitions.ensure(rich.connection, "usage_interval", DAYS_MS)
    rich.evidence([Held(1, 3, 11 * HOUR, 12 * HOUR, busy=HOUR, energy=1_234_567)])
    rich.evidence([Held(2, 1, 33 * DAY + 6 * HOUR, 33 * DAY + 8 * HOUR, idle=HOUR)])
    change(dsn)
    beside = derived(rich)
    pack(dsn)
    assert in_rows() == 0
    fold_all(rich, dsn)
    merged = derived(rich)
    unpack(dsn)
    fold_all(rich, dsn)
    assert in_rows() > 0
    assert beside == merged == derived(rich)


def test_a_what_if_of_packed_days_is_that_of_rows(rich, run, dsn, tmp_path):
    """Other prices, and nobody's GPUs counted otherwise, for a closed and an open month."""
    prices = tmp_path / "prices.csv"
    prices.write_text(PRICES)
    asked = [("what-if", "--period", month, "--prices", prices) for month in (CLOSED, OPEN)]
    answers = [run(*words) for words in asked]
    assert {code for code, _, _ in answers} <= {0, 1}
    pack(dsn)
    assert [run(*words) for words in asked] == answers


def test_a_dispute_of_a_packed_day_has_its_evidence_and_what_came_later(rich, run, dsn, tmp_path):
    """The sealed evidence of a dispute stays as it was; a second dispute has the late interval."""

    def dispute(name):
        words = ("--owner", "vision", "--from", "2025-11-03", "--to", "2025-11-04")
        code, text, error = run("disputes", "open", *words, "--reason", "not ours")
        assert code == 0, error
        number = re.match(r"dispute (\d+) is open", text)[1]
        return number, evidence(number, name)

    def evidence(number, name):
        code, page, error = run("disputes", "show", number, "--evidence", tmp_path / name)
        assert code == 0, error
        assert "the evidence is as it was sealed" in page
        return json.loads((tmp_path / name).read_text())

    number, before = dispute("rows.json")
    assert before["usage_intervals"]["count"] > 0
    pack(dsn)
    assert evidence(number, "packed.json") == before
    assert run("disputes", "resolve", number, "--reject", "--note", "it was")[0] == 0
    partitions.ensure(rich.connection, "usage_interval", DAYS_MS)
    rich.evidence([Held(2, 1, 33 * DAY + 6 * HOUR, 33 * DAY + 8 * HOUR, idle=HOUR)])
    assert run("chargeback", "--period", OPEN)[0] in {0, 1}
    _, late = dispute("again.json")
    assert late["usage_intervals"]["count"] == before["usage_intervals"]["count"] + 1
    assert late["usage_intervals"]["rows"][0] in before["usage_intervals"]["rows"]
    assert evidence(number, "still.json") == before


def test_a_name_is_erased_where_its_runs_are_packed(rich, run, dsn):
    """Nothing of it is in packed days, and what is rated afterwards is what rows give."""
    where = run("privacy", "show", "ada")
    pack(dsn)
    assert run("privacy", "show", "ada") == where
    code, _, error = run("privacy", "erase", "ada")
    assert code == 0, error
    assert not rich.rows("SELECT FROM workload WHERE user_name = 'ada'")
    fold_all(rich, dsn)
    of_packed = derived(rich)
    for month in (CLOSED, OPEN):
        assert run("reconcile", "--period", month, "--evidence")[0] == 0
    unpack(dsn)
    fold_all(rich, dsn)
    assert derived(rich) == of_packed


def test_packed_evidence_comes_back_from_a_backup(rich, run, dsn, postgres, tmp_path):
    """Sealed as it was; folded again there, the bill is the same."""
    from fakes.books import Command

    pack(dsn)
    target = tmp_path / "ledger.dump"
    assert run("db", "backup", target)[0] == 0
    expected = seen(rich.connection), derived(rich)
    with fresh_database(postgres) as other:
        with psycopg.connect(other, autocommit=True) as connection:
            connection.execute("DROP SCHEMA public CASCADE")
            connection.execute("CREATE SCHEMA public")
        code, out, error = Command(other)("db", "restore", target)
        assert code == 0, out + error
        with contextlib.closing(psycopg.connect(other, autocommit=True)) as connection:
            assert seen(connection) == expected[0]
        assert Command(other)("reconcile", "--period", CLOSED, "--evidence")[0] == 0
        unpack(other)
        assert Command(other)("reconcile", "--period", OPEN, "--evidence")[0] == 0


def test_packed_days_of_closed_months_expire_and_are_not_folded_again(rich, run, dsn):
    """`keep_usage_interval_days`: October's go, November's stay, and the bill too."""
    fold_all(rich, dsn)
    before = derived(rich)
    pack(dsn)
    report = pack_samples(Database(dsn), ArchiveRetention(3, 0, 40), LATER)
    assert report.expired_days
    left = [day_ms for (day_ms,) in rich.rows("SELECT DISTINCT day_ms FROM usage_interval_day")]
    assert left
    # The last day of a closed month stays: an interval of it may reach into the open one.
    assert min(left) > max(report.expired_days)
    rich.connection.execute(
        "INSERT INTO hour_recompute (accelerator_id, hour_ms) SELECT DISTINCT accelerator_id,"
        " hour_ms - hour_ms %% 3600000 FROM usage_hour WHERE hour_ms >= %s",
        (min(left),),
    )
    refresh(Database(dsn), ALWAYS, NOW_MS)
    assert derived(rich) == before
    assert run("reconcile", "--period", OPEN, "--evidence")[0] == 0


def test_an_older_version_is_refused_a_ledger_with_packed_days(rich, dsn):
    """In one sentence, with nothing changed; unpacked it goes back."""
    pack(dsn)
    before = seen(rich.connection)
    with pytest.raises(Exception, match="usage intervals are packed: the version before cannot"):
        downgrade(dsn, "0032")
    assert seen(rich.connection) == before
    unpack(dsn)
    downgrade(dsn, "0032")
    migrate.upgrade(dsn)
    assert seen(rich.connection) == before


def downgrade(dsn, revision):
    """Bring a ledger to the schema of an earlier revision."""
    config = migrate.configuration()
    with migrate.connected(dsn) as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, revision)
