"""Queues of Kueue, Volcano and KAI Scheduler read by several collectors, of several clusters, by the
command, and of a real API server.
"""

import json
import time
from pathlib import Path

import pytest
import yaml

from fakes.facts import AUGUST_MS, HOUR
from fakes.kubernetes_node import card
from fakes.ready_engines import control_plane
from fakes.scheduler_cluster import (
    SchedulerCluster,
)
from gpuledger_collector.ingest.scheduler_queues.reader import open_client, read_schedulers
from gpuledger_collector.services.scheduler_queues import read_queues
from gpuledger_collector.settings import QUEUE_SCHEDULERS
from gpuledger_collector.storage.database import Database

MINUTE = 60_000
CRDS = Path(__file__).parents[4] / "shared" / "data" / "crds"
SPAN = ("--from", "2026-08-01", "--to", "2026-08-02")


@pytest.fixture
def cluster(api):
    """The three schedulers behind the recorded API server."""
    api.reset()
    made = SchedulerCluster()
    made.serve(api)
    return made


@pytest.fixture
def reads(api, dsn):
    """Reads the queues as of an instant."""
    client = open_client(api.url, api.account / "token", api.account / "ca.crt")

    def read(at_ms, schedulers=QUEUE_SCHEDULERS, cluster="", client=client):
        return read_queues(Database(dsn), client, schedulers, cluster, lambda: at_ms)

    return read


@pytest.fixture
def listed(run):
    """Rows of a list of `gpuledger queues` for the first of August."""

    def ask(name, span=SPAN):
        code, out, err = run("queues", name, *span, "--format", "json")
        assert code == 0, err
        return json.loads(out)

    return ask


def by_queue(rows):
    return {(row["scheduler"], row["queue"]): row for row in rows}


def test_two_collectors_that_read_add_the_time_once(cluster, reads, listed):
    """Whichever is later in its clock goes on; an older reading than the last says nothing."""
    for minute in range(61):
        reads(AUGUST_MS + minute * MINUTE)
        assert reads(AUGUST_MS + minute * MINUTE) == 0
        assert reads(AUGUST_MS + minute * MINUTE - 1) == 0
    assert float(by_queue(listed("list"))["kueue", "vision-cq"]["gpu_hours_used"]) == 16


def doctor(run, monkeypatch, api, schedulers="kueue,volcano,kai"):
    for name, value in {
        "QUEUES": schedulers,
        "API": api.url,
        "TOKEN_FILE": api.account / "token",
        "CA_FILE": api.account / "ca.crt",
    }.items():
        monkeypatch.setenv(f"GPULEDGER_KUBERNETES_{name}", str(value))
    _, out, err = run("doctor")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert not err, err
    return "\n".join(lines)


def test_quotas_above_the_pool_and_queues_without_a_team(
    cluster, node, reads, run, monkeypatch, api
):
    """Said with a remedy, and not billed."""
    cluster.serve(api)
    monkeypatch.setattr("gpuledger_collector.cli.doctor.clock_ms", lambda: AUGUST_MS + 3 * HOUR)
    node.pod("vision", "a", card(0), **{"kueue.x-k8s.io/local-queue-name": "train"})
    node.hold(AUGUST_MS)
    bill = node.hours("2026-08", "queue")
    reads(AUGUST_MS + 3 * HOUR)
    text = doctor(run, monkeypatch, api)
    assert "GPUs in the fleet, which has 4; quotas are not billed" in text
    assert "held time of 1 queue has no team: vision/train" in text
    assert "lower quotas, or add the missing GPUs to the inventory" in text
    assert node.hours("2026-08", "queue") == bill


def test_two_clusters_have_queues_of_their_own(cluster, reads, listed):
    reads(AUGUST_MS, cluster="west")
    reads(AUGUST_MS, cluster="east")
    reads(AUGUST_MS + MINUTE, cluster="west")
    names = {row["queue"] for row in listed("quotas")}
    assert {"west/vision-cq", "east/vision-cq"} <= names
    assert {row["queue"].partition("/")[0] for row in listed("list")} == {"west"}


