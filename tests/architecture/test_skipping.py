"""Where every engine is required, a test is skipped for want of nothing that a package brings."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGED = "prometheus is not installed (apt-get install prometheus)"
SKIPPING = f"""
import pytest

@pytest.mark.skipif(True, reason={PACKAGED!r})
def test_marked():
    pass

def test_called():
    pytest.skip({PACKAGED!r})

def test_ready_engine():
    pytest.skip("no helm in ../shared/engines")

def test_cluster():
    pytest.skip("GPULEDGER_TEST_CITUS_DSN names no database")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("required", "failed"), [("required", {"test_marked", "test_called"}), ("", set())]
)
def test_a_missing_engine_fails_where_it_is_required(tmp_path, required, failed):
    """By a mark or within the test; what no package brings is skipped with its reason."""
    (tmp_path / "test_it.py").write_text(SKIPPING)
    (tmp_path / "conftest.py").write_text((ROOT / "tests/conftest.py").read_text())
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-rfEs",
            "-p",
            "no:cacheprovider",
            "-c",
            os.devnull,
            tmp_path,
        ],
        env={**os.environ, "GPULEDGER_TEST_ENGINES": required, "PYTHONPATH": str(ROOT / "tests")},
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    assert {line.partition("::")[2].split()[0] for line in lines} == failed, done.stdout
    assert done.returncode == int(bool(failed))
    assert PACKAGED in done.stdout
    assert "no helm in ../shared/engines" in done.stdout
