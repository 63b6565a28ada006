"""gpuledger prices: the price book."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from gpuledger_collector import wiring
from gpuledger_collector.accounting.commitments import Commitment
from gpuledger_collector.accounting.money import MICRO_DIGITS, Money
from gpuledger_collector.accounting.owned_hardware import PARTS
from gpuledger_collector.accounting.period import HOUR_MS, format_instant
from gpuledger_collector.accounting.pricing import Price, PurchaseChoice
from gpuledger_collector.accounting.problems import CurrencyChanged, Problem
from gpuledger_collector.cli import options
from gpuledger_collector.cli.apply import days_note, no_pool_in, warn_of_regions
from gpuledger_collector.cli.common import dry_run_note, new_app, refuse
from gpuledger_collector.cli.output import Column, Row, emit, number
from gpuledger_collector.cli.session import open_session
from gpuledger_collector.config.model import Record
from gpuledger_collector.config.prices import DeclaredPrice
from gpuledger_collector.storage.billing import commitments, locations, prices
from gpuledger_common.plurals import plural

app = new_app(
    name="prices", help="The price book: dated rates, versions never edited.", no_args_is_help=True
)
COLUMNS = (
    Column("pool"),
    Column("gpu_model"),
    Column("purchase", is_optional=True),
    number("rate_per_gpu_hour"),
    Column("currency"),
    Column("effective_from"),
    Column("effective_to", is_optional=True),
    number("list_rate", is_optional=True),
    Column("region", is_optional=True),
    Column("node", is_optional=True),
)
NAMES = tuple(column.name for column in COLUMNS)


@app.command("list", epilog="Example: gpuledger prices list --format csv > prices.csv")
def list_prices(
    form: options.Form = options.Format.table,
    explain: Annotated[
        bool,
        Option(
            "--explain", help="Say how derived rates were made, and list commitments and choices."
        ),
    ] = False,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """List the rates in force; csv can be imported again.

    With --explain: their derivation, and what is committed.
    """
    if explain and form is not options.Format.table:
        refuse("--explain goes with the table: csv and json hold what can be imported again")
    with open_session(dsn, config) as session, session.database.transaction() as connection:
        book = prices.current(connection)
        committed, choices = (
            commitments.COMMITMENTS.in_force(connection),
            commitments.CHOICES.in_force(connection),
        )
        unknown = locations.unknown_regions(connection)
    footer = [
        f"{plural(len(book), 'rate')}; an empty pool, model, region or node matches any",
        *map(no_pool_in, unknown),
    ]
    if explain:
        footer += [
            *_derivations(book),
            *map(_commitment_line, committed),
            *map(_choice_line, choices),
        ]
    emit(form, COLUMNS, [to_row(price) for price in book], footer)


def to_row(price: Price) -> Row:
    """A rate by COLUMNS."""
    return {
        **{
            name: getattr(price, name)
            for name in ("pool", "gpu_model", "purchase", "currency", "region", "node")
        },
        "rate_per_gpu_hour": _trimmed(str(price.rate)),
        "effective_from": format_instant(price.effective_from_ms),
        "effective_to": (
            "" if price.effective_to_ms is None else format_instant(price.effective_to_ms)
        ),
        "list_rate": "" if price.list_rate is None else _trimmed(str(price.list_rate)),
    }


def _derivations(book: list[Price]) -> list[str]:
    """How each derived rate was made: its parts, which add up to it, and the figures that they
    follow from.
    """
    lines = []
    for price in book:
        if price.basis is None:
            continue
        facts: dict[str, str] = price.basis["from"]  # type: ignore[assignment]
        parts: dict[str, str] = price.basis["parts"]  # type: ignore[assignment]
        total = " + ".join(
            f"{name} {_trimmed(part)}" for name in PARTS if (part := parts.get(name))
        )
        unit = f"{plural(facts['gpus'], 'GPU')} of a node" if facts["per"] == "node" else "a GPU"
        energy = (
            "energy is measured, and not part of it"
            if facts["energy"] == "measured"
            else f"{facts['watts']} W x PUE {facts['pue']} at {facts['price_per_kwh']} per kWh"
        )
        rate, starts = (
            f"{_trimmed(str(price.rate))} {price.currency}",
            format_instant(price.effective_from_ms),
        )
        lines.append(f"{price.basis['name']}: {rate} per GPU-hour from {starts} = {total}")
        lines.append(
            f"  for {unit}: {facts['capex']} paid, {facts['salvage']} salvage,"
            f" {plural(facts['months'], 'month')} = {facts['hours']} hours from"
            f" {facts['in_service']} to {facts['written_off']}; opex {facts['opex_per_month']} a"
            f" month; {energy}"
        )
    return lines


def _commitment_line(commitment: Commitment) -> str:
    hours = (commitment.ends_ms - commitment.starts_ms) // HOUR_MS
    names = (commitment.pool, commitment.gpu_model, commitment.node, commitment.region)
    place = " ".join(filter(None, names)) or "anything"
    starts, ends = format_instant(commitment.starts_ms), format_instant(commitment.ends_ms)
    upfront, total = (
        Money(micro, commitment.currency).exact(MICRO_DIGITS)
        for micro in (commitment.upfront_micro, commitment.cost(commitment.term))
    )
    return (
        f"commitment {commitment.name}: {plural(commitment.gpus, 'GPU')} of {place} from {starts}"
        f" to {ends}, {plural(str(hours), 'hour')}; {upfront} {commitment.currency} upfront +"
        f" {_trimmed(str(commitment.rate))} per GPU-hour = {total} {commitment.currency} in all"
    )


def _choice_line(choice: PurchaseChoice) -> str:
    tags = " ".join(f"{name}={value}" for name, value in choice.tags.items())
    place = (
        " ".join(filter(None, (choice.pool, choice.gpu_model, choice.node, tags))) or "everything"
    )
    return f"{choice.purchase} for {place}" + (f" ({choice.name})" if choice.name else "")


def _trimmed(decimal: str) -> str:
    return decimal.rstrip("0").rstrip(".") if "." in decimal else decimal


@app.command(
    "set",
    epilog=(
        "Example: gpuledger prices set --model H100 --rate 2.49 --currency USD --from 2026-11-01"
    ),
)
def set_price(
    rate: Annotated[str, Option("--rate", help="Money per GPU-hour, at most 9 decimals.")],
    currency: Annotated[str, Option("--currency", help="ISO 4217 code.")],
    start: Annotated[
        str, Option("--from", metavar="INSTANT", help="In force from (a date is its UTC midnight).")
    ],
    end: Annotated[
        str, Option("--to", metavar="INSTANT", help="In force until, not included.")
    ] = "",
    pool: Annotated[str, Option("--pool", help="Only for this pool.")] = "",
    model: Annotated[
        str, Option("--model", help="Only for this GPU model (a name, or words of it).")
    ] = "",
    purchase: Annotated[
        str, Option("--purchase", help="on_demand, spot, reserved or owned.")
    ] = "on_demand",
    list_rate: Annotated[str, Option("--list-rate", help="List price per GPU-hour.")] = "",
    region: Annotated[
        str, Option("--region", help="Only for pools that [[location]] puts there.")
    ] = "",
    node: Annotated[str, Option("--node", help="Only on this node.")] = "",
    dry_run: options.DryRun = False,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Add one rate; the same place and instant with another rate supersedes the one before."""
    given = (pool, model, purchase, rate, currency, start, end, list_rate, region, node)
    problems: list[Problem] = []
    declared = DeclaredPrice.collect(
        [Record("prices set", 1, dict(zip(NAMES, given, strict=True)))], problems
    )
    if problems:
        refuse(
            "; ".join(
                f"{problem.source.rsplit(':', 1)[1]} {problem.message}" for problem in problems
            )
        )
    with open_session(dsn, config) as session:
        try:
            with session.database.transaction(dry_run=dry_run) as connection:
                outcome = prices.add(connection, declared, wiring.now())
                warn_of_regions(locations.unknown_regions(connection))
        except CurrencyChanged as error:
            refuse("; ".join(f"--currency: {problem.message}" for problem in error.problems))
    verdict = (
        "added"
        if outcome.added
        else "superseded the one before"
        if outcome.updated
        else "is the same as before"
    )
    print(f"the rate {verdict}; {days_note(outcome)}" + dry_run_note(dry_run))
