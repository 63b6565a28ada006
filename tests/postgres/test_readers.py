"""The role that dashboards use: what it may, who may make it, and that the command can be repeated."""

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from typer.testing import CliRunner

from gpuledger_collector.cli import build
from gpuledger_collector.cli.common import explain
from gpuledger_collector.storage.access import readers
from gpuledger_collector.storage.schema import metadata

ROLE, OWNER = "reader_of_these_tests", "owner_of_these_tests"


@pytest.fixture
def admin(superuser):
    """A connection that may do everything; the roles of these tests are gone afterwards."""
    with psycopg.connect(superuser, autocommit=True) as connection:
        yield connection
        for role in (ROLE, OWNER):
            if connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (role,)).fetchone():
                connection.execute(f"REASSIGN OWNED BY {role} TO CURRENT_USER")
                connection.execute(f"DROP OWNED BY {role}")
                connection.execute(f"DROP ROLE {role}")


def run(dsn, *arguments):
    result = CliRunner().invoke(build(), ["db", "grant-reader", *map(str, arguments), "--dsn", dsn])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        sentence, code = explain(result.exception)
        return code, sentence
    return result.exit_code, result.stdout


def test_what_may_be_read_is_declared():
    """Every readable table is one of the schema; evidence and mail are not readable."""
    assert set(readers.READABLE) <= set(metadata.tables)
    assert not set(readers.READABLE) & {"gpu_sample", "usage_interval", "outbox"}
    for table, columns in readers.READABLE_COLUMNS.items():
        assert set(columns) <= set(metadata.tables[table].columns.keys())
        assert not set(columns) & {
            "recipient",
            "subject",
            "text",
            "html",
            "error",
            "owner",
            "reason",
            "evidence",
        }


def test_the_role_logs_in_and_reads(dsn, admin, tmp_path):
    """With the password of the file, read-only, with a limit on its statements; twice is as once."""
    secret = tmp_path / "password"
    secret.write_text("quite' \\ secret\n")
    for _ in range(2):
        assert run(dsn, ROLE, "--password-file", secret) == (
            0,
            f"{ROLE} may read rollups and ledgers\n",
        )
    with psycopg.connect(
        make_conninfo(dsn, user=ROLE, password="quite' \\ secret"), autocommit=True
    ) as reader:
        assert reader.execute("SELECT count(*) FROM charge").fetchone() == (0,)
        assert reader.execute("SHOW statement_timeout").fetchone() == (readers.STATEMENT_TIMEOUT,)
        for table in ("gpu_sample", "usage_interval", "outbox"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                reader.execute(f"SELECT * FROM {table}")
        assert reader.execute("SELECT count(*) FROM outbox WHERE state = 'dead'").fetchone() == (0,)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            reader.execute("SELECT text FROM outbox")
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            reader.execute("DELETE FROM charge")


def test_a_dry_run_changes_nothing(dsn, admin, tmp_path):
    """It prints statements without the password, and makes no role."""
    secret = tmp_path / "password"
    secret.write_text("secret")
    code, text = run(dsn, ROLE, "--password-file", secret, "--dry-run")
    assert code == 0
    assert "GRANT SELECT ON" in text
    assert "secret" not in text.replace("sets the password", "")
    assert admin.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (ROLE,)).fetchone() is None


def test_an_owner_without_rights_is_told_what_to_ask_for(dsn, admin):
    """It may not create roles: one sentence with the statement.

    With the role there, it grants what it may.
    """
    own = owned_by_somebody(dsn, admin)
    code, text = run(own, ROLE)
    assert code == 3
    assert f'CREATE ROLE "{ROLE}" LOGIN' in text
    admin.execute(f"CREATE ROLE {ROLE} LOGIN")
    code, text = run(own, ROLE)
    assert code == 0
    assert "left to an administrator: ALTER ROLE" in text
    assert admin.execute(
        "SELECT has_table_privilege(%s, 'charge', 'SELECT')", (ROLE,)
    ).fetchone() == (True,)
    assert admin.execute(
        "SELECT has_table_privilege(%s, 'usage_interval', 'SELECT')", (ROLE,)
    ).fetchone() == (False,)


def test_an_owner_that_may_not_alter_the_role_is_told_the_statement(dsn, admin, tmp_path):
    """With a password as the guide has it: no traceback, and the password is not shown."""
    own = owned_by_somebody(dsn, admin)
    admin.execute(f"CREATE ROLE {ROLE} LOGIN")
    secret = tmp_path / "password"
    secret.write_text("very secret")
    code, text = run(own, ROLE, "--password-file", secret)
    assert code == 0, text
    assert f"""left to an administrator: ALTER ROLE "{ROLE}" LOGIN PASSWORD '...';""" in text
    assert "SCRAM" not in text
    assert "very secret" not in text
    assert (
        f"""left to an administrator: ALTER ROLE "{ROLE}" SET temp_file_limit = '64MB';""" in text
    )


def owned_by_somebody(dsn, admin):
    """DSN of an unprivileged role that owns every table of this database."""
    admin.execute(f"CREATE ROLE {OWNER} LOGIN PASSWORD 'owner'")
    name = conninfo_to_dict(dsn)["dbname"]
    admin.execute(f'ALTER DATABASE "{name}" OWNER TO {OWNER}')
    admin.execute(f"ALTER SCHEMA public OWNER TO {OWNER}")
    for (table,) in admin.execute(
        "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
    ).fetchall():
        admin.execute(f'ALTER TABLE "{table}" OWNER TO {OWNER}')
    return make_conninfo(dsn, user=OWNER, password="owner")


def test_a_powerful_role_is_refused(dsn, admin):
    """The owner itself, or a superuser, is no reader."""
    me = conninfo_to_dict(dsn)["user"]
    code, text = run(dsn, me)
    assert code == 3
    assert "no role for reading alone" in text
