"""POST /api/v1/write: the receiver's rules of the specification, and what becomes of the samples."""

import datetime as dt
import time

import psycopg
import pytest

from fakes.collector import running
from fakes.prometheus import STALE, WRITE, Point, headers, labels, one, pod, scrape, snappy, two
from gpuledger_collector import wiring
from gpuledger_collector.jobs import fold_usage
from gpuledger_collector.settings import Settings
from gpuledger_collector.storage.engine import open_connection
from gpuledger_collector.storage.ledgers import Ledger

NOW = int(time.time()) * 1000
T = NOW - NOW % 3_600_000 - 3_600_000 + 600_000
"""Ten minutes into the hour before this one."""


@pytest.fixture
def collector(dsn):
    with running(dsn) as started:
        yield started


def rows(dsn, query):
    with psycopg.connect(dsn) as connection:
        return connection.execute(query).fetchall()


def write(collector, points, version=1):
    body = snappy(one(points) if version == 1 else two(points))
    status, answer, text = collector.request("POST", WRITE, body, headers(version))
    return status, int(answer["X-Prometheus-Remote-Write-Samples-Written"]), text


def meter(dsn):
    with open_connection(dsn, autocommit=True) as connection:
        wiring.metering(Settings()).run(connection)
    fold_usage(Ledger(dsn))


@pytest.mark.parametrize("version", [1, 2])
def test_scrapes_become_samples_and_hours(collector, version):
    """A minute of scrapes of two GPUs, one held by a pod: samples, latest, inventory, held and unallocated time."""
    for at_ms in range(T, T + 60_001, 15_000):
        points = scrape(at_ms, 0, **pod("train-0")) + scrape(at_ms, 1)
        assert write(collector, points, version)[:2] == (204, 8)
    meter(collector.dsn)
    assert rows(collector.dsn, "SELECT count(*), count(DISTINCT at_ms), min(gpu_power_watts) FROM gpu_sample") == [
        (10, 5, 400.0)
    ]
    assert rows(
        collector.dsn,
        "SELECT a.uuid, n.name, u.state, w.key, u.held_ms, u.busy_ms, u.energy_mj FROM usage_hour u"
        " JOIN accelerator a ON a.id = accelerator_id LEFT JOIN workload w ON w.id = u.workload_id"
        " JOIN capacity c USING (accelerator_id) JOIN node n ON n.id = c.node_id ORDER BY 1",
    ) == [
        ("GPU-node-1-0", "node-1", "held", "kubernetes::vision/train-0", 60_000, 60_000, 24_000_000),
        ("GPU-node-1-1", "node-1", "unallocated", None, 60_000, 0, 24_000_000),
    ]
    assert rows(
        collector.dsn, "SELECT at_ms, state, gpu_utilization_ratio FROM gpu_latest ORDER BY accelerator_id"
    ) == [(T + 60_000, "held", pytest.approx(0.8)), (T + 60_000, "unallocated", pytest.approx(0.8))]
