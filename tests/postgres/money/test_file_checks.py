"""What is said of a file of jobs before it is imported: nodes that hold too much, and rows that are
no jobs.
"""

import pytest

from gpuledger_collector.ingest.files.headers import TableOptions
from gpuledger_collector.ingest.files.node_load import NodeLoad, node_loads, overfull
from gpuledger_collector.ingest.files.usage import UsageOptions, read_usage

HEADER = "job_id,team,gpus,start,end,node\n"
OPENCOST = (
    "name,namespace,team,gpus,start,end\n"
    "train-0,vision,cv,2,2026-10-01T00:00Z,2026-10-01T12:00Z\n"
    "serve-0,web,__unallocated__,1,2026-10-01T00:00Z,2026-10-01T10:00Z\n"
    ",__idle__,,4,2026-10-01T00:00Z,2026-10-02T00:00Z\n"
    "cluster-one/__idle__,,,4,2026-10-01T00:00Z,2026-10-02T00:00Z\n"
    "__unmounted__,__unmounted__,,0,2026-10-01T00:00Z,2026-10-02T00:00Z\n"
)


def loads(path):
    """The highest load of each node of a file."""
    return list(node_loads(read_usage(path, UsageOptions(table=TableOptions())).rows))


def test_two_jobs_that_hold_more_than_a_node_usually_has_are_said(run, written, fleet) -> None:
    """By both commands, before anything is billed; they are billed as written."""
    rows = "a,x,8,2026-10-01T08:00Z,2026-10-01T12:00Z,gpu-01\nb,x,8,2026-10-01T10:00Z,2026-10-01T14:00Z,gpu-01\n"
    path = written("jobs.csv", HEADER + rows)
    sentence = (
        "node gpu-01: its jobs hold 16 GPUs at 2026-10-01T10:00:00Z ('a', 'b'), more than a server"
        " usually has: billed as written; gpuledger import inventory says how many it has"
    )
    for command in (
        ("import", "usage", path, "--dry-run"),
        ("start", path, "--rate", "1", "--yes"),
    ):
        code, out, err = run(*command)
        assert code == 0, err
        assert sentence in err.splitlines()
    assert "64.00" in out


def test_a_node_that_the_ledger_knows_is_measured_by_it(run, written, fleet) -> None:
    """Four GPUs by the inventory: two jobs of two fit, and two of three do not."""
    header = "uuid,gpu_model,node,pool,in_at,out_at\n"
    devices = "".join(f"GPU-{number},H100,gpu-01,train,2026-01-01T00:00Z,\n" for number in range(4))
    code, _, err = run("import", "inventory", written("inventory.csv", header + devices))
    assert code == 0, err
    for gpus, has_sentence in ((2, False), (3, True)):
        rows = "".join(
            f"{job},x,{gpus},2026-10-01T08:00Z,2026-10-01T12:00Z,gpu-01\n" for job in "ab"
        )
        code, _, err = run("import", "usage", written(f"{gpus}.csv", HEADER + rows), "--dry-run")
        assert code == 0, err
        assert (
            "its jobs hold 6 GPUs at 2026-10-01T08:00:00Z ('a', 'b'), and has 4 GPUs" in err
        ) == has_sentence


@pytest.mark.parametrize(
    "rows",
    [
        "a,x,8,2026-10-01T08:00Z,2026-10-01T12:00Z,n1\nb,x,8,2026-10-01T12:00Z,2026-10-01T14:00Z,n1\n",
        "a,x,8,2026-10-01T08:00Z,2026-10-01T12:00Z,n1\nb,x,8,2026-10-01T08:00Z,2026-10-01T12:00Z,n2\n",
        'a,x,8,2026-10-01T08:00Z,2026-10-01T12:00Z,"n[1-2]"\nb,x,8,2026-10-01T08:00Z,2026-10-01T12:00Z,"n[1-2]"\n',
        "a,x,32,2026-10-01T08:00Z,2026-10-01T12:00Z,n1\n",
        "a,x,4,2026-10-01T08:00Z,2026-10-01T12:00Z,n1\nb,x,4,2026-10-01T08:00Z,2026-10-01T12:00Z,n1\n",
        "a,x,8,2026-10-01T08:00Z,2026-10-01T12:00Z,\nb,x,8,2026-10-01T08:00Z,2026-10-01T12:00Z,\n",
    ],
    ids=["one after the other", "two nodes", "a list of nodes", "one job", "eight", "no node"],
)
def test_what_may_be_is_not_said(written, rows) -> None:
    """Jobs that follow each other, or hold no more than is usual, or whose node is not known."""
    assert overfull(loads(written("jobs.csv", HEADER + rows)), {}) == []


def test_a_job_that_goes_on_holds_its_gpus(written) -> None:
    """Its end is open."""
    rows = "a,x,8,2026-10-01T08:00Z,,n1\nb,x,0.5,2026-10-03T08:00Z,2026-10-03T09:00Z,n1\n"
    (load,) = loads(written("jobs.csv", HEADER + rows))
    assert (load.gpu_micro, load.jobs) == (8_500_000, ("a", "b"))
    assert "hold 8.5 GPUs" in overfull([load], {})[0]


def test_many_nodes_are_counted() -> None:
    """Five are named."""
    full = [NodeLoad(f"n{number}", 16_000_000, 0, ("a", "b")) for number in range(9)]
    assert len(overfull(full, {})) == 6
    assert overfull(full, {})[-1] == "4 more nodes whose jobs hold more than it has"


def test_rows_of_opencost_that_are_no_workloads_are_told_apart(run, written, fleet) -> None:
    """Idle GPUs and volumes are left out and said; a workload without an owner is billed without
    one.
    """
    code, out, err = run(
        "start",
        written("opencost.csv", OPENCOST),
        "--column",
        "workload_id=name",
        "--rate",
        "2",
        "--yes",
    )
    assert code == 0, err
    assert "2 rows '__idle__' of OpenCost (GPUs that no pod held): left out" in err
    assert "1 row '__unmounted__' of OpenCost (volumes that no pod mounted): left out" in err
    assert "1 row with '__unallocated__' for an owner: billed without that tag" in err
    amounts = {
        line.split()[0]: line.split()[1:3]
        for line in out.splitlines()
        if line[:5] in {"cv   ", "total", "(unat"}
    }
    assert amounts["total"][0] == "34.0"
    assert "68.00" in out
    assert "__" not in out[out.index("gpuledger chargeback") :]
