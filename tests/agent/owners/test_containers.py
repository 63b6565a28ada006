"""Owners from docker and podman: a real HTTP server on a unix socket that answers as the engine
does.
"""

import json
import time
from dataclasses import replace

import pytest

from fakes import containerd as fake_containerd
from fakes import engine as fake
from fakes import podman as fake_podman
from fakes.engine import container, gpus
from gpuledger_agent.owners import open_owners
from gpuledger_agent.owners.containerd import Containerd, specified_devices
from gpuledger_agent.owners.containers import (
    MAX_ANSWER_BYTES,
    ContainerOwners,
    Engine,
    EngineFailed,
    EngineSilent,
    devices_of_command,
    resolve,
)
from gpuledger_agent.owners.polling import PolledValue
from gpuledger_agent.owners.processes import ProcessOwners
from gpuledger_agent.owners.protobuf import BadMessage
from gpuledger_agent.settings import Settings
from gpuledger_common.readings import Accelerator, Process, Sample, Workload

UUID = "GPU-8c7a2f10-3b44-4a0e-9d55-0a1b2c3d4e5f"
OTHER = "GPU-11111111-2222-3333-4444-555555555555"
H100 = "NVIDIA H100 80GB HBM3"
GPUS = (Accelerator(UUID, UUID, 0, H100), Accelerator(OTHER, OTHER, 1, H100))
SLICED = (
    Accelerator("MIG-5d1e0c6a-a", UUID, 0, H100, "1g.10gb/7", 142_857),
    Accelerator("MIG-5d1e0c6a-b", UUID, 0, H100, "2g.20gb/3", 285_714),
    Accelerator(OTHER, OTHER, 1, H100),
)


@pytest.fixture
def docker(tmp_path):
    with fake.running(tmp_path / "docker.sock") as running:
        yield running


def owners_of(docker):
    """Owners from what the engine answers now."""
    containers = PolledValue("containers", Engine(docker.path).look, 60, 60)
    containers.refresh()
    return ContainerOwners(containers)


def held(docker, accelerators=GPUS):
    """Names of the containers by accelerator."""
    found = owners_of(docker).holders(accelerators, [])
    return {uuid: [holder.workload.name for holder in holders] for uuid, holders in found.items()}


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (container("a", "c", requests=gpus(count=-1)), {UUID, OTHER}),
        (container("a", "c", requests=gpus(count=1)), {UUID}),
        (container("a", "c", requests=gpus("1")), {OTHER}),
        (container("a", "c", requests=gpus(UUID, OTHER)), {UUID, OTHER}),
        (container("a", "c", requests=gpus("GPU-8c7a2f10")), {UUID}),
        (
            container("a", "c", requests=gpus("nvidia.com/gpu=1", driver="cdi", capabilities=())),
            {OTHER},
        ),
        (
            container("a", "c", requests=gpus("nvidia.com/gpu=all", driver="cdi", capabilities=())),
            {UUID, OTHER},
        ),
        (container("a", "c", runtime="nvidia", env=["NVIDIA_VISIBLE_DEVICES=all"]), {UUID, OTHER}),
        (container("a", "c", runtime="nvidia", env=[f"NVIDIA_VISIBLE_DEVICES={OTHER},7"]), {OTHER}),
        (container("a", "c", runtime="nvidia", env=["NVIDIA_VISIBLE_DEVICES=void"]), set()),
        (container("a", "c", runtime="nvidia", env=["NVIDIA_VISIBLE_DEVICES=none"]), set()),
        (container("a", "c", runtime="nvidia"), set()),
        (container("a", "c", env=["NVIDIA_VISIBLE_DEVICES=all"]), set()),
        (
            container(
                "a", "c", devices=[{"PathOnHost": "/dev/nvidia1"}, {"PathOnHost": "/dev/nvidiactl"}]
            ),
            {OTHER},
        ),
        (container("a", "c", requests=gpus(count=-1, capabilities=("tpu",))), set()),
        (container("a", "c"), set()),
    ],
)
def test_a_running_container_holds_what_it_was_given(docker, made, expected):
    """`--gpus`, CDI, device files and NVIDIA's runtime give; a variable of the image under another
    runtime does not.
    """
    docker.containers = [made]
    assert set(held(docker)) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("0", ("MIG-5d1e0c6a-a", "MIG-5d1e0c6a-b")),
        ("0:1", ("MIG-5d1e0c6a-b",)),
        ("0:2", ()),
        ("MIG-5d1e0c6a-b", ("MIG-5d1e0c6a-b",)),
        ("nvidia.com/gpu=0:0", ("MIG-5d1e0c6a-a",)),
        (UUID, ("MIG-5d1e0c6a-a", "MIG-5d1e0c6a-b")),
        ("all", ("MIG-5d1e0c6a-a", "MIG-5d1e0c6a-b", OTHER)),
        ("GPU-1", ()),
        ("/var/run/nvidia-container-devices", ()),
        ("-1", ()),
        ("", ()),
    ],
)
def test_names_of_devices_are_read_as_the_runtime_reads_them(name, expected):
    """Indices, MIG instances by position, UUIDs and their beginnings."""
    assert resolve(name, SLICED) == expected


