"""Owners from Slurm: our prolog's files, those of dcgm-exporter and jobstats, and jobs whose epilog
never ran.
"""

import contextlib
import itertools
import logging
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger_agent.owners.processes import workload_of_cgroup
from gpuledger_agent.owners.slurm import (
    MAX_TAGS,
    MAX_TEXT,
    BadJobFile,
    SlurmOwners,
    prolog_job,
    slurm_owners,
    tags_of,
)
from gpuledger_agent.owners.slurm_liveness import (
    FORGOTTEN_S,
    GRACE_S,
    LOOK_S,
    OVERTIME_S,
    JobLiveness,
    WriteRecord,
)
from gpuledger_agent.settings import Settings
from gpuledger_common.largest_remainder import split
from gpuledger_common.readings import Accelerator

DEPLOY = Path(__file__).resolve().parents[3] / "deploy" / "slurm"
NOW_S, BOOTED_S = 1_800_000_000.0, 1_799_000_000
UUIDS = [f"GPU-0000000{index}-aaaa-bbbb-cccc-0123456789ab" for index in range(4)]
CARDS = [
    Accelerator(uuid, uuid, index, "NVIDIA H100 80GB HBM3") for index, uuid in enumerate(UUIDS)
]
MIG = [
    Accelerator(
        f"MIG-{number}", UUIDS[3], 3, "NVIDIA H100 80GB HBM3", mig_instance=f"1g.10gb/{number}"
    )
    for number in (7, 9)
]


class Node:
    """A node's folders and clocks; `owners` looks at them."""

    def __init__(self, folder):
        self.jobs, self.mapping = folder / "jobs", folder / "mapping"
        self.proc, self.cgroups, self.drivers = folder / "proc", folder / "cgroup", folder / "gpus"
        for path in (
            self.jobs,
            self.mapping,
            self.proc / "sys/kernel/random",
            self.cgroups,
            self.drivers,
        ):
            path.mkdir(parents=True)
        (self.proc / "sys/kernel/random/boot_id").write_text("this-boot\n")
        (self.proc / "stat").write_text(f"cpu 1 2\nbtime {BOOTED_S}\n")
        self.wall_s, self.monotonic_s = NOW_S, 1000.0
        alive = JobLiveness(self.proc, self.cgroups, lambda: self.wall_s, lambda: self.monotonic_s)
        self.owners = SlurmOwners(self.jobs, self.mapping, alive, {1000: "amina"}.get, self.drivers)

    def job(self, number, **values):
        lines = {"job_id": number, "boot_id": "this-boot", **values}
        self.write(
            self.jobs / str(number), "".join(f"{key}={value}\n" for key, value in lines.items())
        )

    def write(self, path, text, at_s=NOW_S):
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        os.utime(path, (at_s, at_s))

    def step(self, job, step="batch", place="system.slice/slurmstepd.scope"):
        folder = self.cgroups / place / f"job_{job}" / f"step_{step}"
        folder.mkdir(parents=True)
        return folder

    def later(self, seconds):
        self.wall_s += seconds
        self.monotonic_s += seconds

    def held(self, cards=CARDS):
        """(job, weight) of each holder, by index or instance of the accelerator."""
        found = self.owners.holders(cards, ())
        names = {card.uuid: card.mig_instance or card.index for card in cards}
        return {
            names[uuid]: [(one.workload.id, one.weight) for one in some]
            for uuid, some in found.items()
        }


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


def test_a_job_holds_the_gpus_of_its_file_until_the_file_goes(node):
    """Everything that the prolog wrote is told of the job; UUIDs win over indices; no file, no
    holder.
    """
    node.job(
        42,
        uuids=f"{UUIDS[2]},{UUIDS[0]}",
        gpus="0,1",
        account="vision",
        user="amina",
        partition="gpu",
        cluster="tetra",
        job_name="train",
        comment="project=llm;exp=42",
    )
    assert node.held() == {2: [("42", 1)], 0: [("42", 1)]}
    workload = node.owners.holders(CARDS, ())[UUIDS[0]][0].workload
    assert (workload.kind, workload.user, workload.account, workload.name) == (
        "slurm",
        "amina",
        "vision",
        "train",
    )
    assert workload.tags == {
        "project": "llm",
        "exp": "42",
        "team": "vision",
        "partition": "gpu",
        "cluster": "tetra",
    }
    (node.jobs / "42").unlink()
    assert node.held() == {}


