"""gpuledger completion: complete commands and options with TAB.

Typer's own machinery, without its two options on every command. The shell asks by calling the
program with `_GPULEDGER_COMPLETE` in its environment; `gpuledger_collector.cli.main` then answers.
"""

from __future__ import annotations

import enum
from typing import Annotated

from typer import Argument
from typer.completion import get_completion_script  # type: ignore[attr-defined]

from gpuledger_collector.cli.common import COMPLETE_VARIABLE, new_app

app = new_app()


class Shell(enum.StrEnum):
    """Shells that are completed."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


@app.command(epilog="Example: gpuledger completion bash > /etc/bash_completion.d/gpuledger")
def completion(shell: Annotated[Shell, Argument(help="bash, zsh or fish.")]) -> None:
    """Print the script that completes commands and options; source it, or put it where your shell
    looks.
    """
    print(
        get_completion_script(
            prog_name="gpuledger", complete_var=COMPLETE_VARIABLE, shell=shell.value
        )
    )
