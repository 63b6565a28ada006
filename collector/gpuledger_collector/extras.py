"""How to get a package that is an extra.

GPU Ledger itself is in no package index, so what is named is the package.
"""

from __future__ import annotations

import re
from importlib import metadata

_OF_EXTRA = re.compile(r"([^;]+);.*\bextra\s*==\s*['\"]([\w-]+)['\"]")


def install_command(extra: str) -> str:
    """The command that installs what an extra names, as the installed package declares it."""
    declared = (_OF_EXTRA.match(text) for text in metadata.requires("gpuledger") or ())
    packages = " ".join(
        f"'{found[1].strip()}'" for found in declared if found and found[2] == extra
    )
    return f"pip install {packages}, or with pipx: pipx inject gpuledger {packages}"
