"""The schema's versions: what migrations build is what the code declares."""

import psycopg
import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from fakes.postgres import administrator
from gpuledger_collector import wiring
from gpuledger_collector.settings import Settings
from gpuledger_collector.storage import row_level_security
from gpuledger_collector.storage.database import Database, parameters
from gpuledger_collector.storage.errors import SchemaBehind, ServerUnavailable
from gpuledger_collector.storage.schema import metadata
from gpuledger_collector.storage.server import migrate, schema_version
from gpuledger_collector.storage.telemetry import partitions


@pytest.fixture
def empty_dsn(postgres):
    admin = make_conninfo(administrator(postgres), dbname="postgres")
    owner = conninfo_to_dict(postgres).get("user", "CURRENT_USER")
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE test_empty TEMPLATE template0 OWNER {owner}")
    yield make_conninfo(postgres, dbname="test_empty")
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute("DROP DATABASE test_empty WITH (FORCE)")


def set_revision(dsn, revision):
    """Pretend that another revision, or none, is the database's."""
    with Database(dsn).transaction() as connection:
        connection.execute("DELETE FROM alembic_version")
        if revision is not None:
            connection.execute("INSERT INTO alembic_version VALUES (%s)", (revision,))


def test_migrations_build_the_declared_schema(database):
    """Tables, columns, types, defaults, comments, indexes and keys are the declared ones, down to
    the partition key.
    """
    options = {
        "compare_type": True,
        "compare_server_default": True,
        "include_object": migrate.own_objects,
    }
    with migrate.connected(database.dsn) as connection:
        assert (
            compare_metadata(MigrationContext.configure(connection, opts=options), metadata) == []
        )
        keys = connection.execute(
            sa.text(
                "SELECT c.relname, pg_get_partkeydef(c.oid) FROM pg_partitioned_table p"
                " JOIN pg_class c ON c.oid = p.partrelid"
            )
        )
        declared = {
            name: table.dialect_options["postgresql"]["partition_by"]
            for name, table in metadata.tables.items()
            if table.dialect_options["postgresql"]["partition_by"]
        }
        assert dict(map(tuple, keys)) == declared
        checks = connection.execute(
            sa.text("SELECT conname FROM pg_constraint WHERE contype = 'c' ORDER BY 1")
        ).scalars()
        assert set(checks) >= {"ck_capacity_order", "ck_imported_usage_order"}


