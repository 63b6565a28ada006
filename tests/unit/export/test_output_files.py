"""Files that commands write with -o: complete, or as they were before."""

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gpuledger_collector.cli.output import write_pieces


def broken():
    yield "first\n"
    raise ValueError("no second")


def test_a_file_is_complete_or_as_it_was(tmp_path):
    """An error in the middle leaves the old bill, and nothing beside it."""
    bill = tmp_path / "bill.csv"
    bill.write_text("old\n")
    with pytest.raises(ValueError, match="no second"):
        write_pieces(broken(), bill)
    assert bill.read_text() == "old\n"
    with pytest.raises(ValueError, match="no second"):
        write_pieces(broken(), tmp_path / "new.csv")
    assert os.listdir(tmp_path) == ["bill.csv"]


def test_a_folder_that_is_not_there_is_named_by_the_users_file(tmp_path):
    """And not by the name of the unfinished one."""
    with pytest.raises(FileNotFoundError, match=r"away/bill\.csv'$"):
        write_pieces(["new\n"], tmp_path / "away" / "bill.csv")


def test_a_link_and_a_mode_stay(tmp_path):
    """What the user has set up is written, not exchanged for something else."""
    bill, link = tmp_path / "bill.csv", tmp_path / "link.csv"
    bill.write_text("old\n")
    bill.chmod(0o640)
    link.symlink_to(bill)
    write_pieces(["new\n"], link)
    assert link.is_symlink()
    assert bill.read_text() == "new\n"
    assert stat.S_IMODE(bill.stat().st_mode) == 0o640


def test_a_file_that_a_killed_run_left_is_in_nobodys_way(tmp_path, monkeypatch):
    """In a container every run has the same process id."""
    (tmp_path / f".bill.csv.{os.getpid()}.part").write_text("half\n")
    write_pieces(["new\n"], tmp_path / "bill.csv")
    assert (tmp_path / "bill.csv").read_text() == "new\n"


def test_a_file_that_cannot_be_replaced_is_written(tmp_path, monkeypatch):
    """As one that is mounted into a container by itself: it has all of the bill, and no other
    file is left.
    """
    bill = tmp_path / "bill.csv"
    bill.write_text("old and longer\n")

    def refuse(*_):
        raise OSError(errno.EBUSY, "Device or resource busy")

    monkeypatch.setattr(Path, "replace", refuse)
    write_pieces(["new\n"], bill)
    assert bill.read_text() == "new\n"
    assert os.listdir(tmp_path) == ["bill.csv"]


def test_a_private_bill_is_private_from_its_first_line(tmp_path):
    """The unfinished file has the rights of the one that it replaces."""
    bill = tmp_path / "bill.csv"
    bill.write_text("old\n")
    bill.chmod(0o600)

    def pieces():
        (unfinished,) = tmp_path.glob(".bill.csv.*.part")
        yield f"{stat.S_IMODE(unfinished.stat().st_mode):o}\n"

    write_pieces(pieces(), bill)
    assert bill.read_text() == "600\n"


def test_a_device_is_written_as_it_is(tmp_path):
    """/dev/null stays a device."""
    write_pieces(["new\n"], (null := tmp_path / "null"))
    null.unlink()
    os.mkfifo(null)
    reader = os.open(null, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_pieces(["through\n"], null)
        assert os.read(reader, 100) == b"through\n"
        assert stat.S_ISFIFO(null.stat().st_mode)
    finally:
        os.close(reader)


def test_standard_output_by_its_name_is_written_as_it_is(tmp_path):
    """Into a pipe, whose name in /proc is no file's, and into a file that the shell opened."""
    write = "import pathlib, gpuledger_collector.cli.output as o\n"
    write += "o.write_pieces(['bill\\n'], pathlib.Path('/dev/stdout'))"
    piped = subprocess.run([sys.executable, "-c", write], capture_output=True, text=True)
    assert (piped.stdout, piped.stderr) == ("bill\n", "")
    with (bill := tmp_path / "bill.csv").open("w") as opened:
        subprocess.run([sys.executable, "-c", write], stdout=opened, check=True)
        assert bill.samefile(f"/proc/self/fd/{opened.fileno()}")
    assert bill.read_text() == "bill\n"
    assert list(tmp_path.iterdir()) == [bill]
