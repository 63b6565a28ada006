"""Quotas of Kueue, Volcano and KAI Scheduler: read from an API server, dated, and counted in
GPU-hours. The objects are those of `fakes.scheduler_cluster`, right by hand.
"""

import csv
import io
import logging

import pytest

from fakes import scheduler_cluster
from fakes.scheduler_cluster import KUEUE, SchedulerCluster, admitted, workload
from gpuledger_collector.accounting.period import HOUR_MS, Period, parse_instant
from gpuledger_collector.cli.doctor import scheduler_queues as diagnose
from gpuledger_collector.ingest.scheduler_queues.reader import open_client, read_schedulers
from gpuledger_collector.services import scheduler_queues
from gpuledger_collector.settings import QUEUE_SCHEDULERS, Settings, check
from gpuledger_collector.storage.capacity import scheduler_queues as stored
from gpuledger_common.settings import SettingsError

MINUTE = 60_000
START = parse_instant("2026-10-01T10:00:00Z")
OCTOBER = ("--period", "2026-10")


class Watched:
    """A cluster, read by the minute into a ledger."""

    def __init__(self, api, database, run):
        self.objects, self._api, self._run = SchedulerCluster(), api, run
        self.database, self.now_ms = database, START
        self.objects.serve(api)
        self.client = open_client(api.url, api.account / "token", api.account / "ca.crt")

    def read(self, minutes=1, schedulers=QUEUE_SCHEDULERS, cluster=""):
        """Read once, and then each minute."""
        for _ in range(minutes):
            count = scheduler_queues.read_queues(
                self.database, self.client, schedulers, cluster, lambda: self.now_ms
            )
            self.now_ms += MINUTE
        return count

    def rows(self, *arguments):
        """What a list of `gpuledger queues` says, by queue."""
        code, out, err = self._run("queues", *arguments, *OCTOBER, "--format", "csv")
        assert code == 0, err
        return list(csv.DictReader(io.StringIO(out)))

    def hours(self, queue):
        """The hours of a queue, without their names' beginning."""
        (row,) = [row for row in self.rows("list") if row["queue"] == queue]
        return {
            name.removeprefix("gpu_hours_"): float(value)
            for name, value in row.items()
            if name.startswith("gpu_hours_") and value
        }

    def health(self):
        with self.database.connect() as connection:
            return scheduler_queues.examine_queues(connection, self.now_ms, 7)

    def diagnoses(self, **settings):
        chosen = Settings(kubernetes_queues="kueue,volcano,kai", **settings)
        return {
            (entry.verdict, entry.sentence): entry.remedy
            for entry in diagnose(self.health(), chosen)
        }


@pytest.fixture
def watched(api, database, run):
    api.reset()
    yield Watched(api, database, run)
    api.reset()


def test_an_hour_of_three_schedulers(watched):
    """61 readings are an hour: what each queue had reserved, used, borrowed, lent and waited for."""
    assert watched.read(61) == 4
    assert watched.hours("vision-cq") == {
        "reserved": 64,
        "used": 16,
        "borrowed": 0,
        "lent": 16,
        "unused": 32,
        "waited": 0,
        "waited_beside_unused": 0,
    }
    assert watched.hours("speech-cq") == {
        "reserved": 32,
        "used": 48,
        "borrowed": 16,
        "lent": 0,
        "unused": 0,
        "waited": 8,
        "waited_beside_unused": 8,
    }
    # Volcano counts no GPUs of what waits; its root is only above the others.
    volcano = {"reserved": 8, "used": 10, "borrowed": 2, "lent": 0, "unused": 0}
    assert watched.hours("batch") == volcano
    kai = watched.hours("nlp")
    assert kai == {
        "reserved": 2,
        "used": 2.5,
        "borrowed": 0.5,
        "lent": 0,
        "unused": 0,
        "waited": 2,
        "waited_beside_unused": 0,
    }
    rows = watched.rows("list")
    assert {row["queue"] for row in rows} == {"vision-cq", "speech-cq", "batch", "nlp"}
    assert {row["known_hours"] for row in rows} == {"1"}


def test_time_without_a_reading_is_not_known(watched):
    """A reading holds for two and a half minutes; twenty minutes of silence are no GPU-hours."""
    watched.read()
    watched.now_ms += 19 * MINUTE
    watched.read()
    assert watched.hours("vision-cq")["reserved"] == pytest.approx(64 * 2.5 / 60, abs=1e-6)
    # A reading that comes late or twice adds nothing.
    watched.now_ms = START
    watched.read()
    assert watched.hours("vision-cq")["reserved"] == pytest.approx(64 * 2.5 / 60, abs=1e-6)


