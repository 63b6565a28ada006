"""Real Postgres for tests: one embedded server a session, one fresh migrated database a test."""

import contextlib
import itertools
import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from gpuledger_collector.services import rating
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.server import migrate
from gpuledger_collector.storage.server.embedded import EmbeddedServer

_numbers = itertools.count(1)
_admins: dict[str, str] = {}
"""By the DSN of a session's server: that of its superuser."""


def open_folder(prefix: str = "gpuledger-test-") -> Path:
    """A temporary folder that the server's unprivileged user can walk through, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    folder.chmod(0o755)
    return folder


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """DSN of the session's server; its database is migrated and serves as the template, so leave it alone.

    TEST_POSTGRES_DSN names an empty database of another server (Postgres 15 to 18) to run the tests on. Rating starts
    no processes here, which on a slow machine it does for any month: tests of them ask for them.
    """
    rating.WORKERS_FROM_S = math.inf
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
        _admins[dsn] = server.admin_dsn
        yield dsn
    finally:
        server.release()
        shutil.rmtree(folder, ignore_errors=True)


def administrator(postgres: str) -> str:
    """The DSN of a superuser of the session's server; the owner of the ledger is none on the embedded one."""
    return _admins.get(postgres, postgres)


@pytest.fixture
def superuser(postgres: str, dsn: str) -> str:
    """DSN of a superuser, on this test's own database."""
    return make_conninfo(administrator(postgres), dbname=conninfo_to_dict(dsn)["dbname"])


@contextlib.contextmanager
def fresh_database(postgres: str) -> Iterator[str]:
    """DSN of a new database, migrated and empty, dropped at the end of the block."""
    name = f"test_{next(_numbers)}"
    admin, template = make_conninfo(administrator(postgres), dbname="postgres"), conninfo_to_dict(postgres)
    owner = f'OWNER "{template["user"]}"' if "user" in template else ""
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE {name} TEMPLATE "{template["dbname"]}" STRATEGY FILE_COPY {owner}')
        connection.execute(f"REVOKE ALL ON DATABASE {name} FROM PUBLIC")
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
def database(dsn: str) -> Database:
    """A database of this test's own."""
    return Database(dsn)
