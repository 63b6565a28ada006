"""Backup and restore of the whole ledger, by Postgres' own pg_dump and pg_restore.

A backup is one snapshot in pg_dump's custom format (compressed, selective, of any supported
version). It restores into every supported major version of Postgres, older ones too, which makes it
the way of a major upgrade as well. The file appears whole or not at all.

pg_restore itself ends at the first statement that an older server refuses. So it writes SQL, from
which two kinds of lines that say nothing of the ledger are removed, and psql runs it: the SET of
settings that the server does not know (transaction_timeout, before 17), and the versions of columns
that a server with the fixes of November 2026 keeps as an option of each column (pg_attver). A
pg_dump without those fixes, such as the bundled one, writes them into the file.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Collection
from contextlib import closing, suppress
from pathlib import Path
from typing import IO

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from gpuledger_collector.extras import install_command
from gpuledger_collector.storage.database import Database, libpq
from gpuledger_collector.storage.errors import EnvironmentLacks, StorageError
from gpuledger_collector.storage.rows import select_value
from gpuledger_collector.storage.server.binaries import installed_root

_LEFT_OUT = re.compile(
    r"^\d+; \d+ \d+ (POLICY|ROW SECURITY|COMMENT \S+ POLICY|EXTENSION - citus|COMMENT - EXTENSION"
    r" citus) "
)
"""Entries that name roles of the original server, which are created again, and Citus, which the
other server need not have: `gpuledger db distribute` distributes the tables there.
"""
_DUMPED_FROM = re.compile(r"^;\s+Dumped from database version: (\d+)", re.MULTILINE)
_SETTING = re.compile(rb"SET (\w+) = ")
_FIRST_OBJECT = b"-- Name: "
_COLUMN_VERSION = re.compile(rb"ALTER .* SET \(pg_attver=\d+\);$")
_END_OF_ROWS = b"\\.\n"
_ERROR = re.compile(r"^(?:psql:\S+ )?(?:ERROR|FATAL|psql: error|pg_\w+: error):\s+", re.MULTILINE)


class NotEmpty(StorageError):
    """The database to restore into is not empty."""


class NotABackup(StorageError):
    """The file is not a complete backup, or of a newer Postgres."""


def program(name: str) -> Path:
    """Find a client program of Postgres: the bundled one, or one on the path.

    Raises EnvironmentLacks.
    """
    try:
        bundled = installed_root() / "bin" / name
    except EnvironmentLacks:
        bundled = None
    if bundled is not None and bundled.exists():
        return bundled
    program_path = shutil.which(name)
    if program_path is None:
        raise EnvironmentLacks(
            f"there is no {name}: apt install postgresql-client, or {install_command('embedded')}"
        )
    return Path(program_path)


def backup(dsn: str, target: Path) -> int:
    """Write everything to a file; return its size in bytes.

    Raises StorageError with the message of pg_dump.
    """
    unfinished = target.with_name(f".{target.name}.part")
    try:
        # Whoever else may write into the folder must not have put a file or a link of that name
        # there, through which everything would be written (O_EXCL).
        unfinished.unlink(missing_ok=True)
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            # Without owners and privileges, so that it restores under whatever role the other
            # server has.
            run_program(
                "pg_dump",
                dsn,
                "--format=custom",
                "--no-owner",
                "--no-privileges",
                stdout=file,
            )
            file.flush()
            # Before the rename: after a power failure the name must not refer to a file whose
            # content is missing.
            os.fsync(file.fileno())
        unfinished.rename(target)
    finally:
        unfinished.unlink(missing_ok=True)
    return target.stat().st_size


def require_empty(dsn: str) -> None:
    """Raise NotEmpty for a database with tables."""
    with Database(dsn).connect() as connection:
        tables = select_value(
            connection, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
        )
    if tables:
        raise NotEmpty(f"the database holds {tables} tables already: restore into an empty one")


def restore(dsn: str, source: Path) -> None:
    """Restore a backup into an empty database, in one transaction.

    Raises NotEmpty, NotABackup, StorageError.
    """
    require_empty(dsn)
    with Database(dsn).connect() as connection:
        settings = {name.encode() for (name,) in connection.execute("SELECT name FROM pg_settings")}
        major = connection.info.server_version // 10_000
    try:
        listed = run_program("pg_restore", None, "--list", str(source), stdout=subprocess.PIPE)
    except StorageError as error:
        raise NotABackup(f"{source} cannot be read as a backup ({error})") from error
    with tempfile.NamedTemporaryFile("w+", suffix=".list") as chosen:
        # pg_restore restores exactly the entries of a list.
        chosen.writelines(
            line for line in listed.splitlines(keepends=True) if not _LEFT_OUT.search(line)
        )
        chosen.flush()
        refusal = _replay(dsn, source, chosen.name, settings)
    if refusal is None:
        return
    dumped_from = _DUMPED_FROM.search(listed)
    if dumped_from is not None and int(dumped_from[1]) > major:
        raise StorageError(
            f"the backup of a PostgreSQL {dumped_from[1]} does not fit PostgreSQL {major}"
            f" ({refusal}); nothing was restored: give a server of version {dumped_from[1]} or"
            " newer"
        )
    raise StorageError(f"nothing was restored: {refusal}")


def _replay(dsn: str, source: Path, chosen: str, settings: Collection[bytes]) -> str | None:
    """Run the SQL of the chosen entries with psql; return the error that ended it, None when all of
    it is committed.

    pg_restore writes BEGIN first and COMMIT last. Whatever ends one of the three processes before
    that COMMIT ends the session in the middle of its transaction, and nothing stays. Raises
    NotABackup when the file cannot be read to its end.
    """
    address, environment = _address(dsn)
    reading = [
        str(program("pg_restore")),
        "--file=-",
        "--no-owner",
        "--no-privileges",
        "--single-transaction",
    ]
    writing = [
        str(program("psql")),
        "--no-psqlrc",
        "--quiet",
        "--no-password",
        "--set=ON_ERROR_STOP=1",
        "--file=-",
    ]
    with (
        tempfile.TemporaryFile("w+") as reader_errors,
        tempfile.TemporaryFile("w+") as writer_errors,
    ):
        with (
            subprocess.Popen(
                [*reading, f"--use-list={chosen}", str(source)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=reader_errors,
            ) as reader,
            subprocess.Popen(
                [*writing, f"--dbname={address}"],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=writer_errors,
            ) as writer,
        ):
            _copy(reader, writer, settings)
        if writer.returncode:
            return _first_error(writer_errors, writer.returncode)
        if reader.returncode:
            error = _first_error(reader_errors, reader.returncode)
            raise NotABackup(f"{source} cannot be read as a backup (pg_restore: {error})")
    return None


def _copy(
    reader: subprocess.Popen[bytes], writer: subprocess.Popen[bytes], settings: Collection[bytes]
) -> None:
    """Pass SQL on, without the lines that the server may refuse; rows are not looked at."""
    assert reader.stdout is not None
    assert writer.stdin is not None
    with suppress(BrokenPipeError), closing(writer.stdin), closing(reader.stdout):
        # Only up to the first object: in the body of a function, such a line belongs to an UPDATE.
        for line in itertools.takewhile(
            lambda line: not line.startswith(_FIRST_OBJECT), reader.stdout
        ):
            setting = _SETTING.match(line)
            if setting is None or setting[1] in settings:
                writer.stdin.write(line)
        for line in reader.stdout:
            if _COLUMN_VERSION.match(line):
                continue
            writer.stdin.write(line)
            if line.startswith(b"COPY ") and line.endswith(b" FROM stdin;\n"):
                writer.stdin.writelines(itertools.takewhile(_END_OF_ROWS.__ne__, reader.stdout))
                writer.stdin.write(_END_OF_ROWS)


def _address(dsn: str) -> tuple[str, dict[str, str]]:
    """The DSN for a command line, and the environment that carries its password, hidden from other
    users.
    """
    parts = conninfo_to_dict(libpq(dsn))
    password = parts.pop("password", None)
    environment = {**os.environ, **({} if password is None else {"PGPASSWORD": str(password)})}
    return make_conninfo("", **parts), environment


def _first_error(errors: IO[str], returncode: int) -> str:
    """The message of a client program, without its name and the number of a line."""
    errors.seek(0)
    return _message(errors.read(), returncode)


def _message(text: str, returncode: int) -> str:
    found = _ERROR.search(text)
    lines = (text[found.end() :] if found else text).strip().splitlines()
    return lines[0] if lines else f"it ended with {returncode}"


def run_program(
    name: str,
    dsn: str | None,
    *arguments: str,
    stdout: object = subprocess.DEVNULL,
    pass_fds: Collection[int] = (),
) -> str:
    """Return the output of a client program; what it writes is its owner's alone.

    Raises StorageError with its message.
    """
    address, environment = _address(dsn or "")
    done = subprocess.run(
        [program(name), *(() if dsn is None else ("--dbname", address)), *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        pass_fds=pass_fds,
        umask=0o077,
    )  # type: ignore[call-overload]
    if done.returncode:
        raise StorageError(f"{name}: {_message(done.stderr, done.returncode)}")
    return str(done.stdout or "")
