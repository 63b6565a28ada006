"""Slurm inside pods, and pods that Slurm schedules: whose the cards of a node are."""

import logging
from dataclasses import replace

import pytest

from fakes import kubelet
from fakes.apiserver import api_server
from fakes.kubernetes_node import card, cluster_owners
from gpuledger_agent.holder_observations import observe_holders
from gpuledger_agent.owners import discovery
from gpuledger_agent.owners.kubernetes import workload_of
from gpuledger_agent.owners.kubernetes_api import NamespaceFacts, PodFacts
from gpuledger_agent.owners.slinky import bridged_job_of
from gpuledger_agent.owners.slurm import SlurmOwners
from gpuledger_agent.settings import Settings
from gpuledger_common.readings import Accelerator

CARDS = [Accelerator(card(at), card(at), at, "NVIDIA H100") for at in range(2)]
NODE_SET = {"apiVersion": "slinky.slurm.net/v1beta1", "kind": "NodeSet", "name": "gpu", "uid": "s"}
JOB_ID = "scheduler.slinky.slurm.net/slurm-jobid"
ACCOUNT = "slurmjob.slinky.slurm.net/account"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with api_server(tmp_path_factory.mktemp("api")) as running:
        yield running


@pytest.fixture
def slurmd(tmp_path, server):
    """A node whose two cards were given to one pod."""
    server.reset()
    with kubelet.running(tmp_path / "kubelet.sock") as running:
        running.pods = [kubelet.pod("slurm", "gpu-0", card(0), card(1))]

        def holders(owner, reads_slurm=True):
            """Who holds what, where this object made the pod."""
            server.pods = [server.pod("slurm", "gpu-0", "u-0", owner=owner)]
            pods = cluster_owners(running.path, server, lambda: 0.0, reads_slurm=reads_slurm)
            pods._cluster.refresh()
            jobs = SlurmOwners(tmp_path / "jobs")
            known = observe_holders([jobs, pods], CARDS, [], pytest.fail)
            return {
                uuid: [(one.workload.kind, one.workload.id) for one in entries]
                for uuid, entries in known.holders.items()
            }

        yield holders


def start(tmp_path, job, uuid):
    """A job of Slurm on a card, as the prolog in the pod writes it into the host's folder."""
    (tmp_path / "jobs").mkdir(exist_ok=True)
    (tmp_path / "jobs" / job).write_text(f"job_id={job}\nuser=amina\naccount=nlp\nuuids={uuid}\n")


def test_the_jobs_inside_hold_the_cards_and_the_pod_of_slurmd_holds_nothing(slurmd, tmp_path):
    start(tmp_path, "7", card(1))
    assert slurmd(NODE_SET) == {card(1): [("slurm", "7")]}


def test_between_jobs_nobody_holds_the_cards(slurmd):
    assert slurmd(NODE_SET) == {}


def test_where_slurm_is_not_read_the_pod_holds_its_cards_and_that_is_said(slurmd, caplog):
    with caplog.at_level(logging.WARNING):
        held = slurmd(NODE_SET, reads_slurm=False)
    assert held == {card(at): [("kubernetes", "u-0")] for at in range(2)}
    assert "slurm/gpu-0 is a node of Slurm, and the jobs inside are not read" in caplog.text


@pytest.mark.parametrize("changes", [{"kind": "Job"}, {"apiVersion": "example.com/v1"}])
def test_only_a_node_set_of_slinky_makes_a_node_of_slurm(slurmd, changes):
    """No name or label takes a pod off the bill."""
    assert slurmd(NODE_SET | changes) == {card(at): [("kubernetes", "u-0")] for at in range(2)}


def test_the_account_of_a_bridged_pod_is_its_annotation():
    job = bridged_job_of({JOB_ID: "4711"}, {ACCOUNT: " nlp "}, {})
    assert (job.id, job.account, job.refused) == ("4711", "nlp", None)
    assert job.defaults == {"team": "nlp"}


@pytest.mark.parametrize(
    ("allowed", "is_allowed"), [("nlp, vision", True), ("*", True), ("", False)]
)
def test_a_namespace_may_say_which_accounts_its_pods_name(allowed, is_allowed):
    spaces = {"gpuledger.allowed-accounts": allowed}
    job = bridged_job_of({JOB_ID: "4711"}, {ACCOUNT: "nlp"}, spaces)
    assert (job.account, job.refused) == (("nlp", None) if is_allowed else (None, "nlp"))


