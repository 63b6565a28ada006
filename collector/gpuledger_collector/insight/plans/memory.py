"""GPU memory of a model: what one GPU of a training run, or of an inference server, has to hold.

States. Mixed precision with Adam holds 2 + 2 + 12 bytes a parameter: weights, gradients, and fp32
weights and two moments. ZeRO shards over the d data-parallel ranks the optimizer's part (1),
gradients too (2), weights too (3) (Rajbhandari et al. 2020, section 3.1 and figure 1). Tensor (t)
and pipeline (p) parallelism divide parameters by t p.

Activations. Bytes of a layer by Korthikanti et al. 2022, table 2: s b h (10 + 24/t + 5 a s / (h t))
without recomputation, without the last term when the attention core is recomputed (selective;
FlashAttention keeps no scores either), 2 s b h plus one layer being recomputed when everything is.
With sequence parallelism the 10 is divided by t too. The first pipeline stage holds p micro-batches
of L/p layers, that is, L. For gated models the same bookkeeping gives s b (8h + (4h + 4 kv + 6 f) /
t): no dropout masks, a fused SwiGLU, and 2 a s of scores for the 5 a s.

KV cache: 2 L kv_heads head_size bytes a token (Pope et al. 2022; Ainslie et al. 2023 for grouped
queries), over t as far as there are key-value heads.

Limits: uneven stages, embedding on one stage, temporary buffers of libraries and the order of
allocations are in the fragmentation allowance only; CPU offload, LoRA and mixtures of experts are
not modelled.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

from gpuledger_collector.insight.plans.architecture import Architecture
from gpuledger_collector.insight.plans.hardware import GIB, GpuModel

WEIGHT_BYTES = {
    "fp32": 4.0,
    "tf32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "int4": 0.5 + 2.5 / 128,
}
"""Bytes of a weight at rest; int4 as GPTQ and AWQ keep it: 128 share 2 bytes of scale and 4 bits of
zero.
"""
TRAINING = ("fp32", "tf32", "bf16", "fp16", "fp8")
"""fp8 training keeps its weights, gradients and activations in bf16 (Transformer Engine); only
products are fp8.
"""
MOMENT_BYTES = {"adam": 8.0, "adam8bit": 2.0, "momentum": 4.0, "sgd": 0.0}
"""Bytes of optimizer moments a parameter, beside fp32 weights where those that are trained are
narrower.
"""
NONE, SELECTIVE, FULL = "none", "selective", "full"
RECOMPUTE = (NONE, SELECTIVE, FULL)
GATHERED_LAYERS = 2
"""ZeRO 3 gathers the layer that runs and the next one."""
MOST_DATA_PARALLEL = 2**20
TENSOR = (1, 2, 4, 8)
"""Tensor parallel sizes that stay within a node."""


@dataclass(frozen=True, slots=True)
class TrainingSetup:
    """A training run: `micro_batch` sequences of `sequence` tokens at a time on each data-parallel
    rank.
    """

    architecture: Architecture
    parameters: float
    precision: str = "bf16"
    optimizer: str = "adam"
    zero: int = 0
    gpus: int = 1
    tensor: int = 1
    pipeline: int = 1
    sequence_parallel: bool = False
    micro_batch: int = 1
    sequence: int = 4096
    recompute: str = SELECTIVE
    fp32_gradients: bool = False
    fragmentation: float = 0.1
    context_bytes: float = float(GIB)

    def __post_init__(self) -> None:
        require("--precision of training", self.precision, TRAINING)
        require("--optimizer", self.optimizer, MOMENT_BYTES)
        require("--recompute", self.recompute, RECOMPUTE)
        require_positive(
            self.parameters, self.micro_batch, self.sequence, self.gpus, self.tensor, self.pipeline
        )
        require_allowances(self.fragmentation, self.context_bytes)
        require_layout(self.gpus, self.tensor, self.pipeline, self.zero, self.architecture)

    @property
    def data_parallel(self) -> int:
        """Ranks that hold the same share of the model."""
        return self.gpus // (self.tensor * self.pipeline)


@dataclass(frozen=True, slots=True)
class InferenceSetup:
    """A server that has `batch` sequences of `sequence` tokens in its cache and takes in
    `prefill_tokens` at a time.
    """

    architecture: Architecture
    parameters: float
    precision: str = "bf16"
    kv_precision: str = "bf16"
    tensor: int = 1
    pipeline: int = 1
    batch: int = 1
    sequence: int = 4096
    prefill_tokens: int = 8192
    fragmentation: float = 0.1
    context_bytes: float = float(GIB)

    def __post_init__(self) -> None:
        require("--precision", self.precision, WEIGHT_BYTES)
        require("--kv-precision", self.kv_precision, WEIGHT_BYTES)
        require_positive(
            self.parameters,
            self.batch,
            self.sequence,
            self.prefill_tokens,
            self.tensor,
            self.pipeline,
        )
        require_allowances(self.fragmentation, self.context_bytes)
        require_stages(self.pipeline, self.architecture)

    @property
    def gpus(self) -> int:
        """GPUs of one replica."""
        return self.tensor * self.pipeline


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes on the fullest GPU, by what they are for. `total_bytes` is their sum."""

    weights_bytes: float = 0.0
    gradients_bytes: float = 0.0
    optimizer_bytes: float = 0.0
    activations_bytes: float = 0.0
    kv_cache_bytes: float = 0.0
    fragmentation_bytes: float = 0.0
    context_bytes: float = 0.0

    @property
    def total_bytes(self) -> float:
        """All of it."""
        return float(sum(getattr(self, field.name) for field in fields(self)))


