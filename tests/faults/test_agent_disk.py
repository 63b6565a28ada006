"""The disk under the spool is full or broken: sampling goes on, and afterwards every second is
there.
"""

import contextlib
import os
import random
import shutil
import subprocess
from itertools import pairwise

import pytest

from fakes.agents import agent
from fakes.compiled import library
from fakes.sink import sink
from gpuledger_agent.push import Pusher, Reply
from gpuledger_agent.sampler import Sampler
from gpuledger_agent.sources.simulated import Fleet, SimulatedSource
from gpuledger_agent.spool import Spool
from gpuledger_common.batches import unpack
from gpuledger_common.meter import Meter

pytestmark = pytest.mark.slow

__all__ = ["agent"]
START = 1_790_812_800_000


def abutting(batches):
    """Usage intervals by accelerator as (start, end); those of an accelerator must abut."""
    spans = {}
    for batch in batches:
        for usage_interval in batch.usage_intervals:
            uuid = batch.accelerators[usage_interval.accelerator].uuid
            spans.setdefault(uuid, set()).add((usage_interval.start_ms, usage_interval.end_ms))
    for ranges in spans.values():
        assert all(before[1] == after[0] for before, after in pairwise(sorted(ranges)))
    return spans


@pytest.mark.parametrize(
    ("code", "word"), [(5, "disk I/O error"), (28, "full")], ids=["EIO", "ENOSPC"]
)
@pytest.mark.parametrize("rounds", [1, pytest.param(20, marks=pytest.mark.long)])
def test_a_disk_that_fails_stops_no_sampling_and_loses_no_second(
    agent, tmp_path, monkeypatch, code, word, rounds
):
    """A real agent whose writes fail for seconds: no gap in its usage intervals, every number used
    once, exit code 0.
    """
    order = tmp_path / "order"
    monkeypatch.setenv("LD_PRELOAD", str(library(tmp_path, "fault_disk.c", "fault_disk.so")))
    monkeypatch.setenv("FAULT_DISK", str(order))
    with sink() as target:
        running = agent(target.url)
        running.wait_for(lambda: target.committed())
        for number in range(rounds):
            order.write_text(str(code))
            running.wait_for(
                lambda wanted=number + 1: (
                    running.log.read_text().count("could not be spooled") >= wanted
                )
            )
            order.unlink()
            count = len(target.committed())
            running.wait_for(lambda count=count: len(target.committed()) >= count + 2)
        assert running.stop() == 0
        assert word in running.log.read_text()
        spans = abutting(target.batches)
    counts = running.counts()
    assert len(spans) == 8
    assert counts.is_conserved
    assert (counts.pending, counts.dropped, counts.dead) == (0, 0, 0)
    assert sorted(seq for _, seq in target.committed()) == list(range(1, counts.produced + 1))


@pytest.fixture
def small_disk(tmp_path):
    """A real filesystem of 3 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = shutil.which("mount") and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", folder], capture_output=True, check=False
    )
    if not mounted or mounted.returncode:
        pytest.skip("a small filesystem cannot be mounted here: it takes root")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 51))]
)
def test_a_small_disk_that_others_fill_and_empty(small_disk, seed):
    """Another program takes the disk's space and gives it back, at moments by chance: no second is
    lost.
    """
    chance = random.Random(seed)
    now_ms = START
    fleet = Fleet(7)
    source = SimulatedSource(fleet, fleet.nodes[0].name, lambda: now_ms)
    sampler = Sampler(source.name, "p", source, [source], Meter(90_000))
    sampler.attach(source.open())
    spool = Spool(small_disk, 2**20, START, free_floor=0)
    delivered, refused = [], 0

    def post(body, _):
        delivered.append(unpack(body))
        return Reply(200, {}, b'{"status":"committed"}')

    pusher = Pusher(spool, post, lambda: now_ms)
    for minute in range(72 * 60):
        sampler.tick(lambda ns: ns // 10**6, ("fast",))
        now_ms += 60_000
        if minute % 5 == 4:
            if chance.random() < 0.3:
                # What fits of it stays, like a log that somebody forgot.
                with contextlib.suppress(OSError):
                    (small_disk / "others").write_bytes(bytes(chance.randrange(2**22)))
            try:
                sampler.flush(spool, now_ms)
            except Exception:
                refused += 1
            if chance.random() < 0.1:
                with contextlib.suppress(Exception):
                    while pusher.step() is not None:
                        pass
    (small_disk / "others").unlink(missing_ok=True)
    sampler.tick(lambda ns: ns // 10**6, ("fast",))
    sampler.flush(spool, now_ms)
    while pusher.step() is not None:
        pass
    counts, lost = spool.counts(), spool.lost_counts()
    spool.close()
    once = {(batch.epoch, batch.seq): batch for batch in delivered}.values()
    assert lost.usage_intervals_dropped == 0, lost
    spans = abutting(once)
    assert refused + counts.dropped > 0
    assert counts.is_conserved
    for ranges in spans.values():
        assert (min(ranges)[0], max(ranges)[1]) == (START, now_ms)
    assert len(spans) == len(sampler.latest.accelerators)
    assert os.path.ismount(small_disk)
