"""The collector is away for 72 hours of a virtual clock: all of the time arrives, and the newest at
once.
"""

import contextlib
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from gpuledger_agent.push import Pusher, Reply
from gpuledger_agent.sampler import Sampler
from gpuledger_agent.sources.simulated import Fleet, SimulatedSource
from gpuledger_agent.spool import Spool
from gpuledger_common import wire
from gpuledger_common.batches import unpack
from gpuledger_common.meter import Meter

pytestmark = pytest.mark.slow

START = 1_790_812_800_000
HOUR_MS = 3_600_000
MIB = 1024 * 1024


@dataclass
class Node:
    """A node whose clock is ours: rounds, batches and requests happen when their time comes."""

    spool: Spool
    step_ms: int
    now_ms: int = START
    away: bool = False
    asked: int = 0
    arrived: list[tuple[int, wire.Batch]] = field(default_factory=list)
    largest: int = 0

    def __post_init__(self) -> None:
        fleet = Fleet(7)
        source = SimulatedSource(fleet, fleet.nodes[0].name, lambda: self.now_ms)
        self.sampler = Sampler(fleet.nodes[0].name, "p", source, [source], Meter(3 * self.step_ms))
        self.sampler.attach(source.open())
        self.pusher = Pusher(self.spool, self.post, lambda: self.now_ms, lambda: 0.5)
        self.next_request_ms = self.next_flush_ms = START

    def post(self, body: bytes, sent_ms: int) -> Reply:
        self.asked += 1
        if self.away:
            return Reply(None, error="ConnectionRefusedError: nobody there")
        self.arrived.append((sent_ms, unpack(body)))
        return Reply(200, {}, b'{"status":"committed"}')

    def live(self, until_ms: int, requests_a_step: int = 4) -> None:
        while self.now_ms <= until_ms:
            self.sampler.tick(lambda ns: ns // 10**6, ("fast",))
            if self.now_ms >= self.next_flush_ms:
                self.next_flush_ms += 10 * 60_000
                self.sampler.flush(self.spool, self.now_ms)
                self.largest = max(self.largest, self.spool.path.stat().st_size)
            for _ in range(requests_a_step):
                if self.now_ms < self.next_request_ms:
                    break
                wait_s = self.pusher.step()
                self.next_request_ms = self.now_ms + round(1000 * (wait_s or 0))
            self.now_ms += self.step_ms


@pytest.mark.parametrize(
    "spool_bytes", [64 * MIB, MIB], ids=["a spool that holds it", "a spool far too small"]
)
@pytest.mark.parametrize("step_s", [60, pytest.param(10, marks=pytest.mark.long)])
def test_72_hours_without_a_collector_cost_no_second(tmp_path, spool_bytes, step_s):
    """An hour with it, three days without, then until all has arrived: all time is whole, to the
    millisecond.
    """
    with contextlib.closing(Spool(tmp_path, spool_bytes, START, free_floor=0)) as spool:
        node = Node(spool, step_s * 1000)
        node.live(START + HOUR_MS)
        assert spool.counts().pending <= 1
        before = len(node.arrived)
        node.away, node.asked = True, 0
        node.live(START + 73 * HOUR_MS)
        waited = spool.counts()
        assert len(node.arrived) == before
        assert waited.pending > 400
        assert node.asked < 73 * 60 * 3, (
            "no more than a request or two a minute while nobody answers"
        )
        node.away, back_ms = False, node.now_ms
        node.live(back_ms + 6 * HOUR_MS)
        counts, lost = spool.counts(), spool.lost_counts()
    assert counts.is_conserved
    assert counts.pending <= 2
    assert counts.dead == 0
    assert node.largest <= spool_bytes
    first = [
        max(
            (usage_interval.end_ms for usage_interval in batch.usage_intervals),
            default=max(batch.samples.at_ms, default=0),
        )
        for _, batch in node.arrived[before : before + 6]
    ]
    assert max(first[:2]) > back_ms - 11 * 60_000, (
        "the newest lane shows the present with the first two requests"
    )
    assert min(first[:2]) < START + 2 * HOUR_MS, "the oldest lane begins where it broke off"
    assert lost.usage_intervals_dropped == 0
    assert (lost.readings_dropped + lost.readings_downsampled > 0) == (spool_bytes == MIB)
    delivered_ms = node.next_flush_ms - 10 * 60_000
    held = whole(node, delivered_ms)
    readings = sum(len(batch.samples.at_ms) for _, batch in node.arrived)
    rows = len(held) * ((delivered_ms - START) // node.step_ms + 1)
    assert readings + lost.readings_dropped + lost.readings_downsampled == pytest.approx(
        rows, abs=2 * len(held) * 60
    )


def whole(node, delivered_ms):
    """Seconds of each accelerator; they abut from the start to the last batch, with no number
    twice.
    """
    numbers = [batch.seq for _, batch in node.arrived]
    assert len(numbers) == len(set(numbers))
    spans = {}
    for _, batch in node.arrived:
        for usage_interval in batch.usage_intervals:
            uuid = batch.accelerators[usage_interval.accelerator].uuid
            spans.setdefault(uuid, set()).add((usage_interval.start_ms, usage_interval.end_ms))
    for ranges in spans.values():
        ordered = sorted(ranges)
        assert all(one[1] == two[0] for one, two in pairwise(ordered))
        assert ordered[0][0] == START
        assert delivered_ms - ordered[-1][1] <= 20 * 60_000
    assert len(spans) == len(node.sampler.latest.accelerators)
    return spans
