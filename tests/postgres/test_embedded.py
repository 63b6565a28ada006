"""The embedded Postgres: started, joined, killed, restarted, stopped; by root and by an ordinary
user.
"""

import contextlib
import json
import os
import pwd
import re
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
import traceback
from collections import deque
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from typer.testing import CliRunner

from fakes.postgres import open_folder
from gpuledger_collector.cli import build
from gpuledger_collector.storage import row_level_security
from gpuledger_collector.storage.access import readers
from gpuledger_collector.storage.errors import EnvironmentLacks
from gpuledger_collector.storage.server import (
    binaries,
    embedded,
    embedded_roles,
    migrate,
    schema_rights,
)
from gpuledger_collector.storage.server.embedded import LOGIN_SECONDS, EmbeddedServer
from gpuledger_collector.storage.telemetry import partitions

pytestmark = pytest.mark.slow

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the server as somebody else")


@pytest.fixture
def folder():
    path = open_folder()
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def server(folder):
    started = EmbeddedServer(folder)
    started.acquire()
    yield started
    started.release()


def count(dsn: str) -> int:
    with psycopg.connect(dsn) as connection:
        row = connection.execute("SELECT count(*) FROM kept").fetchone()
    assert row is not None
    return row[0]


def keep_rows(dsn: str, rows: int = 1000) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS kept (n int)")
        connection.execute("INSERT INTO kept SELECT generate_series(1, %s)", (rows,))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_data_and_address_outlive_the_server(folder):
    """Stopped and started again it has the same port, the same password and the same rows."""
    server = EmbeddedServer(folder)
    dsn = server.acquire()
    keep_rows(dsn)
    pid = server.pid
    server.release()
    assert server.pid is None
    assert not Path(f"/proc/{pid}").exists()
    again = EmbeddedServer(folder)
    assert again.acquire() == dsn
    assert count(dsn) == 1000
    again.release()


def test_only_loopback_with_a_password_is_served(server, folder):
    """One TCP address of this machine, SCRAM for everybody, the password in a file for its owner
    alone.
    """
    dsn = server.dsn
    with psycopg.connect(server.admin_dsn) as connection:
        settings = dict(
            connection.execute(
                "SELECT name, setting FROM pg_settings WHERE name IN"
                " ('listen_addresses', 'unix_socket_directories', 'password_encryption')"
            ).fetchall()
        )
        rules = connection.execute("SELECT DISTINCT auth_method FROM pg_hba_file_rules").fetchall()
    assert settings == {
        "listen_addresses": "127.0.0.1",
        "unix_socket_directories": "",
        "password_encryption": "scram-sha-256",
    }
    assert rules == [("scram-sha-256",)]
    assert mode(folder / "password") == 0o600
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(dsn, password="guess")


def test_a_second_command_joins_and_the_last_one_stops(server, folder):
    """Two commands share one server; it ends with whichever is last, not with whichever came first."""
    second = EmbeddedServer(folder)
    dsn = second.acquire()
    assert second.pid == server.pid
    server.release()
    keep_rows(dsn, 1)
    second.release()
    assert second.pid is None


def test_a_killed_postmaster_is_started_again_with_every_row(server):
    """kill -9 of the postmaster, children lingering or not: crash recovery brings all committed
    rows back.
    """
    dsn = server._conninfo("gpuledger")
    keep_rows(dsn)
    pid = server.pid
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while server.pid is not None:
        assert time.monotonic() < deadline
        server._child.poll()
    assert server.ensure_running()
    assert server.pid not in (None, pid)
    assert count(dsn) == 1000
    assert not server.ensure_running()


def test_a_server_left_by_a_killed_command_is_joined(folder):
    """A command that was killed leaves its server; the next one joins it and stops it at its end."""
    child = os.fork()
    if child == 0:
        keep_rows(EmbeddedServer(folder).acquire())
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    heir = EmbeddedServer(folder)
    left = heir.pid
    assert left is not None
    assert count(heir.acquire()) == 1000
    assert heir.pid == left
    heir.release()
    assert heir.pid is None


