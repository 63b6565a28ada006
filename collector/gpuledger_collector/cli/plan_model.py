"""The model that a plan is about, and the figures of hardware, as people name them on the command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from gpuledger_collector.cli.common import refuse
from gpuledger_collector.cli.plan_forms import Shape, count

if TYPE_CHECKING:
    from gpuledger_collector.insight.plans.architecture import Architecture

T = TypeVar("T")

MOST_GPUS = 10**7
MOST_SIZE = 10**9
"""Beyond these a number is a slip of the hand."""
Parameters = Annotated[
    str | None, typer.Option("--parameters", metavar="N", help="Parameters of the model: 70e9, 70B.")
]
Active = Annotated[
    str | None,
    typer.Option("--active-parameters", metavar="N", help="Of them those of a token, in a mixture of experts."),
]
Known = Annotated[
    str | None, typer.Option("--architecture", metavar="NAME", help="A published shape, such as llama-2-70b.")
]
Precision = Annotated[str, typer.Option("--precision", help="fp32, tf32, bf16, fp16, fp8; inference also int8, int4.")]
Optimizer = Annotated[str, typer.Option("--optimizer", help="adam, adam8bit, momentum or sgd.")]
Zero = Annotated[int, typer.Option("--zero", help="ZeRO stage, 0 to 3; 3 is FSDP's full sharding.")]
GpuName = Annotated[str, typer.Option("--gpu-model", metavar="MODEL", help="H100, H200, A100-80GB and so on.")]
Gpus = Annotated[int, typer.Option("--gpus", min=1, max=MOST_GPUS, help="GPUs in all.")]
Tensor = Annotated[int, typer.Option("--tensor", min=1, max=MOST_GPUS, help="Tensor-parallel GPUs.")]
Pipeline = Annotated[int, typer.Option("--pipeline", min=1, max=MOST_GPUS, help="Pipeline-parallel stages.")]
Sequence = Annotated[int, typer.Option("--sequence", min=1, max=MOST_SIZE, help="Tokens of a sequence.")]
Mfu = Annotated[str, typer.Option("--mfu", metavar="SHARE", help="Measured or assumed: 0.41, or a range 0.3-0.5.")]
Form = Annotated[Shape, typer.Option("--format", help="Form of the output.")]


def asked(question: Callable[[], T]) -> T:
    """What the question gives; a question that makes no sense ends the command with its sentence."""
    try:
        return question()
    except ValueError as error:
        refuse(str(error))


def shape_of(parameters: str | None, known_as: str | None) -> tuple[Architecture, float]:
    """The architecture and its parameters: a published one, or one assumed from the number of parameters."""
    from gpuledger_collector.insight.plans.architecture import assumed_from, known

    if known_as is not None:
        shape = asked(lambda: known(known_as))
        return shape, shape.parameters if parameters is None else count(parameters, "--parameters")
    if parameters is None:
        refuse("say --parameters N or --architecture NAME, for example --parameters 70e9")
    number = count(parameters, "--parameters")
    return asked(lambda: assumed_from(number)), number


def shape_note(shape: Architecture) -> list[str]:
    """What must be said of a shape that was assumed."""
    if not shape.assumed:
        return []
    return [
        f"shape assumed from the number of parameters: {shape.layers} layers of {shape.hidden}, {shape.heads} heads, "
        "no grouped queries; name yours with --architecture or --layers, --hidden, --heads, --kv-heads"
    ]


def sized(parameters: str | None, known_as: str | None, given: dict[str, Any]) -> tuple[Architecture, float]:
    """The shape, with the sizes that were given in place of its own; its parameters follow unless they were given."""
    from dataclasses import replace

    from gpuledger_collector.insight.plans.architecture import Architecture

    if not given:
        return shape_of(parameters, known_as)
    if known_as is not None or parameters is not None:
        model, number = shape_of(parameters, known_as)
        changed = asked(lambda: replace(model, **given, assumed=False))
        return changed, number if parameters is not None else changed.parameters
    missing = [name for name in ("layers", "hidden", "heads") if name not in given]
    if missing:
        refuse(f"--{missing[0]}: say it too, or --parameters N, or --architecture NAME")
    sizes: dict[str, Any] = {
        "kv_heads": given["heads"],
        "mlp_hidden": 4 * given["hidden"],
        "vocabulary": 32000,
        **given,
    }
    made = asked(lambda: Architecture(**sizes, gated=False))
    return made, made.parameters


def mfu_range(text: str) -> tuple[float, float, float]:
    """Low, expected and high of `0.3-0.5`, or three times the same of `0.41`."""
    parts = text.split("-")
    try:
        ends = [float(part) for part in parts]
    except ValueError:
        ends = []
    if len(ends) not in (1, 2) or not 0 < ends[0] <= ends[-1] <= 1:
        refuse(f"--mfu: {text!r} is not a share such as 0.41, nor a range such as 0.3-0.5")
    return ends[0], (ends[0] + ends[-1]) / 2, ends[-1]
