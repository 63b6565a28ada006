"""SIGTERM: whatever the push loop is doing, the agent spools, sends what it can, and is gone in
seconds with 0.
"""

import time

import pytest

from fakes.agents import agent
from fakes.sink import sink
from gpuledger_agent.daemon import LAST_SEND_S

pytestmark = pytest.mark.slow

__all__ = ["agent"]

WITHIN_S = LAST_SEND_S + 20
"""The last send, and what an interpreter needs on a busy machine; a request here hangs for much
longer.
"""
HANGS_S = 120
COMMITTED = (200, {}, b'{"status":"committed"}')


def stopped(running):
    start = time.monotonic()
    code = running.stop()
    return code, time.monotonic() - start


def test_a_stop_ends_a_long_wait_and_sends_all_that_waits(agent):
    """The collector said to come back in 15 minutes; at the end all batches are sent all the same,
    newest first.
    """
    with sink() as target:
        target.answers = lambda _: (503, {"Retry-After": "900"}, b"")
        running = agent(target.url)
        running.wait_for(lambda: target.batches)
        running.wait_for(lambda: running.counts().pending >= 3)
        target.batches.clear()
        target.answers = lambda _: COMMITTED
        code, took = stopped(running)
        sent = [batch.seq for batch in target.batches]
    counts = running.counts()
    assert code == 0
    assert took < WITHIN_S
    assert len(sent) >= 4
    assert sent == sorted(sent, reverse=True)
    assert (counts.pending, counts.is_conserved) == (0, True)


def test_a_stop_does_not_wait_for_a_collector_that_never_answers(agent):
    """A request hangs, and so would every other: the batches wait in the spool, the agent is gone."""
    with sink() as target:
        running = agent(target.url)
        target.answers = lambda _: time.sleep(HANGS_S) or COMMITTED
        running.wait_for(lambda: target.batches)
        code, took = stopped(running)
    counts = running.counts()
    assert code == 0
    assert took < WITHIN_S
    assert counts.pending >= 2
    assert counts.is_conserved


def test_a_stop_passes_by_one_request_that_hangs(agent):
    """Only the first request hangs; the last send goes around it, and the batch under way comes
    twice with the same bytes.
    """
    with sink() as target:
        hung = []

        def answer(batch):
            if not hung:
                hung.append(batch.seq)
                time.sleep(HANGS_S)
            return COMMITTED

        target.answers = answer
        running = agent(target.url)
        running.wait_for(lambda: hung)
        running.wait_for(lambda: running.counts().pending >= 2)
        code, took = stopped(running)
        assert hung[0] in {seq for _, seq in target.committed()}
    counts = running.counts()
    assert code == 0
    assert took < WITHIN_S
    assert (counts.pending, counts.is_conserved) == (0, True)


@pytest.mark.parametrize("signals", [200])
def test_signals_that_rain_lock_nothing(agent, signals):
    """A handler may interrupt any line of the loop; whichever it is, the agent reads its settings
    and goes on.
    """
    import signal

    with sink() as target:
        running = agent(target.url)
        running.wait_for(lambda: target.committed())
        for _ in range(signals):
            running.process.send_signal(signal.SIGHUP)
            time.sleep(0.002)
        count = len(target.committed())
        running.wait_for(lambda: len(target.committed()) > count)
        code, took = stopped(running)
    assert code == 0
    assert took < WITHIN_S