def test_containers_that_were_given_one_gpu_share_it_equally(docker):
    """Engines reserve nothing: two containers on one device are two holders of one weight."""
    docker.containers = [
        container("a", "one", requests=gpus("0")),
        container("b", "two", requests=gpus("0", "1")),
    ]
    assert held(docker) == {UUID: ["one", "two"], OTHER: ["two"]}
    assert {holder.weight for holder in owners_of(docker).holders(GPUS, [])[UUID]} == {1}


def test_a_container_given_a_gpu_twice_holds_it_once(docker):
    """By `--gpus` and by the variable that `--gpus` sets."""
    both = container(
        "a", "c", runtime="nvidia", requests=gpus("0"), env=[f"NVIDIA_VISIBLE_DEVICES={UUID}"]
    )
    docker.containers = [both]
    assert held(docker) == {UUID: ["c"]}


def test_monitors_and_pods_hold_nothing_here(docker):
    """A label frees exporters that see every GPU; containers of pods are the kubelet's to tell."""
    docker.containers = [
        container("a", "dcgm-exporter", requests=gpus(count=-1), gpuledger__hold="false"),
        container("b", "k8s_main", requests=gpus("0"), io__kubernetes__pod__uid="u1"),
        container("c", "train", requests=gpus("1"), gpuledger__hold="true"),
    ]
    assert held(docker) == {OTHER: ["train"]}


def test_name_image_and_labels_are_told(docker):
    """Labels are tags; the id is the short one, by which a process's cgroup names the container."""
    docker.containers = [
        container(
            "a", "train", requests=gpus("0"), team="vision", org__opencontainers__image__title="x"
        )
    ]
    (holder,) = owners_of(docker).holders(GPUS, [])[UUID]
    assert holder.workload == Workload(
        "a" * 12,
        "container",
        None,
        None,
        "train",
        {"team": "vision", "container": "train", "image": "nvcr.io/nvidia/pytorch:25.03-py3"},
    )


def test_a_container_found_by_its_process_is_described(docker, tmp_path):
    """From a real /proc folder by cgroup: user from the process, name and labels from the engine."""
    docker.containers = [container("a", "notebook", team="nlp")]
    folder = tmp_path / "proc" / "77"
    folder.mkdir(parents=True)
    (folder / "stat").write_text("77 (python) S " + " ".join(str(n) for n in range(1, 40)))
    (folder / "status").write_text("Name:\tpython\nUid:\t1000\t1000\t1000\t1000\n")
    (folder / "comm").write_text("python\n")
    (folder / "cgroup").write_text(f"0::/system.slice/docker-{'a' * 64}.scope\n")
    containers = owners_of(docker)
    found = ProcessOwners(tmp_path / "proc", lambda uid: "amina", [containers.describe])
    sample = Sample(UUID, 0, {}, processes=[Process(77)])
    (holder,) = found.holders(GPUS, [sample])[UUID]
    assert (holder.workload.id, holder.workload.user, holder.workload.name) == (
        "a" * 12,
        "amina",
        "notebook",
    )
    assert holder.workload.tags["team"] == "nlp"
    assert containers.holders(GPUS, []) == {}
    unknown = Workload("f" * 12, "container")
    assert containers.describe(unknown) is unknown


