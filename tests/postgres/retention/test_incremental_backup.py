"""A folder of full and incremental backups of the embedded database: it restores to the same ledger,
or nothing is changed and one sentence says why.
"""

import contextlib
import fcntl
import gzip
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest
from typer.testing import CliRunner

from fakes.books import EVIDENCE, Command, answers, furnish, pack_august, tables, world_of
from fakes.postgres import open_folder
from gpuledger_collector.cli import build
from gpuledger_collector.cli.common import explain
from gpuledger_collector.storage.errors import StorageError
from gpuledger_collector.storage.server import base_backup, migrate
from gpuledger_collector.storage.server.embedded import EmbeddedServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
QUICK = {"fsync": "off", "synchronous_commit": "off", "scram_iterations": "1"}
BEFORE = {"summarize_wal": "off", "wal_level": "minimal", "max_wal_senders": "0"}
"""Settings under which no incremental backup is possible, as an earlier version may have had them."""


class Local:
    """`gpuledger ...` on the embedded database of a data folder: exit code, standard output, standard
    error.
    """

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir

    def __call__(self, *arguments: object) -> tuple[int, str, str]:
        result = CliRunner().invoke(
            build(), [*map(str, arguments)], env={"GPULEDGER_DATA_DIR": str(self.data_dir)}
        )
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            sentence, code = explain(result.exception)
            return code, result.stdout, result.stderr + sentence
        return result.exit_code, result.stdout, result.stderr


@contextlib.contextmanager
def opened(data_dir, options=QUICK):
    """DSN of the embedded database of a data folder while the block runs."""
    server = EmbeddedServer(data_dir, options=options)
    dsn = server.acquire()
    try:
        yield dsn
    finally:
        server.release()


def add(data_dir, chain):
    """The next member of a chain, and what the command printed."""
    code, out, err = Local(data_dir)("db", "backup", chain, "--incremental")
    assert (code, err) == (0, ""), err
    names = base_backup._list_members(chain)
    assert out.startswith(f"{chain / names[-1]}: ")
    return names[-1], out


@pytest.fixture(scope="module")
def folder():
    """A folder that the server's user can walk through."""
    path = open_folder()
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def ledger(folder):
    """A data folder of before, of which three members were made; what it held at each of them."""
    data_dir, chain, held = folder / "data", folder / "chain", []
    with opened(data_dir, {**QUICK, **BEFORE}) as dsn:
        migrate.upgrade(dsn)
    with opened(data_dir) as dsn:
        held.append((*add(data_dir, chain), tables(dsn)))
        with world_of(dsn) as world:
            furnish(world, folder)
        held.append((*add(data_dir, chain), tables(dsn)))
        pack_august(dsn)
        expected = answers(Command(dsn))
        held.append((*add(data_dir, chain), tables(dsn)))
    return data_dir, chain, held, expected


@pytest.fixture
def new(folder, request):
    """A data folder that does not exist yet."""
    path = folder / f"new-{time.monotonic_ns()}"
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def damaged(ledger, folder):
    """A copy of the chain, to be damaged."""
    path = folder / "damaged"
    shutil.copytree(ledger[1], path)
    yield path
    shutil.rmtree(path, ignore_errors=True)


def refused(run, *arguments):
    """The one sentence with which a command ends with 2."""
    code, out, err = run(*arguments)
    assert (code, out) == (2, ""), (code, out, err)
    assert "\n" not in err.strip()
    return err


