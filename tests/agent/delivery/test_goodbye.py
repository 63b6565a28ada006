"""A goodbye: said once, by the agent that is uninstalled, and by no stop, restart or upgrade
besides.
"""

import subprocess

import pytest

from fakes.agents import AGENT, agent
from fakes.sink import sink

pytestmark = pytest.mark.slow

__all__ = ["agent"]


def goodbye(running):
    answer = subprocess.run(
        [AGENT, "goodbye"], env=running.environment, capture_output=True, text=True
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def said(target):
    """Whether the newest heartbeat that arrived is a goodbye, and whether any other is one."""
    beats = [
        batch.heartbeat.uninstalled for batch in sorted(target.batches, key=lambda batch: batch.seq)
    ]
    return beats[-1], any(beats[:-1])


def test_it_is_in_the_last_heartbeat_of_an_agent_that_is_uninstalled(agent):
    """Not before the agent stops, and no more when another one runs on the same node."""
    with sink() as target:
        running = agent(target.url)
        running.wait_for(lambda: target.committed())
        assert "stay capacity until `gpuledger nodes retire NODE`" in goodbye(running)
        count = len(target.batches)
        running.wait_for(lambda: len(target.batches) >= count + 2)
        assert said(target) == (False, False)
        assert running.stop() == 0
        assert said(target) == (True, False)
        target.batches.clear()
        running.start()
        running.wait_for(lambda: target.batches)
        assert running.stop() == 0
        assert said(target) == (False, False)


def test_one_that_no_stop_has_said_is_void(agent):
    """The note of an uninstallation that stopped no agent says nothing of the one that is installed
    later.
    """
    with sink() as target:
        running = agent(target.url)
        running.wait_for(lambda: target.committed())
        assert running.stop() == 0
        goodbye(running)
        target.batches.clear()
        running.start()
        running.wait_for(lambda: target.batches)
        assert running.stop() == 0
        assert said(target) == (False, False)