def test_each_container_is_inspected_once_and_forgotten_when_it_ends(docker):
    """What it was given does not change while it runs."""
    engine = Engine(docker.path)
    docker.containers = [container("a", "one"), container("b", "two")]
    for _ in range(3):
        assert set(engine.look()) == {"a" * 12, "b" * 12}
    assert len([target for target in docker.asked if target != "/containers/json"]) == 2
    docker.containers.pop()
    assert set(engine.look()) == {"a" * 12}


def test_a_container_that_ends_between_two_questions_is_no_failure(docker):
    """It is listed and then unknown; the others are told."""
    docker.containers = [container("a", "one")]
    docker.odd["/containers/json"] = 200, json.dumps([{"Id": "a" * 64}, {"Id": "b" * 64}]).encode()
    assert set(Engine(docker.path).look()) == {"a" * 12}


def test_one_container_that_cannot_be_read_does_not_hide_the_others(docker):
    """An answer of another shape, or an error of the engine for one of them."""
    docker.containers = [container("a", "one"), container("b", "two"), container("c", "three")]
    docker.odd[f"/containers/{'b' * 64}/json"] = 200, b'{"Id": 3}'
    docker.odd[f"/containers/{'c' * 64}/json"] = 500, b"{}"
    assert set(Engine(docker.path).look()) == {"a" * 12}


@pytest.mark.parametrize(
    ("status", "body", "sentence"),
    [
        (500, b"{}", "HTTP status 500"),
        (404, b"{}", "does not know"),
        (200, b"\xff\xfe", "cannot be read"),
        (200, b'{"Id": 1}', "cannot be read"),
        (200, b" " * (MAX_ANSWER_BYTES + 1), "larger than"),
    ],
)
def test_answers_that_cannot_be_used_are_errors_of_ours(docker, status, body, sentence):
    """The sentence names the socket and what was wrong."""
    docker.odd["/containers/json"] = status, body
    with pytest.raises(EngineFailed, match=sentence):
        Engine(docker.path).look()


def test_an_engine_that_hangs_costs_the_timeout_and_one_that_is_gone_nothing(docker, tmp_path):
    """Both are silence; what was known holds on until it is stale."""
    docker.hang.clear()
    began = time.monotonic()
    with pytest.raises(EngineSilent, match="no complete answer within"):
        Engine(docker.path, timeout_s=0.3).look()
    assert time.monotonic() - began < 20
    with pytest.raises(EngineSilent, match="No such file"):
        Engine(tmp_path / "none.sock").look()


@pytest.mark.parametrize(
    ("command", "given"),
    [
        (
            "podman run -d --device nvidia.com/gpu=0 --device=nvidia.com/gpu=GPU-8c7a2f10 img",
            ["0", "GPU-8c7a2f10"],
        ),
        ("podman run --gpus all img", ["all"]),
        ("podman run --gpus=device=0,1 img", ["0", "1"]),
        ("podman run --device /dev/fuse --device", []),
        ("", []),
    ],
)
def test_a_podman_command_names_the_devices_of_cdi(command, given):
    """The only trace that podman keeps of a CDI name."""
    assert [name.rpartition("=")[2] for name in devices_of_command(command.split())] == given


@pytest.fixture
def podman():
    """A real podman service; its containers are `sleep`s, for a test machine may not isolate any."""
    with fake_podman.running() as found:
        yield found


