"""The sampler: what was seen before the GPUs changed is delivered all the same, and nothing stale
is shown.
"""

import sqlite3

import pytest

from gpuledger_agent.sampler import Sampler
from gpuledger_agent.spool import Spool
from gpuledger_common.batches import unpack
from gpuledger_common.meter import Meter
from gpuledger_common.readings import (
    Accelerator,
    Health,
    Holder,
    Inventory,
    Sample,
    SeriesValue,
    Workload,
)

START = 1_790_812_800_000
WHOLE = Accelerator("GPU-a", "GPU-a", 0, "NVIDIA H100")
SLICE = Accelerator("MIG-1", "GPU-a", 0, "NVIDIA H100", "1g.10gb/9", 142_857)


class Cards:
    """A source, and the owner source of what it shows: each accelerator is held by a job of its
    own.
    """

    name = "fake"

    def __init__(self, *accelerators):
        self.accelerators = accelerators
        self.now_ms = START
        self.values = {"gpu_utilization_ratio": 0.9}
        self.health = Health()
        self.series = {}

    def open(self):
        return Inventory("580.1", self.accelerators)

    def read(self, tiers):
        return [
            Sample(one.uuid, self.now_ms * 10**6, self.values, {}, (), self.health, self.series)
            for one in self.accelerators
        ]

    def holders(self, accelerators, samples):
        return {one.uuid: (Holder(Workload(f"job-{one.uuid}", "slurm")),) for one in accelerators}


@pytest.fixture
def spool(tmp_path):
    made = Spool(tmp_path, 64 * 1024 * 1024, START, free_floor=0)
    yield made
    made.close()


def sampler_of(cards):
    made = Sampler("n1", "p", cards, [cards], Meter(30_000))
    made.attach(cards.open())
    return made


def tick(sampler, cards, *seconds):
    for second in seconds:
        cards.now_ms = START + second * 1000
        sampler.tick(lambda monotonic_ns: monotonic_ns // 10**6, ("fast",))


def flushed(sampler, spool):
    sampler.flush(spool, START)
    return unpack(spool.next("newest").body)


def held(batch):
    return [
        (batch.accelerators[one.accelerator].uuid, one.start_ms - START, one.end_ms - START)
        for one in batch.usage_intervals
    ]


def test_time_of_a_gpu_that_was_sliced_since_the_last_batch_is_delivered(spool):
    """MIG switched on between two batches: the whole device's seconds stand beside those of its
    slice, once.
    """
    cards = Cards(WHOLE)
    sampler = sampler_of(cards)
    tick(sampler, cards, 0, 10, 20)
    sampler.detach("the GPUs are attached anew")
    cards.accelerators = (SLICE,)
    sampler.attach(cards.open())
    tick(sampler, cards, 30, 40)
    batch = flushed(sampler, spool)
    assert held(batch) == [("GPU-a", 0, 20_000), ("MIG-1", 30_000, 40_000)]
    assert len(batch.samples.at_ms) == 5
    tick(sampler, cards, 50)
    later = flushed(sampler, spool)
    assert held(later) == [("MIG-1", 40_000, 50_000)]
    assert [entry.uuid for entry in later.accelerators] == ["MIG-1"]


def test_a_batch_that_could_not_be_stored_comes_with_the_next(spool, monkeypatch):
    """When the spool fails, spans and samples wait; also those of accelerators that are gone by
    then.
    """
    cards = Cards(WHOLE)
    sampler = sampler_of(cards)
    tick(sampler, cards, 0, 10)

    def full(*_):
        raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as broken:
        broken.setattr(spool, "add", full)
        with pytest.raises(sqlite3.OperationalError):
            sampler.flush(spool, START)
    sampler.detach("gone")
    cards.accelerators = (SLICE,)
    sampler.attach(cards.open())
    batch = flushed(sampler, spool)
    assert held(batch) == [("GPU-a", 0, 10_000)]
    assert len(batch.samples.at_ms) == 2


@pytest.mark.parametrize(
    "health", [Health("failed", "off the bus"), Health("unknown", "no answer")]
)
def test_a_gpu_that_fell_silent_shows_no_old_values(health):
    """Its last temperature is not its temperature: what is not read now is absent; the verdict
    stays to be seen.
    """
    cards = Cards(WHOLE)
    sampler = sampler_of(cards)
    tick(sampler, cards, 0)
    cards.values, cards.health = {}, health
    tick(sampler, cards, 10)
    assert sampler.latest.samples["GPU-a"].values == {}
    assert sampler.latest.samples["GPU-a"].health == health


def test_a_slow_reading_stays_shown_between_its_turns():
    """A value of the slow tier is still there after a fast sample, until the card refuses it."""
    cards = Cards(WHOLE)
    sampler = sampler_of(cards)
    cards.values = {"gpu_utilization_ratio": 0.9, "gpu_memory_total_bytes": 5}
    tick(sampler, cards, 0)
    cards.values = {"gpu_utilization_ratio": 0.1}
    tick(sampler, cards, 10)
    assert sampler.latest.samples["GPU-a"].values == {
        "gpu_utilization_ratio": 0.1,
        "gpu_memory_total_bytes": 5,
    }


def test_the_memory_of_a_process_that_ended_is_not_shown_any_more():
    """A series of the fast tier ends when it is not read; one of the slow tier stays between its
    turns.
    """
    cards = Cards(WHOLE)
    sampler = sampler_of(cards)
    links = [SeriesValue((("link", "0"),), 1)]
    cards.series = {
        "gpu_process_memory_used_bytes": [SeriesValue((("pid", "7"), ("type", "compute")), 5)],
        "gpu_process_sm_utilization_ratio": [SeriesValue((("pid", "7"),), 0.5)],
        "gpu_nvlink_link_up": links,
    }
    tick(sampler, cards, 0)
    cards.series = {}
    tick(sampler, cards, 10)
    assert sampler.latest.samples["GPU-a"].series == {"gpu_nvlink_link_up": links}


def test_a_source_that_went_away_shows_nothing(spool):
    """Without a driver nothing is shown as if it were read now, and the batch says that the health
    is not known.
    """
    cards = Cards(WHOLE)
    sampler = sampler_of(cards)
    tick(sampler, cards, 0, 10)
    sampler.detach("no driver")
    assert (sampler.latest.samples, sampler.latest.holders) == ({}, {})
    batch = flushed(sampler, spool)
    assert held(batch) == [("GPU-a", 0, 10_000)]
    assert batch.accelerators[0].health == "unknown"
    assert (batch.heartbeat.status, batch.heartbeat.detail) == ("no_driver", "no driver")
