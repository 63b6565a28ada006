"""The embedded Postgres on a disk that is full, and a data folder that was copied or moved."""

import errno
import os
import shutil
import subprocess
from pathlib import Path

import psycopg
import pytest

from fakes.postgres import open_folder
from gpuledger_collector import wiring
from gpuledger_collector.settings import Settings
from gpuledger_collector.storage.errors import EnvironmentLacks, ServerUnavailable
from gpuledger_collector.storage.server import disk, seat
from gpuledger_collector.storage.server.embedded import EmbeddedServer

pytestmark = pytest.mark.slow

PANIC = (
    '2026-11-22 21:00:12.647 UTC [14598] PANIC:  could not write to file "pg_wal/xlogtemp.14598": '
    "No space left on device\n"
)


@pytest.fixture
def folder():
    path = open_folder()
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def small_disk(folder):
    """A disk of 220 MB."""
    if (
        os.geteuid()
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=220m,mode=0755", "tmpfs", folder],
            capture_output=True,
            check=False,
        ).returncode
    ):
        pytest.skip("only root may mount a disk here; the other tests of this file need none")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def fill(folder: Path, leave: int) -> Path:
    """A file that leaves so many bytes of the disk."""
    ballast = folder / "ballast"
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(folder).free - leave)
    return ballast


def write_much(settings: Settings) -> None:
    with (
        wiring.database(settings, migrated=False) as opened,
        psycopg.connect(opened.dsn) as connection,
    ):
        connection.execute(
            "CREATE TABLE much AS SELECT repeat(md5(n::text), 60) FROM generate_series(1, 4000) n"
        )


def test_a_disk_that_becomes_full_is_named(small_disk):
    """While it runs, at the next start and at the first start: always the disk, never the port;
    then all is there.
    """
    settings = Settings(data_dir=small_disk / "data")
    with (
        wiring.database(settings, migrated=False) as opened,
        psycopg.connect(opened.dsn) as connection,
    ):
        connection.execute("CREATE TABLE kept AS SELECT generate_series(1, 1000) n")
    ballast = fill(small_disk, 20_000_000)
    with pytest.raises(
        EnvironmentLacks, match=r"the disk of .* is full .* what was committed is safe"
    ) as failure:
        write_much(settings)
    assert "refused" not in str(failure.value)
    ballast.unlink()
    ballast = fill(small_disk, 2_000_000)
    with pytest.raises(EnvironmentLacks, match="the database needs 16 MB"):
        EmbeddedServer(small_disk / "data").acquire()
    with pytest.raises(EnvironmentLacks, match="the database needs 100 MB"):
        EmbeddedServer(small_disk / "other").acquire()
    ballast.unlink()
    with (
        wiring.database(settings, migrated=False) as opened,
        psycopg.connect(opened.dsn) as connection,
    ):
        assert connection.execute("SELECT count(*) FROM kept").fetchone() == (1000,)


def test_no_byte_left_for_the_data_folder_itself(folder, monkeypatch):
    """Not 'set GPULEDGER_DATA_DIR to a folder of your own': the folder is ours, and full."""

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder / "lock"))

    monkeypatch.setattr(Path, "touch", full)
    with pytest.raises(EnvironmentLacks, match="is full"):
        EmbeddedServer(folder).acquire()


def test_the_servers_own_log_tells_a_full_disk(folder):
    """What Postgres wrote before it ended, and the refused connection after it: the sentence is of
    the disk.
    """
    server = EmbeddedServer(folder)
    server.acquire()
    server.release()
    refused = ServerUnavailable("the database cannot be reached: connection refused")
    assert server.full_disk(refused) is None
    with (folder / "postgres.log").open("a") as log:
        log.write(PANIC)
    assert "is full" in str(server.full_disk(refused))


def test_little_room_is_said_before_anything_is_written(folder, monkeypatch):
    """The disk is asked first: nothing of a cluster is begun."""
    monkeypatch.setattr(
        disk.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, 40 * 10**6)
    )
    with pytest.raises(EnvironmentLacks, match="40 MB are free and the database needs 100 MB"):
        EmbeddedServer(folder).acquire()
    assert not (folder / "postgres").exists()


def note(data_dir: Path, rows: int) -> None:
    """Keep a table of so many rows in the database of a data folder."""
    settings = Settings(data_dir=data_dir)
    with (
        wiring.database(settings, migrated=False) as opened,
        psycopg.connect(opened.dsn) as connection,
    ):
        connection.execute("DROP TABLE IF EXISTS kept")
        connection.execute("CREATE TABLE kept AS SELECT generate_series(1, %s) n", (rows,))


def noted(data_dir: Path) -> int:
    settings = Settings(data_dir=data_dir)
    with (
        wiring.database(settings, migrated=False) as opened,
        psycopg.connect(opened.dsn) as connection,
    ):
        row = connection.execute("SELECT count(*) FROM kept").fetchone()
    assert row is not None
    return row[0]


def copy(source: Path, target: Path) -> None:
    subprocess.run(["cp", "-a", source, target], check=True)


@pytest.mark.parametrize("absolute", [False, True], ids=["as now", "as before"])
def test_a_copied_data_folder_has_a_database_of_its_own(folder, absolute):
    """What is written to the copy does not reach the original, also where `home` was an absolute
    path.
    """
    note(folder / "data", 10)
    assert (folder / "data/home").read_text() == "postgres\n"
    if absolute:
        (folder / "data/home").write_text(f"{folder / 'data/postgres'}\n")
    copy(folder / "data", folder / "copy")
    note(folder / "copy", 7)
    assert (noted(folder / "data"), noted(folder / "copy")) == (10, 7)
    (folder / "data").rename(folder / "moved")
    assert noted(folder / "moved") == 10


def test_a_copy_without_its_database_is_refused(folder):
    """An old data folder whose cluster was not copied: the sentence names the original."""
    note(folder / "data", 10)
    (folder / "data/home").write_text(f"{folder / 'data/postgres'}\n")
    copy(folder / "data", folder / "copy")
    shutil.rmtree(folder / "copy/postgres")
    with pytest.raises(EnvironmentLacks, match=f"set GPULEDGER_DATA_DIR to {folder / 'data'}"):
        EmbeddedServer(folder / "copy").acquire()


def test_a_copy_of_a_running_database_is_refused(folder):
    """Such a copy is not whole; the sentence says how to copy a ledger. The original goes on."""
    server = EmbeddedServer(folder / "data")
    server.acquire()
    copy(folder / "data", folder / "copy")
    with pytest.raises(EnvironmentLacks, match="was copied while its database ran"):
        EmbeddedServer(folder / "copy").acquire()
    assert server.pid is not None
    server.release()


def test_a_cluster_elsewhere_belongs_to_one_data_folder(folder, monkeypatch):
    """A copy is refused while the original is there; after a move, the moved folder keeps its
    cluster.
    """
    monkeypatch.setattr(seat, "shared_root", lambda: folder / "shared")
    (folder / "shared").mkdir()
    original = folder / "data"
    original.mkdir()
    home = seat.elsewhere(original)
    home.mkdir()
    seat.remember(original, home)
    assert seat.remembered_folder(original) == home
    copy(original, folder / "copy")
    with pytest.raises(EnvironmentLacks, match=f"is a copy of {original}"):
        seat.remembered_folder(folder / "copy")
    shutil.rmtree(folder / "copy")
    original.rename(folder / "moved")
    assert seat.remembered_folder(folder / "moved") == home
    copy(folder / "moved", folder / "copy")
    with pytest.raises(EnvironmentLacks, match=f"is a copy of {folder / 'moved'}"):
        seat.remembered_folder(folder / "copy")
