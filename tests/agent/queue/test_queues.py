"""What waits in the queues of Slurm and Kubernetes, as far as no scheduler is needed to show it."""

from __future__ import annotations

import json
import socket
import threading

import pytest

from fakes.apiserver import api_server
from gpuledger_agent.cli import main
from gpuledger_agent.owners.kubernetes_api import ApiServer
from gpuledger_agent.queue import QueueFailed, kubernetes, report, send, slurm
from gpuledger_common.kubernetes_client import ApiFailed

COLUMNS = [name for name, _ in slurm.FIELDS]


def line(**told):
    """A line of squeue with what is told and nothing else."""
    usual = {
        "JobArrayID": "7",
        "Partition": "gpu",
        "Account": "vision",
        "UserName": "ann",
        "Reason": "Resources",
        "SubmitTime": "1760000000",
        "NumNodes": "1",
        "NumTasks": "1",
    } | told
    return "|".join(usual.get(name.replace("-", "_"), "").ljust(12) for name in COLUMNS) + "|"


@pytest.mark.parametrize(
    ("told", "gpus", "model"),
    [
        ({"tres_alloc": "cpu=4,mem=8G,node=2,billing=4,gres/gpu=6"}, 6, ""),
        ({"tres_alloc": "cpu=4,gres/gpu:h100=2,gres/gpu=2"}, 2, "h100"),
        ({"tres_alloc": "cpu=4,gres/gpu:h100=2,gres/gpu:l4=1"}, 3, ""),
        ({"tres_alloc": "cpu=4", "tres_per_node": "gres:gpu:h100:4", "NumNodes": "3"}, 12, "h100"),
        ({"tres_per_node": "gres/gpu:2", "NumNodes": "2-4"}, 4, ""),
        ({"tres_per_node": "gres/gpu:2", "NumNodes": "1K"}, 2048, ""),
        ({"tres_per_job": "gpu:5"}, 5, ""),
        ({"tres_per_task": "gres:gpu:a100", "NumTasks": "8"}, 8, "a100"),
        ({"tres_per_node": "gres:shard:2"}, 0, ""),
        ({"tres_per_node": "gres:gpu_mem:2"}, 0, ""),
        ({}, 0, ""),
    ],
)
def test_gpus_of_a_pending_job(told, gpus, model):
    """From what Slurm counts, else from what was asked for per job, node or task."""
    found = slurm.parse_squeue(line(**told))
    assert [(one.gpus, one.gpu_model) for one in found] == ([(gpus, model)] if gpus else [])


@pytest.mark.parametrize(
    ("reason", "waits"),
    [
        ("Resources", True),
        ("Priority", True),
        ("None", True),
        ("ReqNodeNotAvail", True),
        ("JobHeldUser", False),
        ("Dependency", False),
        ("BeginTime", False),
        ("AssocGrpGRES", False),
        ("QOSMaxGRESPerUser", False),
    ],
)
def test_only_what_more_gpus_would_let_begin_waits(reason, waits):
    """A job that is held, that depends on another or stands at its quota is no demand."""
    assert bool(slurm.parse_squeue(line(tres_alloc="gres/gpu=1", Reason=reason))) is waits


def test_a_comment_names_the_team_and_breaks_nothing():
    """Pairs of the comment win over the account; bars and line ends in it are harmless."""
    text = (
        line(tres_alloc="gres/gpu=1", Comment="team=seg;x|y\nz")
        + "\n"
        + line(JobArrayID="8_3", tres_alloc="gres/gpu=2")
    )
    first, second = slurm.parse_squeue(text)
    assert (first.team, first.account, first.user, first.submitted) == (
        "seg",
        "vision",
        "ann",
        1_760_000_000.0,
    )
    assert (second.workload_id, second.team, second.gpus) == ("8_3", "vision", 2.0)


def test_a_squeue_that_fails_is_one_sentence():
    """Not installed, or ended with an error: QueueFailed says which, without a traceback."""
    with pytest.raises(QueueFailed, match="not installed"):
        slurm.pending(command=("no-such-squeue",))
    with pytest.raises(QueueFailed, match="ended with 3: no controller"):
        slurm.pending(command=("sh", "-c", "echo no controller >&2; exit 3"))


