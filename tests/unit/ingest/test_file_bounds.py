"""What a file may take before it is refused: bytes in memory, rows, and lines; the sentence names
the bound.
"""

import gzip
import io
import logging
import os
import shutil
import sys
import tempfile
import threading
import tracemalloc
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gpuledger_collector.cli import build
from gpuledger_collector.cli.common import explain
from gpuledger_collector.config import csv_rows, files
from gpuledger_collector.config.fields import DECLARED
from gpuledger_collector.ingest.files.sacct import COLUMNS, read_sacct
from gpuledger_collector.ingest.files.samples import read_samples
from gpuledger_collector.ingest.files.shares import read_shares
from gpuledger_collector.settings import read_secret
from gpuledger_common import bounded_file
from gpuledger_common.bounded_file import CHUNK, MAX_SECRET_BYTES, MAX_TOML_BYTES, FileTooLarge
from gpuledger_common.profiles.read import ProfileError, read_profile
from gpuledger_common.settings import SettingsError, read_toml

BOUND = 8 * CHUNK


@pytest.fixture
def bomb(tmp_path):
    """1.5 MB that inflate to 1.5 GB: members of a gzip file follow each other."""
    path = tmp_path / "bomb.csv.gz"
    member = gzip.compress(b"A" * 64 * CHUNK, 9)
    path.write_bytes(member * 24)
    return path


@pytest.fixture
def small_bound(monkeypatch):
    monkeypatch.setattr(files, "MAX_FILE_BYTES", BOUND)


class Counted(gzip.GzipFile):
    """Counts what was inflated."""

    inflated = 0

    def read(self, size=-1):
        piece = super().read(size)
        Counted.inflated += len(piece)
        return piece


def test_a_bomb_is_inflated_up_to_the_bound_and_no_further(bomb, small_bound, monkeypatch):
    """Neither the bytes that are inflated nor the memory grow with what is in the file."""
    monkeypatch.setattr(files.gzip, "GzipFile", Counted)
    Counted.inflated = 0
    tracemalloc.start()
    try:
        with pytest.raises(FileTooLarge, match=f"larger than {BOUND} bytes"):
            csv_rows.decode(bomb, [], [])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert Counted.inflated == BOUND + 1
    assert peak < 3 * BOUND


def test_a_bomb_ends_a_command_with_a_sentence(bomb, small_bound):
    """`start FILE` and `forecast --series FILE` read files by other means; both refuse with 2."""
    for arguments in (["start", str(bomb), "--dry-run"], ["forecast", "--series", str(bomb)]):
        done = CliRunner().invoke(build(), arguments)
        sentence, code = explain(done.exception)
        assert (code, sentence) == (2, f"{bomb}: larger than {BOUND} bytes"), arguments


def test_standard_input_is_bounded(small_bound, monkeypatch):
    """`forecast -` reads a pipe that may never end."""

    class Zeros(io.RawIOBase):
        def read(self, size=-1):
            return b"0" * size

    class Input:
        buffer = Zeros()

    monkeypatch.setattr(sys, "stdin", Input())
    from gpuledger_collector.cli import read_series

    monkeypatch.setattr(read_series, "MAX_FILE_BYTES", BOUND)
    with pytest.raises(FileTooLarge):
        read_series.read_series("-")


def test_rows_are_bounded_even_where_bad_rows_are_skipped(tmp_path, monkeypatch):
    """The first rows of a file would be a bill that is too small, so none is taken."""
    monkeypatch.setattr(files, "MAX_RECORDS", 3)
    for name, text in {
        "jobs.csv": "start,end,gpus,team\n" + "2026-01-01T00:00Z,2026-01-01T01:00Z,1,a\n" * 4,
        "bad.csv": "start,end,gpus,team\n" + "too,many,cells,in,this\n" * 4,
    }.items():
        path = tmp_path / name
        path.write_text(text)
        done = CliRunner().invoke(
            build(), ["start", str(path), "--dry-run", "--skip-bad", "--rate", "1"]
        )
        assert explain(done.exception) == (f"{path}: more than 3 rows; split it", 2)
    sacct = tmp_path / "sacct.txt"
    sacct.write_text("".join(f"{number}{'|x' * (len(COLUMNS) - 1)}\n" for number in range(4)))
    with pytest.raises(FileTooLarge, match="more than 3 rows"):
        read_sacct(sacct)
    samples = tmp_path / "samples.jsonl"
    samples.write_text('{"uuid": "GPU-0", "values": {}, "ts": 1}\n' * 4)
    with pytest.raises(FileTooLarge, match="more than 3 rows"):
        read_samples(samples, instants=DECLARED)


