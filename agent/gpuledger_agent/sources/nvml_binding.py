"""Imports NVIDIA's binding without what it does not use.

It imports `ctypes.util` for a function that it never calls, and with it subprocess, shutil and two
libraries for archives: 0.6 MiB in every agent.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


def import_binding() -> Any:
    """The module pynvml. Raises ImportError where it is not installed."""
    if "ctypes.util" in sys.modules or "pynvml" in sys.modules:
        import pynvml

        return pynvml
    late = ModuleType("ctypes.util")
    late.find_library = _find_library  # type: ignore[attr-defined]
    sys.modules[late.__name__] = late
    try:
        import pynvml
    finally:
        del sys.modules[late.__name__]
    return pynvml


def _find_library(name: str) -> str | None:
    """What `ctypes.util` answers, which is imported when it is asked."""
    from ctypes.util import find_library

    return find_library(name)
