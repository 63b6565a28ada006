"""What reading Kubernetes costs: one agent on a full node, and each reader of the whole cluster.

    ./dev bench kubernetes [--seconds=120] [--program=PATH]

A cluster of 10,000 pods on 91 nodes in 500 namespaces, as large as they are there (spec, status and
managed fields: about 8 KB a pod), behind an HTTPS server that counts calls and bytes; a kubelet that
speaks pod-resources over real gRPC. Of the bench's node it lists 110 pods, of which eight hold a
card; every 20 s a pod comes and another goes, at which the agent asks at once. Beside it runs the
same agent that reads no Kubernetes. NVML is the stand-in of `bench agent`.

What is read once for a whole cluster is in READERS, each in a process of its own, once a minute.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.agent import (
    MAX_MIB,
    MAX_SHARE,
    Footprint,
    agent_command,
    install_stand_in,
    machine,
    measure_all,
    option,
)

PODS, OF_NODE, NAMESPACES, WAITING = 10_000, 110, 500, 400
CARDS, LABELS, SECONDS, CHURN_S = 8, 12, 120.0, 20.0
POD_BYTES = 8_000
NODE = "bench"
READERS = {
    "pods that wait (`gpuledger-agent queue --kubernetes`)": (
        "from gpuledger_agent.queue.kubernetes import pending; print(len(pending(server)))"
    ),
}
"""What is read once for a cluster: a name, and Python that asks `server` and prints how much came.
Readers of queues and quotas belong here.
"""
READER = """
import json, resource, sys
from pathlib import Path
from gpuledger_agent.owners.kubernetes_api import ApiServer
server = ApiServer(sys.argv[1], Path(sys.argv[2]), 30.0)
before = resource.getrusage(resource.RUSAGE_SELF)
{code}
after = resource.getrusage(resource.RUSAGE_SELF)
cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
status = Path("/proc/self/status").read_text()
peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
print(json.dumps([cpu, peak / 1024]))
"""


def pod(number: int) -> dict[str, Any]:
    """A pod as an API server has it, with what nobody reads of it."""
    node = NODE if number < OF_NODE else f"n{number // OF_NODE}"
    phase = "Pending" if number >= PODS - WAITING else "Running"
    labels = {f"app.kubernetes.io/part-{at}": f"value-{number}-{at}" for at in range(LABELS)}
    labels |= {"team": f"team-{number % 40}", "batch.kubernetes.io/job-name": f"job-{number // 8}"}
    metadata = {
        "namespace": f"space-{number % NAMESPACES}",
        "name": f"pod-{number}",
        "uid": f"00000000-0000-4000-8000-{number:012}",
        "labels": labels,
        "annotations": {"example.com/notes": "n" * 800},
        "ownerReferences": [
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "name": f"job-{number // 8}",
                "uid": f"job-{number // 8}",
                "controller": True,
            }
        ],
    }
    container = {
        "name": "main",
        "image": "registry.example.com/train:1",
        "resources": {"requests": {"nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "1"}},
        "env": [{"name": f"SETTING_{at}", "value": "v" * 40} for at in range(30)],
    }
    known = {
        "metadata": metadata,
        "spec": {"containers": [container]},
        "status": {"phase": phase},
    }
    if phase == "Running":
        known["spec"]["nodeName"] = node
    else:
        known["status"]["conditions"] = [{"type": "PodScheduled", "reason": "Unschedulable"}]
    rest = POD_BYTES - len(json.dumps(known))
    metadata["managedFields"] = [{"fieldsV1": {"f:spec": "f" * max(rest, 0)}}]
    return known


class Traffic:
    """Calls and bytes by resource."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def add(self, path: str, size: int) -> None:
        resource = path.partition("?")[0].rpartition("/")[2]
        self.calls[resource] += 1
        self.bytes[resource] += size

    def since(self, before: tuple[Counter[str], Counter[str]]) -> tuple[int, int]:
        """Calls and bytes since then."""
        calls, size = before
        return (self.calls - calls).total(), (self.bytes - size).total()

    def now(self) -> tuple[Counter[str], Counter[str]]:
        return self.calls.copy(), self.bytes.copy()


@contextmanager
def cluster(folder: Path) -> Iterator[tuple[Any, Traffic, list[dict[str, Any]]]]:
    """An API server with the pods of the cluster, what it answered, and the pods."""
    from fakes import apiserver

    traffic = Traffic()
    pods = [pod(number) for number in range(PODS)]
    by_node: dict[str, list[dict[str, Any]]] = {"": []}
    for entry in pods:
        by_node.setdefault(entry["spec"].get("nodeName", ""), []).append(entry)

    class Handler(apiserver.Handler):
        def _answer(self, status: int, body: bytes) -> None:
            traffic.add(self.path, len(body))
            super()._answer(status, body)

    class Server(apiserver.Server):
        def listed(self, path: str) -> list[dict[str, Any]] | None:
            return [] if path == "/api/v1/pods" else super().listed(path)

    def page(items: list[dict[str, Any]], query: dict[str, str]) -> bytes:
        # The stand-in looks at every pod for each answer; a real server has an index by node.
        name, _, value = query.get("fieldSelector", "").partition("=")
        if name == "spec.nodeName":
            items = by_node.get(value, [])
        elif name == "status.phase":
            items = by_node[""]
        begin, limit = int(query.get("continue", 0)), int(query["limit"])
        more = {"continue": str(begin + limit)} if begin + limit < len(items) else {}
        answer = {"metadata": more, "items": items[begin : begin + limit]}
        return json.dumps(answer).encode()

    folder.mkdir()
    server = Server(folder)
    server.RequestHandlerClass = Handler
    apiserver._page = page
    server.namespaces = [
        {"metadata": {"name": f"space-{at}", "labels": {"team": f"team-{at % 40}"}}}
        for at in range(NAMESPACES)
    ]
    server.node(NODE, **{"karpenter.sh/nodepool": "h100", "karpenter.sh/capacity-type": "spot"})
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server, traffic, by_node[NODE]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def churning(kubelet: Any, own: list[dict[str, Any]]) -> Iterator[None]:
    """A pod with a card is replaced by a new one again and again."""
    closed = threading.Event()

    def replace_pods() -> None:
        number = PODS
        while not closed.wait(CHURN_S):
            number += 1
            gone = number % CARDS
            fresh = pod(number) | {"status": {"phase": "Running"}}
            fresh["spec"]["nodeName"] = NODE
            own[gone] = fresh
            kubelet.pods = kubelet_pods(own)

    thread = threading.Thread(target=replace_pods, daemon=True)
    thread.start()
    try:
        yield
    finally:
        closed.set()
        thread.join()


