"""gpuledger prices: the price book."""

from __future__ import annotations

import enum
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from gpuledger_collector.cli.common import Config, DryRun, Dsn, database, refuse, untouched
from gpuledger_collector.cli.terminal import print_table, say
from gpuledger_common.plurals import plural

if TYPE_CHECKING:
    from gpuledger_collector.accounting.commitments import Commitment
    from gpuledger_collector.accounting.pricing import Price, PurchaseChoice

app = typer.Typer(name="prices", help="The price book: dated rates, versions never edited.", no_args_is_help=True)
COLUMNS = (
    "pool",
    "gpu_model",
    "purchase",
    "rate_per_gpu_hour",
    "currency",
    "effective_from",
    "effective_to",
    "list_rate",
    "region",
    "node",
)


class Shape(enum.StrEnum):
    """Forms of the list."""

    table = "table"
    csv = "csv"
    json = "json"


def register(root: typer.Typer) -> None:
    """Add `gpuledger prices`."""
    root.add_typer(app)


@app.command("list", epilog="Example: gpuledger prices list --format csv > prices.csv")
def list_prices(
    shape: Annotated[Shape, typer.Option("--format", help="Form; csv can be imported again.")] = Shape.table,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say how derived rates were made, and list commitments and choices.")
    ] = False,
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """List the rates in force; with --explain what they were derived from and what is committed."""
    if explain and shape is not Shape.table:
        refuse("--explain goes with the table: csv and json hold what can be imported again")
    with database(dsn, config) as opened:
        from gpuledger_collector.storage.billing import commitments, prices

        with opened.transaction() as connection:
            book = prices.current(connection)
            committed, choices = commitments.current(connection), commitments.choices(connection)
    rows = [_cells(price) for price in book]
    if shape is not Shape.table:
        from gpuledger_collector.export.cells import rows_as

        sys.stdout.write(rows_as(shape.value, COLUMNS, rows))
        return
    _print_table(rows)
    if explain:
        for sentence in (*_derived(book), *map(_committed, committed), *map(_chosen, choices)):
            say(sentence)


def _derived(book: list[Price]) -> list[str]:
    """How each derived rate was made: its parts, which add up to it, and what they follow from."""
    from gpuledger_collector.accounting.owned_hardware import PARTS

    said = []
    for price in book:
        if price.basis is None:
            continue
        facts: dict[str, str] = price.basis["from"]  # type: ignore[assignment]
        parts: dict[str, str] = price.basis["parts"]  # type: ignore[assignment]
        rate, starts = _plain(str(price.rate)), _cells(price)[5]
        made = " + ".join(f"{name} {_plain(part)}" for name in PARTS if (part := parts.get(name)))
        of = f"{plural(facts['gpus'], 'GPU')} of a node" if facts["per"] == "node" else "a GPU"
        energy = (
            "energy is measured, and no part of it"
            if facts["energy"] == "measured"
            else (f"{facts['watts']} W x PUE {facts['pue']} at {facts['price_per_kwh']} per kWh")
        )
        said.append(f"{price.basis['name']}: {rate} {price.currency} per GPU-hour from {starts} = {made}")
        said.append(
            f"  for {of}: {facts['capex']} paid, {facts['salvage']} salvage, {plural(facts['months'], 'month')} = "
            f"{facts['hours']} hours from {facts['in_service']} to {facts['written_off']}; "
            f"opex {facts['opex_per_month']} a month; {energy}"
        )
    return said


def _committed(one: Commitment) -> str:
    from gpuledger_collector.accounting.money import format_minor
    from gpuledger_collector.accounting.period import HOUR_MS, format_instant

    hours = (one.ends_ms - one.starts_ms) // HOUR_MS
    place = " ".join(name for name in (one.pool, one.gpu_model, one.node, one.region) if name) or "anything"
    whole = format_minor(one.cost(one.term), 6)
    return (
        f"commitment {one.name}: {plural(one.gpus, 'GPU')} of {place} from {format_instant(one.starts_ms)} to "
        f"{format_instant(one.ends_ms)}, {plural(str(hours), 'hour')}; {format_minor(one.upfront_micro, 6)} "
        f"{one.currency} upfront + {_plain(str(one.rate))} per GPU-hour = {whole} {one.currency} in all"
    )


