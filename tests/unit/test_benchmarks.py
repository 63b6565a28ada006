"""Benchmarks follow the code that they measure: each module can be imported.

What they measure is run by hand.
"""

import importlib
from pathlib import Path

import bench
import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.mark.parametrize("name", sorted(path.stem for path in BENCH.glob("*.py")))
def test_benchmark_can_be_imported(name: str):
    assert importlib.import_module(f"bench.{name}").__doc__


@pytest.mark.parametrize("name", sorted(path.stem for path in BENCH.glob("[a-z]*.py")))
def test_help_never_runs_a_benchmark(name: str):
    """By argparse, or by what its page says."""
    page = BENCH / f"{name}.py"
    assert bench.help_of(page) or "parse_args(" in page.read_text()