def test_a_stale_pid_file_that_names_a_stranger_is_no_obstacle(folder):
    """After a reboot the recorded number may belong to any program: it is neither believed nor
    killed.
    """
    server = EmbeddedServer(folder)
    dsn = server.acquire()
    keep_rows(dsn)
    recorded = (server.cluster / "postmaster.pid").read_text()
    pid = server.pid
    for process in [pid, *embedded_children(pid)]:
        # A worker of the server may have ended by itself.
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    server._child.wait()
    (server.cluster / "postmaster.pid").write_text(recorded.replace(str(pid), str(os.getpid()), 1))
    assert server.ensure_running()
    assert count(dsn) == 1000
    server.release()


def embedded_children(pid: int) -> list[int]:
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_taken_port_is_given_up_for_another(folder):
    """When something else listens on the remembered port, the server moves and remembers the new
    one.
    """
    server = EmbeddedServer(folder)
    keep_rows(server.acquire())
    server.release()
    with socket.create_server(("127.0.0.1", server._port())) as squatter:
        dsn = server.acquire()
        assert server._port() != squatter.getsockname()[1]
        assert count(dsn) == 1000
        server.release()


def test_a_broken_first_start_is_begun_anew(folder):
    """What a killed initdb left behind is thrown away."""
    server = EmbeddedServer(folder)
    server._make_data_dir()
    (folder / "postgres").mkdir(mode=0o700)
    (folder / "postgres" / "cluster.new").mkdir()
    (folder / "postgres" / "cluster.new" / "half").write_text("done")
    if os.geteuid() == 0:
        user = binaries.server_user(0, None)
        os.chown(folder / "postgres", user.uid, user.gid)
    keep_rows(server.acquire())
    server.release()


def test_a_cluster_of_another_version_is_refused_with_a_sentence(server, folder):
    """A data folder of another major version is named, not touched."""
    server.release()
    (server.cluster / "PG_VERSION").write_text("13\n")
    with pytest.raises(EnvironmentLacks, match="made by PostgreSQL 13"):
        EmbeddedServer(folder).acquire()
    (server.cluster / "PG_VERSION").write_text("18\n")
    server.acquire()


def test_a_folder_that_cannot_be_written_is_one_sentence(folder):
    """The sentence names the setting that cures it."""
    (folder / "file").write_text("")
    with pytest.raises(EnvironmentLacks, match="GPULEDGER_DATA_DIR"):
        EmbeddedServer(folder / "file" / "below").acquire()


def test_who_runs_the_server():
    """An ordinary user runs it itself; root needs an unprivileged user that exists, and creates
    none.
    """
    assert binaries.server_user(1000, None) is None
    assert binaries.server_user(0, "nobody").uid == pwd.getpwnam("nobody").pw_uid
    with pytest.raises(EnvironmentLacks, match="GPULEDGER_EMBEDDED_USER"):
        binaries.server_user(0, "no-such-user-here")
    with pytest.raises(EnvironmentLacks, match="refuses to run as root"):
        binaries.server_user(0, "root")


@pytest.fixture
def shared_root(monkeypatch):
    path = open_folder("gpuledger-shared-")
    monkeypatch.setattr(binaries, "SHARED_ROOT", path)
    yield path
    shutil.rmtree(path)


@as_root
def test_root_with_everything_below_a_private_home(tmp_path, shared_root, monkeypatch):
    """Below a 0700 folder: the programs are copied, the cluster put beside them, and no mode is
    changed.
    """
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    package = binaries.installed_root().parent
    for name in (package.name, f"{package.name}.libs"):
        shutil.copytree(
            package.parent / name,
            home / name,
            ignore=shutil.ignore_patterns("pginstall", "*.a", "include"),
        )
    monkeypatch.setattr(
        binaries, "installed_root", lambda: home / package.name / binaries_name(package)
    )
    server = EmbeddedServer(home / "ledger", user="nobody")
    dsn = server.acquire()
    keep_rows(dsn)
    assert str(server.cluster).startswith(str(shared_root))
    assert Path(embedded.command_line(server.pid)[0]).is_relative_to(shared_root)
    assert Path(f"/proc/{server.pid}").stat().st_uid == pwd.getpwnam("nobody").pw_uid
    assert mode(home) == 0o700
    server.release()
    again = EmbeddedServer(home / "ledger", user="nobody")
    assert count(again.acquire()) == 1000
    again.release()
    assert len(list(shared_root.glob("programs-*"))) == 1


def binaries_name(package: Path) -> str:
    return max(path.name for path in package.glob("pginstall[0-9]*"))


