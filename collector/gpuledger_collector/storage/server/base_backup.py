"""A backup of the embedded database that costs what changed, by Postgres' own pg_basebackup.

A folder holds a chain of members, each named by its instant in UTC: a full base backup, then what
changed since the member before. A member is a folder with what pg_basebackup wrote (compressed tar
and its manifest), and has its name once it is whole. Each file is compared with the manifest while
it is unpacked (the bundled pg_verifybackup does not run), and pg_combinebackup makes a cluster of a
chain again.

A restored database and a copied one have the system identifier of their original, and go on from
the same position in its log: Postgres would add what one of them changed to a chain of the other.
So each cluster notes the manifests that were made from it, in a file of its own folder, and
continues only a chain whose last member is one of these. One that is restored forgets them.
"""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import hashlib
import json
import os
import re
import shutil
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

from gpuledger_collector.storage.errors import EnvironmentLacks, ServerUnavailable, StorageError
from gpuledger_collector.storage.server import disk
from gpuledger_collector.storage.server.backup import NotABackup, require_empty, run_program
from gpuledger_collector.storage.server.embedded import EmbeddedServer

MANIFEST = "backup_manifest"
UNFINISHED = ".gpuledger-unfinished"
"""What a member is called until it is whole."""
LOCK = ".gpuledger-lock"
NOTES = "gpuledger_backups"
"""The file of a cluster with the checksums of the manifests that were made from it."""
CHECKSUM = "SHA256"
_MEMBER = re.compile(r"\d{4}-\d\d-\d\dT\d{6}\.\d{3}Z-(full|incremental)")
_FORGOTTEN = re.compile(r"WAL summaries are required")
_BLOCK = 1 << 20


class NotContinued(StorageError):
    """No member can be added to the folder."""


@dataclass(frozen=True, slots=True)
class Member:
    """A member that was written: its folder, its size, and since which member it has what changed;
    None for a full one. `forgotten`: the member since which that is no longer known.
    """

    path: Path
    bytes: int
    since: str | None
    forgotten: str | None


def back_up(server: EmbeddedServer, folder: Path, now_ms: int) -> Member:
    """Add a member to the chain in a folder, which is created when missing.

    Full when it is the first, or when the server no longer knows what changed since the last one.
    Raises NotContinued, and StorageError with the message of pg_basebackup.
    """
    _require_own(server, folder)
    folder.mkdir(mode=0o700, exist_ok=True)
    with _lock(folder) as lock:
        last = _last_member(server, folder)
        if last is not None and _format_instant(now_ms) < last.name:
            raise NotContinued(f"the clock is behind the last backup, {last}")
        unfinished = folder / UNFINISHED
        forgotten = None
        try:
            try:
                _write(server, unfinished, last, lock)
            except StorageError as error:
                if last is None or not _FORGOTTEN.search(str(error)):
                    raise
                forgotten, last = last.name, None
                _write(server, unfinished, last, lock)
            kind = "full" if last is None else "incremental"
            target = folder / f"{_format_instant(now_ms)}-{kind}"
            # Before the member has its name: a run that is killed here is continued by the next.
            _note(server, unfinished)
            unfinished.rename(target)
            _sync(folder)
        except (StorageError, OSError) as error:
            if disk.is_full_error(error):
                raise StorageError(
                    f"the disk of {folder} is full: {disk.free_megabytes(folder)} MB are free"
                ) from None
            raise
        finally:
            _remove(unfinished)
    size = sum(path.stat().st_size for path in target.iterdir())
    return Member(target, size, None if last is None else last.name, forgotten)


