"""gpuledger plan storage: how fast samples must come, how large checkpoints are and how fast they must go."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from gpuledger_collector.cli.common import refuse
from gpuledger_collector.cli.plan_forms import Page, Shape, big, count, decimal_bytes, emit, percent, size_bytes, span
from gpuledger_collector.cli.plan_model import (
    MOST_SIZE,
    Active,
    Form,
    GpuName,
    Gpus,
    Known,
    Mfu,
    Optimizer,
    Parameters,
    Precision,
    Sequence,
    asked,
    mfu_range,
    shape_of,
)

if TYPE_CHECKING:
    from gpuledger_collector.insight.plans.storage import Storage, StorageNeed

EXAMPLE = "Example: gpuledger plan storage --parameters 70e9 --gpus 512 --sample-size 16KiB --every 30m --stall 0.01"


def add_to(group: typer.Typer) -> None:
    """Add `gpuledger plan storage`."""
    group.command(epilog=EXAMPLE)(storage)


def storage(
    parameters: Parameters = None,
    known_as: Known = None,
    active: Active = None,
    samples: Annotated[
        str | None, typer.Option("--samples", metavar="N", help="Samples a second of the whole job; else from the MFU.")
    ] = None,
    sample_size: Annotated[str, typer.Option("--sample-size", metavar="SIZE", help="Bytes of a sample.")] = "16KiB",
    gpu_model: GpuName = "H100",
    gpus: Gpus = 1,
    sequence: Sequence = 4096,
    mfu: Mfu = "0.3-0.5",
    precision: Precision = "bf16",
    optimizer: Optimizer = "adam",
    every: Annotated[str, typer.Option("--every", metavar="SPAN", help="Work between checkpoints.")] = "30m",
    stall: Annotated[float, typer.Option("--stall", help="Share of the time that checkpoints may take.")] = 0.01,
    keep: Annotated[int, typer.Option("--keep", min=1, max=MOST_SIZE, help="Checkpoints to keep.")] = 3,
    dataset: Annotated[str | None, typer.Option("--dataset", metavar="SIZE", help="Bytes of the data set.")] = None,
    shape: Form = Shape.table,
) -> None:
    """Storage throughput and capacity: samples a second, checkpoints within a stall budget.

    Without --samples the job's own appetite is taken, one sample a sequence, at the high end of its MFU.
    """
    from gpuledger_collector.cli.series_files import duration_ms
    from gpuledger_collector.insight.plans import hardware
    from gpuledger_collector.insight.plans import storage as plans
    from gpuledger_collector.insight.plans.training import TrainingRun

    model, number = shape_of(parameters, known_as)
    if samples is not None:
        rate, source = count(samples, "--samples"), "as given"
    else:
        card = asked(lambda: hardware.gpu_named(gpu_model))
        working = number if active is None else count(active, "--active-parameters")
        low, expected, high = mfu_range(mfu)
        run = asked(lambda: TrainingRun(model, working, 1.0, card, gpus, precision, sequence, (low, expected, high)))
        rate = run.tokens_per_second(high) / sequence
        source = f"{gpus:,} x {card.name} at MFU {high:g}, sequences of {sequence} tokens"
    held = 0.0 if dataset is None else size_bytes(dataset, "--dataset")
    if not 0 < stall < 1:
        refuse(f"--stall: {stall:g} is not a share between 0 and 1")
    wanted = asked(
        lambda: plans.Storage(
            number,
            rate,
            size_bytes(sample_size, "--sample-size"),
            duration_ms(every, "--every") / 1000,
            stall,
            keep,
            precision,
            optimizer,
            held,
        )
    )
    emit(_page(wanted, plans.storage_need(wanted), source), shape)


def _page(wanted: Storage, need: StorageNeed, source: str) -> Page:
    lines = [
        ("samples", f"{wanted.samples_per_second:,.4g} a second ({source})"),
        ("read", f"{decimal_bytes(need.read_bytes_per_second)}/s"),
        ("checkpoint", f"{decimal_bytes(need.checkpoint_bytes)}, of it weights {decimal_bytes(need.weights_bytes)}"),
        (
            "may stop the run",
            f"{span(need.stall_seconds)} every {span(wanted.interval_seconds)} of work ({percent(wanted.stall)})",
        ),
        ("write, run waits", f"{decimal_bytes(need.write_bytes_per_second)}/s"),
        ("write, background", f"{decimal_bytes(need.background_bytes_per_second)}/s"),
        (
            "capacity",
            f"{decimal_bytes(need.capacity_bytes)} for {wanted.kept} checkpoints, one being written"
            + (f", and {decimal_bytes(wanted.dataset_bytes)} of data" if wanted.dataset_bytes else ""),
        ),
    ]
    return Page(
        f"storage for training {big(wanted.parameters)} parameters, {wanted.precision}, {wanted.optimizer}",
        lines,
        {"plan": asdict(wanted), "need": asdict(need)},
        notes=(
            "a checkpoint holds fp32 weights, optimizer moments and the weights as trained; in background a copy in "
            "host memory is written while the run goes on",
        ),
    )
