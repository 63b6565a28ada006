"""Commitments, choices of purchase and exchange rates in Postgres: superseded rather than edited."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from gpuledger_collector.accounting.commitments import Commitment
from gpuledger_collector.accounting.exchange import ExchangeRate
from gpuledger_collector.accounting.ledger_rows import ImportOutcome
from gpuledger_collector.accounting.period import DAY_MS
from gpuledger_collector.accounting.pricing import PurchaseChoice
from gpuledger_collector.storage.ledger import usage
from gpuledger_collector.storage.ledger.dated_rows import DatedTable
from gpuledger_collector.storage.locks import Connection

COMMITMENTS = DatedTable(
    "commitment",
    Commitment,
    "name, id",
    renamed={"rate": "rate_per_gpu_hour"},
    is_read_at_closes=False,
)
CHOICES = DatedTable("purchase_choice", PurchaseChoice, "position, id", is_read_at_closes=False)
EXCHANGE_RATES = DatedTable(
    "exchange_rate", ExchangeRate, "from_currency, to_currency, effective_from_ms, id"
)
"""For the view of a report: the ledger does not change by them, and nothing is rated again."""


def replace_commitments(
    connection: Connection, commitments: Sequence[Commitment], now_ms: int
) -> ImportOutcome:
    """The commitments become these; the days of the terms of those that came or went are marked for
    rating.
    """
    before = COMMITMENTS.in_force(connection)
    outcome = COMMITMENTS.replace(connection, commitments, now_ms)
    marked = 0
    for commitment in set(before) ^ set(COMMITMENTS.in_force(connection)):
        marked += connection.execute(
            "INSERT INTO day_recompute (day_ms) SELECT generate_series(%s::bigint, %s::bigint -"
            " 1, %s)",
            (
                commitment.starts_ms - commitment.starts_ms % DAY_MS,
                min(commitment.ends_ms, now_ms),
                DAY_MS,
            ),
        ).rowcount
    return dataclasses.replace(outcome, days_to_recompute=marked)


def replace_choices(
    connection: Connection, wanted: Sequence[PurchaseChoice], now_ms: int
) -> ImportOutcome:
    """The choices become these; every rated day is marked when one came or went."""
    before = CHOICES.in_force(connection)
    outcome = CHOICES.replace(connection, wanted, now_ms)
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
    return dataclasses.replace(outcome, days_to_recompute=marked)
