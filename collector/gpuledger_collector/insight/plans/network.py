"""Time of collectives, and the share of a training step that they and the pipeline's bubble take.

A ring all-reduce of S bytes over n ranks sends 2 (n-1)/n S from each (Patarasuk and Yuan 2009),
reduce-scatter and all-gather half of it each; a double binary tree sends 2 S in 2 log2 of the nodes
(Sanders et al. 2009). Latencies are per hop as in NCCL's tuning. Bus bandwidth is bytes over time
times 2 (n-1)/n, or (n-1)/n, as nccl-tests prints it: it can be compared with the link.

A step: data parallelism all-reduces its gradients (ZeRO 0), or reduce-scatters them and all-gathers
weights (1, 2: the same volume), or all-gathers weights twice and reduce-scatters for each
micro-batch (3: half as much again; Rajbhandari et al. 2020, section 7). A tensor-parallel layer has
two all-reduces forward and two backward (Shoeybi et al. 2019), two more when everything is
recomputed. The bubble is (p-1)/(m v) of the work for m micro-batches and v chunks a GPU (Narayanan
et al. 2021, section 2.2).

Limits: no contention from others, no rail or switch oversubscription, no in-network reduction
(SHARP, NVLS).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpuledger_collector.insight.plans.architecture import Architecture
from gpuledger_collector.insight.plans.hardware import GpuModel, Link
from gpuledger_collector.insight.plans.memory import require_layout, trained_bytes
from gpuledger_collector.insight.plans.training import flops_per_token

ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER = "all-reduce", "reduce-scatter", "all-gather"
BASE_SECONDS = 8.4e-6
"""NCCL's own latency of a ring collective (protocol Simple)."""
BACKWARD = 2 / 3
"""Share of a step's arithmetic that is the backward pass."""


@dataclass(frozen=True, slots=True)
class Fabric:
    """Links inside a node, one network adapter per GPU between nodes, and the share of both that is
    reached.
    """

    inside: Link
    between: Link
    node_gpus: int = 8
    efficiency: float = 0.8

    def __post_init__(self) -> None:
        if self.node_gpus < 1 or not 0 < self.efficiency <= 1:
            raise ValueError(
                "a node has at least 1 GPU, and the efficiency of links is a share above 0 to 1"
            )


@dataclass(frozen=True, slots=True)
class RankGroup:
    """Ranks of a collective: `in_node` of them share a node, and so its adapters."""

    ranks: int
    in_node: int

    @property
    def nodes(self) -> int:
        """Nodes of the group."""
        return math.ceil(self.ranks / self.in_node)


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective: `bus_bytes_per_second` can be compared with the link's.

    None: one rank sends nothing.
    """

    kind: str
    algorithm: str
    seconds: float
    algorithm_bytes_per_second: float | None
    bus_bytes_per_second: float | None


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """A training step: `micro_batches` of `micro_batch` sequences on each data-parallel rank.

    `kernel_efficiency`: the share of the peak that arithmetic reaches while nothing waits; MFU
    comes out lower.
    """

    architecture: Architecture
    parameters: float
    card: GpuModel
    gpus: int
    precision: str = "bf16"
    zero: int = 0
    tensor: int = 1
    pipeline: int = 1
    chunks: int = 1
    micro_batch: int = 1
    micro_batches: int = 1
    sequence: int = 4096
    full_recompute: bool = False
    fp32_gradients: bool = False
    kernel_efficiency: float = 0.6

    def __post_init__(self) -> None:
        parallel = (self.gpus, self.tensor, self.pipeline, self.chunks)
        if (
            min(*parallel, self.micro_batch, self.micro_batches, self.sequence) < 1
            or not self.parameters > 0
            or not 0 < self.kernel_efficiency <= 1
        ):
            raise ValueError(
                "sizes must be at least 1, and the kernel efficiency a share above 0 to 1"
            )
        require_layout(self.gpus, self.tensor, self.pipeline, self.zero, self.architecture)
        self.card.peak(self.precision)

    @property
    def data_parallel(self) -> int:
        """Ranks that hold the same share of the model."""
        return self.gpus // (self.tensor * self.pipeline)

    @property
    def gradient_bytes(self) -> float:
        """Bytes of the gradients on one GPU."""
        width = 4.0 if self.fp32_gradients else trained_bytes(self.precision)
        return self.parameters / (self.tensor * self.pipeline) * width

    @property
    def weight_bytes(self) -> float:
        """Bytes of the weights on one GPU, whole."""
        return self.parameters / (self.tensor * self.pipeline) * trained_bytes(self.precision)


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of a step's parts.

    `hidden_data_seconds`: data-parallel traffic that arithmetic can hide.
    """

    compute_seconds: float
    tensor_seconds: float
    pipeline_seconds: float
    bubble_seconds: float
    data_seconds: float
    hidden_data_seconds: float

    @property
    def overlapped_seconds(self) -> float:
        """The step with data-parallel traffic hidden behind arithmetic as far as possible."""
        return self.serial_seconds - self.hidden_data_seconds

    @property
    def serial_seconds(self) -> float:
        """The step with nothing overlapped."""
        return (
            self.compute_seconds
            + self.tensor_seconds
            + self.pipeline_seconds
            + self.bubble_seconds
            + self.data_seconds
        )

    def share(self, seconds: float) -> float:
        """`seconds` as a share of the overlapped step."""
        return seconds / self.overlapped_seconds


