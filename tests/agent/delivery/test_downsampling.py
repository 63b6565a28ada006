"""When the spool fills, readings go before time: first apart, then thin, then the oldest of them,
the money last.
"""

import contextlib
import random
import sqlite3

import pytest

from gpuledger_agent import downsampling
from gpuledger_agent.exposition import MetricsPage
from gpuledger_agent.push import Pusher, Reply
from gpuledger_agent.sampler import Sampler
from gpuledger_agent.spool import BatchContents, BatchCounts, DiskNearlyFull, RecordLosses, Spool
from gpuledger_common.batches import unpack
from gpuledger_common.catalog import METRICS
from gpuledger_common.meter import Meter
from gpuledger_common.readings import Accelerator, Holder, Inventory, Sample, Workload

START = 1_790_812_800_000
MIB = 1024 * 1024
GAUGES = [metric.name for metric in METRICS if metric.column_kind == "f4"][:40]
CARDS = tuple(Accelerator(f"GPU-{at}", f"GPU-{at}", at, "NVIDIA H100") for at in range(4))


class Noise:
    """Four cards whose readings cannot be compressed, held by a job."""

    name = "noise"

    def __init__(self):
        self.chance = random.Random(7)
        self.now_ms = START

    def open(self):
        return Inventory("580.1", CARDS)

    def read(self, tiers):
        return [
            Sample(card.uuid, self.now_ms * 10**6, {name: self.chance.random() for name in GAUGES})
            for card in CARDS
        ]

    def holders(self, accelerators, samples):
        return {card.uuid: (Holder(Workload("j", "slurm")),) for card in accelerators}


@pytest.fixture
def noise():
    source = Noise()
    sampler = Sampler("n1", "p", source, [source], Meter(30_000))
    sampler.attach(source.open())
    return source, sampler


