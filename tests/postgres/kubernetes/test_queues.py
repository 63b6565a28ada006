"""The queue of a pod's scheduler as a dimension of bills: from labels and annotations, with dates."""

import pytest

from fakes.facts import AUGUST_MS, HOUR, SEPTEMBER_MS
from fakes.kubernetes_node import card, cluster_owners

LOCAL = "kueue.x-k8s.io/local-queue-name"
TEMPLATE = "kueue.x-k8s.io/queue-name"
VOLCANO = "scheduling.volcano.sh/queue-name"


def schedule(node, name):
    """Have the newest pod bound by a scheduler of this name."""
    node.api.pods[-1]["spec"]["schedulerName"] = name


def test_each_scheduler_names_its_queue(node):
    """Kueue by namespace and LocalQueue, the others by the queue of the cluster."""
    node.pod("vision", "kueue", card(0), **{LOCAL: "train", TEMPLATE: "asked"})
    schedule(node, "default-scheduler")
    node.pod("vision", "kai", card(1), **{"kai.scheduler/queue": "speech"})
    schedule(node, "kai-scheduler")
    node.pod("nlp", "volcano", card(2), annotations={VOLCANO: "batch"})
    schedule(node, "volcano")
    node.pod("nlp", "none", card(3), team="nlp")
    node.hold(AUGUST_MS)
    hours = node.hours("2026-08", "queue")
    assert hours.pop("(unobserved)")
    assert hours == {
        "vision/train": "1.000000",
        "speech": "1.000000",
        "batch": "1.000000",
        "(no queue)": "1.000000",
    }
    cash = node.world.run(
        *("chargeback", "--period", "2026-08", "--by", "queue", "--view", "cash", "--format", "csv")
    )
    assert "vision/train" in cash


def test_a_label_names_no_queue_of_a_scheduler_that_does_not_bind_the_pod(node):
    """Whoever may create pods could write it; the pod's own namespace bounds a LocalQueue."""
    node.pod("vision", "a", card(0), **{"kai.scheduler/queue": "speech"})
    schedule(node, "default-scheduler")
    node.pod("vision", "b", card(1), annotations={VOLCANO: "speech"})
    schedule(node, "default-scheduler")
    node.pod("vision", "c", card(2), **{TEMPLATE: "../nlp/train"})
    schedule(node, "default-scheduler")
    node.hold(AUGUST_MS)
    assert set(node.hours("2026-08", "queue")) == {
        "(no queue)",
        "(unallocated)",
        "(unobserved)",
        "vision/../nlp/train",
    }


def test_several_clusters_have_queues_of_their_own(node):
    """The setting of the agent stands before the names."""
    node.owners = cluster_owners(
        node.kubelet.path, node.api, node._next_s, cluster_name="frankfurt"
    )
    node.pod("vision", "a", card(0), **{LOCAL: "train"})
    node.pod("vision", "b", card(1))
    node.hold(AUGUST_MS)
    assert {"frankfurt/vision/train", "(no queue)"} <= set(node.hours("2026-08", "queue"))


def test_a_rule_maps_a_queue_to_a_team_with_dates(node, tmp_path):
    """From 01:00 on the queue is of another team; both hours are of one workload."""
    rules = tmp_path / "rules.toml"
    rules.write_text(
        '[[rule]]\nname = "old"\nmatch = {queue = "speech"}\nassign = {team = "audio"}\n'
        'effective_to = "2026-08-01T01:00:00Z"\n'
        '[[rule]]\nname = "new"\nmatch = {queue = "speech"}\nassign = {team = "nlp"}\n'
        'effective_from = "2026-08-01T01:00:00Z"\n'
    )
    node.world.run("apply", rules)
    node.pod("shared", "a", card(0), **{"kai.scheduler/queue": "speech"})
    schedule(node, "kai-scheduler")
    node.hold(AUGUST_MS, 120)
    hours = node.hours("2026-08", "team")
    assert (hours["audio"], hours["nlp"]) == ("1.000000", "1.000000")


def test_a_closed_month_keeps_the_queues_that_it_was_closed_with(node):
    """What is said of a pod in September is not said of its August."""
    node.pod("vision", "solo", card(0), team="vision")
    node.hold(AUGUST_MS)
    node.world.run("close", "--period", "2026-08")
    before = node.world.bill("2026-08", "queue")
    assert before["(no queue)"][0] == "1.000000"
    node.api.pods[0]["metadata"]["labels"] |= {LOCAL: "train"}
    node.hold(SEPTEMBER_MS)
    assert node.hours("2026-09", "queue")["vision/train"] == "1.000000"
    assert node.world.bill("2026-08", "queue") == before
    node.world.run("periods", "--verify", "2026-08")


def test_a_pod_that_says_nothing_later_keeps_its_queue(node):
    """As with its job: an agent that cannot ask the API server takes nothing back."""
    node.pod("vision", "solo", card(0), **{LOCAL: "train"})
    node.hold(AUGUST_MS)
    node.api.pods[0]["metadata"]["labels"] = {}
    node.hold(AUGUST_MS + HOUR)
    assert node.hours("2026-08", "queue")["vision/train"] == "2.000000"


@pytest.mark.parametrize(
    ("options", "queue", "pool"),
    [
        ((), "(no queue)", "train"),
        (("--column", "queue=queue", "--pool", "big"), "train", "big"),
    ],
)
def test_an_imported_column_queue_is_a_pool_unless_it_is_said_otherwise(
    node, tmp_path, options, queue, pool
):
    """Slurm calls a pool so; a second import of the same file changes nothing."""
    path = tmp_path / "jobs.csv"
    path.write_text(
        "job_id,queue,team,gpus,start,end\n1,train,vision,2,2026-08-01T00:00Z,2026-08-01T01:00Z\n"
    )
    node.world.run("import", "usage", path, *options)
    assert "1 unchanged" in node.world.run("import", "usage", path, *options)
    assert node.hours("2026-08", "queue") == {queue: "2.000000"}
    assert set(node.world.bill("2026-08", "pool")) == {pool}
