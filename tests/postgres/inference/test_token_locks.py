"""Counters of tokens and declarations of charged servers do not miss each other."""

import psycopg
import pytest

from fakes.fleet import OCTOBER
from gpuledger_collector.accounting.counters import CounterReading
from gpuledger_collector.ingest.batches import counters
from gpuledger_collector.storage import locks
from gpuledger_collector.storage.locks import Lock

pytestmark = pytest.mark.slow


@pytest.fixture
def connect(dsn):
    """Open further sessions, which give up when they have to wait."""
    opened = []

    def connect():
        connection = psycopg.connect(dsn, autocommit=True, options="-c lock_timeout=50")
        opened.append(connection)
        return connection

    yield connect
    for connection in opened:
        connection.close()


def reading(workload, counter, source="http://s/metrics"):
    series = counters.Series(workload, "agent", source, "engine=0", counter, "vllm")
    return [(series, CounterReading(OCTOBER, 1))]


def test_counters_of_tokens_wait_for_an_apply(served, connect):
    """What an apply has not committed yet is not seen, so the day would keep no mark."""
    workload, writer = served.workload(1), connect()
    with served.connection.transaction():
        locks.take(served.connection, Lock.TOKENS)
        with pytest.raises(psycopg.errors.LockNotAvailable), writer.transaction():
            counters.store_readings(writer, reading(workload, "prompt_tokens"))
        with writer.transaction():
            assert counters.store_readings(writer, reading(workload, "steps")) == 1
    with writer.transaction():
        assert counters.store_readings(writer, reading(workload, "prompt_tokens")) == 1


def test_an_apply_waits_for_counters_of_tokens_and_they_not_for_one_another(served, connect):
    workload, first, second = served.workload(1), connect(), connect()
    with first.transaction():
        counters.store_readings(first, reading(workload, "prompt_tokens"))
        with second.transaction():
            assert counters.store_readings(second, reading(workload, "prompt_tokens", "b")) == 1
        with second.transaction():
            assert not locks.try_take(second, Lock.TOKENS)
    with second.transaction():
        assert locks.try_take(second, Lock.TOKENS)