def minutes(noise, spool, number):
    """Rounds of 10 s and a batch a minute."""
    source, sampler = noise
    for _ in range(number):
        for _ in range(6):
            sampler.tick(lambda ns: ns // 10**6, ("fast",))
            source.now_ms += 10_000
        sampler.flush(spool, source.now_ms)


def spool_of(folder, max_bytes=2 * MIB, free_floor=0):
    return Spool(folder, max_bytes, START, free_floor=free_floor)


def delivered(spool):
    """Every batch, as a collector that commits them all would have them."""
    batches = []

    def post(body, sent_ms):
        batches.append(unpack(body))
        return Reply(200, {}, b'{"status":"committed"}')

    pusher = Pusher(spool, post, lambda: START)
    while pusher.step() is not None:
        pass
    return batches


def held_ms(batches):
    return sum(
        usage_interval.end_ms - usage_interval.start_ms
        for batch in batches
        for usage_interval in batch.usage_intervals
    )


@pytest.fixture(scope="module")
def overfull(tmp_path_factory):
    """What is left of 20 hours in a spool that would hold three of them."""
    source = Noise()
    sampler = Sampler("n1", "p", source, [source], Meter(30_000))
    sampler.attach(source.open())
    folder = tmp_path_factory.mktemp("overfull")
    spool = spool_of(folder)
    sizes = []
    for _ in range(20):
        minutes((source, sampler), spool, 60)
        sizes.append((folder / "spool.sqlite").stat().st_size)
    yield source, sampler, spool, max(sizes)
    spool.close()


def test_no_time_is_lost_while_there_are_readings_to_lose(overfull):
    """All 20 hours of 4 GPUs arrive to the millisecond; readings are missing, counted, and the
    bound was kept.
    """
    source, sampler, spool, largest = overfull
    counts, lost = spool.counts(), spool.lost_counts()
    assert counts.is_conserved
    assert counts.dropped > 0
    assert lost.usage_intervals_dropped == 0
    assert lost.readings_dropped > 0
    assert lost.readings_downsampled > 0
    assert largest <= 2 * MIB
    page = MetricsPage(sampler, spool).text()
    for how, count in (
        ("downsampled", lost.readings_downsampled),
        ("dropped", lost.readings_dropped),
    ):
        line = f'records_lost_total{{record="reading",how="{how}"}} {float(count)}\n'
        assert line in page
    batches = delivered(spool)
    assert held_ms(batches) == 4 * (source.now_ms - START - 10_000)
    arrived = sum(len(batch.samples.at_ms) for batch in batches)
    assert arrived + lost.readings_dropped + lost.readings_downsampled == 4 * 6 * 60 * 20
    assert spool.counts().acked == spool.counts().produced - spool.counts().dropped


def test_readings_and_usage_intervals_part_when_batches_pile_up(noise, tmp_path):
    """Below an eighth one batch holds both; from there the usage intervals have their own; from a
    half the other is thin.
    """
    with contextlib.closing(spool_of(tmp_path)) as spool:
        shapes = {}
        while len(shapes) < 3:
            level = downsampling.level(spool.fill())
            before = spool.counts().produced
            minutes(noise, spool, 1)
            new = [
                batch
                for batch in (
                    unpack(row[0]) for row in spool._rows("SELECT body FROM batch ORDER BY seq")
                )
                if batch.seq > before
            ]
            shapes.setdefault(
                level, [(bool(batch.usage_intervals), len(batch.samples.at_ms)) for batch in new]
            )
    assert shapes == {
        "together": [(True, 24)],
        "apart": [(True, 0), (False, 24)],
        "thin": [(True, 0), (False, 4)],
    }


def test_thin_keeps_the_fullest_reading_of_each_minute():
    """The one with the slow tier's metrics in it; each accelerator has its own."""
    rows = [
        (at, Sample(uuid, 0, values))
        for at, uuid, values in (
            (0, "a", {"x": 1}),
            (0, "b", {"x": 1}),
            (10_000, "a", {"x": 2, "slow": 1}),
            (20_000, "a", {"x": 3}),
            (60_000, "a", {"x": 4}),
            (70_000, "a", {"x": 5}),
        )
    ]
    kept = [(at, sample.uuid, dict(sample.values)) for at, sample in downsampling.downsample(rows)]
    assert kept == [(0, "b", {"x": 1}), (10_000, "a", {"x": 2, "slow": 1}), (70_000, "a", {"x": 5})]


def big(size):
    return lambda epoch, seq: seq.to_bytes(4, "big") * (size // 4)


def test_when_only_money_is_left_the_oldest_of_it_goes_and_is_counted(tmp_path):
    """The last resort, with its numbers and how many usage intervals were in them."""
    with contextlib.closing(spool_of(tmp_path, MIB)) as spool:
        for _ in range(60):
            spool.add(big(40_000), START, BatchContents(usage_intervals=3, readings=5))
        counts, lost = spool.counts(), spool.lost_counts()
        assert counts.is_conserved
        assert lost == RecordLosses(3 * counts.dropped, 5 * counts.dropped, 0)
        assert spool.next("oldest").seq == counts.dropped + 1


def test_on_a_disk_that_is_nearly_full_readings_make_room_for_time(tmp_path):
    """The file does not grow; what waits of readings gives its pages to new usage intervals, until
    none is left.
    """
    with contextlib.closing(spool_of(tmp_path, 64 * MIB)) as spool:
        for _ in range(40):
            spool.add(big(40_000), START, BatchContents(readings=9))
    size = (tmp_path / "spool.sqlite").stat().st_size
    with contextlib.closing(spool_of(tmp_path, 64 * MIB, free_floor=2**62)) as spool:

        def pile_up():
            for _ in range(50):
                spool.add(big(40_000), START, BatchContents(usage_intervals=1))

        with pytest.raises(DiskNearlyFull):
            pile_up()
        counts = spool.counts()
        assert counts.is_conserved
        assert spool.lost_counts() == RecordLosses(0, 40 * 9, 0)
        assert 36 <= counts.pending <= 41
        assert {reason for *_, reason in spool.losses()} == {"disk nearly full"}
    assert (tmp_path / "spool.sqlite").stat().st_size <= size + 4 * 4096


class Broken:
    """A spool on a disk that refuses every write, or everything."""

    def __init__(self, everything=False):
        self.everything = everything

    def fill(self):
        if self.everything:
            raise sqlite3.OperationalError("disk I/O error")
        return 0.0

    def counts(self):
        return BatchCounts(0, 0, 0, 0, 0)

    def add(self, *_):
        raise sqlite3.OperationalError("disk I/O error")


@pytest.mark.parametrize("everything", [False, True])
def test_a_disk_that_refuses_for_a_day_costs_readings_and_no_time(
    noise, tmp_path, monkeypatch, everything
):
    """Usage intervals wait in memory, abutting ones as one for each hour; readings up to a bound,
    the rest counted.
    """
    monkeypatch.setattr("gpuledger_agent.sampler.MAX_ROWS", 100)
    source, sampler = noise
    for _ in range(2880):
        sampler.tick(lambda ns: ns // 10**6, ("fast",))
        source.now_ms += 30_000
        if source.now_ms % 300_000 == 0:
            with pytest.raises(sqlite3.OperationalError):
                sampler.flush(Broken(everything), START)
    hours = (source.now_ms - START) // 3_600_000 + 1
    assert len(sampler.meter._closed) <= 4 * hours
    assert len(sampler._rows) <= 140
    with contextlib.closing(spool_of(tmp_path, 64 * MIB)) as spool:
        sampler.flush(spool, START)
        batches = delivered(spool)
    assert held_ms(batches) == 4 * 2879 * 30_000
    kept = sum(len(batch.samples.at_ms) for batch in batches)
    assert 100 <= kept <= 140
    assert sampler.readings_lost == 4 * 2880 - kept
