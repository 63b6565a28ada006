"""Real Postgres for tests: one embedded server a process, one database of its own a test."""

import contextlib
import itertools
import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from fakes.worlds import Templates, worlds_of
from gpuledger_collector.services import rating
from gpuledger_collector.storage import distribution
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.server import migrate
from gpuledger_collector.storage.server.embedded import EmbeddedServer

_numbers = itertools.count(1)
_admins: dict[str, str] = {}
"""By the DSN of a session's server: that of its superuser."""
_makers: dict[str, psycopg.Connection] = {}
"""By the DSN of a session's server: a connection of its superuser, which makes and drops databases.
"""
_templates: dict[str, Templates] = {}
"""By the DSN of a session's server: the worlds on it."""
_users: list[object] = []
"""One for each folder of tests whose fixture runs."""
_servers = contextlib.ExitStack()


def open_folder(prefix: str = "gpuledger-test-") -> Path:
    """A temporary folder that the server's unprivileged user can walk through, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    folder.chmod(0o755)
    return folder


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """DSN of the session's server; its database is migrated and serves as the template, so leave it
    alone.

    One server, however many folders of tests take this fixture. TEST_POSTGRES_DSN names an empty
    database of another one (Postgres 15 to 18) to run the tests on; where it has the extension
    citus, they run on distributed tables. Rating starts no processes here, which on a slow machine
    it does for any month: tests of them ask for them.
    """
    rating.WORKERS_FROM_S = math.inf
    _users.append(object())
    try:
        if len(_users) == 1:
            _servers.enter_context(_started())
        yield next(iter(_templates))
    finally:
        _users.pop()
        if not _users:
            _servers.close()


@contextlib.contextmanager
def _started() -> Iterator[None]:
    """A server of our own, or the one that is given, while the block runs."""
    with contextlib.ExitStack() as cleanup:
        if not (dsn := os.environ.get("TEST_POSTGRES_DSN")):
            folder = open_folder()
            cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
            # The tests lose nothing when this machine's power fails, and log in some tens of
            # thousands of times.
            options = {
                "fsync": "off",
                "full_page_writes": "off",
                "max_connections": "100",
                "scram_iterations": "1",
                "summarize_wal": "off",
            }
            server = EmbeddedServer(folder, options=options)
            cleanup.callback(server.release)
            dsn = server.acquire()
            _admins[dsn] = server.admin_dsn
        migrate.upgrade(dsn)
        with psycopg.connect(dsn, autocommit=True) as connection:
            if distribution.has_citus(connection):
                distribution.distribute(connection, shards=2)
        templates = Templates(partial(fresh_database, dsn))
        # They make and drop every database: a connection for each of these would cost a third as
        # much as the copy.
        _makers[dsn] = psycopg.connect(
            make_conninfo(administrator(dsn), dbname="postgres"), autocommit=True
        )
        cleanup.callback(lambda: _makers.pop(dsn).close())
        cleanup.callback(templates.close)
        cleanup.callback(_templates.clear)
        _templates[dsn] = templates
        yield


def administrator(postgres: str) -> str:
    """The DSN of a superuser of the session's server; the owner of the ledger is none on the
    embedded one.
    """
    return _admins.get(postgres, postgres)


@pytest.fixture
def superuser(postgres: str, dsn: str) -> str:
    """DSN of a superuser, on this test's own database."""
    return make_conninfo(administrator(postgres), dbname=conninfo_to_dict(dsn)["dbname"])


@contextlib.contextmanager
def fresh_database(postgres: str, template: str | None = None) -> Iterator[str]:
    """DSN of a new database, migrated and empty or a copy of `template`, dropped at the end of the
    block.
    """
    name = f"test_{next(_numbers)}"
    given = conninfo_to_dict(postgres)
    owner = f'OWNER "{given["user"]}"' if "user" in given else ""
    source = template or given["dbname"]
    with _maker(postgres) as connection:
        connection.execute(f'CREATE DATABASE {name} TEMPLATE "{source}" STRATEGY FILE_COPY {owner}')
        connection.execute(f"REVOKE ALL ON DATABASE {name} FROM PUBLIC")
    try:
        yield make_conninfo(postgres, dbname=name)
    finally:
        with _maker(postgres) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def _maker(postgres: str) -> contextlib.AbstractContextManager[psycopg.Connection]:
    """The open connection of the superuser to a session's server, or a new one to any other server."""
    if postgres in _makers:
        return contextlib.nullcontext(_makers[postgres])
    return psycopg.connect(
        make_conninfo(administrator(postgres), dbname="postgres"), autocommit=True
    )


@pytest.fixture
def dsn(postgres: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """DSN of a database of this test's own: migrated and empty, or furnished as the world that the
    test takes.
    """
    templates = [_templates[postgres].name_for(furnish) for furnish in worlds_of(request)]
    assert len(templates) < 2, f"{request.node.name} takes two worlds, and can have one database"
    with fresh_database(postgres, *templates) as own:
        yield own


@pytest.fixture
def database(dsn: str) -> Database:
    """A database of this test's own."""
    return Database(dsn)
