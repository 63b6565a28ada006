"""A shared Ray cluster from the processes of its jobs to the bill of their teams, right by hand."""

import pytest

from fakes.facts import AUGUST_MS
from fakes.kubernetes_node import HOUR, card
from fakes.ray_cluster import driver, job_api, run_process, worker
from gpuledger_agent.owners.ray import RayOwners, RayProcesses
from gpuledger_common.readings import Process

UIDS = ("0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0", "1f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0")


@pytest.fixture
def cluster(node, tmp_path):
    """Pods of the cluster ml/shared with a card each, in a namespace of three teams."""
    proc = tmp_path / "proc"
    with job_api() as api:
        ray = RayOwners({"ml/shared": api.url}, RayProcesses(proc))
        node.read_ray(ray)
        space = {"name": "ml", "labels": {"team": "platform"}}
        space["annotations"] = {"gpuledger.allowed-teams": "vision, nlp"}
        node.api.namespaces = [{"metadata": space}]
        for at, uid in enumerate(UIDS):
            node.pod("ml", f"shared-{at}", card(at), **{"ray.io/cluster": "shared"})
            node.api.pods[-1]["metadata"]["uid"] = uid

        def run(**cards):
            """Processes of these jobs on each card, then an hour of them."""
            node.processes = {}
            for at, jobs in enumerate(cards.values()):
                uuid = card(at)
                for environment in jobs:
                    pid = 100 + len(list(proc.iterdir())) if proc.exists() else 100
                    run_process(proc, pid, UIDS[at], environment)
                    node.processes.setdefault(uuid, []).append(Process(pid))
            # The first look names the jobs, the job API says whose they are.
            node.owners._cluster.refresh()
            node.owners.holders(
                node.cards, [_sample(uuid, found) for uuid, found in node.processes.items()]
            )
            ray.ask()

        yield api, run


def _sample(uuid, processes):
    from gpuledger_common.readings import Sample

    return Sample(uuid, 0, {}, processes=processes)


def test_jobs_pay_while_they_are_alive_and_the_cluster_pays_for_the_rest(node, cluster):
    """Two cards for three hours, 6 GPU-hours at 10 USD:

    first both are idle; then vision has one and shares the other with nlp; then nlp has one.
    """
    api, run = cluster
    api.submit("02000000", "raysubmit_a", team="vision", user="amina")
    api.submit("03000000", "raysubmit_b", team="nlp")
    run(a=[], b=[])
    node.hold(AUGUST_MS)
    run(a=[worker("02000000")] * 2, b=[worker("02000000"), worker("03000000")])
    node.hold(AUGUST_MS + HOUR)
    run(a=[], b=[driver("raysubmit_b")])
    node.hold(AUGUST_MS + 2 * HOUR)
    teams = node.world.bill("2026-08")
    assert teams["vision"] == ("1.500000", "15.00")
    assert teams["nlp"] == ("1.500000", "15.00")
    assert teams["platform"] == ("3.000000", "30.00")
    jobs = node.world.bill("2026-08", "job")
    assert jobs["RayJob ml/shared/raysubmit_a"] == ("1.500000", "15.00")
    assert jobs["RayJob ml/shared/raysubmit_b"] == ("1.500000", "15.00")
    assert jobs["RayCluster ml/shared"] == ("3.000000", "30.00")
    assert node.hours("2026-08", "user")["amina"] == "1.500000"


def test_a_job_bills_no_team_that_its_namespace_does_not_allow(node, cluster):
    api, run = cluster
    api.submit("02000000", "raysubmit_a", team="finance")
    run(a=[worker("02000000")], b=[])
    node.hold(AUGUST_MS)
    teams = node.world.bill("2026-08")
    assert teams["platform"] == ("2.000000", "20.00")
    assert "finance" not in teams
    (kept,) = node.world.rows("SELECT subject FROM refused_claim")
    assert kept == ("ml/shared-0 raysubmit_a claims team finance",)
