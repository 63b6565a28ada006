"""A job of Slurm whose pods agents saw and whose line sacct has: billed once, right by hand."""

import pytest

from fakes.facts import AUGUST_MS, HOUR
from fakes.kubernetes_node import card

JOB_ID = "scheduler.slinky.slurm.net/slurm-jobid"
ACCOUNT = "slurmjob.slinky.slurm.net/account"
AT = AUGUST_MS // 1000


def sacct(number, gpus, nodes, start_s=AT, hours=1, account="nlp"):
    """A line of Slurm's accounting."""
    end_s = start_s + hours * 3600
    cells = (number, "hpc", account, "amina", "bridge", "normal", "COMPLETED", start_s, start_s)
    tres = f"cpu=8,gres/gpu={gpus}"
    cells += (start_s, end_s, hours * 3600, "00:00:00", tres, nodes, "", "", "train")
    return "|".join(map(str, cells))


def bring(node, tmp_path, *lines):
    """Import these lines; `--also`: the import asks whether GPUs of a measured node are others."""
    path = tmp_path / "sacct.txt"
    path.write_text("\n".join(lines) + "\n")
    node.world.run("import", "sacct", path, "--also")


NODE_SET = {"apiVersion": "slinky.slurm.net/v1beta1", "kind": "NodeSet", "name": "gpu", "uid": "s"}


def test_cards_of_a_slurmd_are_its_jobs_and_between_them_nobodys(node, tmp_path):
    """Four cards of one pod for three hours, 12 GPU-hours at 10 USD.

    Job 7 of vision has two of them in the first two hours, job 8 of nlp one in the second.
    """
    node.read_slurm(tmp_path / "jobs")
    (tmp_path / "jobs").mkdir()
    node.pod("slurm", "gpu-0", *map(card, range(4)), owner=NODE_SET, team="platform")

    def start(job, account, *cards):
        """What the prolog in the pod writes."""
        uuids = ",".join(map(card, cards))
        lines = f"job_id={job}", "user=amina", f"account={account}", f"uuids={uuids}"
        (tmp_path / "jobs" / job).write_text("\n".join(lines) + "\n")

    start("7", "vision", 0, 1)
    node.hold(AUGUST_MS)
    start("8", "nlp", 3)
    node.hold(AUGUST_MS + HOUR)
    for job in "78":
        (tmp_path / "jobs" / job).unlink()
    node.hold(AUGUST_MS + 2 * HOUR)
    bill = node.world.bill("2026-08")
    assert bill["vision"] == ("4.000000", "40.00")
    assert bill["nlp"] == ("1.000000", "10.00")
    assert bill["(unallocated)"] == ("7.000000", "70.00")
    assert "platform" not in bill


def two_pods(node, **changes):
    """Two pods of job 4711, each with a card."""
    for at, name in enumerate("ab"):
        facts = {"annotations": {ACCOUNT: "nlp"}, JOB_ID: "4711", **changes}
        node.pod("ml", name, card(at), **facts)


def test_a_job_of_pods_is_billed_once_and_has_an_account(node, tmp_path):
    """Two cards for an hour at 10 USD: 20, whether sacct comes after the pods or again."""
    two_pods(node)
    node.hold(AUGUST_MS)
    assert node.world.bill("2026-08")["nlp"] == ("2.000000", "20.00")
    for _ in range(2):
        bring(node, tmp_path, sacct(4711, 2, "n1"))
        assert node.world.bill("2026-08")["nlp"] == ("2.000000", "20.00")
    assert node.world.bill("2026-08", "job")["SlurmJob ml/4711"] == ("2.000000", "20.00")


def test_pods_that_come_after_sacct_take_its_place(node, tmp_path):
    """An agent's spool may arrive long after the import."""
    bring(node, tmp_path, sacct(4711, 2, "n1"))
    assert node.world.bill("2026-08")["nlp"] == ("2.000000", "20.00")
    two_pods(node)
    node.hold(AUGUST_MS)
    assert node.world.bill("2026-08")["nlp"] == ("2.000000", "20.00")


def test_what_no_agent_saw_of_the_job_stays(node, tmp_path):
    """Three cards for two hours on two nodes, of which an agent saw two for one: 2 + (6 - 2) = 6."""
    two_pods(node)
    node.hold(AUGUST_MS)
    bring(node, tmp_path, sacct(4711, 3, "n[1-2]", hours=2))
    assert node.world.bill("2026-08")["nlp"] == ("6.000000", "60.00")


def test_accounting_that_comes_after_the_close_corrects_what_no_pod_held(node, tmp_path):
    """Of three cards two were billed by their pods; the third one is booked later, once."""
    two_pods(node)
    node.hold(AUGUST_MS)
    node.world.run("close", "--period", "2026-08")
    before = node.world.bill("2026-08")
    for _ in range(2):
        bring(node, tmp_path, sacct(4711, 3, "n[1-2]"))
        node.world.run("reconcile")
        assert node.world.bill("2026-08") == before
        (total,) = node.world.rows("SELECT sum(cost_micro) FROM correction")
        assert total == (10_000_000,)


def test_in_its_own_pool_a_card_takes_the_place_of_one_gpu_once(node, tmp_path):
    """Six cards on two nodes, of which the four of n1 were seen, two of them with its pods: the two
    of n2 stay.
    """
    two_pods(node)
    node.hold(AUGUST_MS)
    path = tmp_path / "sacct.txt"
    path.write_text(sacct(4711, 6, "n[1-2]") + "\n")
    node.world.run("import", "sacct", path, "--pool", "default")
    bill = node.world.bill("2026-08")
    assert bill["nlp"] == ("4.000000", "40.00")
    assert bill["(unallocated)"] == ("2.000000", "20.00")


def test_a_label_takes_no_job_elsewhere_off_the_bill(node, tmp_path):
    """The job of that number ran on n2, and another one at another time: both are billed."""
    two_pods(node)
    node.hold(AUGUST_MS)
    later = AT + 24 * HOUR // 1000
    lines = sacct(4711, 8, "n2"), sacct(4711, 1, "n1", start_s=later), sacct(4712, 1, "n1")
    bring(node, tmp_path, *lines)
    assert node.world.bill("2026-08")["nlp"] == ("12.000000", "120.00")


@pytest.mark.parametrize("nodes", ["n1", "n[1-2]", "m1,n1"])
def test_jobs_of_measured_nodes_are_asked_about_alone_and_in_lists(node, tmp_path, nodes):
    """In the pool of the measured GPUs their time counts once."""
    node.hold(AUGUST_MS)
    path = tmp_path / "sacct.txt"
    path.write_text(sacct(4711, 2, nodes) + "\n")
    _, _, error = node.world._run("import", "sacct", path)
    assert "would be billed beside the GPUs that are measured in pool default" in error
    node.world.run("import", "sacct", path, "--pool", "default")
    bill = node.world.bill("2026-08")
    assert (bill["(unallocated)"], "nlp" in bill) == (("4.000000", "40.00"), False)


def test_jobs_of_other_nodes_are_not_asked_about(node, tmp_path):
    node.hold(AUGUST_MS)
    path = tmp_path / "sacct.txt"
    path.write_text(sacct(4711, 2, "n[2-3]") + "\n")
    node.world.run("import", "sacct", path)
    assert node.world.bill("2026-08")["nlp"] == ("2.000000", "20.00")