def test_a_chain_restores_what_the_ledger_held(ledger, new):
    """Of the last member: rows of every table, bills, proofs and seals; the roles have the new data
    folder's passwords, and another restore is refused.
    """
    _, chain, held, expected = ledger
    assert [base_backup._MEMBER.fullmatch(name)[1] for name, *_ in held] == [
        "full",
        "incremental",
        "incremental",
    ]
    assert held[0][1].endswith(" bytes, everything\n")
    assert held[2][1].endswith(f" bytes, what changed since {held[1][0]}\n")
    assert held[2][2][EVIDENCE][0] > held[2][2]["usage_interval"][0] > 0
    assert held[2][2]["correction"][0] > 0
    there = Local(new)
    assert there("db", "restore", chain) == (0, f"restored from {chain / held[2][0]}\n", "")
    with opened(new) as dsn:
        assert tables(dsn) == held[2][2]
        assert answers(Command(dsn)) == expected
        assert "is in use" in refused(there, "db", "restore", chain)
    assert "tables already: restore into an empty one" in refused(there, "db", "restore", chain)
    assert "name a new folder" in refused(there, "db", "backup", chain, "--incremental")
    with opened(new) as dsn:
        assert tables(dsn) == held[2][2]


def test_an_earlier_member_is_restored_by_its_name(ledger, new):
    """Also where an empty database was made before, as by a command that only looked."""
    _, chain, held, _ = ledger
    with opened(new):
        pass
    code, out, err = Local(new)("db", "restore", chain, "--until", held[1][0])
    assert (code, err) == (0, ""), err
    assert out == f"restored from {chain / held[1][0]}\n"
    with opened(new) as dsn:
        assert tables(dsn) == held[1][2]
    assert not (new / "postgres/restore.new").exists()


def test_members_are_their_owners_alone(ledger):
    """Folders, files and the note in the data folder, whatever the umask."""
    data_dir, chain, held, _ = ledger
    assert chain.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in chain.iterdir() if path.is_dir()} == {0o700}
    assert {path.stat().st_mode & 0o777 for path in chain.rglob("*.gz")} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in chain.rglob("*manifest")} == {0o600}
    notes = data_dir / "postgres/cluster" / base_backup.NOTES
    assert notes.stat().st_mode & 0o777 == 0o600
    assert len(notes.read_text().split()) == len(held)


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def alter(path):
    """Change one byte of what is compressed."""
    content = bytearray(gzip.decompress(path.read_bytes()))
    content[content.index(b"START WAL LOCATION")] ^= 1
    path.write_bytes(gzip.compress(content, 1))


def rewrite(path):
    path.write_text(path.read_text().replace('"Size": 3', '"Size": 4', 1))