@as_root
def test_a_shared_folder_that_others_may_write_is_refused(tmp_path, shared_root):
    """Root puts no program where somebody else could change it."""
    shared_root.chmod(0o777)
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    with pytest.raises(EnvironmentLacks, match="writable by root alone"):
        EmbeddedServer(home / "ledger").acquire()


@as_root
def test_an_ordinary_user_runs_it_as_itself(folder):
    """Without any privilege: the server's processes belong to the user that started it."""
    nobody = pwd.getpwnam("nobody")
    os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setgroups([])
            os.setgid(nobody.pw_gid)
            os.setuid(nobody.pw_uid)
            server = EmbeddedServer(folder)
            keep_rows(server.acquire())
            owner = Path(f"/proc/{server.pid}").stat().st_uid
            server.release()
            status = 0 if owner == nobody.pw_uid and server.pid is None else 2
        except BaseException:
            traceback.print_exc(file=sys.stderr)
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with pytest.raises(EnvironmentLacks, match="belongs to another user"):
        EmbeddedServer(
            folder, user="postgres" if nobody.pw_name != "postgres" else "daemon"
        ).acquire()


def made_before(folder):
    """A data folder as it was made before: one role, which is the first of the cluster and a
    superuser.
    """
    server = EmbeddedServer(folder)
    server._make_data_dir()
    programs = binaries.reachable_programs(server._seat_of_cluster()[1], folder)
    home, user = server._seat_of_cluster()
    home.mkdir(mode=0o700)
    (folder / "password").write_text("the old password\n")
    (folder / "password").chmod(0o600)
    pwfile = home / "pwfile"
    pwfile.write_text("the old password\n")
    for path in (home, pwfile) if user is not None else ():
        os.chown(path, user.uid, user.gid)
    subprocess.run(
        [
            programs / "bin/initdb",
            "-D",
            home / "cluster",
            "-U",
            "gpuledger",
            f"--pwfile={pwfile}",
            "-E",
            "UTF8",
            "--auth=scram-sha-256",
            "--locale=C",
            "--locale-provider=builtin",
            "--builtin-locale=C.UTF-8",
        ],
        capture_output=True,
        check=True,
        **server._as_server_user(),
    )
    (folder / "home").write_text(f"{home}\n")
    server._start()
    with psycopg.connect(server._conninfo("postgres"), autocommit=True) as connection:
        connection.execute("CREATE DATABASE gpuledger")
    return server


ROLES = (
    "SELECT rolname, rolsuper, rolbypassrls, rolcreaterole FROM pg_roles WHERE rolname ~"
    " '^gpuledger' ORDER BY 1"
)
DIVIDED = [("gpuledger", False, False, True), ("gpuledger_admin", True, True, True)]


