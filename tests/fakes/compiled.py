"""Libraries of ours in C, compiled by the machine's compiler for a test."""

import shutil
import subprocess
from pathlib import Path

import pytest


def library(folder: Path, source: str, name: str) -> Path:
    """`tests/fakes/SOURCE` as a shared library; the test is skipped, with the reason, where there
    is no compiler.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip(f"no C compiler: {source} cannot be built (apt-get install gcc)")
    made = folder / name
    path = Path(__file__).with_name(source)
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", made, path, "-ldl"],
        check=True,
    )
    return made
