"""gpuledger completion: what makes TAB complete commands and options.

Typer's own machinery, without its two options on every command: they would slow the start and clutter `--help`. The
shell asks by calling the program with `_GPULEDGER_COMPLETE` in its environment.
"""

from __future__ import annotations

import enum
import os

import typer

PROGRAM = "gpuledger"
ASKED = "_GPULEDGER_COMPLETE"


class Shell(enum.StrEnum):
    """Shells that are completed."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def register(root: typer.Typer) -> None:
    """Add `gpuledger completion`, and answer when a shell asks."""
    if ASKED in os.environ:
        from typer._completion_classes import completion_init

        completion_init()
    root.command(epilog="Example: gpuledger completion bash > /etc/bash_completion.d/gpuledger")(completion)


def completion(shell: Shell = typer.Argument(..., help="The shell that is to complete.")) -> None:
    """Print the script that makes TAB complete; source it, or put it where your shell looks."""
    from typer._completion_shared import get_completion_script

    print(get_completion_script(prog_name=PROGRAM, complete_var=ASKED, shell=shell.value))
