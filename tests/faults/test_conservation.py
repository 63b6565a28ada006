"""A fleet behind a broken network, on a collector that is killed: what was acknowledged is there
once, all is told.
"""

import time

import pytest

from fakes.disasters import FaultyFleet
from fakes.proxy import KINDS
from gpuledger_collector.storage.telemetry.usage_evidence import intervals

pytestmark = pytest.mark.slow

MOST_SECONDS = 60


def test_hundreds_of_faults_lose_and_double_nothing():
    """Network faults of every kind that is quick, kills inside of a transaction and of a request,
    troubled nodes.
    """
    with FaultyFleet(seed=7, nodes=5, rate=0.8) as fleet:
        fleet.trouble_nodes()
        assert fleet.kill_in_transaction(), "no transaction came to the table that was locked"
        fleet.kill_at_point()
        begun = time.monotonic()
        while fleet.proxy.counts()[1].total() < 400 and time.monotonic() - begun < MOST_SECONDS:
            time.sleep(0.1)
        faults = fleet.injected()
        verdict = fleet.settle(180)
    assert (verdict.lost, verdict.twice, verdict.unaccounted) == ([], [], [])
    assert faults.total() >= 400
    assert sum("collector killed: in a transaction" in kind for kind in faults) == 1
    assert len([kind for kind in KINDS if faults[kind]]) >= 10
    assert verdict.batches["acknowledged"] > 20
    assert verdict.batches["dropped"] > 0


def test_the_verdict_sees_what_it_looks_for():
    """A batch that vanishes, a usage interval that doubles and an acknowledgement that nobody gave
    are each found.
    """
    import psycopg

    with FaultyFleet(seed=8, nodes=1, rate=0) as fleet:
        begun = time.monotonic()
        while len(fleet.truth.acknowledged) < 12 and time.monotonic() - begun < MOST_SECONDS:
            time.sleep(0.05)
        clean = fleet.settle(180)
        assert clean.clean
        assert clean.batches["made"] == clean.batches["acknowledged"] == clean.batches["committed"]
        with psycopg.connect(fleet.collector.dsn()) as connection:
            connection.execute(
                f"INSERT INTO usage_interval SELECT * FROM {intervals(0)} AS s WHERE seq = 2"
            )
            connection.execute("DELETE FROM ingest_batch WHERE seq = 3")
            connection.execute(
                "DELETE FROM gpu_sample WHERE at_ms = (SELECT max(at_ms) FROM gpu_sample)"
            )
        fleet.truth.made["node-0", fleet.nodes[0].spool.epoch, 999] = 999
        found = fleet.settle(180)
    assert any("batch ('node-0'" in one for one in found.lost)
    assert any("sample" in one for one in found.lost) or any(
        "no committed batch has" in one for one in found.twice
    )
    assert any("usage intervals of" in one for one in found.twice)
    assert any("has no end" in one for one in found.unaccounted)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_thousands_of_faults_of_every_kind():
    """Each disaster, poison, a rolling upgrade and a stampede of 2,000 agents in one run."""
    with FaultyFleet(seed=9, rate=0.8) as fleet:
        for disaster in (
            "kill_in_transaction",
            "end_postgres",
            "roll_over",
            "poison",
            "stampede",
            "trouble_nodes",
            "kill_at_random",
            "kill_at_point",
        ):
            time.sleep(2)
            getattr(fleet, disaster)()
        while fleet.injected().total() < 10_000:
            time.sleep(1)
        verdict = fleet.settle()
    assert (verdict.lost, verdict.twice, verdict.unaccounted) == ([], [], [])
