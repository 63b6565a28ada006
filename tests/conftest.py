"""For every test: the gpuledger command line is built once a process. Building it costs more than most commands."""

import functools
from typing import Any

import typer.testing
from typer.main import get_command


@functools.lru_cache(maxsize=1)
def whole_command() -> Any:
    """The command line of `gpuledger`."""
    from gpuledger_collector.cli import build

    return get_command(build())


def command_of(app: typer.Typer) -> Any:
    """What a typer app becomes; for ours always the same."""
    return whole_command() if app.info.name == "gpuledger" else get_command(app)


typer.testing._get_command = command_of  # type: ignore[attr-defined]
