"""Options and arguments of commands: read as typer reads them, and without what typer needs to
convert them.
"""

import enum
import re
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer import Argument, Option
from typer.main import get_command

from gpuledger_collector.cli import build
from gpuledger_collector.cli.parameters import adapt_parameters


class Size(enum.StrEnum):
    """Choices."""

    SMALL = "small"
    LARGE = "large"


def sized(value: str) -> str:
    """A callback of an option."""
    return value.upper()


def command(given: list[object], *, adapted: bool):
    """A command with a parameter of each kind, which notes its values."""
    app = typer.Typer(rich_markup_mode=None, add_completion=False)

    @app.command()
    def order(
        name: Annotated[str, Argument()],
        rest: Annotated[list[Path] | None, Argument()] = None,
        size: Annotated[Size, Option()] = Size.SMALL,
        count: Annotated[int | None, Option(min=1, max=9)] = None,
        tags: Annotated[list[str] | None, Option("--tag")] = None,
        file: Annotated[Path | None, Option(exists=True)] = None,
        code: Annotated[str, Option(callback=sized)] = "a",
        wet: Annotated[bool, Option("--wet")] = False,
    ) -> None:
        given.append((name, rest, size, count, tags, file, code, wet))

    built = get_command(app)
    if adapted:
        adapt_parameters(built)
    return built


@pytest.mark.parametrize(
    "line",
    [
        "tea",
        "tea --size large --count 3 --tag a --tag b --wet",
        "tea one two --size small --code b --file /",
        "tea --file /missing",
        "--size large",
    ],
)
def test_values_and_refusals_are_those_of_typer(line, capsys):
    """The same values of the same types, the same errors, and callbacks are called."""
    outcomes = []
    for adapted in (True, False):
        given: list[object] = []
        with pytest.raises(SystemExit) as end:
            command(given, adapted=adapted).main(line.split(), "order")
        outcomes.append((end.value.code, repr(given), capsys.readouterr().err))
    assert outcomes[0] == outcomes[1]
    assert bool(outcomes[0][2]) == bool(outcomes[0][0])


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("tea --size huge", "Invalid value for '--size': 'huge' is not one of 'small', 'large'."),
        ("tea --count 10", "Invalid value for '--count': give at most 9"),
        ("tea --count 0", "Invalid value for '--count': give at least 1"),
        ("tea --count many", "Invalid value for '--count': give a whole number, not 'many'"),
        ("tea --count 1.5", "Invalid value for '--count': give a whole number, not '1.5'"),
    ],
)
def test_refusals_are_in_our_words(line, words, capsys):
    """The option and what it takes; nothing of the library that typer converts by."""
    with pytest.raises(SystemExit) as end:
        command([], adapted=True).main(line.split(), "order")
    said = capsys.readouterr().err
    assert end.value.code == 2
    assert words in said


def options(built, path=()):
    """Each option of each command below one, with the command."""
    for name, below in getattr(built, "commands", {}).items():
        yield from options(below, (*path, name))
    yield from (
        (path, built, parameter) for parameter in built.params if parameter.opts[0].startswith("-")
    )


def test_no_option_answers_with_a_librarys_text():
    """Of every command: a value that a number or a choice cannot have is refused in words of our
    own.
    """
    refusals = {}
    for path, owner, option in options(get_command(build())):
        if option.is_flag or option.multiple:
            continue
        try:
            option.process_value(owner.context_class(owner), "-7.5x")
        except typer.BadParameter as error:
            refusals[*path, option.opts[0]] = error.message
    foreign = r"Value error|Input should|validation error|pydantic"
    assert len(refusals) > 50
    assert {
        place: message for place, message in refusals.items() if re.search(foreign, message)
    } == {}


def test_a_choice_needs_no_pydantic():
    """Absent values, defaults, texts and choices are read without it; importing it takes longer
    than most commands.
    """
    code = (
        "import sys\nsys.modules['pydantic'] = None\nfrom gpuledger_collector.__main__ import"
        " main\nmain()"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code, "completion", "bash"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert "gpuledger" in answer.stdout
