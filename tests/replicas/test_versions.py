"""Old and new collectors on one database while it is migrated: real processes, one of another
version.
"""

import contextlib
import shutil
import threading
import time

import psycopg
import pytest
from typer.testing import CliRunner

from fakes.batches import NOON_MS, batch
from fakes.migrations import forbidden, scripts
from fakes.replicas import Patched, replicas, until
from gpuledger_collector.cli import build
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.errors import SchemaBehind, TablesLocked
from gpuledger_collector.storage.server import migrate, schema_version
from gpuledger_collector.storage.server import replicas as presence

pytestmark = pytest.mark.slow

HEAD = migrate.head()
MIGRATIONS = scripts(schema_version.scripts())
PRE, POST = "9001", "9002"
NEXT = '''"""{says}

Revision ID: {revision}
Revises: {follows}
"""

from alembic import op

revision = "{revision}"
down_revision = "{follows}"
branch_labels = None
depends_on = None
phase = "{phase}"


def upgrade() -> None:
    """Do it."""
    for statement in {up!r}:
        op.execute(statement)


def downgrade() -> None:
    """Undo it."""
'''
ADDS = (
    "CREATE TABLE novelty (id BIGINT PRIMARY KEY)",
    "ALTER TABLE usage_interval ADD COLUMN novelty TEXT",
    "ALTER TABLE workload ADD COLUMN novelty TEXT DEFAULT '' NOT NULL",
)
TAKES = ("ALTER TABLE ingest_batch RENAME COLUMN rejected TO refused",)
MAKES = "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {}; RETURN NULL; END $$"
BINDS = "CREATE TRIGGER t AFTER INSERT ON price FOR EACH STATEMENT EXECUTE FUNCTION f()"


@pytest.fixture
def newer(folder, monkeypatch):
    """The migrations of the next version, which this process is from now on: one of each phase
    more.
    """
    made = folder / "alembic"
    shutil.copytree(schema_version.scripts(), made, ignore=shutil.ignore_patterns("__pycache__"))
    steps = ((PRE, HEAD, "pre", "Adds", ADDS), (POST, PRE, "post", "Takes away", TAKES))
    for revision, follows, phase, says, up in steps:
        text = NEXT.format(revision=revision, follows=follows, phase=phase, says=says, up=up)
        (made / "versions" / f"{revision}_next.py").write_text(text)
    monkeypatch.setattr(schema_version, "scripts", lambda: made)
    return made


@pytest.mark.parametrize(
    ("revision", "phase", "script"), MIGRATIONS, ids=[one[0] for one in MIGRATIONS]
)
def test_a_pre_migration_does_nothing_that_older_collectors_do_not_survive(revision, phase, script):
    """Every migration file, as the SQL that it runs."""
    assert phase in ("pre", "post")
    if phase == "pre":
        assert not forbidden(script), revision


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE price",
        "ALTER TABLE price DROP COLUMN node",
        "ALTER TABLE price ALTER COLUMN node TYPE INTEGER",
        "ALTER TABLE price ALTER COLUMN node SET NOT NULL",
        "ALTER TABLE price RENAME COLUMN node TO host",
        "ALTER TABLE price ADD COLUMN host TEXT NOT NULL",
        "ALTER TABLE price ADD COLUMN host TEXT, ADD COLUMN rack TEXT NOT NULL",
        "ALTER TABLE price ADD COLUMN made TIMESTAMPTZ DEFAULT now()",
        "ALTER TABLE price ADD CONSTRAINT uq_price UNIQUE (node)",
        "ALTER TABLE price ADD CONSTRAINT ck_price CHECK (node <> '')",
        "CREATE UNIQUE INDEX uq_price ON price (node)",
        "CREATE INDEX ix_usage_interval_seq ON usage_interval (seq)",
        "UPDATE charge SET cost_micro = 0",
        "TRUNCATE price",
        "CREATE TRIGGER t BEFORE INSERT ON price FOR EACH ROW EXECUTE FUNCTION f()",
        "CREATE TRIGGER t AFTER INSERT ON price FOR EACH STATEMENT EXECUTE FUNCTION f()",
        f"{MAKES.format('RAISE EXCEPTION $m$no$m$')}; {BINDS}",
        f"{MAKES.format('DELETE FROM price')}; {BINDS}",
        f"{MAKES.format('NULL')}; {BINDS.replace('AFTER', 'BEFORE')}",
        "ALTER TABLE price ALTER COLUMN node DROP DEFAULT",
        "ALTER TABLE price DROP CONSTRAINT uq_price",
        f"{MAKES.format('RAISE EXCEPTION $m$no$m$')}; {BINDS}; ALTER TABLE price DROP CONSTRAINT fk_price",
    ],
)
def test_what_is_forbidden_is_found(statement):
    """Each kind of statement that the rule names, on a table that was there before."""
    assert forbidden(f"{statement};\nCREATE TABLE other (id BIGINT);")


def test_what_only_adds_is_allowed():
    """New tables with whatever they have, columns that old writers need not know, indexes that
    nobody waits for.
    """
    assert forbidden(";".join(ADDS)) == []
    assert (
        forbidden(
            "CREATE TABLE a (b TEXT NOT NULL); CREATE UNIQUE INDEX c ON a (b); ALTER TABLE a DROP"
            " COLUMN b"
        )
        == []
    )
    assert (
        forbidden("CREATE INDEX CONCURRENTLY ix_usage_interval_seq ON usage_interval (seq)") == []
    )
    assert forbidden("ALTER TABLE charge DROP CONSTRAINT fk_charge_price_id") == []
    assert forbidden("CREATE INDEX i ON ONLY usage_interval (seq)") == []
    assert forbidden("ALTER TABLE price ADD CONSTRAINT ck CHECK (node <> 'x') NOT VALID") == []
    assert forbidden("COMMENT ON COLUMN price.node IS 'DROP TABLE; RENAME'") == []
    assert forbidden(f"CREATE TABLE a (b TEXT); {MAKES.format('DELETE FROM a')}; {BINDS}") == []