ANSWERS = {
    "no HTTP at all": b"\x15\x03\x01\r\n\r\n",
    "closed": b"",
    "a redirection": (
        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/elsewhere\r\nContent-Length: 0\r\n\r\n"
    ),
    "a proxy's page": b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 9\r\n\r\n<p>\x1b[31m\n",
    "a portal's page": b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>",
    "a list": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
    "torn": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n{",
    "brackets": b"HTTP/1.1 200 OK\r\nContent-Length: 65000\r\n\r\n" + b"[" * 65_000,
}


@pytest.mark.parametrize("name", ANSWERS)
def test_whatever_answers_is_one_sentence(name):
    """`--every` goes on after each, for all are QueueFailed; nothing follows to another address
    with the token.
    """

    def answer():
        line, _ = listener.accept()
        with line:
            line.settimeout(60)
            while not line.recv(65_536).endswith(b"}"):
                pass
            line.sendall(ANSWERS[name])

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        with pytest.raises(QueueFailed) as caught:
            send(report("slurm", 1.0, []), f"http://127.0.0.1:{listener.getsockname()[1]}")
        thread.join(60)
    assert str(caught.value).isprintable()
    assert "elsewhere" not in str(caught.value)


def test_a_token_file_that_holds_more_is_said_without_its_content(tmp_path):
    """A sentence that is logged has no secret in it."""
    (tmp_path / "token").write_text("geheim\ngeheim too\n")
    with pytest.raises(QueueFailed, match="holds more than a token") as caught:
        send({}, "http://127.0.0.1:1", tmp_path / "token")
    assert "geheim" not in str(caught.value)


@pytest.fixture
def server(tmp_path):
    with api_server(tmp_path) as made:
        yield made


def pod(name, *asks, init=(), phase="Pending", node="", labels=None, selector=None, **status):
    def container(ask):
        return {"resources": {"limits": dict(ask)}}

    return {
        "metadata": {
            "namespace": "vision",
            "name": name,
            "uid": f"uid-{name}",
            "labels": labels or {},
            "creationTimestamp": "2026-10-01T00:00:00Z",
        },
        "spec": {
            "nodeName": node,
            "nodeSelector": selector,
            "containers": [container(ask) for ask in asks],
            "initContainers": [container(ask) for ask in init],
        },
        "status": {"phase": phase, **status},
    }


def test_pending_pods_of_a_cluster(server):
    """Unbound pods with GPUs wait, page by page; bound, gated and GPU-less ones do not; MIG counts
    in sevenths.
    """
    whole = {"nvidia.com/gpu": "2", "cpu": "4"}
    server.pods = [
        pod(
            "a",
            whole,
            {"nvidia.com/gpu": 1},
            labels={"team": "seg"},
            selector={"nvidia.com/gpu.product": "H100"},
        ),
        pod("init", {"nvidia.com/gpu": "1"}, init=[{"nvidia.com/gpu": "4"}]),
        pod("mig", {"nvidia.com/mig-3g.40gb": "1"}),
        pod("bound", whole, node="n1"),
        pod("gated", whole, conditions=[{"type": "PodScheduled", "reason": "SchedulingGated"}]),
        pod("plain", {"cpu": "1"}),
        *(pod(f"more-{number}", {"nvidia.com/gpu": "1"}) for number in range(150)),
    ]
    found = kubernetes.pending(ApiServer(server.url, server.account), "train")
    by_name = {one.workload_id: one for one in found}
    assert len(found) == 153
    first = by_name["uid-a"]
    assert (first.gpus, first.team, first.gpu_model, first.pool) == (3.0, "seg", "H100", "train")
    assert first.submitted == 1_790_812_800.0
    assert (by_name["uid-init"].gpus, by_name["uid-init"].team) == (4.0, "vision")
    assert by_name["uid-mig"].gpus == pytest.approx(3 / 7)
    assert all("status.phase%3DPending" in path for _, path in server.requests)


def test_an_api_server_that_refuses_is_one_sentence(server):
    """403 and an answer that is no list are ApiFailed."""
    server.forbidden = "/api/v1/pods"
    with pytest.raises(ApiFailed, match="403"):
        kubernetes.pending(ApiServer(server.url, server.account))
    server.forbidden, server.body = None, b'{"items": 3}'
    with pytest.raises(ApiFailed, match="array"):
        kubernetes.pending(ApiServer(server.url, server.account))


def test_the_command_prints_a_reading(server, monkeypatch, capsys):
    """`gpuledger-agent queue --kubernetes --print` prints the body that it would send."""
    server.pods = [pod("a", {"nvidia.com/gpu": "2"})]
    monkeypatch.setenv("GPULEDGER_AGENT_KUBERNETES_API_URL", server.url)
    monkeypatch.setenv("GPULEDGER_AGENT_KUBERNETES_ACCOUNT_DIR", str(server.account))
    with pytest.raises(SystemExit) as ended:
        main(["queue", "--kubernetes", "--pool", "train", "--name", "east", "--print"])
    assert not ended.value.code
    made = json.loads(capsys.readouterr().out)
    assert made["source"] == "kubernetes:east"
    assert [(one["gpus"], one["pool"]) for one in made["waiting"]] == [(2.0, "train")]
