"""The stand-in for libnvidia-ml.so.1, compiled with this machine's compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("nvml_stub.c")


def stand_in(folder: Path, scenario: str) -> dict[str, str] | None:
    """Compiles it into `folder` beside its scenario; the environment that leads there, None without
    a compiler.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    library = folder / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, SOURCE], check=True)
    place = folder / "scenario"
    place.write_text(scenario)
    return {**os.environ, "LD_LIBRARY_PATH": str(folder), "NVML_STUB_SCENARIO": str(place)}
