"""The database that a command works on, and the settings and the instant that it works with."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import typer

from gpuledger_collector import wiring
from gpuledger_collector.accounting.period import Calendar, Period
from gpuledger_collector.cli.common import TimeRange, refuse
from gpuledger_collector.cli.progress import bar
from gpuledger_collector.cli.terminal import say
from gpuledger_collector.services.billing_calendar import read_calendar
from gpuledger_collector.services.database import Database
from gpuledger_collector.settings import Settings, load

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
    return round(wiring.now().timestamp() * 1000)


@contextlib.contextmanager
def open_database(
    dsn: str | None, config: Path | None, *, migrated: bool = True
) -> Iterator[Database]:
    """The database of `--dsn`, of the settings, or the embedded one, up and migrated while the
    block runs.
    """
    with wiring.database(load_settings(config, dsn), migrated=migrated) as database:
        yield database


@dataclass(frozen=True)
class Session:
    """A migrated database for the time of one command.

    The clock is read once, so that all parts agree on now.
    """

    database: Database
    now_ms: int

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

    def rate(self, period: Period) -> None:
        """Bring usage and charges of a period up to date, with a progress bar on a terminal."""
        # Imported here: half of the commands rate nothing.
        from gpuledger_collector.services.refresh import refresh

        with bar("rating") as on_day:
            refresh(self.database, period, self.now_ms, on_day)

    def rated(self, days: TimeRange) -> Period:
        """The period asked for, once it is rated."""
        period = days.resolve(self.calendar, self.now_ms)
        self.rate(period)
        return period


@contextlib.contextmanager
def open_session(dsn: str | None, config: Path | None) -> Iterator[Session]:
    """A session on the database of `--dsn`, of the settings, or the embedded one."""
    with open_database(dsn, config) as opened, opened.sharing_connection() as database:
        try:
            yield Session(database, clock_ms())
        except typer.Exit:
            _say_if_standby(database)
            raise
        _say_if_standby(database)


def _say_if_standby(database: Database) -> None:
    if database.standby:
        say(
            "read replica: usage, charges and findings are as the primary last computed them",
            error=True,
        )
