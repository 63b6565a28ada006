"""Owner sources: static rules, and processes by cgroup and unix user."""

import pytest

from gpuledger_agent.owners.processes import ProcessOwners, workload_of_cgroup
from gpuledger_agent.owners.static import BadRules, StaticOwners
from gpuledger_agent.readings import Accelerator, Process, Sample

HEX = "4f" * 32
GPU = Accelerator("GPU-a", "GPU-a", 3, "NVIDIA H100 80GB HBM3")


@pytest.mark.parametrize(
    ("cgroup", "expected"),
    [
        ("0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0\n", ("slurm", "4711")),
        ("0::/system.slice/node07_slurmstepd.scope/job_4711/step_0\n", ("slurm", "4711")),
        ("4:devices:/slurm/uid_1000/job_815/step_batch\n", ("slurm", "815")),
        (f"0::/system.slice/docker-{HEX}.scope\n", ("container", HEX[:12])),
        (f"3:cpu:/docker/{HEX}\n", ("container", HEX[:12])),
        (f"0::/machine.slice/libpod-{HEX}.scope\n", ("container", HEX[:12])),
        (
            "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-"
            f"pod0f1e2d3c_4b5a_6978_8796_a5b4c3d2e1f0.slice/cri-containerd-{HEX}.scope\n",
            ("kubernetes", "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"),
        ),
        (f"0::/system.slice/nerdctl-{HEX}.scope\n", ("container", HEX[:12])),
        (f"9:devices:/default/{HEX}\n8:cpu:/default/{HEX}\n", ("container", HEX[:12])),
        (
            f"0::/kubepods.slice/kubepods-pod{'ab' * 16}.slice/crio-{HEX}.scope\n",
            ("kubernetes", "ab" * 16),
        ),
        ("0::/user.slice/user-1000.slice/session-3.scope\n", None),
    ],
)
def test_a_cgroup_names_the_scheduler_that_owns_the_process(cgroup, expected):
    """Slurm on cgroup v1 and v2, Docker, podman, Kubernetes; a login session belongs to none of them."""
    assert workload_of_cgroup(cgroup) == expected


def make_process(proc, pid, *, uid=1000, started=500, cgroup="0::/user.slice\n", command="python3"):
    folder = proc / str(pid)
    folder.mkdir(exist_ok=True)
    stat = " ".join(["S", *["0"] * 18, str(started), "0"])
    (folder / "stat").write_text(f"{pid} (a (tricky) name) {stat}\n")
    (folder / "status").write_text(f"Name:\tx\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
    (folder / "cgroup").write_text(cgroup)
    (folder / "comm").write_text(command + "\n")


def sample_with(*pids):
    return Sample("GPU-a", 0, {}, {}, [Process(pid) for pid in pids])


def test_a_pid_that_comes_round_again_is_another_workload(tmp_path):
    """Processes are known by pid and start time: a reused pid is not taken for the old one."""
    owners = ProcessOwners(tmp_path, {1000: "amina", 1001: "bjorn"}.get)
    make_process(tmp_path, 42)
    (first,) = owners.holders([GPU], [sample_with(42)])["GPU-a"]
    make_process(tmp_path, 42, uid=1001, started=900)
    (second,) = owners.holders([GPU], [sample_with(42)])["GPU-a"]
    assert (first.workload.user, second.workload.user) == ("amina", "bjorn")
    assert first.workload.id != second.workload.id


def test_processes_of_one_job_are_one_holder_and_gone_ones_none(tmp_path):
    """Two processes of a Slurm job hold the GPU once; a pid that has gone holds nothing."""
    owners = ProcessOwners(tmp_path, lambda uid: f"u{uid}")
    for pid in (7, 8):
        make_process(tmp_path, pid, cgroup="0::/system.slice/slurmstepd.scope/job_99/step_0\n")
    (holder,) = owners.holders([GPU], [sample_with(7, 8, 4444)])["GPU-a"]
    assert (holder.workload.kind, holder.workload.id, holder.workload.user) == ("slurm", "99", "u1000")
    assert owners.holders([GPU], [sample_with(4444)]) == {}


def test_static_rules_give_accelerators_to_workloads(tmp_path):
    """The first rule that matches names the holder, with its tags; what none matches has no holder."""
    path = tmp_path / "rules.toml"
    path.write_text(
        '[[hold]]\nmodel = "*H100*"\nindex = 3\nworkload = "reserved"\ntags = { team = "vision" }\n'
        '[[hold]]\nnode = "other"\nworkload = "never"\n'
    )
    owners = StaticOwners.from_file(path, "n1")
    (holder,) = owners.holders([GPU, Accelerator("GPU-b", "GPU-b", 0, "NVIDIA L4")], [])["GPU-a"]
    assert holder.workload.id == "reserved"
    assert holder.workload.tags == {"team": "vision"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[hold]]\n", "hold 1: workload"),
        ('[[hold]]\nworkload = "a"\nteem = "x"\n', "hold 1: teem is not a key"),
        ('[[held]]\nworkload = "a"\n', "held is not known"),
        ("[[hold\n", "is not TOML"),
        ('[[hold]]\nworkload = "a"\ntags = "x"\n', "tags must be texts"),
    ],
)
def test_a_bad_rules_file_is_named_with_place_and_reason(tmp_path, text, words):
    """Every fault of the file is one sentence with file and rule."""
    path = tmp_path / "rules.toml"
    path.write_text(text)
    with pytest.raises(BadRules, match=r"rules\.toml") as raised:
        StaticOwners.from_file(path, "n1")
    assert words in str(raised.value)