def test_each_change_of_a_quota_is_kept(watched):
    """Edited, deleted, and back again: rows with dates, limits and the pool of the flavor's nodes."""
    watched.read(10)
    watched.objects.set_quota("vision-cq", 48)
    watched.read(10)
    queues = watched.objects.objects[f"{KUEUE}/clusterqueues"]
    gone = queues.pop(0)
    watched.read(10)
    queues.append(gone)
    watched.read(10)
    rows = [row for row in watched.rows("quotas") if row["queue"] == "vision-cq"]
    assert [
        (row["quota_gpus"], row["lending_limit_gpus"], row["from"], row["until"]) for row in rows
    ] == [
        ("64", "40", "2026-10-01T10:00:00Z", "2026-10-01T10:10:00Z"),
        ("48", "40", "2026-10-01T10:10:00Z", "2026-10-01T10:20:00Z"),
        ("48", "40", "2026-10-01T10:30:00Z", ""),
    ]
    assert {(row["pool"], row["parent"], row["flavor"]) for row in rows} == {
        ("train", "cohort gpus", "h100")
    }
    assert [row["borrowing_limit_gpus"] for row in rows] == ["", "", ""]
    (name,) = [row for row in watched.rows("names") if row["name"] == "vision/train"]
    assert (name["queue"], name["until"]) == ("vision-cq", "")


def test_what_an_eviction_lost_and_who_preempted(watched):
    """A job of 8 GPUs runs half an hour and makes room for another one: 4 GPU-hours."""
    begun = "2026-10-01T10:00:00Z"
    victim = workload("vision", "victim", "train", 8, *admitted(begun), admitted_by="vision-cq")
    watched.objects.set_workloads(victim)
    watched.read(30)
    message = "Preempted to accommodate a workload (UID: uid-urgent, JobUID: j) due to reclamation"
    evicted = "2026-10-01T10:30:00Z"
    watched.objects.set_workloads(
        workload(
            "vision",
            "victim",
            "train",
            8,
            ("Evicted", "Preempted", evicted, message),
            ("Preempted", "InCohortReclamation", evicted, message),
        ),
        workload("speech", "urgent", "asr", 8, *admitted(evicted), admitted_by="speech-cq"),
    )
    watched.read(5)
    (row,) = watched.rows("evictions")
    assert (row["workload"], row["preempted_by"]) == ("vision/victim", "speech/urgent")
    assert (row["queue"], row["reason"], row["gpus"]) == ("vision-cq", "Preempted", "8")
    assert float(row["gpu_hours_lost"]) == 4
    assert watched.hours("vision-cq")["lost"] == 4
    # One that nobody saw run lost an amount that is not known.
    later = ("Evicted", "PodsReadyTimeout", "2026-10-01T10:33:00Z", "")
    watched.objects.set_workloads(workload("vision", "unseen", "train", 4, later))
    watched.read()
    (unseen,) = [row for row in watched.rows("evictions") if row["workload"] == "vision/unseen"]
    assert (unseen["gpu_hours_lost"], unseen["admitted_at"]) == ("", "")


def test_a_missing_right_and_a_missing_crd_are_one_sentence(watched, api, caplog):
    """Each once in the log, with a remedy in `doctor`; the other schedulers go on, and what is not
    answered keeps its quota, as its use is not known.
    """
    watched.read(2)
    api.forbidden = f"{KUEUE}/clusterqueues"
    del watched.objects.objects[f"{scheduler_cluster.KAI}/queues"]
    with caplog.at_level(logging.WARNING):
        watched.read(30)
    said = [record.getMessage() for record in caplog.records if "queues:" in record.getMessage()]
    assert len(said) == 2, said
    found = watched.diagnoses()
    assert {sentence for verdict, sentence in found if verdict == "bad"} == {
        "the collector may not list clusterqueues.kueue.x-k8s.io",
        "the cluster has no queues.scheduling.run.ai",
    }
    assert all(found.values())
    assert watched.hours("batch")["reserved"] == pytest.approx(8 * 31 / 60, abs=1e-6)
    # Known until the last answer, and two and a half minutes on.
    assert watched.hours("vision-cq")["reserved"] == pytest.approx(64 * 2 / 60, abs=1e-6)
    untils = {row["queue"]: row["until"] for row in watched.rows("quotas")}
    assert untils["vision-cq"] == ""
    assert untils["nlp"] == "2026-10-01T10:02:00Z"


