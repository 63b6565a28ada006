"""Backup and restore of the whole ledger, by Postgres' own pg_dump and pg_restore.

A backup is one snapshot in pg_dump's custom format (compressed, selective, of any supported version): it restores into
the same or a newer major version of Postgres, which makes it the way of a major upgrade as well. The file appears
whole or not at all.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.errors import EnvironmentLacks, StorageError
from gpuledger_collector.storage.server.binaries import installed

_ROLES = re.compile(r"^\d+; \d+ \d+ (POLICY|ROW SECURITY|COMMENT \S+ POLICY) ")
"""Entries that name roles of the original server: they are created again, not restored."""


class NotEmpty(StorageError):
    """The database to restore into is not empty."""


class NotABackup(StorageError):
    """The file is not a complete backup, or of a newer Postgres."""


def program(name: str) -> Path:
    """Find a client program of Postgres: the bundled one, or one on the path. Raises EnvironmentLacks."""
    try:
        bundled = installed() / "bin" / name
    except EnvironmentLacks:
        bundled = None
    if bundled is not None and bundled.exists():
        return bundled
    program_path = shutil.which(name)
    if program_path is None:
        raise EnvironmentLacks(
            f"there is no {name}: apt install postgresql-client, or pip install 'gpuledger[embedded]'"
        )
    return Path(program_path)


def backup(dsn: str, target: Path) -> int:
    """Write everything to a file; return its size in bytes. Raises StorageError with the message of pg_dump."""
    unfinished = target.with_name(f".{target.name}.part")
    try:
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            # Without owners and privileges, so that it restores under whatever role the other server has.
            _run(program("pg_dump"), dsn, "--format=custom", "--no-owner", "--no-privileges", stdout=file)
            file.flush()
            # Before the rename: after a power failure the name must not refer to a file whose content is missing.
            os.fsync(file.fileno())
        unfinished.rename(target)
    finally:
        unfinished.unlink(missing_ok=True)
    return target.stat().st_size


def restore(dsn: str, source: Path) -> None:
    """Restore a backup into an empty database, in one transaction. Raises NotEmpty, NotABackup, StorageError."""
    with Database(dsn).connect() as connection:
        row = connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone()
    if row is not None and row[0]:
        raise NotEmpty(f"the database holds {row[0]} tables already: restore into an empty one")
    with tempfile.NamedTemporaryFile("w+", suffix=".list") as chosen:
        pg_restore = program("pg_restore")
        try:
            listed = _run(pg_restore, None, "--list", str(source), stdout=subprocess.PIPE)
        except StorageError as error:
            raise NotABackup(f"{source} cannot be read as a backup ({error})") from error
        # pg_restore restores exactly the entries of a list; those that name roles are left out of it.
        chosen.writelines(line for line in listed.splitlines(keepends=True) if not _ROLES.search(line))
        chosen.flush()
        given = ("--no-owner", "--no-privileges", "--single-transaction", "--exit-on-error", "--use-list", chosen.name)
        _run(pg_restore, dsn, *given, str(source))


def _run(tool: Path, dsn: str | None, *arguments: str, stdout: object = subprocess.DEVNULL) -> str:
    """Return the output of a client program; the password is passed in the environment, hidden from other users."""
    parts = conninfo_to_dict(dsn or "")
    password = parts.pop("password", None)
    environment = {**os.environ, **({} if password is None else {"PGPASSWORD": str(password)})}
    address = make_conninfo("", **parts)
    done = subprocess.run(
        [tool, *(() if dsn is None else ("--dbname", address)), *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )  # type: ignore[call-overload]
    if done.returncode:
        errors = done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"]
        raise StorageError(f"{tool.name}: {errors[0].removeprefix(f'{tool.name}: error: ')}")
    return str(done.stdout or "")
