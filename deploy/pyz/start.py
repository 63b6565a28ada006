"""What runs first in gpuledger-agent.pyz: compiled modules can be imported out of the archive; then the agent starts.

A compiled module is copied into a sealed file in memory (memfd_create(2)) and loaded from there. So there is no cache
that somebody could poison, that a noexec or read-only disk could forbid, or that an older version could leave behind.
"""

# ruff: noqa: E402 - a Python that is too old is told so before anything else is imported
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
"""Nobody changes the file any more (fcntl(2))."""


class FromMemory(importlib.abc.MetaPathFinder):
    """Finds compiled modules that lie in the archive for this very Python."""

    def __init__(self) -> None:
        with zipfile.ZipFile(ARCHIVE) as archive:
            self._names = frozenset(name for name in archive.namelist() if name.endswith(".so"))

    def find_spec(
        self,
        fullname: str,
        path: object = None,  # noqa: ARG002 - the archive's names are whole
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> importlib.machinery.ModuleSpec | None:
        """The module's spec when the archive has it."""
        for suffix in importlib.machinery.EXTENSION_SUFFIXES:
            name = fullname.replace(".", "/") + suffix
            if name in self._names:
                place = in_memory(name)
                loader = importlib.machinery.ExtensionFileLoader(fullname, place)
                return importlib.util.spec_from_file_location(fullname, place, loader=loader)
        return None


def in_memory(name: str) -> str:
    """A member of the archive as a sealed file in memory; its path.

    The descriptor stays open: the dynamic linker knows libraries by path, and the same number again would be another.
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