def _chosen(one: PurchaseChoice) -> str:
    tags = " ".join(f"{name}={value}" for name, value in one.tags.items())
    place = " ".join(name for name in (one.pool, one.gpu_model, one.node, tags) if name) or "everything"
    return f"{one.purchase} for {place}" + (f" ({one.name})" if one.name else "")


def _print_table(rows: list[list[str]]) -> None:
    from rich.box import SIMPLE_HEAD

    from gpuledger_collector.export.tables import Table

    table = Table(*COLUMNS, box=SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    print_table(table, 200)
    print(f"{plural(len(rows), 'rate')}; an empty pool, model, region or node matches any")


def _cells(price: Price) -> list[str]:
    from gpuledger_collector.accounting.period import format_instant

    ends = "" if price.effective_to_ms is None else format_instant(price.effective_to_ms)
    listed = "" if price.list_rate is None else _plain(str(price.list_rate))
    return [
        price.pool,
        price.gpu_model,
        price.purchase,
        _plain(str(price.rate)),
        price.currency,
        format_instant(price.effective_from_ms),
        ends,
        listed,
        price.region,
        price.node,
    ]


def _plain(number: str) -> str:
    return number.rstrip("0").rstrip(".") if "." in number else number


@app.command("set", epilog="Example: gpuledger prices set --model H100 --rate 2.49 --currency USD --from 2026-11-01")
def set_price(
    rate: Annotated[str, typer.Option("--rate", help="Money per GPU-hour, at most 9 decimals.")],
    currency: Annotated[str, typer.Option("--currency", help="ISO 4217 code.")],
    start: Annotated[
        str, typer.Option("--from", metavar="INSTANT", help="In force from (a date is its UTC midnight).")
    ],
    end: Annotated[str, typer.Option("--to", metavar="INSTANT", help="In force until, not included.")] = "",
    pool: Annotated[str, typer.Option("--pool", help="Only for this pool.")] = "",
    model: Annotated[str, typer.Option("--model", help="Only for this GPU model (a name, or words of it).")] = "",
    purchase: Annotated[str, typer.Option("--purchase", help="on_demand, spot, reserved or owned.")] = "on_demand",
    list_rate: Annotated[str, typer.Option("--list-rate", help="List price per GPU-hour.")] = "",
    region: Annotated[
        str, typer.Option("--region", help="Refused: no accelerator has a region yet; name its pool.")
    ] = "",
    node: Annotated[str, typer.Option("--node", help="Only on this node.")] = "",
    dry_run: DryRun = False,
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """Add one rate; the same place and instant with another rate supersedes the one before."""
    from gpuledger_collector.accounting.problems import Problem
    from gpuledger_collector.config.model import Record
    from gpuledger_collector.config.prices import DeclaredPrice

    given = (pool, model, purchase, rate, currency, start, end, list_rate, region, node)
    problems: list[Problem] = []
    declared = DeclaredPrice.collect([Record("prices set", 1, dict(zip(COLUMNS, given, strict=True)))], problems)
    if problems:
        refuse("; ".join(f"{problem.source.rsplit(':', 1)[1]} {problem.message}" for problem in problems))
    with database(dsn, config) as opened:
        from gpuledger_collector.storage.billing import prices
        from gpuledger_collector.wiring import now

        with opened.transaction(dry_run=dry_run) as connection:
            try:
                done = prices.add(connection, declared, now())
            except prices.CurrencyChanged as error:
                refuse("; ".join(f"--currency: {one.message}" for one in error.problems))
    said = "added" if done.added else "superseded the one before" if done.updated else "is the same as before"
    print(f"the rate {said}; {plural(done.days_to_recompute, 'day')} to rate again" + untouched(dry_run))