def kubelet_pods(own: list[dict[str, Any]]) -> list[Any]:
    """The node's pods as its kubelet lists them: the first ones have a card each."""
    from fakes import kubelet

    return [
        kubelet.pod(
            entry["metadata"]["namespace"],
            entry["metadata"]["name"],
            *([f"GPU-00000000-0000-0000-0000-{at:012}"] if at < CARDS else []),
        )
        for at, entry in enumerate(own)
    ]


def measure_agents(
    folder: Path, server: Any, kubelet: Any, traffic: Traffic, seconds: float
) -> tuple[dict[str, Footprint], float, float]:
    """The footprints of an agent that reads Kubernetes and of one that does not, and the calls and
    bytes of the first a minute.
    """
    from fakes.sink import sink

    with sink() as collector:
        commands = {}
        for name in ("agent on Kubernetes", "agent without"):
            place = folder / name.replace(" ", "-")
            place.mkdir()
            command, environment, port = agent_command(
                place, collector.url, install_stand_in(place)
            )
            reads = name == "agent on Kubernetes"
            ours = {
                "NODE": NODE,
                "KUBELET_SOCKET": str(kubelet.path) if reads else "",
                "KUBERNETES_API_URL": server.url if reads else "off",
                "KUBERNETES_ACCOUNT_DIR": str(server.account),
            }
            environment |= {f"GPULEDGER_AGENT_{key}": value for key, value in ours.items()}
            commands[name] = command, environment, port
        before, started = traffic.now(), time.monotonic()
        footprints = measure_all(commands, seconds)
        minutes = (time.monotonic() - started) / 60
    calls, size = traffic.since(before)
    return footprints, calls / minutes, size / minutes


def report(
    footprints: dict[str, Footprint],
    agent_traffic: tuple[float, float],
    readers: dict[str, tuple[int, int, int, float, float]],
    seconds: float,
) -> int:
    """Print the tables; returns 1 when a goal is missed."""
    print(
        f"{time.strftime('%Y-%m-%d')}, {machine()}; {PODS:,} pods, {NAMESPACES} namespaces,"
        f" {OF_NODE} pods and {CARDS} cards on the node, over {seconds:g} s\n"
    )
    print(
        "| | RSS MiB | PSS MiB | peak MiB | share of a core | API calls a minute | KiB a minute |\n"
        "|---|---|---|---|---|---|---|"
    )
    for name, entry in footprints.items():
        asked = agent_traffic if name == "agent on Kubernetes" else (0.0, 0.0)
        print(
            f"| {name} | {entry.rss:.1f} | {entry.pss:.1f} | {entry.peak:.1f} | {entry.share:.2%}"
            f" | {asked[0]:.1f} | {asked[1] / 1024:.0f} |"
        )
    print("\n| read once a minute | rows | API calls | KiB | CPU s | peak MiB |")
    print("|---|---|---|---|---|---|")
    for name, (rows, calls, size, cpu_s, peak) in readers.items():
        print(f"| {name} | {rows:,} | {calls} | {size / 1024:.0f} | {cpu_s:.2f} | {peak:.1f} |")
    ours = footprints["agent on Kubernetes"]
    met = ours.rss <= MAX_MIB and ours.share <= MAX_SHARE
    print(
        f"\n- goals: RSS at most {MAX_MIB:g} MiB, at most {MAX_SHARE:.1%} of a core:"
        f" {'met' if met else 'MISSED'}"
    )
    return 0 if met else 1


def measure_readers(server: Any, traffic: Traffic) -> dict[str, tuple[int, int, int, float, float]]:
    """Rows, calls, bytes, CPU seconds and peak memory of each reader of the whole cluster."""
    readers = {}
    for name, code in READERS.items():
        before = traffic.now()
        done = subprocess.run(
            [sys.executable, "-c", READER.format(code=code), server.url, str(server.account)],
            capture_output=True,
            text=True,
            check=True,
        )
        rows, figures = done.stdout.splitlines()
        readers[name] = (int(rows), *traffic.since(before), *json.loads(figures))
    return readers


def main() -> int:
    from fakes import kubelet

    seconds = float(option("seconds", str(SECONDS)))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with (
            cluster(folder / "api") as (server, traffic, own),
            kubelet.running(folder / "kubelet.sock") as running,
        ):
            running.pods = kubelet_pods(own)
            with churning(running, own):
                footprints, *asked = measure_agents(folder, server, running, traffic, seconds)
            readers = measure_readers(server, traffic)
    return report(footprints, (asked[0], asked[1]), readers, seconds)


if __name__ == "__main__":
    sys.exit(main())