def test_partitions_do_not_disturb_the_comparison(database):
    """The days made on demand are no part of the declared schema."""
    with Database(database.dsn).transaction() as connection:
        partitions.ensure(
            connection,
            "usage_interval",
            [1_700_000_000_000 // partitions.DAY_MS * partitions.DAY_MS],
        )
    options = {"include_object": migrate.own_objects}
    with migrate.connected(database.dsn) as connection:
        assert (
            compare_metadata(MigrationContext.configure(connection, opts=options), metadata) == []
        )


def test_an_empty_database_is_behind_until_upgraded(empty_dsn):
    """`status` names what is pending, `upgrade` brings it, and a second upgrade has nothing to do."""
    before = migrate.status(empty_dsn)
    assert before.current is None
    assert before.pending
    assert before.is_supported
    with pytest.raises(SchemaBehind, match="gpuledger db upgrade"):
        migrate.require_current(empty_dsn)
    assert migrate.upgrade(empty_dsn).done == before.pending != ()
    assert migrate.upgrade(empty_dsn).done == ()
    migrate.require_current(empty_dsn)


def test_a_newer_schema_is_refused(dsn):
    """A database that a newer version migrated is not touched."""
    with Database(dsn).transaction() as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(SchemaBehind, match="newer"):
        migrate.upgrade(dsn)


def test_files_of_migrations_begin_with_their_revisions():
    """The newest revision can be told from the names of the files, without importing them."""
    files = sorted(file.name[:4] for file in (schema_version.scripts() / "versions").glob("*.py"))
    assert files == sorted(migrate.steps())
    assert schema_version.newest() == migrate.head()


def test_the_short_look_agrees_with_the_long_one(empty_dsn):
    """An empty database, an older and a newer one are no newest one; a current one is, once its
    wall stands, too.
    """
    assert not schema_version.is_newest(empty_dsn)
    migrate.upgrade(empty_dsn)
    assert schema_version.is_newest(empty_dsn, secured=True)
    with Database(empty_dsn).transaction() as connection:
        row_level_security.disable(connection)
    assert schema_version.is_newest(empty_dsn)
    assert not schema_version.is_newest(empty_dsn, secured=True)
    for other in (None, "9999"):
        set_revision(empty_dsn, other)
        assert not schema_version.is_newest(empty_dsn)


def test_a_command_refuses_what_the_long_look_refuses(empty_dsn):
    """A database by DSN that nobody migrated, that lacks a step, or that only a newer version knows
    opens no block.
    """
    settings = Settings(dsn=empty_dsn)
    with pytest.raises(SchemaBehind, match="gpuledger db upgrade"), wiring.database(settings):
        pass
    migrate.upgrade(empty_dsn)
    with wiring.database(settings) as opened:
        assert wiring.readiness_problems(opened) is None
        for other, said in ((None, "gpuledger db upgrade"), ("9999", "newer")):
            set_revision(empty_dsn, other)
            assert said in (wiring.readiness_problems(opened) or "")
            with pytest.raises(SchemaBehind, match=said), wiring.database(settings):
                pass


def test_a_ledger_from_before_the_first_release_is_refused(empty_dsn):
    """Its tables have other names, so a sentence says to start anew, and nothing is changed."""
    with Database(empty_dsn).transaction() as connection:
        connection.execute("CREATE TABLE stretch ()")
    with pytest.raises(SchemaBehind, match="before the first release"):
        migrate.upgrade(empty_dsn)
    with Database(empty_dsn).transaction() as connection:
        rows = connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
        ).fetchall()
    assert rows == [("stretch",)]


def test_partitions_are_made_once_and_listed(dsn):
    """A day's partition is made on demand, found the second time, and takes that day's rows and no
    others.
    """
    day = 20_000 * partitions.DAY_MS
    with Database(dsn).transaction() as connection:
        assert partitions.ensure(connection, "gpu_sample", [day, day, day + partitions.DAY_MS]) == [
            "gpu_sample_p20241004",
            "gpu_sample_p20241005",
        ]
        assert partitions.ensure(connection, "gpu_sample", [day]) == []
        connection.execute("INSERT INTO gpu_sample (accelerator_id, at_ms) VALUES (1, %s)", (day,))
        found = partitions.listing(connection)
        assert [(part.table, part.day_ms) for part in found] == [
            ("gpu_sample", day),
            ("gpu_sample", day + partitions.DAY_MS),
        ]
        indexes = connection.execute(
            "SELECT count(*) FROM pg_indexes WHERE tablename = 'gpu_sample_p20241004' AND indexdef"
            " LIKE '%brin%'"
        ).fetchone()
        assert indexes == (1,)
        with pytest.raises(psycopg.errors.CheckViolation):
            connection.execute(
                "INSERT INTO gpu_sample (accelerator_id, at_ms) VALUES (1, %s)", (day - 1,)
            )


@pytest.mark.parametrize(
    "dsn", ["nonsense", "host=127.0.0.1 port=1 user=x", "postgresql://x@127.0.0.1:1/x"]
)
def test_a_database_that_is_not_there_is_one_sentence(dsn):
    """A DSN that cannot be read or reached raises ServerUnavailable, without a word of its
    password.
    """
    with pytest.raises(ServerUnavailable) as caught:
        migrate.status(dsn)
    assert "\n" not in str(caught.value)


def test_sqlalchemys_spelling_of_a_dsn_is_understood():
    """postgresql+psycopg:// is what people copy from elsewhere."""
    assert parameters("postgresql+psycopg://me@there:6543/ledger")["host"] == "there"
