"""gpuledger plan network: what collectives take of a training step."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from gpuledger_collector.cli.plan_forms import Page, Shape, big, decimal_bytes, emit, percent, size_bytes, span
from gpuledger_collector.cli.plan_model import (
    MOST_GPUS,
    MOST_SIZE,
    Form,
    GpuName,
    Gpus,
    Known,
    Parameters,
    Pipeline,
    Precision,
    Sequence,
    Tensor,
    Zero,
    asked,
    shape_note,
    shape_of,
)

if TYPE_CHECKING:
    from gpuledger_collector.insight.plans.network import Collective, Fabric, RankGroup, TrainingStep

EXAMPLE = "Example: gpuledger plan network --architecture llama-2-70b --gpus 512 --tensor 8 --zero 1 --accumulate 8"


def add_to(group: typer.Typer) -> None:
    """Add `gpuledger plan network`."""
    group.command(epilog=EXAMPLE)(network)


def network(
    parameters: Parameters = None,
    known_as: Known = None,
    gpu_model: GpuName = "H100",
    gpus: Gpus = 8,
    node_gpus: Annotated[int, typer.Option("--node-gpus", min=1, max=MOST_GPUS, help="GPUs of a node.")] = 8,
    inside: Annotated[str | None, typer.Option("--link", help="Link inside a node; else the GPU model's own.")] = None,
    between: Annotated[str, typer.Option("--network", help="Adapter of each GPU: ib-ndr, ib-hdr, eth-100.")] = "ib-ndr",
    efficiency: Annotated[float, typer.Option("--efficiency", help="Share of the links that is reached.")] = 0.8,
    message: Annotated[
        str | None, typer.Option("--message", metavar="SIZE", help="Only collectives of this size, over all GPUs.")
    ] = None,
    precision: Precision = "bf16",
    zero: Zero = 0,
    tensor: Tensor = 1,
    pipeline: Pipeline = 1,
    chunks: Annotated[
        int, typer.Option("--chunks", min=1, max=MOST_SIZE, help="Pipeline chunks a GPU (interleaved schedule).")
    ] = 1,
    batch: Annotated[int, typer.Option("--batch", min=1, max=MOST_SIZE, help="Sequences of a micro-batch.")] = 1,
    accumulate: Annotated[int, typer.Option("--accumulate", min=1, max=MOST_SIZE, help="Micro-batches of a step.")] = 1,
    sequence: Sequence = 4096,
    full_recompute: Annotated[bool, typer.Option("--full-recompute", help="All activations again.")] = False,
    fp32_gradients: Annotated[bool, typer.Option("--fp32-gradients", help="Gradients travel in fp32.")] = False,
    kernel_efficiency: Annotated[
        float, typer.Option("--kernel-efficiency", help="Share of the peak while nothing waits.")
    ] = 0.6,
    shape: Form = Shape.table,
) -> None:
    """Time and bus bandwidth of collectives, and their share of a training step, with the pipeline's bubble."""
    from gpuledger_collector.insight.plans import hardware
    from gpuledger_collector.insight.plans import network as plans

    card = asked(lambda: hardware.gpu_named(gpu_model))
    link = asked(lambda: hardware.link_named(inside or card.link))
    adapter = asked(lambda: hardware.link_named(between))
    fabric = asked(lambda: plans.Fabric(link, adapter, node_gpus, efficiency))
    if message is not None:
        size = size_bytes(message, "--message")
        emit(_message_page(size, plans.RankGroup(gpus, min(gpus, node_gpus)), fabric), shape)
        return
    model, number = shape_of(parameters, known_as)
    step = asked(
        lambda: plans.TrainingStep(
            model,
            number,
            card,
            gpus,
            precision,
            zero,
            tensor,
            pipeline,
            chunks,
            batch,
            accumulate,
            sequence,
            full_recompute,
            fp32_gradients,
            kernel_efficiency,
        )
    )
    emit(_step_page(step, fabric), shape)


