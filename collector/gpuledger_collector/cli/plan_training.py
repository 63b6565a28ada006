"""gpuledger plan training: days and money of a run, with its failures, and the budget that it makes."""

from __future__ import annotations

import datetime as dt
from dataclasses import asdict
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuledger_collector.cli.common import Config, Dsn, database, refuse
from gpuledger_collector.cli.plan_forms import Page, Shape, big, count, emit, percent, span
from gpuledger_collector.cli.plan_model import (
    Active,
    Form,
    GpuName,
    Gpus,
    Known,
    Mfu,
    Parameters,
    Precision,
    Sequence,
    asked,
    mfu_range,
    shape_note,
    shape_of,
)

if TYPE_CHECKING:
    from gpuledger_collector.insight.plans.training import FailureOverhead, TrainingEstimate, TrainingRun
    from gpuledger_collector.insight.rates import GpuHourRate
    from gpuledger_collector.storage.ledger.past_runs import PastRun

MOST_RATE = 10**6
LOOK_BACK_DAYS = 90
MOST_PAST = 5
NEAR = 4
"""A past run is similar when it had at most this many times more or fewer GPUs of the same model."""
EXAMPLE = (
    "Example: gpuledger plan training --architecture llama-2-70b --tokens 2T --gpu-model H100 --gpus 1024 --rate 2.49"
)


def add_to(group: typer.Typer) -> None:
    """Add `gpuledger plan training`."""
    group.command(epilog=EXAMPLE)(training)


