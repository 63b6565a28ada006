"""Where the overview leads from a GPU that does nothing."""

from dataclasses import replace

import pytest

from gpuledger_collector.export.findings import advice, count_gpus, free_facts, idle_facts
from gpuledger_collector.export.statement import finding_facts
from gpuledger_collector.insight.findings import FreeGroup, IdleRemedy, NamedFinding
from gpuledger_collector.services.findings import FindingList

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
    assert idle_facts(FREE, 1)["advice"] == advice(FREE)
    assert idle_facts(degraded, 1)["advice"] == advice(degraded)


def test_free_ones_that_are_broken_are_counted_apart():
    """As they are on the page of demand; what has ended says nothing of now."""
    half = replace(FREE, key="idle:2", subject="GPU-0002", gpu_micro=500_000)
    broken = replace(FREE, key="idle:3", subject="GPU-0003", health="degraded")
    counts = {
        "1 GPU": [FREE],
        "1 GPU, 1 MIG slice, and 1 GPU degraded or failed": [FREE, half, broken],
        "0 GPUs, and 1 GPU degraded or failed": [broken],
        "2 GPUs": [FREE, replace(broken, resolved_ms=1)],
    }
    for text, items in counts.items():
        assert free_facts(FreeGroup("H100", items, None), "model")["counted"] == text


def test_what_is_not_to_be_given_back_says_why():
    """As the list of idle GPUs does; what a command ends needs no advice."""
    waiting = replace(FREE, state="data_starved", team="vision")
    assert finding_facts(waiting)["advice"] == "Keep the GPU; its job waits for its input."
    assert finding_facts(replace(waiting, resolved_ms=1))["advice"] == ""
    idle = replace(waiting, state="gone_idle")
    assert finding_facts(idle)["advice"] == "End its job, or ask its user."
    ended = finding_facts(idle, IdleRemedy("scancel 7"))
    assert (ended["command"], ended["advice"]) == ("scancel 7", "")
    busy = finding_facts(idle, IdleRemedy(is_partly_busy=True))
    assert busy["advice"] == "The other GPUs of its job are busy: ask for fewer next time."


def test_what_to_act_on_stands_before_what_is_kept():
    """By what a further day costs; what has ended stays where it is."""

    def held(key, state, per_day, **more):
        usd = {"per_day_micro": per_day, "currency": "USD", **more}
        return replace(FREE, key=key, state=state, team="vision", **usd)

    items = [
        held("kept", "data_starved", 9),
        held("busy", "gone_idle", 8),
        replace(FREE, key="free", per_day_micro=7, currency="USD"),
        held("cheap", "gone_idle", 1),
        held("dear", "never_used", 2),
        held("ended", "gone_idle", 30, resolved_ms=1),
        held("ended before", "gone_idle", 40, resolved_ms=1),
    ]
    remedies = {"busy": IdleRemedy(is_partly_busy=True), "cheap": IdleRemedy("scancel 7")}
    ordered = FindingList(items, None).to_act_on_first(remedies)
    keys = ["dear", "cheap", "kept", "busy", "free", "ended", "ended before"]
    assert [item.key for item in ordered.items] == keys
    acted_on = FindingList(items, None).to_act_on(remedies)
    assert [item.key for item in acted_on.items] == ["dear", "cheap"], "on the overview, alone"


def test_a_gpu_that_was_free_twice_is_one_gpu():
    """In a month it was idle in two episodes."""
    other = replace(FREE, key="idle:3", subject="GPU-0002", gpu_micro=500_000)
    episodes = [FREE, replace(FREE, key="idle:2"), other, replace(other, key="idle:4")]
    assert count_gpus(episodes) == "1 GPU, 1 MIG slice"
