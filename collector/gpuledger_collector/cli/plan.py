"""gpuledger plan: what a model will need before it runs, and what capacity a pool will need."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from typer import Option

from gpuledger_collector.cli import (
    options,
    plan_capacity,
    plan_network,
    plan_storage,
    plan_training,
)
from gpuledger_collector.cli.common import new_app, refuse
from gpuledger_collector.cli.plan_forms import Page, big, gib, print_page, size_bytes
from gpuledger_collector.cli.plan_model import (
    MAX_GPUS,
    MAX_SIZE,
    Fp32Gradients,
    KnownAs,
    Optimizer,
    Parameters,
    Pipeline,
    Precision,
    Sequence,
    Tensor,
    Zero,
    assumption_notes,
    or_refuse,
    resize_model,
)
from gpuledger_collector.insight.plans.hardware import GPUS
from gpuledger_collector.insight.plans.memory import (
    TRAINING,
    InferenceSetup,
    MemoryFit,
    MemoryNeed,
    TrainingSetup,
    inference_fit,
    inference_need,
    training_fit,
    training_need,
)

app = new_app(
    name="plan",
    help=(
        "What a model will need: memory, days and money, storage, network; what capacity a pool"
        " will need. Estimates."
    ),
    no_args_is_help=True,
)
for module in (plan_training, plan_storage, plan_network, plan_capacity):
    app.add_typer(module.app)  # without a name its command becomes one of this group

SIZES = ("layers", "hidden", "heads", "kv_heads", "mlp_hidden", "vocabulary")
Layers = Annotated[int | None, Option("--layers", min=1, max=MAX_SIZE, help="Layers.")]
Hidden = Annotated[int | None, Option("--hidden", min=1, max=MAX_SIZE, help="Hidden size.")]
Heads = Annotated[int | None, Option("--heads", min=1, max=MAX_SIZE, help="Attention heads.")]
KvHeads = Annotated[int | None, Option("--kv-heads", min=1, max=MAX_SIZE, help="Key-value heads.")]
MlpHidden = Annotated[
    int | None, Option("--mlp-hidden", min=1, max=MAX_SIZE, help="Hidden size of the MLP.")
]
Vocabulary = Annotated[int | None, Option("--vocabulary", min=1, max=MAX_SIZE, help="Words.")]
IsInference = Annotated[bool, Option("--inference", help="A server rather than a training run.")]
KvPrecision = Annotated[str, Option("--kv-precision", help="Precision of the KV cache.")]
AllGpus = Annotated[
    int | None, Option("--gpus", min=1, max=MAX_GPUS, help="GPUs in all; else tensor x pipeline.")
]
SequenceParallel = Annotated[
    bool, Option("--sequence-parallel", help="Norms and dropouts split too.")
]
Batch = Annotated[
    int, Option("--batch", min=1, max=MAX_SIZE, help="Sequences at a time: micro-batch, or served.")
]
Recompute = Annotated[str, Option("--recompute", help="Of activations: none, selective or full.")]
Fragmentation = Annotated[
    float, Option("--fragmentation", help="Allowance for buffers and fragmentation, a share.")
]
ContextSize = Annotated[
    str, Option("--context", metavar="SIZE", help="Of the CUDA context and NCCL.")
]


@app.command(
    epilog="Example: gpuledger plan memory --parameters 70e9 --precision bf16 --zero 3 --gpus 64"
)
def memory(
    parameters: Parameters = None,
    known_as: KnownAs = None,
    layers: Layers = None,
    hidden: Hidden = None,
    heads: Heads = None,
    kv_heads: KvHeads = None,
    mlp_hidden: MlpHidden = None,
    vocabulary: Vocabulary = None,
    inference: IsInference = False,
    precision: Precision = "bf16",
    kv_precision: KvPrecision = "bf16",
    optimizer: Optimizer = "adam",
    zero: Zero = 0,
    gpus: AllGpus = None,
    tensor: Tensor = 1,
    pipeline: Pipeline = 1,
    sequence_parallel: SequenceParallel = False,
    batch: Batch = 1,
    sequence: Sequence = 4096,
    recompute: Recompute = "selective",
    fp32_gradients: Fp32Gradients = False,
    fragmentation: Fragmentation = 0.1,
    context: ContextSize = "1GiB",
    form: options.PageForm = options.PageFormat.table,
) -> None:
    """GPU memory of a model in training or inference, which GPU models hold it, and with how many
    GPUs at least.
    """
    sizes = dict(zip(SIZES, (layers, hidden, heads, kv_heads, mlp_hidden, vocabulary), strict=True))
    given: dict[str, Any] = {name: value for name, value in sizes.items() if value is not None}
    model, total = resize_model(parameters, known_as, given)
    shared: dict[str, Any] = {
        "architecture": model,
        "parameters": total,
        "precision": precision,
        "tensor": tensor,
        "pipeline": pipeline,
        "sequence": sequence,
        "fragmentation": fragmentation,
        "context_bytes": size_bytes(context, "--context"),
    }
    if inference:
        if gpus not in {None, tensor * pipeline}:
            refuse(
                f"--gpus {gpus}: a replica in inference has tensor x pipeline GPUs, that is"
                f" {tensor * pipeline}"
            )
        page = inference_page(
            or_refuse(lambda: InferenceSetup(kv_precision=kv_precision, batch=batch, **shared))
        )
    else:
        run: dict[str, Any] = {
            "optimizer": optimizer,
            "zero": zero,
            "gpus": gpus or tensor * pipeline,
            "micro_batch": batch,
        }
        run |= {
            "sequence_parallel": sequence_parallel,
            "recompute": recompute,
            "fp32_gradients": fp32_gradients,
        }
        page = training_page(or_refuse(lambda: TrainingSetup(**shared, **run)))
    print_page(page, form)


def training_page(run: TrainingSetup) -> Page:
    """The memory of a training run."""
    title = (
        f"memory of one GPU in training: {big(run.parameters)} parameters, {run.precision},"
        f" {run.optimizer}, ZeRO {run.zero}, {run.gpus} GPUs = data {run.data_parallel} x tensor"
        f" {run.tensor} x pipeline {run.pipeline}, micro-batch {run.micro_batch} x {run.sequence}"
        f" tokens, recomputation {run.recompute}"
    )
    return _memory_page(title, run, training_need(run), [training_fit(run, gpu) for gpu in GPUS])


def inference_page(server: InferenceSetup) -> Page:
    """The memory of a server."""
    title = (
        f"memory of one GPU in inference: {big(server.parameters)} parameters, {server.precision},"
        f" tensor {server.tensor} x pipeline {server.pipeline}, {server.batch} x {server.sequence}"
        f" tokens in the cache ({server.kv_precision})"
    )
    return _memory_page(
        title, server, inference_need(server), [inference_fit(server, gpu) for gpu in GPUS]
    )


def _memory_page(
    title: str, plan: TrainingSetup | InferenceSetup, need: MemoryNeed, fits: list[MemoryFit]
) -> Page:
    parts = asdict(need)
    lines = [
        (name.removesuffix("_bytes").replace("_", " "), gib(value))
        for name, value in parts.items()
        if value
    ]
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
        *assumption_notes(plan.architecture),
        (
            "sources: Rajbhandari et al. 2020 (ZeRO), Korthikanti et al. 2022 (activations);"
            " fragmentation is an allowance"
        ),
    ]
    unable = [
        gpu.name
        for gpu in GPUS
        if plan.precision in TRAINING and plan.precision not in gpu.peak_flops
    ]
    if unable:
        notes.append(f"no {plan.precision} arithmetic: {', '.join(unable)}")
    if plan.precision == "fp8" and parts["optimizer_bytes"]:
        notes.append(
            "fp8 training keeps weights, gradients and activations in bf16; it saves no memory here"
        )
    record = {
        "plan": asdict(plan),
        "need_per_gpu": {**parts, "total_bytes": need.total_bytes},
        "fits": [{**asdict(fit), "fits": fit.fits} for fit in fits],
    }
    header = ("GPU model", "memory", "as asked", "fewest GPUs", "with tensor")
    return Page(title, [*lines, ("total", gib(need.total_bytes))], record, header, rows, notes)