def _collectives(size: float, group: RankGroup, fabric: Fabric) -> list[Collective]:
    from gpuledger_collector.insight.plans import network as plans

    return [
        plans.collective(plans.ALL_REDUCE, size, group, fabric, "ring"),
        plans.collective(plans.ALL_REDUCE, size, group, fabric, "tree"),
        plans.collective(plans.REDUCE_SCATTER, size, group, fabric),
        plans.collective(plans.ALL_GATHER, size, group, fabric),
    ]


HEADER = ("collective", "algorithm", "time", "algorithm bandwidth", "bus bandwidth")


def _rows(found: list[Collective]) -> list[tuple[str, ...]]:
    return [
        (
            one.kind,
            one.algorithm,
            span(one.seconds),
            _speed(one.algorithm_bytes_per_second),
            _speed(one.bus_bytes_per_second),
        )
        for one in found
    ]


def _speed(value: float | None) -> str:
    return "-" if value is None else f"{decimal_bytes(value)}/s"


def _fabric_note(fabric: Fabric) -> str:
    return (
        f"{fabric.inside.name} {decimal_bytes(fabric.inside.bytes_per_second)}/s inside a node of {fabric.node_gpus}, "
        f"{fabric.between.name} {decimal_bytes(fabric.between.bytes_per_second)}/s for each GPU between nodes; "
        f"{percent(fabric.efficiency)} of it is taken to be reached: measure yours with nccl-tests"
    )


def _message_page(size: float, group: RankGroup, fabric: Fabric) -> Page:
    from gpuledger_collector.insight.plans import network as plans

    found = _collectives(size, group, fabric)
    ring = plans.bandwidth(fabric, group)
    return Page(
        f"collectives of {decimal_bytes(size)} over {group.ranks:,} GPUs on {group.nodes:,} nodes",
        [("ring bandwidth", f"{decimal_bytes(ring)}/s for each GPU")],
        {
            "message_bytes": size,
            "group": {"ranks": group.ranks, "nodes": group.nodes},
            "fabric": asdict(fabric),
            "ring_bytes_per_second": ring,
            "collectives": [asdict(one) for one in found],
        },
        HEADER,
        _rows(found),
        [_fabric_note(fabric)],
    )


def _step_page(step: TrainingStep, fabric: Fabric) -> Page:
    from gpuledger_collector.insight.plans import network as plans

    times = plans.step_time(step, fabric)
    group = plans.data_group(step, fabric)
    found = _collectives(step.gradient_bytes, group, fabric)
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
    lines = [(name, f"{span(seconds):>9}  {percent(times.share(seconds)):>8}") for name, seconds in parts if seconds]
    mfu = step.kernel_efficiency * times.share(times.compute_seconds) * (0.75 if step.full_recompute else 1.0)
    lines.append(("MFU that follows", f"{mfu:.2f}"))
    record = {
        "plan": asdict(step),
        "fabric": asdict(fabric),
        "step": {
            **asdict(times),
            "overlapped_seconds": times.overlapped_seconds,
            "serial_seconds": times.serial_seconds,
        },
        "mfu": mfu,
        "gradient_bytes": step.gradient_bytes,
        "data_parallel": {"ranks": group.ranks, "nodes": group.nodes, "in_node": group.in_node},
        "collectives": [asdict(one) for one in found],
    }
    title = (
        f"a training step of {big(step.parameters)} parameters on {step.gpus:,} x {step.card.name} = data "
        f"{step.data_parallel} x tensor {step.tensor} x pipeline {step.pipeline}, ZeRO {step.zero}; collectives of its "
        f"gradients, {decimal_bytes(step.gradient_bytes)} a GPU"
    )
    notes = [*shape_note(step.architecture), _fabric_note(fabric)]
    return Page(title, lines, record, HEADER, _rows(found), notes)
