"""Behind pgbouncer: the product refuses it in a sentence and changes nothing; dashboards read
through it.
"""

import json
import subprocess

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from fakes.books import Command, answers, furnish, printed, tables, world_of
from fakes.engines import engine
from fakes.pgbouncer import pgbouncer
from fakes.processes import BIN, environment
from gpuledger_collector.storage.database import POOLED
from gpuledger_collector.storage.server import migrate

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

MODES = {
    "transaction": ("transaction", ""),
    "transaction, options ignored": ("transaction", "ignore_startup_parameters = options"),
    "statement": ("statement", ""),
    "statement, options ignored": ("statement", "ignore_startup_parameters = options"),
    "session": ("session", ""),
    "session, options ignored": ("session", "ignore_startup_parameters = options"),
}
"""Pool mode and further configuration.

What pgbouncer does without is to refuse sessions with options.
"""
READER = "grafana"
CHARGED = "SELECT currency, sum(cost_micro)::text FROM ledger_day GROUP BY 1 ORDER BY 1"


@pytest.fixture(scope="module")
def server(folder):
    """Debian's Postgres with a ledger."""
    with engine(15, folder) as running:
        migrate.upgrade(running.dsn())
        with world_of(running.dsn()) as world:
            furnish(world, folder)
        password = folder / "reader"
        password.write_text("read")
        code, _, err = Command(running.dsn())(
            "db", "grant-reader", READER, "--password-file", password
        )
        assert code == 0, err
        yield running


def test_a_pooler_is_refused_and_changes_nothing(server, folder):
    """Reading, writing, migrating, backing up and serving end with 3 and one sentence; bills,
    proofs and seals stay.
    """
    expected, content = answers(Command(server.dsn())), tables(server.dsn())
    commands = [
        ("chargeback", "--period", "2026-08"),
        ("prices", "set", "--rate", "9", "--currency", "USD", "--from", "2026-09-01"),
        ("db", "upgrade"),
        ("db", "check"),
        ("db", "backup", folder / "pooled.dump", "--force"),
    ]
    rows = []
    for name, (mode, more) in MODES.items():
        with pgbouncer(server, mode, more) as pooled:
            for arguments in commands:
                code, out, err = Command(pooled)(*arguments)
                assert (code, out, err) == (3, "", POOLED), (name, arguments, out, err)
            code, out, _ = Command(pooled)("doctor")
            assert (code, f"BAD   database     {POOLED}\n" in out) == (3, True)
            served = serve(pooled)
            assert (served.returncode, served.stderr) == (3, f"gpuledger: {POOLED}\n")
        assert tables(server.dsn()) == content
        assert answers(Command(server.dsn())) == expected
        rows.append(
            [
                name,
                f"{len(commands)} commands, doctor and serve: exit 3",
                f"{len(content)} tables equal",
            ]
            + [f"{expected[kind]} equal" for kind in ("bill of August", "proof of August", "seal")]
        )
    print(
        printed(
            "pgbouncer before Postgres 15",
            ["pool mode", "gpuledger", "rows", "bill", "proof", "seal"],
            rows,
        )
    )


def serve(dsn):
    return subprocess.run(
        [BIN / "gpuledger", "serve"],
        env=environment(GPULEDGER_DSN=dsn, GPULEDGER_LISTEN="127.0.0.1:0"),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_dashboards_read_through_a_pooler(server):
    """The role of dashboards keeps its limits, which the server knows, and sees the same sums."""
    direct = make_conninfo(server.dsn(), user=READER, password="read")
    with pgbouncer(server, "transaction", **{READER: "read"}) as pooled:
        through = make_conninfo(pooled, user=READER, password="read")
        seen = []
        for dsn in (direct, through):
            with psycopg.connect(dsn, autocommit=True, prepare_threshold=None) as connection:
                limits = connection.execute("SHOW statement_timeout").fetchone()
                charged = connection.execute(CHARGED).fetchall()
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute("SELECT FROM usage_interval")
                seen.append((limits, charged))
    assert seen[0] == seen[1]
    assert seen[0][1]
    print(
        printed(
            "Dashboards",
            ["way", "charged"],
            [["direct", json.dumps(seen[0][1])], ["pgbouncer", json.dumps(seen[1][1])]],
        )
    )


def test_a_database_that_is_not_utf8_is_refused(folder):
    """SQL_ASCII takes any bytes and gives them back as other names: refused before anything is
    created.
    """
    with engine(15, folder, encoding="SQL_ASCII") as server:
        for arguments in (("db", "upgrade"), ("db", "check"), ("chargeback",)):
            code, out, err = Command(server.dsn())(*arguments)
            assert (code, out) == (3, "")
            assert (
                err
                == "the database has the encoding SQL_ASCII, which cannot hold every name: create"
                " it with ENCODING 'UTF8' TEMPLATE template0"
            )
        assert tables(server.dsn()) == {}
