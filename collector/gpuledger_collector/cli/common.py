"""What every command shares: how it reads its options, how it refuses, and its exit codes."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

import typer

from gpuledger_collector import faults
from gpuledger_collector.accounting.owner_tree import LEVELS
from gpuledger_collector.accounting.period import (
    Calendar,
    Period,
    date_range,
    parse_date,
    parse_period,
)
from gpuledger_collector.accounting.reserved_names import is_reserved, reserved_message
from gpuledger_collector.cli.terminal import say, shield
from gpuledger_common.escapes import escape_lines

DONE, FINDINGS, BAD_INPUT, UNAVAILABLE = 0, 1, 2, 3
"""Exit codes: done; a check failed, or something was found and --exit-code given; bad input; no
driver, database...
"""
INTERRUPTED = 130
OTHER_NAMES = {
    **dict.fromkeys(("account", "department", "group", "namespace", "squad", "tenant"), "team"),
    **dict.fromkeys(("partition", "queue"), "pool"),
    **dict.fromkeys(("job_id", "pod", "task"), "workload"),
    **dict.fromkeys(("host", "machine", "server"), "node"),
    **dict.fromkeys(("gpu", "gpu_model", "gpu_type", "accelerator"), "model"),
}
"""What other tools call the dimensions of a report."""
GARBAGE_THRESHOLD = 50_000
"""Objects after whose creation cyclic garbage is looked for; Python's own default is 700."""
COMPLETE_VARIABLE = "_GPULEDGER_COMPLETE"
"""Set by a shell that asks for completions."""


def new_app(**options: Any) -> typer.Typer:
    """A command or a group.

    Help is plain text: brackets in it stay, and nothing heavy is imported for it.
    """
    return typer.Typer(rich_markup_mode=None, add_completion=False, **options)


DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d|w)")
UNIT_MS = {
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}


class Refusal(Exception):
    """A command cannot go on; the message is one sentence, `code` its exit code."""

    def __init__(self, sentence: str, code: int = BAD_INPUT) -> None:
        super().__init__(sentence)
        self.code = code


def refuse(sentence: str, code: int = BAD_INPUT) -> NoReturn:
    """End the command with one sentence on standard error."""
    raise Refusal(sentence, code)


def end_with(has_findings: bool, exit_code: bool) -> None:
    """End with 1 when something was found and `--exit-code` asks for it."""
    if has_findings and exit_code:
        raise typer.Exit(FINDINGS)


def dry_run_note(dry_run: bool) -> str:
    """The end of a sentence about a change that was only tried."""
    return " (dry run: nothing was changed)" if dry_run else ""


@dataclass(frozen=True)
class TimeRange:
    """The days that a command asks about, by their names, before the billing zone and the clock are
    known.
    """

    nominal: Period | None = None
    """The days as UTC days of the same names."""
    name: str | None = None
    """Of a period, as `--period` has it: fiscal years are known by the calendar."""
    last_days: int | None = None
    first_day: str | None = None
    """Of a range that reaches to the end of today."""

    def resolve(self, calendar: Calendar, now_ms: int) -> Period:
        """The period in the billing zone; this month when nothing was asked for."""
        if self.name is not None:
            return named_period(calendar, self.name)
        if self.nominal is not None:
            return calendar.days_named(self.nominal)
        if self.first_day is not None:
            try:
                return calendar.up_to_today(now_ms, self.first_day)
            except ValueError as error:
                refuse(f"--from: {error}")
        if self.last_days is None:
            return calendar.month(calendar.month_of(now_ms))
        return calendar.last_days(now_ms, self.last_days)


def named_period(calendar: Calendar, name: str) -> Period:
    """The period that `--period` names."""
    try:
        return calendar.period(name)
    except ValueError as error:
        refuse(f"--period: {error}")


def time_range(
    period: str | None, start: str | None, end: str | None, days: int | None = None
) -> TimeRange:
    """The one rule of time: --period, or --from with --to (without it up to now, and today), or
    --days; without any, this month.
    """
    if (period is not None) + (start is not None or end is not None) + (days is not None) > 1:
        refuse("give one of --period, --from with --to, and --days")
    if start is None and end is not None:
        refuse("give --from as well as --to: --from 2026-10-01 --to 2026-11-01")
    try:
        if period is not None:
            # What no period has as a name is refused before the database is asked.
            parse_period(period, 1)
            return TimeRange(name=period)
        if start is not None and end is not None:
            return TimeRange(date_range(start, end))
        if start is not None:
            parse_date(start)
            return TimeRange(first_day=start)
    except ValueError as error:
        refuse(str(error))
    return TimeRange(last_days=days)


def column_names(by: str, known: Sequence[str]) -> tuple[str, ...]:
    """The names that `--by` gives, each once and each a known one."""
    names = tuple(dict.fromkeys(name.strip() for name in by.split(",") if name.strip()))
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        name = unknown[0] if unknown else by
        refuse(f"--by: {name!r} is none of {', '.join(known)}{_known_as(name, known)}")
    return names


def _known_as(name: str, known: Sequence[str]) -> str:
    """What a name of other tools is called here, or the known name that it resembles; empty for
    others.
    """
    other = name.lower().removesuffix("s")
    level = OTHER_NAMES.get(other, "")
    if level in known:
        return f"; {other}s are {level}s here: --by {level}"
    near = get_close_matches(name.lower(), known, 1)
    return f"; is it {near[0]!r}?" if near else ""


def require_level(level: str, option: str = "--level") -> None:
    """Refuse what is no level of the owner tree."""
    if level not in LEVELS:
        refuse(f"{option}: {level!r} is none of {', '.join(LEVELS)}")


