"""A fleet whose team vision spends 24 units a day, a rehearsed clock, and the outbox of its
budgets.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from fakes.books import Command
from fakes.fleet import DAY, NOW_MS, OCTOBER, Fleet, Held
from fakes.ledger import Run, fleet, run
from fakes.worlds import world
from gpuledger_collector.notifications import budget_mail
from gpuledger_collector.services.budget_watch import watch_budgets
from gpuledger_collector.services.rating import rate_usage
from gpuledger_collector.storage.database import Database

__all__ = ["fleet", "run"]


@pytest.fixture
def apply(run: Run, tmp_path: Path) -> Callable[..., tuple[int, str, str]]:
    """Applies the text of a file."""

    def applied(text: str, *arguments: str) -> tuple[int, str, str]:
        path = tmp_path / "ledger.toml"
        path.write_text(text, encoding="utf-8")
        return run("apply", path, *arguments)

    return applied


def furnish(dsn: str) -> None:
    """October 2025: team vision holds one H100 at 1 USD an hour, from the 16th two; a quarter of
    the time idle.
    """
    fleet = Fleet(dsn)
    for number in (1, 2):
        fleet.capacity(number, 0, 31 * DAY)
    fleet.workload(1, team="vision", project="detector")
    fleet.workload(2, team="vision", project="tracker")
    price = ("prices", "set", "--rate", "1", "--currency", "USD", "--from", "2024-01-01")
    assert Command(dsn)(*price)[0] == 0
    fleet.evidence(
        [
            Held(1, 1, day * DAY, (day + 1) * DAY, idle=DAY // 4, busy=DAY * 3 // 4)
            for day in range(31)
        ]
        + [Held(2, 2, day * DAY, (day + 1) * DAY, busy=DAY) for day in range(15, 31)]
    )
    fleet.connection.execute(
        "UPDATE workload SET name = 'train-' || external_id, user_name = 'ada'"
    )
    fleet.connection.close()
    rate_usage(Database(dsn), NOW_MS)


@pytest.fixture
@world(furnish)
def october(fleet: Fleet) -> Fleet:
    """The fleet of `furnish`, rated."""
    return fleet


@pytest.fixture
def connect(dsn: str) -> Callable[[], psycopg.Connection]:
    """Opens an autocommit connection to the database."""
    return lambda: Database(dsn).connect()


@pytest.fixture
def watch(dsn) -> Callable[[float], int]:
    """Watches the budgets as of a day of October (0 is its first midnight); how many messages were
    put.
    """
    return lambda day: watch_budgets(
        Database(dsn),
        OCTOBER + int(day * DAY),
        budget_mail.write,
    )
