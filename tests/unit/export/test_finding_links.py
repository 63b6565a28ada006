"""Where the overview leads from a GPU that does nothing."""

from dataclasses import replace

import pytest

from gpuledger_collector.export.findings import advice, count_gpus, idle_facts
from gpuledger_collector.export.statement import finding_facts
from gpuledger_collector.insight.findings import NamedFinding

FREE = NamedFinding(
    key="idle:1",
    kind="idle",
    state="unallocated",
    subject="GPU-0001",
    accelerator_id=1,
    workload_id=None,
    team="",
    owner={},
    since_ms=0,
    opened_ms=0,
    until_ms=1,
    resolved_ms=None,
    confidence=1.0,
    currency=None,
    cost_micro=None,
    per_day_micro=None,
    model="H100",
)


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({}, "/idle"),
        ({"team": "vision"}, "/idle?team=vision"),
        ({"state": "zombie"}, "/idle?team=(unattributed)"),
        ({"state": "zombie", "team": "vision", "workload_key": "slurm::7"}, "/jobs/slurm::7"),
    ],
    ids=["free", "kept for a team", "held by nobody who is known", "held by a job"],
)
def test_a_free_gpu_is_not_the_usage_of_an_unknown_owner(changes, path):
    """On the bill (unattributed) is held and charged: GPUs that nobody holds are in the whole list."""
    facts = finding_facts(replace(FREE, **changes))
    assert facts["path"].replace("%28", "(").replace("%29", ")").replace("%3A", ":") == path


def test_a_broken_gpu_is_not_offered():
    """What nobody holds is free to use only while it is healthy."""
    assert advice(FREE) == "Nobody holds it: it is free to use."
    degraded = replace(FREE, health="degraded", health_cause="a row remap waits for a reset")
    assert advice(degraded) == (
        "Nobody holds it, and it is degraded: a row remap waits for a reset."
    )
    assert advice(replace(degraded, resolved_ms=1)) == ""
    assert idle_facts(FREE, 1, "", is_partly_busy=False)["advice"] == advice(FREE)
    assert idle_facts(degraded, 1, "", is_partly_busy=False)["advice"] == advice(degraded)


def test_what_is_not_to_be_given_back_says_why():
    """As the list of idle GPUs does; what a command ends needs no advice."""
    waiting = replace(FREE, state="data_starved", team="vision")
    assert finding_facts(waiting)["advice"] == "Keep the GPU; its job waits for its input."
    assert finding_facts(replace(waiting, resolved_ms=1))["advice"] == ""
    assert finding_facts(replace(waiting, state="gone_idle"))["advice"] == ""


def test_a_gpu_that_was_free_twice_is_one_gpu():
    """In a month it was idle in two episodes."""
    other = replace(FREE, key="idle:3", subject="GPU-0002", gpu_micro=500_000)
    episodes = [FREE, replace(FREE, key="idle:2"), other, replace(other, key="idle:4")]
    assert count_gpus(episodes) == "1 GPU, 1 MIG slice"
