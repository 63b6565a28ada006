"""A GPU node of a Kubernetes cluster from its kubelet to the bill: a real gRPC server as kubelet, a
real HTTPS server as API server, the agent's own owner source, meter and batches, a real collector.
"""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import msgspec

from fakes import kubelet
from fakes.apiserver import Server
from fakes.batches import EPOCH, HEARTBEAT
from fakes.facts import HOUR, World
from gpuledger_agent.holder_observations import observe_holders
from gpuledger_agent.owners.kubernetes import ClusterView, KubernetesOwners
from gpuledger_agent.owners.kubernetes_api import ApiServer
from gpuledger_agent.owners.machine_note import MachineNote
from gpuledger_agent.owners.podresources import list_pods
from gpuledger_agent.owners.polling import PolledValue
from gpuledger_agent.owners.ray import RayOwners
from gpuledger_agent.owners.slurm import SlurmOwners
from gpuledger_common.batches import BatchMaker
from gpuledger_common.meter import Meter
from gpuledger_common.readings import (
    Accelerator,
    Health,
    Machine,
    OwnerSource,
    Process,
    Sample,
)
from gpuledger_common.wire import Batch, Samples

MINUTE = 60_000
MEBIBYTE = 1024 * 1024


def card(number: int) -> str:
    """The UUID of a card of the node."""
    return f"GPU-00000000-0000-4000-8000-{number:012}"


def cluster_owners(
    path: Path,
    api: Server,
    clock: Callable[[], float],
    note: MachineNote | None = None,
    reads_slurm: bool = False,
    ray: RayOwners | None = None,
    cluster_name: str = "",
) -> KubernetesOwners:
    """Owners of node n1 from its kubelet's socket and an API server; `_cluster.refresh()` asks both."""
    account = ApiServer(api.url, api.account)
    view = ClusterView(lambda: list_pods(path), account, "n1", clock=clock)
    polled = PolledValue("kubernetes", view.look, 5, 1e12)
    return KubernetesOwners(
        polled, note, reads_slurm=reads_slurm, ray=ray, cluster_name=cluster_name
    )


class KubernetesNode:
    """Its pods are those of `kubelet.pods`; what is known of them is in `api`."""

    def __init__(self, kubelet_server: kubelet.Kubelet, api: Server, world: World, cards: int):
        self.kubelet, self.api, self.world = kubelet_server, api, world
        self.cards = tuple(
            Accelerator(card(at), card(at), at, "NVIDIA H100", memory_bytes=80_000 * MEBIBYTE)
            for at in range(cards)
        )
        self._now_s = itertools.count(step=31)
        self.owners = cluster_owners(kubelet_server.path, api, self._next_s)
        self._seq = itertools.count(1)
        self.jobs: SlurmOwners | None = None
        """Who knows jobs of Slurm on this node."""
        self.processes: dict[str, list[Process]] = {}
        """Processes by card."""

    def read_slurm(self, jobs_dir: Path) -> None:
        """Have jobs of Slurm read from a folder from now on."""
        self.jobs = SlurmOwners(jobs_dir)
        self.owners = cluster_owners(self.kubelet.path, self.api, self._next_s, reads_slurm=True)

    def read_ray(self, ray: RayOwners) -> None:
        """Have the jobs inside of Ray clusters told apart from now on."""
        self.owners = cluster_owners(self.kubelet.path, self.api, self._next_s, ray=ray)

    def restart(self) -> None:
        """A new agent, which asks everything again."""
        self.owners = cluster_owners(self.kubelet.path, self.api, self._next_s)

    def _next_s(self) -> float:
        """A clock on which every answer is old the next time."""
        return float(next(self._now_s))

    def pod(self, namespace: str, name: str, *devices: str, **facts: object) -> None:
        """A pod that holds devices, with what the API server knows of it."""
        self.kubelet.pods.append(kubelet.pod(namespace, name, *devices))
        self.api.pods.append(self.api.pod(namespace, name, f"uid-{name}", **facts))

    def clear(self) -> None:
        """No pods."""
        self.kubelet.pods, self.api.pods = [], []

    def hold(self, start_ms: int, minutes: int = 60) -> None:
        """Meter the pods as they are now, a sample a minute, and send what was metered."""
        self.owners._cluster.refresh()
        seen = [
            Sample(uuid, 0, {}, processes=processes) for uuid, processes in self.processes.items()
        ]
        owners = [*([] if self.jobs is None else [self.jobs]), self.owners]
        holders = observe_holders(owners, self.cards, seen, _fail).holders
        meter = Meter(gap_ms=2 * MINUTE)
        for at_ms in range(start_ms, start_ms + minutes * MINUTE + 1, MINUTE):
            for entry in self.cards:
                sample = Sample(
                    entry.uuid, at_ms * 10**6, {"gpu_utilization_ratio": 0.5}, health=Health()
                )
                meter.tick(sample, at_ms, holders.get(entry.uuid, ()))
        machine = self.owners.machine() or Machine()
        known = {name: value for name, value in asdict(machine).items() if value}
        maker = BatchMaker(self.cards, machine.pool, {})
        intervals = maker.usage_intervals(meter.take())
        heartbeat = msgspec.structs.replace(HEARTBEAT, machine=known)
        batch = maker.batch("n1", EPOCH, next(self._seq), heartbeat, intervals, Samples())
        status, answer = self.world.collector.send(
            msgspec.msgpack.decode(msgspec.msgpack.encode(batch), type=Batch)
        )
        assert (status, answer["status"]) == (200, "committed"), answer

    def hours(self, month: str, by: str) -> dict[str, str]:
        """GPU-hours by row of a month's bill, to the millisecond."""
        return {name: hours for name, (hours, _) in self.world.bill(month, by).items()}


def _fail(_: OwnerSource, error: Exception) -> None:
    raise error


@contextmanager
def kubernetes_node(
    folder: Path, api: Server, world: World, cards: int = 1
) -> Iterator[KubernetesNode]:
    """A node with its kubelet until the end of the block."""
    api.reset()
    with kubelet.running(folder / "kubelet.sock") as running:
        yield KubernetesNode(running, api, world, cards)


__all__ = ["HOUR", "KubernetesNode", "card", "cluster_owners", "kubernetes_node"]
