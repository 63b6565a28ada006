"""The embedded Postgres: the wheel's programs under our own supervisor.

Idea: whichever command needs the database takes a shared lock on `users` in the data folder and
starts the server if none answers; whoever gives the last of these locks back stops it. So a second
command joins the running server, a command that was killed leaves nothing locked (the kernel drops
its locks), and the server it left behind is joined and then stopped by the next one. Starting and
stopping happen under an exclusive lock. Nothing is believed of `postmaster.pid` but what /proc and
a login confirm.

The server listens on loopback TCP alone, on a port that is chosen free and remembered, with SCRAM
and a password that is kept in a file of mode 0600.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import psycopg
from psycopg.conninfo import make_conninfo

from gpuledger_collector.storage.access.readers import TEMP_FILE_LIMIT
from gpuledger_collector.storage.errors import EnvironmentLacks, ServerUnavailable, StorageError
from gpuledger_collector.storage.rows import select_value
from gpuledger_collector.storage.server import disk, seat
from gpuledger_collector.storage.server.binaries import (
    RunAs,
    make_own_folder,
    permits,
    reachable_programs,
    reaches,
    server_user,
)
from gpuledger_collector.storage.server.embedded_roles import (
    ADMIN,
    DATABASE,
    OWNER,
    divide,
    is_complete,
    set_up,
)

PASSWORDS = {OWNER: "password", ADMIN: "admin-password"}
"""Files of the passwords, each readable by its owner alone."""
START_SECONDS = 120.0
"""How long a start may take: crash recovery replays the log since the last checkpoint."""
STOP_SECONDS = 60.0
WATCH_SECONDS = 0.5
LOG_BYTES = 16 * 1024 * 1024
OUR_FILES = re.compile(
    r"password|admin-password|port|home|lock|users|postgres|postgres\.log(\.1)?|\.?programs.*"
)
"""What the data folder holds when nobody else uses it."""
LOGIN_SECONDS = 10
"""How long a connection may take to log in: it holds a session meanwhile, before anybody knows
whose it is.
"""
WORKER_PROCESSES = 8
"""Of all sessions: a role may ask for parallel workers, each with temporary files of its own."""
OPTIONS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "60",
    "reserved_connections": "30",
    "max_worker_processes": str(WORKER_PROCESSES),
    "authentication_timeout": f"{LOGIN_SECONDS}s",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "jit": "off",
    "temp_file_limit": TEMP_FILE_LIMIT,
    "log_min_messages": "log",
    "log_min_error_statement": "panic",
    "log_error_verbosity": "terse",
    "log_parameter_max_length_on_error": "0",
    "summarize_wal": "on",
    "wal_summary_keep_time": "40d",
}
"""Readers leave half of the sessions to the owner, and each of theirs has a share of the disk for
sorting; what a statement says of people is not written to the log. What changed since a backup is
known for 40 days.
"""
_TRANSIENT = re.compile(
    r"pre-existing shared memory block|lock file \"postmaster\.pid\" already exists|in recovery"
)
_PORT_TAKEN = re.compile(
    r"could not bind|Address already in use|could not create any TCP/IP sockets"
)

log = logging.getLogger(__name__)


class InUse(StorageError):
    """Other commands work with the database that is to be replaced."""


class EmbeddedServer:
    """The server of a data folder. `acquire` and `release` come in pairs; the last user stops it.

    `user` is the unprivileged user to run as when the caller is root; `options` are further server
    settings.
    """

    def __init__(
        self, data_dir: Path, user: str | None = None, options: Mapping[str, str] | None = None
    ) -> None:
        self.data_dir = data_dir.absolute()
        self.options = {**OPTIONS, **(options or {})}
        self._wanted_user = user
        self._users: IO[str] | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._seat: tuple[Path, RunAs | None] | None = None

    def acquire(self) -> str:
        """Start the server if needed and return its DSN.

        Raises EnvironmentLacks or ServerUnavailable with a sentence for people.
        """
        try:
            return self._acquire()
        except OSError as error:
            if disk.is_full_error(error):
                raise EnvironmentLacks(
                    disk.full_disk(self.data_dir, str(error)) or str(error)
                ) from error
            raise

    def _acquire(self) -> str:
        self._make_data_dir()
        with self._exclusive():
            users = (self.data_dir / "users").open("a")
            running = self._postmaster()
            try:
                # Before the server is started: from here on nobody else who leaves may stop it.
                fcntl.flock(users, fcntl.LOCK_SH | fcntl.LOCK_NB)
                dsn = self._join_or_start()
            except BaseException:
                users.close()
                if running is None:  # started by us, and joined by nobody: starting is exclusive
                    self._stop()
                raise
            self._users = users
        return dsn

    def release(self) -> None:
        """Give up the use, and stop the server when no other command uses it."""
        if self._users is None:
            return
        users, self._users = self._users, None
        with self._exclusive(), users:
            try:
                # Upgrading to exclusive succeeds only for the last user: everybody else still has a
                # shared lock.
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            self._stop()

    def ensure_running(self) -> bool:
        """Start the server again if it has died since `acquire`; return whether it was started."""
        # Collects the exit status: a zombie would still have a process id.
        if self._child is not None:
            self._child.poll()
        if self._postmaster() is not None:
            return False
        with self._exclusive():
            # Again under the lock: another command may have started the server meanwhile.
            if self._postmaster() is not None:
                return False
            self._join_or_start()
        return True

    @contextlib.contextmanager
    def hold_empty(self, require_empty: Callable[[str], None]) -> Iterator[Path]:
        """Keep every command from a database that does not exist or is empty, while the block makes
        another in the folder that it gets.

        `require_empty` is given the DSN of one that exists. Raises InUse, and what `acquire` and
        `require_empty` raise.
        """
        self._make_data_dir()
        with self._exclusive(), (self.data_dir / "users").open("a") as users:
            try:
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InUse(
                    f"the database in {self.data_dir} is in use: end the commands that work with it"
                ) from None
            self._check_seat()
            fresh = self._make_home() / "restore.new"
            # What a restore that was killed left behind takes up to twice the room of a ledger.
            shutil.rmtree(fresh, ignore_errors=True)
            if (self.cluster / "PG_VERSION").exists():
                try:
                    require_empty(self._join_or_start())
                finally:
                    self._stop()
            fresh.mkdir(mode=0o700)
            try:
                yield fresh
            finally:
                shutil.rmtree(fresh, ignore_errors=True)

    def install(self, cluster: Path) -> None:
        """Make a cluster in the folder of `hold_empty` the database, with the passwords of this data
        folder.

        Raises ServerUnavailable for one that does not start.
        """
        home, user = self._seat_of_cluster()
        cluster.chmod(0o700)
        if user is not None:
            os.chown(cluster.parent, user.uid, user.gid)
            for path in (cluster, *cluster.rglob("*")):
                os.chown(path, user.uid, user.gid, follow_symlinks=False)
        self._set_passwords(cluster)
        if self.cluster.exists():
            self.cluster.rename(cluster.with_name("empty"))
        cluster.rename(self.cluster)
        seat.remember(self.data_dir, home)

    def _set_passwords(self, cluster: Path) -> None:
        """Recover a cluster of another data folder and give its roles the passwords of this one,
        without a server that listens.
        """
        _, user = self._seat_of_cluster()
        statements = [
            "ALTER ROLE {} PASSWORD '{}'\n".format(
                role, self._password(role, create=True).replace("'", "''")
            )
            for role in PASSWORDS
        ]
        done = subprocess.run(
            [
                *(reachable_programs(user, self._program_folder()) / "bin/postgres", "--single"),
                *("-D", cluster, "-c", "exit_on_error=on", "-c", "log_min_error_statement=panic"),
                "postgres",
            ],
            input="".join(statements),
            capture_output=True,
            text=True,
            check=False,
            **self._as_server_user(),
        )
        if done.returncode:
            raise ServerUnavailable(
                f"the restored database does not start: {last_line(done.stderr)}"
            )

    @contextlib.contextmanager
    def kept_running(self) -> Iterator[None]:
        """Start the server again whenever it dies while the block runs."""
        ended = threading.Event()

        def look() -> None:
            while not ended.wait(WATCH_SECONDS):
                try:
                    if self.ensure_running():
                        log.warning("the embedded database had ended and was started again")
                except (StorageError, OSError):
                    log.exception("the embedded database cannot be started again yet")

        thread = threading.Thread(target=look, name="database-watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(WATCH_SECONDS * 10)

    @property
    def dsn(self) -> str:
        """The DSN now."""
        return self._conninfo(DATABASE)

    @property
    def admin_dsn(self) -> str:
        """The DSN of the supervisor's superuser, for what the owner of the ledger may not do."""
        return self._address(ADMIN, self._password(ADMIN), DATABASE)

    @property
    def pid(self) -> int | None:
        """The process id of the postmaster, None while it does not run."""
        return self._postmaster()

    def holds(self, folder: Path) -> bool:
        """Whether a folder is the data folder or that of the cluster, or lies in one of them."""
        return any(
            folder.resolve().is_relative_to(own.resolve()) for own in (self.data_dir, self._home)
        )

    def append(self, name: str, line: str) -> None:
        """Append a line to a file in the folder of the cluster, durably, for the server to read."""
        _, user = self._seat_of_cluster()
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        with os.fdopen(os.open(self.cluster / name, flags, 0o600), "a") as file:
            if user is not None:
                os.fchown(file.fileno(), user.uid, user.gid)
            file.write(f"{line}\n")
            file.flush()
            os.fsync(file.fileno())

    def full_disk(self, error: Exception) -> str | None:
        """Return a sentence when a failure of the database comes from its full disk, else None."""
        if disk.is_full_error(error):
            return disk.full_disk(self._home, str(error))
        if (
            self._postmaster() is not None
            and disk.lacks_room(self._home, disk.START_MEGABYTES) is None
        ):
            return None
        return disk.full_disk(self._home, self._log_tail())

    # the folder and the seat of the cluster

    def _make_data_dir(self) -> None:
        try:
            make_own_folder(self.data_dir, server_user(os.geteuid(), self._wanted_user), OUR_FILES)
            probe = self.data_dir / "lock"
            probe.touch(mode=0o600)
        except OSError as error:
            if disk.is_full_error(error):
                raise
            raise EnvironmentLacks(
                f"the data folder {self.data_dir} cannot be written ({error.strerror}): "
                "set GPULEDGER_DATA_DIR to a folder of your own"
            ) from error

    @property
    def _home(self) -> Path:
        return self._seat_of_cluster()[0]

    @property
    def cluster(self) -> Path:
        """The folder of Postgres' own files."""
        return self._home / "cluster"

    def _seat_of_cluster(self) -> tuple[Path, RunAs | None]:
        """Decide at the first start which folder holds the cluster and who runs it, and remember
        it.
        """
        if self._seat is None:
            user = server_user(os.geteuid(), self._wanted_user)
            home = seat.remembered_folder(self.data_dir)
            inside = self.data_dir / seat.INSIDE
            if home is None and (
                user is None or (reaches(inside, user) and permits(self.data_dir, user, 1))
            ):
                home = inside
            # The server's user may not reach the data folder (such as /root): then the cluster goes
            # to a shared root.
            self._seat = home or seat.elsewhere(self.data_dir), user
        return self._seat

    def _check_seat(self) -> None:
        home, user = self._seat_of_cluster()
        uid = os.geteuid() if user is None else user.uid
        if home.exists() and home.stat().st_uid != uid:
            raise EnvironmentLacks(
                f"{home} belongs to another user (uid {home.stat().st_uid}, the server would run as"
                f" {uid}): use the same user as before, or set GPULEDGER_DATA_DIR to another folder"
            )
        if user is not None and not reaches(home, user):
            raise EnvironmentLacks(
                f"user {user.name!r} cannot reach {home} any more: open the folders above it"
            )

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Let one command at a time start or stop the server."""
        with (self.data_dir / "lock").open("a") as lock:
            deadline = time.monotonic() + START_SECONDS
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise ServerUnavailable(
                            "another command has been starting or stopping the database in"
                            f" {self.data_dir} for {START_SECONDS:.0f} s: try again when it has"
                            " ended"
                        ) from None
                    time.sleep(0.05)
            yield

    # starting

    def _join_or_start(self) -> str:
        self._check_seat()
        if not (self.cluster / "PG_VERSION").exists():
            self._initialise()
        self._check_version()
        if self._is_complete():
            return self._conninfo(DATABASE)
        if self._postmaster() is None or not self._wait_until_ready():
            self._start()
        self._set_up()
        return self._conninfo(DATABASE)

    def _initialise(self) -> None:
        home, user = self._seat_of_cluster()
        self._require_room(disk.NEW_MEGABYTES)
        programs = reachable_programs(user, self._program_folder())
        password = self._password(ADMIN, create=True)
        self._password(OWNER, create=True)
        self._make_home()
        # A new folder that is renamed at the end: an interrupted initdb leaves nothing that looks
        # like a cluster.
        fresh, secret = home / "cluster.new", home / "pwfile"
        shutil.rmtree(fresh, ignore_errors=True)
        secret.unlink(missing_ok=True)
        with os.fdopen(os.open(secret, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(password + "\n")
        if user is not None:
            os.chown(secret, user.uid, user.gid)
        try:
            done = subprocess.run(
                [
                    *[
                        str(programs / "bin/initdb"),
                        "-D",
                        str(fresh),
                        "-U",
                        ADMIN,
                        f"--pwfile={secret}",
                        "-E",
                        "UTF8",
                    ],
                    # The builtin locale sorts by code point on every machine, so an upgrade of the
                    # C library cannot corrupt indexes.
                    *[
                        "--auth=scram-sha-256",
                        "--locale=C",
                        "--locale-provider=builtin",
                        "--builtin-locale=C.UTF-8",
                    ],
                ],
                capture_output=True,
                text=True,
                check=False,
                **self._as_server_user(),
            )
        finally:
            secret.unlink(missing_ok=True)
        if done.returncode:
            if full := disk.full_disk(home, done.stderr):
                raise EnvironmentLacks(full)
            raise ServerUnavailable(
                f"the database could not be made in {home}: {last_line(done.stderr)}"
            )
        fresh.rename(home / "cluster")
        seat.remember(self.data_dir, home)

    def _make_home(self) -> Path:
        home, user = self._seat_of_cluster()
        with contextlib.suppress(FileExistsError):
            home.mkdir(mode=0o700)
        if user is not None:
            os.chown(home, user.uid, user.gid)
        return home

    def _check_version(self) -> None:
        _, user = self._seat_of_cluster()
        have = (self.cluster / "PG_VERSION").read_text().strip()
        offered = reachable_programs(user, self._program_folder()).name.removeprefix("pginstall")
        if have != offered:
            raise EnvironmentLacks(
                f"{self.cluster} was made by PostgreSQL {have} and this installation brings"
                f" {offered}: dump it with the old version and restore it into a new data folder"
            )

    def _require_room(self, megabytes: int) -> None:
        if lacking := disk.lacks_room(self._home, megabytes):
            raise EnvironmentLacks(lacking)

    def _start(self) -> None:
        self._require_room(disk.START_MEGABYTES)
        deadline = time.monotonic() + START_SECONDS
        new_port = False
        while True:
            self._forget_dead_postmaster()
            self._spawn(self._port(choose=new_port))
            if self._wait_until_ready():
                return
            log_tail = self._log_tail()
            if full := disk.full_disk(self._home, log_tail):
                raise EnvironmentLacks(full)
            new_port = bool(_PORT_TAKEN.search(log_tail))
            if time.monotonic() > deadline or not (new_port or _TRANSIENT.search(log_tail)):
                raise ServerUnavailable(
                    f"the embedded database does not start: {last_line(log_tail)} (see {self._log})"
                )
            time.sleep(0.2)

    def _spawn(self, port: int) -> None:
        home, user = self._seat_of_cluster()
        programs = reachable_programs(user, self._program_folder())
        settings = [
            f"--{name}={value}" for name, value in {**self.options, "port": str(port)}.items()
        ]
        older = self._log.with_suffix(".log.1")
        if self._log.exists() and self._log.stat().st_size > LOG_BYTES:
            self._log.replace(older)
        for path in (self._log, older):
            if path.exists():
                path.chmod(0o600)
        with os.fdopen(
            os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab"
        ) as log:
            log.write(b"--- start\n")
            self._child = subprocess.Popen(
                [programs / "bin/postgres", "-D", home / "cluster", *settings],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl-C goes to the whole process group of a terminal: it must end the command,
                # which then stops the server in order.
                start_new_session=True,
                **self._as_server_user(),
            )

    def _wait_until_ready(self) -> bool:
        """Return True as soon as our server accepts us; False when it has ended or another server
        has its port.
        """
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self._child is None and self._postmaster() is None:
                return False
            if self._child is not None and self._wait_for_end(0.03):
                return False
            try:
                with self._open_as_supervisor() as connection:
                    return self._is_ours(connection)
            except psycopg.OperationalError as error:
                if "authentication failed" in str(error):
                    return self._strange_server(str(error))
        return False

    def _is_ours(self, connection: psycopg.Connection[tuple[Any, ...]]) -> bool:
        """Whether it is our server: another one may listen on the remembered port, but not on our
        data folder.
        """
        folder: str = select_value(connection, "SHOW data_directory")
        return os.path.realpath(folder) == os.path.realpath(self.cluster)

    def _is_complete(self) -> bool:
        """Whether our server runs and lacks no set-up, as most commands find it; one connection
        answers it.
        """
        if self._postmaster() is None or not (self.data_dir / PASSWORDS[ADMIN]).exists():
            return False
        try:
            with self._open_as(ADMIN, self._password(ADMIN), DATABASE) as connection:
                return self._is_ours(connection) and is_complete(connection)
        except psycopg.OperationalError:
            return False

    def _wait_for_end(self, seconds: float) -> bool:
        """Whether our child ends within this time, as it does when its port is taken."""
        assert self._child is not None
        try:
            self._child.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _strange_server(self, log_tail: str) -> bool:
        if self._child is None and self._postmaster() is not None:
            raise ServerUnavailable(
                f"the running database refuses the passwords in {' and '.join(PASSWORDS.values())}"
                f" of {self.data_dir}"
            )
        if self._child is not None and self._child.poll() is None:
            raise ServerUnavailable(
                f"the embedded database refuses its own password: {last_line(log_tail)}"
            )
        return False

    def _set_up(self) -> None:
        """Set up the roles and the database; an older cluster gets its second role."""
        owner, admin = self._password(OWNER), self._password(ADMIN, create=True)
        with self._open_as_supervisor() as connection:
            is_divided = connection.info.user == ADMIN
        if not is_divided:
            divide(self._open_as, owner, admin)
        set_up(self._open_as, owner, admin)

    def _open_as_supervisor(self) -> psycopg.Connection[tuple[Any, ...]]:
        """Connect as superuser; in an older cluster that is the role of the ledger.

        Raises psycopg.OperationalError.
        """
        if (self.data_dir / PASSWORDS[ADMIN]).exists():
            try:
                return self._open_as(ADMIN, self._password(ADMIN), "postgres")
            except psycopg.OperationalError as error:
                if (
                    "authentication failed" not in str(error)
                    or not (self.data_dir / PASSWORDS[OWNER]).exists()
                ):
                    raise
        return self._open_as(OWNER, self._password(OWNER), "postgres")

    def _open_as(
        self, role: str, password: str, database: str
    ) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(
            self._address(role, password, database), connect_timeout=2, autocommit=True
        )

    # what is remembered

    def _password(self, role: str, *, create: bool = False) -> str:
        path = self.data_dir / PASSWORDS[role]
        if create and not path.exists():
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(secrets.token_urlsafe(24) + "\n")
        try:
            return path.read_text().strip()
        except OSError as error:
            raise EnvironmentLacks(
                f"the database's password file {path} cannot be read ({error.strerror})"
            ) from error

    def _port(self, *, choose: bool = False) -> int:
        path = self.data_dir / "port"
        if path.exists() and not choose:
            return int(path.read_text())
        with socket.socket() as probe:
            # The kernel chooses a free port. Another program may take it before the server does:
            # starting then chooses again.
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        path.write_text(f"{port}\n")
        return port

    def _conninfo(self, database: str) -> str:
        return self._address(OWNER, self._password(OWNER), database)

    def _address(self, role: str, password: str, database: str) -> str:
        return make_conninfo(
            host="127.0.0.1",
            port=self._port(),
            user=role,
            password=password,
            dbname=database,
            require_auth="scram-sha-256",
        )

    def _program_folder(self) -> Path:
        """Where a copy of the programs may lie: next to the cluster when that is reachable."""
        home, _ = self._seat_of_cluster()
        return self.data_dir if home.parent == self.data_dir else home.parent

    def _as_server_user(self) -> dict[str, Any]:
        _, user = self._seat_of_cluster()
        # Nothing else of the caller's environment reaches the server: it may contain passwords and
        # PG* settings.
        environment = {
            name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ
        }
        shared: dict[str, Any] = {"cwd": "/", "env": {**environment, "LC_ALL": "C"}}
        if user is not None:
            shared |= {"user": user.uid, "group": user.gid, "extra_groups": sorted(user.groups)}
        return shared

    # what runs

    @property
    def _log(self) -> Path:
        return self.data_dir / "postgres.log"

    def _log_tail(self) -> str:
        text = self._log.read_text(errors="replace")[-8192:] if self._log.exists() else ""
        # Only what was logged since the last start.
        return text.rsplit("--- start\n", 1)[-1]

    def _recorded_pid(self) -> int | None:
        try:
            return int((self.cluster / "postmaster.pid").read_text().split("\n", 1)[0])
        except (OSError, ValueError):
            return None

    def _postmaster(self) -> int | None:
        """The recorded process, if it lives and is the postmaster of this cluster."""
        pid = self._recorded_pid()
        return pid if pid is not None and serves(pid, self.cluster) else None

    def _forget_dead_postmaster(self) -> None:
        """Remove a stale postmaster.pid whose number now belongs to another program.

        Postgres clears one whose process is gone, but refuses to start when the number is in use
        again (after a reboot, or in a new container).
        """
        pid = self._recorded_pid()
        if pid is None or not Path(f"/proc/{pid}").exists():
            return
        recorded = Path((self.cluster / "postmaster.pid").read_text().splitlines()[1])
        if (
            recorded.parts[-2:] == self.cluster.parts[-2:]
            and recorded != self.cluster
            and serves(pid, recorded)
        ):
            raise EnvironmentLacks(
                f"{self.data_dir} was copied while its database ran (process {pid} still does), and"
                " such a copy is not whole: copy the ledger with `gpuledger db backup` and"
                " `gpuledger db restore`"
            )
        if not looks_like_postgres(pid):
            (self.cluster / "postmaster.pid").unlink(missing_ok=True)

    def _stop(self) -> None:
        pid = self._postmaster()
        if pid is None:
            return
        # SIGINT: fast shutdown, which ends sessions and writes a checkpoint. SIGQUIT: immediate,
        # recovered at the next start.
        for number, seconds in ((signal.SIGINT, STOP_SECONDS), (signal.SIGQUIT, 10.0)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                if not serves(pid, self.cluster):
                    self._reap()
                    return
                time.sleep(0.01)

    def _reap(self) -> None:
        """Collect the exit status of the ended child."""
        if self._child is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(5)


def command_line(pid: int) -> list[str]:
    """The arguments of a living process; empty for one that is gone or a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def looks_like_postgres(pid: int) -> bool:
    """Whether the process is a postmaster or one of its children."""
    first = command_line(pid)[:1]
    return bool(first) and (Path(first[0]).name == "postgres" or first[0].startswith("postgres:"))


def serves(pid: int, cluster: Path) -> bool:
    """Whether the process is the postmaster of `cluster`."""
    return looks_like_postgres(pid) and str(cluster) in command_line(pid)


def last_line(text: str) -> str:
    """The line of a program's output that states the error."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if "FATAL" in line or "error:" in line or "PANIC" in line]
    return (telling or lines or ["it said nothing"])[-1]
