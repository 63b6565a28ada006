"""scancel against a real Slurm: the judged job is cancelled, another user's is left alone, one that
ended is gone.
"""

import shutil
import time

import pytest

from fakes.postgres import open_folder
from fakes.slurm import cluster, why_not
from gpuledger_collector.insight.notifications.reclaim_rules import ReclaimAction
from gpuledger_collector.notifications.reclaim import NotReclaimed, SlurmBackend

REASON = why_not()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.skipif(REASON is not None, reason=f"no Slurm: {REASON}"),
]


@pytest.fixture(scope="module")
def slurm():
    home = open_folder("gpuledger-slurm-")
    try:
        with cluster(home, "vision") as running:
            yield running
    finally:
        shutil.rmtree(home, ignore_errors=True)


def action(job: str, user: str) -> ReclaimAction:
    return ReclaimAction(
        1, "k", 1, "scancel", {"workload": job, "user": user}, "vision", "doing", 0, 0
    )


def wait_for(true, seconds=90.0):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_job_is_cancelled_by_the_way_and_by_nobody_elses_name(slurm):
    way = SlurmBackend(environment=slurm.environment)
    mine, other = (
        slurm.submit("vision", "gpu:h100:1", 300, user=user) for user in ("root", "nobody")
    )
    wait_for(lambda: slurm.run("squeue", "-h", "-t", "R", "-o", "%i").split() == [mine, other])
    assert not way.is_gone(action(mine, "root"))
    with pytest.raises(NotReclaimed, match="nobody's, not root's"):
        way.is_gone(action(other, "root"))
    assert way.reclaim(action(mine, "root")) == f"scancel {mine}"
    wait_for(lambda: way.is_gone(action(mine, "root")))
    assert slurm.run("squeue", "-h", "-t", "R", "-o", "%i").split() == [other]
    # Again: harmless, and a number that was never given is gone too.
    assert way.reclaim(action(mine, "root")) == f"scancel {mine}"
    assert way.is_gone(action("999999", "root"))
    wait_for(lambda: "CANCELLED" in slurm.run("sacct", "-n", "-X", "-P", "-o", "State", "-j", mine))
