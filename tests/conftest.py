"""For every test: hypothesis' profile, and the gpuledger command line built once a process, since that is costly."""

import functools
import os
import sys
from typing import Any

from fakes import profiles

profiles.load()
# Threads of OpenMP wait for each other by spinning: beside other tests two of them take five times as long as one.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@functools.lru_cache(maxsize=1)
def whole_command() -> Any:
    """The command line of `gpuledger`."""
    from typer.main import get_command

    from gpuledger_collector.cli import build

    return get_command(build())


def command_of(app: Any) -> Any:
    """What a typer app becomes; for ours always the same."""
    from typer.main import get_command

    return whole_command() if app.info.name == "gpuledger" else get_command(app)


def pytest_collection_finish() -> None:
    """Where a collected test runs commands: tests of pure arithmetic start without typer."""
    if testing := sys.modules.get("typer.testing"):
        testing._get_command = command_of  # type: ignore[attr-defined]