DAMAGES = {
    "a truncated member": (1, "base.tar.gz", cut, "is not complete"),
    "an altered member": (1, "base.tar.gz", alter, "is not as it was written (backup_label)"),
    "an altered manifest": (0, "backup_manifest", rewrite, "is not as it was written"),
    "a truncated manifest": (2, "backup_manifest", cut, "is not complete"),
    "a file that is missing": (1, "base.tar.gz", Path.unlink, "is not complete"),
    "a manifest that is missing": (1, "backup_manifest", Path.unlink, "is not complete"),
    "a log that is missing": (2, "pg_wal.tar.gz", Path.unlink, "is not complete"),
    "a truncated log": (2, "pg_wal.tar.gz", cut, "is not complete"),
    "a member that is missing": (1, ".", shutil.rmtree, "a member between them is missing"),
    "a full member that is missing": (0, ".", shutil.rmtree, "has no full member before"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_chain_is_refused(ledger, damaged, new, name):
    """Every damage: one sentence, and the data folder has no database."""
    at, file, damage, sentence = DAMAGES[name]
    damage(damaged / ledger[2][at][0] / file)
    said = refused(Local(new), "db", "restore", damaged)
    assert sentence in said
    assert str(damaged) in said
    assert not any((new / "postgres").glob("*"))


def test_a_log_that_ends_early_is_refused(ledger, damaged, new):
    """A whole archive of a log in which the end of the backup is missing."""
    log = damaged / ledger[2][2][0] / "pg_wal.tar.gz"
    content = gzip.decompress(log.read_bytes())
    log.write_bytes(gzip.compress(content[:512] + bytes(16 << 20) + content[512 + (16 << 20) :], 1))
    assert "cannot be recovered" in refused(Local(new), "db", "restore", damaged)
    assert not any((new / "postgres").glob("*"))


def test_a_folder_that_is_no_chain_is_refused(ledger, folder, new):
    """And so is a member that is not there, and what only a folder has."""
    empty = folder / "empty"
    empty.mkdir()
    assert "holds no backup" in refused(Local(new), "db", "restore", empty)
    chain = ledger[1]
    assert "has no member 2026" in refused(Local(new), "db", "restore", chain, "--until", "2026")
    (empty / "file").touch()
    said = refused(Local(new), "db", "restore", empty / "file", "--until", "2026")
    assert said.startswith("--until names a member of a folder")
    assert "is a folder" in refused(Local(new), "db", "backup", chain)
    said = refused(Local(new), "db", "backup", empty / "file", "--incremental")
    assert said.endswith("--incremental needs a folder")
    said = refused(Local(new), "db", "backup", chain, "--incremental", "--force")
    assert said.startswith("--force replaces a file")


def test_a_database_of_ones_own_is_refused(ledger, postgres):
    """A sentence says what that Postgres has instead."""
    run, chain = Command(postgres), ledger[1]
    assert "`pg_basebackup --incremental` (17 or newer)" in refused(
        run, "db", "backup", chain, "--incremental"
    )
    assert "a file of `gpuledger db backup`" in refused(run, "db", "restore", chain)


def test_a_chain_is_continued_by_its_own_database_alone(folder):
    """Not by another one, and not by a copy once the original went on, and the reverse."""
    original, copy, chain = (folder / f"one-{name}" for name in ("original", "copy", "chain"))
    add(original, chain)
    subprocess.run(["cp", "-a", original, copy], check=True)
    add(copy, chain)
    for data_dir in (original, folder / "one-other"):
        said = refused(Local(data_dir), "db", "backup", chain, "--incremental")
        assert f"was not made from the database in {data_dir}" in said
    _, out = add(copy, chain)
    assert "what changed since" in out


def change(dsn, name):
    """Write a few megabytes, so that the log goes on past where the last member ended."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            f"CREATE TABLE {name} AS SELECT n, repeat(md5(n::text), 20) AS text FROM"
            " generate_series(1, 10000) n"
        )


def test_a_database_that_went_back_does_not_continue_its_chain(folder):
    """Restored in the same data folder, or put back as it was copied: Postgres would add the blocks
    of one to members of the other.
    """
    data_dir, chain, aside = folder / "back", folder / "back-chain", folder / "back-aside"
    with opened(data_dir) as dsn:
        add(data_dir, chain)
        change(dsn, "early")
        earlier, _ = add(data_dir, chain)
    subprocess.run(["cp", "-a", data_dir / "postgres", aside], check=True)
    with opened(data_dir) as dsn:
        change(dsn, "later")
        last, _ = add(data_dir, chain)
    (data_dir / "postgres").rename(folder / "back-newest")
    aside.rename(data_dir / "postgres")
    with opened(data_dir) as dsn:
        for name in ("one", "two"):
            change(dsn, name)
        said = refused(Local(data_dir), "db", "backup", chain, "--incremental")
    assert said.startswith(f"{chain / last} was not made from the database in {data_dir}")
    shutil.rmtree(data_dir / "postgres")
    for until in (earlier, last):
        assert Local(data_dir)("db", "restore", chain, "--until", until)[0] == 0
        with opened(data_dir) as dsn:
            change(dsn, "one")
            said = refused(Local(data_dir), "db", "backup", chain, "--incremental")
        assert "name a new folder" in said
        shutil.rmtree(data_dir / "postgres")


def test_a_folder_of_other_things_is_refused(ledger, folder):
    """Nothing of it is touched: neither the ledger's own folders, nor one that holds other files."""
    data_dir, other = ledger[0], folder / "other"
    (other / ".unfinished").mkdir(parents=True)
    for inside in (data_dir, data_dir / "backups", data_dir / "postgres/cluster/backups"):
        said = refused(Local(data_dir), "db", "backup", inside, "--incremental")
        assert said == f"{inside} is part of the data folder: name a folder elsewhere"
        assert inside == data_dir or not inside.exists()
    said = refused(Local(data_dir), "db", "backup", other, "--incremental")
    assert said == f"{other} holds other files: name an empty or a new folder"
    assert [path.name for path in other.iterdir()] == [".unfinished"]
    (folder / "nowhere").symlink_to(folder / "missing")
    said = refused(Local(data_dir), "db", "backup", folder / "nowhere", "--incremental")
    assert said.endswith("is a link to nothing")


def test_what_a_killed_restore_left_goes_with_the_next_one(ledger, new):
    """Also where the data folder has been used since, and the restore is refused."""
    assert Local(new)("db", "restore", ledger[1])[0] == 0
    left = new / "postgres/restore.new"
    left.mkdir()
    (left / "much").touch()
    assert "tables already" in refused(Local(new), "db", "restore", ledger[1])
    assert not left.exists()


def forget(data_dir):
    """Remove what the server knows of changes since the last member, once it knows some."""
    with psycopg.connect(EmbeddedServer(data_dir).admin_dsn, autocommit=True) as connection:
        connection.execute("CHECKPOINT")
        deadline = time.monotonic() + 60
        while not connection.execute(
            "SELECT max(end_lsn) >= (SELECT redo_lsn FROM pg_control_checkpoint()) FROM"
            " pg_available_wal_summaries()"
        ).fetchone()[0]:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    for summary in (data_dir / "postgres/cluster/pg_wal/summaries").iterdir():
        summary.unlink()


def test_what_changed_is_forgotten_after_a_while(folder):
    """Without WAL summaries since the last member everything is written again, and the command says
    so; the chain restores from there on.
    """
    data_dir, chain, there = folder / "gone", folder / "gone-chain", folder / "gone-restored"
    with opened(data_dir) as dsn:
        first, _ = add(data_dir, chain)
        Command(dsn)("prices", "set", *["--rate", "2", "--currency", "USD", "--from", "2026-01-01"])
        second, _ = add(data_dir, chain)
        forget(data_dir)
        again, out = add(data_dir, chain)
        assert again.endswith("-full")
        assert out.endswith(f"everything: what changed since {second} is no longer known\n")
        assert add(data_dir, chain)[0].endswith("-incremental")
        held = tables(dsn)
    for older in (first, second):
        shutil.rmtree(chain / older)
    assert Local(there)("db", "restore", chain)[0] == 0
    with opened(there) as dsn:
        assert tables(dsn) == held


def test_one_run_at_a_time(ledger, damaged):
    """Another one is refused while a run has the folder, and no member is begun."""
    before = sorted(damaged.iterdir())
    with (damaged / base_backup.LOCK).open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        code, _, said = Local(ledger[0])("db", "backup", damaged, "--incremental")
    assert (code, said) == (3, f"another backup is being written into {damaged}")
    assert sorted(damaged.iterdir()) == before


def test_a_run_that_is_killed_leaves_the_chain_usable(ledger, damaged, new):
    """pg_basebackup goes on without its command, and nobody else writes meanwhile; the next run
    removes what it left.
    """
    data_dir, before = ledger[0], base_backup._list_members(damaged)
    unfinished = damaged / base_backup.UNFINISHED
    with opened(data_dir) as dsn:
        run = subprocess.Popen(
            [sys.executable, "-m", "gpuledger_collector", "db", "backup", damaged, "--incremental"],
            env={**os.environ, "GPULEDGER_DATA_DIR": str(data_dir)},
        )
        while not unfinished.exists():
            assert run.poll() is None
            time.sleep(0.001)
        run.send_signal(signal.SIGKILL)
        run.wait()
        assert base_backup._list_members(damaged) == before
        deadline = time.monotonic() + 60
        while True:
            code, out, err = Local(data_dir)("db", "backup", damaged, "--incremental")
            if code == 0:
                break
            assert err == f"another backup is being written into {damaged}"
            assert time.monotonic() < deadline
        assert f"what changed since {before[-1]}" in out
        assert not unfinished.exists()
        held = tables(dsn)
    assert Local(new)("db", "restore", damaged)[0] == 0
    with opened(new) as dsn:
        assert tables(dsn) == held


def test_a_run_that_ends_before_its_member_has_its_name_is_continued(
    ledger, damaged, new, monkeypatch
):
    """The member is noted in the data folder already, and is not there."""
    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", lambda *_: (_ for _ in ()).throw(OSError(5, "broken", "x")))
        code, _, err = Local(ledger[0])("db", "backup", damaged, "--incremental")
    assert (code, err) == (2, "x: broken")
    assert not (damaged / base_backup.UNFINISHED).exists()
    assert "what changed since" in add(ledger[0], damaged)[1]
    assert Local(new)("db", "restore", damaged)[0] == 0


def test_a_restore_that_is_interrupted_leaves_no_database(ledger, new, monkeypatch):
    """Stopped just before the database is put in place; the next restore succeeds."""

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(EmbeddedServer, "_set_passwords", interrupt)
        assert Local(new)("db", "restore", ledger[1])[0] != 0
    assert not any((new / "postgres").glob("*"))
    assert Local(new)("db", "restore", ledger[1])[0] == 0


@pytest.mark.parametrize("kind", ["link", "file"])
def test_a_backup_writes_through_nothing_that_others_put_there(ledger, damaged, folder, kind):
    """In a folder where others may write."""
    victim = folder / f"victim-{kind}"
    victim.mkdir()
    if kind == "link":
        (damaged / base_backup.UNFINISHED).symlink_to(victim)
    else:
        (damaged / base_backup.UNFINISHED).write_text("keep me")
    name, _ = add(ledger[0], damaged)
    assert not any(victim.iterdir())
    assert not (damaged / name).is_symlink()


def test_nothing_is_unpacked_outside_the_folder(tmp_path):
    """An archive with another path or a link is refused."""
    import tarfile

    for entry in (tarfile.TarInfo("../out"), tarfile.TarInfo("/out"), tarfile.TarInfo("link")):
        if entry.name == "link":
            entry.type, entry.linkname = tarfile.SYMTYPE, "/etc"
        archive = tmp_path / "base.tar.gz"
        with tarfile.open(archive, "w:gz") as tar:
            tar.addfile(entry)
        with pytest.raises(base_backup.NotABackup, match="which no backup does"):
            base_backup._extract(archive, tmp_path / "below")


def test_a_full_disk_of_the_folder_is_named(ledger, damaged, monkeypatch):
    """That of the folder, not that of the database; nothing is left behind."""

    def full(*_, **__):
        raise StorageError("pg_basebackup: could not write to file: No space left on device")

    before = sorted(damaged.iterdir())
    monkeypatch.setattr(base_backup, "run_program", full)
    code, _, said = Local(ledger[0])("db", "backup", damaged, "--incremental")
    assert code == 3
    assert said.startswith(f"the disk of {damaged} is full: ")
    assert sorted(damaged.iterdir()) == before


def test_a_disk_without_room_is_refused_before_anything_is_unpacked(ledger, new, monkeypatch):
    """By the sizes in the manifests."""
    monkeypatch.setattr("gpuledger_collector.storage.server.disk.free_megabytes", lambda _: 20)
    code, _, err = Local(new)("db", "restore", ledger[1])
    assert code == 3
    assert "is full: 20 MB are free and the database needs" in err
    assert not any((new / "postgres").glob("*"))