def test_a_file_is_read_again_when_it_changes(node):
    """A requeued job that comes back on another GPU holds that one."""
    node.job(42, gpus="0")
    assert node.held() == {0: [("42", 1)]}
    node.job(42, gpus="1-2")
    assert node.held() == {1: [("42", 1)], 2: [("42", 1)]}


def test_indices_are_minors_where_the_driver_tells_them(node):
    """Slurm counts /dev/nvidiaN, NVML counts by bus: where they differ, the job lands on the device
    it was given.
    """
    for number, uuid in enumerate(reversed(UUIDS)):
        folder = node.drivers / f"0000:{number}8:00.0"
        folder.mkdir()
        (folder / "information").write_text(
            f"Model: \t\t NVIDIA H100\nGPU UUID: \t {uuid}\nDevice Minor: \t {number}\n"
        )
    node.job(1, gpus="0")
    node.write(node.mapping / "1", "2 1000\n")  # jobstats names minors
    node.write(node.mapping / "0", "3\n")  # dcgm-exporter names NVML's indices
    assert node.held() == {3: [("1", 1)], 2: [("2", 1)], 0: [("3", 1)]}


def test_the_layouts_of_dcgm_exporter_and_jobstats(node):
    """A file per index, instance or UUID; one id a line, with the uid in jobstats' layout; a job
    counts once.
    """
    node.write(node.mapping / "0", "11\n12\n\n")
    node.write(node.mapping / "1", "13 1000")
    node.write(node.mapping / UUIDS[1], "13 1000")
    node.write(node.mapping / "3.7", "14\n")
    node.write(node.mapping / "2", "")
    cards = [*CARDS[:3], *MIG]
    assert node.held(cards) == {0: [("11", 1), ("12", 1)], 1: [("13", 1)], "1g.10gb/7": [("14", 1)]}
    assert node.owners.holders(cards, ())[UUIDS[1]][0].workload.user == "amina"


def test_our_files_know_more_than_a_mapping_of_the_same_job(node):
    """A job that both folders name is one holder, with the account that our prolog wrote."""
    node.job(7, gpus="0", account="nlp")
    node.write(node.mapping / "0", "7\n")
    (holder,) = node.owners.holders(CARDS, ())[UUIDS[0]]
    assert holder.workload.account == "nlp"


@pytest.mark.parametrize("place", ["MIG-9", f"MIG-{UUIDS[3]}/9/0"])
def test_an_instance_is_held_by_its_uuid_old_or_new(node, place):
    """MIG-UUID, and the MIG-GPU-UUID/GI/CI of older drivers."""
    node.job(5, uuids=place)
    assert node.held(MIG) == {"1g.10gb/9": [("5", 1)]}


def test_a_whole_device_stands_for_all_its_instances(node):
    """A job that was given the device holds each of its MIG instances."""
    node.job(5, gpus="3")
    assert node.held(MIG) == {"1g.10gb/7": [("5", 1)], "1g.10gb/9": [("5", 1)]}


def test_shards_weigh_only_where_all_are_known(node):
    """Three shards to one; with a job whose shards are unknown all share equally, as no weight can
    be compared.
    """
    node.job(1, gpus="0", shards="3")
    node.job(2, gpus="0", shards="1")
    assert node.held() == {0: [("1", 3), ("2", 1)]}
    node.write(node.mapping / "0", "3\n")
    assert node.held() == {0: [("1", 1), ("2", 1), ("3", 1)]}


_numbers = itertools.count()
jobs = st.dictionaries(
    st.integers(1, 10**9),
    st.tuples(st.sets(st.integers(0, 3), min_size=1), st.one_of(st.none(), st.integers(0, 10**6))),
    max_size=12,
)


