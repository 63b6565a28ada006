"""Files that commands write with -o: complete, or as they were before."""

import os
import stat

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


def test_a_planted_link_is_not_written_through(tmp_path, monkeypatch):
    """Whoever may write into the folder and guesses the unfinished file's name gains nothing."""
    other = tmp_path / "other"
    other.write_text("theirs\n")
    (tmp_path / f".bill.csv.{os.getpid()}.part").symlink_to(other)
    with pytest.raises(FileExistsError):
        write_pieces(["new\n"], tmp_path / "bill.csv")
    assert other.read_text() == "theirs\n"


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
