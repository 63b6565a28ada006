"""Jobs inside a Ray cluster: who holds a card of its pods, and what is read to know it."""

import json
import logging
import os
from dataclasses import replace
from fractions import Fraction

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes import kubelet
from fakes.ray_cluster import driver, job_api, run_process, worker
from gpuledger_agent.owners import discovery, ray
from gpuledger_agent.owners.kubernetes import workload_of
from gpuledger_agent.owners.kubernetes_api import NamespaceFacts, PodFacts
from gpuledger_agent.owners.labels import MAX_TAGS, MAX_VALUE_CHARACTERS, UNSTORABLE
from gpuledger_agent.owners.ray import (
    RayFailed,
    RayOwners,
    RayProcesses,
    ask_job,
    job_of_environment,
    ray_clusters,
)
from gpuledger_agent.settings import Settings, load
from gpuledger_common.largest_remainder import split
from gpuledger_common.readings import Holder, Process, Sample, Workload
from gpuledger_common.settings import SettingsError

UID, OTHER = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0", "1f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
SPACE = NamespaceFacts({"team": "platform"}, {"gpuledger.allowed-teams": "vision, nlp"})
LABELS = {"ray.io/cluster": "shared", "team": "platform", "project": "shared-cluster"}


@pytest.fixture
def api():
    with job_api() as running:
        yield running


class Card:
    """A card that a pod of the cluster ml/shared holds, and the processes on it."""

    def __init__(self, folder, url):
        self.proc, self.now = folder, 0.0
        self.owners = RayOwners({"ml/shared": url}, RayProcesses(folder), lambda: self.now)
        self.facts = PodFacts(UID, LABELS)
        self.pod = workload_of("ml", "shared-worker-0", (), self.facts, SPACE)
        self.processes = []

    def run(self, pid, environment, uid=UID):
        run_process(self.proc, pid, uid, environment)
        self.processes.append(Process(pid))

    def held(self, *others):
        """Who holds the card, beside others."""
        sample = Sample("GPU-1", 0, {}, processes=tuple(self.processes))
        held = {"GPU-1": [Holder(self.pod, 1), *others]}
        pods = [("ml", self.facts)]
        return self.owners.divide(held, [sample], pods, {"ml": SPACE}, NamespaceFacts())["GPU-1"]

    def known(self):
        """The same after the job API was asked."""
        self.held()
        self.owners.ask()
        return self.held()


@pytest.fixture
def card(tmp_path, api):
    return Card(tmp_path / "proc", api.url)


def test_the_jobs_on_a_card_hold_it_in_equal_parts(card, api):
    """Three processes of two jobs; the metadata of each say whose it is."""
    api.submit("02000000", "raysubmit_a", team="vision", user="amina")
    api.submit("03000000", "raysubmit_b", team="nlp")
    for pid, number in ((1, "02000000"), (2, "03000000"), (3, "03000000")):
        card.run(pid, worker(number))
    a, b = card.known()
    assert (a.weight, b.weight) == (1, 1)
    assert (a.workload.id, a.workload.user) == (f"{UID}/02000000", "amina")
    assert a.workload.job == "RayJob ml/shared/raysubmit_a"
    assert (a.workload.tags["team"], b.workload.tags["team"]) == ("vision", "nlp")
    assert a.workload.tags["pod_uid"] == UID
    # What the pod says below the team is about the cluster.
    assert "project" not in a.workload.tags


def test_without_a_process_of_a_job_the_cluster_holds_its_card(card):
    """Its own idle time, and its own processes."""
    assert card.held() == [Holder(card.pod, 1)]
    card.run(1, b"PATH=/usr/bin\0")
    assert card.held() == [Holder(card.pod, 1)]


def test_other_holders_keep_their_part(card):
    """Half a card of the cluster with three jobs: a sixth each, and the other half stays."""
    for pid in range(3):
        card.run(pid, worker(f"0{pid}000000"))
    other = Holder(workload_of("x", "y", (), None, NamespaceFacts()), 1)
    assert [holder.weight for holder in card.held(other)] == [1, 1, 1, 3]


