"""What reading Kubernetes costs: one agent on a full node, and each reader of the whole cluster.

    ./dev bench kubernetes [--seconds=120] [--program=PATH]

A cluster of 10,000 pods on 91 nodes in 500 namespaces, as large as they are there (spec, status and
managed fields: about 8 KB a pod), behind an HTTPS server that counts calls and bytes; a kubelet that
speaks pod-resources over real gRPC. Of the bench's node it lists 110 pods, of which eight hold a
card; every 20 s a pod comes and another goes, at which the agent asks at once. Beside it runs the
same agent that reads no Kubernetes. NVML is the stand-in of `bench agent`.

What is read once for a whole cluster is in READERS, each in a process of its own, once a minute:
pods that wait, and by the collector the quotas of 500 queues of Kueue, their use, and a Workload of 6
KB for each job of eight pods; first read alone, then with what is stored of it in a Postgres.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from bench.agent import (
    MAX_MIB,
    MAX_SHARE,
    Footprint,
    agent_command,
    compile_modules,
    install_stand_in,
    machine,
    measure_all,
    option,
)

PODS, OF_NODE, NAMESPACES, WAITING = 10_000, 110, 500, 400
QUEUES, COHORTS, POD_OF_JOB = 500, 50, 8
CARDS, LABELS, SECONDS, CHURN_S = 8, 12, 120.0, 20.0
POD_BYTES, WORKLOAD_BYTES = 8_000, 6_000
NODE = "bench"


class Reader(NamedTuple):
    """What is read once for a cluster: Python that is prepared, and Python that says how much came."""

    prepare: str
    read: str


_QUEUES = (
    "from gpuledger_collector.ingest.scheduler_queues.reader import open_client, read_schedulers\n"
    'client = open_client(url, account / "token", account / "ca.crt")\n'
)
READERS = {
    "pods that wait (`gpuledger-agent queue --kubernetes`)": Reader(
        "from gpuledger_agent.owners.kubernetes_api import ApiServer\n"
        "from gpuledger_agent.queue.kubernetes import pending\n"
        "server = ApiServer(url, account, 30.0)",
        "print(len(pending(server)))",
    ),
    "queues of Kueue, their use and what waits": Reader(
        _QUEUES,
        '(kueue,) = read_schedulers(client, ["kueue"], 60_000)\nprint(len(kueue.reading.quotas))',
    ),
    "the same, added to a ledger that had it a minute before": Reader(
        _QUEUES
        + "from gpuledger_collector.services.scheduler_queues import read_queues\n"
        + "from gpuledger_collector.storage.database import Database\n"
        + 'read_queues(Database(dsn), client, ["kueue"], "", lambda: 3_600_000)',
        'print(read_queues(Database(dsn), client, ["kueue"], "", lambda: 3_660_000))',
    ),
}
READER = """
import json, resource, sys
from pathlib import Path

def resident(name):
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(name)) / 1024

url, account, dsn = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
{prepare}
Path("/proc/self/clear_refs").write_text("5")  # peaks from here on
before, held = resource.getrusage(resource.RUSAGE_SELF), resident("VmRSS")
{read}
after = resource.getrusage(resource.RUSAGE_SELF)
cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
print(json.dumps([cpu, resident("VmHWM"), resident("VmHWM") - held]))
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


