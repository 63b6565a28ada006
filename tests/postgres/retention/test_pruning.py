"""Plans stay small: every statement on the way from a batch to an answer reaches a few partitions,
whatever there are.

A statement that cannot be pruned when it is planned locks every partition and index of its table,
and with some thousands of them the server has no locks left: then nothing is taken any more.
"""

import re
import time
import uuid
from collections import defaultdict

import msgspec
import psycopg
import pytest

from fakes.batches import batch
from fakes.collector import running
from fakes.prometheus import WRITE, headers, one, scrape, snappy
from gpuledger_collector import wiring
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.services.hourly_usage import fold_usage
from gpuledger_collector.services.idle_search import find_idle
from gpuledger_collector.services.rating import rate_usage
from gpuledger_collector.services.upkeep import roll_up_node_utilization, roll_up_series
from gpuledger_collector.settings import Settings
from gpuledger_collector.storage.billing.dispute_evidence import _USAGE_INTERVALS
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.telemetry import archive, minutes, partitions

pytestmark = pytest.mark.slow

DAY_MS = 86_400_000
NOW = int(time.time()) * 1000
TODAY = NOW - NOW % DAY_MS
MOST = 9
"""Partitions of a statement: yesterday and today, the days made ahead, and those that usage reaches
in from, which are one more in the first hours of a day.
"""
BIG = re.compile(r"\b(usage_interval|gpu_sample)\b")
PLANNED = re.compile(
    r"\s*(SELECT|WITH|INSERT|UPDATE|DELETE|CREATE TEMP TABLE \w+ ON COMMIT DROP AS)\b",
    re.IGNORECASE,
)
PARTITION = re.compile(r"\b(?:usage_interval|gpu_sample)_p\d{6,8}\b")


class Plans:
    """The most partitions that the plan of each statement named, by its text."""

    def __init__(self, monkeypatch) -> None:
        self.partitions: dict[str, int] = defaultdict(int)
        execute, plans = psycopg.Cursor.execute, self

        def watched(cursor, query, params=None, **options):
            text = query.as_string(cursor) if isinstance(query, psycopg.sql.Composable) else query
            text = text.decode() if isinstance(text, bytes) else text
            if BIG.search(text) and PLANNED.match(text):
                with cursor.connection.cursor() as beside:
                    execute(beside, f"EXPLAIN {text}", params)
                    plan = "\n".join(str(row[0]) for row in beside.fetchall())
                removed = sum(map(int, re.findall(r"Subplans Removed: (\d+)", plan)))
                reached = len(set(PARTITION.findall(plan))) + removed
                plans.partitions[text] = max(plans.partitions[text], reached)
            return execute(cursor, query, params, **options)

        monkeypatch.setattr(psycopg.Cursor, "execute", watched)


def make_days(dsn, days):
    """Partitions of so many days, to three days ahead."""
    wanted = [TODAY + (3 - number) * DAY_MS for number in range(days)]
    for table in partitions.PARTITIONED:
        for place in range(0, days, 250):
            with Database(dsn).transaction() as connection:
                partitions.ensure(connection, table, wanted[place : place + 250])


def whole_way(collector, dsn):
    """Batches of two nodes that claim the same GPU, scrapes, and all that is made and read of them."""
    for seq in range(1, 8):  # more often than the driver waits before it prepares a statement
        own = batch(seq, start_ms=NOW - 7_200_000 + seq * 60_000)
        assert collector.send(own)[0] == 200
        claim = msgspec.structs.replace(own, node="node-2", epoch=str(uuid.UUID(int=2)))
        assert collector.send(claim)[0] == 200
    status, _, text = collector.request(
        "POST", WRITE, snappy(one(scrape(NOW - 3_600_000))), headers(1)
    )
    assert status == 204, text
    wiring.metering(Settings()).run(Database(dsn))
    ledger = Database(dsn)
    assert fold_usage(ledger) > 0
    assert rate_usage(ledger, NOW) > 0
    roll_up_series(Database(dsn), 400, NOW, lambda: False)
    roll_up_node_utilization(Database(dsn), 400, NOW, lambda: False)
    find_idle(Database(dsn), NOW)
    with Database(dsn).transaction() as connection:
        minutes.newest_evidence(connection, NOW)
    with Database(dsn).transaction() as connection:
        archive.samples(connection, [1], Period(TODAY, NOW))
        asked = {"accelerators": [1], "workloads": [1], "start": TODAY, "end": NOW, "most": 10}
        connection.execute(_USAGE_INTERVALS, asked)
    today, tomorrow = (
        time.strftime("%Y-%m-%d", time.gmtime(at / 1000)) for at in (TODAY, TODAY + DAY_MS)
    )
    days = f"from={today}&to={tomorrow}"
    for path in (
        "chargeback",
        "runs",
        "samples?step=60&gpu=GPU-node-1-0",
        "series?pool=default",
        "idle",
        "nodes",
        "budgets",
        "anomalies",
        "forecast",
    ):
        status, _, answer = collector.request(
            "GET", f"/v1/{path}{'&' if '?' in path else '?'}{days}"
        )
        assert status == 200, (path, answer)


def test_every_statement_reaches_a_few_partitions(dsn, monkeypatch):
    """With half a year of days on both tables each plan names some of them only, when it is made."""
    make_days(dsn, 180)
    plans = Plans(monkeypatch)
    with running(dsn) as collector:
        whole_way(collector, dsn)
    assert len(plans.partitions) >= 10
    assert {text: reached for text, reached in plans.partitions.items() if reached > MOST} == {}
    with Database(dsn).transaction() as connection:
        # What a prepared statement would do otherwise: lock every partition, and prune when it is
        # run.
        assert connection.execute("SHOW plan_cache_mode").fetchone() == ("force_custom_plan",)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_five_thousand_partitions_stop_nothing(dsn):
    """Evidence is taken, folded, rated and answered for with the server's own number of locks."""
    make_days(dsn, 2_500)
    with Database(dsn).transaction() as connection:
        assert partitions.count(connection) == 5_000
        assert connection.execute("SHOW max_locks_per_transaction").fetchone() == ("64",)
    with running(dsn) as collector:
        begun = time.monotonic()
        whole_way(collector, dsn)
        assert time.monotonic() - begun < 60