@dataclass(frozen=True, slots=True)
class MemoryFit:
    """Whether a GPU model holds it: `free_bytes` (below 0: missing) as asked, and the fewest GPUs
    that would do.

    `fewest_gpus` None: no number of GPUs is enough with this pipeline, sequence and batch.
    `fewest_tensor` is the tensor-parallel size that goes with it.
    """

    gpu_model: str
    memory_bytes: int
    free_bytes: float
    fewest_gpus: int | None
    fewest_tensor: int | None

    @property
    def fits(self) -> bool:
        """As asked."""
        return self.free_bytes >= 0


def require(option: str, value: str, known: Iterable[str]) -> None:
    """Raise ValueError when `value` is none of `known`."""
    names = list(known)
    if value not in names:
        raise ValueError(f"{option}: {value!r} is none of {', '.join(names)}")


def require_positive(*amounts: float) -> None:
    """Raise ValueError unless all are above 0."""
    if not all(amount > 0 for amount in amounts):
        raise ValueError("parameters, tokens, batches, GPUs and parallel sizes must be above 0")


def require_stages(pipeline: int, architecture: Architecture) -> None:
    """Raise ValueError when there are more pipeline stages than layers."""
    if pipeline > architecture.layers:
        raise ValueError(f"{architecture.layers} layers cannot make {pipeline} pipeline stages")


def require_layout(
    gpus: int, tensor: int, pipeline: int, zero: int, architecture: Architecture
) -> None:
    """Raise ValueError unless the ZeRO stage exists and the GPUs can be split into tensor and
    pipeline ranks.
    """
    if zero not in (0, 1, 2, 3):
        raise ValueError(f"ZeRO has the stages 0 to 3, not {zero}")
    require_stages(pipeline, architecture)
    if gpus % (tensor * pipeline):
        raise ValueError(
            f"{gpus} GPUs are no multiple of tensor x pipeline = {tensor} x {pipeline} ="
            f" {tensor * pipeline}"
        )


def trained_bytes(precision: str) -> float:
    """Bytes of a weight, gradient or activation in training: fp8 training keeps bf16."""
    return 4.0 if precision in ("fp32", "tf32") else 2.0


def require_allowances(fragmentation: float, context_bytes: float) -> None:
    """Raise ValueError unless the allowances are a share below 1 and no negative number of bytes."""
    if not 0 <= fragmentation < 1 or context_bytes < 0:
        raise ValueError(
            "the fragmentation allowance is a share from 0 to below 1, and the context takes 0"
            " bytes or more"
        )


def training_need(run: TrainingSetup) -> MemoryNeed:
    """Bytes of one GPU of a training run, on the first pipeline stage."""
    weight = trained_bytes(run.precision)
    own = run.parameters / (run.tensor * run.pipeline)
    ranks = run.data_parallel
    # Mixed precision also keeps fp32 master weights; fp32 training has them already.
    master = 0.0 if weight == 4.0 else 4.0
    optimizer = own * (master + MOMENT_BYTES[run.optimizer]) / (ranks if run.zero >= 1 else 1)
    gradients = own * (4.0 if run.fp32_gradients else weight) / (ranks if run.zero >= 2 else 1)
    weights = own * weight
    if run.zero == 3:
        # ZeRO 3 shards weights, but gathers those of a few layers while it works on them.
        gathered = GATHERED_LAYERS * weights * run.pipeline / run.architecture.layers
        weights = min(weights, weights / ranks + gathered)
    held = MemoryNeed(weights, gradients, optimizer, activation_bytes(run))
    return replace(
        held,
        fragmentation_bytes=run.fragmentation * held.total_bytes,
        context_bytes=run.context_bytes,
    )


def activation_bytes(run: TrainingSetup) -> float:
    """Bytes of activations on one GPU, of all layers that it has in flight, and of the head where
    it has the head.
    """
    shape, tokens = run.architecture, run.sequence * run.micro_batch
    kept = layer_activation_bytes(run, with_scores=run.recompute == NONE)
    layers = shape.layers
    if run.recompute == FULL:
        inputs = 2.0 * tokens * shape.hidden / (run.tensor if run.sequence_parallel else 1)
        # Full recomputation keeps the inputs of every layer, and everything of the one that is
        # being recomputed.
        total = layers * inputs + layer_activation_bytes(run, with_scores=True)
    else:
        total = layers * kept
    if run.pipeline == 1:
        total += 4.0 * tokens * (shape.hidden + shape.vocabulary) / run.tensor
    # The formulas above are for 2 bytes an activation.
    return trained_bytes(run.precision) / 2.0 * total


