"""A Citus cluster, which no package index has: found by an address in the environment; without it
its tests skip.
"""

import contextlib
import os
import signal
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

    def crash(self) -> None:
        """Kill the processes that serve it and answer nobody until `start`, as a frozen machine does.

        The server itself is only stopped: ended and started by a test, it would end with the test.
        """
        os.kill(self.postmaster, signal.SIGSTOP)
        for process in self._children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def start(self) -> None:
        """Let it see what was killed and recover from its log; ready when it answers."""
        os.kill(self.postmaster, signal.SIGCONT)
        deadline = time.monotonic() + 60
        while True:
            with contextlib.suppress(psycopg.OperationalError):
                psycopg.connect(self.dsn, connect_timeout=5).close()
                return
            assert time.monotonic() < deadline, "the worker did not start"
            time.sleep(0.1)

    def _children(self) -> list[int]:
        """Process ids of what the server started."""
        children = []
        for status in Path("/proc").glob("[0-9]*/status"):
            with contextlib.suppress(OSError):
                if f"PPid:\t{self.postmaster}\n" in status.read_text():
                    children.append(int(status.parent.name))
        return children


@pytest.fixture
def worker(citus: str) -> Iterator[Worker]:
    """The last worker of the cluster, which the test may crash; it runs again afterwards."""
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
                " stop it"
            )
        parent = next(line for line in status.read_text().splitlines() if line.startswith("PPid:"))
    found = Worker(f"{host}:{port}", dsn, int(parent.split()[1]))
    yield found
    found.start()
