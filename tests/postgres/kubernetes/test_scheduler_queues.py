"""Queues of Kueue, Volcano and KAI Scheduler: quotas with dates, GPU-hours by hand, evictions, and
what the doctor says, over a recorded API server and over a real one.
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
    KAI,
    KUEUE,
    VOLCANO,
    SchedulerCluster,
    admitted,
    local_queue,
    workload,
)
from gpuledger_collector.ingest.scheduler_queues.reader import open_client, read_schedulers
from gpuledger_collector.services.scheduler_queues import read_queues
from gpuledger_collector.settings import QUEUE_SCHEDULERS
from gpuledger_collector.storage.capacity import scheduler_queues
from gpuledger_collector.storage.database import Database

MINUTE = 60_000
CRDS = Path(__file__).parents[4] / "shared" / "data" / "crds"
SPAN = ("--from", "2026-08-01", "--to", "2026-08-02")
SEEN_AT = "2026-08-01T00:00:00Z"


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


def hour_by_minutes(reads, start_ms=AUGUST_MS):
    for minute in range(61):
        reads(start_ms + minute * MINUTE)


def test_an_hour_of_three_schedulers_by_hand(cluster, reads, listed):
    """Read each minute: what is reserved, used, borrowed, lent, unused and waited for."""
    assert reads(AUGUST_MS) == 6
    hour_by_minutes(reads)
    rows = by_queue(listed("list"))
    assert set(rows) == {
        ("kueue", "vision-cq"),
        ("kueue", "speech-cq"),
        ("volcano", "batch"),
        ("kai", "nlp"),
    }

    def hours(scheduler, queue):
        row = rows[scheduler, queue]
        names = ("reserved", "used", "borrowed", "lent", "unused")
        return tuple(float(row[f"gpu_hours_{name}"]) for name in names)

    assert hours("kueue", "vision-cq") == (64, 16, 0, 16, 32)
    assert hours("kueue", "speech-cq") == (32, 48, 16, 0, 0)
    assert hours("volcano", "batch") == (8, 10, 2, 0, 0)
    assert hours("kai", "nlp") == (2, 2.5, 0.5, 0, 0)
    speech, volcano = rows["kueue", "speech-cq"], rows["volcano", "batch"]
    assert float(speech["gpu_hours_waited"]) == float(speech["gpu_hours_waited_beside_unused"]) == 8
    assert volcano["gpu_hours_waited"] == ""
    assert float(rows["kai", "nlp"]["gpu_hours_waited"]) == 2
    assert float(rows["kai", "nlp"]["gpu_hours_waited_beside_unused"]) == 0
    assert {float(row["known_hours"]) for row in rows.values()} == {1}


def test_a_quota_that_changes_is_a_row_with_dates(cluster, reads, listed):
    """Nobody else has that history: the row that ended stays as it was."""
    reads(AUGUST_MS)
    cluster.set_quota("vision-cq", 48)
    reads(AUGUST_MS + MINUTE)
    reads(AUGUST_MS + 2 * MINUTE)
    rows = [row for row in listed("quotas") if row["queue"] == "vision-cq"]
    assert [(float(row["quota_gpus"]), row["from"], row["until"]) for row in rows] == [
        (64, "2026-08-01T00:00:00Z", "2026-08-01T00:01:00Z"),
        (48, "2026-08-01T00:01:00Z", ""),
    ]
    assert {float(row["lending_limit_gpus"]) for row in rows} == {40}
    assert {row["pool"] for row in rows} == {"train"}
    names = {row["name"]: row["queue"] for row in listed("names")}
    assert names["vision/train"] == "vision-cq"
    cluster.objects[f"{KUEUE}/localqueues"] = [local_queue("vision", "train", "speech-cq")]
    reads(AUGUST_MS + 3 * MINUTE)
    moved = [row for row in listed("names") if row["name"] == "vision/train"]
    assert [(row["queue"], row["until"] == "") for row in moved] == [
        ("vision-cq", False),
        ("speech-cq", True),
    ]


def test_an_eviction_says_what_was_lost_and_who_preempted(cluster, reads, listed):
    """Two hours of eight GPUs, for a job of another queue of the cohort."""
    since, until = "2026-08-01T00:00:00Z", "2026-08-01T02:00:00Z"
    cluster.set_workloads(
        workload("vision", "train", "train", 8, *admitted(since), admitted_by="vision-cq")
    )
    reads(AUGUST_MS)
    message = (
        "Preempted to accommodate a workload (UID: uid-asr, JobUID: 1f) due to reclamation within"
        " the cohort; preemptor path: /gpus/speech-cq; preemptee path: /gpus/vision-cq"
    )
    cluster.set_workloads(
        workload(
            *("vision", "train", "train", 8),
            ("Evicted", "Preempted", until, message),
            ("Preempted", "InCohortReclamation", until, message),
        ),
        workload("speech", "asr", "asr", 8, *admitted(until), admitted_by="speech-cq"),
    )
    reads(AUGUST_MS + 2 * HOUR + MINUTE)
    reads(AUGUST_MS + 2 * HOUR + 2 * MINUTE)
    (lost,) = listed("evictions")
    assert (lost["workload"], lost["queue"], lost["reason"]) == (
        "vision/train",
        "vision-cq",
        "Preempted",
    )
    assert (lost["preempted_by"], lost["preempting_queue"]) == ("speech/asr", "speech-cq")
    assert (float(lost["gpus"]), float(lost["gpu_hours_lost"])) == (8, 16)
    row = by_queue(listed("list"))["kueue", "vision-cq"]
    assert (row["evictions"], float(row["gpu_hours_lost"])) == ("1", 16)


def test_two_collectors_that_read_add_the_time_once(cluster, reads, listed):
    """Whichever is later in its clock goes on; an older reading than the last says nothing."""
    for minute in range(61):
        reads(AUGUST_MS + minute * MINUTE)
        assert reads(AUGUST_MS + minute * MINUTE) == 0
        assert reads(AUGUST_MS + minute * MINUTE - 1) == 0
    assert float(by_queue(listed("list"))["kueue", "vision-cq"]["gpu_hours_used"]) == 16


def test_time_without_a_reading_is_not_known(cluster, reads, listed):
    """Ten hours of silence between two readings: two and a half minutes of the first one count."""
    reads(AUGUST_MS)
    reads(AUGUST_MS + 10 * HOUR)
    row = by_queue(listed("list"))["kueue", "vision-cq"]
    assert float(row["known_hours"]) == pytest.approx(150 / 3600, abs=1e-6)
    assert float(row["gpu_hours_reserved"]) == pytest.approx(64 * 150 / 3600, abs=1e-6)


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


def test_a_missing_right_and_a_missing_scheduler_are_one_sentence_each(
    cluster, api, reads, run, monkeypatch, caplog
):
    """Logged once, said by the doctor with a remedy; the rest goes on, and quotas stay."""
    assert reads(AUGUST_MS) == 6
    api.forbidden = VOLCANO
    del cluster.objects[f"{KAI}/queues"]
    for minute in range(1, 4):
        reads(AUGUST_MS + minute * MINUTE)
    said = [record.getMessage() for record in caplog.records if "queues:" in record.getMessage()]
    assert len(said) == 2, said
    text = doctor(run, monkeypatch, api)
    assert "the collector may not list queues.scheduling.volcano.sh" in text
    assert "let its account list queues.scheduling.volcano.sh" in text
    assert "the cluster has no queues.scheduling.run.ai" in text
    assert "take the scheduler out of kubernetes_queues, or install it" in text
    with Database(reads_dsn(reads)).connect() as connection:
        kept = scheduler_queues.quota_by_pool(connection)
    # Of Volcano the quota stays: it could not be asked. KAI is gone, and so is its quota.
    assert sum(kept.values()) == (64 + 32 + 8) * 1_000_000


def reads_dsn(reads):
    return next(
        cell.cell_contents for cell in reads.__closure__ if isinstance(cell.cell_contents, str)
    )


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


def test_a_cluster_that_is_gone_ends_its_quotas(cluster, reads, listed, dsn):
    """A week after its last reading, at that reading."""
    reads(AUGUST_MS)
    with Database(dsn).transaction() as connection:
        scheduler_queues.expire(connection, AUGUST_MS + 6 * 24 * HOUR)
    assert {row["until"] for row in listed("quotas")} == {""}
    with Database(dsn).transaction() as connection:
        scheduler_queues.expire(connection, AUGUST_MS + 8 * 24 * HOUR)
    assert listed("quotas", ("--from", "2026-08-02", "--to", "2026-08-03")) == []


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
    assert out.strip() == "6 queues with a quota"


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
