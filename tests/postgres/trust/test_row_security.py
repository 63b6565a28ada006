"""The second wall: a dashboards' role of one owner, held to its rows by Postgres itself."""

import re
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from fakes.two_teams import FOREIGN, OWN, two_teams
from gpuledger_collector.storage.access import dashboard_row_security as row_security
from gpuledger_collector.storage.access import readers

pytestmark = pytest.mark.slow

SCOPED, FULL = "reader_of_one_owner", "reader_of_everything"


@pytest.fixture
def roles(dsn, tmp_path, command):
    """DSNs of a role of one owner and of one that may read everything; both gone afterwards."""
    with two_teams(dsn, tmp_path):
        pass
    (tmp_path / "password").write_text("a password\n")
    given = ("--password-file", tmp_path / "password")
    for _ in range(2):
        made = command("db", "grant-reader", SCOPED, "--owner", f"team={OWN}", *given)
        assert made.exit_code == 0, made.exception
    assert command("db", "grant-reader", FULL, *given).exit_code == 0
    yield {role: make_conninfo(dsn, user=role, password="a password") for role in (SCOPED, FULL)}
    with psycopg.connect(dsn, autocommit=True) as connection:
        for role in (SCOPED, FULL):
            connection.execute(f"DROP OWNED BY {role}")
            connection.execute(f"DROP ROLE {role}")


def everything(dsn, table):
    with psycopg.connect(dsn) as connection:
        return connection.execute(
            sql.SQL("SELECT t::text FROM {} t").format(sql.Identifier(table))
        ).fetchall()


def test_a_role_of_one_owner_sees_no_foreign_row_anywhere(dsn, roles):
    """Every table of the schema, one by one: the rows of its owner, or no right to the table at
    all.
    """
    with psycopg.connect(dsn) as connection:
        tables = [
            row[0]
            for row in connection.execute(
                "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND"
                " relkind IN ('r', 'p')"
            )
        ]
        own_ids = [
            row[0] for row in connection.execute("SELECT id FROM owner WHERE team = %s", (OWN,))
        ]
    readable = []
    for table in tables:
        try:
            rows = everything(roles[SCOPED], table)
        except psycopg.errors.InsufficientPrivilege:
            continue
        readable.append(table)
        assert FOREIGN not in str(rows), table
        assert len(everything(roles[FULL], table)) == len(everything(dsn, table)), table
    assert sorted(readable) == sorted(row_security.TABLES)
    with psycopg.connect(roles[SCOPED]) as reader:
        for table in ("charge", "ledger_day"):
            rows = reader.execute(
                sql.SQL("SELECT DISTINCT owner_id FROM {}").format(sql.Identifier(table))
            ).fetchall()
            assert [row[0] for row in rows] == own_ids
        assert reader.execute("SELECT name FROM budget").fetchall() == [(f"{OWN}-budget",)]
        assert reader.execute("SELECT DISTINCT team FROM finding").fetchall() == [(OWN,)]
        assert reader.execute("SELECT sum(cost_micro) FROM ledger_day").fetchone()[0] > 0
    assert FOREIGN in str(everything(dsn, "owner"))


PAGE = Path(__file__).parents[3] / "docs/security.md"


def test_a_role_of_one_owner_counts_foreign_rows_and_reads_none_of_them(dsn, roles):
    """Plans, statistics and errors tell how many there are, as the page says, and neither a name
    nor an amount.
    """
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("ANALYZE")
        foreign = connection.execute(
            "SELECT count(*) FROM owner WHERE team = %s", (FOREIGN,)
        ).fetchone()[0]
        assert FOREIGN in str(connection.execute("SELECT * FROM pg_stats").fetchall())
    with psycopg.connect(roles[SCOPED], autocommit=True) as reader:
        said = [
            str(
                reader.execute(
                    f"EXPLAIN (ANALYZE, VERBOSE, BUFFERS) SELECT * FROM {table}"
                ).fetchall()
            )
            for table in row_security.TABLES
        ]
        removed = [
            int(count)
            for plan in said
            for count in re.findall(r"Rows Removed by Filter: (\d+)", plan)
        ]
        said += [
            str(reader.execute(statement).fetchall())
            for statement in (
                "SELECT * FROM pg_stats",
                "SELECT * FROM pg_stat_activity",
                "SELECT * FROM pg_policies",
            )
        ]
        # A condition of the reader's own is asked of its rows alone: no error quotes those of
        # others.
        for column in ("team", "project"):
            try:
                reader.execute(f"SELECT count(*) FROM owner WHERE {column}::int = 1")
            except psycopg.Error as error:
                said.append(str(error))
    assert foreign > 0
    assert any(count >= foreign for count in removed)
    assert FOREIGN not in str(said)
    _, _, unpromised = PAGE.read_text(encoding="utf-8").partition("## Not promised")
    assert "`EXPLAIN ANALYZE` says how many rows a policy removed" in " ".join(unpromised.split())


def test_such_a_role_is_not_made_a_full_reader_by_accident(dsn, roles, command):
    """The same command without --owner is refused for it."""
    made = command("db", "grant-reader", SCOPED)
    assert isinstance(made.exception, readers.RoleRefused)
    assert "one owner's part only" in str(made.exception)


def test_a_value_in_a_policy_is_a_value(dsn, command):
    """Quotes in a team's name are part of the name."""
    made = command(
        "db", "grant-reader", "reader_quoted", "--owner", "team=a' OR true --", "--dry-run"
    )
    assert made.exit_code == 0
    assert "\"team\" = 'a'' OR true --'" in made.output
