"""gpuledger-agent.pyz: one file, on every supported Python, that leaves nothing on the disk."""

import os
import re
import subprocess
import zipfile

import pytest

from fakes.packages import PAGE, bare, build, delivers, pythons

pytestmark = pytest.mark.slow


def run(python, pyz, *arguments):
    command = [python, "-IS", pyz, *arguments]
    return subprocess.run(command, env=bare(), capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("python", pythons())
def test_one_file_runs_on_every_supported_python(pyz, python, tmp_path):
    """Compiled requirements are those of the Python that runs; without a GPU the sentence says what
    is missing.
    """
    delivers([python, "-IS", pyz], tmp_path)
    checked = run(python, pyz, "check")
    assert (checked.returncode, checked.stderr) == (3, "")
    assert "NVIDIA driver" in checked.stdout.splitlines()[0]
    seen = run(python, pyz, "once", "--source", "dcgm", "--target", PAGE)
    assert seen.returncode == 0, seen.stderr


@pytest.mark.parametrize("version", [(3, 10, 12), (3, 15, 0)])
def test_a_python_that_does_not_fit_is_told_so(pyz, version):
    """One sentence and exit 3 before anything is imported, no traceback."""
    other = (
        f"import runpy, sys; sys.version_info = {version}; sys.version ="
        f" '{'.'.join(map(str, version))} (x)'; "
    )
    command = [
        pythons()[0],
        "-IS",
        "-c",
        other + "runpy.run_path(sys.argv[1], run_name='__main__')",
        pyz,
    ]
    told = subprocess.run(command, env=bare(), capture_output=True, text=True)
    assert told.returncode == 3
    words = (
        r"gpuledger-agent: this file runs on Python 3\.11 to 3\.14, this is 3\.1[05]\.\d+; start it"
        r" .*\n"
    )
    assert re.fullmatch(words, told.stderr)


def test_nothing_is_written_and_no_folder_is_needed(pyz, tmp_path):
    """No home, no writable temporary folder, another working folder than at the start: it runs, and
    leaves nothing.
    """
    home = tmp_path / "home"
    home.mkdir(mode=0o500)
    environment = {
        **bare(),
        "HOME": str(home),
        "TMPDIR": str(home),
        "XDG_CACHE_HOME": str(home / "cache"),
    }
    relative = os.path.relpath(pyz, tmp_path)
    seen = subprocess.run(
        [pythons()[0], relative, "once", "--source", "dcgm", "--target", PAGE],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert seen.returncode == 0, seen.stderr
    assert list(home.iterdir()) == []


def test_it_starts_by_itself_and_holds_the_agent_for_each_python(pyz):
    """Executable, and with compiled modules for four ABIs beside one copy of everything else."""
    assert os.access(pyz, os.X_OK)
    names = zipfile.ZipFile(pyz).namelist()
    assert len(names) == len(set(names))
    assert {
        re.search(r"cpython-(\d+)", name)[1] for name in names if name.startswith("msgspec/_core.")
    } == {
        "311",
        "312",
        "313",
        "314",
    }
    assert not [name for name in names if name.startswith(("bin/", "example"))]


@pytest.mark.long
def test_the_same_commit_gives_the_same_bytes(pyz, tmp_path):
    """Nothing of the building machine's clock or folders is in it."""
    assert build("pyz", tmp_path).read_bytes() == pyz.read_bytes()
