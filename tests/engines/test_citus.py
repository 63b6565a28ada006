"""The whole way on a real Citus cluster, and the same on one Postgres: bill, proof and seal are
equal to the byte.

Run it with `GPULEDGER_TEST_CITUS_DSN=… pytest -s tests/engines/test_citus.py`; -s shows the table
of what ran.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from fakes.batches import batch
from fakes.boards import BOARDS, SPAN, asked, chosen, options, reads_postgres
from fakes.citus import Worker, citus, empty, worker
from fakes.citus_month import MONTH, TODAY, Played, play_days, play_month, table, versions
from fakes.postgres import fresh_database, postgres
from fakes.replicas import replicas, until
from fakes.statements import USED, never_run, own_statements
from gpuledger_collector.accounting.period import DAY_MS
from gpuledger_collector.storage import row_level_security
from gpuledger_collector.storage.distribution import DISTRIBUTED, REFERENCE, distribute
from gpuledger_collector.storage.server import migrate
from gpuledger_collector.storage.telemetry import partitions

__all__ = ["citus", "postgres", "worker"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def engines(postgres: str, citus: str, folder: Path) -> Iterator[tuple[Played, Played]]:
    """The same days and the same month on one Postgres and on Citus; prints the table of what ran."""
    one, distributed = Played("", False, folder / "one"), Played(citus, True, folder / "citus")
    with fresh_database(postgres) as one.dsn, fresh_database(postgres) as small:
        for played, days in ((one, small), (distributed, citus)):
            played.folder.mkdir()
            print(
                f"playing {MONTH} on {'Citus' if played.is_citus else 'one Postgres'}", flush=True
            )
            play_days(played, days)
            if played.is_citus:
                empty(citus)
            with empty_database(postgres) as plain:
                play_month(played, plain)
        print(f"\n\n{versions(citus)}\n{table(one, distributed)}")
        yield one, distributed


@contextmanager
def empty_database(postgres: str) -> Iterator[str]:
    """DSN of a database without a schema."""
    with fresh_database(postgres) as dsn:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("DROP SCHEMA public CASCADE")
            connection.execute("CREATE SCHEMA public")
        yield dsn


def test_every_step_says_the_same_on_citus(engines):
    """Usage, minutes, bill, proof, idle GPUs, receipt, corrections, samples, privacy, retention and
    restored backup.
    """
    one, citus = engines
    assert {
        name: (text, citus.texts[name])
        for name, text in one.texts.items()
        if text != citus.texts[name]
    } == {}
    assert set(citus.texts) - set(one.texts) == {"distribute"}


def test_every_statement_on_distributed_tables_was_run(engines):
    """Each text of the product that names one, on Citus as on one Postgres; a new one needs a step
    that runs it.
    """
    statements = [statement for statement in own_statements() if USED.search(statement)]
    assert len(statements) >= 60
    for played in engines:
        assert never_run(statements, played.trace.read_text().splitlines()) == []


def test_there_was_something_to_compare(engines):
    """Bill, proof, seal, corrections and packed samples are not empty."""
    _, citus = engines
    assert len(citus.texts["chargeback CSV"].splitlines()) > 3
    assert "It holds on each of" in citus.texts["reconcile (proof)"]
    assert re.match(r"[0-9a-f]{64} intact: True, [1-9]\d+ lines", citus.texts["seal"])
    assert citus.texts["seal"] == citus.texts["seal at the end"]
    assert len(citus.texts["corrections"].splitlines()) > 1
    assert len(citus.texts["samples, packed"].splitlines()) > 1000
    assert citus.texts["seal"] in citus.texts["restore on one Postgres"]


def test_evidence_is_on_the_workers(engines):
    """Each distributed table has its shards on both workers; a second run of the command has
    nothing to do.
    """
    _, citus = engines
    with psycopg.connect(citus.dsn) as connection:
        rows = connection.execute(
            "SELECT table_name::text, citus_table_type, count(DISTINCT nodeport) FROM citus_shards"
            " WHERE citus_table_type IN ('distributed', 'reference') GROUP BY 1, 2"
        ).fetchall()
    workers = {
        name: count for name, kind, count in rows if kind == "distributed" and name in DISTRIBUTED
    }
    assert set(workers) == set(DISTRIBUTED)
    assert all(count >= 2 for count in workers.values())
    assert {name for name, kind, _ in rows if kind == "reference"} == set(REFERENCE)
    assert citus.command("db", "distribute") == "-- everything is distributed already\n"


def test_boards_are_answered(engines):
    """Every panel, whatever is chosen: Citus refuses none, and any other error is the panel's own."""
    _, citus = engines
    refused = {}
    with psycopg.connect(citus.dsn, autocommit=True) as connection:
        for name, board in BOARDS.items():
            if not reads_postgres(board):
                continue
            for choice in ("all", "first"):
                for panel in asked(
                    name, chosen(board, options(connection, board, SPAN), choice), SPAN
                ):
                    try:
                        connection.execute(panel.sql.encode())
                    except psycopg.errors.FeatureNotSupported as error:
                        refused[str(panel)] = str(error)
    assert refused == {}


