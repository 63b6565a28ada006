"""The content of both packages: the agent and its pinned, hashed requirements in one tree for
several Pythons.

Compiled modules have their ABI in the file name (`_core.cpython-311-x86_64-linux-gnu.so`), so those
for every supported Python are installed together; every other file is the same for all of them,
which is checked. Needs python3 and pip.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
"""Debian 12 has 3.11, Ubuntu 24.04 has 3.12, Debian 13 has 3.13, Ubuntu 26.04 has 3.14."""
GLIBC = (28, 17)
"""Wheels for glibc 2.28 or older: those that pip calls manylinux_2_28 and manylinux_2_17."""
NOT_WANTED = ("bin", "example.py", "__pycache__", "*.pyi", "py.typed", "*.c", "*.h")
NOT_ON_NODES = ("fleet.py", "simulate.py", "simulated.py")
"""Modules of the agent that a node has no use for: the fleet that a demonstration simulates."""
LICENSE_FILES = ("LICEN", "COPYING", "NOTICE")
DEBIAN_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


class BuildError(Exception):
    """The package cannot be built; the message says what to do."""


@dataclass(frozen=True, slots=True)
class License:
    """The license of a bundled package."""

    package: str
    version: str
    name: str
    text: str


def version() -> str:
    """The version in pyproject.toml."""
    return str(
        tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    )


def epoch() -> int:
    """The modification time of every packed file, in Unix seconds: SOURCE_DATE_EPOCH, or that of
    the last commit.
    """
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given:
        return int(given)
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode:
        raise BuildError("no git history here; set SOURCE_DATE_EPOCH to the Unix time of the files")
    return int(answer.stdout)


def machine() -> str:
    """The machine that the compiled modules are for, as wheels name it."""
    name = platform.machine()
    if name not in DEBIAN_MACHINES:
        raise BuildError(
            f"compiled requirements are published for {', '.join(DEBIAN_MACHINES)}, this is {name}"
        )
    return name


def gather(tree: Path, pythons: tuple[str, ...] = PYTHONS) -> list[License]:
    """Fills `tree` with the agent and its requirements for all `pythons`; returns the bundled
    packages' licenses.

    Raises BuildError when a requirement has no wheel, or two Pythons would need different files of
    one name.
    """
    licenses: dict[str, License] = {}
    tree.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder:
        for python in pythons:
            wheels = Path(folder) / python
            install(wheels, python)
            licenses |= {entry.package: entry for entry in take_licenses(wheels)}
            merge(wheels, tree)
    shared = shutil.ignore_patterns(*NOT_WANTED, "declared")
    shutil.copytree(ROOT / "common" / "gpuledger_common", tree / "gpuledger_common", ignore=shared)
    own = shutil.ignore_patterns(*NOT_WANTED, *NOT_ON_NODES)
    shutil.copytree(ROOT / "agent" / "gpuledger_agent", tree / "gpuledger_agent", ignore=own)
    return [licenses[name] for name in sorted(licenses)]


def install(target: Path, python: str) -> None:
    """The requirements' wheels for one Python, unpacked; pip compares their hashes."""
    wanted = target.with_suffix(".txt")
    wanted.write_text(requirements_for(python), encoding="utf-8")
    platforms = [f"--platform=manylinux_2_{minor}_{machine()}" for minor in GLIBC]
    command = [
        sys.executable,
        "-m",
        "pip",
        "--quiet",
        "--disable-pip-version-check",
        "install",
        "--require-hashes",
        "--no-deps",
        "--no-compile",
        "--only-binary=:all:",
        "--implementation=cp",
        f"--python-version={python}",
        *platforms,
        f"--platform=manylinux2014_{machine()}",
        f"--target={target}",
        f"--requirement={wanted}",
    ]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode:
        raise BuildError(
            f"pip could not get the requirements for Python {python}: {answer.stderr.strip()}"
        )


def requirements_for(python: str) -> str:
    """The pinned requirements that apply to one Python.

    pip asks a marker about the Python that runs it, not about the one that it installs for; so they
    are decided here.
    """
    from pip._vendor.packaging.requirements import Requirement

    text = (ROOT / "requirements" / "agent.txt").read_text(encoding="utf-8").replace("\\\n", " ")
    kept = []
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        pin, *hashes = line.split(" --hash=")
        requirement = Requirement(pin.strip())
        if requirement.marker is None or requirement.marker.evaluate(
            {"python_version": python, "python_full_version": f"{python}.0"}
        ):
            kept.append(
                " --hash=".join(
                    [pin.partition(";")[0].strip(), *(entry.strip() for entry in hashes)]
                )
            )
    return "\n".join(kept) + "\n"


def take_licenses(wheels: Path) -> list[License]:
    """Name, version, license and its text of every unpacked wheel; their metadata folders are
    removed.
    """
    taken = []
    for folder in sorted(wheels.glob("*.dist-info")):
        fields: dict[str, Any] = {}
        for line in (
            (folder / "METADATA").read_text(encoding="utf-8").split("\n\n", 1)[0].splitlines()
        ):
            key, _, value = line.partition(": ")
            fields.setdefault(key, value)
        texts = sorted(
            path
            for path in folder.rglob("*")
            if path.is_file() and path.name.upper().startswith(LICENSE_FILES)
        )
        text = "\n\n".join(path.read_text(encoding="utf-8").strip() for path in texts)
        name = fields.get("License-Expression") or fields.get("License") or ""
        taken.append(
            License(
                fields["Name"],
                fields["Version"],
                name.splitlines()[0] if name else "see below",
                text,
            )
        )
        shutil.rmtree(folder)
    return taken


def is_license(path: Path) -> bool:
    """Whether a wheel's metadata file is a license or a notice that belongs to one."""
    return path.is_file() and path.name.upper().startswith(LICENSE_FILES)


def merge(wheels: Path, tree: Path) -> None:
    """Copies unpacked wheels into the tree; a file of the same name must be the same file."""
    leave = shutil.ignore_patterns(*NOT_WANTED)
    shutil.copytree(wheels, tree, dirs_exist_ok=True, ignore=leave, copy_function=copy_same)


def copy_same(source: str, target: str) -> None:
    """Copies a file, or finds the same one there; modules lose their #! line.

    Raises BuildError when it is another.
    """
    there, content = Path(target), Path(source).read_bytes()
    if there.suffix == ".py" and content.startswith(b"#!"):
        content = b"#" + content[2:]
    if there.exists() and there.read_bytes() != content:
        raise BuildError(
            f"{there.name} differs from one Python to the next; one tree cannot serve both"
        )
    there.write_bytes(content)
