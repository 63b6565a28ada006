"""The model that a plan is about, and the figures of hardware, as people name them on the command
line.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, TypeVar

from typer import Option

from gpuledger_collector.cli.common import refuse
from gpuledger_collector.cli.plan_forms import count
from gpuledger_collector.insight.plans.architecture import (
    Architecture,
    assumed_from,
    published_shape,
)

T = TypeVar("T")

MAX_GPUS = 10**7
MAX_SIZE = 10**9
"""A larger number is a typing error."""
DEFAULT_VOCABULARY = 32_000
Parameters = Annotated[
    str | None, Option("--parameters", metavar="N", help="Parameters of the model: 70e9, 70B.")
]
Active = Annotated[
    str | None,
    Option(
        "--active-parameters",
        metavar="N",
        help="Of them those of a token, in a mixture of experts.",
    ),
]
KnownAs = Annotated[
    str | None,
    Option("--architecture", metavar="NAME", help="A published shape, such as llama-2-70b."),
]
Precision = Annotated[
    str, Option("--precision", help="fp32, tf32, bf16, fp16, fp8; inference also int8, int4.")
]
Optimizer = Annotated[str, Option("--optimizer", help="adam, adam8bit, momentum or sgd.")]
Zero = Annotated[int, Option("--zero", help="ZeRO stage, 0 to 3; 3 is FSDP's full sharding.")]
GpuName = Annotated[
    str, Option("--gpu-model", metavar="MODEL", help="H100, H200, A100-80GB and so on.")
]
Gpus = Annotated[int, Option("--gpus", min=1, max=MAX_GPUS, help="GPUs in all.")]
Tensor = Annotated[int, Option("--tensor", min=1, max=MAX_GPUS, help="Tensor-parallel GPUs.")]
Pipeline = Annotated[
    int, Option("--pipeline", min=1, max=MAX_GPUS, help="Pipeline-parallel stages.")
]
Sequence = Annotated[int, Option("--sequence", min=1, max=MAX_SIZE, help="Tokens of a sequence.")]
Mfu = Annotated[
    str, Option("--mfu", metavar="SHARE", help="Measured or assumed: 0.41, or a range 0.3-0.5.")
]
Fp32Gradients = Annotated[bool, Option("--fp32-gradients", help="Gradients are summed in fp32.")]


def or_refuse(build: Callable[[], T]) -> T:
    """What `build` returns; values that make no sense end the command with the sentence of the
    ValueError.
    """
    try:
        return build()
    except ValueError as error:
        refuse(str(error))


def find_model(parameters: str | None, known_as: str | None) -> tuple[Architecture, float]:
    """The architecture and its parameters: a published one, or one assumed from the number of
    parameters.
    """
    if known_as is not None:
        model = or_refuse(lambda: published_shape(known_as))
        return model, model.parameters if parameters is None else count(parameters, "--parameters")
    if parameters is None:
        refuse("give --parameters N or --architecture NAME, for example --parameters 70e9")
    total = count(parameters, "--parameters")
    return or_refuse(lambda: assumed_from(total)), total


def assumption_notes(model: Architecture) -> list[str]:
    """What must be said of a shape that was assumed."""
    if not model.assumed:
        return []
    return [
        f"shape assumed from the number of parameters: {model.layers} layers of {model.hidden},"
        f" {model.heads} heads, no grouped queries; name yours with --architecture or --layers,"
        " --hidden, --heads, --kv-heads"
    ]


def resize_model(
    parameters: str | None, known_as: str | None, given: dict[str, Any]
) -> tuple[Architecture, float]:
    """The shape with the given sizes in place of its own; its parameters follow unless they are
    given, too.
    """
    if not given:
        return find_model(parameters, known_as)
    if known_as is not None or parameters is not None:
        model, total = find_model(parameters, known_as)
        changed = or_refuse(lambda: replace(model, **given, assumed=False))
        return changed, total if parameters is not None else changed.parameters
    missing = [name for name in ("layers", "hidden", "heads") if name not in given]
    if missing:
        refuse(f"--{missing[0]}: give it too, or --parameters N, or --architecture NAME")
    derived = {
        "kv_heads": given["heads"],
        "mlp_hidden": 4 * given["hidden"],
        "vocabulary": DEFAULT_VOCABULARY,
    }
    model = or_refuse(lambda: Architecture(**{**derived, **given}, gated=False))
    return model, model.parameters


def mfu_range(text: str) -> tuple[float, float, float]:
    """Low, expected and high of `0.3-0.5`, or three times the same of `0.41`."""
    try:
        ends = [float(part) for part in text.split("-")]
    except ValueError:
        ends = []
    if len(ends) not in (1, 2) or not 0 < ends[0] <= ends[-1] <= 1:
        refuse(f"--mfu: {text!r} is neither a share such as 0.41, nor a range such as 0.3-0.5")
    return ends[0], (ends[0] + ends[-1]) / 2, ends[-1]