def test_an_upgrade_keeps_row_level_security(engines):
    """It drops the policies and makes them again: all that Citus takes, and doctor knows no remedy
    that is left.
    """
    _, citus = engines
    query = (
        "SELECT array_agg(tablename::text) FROM pg_policies WHERE policyname = 'gpuledger_viewer'"
    )
    before = set(citus.value(query))
    with psycopg.connect(citus.dsn, autocommit=True) as connection:
        own = row_level_security.OWNED.keys() - row_level_security.unfiltered_tables(connection)
        assert row_level_security.disable(connection) == len(own)
    assert citus.value(query) is None
    citus.command("db", "upgrade")
    assert (
        set(citus.value(query)) == before == own >= {"charge", "ledger_day", "budget", "correction"}
    )
    (line,) = [line for line in citus.command("doctor").splitlines() if " viewers " in line]
    assert "row-level security holds viewers" in line


def test_a_worker_that_dies_is_named_and_nothing_is_lost(engines, worker: Worker, folder: Path):
    """/readyz and doctor name it, batches are answered 503 and stay with their agents; back, each
    counts once.
    """
    _, citus = engines
    home = folder / "killed"
    home.mkdir()
    made = [
        batch(seq, node="killed-1", start_ms=int(TODAY.timestamp() * 1000) + seq * 60_000)
        for seq in (1, 2)
    ]
    with replicas(home, citus.dsn, 1, GPULEDGER_JOBS="false") as (one,):
        assert one.send(made[0]) == 200
        worker.crash()
        status, text = one.get("/readyz")
        assert status == 503
        assert f"1 Citus worker cannot be reached by the coordinator: {worker.address}" in text
        assert one.send(made[1]) == 503
        doctor = citus.command("doctor", ends=1)
        assert (
            "BAD   workers      1 Citus worker cannot be reached by the coordinator:"
            f" {worker.address}" in doctor
        )
        worker.start()
        until(one.ready)
        until(lambda: one.send(made[1]) == 200)
        assert one.send(made[0]) == 200
        print(
            f"\na worker killed: /readyz {status} {text.strip()}\n{doctor.splitlines()[0]}\nback:"
            " ready, nothing lost"
        )
    assert (
        citus.value(
            "SELECT count(*) FROM ingest_batch b JOIN node n ON n.id = node_id WHERE name ="
            " 'killed-1'"
        )
        == 2
    )
    seen = (
        "SELECT count(*) || ' ' || count(DISTINCT (accelerator_id, start_ms)) FROM usage_interval s"
        " JOIN node n"
    )
    assert (
        citus.value(f"{seen} ON n.id = s.node_id WHERE n.name = 'killed-1' AND state = 'held'")
        == "4 4"
    )


def test_a_ledger_that_is_distributed_takes_what_came_later(engines):
    """Days to come have the index of long intervals, as on one Postgres. Last: it empties the
    database.
    """
    _, citus = engines
    day_ms = int(TODAY.timestamp() * 1000)
    empty(citus.dsn)
    migrate._migrate(citus.dsn, "0043")
    with psycopg.connect(citus.dsn, autocommit=True) as connection:
        distribute(connection, 8)
        partitions.ensure(connection, "usage_interval", [day_ms])
    assert migrate.upgrade(citus.dsn).left == ()
    with psycopg.connect(citus.dsn, autocommit=True) as connection:
        partitions.ensure(connection, "usage_interval", [day_ms + DAY_MS])
        indexed = connection.execute(
            "SELECT count(*) FILTER (WHERE pg_get_indexdef(indexrelid) LIKE '%> 3600000)'), count(*)"
            " FROM pg_index WHERE indrelid::regclass::text LIKE 'usage\\_interval\\_p%'"
        ).fetchone()
    assert indexed == (1, 5)