def test_a_real_podman_tells_what_it_was_asked_for(podman):
    """Names, labels and devices of two running containers, one by CDI; the third only has the
    image's variable.
    """
    podman.run("train", "--label", "team=vision", "--device", "nvidia.com/gpu=1")
    podman.run("web", "--env", "NVIDIA_VISIBLE_DEVICES=all")
    found = owners_of(podman)
    holders = found.holders(GPUS, [])
    assert {
        uuid: [holder.workload.name for holder in there] for uuid, there in holders.items()
    } == {OTHER: ["train"]}
    assert holders[OTHER][0].workload.tags["team"] == "vision"
    podman.remove("train")
    assert owners_of(podman).holders(GPUS, []) == {}


@pytest.fixture
def containerd():
    """A real containerd; its containers are `sleep`s."""
    with fake_containerd.running() as found:
        yield found


def test_a_real_containerd_tells_what_runs_and_what_it_was_given(containerd):
    """Labels, the hook of `--gpus`; a variable alone gives nothing, Kubernetes' namespace is left
    out, the dead too.
    """
    containerd.run("default", "train", "--label", "team=vision", "--gpus", "1")
    containerd.run("default", "web", "--env", "NVIDIA_VISIBLE_DEVICES=all")
    containerd.run("k8s.io", "pod", "--gpus", "0")
    containers = PolledValue("containers", Containerd(containerd.path).look, 60, 60)
    containers.refresh()
    assert set(containers.value()) == {"train", "web"}
    found = ContainerOwners(containers).holders(GPUS, [])
    assert {uuid: [holder.workload.name for holder in there] for uuid, there in found.items()} == {
        OTHER: ["train"]
    }
    assert found[OTHER][0].workload.tags["team"] == "vision"
    containerd.kill("default", "train")
    containers.refresh()
    assert set(containers.value()) == {"web"}


@pytest.mark.parametrize(
    ("specification", "nvidia_runtime", "given"),
    [
        ({}, True, []),
        ({"process": {"env": ["NVIDIA_VISIBLE_DEVICES=0,1"]}}, True, ["0", "1"]),
        ({"process": {"env": ["NVIDIA_VISIBLE_DEVICES=0,1"]}}, False, []),
        ({"process": {"env": ["NVIDIA_VISIBLE_DEVICES=void"]}}, True, []),
        (
            {"linux": {"devices": [{"path": "/dev/nvidia1"}, {"path": "/dev/nvidia-uvm"}]}},
            False,
            ["1"],
        ),
        ({"linux": {"devices": [{"path": "/dev/nvidia0"}, {"path": "/dev/mem"}]}}, False, []),
        (
            {"hooks": {"createRuntime": [{"args": ["nvidia-container-cli", "--device=all"]}]}},
            False,
            ["all"],
        ),
        ({"hooks": {"prestart": [{"args": ["other", "--device=all"]}, {}]}}, False, []),
    ],
)
def test_a_specification_gives_by_hook_device_file_and_runtime(
    specification, nvidia_runtime, given
):
    """A privileged container, which has every device of the node, was given none."""
    assert list(specified_devices(json.dumps(specification).encode(), nvidia_runtime)) == given


def test_a_specification_that_cannot_be_read_is_an_error_of_ours():
    """Never a traceback of JSON."""
    for content in (b"", b"[]", b"\xff", b'{"process": 3}'):
        with pytest.raises(BadMessage):
            list(specified_devices(content, True))


class Nvml:
    name = "nvml"


def test_a_node_with_an_engine_asks_it_before_the_processes(docker, tmp_path):
    """A socket that is there is asked by default; one that is not makes no source."""
    docker.containers = [container("a", "train", requests=gpus("0"), team="vision")]
    settings = Settings(
        owners="containers,processes", node="n1", kubelet_socket=None, container_socket=docker.path
    )
    first, second = open_owners(settings, Nvml())
    assert (first.name, second.name) == ("containers", "processes")
    assert [holder.workload.tags["team"] for holder in first.holders(GPUS, [])[UUID]] == ["vision"]
    none = replace(settings, container_socket=tmp_path / "none.sock")
    assert [one.name for one in open_owners(none, Nvml())] == ["processes"]
