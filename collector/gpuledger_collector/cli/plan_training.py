"""gpuledger plan training: days and money of a run, with its failures, and the budget that it
makes.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import asdict
from typing import Annotated, Any

from typer import Option

from gpuledger_collector import wiring
from gpuledger_collector.accounting.currencies import currency_problem
from gpuledger_collector.accounting.problems import Problem
from gpuledger_collector.accounting.quantity import GPU_NS_PER_HOUR
from gpuledger_collector.cli import options
from gpuledger_collector.cli.common import declared_owner, duration_ms, new_app, refuse
from gpuledger_collector.cli.plan_forms import (
    Page,
    big,
    count,
    hourly_rate,
    percent,
    print_page,
    span,
)
from gpuledger_collector.cli.plan_model import (
    Active,
    GpuName,
    Gpus,
    KnownAs,
    Mfu,
    Parameters,
    Precision,
    Sequence,
    assumption_notes,
    find_model,
    mfu_range,
    or_refuse,
)
from gpuledger_collector.cli.session import Session, ledger_command
from gpuledger_collector.config.budgets import DeclaredBudget
from gpuledger_collector.config.model import Record
from gpuledger_collector.export.cells import minor_amount
from gpuledger_collector.insight.past_runs import LOOK_BACK_DAYS, PastRun
from gpuledger_collector.insight.plans.hardware import gpu_named
from gpuledger_collector.insight.plans.memory import FULL, TrainingSetup, training_fit
from gpuledger_collector.insight.plans.training import (
    GPU_MTBF_HOURS,
    TOKENS_PER_PARAMETER,
    FailureOverhead,
    Failures,
    TrainingEstimate,
    TrainingRun,
    outcomes,
    overhead,
)
from gpuledger_collector.insight.rates import GpuHourRate
from gpuledger_collector.services.training_plan import find_rate, find_similar_runs, save_budget
from gpuledger_common.instants import to_datetime

app = new_app()
MAX_CHECKPOINT_SHARE = 0.05
Estimates = tuple[TrainingEstimate, TrainingEstimate, TrainingEstimate]
RateText = Annotated[str | None, Option("--rate", help="Money per GPU-hour.")]
Currency = Annotated[str, Option("--currency", help="ISO 4217 code of --rate.")]
FromPriceBook = Annotated[
    bool, Option("--price-book", help="The rate of the ledger's price book now.")
]
Pool = Annotated[str, Option("--pool", help="Pool whose rate is taken from the price book.")]
FromLedger = Annotated[
    bool, Option("--from-ledger", help="Show what the ledger measured of similar runs.")
]
Mtbf = Annotated[
    str | None,
    Option("--mtbf", metavar="HOURS", help="Hours between failures of one GPU; else 50677."),
]
Checkpoint = Annotated[
    str, Option("--checkpoint", metavar="SPAN", help="How long one stops the run.")
]
Every = Annotated[
    str | None, Option("--every", metavar="SPAN", help="Between checkpoints; else Daly's best.")
]
Restart = Annotated[str, Option("--restart", metavar="SPAN", help="From a failure to work again.")]
BudgetName = Annotated[
    str | None, Option("--save-budget", metavar="NAME", help="Make the expected cost a budget.")
]
Owner = Annotated[
    str | None, Option("--owner", metavar="LEVEL=NAME", help="Whose budget: team=vision,run=v7.")
]
Start = Annotated[
    str | None, Option("--from", metavar="DATE", help="First day of the budget; else today.")
]


@app.command(
    epilog=(
        "Example: gpuledger plan training --architecture llama-2-70b --tokens 2T --gpu-model H100"
        " --gpus 1024 --rate 2.49"
    )
)
@ledger_command
def training(
    session: Session,
    tokens: Annotated[str, Option("--tokens", metavar="N", help="Tokens to train on: 1.4e12, 2T.")],
    parameters: Parameters = None,
    known_as: KnownAs = None,
    active: Active = None,
    gpu_model: GpuName = "H100",
    gpus: Gpus = 1,
    precision: Precision = "bf16",
    sequence: Sequence = 4096,
    mfu: Mfu = "0.3-0.5",
    rate: RateText = None,
    currency: Currency = "USD",
    price_book: FromPriceBook = False,
    pool: Pool = "",
    from_ledger: FromLedger = False,
    mtbf: Mtbf = None,
    checkpoint: Checkpoint = "60s",
    every: Every = None,
    restart: Restart = "10m",
    budget: BudgetName = None,
    owner: Owner = None,
    start: Start = None,
    form: options.PageForm = options.PageFormat.table,
) -> None:
    """Days and money from tokens, parameters and MFU, as a range, with checkpoints and failures."""
    model, total = find_model(parameters, known_as)
    working = total if active is None else count(active, "--active-parameters")
    gpu = or_refuse(lambda: gpu_named(gpu_model))
    token_count, shares = count(tokens, "--tokens"), mfu_range(mfu)
    run = or_refuse(
        lambda: TrainingRun(model, working, token_count, gpu, gpus, precision, sequence, shares)
    )
    lost = or_refuse(lambda: overhead(_failures(mtbf, checkpoint, every, restart), gpus))
    if rate is not None and price_book:
        refuse("--rate and --price-book: give one of them")
    hour_rate = _given_rate(rate, currency) if rate is not None else None
    if price_book:
        hour_rate = _book_rate(session, gpu.name, pool)
    estimates = outcomes(run, lost, hour_rate)
    if budget is None and (owner is not None or start is not None):
        refuse("--owner and --from belong to a budget: give --save-budget NAME too")
    notes = _notes(run, lost, hour_rate, total)
    if budget is not None:
        notes.append(_save_budget(session, budget, owner, start, estimates[1], hour_rate))
    past: list[PastRun] | None = None
    if from_ledger:
        past, note = _similar_runs(session, gpu.name, gpus)
        notes.append(note)
    print_page(_page(run, lost, hour_rate, estimates, notes, past), form)


def _failures(mtbf: str | None, checkpoint: str, every: str | None, restart: str) -> Failures:
    return Failures(
        GPU_MTBF_HOURS if mtbf is None else count(mtbf, "--mtbf"),
        duration_ms(checkpoint, "--checkpoint") / 1000,
        duration_ms(restart, "--restart") / 1000,
        None if every is None else duration_ms(every, "--every") / 1000,
    )


def _given_rate(text: str, currency: str) -> GpuHourRate:
    per_hour = hourly_rate(text, "--rate")
    problem = currency_problem(currency)
    if problem is not None:
        refuse(f"--currency: {problem}")
    return GpuHourRate(per_hour, currency)


def _book_rate(session: Session, gpu: str, pool: str) -> GpuHourRate:
    """The rate in force now for this GPU model."""
    rate = find_rate(session.database, gpu, pool, session.now_ms)
    if rate is None:
        place = f"in pool {pool!r}" if pool else "outside pools (give --pool)"
        refuse(
            f"the price book has no rate in force for {gpu} {place}; see `gpuledger prices list`,"
            " or give --rate"
        )
    return rate


def _notes(
    run: TrainingRun, lost: FailureOverhead, rate: GpuHourRate | None, parameters: float
) -> list[str]:
    ratio = run.tokens / parameters
    notes = [
        *assumption_notes(run.architecture),
        (
            "sources: 6N + 12Lhs operations a token (Hoffmann et al. 2022, Chowdhery et al. 2022); "
            f"{run.card.source}; failures by Daly 2006"
        ),
        (
            f"{ratio:.3g} tokens a parameter; compute-optimal is about {TOKENS_PER_PARAMETER}"
            " (Hoffmann et al. 2022)"
        ),
    ]
    if rate is None:
        notes.append("no money: give --rate 2.49, or --price-book for the ledger's own")
    notes += _fit_note(run, parameters)
    if lost.checkpoint_share > MAX_CHECKPOINT_SHARE:
        notes.append(
            f"checkpoints stop the run for {percent(lost.checkpoint_share)} of its time: write them"
            " faster"
        )
    return notes


def _fit_note(run: TrainingRun, parameters: float) -> list[str]:
    """A warning when not even the layout with the least memory fits on so many GPUs."""
    smallest = TrainingSetup(
        run.architecture, parameters, run.precision, zero=3, sequence=run.sequence, recompute=FULL
    )
    fewest = training_fit(smallest, run.card).fewest_gpus
    if fewest is not None and fewest <= run.gpus:
        return []
    needed = (
        "no number of them is enough without pipeline stages"
        if fewest is None
        else f"it takes {fewest:,}"
    )
    return [
        f"does not fit on {run.gpus:,} x {run.card.name}, even with ZeRO 3 and full recomputation:"
        f" {needed}"
    ]


def _similar_runs(session: Session, gpu: str, gpus: int) -> tuple[list[PastRun], str]:
    """Past runs of the last weeks on this GPU model with about as many GPUs, and a note about them."""
    similar = find_similar_runs(session.database, gpu, gpus, session.now_ms)
    if not similar.runs:
        sizes = f"{similar.fewest} to {similar.most} {gpu}"
        return [], f"the ledger has no run of {sizes} charged in the last {LOOK_BACK_DAYS} days"
    return (
        list(similar.runs),
        (
            "tensor activity is the share of time that tensor cores worked, recomputation too: a"
            " proxy for MFU; means over the last day of each run, in hours held alone; - is not"
            " measured"
        ),
    )


def _past_rows(runs: list[PastRun]) -> list[tuple[str, ...]]:
    def share(value: float | None) -> str:
        return "-" if value is None else percent(value)

    header = (
        "similar past run",
        "GPU model",
        "GPUs",
        "GPU-hours",
        "SM active",
        "tensor active",
        "cost",
    )
    rows = [
        (
            f"{run.kind} {run.name or run.external_id}",
            run.gpu_model,
            str(run.accelerators),
            f"{run.gpu_ns / GPU_NS_PER_HOUR:,.1f}",
            share(run.sm_active_ratio),
            share(run.tensor_active_ratio),
            (
                f"{minor_amount(run.cost_micro, run.currency)} {run.currency}"
                if run.cost_micro is not None
                else "-"
            ),
        )
        for run in runs
    ]
    return [header, *rows]


def _page(
    run: TrainingRun,
    lost: FailureOverhead,
    rate: GpuHourRate | None,
    estimates: Estimates,
    notes: list[str],
    past: list[PastRun] | None,
) -> Page:
    """The plan; `past` is None where the ledger was not asked."""
    rows = [
        (
            f"{estimate.mfu:.2f}",
            f"{estimate.wall_seconds / 86400:,.1f}",
            f"{estimate.gpu_hours:,.0f}",
            f"{estimate.failures:,.1f}",
            f"{estimate.tokens_per_second:,.0f}",
            "-" if estimate.cost is None else f"{estimate.cost:,f}",
        )
        for estimate in estimates
    ]
    lines = [
        ("operations", f"{run.flops:.3g} ({run.flops_per_token:.3g} a token)"),
        (
            "peak of a GPU",
            f"{run.card.peak(run.precision) / 1e12:,.4g} Tflop/s dense {run.precision}",
        ),
        ("job fails every", span(lost.mtbf_seconds)),
        ("checkpoint every", span(lost.interval_seconds)),
        ("lost to both", percent(lost.lost_share)),
    ]
    title = (
        f"training {big(run.parameters)} parameters on {big(run.tokens)} tokens with {run.gpus:,} x"
        f" {run.card.name}, {run.precision}, sequences of {run.sequence}"
    )
    record: dict[str, Any] = {
        "plan": {**asdict(run), "flops": run.flops, "flops_per_token": run.flops_per_token},
        "overhead": {**asdict(lost), "lost_share": lost.lost_share},
        "rate": (
            None
            if rate is None
            else {"per_gpu_hour": str(rate.per_gpu_hour), "currency": rate.currency}
        ),
        "outcomes": [
            {**asdict(estimate), "cost": None if estimate.cost is None else str(estimate.cost)}
            for estimate in estimates
        ],
    }
    if past is not None:
        record["past_runs"] = [asdict(entry) for entry in past]
    unit = "" if rate is None else f" ({rate.currency})"
    header = ("MFU", "days", "GPU-hours", "failures", "tokens/s", f"cost{unit}")
    return Page(title, lines, record, header, rows, notes, [_past_rows(past)] if past else ())


def _save_budget(
    session: Session,
    name: str,
    owner: str | None,
    start: str | None,
    expected: TrainingEstimate,
    rate: GpuHourRate | None,
) -> str:
    """Add the budget to those in force, or replace the one of that name, and say so."""
    if rate is None or expected.cost is None:
        refuse("--save-budget: there is no money without --rate or --price-book")
    if owner is None:
        refuse("--save-budget: say whose it is, for example --owner team=vision")
    first = _first_day(start, to_datetime(wiring.read_clock()).date())
    try:
        last = first + dt.timedelta(seconds=expected.wall_seconds) + dt.timedelta(days=1)
    except OverflowError:
        refuse("--save-budget: the run would end beyond the calendar")
    cells = {
        "name": name,
        **declared_owner([part.strip() for part in owner.split(",")]),
        "period": "range",
        "from": first.isoformat(),
        "to": last.isoformat(),
        "amount": f"{expected.cost:f}",
        "currency": rate.currency,
    }
    problems: list[Problem] = []
    added = DeclaredBudget.collect([Record("plan training", 1, cells)], problems)
    if problems:
        texts = [f"{problem.source.rsplit(':', 1)[-1]} {problem.message}" for problem in problems]
        refuse("--save-budget: " + "; ".join(texts))
    outcome = save_budget(session.database, added[0], wiring.read_clock())
    verdict = (
        "saved"
        if outcome.added
        else "replaced the one before"
        if outcome.updated
        else "is the same as before"
    )
    return (
        f"budget {name!r} {verdict}: {expected.cost:,f} {rate.currency} for {added[0].owner_label}"
        f" {first} to {last}; a file that declares [[budget]] tables replaces all budgets, so put"
        " it there too"
    )


def _first_day(text: str | None, today: dt.date) -> dt.date:
    if text is None:
        return today
    try:
        return dt.date.fromisoformat(text)
    except ValueError:
        refuse(f"--from: {text!r} is not a date such as 2026-12-01")