def owner_levels(texts: Sequence[str], option: str = "--owner") -> dict[str, str]:
    """`LEVEL=VALUE` texts of `--owner` as level -> value.

    Refuses what is no level of the owner tree.
    """
    levels = {}
    for text in texts:
        level, _, value = text.partition("=")
        if level not in LEVELS or not value:
            refuse(f"{option}: {text!r} is not LEVEL=VALUE with a level of {', '.join(LEVELS)}")
        levels[level] = value
    return levels


def declared_owner(texts: Sequence[str], option: str = "--owner") -> dict[str, str]:
    """The same for a declaration of who pays or who may read: the names of report rows are
    reserved.
    """
    levels = owner_levels(texts, option)
    for name in levels.values():
        if is_reserved(name):
            refuse(f"{option}: {reserved_message(name)}")
    return levels


def duration_ms(text: str, option: str) -> int:
    """Milliseconds of `90s`, `10m`, `24h`, `7d` or `2w`; refuses other texts, naming the option."""
    match = DURATION.fullmatch(text.strip().lower())
    if match is None or float(match[1]) <= 0:
        refuse(f"{option}: {text!r} is not a length of time; write for example 10m, 24h or 7d")
    return round(float(match[1]) * UNIT_MS[match[2]])


def require_folder(output: Path | None) -> None:
    """Refuse to write where there is no folder, before any work is done."""
    if output is not None and not output.parent.is_dir():
        refuse(f"{output.parent} is not an existing folder")


def run(build: Callable[[], typer.Typer]) -> None:
    """Build and run the app, and turn a failure that the user can fix into a sentence and an exit
    code.
    """
    # First of all: whatever is printed from here on cannot act on the terminal.
    sys.stdout = shield(sys.stdout)
    # Importing creates tens of thousands of objects and no garbage: looking for it takes a tenth of
    # a short command.
    gc.set_threshold(GARBAGE_THRESHOLD, 20, 20)
    if COMPLETE_VARIABLE in os.environ:
        # A fifth of the time of `--help`.
        from typer.completion import (
            get_completion_inspect_parameters,
        )

        get_completion_inspect_parameters()  # has typer know the shells
    try:
        build()()
    except (KeyboardInterrupt, SystemExit) as ended:
        interrupt = _interrupt_of(ended)
        if interrupt is None:
            raise
        _end(f"stopped: {interrupt}" if interrupt.args else "stopped", INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output (head, less) has gone: nothing may be flushed to it when the
        # interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(DONE)
    except Exception as error:  # no traceback to a user
        _end(*explain(error))


def _interrupt_of(ended: KeyboardInterrupt | SystemExit) -> KeyboardInterrupt | None:
    """The Ctrl-C that ended a command; typer makes an exit of it, and says nothing."""
    if isinstance(ended, KeyboardInterrupt):
        return ended
    cause = ended.__context__ and ended.__context__.__cause__
    return cause if isinstance(cause, KeyboardInterrupt) else None


def explain(error: Exception) -> tuple[str, int]:
    """The sentence and the exit code for an exception that ended a command."""
    if isinstance(error, Refusal):
        return str(error), error.code
    # By name: their modules are imported only by commands that can raise them.
    kinds = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__}
    if "gpuledger_common.settings.SettingsError" in kinds:
        return str(error), BAD_INPUT
    if "gpuledger_collector.storage.errors.StorageError" in kinds:
        return str(error), UNAVAILABLE
    if _is_read_only(error):
        from gpuledger_collector.services.database import ReadReplica

        return str(ReadReplica()), UNAVAILABLE
    if kinds & {
        "psycopg.OperationalError",
        "sqlalchemy.exc.OperationalError",
        "psycopg.errors.OperationalError",
    }:
        reason = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
        if "psycopg.errors.DiskFull" in kinds or "No space left on device" in reason:
            return f"the disk of the database is full: {reason}", UNAVAILABLE
        return f"the database gave no answer: {reason}", UNAVAILABLE
    if isinstance(error, IsADirectoryError) and error.filename:
        return f"{error.filename}: is a folder and no file", BAD_INPUT
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}", BAD_INPUT
    return _report_bug(error), UNAVAILABLE


def _is_read_only(error: Exception) -> bool:
    """Whether the server refused a write because it is a read replica; SQLAlchemy wraps the
    driver's error.
    """
    return type(getattr(error, "orig", None) or error).__qualname__ == "ReadOnlySqlTransaction"


def _report_bug(error: Exception) -> str:
    """Write the report of a fault of our own, and say in a sentence where it is.

    Only for somebody at a terminal it goes to a file. A container's files are gone with its
    restart, and a service has a log: there it goes to standard error.
    """
    report = faults.report(error) + "\n"
    fault = f"a fault in gpuledger itself ({faults.sentence(error)})"
    if sys.stderr.isatty():
        with (
            contextlib.suppress(OSError),
            tempfile.NamedTemporaryFile(
                "w", prefix="gpuledger-", suffix=".log", delete=False
            ) as file,
        ):
            file.write(report)
            return f"{fault}; please report it with {file.name}"
    sys.stderr.write(escape_lines(report))
    return f"{fault}; please report it with the lines above"


def _end(sentence: str, code: int) -> NoReturn:
    say(f"gpuledger: {sentence}", error=True)
    sys.exit(code)


def shipped_folder(name: str) -> Path:
    """The folder of that name: in an installed package, or in the repository.

    Refuses where there is none.
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "_shipped" / name, package.parents[1] / name):
        if folder.is_dir():
            return folder
    raise Refusal(f"this installation holds no {name}: install gpuledger again", UNAVAILABLE)