@given(
    pods=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 9)), min_size=1, max_size=6),
    span_ms=st.integers(1, 10**7),
)
def test_jobs_and_pods_add_up_to_one_card_to_the_millisecond(pods, span_ms):
    """And the jobs of a pod to the part that it had."""
    parts = []
    for at, (weight, jobs) in enumerate(pods):
        own = [Workload(f"{at}/{number}", "kubernetes") for number in range(jobs)]
        parts.append((Holder(Workload(f"{at}", "kubernetes"), weight), own))
    holders = ray._weigh(parts)
    spent = split(span_ms, [holder.weight for holder in holders])
    assert sum(spent) == span_ms
    total = sum(holder.weight for holder in holders)
    for at, (weight, _) in enumerate(pods):
        mine = [holder for holder in holders if holder.workload.id.partition("/")[0] == str(at)]
        assert len({holder.weight for holder in mine}) == 1
        share = Fraction(sum(holder.weight for holder in mine), total)
        assert share == Fraction(weight, sum(weight for weight, _ in pods))


def test_until_its_api_answers_a_job_has_its_number_and_the_owner_of_the_pod(card, api):
    api.submit("02000000", "raysubmit_a", team="vision")
    card.run(1, worker("02000000"))
    (before,) = card.held()
    assert before.workload.job == "RayJob ml/shared/02000000"
    assert before.workload.tags["team"] == "platform"
    (after,) = card.known()
    assert (after.workload.id, after.workload.tags["team"]) == (before.workload.id, "vision")


def test_a_driver_is_its_submission(card, api):
    """What runs on the head itself, such as torchrun, and is one job with its workers."""
    api.submit("02000000", "raysubmit_a", team="vision")
    card.run(1, driver("raysubmit_a", "01000000"))
    card.run(2, worker("02000000"))
    (holder,) = card.known()
    assert holder.workload.id == f"{UID}/02000000"


def test_a_driver_that_was_not_submitted_has_its_own_metadata(card, api):
    api.submit("04000000", None, team="nlp")
    card.run(1, worker("04000000"))
    (holder,) = card.known()
    assert holder.workload.job == "RayJob ml/shared/04000000"
    assert holder.workload.tags["team"] == "nlp"


def test_a_process_of_another_pod_is_no_worker_of_this_one(card):
    card.run(1, worker("02000000"), uid=OTHER)
    assert card.held() == [Holder(card.pod, 1)]


def test_workers_that_were_started_before_their_job_count_as_the_clusters(card, caplog):
    card.run(1, worker("ffffffff"))
    with caplog.at_level(logging.WARNING):
        assert card.held() == card.held() == [Holder(card.pod, 1)]
    assert caplog.text.count("RAY_prestart_worker_first_driver=0") == 1


def test_a_namespace_decides_which_teams_a_job_may_bill(card, api):
    api.submit("02000000", "raysubmit_a", team="finance", project="x")
    card.run(1, worker("02000000"))
    (holder,) = card.known()
    assert holder.workload.tags["team"] == "platform"
    assert holder.workload.refused == {"team": "finance"}


def test_no_metadata_replaces_what_a_pod_is(card, api):
    api.submit("02000000", "raysubmit_a", pod="x", namespace="y", pod_uid="z", ray_job_id="0")
    card.run(1, worker("02000000"))
    tags = card.known()[0].workload.tags
    assert (tags["pod"], tags["namespace"], tags["pod_uid"]) == ("shared-worker-0", "ml", UID)
    assert tags["ray_job_id"] == "02000000"


def test_a_cluster_that_no_setting_names_is_not_looked_into(card, api):
    """Nor is the environment of its processes."""
    card.owners.clusters = {"ml/another": api.url}
    card.run(1, worker("02000000"))
    (card.proc / "1" / "environ").unlink()
    (card.proc / "1" / "environ").mkdir()
    assert card.known() == [Holder(card.pod, 1)]
    assert api.requests == []


def test_a_job_is_asked_for_once_and_again_later(card, api):
    """Numbers begin again when a head restarts."""
    api.submit("02000000", "raysubmit_a", team="vision")
    card.run(1, worker("02000000"))
    card.known()
    card.known()
    assert api.requests == ["/api/jobs/02000000"]
    api.submit("02000000", "raysubmit_z", team="nlp")
    for _ in range(11):
        card.now += ray.UNUSED_S
        (holder,) = card.known()
    assert holder.workload.job == "RayJob ml/shared/raysubmit_z"
    assert len(api.requests) == 2