def layer_activation_bytes(run: TrainingSetup, *, with_scores: bool) -> float:
    """Bytes that the backward pass of one layer needs for one micro-batch, at 2 bytes an
    activation, on one GPU.
    """
    shape, tokens = run.architecture, run.sequence * run.micro_batch
    h, kv, f = shape.hidden, shape.kv_hidden, shape.mlp_hidden
    shared = 1 / run.tensor if run.sequence_parallel else 1.0
    if shape.gated:
        replicated, split, scores = 8.0 * h, 4.0 * h + 4.0 * kv + 6.0 * f, 2.0
    else:
        replicated, split, scores = 10.0 * h, 4.0 * h + 4.0 * kv + 4.0 * f, 5.0
    core = scores * shape.heads * run.sequence / run.tensor if with_scores else 0.0
    return tokens * (replicated * shared + split / run.tensor + core)


def kv_bytes_per_token(shape: Architecture, precision: str) -> float:
    """Bytes of keys and values of one token in all layers."""
    return 2.0 * shape.layers * shape.kv_hidden * WEIGHT_BYTES[precision]


def inference_need(server: InferenceSetup) -> MemoryNeed:
    """Bytes of one GPU of a replica.

    Activations: residual stream and MLP of the tokens taken in, and fp32 logits.
    """
    shape = server.architecture
    tokens = server.batch * server.sequence
    # Heads of keys and values cannot be split further: with more ranks than heads they are
    # replicated.
    kv_ranks = min(server.tensor, shape.kv_heads)
    cache = tokens * kv_bytes_per_token(shape, server.kv_precision) / (kv_ranks * server.pipeline)
    running = min(tokens, server.prefill_tokens)
    wide = (3.0 if shape.gated else 2.0) * shape.mlp_hidden / server.tensor
    activations = (
        2.0 * running * (2.0 * shape.hidden + wide)
        + 4.0 * server.batch * shape.vocabulary / server.tensor
    )
    weights = server.parameters * WEIGHT_BYTES[server.precision] / server.gpus
    held = MemoryNeed(weights_bytes=weights, activations_bytes=activations, kv_cache_bytes=cache)
    return replace(
        held,
        fragmentation_bytes=server.fragmentation * held.total_bytes,
        context_bytes=server.context_bytes,
    )


def training_fit(run: TrainingSetup, card: GpuModel) -> MemoryFit:
    """Whether the run fits on this card, and the fewest GPUs: data-parallel ranks and tensor sizes
    are tried.

    The pipeline, the micro-batch and everything else stay as asked. Tensor sizes above the one
    asked for are tried too.
    """
    best: tuple[int, int] | None = None
    for tensor in sorted({run.tensor, *(size for size in TENSOR if size >= run.tensor)}):
        unit = tensor * run.pipeline
        at = _fewest_ranks(replace(run, tensor=tensor, gpus=unit), card.memory_bytes)
        if at is not None and (best is None or at * unit < best[0]):
            best = (at * unit, tensor)
    return _fit(card, training_need(run).total_bytes, best)


def _fewest_ranks(run: TrainingSetup, memory_bytes: float) -> int | None:
    unit = run.gpus

    def enough(ranks: int) -> bool:
        return training_need(replace(run, gpus=unit * ranks)).total_bytes <= memory_bytes

    if enough(1):
        return 1
    if not enough(MOST_DATA_PARALLEL):
        return None
    low, high = 1, MOST_DATA_PARALLEL
    # Need falls with the number of ranks, so the smallest one that is enough is found by bisection.
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def inference_fit(server: InferenceSetup, card: GpuModel) -> MemoryFit:
    """Whether a replica fits on this card, and the fewest GPUs: tensor sizes to 8, then more
    pipeline stages.
    """
    best: tuple[int, int] | None = None
    tensors = sorted({server.tensor, *(size for size in TENSOR if size >= server.tensor)})
    sizes = [(tensor, server.pipeline) for tensor in tensors]
    stages = server.pipeline
    while 2 * stages <= server.architecture.layers:
        stages *= 2
        sizes.append((tensors[-1], stages))
    for tensor, pipeline in sizes:
        if (
            inference_need(replace(server, tensor=tensor, pipeline=pipeline)).total_bytes
            <= card.memory_bytes
        ):
            best = (tensor * pipeline, tensor)
            break
    return _fit(card, inference_need(server).total_bytes, best)


def _fit(card: GpuModel, total_bytes: float, best: tuple[int, int] | None) -> MemoryFit:
    fewest, tensor = best or (None, None)
    return MemoryFit(card.name, card.memory_bytes, card.memory_bytes - total_bytes, fewest, tensor)
