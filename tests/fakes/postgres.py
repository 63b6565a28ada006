"""Real Postgres for tests: one embedded server a session, one fresh migrated database a test."""

import contextlib
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from gpuledger_collector.storage import migrate
from gpuledger_collector.storage.embedded import EmbeddedServer
from gpuledger_collector.wiring import Database

_numbers = itertools.count(1)


def open_folder(prefix: str = "gpuledger-test-") -> Path:
    """A temporary folder that the server's unprivileged user can walk through, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    folder.chmod(0o755)
    return folder


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """DSN of the session's server; its database is migrated and serves as the template, so leave it alone.

    TEST_POSTGRES_DSN names an empty database of another server (Postgres 15 to 18) to run the tests on.
    """
    if given := os.environ.get("TEST_POSTGRES_DSN"):
        migrate.upgrade(given)
        yield given
        return
    folder = open_folder()
    # The tests lose nothing when this machine's power fails.
    server = EmbeddedServer(folder, options={"fsync": "off", "full_page_writes": "off", "max_connections": "100"})
    try:
        dsn = server.acquire()
        migrate.upgrade(dsn)
        yield dsn
    finally:
        server.release()
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def fresh_database(postgres: str) -> Iterator[str]:
    """DSN of a new database, migrated and empty, dropped at the end of the block."""
    name = f"test_{next(_numbers)}"
    admin, template = make_conninfo(postgres, dbname="postgres"), conninfo_to_dict(postgres)["dbname"]
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE {name} TEMPLATE "{template}" STRATEGY FILE_COPY')
    try:
        yield make_conninfo(postgres, dbname=name)
    finally:
        with psycopg.connect(admin, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def dsn(postgres: str) -> Iterator[str]:
    """DSN of a database of this test's own, migrated and empty."""
    with fresh_database(postgres) as made:
        yield made


@pytest.fixture
def database(dsn: str) -> Iterator[Database]:
    """A database of this test's own with an engine: `.engine`, `.dsn`."""
    opened = Database(dsn)
    try:
        yield opened
    finally:
        opened.close()
