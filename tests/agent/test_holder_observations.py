"""Allocation beside use, and counters that only rise."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from gpuledger_agent.holder_observations import HolderObservations, observe_holders
from gpuledger_agent.monotonic_counters import MonotonicCounters
from gpuledger_common.readings import Accelerator, Holder, Workload

CARD = Accelerator("GPU-a", "GPU-a", 0, "H100")


class Owner:
    """An owner source that says one thing."""

    def __init__(self, name, *workloads, broken=False):
        self.name, self.workloads, self.broken = name, workloads, broken

    def holders(self, accelerators, samples):
        if self.broken:
            raise RuntimeError("broken")
        return {"GPU-a": [Holder(workload) for workload in self.workloads]}


def asked(*owners) -> HolderObservations:
    failed = []
    found = observe_holders(owners, [CARD], [], lambda owner, error: failed.append(owner.name))
    assert found.complete == (not failed)
    return found


JOB, OTHER_JOB = Workload("42", "slurm"), Workload("43", "slurm")
SHELL = Workload("amina:python:7:99", "process", "amina")


def test_an_allocation_has_the_word_and_its_own_process_is_no_stranger():
    """The job that was given the card runs on it: nothing to see."""
    found = asked(Owner("slurm", JOB), Owner("processes", JOB))
    assert [holder.workload.id for holder in found.holders["GPU-a"]] == ["42"]
    assert found.disagreement("GPU-a", 1) == ""


def test_allocated_without_a_process_is_seen():
    """The worst waste: given to a job, and nothing runs. It is still the job's time."""
    found = asked(Owner("slurm", JOB), Owner("processes"))
    assert found.holders["GPU-a"][0].workload == JOB
    assert found.disagreement("GPU-a", 0) == "allocated without a process"
    # The driver does not list processes: nothing is known.
    assert found.disagreement("GPU-a", None) == ""


def test_used_without_an_allocation_is_seen_and_billed_to_whom_runs():
    """A login shell beside the scheduler: nobody gave the card, somebody uses it."""
    found = asked(Owner("slurm"), Owner("processes", SHELL))
    assert found.holders["GPU-a"][0].workload == SHELL
    assert found.allocated == frozenset()
    assert found.disagreement("GPU-a", 1) == "used without an allocation"


def test_a_stranger_on_an_allocated_card_is_seen_and_not_billed():
    """Job 43 runs where job 42 was allocated: 42 holds it, the difference is shown."""
    found = asked(Owner("slurm", JOB), Owner("processes", OTHER_JOB, JOB))
    assert [holder.workload.id for holder in found.holders["GPU-a"]] == ["42"]
    assert found.disagreement("GPU-a", 2) == "used without an allocation"


def test_a_plain_machine_has_no_disagreement():
    """Without a source of allocations, use is all there is."""
    assert asked(Owner("processes", SHELL)).disagreement("GPU-a", 1) == ""


def test_any_process_may_be_of_a_reservation():
    """A static rule names no processes."""
    found = asked(Owner("static", Workload("vision", "static")), Owner("processes", SHELL))
    assert found.disagreement("GPU-a", 1) == ""


def test_a_pod_is_known_by_its_uid_whatever_its_id_is():
    """pod-resources knows namespace and name, the cgroup the uid: the tag joins them."""
    given_pod = Workload("ml/train-0", "kubernetes", tags={"pod_uid": "u-1"})
    assert (
        asked(
            Owner("kubernetes", given_pod), Owner("processes", Workload("u-1", "kubernetes"))
        ).disagreement("GPU-a", 1)
        == ""
    )
    nameless = Workload("ml/train-0", "kubernetes")
    assert (
        asked(
            Owner("kubernetes", nameless), Owner("processes", Workload("u-1", "kubernetes"))
        ).disagreement("GPU-a", 1)
        == "used without an allocation"
    )


def test_the_first_allocation_has_the_word_and_a_broken_source_takes_no_other_along():
    """Order is precedence; what one source could not say is known to be missing."""
    found = asked(Owner("static", Workload("vision", "static")), Owner("slurm", JOB))
    assert found.holders["GPU-a"][0].workload.id == "vision"
    found = asked(Owner("kubernetes", broken=True), Owner("slurm", JOB))
    assert not found.complete
    assert found.holders["GPU-a"][0].workload == JOB


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=30))
def test_a_counter_never_falls_and_counts_all_that_was_counted(readings):
    """Over any readings it rises by each rise, and by the whole new value after each fall."""
    counters = MonotonicCounters()
    made = [
        counters.correct("GPU-a", {"gpu_energy_joules_total": raw})["gpu_energy_joules_total"]
        for raw in readings
    ]
    assert made == sorted(made)
    counted = readings[0]
    for before, now in itertools.pairwise(readings):
        counted += now - before if now >= before else now
    assert made[-1] == counted


def test_counters_are_each_card_s_own_and_gauges_may_fall():
    """Two cards do not share what was counted before."""
    counters = MonotonicCounters()
    assert (
        counters.correct("a", {"gpu_energy_joules_total": 5, "gpu_power_watts": 9.0})[
            "gpu_power_watts"
        ]
        == 9.0
    )
    assert counters.correct("b", {"gpu_energy_joules_total": 3})["gpu_energy_joules_total"] == 3
    assert counters.correct("a", {"gpu_energy_joules_total": 1, "gpu_power_watts": 1.0}) == {
        "gpu_energy_joules_total": 6,
        "gpu_power_watts": 1.0,
    }