def test_the_ledgers_role_is_no_superuser(server):
    """It reads no file of the machine, runs no program, and does all that a ledger needs."""
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        assert connection.execute(ROLES).fetchall() == DIVIDED
        for attack in (
            "COPY (SELECT 1) TO PROGRAM 'true'",
            "SELECT pg_read_file('PG_VERSION')",
            "ALTER ROLE gpuledger SUPERUSER",
            "SET ROLE gpuledger_admin",
            "GRANT gpuledger_admin TO gpuledger",
            "ALTER SYSTEM SET archive_command = 'true'",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(attack)
    migrate.upgrade(server.dsn)
    with psycopg.connect(server.dsn) as connection:
        assert row_level_security.is_enabled(connection)
        owners = connection.execute(
            "SELECT DISTINCT relowner::regrole::text FROM pg_class WHERE relnamespace ="
            " 'public'::regnamespace"
        ).fetchall()
    assert owners == [("gpuledger",)]


def test_a_data_folder_of_before_gets_its_roles(folder):
    """Rows, password, readers and the wall before viewers stay; what the one role owned belongs to
    the ledger's now.
    """
    server = made_before(folder)
    migrate.upgrade(server.dsn)
    keep_rows(server.dsn)
    with psycopg.connect(server.dsn) as connection:
        assert connection.execute(
            "SELECT rolsuper FROM pg_roles WHERE rolname = 'gpuledger'"
        ).fetchone() == (True,)
        partitions.ensure(connection, "usage_interval", [30_000 * partitions.DAY_MS])
        readers.grant(connection, "dashboards", "a password", {"team": "vision"})
        connection.execute("DELETE FROM database_reader")  # the version before had none
    server._stop()
    again = EmbeddedServer(folder)
    for _ in range(2):
        dsn = again.acquire()
        assert "the old password" in dsn
        assert count(dsn) == 1000
        with psycopg.connect(dsn, autocommit=True) as connection:
            assert connection.execute(ROLES).fetchall()[:2] == DIVIDED
            foreign = (
                "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND"
                " relowner <> %s::regrole"
            )
            assert connection.execute(foreign, ("gpuledger",)).fetchall() == []
            routines = (
                "SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND"
                " proowner <> %s::regrole"
            )
            assert connection.execute(routines, ("gpuledger",)).fetchall() == []
            assert row_level_security.is_enabled(connection)
            with row_level_security.as_viewer(connection, {"team": "vision"}):
                assert connection.execute("SELECT current_user").fetchone() == (
                    row_level_security.ROLE,
                )
            readers.grant(connection, "dashboards", None, {"team": "vision"})
            partitions.ensure(connection, "usage_interval", [30_001 * partitions.DAY_MS])
            connection.execute("ALTER TABLE kept ADD IF NOT EXISTS more int")
        with psycopg.connect(
            make_conninfo(dsn, user="dashboards", password="a password")
        ) as reader:
            assert reader.execute("SELECT count(*) FROM charge").fetchone() == (0,)
        again.release()


def fails_at(number):
    """embedded_roles._make, whose call of this number fails."""
    calls, real = [], embedded_roles._make

    def make(*arguments):
        calls.append(arguments)
        if len(calls) == number:
            raise psycopg.OperationalError("broke off")
        real(*arguments)

    return make


BROKEN_OFF = {
    "before the first role is renamed": {"_make": fails_at(2)},
    "once the roles are two": {"_make": fails_at(4)},
    "with some tables handed over": {
        "_FOREIGN": f"{embedded_roles._FOREIGN} LIMIT 5",
        "_OPEN_TO_ALL": "SELECT 1 / 0",
    },
}


@pytest.mark.parametrize("when", BROKEN_OFF)
def test_an_upgrade_of_a_data_folder_that_broke_off_goes_on(folder, when, monkeypatch):
    """Wherever it ended, no server is left, and the next start comes to the same end."""
    server = made_before(folder)
    migrate.upgrade(server.dsn)
    keep_rows(server.dsn)
    server._stop()
    for name, value in BROKEN_OFF[when].items():
        monkeypatch.setattr(embedded_roles, name, value)
    broken = EmbeddedServer(folder)
    with pytest.raises(psycopg.Error):
        broken.acquire()
    monkeypatch.undo()
    assert broken.pid is None
    again = EmbeddedServer(folder)
    dsn = again.acquire()
    assert count(dsn) == 1000
    with psycopg.connect(dsn) as connection:
        assert connection.execute(ROLES).fetchall()[:2] == DIVIDED
        owners = (
            "SELECT DISTINCT relowner::regrole::text FROM pg_class WHERE relnamespace ="
            " 'public'::regnamespace"
        )
        assert connection.execute(owners).fetchall() == [("gpuledger",)]
    again.release()


def test_what_lies_in_the_folder_is_its_owners_alone(folder):
    """A new folder, and one of before that was open: nobody else reads the log or any file of it."""
    made = folder / "made"
    for path in (made, folder):
        server = EmbeddedServer(path)
        server.acquire()
        server.release()
        assert mode(path) & 0o007 == 0
        assert mode(path / "postgres.log") == 0o600
        assert mode(path / "admin-password") == 0o600
        if path is made:
            shutil.rmtree(made)
            (folder / "postgres.log").touch(0o644)


def test_a_folder_with_files_of_others_keeps_its_mode(folder):
    """Nobody is locked out of what is not the database's."""
    (folder / "thesis.tex").write_text("")
    server = EmbeddedServer(folder)
    server.acquire()
    server.release()
    assert mode(folder) == 0o755


def test_the_log_holds_nothing_of_statements(server, folder):
    """Neither what was asked, nor the row that was refused, nor what was under way when a session
    was ended.
    """
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE person (name text CHECK (length(name) < 30))")
        failing = (
            "SELECT 'ada lovelace' FROM nowhere",
            "SELECT 'ada lovelace'::int",
            "INSERT INTO person VALUES ('ada lovelace, countess of somewhere')",
        )
        for statement in failing:
            with pytest.raises(psycopg.Error):
                connection.execute(statement)
        with pytest.raises(psycopg.Error):
            connection.execute("SELECT %s::int", ("ada lovelace",))
        with pytest.raises(psycopg.Error):
            connection.execute(
                "SELECT 'ada lovelace', pg_terminate_backend(pg_backend_pid()), pg_sleep(9)"
            )
    text = (folder / "postgres.log").read_text()
    assert "ready to accept connections" in text
    assert "ada" not in text


def test_a_start_that_fails_leaves_no_server(folder, monkeypatch):
    """Whatever goes wrong once Postgres runs: it is stopped again."""
    monkeypatch.setattr(embedded, "set_up", lambda *_: 1 / 0)
    server = EmbeddedServer(folder)
    with pytest.raises(ZeroDivisionError):
        server.acquire()
    assert server._child.poll() is not None
    assert server.pid is None


def test_a_command_that_fails_at_start_leaves_the_server_of_others(server, folder, monkeypatch):
    """What another command uses goes on."""
    monkeypatch.setattr(embedded, "is_complete", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        EmbeddedServer(folder).acquire()
    assert count_one(server.dsn) == 1


def count_one(dsn):
    with psycopg.connect(dsn) as connection:
        return connection.execute("SELECT 1").fetchone()[0]


def test_readers_leave_sessions_to_the_ledger(server):
    """Forty sessions of several readers are refused before the ledger lacks one."""
    migrate.upgrade(server.dsn)
    roles = [f"dashboards_{number}" for number in range(5)]
    with psycopg.connect(server.dsn) as connection:
        for role in roles:
            readers.grant(connection, role, "a password")
    with contextlib.ExitStack() as stack:
        share = (make_conninfo(server.dsn, user=role, password="a password") for role in roles * 10)
        with pytest.raises(psycopg.OperationalError, match="remaining connection slots"):
            deque(map(stack.enter_context, map(psycopg.connect, share)))
        for _ in range(25):
            stack.enter_context(psycopg.connect(server.dsn))


def test_a_role_without_a_limit_of_its_own_has_that_of_the_server(server):
    """A role that was made by plain SQL sorts within the limit of readers and cannot raise it; the
    ledger has none.
    """
    role = "made_by_hand"
    with psycopg.connect(server.admin_dsn) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'a password'")
        connection.execute(f"GRANT CONNECT ON DATABASE gpuledger TO {role}")
        assert connection.execute(
            "SELECT rolconfig FROM pg_roles WHERE rolname = %s", (role,)
        ).fetchone() == (None,)
    spills = (
        "SET work_mem = '64kB'",
        (
            "SELECT count(*) FROM (SELECT repeat(md5(i::text), 60) FROM generate_series(1, 60000) i"
            " ORDER BY 1 OFFSET 0) x"
        ),
    )
    by_hand = make_conninfo(server.dsn, user=role, password="a password")
    with psycopg.connect(by_hand, autocommit=True) as connection:
        assert connection.execute("SHOW temp_file_limit").fetchone() == (readers.TEMP_FILE_LIMIT,)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("SET temp_file_limit = -1")
        with pytest.raises(psycopg.errors.ConfigurationLimitExceeded, match="temp_file_limit"):
            deque(map(connection.execute, spills))
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        assert connection.execute("SHOW temp_file_limit").fetchone() == ("-1",)
        deque(map(connection.execute, spills))


def test_parallel_workers_are_counted_among_what_readers_write(server):
    """A role may ask for workers, each with temporary files of its own, but not for more of them
    than the server has; the page on security states the sum.
    """
    role = "asks_for_workers"
    with psycopg.connect(server.admin_dsn) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'a password'")
        connection.execute(f"GRANT CONNECT ON DATABASE gpuledger TO {role}")
    asks = make_conninfo(server.dsn, user=role, password="a password")
    with psycopg.connect(asks, autocommit=True) as connection:
        connection.execute("SET max_parallel_workers_per_gather = 1024")
        with pytest.raises(psycopg.errors.CantChangeRuntimeParam):
            connection.execute("SET max_worker_processes = 1024")
        row = connection.execute("SHOW max_worker_processes").fetchone()
    assert row is not None
    most = readers.TEMP_FILE_MB * (readers.CONNECTIONS + int(row[0]))
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
    assert f"that is {most:,} MB for all ten" in page


def test_a_connection_that_does_not_log_in_is_closed(server):
    """It holds a session meanwhile, whoever it is."""
    startup = b"user\0nobody\0database\0gpuledger\0\0"
    with socket.create_connection(
        ("127.0.0.1", conninfo_to_dict(server.dsn)["port"]), 5 * LOGIN_SECONDS
    ) as connection:
        connection.sendall(struct.pack("!ii", len(startup) + 8, 3 << 16) + startup)
        assert connection.recv(1) == b"R", "it is asked for a password"
        while connection.recv(1 << 16):  # raises TimeoutError where it stays open
            pass


def test_a_reader_opens_no_other_database(server):
    """Nor would it find a table of its own there: each database but the ledger's is closed to it."""
    migrate.upgrade(server.dsn)
    with psycopg.connect(server.dsn) as connection:
        readers.grant(connection, "dashboards", "a password")
    for name in ("postgres", "template1"):
        with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
            psycopg.connect(
                make_conninfo(server.dsn, user="dashboards", password="a password", dbname=name)
            )


def test_each_of_forty_sessions_creates_the_partition_of_a_new_day(server):
    """A session on a reserved connection is the owner of its database as well: a new day is taken
    in all the same.
    """
    migrate.upgrade(server.dsn)
    with contextlib.ExitStack() as stack:
        for number in range(40):
            session = stack.enter_context(psycopg.connect(server.dsn, autocommit=True))
            partitions.ensure(session, "usage_interval", [(30_000 + number) * partitions.DAY_MS])


CREATORS = (
    "SELECT a.grantee::regrole::text FROM pg_namespace n, aclexplode(n.nspacl) a "
    "WHERE n.nspname = 'public' AND a.privilege_type = 'CREATE' ORDER BY 1"
)


def test_a_ledger_of_before_gets_its_own_right_to_create_partitions(folder):
    """Earlier versions left the right to the owner of the database; whoever joins the server next
    adds it.
    """
    server = EmbeddedServer(folder)
    migrate.upgrade(server.acquire())
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("REVOKE CREATE ON SCHEMA public FROM gpuledger")
        assert connection.execute(CREATORS).fetchall() == [("pg_database_owner",)]
    joining = EmbeddedServer(folder)
    joining.acquire()
    joining.release()
    with psycopg.connect(server.dsn) as connection:
        assert connection.execute(CREATORS).fetchall() == [("gpuledger",), ("pg_database_owner",)]
    server.release()


def test_db_upgrade_grants_the_right_on_a_server_of_somebody_else(server):
    """A server given by DSN has no supervisor: the owner of the database may grant it to itself."""
    migrate.upgrade(server.dsn)
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("REVOKE CREATE ON SCHEMA public FROM gpuledger")
    migrate.upgrade(server.dsn)
    with psycopg.connect(server.dsn) as connection:
        assert connection.execute(CREATORS).fetchall() == [("gpuledger",), ("pg_database_owner",)]


def test_where_the_right_is_missing_the_statement_for_the_administrator_is_said(server, caplog):
    """The database belongs to somebody else, and the schema to the owner of the database."""
    migrate.upgrade(server.dsn)
    with psycopg.connect(server.admin_dsn, autocommit=True) as connection:
        connection.execute("ALTER DATABASE gpuledger OWNER TO gpuledger_admin")
        connection.execute("GRANT CONNECT, TEMPORARY ON DATABASE gpuledger TO gpuledger")
        connection.execute("REVOKE CREATE ON SCHEMA public FROM gpuledger")
    migrate.upgrade(server.dsn)
    (statement,) = re.findall(r"`(GRANT .*)`", caplog.text)
    result = CliRunner().invoke(build(), ["doctor", "--format", "json", "--dsn", server.dsn])
    finding = next(each for each in json.loads(result.stdout) if each["topic"] == "partitions")
    assert (finding["verdict"], statement in finding["remedy"]) == ("bad", True)
    with psycopg.connect(server.admin_dsn, autocommit=True) as connection:
        connection.execute(statement)
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        assert schema_rights.missing(connection) == ""
        partitions.ensure(connection, "usage_interval", [30_000 * partitions.DAY_MS])
