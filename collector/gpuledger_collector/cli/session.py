"""The database that a command works on, and the settings and the instant that it works with."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from copy import copy
from functools import cached_property, wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

import typer

from gpuledger_collector import wiring
from gpuledger_collector.accounting.period import Calendar, Period
from gpuledger_collector.cli import options
from gpuledger_collector.cli.common import TimeRange, refuse
from gpuledger_collector.cli.progress import bar
from gpuledger_collector.cli.terminal import hold_output, say
from gpuledger_collector.services.billing_calendar import read_calendar
from gpuledger_collector.services.database import Database
from gpuledger_collector.settings import Settings, load

Parameters = ParamSpec("Parameters")
CONFIG_VARIABLE = "GPULEDGER_CONFIG"
"""Names the settings file where a command has no `--config`, as in a container of the collector."""


def load_settings(config: Path | None = None, dsn: str | None = None) -> Settings:
    """The settings of this command; `--config` wins over GPULEDGER_CONFIG, `--dsn` over file and
    environment.

    Raises SettingsError.
    """
    environment = dict(os.environ)
    named = environment.pop(CONFIG_VARIABLE, "")
    if config is None and named:
        config = Path(named)
    if dsn is not None:
        # Both at once are an error of the settings; the option wins over either.
        environment |= {"GPULEDGER_DSN": dsn}
        environment.pop("GPULEDGER_DSN_FILE", None)
    return load(config, environment, Path.home())


def clock_ms() -> int:
    """The instant now, in unix ms."""
    return wiring.read_clock()


@contextlib.contextmanager
def open_database(
    dsn: str | None, config: Path | None, *, migrated: bool = True
) -> Iterator[Database]:
    """The database of `--dsn`, of the settings, or the embedded one, up and migrated while the
    block runs.
    """
    with wiring.database(load_settings(config, dsn), migrated=migrated) as database:
        yield database


class Session:
    """The ledger of one command: opened, and migrated, when it is first needed, and closed at the
    command's end.
    """

    def __init__(self, dsn: str | None, config: Path | None, exits: contextlib.ExitStack) -> None:
        self._dsn, self._config, self._exits = dsn, config, exits

    @cached_property
    def settings(self) -> Settings:
        """The settings of the command. Raises SettingsError."""
        return load_settings(self._config, self._dsn)

    @cached_property
    def _database_and_now(self) -> tuple[Database, int]:
        opened = self._exits.enter_context(wiring.database(self.settings, sharing=True))
        return self._exits.enter_context(opened.sharing_connection()), clock_ms()

    @property
    def database(self) -> Database:
        """The database of `--dsn`, of the settings, or the embedded one."""
        return self._database_and_now[0]

    @property
    def now_ms(self) -> int:
        """When the database was opened: the clock is read once, so that all parts agree on now."""
        return self._database_and_now[1]

    def as_of(self, now_ms: int) -> Session:
        """The same ledger, asked at another instant."""
        session = copy(self)
        vars(session)["_database_and_now"] = (self.database, now_ms)
        return session

    @cached_property
    def calendar(self) -> Calendar:
        """Days and months of the billing zone."""
        return read_calendar(self.database)

    def require_zone(self, zone: str | None) -> None:
        """Refuse a zone that is not the billing zone: charges are made by its days, and cannot be
        cut otherwise.
        """
        billing = self.calendar.zones[-1].name
        if zone not in {None, billing}:
            cure = f"echo 'billing_zone = \"{zone}\"' | gpuledger apply /dev/stdin"
            refuse(
                f"--zone: days and months of this ledger are those of {billing}; for all of its"
                f" bills: {cure}"
            )

    def rate(self, period: Period, behind_ms: int = 0) -> None:
        """Bring usage and charges of a period up to date, with a progress bar on a terminal.

        `behind_ms`: how old the rating of the present day may be on a large fleet.
        """
        # Imported here: half of the commands rate nothing.
        from gpuledger_collector.services.refresh import refresh

        with bar("rating") as on_day:
            refresh(self.database, period, self.now_ms, on_day, behind_ms=behind_ms)

    def rate_range(self, days: TimeRange) -> Period:
        """The period asked for, once it is rated."""
        period = days.resolve(self.calendar, self.now_ms)
        self.rate(period)
        return period

    def rate_report(self, days: TimeRange) -> Period:
        """The period asked for, once it is rated for a report that says up to when: the present day
        of a large fleet is as the collector's job rated it last, where nothing but usage has
        arrived since.
        """
        period = days.resolve(self.calendar, self.now_ms)
        self.rate(period, behind_ms=2 * self.settings.rate_seconds * 1000)
        return period

    def say_if_standby(self) -> None:
        """Say that answers are those of a read replica, where they were."""
        if "_database_and_now" in vars(self) and self.database.standby:
            say(
                "read replica: usage, charges and findings are as the primary last computed them",
                error=True,
            )


@contextlib.contextmanager
def closing_session(dsn: str | None, config: Path | None) -> Iterator[Session]:
    """A session that is closed at the end of the block."""
    with contextlib.ExitStack() as exits:
        session = Session(dsn, config, exits)
        try:
            yield session
        except typer.Exit:
            session.say_if_standby()
            raise
        session.say_if_standby()


@contextlib.contextmanager
def open_session(dsn: str | None, config: Path | None) -> Iterator[Session]:
    """A session whose database is open from the beginning of the block."""
    with closing_session(dsn, config) as session:
        _ = session.database
        yield session


def ledger_command(
    command: Callable[Concatenate[Session, Parameters], None],
) -> Callable[..., None]:
    """A command on a ledger: its first argument is the session, and it has the options `--dsn` and
    `--config`, which say which ledger that is, behind its own.
    """

    @wraps(command)
    def run(
        *arguments: Any, dsn: options.Dsn = None, config: options.Config = None, **named: Any
    ) -> None:
        # The ledger is closed before the answer goes out, to a pager that may stand for hours.
        with hold_output(), closing_session(dsn, config) as session:
            command(session, *arguments, **named)

    # What typer reads: the command's own options without the session, then the two of `run`.
    _, *own = signature(command, eval_str=True).parameters.values()
    listed = [
        *(parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in own),
        Parameter("dsn", Parameter.KEYWORD_ONLY, default=None, annotation=options.Dsn),
        Parameter("config", Parameter.KEYWORD_ONLY, default=None, annotation=options.Config),
    ]
    described: Any = run
    described.__signature__ = Signature(listed)
    described.__annotations__ = {parameter.name: parameter.annotation for parameter in listed}
    return run