def queue_objects() -> dict[str, list[dict[str, Any]]]:
    """The objects of Kueue by their list: queues in cohorts, and a workload for each job of pods."""
    from fakes.scheduler_cluster import KUEUE, admitted, cluster_queue, local_queue, workload

    queues = []
    for at in range(QUEUES):
        queue = cluster_queue(f"queue-{at}", 16, 20 if at % 4 == 0 else 12, 4 if at % 4 == 0 else 0)
        queue["spec"]["cohortName"] = f"cohort-{at % COHORTS}"
        queues.append(queue)
    jobs = []
    for at in range(PODS // POD_OF_JOB):
        waits = at >= (PODS - WAITING) // POD_OF_JOB
        queue = f"queue-{at % QUEUES}"
        state = () if waits else admitted("2026-10-01T10:00:00Z")
        job = workload(
            f"space-{at % NAMESPACES}",
            f"job-{at}",
            "train",
            POD_OF_JOB,
            *state,
            admitted_by="" if waits else queue,
        )
        rest = WORKLOAD_BYTES - len(json.dumps(job))
        job["metadata"]["managedFields"] = [{"fieldsV1": {"f:spec": "f" * max(rest, 0)}}]
        jobs.append(job)
    flavor = {"nodeLabels": {"karpenter.sh/nodepool": "train"}}
    return {
        f"{KUEUE}/clusterqueues": queues,
        f"{KUEUE}/cohorts": [{"metadata": {"name": f"cohort-{at}"}} for at in range(COHORTS)],
        f"{KUEUE}/resourceflavors": [{"metadata": {"name": "h100"}, "spec": flavor}],
        f"{KUEUE}/localqueues": [
            local_queue(f"space-{at}", "train", f"queue-{at % QUEUES}") for at in range(NAMESPACES)
        ],
        f"{KUEUE}/workloads": jobs,
    }


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
            if path == "/api/v1/pods":
                return []
            of_pods = path.startswith("/api/v1/namespaces/") and path.endswith("/pods")
            return by_node[NODE] if of_pods else super().listed(path)

    def page(items: list[dict[str, Any]], query: dict[str, str]) -> bytes:
        # The stand-in looks at every pod for each answer; a real server has an index by node.
        name, _, value = query.get("fieldSelector", "").partition("=")
        if name == "metadata.name":
            wanted = value.partition(",")[0]
            items = [item for item in items if item["metadata"]["name"] == wanted]
        elif name == "spec.nodeName":
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
    server.lists = queue_objects()
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
            compile_modules(command, environment)
        before, started = traffic.now(), time.monotonic()
        footprints = measure_all(commands, seconds)
        minutes = (time.monotonic() - started) / 60
    calls, size = traffic.since(before)
    return footprints, calls / minutes, size / minutes


def report(
    footprints: dict[str, Footprint],
    agent_traffic: tuple[float, float],
    readers: dict[str, tuple[int, int, int, float, float, float]],
    seconds: float,
) -> int:
    """Print the tables; returns 1 when a goal is missed."""
    print(
        f"{time.strftime('%Y-%m-%d')}, {machine()}; {PODS:,} pods, {NAMESPACES} namespaces,"
        f" {QUEUES} queues, {OF_NODE} pods and {CARDS} cards on the node, over {seconds:g} s\n"
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
    print("\n| read once a minute | rows | API calls | KiB | CPU s | peak MiB | of it added |")
    print("|---|---|---|---|---|---|---|")
    for name, (rows, calls, size, cpu_s, peak, added) in readers.items():
        print(
            f"| {name} | {rows:,} | {calls} | {size / 1024:.0f} | {cpu_s:.2f} | {peak:.1f}"
            f" | {added:.1f} |"
        )
    ours = footprints["agent on Kubernetes"]
    met = ours.rss <= MAX_MIB and ours.share <= MAX_SHARE
    print(
        f"\n- goals: RSS at most {MAX_MIB:g} MiB, at most {MAX_SHARE:.1%} of a core:"
        f" {'met' if met else 'MISSED'}"
    )
    return 0 if met else 1


def measure_readers(
    server: Any, traffic: Traffic, dsn: str
) -> dict[str, tuple[int, int, int, float, float, float]]:
    """Rows, calls, bytes, CPU seconds, peak memory and what of it is new, of each reader of the whole
    cluster; one that asks before it is measured asks the same twice.
    """
    readers = {}
    for name, reader in READERS.items():
        before = traffic.now()
        code = READER.format(prepare=reader.prepare, read=reader.read)
        done = subprocess.run(
            [sys.executable, "-c", code, server.url, str(server.account), dsn],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        rows, figures = done.stdout.splitlines()
        calls, size = traffic.since(before)
        times = 2 if "read_queues" in reader.prepare else 1
        readers[name] = (int(rows), calls // times, size // times, *json.loads(figures))
    return readers


@contextmanager
def ledger() -> Iterator[str]:
    """DSN of an empty ledger."""
    from fakes.postgres import open_folder
    from gpuledger_collector.storage.server import migrate
    from gpuledger_collector.storage.server.embedded import EmbeddedServer

    folder = open_folder("gpuledger-bench-")
    server = EmbeddedServer(folder)
    try:
        dsn = server.acquire()
        migrate.upgrade(dsn)
        yield dsn
    finally:
        server.release()
        shutil.rmtree(folder, ignore_errors=True)


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
            with ledger() as dsn:
                readers = measure_readers(server, traffic, dsn)
    return report(footprints, (asked[0], asked[1]), readers, seconds)


if __name__ == "__main__":
    sys.exit(main())
