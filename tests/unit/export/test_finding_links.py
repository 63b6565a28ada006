"""Where the overview leads from a GPU that does nothing."""

import pytest

from gpuledger_collector.export.statement import finding_facts

ROW = {
    "kind": "idle",
    "state": "unallocated",
    "subject": "GPU-0001",
    "model": "H100",
    "team": "",
    "workload": None,
    "workload_key": None,
    "workload_name": None,
    "user_name": None,
    "currency": None,
    "cost_micro": None,
    "per_day_micro": None,
    "since_ms": 0,
    "resolved_ms": None,
    "evidence": {},
    "key": "idle:1",
}


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
    facts = finding_facts({**ROW, **changes})
    assert facts["path"].replace("%28", "(").replace("%29", ")").replace("%3A", ":") == path