def test_other_files_have_bounds_too(tmp_path, small_bound, monkeypatch):
    """Shares, tables in TOML, profiles and settings."""
    large = tmp_path / "large.toml"
    with large.open("wb") as file:
        file.truncate(MAX_TOML_BYTES + 1)
    with pytest.raises(FileTooLarge):
        read_shares(_sparse(tmp_path / "shares.txt", BOUND + 1), "", None)
    with pytest.raises(SettingsError, match="larger than"):
        read_toml(large)
    with pytest.raises(ProfileError, match="larger than"):
        read_profile(large)
    done = CliRunner().invoke(build(), ["apply", str(large), "--dsn", "dbname=none"])
    assert explain(done.exception) == (f"{large}: larger than {MAX_TOML_BYTES} bytes", 2)
    monkeypatch.setattr(files, "MAX_ROW_CHARACTERS", 1_000)
    line = tmp_path / "line.csv"
    line.write_text("a" * 1_001)
    done = CliRunner().invoke(build(), ["focus", "check", str(line)])
    assert explain(done.exception) == (f"{line}: a line is longer than 1000 characters", 2)


def _sparse(path, size):
    with path.open("wb") as file:
        file.truncate(size)
    return path


@pytest.mark.parametrize("text", ["a = " + "[" * 100_000, "a = 1" + "0" * 10_000])
def test_settings_and_profiles_that_nest_are_a_sentence(tmp_path, text):
    """As in tables that are applied."""
    path = tmp_path / "bomb.toml"
    path.write_text(text)
    with pytest.raises(SettingsError, match="nests too deep, or holds a number that is too long"):
        read_toml(path)
    with pytest.raises(ProfileError, match="nests too deep, or holds a number that is too long"):
        read_profile(path)


def test_a_secret_that_everybody_can_read_is_said_once(tmp_path, caplog, monkeypatch):
    """One sentence with its setting and the cure; none where a folder on the way is closed, or for
    the owner alone.
    """
    monkeypatch.setattr(bounded_file, "_warned", set())
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    path = folder / "secret"
    path.write_text(" s" * 40)
    path.chmod(0o644)
    # pytest's own folders are closed to others, and so may be those above them
    monkeypatch.setattr(
        bounded_file,
        "_is_reachable",
        lambda path: path.parent == folder and bool(folder.stat().st_mode & 1),
    )
    with caplog.at_level(logging.WARNING):
        assert read_secret(path, "link_secret_file") == ("s " * 40).strip()
        read_secret(path, "link_secret_file")
    expected = [
        f"link_secret_file: {path} can be read by every user of this machine: chmod o-r {path}"
    ]
    assert caplog.messages == expected
    for mode, folder_mode in ((0o600, 0o755), (0o644, 0o700)):
        bounded_file._warned.clear()
        caplog.clear()
        path.chmod(mode)
        folder.chmod(folder_mode)
        read_secret(path, "link_secret_file")
        assert caplog.messages == []
    shutil.rmtree(folder)
    with pytest.raises(
        SettingsError, match=f"cannot be read .larger than {MAX_SECRET_BYTES} bytes"
    ):
        read_secret(_sparse(tmp_path / "large", MAX_SECRET_BYTES + 1), "link_secret_file")


def test_a_secret_comes_out_of_a_pipe(tmp_path):
    """As a shell makes one for `<(command)`, and it may take its time."""
    reading, writing = os.pipe()
    late = threading.Timer(0.2, lambda: (os.write(writing, b"tok"), os.write(writing, b"en\n")))
    last = threading.Timer(0.4, os.close, [writing])
    late.start()
    last.start()
    try:
        assert read_secret(Path(f"/proc/self/fd/{reading}"), "GPULEDGER_X") == "token"
    finally:
        last.join()
        os.close(reading)


def test_a_pipe_in_place_of_a_secret_stops_nobody(tmp_path, monkeypatch):
    """Without a writer it is empty, with one that never writes it is given up in a sentence."""
    monkeypatch.setattr(bounded_file, "PIPE_SECONDS", 0.2)
    os.mkfifo(secret := tmp_path / "token")
    assert read_secret(secret, "GPULEDGER_X") == ""
    writing = os.open(secret, os.O_RDWR)
    try:
        with pytest.raises(SettingsError, match=r"GPULEDGER_X: .*nothing wrote to its end"):
            read_secret(secret, "GPULEDGER_X")
    finally:
        os.close(writing)