def test_without_workloads_nothing_is_said_of_waiting(watched, api):
    """A 403 for Workloads alone: quotas and their use go on, waiting time is empty and not 0."""
    api.forbidden = f"{KUEUE}/workloads"
    watched.read(61)
    assert watched.hours("speech-cq") == {
        "reserved": 32,
        "used": 48,
        "borrowed": 16,
        "lent": 0,
        "unused": 0,
    }
    assert [problem.resource for problem in watched.health().problems] == [
        "workloads.kueue.x-k8s.io"
    ]


def test_a_quota_over_capacity_is_said(watched, database):
    """Queues of pool train have 96 GPUs, and the pool has two."""
    watched.read()
    with database.transaction() as connection:
        connection.execute(
            "INSERT INTO accelerator (uuid, device_uuid) SELECT 'GPU-' || n, 'GPU-' || n FROM"
            " generate_series(1, 2) n"
        )
        connection.execute(
            "INSERT INTO capacity (accelerator_id, pool, in_ms, source) SELECT id, 'train', 0,"
            " 'agent' FROM accelerator"
        )
    sentences = {sentence for verdict, sentence in watched.diagnoses() if verdict == "bad"}
    assert (
        "queues have quotas of 96 GPUs in pool train, which has 2; quotas are not billed"
        in sentences
    )


def test_a_reader_that_stopped_is_said(watched):
    """After ten minutes; a cluster that is not this collector's own is a note."""
    found = watched.diagnoses()
    assert ("note", "kubernetes_queues is set, and no queue was read yet") in found
    watched.read()
    watched.now_ms += 11 * MINUTE
    assert [verdict for verdict, _ in watched.diagnoses()] == ["bad"]
    assert [verdict for verdict, _ in watched.diagnoses(kubernetes_cluster="west")] == ["note"]


def test_a_cluster_that_is_gone_ends_its_quotas(watched, database):
    """After a week without a reading; the history stays."""
    watched.read(2, cluster="west")
    assert {row["queue"] for row in watched.rows("quotas")} >= {"west/vision-cq", "west/nlp"}
    with database.transaction() as connection:
        stored.expire(connection, START + 8 * 24 * HOUR_MS)
    assert {row["until"] for row in watched.rows("quotas")} == {"2026-10-01T10:01:00Z"}
    assert watched.health().silent == ()


def test_the_same_answers_over_http(watched, world):
    """GET /v1/queues, its quotas and evictions say what the commands say."""
    watched.read(61)
    for path, command in (("", "list"), ("/quotas", "quotas"), ("/evictions", "evictions")):
        status, _, body = world.collector.request("GET", f"/v1/queues{path}?period=2026-10")
        assert status == 200
        items = body["items"]
        rows = watched.rows(command)
        assert len(items) == len(rows)
        assert [item.get("queue") for item in items] == [row.get("queue") for row in rows]
    status, _, body = world.collector.request("GET", "/v1/queues?period=2026-10&limit=1")
    assert body["left_out"] == 3


def test_a_scheduler_that_is_none_of_the_known(watched):
    """It is refused at the start, with those that can be read."""
    with pytest.raises(SettingsError, match="'slurm' is none of kueue, volcano, kai"):
        check(Settings(kubernetes_queues="kueue,slurm"))
    check(Settings(kubernetes_queues="kueue, kai"))


def test_every_object_is_listed_once(watched, api):
    """A reading lists each resource once, and asks for nothing else."""
    api.requests.clear()
    read_schedulers(watched.client, QUEUE_SCHEDULERS, START)
    asked = [path.partition("?")[0] for _, path in api.requests]
    assert sorted(asked) == sorted(watched.objects.objects)


def test_sums_of_a_tree_are_conserved(watched):
    """What was reserved is what its own queue used of it, others borrowed, and nobody used."""
    watched.read(20)
    watched.objects.set_use("vision-cq", 40, 0)
    watched.objects.set_use("speech-cq", 56, 24)
    watched.read(20)
    with watched.database.connect() as connection:
        period = Period(START, START + HOUR_MS)
        times = scheduler_queues.list_times(connection, period)
    for item in times:
        own = item.used_ns - item.borrowed_ns
        assert item.reserved_ns == own + item.lent_ns + item.unused_ns, item.queue
    kueue = [item for item in times if item.scheduler == "kueue"]
    assert sum(item.borrowed_ns for item in kueue) == sum(item.lent_ns for item in kueue)
