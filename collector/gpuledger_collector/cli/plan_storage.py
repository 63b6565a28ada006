"""gpuledger plan storage: how fast samples must come, how large checkpoints are and how fast they
must be written.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from typer import Option

from gpuledger_collector.cli import options
from gpuledger_collector.cli.common import duration_ms, new_app, refuse
from gpuledger_collector.cli.plan_forms import (
    Page,
    big,
    count,
    decimal_bytes,
    percent,
    print_page,
    size_bytes,
    span,
)
from gpuledger_collector.cli.plan_model import (
    MAX_SIZE,
    Active,
    GpuName,
    Gpus,
    KnownAs,
    Mfu,
    Optimizer,
    Parameters,
    Precision,
    Sequence,
    find_model,
    mfu_range,
    or_refuse,
)
from gpuledger_collector.insight.plans.hardware import gpu_named
from gpuledger_collector.insight.plans.storage import Storage, StorageNeed, storage_need
from gpuledger_collector.insight.plans.training import TrainingRun

app = new_app()


@app.command(
    epilog=(
        "Example: gpuledger plan storage --parameters 70e9 --gpus 512 --sample-size 16KiB --every"
        " 30m --stall 0.01"
    )
)
def storage(
    parameters: Parameters = None,
    known_as: KnownAs = None,
    active: Active = None,
    samples: Annotated[
        str | None,
        Option(
            "--samples", metavar="N", help="Samples a second of the whole job; else from the MFU."
        ),
    ] = None,
    sample_size: Annotated[
        str, Option("--sample-size", metavar="SIZE", help="Bytes of a sample.")
    ] = "16KiB",
    gpu_model: GpuName = "H100",
    gpus: Gpus = 1,
    sequence: Sequence = 4096,
    mfu: Mfu = "0.3-0.5",
    precision: Precision = "bf16",
    optimizer: Optimizer = "adam",
    every: Annotated[
        str, Option("--every", metavar="SPAN", help="Work between checkpoints.")
    ] = "30m",
    stall: Annotated[
        float, Option("--stall", help="Share of the time that checkpoints may take.")
    ] = 0.01,
    keep: Annotated[int, Option("--keep", min=1, max=MAX_SIZE, help="Checkpoints to keep.")] = 3,
    dataset: Annotated[
        str | None, Option("--dataset", metavar="SIZE", help="Bytes of the data set.")
    ] = None,
    form: options.PageForm = options.PageFormat.table,
) -> None:
    """Storage throughput and capacity: samples a second, checkpoints within a stall budget.

    Without --samples they follow from the job, one sample a sequence, at the high end of its MFU.
    """
    model, total = find_model(parameters, known_as)
    if samples is not None:
        rate, source = count(samples, "--samples"), "as given"
    else:
        gpu = or_refuse(lambda: gpu_named(gpu_model))
        working = total if active is None else count(active, "--active-parameters")
        shares = mfu_range(mfu)
        run = or_refuse(
            lambda: TrainingRun(model, working, 1.0, gpu, gpus, precision, sequence, shares)
        )
        rate = run.tokens_per_second(shares[-1]) / sequence
        source = f"{gpus:,} x {gpu.name} at MFU {shares[-1]:g}, sequences of {sequence} tokens"
    if not 0 < stall < 1:
        refuse(f"--stall: {stall:g} is not a share between 0 and 1")
    dataset_bytes = 0.0 if dataset is None else size_bytes(dataset, "--dataset")
    sample_bytes, every_s = (
        size_bytes(sample_size, "--sample-size"),
        duration_ms(every, "--every") / 1000,
    )
    plan = or_refuse(
        lambda: Storage(
            total, rate, sample_bytes, every_s, stall, keep, precision, optimizer, dataset_bytes
        )
    )
    print_page(_page(plan, storage_need(plan), source), form)


def _page(plan: Storage, need: StorageNeed, source: str) -> Page:
    data = f", and {decimal_bytes(plan.dataset_bytes)} of data" if plan.dataset_bytes else ""
    pause = (
        f"{span(need.stall_seconds)} every {span(plan.interval_seconds)} of work"
        f" ({percent(plan.stall)})"
    )
    lines = [
        ("samples", f"{plan.samples_per_second:,.4g} a second ({source})"),
        ("read", f"{decimal_bytes(need.read_bytes_per_second)}/s"),
        (
            "checkpoint",
            (
                f"{decimal_bytes(need.checkpoint_bytes)}, weights"
                f" {decimal_bytes(need.weights_bytes)} of it"
            ),
        ),
        ("may stop the run", pause),
        ("write, run waits", f"{decimal_bytes(need.write_bytes_per_second)}/s"),
        ("write, background", f"{decimal_bytes(need.background_bytes_per_second)}/s"),
        (
            "capacity",
            (
                f"{decimal_bytes(need.capacity_bytes)} for {plan.kept} checkpoints, one being"
                f" written{data}"
            ),
        ),
    ]
    note = (
        "a checkpoint holds fp32 weights, optimizer moments and the weights as trained; in"
        " background a copy in host memory is written while the run continues"
    )
    title = (
        f"storage for training {big(plan.parameters)} parameters, {plan.precision},"
        f" {plan.optimizer}"
    )
    return Page(title, lines, {"plan": asdict(plan), "need": asdict(need)}, notes=(note,))