@given(jobs, st.integers(0, 10**9))
def test_the_shares_of_an_accelerator_add_up_to_one(tmp_path_factory, wanted, span_ms):
    """However many jobs with however many shards: a span is given away whole, and only to jobs that
    name the GPU.
    """
    node = Node(tmp_path_factory.mktemp("node") / str(next(_numbers)))
    for number, (indices, shards) in wanted.items():
        node.job(
            number,
            gpus=",".join(map(str, indices)),
            **({} if shards is None else {"shards": shards}),
        )
    held = node.held()
    for index in range(4):
        named = {str(number) for number, (indices, _) in wanted.items() if index in indices}
        assert {job for job, _ in held.get(index, [])} == named
        if named:
            weights = [weight for _, weight in held[index]]
            assert min(weights) >= 1
            assert sum(split(span_ms, weights)) == span_ms


@pytest.mark.parametrize(
    ("folder", "name", "content", "words"),
    [
        ("jobs", "42", "gpus=0\n", "job id '', which is not its name"),
        ("jobs", "42", "job_id=43\ngpus=0\n", "'43'"),
        ("jobs", "notes", "job_id=notes\ngpus=0\n", "not its name"),
        ("jobs", "42", "job_id=42\naccount=x\n", "names no GPU"),
        ("jobs", "42", "job_id=42\ngpus=0,x\n", "'x' is neither an index"),
        ("jobs", "42", "job_id=42\ngpus=1-99999\n", "nor a range"),
        ("jobs", "42", "job_id=42\ngpus=17\n", "GPU '17', which this node does not have"),
        ("jobs", "42", "job_id=42\n" + "#" * 70_000, "larger than"),
        ("mapping", "0", "4711 amina\n", "line 1"),
        ("mapping", "0", '11\n{"SLURM_JOB_ID": "12"}\n', "line 2"),
        ("mapping", "0", b"\xff\xfe\x00\x01", "line 1"),
        ("mapping", "README", "11\n", "neither by a GPU's index nor by a UUID"),
    ],
)
def test_a_bad_file_is_told_once_and_costs_the_others_nothing(
    node, caplog, folder, name, content, words
):
    """One sentence for as long as the fault stays, no exception, and the good file beside it holds
    its GPU.
    """
    node.job(1, gpus="1")
    node.write(getattr(node, folder) / name, content)
    with caplog.at_level(logging.WARNING):
        assert node.held() == node.held() == {1: [("1", 1)]}
    (record,) = caplog.records
    assert words in record.getMessage()
    assert str(getattr(node, folder) / name) in record.getMessage()


def test_a_name_in_no_utf8_still_bills_the_job(node):
    """A user who puts odd bytes into the name or comment of a job is charged for it all the same."""
    node.write(
        node.jobs / "42",
        b"job_id=42\naccount=nlp\njob_name=f\xfc\x00r\ncomment=team=\xff;x=y\ngpus=0\n",
    )
    (holder,) = node.owners.holders(CARDS, ())[UUIDS[0]]
    assert holder.workload.name == "f\ufffd\ufffdr"
    assert holder.workload.tags == {"team": "\ufffd", "x": "y"}


def test_what_is_no_regular_file_is_not_opened_for_long(node, caplog):
    """A fifo that nobody writes to, a link and a folder stop nobody; drafts of the prolog are not
    looked at.
    """
    os.mkfifo(node.jobs / "42")
    (node.jobs / "43").symlink_to("/etc/hostname")
    (node.jobs / "44").mkdir()
    (node.jobs / ".45.1234").write_text("job_id=4")
    with caplog.at_level(logging.WARNING):
        assert node.held() == {}
    assert len(caplog.records) == 3


def test_a_file_that_vanishes_while_it_is_read_is_no_news(node, monkeypatch, caplog):
    """An epilog between the listing and the reading: nothing is held, nothing is logged."""
    node.job(42, gpus="0")
    opened = os.open

    def vanishing(path, flags):
        Path(path).unlink()
        return opened(path, flags)

    monkeypatch.setattr("gpuledger_agent.owners.slurm.os.open", vanishing)
    with caplog.at_level(logging.DEBUG):
        assert node.held() == {}
    assert not caplog.records


def test_folders_that_are_not_there_or_may_not_be_read(tmp_path, caplog):
    """No folder means no jobs; a file in a folder's place is told once."""
    (tmp_path / "file").write_text("")
    owners = SlurmOwners(tmp_path / "none", tmp_path / "file")
    with caplog.at_level(logging.WARNING):
        assert owners.holders(CARDS, ()) == owners.holders(CARDS, ()) == {}
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path / 'file'} cannot be read (Not a directory)"
    ]


