"""The manual pages: every command and option, and nothing that a formatter complains of."""

import argparse
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import typer

from gpuledger_agent.cli import parser
from gpuledger_collector.cli import build

MAN = Path(__file__).parents[2] / "docs" / "man"
PAGES = ("gpuledger", "gpuledger-agent")


def collector_commands(path, command):
    """(path, option names) of a typer command and those below it."""
    if hasattr(command, "commands"):
        for name in command.commands:
            yield from collector_commands(f"{path} {name}", command.commands[name])
        return
    shown = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
    yield (
        path,
        [
            name
            for parameter in shown
            if parameter.opts[0].startswith("-")
            for name in parameter.opts
        ],
    )


def agent_commands():
    """(path, option names) of the agent's commands."""
    (group,) = [
        action for action in parser()._actions if isinstance(action, argparse._SubParsersAction)
    ]
    for name, command in group.choices.items():
        yield (
            f"gpuledger-agent {name}",
            [text for action in command._actions for text in action.option_strings],
        )


def rendered(name):
    """A page as `man -l` shows it on a wide terminal, and what it complained of."""
    if shutil.which("man") is None:
        pytest.skip("man is not installed (apt-get install man-db groff)")
    environment = {**os.environ, "MANWIDTH": "200", "LC_ALL": "C.UTF-8", "MAN_KEEP_FORMATTING": ""}
    done = subprocess.run(
        ["man", "--warnings=w", "-l", MAN / f"{name}.1"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout, done.stderr


@pytest.mark.parametrize("name", PAGES)
def test_every_command_and_option_can_be_read(name):
    """Each command has a paragraph of its own, and in it each of its options, as they are typed."""
    text, _ = rendered(name)
    commands = dict(
        collector_commands("gpuledger", typer.main.get_command(build()))
        if name == "gpuledger"
        else agent_commands()
    )
    headings = list(re.finditer(rf"^ {{7}}({name} [a-z][a-z -]*)$", text, re.MULTILINE))
    ends = [heading.start() for heading in headings[1:]] + [len(text)]
    shown = {
        heading[1]: text[heading.end() : end] for heading, end in zip(headings, ends, strict=True)
    }
    assert set(shown) == set(commands)
    for path, options in commands.items():
        for option in options:
            assert re.search(rf"(^|[ ,]){option}([ ,]|$)", shown[path], re.MULTILINE), (
                path,
                option,
            )


@pytest.mark.parametrize("name", PAGES)
def test_formatters_have_nothing_to_say(name):
    """groff without a warning at any width; mandoc, where it is installed, none but that the page
    has no date.
    """
    _, complaints = rendered(name)
    assert complaints == ""
    done = subprocess.run(
        ["groff", "-man", "-ww", "-z", MAN / f"{name}.1"], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    if shutil.which("mandoc"):
        lint = subprocess.run(
            ["mandoc", "-Tlint", "-Wwarning", MAN / f"{name}.1"], capture_output=True, text=True
        )
        assert [line for line in lint.stdout.splitlines() if "missing date" not in line] == []
