"""Evidence has an age: what no agent can still hold is refused record by record, unless a setting
allows more.
"""

import time

import psycopg
import pytest

from fakes.batches import batch, free, held, samples
from fakes.collector import running
from fakes.prometheus import WRITE, headers, one, scrape, snappy
from gpuledger_collector.settings import Settings, check
from gpuledger_common.settings import SettingsError

DAY_MS = 86_400_000
NOW = int(time.time()) * 1000
FRESH, OLD = NOW - 36 * DAY_MS, NOW - 38 * DAY_MS
SENTENCE = "older than max_evidence_age_days allows: import it instead"


def rows(dsn, query):
    with psycopg.connect(dsn) as connection:
        return connection.execute(query).fetchall()


def both(seq):
    """A batch with a usage interval and a sample of 36 days ago, and the same of 38 days ago."""
    return batch(
        seq,
        accelerators=1,
        usage_intervals=[held(0, FRESH, FRESH + 60_000), free(0, OLD, OLD + 60_000)],
        samples=samples(1, [FRESH, OLD], gpu_utilization_ratio=[0.5, 0.5]),
    )


def test_evidence_that_no_agent_can_still_hold_is_refused_record_by_record(dsn):
    """The rest is committed, each refusal names its record, and the same batch again gets the same
    answer.
    """
    with running(dsn, max_evidence_age_days=37) as collector:
        status, answer = collector.send(both(1))
        assert status == 422
        assert [refusal["record"] for refusal in answer["rejected"]] == [
            "usage_intervals[1]",
            "samples[1]",
        ]
        assert all(SENTENCE in refusal["reason"] for refusal in answer["rejected"])
        assert collector.send(both(1)) == (status, answer)
    assert rows(dsn, "SELECT start_ms FROM usage_interval") == [(FRESH,)]
    assert rows(dsn, "SELECT at_ms FROM gpu_sample") == [(FRESH,)]


def test_old_days_make_no_partitions(dsn):
    """A batch with a usage interval a day for forty days of the year 2000 leaves nothing behind."""
    first = 946_684_800_000
    days = [free(0, first + day * DAY_MS, first + day * DAY_MS + 60_000) for day in range(40)]
    with running(dsn, max_evidence_age_days=37) as collector:
        status, answer = collector.send(
            batch(1, accelerators=1, usage_intervals=days, samples=samples(1, []))
        )
    assert (status, len(answer["rejected"])) == (422, 40)
    assert rows(
        dsn,
        "SELECT count(*) FROM pg_inherits WHERE inhparent IN ('usage_interval'::regclass,"
        " 'gpu_sample'::regclass)",
    ) == [(0,)]


def test_a_setting_allows_any_age(dsn):
    """Replays and simulations keep their times where the collector is told to take them."""
    with running(dsn, max_evidence_age_days=0) as collector:
        assert collector.send(both(1))[0] == 200
    assert rows(dsn, "SELECT count(*) FROM usage_interval") == [(2,)]


def test_remote_write_is_bound_by_the_same_age(dsn):
    """Old samples are refused with a sentence, for good; those beside them are written."""
    with running(dsn, max_evidence_age_days=37) as collector:
        body = snappy(one([*scrape(OLD), *scrape(FRESH)]))
        status, told, text = collector.request("POST", WRITE, body, headers(1))
        assert status == 400
        assert SENTENCE in text
        assert int(told["X-Prometheus-Remote-Write-Samples-Written"]) == len(scrape(FRESH))
    assert rows(dsn, "SELECT DISTINCT at_ms FROM gpu_sample") == [(FRESH,)]


def test_the_age_covers_what_agents_hold():
    """Fewer than 37 days would refuse what an agent may still hold after an outage."""
    with pytest.raises(SettingsError, match="max_evidence_age_days: must be 0 or at least 37"):
        check(Settings(max_evidence_age_days=36))
    check(Settings(max_evidence_age_days=0))