def training(
    tokens: Annotated[str, typer.Option("--tokens", metavar="N", help="Tokens to train on: 1.4e12, 2T.")],
    parameters: Parameters = None,
    known_as: Known = None,
    active: Active = None,
    gpu_model: GpuName = "H100",
    gpus: Gpus = 1,
    precision: Precision = "bf16",
    sequence: Sequence = 4096,
    mfu: Mfu = "0.3-0.5",
    rate: Annotated[str | None, typer.Option("--rate", help="Money per GPU-hour.")] = None,
    currency: Annotated[str, typer.Option("--currency", help="ISO 4217 code of --rate.")] = "USD",
    price_book: Annotated[bool, typer.Option("--price-book", help="The rate of the ledger's price book now.")] = False,
    pool: Annotated[str, typer.Option("--pool", help="Pool whose rate is taken from the price book.")] = "",
    from_ledger: Annotated[
        bool, typer.Option("--from-ledger", help="Show what the ledger measured of similar runs.")
    ] = False,
    mtbf: Annotated[
        str | None, typer.Option("--mtbf", metavar="HOURS", help="Hours between failures of one GPU; else 50677.")
    ] = None,
    checkpoint: Annotated[str, typer.Option("--checkpoint", metavar="SPAN", help="What one stops the run.")] = "60s",
    every: Annotated[
        str | None, typer.Option("--every", metavar="SPAN", help="Between checkpoints; else Daly's best.")
    ] = None,
    restart: Annotated[str, typer.Option("--restart", metavar="SPAN", help="From a failure to work again.")] = "10m",
    save_budget: Annotated[
        str | None, typer.Option("--save-budget", metavar="NAME", help="Make the expected cost a budget.")
    ] = None,
    owner: Annotated[
        str | None, typer.Option("--owner", metavar="LEVEL=NAME", help="Whose budget: team=vision,run=v7.")
    ] = None,
    start: Annotated[
        str | None, typer.Option("--from", metavar="DATE", help="First day of the budget; else today.")
    ] = None,
    shape: Form = Shape.table,
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """Days and money from tokens, parameters and MFU, as a range, with checkpoints and failures."""
    from gpuledger_collector.insight.plans import hardware
    from gpuledger_collector.insight.plans import training as plans

    model, number = shape_of(parameters, known_as)
    taking_part = number if active is None else count(active, "--active-parameters")
    card = asked(lambda: hardware.gpu_named(gpu_model))
    wanted = count(tokens, "--tokens")
    run = asked(lambda: plans.TrainingRun(model, taking_part, wanted, card, gpus, precision, sequence, mfu_range(mfu)))
    around = asked(lambda: plans.overhead(_failures(mtbf, checkpoint, every, restart), gpus))
    if rate is not None and price_book:
        refuse("--rate and --price-book: say only one of them")
    priced = _given_rate(rate, currency) if rate is not None else None
    if price_book:
        priced = _book_rate(card.name, pool, dsn, config)
    found = plans.outcomes(run, around, priced)
    if save_budget is None and (owner is not None or start is not None):
        refuse("--owner and --from belong to a budget: say --save-budget NAME too")
    notes = _notes(run, around, priced, number)
    if save_budget is not None:
        notes.append(_save(save_budget, owner, start, found[1], priced, dsn, config))
    past: list[PastRun] = []
    if from_ledger:
        past, said = _similar(card.name, gpus, dsn, config)
        notes.append(said)
    emit(_page(run, around, priced, found, notes, past if from_ledger else None), shape)


def _failures(mtbf: str | None, checkpoint: str, every: str | None, restart: str) -> Any:
    from gpuledger_collector.cli.series_files import duration_ms
    from gpuledger_collector.insight.plans.training import GPU_MTBF_HOURS, Failures

    return Failures(
        GPU_MTBF_HOURS if mtbf is None else count(mtbf, "--mtbf"),
        duration_ms(checkpoint, "--checkpoint") / 1000,
        duration_ms(restart, "--restart") / 1000,
        None if every is None else duration_ms(every, "--every") / 1000,
    )


def _given_rate(text: str, currency: str) -> GpuHourRate:
    from gpuledger_collector.accounting.currencies import currency_problem
    from gpuledger_collector.insight.rates import GpuHourRate

    try:
        per_hour = Decimal(text)
    except InvalidOperation:
        per_hour = Decimal("NaN")
    if not per_hour.is_finite() or not 0 <= per_hour <= MOST_RATE:
        refuse(f"--rate: {text!r} is not money per GPU-hour, such as 2.49")
    problem = currency_problem(currency)
    if problem is not None:
        refuse(f"--currency: {problem}")
    return GpuHourRate(per_hour, currency)


def _book_rate(card: str, pool: str, dsn: str | None, config: Any) -> GpuHourRate:
    """The rate in force now for this card, by its short name or by a longer one that the book has."""
    from gpuledger_collector.accounting.pricing import PriceBook, model_match
    from gpuledger_collector.insight.rates import GpuHourRate

    with database(dsn, config) as opened:
        from gpuledger_collector.storage.billing import prices
        from gpuledger_collector.wiring import now

        with opened.transaction() as connection:
            book = PriceBook(prices.current(connection))
    at_ms = int(now().timestamp() * 1000)
    longer = sorted({price.gpu_model for price in book.prices if model_match(card, price.gpu_model) > 0})
    found = (book.price_at(pool, name, "", "", at_ms) for name in (*longer, card))
    price = next((one for one in found if one is not None), None)
    if price is None:
        place = f"in pool {pool!r}" if pool else "outside pools (say --pool)"
        refuse(
            f"the price book has no rate in force for {card} {place}; `gpuledger prices list` shows it, or say --rate"
        )
    return GpuHourRate(price.rate, price.currency)


def _notes(run: TrainingRun, around: FailureOverhead, priced: GpuHourRate | None, held: float) -> list[str]:
    from gpuledger_collector.insight.plans.training import TOKENS_PER_PARAMETER

    notes = shape_note(run.architecture)
    notes.append(
        "sources: 6N + 12Lhs operations a token (Hoffmann et al. 2022, Chowdhery et al. 2022); "
        f"{run.card.source}; failures by Daly 2006"
    )
    ratio = run.tokens / held
    notes.append(
        f"{ratio:.3g} tokens a parameter; compute-optimal is about {TOKENS_PER_PARAMETER} (Hoffmann et al. 2022)"
    )
    if priced is None:
        notes.append("no money: say --rate 2.49, or --price-book for the ledger's own")
    notes += _fit_note(run, held)
    if around.checkpoint_share > 0.05:
        notes.append(f"checkpoints stop the run for {percent(around.checkpoint_share)} of its time: write them faster")
    return notes


def _fit_note(run: TrainingRun, held: float) -> list[str]:
    """A warning when not even the thriftiest layout fits on so many GPUs."""
    from gpuledger_collector.insight.plans import memory

    thrifty = memory.TrainingSetup(
        run.architecture, held, run.precision, zero=3, sequence=run.sequence, recompute=memory.FULL
    )
    fewest = memory.training_fit(thrifty, run.card).fewest_gpus
    if fewest is not None and fewest <= run.gpus:
        return []
    needed = "no number of them is enough without pipeline stages" if fewest is None else f"it takes {fewest:,}"
    return [f"does not fit on {run.gpus:,} x {run.card.name}, even with ZeRO 3 and full recomputation: {needed}"]


def _similar(card: str, gpus: int, dsn: str | None, config: Any) -> tuple[list[PastRun], str]:
    """Past runs of the last weeks on this card with about as many GPUs, and what must be said of them."""
    from gpuledger_collector.accounting.period import DAY_MS, Period

    with database(dsn, config) as opened:
        from gpuledger_collector.storage.ledger import past_runs
        from gpuledger_collector.wiring import now

        today = int(now().timestamp() * 1000) // DAY_MS * DAY_MS
        period = Period(today - LOOK_BACK_DAYS * DAY_MS, today + DAY_MS)
        with opened.transaction() as connection:
            models = past_runs.models_like(connection, card, period)
            near = (max(1, -(-gpus // NEAR)), gpus * NEAR)
            found = past_runs.similar(connection, models, near, period, MOST_PAST)
    if not found:
        return [], (f"the ledger has no run of {near[0]} to {near[1]} {card} charged in the last {LOOK_BACK_DAYS} days")
    return found, (
        "tensor activity is the share of time that tensor cores worked, recomputation too: a proxy for MFU; means over "
        "the last day of each run, in hours held alone; - is not measured"
    )


def _past_rows(past: list[PastRun]) -> list[tuple[str, ...]]:
    def share(value: float | None) -> str:
        return "-" if value is None else percent(value)

    header = ("similar past run", "GPU model", "GPUs", "GPU-hours", "SM active", "tensor active", "cost")
    return [
        header,
        *(
            (
                f"{one.kind} {one.name or one.external_id}",
                one.gpu_model,
                str(one.accelerators),
                f"{one.gpu_ns / 3.6e12:,.1f}",
                share(one.sm_active_ratio),
                share(one.tensor_active_ratio),
                _past_cost(one),
            )
            for one in past
        ),
    ]


def _past_cost(one: PastRun) -> str:
    from gpuledger_collector.accounting.money import format_minor, minor_digits, to_minor_units

    if one.cost_micro is None or one.currency is None:
        return "-"
    digits = minor_digits(one.currency)
    return f"{format_minor(to_minor_units([one.cost_micro], digits)[0], digits)} {one.currency}"


def _page(
    run: TrainingRun,
    around: FailureOverhead,
    priced: GpuHourRate | None,
    found: tuple[TrainingEstimate, TrainingEstimate, TrainingEstimate],
    notes: list[str],
    past: list[PastRun] | None,
) -> Page:
    unit = "" if priced is None else f" ({priced.currency})"
    rows = [
        (
            f"{one.mfu:.2f}",
            f"{one.wall_seconds / 86400:,.1f}",
            f"{one.gpu_hours:,.0f}",
            f"{one.failures:,.1f}",
            f"{one.tokens_per_second:,.0f}",
            "-" if one.cost is None else f"{one.cost:,f}",
        )
        for one in found
    ]
    lines = [
        ("operations", f"{run.flops:.3g} ({run.flops_per_token:.3g} a token)"),
        ("peak of a GPU", f"{run.card.peak(run.precision) / 1e12:,.4g} Tflop/s dense {run.precision}"),
        ("job fails every", span(around.mtbf_seconds)),
        ("checkpoint every", span(around.interval_seconds)),
        ("lost to both", percent(around.lost_share)),
    ]
    title = (
        f"training {big(run.parameters)} parameters on {big(run.tokens)} tokens with {run.gpus:,} x {run.card.name}, "
        f"{run.precision}, sequences of {run.sequence}"
    )
    record: dict[str, Any] = {
        "plan": {**asdict(run), "flops": run.flops, "flops_per_token": run.flops_per_token},
        "overhead": {**asdict(around), "lost_share": around.lost_share},
        "rate": None if priced is None else {"per_gpu_hour": str(priced.per_gpu_hour), "currency": priced.currency},
        "outcomes": [{**asdict(one), "cost": None if one.cost is None else str(one.cost)} for one in found],
    }
    if past is not None:
        record["past_runs"] = [asdict(one) for one in past]
    header = ("MFU", "days", "GPU-hours", "failures", "tokens/s", f"cost{unit}")
    return Page(title, lines, record, header, rows, notes, _past_rows(past) if past else ())


def _save(
    name: str,
    owner: str | None,
    start: str | None,
    expected: TrainingEstimate,
    priced: GpuHourRate | None,
    dsn: str | None,
    config: Any,
) -> str:
    """Add the budget to those in force, as `apply` does, and say so; a budget of that name becomes this one."""
    from gpuledger_collector.config.budgets import DeclaredBudget
    from gpuledger_collector.config.model import Record

    if priced is None or expected.cost is None:
        refuse("--save-budget: there is no money without --rate or --price-book")
    from gpuledger_collector.wiring import now

    first = _first_day(start, now().date())
    try:
        last = first + dt.timedelta(seconds=expected.wall_seconds) + dt.timedelta(days=1)
    except OverflowError:
        refuse("--save-budget: the run would end beyond the calendar")
    cells = {
        "name": name,
        **_levels(owner),
        "period": "range",
        "from": first.isoformat(),
        "to": last.isoformat(),
        "amount": f"{expected.cost:f}",
        "currency": priced.currency,
    }
    problems: list[Any] = []
    made = DeclaredBudget.collect([Record("plan training", 1, cells)], problems)
    if problems:
        refuse("--save-budget: " + "; ".join(f"{one.source.rsplit(':', 1)[-1]} {one.message}" for one in problems))
    with database(dsn, config) as opened:
        from psycopg import IsolationLevel

        from gpuledger_collector.storage.billing import budgets

        with opened.transaction() as connection:
            connection.isolation_level = IsolationLevel.REPEATABLE_READ  # what is kept is what is replaced
            others = [one for one in budgets.current(connection) if one.name != name]
            outcome = budgets.replace(connection, [*others, *made], now())
    said = "saved" if outcome.added else "replaced the one before" if outcome.updated else "is the same as before"
    return (
        f"budget {name!r} {said}: {expected.cost:,f} {priced.currency} for {made[0].owner_label} {first} to {last}; "
        "a file that declares [[budget]] tables replaces all budgets, so put it there too"
    )


def _first_day(text: str | None, today: dt.date) -> dt.date:
    if text is None:
        return today
    try:
        return dt.date.fromisoformat(text)
    except ValueError:
        refuse(f"--from: {text!r} is no date such as 2026-12-01")


def _levels(owner: str | None) -> dict[str, str]:
    from gpuledger_collector.accounting.owner_tree import LEVELS
    from gpuledger_collector.accounting.reserved_names import is_reserved, reserved_message

    if owner is None:
        refuse("--save-budget: say whose it is, for example --owner team=vision")
    levels: dict[str, str] = {}
    for part in owner.split(","):
        level, separator, value = part.strip().partition("=")
        if not separator or level not in LEVELS or not value.strip():
            refuse(f"--owner: {part.strip()!r} is not LEVEL=NAME with one of {', '.join(LEVELS)}")
        if is_reserved(value):
            refuse(f"--owner: {reserved_message(value)}")
        levels[level] = value.strip()
    return levels
