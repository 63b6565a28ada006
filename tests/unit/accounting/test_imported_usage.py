"""What was seen takes the place of imported counts, no more and no less: accelerators of a pool on
the nodes that a job names, and the pods of a job of Slurm.
"""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger_collector.accounting.imported_usage import (
    MAX_NODES,
    SeenAccelerator,
    SeenPod,
    _numbers,
    expand_nodes,
    without_pods,
    without_seen,
)
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.rating import ImportedUsage

DAY = Period(0, 86_400_000)
GPU = 1_000_000


def usage(job, gpus, start_ms=0, end_ms=1000, node="n1"):
    key = f"imported:import:hpc/{job}@{start_ms}"
    return ImportedUsage(1, start_ms, end_ms, gpus * GPU, "H100", "bridge", node, key=key)


def pod(job, accelerator, start_ms=0, end_ms=1000, node="n1", workload=1, micro=GPU, pool="k8s"):
    period = Period(start_ms, end_ms)
    return SeenPod(str(job), node, pool, node, micro, (accelerator, workload), period)


def left(usages, pods):
    """Micro-GPU-milliseconds that stay on the bill of imports."""
    rest, _ = without_pods(usages, pods, DAY, DAY.end_ms)
    return sum(part.gpu_micro * (part.end_ms - part.start_ms) for part in rest)


def test_two_pods_with_a_half_of_one_board_are_one_gpu():
    halves = [pod(1, 5, workload=number, micro=GPU // 2) for number in (1, 2)]
    assert left([usage(1, 1)], halves) == 0


def test_a_sighting_that_comes_twice_counts_once():
    assert left([usage(1, 2)], [pod(1, 5), pod(1, 5)]) == GPU * 1000


def test_other_jobs_and_nodes_stay_as_they_are():
    usages = [usage(1, 1, node="n[2-3]"), usage(2, 1)]
    assert without_pods(usages, [pod(1, 5)], DAY, DAY.end_ms) == (usages, [])


def test_what_is_left_keeps_its_nodes():
    (rest,), _ = without_pods([usage(1, 3, node="n[1-2]")], [pod(1, 5)], DAY, DAY.end_ms)
    assert (rest.node, rest.gpu_micro) == ("n[1-2]", 2 * GPU)


@given(
    gpus=st.integers(1, 8),
    pods=st.lists(st.tuples(st.integers(0, 11), st.integers(0, 1500), st.integers(1, 1500))),
)
def test_time_is_held_once(gpus, pods):
    """At every instant what stays is the count less the boards seen, and not below nothing."""
    seen = [pod(1, board, at, at + span) for board, at, span in pods]
    edges = {0, 1000} | {edge for one in seen for edge in (one.period.start_ms, one.period.end_ms)}
    inside = sorted(edge for edge in edges if edge <= 1000)
    expected = 0
    for start, end in pairwise(inside):
        boards = {
            one.holding for one in seen if one.period.start_ms <= start and end <= one.period.end_ms
        }
        expected += max(gpus - len(boards), 0) * GPU * (end - start)
    assert left([usage(1, gpus)], seen) == expected


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("n1", {"n1"}),
        ("n1,m2", {"n1", "m2"}),
        ("a[01-03,7],b", {"a01", "a02", "a03", "a7", "b"}),
        ("r[1-2]n[08-09]", {"r1n08", "r1n09", "r2n08", "r2n09"}),
        ("", set()),
        ("a[", {"a"}),
        ("a[x-y]", {"ax-y"}),
    ],
)
def test_lists_of_nodes(text, nodes):
    assert expand_nodes(text) == nodes


def test_a_list_of_too_many_nodes_ends():
    assert len(expand_nodes("a[0-99999]b[0-99999]")) == MAX_NODES


def test_a_list_of_many_ranges_ends():
    """Of which a line of sacct may hold thousands."""
    ranges = ",".join(["0-99999"] * 1_000)
    assert len(_numbers(ranges)) <= 2 * MAX_NODES + 1
    assert len(expand_nodes(f"a[{ranges}]")) == MAX_NODES


