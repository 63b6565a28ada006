"""A job is one line, with its pods inside: from owner references, labels and annotations to the
bill.
"""

import csv
import io
import json

import pytest

from fakes.facts import AUGUST_MS, HOUR, SEPTEMBER_MS
from fakes.kubernetes_node import card

JOBSET = {
    "jobset.sigs.k8s.io/jobset-name": "llm",
    "jobset.sigs.k8s.io/jobset-uid": "js-1",
    "batch.kubernetes.io/job-name": "llm-workers-0",
}


def test_the_pods_of_a_job_and_of_its_restart_are_one_line(node):
    """Three pods for an hour, then three others in their place: six GPU-hours of one JobSet."""
    for attempt in range(2):
        node.clear()
        for at in range(3):
            labels = {
                "team": "vision",
                **JOBSET,
                "jobset.sigs.k8s.io/restart-attempt": f"{attempt}",
            }
            node.pod("vision", f"llm-{attempt}-{at}", card(at), **labels)
        node.pod("vision", f"shell-{attempt}", card(3), team="vision")
        node.hold(AUGUST_MS + attempt * HOUR)
    hours = node.hours("2026-08", "job")
    assert hours.pop("(unobserved)")
    assert hours == {
        "JobSet vision/llm": "6.000000",
        "kubernetes::uid-shell-0": "1.000000",
        "kubernetes::uid-shell-1": "1.000000",
    }
    out = node.world.run(
        *("chargeback", "--period", "2026-08", "--by", "job,workload", "--format", "csv")
    )
    inside = [
        (row["workload"], row["cost"])
        for row in csv.DictReader(io.StringIO(out))
        if row["job"] == "JobSet vision/llm"
    ]
    assert inside == [(f"kubernetes::uid-llm-{a}-{n}", "10.00") for a in range(2) for n in range(3)]
    cash = node.world.run(
        *("chargeback", "--period", "2026-08", "--by", "job", "--view", "cash", "--format", "csv")
    )
    assert "JobSet vision/llm" in cash


def test_a_closed_month_keeps_the_jobs_that_it_was_closed_with(node):
    """What is said of a pod in September is not said of its August."""
    node.pod("vision", "solo", card(0), team="vision")
    node.hold(AUGUST_MS)
    node.world.run("close", "--period", "2026-08")
    before = node.world.bill("2026-08", "job")
    assert before["kubernetes::uid-solo"][0] == "1.000000"
    node.api.pods[0]["metadata"]["labels"] |= JOBSET
    node.hold(SEPTEMBER_MS)
    assert node.hours("2026-09", "job")["JobSet vision/llm"] == "1.000000"
    assert node.world.bill("2026-08", "job") == before
    assert "kubernetes::uid-solo" not in node.world.bill("2026-09", "job")
    node.world.run("periods", "--verify", "2026-08")


def test_a_correction_is_of_the_job_that_its_closed_day_had(node):
    """A late hour of August is booked when the pod belongs to a job; the list of August has it beside
    the hour that it was closed with.
    """
    node.pod("vision", "solo", card(0), team="vision")
    node.hold(AUGUST_MS)
    node.world.run("close", "--period", "2026-08")
    node.api.pods[0]["metadata"]["labels"] |= JOBSET
    node.hold(AUGUST_MS + HOUR)
    node.world.run("reconcile")
    assert node.world.rows(
        "SELECT count(*) > 0, bool_and(booked_day_ms > day_ms) FROM correction"
    ) == [(True, True)]
    out = node.world.run("runs", "--period", "2026-08", "--by", "job", "--format", "json")
    assert [(row["job"], row["gpu_hours"]) for row in json.loads(out)] == [
        ("kubernetes::uid-solo", "2.00")
    ]


def test_a_job_has_one_line_of_runs_and_one_receipt(node):
    """With the keys of its pods; a second job of the name is another line, and costs what it held."""
    for attempt, uid in enumerate(("js-1", "js-1", "js-2")):
        node.clear()
        for at in range(2):
            labels = {**JOBSET, "jobset.sigs.k8s.io/jobset-uid": uid, "team": "vision"}
            node.pod("vision", f"llm-{attempt}-{at}", card(at), **labels)
        node.hold(AUGUST_MS + attempt * HOUR)
    words = ("runs", "--period", "2026-08", "--by", "job")
    listed = json.loads(node.world.run(*words, "--format", "json"))
    rows = [(row["job"], row["uid"], row["pods"], row["gpu_hours"]) for row in listed]
    assert rows == [
        ("JobSet vision/llm", "js-1", "4", "4.00"),
        ("JobSet vision/llm", "js-2", "2", "2.00"),
    ]
    assert listed[1]["workloads"] == "kubernetes::uid-llm-2-0 kubernetes::uid-llm-2-1"
    assert "JobSet vision/llm" in node.world.run(*words)
    node.world.run(*words, "--sort", "unit", code=2)
    receipt = json.loads(node.world.run("receipt", "JobSet vision/llm", "--format", "json"))
    assert receipt["totals"]["USD"]["cost_micro"] == 60_000_000
    assert len(receipt["pods"]) == 6
    assert "job of 6 pods" in node.world.run("receipt", "JobSet vision/llm")
    single = json.loads(node.world.run("receipt", "kubernetes::uid-llm-2-0", "--format", "json"))
    assert (single["totals"]["USD"]["cost_micro"], "pods" in single) == (10_000_000, False)