def test_the_command_reads_once(cluster, run, monkeypatch, api):
    """Of a cluster that is not the collector's own; one sentence where nothing is named."""
    assert run("queues", "read")[0] == 2
    doctor(run, monkeypatch, api)
    code, out, err = run("queues", "read")
    assert code == 0, err
    assert out.strip() == "4 queues with a quota"


@pytest.mark.parametrize("name", ["list", "quotas", "evictions", "names"])
def test_a_list_without_a_reading_says_why_it_is_empty(run, name):
    """As a table; CSV and JSON stay what programs read."""
    code, out, err = run("queues", name, *SPAN)
    assert code == 0, err
    assert "none is known of this time" in " ".join(out.split())
    assert json.loads(run("queues", name, *SPAN, "--format", "json")[1]) == []


@pytest.fixture(scope="module")
def plane():
    """A real control plane with the published definitions, and an account that may read Kueue."""
    if not CRDS.is_dir():
        pytest.skip("no definitions of Kueue, Volcano and KAI in ../shared/data/crds")
    with control_plane() as running:
        for path in sorted(CRDS.glob("*/*.yaml")):
            for definition in yaml.safe_load_all(path.read_text()):
                if definition and definition["kind"] == "CustomResourceDefinition":
                    running.request(
                        "POST",
                        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
                        definition,
                    )
        yield running


RULES = [
    {
        "apiGroups": ["kueue.x-k8s.io"],
        "resources": ["clusterqueues", "cohorts", "localqueues", "resourceflavors", "workloads"],
        "verbs": ["list"],
    },
    {"apiGroups": ["scheduling.run.ai"], "resources": ["queues"], "verbs": ["list"]},
]
"""Of the chart with `queues: [kueue, kai]`."""


@pytest.mark.slow
def test_a_real_api_server_takes_the_objects_and_answers_the_same(plane, api, cluster):
    """With the published definitions, and the status that the controllers would write. The account
    may not list the queues of Volcano: that is one problem, and the others are read.
    """
    client = open_client(plane.url, plane.account / "token", plane.account / "ca.crt")
    until_served(plane, cluster.objects)
    refused = read_schedulers(client, QUEUE_SCHEDULERS, AUGUST_MS)
    assert {problem.trouble for entry in refused for problem in entry.problems} == {"forbidden"}
    assert {entry.reading for entry in refused} == {None}
    for name in ("vision", "speech"):
        plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    cluster.create(plane)
    rights = "/apis/rbac.authorization.k8s.io/v1"
    plane.request("POST", f"{rights}/clusterroles", {"metadata": {"name": "q"}, "rules": RULES})
    binding = {
        "metadata": {"name": "q"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "q"},
        "subjects": [{"kind": "User", "name": "agent", "apiGroup": "rbac.authorization.k8s.io"}],
    }
    plane.request("POST", f"{rights}/clusterrolebindings", binding)
    recorded = open_client(api.url, api.account / "token", api.account / "ca.crt")
    expected = {
        entry.scheduler: entry for entry in read_schedulers(recorded, QUEUE_SCHEDULERS, AUGUST_MS)
    }
    for _ in range(600):
        found = {
            entry.scheduler: entry for entry in read_schedulers(client, QUEUE_SCHEDULERS, AUGUST_MS)
        }
        if found["kai"].reading is not None and found["kueue"].reading is not None:
            break
        time.sleep(0.1)
    assert [problem.resource for problem in found["volcano"].problems] == [
        "queues.scheduling.volcano.sh"
    ]
    assert found["volcano"].is_unanswered
    for name in ("kueue", "kai"):
        ours, theirs = found[name], expected[name]
        assert sorted(ours.reading.quotas, key=repr) == sorted(theirs.reading.quotas, key=repr)
        assert sorted(ours.reading.uses, key=repr) == sorted(theirs.reading.uses, key=repr)
        assert ours.reading.waits == theirs.reading.waits
        assert ours.tenants == theirs.tenants
        assert ours.problems == ()


def until_served(plane, paths):
    """Definitions are served a moment after they are created."""
    for path in paths:
        for _ in range(1200):
            if plane.serves(path):
                break
            time.sleep(0.1)
        else:
            raise AssertionError(path)