def boards(**counts):
    """Boards that were seen on these nodes in the pool of the jobs."""
    names = [node for node, count in counts.items() for _ in range(count)]
    return [
        SeenAccelerator("bridge", node, GPU, number, Period(0, 1000))
        for number, node in enumerate(names)
    ]


def kept(usages, seen):
    """GPUs that stay on the bill of imports, by job."""
    return {
        usage.key[len("imported:import:hpc/") :].partition("@")[0]: usage.gpu_micro / GPU
        for usage in without_seen(usages, seen, DAY, DAY.end_ms)
    }


def test_a_job_of_several_nodes_is_held_once():
    """Both of its nodes were measured, one of three, and none."""
    job = usage(1, 4, node="n[1-2]")
    assert kept([job], boards(n1=2, n2=2)) == {}
    assert kept([job], boards(n2=3)) == {"1": 1}
    assert kept([job], boards(n3=4)) == {"1": 4}


def test_who_names_one_node_goes_first():
    """And what several nodes have beyond it is for those that name them."""
    jobs = [usage(1, 2, node="n[1-2]"), usage(2, 1, node="n1")]
    assert kept(jobs, boards(n1=1, n2=1)) == {"1": 1}
    assert kept(jobs, boards(n1=2, n2=1)) == {}


def test_a_node_that_others_name_too_is_left_to_them():
    jobs = [usage(1, 1, node="n[1,3]"), usage(2, 1, node="n[1-2]")]
    assert kept(jobs, boards(n1=1, n3=1)) == {}


def kept_beside(usages, pods, seen):
    """GPUs that stay on the bill of imports, where both pods and boards of the pool were seen."""
    rest, spent = without_pods(usages, pods, DAY, DAY.end_ms)
    return sum(
        part.gpu_micro * (part.end_ms - part.start_ms)
        for part in without_seen(rest, seen, DAY, DAY.end_ms, spent)
    ) / (GPU * 1000)


def test_a_board_takes_the_place_of_one_gpu_once():
    """Three GPUs on two nodes, of which one was measured: its two boards are those of the pods."""
    job, seen = usage(1, 3, node="n[1-2]"), boards(n1=2)
    pods = [pod(1, board, pool="bridge") for board in (0, 1)]
    assert kept_beside([job], pods, seen) == 1
    # What a pod does not hold of a board is there for others.
    assert kept_beside([job], pods[:1], seen) == 1
    assert kept_beside([usage(1, 1), usage(2, 2)], pods, seen) == 1


def test_pods_of_another_pool_spend_no_board_of_this_one():
    """One GPU of the job is on a board elsewhere, and the boards of its pool are the other two."""
    job, seen = usage(1, 3, node="n[1-2]"), boards(n1=2)
    assert kept_beside([job], [pod(1, 9), pod(1, 0, pool="bridge")], seen) == 0


@given(
    counts=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    held=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 900), st.integers(1, 1000))),
    number=st.integers(0, 6),
)
def test_what_is_left_and_what_was_seen_are_the_larger_of_both(counts, held, number):
    """Jobs of one node in its own pool: at every instant no GPU is lost and none is there twice."""
    usages = [usage(job, count) for job, count in enumerate(counts)]
    pods = [
        pod(job % len(counts), at % number, start, start + span, pool="bridge")
        for at, (job, start, span) in enumerate(held)
        if number
    ]
    # A board is one job's at a time.
    alone = [
        one
        for at, one in enumerate(pods)
        if not any(
            other.holding[0] == one.holding[0] and other.period.clip(one.period)
            for other in pods[:at]
        )
    ]
    inside = [replace(one, period=one.period.clip(Period(0, 1000))) for one in alone]
    assert kept_beside(usages, inside, boards(n1=number)) == max(sum(counts) - number, 0)