def test_a_plain_machine_has_no_slurm_source(tmp_path):
    """Without folder or configuration of Slurm there is no source of allocations that could
    disagree with anybody.
    """
    assert slurm_owners(Settings(slurm_jobs_dir=tmp_path / "none")) is None
    assert slurm_owners(Settings(slurm_jobs_dir=None)) is None
    assert slurm_owners(Settings(slurm_jobs_dir=tmp_path)) is not None
    assert (
        slurm_owners(Settings(slurm_jobs_dir=None, slurm_mapping_dir=tmp_path / "later"))
        is not None
    )


def test_a_file_from_before_this_boot_holds_nothing(node):
    """By the boot id that our prolog wrote; by the time of writing for the files of others."""
    node.job(1, gpus="0", boot_id="another-boot")
    node.write(node.mapping / "1", "2\n", at_s=BOOTED_S - 10)
    node.write(node.mapping / "2", "3\n", at_s=BOOTED_S + 10)
    assert node.held() == {2: [("3", 1)]}


@pytest.mark.parametrize(
    "place",
    [
        "system.slice/slurmstepd.scope",
        "system.slice/n7_slurmstepd.scope",
        "freezer/slurm_vm/uid_0",
        "memory/slurm/uid_1000",
    ],
)
def test_a_job_whose_extern_step_has_gone_has_ended(node, caplog, place):
    """Seen once in its cgroup, v1 or v2, then gone for the grace: an epilog that never ran bills no
    longer.
    """
    node.job(42, gpus="0", until=int(NOW_S) + 9 * 86_400)
    step = node.step(42, "extern", place)
    assert node.held() == {0: [("42", 1)]}
    node.later(86_400)
    assert node.held() == {0: [("42", 1)]}
    step.rmdir()
    node.later(LOOK_S)
    assert node.held() == {0: [("42", 1)]}
    node.later(GRACE_S)
    with caplog.at_level(logging.WARNING):
        assert node.held() == {}
    assert "extern step has ended" in caplog.text


def test_a_job_without_a_step_holds_until_its_time_limit(node):
    """salloc without a running srun: allocated and idle is the worst waste, and is billed; but not
    for ever.
    """
    node.job(42, gpus="0", until=int(NOW_S) + 7200)
    node.write(node.mapping / "1", "43\n")
    step = node.step(42, "0")
    assert node.held() == {0: [("42", 1)], 1: [("43", 1)]}
    step.rmdir()
    node.later(7200 + OVERTIME_S - 10)
    assert node.held() == {0: [("42", 1)], 1: [("43", 1)]}
    node.later(GRACE_S)
    assert node.held() == {1: [("43", 1)]}
    node.later(FORGOTTEN_S)
    assert node.held() == {}


def test_a_job_that_runs_holds_whatever_its_time_limit_said(node):
    """A limit that was extended: slurmstepd's process is sign of life enough where cgroups are not
    used.
    """
    node.job(42, gpus="0", until=int(NOW_S) + 10)
    process = node.proc / "311"
    process.mkdir()
    (process / "cmdline").write_bytes(b"slurmstepd: [42.batch]\0")
    node.later(10 * 86_400)
    assert node.held() == {0: [("42", 1)]}
    node.later(GRACE_S)
    assert node.held() == {0: [("42", 1)]}


def test_jobs_that_have_gone_are_forgotten(node):
    """A job id that comes round again starts anew, with the whole grace."""
    alive = node.owners.liveness
    node.step(42, "extern").rmdir()
    written = WriteRecord(NOW_S)
    assert alive.why_ended("42", written) is None
    alive.keep(set())
    node.later(GRACE_S + FORGOTTEN_S + 1)
    assert alive.why_ended("42", written) is None


@given(
    st.dictionaries(
        st.sampled_from(["comment", "wckey", "account", "partition", "cluster"]), st.text()
    )
)
def test_tags_are_bounded_whatever_users_write(values):
    """The collector refuses a workload with too many or too long tags, and with it the bill: there
    are none.
    """
    tags = tags_of(values)
    assert len(tags) <= MAX_TAGS + 4
    assert all(
        key and value and len(key) <= MAX_TEXT and len(value) <= MAX_TEXT
        for key, value in tags.items()
    )


