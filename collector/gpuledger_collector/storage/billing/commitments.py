"""Commitments, choices of purchase and exchange rates in Postgres: superseded rather than edited."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import replace as changed

from gpuledger_collector.accounting.commitments import Commitment
from gpuledger_collector.accounting.exchange import ExchangeRate
from gpuledger_collector.accounting.ledger_rows import ImportOutcome
from gpuledger_collector.accounting.period import DAY_MS
from gpuledger_collector.accounting.pricing import PurchaseChoice
from gpuledger_collector.storage.ledger import dated_rows, usage
from gpuledger_collector.storage.locks import Connection

_COLUMNS = (
    "name",
    "gpus",
    "upfront_micro",
    "rate_per_gpu_hour",
    "currency",
    "starts_ms",
    "ends_ms",
    "pool",
    "gpu_model",
    "node",
    "region",
)
_CHOICE = (
    "name",
    "position",
    "purchase",
    "pool",
    "gpu_model",
    "node",
    "tags",
    "effective_from_ms",
    "effective_to_ms",
)
_EXCHANGE = ("from_currency", "to_currency", "rate", "effective_from_ms")


def current(connection: Connection) -> list[Commitment]:
    """The commitments of the book, whatever their terms, by name."""
    rows = connection.execute(
        f"SELECT id, {', '.join(_COLUMNS)} FROM commitment WHERE superseded_at IS NULL ORDER BY"
        " name, id"
    )
    return [Commitment(*row) for row in rows]


def by_id(connection: Connection, ids: Iterable[int]) -> dict[int, Commitment]:
    """Commitments by id, superseded ones too: charges name the version that covers them."""
    rows = connection.execute(
        f"SELECT id, {', '.join(_COLUMNS)} FROM commitment WHERE id = ANY(%s)", (list(ids),)
    )
    return {row[0]: Commitment(*row) for row in rows}


def replace(
    connection: Connection, commitments: Sequence[Commitment], now: dt.datetime
) -> ImportOutcome:
    """The commitments become these; the days of the terms of those that came or went are marked for
    rating.
    """
    rows = [
        dict(
            zip(
                _COLUMNS,
                (
                    commitment.name,
                    commitment.gpus,
                    commitment.upfront_micro,
                    commitment.rate,
                    commitment.currency,
                    commitment.starts_ms,
                    commitment.ends_ms,
                    commitment.pool,
                    commitment.gpu_model,
                    commitment.node,
                    commitment.region,
                ),
                strict=True,
            )
        )
        for commitment in commitments
    ]
    before = current(connection)
    outcome = dated_rows.replace_rows(connection, "commitment", _COLUMNS, rows, now)
    now_ms = int(now.timestamp() * 1000)
    marked = 0
    for commitment in set(before) ^ set(current(connection)):
        marked += connection.execute(
            "INSERT INTO day_recompute (day_ms) SELECT generate_series(%s::bigint, %s::bigint -"
            " 1, %s)",
            (
                commitment.starts_ms - commitment.starts_ms % DAY_MS,
                min(commitment.ends_ms, now_ms),
                DAY_MS,
            ),
        ).rowcount
    return changed(outcome, days_to_recompute=marked)


def choices(connection: Connection) -> list[PurchaseChoice]:
    """The choices of purchase, by position."""
    rows = connection.execute(
        f"SELECT id, {', '.join(_CHOICE)} FROM purchase_choice WHERE superseded_at IS NULL ORDER BY"
        " position, id"
    )
    return [PurchaseChoice(row[0], **dict(zip(_CHOICE, row[1:], strict=True))) for row in rows]


def replace_choices(
    connection: Connection, wanted: Sequence[PurchaseChoice], now: dt.datetime
) -> ImportOutcome:
    """The choices become these; every rated day is marked when one came or went."""
    rows = [{name: getattr(choice, name) for name in _CHOICE} for choice in wanted]
    before = choices(connection)
    outcome = dated_rows.replace_rows(connection, "purchase_choice", _CHOICE, rows, now)
    marked = 0
    if outcome.added or outcome.updated:
        bounds = {
            at
            for choice in [*before, *wanted]
            for at in (choice.effective_from_ms, choice.effective_to_ms)
        }
        usage.request_recompute_at(connection, [at for at in bounds if at is not None])
        marked = connection.execute(
            "INSERT INTO day_recompute (day_ms) SELECT day_ms FROM conservation_check"
        ).rowcount
    return changed(outcome, days_to_recompute=marked)


def exchange(connection: Connection, at: dt.datetime | None = None) -> list[ExchangeRate]:
    """Read the exchange rates in force, now or at an instant, by currencies and date, for the view
    of a report.
    """
    rows = connection.execute(
        f"SELECT {', '.join(_EXCHANGE)} FROM exchange_rate WHERE {dated_rows.IN_FORCE} "
        "ORDER BY from_currency, to_currency, effective_from_ms, id",
        {"at": at},
    )
    return [ExchangeRate(*row) for row in rows]


def replace_exchange(
    connection: Connection, rates: Sequence[ExchangeRate], now: dt.datetime
) -> ImportOutcome:
    """The exchange rates become these.

    The ledger does not change by them: nothing is rated again.
    """
    rows = [{name: getattr(rate, name) for name in _EXCHANGE} for rate in rates]
    since = dated_rows.after_closes(connection, now)
    return dated_rows.replace_rows(connection, "exchange_rate", _EXCHANGE, rows, since)
