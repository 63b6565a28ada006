"""The folder for machines without a network: made with the index at hand, installed without any
network at all.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "deploy/airgap/build"


def call(*words, **given):
    """A finished process with its text."""
    clean = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("GPULEDGER_", "PIP_", "PYTHON"))
    }
    return subprocess.run(
        [str(word) for word in words],
        env={**clean, **given},
        capture_output=True,
        text=True,
        check=False,
    )


def offline():
    """What runs a command with no network interface but a loopback that is down."""
    prefix = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--net", "--map-root-user"]
    if shutil.which("unshare") is None or call(*prefix, "true").returncode:
        pytest.skip("unshare cannot make an empty network here")
    return prefix


def test_what_it_carries_is_there():
    """Units and settings that the script copies stand in the repository; the installer has its
    three blanks.
    """
    import runpy

    carried = runpy.run_path(str(BUILD))["CARRIED"]
    assert all((ROOT / name).is_file() for names in carried.values() for name in names)
    text = (ROOT / "deploy/airgap/install").read_text()
    assert all(blank in text for blank in ("@VERSION@", "@PYTHON@", "@MACHINE@"))
    assert call("sh", "-n", ROOT / "deploy/airgap/install").returncode == 0


def test_a_folder_that_is_there_is_left_alone(tmp_path):
    """Exit 2 and a sentence."""
    refused = call(sys.executable, BUILD, tmp_path)
    assert refused.returncode == 2
    assert "is there already" in refused.stderr


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["collector", "agent"])
def test_it_installs_without_a_network(kind, tmp_path):
    """Made, carried, installed, upgraded; a changed wheel and a foreign folder are refused and
    change nothing.
    """
    apart = offline()
    folder, prefix = tmp_path / "carried", tmp_path / "opt"
    made = call(sys.executable, BUILD, folder, "--kind", kind)
    assert made.returncode == 0, made.stderr
    assert (
        json.loads((folder / f"gpuledger-{kind}.cdx.json").read_text())["bomFormat"] == "CycloneDX"
    )
    for unit in folder.glob("*.service"):
        assert "ExecStart=/opt/gpuledger/bin/gpuledger" in unit.read_text()
    given = {"PYTHON": sys.executable}

    for _ in range(2):  # the second is an upgrade in place
        done = call(*apart, folder / "install", prefix, **given)
        assert done.returncode == 0, done.stderr
        assert not (tmp_path / "opt.old").exists()
    program = prefix / "bin" / ("gpuledger" if kind == "collector" else "gpuledger-agent")
    assert str(program) in done.stdout
    answer = call(program, *(["--version"] if kind == "collector" else ["--help"]))
    assert answer.returncode == 0
    assert "gpuledger" in answer.stdout
    before = (prefix / "pyvenv.cfg").stat().st_mtime_ns

    foreign = tmp_path / "home"
    foreign.mkdir()
    assert call(*apart, folder / "install", foreign, **given).returncode == 2
    wheel = next((folder / "wheels").glob("msgspec-*.whl"))
    wheel.write_bytes(wheel.read_bytes() + b"\0")
    refused = call(*apart, folder / "install", prefix, **given)
    assert refused.returncode == 2
    assert "carry the folder over again" in refused.stderr
    assert (prefix / "pyvenv.cfg").stat().st_mtime_ns == before
    # With the sums forged as well, pip still knows the hash that was pinned; what was installed is
    # put back.
    rest = [
        line for line in (folder / "SHA256SUMS").read_text().splitlines() if "msgspec" not in line
    ]
    (folder / "SHA256SUMS").write_text("\n".join(rest) + "\n")
    refused = call(*apart, folder / "install", prefix, **given)
    assert refused.returncode == 3
    assert "nothing was changed" in refused.stderr
    assert call(program, "--help").returncode == 0
