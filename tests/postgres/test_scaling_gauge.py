"""gpuledger_scaling_desired_gpus on /metrics: the API's number, or no series at all."""

import datetime as dt
import json
import threading
import time

import pytest

from fakes.collector import running
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS
from gpuledger_collector.api.scaling_gauge import (
    EXPIRE_SECONDS,
    REFRESH_SECONDS,
    RETRY_SECONDS,
    ScalingGauge,
)
from gpuledger_collector.services.hourly_usage import ALWAYS
from gpuledger_collector.services.refresh import refresh
from gpuledger_collector.storage.database import Database

NOW_MS = int(dt.datetime.now(dt.UTC).timestamp() * 1000)


def batch(pool, seq, age_ms=0):
    """Two days of one GPU that is always held, up to the last full hour less `age_ms`."""
    end = NOW_MS // HOUR_MS * HOUR_MS - age_ms
    return {
        "version": 1,
        "node": pool,
        "epoch": "0192aaaa-0000-7000-8000-000000000001",
        "seq": seq,
        "heartbeat": {"agent_version": "0", "source": "simulated", "status": "ok"},
        "accelerators": [
            {
                "uuid": f"GPU-{pool}",
                "device_uuid": f"GPU-{pool}",
                "index": 0,
                "model": "NVIDIA L4",
                "pool": pool,
            }
        ],
        "workloads": [{"id": "1", "kind": "slurm", "tags": {"team": "vision"}}],
        "usage_intervals": [
            {
                "accelerator": 0,
                "start_ms": end - (hour + 1) * HOUR_MS,
                "end_ms": end - hour * HOUR_MS,
                "state": "held",
                "workload": 0,
                "held_ms": HOUR_MS,
                "busy_ms": HOUR_MS,
                "idle_ms": 0,
            }
            for hour in range(48)
        ],
    }


def test_a_scrape_shows_the_number_of_the_api_and_nothing_of_a_stale_pool(dsn):
    """Without the setting there is no such family; with it, the fresh pool alone has a series."""
    with running(dsn) as collector:
        for made in (batch("fresh", 1), batch("old", 1, 5 * DAY_MS)):
            assert (
                collector.post(json.dumps(made).encode(), {"Content-Type": "application/json"})[0]
                == 200
            )
        refresh(Database(dsn), ALWAYS, NOW_MS)
        assert "gpuledger_scaling" not in collector.request("GET", "/metrics")[2]
    with running(dsn, scaling_gauge_delay_seconds=600) as collector:
        deadline = time.monotonic() + 60
        series = []
        while not series:
            assert time.monotonic() < deadline
            text = collector.request("GET", "/metrics")[2]
            series = [
                line
                for line in text.splitlines()
                if line.startswith("gpuledger_scaling_desired_gpus{")
            ]
            time.sleep(0.05)
        status, _, told = collector.request("GET", "/v1/scaling/fresh?delay_s=600")
        assert status == 200
        assert series == [f'gpuledger_scaling_desired_gpus{{pool="fresh"}} {told["desired_gpus"]}']
        assert collector.request("GET", "/v1/scaling/old?delay_s=600")[0] == 503


class Made:
    """Advice that the test steers; `begun` counts the looks."""

    def __init__(self):
        self.answer, self.begun, self.go = {"a": 4.0}, 0, threading.Event()
        self.go.set()

    def __call__(self):
        self.begun += 1
        assert self.go.wait(60)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def steered():
    clock, made = [1000.0], Made()
    gauge = ScalingGauge(made, lambda: clock[0])

    def scrape():
        family, _ = gauge.collect()
        return {sample.labels["pool"]: sample.value for sample in family.samples}

    def settle():
        looking = gauge._refreshing
        if looking is not None:
            looking.join(60)
            assert not looking.is_alive()

    return clock, made, scrape, settle


def test_a_scrape_never_waits_and_looks_again_in_time(steered):
    """While the pools are looked at, scrapes answer with what was known; one look at a time."""
    clock, made, scrape, settle = steered
    made.go.clear()
    assert [scrape(), scrape()] == [{}, {}]
    made.go.set()
    settle()
    assert scrape() == {"a": 4.0}
    assert made.begun == 1
    made.answer = {"b": 1.0}
    clock[0] += REFRESH_SECONDS + 1
    scrape()
    settle()
    assert (scrape(), made.begun) == ({"b": 1.0}, 2)


def test_what_cannot_be_renewed_dies(steered):
    """A database that is away: tried again soon, the old number stays for a while and then the
    series ends.
    """
    clock, made, scrape, settle = steered
    scrape()
    settle()
    made.answer = OSError("away")
    for _ in range(3):
        clock[0] += REFRESH_SECONDS + 1 if made.begun == 1 else RETRY_SECONDS + 1
        assert scrape() == {"a": 4.0}
        settle()
    assert made.begun == 4
    clock[0] = 1000.0 + EXPIRE_SECONDS + 1
    assert scrape() == {}
    settle()
    made.answer = {"a": 5.0}
    clock[0] += RETRY_SECONDS + 1
    scrape()
    settle()
    assert scrape() == {"a": 5.0}