def restore(server: EmbeddedServer, folder: Path, until: str | None = None) -> str:
    """Restore the last member of a chain, or the one named `until`, as the database of a data folder
    that has none or an empty one; return the member's name.

    Nothing is changed until all of it is there and has been started once. Raises NotABackup,
    NotEmpty, InUse, StorageError.
    """
    chain = _chain_until(folder, until)
    bytes_unpacked = sum(size for member in chain for size, _ in _list_files(member).values())
    with server.hold_empty(require_empty) as fresh:
        needed = bytes_unpacked // 1_000_000 + disk.START_MEGABYTES
        if lacking := disk.lacks_room(fresh, needed):
            raise EnvironmentLacks(lacking)
        try:
            _combine(chain, fresh)
            (fresh / "cluster" / NOTES).unlink(missing_ok=True)
            _install(server, fresh / "cluster", chain[-1])
            _sync(fresh.parent)
        except (StorageError, OSError) as error:
            if disk.is_full_error(error):
                raise EnvironmentLacks(disk.full_disk(fresh, str(error)) or str(error)) from error
            raise
    return chain[-1].name


# writing


def _require_own(server: EmbeddedServer, folder: Path) -> None:
    """Raise NotContinued for a folder that is part of the ledger, or is full of something else."""
    if folder.is_symlink() and not folder.exists():
        raise NotContinued(f"{folder} is a link to nothing")
    if server.holds(folder):
        raise NotContinued(f"{folder} is part of the data folder: name a folder elsewhere")
    if (
        folder.exists()
        and any(folder.iterdir())
        and not (_list_members(folder) or (folder / LOCK).exists())
    ):
        raise NotContinued(f"{folder} holds other files: name an empty or a new folder")


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[int]:
    """Let one run at a time write into a folder; yields the lock, for programs that go on when this
    one is killed.
    """
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StorageError(f"another backup is being written into {folder}") from None
        yield lock
    finally:
        os.close(lock)


def _last_member(server: EmbeddedServer, folder: Path) -> Path | None:
    """The member that the next one follows; None for the first one. Raises NotContinued."""
    names = _list_members(folder)
    if not names:
        return None
    last = folder / names[-1]
    notes = server.cluster / NOTES
    known = notes.read_text().split() if notes.exists() else []
    if _manifest(last)["Manifest-Checksum"] not in known:
        raise NotContinued(
            f"{last} was not made from the database in {server.data_dir}, which may be a copy or was"
            " restored since: name a new folder"
        )
    return last


def _write(server: EmbeddedServer, target: Path, last: Path | None, lock: int) -> None:
    """Write a base backup, or what changed since the last one, into a new folder."""
    _remove(target)
    # Fails for whatever somebody else puts there meanwhile, a link among them.
    target.mkdir(mode=0o700)
    run_program(
        "pg_basebackup",
        server.admin_dsn,
        *("--pgdata", str(target), "--format=tar", "--compress=client-gzip:1"),
        *("--checkpoint=fast", "--wal-method=stream", f"--manifest-checksums={CHECKSUM}"),
        *(() if last is None else ("--incremental", str(last / MANIFEST))),
        pass_fds=(lock,),
    )


