"""What every command shares: the database it works on, how it refuses, and its exit codes."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from gpuledger_collector.cli.terminal import say, shown
from gpuledger_collector.settings import Settings, load
from gpuledger_common.settings import SettingsError

if TYPE_CHECKING:
    from gpuledger_collector.accounting.period import Period
    from gpuledger_collector.storage.database import Database

DONE, FINDINGS, BAD_INPUT, LACKING = 0, 1, 2, 3
"""Exit codes: done; findings; bad input; the environment lacks something."""

Dsn = Annotated[
    str | None,
    typer.Option("--dsn", help="Postgres 15 to 18 to use instead of the embedded one.", metavar="DSN"),
]
Config = Annotated[
    Path | None,
    typer.Option("--config", help="TOML file with settings.", metavar="FILE"),
]
Month = Annotated[str | None, typer.Option("--period", metavar="YYYY-MM", help="A month (of the billing zone).")]
FirstDay = Annotated[str | None, typer.Option("--from", metavar="DATE", help="Or: first day, included.")]
LastDay = Annotated[str | None, typer.Option("--to", metavar="DATE", help="Last day, not included.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done and change nothing.")]


class Refusal(Exception):
    """A command cannot go on; the message is one sentence, `code` its exit code."""

    def __init__(self, sentence: str, code: int = BAD_INPUT) -> None:
        super().__init__(sentence)
        self.code = code


def refuse(sentence: str, code: int = BAD_INPUT) -> NoReturn:
    """End the command with one sentence on standard error."""
    raise Refusal(sentence, code)


def untouched(dry_run: bool) -> str:
    """What is said after a sentence that tells of a change, where it was only tried."""
    return " (dry run: nothing was changed)" if dry_run else ""


def settings(config: Path | None = None, dsn: str | None = None) -> Settings:
    """The settings of this command; `--dsn` wins over file and environment. Raises SettingsError."""
    environment = dict(os.environ)
    if dsn is not None:
        environment |= {"GPULEDGER_DSN": dsn}
        environment.pop("GPULEDGER_DSN_FILE", None)
    return load(config, environment, Path.home())


def period_of(period: str | None, start: str | None, end: str | None) -> Period:
    """The month, or the days, that --period or --from and --to say."""
    from gpuledger_collector.accounting.period import date_range, month

    try:
        if period is not None and start is None and end is None:
            return month(period)
        if period is None and start is not None and end is not None:
            return date_range(start, end)
    except ValueError as error:
        refuse(str(error))
    return refuse("say which days: --period 2026-10, or --from 2026-10-01 --to 2026-11-01")


def owner_levels(given: Sequence[str]) -> dict[str, str]:
    """`LEVEL=VALUE` texts of `--owner` as level -> value. Refuses what is no level of the owner tree."""
    from gpuledger_collector.accounting.owner_tree import LEVELS

    levels = {}
    for text in given:
        level, _, value = text.partition("=")
        if level not in LEVELS or not value:
            refuse(f"--owner: {text!r} is not LEVEL=VALUE with a level of {', '.join(LEVELS)}")
        levels[level] = value
    return levels


def declared_owner(given: Sequence[str], option: str = "--owner") -> dict[str, str]:
    """The same where it declares who pays or who sees: a row that reports make themselves is no owner."""
    from gpuledger_collector.accounting.reserved_names import is_reserved, reserved_message

    levels = owner_levels(given)
    for name in levels.values():
        if is_reserved(name):
            refuse(f"{option}: {reserved_message(name)}")
    return levels


@contextlib.contextmanager
def database(dsn: str | None = None, config: Path | None = None, *, migrated: bool = True) -> Iterator[Database]:
    """The database of `--dsn`, of the settings, or the embedded one, up and migrated while the block runs."""
    from gpuledger_collector import wiring

    with wiring.database(settings(config, dsn), migrated=migrated) as opened:
        yield opened


def run(build: Callable[[], typer.Typer]) -> None:
    """Build and run the app, and turn what people can cure into a sentence and an exit code."""
    sys.stdout = shown(sys.stdout)
    try:
        build()()
    except KeyboardInterrupt:
        _end("stopped", 130)
    except BrokenPipeError:
        # The reader of our output (head, less) has gone: nothing is left to say, and nothing may be flushed to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(DONE)
    except Exception as error:  # the last line of defence: no traceback to a user
        _end(*explain(error))


def explain(error: Exception) -> tuple[str, int]:
    """The sentence and the exit code for an exception that ended a command."""
    if isinstance(error, Refusal):
        return str(error), error.code
    if isinstance(error, SettingsError):
        return str(error), BAD_INPUT
    kinds = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__}
    if "gpuledger_collector.storage.errors.StorageError" in kinds:
        return str(error), LACKING
    if kinds & {"psycopg.OperationalError", "sqlalchemy.exc.OperationalError", "psycopg.errors.OperationalError"}:
        said = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
        return f"the database gave no answer: {said}", LACKING
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}", BAD_INPUT
    return _report_bug(error), LACKING


def _report_bug(error: Exception) -> str:
    with tempfile.NamedTemporaryFile("w", prefix="gpuledger-", suffix=".log", delete=False) as file:
        file.write("".join(traceback.format_exception(error)))
    return f"a fault in gpuledger itself ({type(error).__name__}: {error}); please report it with {file.name}"


def _end(sentence: str, code: int) -> NoReturn:
    say(f"gpuledger: {sentence}", error=True)
    sys.exit(code)
