"""A quota is one for all workers and collectors of a database, and quiet senders cost no statement."""

import asyncio
import json
import time

import msgspec
import psycopg
import pytest

from fakes.batches import accelerator, batch, body_of, samples, workload
from fakes.collector import JSON, MSGPACK, running
from fakes.replicas import until
from gpuledger_collector.accounting.tokens import Token
from gpuledger_collector.api.limits import HOUR_SECONDS, OverQuota, Quota
from gpuledger_collector.api.shared_quotas import SharedQuotas
from gpuledger_collector.storage.access import tokens
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.telemetry import quota_use

AT = 1_760_000_000


def headers(dsn, node):
    with psycopg.connect(dsn) as connection:
        token = Token(0, node, "agent", node, None, "", made_ms=round(time.time() * 1000))
        return {**JSON, "Authorization": f"Bearer {tokens.create(connection, token)[1]}"}


def settled(dsn):
    """Units that all collectors know to be used."""
    with psycopg.connect(dsn) as connection:
        return connection.execute("SELECT coalesce(sum(used), 0) FROM quota_use").fetchone()[0]


@pytest.mark.slow
def test_two_collectors_admit_what_one_would(dsn):
    """Who sends to both has used up its quota with both, and with a third one that knows nothing of
    it yet.
    """
    settings = {"require_tokens": True, "node_queue_readings_per_hour": 10}
    head, other = headers(dsn, "flood"), headers(dsn, "other")

    def post(collector, number, sender=head):
        body = json.dumps({"source": "s", "at": AT + number, "waiting": []}).encode()
        return collector.request("POST", "/v1/queue", body, sender)[0]

    def level(collector):
        return collector.parts.intake.quotas.queue_readings._level("flood")

    with running(dsn, **settings) as first, running(dsn, **settings) as second:
        assert [
            post(collector, number) for number in range(6) for collector in (first, second)
        ] == [200] * 12
        until(lambda: settled(dsn) == pytest.approx(12, abs=1))
        # Each learns of the other with what it admits next, if not before.
        for collector in (
            first,
            second,
        ):
            assert post(collector, 90) in {200, 429}
            until(lambda collector=collector: level(collector) < 0)
            assert post(collector, 91) == 429
        assert [post(collector, 92, other) for collector in (first, second)] == [200, 200]
        with running(dsn, **settings) as third:
            assert post(third, 93) == 200
            until(lambda: level(third) < 0)
            assert post(third, 94) == 429


class Clocked:
    """Quotas of two processes over one database, settled when a test says so."""

    def __init__(self, dsn, rate=1.0):
        self.now = 0.0
        self.quotas = [Quota(rate, "units", lambda: self.now, HOUR_SECONDS) for _ in range(2)]
        self.shared = [SharedQuotas({"units": quota}, Database(dsn)) for quota in self.quotas]

    def settle(self):
        for shared in self.shared:
            asyncio.run(shared.settle())


def test_debt_is_paid_once_for_all(dsn):
    """Both wait until what both have admitted has flowed back, and no longer."""
    clocked = Clocked(dsn)
    for quota in clocked.quotas:
        quota.take("node", 3000)
    clocked.settle()
    clocked.quotas[0].take("node", 1000)
    clocked.settle()
    with pytest.raises(OverQuota) as refused:
        clocked.quotas[0].check("node")
    assert refused.value.seconds == pytest.approx(3400, abs=60)
    with psycopg.connect(dsn) as connection:
        used = connection.execute(
            "SELECT used FROM quota_use WHERE (payer, quota) = ('node', 'units')"
        ).fetchone()[0]
        assert used == pytest.approx(7000, abs=60)
        connection.execute("UPDATE quota_use SET at = at - interval '2 hours'")
        quota_use.expire(connection)
        assert connection.execute("SELECT count(*) FROM quota_use").fetchone() == (0,)


def test_quiet_senders_cost_no_statement(dsn, monkeypatch):
    """What stays under a twentieth of its bucket is nobody else's business."""
    clocked = Clocked(dsn)
    monkeypatch.setattr(quota_use, "settle", lambda *_: pytest.fail("written"))
    for number in range(1000):
        clocked.quotas[0].take(f"node-{number}", 179)
    clocked.settle()


def test_heavy_senders_cost_a_statement_a_settlement(dsn, monkeypatch):
    """Not one a request: 30,000 requests of 300 senders over three settlements are three statements
    of each process.
    """
    clocked, statements = Clocked(dsn), []
    true = quota_use.settle
    monkeypatch.setattr(
        quota_use, "settle", lambda *given: statements.append(len(given[1])) or true(*given)
    )
    for _ in range(3):
        for quota in clocked.quotas:
            for number in range(5000):
                quota.take(f"node-{number % 300}", 100)
        clocked.settle()
    assert statements == [300] * 6


def test_while_the_database_is_away_each_process_goes_on(caplog):
    """By its own buckets, with one line in the log; nothing that was admitted is forgotten."""
    clocked = Clocked("postgresql://nobody@127.0.0.1:1/none")
    for _ in range(3):
        clocked.quotas[0].take("node", 1000)
        clocked.settle()
    assert clocked.quotas[0].collect_unsettled() == {"node": 3000}
    assert [record.levelname for record in caplog.records].count("WARNING") == 1


@pytest.mark.slow
def test_new_owners_are_counted_by_the_hour(dsn):
    """Also those that a known workload is given; a batch without any is taken, and so is one of
    another node.
    """
    with running(dsn, node_new_owners_per_hour=20) as collector:
        collector.parts.intake.quotas.new_owners.steady = lambda: 0.0

        def send(seq, node="node-1", **tags):
            return collector.post(
                body_of(batch(seq, node, workloads=[workload("w", tags=tags)])), MSGPACK
            )[0]

        assert send(0, team="seg") == 200
        teams = [workload(f"w{number}", tags={"team": f"team-{number}"}) for number in range(30)]
        assert collector.send(batch(1, workloads=teams))[0] == 200
        status, answer = collector.send(
            batch(2, workloads=[workload("w", tags={"team": "one-more"})])
        )
        assert (status, answer["detail"]) == (429, "node-1 sends more than 20 new owners an hour")
        assert send(2, team="one-more") == 429
        assert send(2, team="seg") == 200
        assert send(1, "node-2", team="one-more") == 200
        assert send(3, team="one-more") == 200


def test_new_pools_count_as_new_owners(dsn):
    """Each is a row of reports and a forecast; an accelerator of a known pool is taken, whatever
    else is new.
    """
    with running(dsn, node_new_owners_per_hour=20) as collector:
        collector.parts.intake.quotas.new_owners.steady = lambda: 0.0

        def send(seq, *pools):
            cards = [accelerator(number, pool=pool) for number, pool in enumerate(pools)]
            whole = batch(seq, accelerators=0, usage_intervals=[], samples=samples(1, []))
            return collector.send(msgspec.structs.replace(whole, accelerators=cards))

        assert send(0, "train")[0] == 200
        assert send(1, *[f"pool-{number}" for number in range(30)])[0] == 200
        status, answer = send(2, "one-more")
        assert (status, answer["detail"]) == (429, "node-1 sends more than 20 new owners an hour")
        assert send(2, "train", "pool-7")[0] == 200
