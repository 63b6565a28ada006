"""Which folder holds the cluster of a data folder, remembered in its file `home`.

The decision depends on permissions and users, which may change later, so it is remembered. Below
the data folder it is remembered as a relative path, so that a data folder can be moved and copied.
A cluster elsewhere (root's data folder below a private home) belongs to one data folder, named in
the cluster's own folder: a copy of that data folder would otherwise join the original's database.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

from gpuledger_collector.storage.errors import EnvironmentLacks
from gpuledger_collector.storage.server.binaries import shared_root

INSIDE = "postgres"
"""The cluster's folder below the data folder."""
OWNER = "data-folder"
"""The file beside a cluster elsewhere that names its data folder."""


def elsewhere(data_dir: Path) -> Path:
    """The folder below the shared root for this data folder's cluster; its name is derived from the
    path.
    """
    return shared_root() / f"data-{_key(data_dir)}"


def _key(data_dir: Path) -> str:
    return hashlib.sha256(os.path.realpath(data_dir).encode()).hexdigest()[:16]


def remember(data_dir: Path, home: Path) -> None:
    """Keep the decision for later starts."""
    inside = home == data_dir / INSIDE
    (data_dir / "home").write_text(f"{INSIDE if inside else home}\n")
    if not inside:
        (home / OWNER).write_text(f"{os.path.realpath(data_dir)}\n")


def remembered_folder(data_dir: Path) -> Path | None:
    """Return the folder decided on before, None at the first start.

    Raises EnvironmentLacks for a copy without one.
    """
    note = data_dir / "home"
    if not note.exists():
        return None
    home = data_dir / note.read_text().strip()
    inside = data_dir / INSIDE
    if os.path.realpath(home) == os.path.realpath(inside):
        return inside
    if home.name == INSIDE:
        # An absolute path of before: the folder was moved or copied since.
        if not (inside / "cluster").exists():
            raise EnvironmentLacks(
                f"{data_dir} is a copy without its database, which lies in {home}: set"
                f" GPULEDGER_DATA_DIR to {home.parent}, or copy that with `gpuledger db backup` and"
                " `gpuledger db restore`"
            )
        note.write_text(f"{INSIDE}\n")
        return inside
    _require_owner(data_dir, home)
    return home


def _require_owner(data_dir: Path, home: Path) -> None:
    """Refuse a copy of the data folder that a cluster elsewhere belongs to; a moved data folder
    keeps its cluster.
    """
    own, note = os.path.realpath(data_dir), home / OWNER
    with contextlib.suppress(OSError):
        named = note.read_text().strip() if note.exists() else own
        is_first = home.name == f"data-{_key(data_dir)}"
        if named not in (own, "") and not is_first and _points_to(Path(named), home):
            raise EnvironmentLacks(
                f"{data_dir} is a copy of {named}, and the database of both would be {home}: delete"
                " the copy, and copy the ledger with `gpuledger db backup` and `gpuledger db"
                " restore`"
            )
        if home.exists() and (not note.exists() or named != own):
            note.write_text(f"{own}\n")


def _points_to(data_dir: Path, home: Path) -> bool:
    """Whether a data folder still exists and remembers this cluster."""
    try:
        return (data_dir / "home").read_text().strip() == str(home)
    except OSError:
        return False
