"""A backup of every supported Postgres restores into every other: same rows, bills, proofs and
seals, or nothing.
"""

import contextlib

import psycopg
import pytest

from fakes.books import EVIDENCE, Command, answers, furnish, pack_august, printed, tables, world_of
from fakes.engines import MAJORS, engine
from gpuledger_collector.storage.server import migrate

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
END_THE_SESSION = """
CREATE SCHEMA own;
CREATE FUNCTION own.end_session() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN
    IF EXISTS (SELECT FROM pg_event_trigger_ddl_commands() WHERE object_identity LIKE '%charge%')
    THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF; END $$;
CREATE EVENT TRIGGER own ON ddl_command_end WHEN TAG IN ('CREATE INDEX') EXECUTE FUNCTION own.end_session();
"""
"""Of the server on which the session ends when the first index of charges is made, after all rows
have been copied.
"""


@pytest.fixture(scope="module")
def engines(folder):
    """A server of each major version, by its number."""
    with contextlib.ExitStack() as stack:
        yield {major: stack.enter_context(engine(major, folder)) for major in MAJORS}


@pytest.fixture(scope="module")
def ledgers(engines, folder):
    """A ledger made on each of them, and its backup, by the number."""
    backups = {}
    for major, server in engines.items():
        migrate.upgrade(server.dsn())
        with world_of(server.dsn()) as world:
            furnish(world, folder)
        pack_august(server.dsn())
        answers(Command(server.dsn()))  # brings everything up to date
        backups[major] = folder / f"{major}.dump"
        code, _, err = Command(server.dsn())("db", "backup", backups[major])
        assert code == 0, err
    return backups


def test_every_backup_restores_into_every_version(engines, ledgers):
    """From and to each of 15 to 18: every table holds the same rows, and every bill, proof and seal
    is the same.
    """
    rows = []
    for source, backup in ledgers.items():
        expected, content = answers(Command(engines[source].dsn())), tables(engines[source].dsn())
        assert content["charge"][0] > 0
        assert content["correction"][0] > 0
        assert content["usage_interval_day"][0] > 0
        assert content[EVIDENCE][0] > content["usage_interval"][0] > 0
        for target, server in engines.items():
            there = server.create_database(f"from_{source}")
            code, out, err = Command(there)("db", "restore", backup)
            assert (code, err) == (0, ""), (source, target, out, err)
            assert tables(there) == content
            assert answers(Command(there)) == expected
            rows.append(
                [
                    engines[source].version(),
                    server.version(),
                    f"{len(content)}, {sum(count for count, _ in content.values())} rows: equal",
                    *(
                        f"{expected[name]} equal"
                        for name in ("bill of August", "proof of August", "seal")
                    ),
                ]
            )
    print(printed("db backup, db restore", ["from", "to", "tables", "bill", "proof", "seal"], rows))


def test_what_an_older_version_cannot_take_is_said_in_a_sentence(engines, ledgers, folder):
    """A table of somebody's own that only 18 can have: nothing is restored into 15, and the
    sentence says why.
    """
    newest = engines[MAJORS[-1]].dsn()
    with psycopg.connect(newest, autocommit=True) as connection:
        connection.execute("CREATE TABLE zz_own (id uuid DEFAULT uuidv7())")
    try:
        assert Command(newest)("db", "backup", folder / "own.dump")[0] == 0
    finally:
        with psycopg.connect(newest, autocommit=True) as connection:
            connection.execute("DROP TABLE zz_own")
    there = engines[15].create_database("cannot")
    code, out, err = Command(there)("db", "restore", folder / "own.dump")
    assert (code, out) == (3, "")
    assert (
        err
        == "the backup of a PostgreSQL 18 does not fit PostgreSQL 15 (function uuidv7() does not"
        " exist); nothing was restored: give a server of version 18 or newer"
    )
    assert tables(there) == {}


def test_a_truncated_backup_leaves_nothing_behind(engines, ledgers, folder):
    """Cut at several places, in its list and in its rows: one sentence, and the database is empty."""
    whole = ledgers[18].read_bytes()
    broken = folder / "broken.dump"
    there = engines[15].create_database("truncated")
    for part in (0.001, 0.3, 0.5):
        broken.write_bytes(whole[: int(len(whole) * part)])
        code, out, err = Command(there)("db", "restore", broken)
        assert (code, out) == (2, ""), part
        assert err.startswith(f"{broken} cannot be read as a backup (pg_restore: ")
        assert "\n" not in err
        assert tables(there) == {}
    assert Command(there)("db", "restore", ledgers[18])[0] == 0


def test_a_restore_that_loses_its_session_leaves_nothing_behind(engines, ledgers):
    """The server ends the session in the middle of the data: one sentence, and the database is
    empty.
    """
    there = engines[16].create_database("lost")
    with psycopg.connect(engines[16].dsn("postgres", "lost"), autocommit=True) as connection:
        connection.execute(END_THE_SESSION)
    code, out, err = Command(there)("db", "restore", ledgers[17])
    assert (code, out) == (3, "")
    assert "nothing was restored: " in err
    assert tables(there) == {}