@pytest.mark.parametrize("number", ["", "x7", "7 or 8"])
def test_what_is_no_job_id_is_none(number):
    assert bridged_job_of({JOB_ID: number}, {ACCOUNT: "nlp"}, {}) is None


def test_a_bridged_pod_is_attributed_as_its_job(tmp_path, server):
    server.reset()
    server.pods = [
        server.pod("ml", "a", "u-a", annotations={ACCOUNT: "nlp"}, **{JOB_ID: "4711"}),
        server.pod("ml", "b", "u-b", annotations={ACCOUNT: "nlp"}, **{JOB_ID: "4711"}),
    ]
    with kubelet.running(tmp_path / "kubelet.sock") as running:
        running.pods = [kubelet.pod("ml", name, card(at)) for at, name in enumerate("ab")]
        owners = cluster_owners(running.path, server, lambda: 0.0)
        owners._cluster.refresh()
        held = owners.holders(CARDS, [])
        a, b = (held[card(at)][0].workload for at in range(2))
        assert (a.account, a.tags["team"], a.tags["slurm_job_id"]) == ("nlp", "nlp", "4711")
        assert a.job == b.job == "SlurmJob ml/4711"
        # The namespace goes before what a user wrote, and what it does not allow is a refused claim.
        server.namespaces = [
            {
                "metadata": {
                    "name": "ml",
                    "labels": {"team": "vision"},
                    "annotations": {"gpuledger.allowed-accounts": "vision"},
                }
            }
        ]
        owners = cluster_owners(running.path, server, lambda: 0.0)
        owners._cluster.refresh()
        refused = owners.holders(CARDS, [])[card(0)][0].workload
        assert (refused.account, refused.tags["team"]) == (None, "vision")
        assert refused.refused == {"team": "nlp"}


def bridged(labels, annotations=None, space=None):
    """A pod in a namespace as a workload."""
    facts = PodFacts("u-a", labels, annotations=annotations or {})
    return workload_of("ml", "a", (), facts, space or NamespaceFacts())


@pytest.mark.parametrize("own", [{}, {"team": "finance"}])
def test_an_account_is_no_way_around_the_teams_that_a_namespace_allows(own):
    """Users write it, as they write the label."""
    space = NamespaceFacts({}, {"gpuledger.allowed-teams": "vision, nlp"})
    pod = bridged({JOB_ID: "4711"} | own, {ACCOUNT: "robots"}, space)
    assert "team" not in pod.tags
    assert pod.refused == {"team": own.get("team", "robots")}
    assert bridged({JOB_ID: "4711"}, {ACCOUNT: "nlp"}, space).tags["team"] == "nlp"
    named = bridged({JOB_ID: "4711", "team": "vision"}, {ACCOUNT: "robots"}, space)
    assert (named.tags["team"], named.refused) == ("vision", {})


def test_only_slurms_own_label_names_a_job_of_slurm():
    """By that tag a pod takes a job off what Slurm's accounting says."""
    space = NamespaceFacts({"slurm_job_id": "1"}, {})
    assert "slurm_job_id" not in bridged({"slurm_job_id": "4711"}, space=space).tags
    assert bridged({"slurm_job_id": "4", JOB_ID: "12"}).tags["slurm_job_id"] == "12"


def test_jobs_inside_are_known_where_their_folder_is_and_slurm_is_an_owner_source(tmp_path):
    jobs = tmp_path / "jobs"
    with kubelet.running(tmp_path / "kubelet.sock") as running:
        settings = Settings(
            kubelet_socket=running.path,
            kubernetes_api_url="off",
            spool_dir=tmp_path,
            slurm_jobs_dir=jobs,
        )
        assert discovery.kubernetes_owners(settings)._reads_slurm is False
        jobs.mkdir()
        assert discovery.kubernetes_owners(settings)._reads_slurm is True
        without = replace(settings, owners="kubernetes,processes")
        assert discovery.kubernetes_owners(without)._reads_slurm is False
