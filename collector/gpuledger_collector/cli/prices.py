"""gpuledger prices: the price book."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Annotated

from typer import Option

from gpuledger_collector import wiring
from gpuledger_collector.accounting.model_prices import COSTS, HELD
from gpuledger_collector.accounting.problems import Problem
from gpuledger_collector.cli import options
from gpuledger_collector.cli.apply import days_note, no_pool_in, warn_of_regions
from gpuledger_collector.cli.common import (
    dry_run_note,
    new_app,
    refuse,
    require_folder,
    time_range,
)
from gpuledger_collector.cli.output import emit_report, report_text, terminal_width, write_text
from gpuledger_collector.cli.session import Session, ledger_command
from gpuledger_collector.cli.terminal import say
from gpuledger_collector.config.model import Record
from gpuledger_collector.config.prices import DeclaredPrice
from gpuledger_collector.export.model_prices import MODEL_PRICES, currency_notes, litellm_text
from gpuledger_collector.export.prices import PRICES, choice_text, commitment_text, explain_rates
from gpuledger_collector.services.imports import Writing, import_prices
from gpuledger_collector.services.model_prices import UnknownServer, read_model_prices
from gpuledger_collector.services.price_book import list_prices as read_book
from gpuledger_common.plurals import plural

app = new_app(
    name="prices", help="The price book: dated rates, versions never edited.", no_args_is_help=True
)


class ModelPriceFormat(enum.StrEnum):
    """Forms of prices of models."""

    table = "table"
    csv = "csv"
    json = "json"
    litellm = "litellm"


@app.command("list", epilog="Example: gpuledger prices list --format csv > prices.csv")
@ledger_command
def list_prices(
    session: Session,
    form: options.Form = options.Format.table,
    explain: Annotated[
        bool,
        Option(
            "--explain", help="Say how derived rates were made, and list commitments and choices."
        ),
    ] = False,
) -> None:
    """List the rates in force; csv can be imported again.

    With --explain: their derivation, and what is committed.
    """
    if explain and form is not options.Format.table:
        refuse("--explain goes with the table: csv and json hold what can be imported again")
    book = read_book(session.database)
    footer = [
        f"{plural(len(book.prices), 'rate')}; an empty pool, model, region or node matches any",
        *map(no_pool_in, book.unknown_regions),
    ]
    if explain:
        footer += [
            *explain_rates(book.prices),
            *map(commitment_text, book.commitments),
            *map(choice_text, book.choices),
        ]
    emit_report(form, PRICES, book.prices, footer)


@app.command(
    "set",
    epilog=(
        "Example: gpuledger prices set --model H100 --rate 2.49 --currency USD --from 2026-11-01"
    ),
)
@ledger_command
def set_price(
    session: Session,
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
) -> None:
    """Add one rate; the same place and instant with another rate supersedes the one before."""
    cells = {
        "pool": pool,
        "gpu_model": model,
        "purchase": purchase,
        "rate_per_gpu_hour": rate,
        "currency": currency,
        "effective_from": start,
        "effective_to": end,
        "list_rate": list_rate,
        "region": region,
        "node": node,
    }
    problems: list[Problem] = []
    declared = DeclaredPrice.collect([Record("prices set", 1, cells)], problems)
    if problems:
        refuse(
            "; ".join(
                f"{problem.source.rsplit(':', 1)[1]} {problem.message}" for problem in problems
            )
        )

    def refuse_currencies(changed: Sequence[Problem]) -> None:
        if changed:
            refuse("; ".join(f"--currency: {problem.message}" for problem in changed))

    into = Writing(session.database, wiring.read_clock(), dry_run)
    outcome, unknown = import_prices(into, declared, refuse_currencies)
    warn_of_regions(unknown)
    verdict = (
        "added"
        if outcome.added
        else "superseded the one before"
        if outcome.updated
        else "is the same as before"
    )
    print(f"the rate {verdict}; {days_note(outcome)}" + dry_run_note(dry_run))


@app.command(
    "models",
    epilog=(
        "Example: gpuledger prices models --period 2026-10 --format litellm -o model-prices.json"
    ),
)
@ledger_command
def list_models(
    session: Session,
    cost: Annotated[
        str,
        Option("--cost", help="held: all of a server's cost; used: without idle time."),
    ] = HELD,
    server: Annotated[
        str, Option("--server", metavar="NAME", help="Only models that this server answered.")
    ] = "",
    period: options.PeriodName = None,
    start: options.FirstDay = None,
    end: options.LastDay = None,
    days: options.LastDays = None,
    form: Annotated[
        ModelPriceFormat, Option("--format", help="Form of the output.")
    ] = ModelPriceFormat.table,
    output: options.Output = None,
) -> None:
    """List what a million tokens of each model cost on our own servers.

    --format litellm writes prices of a token by model, as LiteLLM takes them. A model whose price
    is not known is not in the list, and a sentence says why.
    """
    if cost not in COSTS:
        refuse(f"--cost: {cost!r} is not one of {', '.join(COSTS)}")
    require_folder(output)
    span = session.rate_range(time_range(period, start, end, days))
    with session.database.transaction(read_only=True) as connection:
        try:
            answer = read_model_prices(connection, span, cost, server)
        except UnknownServer as error:
            refuse(f"--server: {error}")
    prices, notes = answer.prices, list(answer.notes)
    if form is ModelPriceFormat.litellm:
        currencies = sorted({price.currency for price in prices})
        if len(currencies) > 1:
            refuse(
                f"prices are in {' and '.join(currencies)}, and LiteLLM adds all of them up:"
                " choose a --server"
            )
        notes = [*currency_notes(prices), *notes]
        write_text(litellm_text(prices), output)
    else:
        width = terminal_width() if output is None else None
        listed = report_text(options.Format(form.value), MODEL_PRICES, prices, width)
        write_text(listed, output)
    for note in notes:
        # Beside a file or a page for programs, sentences are for people.
        say(note, error=form is not ModelPriceFormat.table)
