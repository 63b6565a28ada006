"""The NVML stand-in, compiled once, and a way to look through it with the real binding in a real
process.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

STUB = Path(__file__).resolve().parents[2] / "fakes" / "nvml_stub.c"


@pytest.fixture(scope="session")
def nvml_folder(tmp_path_factory):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler: the NVML stand-in cannot be built (apt-get install gcc)")
    folder = tmp_path_factory.mktemp("nvml")
    library = folder / "libnvidia-ml.so.1"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", library, STUB], check=True
    )
    return folder


class Card:
    """A machine with stubbed GPUs: `scenario` sets what they do, `run` runs Python beside them."""

    def __init__(self, folder: Path, scenario: Path) -> None:
        self.path = scenario
        self.environment = {
            **os.environ,
            "LD_LIBRARY_PATH": str(folder),
            "NVML_STUB_SCENARIO": str(scenario),
        }

    def scenario(self, text: str) -> None:
        fresh = self.path.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(self.path)

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        program = Path(sys.executable).with_name("gpuledger-agent")
        return subprocess.run(
            [program, *arguments], env=self.environment, capture_output=True, text=True, timeout=60
        )

    def once(self) -> dict:
        answer = self.command("once", "--json")
        assert answer.returncode == 0, answer.stderr
        return json.loads(answer.stdout)

    def python(self, code: str) -> str:
        answer = subprocess.run(
            [sys.executable, "-c", code],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert answer.returncode == 0, answer.stderr
        return answer.stdout


@pytest.fixture
def card(nvml_folder, tmp_path):
    made = Card(nvml_folder, tmp_path / "scenario")
    made.scenario("gpus 2\n")
    return made