def bandwidth(fabric: Fabric, group: RankGroup) -> float:
    """Bytes per second that each rank can send around a ring: the link, or its node's adapters
    where that is less.
    """
    inside = fabric.inside.bytes_per_second
    if group.nodes == 1:
        return inside * fabric.efficiency
    crossing = group.in_node * fabric.between.bytes_per_second
    # The slowest hop of a ring sets its pace; all ranks of a node share its adapters.
    return (crossing if group.in_node == 1 else min(inside, crossing)) * fabric.efficiency


def collective(
    kind: str, size_bytes: float, group: RankGroup, fabric: Fabric, algorithm: str = "ring"
) -> Collective:
    """One collective over `size_bytes` (of the whole, before it is scattered or after it is
    gathered).
    """
    ranks, nodes = group.ranks, group.nodes
    if ranks == 1:
        return Collective(kind, algorithm, 0.0, None, None)
    passes = 2 if kind == ALL_REDUCE else 1
    factor = passes * (ranks - 1) / ranks
    speed = bandwidth(fabric, group)
    if algorithm == "tree":
        chain = (math.ceil(ranks / nodes) - 1) * fabric.inside.tree_hop_seconds
        sent = 2 * size_bytes / speed
        latency = 2 * (chain + math.log2(nodes) * fabric.between.tree_hop_seconds)
    else:
        sent = factor * size_bytes / speed
        crossing = passes * (nodes - 1)
        inner = passes * (ranks - 1) - crossing
        latency = (
            inner * fabric.inside.ring_hop_seconds + crossing * fabric.between.ring_hop_seconds
        )
    seconds = BASE_SECONDS + latency + sent
    return Collective(kind, algorithm, seconds, size_bytes / seconds, factor * size_bytes / seconds)


def all_reduce(size_bytes: float, group: RankGroup, fabric: Fabric) -> Collective:
    """The faster of ring and tree, as NCCL chooses."""
    both = (
        collective(ALL_REDUCE, size_bytes, group, fabric, algorithm)
        for algorithm in ("ring", "tree")
    )
    return min(both, key=lambda result: result.seconds)


def data_group(step: TrainingStep, fabric: Fabric) -> RankGroup:
    """The data-parallel ranks: tensor-parallel ones lie closest together, so as many are left of a
    node as remain.
    """
    return RankGroup(
        step.data_parallel, max(1, min(step.data_parallel, fabric.node_gpus // step.tensor))
    )


def bubble_share(pipeline: int, micro_batches: int, chunks: int = 1) -> float:
    """Idle time of a pipeline over its work: (p-1) / (m v)."""
    return (pipeline - 1) / (micro_batches * chunks)


def step_time(step: TrainingStep, fabric: Fabric) -> StepTime:
    """The parts of a step."""
    tokens = step.data_parallel * step.micro_batch * step.micro_batches * step.sequence
    flops = flops_per_token(step.architecture, step.parameters, step.sequence) * tokens
    compute = flops / (step.gpus * step.card.peak(step.precision) * step.kernel_efficiency)
    if step.full_recompute:
        # The forward pass is a third of the arithmetic and is done once more.
        compute *= 4 / 3
    tensor = _tensor_seconds(step, fabric)
    data = _data_seconds(step, fabric)
    # What can hide traffic: ZeRO 3 gathers in the forward pass as well; below ZeRO 2 gradients
    # travel only with the last micro-batch.
    reachable = (
        compute
        * (1.0 if step.zero == 3 else BACKWARD)
        * (1.0 if step.zero >= 2 else 1 / step.micro_batches)
    )
    bubble = bubble_share(step.pipeline, step.micro_batches, step.chunks) * (compute + tensor)
    return StepTime(
        compute, tensor, _pipeline_seconds(step, fabric), bubble, data, min(data, reachable)
    )


def _boundary_bytes(step: TrainingStep) -> float:
    return (
        step.micro_batch * step.sequence * step.architecture.hidden * trained_bytes(step.precision)
    )


def _tensor_seconds(step: TrainingStep, fabric: Fabric) -> float:
    if step.tensor == 1:
        return 0.0
    group = RankGroup(step.tensor, min(step.tensor, fabric.node_gpus))
    layers = step.architecture.layers / step.pipeline
    times = (6 if step.full_recompute else 4) * layers * step.micro_batches
    return times * all_reduce(_boundary_bytes(step), group, fabric).seconds


def _pipeline_seconds(step: TrainingStep, fabric: Fabric) -> float:
    if step.pipeline == 1:
        return 0.0
    # Tensor-parallel ranks are placed first, so stages share a node only if all of both fit into
    # it.
    link = fabric.inside if step.tensor * step.pipeline <= fabric.node_gpus else fabric.between
    transfer = (
        _boundary_bytes(step) / step.tensor / (link.bytes_per_second * fabric.efficiency)
        + link.ring_hop_seconds
    )
    return 2 * step.micro_batches * step.chunks * transfer


def _data_seconds(step: TrainingStep, fabric: Fabric) -> float:
    group = data_group(step, fabric)
    if step.zero == 0:
        return all_reduce(step.gradient_bytes, group, fabric).seconds
    scatter = collective(REDUCE_SCATTER, step.gradient_bytes, group, fabric).seconds
    gather = collective(ALL_GATHER, step.weight_bytes, group, fabric).seconds
    if step.zero == 1:
        return scatter + gather
    if step.zero == 2:
        return scatter * step.micro_batches + gather
    return (scatter + 2 * gather) * step.micro_batches