def test_a_job_that_is_gone_is_forgotten(card, api):
    card.run(1, worker("02000000"))
    card.known()
    card.processes = []
    card.now += ray.UNUSED_S + 1
    card.owners.ask()
    assert card.owners._jobs == {}


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (401, None),
        (500, "no"),
        (200, "[]"),
        (200, "{"),
        (200, '{"job_id": 7, "submission_id": null, "metadata": null}'),
        (200, '{"job_id": "02000000", "submission_id": null, "metadata": ["team"]}'),
        (200, '{"job_id": "\\ud800", "submission_id": null, "metadata": null}'),
        (200, '{"job_id": "%s", "submission_id": null, "metadata": null}' % ("0" * 5_000)),
        (200, '{"job_id": "02000000", "submission_id": null, "metadata": {"team": {}, "a": [1]}}'),
        (200, " " * (ray.MAX_ANSWER_BYTES + 1)),
    ],
)
def test_an_answer_that_is_no_job_is_said_once_and_changes_nothing(card, api, status, body, caplog):
    api.status, api.body = status, body
    card.run(1, worker("02000000"))
    with caplog.at_level(logging.WARNING):
        (holder,) = card.known()
        card.now += ray.RETRY_S
        card.known()
    assert holder.workload.job == "RayJob ml/shared/02000000"
    assert caplog.text.count("teams and users of its jobs are unknown") == 1
    assert len(api.requests) == 2


def test_no_answer_makes_a_workload_that_cannot_be_sent(card, api):
    """Users run code beside the job API: one that a collector refuses would stop the node's bill."""
    api.body = json.dumps(
        {
            "job_id": "02000000",
            "submission_id": "\ud800\0",
            "metadata": {"team": "\ud800", "project": "x\0", "org": "n" * 9_000, "user": "amina"},
        }
    )
    card.run(1, worker("02000000"))
    (holder,) = card.known()
    msgspec.msgpack.encode(holder.workload)
    texts = [*holder.workload.refused.values(), *holder.workload.tags.values()]
    assert not any(UNSTORABLE.search(text) for text in (*texts, holder.workload.job))
    assert (holder.workload.user, holder.workload.job) == ("amina", "RayJob ml/shared/02000000")


def test_what_is_kept_of_an_answer_is_bounded(api):
    api.submit("02000000", "raysubmit_a", **{f"k{at}": "v" * 1_000 for at in range(200)})
    metadata = ask_job(api.url, "02000000").metadata
    assert len(metadata) == MAX_TAGS
    assert {len(value) for value in metadata.values()} == {MAX_VALUE_CHARACTERS}


def test_a_cluster_that_does_not_answer_keeps_no_other_from_being_asked(card, api):
    """A hundred jobs of a head that hangs are one question in a round."""
    api.status = 500
    card.owners.clusters = {"ml/away": api.url, "ml/shared": api.url}
    for at in range(100):
        card.owners._find("ml/away", f"{at:08}")
    card.owners._find("ml/shared", "02000000")
    assert card.owners.ask() == 2
    assert api.requests == ["/api/jobs/00000000", "/api/jobs/02000000"]
    card.owners.ask()
    assert api.requests[2:] == ["/api/jobs/00000001"]


def test_no_metadata_names_a_job_of_slurm(card, api):
    """By that tag a pod takes a job off what Slurm's accounting says."""
    api.submit("02000000", "raysubmit_a", slurm_job_id="4711")
    card.run(1, worker("02000000"))
    assert "slurm_job_id" not in card.known()[0].workload.tags
    card.pod = replace(card.pod, tags=card.pod.tags | {"slurm_job_id": "12"})
    assert card.known()[0].workload.tags["slurm_job_id"] == "12"


def test_an_api_that_is_not_there_is_an_error_of_ours(api):
    api.server_close()
    with pytest.raises(RayFailed):
        ask_job(api.url, "02000000")