@pytest.mark.parametrize(
    ("labels", "owner", "job"),
    [
        ({}, {"kind": "Job", "name": "train", "uid": "j1"}, "Job ns/train"),
        ({}, {"kind": "ReplicaSet", "name": "chat-7d9f5c4b6d", "uid": "r1"}, "Deployment ns/chat"),
        ({}, {"kind": "StatefulSet", "name": "db", "uid": "s1"}, "StatefulSet ns/db"),
        (
            {**JOBSET, "trainer.kubeflow.org/trainjob-ancestor-step": "trainer"},
            {"kind": "Job", "name": "llm-node-0", "uid": "j2"},
            "TrainJob ns/llm",
        ),
        (
            {"training.kubeflow.org/job-name": "resnet"},
            {"kind": "PyTorchJob", "name": "resnet", "uid": "p1"},
            "PyTorchJob ns/resnet",
        ),
        (
            {"ray.io/cluster": "tune-x7k2p"},
            {"kind": "RayCluster", "name": "tune-x7k2p", "uid": "c1"},
            "RayCluster ns/tune-x7k2p",
        ),
        (
            {
                "ray.io/cluster": "tune-x7k2p",
                "ray.io/originated-from-crd": "RayJob",
                "ray.io/originated-from-cr-name": "tune",
            },
            None,
            "RayJob ns/tune",
        ),
        (
            {"workflows.argoproj.io/workflow": "pipe-4f2ab"},
            {"kind": "Workflow", "name": "pipe-4f2ab", "uid": "w1"},
            "Workflow ns/pipe-4f2ab",
        ),
        (
            {"serving.kserve.io/inferenceservice": "chat"},
            {"kind": "ReplicaSet", "name": "chat-predictor-00001-5b7c", "uid": "r2"},
            "InferenceService ns/chat",
        ),
        (
            {"leaderworkerset.sigs.k8s.io/name": "vllm"},
            {"kind": "StatefulSet", "name": "vllm-0", "uid": "s2"},
            "LeaderWorkerSet ns/vllm",
        ),
        (
            {"notebook-name": "ada"},
            {"kind": "StatefulSet", "name": "ada", "uid": "s3"},
            "Notebook ns/ada",
        ),
        ({"volcano.sh/job-name": "mpi"}, None, "VolcanoJob ns/mpi"),
        ({"skypilot-cluster-name": "sky-1"}, None, "SkyPilot ns/sky-1"),
    ],
)
def test_each_system_names_its_job(node, labels, owner, job):
    """The outermost object, whichever label or owner reference says it."""
    node.pod("ns", "p", card(0), owner=owner, **labels)
    node.hold(AUGUST_MS)
    assert job in node.hours("2026-08", "job")


def test_a_label_does_not_join_the_job_of_another_namespace(node):
    """Two jobs of one name in two namespaces are two."""
    node.pod("vision", "a", card(0), **JOBSET)
    node.pod("nlp", "b", card(1), **JOBSET)
    node.hold(AUGUST_MS)
    assert set(node.hours("2026-08", "job")) >= {"JobSet vision/llm", "JobSet nlp/llm"}


def test_people_come_from_where_each_system_keeps_them(node):
    """A hub's real user, an orchestrator's whole run, a launcher's user, the owner of a profile."""
    long = "d" * 100
    node.pod(
        "hub",
        "jupyter-ada",
        card(0),
        annotations={"hub.jupyter.org/username": "Ada.Lovelace@example.com"},
        component="singleuser-server",
        **{"hub.jupyter.org/username": "ada-lovelace-example---1f"},
    )
    node.pod(
        "air",
        "etl",
        card(1),
        annotations={"dag_id": long, "run_id": "manual__2026-08-01", "task_id": "train"},
        dag_id=f"{long[:50]}-9f",
        run_id="manual__2026",
        airflow_version="3.1",
    )
    node.pod("sky", "head", card(2), **{"skypilot-user": "lin"})
    node.api.namespaces = [
        {"metadata": {"name": "profile", "annotations": {"owner": "kim@example.com"}}}
    ]
    node.pod("profile", "nb-0", card(3), **{"notebook-name": "nb"})
    node.hold(AUGUST_MS)
    users = node.hours("2026-08", "user")
    assert {"Ada.Lovelace@example.com", "lin", "kim@example.com"} <= set(users)
    assert node.hours("2026-08", "experiment")[long] == "1.000000"
    assert node.hours("2026-08", "run")["manual__2026-08-01"] == "1.000000"
    assert {f"AirflowRun air/{long}/manual__2026-08-01", "Notebook hub/jupyter-ada"} <= set(
        node.hours("2026-08", "job")
    )


def test_a_rule_may_go_by_the_job(node, tmp_path):
    """`job` is a fact like the name: a tag of that name does not replace it."""
    rules = tmp_path / "rules.toml"
    rules.write_text(
        '[[rule]]\nname = "llm"\nmatch = {job = "JobSet */llm"}\nassign = {team = "llm"}\n'
    )
    node.world.run("apply", rules)
    node.pod("vision", "a", card(0), job="not this", **JOBSET)
    node.hold(AUGUST_MS)
    assert node.hours("2026-08", "team")["llm"] == "1.000000"
