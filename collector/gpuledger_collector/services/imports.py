"""Imports: what a file says is written in one transaction, undone in a dry run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from gpuledger_collector.accounting.fair_share import PoolShare
from gpuledger_collector.accounting.import_progress import OnRow, tell_nobody
from gpuledger_collector.accounting.inference import TokenRecord
from gpuledger_collector.accounting.ledger_rows import (
    ImportOutcome,
    InventoryRow,
    OnOverlap,
    SampleRow,
    UsageRow,
)
from gpuledger_collector.accounting.period import DAY_MS, Period
from gpuledger_collector.accounting.pricing import Price
from gpuledger_collector.accounting.problems import Problem
from gpuledger_collector.ingest.files.bill import BillFile
from gpuledger_collector.ingest.files.node_load import node_loads, overfull
from gpuledger_collector.ingest.files.usage import UsageFile
from gpuledger_collector.insight.queue_rows import QueueRow
from gpuledger_collector.storage.billing import (
    bills,
    declarations,
    inference,
    locations,
    periods,
    prices,
)
from gpuledger_collector.storage.capacity import queues
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.ledger import imports, inventory, token_counters, token_usage
from gpuledger_collector.storage.ledger.token_usage import StoredTokens
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.telemetry import partitions

NEWEST_AGAIN_MS = DAY_MS
"""How long before the newest known request the next reading begins: LiteLLM writes its logs some
time after a request has ended, and not in their order.
"""


class CountedTwice(Exception):
    """A gateway whose metrics pages are read as well; the message names it."""


@dataclass(frozen=True, slots=True)
class Writing:
    """Where an import is written, and when; `on_row` is told how far it is."""

    database: Database
    now_ms: int
    dry_run: bool = False
    on_row: OnRow = tell_nobody

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """The transaction of the import."""
        with self.database.transaction(dry_run=self.dry_run) as connection:
            yield connection


def import_usage(into: Writing, parsed: UsageFile, on_overlap: OnOverlap) -> ImportOutcome:
    """Write who held how many GPUs. Raises OtherSource."""
    with into.transaction() as connection:
        marks = periods.last_marks(connection)
        outcome = imports.add_usage(
            connection,
            parsed.rows,
            into.now_ms,
            parsed.columns,
            parsed.source,
            on_overlap,
            into.on_row,
        )
        return _with_closed_months(connection, outcome, marks)


def _with_closed_months(
    connection: Connection, outcome: ImportOutcome, since: periods.Marks
) -> ImportOutcome:
    """The outcome with the closed months among the days that it marked."""
    return replace(outcome, closed_months=periods.closed_months_marked(connection, since))


def find_overfull_nodes(database: Database, rows: Sequence[UsageRow]) -> list[str]:
    """Sentences about nodes on which jobs hold more GPUs at once than the ledger knows there, or
    than is usual.
    """
    loads = list(node_loads(rows))
    if not loads:
        return []
    period = Period(min(load.at_ms for load in loads), max(load.at_ms for load in loads) + 1)
    with database.transaction(read_only=True) as connection:
        known = inventory.gpus_by_node(connection, [load.node for load in loads], period)
        return overfull(loads, known)


def import_prices(
    into: Writing, rows: Sequence[Price], check: Callable[[Sequence[Problem]], None]
) -> tuple[ImportOutcome, list[str]]:
    """Write a price book, and list the regions in it where no pool stands.

    `check` is given the rows whose currency is not that of the rates in force, which are left out
    unless it raises.
    """
    with into.transaction() as connection:
        problems = prices.currency_changes(connection, rows)
        check(problems)
        marks = periods.last_marks(connection)
        bad = {problem.source.rpartition(":")[0] for problem in problems}
        good = [price for price in rows if price.source not in bad]
        outcome = prices.add(connection, good, into.now_ms, into.on_row)
        unknown = locations.unknown_regions(connection)
        return _with_closed_months(connection, outcome, marks), unknown


def import_inventory(into: Writing, rows: Sequence[InventoryRow]) -> ImportOutcome:
    """Replace the placements of the accelerators that a file names."""
    with into.transaction() as connection:
        marks = periods.last_marks(connection)
        outcome = inventory.replace_inventory(connection, rows, into.now_ms, into.on_row)
        return _with_closed_months(connection, outcome, marks)


def import_samples(into: Writing, rows: Sequence[SampleRow]) -> ImportOutcome:
    """Write samples; where they have become coarse, only their rollup."""
    before_ms = partitions.coarse_before(into.now_ms)
    with into.transaction() as connection:
        return imports.add_samples(connection, rows, before_ms, into.on_row)


def import_bills(into: Writing, parsed: BillFile, file: str) -> ImportOutcome:
    """Write a provider's bills; a newer file of a billing period supersedes the one before."""
    rows = [
        (key.provider, Period(key.start_ms, key.end_ms), lines)
        for key, lines in parsed.bills.items()
    ]
    with into.transaction() as connection:
        return bills.add(connection, rows, file, parsed.sha256, into.now_ms, into.on_row)


def import_queue(into: Writing, rows: Sequence[QueueRow]) -> ImportOutcome:
    """Write what waited for GPUs."""
    with into.transaction() as connection:
        return queues.add(connection, rows, into.now_ms, into.on_row)


def import_shares(into: Writing, rows: Sequence[PoolShare], read_from: str) -> ImportOutcome:
    """Replace the shares of a pool that were read from the same scheduler."""
    with into.transaction() as connection:
        return declarations.replace_shares(connection, rows, into.now_ms, read_from, into.on_row)


def import_token_usage(
    into: Writing,
    records: Sequence[TokenRecord],
    also: bool = False,
    check: Callable[[Sequence[TokenRecord]], None] | None = None,
) -> StoredTokens:
    """Write what tenants were answered by a gateway; what is known changes nothing.

    `check` is given the records whose model no declared server answers, which are left out unless
    it raises; without it they are written too. Raises CountedTwice where metrics pages of the
    gateway were read in their time, unless `also` says that these are other tokens.
    """
    with into.transaction() as connection:
        if not also and (paged := token_counters.gateways_read(connection, records)):
            raise CountedTwice(
                f"metrics pages of {' and '.join(paged)} were read in the time of these records"
                " too, so tokens would count twice; --also imports them all the same"
            )
        if check is not None:
            unknown = inference.find_unknown_models(connection, records)
            check(unknown)
            left_out = {record.source_id for record in unknown}
            records = [record for record in records if record.source_id not in left_out]
        return token_usage.store_token_usage(connection, records)


def next_token_usage_ms(database: Database, gateway: str) -> int:
    """From when on requests of a gateway are to be read; 0 where none is known."""
    with database.transaction(read_only=True) as connection:
        newest_ms = token_usage.newest_request_ms(connection, gateway)
    return 0 if newest_ms is None else max(0, newest_ms - NEWEST_AGAIN_MS)