@pytest.mark.long
def test_an_old_collector_serves_on_beside_a_newer_schema_and_then_makes_way(folder, dsn, newer):
    """Batches and jobs of the old one go on while the schema gets ahead; what would break it waits
    for its end.
    """

    def command(*arguments):
        return CliRunner().invoke(build(), ["db", "upgrade", *arguments, "--dsn", dsn])

    with replicas(folder, dsn, 1) as (old,):
        statuses, stopping = [], threading.Event()

        def push():
            seq = 0
            while not stopping.wait(0.05):
                seq += 1
                statuses.append(old.send(batch(seq, start_ms=NOON_MS + seq * 60_000)))

        sender = threading.Thread(target=push, daemon=True)
        sender.start()
        until(lambda: len(statuses) >= 5)
        plain = command()
        assert plain.exit_code == 0
        assert f"migrated to {PRE} Adds" in plain.stdout
        assert f"left        {POST} Takes away" in plain.stdout
        before = len(statuses)
        until(lambda: len(statuses) >= before + 10)
        assert old.ready()
        runs = old.job_runs()
        until(lambda: old.job_runs() > runs + 10)
        refused = command("--post")
        assert refused.exit_code == 1
        assert "older collectors are alive" in refused.stdout
        new = Patched(folder, 9, dsn, newer)
        new.start()
        try:
            new.wait_ready()
            assert new.send(batch(1, node="served-by-new")) == 200
            stopping.set()
            sender.join()
            # 503: send it again. Nothing was refused, and nothing broke.
            assert set(statuses) <= {200, 503}
            assert statuses.count(503) <= 3
            with psycopg.connect(dsn) as connection:
                outcomes = connection.execute(
                    "SELECT DISTINCT outcome FROM job_run WHERE ended_at IS NOT NULL"
                )
                assert ("failed",) not in outcomes.fetchall()
            assert old.stop() == 0
            done = command("--post")
            assert (done.exit_code, f"migrated to {POST} Takes away" in done.stdout) == (0, True)
            until(new.ready)
        finally:
            new.kill()
        old.start()
        assert old.process.wait(60) != 0
        assert "newer one" in old.log()


def test_a_collector_whose_schema_is_past_a_post_migration_is_not_ready(dsn, newer, monkeypatch):
    """It says why, and so does a version that knows nothing of the steps."""
    made = migrate.upgrade(dsn)
    assert [step.revision for step in made.done] == [PRE, POST]
    migrate.require_current(dsn)
    monkeypatch.undo()
    with pytest.raises(SchemaBehind, match="newer one"):
        migrate.require_current(dsn)


def test_a_dead_collector_stands_against_nothing(dsn, newer):
    """A heartbeat that is older than a minute is nobody's."""
    alive = presence.Presence(Database(dsn), HEAD)
    alive.beat()
    made = migrate.upgrade(dsn)
    assert [step.revision for step in made.left] == [POST]
    assert len(made.older) == 1
    with psycopg.connect(dsn) as connection:
        connection.execute("UPDATE replica SET seen_at = seen_at - interval '61 seconds'")
    assert [step.revision for step in migrate.upgrade(dsn).done] == [POST]


def test_a_newer_collector_stands_against_nothing(dsn, newer):
    """Whoever knows the migration survives it."""
    presence.Presence(Database(dsn), POST).beat()
    assert migrate.upgrade(dsn).left == ()


def test_a_locked_table_is_waited_for_without_stopping_its_writers(dsn, newer, monkeypatch):
    """A long transaction holds a table: the migration gives way to writers, tries again, and runs
    when it can.
    """
    monkeypatch.setattr(migrate, "LOCK_PAUSE_SECONDS", 0.2)
    done = []
    with psycopg.connect(dsn) as reader:
        reader.execute("SELECT count(*) FROM usage_interval")
        thread = threading.Thread(target=lambda: done.append(migrate.upgrade(dsn)))
        thread.start()
        with psycopg.connect(dsn, autocommit=True) as writer:
            until(lambda: waits(writer))
            begun = time.monotonic()
            writer.execute("DELETE FROM usage_interval WHERE seq = -1")
            assert time.monotonic() - begun < 20
        assert not done
        reader.rollback()
        thread.join(120)
    assert [step.revision for step in done[0].done] == [PRE, POST]


def test_a_table_that_stays_locked_is_told_in_one_sentence(dsn, newer, monkeypatch):
    """After the last try; what was migrated before stays, the rest can be run again."""
    monkeypatch.setattr(migrate, "LOCK_PAUSE_SECONDS", 0)
    monkeypatch.setattr(migrate, "LOCK_TRIES", 1)
    with psycopg.connect(dsn) as reader:
        reader.execute("SELECT count(*) FROM workload")
        with pytest.raises(TablesLocked, match="pg_stat_activity"):
            migrate.upgrade(dsn)
    with contextlib.suppress(TablesLocked):
        assert len(migrate.upgrade(dsn).done) == 2


def waits(connection) -> bool:
    return connection.execute("SELECT FROM pg_locks WHERE NOT granted").fetchone() is not None
