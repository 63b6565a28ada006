"""Postgres of every supported major version: a cluster in a folder of its own, where a role that is
no superuser owns the ledger.

15 is Debian's, 16 and 17 come from npm (tests/engines/package.json), 18 is the bundled one.
`.ci/run` installs them and sets GPULEDGER_TEST_ENGINES=required, so that a missing one fails;
elsewhere its tests are skipped with the reason.
"""

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from fakes.ports import free_port
from fakes.postgres import open_folder
from gpuledger_collector.storage.database import SUPPORTED
from gpuledger_collector.storage.server.binaries import open_to_all, reachable_programs, server_user

MAJORS = tuple(SUPPORTED)
DEBIAN = Path("/usr/lib/postgresql")
NPM = Path(__file__).resolve().parents[1] / "engines" / "node_modules"
OWNER, DATABASE = "gpuledger", "gpuledger"
_PATIENCE_S = 120


def lacking(sentence: str) -> None:
    """Skip the test, or fail it where every engine is said to be there."""
    if os.environ.get("GPULEDGER_TEST_ENGINES") == "required":
        pytest.fail(sentence)
    pytest.skip(sentence)


def programs(major: int, near: Path) -> Path:
    """The folder with bin/ and lib/ of a major version, where the server's user can reach it."""
    user = server_user(os.geteuid(), None)
    if major == MAJORS[-1]:
        return reachable_programs(user, near)
    if (DEBIAN / str(major) / "bin" / "postgres").exists():
        return DEBIAN / str(major)
    package = NPM / f"postgres-{major}"
    if not (package / "native" / "bin" / "postgres").exists():
        lacking(
            f"no PostgreSQL {major}: apt-get install postgresql-15, and npm ci in tests/engines"
        )
    copy = near / f"programs-{major}"
    if not copy.exists():
        shutil.copytree(package / "native", copy / "native", symlinks=True)
        # npm packages contain no links; those that its install script would make are made here, in
        # the copy.
        for link in json.loads((package / "native" / "pg-symlinks.json").read_text()):
            target = copy / link["target"]
            if not target.exists():
                target.symlink_to(Path(link["source"]).name)
        open_to_all(copy)
    return copy / "native"


class Engine:
    """A server of one major version."""

    def __init__(self, major: int, folder: Path, **options: str) -> None:
        self.major, self.folder, self.port = major, folder, free_port()
        self.options = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "fsync": "off",
            "full_page_writes": "off",
            "max_connections": "60",
            **options,
        }
        self.password = secrets.token_hex(8)
        self._programs = programs(major, folder)
        self._process: subprocess.Popen[bytes] | None = None
        self.cluster = folder / f"cluster-{major}-{self.port}"

    def create(self, encoding: str = "UTF8") -> None:
        """A new cluster with an owner of the ledger and an empty database of hers."""
        secret = self.folder / f"password-{self.port}"
        secret.write_text(self.password)
        self._own(secret)
        self._make_folder()
        self.run(
            "initdb",
            "-D",
            self.cluster,
            "-U",
            "postgres",
            f"--pwfile={secret}",
            "-E",
            encoding,
            "--no-sync",
            "--auth=scram-sha-256",
            "--locale=C",
        )
        self.start()
        with psycopg.connect(self.dsn("postgres", "postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE ROLE {OWNER} LOGIN CREATEROLE PASSWORD '{self.password}'")
        self.create_database(DATABASE)

    def create_database(self, name: str) -> str:
        """An empty database of the owner; its DSN."""
        with psycopg.connect(self.dsn("postgres", "postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} OWNER {OWNER}")
        return self.dsn(database=name)

    def drop_database(self, name: str) -> None:
        with psycopg.connect(self.dsn("postgres", "postgres"), autocommit=True) as connection:
            connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def copy_of(self, primary: "Engine") -> None:
        """Become a streaming replica of another server: the two commands of docs/guides/deploy.md."""
        self.password = primary.password
        self._make_folder()
        self.run(
            "pg_basebackup",
            "-D",
            self.cluster,
            "--write-recovery-conf",
            "--checkpoint=fast",
            "--no-sync",
            "-d",
            primary.dsn("postgres", "postgres"),
        )
        self.start()

    def start(self) -> None:
        settings = [
            f"--{name}={value}" for name, value in {**self.options, "port": str(self.port)}.items()
        ]
        with (self.folder / f"postgres-{self.port}.log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._programs / "bin" / "postgres", "-D", self.cluster, *settings],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **self._as_user(),
            )
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            assert self._process.poll() is None, self.log()
            try:
                psycopg.connect(self.dsn("postgres", "postgres"), connect_timeout=5).close()
                return
            except psycopg.OperationalError:
                assert time.monotonic() < deadline, self.log()
                time.sleep(0.05)

    def stop(self) -> None:
        """Shut it down at once; nothing of it is kept."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(3)  # SIGQUIT
            self._process.wait(60)

    def dsn(self, role: str = OWNER, database: str = DATABASE) -> str:
        return make_conninfo(
            "", host="127.0.0.1", port=self.port, user=role, password=self.password, dbname=database
        )

    def version(self) -> str:
        with psycopg.connect(self.dsn("postgres", "postgres")) as connection:
            return str(connection.execute("SHOW server_version").fetchone()[0]).split()[0]

    def log(self) -> str:
        return (self.folder / f"postgres-{self.port}.log").read_text()[-3000:]

    def run(self, program: str, *arguments: object) -> None:
        made = subprocess.run(
            [self._programs / "bin" / program, *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
            **self._as_user(),
        )
        assert made.returncode == 0, made.stderr

    def _make_folder(self) -> None:
        self.cluster.mkdir(mode=0o700)
        self._own(self.cluster)

    def _own(self, path: Path) -> None:
        user = server_user(os.geteuid(), None)
        if user is not None:
            os.chown(path, user.uid, user.gid)

    def _as_user(self) -> dict[str, object]:
        user = server_user(os.geteuid(), None)
        if user is None:
            return {}
        return {"user": user.uid, "group": user.gid, "extra_groups": [], "cwd": "/"}


@contextlib.contextmanager
def engine(
    major: int, folder: Path | None = None, encoding: str = "UTF8", **options: str
) -> Iterator[Engine]:
    """A running server with an empty database; gone when the block ends."""
    own = open_folder("gpuledger-engine-") if folder is None else folder
    started = Engine(major, own, **options)
    try:
        started.create(encoding)
        yield started
    finally:
        started.stop()
        if folder is None:
            shutil.rmtree(own, ignore_errors=True)
