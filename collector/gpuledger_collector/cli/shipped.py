"""Files beside the code that commands use: examples, dashboards, alert rules."""

from __future__ import annotations

from pathlib import Path

from gpuledger_collector.cli.common import UNAVAILABLE, Refusal


def shipped_folder(name: str) -> Path:
    """The folder of that name: in an installed package, or in the repository.

    Refuses where there is none.
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "_shipped" / name, package.parents[1] / name):
        if folder.is_dir():
            return folder
    raise Refusal(f"this installation holds no {name}: install gpuledger again", UNAVAILABLE)
