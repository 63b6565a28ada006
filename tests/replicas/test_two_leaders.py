"""A leader that was cut off may not know it yet: letters and decisions are told once even while two
of them run.

The same for budgets, sending, digests and actions stands beside each:
`test_two_watchers_at_once_tell_once`, `test_replicas_at_once_send_each_message_once`,
`test_a_digest_is_sent_once_...`, `test_whoever_dies_while_he_acts_...`.
"""

import threading
import time

import psycopg
import pytest

from fakes.fleet import DAY, OCTOBER
from fakes.idle_day import furnish
from fakes.ledger import findings
from gpuledger_collector.accounting.period import HOUR_MS, format_instant
from gpuledger_collector.notifications import finding_mail as finding_mail
from gpuledger_collector.notifications import spending_week_mail
from gpuledger_collector.services.finding_notifications import MailWriters, notify_findings
from gpuledger_collector.services.idle_search import find_idle
from gpuledger_collector.services.scaling_advice import advise_scaling
from gpuledger_collector.storage.database import Database

pytestmark = pytest.mark.slow

__all__ = ["findings"]
LEADERS = 3
POOL = """
[[pool]]
name = "train"
mode = "act"
lead_time_s = 600
min_gpus = 4
max_gpus = 64
warm_gpus = 20
money_per_hour = 100
currency = "USD"
webhook = "capacity"
"""
CONTACT = """
[[contact]]
user = "*"
address = "{user}@example.org"
"""


def at_once(what):
    """Runs `what(number)` in threads that start together; raises what one of them raised."""
    barrier, errors = threading.Barrier(LEADERS), []

    def go(number):
        barrier.wait(60)
        try:
            what(number)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=go, args=(number,)) for number in range(LEADERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert errors == []


def rows(dsn, statement):
    with psycopg.connect(dsn) as connection:
        return connection.execute(statement).fetchall()


def test_notifications_are_written_once(fleet, findings, run, dsn, tmp_path):
    """Three leaders look at the same idle day: as many letters as one of them writes."""
    furnish(fleet)
    fleet.connection.execute(
        "UPDATE workload SET name = 'train', user_name = 'ada' WHERE external_id = '1'"
    )
    find_idle(findings, OCTOBER + DAY)
    (tmp_path / "ledger.toml").write_text(CONTACT)
    assert run("apply", tmp_path / "ledger.toml")[0] == 0
    writers = MailWriters(
        finding_mail.idle,
        finding_mail.anomaly,
        finding_mail.summary,
        spending_week_mail.spending_week,
    )
    books = [Database(dsn) for _ in range(LEADERS)]
    at_once(lambda number: notify_findings(books[number], OCTOBER + DAY + number, writers))
    told = rows(dsn, "SELECT recipient, key, count(*) FROM outbox GROUP BY 1, 2")
    assert len(told) >= 1
    assert all(count == 1 for *_, count in told)
    assert len({key for _, key, _ in told}) == len(told)


def test_a_decision_is_made_and_told_once(run, dsn, tmp_path):
    """Three leaders decide anew on a pool that acts from now on: one decision, one webhook."""
    hour_ms = int(time.time() * 1000) // HOUR_MS * HOUR_MS
    usage = tmp_path / "usage.csv"
    usage.write_text(
        "workload_id,start,end,gpus,pool\n"
        + f"base,{format_instant(hour_ms - 20 * 24 * HOUR_MS)},,16,train\n"
    )
    assert run("import", "usage", usage)[0] == 0
    assert run("prices", "set", "--rate", "2", "--currency", "USD", "--from", "2020-01-01")[0] == 0
    opened = [Database(dsn) for _ in range(LEADERS)]
    stores = opened
    advise_scaling(stores[0], hour_ms)
    (tmp_path / "ledger.toml").write_text(POOL)
    code, _, error = run("apply", tmp_path / "ledger.toml")
    assert code == 0, error
    at_once(lambda number: advise_scaling(stores[number], hour_ms + 1000))
    assert rows(dsn, "SELECT mode, count(*) FROM scaling_decision GROUP BY 1 ORDER BY 1") == [
        ("act", 1),
        ("advice", 1),
    ]
    assert rows(dsn, "SELECT recipient, count(*) FROM outbox GROUP BY 1") == [
        ("webhook:capacity", 1)
    ]
