"""A real agent on a stubbed driver that hangs, loses a GPU and is reloaded: the other GPUs' seconds
are whole.
"""

import os
import time
from itertools import pairwise

import pytest

from fakes.agents import agent
from fakes.compiled import library
from fakes.sink import sink

pytestmark = pytest.mark.slow

__all__ = ["agent"]
INTERVAL_S = 2
GPUS = 4


@pytest.fixture
def scene(tmp_path, monkeypatch):
    """A machine with four GPUs, each used by this process; `scene(more)` adds faults to it."""
    library(tmp_path, "nvml_stub.c", "libnvidia-ml.so.1")
    path = tmp_path / "scenario"
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setenv("NVML_STUB_SCENARIO", str(path))

    def show(more=""):
        fresh = path.with_suffix(".new")
        users = "".join(f"process {gpu} {os.getpid()}\n" for gpu in range(GPUS))
        fresh.write_text(f"gpus {GPUS}\n{users}{more}")
        fresh.replace(path)

    show()
    return show


def timelines(batches):
    """By index of the GPU: (start, end, state), in order, each once."""
    lines = {}
    for batch in batches:
        for usage_interval in batch.usage_intervals:
            gpu = batch.accelerators[usage_interval.accelerator].index
            lines.setdefault(gpu, set()).add(
                (usage_interval.start_ms, usage_interval.end_ms, usage_interval.state)
            )
    return {gpu: sorted(line) for gpu, line in lines.items()}


def gaps_ms(line):
    """Time between usage intervals that is in none; usage intervals that overlap are an error."""
    gaps = [two[0] - one[1] for one, two in pairwise(line)]
    assert all(gap >= 0 for gap in gaps)
    return sum(gaps)


@pytest.mark.parametrize(
    "rounds", [1, pytest.param(10, marks=[pytest.mark.long, pytest.mark.timeout(1200)])]
)
def test_a_sick_driver_costs_only_what_it_hides(agent, scene, rounds):
    """Hung for three seconds, lost, reloaded: each GPU's seconds are whole but for its own fault
    and two intervals.
    """
    with sink() as target:
        running = agent(target.url, source="nvml", sample_interval_s=INTERVAL_S, owners="processes")

        def seconds_of_work(seconds):
            beats = len(target.batches)
            time.sleep(seconds)
            running.wait_for(lambda: len(target.batches) > beats)

        running.wait_for(lambda: timelines(target.batches).get(0))
        reloads_s = 0.0
        for _ in range(rounds):
            scene("hang 1 3\n")
            seconds_of_work(4)
            scene("lost 2\n")
            seconds_of_work(2 * INTERVAL_S + 1)
            start = time.monotonic()
            scene("init 9\n" + "".join(f"stale {gpu} 1\n" for gpu in range(GPUS)))
            time.sleep(3)
            scene()
            ended = time.time_ns() // 10**6
            running.wait_for(
                lambda ended=ended: all(
                    timelines(target.batches)[gpu][-1][0] > ended
                    and timelines(target.batches)[gpu][-1][2] == "held"
                    for gpu in range(GPUS)
                ),
                60,
            )
            reloads_s += time.monotonic() - start
        last_ms = time.time_ns() // 10**6
        assert running.stop() == 0
        lines = timelines(target.batches)
        beats = [batch.heartbeat for batch in target.batches]
    assert sorted(lines) == list(range(GPUS))
    assert any("stale" in beat.detail or "driver" in beat.detail for beat in beats)
    slack_ms = 2 * INTERVAL_S * 1000 * rounds
    for gpu in (0, 3):
        line = lines[gpu]
        assert {state for *_, state in line} == {"held"}
        assert 0 < gaps_ms(line) <= reloads_s * 1000 + slack_ms
        held_ms = sum(end - start for start, end, _ in line)
        assert held_ms >= line[-1][1] - line[0][0] - reloads_s * 1000 - slack_ms
        assert line[-1][1] > last_ms - 3 * INTERVAL_S * 1000
    assert gaps_ms(lines[1]) <= reloads_s * 1000 + rounds * 12_000 + slack_ms
    unavailable = [end - start for start, end, state in lines[2] if state == "unavailable"]
    assert sum(unavailable) >= rounds * INTERVAL_S * 1000
    assert gaps_ms(lines[2]) <= reloads_s * 1000 + slack_ms
    assert running.counts().is_conserved
