"""A fault of our own: its report goes to a log where there is one, to a file only for somebody at a
terminal.
"""

import sys

from gpuledger_collector.cli.common import explain

SECRET = "project-of-ada"


def fail():
    mine = SECRET
    raise LookupError(f"not in the table\nDETAIL: {mine}")


def explained(monkeypatch, capsys, terminal):
    """The sentence of the fault, and what was written to standard error before it."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    try:
        fail()
    except LookupError as error:
        sentence, code = explain(error)
    assert code == 3
    return sentence, capsys.readouterr().err


def test_without_a_terminal_the_report_is_on_standard_error(monkeypatch, capsys, tmp_path):
    """As in a container, whose files are gone with its restart: the traceback and no file, without
    values.
    """
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    sentence, err = explained(monkeypatch, capsys, terminal=False)
    assert err.startswith("Traceback (most recent call last):\n")
    assert err.endswith("\nLookupError: not in the table\n")
    assert (
        sentence
        == "a fault in gpuledger itself (LookupError: not in the table); please report it with the"
        " lines above"
    )
    assert SECRET not in err
    assert list(tmp_path.iterdir()) == []


def test_at_a_terminal_the_report_is_a_file(monkeypatch, capsys, tmp_path):
    """One sentence that names the file."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    sentence, err = explained(monkeypatch, capsys, terminal=True)
    (file,) = tmp_path.iterdir()
    assert err == ""
    assert sentence.endswith(f"(LookupError: not in the table); please report it with {file}")
    assert "Traceback" in file.read_text()
    assert SECRET not in file.read_text()


def test_at_a_terminal_without_a_folder_for_files_it_is_on_standard_error(
    monkeypatch, capsys, tmp_path
):
    """A file that cannot be written loses nothing."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    sentence, err = explained(monkeypatch, capsys, terminal=True)
    assert sentence.endswith("please report it with the lines above")
    assert err.startswith("Traceback")
