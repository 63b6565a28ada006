"""Entry point of gpuledger-agent.pyz: makes compiled modules importable from the archive, then
starts the agent.

A compiled module is copied into a sealed file in memory (memfd_create(2)) and loaded from there. So
there is no cache that could be poisoned, forbidden by a noexec or read-only disk, or left behind by
an older version.
"""

# ruff: noqa: E402 - an unsupported Python is reported before anything else is imported
from __future__ import annotations

import sys

OLDEST, NEWEST = (3, 11), (3, 14)
if not OLDEST <= sys.version_info[:2] <= NEWEST:
    sys.stderr.write(
        f"gpuledger-agent: this file runs on Python 3.11 to 3.14, this is {sys.version.split()[0]};"
        " start it with another one: python3.X gpuledger-agent.pyz\n"
    )
    sys.exit(3)

import fcntl
import importlib.abc
import importlib.machinery
import importlib.util
import os
import zipfile
from types import ModuleType

ARCHIVE = sys.path[0] = os.path.abspath(sys.path[0])  # noqa: PTH100 - pathlib is a needless import at every start
SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
"""The file can no longer be changed (fcntl(2))."""


class FromMemory(importlib.abc.MetaPathFinder):
    """Finds the compiled modules in the archive for this version of Python."""

    def __init__(self) -> None:
        with zipfile.ZipFile(ARCHIVE) as archive:
            self._names = frozenset(name for name in archive.namelist() if name.endswith(".so"))

    def find_spec(
        self,
        fullname: str,
        path: object = None,  # noqa: ARG002 - names in the archive are complete
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> importlib.machinery.ModuleSpec | None:
        """The module's spec when the archive has it."""
        for suffix in importlib.machinery.EXTENSION_SUFFIXES:
            name = fullname.replace(".", "/") + suffix
            if name in self._names:
                memory_path = in_memory(name)
                loader = importlib.machinery.ExtensionFileLoader(fullname, memory_path)
                return importlib.util.spec_from_file_location(fullname, memory_path, loader=loader)
        return None


def in_memory(name: str) -> str:
    """A member of the archive as a sealed file in memory; its path.

    The descriptor stays open: the dynamic linker knows libraries by path, and the same number again
    would be another.
    """
    with zipfile.ZipFile(ARCHIVE) as archive:
        content = archive.read(name)
    descriptor = os.memfd_create(name.rpartition("/")[2], os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(content)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
    return f"/proc/self/fd/{descriptor}"


sys.meta_path.insert(0, FromMemory())

from gpuledger_agent.cli import main

main()
