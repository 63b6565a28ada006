"""A Citus cluster, which no package index has: found by an address in the environment; without it
its tests skip.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

ADDRESS = "GPULEDGER_TEST_CITUS_DSN"
MARK = "emptied by the tests of gpuledger"
_OURS = """
SELECT 'DROP TABLE ' || string_agg(quote_ident(relname), ', ' ORDER BY relname) || ' CASCADE' FROM pg_class c
WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition
    AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = c.oid AND d.deptype = 'e')
UNION ALL SELECT format('DROP FUNCTION IF EXISTS %s CASCADE', p.oid::regprocedure) FROM pg_proc p
WHERE pronamespace = 'public'::regnamespace
    AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = p.oid AND d.deptype = 'e')
"""
"""All tables at once: Citus would convert the tables that are left when one that they refer to is
gone.
"""


@pytest.fixture(scope="module")
def citus() -> Iterator[str]:
    """DSN of an empty database on the coordinator of a Citus cluster; the role owns it and need not
    be a superuser.
    """
    dsn = os.environ.get(ADDRESS)
    if not dsn:
        pytest.skip(
            f"{ADDRESS} names no database: it needs an empty one on the coordinator of a Citus"
            " cluster"
        )
    empty(dsn)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(ADDRESS)  # or the commands would refuse it as an unknown setting
        yield dsn


def empty(dsn: str) -> None:
    """Remove what earlier tests left; a database with tables that they did not make is left alone."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        if (
            connection.execute("SELECT FROM pg_extension WHERE extname = 'citus'").fetchone()
            is None
        ):
            pytest.fail(f"the database that {ADDRESS} names has no extension citus")
        tables, mark = connection.execute(
            "SELECT (SELECT count(*) FROM pg_tables WHERE schemaname = 'public'),"
            " obj_description('public'::regnamespace, 'pg_namespace')"
        ).fetchone()
        if tables and mark != MARK:
            pytest.fail(
                f"the database that {ADDRESS} names holds {tables} tables: give an empty one"
            )
        # Not the schema: the extension may be in it.
        for (statement,) in connection.execute(_OURS).fetchall():
            if statement is not None:
                connection.execute(statement.encode())
        connection.execute(f"COMMENT ON SCHEMA public IS '{MARK}'")


@dataclass
class Worker:
    """A worker of the cluster that runs on this machine."""

    address: str
    dsn: str
    postmaster: int

    def __post_init__(self) -> None:
        home = Path(f"/proc/{self.postmaster}")
        self._owner = home.stat()
        self._command = home.joinpath("cmdline").read_bytes().decode().split("\0")[:-1]
        self._program = home.joinpath("exe").readlink()
        self._folder = home.joinpath("cwd").readlink()

    def crash(self) -> None:
        """End all its processes at once; it recovers from its log when it starts."""
        os.kill(self.postmaster, signal.SIGQUIT)
        deadline = time.monotonic() + 60
        while Path(f"/proc/{self.postmaster}").exists():
            assert time.monotonic() < deadline, "the worker did not end"
            time.sleep(0.05)

    def start(self) -> None:
        """Start it as it was started; ready when it answers."""
        process = subprocess.Popen(
            self._command,
            executable=self._program,
            cwd=self._folder,
            user=self._owner.st_uid,
            group=self._owner.st_gid,
            extra_groups=[],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.postmaster = process.pid
        deadline = time.monotonic() + 60
        while True:
            with contextlib.suppress(psycopg.OperationalError):
                psycopg.connect(self.dsn).close()
                return
            assert time.monotonic() < deadline, "the worker did not start"
            time.sleep(0.1)


@pytest.fixture
def worker(citus: str) -> Iterator[Worker]:
    """The last worker of the cluster, which the test may end; it runs again afterwards."""
    with psycopg.connect(citus) as connection:
        host, port = connection.execute(
            "SELECT nodename, nodeport FROM pg_dist_node WHERE groupid <> 0 ORDER BY nodeid DESC"
            " LIMIT 1"
        ).fetchone()
    dsn = make_conninfo(citus, host=host, port=str(port))
    with psycopg.connect(dsn) as connection:
        backend = connection.info.backend_pid
        status = Path(f"/proc/{backend}/status")
        if host not in {"127.0.0.1", "localhost", "::1"} or not status.exists() or os.geteuid():
            pytest.skip(
                f"the worker {host}:{port} does not run on this machine, or this user may not"
                " end it"
            )
        parent = next(line for line in status.read_text().splitlines() if line.startswith("PPid:"))
    found = Worker(f"{host}:{port}", dsn, int(parent.split()[1]))
    yield found
    with contextlib.suppress(psycopg.OperationalError):
        psycopg.connect(dsn).close()
        return
    found.start()
