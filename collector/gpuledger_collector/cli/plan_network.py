"""gpuledger plan network: what share of a training step collectives take."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from typer import Option

from gpuledger_collector.cli import options
from gpuledger_collector.cli.common import new_app
from gpuledger_collector.cli.plan_forms import (
    Page,
    big,
    decimal_bytes,
    percent,
    print_page,
    size_bytes,
    span,
)
from gpuledger_collector.cli.plan_model import (
    MAX_GPUS,
    MAX_SIZE,
    Fp32Gradients,
    GpuName,
    Gpus,
    KnownAs,
    Parameters,
    Pipeline,
    Precision,
    Sequence,
    Tensor,
    Zero,
    assumption_notes,
    find_model,
    or_refuse,
)
from gpuledger_collector.insight.plans.hardware import gpu_named, link_named
from gpuledger_collector.insight.plans.network import (
    ALL_GATHER,
    ALL_REDUCE,
    REDUCE_SCATTER,
    Collective,
    Fabric,
    RankGroup,
    TrainingStep,
    bandwidth,
    collective,
    data_group,
    step_time,
)

app = new_app()
HEADER = ("collective", "algorithm", "time", "algorithm bandwidth", "bus bandwidth")
FULL_RECOMPUTE_SHARE = 0.75
"""Of the operations with full recomputation, those that the model itself needs."""
LinkName = Annotated[
    str | None, Option("--link", help="Link inside a node; else the GPU model's own.")
]
Chunks = Annotated[
    int,
    Option("--chunks", min=1, max=MAX_SIZE, help="Pipeline chunks a GPU (interleaved schedule)."),
]
Message = Annotated[
    str | None,
    Option("--message", metavar="SIZE", help="Only collectives of this size, over all GPUs."),
]


@app.command(
    epilog=(
        "Example: gpuledger plan network --architecture llama-2-70b --gpus 512 --tensor 8 --zero 1"
        " --accumulate 8"
    )
)
def network(
    parameters: Parameters = None,
    known_as: KnownAs = None,
    gpu_model: GpuName = "H100",
    gpus: Gpus = 8,
    node_gpus: Annotated[
        int, Option("--node-gpus", min=1, max=MAX_GPUS, help="GPUs of a node.")
    ] = 8,
    inside: LinkName = None,
    between: Annotated[
        str, Option("--network", help="Adapter of each GPU: ib-ndr, ib-hdr, eth-100.")
    ] = "ib-ndr",
    efficiency: Annotated[
        float, Option("--efficiency", help="Share of the links that is reached.")
    ] = 0.8,
    message: Message = None,
    precision: Precision = "bf16",
    zero: Zero = 0,
    tensor: Tensor = 1,
    pipeline: Pipeline = 1,
    chunks: Chunks = 1,
    batch: Annotated[
        int, Option("--batch", min=1, max=MAX_SIZE, help="Sequences of a micro-batch.")
    ] = 1,
    accumulate: Annotated[
        int, Option("--accumulate", min=1, max=MAX_SIZE, help="Micro-batches of a step.")
    ] = 1,
    sequence: Sequence = 4096,
    full_recompute: Annotated[
        bool, Option("--full-recompute", help="Recompute all activations.")
    ] = False,
    fp32_gradients: Fp32Gradients = False,
    kernel_efficiency: Annotated[
        float, Option("--kernel-efficiency", help="Share of the peak while nothing waits.")
    ] = 0.6,
    form: options.PageForm = options.PageFormat.table,
) -> None:
    """Time and bus bandwidth of collectives, and their share of a training step, with the
    pipeline's bubble.
    """
    gpu = or_refuse(lambda: gpu_named(gpu_model))
    link, adapter = or_refuse(lambda: (link_named(inside or gpu.link), link_named(between)))
    fabric = or_refuse(lambda: Fabric(link, adapter, node_gpus, efficiency))
    if message is not None:
        size = size_bytes(message, "--message")
        print_page(_message_page(size, RankGroup(gpus, min(gpus, node_gpus)), fabric), form)
        return
    model, total = find_model(parameters, known_as)
    layout: dict[str, Any] = {
        "zero": zero,
        "tensor": tensor,
        "pipeline": pipeline,
        "chunks": chunks,
        "micro_batch": batch,
    }
    layout |= {
        "micro_batches": accumulate,
        "sequence": sequence,
        "kernel_efficiency": kernel_efficiency,
    }
    layout |= {"full_recompute": full_recompute, "fp32_gradients": fp32_gradients}
    step = or_refuse(lambda: TrainingStep(model, total, gpu, gpus, precision, **layout))
    print_page(_step_page(step, fabric), form)


def _collectives(size: float, group: RankGroup, fabric: Fabric) -> list[Collective]:
    return [
        collective(ALL_REDUCE, size, group, fabric, "ring"),
        collective(ALL_REDUCE, size, group, fabric, "tree"),
        collective(REDUCE_SCATTER, size, group, fabric),
        collective(ALL_GATHER, size, group, fabric),
    ]


def _rows(collectives: list[Collective]) -> list[tuple[str, ...]]:
    return [
        (
            entry.kind,
            entry.algorithm,
            span(entry.seconds),
            _speed(entry.algorithm_bytes_per_second),
            _speed(entry.bus_bytes_per_second),
        )
        for entry in collectives
    ]


def _speed(value: float | None) -> str:
    return "-" if value is None else f"{decimal_bytes(value)}/s"


def _fabric_note(fabric: Fabric) -> str:
    return (
        f"{fabric.inside.name} {decimal_bytes(fabric.inside.bytes_per_second)}/s inside a node of"
        f" {fabric.node_gpus}, {fabric.between.name}"
        f" {decimal_bytes(fabric.between.bytes_per_second)}/s for each GPU between nodes;"
        f" {percent(fabric.efficiency)} of it is assumed to be reached: measure yours with"
        " nccl-tests"
    )


def _message_page(size: float, group: RankGroup, fabric: Fabric) -> Page:
    collectives = _collectives(size, group, fabric)
    ring = bandwidth(fabric, group)
    return Page(
        f"collectives of {decimal_bytes(size)} over {group.ranks:,} GPUs on {group.nodes:,} nodes",
        [("ring bandwidth", f"{decimal_bytes(ring)}/s for each GPU")],
        {
            "message_bytes": size,
            "group": {"ranks": group.ranks, "nodes": group.nodes},
            "fabric": asdict(fabric),
            "ring_bytes_per_second": ring,
            "collectives": [asdict(entry) for entry in collectives],
        },
        HEADER,
        _rows(collectives),
        [_fabric_note(fabric)],
    )


def _step_page(step: TrainingStep, fabric: Fabric) -> Page:
    times = step_time(step, fabric)
    group = data_group(step, fabric)
    collectives = _collectives(step.gradient_bytes, group, fabric)
    parts = (
        ("arithmetic", times.compute_seconds),
        ("tensor parallel", times.tensor_seconds),
        ("pipeline sends", times.pipeline_seconds),
        ("pipeline bubble", times.bubble_seconds),
        ("data parallel", times.data_seconds),
        ("  of it hidden", times.hidden_data_seconds),
        ("step", times.overlapped_seconds),
        ("step, no overlap", times.serial_seconds),
    )
    lines = [
        (name, f"{span(seconds):>9}  {percent(times.share(seconds)):>8}")
        for name, seconds in parts
        if seconds
    ]
    useful = FULL_RECOMPUTE_SHARE if step.full_recompute else 1.0
    mfu = step.kernel_efficiency * times.share(times.compute_seconds) * useful
    lines.append(("resulting MFU", f"{mfu:.2f}"))
    seconds = {name: getattr(times, name) for name in ("overlapped_seconds", "serial_seconds")}
    record = {
        "plan": asdict(step),
        "fabric": asdict(fabric),
        "step": {**asdict(times), **seconds},
        "mfu": mfu,
        "gradient_bytes": step.gradient_bytes,
        "data_parallel": {"ranks": group.ranks, "nodes": group.nodes, "in_node": group.in_node},
        "collectives": [asdict(entry) for entry in collectives],
    }
    title = (
        f"a training step of {big(step.parameters)} parameters on {step.gpus:,} x {step.card.name}"
        f" = data {step.data_parallel} x tensor {step.tensor} x pipeline {step.pipeline}, ZeRO"
        f" {step.zero}; collectives of its gradients, {decimal_bytes(step.gradient_bytes)} a GPU"
    )
    notes = [*assumption_notes(step.architecture), _fabric_note(fabric)]
    return Page(title, lines, record, HEADER, _rows(collectives), notes)
