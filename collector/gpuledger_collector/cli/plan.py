"""gpuledger plan: what a model will need before it runs: memory, days and money, storage, network."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuledger_collector.cli import plan_network, plan_storage, plan_training
from gpuledger_collector.cli.common import refuse
from gpuledger_collector.cli.plan_forms import Page, Shape, big, emit, gib, size_bytes
from gpuledger_collector.cli.plan_model import (
    MOST_GPUS,
    MOST_SIZE,
    Form,
    Known,
    Optimizer,
    Parameters,
    Pipeline,
    Precision,
    Sequence,
    Tensor,
    Zero,
    asked,
    shape_note,
    sized,
)

if TYPE_CHECKING:
    from gpuledger_collector.insight.plans.memory import InferenceSetup, MemoryFit, MemoryNeed, TrainingSetup


def register(root: typer.Typer) -> None:
    """Add `gpuledger plan`."""
    group = typer.Typer(help="What a model will need: estimates with their sources.", no_args_is_help=True)
    group.command(epilog="Example: gpuledger plan memory --parameters 70e9 --precision bf16 --zero 3 --gpus 64")(memory)
    for module in (plan_training, plan_storage, plan_network):
        module.add_to(group)
    group.callback()(_group)
    root.add_typer(group, name="plan")


def _group() -> None:
    """What a model will need: memory, days and money, storage, network. Estimates; works without a database."""


def memory(
    parameters: Parameters = None,
    known_as: Known = None,
    layers: Annotated[int | None, typer.Option("--layers", min=1, max=MOST_SIZE, help="Layers.")] = None,
    hidden: Annotated[int | None, typer.Option("--hidden", min=1, max=MOST_SIZE, help="Hidden size.")] = None,
    heads: Annotated[int | None, typer.Option("--heads", min=1, max=MOST_SIZE, help="Attention heads.")] = None,
    kv_heads: Annotated[int | None, typer.Option("--kv-heads", min=1, max=MOST_SIZE, help="Key-value heads.")] = None,
    mlp_hidden: Annotated[
        int | None, typer.Option("--mlp-hidden", min=1, max=MOST_SIZE, help="Hidden size of the MLP.")
    ] = None,
    vocabulary: Annotated[int | None, typer.Option("--vocabulary", min=1, max=MOST_SIZE, help="Words.")] = None,
    inference: Annotated[bool, typer.Option("--inference", help="A server rather than a training run.")] = False,
    precision: Precision = "bf16",
    kv_precision: Annotated[str, typer.Option("--kv-precision", help="Precision of the KV cache.")] = "bf16",
    optimizer: Optimizer = "adam",
    zero: Zero = 0,
    gpus: Annotated[
        int | None, typer.Option("--gpus", min=1, max=MOST_GPUS, help="GPUs in all; else tensor x pipeline.")
    ] = None,
    tensor: Tensor = 1,
    pipeline: Pipeline = 1,
    sequence_parallel: Annotated[bool, typer.Option("--sequence-parallel", help="Norms and dropouts split too.")] = (
        False
    ),
    batch: Annotated[
        int, typer.Option("--batch", min=1, max=MOST_SIZE, help="Sequences at a time: micro-batch, or served.")
    ] = 1,
    sequence: Sequence = 4096,
    recompute: Annotated[str, typer.Option("--recompute", help="Of activations: none, selective or full.")] = (
        "selective"
    ),
    fp32_gradients: Annotated[bool, typer.Option("--fp32-gradients", help="Gradients are summed in fp32.")] = False,
    fragmentation: Annotated[
        float, typer.Option("--fragmentation", help="Allowance for buffers and fragmentation, a share.")
    ] = 0.1,
    context: Annotated[str, typer.Option("--context", metavar="SIZE", help="Of the CUDA context and NCCL.")] = "1GiB",
    shape: Form = Shape.table,
) -> None:
    """GPU memory of a model in training or inference, which GPU models hold it, and with how many GPUs at least."""
    from gpuledger_collector.insight.plans import hardware
    from gpuledger_collector.insight.plans import memory as plans

    sizes = {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "kv_heads": kv_heads,
        "mlp_hidden": mlp_hidden,
        "vocabulary": vocabulary,
    }
    given: dict[str, Any] = {name: value for name, value in sizes.items() if value is not None}
    model, number = sized(parameters, known_as, given)
    context_bytes = size_bytes(context, "--context")
    if inference:
        if gpus is not None and gpus != tensor * pipeline:
            refuse(f"--gpus {gpus}: a replica in inference has tensor x pipeline GPUs, that is {tensor * pipeline}")
        server = asked(
            lambda: plans.InferenceSetup(
                model,
                number,
                precision,
                kv_precision,
                tensor,
                pipeline,
                batch,
                sequence,
                fragmentation=fragmentation,
                context_bytes=context_bytes,
            )
        )
        need = plans.inference_need(server)
        fits = [plans.inference_fit(server, card) for card in hardware.GPUS]
        emit(memory_page(server_title(server), server, need, fits), shape)
        return
    run = asked(
        lambda: plans.TrainingSetup(
            model,
            number,
            precision,
            optimizer,
            zero,
            gpus or tensor * pipeline,
            tensor,
            pipeline,
            sequence_parallel,
            batch,
            sequence,
            recompute,
            fp32_gradients,
            fragmentation,
            context_bytes,
        )
    )
    need = plans.training_need(run)
    fits = [plans.training_fit(run, card) for card in hardware.GPUS]
    emit(memory_page(run_title(run), run, need, fits), shape)


def run_title(run: TrainingSetup) -> str:
    """A training run in one line."""
    return (
        f"memory of one GPU in training: {big(run.parameters)} parameters, {run.precision}, {run.optimizer}, ZeRO "
        f"{run.zero}, {run.gpus} GPUs = data {run.data_parallel} x tensor {run.tensor} x pipeline {run.pipeline}, "
        f"micro-batch {run.micro_batch} x {run.sequence} tokens, recomputation {run.recompute}"
    )


def server_title(server: InferenceSetup) -> str:
    """A server in one line."""
    return (
        f"memory of one GPU in inference: {big(server.parameters)} parameters, {server.precision}, tensor "
        f"{server.tensor} x pipeline {server.pipeline}, {server.batch} x {server.sequence} tokens in the cache "
        f"({server.kv_precision})"
    )


def memory_page(title: str, plan: TrainingSetup | InferenceSetup, need: MemoryNeed, fits: list[MemoryFit]) -> Page:
    """The page of `plan memory`."""
    from gpuledger_collector.insight.plans import hardware
    from gpuledger_collector.insight.plans.memory import TRAINING

    parts = asdict(need)
    lines = [(name.removesuffix("_bytes").replace("_", " "), gib(value)) for name, value in parts.items() if value]
    rows = [
        (
            fit.gpu_model,
            gib(fit.memory_bytes),
            "yes" if fit.fits else f"{gib(-fit.free_bytes)} missing",
            "-" if fit.fewest_gpus is None else f"{fit.fewest_gpus:,}",
            "-" if fit.fewest_tensor is None else f"{fit.fewest_tensor}",
        )
        for fit in fits
    ]
    notes = [
        *shape_note(plan.architecture),
        "sources: Rajbhandari et al. 2020 (ZeRO), Korthikanti et al. 2022 (activations); fragmentation is an allowance",
    ]
    readiness_problems = [
        card.name for card in hardware.GPUS if plan.precision in TRAINING and plan.precision not in card.peak_flops
    ]
    if readiness_problems:
        notes.append(f"no {plan.precision} arithmetic: {', '.join(readiness_problems)}")
    if plan.precision == "fp8" and parts["optimizer_bytes"]:
        notes.append("fp8 training keeps weights, gradients and activations in bf16; it saves no memory here")
    return Page(
        title,
        [*lines, ("total", gib(need.total_bytes))],
        {
            "plan": asdict(plan),
            "need_per_gpu": {**parts, "total_bytes": need.total_bytes},
            "fits": [{**asdict(fit), "fits": fit.fits} for fit in fits],
        },
        ("GPU model", "memory", "as asked", "fewest GPUs", "with tensor"),
        rows,
        notes,
    )
