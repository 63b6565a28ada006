"""Owner sources: static rules, and processes by cgroup and unix user."""

from dataclasses import replace

import pytest

from gpuledger_agent.owners import open_owners
from gpuledger_agent.owners.processes import ProcessOwners, workload_of_cgroup
from gpuledger_agent.owners.static import StaticOwners
from gpuledger_agent.settings import Settings
from gpuledger_common.readings import Accelerator, Process, Sample
from gpuledger_common.settings import SettingsError

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
            (
                "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-"
                f"pod0f1e2d3c_4b5a_6978_8796_a5b4c3d2e1f0.slice/cri-containerd-{HEX}.scope\n"
            ),
            ("kubernetes", "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"),
        ),
        (f"0::/system.slice/nerdctl-{HEX}.scope\n", ("container", HEX[:12])),
        (f"9:devices:/default/{HEX}\n8:cpu:/default/{HEX}\n", ("container", HEX[:12])),
        (
            f"0::/kubepods.slice/kubepods-pod{'ab' * 16}.slice/crio-{HEX}.scope\n",
            ("kubernetes", "ab" * 16),
        ),
        ("0::/user.slice/user-1000.slice/session-3.scope\n", None),
        (
            "0::/user.slice/user-7.slice/user@7.service/pod0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0.scope\n",
            None,
        ),
        ("0::/../../user.slice/user-7.slice/user@7.service/slurmstepd.scope/job_7/step_0\n", None),
        (
            f"0::/user.slice/user-7.slice/user@7.service/docker-{HEX}.scope\n",
            ("container", f"user-7/{HEX[:12]}"),
        ),
        (
            f"0::/system.slice/docker-{HEX}.scope/user.slice/pod{'ab' * 16}\n",
            ("container", HEX[:12]),
        ),
    ],
)
def test_a_cgroup_names_the_scheduler_that_owns_the_process(cgroup, expected):
    """Slurm, Docker, podman, Kubernetes; what users name in user.slice is nobody else's job, pod or
    container.
    """
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
    assert (holder.workload.kind, holder.workload.id, holder.workload.user) == (
        "slurm",
        "99",
        "u1000",
    )
    assert owners.holders([GPU], [sample_with(4444)]) == {}


def test_a_process_cannot_hide_behind_a_name_that_is_no_text(tmp_path):
    """prctl(2) takes any bytes as a name: the process is still seen, and so is everybody else's."""
    owners = ProcessOwners(tmp_path, {1000: "amina"}.get)
    make_process(tmp_path, 7)
    make_process(tmp_path, 8)
    (tmp_path / "8/comm").write_bytes(b"\xff)\xfe\n")
    (tmp_path / "8/stat").write_bytes(b"8 (\xff)\xfe) S" + b" 0" * 18 + b" 500 0\n")
    (tmp_path / "8/status").write_bytes(b"Name:\t\xff)\xfe\nUid:\t1000\t1000\t1000\t1000\n")
    holders = owners.holders([GPU], [sample_with(7, 8)])["GPU-a"]
    assert [holder.workload.user for holder in holders] == ["amina", "amina"]
    assert holders[1].workload.name == "\ufffd)\ufffd"


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
    with pytest.raises(SettingsError, match=r"rules\.toml") as raised:
        StaticOwners.from_file(path, "n1")
    assert words in str(raised.value)


def test_owner_sources_have_their_word_in_the_order_of_the_setting(tmp_path):
    """Whoever stands first wins; processes see use, and so come last wherever they stand."""
    (tmp_path / "jobs").mkdir()
    rules = tmp_path / "rules.toml"
    rules.write_text('[[hold]]\nworkload = "reserved"\n')
    settings = Settings(
        owner_rules_file=rules, kubelet_socket=None, slurm_jobs_dir=tmp_path / "jobs"
    )

    class Cards:
        name = "nvml"

    for names in (("slurm", "static"), ("static", "slurm")):
        owners = open_owners(replace(settings, owners=",".join(["processes", *names])), Cards())
        assert [owner.name for owner in owners] == [*names, "processes"]