def _format_instant(now_ms: int) -> str:
    instant = datetime.fromtimestamp(now_ms // 1000, UTC)
    return f"{instant:%Y-%m-%dT%H%M%S}.{now_ms % 1000:03}Z"


def _note(server: EmbeddedServer, member: Path) -> None:
    """Note in the cluster that a member was made from it."""
    server.append(NOTES, _manifest(member)["Manifest-Checksum"])


def _sync(folder: Path) -> None:
    """After a power failure the members of a folder must have their names."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    """Remove what a run left behind, or what somebody put there: of a link, the link."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


# reading


def _list_members(folder: Path) -> list[str]:
    """The members in a folder, the oldest first."""
    return sorted(path.name for path in folder.iterdir() if _MEMBER.fullmatch(path.name))


def _manifest(member: Path) -> dict[str, Any]:
    """What Postgres says of a member. Raises NotABackup."""
    try:
        text = (member / MANIFEST).read_bytes()
        manifest = json.loads(text)
        # Of all lines but the last one, which names it.
        checksum = hashlib.sha256(text[: text.rindex(b'"Manifest-Checksum"')]).hexdigest()
        is_whole = manifest["Manifest-Checksum"] == checksum
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NotABackup(f"{member} is not complete ({MANIFEST}: {error})") from error
    if not is_whole:
        raise NotABackup(f"{member} is not as it was written ({MANIFEST})")
    return dict(manifest)


def _list_files(member: Path) -> dict[str, tuple[int, str]]:
    """Size and checksum of each file of a member, by its path. Raises NotABackup."""
    try:
        return {
            file["Path"]: (file["Size"], file.get("Checksum", ""))
            for file in _manifest(member)["Files"]
        }
    except (KeyError, TypeError) as error:
        raise NotABackup(
            f"{member} lists a file that no backup has ({MANIFEST}: {error})"
        ) from error


def _chain_until(folder: Path, until: str | None) -> list[Path]:
    """The members that make up the last one, or `until`: from the full one before it on.

    Raises NotABackup.
    """
    names = _list_members(folder)
    if not names:
        raise NotABackup(f"{folder} holds no backup of `gpuledger db backup FOLDER --incremental`")
    if until is not None:
        if until not in names:
            raise NotABackup(f"{folder} has no member {until}: the last one is {names[-1]}")
        names = names[: names.index(until) + 1]
    full = [at for at, name in enumerate(names) if name.endswith("-full")]
    if not full:
        raise NotABackup(f"{folder} has no full member before {names[-1]}")
    return [folder / name for name in names[full[-1] :]]


def _combine(chain: Sequence[Path], fresh: Path) -> None:
    """Unpack the members of a chain and make one cluster of them. Raises NotABackup."""
    unpacked = [fresh / member.name for member in chain]
    for member, target in zip(chain, unpacked, strict=True):
        try:
            _unpack(member, target)
            if member is chain[-1]:
                # The log from which the cluster is recovered; that of the others is not needed.
                _extract(member / "pg_wal.tar.gz", target / "pg_wal")
        except (
            EOFError,
            zlib.error,
            tarfile.TarError,
            gzip.BadGzipFile,
            FileNotFoundError,
            FileExistsError,
        ) as error:
            raise NotABackup(f"{member} is not complete ({error})") from error
    try:
        run_program(
            "pg_combinebackup",
            None,
            *map(str, unpacked),
            # Files that no member changed are linked: what was unpacked is removed afterwards.
            *("--no-manifest", "--link", "--output", str(fresh / "cluster")),
        )
    except StorageError as error:
        if disk.is_full_error(error):
            raise
        raise NotABackup(
            f"{chain[0].name} to {chain[-1].name} in {chain[0].parent} do not fit together: a member"
            f" between them is missing or is of another chain ({error})"
        ) from error


def _install(server: EmbeddedServer, cluster: Path, member: Path) -> None:
    try:
        server.install(cluster)
    except ServerUnavailable as error:
        raise NotABackup(f"{member} cannot be recovered ({error})") from error


def _unpack(member: Path, target: Path) -> None:
    """Unpack a member and compare it with its manifest. Raises NotABackup."""
    written, listed = _extract(member / "base.tar.gz", target), _list_files(member)
    shutil.copyfile(member / MANIFEST, target / MANIFEST)
    for path in sorted({*written, *listed}):
        if written.get(path) != listed.get(path):
            raise NotABackup(f"{member} is not as it was written ({path})")


def _extract(archive: Path, target: Path) -> dict[str, tuple[int, str]]:
    """Write the files of an archive below a folder; return size and checksum of each.

    Raises NotABackup for what is neither a file nor a folder below it.
    """
    written = {}
    with gzip.open(archive) as plain, tarfile.open(fileobj=plain, mode="r|", bufsize=_BLOCK) as tar:
        for entry in tar:
            path = PurePosixPath(entry.name)
            if path.is_absolute() or ".." in path.parts or not (entry.isfile() or entry.isdir()):
                raise NotABackup(f"{archive} holds {entry.name!r}, which no backup does")
            (target / path.parent).mkdir(parents=True, exist_ok=True)
            content = tar.extractfile(entry)
            if content is None:
                (target / path).mkdir(exist_ok=True)
                continue
            checksum = hashlib.new(CHECKSUM)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            with content, os.fdopen(os.open(target / path, flags, 0o600), "wb") as file:
                while block := content.read(_BLOCK):
                    checksum.update(block)
                    file.write(block)
            written[entry.name] = (entry.size, checksum.hexdigest())
    return written