LINES = st.lists(
    st.tuples(st.sampled_from(["gpus", "uuids", "shards", "until", "user", "comment"]), st.text())
)


@given(LINES, st.sampled_from(["", "0", "0,1", "1-3"]))
def test_any_text_is_a_job_or_a_bad_file(lines, gpus):
    """A job of the GPUs that a line names, or BadJobFile; no text raises anything else or makes a
    weight of nothing.
    """
    text = f"job_id=42\ngpus={gpus}\n" + "".join(f"{key}={value}\n" for key, value in lines)
    with contextlib.suppress(BadJobFile):
        job = prolog_job("42", text, 0.0)
        assert job.gpu_names
        assert job.shards is None or job.shards >= 1


def test_no_comment_changes_the_account():
    """Facts that rules match, and partition and cluster, are Slurm's word; the team is the user's,
    if named.
    """
    comment = (
        "account=rich;user=root;kind=static;pool=p;node=n;name=x;partition=free;cluster=c;project=p"
    )
    told = {"comment": comment, "account": "nlp", "partition": "gpu", "cluster": "tetra"}
    assert tags_of(told) == {"project": "p", "team": "nlp", "partition": "gpu", "cluster": "tetra"}


def test_a_wckey_may_carry_the_tags(node):
    """--wckey=team=x,project=y is read like a comment; any other wckey is a tag of its own."""
    assert tags_of({"wckey": "*team=x,project=y", "account": "a"}) == {"team": "x", "project": "y"}
    assert tags_of({"wckey": "*grant7", "account": "a"}) == {"wckey": "grant7", "team": "a"}


@pytest.mark.parametrize(
    ("cgroup", "expected"),
    [
        (
            "6:freezer:/slurm_vm/uid_0/job_1\n3:cpuset:/slurm_vm/uid_0/job_1/step_batch\n",
            ("slurm", "1"),
        ),
        ("0::/system.slice/slurmstepd.scope/job_1/step_extern/user/task_special\n", ("slurm", "1")),
        (
            "0::/kubepods.slice/x.slice/system.slice/n1_slurmstepd.scope/job_7/step_0/user/task_0\n",
            ("slurm", "7"),
        ),
        ("0::/system.slice/slurmd.service\n", None),
        ("0::/system.slice/slurmstepd.scope/system\n", None),
        ("0::/user.slice/user-1000.slice/user@1000.service/slurmstepd.scope/job_7\n", None),
        ("0::/user.slice/user-1000.slice/user@1000.service/slurm/uid_0/job_7/step_0\n", None),
    ],
)
def test_a_cgroup_of_slurm_names_its_job_and_a_users_own_does_not(cgroup, expected):
    """The paths of a real Slurm 22.05 on cgroup v1 and those of v2; what a user made up below
    user.slice is no job.
    """
    assert workload_of_cgroup(cgroup) == expected


