"""A day with a job gone idle, one never used and a warm replica; who is written to, and the outbox."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import psycopg
import pytest

from fakes.fleet import DAY, OCTOBER, Fleet
from fakes.idle_day import furnish
from fakes.ledger import Run, findings, fleet, run
from fakes.worlds import world
from gpuledger_collector.notifications import finding_mail as finding_mail
from gpuledger_collector.notifications import spending_week_mail
from gpuledger_collector.notifications.links import AckLinks
from gpuledger_collector.services.finding_notifications import (
    MailWriters,
    NotificationReport,
    notify_findings,
)
from gpuledger_collector.services.idle_search import find_idle
from gpuledger_collector.storage.database import Database

__all__ = ["findings", "fleet", "run"]

LINKS = AckLinks("https://gpuledger.example.com/", b"k" * 32)
WRITERS = MailWriters(
    partial(finding_mail.idle, links=LINKS),
    partial(finding_mail.anomaly, links=LINKS),
    finding_mail.summary,
    partial(spending_week_mail.spending_week, links=LINKS),
)
CONTACTS = """
[[contact]]
user = "*"
address = "{user}@example.org"
tag = "mail"
domains = ["example.org"]

[[contact]]
team = "vision"
leads = ["lead@example.org"]
escalate_days = 2

[[contact]]
team = "robotics"
recipients = ["robots@example.org"]
"""


@pytest.fixture
def connect(dsn: str) -> Callable[[], psycopg.Connection]:
    """Opens an autocommit connection to the database."""
    return lambda: Database(dsn).connect()


@pytest.fixture
def apply(run: Run, tmp_path: Path) -> Callable[[str], tuple[int, str, str]]:
    """Applies the text of a file."""

    def applied(text: str) -> tuple[int, str, str]:
        path = tmp_path / "ledger.toml"
        path.write_text(text, encoding="utf-8")
        return run("apply", path)

    return applied


def furnish_idle_day(dsn: str) -> None:
    """The day of fakes.idle_day, looked at up to its end: ada's job rests since 06:00, job 3 never
    ran.
    """
    fleet = Fleet(dsn)
    furnish(fleet)
    fleet.connection.execute(
        "UPDATE workload SET name = 'train-yolo', user_name = 'ada' WHERE external_id = '1'"
    )
    fleet.connection.close()
    find_idle(Database(dsn), OCTOBER + DAY)


@pytest.fixture
@world(furnish_idle_day)
def idle_day(fleet: Fleet) -> Fleet:
    """The fleet of `furnish_idle_day`."""
    return fleet


@pytest.fixture
def write(dsn) -> Callable[[float], NotificationReport]:
    """Writes the letters as of a day of October (0 is its first midnight)."""
    return lambda day: notify_findings(Database(dsn), OCTOBER + round(day * DAY), WRITERS)