@pytest.mark.parametrize(
    ("environment", "job"),
    [
        (b"", None),
        (b"RAY_JOB_ID=", None),
        (b"RAY_JOB_ID=../../x\0", None),
        (b"XRAY_JOB_ID=02000000\0", None),
        (b"A=RAY_JOB_ID=02000000\0", None),
        (b"RAY_JOB_ID=\xff\xfe\0", None),
        (b"RAY_JOB_ID=02000000\0", "02000000"),
        (b"RAY_JOB_CONFIG_JSON_ENV_VAR={\0RAY_JOB_ID=02000000\0", "02000000"),
        (b'RAY_JOB_CONFIG_JSON_ENV_VAR={"metadata": {"job_submission_id": "../x"}}\0', None),
        (b'RAY_JOB_CONFIG_JSON_ENV_VAR={"metadata": {"job_submission_id": 7}}\0', None),
        (driver("raysubmit_a"), "raysubmit_a"),
    ],
)
def test_what_an_environment_says(environment, job):
    assert job_of_environment(environment) == job


def test_a_process_that_hangs_delays_no_sample_twice(card, monkeypatch, caplog):
    """Its environment is a pipe that nobody writes to, as the memory of a process is that hangs."""
    monkeypatch.setattr(ray, "READ_S", 0.05)
    for pid in range(1, ray.MAX_HANGING + 1):
        card.run(pid, b"")
        (card.proc / f"{pid}" / "environ").unlink()
        os.mkfifo(card.proc / f"{pid}" / "environ")
    with caplog.at_level(logging.WARNING):
        assert card.held() == card.held() == [Holder(card.pod, 1)]
    assert caplog.text.count("hangs") == ray.MAX_HANGING
    # No further one is read until one of them has ended, and then it is.
    card.run(9, worker("02000000"))
    assert card.held() == [Holder(card.pod, 1)]
    for pid in range(1, ray.MAX_HANGING + 1):
        (card.proc / f"{pid}" / "environ").write_bytes(b"PATH=/usr/bin\0")
    for thread in card.owners.processes._hanging:
        thread.join()
    assert card.held()[0].workload.id == f"{UID}/02000000"


def test_where_environments_may_not_be_read_that_is_said_once(tmp_path, monkeypatch, caplog):
    processes = RayProcesses(tmp_path)
    for pid in (1, 2):
        run_process(tmp_path, pid, UID, worker("02000000"))
    monkeypatch.setattr(ray, "job_of_environment", lambda _: (_ for _ in ()).throw(PermissionError))
    with caplog.at_level(logging.WARNING):
        assert [processes.job_of(pid, UID) for pid in (1, 2)] == [None, None]
    assert caplog.text.count("CAP_SYS_PTRACE") == 1


@pytest.mark.parametrize(
    ("text", "clusters"),
    [
        ("", {}),
        ("ml/shared", {"ml/shared": ""}),
        ("ml/a=http://h.svc:8265/, ml/b", {"ml/a": "http://h.svc:8265", "ml/b": ""}),
    ],
)
def test_clusters_of_the_setting(text, clusters):
    assert ray_clusters(text) == clusters


@pytest.mark.parametrize(
    "text", ["shared", "ml/a=", "ml/a=ftp://h", "ml/a=http://u:secret@h", "ml/a=http://h?x=1", "*"]
)
def test_what_is_no_cluster_is_refused_without_its_password(text):
    with pytest.raises(SettingsError, match="ray_clusters") as refused:
        load(None, {"GPULEDGER_AGENT_RAY_CLUSTERS": text})
    assert "secret" not in str(refused.value)


def test_an_agent_looks_into_the_clusters_of_its_setting(tmp_path):
    with kubelet.running(tmp_path / "kubelet.sock") as running:
        settings = Settings(
            kubelet_socket=running.path,
            kubernetes_api_url="off",
            spool_dir=tmp_path,
            ray_clusters="ml/shared",
        )
        owners = discovery.kubernetes_owners(settings)
        assert owners._ray.clusters == {"ml/shared": ""}
        assert discovery.kubernetes_owners(replace(settings, ray_clusters=""))._ray is None