def run_script(name, folder, **environment):
    done = subprocess.run(
        ["/bin/sh", DEPLOY / f"{name}.sh"],
        env={"GPULEDGER_SLURM_JOBS_DIR": str(folder), **environment},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""  # slurmd would take it for words to the job
    return done


def test_prolog_and_epilog_are_what_the_source_reads(node):
    """The file that the script writes, with what users like to put into names, is what the owner
    source takes.
    """
    (node.drivers / "0000:18:00.0").mkdir()
    (node.drivers / "0000:18:00.0/information").write_text(
        f"GPU UUID: \t {UUIDS[2]}\nDevice Minor: \t 1\n"
    )
    environment = {
        "SLURM_JOB_ID": "42",
        "SLURM_JOB_GPUS": "1",
        "SLURM_JOB_ACCOUNT": "vision",
        "SLURM_JOB_USER": "amina",
        "SLURM_JOB_NAME": "a=b;$(touch x)`id`\ngpus=3\n",
        "SLURM_JOB_COMMENT": "team=seg\nuuids=GPU-x",
        "GPULEDGER_NVIDIA_PROC": str(node.drivers),
    }
    run_script("prolog", node.jobs, **environment)
    assert [path.name for path in node.jobs.iterdir()] == ["42"]
    job = prolog_job("42", (node.jobs / "42").read_text(), 0.0)
    assert job.gpu_names == (UUIDS[2],)
    assert (job.workload.account, job.workload.user) == ("vision", "amina")
    assert job.workload.name == "a=b;$(touch x)`id` gpus=3"
    assert job.workload.tags == {"team": "seg uuids=GPU-x"}
    run_script("epilog", node.jobs, **environment)
    assert list(node.jobs.iterdir()) == []


@pytest.mark.parametrize(
    ("environment", "places"),
    [
        ({"SLURM_JOB_GPUS": "0,2"}, ("0", "2")),
        ({"CUDA_VISIBLE_DEVICES": "3"}, ("3",)),
        ({"SLURM_JOB_GPUS": "0", "CUDA_VISIBLE_DEVICES": "MIG-a,MIG-b"}, ("MIG-a", "MIG-b")),
    ],
)
def test_the_prolog_writes_what_slurm_tells(tmp_path, environment, places):
    """Indices where no driver is there, as on a fake node; UUIDs where Slurm names them."""
    run_script(
        "prolog", tmp_path / "made", SLURM_JOB_ID="7", GPULEDGER_NVIDIA_PROC="/none", **environment
    )
    assert prolog_job("7", (tmp_path / "made/7").read_text(), 0.0).gpu_names == places


def test_the_prolog_asks_nvidia_smi_where_the_driver_tells_no_minors(tmp_path):
    """`nvidia-smi -L`; indices that it does not list leave the indices alone, never half of the
    UUIDs.
    """
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "nvidia-smi").write_text(
        f"#!/bin/sh\necho 'GPU 0: NVIDIA H100 80GB HBM3 (UUID: {UUIDS[1]})'\n"
    )
    (tools / "nvidia-smi").chmod(0o755)
    for gpus, places in (("0", (UUIDS[1],)), ("0,1", ("0", "1"))):
        run_script(
            "prolog",
            tmp_path / "jobs",
            SLURM_JOB_ID="7",
            GPULEDGER_NVIDIA_PROC="/none",
            SLURM_JOB_GPUS=gpus,
            PATH=str(tools),
        )
        assert prolog_job("7", (tmp_path / "jobs/7").read_text(), 0.0).gpu_names == places


def test_the_prolog_asks_for_shards_where_it_is_told_to(tmp_path):
    """Slurm tells a prolog no number of shards; scontrol does, in the words of Slurm 22.05."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "scontrol").write_text(
        "#!/bin/sh\necho 'JobId=7 JOB_GRES=shard:3 Nodes=vm CPU_IDs=0 Mem=0 GRES=shard:3(IDX:2)"
        " MinCPUsNode=1'\n"
    )
    (tools / "scontrol").chmod(0o755)
    for asked, shards in ((None, None), ("1", 3)):
        run_script(
            "prolog",
            tmp_path / "jobs",
            SLURM_JOB_ID="7",
            GPULEDGER_NVIDIA_PROC="/none",
            SLURM_JOB_GPUS="2",
            SLURMD_NODENAME="vm",
            PATH=str(tools),
            **({} if asked is None else {"GPULEDGER_SLURM_SHARDS": asked}),
        )
        assert prolog_job("7", (tmp_path / "jobs/7").read_text(), 0.0).shards == shards


@pytest.mark.parametrize("job", ["", "../../etc/passwd", "7;rm", "7"])
def test_scripts_that_cannot_work_end_well_and_say_so(tmp_path, job):
    """No job id, one that is a path, a folder that cannot be made: exit 0 (asserted by the helper),
    nothing written.
    """
    (tmp_path / "file").write_text("")
    for name in ("prolog", "epilog"):
        done = run_script(name, tmp_path / "file" / "jobs", SLURM_JOB_ID=job, SLURM_JOB_GPUS="0")
        assert name == "epilog" or f"gpuledger-{name}: " in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_job_without_gpus_leaves_no_file(tmp_path):
    """Prologs run for every job of the cluster."""
    run_script("prolog", tmp_path / "jobs", SLURM_JOB_ID="7")
    run_script("prolog", tmp_path / "jobs", SLURM_JOB_ID="7", CUDA_VISIBLE_DEVICES="NoDevFiles")
    assert not (tmp_path / "jobs").exists()
