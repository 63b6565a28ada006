"""For every test: hypothesis' profile, and the gpuledger command line built once a process, since that is costly."""

import functools
from typing import Any

import typer.testing
from typer.main import get_command

from fakes import profiles

profiles.load()


@functools.lru_cache(maxsize=1)
def whole_command() -> Any:
    """The command line of `gpuledger`."""
    from gpuledger_collector.cli import build

    return get_command(build())


def command_of(app: typer.Typer) -> Any:
    """What a typer app becomes; for ours always the same."""
    return whole_command() if app.info.name == "gpuledger" else get_command(app)


typer.testing._get_command = command_of  # type: ignore[attr-defined]
